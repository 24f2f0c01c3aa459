"""Tables of `eval --analyse`. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import METRICS, needing
from hydractl.reporting.report_values import GROUPS, Cell, Quantity, ReportTable, format_value
from hydractl.reporting.sections import Section
from hydractl.research.corruptions.report import corruption_section

if TYPE_CHECKING:
    from hydractl.manifest.report import Report, Row
    from hydractl.reporting.comparison import Compared
    from hydractl.research.schema import Analyses, EnsembleSize, Pruned, Spread

RowAnalyses = Sequence[tuple["Row", "Analyses"]]
LABELLED = (MetricNeeds.LABELS, MetricNeeds.OOD)


def rows_of(report: Report) -> RowAnalyses:
    """Return pairs of rows and analyses, without rows that have no analyses."""
    pairs: list[tuple[Row, Analyses | None]] = [(row, getattr(row, "analyses", None)) for row in report.rows]
    return [(row, analyses) for row, analyses in pairs if analyses is not None]


def analysis_tables(report: Report) -> Iterator[ReportTable]:
    """Yield the tables of all analyses with results."""
    row_analyses = rows_of(report)
    for make in (_proposition, _centroids, _pca, _members, _mlps, _heads, _taylor):
        yield from make(report, row_analyses)


def _table(
    title: str, heads: Sequence[str], rows: Sequence[tuple[str, tuple[Cell, ...]]]
) -> Iterator[ReportTable]:
    if rows:
        yield ReportTable(title=title, heads=tuple(heads), rows=tuple(rows))


def member_name(row: Row, member: int) -> str:
    """Return the name of a row's member: `hydra, member 0`, or `base` for a row with a single member."""
    return f"{row.name}, member {member}" if row.members > 1 else row.name


def _proposition(_: Report, row_analyses: RowAnalyses) -> Iterator[ReportTable]:
    rows = [
        (
            member_name(row, member),
            _terms([pruned for pruned in analyses.proposition if pruned.member == member]),
        )
        for row, analyses in row_analyses
        for member in dict.fromkeys(pruned.member for pruned in analyses.proposition)
    ]
    heads = (
        "corruptions", "gap", "gap pruned", "widened", "expected", "slope clean", "slope noisy", "curvature more", "diagonal more",
    )  # fmt: skip
    yield from _table("Proposition 1, means over corruptions", heads, rows)


def _terms(prunings: Sequence[Pruned]) -> tuple[Cell, ...]:
    """Return means over corruptions as cells; signed terms have a note such as `≥ 0 in 12` corruptions."""

    def mean(of: Callable[[Pruned], float], *, share: bool = False) -> Cell:
        values = [of(pruned) for pruned in prunings]
        above = f"≥ 0 in {sum(value >= 0 for value in values)}" if share else ""
        return Cell(f"{sum(values) / len(values):.4g}", above)

    error = sum(pruned.deviation for pruned in prunings) / len(prunings)
    diagonal = mean(lambda pruned: pruned.diagonal, share=True)
    return (
        Cell(str(len(prunings))),
        mean(lambda pruned: pruned.gap),
        mean(lambda pruned: pruned.gap_pruned),
        mean(lambda pruned: pruned.widened, share=True),
        mean(lambda pruned: pruned.expected),
        mean(lambda pruned: pruned.slope_clean),
        mean(lambda pruned: pruned.slope, share=True),
        mean(lambda pruned: pruned.curvature - pruned.curvature_clean, share=True),
        Cell(f"{diagonal.value} ± {error:.2g}", diagonal.note),
    )


def _centroids(report: Report, row_analyses: RowAnalyses) -> Iterator[ReportTable]:
    sets = (*report.near, *report.far)
    centroids_by_row = [
        (row.name, analyses.centroids) for row, analyses in row_analyses if analyses.centroids is not None
    ]
    for name, distances in (
        ("Euclidean", [(row, centroids.euclidean) for row, centroids in centroids_by_row]),
        ("Mahalanobis", [(row, centroids.mahalanobis) for row, centroids in centroids_by_row]),
    ):
        rows = [
            (
                row,
                tuple(
                    Cell(f"{x:.3g}")
                    for x in (
                        *(distance_by_set[s] for s in sets),
                        sum(distance_by_set.values()) / max(1, len(distance_by_set)),
                    )
                ),
            )
            for row, distance_by_set in distances
        ]
        yield from _table(
            f"{name} distance of OOD from ID centroids in the last layer, means over heads",
            (*sets, "mean"),
            rows,
        )


def _pca(report: Report, row_analyses: RowAnalyses) -> Iterator[ReportTable]:
    sets = (*report.near, *report.far)
    rows = []
    for row, analyses in row_analyses:
        for scores in dict.fromkeys(planes.scores for planes in analyses.pca):
            planes_of_importance = [planes for planes in analyses.pca if planes.scores == scores]
            for importance, planes in (
                ("most", [p.most for p in planes_of_importance]),
                ("least", [p.least for p in planes_of_importance]),
            ):
                heads = sorted({len(plane.heads) for plane in planes})
                numbers = [sum(sum(plane.variance) for plane in planes) / len(planes)]
                numbers += [sum(plane.mahalanobis[name] for plane in planes) / len(planes) for name in sets]
                name = f"{row.name}, {importance} important by {scores}"
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


