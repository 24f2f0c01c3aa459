"""The strategy `diverse`: of many drawn masks, those whose members disagree most on validation data.

Axes: N candidates, S samples, C classes, M members, B batch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import torch

from hydractl import progress
from hydractl.data.batches import BatchShare, encoded, limited
from hydractl.errors import DataError, ManifestError, UsageError
from hydractl.families.attention import Attention
from hydractl.families.load import OpenModel, load_model
from hydractl.families.tower import Model
from hydractl.heads.masks import choose_diverse
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadScores, Mask
from hydractl.manifest.header import InputFile
from hydractl.messages import counted
from hydractl.metrics.diversity import disagreement, mutual_information
from hydractl.metrics.ood_scores import MSP
from hydractl.model_inputs import without_absent
from hydractl.prediction.class_names import ask
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.prediction.open_inputs import data_input, labels_of, open_sets
from hydractl.processes.distributed import ProcessGroup, answering_device
from hydractl.runtime import on_cpu
from hydractl.scoring.attention_hooks import tapped
from hydractl.scoring.circuit.outcomes import Outcomes, Yardstick, check_halves
from hydractl.scoring.job import RepeatedBatches, Samples
from hydractl.scoring.objective import AVERAGE, parse_objective
from hydractl.scoring.settings import OBJECTIVE_SCORES
from hydractl.stages.prune.config import DiverseConfig, Diversity

ACCURACY = "acc"
PREDICTION_BYTES = 8 << 30
"""Memory limit of the candidates' probabilities, 8 N S C bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The data that candidates are compared on, as the model takes them, and who goes over them together, again and again."""

    labelled: Iterable[Samples]
    ood: Iterable[Samples]
    team: ProcessGroup


def yardstick_for(scores: HeadScores, config: DiverseConfig) -> Yardstick:
    """Return what candidates are valued by."""
    recorded = scores.objective or (ACCURACY if config.ood is None else AVERAGE)
    objective = parse_objective(recorded)
    if config.ood is None and objective.needs_ood:
        objective = parse_objective(ACCURACY)
    if config.ood is not None and not objective.needs_ood:
        raise UsageError(
            f"`--ood` has no effect: the objective of the scores is `{recorded}`, which uses no OOD data",
            hint="leave it out, or use circuit scores with `--objective avg`",
        )
    ood_score = scores.options.get("ood_score", MSP)
    if ood_score not in OBJECTIVE_SCORES:
        raise ManifestError(
            f"the scores file has the OOD score `{ood_score}`",
            hint=f"it must be one of {', '.join(OBJECTIVE_SCORES)}",
        )
    return Yardstick(objective, str(ood_score))


def check_memory(candidates: int, samples: int, classes: int) -> None:
    """Refuse what would hold more probabilities than fit into `PREDICTION_BYTES`.

    Raises:
        UsageError: With a number of samples that would fit.
    """
    bytes_needed = 8 * candidates * samples * classes
    if bytes_needed > PREDICTION_BYTES:
        raise UsageError(
            f"{candidates} candidates on {samples} samples of {classes} classes take {bytes_needed / 2**30:.1f} GiB of "
            f"probabilities, more than {PREDICTION_BYTES >> 30}",
            hint=f"use fewer samples, `--data DATA::limit={max(1, PREDICTION_BYTES // (8 * candidates * classes))}`, or fewer `--candidates`",
        )


def run_candidates(
    model: Model, draws: Sequence[Mask], data: Validation, yardstick: Yardstick
) -> tuple[list[torch.Tensor], list[float]]:
    """Return each of N candidates' probabilities (S, C), float64, on the CPU, and its objective.

    Samples come in the order of the batches, of all processes; the first alone keeps probabilities. A candidate runs with the heads that it drops cut out, which is what a member
    of its mask computes; a tower that is always asked the same runs once a candidate, and once in all if it loses no heads.

    Raises:
        DataError: If a candidate answers with numbers that are not finite.
        InputError: If the device's memory does not suffice.
    """
    probs, values = [], []
    fixed_outputs: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        for mask in progress.track(draws, label="Evaluating candidates", total=len(draws)):
            fixed_outputs = {name: answer for name, answer in fixed_outputs.items() if name not in mask}
            with tapped(model, mask, _cut(mask)):
                candidate_probs, value = _run_one(model, data, yardstick, fixed_outputs)
            probs += [candidate_probs] if data.team.leads else []
            values.append(value)
    return probs, values


