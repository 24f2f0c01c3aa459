"""One report, or several of different seeds or data sets together: each number of each row, and the lead of the first row, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, sqrt
from statistics import fmean, stdev
from typing import Self

from hydractl.errors import InputError, ManifestError
from hydractl.manifest.report import Report, scaled_alike
from hydractl.manifest.terms import ID_NAME
from hydractl.messages import counted, listed, quoted
from hydractl.metrics.registry import METRICS, TEMPERATURE
from hydractl.reporting.report_values import (
    SEEDS,
    SETS,
    Number,
    Quantity,
    difference_of,
    number_of,
    quantities,
)
from hydractl.version import UPGRADE

LEVEL = 0.95


def student(values: Sequence[float], *, low: float = -inf, high: float = inf) -> Number:
    """Return the mean of two or more values, their deviation, and the interval of the mean by Student's t (1908).

    Args:
        values: Where all are equal, nothing but that is said.
        low: No value can be less, so the interval does not reach beyond.
        high: Likewise.
    """
    if len({*values}) == 1:
        return Number(value=values[0])
    from scipy.special import stdtrit  # noqa: PLC0415 - `--help` does without

    mean, deviation = fmean(values), stdev(values)
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * deviation / sqrt(len(values))
    return Number(value=mean, low=max(low, mean - half), high=min(high, mean + half), deviation=deviation)


def square_and_add(minuend: Number, subtrahend: Number) -> Number:
    """Return a difference with the interval that follows from both intervals, for estimates that are independent.

    Newcombe 1998, method 10; Zou and Donner 2008, eq. 6. Of rows that are right and wrong on the same samples it is too wide.
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
    """Return the mean of estimates on data sets that share no sample, whose interval follows from theirs where all have one.

    Square-and-add of their means: Zou and Donner 2008, eq. 6, with weights 1 / n. It is of these sets, not of others like them.
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
    """Reports that measure the same of rows of the same names.

    Attributes:
        files: What the reports are called.
        reports: Those.
        quantities: What is measured, in the order of tables.
        rows: The numbers of each row, by its name.
        differences: For each other row how much more the first one has: its number minus the other's.
        notes: What a reader must know of them.
        over: What several differ in, and means are over: SEEDS or SETS.
    """

    files: tuple[str, ...]
    reports: tuple[Report, ...]
    quantities: tuple[Quantity, ...]
    rows: Mapping[str, Mapping[Quantity, Number]]
    differences: Mapping[str, Mapping[Quantity, Number]]
    notes: tuple[str, ...]
    over: str = SEEDS

    @classmethod
    def of(cls, reports: Mapping[str, Report], *, over: str = SEEDS) -> Compared:
        """Put reports together.

        Args:
            reports: By what they are called, one at least.
            over: As above.

        Raises:
            InputError: If they do not measure the same.
        """
        files, every = tuple(reports), tuple(reports.values())
        for name, report in reports.items():
            check_known(name, report)
            _check_same(files[0], every[0], name, report)
        if over == SETS:
            _check_apart(reports)
        names = [row.name for row in every[0].rows]
        measured = quantities(every[0])
        # what some report lacks is left out
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
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What the rows are called, the first one first."""
        return tuple(self.rows)

    def scaled_alike(self, other_name: str) -> bool:
        """Return whether every report has a temperature of the first row and of another one, or of neither."""
        pair = {self.names[0], other_name}
        return all(
            TEMPERATURE in report.data
            or scaled_alike(*(row.stored_temperatures for row in report.rows if row.name in pair))
            for report in self.reports
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtimes:
    """How long the ID set takes: the median of a batch's forward pass times the batches, without reading data.

    Attributes:
        samples: Of the ID set.
        batch_size: Of each batch.
        batches: How many these are.
        seconds: Of each row that has a time.
    """

    samples: int
    batch_size: int
    batches: int
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, compared: Compared) -> Self | None:
        """Return those of reports that measured times of two rows at least, the first report's ID set standing for all."""
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

    def ratio(self, row: str) -> float:
        """Return how many times as long a row takes as the fastest one."""
        return self.seconds[row] / min(self.seconds.values())


def _leads(reports: Sequence[Report], row: str, quantity: Quantity, over: str) -> list[Number]:
    """Return how much more the first row of the first report has than another one, by each report."""
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
    """Return what each report says of it that says anything."""
    numbers = [
        number_of(row_of, quantity) for report in reports for row_of in report.rows if row_of.name == row
    ]
    return [number for number in numbers if number is not None]


def _together(quantity: Quantity, numbers: Sequence[Number], over: str, *, gap: bool = False) -> Number:
    """Return several numbers, or differences (`gap`), as one."""
    if len(numbers) == 1:
        return numbers[0]
    metric, values = quantity.metric, [number.value for number in numbers]
    if over == SETS:
        # of OOD sets reports may share samples
        disjoint = quantity.scope is None or quantity.under_shift
        return mean_of_sets(numbers) if disjoint else Number(value=fmean(values))
    return student(values) if gap else student(values, low=metric.low, high=metric.high)


def check_known(name: str, report: Report) -> None:
    """Refuse a report of metrics that this release does not know, whose names would be shown as they are.

    Raises:
        ManifestError: Naming them.
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
    """Return what reports must have alike."""
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
    """Yield what makes numbers less than they seem."""
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
    """Return names without the leading folders that are not needed to distinguish them; equal names stay equal."""

    def shortened(name: str) -> str:
        parts = name.split("/")
        ends = ("/".join(parts[begin:]) for begin in range(len(parts) - 1, 0, -1))
        others = [f"/{other}" for other in names if other != name]
        return next(
            (end for end in ends if end and not any(other.endswith(f"/{end}") for other in others)), name
        )

    return tuple(map(shortened, names))
