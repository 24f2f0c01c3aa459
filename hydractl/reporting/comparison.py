"""Numbers and differences of one report, or of several reports of different seeds or data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, inf, sqrt
from statistics import fmean, stdev
from typing import Self

from hydractl.errors import InputError, ManifestError
from hydractl.manifest.report import Report, store_temperature_alike
from hydractl.manifest.terms import ID_NAME
from hydractl.messages import counted, listed, quoted
from hydractl.metrics.registry import METRICS, TEMPERATURE
from hydractl.reporting.report_values import (
    SEEDS,
    SETS,
    SMALLEST,
    Number,
    Quantity,
    difference_of,
    number_of,
    quantities,
)
from hydractl.version import UPGRADE

LEVEL = 0.95
"""Confidence level of intervals."""


def student(values: Sequence[float], *, low: float = -inf, high: float = inf) -> Number:
    """Return the mean of two or more values, the deviation, and the mean's interval by Student's t (1908).

    Args:
        values: At least two values. If all are equal, the result has neither deviation nor interval.
        low: Lower bound of the interval, the smallest possible value.
        high: Upper bound of the interval, the largest possible value.
    """
    if len({*values}) == 1:
        return Number(value=values[0])
    from scipy.special import stdtrit  # noqa: PLC0415 - `--help` does without

    mean, deviation = fmean(values), stdev(values)
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * deviation / sqrt(len(values))
    return Number(value=mean, low=max(low, mean - half), high=min(high, mean + half), deviation=deviation)


def square_and_add(minuend: Number, subtrahend: Number) -> Number:
    """Return the difference of two independent estimates, with the interval from both intervals.

    Newcombe 1998, method 10; Zou and Donner 2008, eq. 6. The interval is too wide for rows with errors on the
    same samples. Without both intervals the difference has no interval.
    """
    gap = minuend.value - subtrahend.value
    if minuend.interval is None or subtrahend.interval is None:
        return Number(value=gap)
    (low, high), (other_low, other_high) = minuend.interval, subtrahend.interval
    return Number(
        value=gap,
        low=gap - hypot(minuend.value - low, other_high - subtrahend.value),
        high=gap + hypot(high - minuend.value, subtrahend.value - other_low),
    )


def mean_of_sets(numbers: Sequence[Number]) -> Number:
    """Return the mean of estimates on disjoint data sets, with an interval if all estimates have one.

    Square-and-add of the means: Zou and Donner 2008, eq. 6, with weights 1 / n. The interval holds for these
    data sets, not for other sets.
    """
    mean, intervals = fmean(n.value for n in numbers), [n.interval for n in numbers]
    if None in intervals:
        return Number(value=mean)
    below = (n.value - low for n, (low, _) in zip(numbers, filter(None, intervals), strict=True))
    above = (high - n.value for n, (_, high) in zip(numbers, filter(None, intervals), strict=True))
    return Number(
        value=mean, low=mean - hypot(*below) / len(numbers), high=mean + hypot(*above) / len(numbers)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One or several reports with the same rows and measurements.

    Attributes:
        files: Names of the reports.
        reports: The reports.
        quantities: Measured quantities, in the order of tables.
        rows: Numbers of each row, by the row's name.
        differences: For each other row the first row's numbers minus the numbers of this row.
        notes: Remarks that a reader needs.
        over: Difference between reports, over which means are taken: `SEEDS` or `SETS`.
        smallest: Differences below which two rows are level, by metric.
        tests: At most one report: thresholds, known inputs and example answers of a row, on other data. If
            empty, pages show those in `reports`.
    """

    files: tuple[str, ...]
    reports: tuple[Report, ...]
    quantities: tuple[Quantity, ...]
    rows: Mapping[str, Mapping[Quantity, Number]]
    differences: Mapping[str, Mapping[Quantity, Number]]
    notes: tuple[str, ...]
    over: str = SEEDS
    smallest: Mapping[str, float] = field(default_factory=lambda: SMALLEST)
    tests: tuple[Report, ...] = ()

    @classmethod
    def of(
        cls,
        reports: Mapping[str, Report],
        *,
        over: str = SEEDS,
        smallest: Mapping[str, float] = SMALLEST,
        tests: tuple[Report, ...] = (),
    ) -> Compared:
        """Combine reports.

        Args:
            reports: One or more reports, by name.
            over: As above.
            smallest: Values of `smallest` that differ from `SMALLEST`.
            tests: As above.

        Raises:
            InputError: If the reports do not measure the same quantities, or lack the row of `tests`.
            ManifestError: If a report has metrics that this release does not know.
        """
        files, every = tuple(reports), tuple(reports.values())
        for name, report in reports.items():
            check_known(name, report)
            _check_same(files[0], every[0], name, report)
        if over == SETS:
            _check_apart(reports)
        names = [row.name for row in every[0].rows]
        for tested in (report.rows[0].name for report in tests):
            if tested not in names:
                raise InputError(
                    f"`--tests`: has the row `{tested}`, but {files[0]} has the rows {quoted(names)}",
                    hint="name the row with `--name` of `eval`",
                )
        measured = quantities(every[0])
        # quantities that are missing in a report are left out
        values = {
            row: {q: x for q in measured if len(x := _values(every, row, q)) == len(every)} for row in names
        }
        first, *others = names
        return cls(
            files=files,
            reports=every,
            quantities=tuple(q for q in measured if any(q in of_row for of_row in values.values())),
            rows={
                row: {q: _together(q, numbers, over) for q, numbers in by_quantity.items()}
                for row, by_quantity in values.items()
            },
            differences={
                row: {
                    q: _together(q, _leads(every, row, q, over), over, gap=True)
                    for q in measured
                    if q in values[first] and q in values[row]
                }
                for row in others
            },
            notes=tuple(_notes(files, every, over)),
            over=over,
            smallest={**SMALLEST, **smallest},
            tests=tests,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rows, the first row first."""
        return tuple(self.rows)

    def scaled_alike(self, other_name: str) -> bool:
        """Return whether in every report both or neither of the first row and another row have a temperature."""
        pair = {self.names[0], other_name}
        return all(
            TEMPERATURE in report.data
            or store_temperature_alike(*(row.stored_temperatures for row in report.rows if row.name in pair))
            for report in self.reports
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtimes:
    """Time of each row for the ID set.

    The time is the median latency of a batch times the number of batches, without reading data.

    Attributes:
        samples: Number of samples in the ID set.
        batch_size: Number of samples per batch.
        batches: Number of batches.
        seconds: Time of each measured row.
    """

    samples: int
    batch_size: int
    batches: int
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, compared: Compared) -> Self | None:
        """Return the times for the first report's ID set, or `None` if fewer than two rows have a time."""
        report, quantity = compared.reports[0], Quantity("latency_batch_ms")
        size = report.options.get("batch_size")
        count = report.data[ID_NAME].count if ID_NAME in report.data else None
        times = {
            row: by_quantity[quantity].value
            for row, by_quantity in compared.rows.items()
            if quantity in by_quantity
        }
        if not isinstance(size, int) or not count or len(times) < 2:
            return None
        batches = -(-count // size)
        seconds = {row: value * batches / 1e3 for row, value in times.items()}
        return cls(samples=count, batch_size=size, batches=batches, seconds=seconds)

    @property
    def fastest(self) -> str:
        """Name of the fastest row, the reference of ratios."""
        return min(self.seconds, key=self.seconds.__getitem__)

    def ratio(self, row: str) -> float:
        """Return the time of a row divided by the time of the fastest row."""
        return self.seconds[row] / self.seconds[self.fastest]


def _leads(reports: Sequence[Report], row: str, quantity: Quantity, over: str) -> list[Number]:
    """Return the difference of the first row to another row in each report."""
    first, leads = reports[0].rows[0].name, []
    for report in reports:
        rows = {r.name: r for r in report.rows}
        mine, theirs = (number_of(rows[name], quantity) for name in (first, row))
        if mine is not None and theirs is not None:
            resampled = report.rows[0].name == first and (over == SETS or len(reports) == 1)
            paired = difference_of(rows[row], quantity) if resampled else None
            leads.append(paired or square_and_add(mine, theirs))
    return leads


def _values(reports: Sequence[Report], row: str, quantity: Quantity) -> list[Number]:
    """Return the number in each report that has the number."""
    numbers = [
        number_of(row_of, quantity) for report in reports for row_of in report.rows if row_of.name == row
    ]
    return [number for number in numbers if number is not None]


def _together(quantity: Quantity, numbers: Sequence[Number], over: str, *, gap: bool = False) -> Number:
    """Combine the numbers of several reports, or the differences if `gap`."""
    if len(numbers) == 1:
        return numbers[0]
    metric, values = quantity.metric, [number.value for number in numbers]
    if over == SETS:
        # OOD sets of different reports may share samples, so their mean has no interval
        disjoint = quantity.scope is None or quantity.under_shift
        return mean_of_sets(numbers) if disjoint else Number(value=fmean(values))
    return student(values) if gap else student(values, low=metric.low, high=metric.high)


def check_known(name: str, report: Report) -> None:
    """Raise if a report has metrics unknown to this release.

    Names of unknown metrics are arbitrary text, which pages and model cards would show unchanged.

    Raises:
        ManifestError: With the names of the metrics.
    """
    strange = [metric for metric in report.definitions if metric[0] != "@" and metric not in METRICS]
    if strange:
        raise ManifestError(
            f"{name}: measures {quoted(strange)}, which this release of hydractl does not know",
            hint=UPGRADE,
        )


def _check_apart(reports: Mapping[str, Report]) -> None:
    file_by_data: dict[str, str] = {}
    for name, report in reports.items():
        first_file = file_by_data.setdefault(report.data[ID_NAME].sha256, name)
        if first_file != name:
            raise InputError(
                f"{name}: is of the same ID data as {first_file}, which would count twice in a mean over sets",
                hint="name one report of each set; those of several seeds are put together without `--over sets`",
            )


def _check_same(first: str, expected: Report, name: str, report: Report) -> None:
    for (kind, ours), (_, theirs) in zip(_measured(expected), _measured(report), strict=True):
        for holder, names, others, lacks in ((first, ours, theirs, name), (name, theirs, ours, first)):
            if missing := sorted(names - others):
                raise InputError(
                    f"{lacks}: has no {kind} {quoted(missing, most=4)}, which {holder} has",
                    hint="reports are put together that are of one command line but for the models: rows named alike by "
                    "`--name` and `--compare NAME=...`, the same data sets, metrics and scores",
                )


def _measured(report: Report) -> list[tuple[str, set[str]]]:
    """Return the names that must be equal in all reports, by subject."""
    required = [q for q in quantities(report) if not q.metric.may_lack]
    numbers = {f"{q} of {row.name}" for row in report.rows for q in required if number_of(row, q)}
    return [
        ("row", {row.name for row in report.rows}),
        ("near OOD set", {*report.near}),
        ("far OOD set", {*report.far}),
        ("first OOD score", {report.ood_scores[0]}),
        ("number", numbers),
    ]


def _notes(files: Sequence[str], reports: Sequence[Report], over: str) -> Iterator[str]:
    """Yield remarks about the validity of the numbers."""
    if len(reports) == 1:
        yield from _of_one(reports[0])
    else:
        sets = (
            f"Numbers are means over {len(reports)} data sets with equal weights. Brackets hold their 95 % intervals, which follow "
            "from those of the sets (square-and-add) and hold for these sets and models. Means of OOD metrics have none, because sets "
            "may share OOD samples."
        )
        yield from (sets,) if over == SETS else _of_seeds(files, reports)
        if 0 < sum(any(row.curves for row in report.rows) for report in reports) < len(reports):
            yield "Curves are drawn where every report has them: `hydractl eval --no-curves` was given for some."
    yield from (
        f"The heads of {row.name} were chosen with OOD data, which gives it an advantage over the other models."
        for row in reports[0].rows
        if row.ood and row.tuned_on_ood
    )
    for row in reports[0].rows:
        best = {
            report_row.best_score
            for report in reports
            for report_row in report.rows
            if report_row.name == row.name
        } - {None}
        if best:
            yield f"On validation data the best OOD score for {row.name} is {' or '.join(sorted(map(str, best)))}."
    for file, report in zip(files, reports, strict=True):
        yield from (f"{file}: {warning}" if len(reports) > 1 else warning for warning in report.warnings)


def _of_one(report: Report) -> Iterator[str]:
    yield (
        "Intervals hold for these models on samples like these. Models from other seeds give other numbers: `hydractl report` of "
        "several seeds shows how much."
    )
    others = report.rows[1:]
    if paired := [row.name for row in others if row.difference is not None]:
        yield f"Differences from {listed(paired)} use the same resamples for both models."
    if unpaired := [row.name for row in others if row.difference is None]:
        yield (
            f"Intervals of differences from {listed(unpaired)} follow from the intervals of both models, as if each had its own "
            "samples (square-and-add). They are too wide rather than too narrow."
        )


def _of_seeds(files: Sequence[str], reports: Sequence[Report]) -> Iterator[str]:
    first, *others = reports
    freedom = counted(len(others), "degree")
    yield (
        f"Numbers are means over {len(reports)} reports, ± their standard deviation. Brackets hold 95 % intervals of the mean by "
        f"Student's t with {freedom} of freedom. Differences are taken report by report."
    )
    for row in first.rows:
        models = [
            ([m.sha256 for m in report_row.models], report_row.derivations)
            for other_report in reports
            for report_row in other_report.rows
            if report_row.name == row.name
        ]
        if any(model in models[:i] for i, model in enumerate(models)):
            yield f"{row.name} is the same model in several reports, so its deviation does not show the effect of a seed."
    for name, data in first.data.items():
        strange = [
            f
            for f, report in zip(files, reports, strict=True)
            if name in report.data and report.data[name].sha256 != data.sha256
        ]
        if strange:
            yield f"The data set {name} has other samples in {quoted(strange)} than in `{files[0]}`, so deviations include the data (`--over sets` for means over sets)."


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without leading folders, unless a folder is needed to distinguish two names.

    Equal names stay equal.
    """

    def shortened(name: str) -> str:
        parts = name.split("/")
        ends = ("/".join(parts[begin:]) for begin in range(len(parts) - 1, 0, -1))
        others = [f"/{other}" for other in names if other != name]
        return next(
            (end for end in ends if end and not any(other.endswith(f"/{end}") for other in others)), name
        )

    return tuple(map(shortened, names))