def _cut(mask: Mask) -> Callable[[str, int, Attention], Attention]:
    """Return what puts attention with a mask's heads alone in the place of one with all."""

    def cut(tower: str, layer: int, attention: Attention) -> Attention:
        return Attention([attention.groups()[0].select(mask[tower].keep[layer])])

    return cut


def _run_one(
    model: Model, data: Validation, yardstick: Yardstick, fixed_outputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, float]:
    """Return one candidate's probabilities (S, C), or of all labels or words of S samples, and its objective."""
    probs, inside, outside = [], [], []
    for answers, labels in data.team.iterate(_answers(model, data.labelled, yardstick, fixed_outputs)):
        logits = yardstick.logits(answers).double().flatten(0, -2)
        probs.append(logits[~logits[:, 0].isnan()].softmax(-1))
        inside.append(yardstick.outcomes(answers.unsqueeze(0), labels))
    if yardstick.objective.needs_ood:
        outside = [
            yardstick.outcomes(answers.unsqueeze(0), None)
            for answers, *_ in data.team.iterate(_answers(model, data.ood, yardstick, fixed_outputs))
        ]
    value = yardstick.values(yardstick.fitted(Outcomes(_joined(inside), _joined(outside))))
    return torch.cat(probs), float(value[0])


def _answers(
    model: Model, batches: Iterable[Samples], yardstick: Yardstick, fixed_outputs: dict[str, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield for each batch its answers (B, C) or (B, C + D), and its labels (B,) if it has any, on the CPU.

    The device is waited for once a batch. What a tower says that is always asked the same is kept in `fixed_outputs`.
    """
    for inputs, labels in batches:
        outputs = {}
        for name, tower_inputs in model.routed(inputs).items():
            outputs[name] = (
                fixed_outputs[name] if name in fixed_outputs else model.tower(name)(tower_inputs).unsqueeze(0)
            )
            if name in model.answer.fixed:
                fixed_outputs[name] = outputs[name]
        tensors = on_cpu(yardstick.answers(model, outputs).squeeze(0), *(() if labels is None else (labels,)))
        if not tensors[0].isfinite().all():
            raise DataError("a candidate has outputs that are not finite on these data")
        answers, *labels_of_batch = tensors
        yield without_absent(answers.unsqueeze(0), inputs).squeeze(0), *labels_of_batch


def _joined(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return batches' outcomes (1, B) as one, by name."""
    return {name: torch.cat([part[name] for part in parts], dim=-1) for name in (parts[0] if parts else ())}


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

    @classmethod
    def read(cls, text: str) -> DiverseReport:
        """Return what `write` wrote."""
        document = json.loads(text)
        return cls(
            objective=document["objective"],
            median=document["median"],
            chosen=tuple(Candidate(**fields) for fields in document["chosen"]),
            sets=tuple(SetDiversity(**fields) for fields in document["sets"]),
        )

    def write(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))


class DiverseChoice(NamedTuple):
    """What was chosen, what a mask's origin records of it, and the data that decided it."""

    report: DiverseReport
    options: dict[str, OptionValue]
    sources: tuple[InputFile, ...]


class Session(NamedTuple):
    """Who works, and who hears of it."""

    team: ProcessGroup


def choose(
    opened: OpenModel,
    scores: HeadScores,
    draws: Sequence[Mask],
    config: DiverseConfig,
    *,
    members: int,
    session: Session,
) -> DiverseChoice:
    """Choose the draws whose members differ most, out of those that are no worse than the median draw.

    Each draw is valued by the objective that the scores were searched by, as far as the data allow (without OOD data by
    accuracy; where no objective is recorded by `avg` with OOD data). Candidates run in the base's own dtype with the
    other heads cut out; their probabilities on the ID data, float64, are held in memory: 8 N S C bytes.

    Args:
        opened: The base.
        scores: Whose order was drawn from.
        draws: N masks, all different, of the towers that lose heads.
        config: The data, and what to compare by.
        members: M, at most N.
        session: Who runs them; every process finds the same.

    Raises:
        DataError: If the data do not fit the model, or it answers with numbers that are not finite.
        UsageError: If OOD data are given that nothing reads, the model reads fewer tokens than `--max-length`, or the probabilities
            would not fit into memory.
    """
    team = session.team
    yardstick = yardstick_for(scores, config)
    name = yardstick.objective.text
    how = limited(opened.header.preprocess, config.max_length, model=opened.reference)
    opened = replace(opened, header=opened.header.model_copy(update={"preprocess": how}))
    sets = open_sets(opened, {"id": config.data, "ood": config.ood}, workers=config.num_workers)
    classes = config.naming.classes(opened, data=sets["id"].class_names)
    labels, count = labels_of(opened, sets["id"], classes)
    several = opened.header.architecture.task.by_label
    check_memory(len(draws), int((labels >= 0).sum()), 2 if several else count)
    model = load_model(opened).to(answering_device(config.device))
    ask(model, opened, classes)
    if yardstick.needs_features:
        check_halves(labels)
        yardstick = yardstick._replace(
            features=FeatureExtractor.of(model, opened.family, name=opened.reference)
        )
    like = torch.empty(0, device=model.device, dtype=model.dtype)
    batches = {
        role: RepeatedBatches(
            encoded(items, how, batch_size=config.batch_size, deal=BatchShare(team.rank, team.world)),
            labels if role == "id" else None,
            like,
        )
        for role, items in sets.items()
    }
    data = Validation(labelled=batches["id"], ood=batches.get("ood", ()), team=team)
    progress.step(f"Evaluating {counted(len(draws), 'candidate')} by {name}")
    probs, values = run_candidates(model, draws, data, yardstick)
    report = ""
    if team.leads:
        chosen = choose_diverse(
            values,
            lambda candidates: MEASURES[config.diversity](stacked(probs, candidates)),
            members=members,
        )
        report = DiverseReport(
            objective=name,
            median=statistics.median_low(values),
            chosen=tuple(Candidate(draw=i, objective=values[i]) for i in chosen),
            sets=_sets(probs, values, chosen),
        ).write()
    return DiverseChoice(
        report=DiverseReport.read(team.broadcast(report)),
        options={
            "candidates": len(draws),
            "diversity": config.diversity.value,
            "objective": name,
        },
        sources=tuple(data_input(items, team) for items in sets.values()),
    )


def _sets(
    probs: Sequence[torch.Tensor], values: Sequence[float], chosen: Sequence[int]
) -> tuple[SetDiversity, SetDiversity, SetDiversity]:
    """Return how diverse the chosen set is, and those that `sample` would have drawn."""
    members = len(chosen)
    measured_sets = [
        _measured("sample", probs, values, range(start, start + members))
        for start in range(0, len(values) - members + 1, members)
    ]
    mean = SetDiversity(
        name=f"mean of {counted(len(measured_sets), 'sample')}",
        objective=statistics.fmean(s.objective for s in measured_sets),
        mi=statistics.fmean(s.mi for s in measured_sets),
        disagreement=statistics.fmean(s.disagreement for s in measured_sets),
    )
    return _measured("chosen", probs, values, chosen), measured_sets[0], mean


def stacked(probs: Sequence[torch.Tensor], candidates: Sequence[int]) -> torch.Tensor:
    """Return the probabilities (M, S, C) of some candidates."""
    return torch.stack([probs[i] for i in candidates])


def _measured(
    name: str, probs: Sequence[torch.Tensor], values: Sequence[float], candidates: Sequence[int]
) -> SetDiversity:
    candidate_probs = stacked(probs, candidates)
    return SetDiversity(
        name=name,
        objective=statistics.fmean(values[i] for i in candidates),
        mi=mutual_information(candidate_probs),
        disagreement=disagreement(candidate_probs),
    )
