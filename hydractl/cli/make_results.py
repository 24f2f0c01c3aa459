"""Results of `make` on the terminal: table, verdict, choice of the model, tests, and the next command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.cli.output import console, line
from hydractl.messages import counted

if TYPE_CHECKING:
    from hydractl.manifest.header import Header

HYDRA, MODEL, REPORT, PAGE = "hydra.st", "model.st", "report.json", "report.html"
"""Files in the output folder: hydra, hydra or model with both tests, report, and page."""
TESTED = "threshold.json"
"""Report of the stage that fits both tests, with example answers for the page."""
CHOICE = "choice.json"
"""Report of hydra and single model on the fitting half of `--val`, for the choice of `model.st`."""
SINGLE = "single"
"""Name of the row of MODEL with `--hydra`."""


def choice(out: Path) -> str:
    """Return the row of `model.st` by the report on the fitting half of `--val`, in the output folder."""
    from hydractl.cli.quality import cheapest
    from hydractl.manifest.report import Report
    from hydractl.reporting.comparison import Compared

    return cheapest(Compared.of({CHOICE: Report.read(out / CHOICE)}))


def show(
    out: Path, *, models: int, makes_members: bool, pick: str | None, smallest: Mapping[str, float]
) -> None:
    """Print the table, the verdict, both tests, and the next command.

    Args:
        out: Output folder of `make`.
        models: Number of given models.
        makes_members: Whether `make` made the members of the hydra.
        pick: Row of `model.st`; None if the row was chosen.
        smallest: Smallest difference of the verdict by metric.
    """
    from hydractl.cli.quality import LEVEL_NOTE, reason, sentence, show_quality
    from hydractl.manifest.report import Report
    from hydractl.reporting.comparison import Compared
    from hydractl.reporting.verdict import guessing

    compared = Compared.of({REPORT: Report.read(out / REPORT)}, smallest=smallest)
    show_quality(compared, unit=SINGLE if makes_members else compared.names[-models])
    verdict = [guessing(compared), *(sentence(compared, opponent) for opponent in compared.differences)]
    verdict += [LEVEL_NOTE] * bool(compared.differences)
    reasons = [f"{MODEL} is the {reason(compared, SINGLE, pick or choice(out))}"] if makes_members else []
    for text in ("", *filter(None, verdict), *reasons, *_outcome(out, models)):
        line(console(), text)


def _outcome(out: Path, models: int) -> Iterator[str]:
    """Yield lines about the cost of the hydra, both tests, and the next command."""
    from hydractl.families.open_model import open_model

    plan = open_model(str(out / HYDRA)).header.plan if models > 1 else None
    if plan is not None and not plan.trunk:
        yield (
            f"The models share no block, so the hydra costs as much as {models} models. Models that "
            "are fine-tuned from the same weights can share a trunk: see docs/start.md"
        )
    model = out / MODEL
    header = open_model(str(model)).header
    known_test, threshold = header.known_test, header.threshold
    if known_test is not None:
        yield f"{MODEL} {known_test.summary}"
    if threshold is not None and threshold.below is not None:
        yield f"{MODEL} {threshold.summary}"
    yield from no_threshold(header, out)
    yield from (
        f"The page: {out / PAGE}",
        f"Next: hydractl predict {shlex.quote(str(model))} INPUTS -o predictions.csv",
    )


def no_threshold(header: Header, out: Path) -> Iterator[str]:
    """Yield the reason why no threshold satisfies the risk, and a hint. Nothing if a threshold satisfies the risk.

    Args:
        header: Header of `model.st`.
        out: Output folder of `make`.
    """
    from hydractl.evaluation.options import DELTA
    from hydractl.manifest.report import Report
    from hydractl.metrics.selective import HALF, fewest

    threshold, known_test = header.threshold, header.known_test
    if threshold is None or threshold.below is not None:
        return
    count, least = threshold.count, fewest(threshold.risk, DELTA)
    accuracy = Report.read(out / TESTED).rows[0].values["accuracy"].value
    few = count < least
    errors = 1 - accuracy
    risk = max(errors, 1 - DELTA ** (1 / max(1, count - 1))) if few else errors + 1 / math.sqrt(count)
    risk = max(math.ceil(100 * risk), round(100 * threshold.risk) + 1) / 100
    part, samples = "half", 2 * least
    if known_test is not None:
        # A quarter of the samples is left, without those that the test of known inputs rejects: on average
        # 1 - share, with a deviation from drawing both quarters, here three times.
        rejected = 1 - known_test.share
        part = "a quarter"
        samples = math.ceil(4 * (least + 3 * math.sqrt(2 * least * rejected)) / known_test.share)
    reason = (
        f"at least {least} known samples are needed, and {part} of `--val` has {count}"
        if few
        else f"the model makes too many errors on the {counted(count, 'known sample')} in {part} of `--val`"
    )
    way = f"give at least {samples} samples in `--val`" if few else "train the models further"
    yield f"No threshold satisfies the risk {threshold.risk:g}: {reason}."
    higher_risk = f", allow more risk: `--risk {risk:g}`" * (risk <= HALF)
    without = ", or leave out this test: `--risk none`" * (known_test is not None)
    yield f"hint: {way}{higher_risk}{without}; add `--force` to replace these outputs"
