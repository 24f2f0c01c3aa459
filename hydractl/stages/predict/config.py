"""Configuration of `predict`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from hydractl.data.reference import BUILT_IN, LINES, DataRef, image_path, is_file
from hydractl.errors import UsageError
from hydractl.metrics import ood_scores
from hydractl.output.publish import STDOUT, OutputKind, is_stream
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.processes.distributed import refuse_shared_input
from hydractl.provenance.command_config import IF_CHANGED_BESIDE, CommandConfig, InputRef
from hydractl.settings import (
    Constraint,
    Role,
    Setting,
    by_default,
    check,
    details,
    flag,
    number,
    required,
    setting,
)
from hydractl.stages import options as shared

FORMS = (".jsonl", ".csv", ".parquet")
"""File name suffixes of prediction tables."""

NO_THRESHOLD = inf


def parse_threshold(text: str) -> float | Path:
    """Parse a number, `none`, or the path of a report. Return infinity for `none`.

    A path ends in `.json` or contains a slash. A path like a number must be written as `./2`.

    Raises:
        UsageError: If the text is neither.
    """
    if text == "none":
        return NO_THRESHOLD
    try:
        return number("--threshold", text)
    except UsageError:
        if text.lower().endswith(".json") or "/" in text:
            return Path(text)
        raise


def check_bound(score: str, bound: float) -> None:
    """Check that a threshold can both accept and reject inputs.

    Raises:
        UsageError: If the threshold is outside the range of the OOD score.
    """
    low, high = ood_scores.limits(score)
    if bound != NO_THRESHOLD and not low <= bound <= high:
        raise UsageError(
            f"`--threshold {bound:g}`: the OOD score `{score}` is between {low:g} and {high:g}",
            hint=f"to accept probabilities above {bound:g}, use `--threshold {-bound:g}`"
            if score == ood_scores.MSP and 0 < bound < 1
            else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictConfig(CommandConfig):
    """Options of `predict`."""

    COMMAND: ClassVar[str] = "predict"
    COMMON = (
        "out",
        "top_k",
        "ood_score",
        "train",
        "threshold",
        "classes",
        "batch_size",
        "device",
        "force",
        "json",
    )
    model: str = required(shared.MODEL)
    data: tuple[str, ...] = required(
        Setting(
            f"Image files, a folder or a table; `-` reads a text or an image path per line from standard input.{shared.DATA_DETAILS}",
            metavar="DATA...",
            suggestions=BUILT_IN,
            positional=True,
            shows_default=False,
        )
    )
    """Labels are ignored."""
    out: Path = by_default(
        STDOUT,
        replace(
            shared.OUT,
            check_path=OutputKind(description="a table of predictions", suffixes=FORMS, decides=True),
            help=f"Output file in {', '.join(FORMS)} (default: JSON lines on standard output).",
        ),
    )
    top_k: int = setting(5, "Number of most probable classes to list.", low=1, metavar="K")
    """A model with fewer classes lists all classes."""
    ood_score: str | None = setting(
        None,
        "OOD score, with options as in `knn:k=5`."
        + details(
            f"{', '.join(ood_scores.SCORES)}; with `--train`, or if MODEL stores it: {', '.join(ood_scores.FITTED)}."
        )
        + f"Default: {ood_scores.ENERGY_DENSITY} if stored, else {ood_scores.MSP}.",
        panel=shared.OOD,
        metavar="SCORE",
        parse=ood_scores.parse_score,
        suggestions=ood_scores.EVERY,
    )
    train: DataRef | None = by_default(
        None,
        replace(
            shared.TRAIN,
            panel=shared.OOD,
            excludes=(
                Constraint(
                    "ood_score",
                    tuple(ood_scores.SCORES),
                    why="that score is not feature-based",
                    hint=f"leave one of them out, or choose from {', '.join(ood_scores.FITTED)}",
                ),
                Constraint(
                    "ood_score",
                    (ood_scores.ENERGY_DENSITY,),
                    why="that score also needs held-out data",
                    hint=(
                        f"use `{ood_scores.RELATIVE}`, or store it first: `hydractl eval ... --train "
                        "TRAIN --val VAL --save-model PATH`"
                    ),
                ),
            ),
        ),
    )
    threshold: float | Path | None = setting(
        None,
        "Accept inputs with an OOD score below X, or below the threshold in the REPORT of `eval`; none ignores a stored "
        "threshold (default: the stored one).",
        panel=shared.OOD,
        parse=parse_threshold,
        metavar="X|REPORT|none",
        shows_default=False,
        role=Role.FILE,
    )
    """Infinity disables a stored threshold."""
    skip_bad: bool = flag(
        Setting(
            "Report unreadable images in their lines and continue, or end at the first.",
            panel=shared.DATA,
            option_names=("--skip-bad/--no-skip-bad",),
        ),
        on=True,
    )
    null: bool = flag(
        Setting(
            "Separate items of standard input by NUL bytes, as `find -print0` writes them.",
            panel=shared.DATA,
            option_names=("-0", "--null"),
            only_with=Constraint(
                "data",
                (LINES,),
                message="`--null` applies only to standard input",
                hint="leave it out, or give `-` as DATA",
            ),
        )
    )
    max_length: int | None = by_default(None, shared.MAX_LENGTH)
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    arch: str | None = by_default(None, shared.ARCH)
    batch_size: int = by_default(64, shared.BATCH_SIZE)
    num_workers: int | None = by_default(None, shared.NUM_WORKERS)
    device: str = by_default("auto", replace(shared.DEVICE, role=Role.SHAPES))
    dtype: str | None = by_default(None, shared.DTYPE)
    force: bool = flag(shared.FORCE)
    wait: bool = flag(shared.WAIT)
    if_changed: bool = flag(IF_CHANGED_BESIDE)

    def __post_init__(self) -> None:
        check(self)
        ood_scores.check_scores(() if self.ood_score is None else (self.ood_score,))
        if isinstance(self.threshold, float) and self.ood_score is not None:
            check_bound(self.ood_score, self.threshold)
        if not self.data:
            raise UsageError("nothing to predict", hint="give DATA: a folder, image files, a table, or `-`")
        if LINES in self.data:
            self._check_lines()
        for reference in self.data:
            if reference != LINES and image_path(reference) is None:
                DataRef.parse(reference)
        refuse_shared_input(self.model)

    def _check_lines(self) -> None:
        """Check that standard input is used only once."""
        if len(self.data) > 1:
            raise UsageError(
                "`-` cannot be combined with other DATA", hint="run the command once for each input"
            )
        if self.model == LINES:
            raise UsageError("the model and the inputs cannot both come from standard input")
        refuse_shared_input(LINES)

    @property
    @override
    def further_inputs(self) -> tuple[InputRef, ...]:
        """Inputs in `data`. Their paths belong to the configuration digest, because lines contain paths."""
        return tuple(
            InputRef(Role.FILE, image_path(reference) or Path(reference))
            if reference == LINES or is_file(reference)
            else InputRef(Role.DATA, DataRef.parse(reference), labelled=False)
            for reference in self.data
        )

    @property
    def form(self) -> str:
        """Suffix of the output in lower case. A stream has the suffix of JSON lines."""
        return FORMS[0] if is_stream(self.out) else self.out.suffix.lower()
