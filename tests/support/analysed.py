"""Reports with random latency values, and with all analyses if research is installed."""

from __future__ import annotations

from importlib.util import find_spec
from random import Random

from hydractl.manifest.document import Value
from hydractl.manifest.head_mask import HeadName
from hydractl.manifest.report import Report, Row

RESEARCH = find_spec("hydractl.research") is not None
if RESEARCH:
    from hydractl.research.schema import (
        Analyses,
        BaseWithFewerHeads,
        CentroidDistances,
        Centroids,
        EnsembleSize,
        HeadTable,
        MergedAndSeparate,
        Merging,
        Plane,
        Planes,
        Pruned,
        Spread,
    )

FIGURES = ["proposition", "pca", "members", "fewer-heads", "taylor", "runtime"] if RESEARCH else ["runtime"]


def analysed(report: Report, *, scores: str = "circuit", seed: int = 0) -> Report:
    """Return a report with latency and every analysis in all rows."""
    draw = Random(seed)  # noqa: S311 - no secret
    rows = tuple(_row(row, (*report.near, *report.far), scores, draw) for row in report.rows)
    return report.model_copy(update={"rows": rows, "options": report.options | {"batch_size": 8}})


def _row(row: Row, sets: tuple[str, ...], scores: str, draw: Random) -> Row:
    times = {"latency_batch_ms": Value(value=2.0 * row.members, count=9)}
    timed = row.model_copy(update={"values": row.values | times})
    return timed.model_copy(update={"analyses": _analyses(row, sets, scores, draw)}) if RESEARCH else timed


def _analyses(row: Row, sets: tuple[str, ...], scores: str, draw: Random) -> Analyses:
    def pruned(member: int) -> Pruned:
        terms = ("gap", "gap_pruned", "slope_clean", "slope", "curvature_clean", "curvature", "diagonal")
        numbers = {name: draw.uniform(-1, 1) for name in terms}
        return Pruned(member=member, corruption="fog:3", moved=9, deviation=0.1, **numbers)

    def plane() -> Plane:
        points = {name: tuple((draw.gauss(), draw.gauss()) for _ in range(5)) for name in ("id", *sets)}
        return Plane(heads=(head,), variance=(0.5, 0.25), points=points, mahalanobis=far)

    head, far = HeadName(tower="vision", layer=1, head=0), {name: draw.uniform(1, 2) for name in sets}
    spread = Spread(mean=0.5, low=0.25, high=0.75)
    values = {"accuracy": 0.5, "nll": 0.75}
    means = {"all": {"auroc": 0.625}}
    return Analyses(
        proposition=tuple(pruned(member) for member in range(row.members)),
        centroids=Centroids(
            heads=(CentroidDistances(member=0, head=head, euclidean=far, mahalanobis=far),),
            euclidean=far,
            mahalanobis=far,
        ),
        pca=tuple(
            Planes(member=member, scores=scores, most=plane(), least=plane()) for member in range(row.members)
        ),
        members=tuple(
            EnsembleSize(
                members=size,
                measured=1,
                possible=1,
                values=dict.fromkeys(values, spread),
                means={"all": {"auroc": spread}},
            )
            for size in range(1, row.members + 1)
        ),
        mlps=Merging(
            values={name: MergedAndSeparate(merged=x, apart=x / 2) for name, x in values.items()},
            agreement=0.875,
            divergence=0.125,
            distances={"vision.1": 0.375},
        ),
        heads=tuple(
            BaseWithFewerHeads(scores=scores, kept=k, heads=8, values=values, means=means) for k in (6, 3)
        ),
        taylor=tuple(
            HeadTable(member=0, tower=tower, scores=((0.25, None), (scale, 0.125)))
            for tower, scale in (("text", 0.0625), ("vision", 0.5))
        ),
    )
