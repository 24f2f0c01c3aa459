"""The analyses by name, with what each needs. Importing this module does not load torch."""

from __future__ import annotations

from hydractl.stages.evaluate.analyses.spec import Analysis, AnalysisNeeds


def _analysis(name: str, source: str, *needs: AnalysisNeeds) -> Analysis:
    path = f"hydractl.research.analyses.{name}:analyse"
    return Analysis(name=name, path=path, source=source, needs=frozenset(needs))


ANALYSES = (
    _analysis("proposition", "Proposition 1, B.1", AnalysisNeeds.CORRUPTIONS, AnalysisNeeds.BASE),
    _analysis("centroids", "Table 5", AnalysisNeeds.OOD),
    _analysis("pca", "Figure 4", AnalysisNeeds.OOD, AnalysisNeeds.SCORES),
    _analysis("members", "Table 10", AnalysisNeeds.MEMBERS),
    _analysis("mlps", "Table 11", AnalysisNeeds.MERGED),
    _analysis("heads", "Figure 5", AnalysisNeeds.SCORES, AnalysisNeeds.WHOLE),
    _analysis("taylor", "Figure 7"),
)
