"""The analyses by name, with what each needs. Importing it loads no torch."""

from __future__ import annotations

from hydractl.stages.evaluate.analyses.spec import Analysis, Needs


def _analysis(name: str, source: str, *needs: Needs) -> Analysis:
    path = f"hydractl.research.analyses.{name}:analyse"
    return Analysis(name=name, path=path, source=source, needs=frozenset(needs))


ANALYSES = (
    _analysis("proposition", "Proposition 1, B.1", Needs.CORRUPTIONS, Needs.BASE),
    _analysis("centroids", "Table 5", Needs.OOD),
    _analysis("pca", "Figure 4", Needs.OOD, Needs.SCORES),
    _analysis("members", "Table 10", Needs.MEMBERS),
    _analysis("mlps", "Table 11", Needs.MERGED),
    _analysis("heads", "Figure 5", Needs.SCORES, Needs.WHOLE),
    _analysis("taylor", "Figure 7"),
)
