"""The strategy `diverse`: of many drawn masks, those whose members disagree most on validation data.

Axes: N candidates, S samples, C classes, M members.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from hydractl.families.opening import load_model
from hydractl.heads.diverse import choose_diverse
from hydractl.manifest.header import InputFile
from hydractl.metrics.diversity import disagreement, mutual_information
from hydractl.progress import counted
from hydractl.runtime import pick_device
from hydractl.stages.prune.candidates import check_memory, run_candidates, validation_for, yardstick_for
from hydractl.stages.prune.strategy import Diversity
from hydractl.stages.shared.classes import ask
from hydractl.stages.shared.reading import labels_of, open_sets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hydractl.families.opening import OpenModel
    from hydractl.manifest.document import Option
    from hydractl.manifest.heads import HeadScores, Mask
    from hydractl.progress import Progress
    from hydractl.stages.prune.config import DiverseConfig

MEASURES: Mapping[Diversity, Callable[[torch.Tensor], float]] = {
    Diversity.MI: mutual_information,
    Diversity.DISAGREEMENT: disagreement,
    Diversity.NONE: lambda _: 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A drawn mask: its place among the draws, from 0, and its objective on the validation data."""

    draw: int
    objective: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDiversity:
    """How much the members of one set, or of several on average, differ on the ID validation data.

    Attributes:
        name: What the set is.
        objective: Mean of the members'.
        mi: Mutual information, in nats.
        disagreement: Share of pairs that predict different classes, in [0, 1].
    """

    name: str
    objective: float
    mi: float
    disagreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseReport:
    """What `diverse` chose out of what.

    Attributes:
        objective: What candidates were valued by.
        median: Of all candidates; none below it was chosen, unless fewer than members are as good.
        chosen: In the order of their choice.
        sets: The chosen ones, what `sample` draws, and the mean over as many sets of `sample` as the candidates make.
    """

    objective: str
    median: float
    chosen: tuple[Candidate, ...]
    sets: tuple[SetDiversity, ...]


class Found(NamedTuple):
    """What was chosen, what a mask's origin records of it, and the data that decided it."""

    report: DiverseReport
    options: dict[str, Option]
    sources: tuple[InputFile, ...]


def choose(
    opened: OpenModel,
    scores: HeadScores,
    draws: Sequence[Mask],
    asked: DiverseConfig,
    *,
    members: int,
    progress: Progress,
) -> Found:
    """Choose the draws whose members differ most, out of those that are no worse than the median draw.

    Each draw is valued by the objective that the scores were searched by, as far as the data allow (without OOD data by
    accuracy; where no objective is recorded by `avg` with OOD data). Candidates run in the base's own dtype with the
    other heads cut out; their probabilities on the ID data, float64, are held in memory: 8 N S C bytes.

    Args:
        opened: The base.
        scores: Whose order was drawn from.
        draws: N masks, all different, of the towers that lose heads.
        asked: The data, and what to compare by.
        members: M, at most N.
        progress: Sees the candidates pass.

    Raises:
        DataError: If the data do not fit the model, or it answers with numbers that are not finite.
        UsageError: If OOD data are given that nothing reads, or the probabilities would not fit into memory.
    """
    device = pick_device(asked.device)
    yardstick = yardstick_for(scores, asked)
    name = yardstick.objective.text
    sets = open_sets(opened, {"id": asked.data, "ood": asked.ood}, progress)
    classes = asked.naming.classes(opened, data=sets["id"].class_names)
    labels, count = labels_of(opened, sets["id"], classes, progress)
    check_memory(len(draws), len(labels), count)
    model = load_model(opened).to(device)
    ask(model, opened, classes)
    data = validation_for(opened, asked, sets, labels, model)
    progress.step(f"Running {counted(len(draws), 'candidate')}, valued by {name}")
    probs, values = run_candidates(model, draws, data, yardstick, progress)
    measure = MEASURES[asked.diversity]
    chosen = choose_diverse(values, lambda which: measure(stacked(probs, which)), members=members)
    return Found(
        report=DiverseReport(
            objective=name,
            median=statistics.median_low(values),
            chosen=tuple(Candidate(draw=i, objective=values[i]) for i in chosen),
            sets=_sets(probs, values, chosen),
        ),
        options={
            "candidates": len(draws),
            "diversity": asked.diversity.value,
            "objective": name,
        },
        sources=tuple(InputFile(name=found.name, sha256=found.fingerprint()) for found in sets.values()),
    )


def _sets(
    probs: Sequence[torch.Tensor], values: Sequence[float], chosen: Sequence[int]
) -> tuple[SetDiversity, SetDiversity, SetDiversity]:
    """Return how diverse the chosen set is, and those that `sample` would have drawn."""
    members = len(chosen)
    groups = [range(at, at + members) for at in range(0, len(values) - members + 1, members)]
    each = [_measured("sample", probs, values, group) for group in groups]
    mean = SetDiversity(
        name=f"mean of {counted(len(each), 'sample')}",
        objective=statistics.fmean(s.objective for s in each),
        mi=statistics.fmean(s.mi for s in each),
        disagreement=statistics.fmean(s.disagreement for s in each),
    )
    return _measured("chosen", probs, values, chosen), each[0], mean


def stacked(probs: Sequence[torch.Tensor], which: Sequence[int]) -> torch.Tensor:
    """Return the probabilities (M, S, C) of some candidates."""
    return torch.stack([probs[i] for i in which])


def _measured(
    name: str, probs: Sequence[torch.Tensor], values: Sequence[float], which: Sequence[int]
) -> SetDiversity:
    own = stacked(probs, which)
    return SetDiversity(
        name=name,
        objective=statistics.fmean(values[i] for i in which),
        mi=mutual_information(own),
        disagreement=disagreement(own),
    )
