"""inspect for several files: compares their head masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.families.timm.models import untagged
from hydractl.heads.compare import chance_overlap, jaccard, jensen_shannon, kendall, overlap, spearman
from hydractl.manifest.head_mask import Mask, Tables
from hydractl.output.atomic_write import publish
from hydractl.progress import SILENT, Progress
from hydractl.reporting.heads_figure import MOST_PANELS, Panel, distinct_names, draw_heads
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.head_choices import Choice, check_comparable, read_choices
from hydractl.stages.shared.outputs import check_outputs, claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Similarity of two head masks; see `hydractl.heads.compare`.

    Attributes:
        overlap: Overlap of removed heads, in [0, 1].
        chance_overlap: Expected overlap of random masks.
        jaccard: Jaccard index, in [0, 1].
        jsd_nats: Jensen-Shannon divergence, in [0, ln 2]; None if one removes nothing.
        spearman: Rank correlation, in [-1, 1]; None unless both are scores with a ranking.
        kendall: Rank correlation, in [-1, 1]; None as for `spearman`.
    """

    overlap: float
    chance_overlap: float
    jaccard: float
    jsd_nats: float | None
    spearman: float | None
    kendall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of two head masks, over all heads and by tower."""

    first: str
    second: str
    overall: Agreement
    towers: Mapping[str, Agreement]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """Head masks and the comparison of each pair; `plot` is the written figure."""

    choices: tuple[Choice, ...]
    pairs: tuple[Comparison, ...]
    plot: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return () if self.plot is None else (self.plot,)


def run_compare(config: InspectConfig, progress: Progress = SILENT) -> ComparisonReport:
    """Compare each pair of head masks, and optionally draw all of them.

    Raises:
        InputError: If a file cannot be read or has no heads, or the models differ in shape.
        UsageError: If scores rank fewer heads than the budget removes, or a budget is given without scores.
        OutputExists: If the figure already exists.
    """
    with claim(config, [config.plot], progress) as output_lock:
        if config.plot is not None:
            inputs = [Path(file.removeprefix("local-dir:")) for file in config.files if file != "-"]
            check_outputs([config.plot], force=config.force, files=inputs, option="--plot")
        report = _compare(config, progress)
        if config.plot is not None:
            progress.step("Drawing")
            picture = draw_heads(_panels(report.choices), suffix=config.plot.suffix.lower())
            with publish(config.plot, output_lock) as sink:
                sink.write(picture)
        return report


def _compare(config: InspectConfig, progress: Progress) -> ComparisonReport:
    choices_with_scores: list[tuple[Choice, Tables | None]] = []
    named: dict[str, str] = {}
    for file in config.files:
        choices, architecture = read_choices(file, config.budget)
        choices_with_scores += choices
        if architecture is not None:
            named.setdefault(untagged(architecture), file)
    check_comparable([choice for choice, _ in choices_with_scores])
    if config.budget is not None and not any(tables for _, tables in choices_with_scores):
        raise UsageError(
            f"`{config.budget.option_text}`: a budget turns scores into masks, but no file has scores",
            hint="leave it out; masks and checkpoints already say which heads they keep",
        )
    if config.plot is not None and len(choices_with_scores) > MOST_PANELS:
        raise UsageError(f"a figure shows at most {MOST_PANELS} head masks, not {len(choices_with_scores)}")
    if len(named) > 1:
        texts = (f"{file} for `{architecture}`" for architecture, file in named.items())
        progress.warn(f"the files are for different architectures: {', '.join(texts)}")
    pairs = tuple(_pair(first, second) for first, second in combinations(choices_with_scores, 2))
    return ComparisonReport(choices=tuple(c for c, _ in choices_with_scores), pairs=pairs, plot=config.plot)


def _pair(first: tuple[Choice, Tables | None], second: tuple[Choice, Tables | None]) -> Comparison:
    (first_choice, first_scores), (second_choice, second_scores) = first, second
    return Comparison(
        first=first_choice.name,
        second=second_choice.name,
        overall=_agreement((first_choice.mask, first_scores), (second_choice.mask, second_scores)),
        towers={
            name: _agreement(
                ({name: first_choice.mask[name]}, first_scores and {name: first_scores[name]}),
                ({name: second_choice.mask[name]}, second_scores and {name: second_scores[name]}),
            )
            for name in first_choice.mask
        },
    )


def _agreement(first: tuple[Mask, Tables | None], second: tuple[Mask, Tables | None]) -> Agreement:
    (first_mask, first_scores), (second_mask, second_scores) = first, second
    return Agreement(
        overlap=overlap(first_mask, second_mask),
        chance_overlap=chance_overlap(first_mask, second_mask),
        jaccard=jaccard(first_mask, second_mask),
        jsd_nats=jensen_shannon(first_mask, second_mask),
        spearman=spearman(first_scores, second_scores) if first_scores and second_scores else None,
        kendall=kendall(first_scores, second_scores) if first_scores and second_scores else None,
    )


def _panels(choices: Sequence[Choice]) -> list[Panel]:
    labels = distinct_names(["stdin" if choice.name == "-" else choice.name for choice in choices])
    return [
        Panel(name=label, mask=choice.mask, standing=choice.standing)
        for label, choice in zip(labels, choices, strict=True)
    ]