def _members(_: Report, row_analyses: RowAnalyses) -> Iterator[ReportTable]:
    sizes = [(row, size) for row, analyses in row_analyses for size in analyses.members]
    if not sizes:
        return
    first = sizes[0][1]
    columns = chosen(first.values, first.means, *LABELLED, MetricNeeds.MEMBERS)
    rows = [
        (
            f"{row.name}, {size.members} of {row.members} members ({size.measured}{'' if size.measured == size.possible else f' of {size.possible}'})",
            tuple(_spread(size, quantity) for quantity in columns),
        )
        for row, size in sizes
    ]
    yield from _table(
        "Ensembles of some members: means, least and greatest",
        [*map(_heading, columns)],
        rows,
    )


def of_size(size: EnsembleSize, quantity: Quantity) -> Spread | None:
    """Return a quantity of the ensembles of a size; None if it was not measured."""
    return (size.values if quantity.scope is None else size.means.get(quantity.scope, {})).get(quantity.name)


def _spread(size: EnsembleSize, quantity: Quantity) -> Cell:
    spread = of_size(size, quantity)
    if spread is None:
        return Cell()
    ends = (format_value(quantity.metric, spread.low), format_value(quantity.metric, spread.high))
    return Cell(
        format_value(quantity.metric, spread.mean), "" if size.measured == 1 else f"[{', '.join(ends)}]"
    )


def _mlps(_: Report, row_analyses: RowAnalyses) -> Iterator[ReportTable]:
    mergings = [(row, analyses.mlps) for row, analyses in row_analyses if analyses.mlps is not None]
    for row, merging in mergings:
        columns = chosen(merging.values, merging.means, *LABELLED, MetricNeeds.MEMBERS)
        pairs = [(merging.values if q.scope is None else merging.means[q.scope])[q.name] for q in columns]
        block, farthest = max(
            merging.distances.items(), key=lambda block_distance: block_distance[1], default=("none", 0.0)
        )
        rows = [
            (
                "merged",
                (
                    *(
                        Cell(format_value(q.metric, pair.merged))
                        for q, pair in zip(columns, pairs, strict=True)
                    ),
                    Cell(f"{merging.agreement:.4f}"),
                    Cell(f"{merging.divergence:.3g}"),
                    Cell(f"{farthest:.3g}", f"in {block}"),
                ),
            ),
            (
                "apart",
                (
                    *(
                        Cell(format_value(q.metric, pair.apart))
                        for q, pair in zip(columns, pairs, strict=True)
                    ),
                    *[Cell()] * 3,
                ),
            ),
        ]
        heads = (*map(_heading, columns), "agreement", "divergence", "farthest weights")
        yield from _table(f"{row.name}: merged weights against its members apart", heads, rows)


def _heads(_: Report, row_analyses: RowAnalyses) -> Iterator[ReportTable]:
    fewer = [(row, base) for row, analyses in row_analyses for base in analyses.heads]
    if not fewer:
        return
    first = fewer[0][1]
    columns = chosen(first.values, first.means, *LABELLED)
    rows = [
        (
            f"{row.name}, {base.kept} of {base.heads} heads by {base.scores}",
            tuple(
                Cell(
                    format_value(q.metric, (base.values if q.scope is None else base.means[q.scope])[q.name])
                )
                for q in columns
            ),
        )
        for row, base in fewer
    ]
    yield from _table("Fewer heads, without training", [*map(_heading, columns)], rows)


def _taylor(_: Report, row_analyses: RowAnalyses) -> Iterator[ReportTable]:
    rows = [
        (
            f"{member_name(row, table.member)}, {table.tower}",
            tuple(Cell(f"{x:.3g}") for x in (sum(scores) / len(scores), min(scores), max(scores))),
        )
        for row, analyses in row_analyses
        for table in analyses.taylor
        if (scores := table.defined_scores)
    ]
    yield from _table("Taylor scores of heads", ("mean", "least", "greatest"), rows)


def chosen(
    values: Collection[str], means: Mapping[str, Collection[str]], *needs: MetricNeeds
) -> list[Quantity]:
    """Return the quantities that a table shows, in the order of tables.

    Args:
        values: Names of the metrics on the ID set.
        means: Names of the metrics by group of OOD sets.
        needs: Kinds of metrics to show. OOD metrics, and member metrics if there are OOD sets, are means over
            the widest group.
    """
    widest = next((group for group in reversed(GROUPS) if group in means), None)
    quantities = []
    for need in needs:
        ranked = need is MetricNeeds.OOD or (need is MetricNeeds.MEMBERS and widest is not None)
        names = means.get(widest or "", ()) if ranked else values
        quantities += [
            Quantity(name, widest if ranked else None)
            for name in needing(METRICS, need)
            if name in names and METRICS[name].column
        ]
    return quantities


def _heading(quantity: Quantity) -> str:
    return quantity.head if quantity.scope is None else f"{quantity.scope} {quantity.head}"


def _section(compared: Compared) -> Section:
    several = len(compared.reports) > 1
    return Section(
        "analyses",
        "Analyses",
        tuple(
            replace(table, title=f"{file}: {table.title}" if several else table.title)
            for file, report in zip(compared.files, compared.reports, strict=True)
            for table in analysis_tables(report)
        ),
        ("proposition", "pca", "members", "fewer-heads", "taylor"),
    )


SECTIONS = {"examples": (corruption_section,), "diversity": (_section,)}
