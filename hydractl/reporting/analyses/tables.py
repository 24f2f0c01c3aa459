"""Tables of what `eval --analyse` found. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hydractl.metrics.metric_spec import Needs
from hydractl.metrics.registry import METRICS, needing
from hydractl.reporting.report_values import GROUPS, Cell, Quantity, Table, written

if TYPE_CHECKING:
    from hydractl.manifest.analyses import Analyses, EnsembleSize, Pruned, Spread
    from hydractl.manifest.report import Report, Row

Found = Sequence[tuple["Row", "Analyses"]]
LABELLED = (Needs.LABELS, Needs.OOD)


def analysis_tables(report: Report) -> Iterator[Table]:
    """Yield a table or two of each analysis that found something."""
    found = [(row, row.analyses) for row in report.rows if row.analyses is not None]
    for make in (_proposition, _centroids, _pca, _members, _mlps, _heads, _taylor):
        yield from make(report, found)


def _table(title: str, heads: Sequence[str], rows: Sequence[tuple[str, tuple[Cell, ...]]]) -> Iterator[Table]:
    if rows:
        yield Table(title=title, folded=False, heads=tuple(heads), rows=tuple(rows))


def _member(row: Row, member: int) -> str:
    return f"{row.name}, member {member}" if row.members > 1 else row.name


def _proposition(_: Report, found: Found) -> Iterator[Table]:
    rows = []
    for row, own in found:
        for member in dict.fromkeys(each.member for each in own.proposition):
            each = [pruned for pruned in own.proposition if pruned.member == member]
            rows.append((_member(row, member), _terms(each)))
    heads = (
        "corruptions", "gap", "gap pruned", "widened", "expected", "slope clean", "slope noisy", "curvature more", "diagonal more",
    )  # fmt: skip
    yield from _table(
        "Proposition 1, means over corruptions",
        heads,
        rows,
    )


def _terms(each: Sequence[Pruned]) -> tuple[Cell, ...]:
    """Return means over corruptions, and for how many of them a number is at least 0."""

    def mean(of: Callable[[Pruned], float], *, share: bool = False) -> Cell:
        values = [of(pruned) for pruned in each]
        above = f"≥ 0 in {sum(value >= 0 for value in values)}" if share else ""
        return Cell(f"{sum(values) / len(values):.4g}", above)

    error = sum(pruned.deviation for pruned in each) / len(each)
    diagonal = mean(lambda pruned: pruned.diagonal, share=True)
    return (
        Cell(str(len(each))),
        mean(lambda pruned: pruned.gap),
        mean(lambda pruned: pruned.gap_pruned),
        mean(lambda pruned: pruned.widened, share=True),
        mean(lambda pruned: pruned.expected),
        mean(lambda pruned: pruned.slope_clean),
        mean(lambda pruned: pruned.slope, share=True),
        mean(lambda pruned: pruned.curvature - pruned.curvature_clean, share=True),
        Cell(f"{diagonal.value} ± {error:.2g}", diagonal.more),
    )


def _centroids(report: Report, found: Found) -> Iterator[Table]:
    sets = (*report.near, *report.far)
    there = [(row.name, own.centroids) for row, own in found if own.centroids is not None]
    for name, distances in (
        ("Euclidean", [(row, each.euclidean) for row, each in there]),
        ("Mahalanobis", [(row, each.mahalanobis) for row, each in there]),
    ):
        rows = [
            (
                row,
                tuple(
                    Cell(f"{x:.3g}") for x in (*(own[s] for s in sets), sum(own.values()) / max(1, len(own)))
                ),
            )
            for row, own in distances
        ]
        yield from _table(
            f"{name} distance of OOD from ID centroids in the last layer, means over heads",
            (*sets, "mean"),
            rows,
        )


def _pca(report: Report, found: Found) -> Iterator[Table]:
    sets = (*report.near, *report.far)
    rows = []
    for row, own in found:
        for scores in dict.fromkeys(planes.scores for planes in own.pca):
            each = [planes for planes in own.pca if planes.scores == scores]
            for which, planes in (("most", [p.most for p in each]), ("least", [p.least for p in each])):
                heads = sorted({len(plane.heads) for plane in planes})
                numbers = [sum(sum(plane.variance) for plane in planes) / len(planes)]
                numbers += [sum(plane.mahalanobis[name] for plane in planes) / len(planes) for name in sets]
                name = f"{row.name}, {which} important by {scores}"
                cells = (
                    Cell("-".join(map(str, sorted({heads[0], heads[-1]})))),
                    Cell(f"{100 * numbers[0]:.0f} %"),
                )
                rows.append((name, (*cells, *(Cell(f"{number:.3g}") for number in numbers[1:]))))
    yield from _table(
        "Mahalanobis distance of OOD from ID centroids in two principal components, means over members",
        ("heads", "variance", *sets),
        rows,
    )


def _members(_: Report, found: Found) -> Iterator[Table]:
    sizes = [(row, size) for row, own in found for size in own.members]
    if not sizes:
        return
    first = sizes[0][1]
    wanted = chosen(first.values, first.means, *LABELLED, Needs.MEMBERS)
    rows = [
        (
            f"{row.name}, {size.members} of {row.members} members ({ensembles(size)})",
            tuple(_spread(size, quantity) for quantity in wanted),
        )
        for row, size in sizes
    ]
    yield from _table(
        "Ensembles of some members: means, least and greatest",
        [*map(_heading, wanted)],
        rows,
    )


def ensembles(size: EnsembleSize) -> str:
    """Return how many were measured."""
    all_of = "" if size.measured == size.possible else f" of {size.possible}"
    return f"{size.measured}{all_of}"


def of_size(size: EnsembleSize, quantity: Quantity) -> Spread | None:
    """Return what ensembles of a size say of it."""
    values = size.values if quantity.scope is None else size.means.get(quantity.scope, {})
    return values.get(quantity.name)


def _spread(size: EnsembleSize, quantity: Quantity) -> Cell:
    own = of_size(size, quantity)
    if own is None:
        return Cell()
    ends = (written(quantity.metric, own.low), written(quantity.metric, own.high))
    return Cell(written(quantity.metric, own.mean), "" if size.measured == 1 else f"[{', '.join(ends)}]")


def _mlps(_: Report, found: Found) -> Iterator[Table]:
    there = [(row, own.mlps) for row, own in found if own.mlps is not None]
    for row, merging in there:
        wanted = chosen(merging.values, merging.means, *LABELLED, Needs.MEMBERS)
        pairs = [(merging.values if q.scope is None else merging.means[q.scope])[q.name] for q in wanted]
        block, farthest = max(merging.distances.items(), key=lambda each: each[1], default=("none", 0.0))
        rows = [
            (
                "merged",
                (
                    *(Cell(written(q.metric, pair.merged)) for q, pair in zip(wanted, pairs, strict=True)),
                    Cell(f"{merging.agreement:.4f}"),
                    Cell(f"{merging.divergence:.3g}"),
                    Cell(f"{farthest:.3g}", f"in {block}"),
                ),
            ),
            (
                "apart",
                (
                    *(Cell(written(q.metric, pair.apart)) for q, pair in zip(wanted, pairs, strict=True)),
                    *[Cell()] * 3,
                ),
            ),
        ]
        heads = (*map(_heading, wanted), "agreement", "divergence", "farthest weights")
        yield from _table(f"{row.name}: merged weights against its members apart", heads, rows)


def _heads(_: Report, found: Found) -> Iterator[Table]:
    fewer = [(row, each) for row, own in found for each in own.heads]
    if not fewer:
        return
    first = fewer[0][1]
    wanted = chosen(first.values, first.means, *LABELLED)
    rows = [
        (
            f"{row.name}, {each.kept} of {each.heads} heads by {each.scores}",
            tuple(
                Cell(written(q.metric, (each.values if q.scope is None else each.means[q.scope])[q.name]))
                for q in wanted
            ),
        )
        for row, each in fewer
    ]
    yield from _table("Fewer heads, without training", [*map(_heading, wanted)], rows)


def _taylor(_: Report, found: Found) -> Iterator[Table]:
    rows = []
    for row, own in found:
        for table in own.taylor:
            known = table.defined_scores
            if known:
                numbers = (sum(known) / len(known), min(known), max(known))
                name = f"{_member(row, table.member)}, {table.tower}"
                rows.append((name, tuple(Cell(f"{number:.3g}") for number in numbers)))
    yield from _table("Taylor scores of heads", ("mean", "least", "greatest"), rows)


def chosen(values: Collection[str], means: Mapping[str, Collection[str]], *needs: Needs) -> list[Quantity]:
    """Return what is shown of some numbers, in the order of tables, of OOD data the means over the widest group.

    Args:
        values: Metrics of the ID set that there are.
        means: Those of groups of OOD sets.
        needs: Of the metrics; those of OOD data, and of members there, are of the group.
    """
    widest = next((group for group in reversed(GROUPS) if group in means), None)
    found = []
    for need in needs:
        ranked = need is Needs.OOD or (need is Needs.MEMBERS and widest is not None)
        there = (means[widest] if widest is not None else ()) if ranked else values
        scope = widest if ranked else None
        found += [
            Quantity(name, scope) for name in needing(METRICS, need) if name in there and METRICS[name].column
        ]
    return found


def _heading(quantity: Quantity) -> str:
    return quantity.heading if quantity.scope is None else f"{quantity.heading} {quantity.scope}"
