"""The strategy `diverse`: select the drawn masks whose members disagree most on validation data.

Axes: N candidates, S samples, C classes, M members, B batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from pydantic import TypeAdapter

from hydractl import progress
from hydractl.data.batches import eval_batches, with_max_length
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, ManifestError, UsageError
from hydractl.families.attention import Attention
from hydractl.families.open_model import OpenModel, load_model
from hydractl.families.tower import Model
from hydractl.heads.masks import choose_diverse
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadImportance, Mask
from hydractl.manifest.header import InputFile
from hydractl.messages import counted
from hydractl.metrics.diversity import disagreement, mutual_information
from hydractl.metrics.ood_scores import MSP
from hydractl.model_inputs import mask_absent_words
from hydractl.prediction.class_names import Naming, run_both_towers
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.prediction.open_inputs import data_input, labels_of, open_sets
from hydractl.prediction.run_models import Execution
from hydractl.processes.distributed import ProcessGroup, answering_device
from hydractl.pruning.strategies import Diversity
from hydractl.runtime import on_cpu
from hydractl.scoring.attention_hooks import tapped
from hydractl.scoring.circuit.outcomes import ObjectiveEvaluator, Outcomes, check_halves
from hydractl.scoring.job import RepeatedBatches, Samples
from hydractl.scoring.objective import AVERAGE, parse_objective
from hydractl.scoring.settings import OBJECTIVE_SCORES

ACCURACY = "acc"
PREDICTION_BYTES = 8 << 30
"""Memory limit of the candidates' probabilities, 8 N S C bytes. Chosen by hand; twice the limit allows twice
the samples or candidates, and needs 16 GiB of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Validation data, the base on its device, and the objective of candidates.

    Attributes:
        model: The base.
        labelled: Batches of the labelled data, as a repeatable iterable.
        ood: Batches of the OOD data; empty without OOD data.
        evaluator: Objective of the candidates.
        sources: Provenance entries of the data.
        team: Processes that share the batches.
    """

    model: Model
    labelled: Iterable[Samples]
    ood: Iterable[Samples]
    evaluator: ObjectiveEvaluator
    sources: tuple[InputFile, ...]
    team: ProcessGroup


def evaluator_for(importance: HeadImportance, *, has_ood: bool) -> ObjectiveEvaluator:
    """Return the objective of candidates.

    The objective recorded in the scores is used. Scores without an objective use `avg`. Without OOD data, the
    accuracy replaces objectives with OOD data.

    Args:
        importance: Head importances with their recorded options.
        has_ood: Whether OOD data are given.

    Raises:
        UsageError: If OOD data are given, but the objective uses no OOD data.
        ManifestError: If the recorded OOD score is unknown.
    """
    recorded = importance.objective or (AVERAGE if has_ood else ACCURACY)
    objective = parse_objective(recorded)
    if not has_ood and objective.needs_ood:
        objective = parse_objective(ACCURACY)
    if has_ood and not objective.needs_ood:
        raise UsageError(
            f"`--ood` has no effect: the objective of the scores is `{recorded}`, which uses no OOD data",
            hint="leave it out, or use circuit scores with `--objective avg`",
        )
    ood_score = importance.options.get("ood_score", MSP)
    if ood_score not in OBJECTIVE_SCORES:
        raise ManifestError(
            f"the scores file has the OOD score `{ood_score}`",
            hint=f"it must be one of {', '.join(OBJECTIVE_SCORES)}",
        )
    return ObjectiveEvaluator(objective, str(ood_score))


def check_memory(candidates: int, samples: int, classes: int) -> None:
    """Raise UsageError if the candidates' probabilities need more than `PREDICTION_BYTES`."""
    bytes_needed = 8 * candidates * samples * classes
    if bytes_needed > PREDICTION_BYTES:
        raise UsageError(
            f"{candidates} candidates on {samples} samples of {classes} classes take {bytes_needed / 2**30:.1f} GiB of "
            f"probabilities, more than {PREDICTION_BYTES >> 30}",
            hint=f"use fewer samples, `--data DATA::limit={max(1, PREDICTION_BYTES // (8 * candidates * classes))}`, or fewer `--candidates`",
        )


def run_candidates(draws: Sequence[Mask], data: Validation) -> tuple[list[torch.Tensor], list[float]]:
    """Predict the validation data with each candidate.

    A candidate runs without the removed heads of its mask. A tower with constant inputs runs once if it loses
    no heads, otherwise once for each candidate.

    Args:
        draws: Masks of the N candidates.
        data: The data and the base.

    Returns:
        Probabilities (S, C) of each candidate, float64 on the CPU, and the objective of each candidate.
        Samples have the order of the batches of all processes. Only the first process returns probabilities;
        the list is empty in other processes.

    Raises:
        DataError: If the logits of a candidate are not finite.
        torch.OutOfMemoryError: If the memory of the device is too small.
    """
    probs, values = [], []
    fixed_outputs: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        for mask in progress.track(draws, label="Evaluating candidates", total=len(draws)):
            fixed_outputs = {name: answer for name, answer in fixed_outputs.items() if name not in mask}
            with tapped(data.model, mask, _select_heads(mask)):
                candidate_probs, value = _run_one(data, fixed_outputs)
            probs += [candidate_probs] if data.team.leads else []
            values.append(value)
    return probs, values


def _select_heads(mask: Mask) -> Callable[[str, int, Attention], Attention]:
    """Return a function that selects the heads of a mask from an attention module with all heads."""

    def cut(tower: str, layer: int, attention: Attention) -> Attention:
        return Attention([attention.groups()[0].select(mask[tower].keep[layer])])

    return cut


def _run_one(data: Validation, fixed_outputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Return the probabilities (S, C) and the objective of one candidate.

    For tasks with a prediction per label or word, S counts labels or words.
    """
    probs, inside, outside, evaluator = [], [], [], data.evaluator
    for answers, labels in data.team.iterate(_answers(data, data.labelled, fixed_outputs)):
        logits = evaluator.logits(answers).double().flatten(0, -2)
        probs.append(logits[~logits[:, 0].isnan()].softmax(-1))
        inside.append(evaluator.outcomes(answers.unsqueeze(0), labels))
    if evaluator.objective.needs_ood:
        outside = [
            evaluator.outcomes(answers.unsqueeze(0), None)
            for answers, *_ in data.team.iterate(_answers(data, data.ood, fixed_outputs))
        ]
    value = evaluator.values(evaluator.fitted(Outcomes(_joined(inside), _joined(outside))))
    return torch.cat(probs), float(value[0])


def _answers(
    data: Validation, batches: Iterable[Samples], fixed_outputs: dict[str, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the logits (B, C) and the labels (B,) of each batch on the CPU.

    If the OOD score needs features, the D features of each sample follow the logits: (B, C + D). For batches
    without labels, the tuple has a single tensor. Each batch synchronizes the device once. `fixed_outputs`
    caches the outputs of towers with constant inputs.

    Raises:
        DataError: If an output is not finite.
    """
    model = data.model
    for inputs, labels in batches:
        outputs = {}
        for name, tower_inputs in model.routed(inputs).items():
            outputs[name] = (
                fixed_outputs[name] if name in fixed_outputs else model.tower(name)(tower_inputs).unsqueeze(0)
            )
            if name in model.answer.fixed:
                fixed_outputs[name] = outputs[name]
        tensors = on_cpu(
            data.evaluator.answers(model, outputs).squeeze(0), *(() if labels is None else (labels,))
        )
        if not tensors[0].isfinite().all():
            raise DataError("a candidate has outputs that are not finite on these data")
        answers, *labels_of_batch = tensors
        yield mask_absent_words(answers.unsqueeze(0), inputs).squeeze(0), *labels_of_batch


def _joined(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Concatenate the outcomes (1, B) of all batches, by name."""
    return {name: torch.cat([part[name] for part in parts], dim=-1) for name in (parts[0] if parts else ())}


MEASURES: Mapping[Diversity, Callable[[torch.Tensor], float]] = {
    Diversity.MI: mutual_information,
    Diversity.DISAGREEMENT: disagreement,
    Diversity.NONE: lambda _: 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A drawn mask: its index among the draws (0-based) and its objective on the validation data."""

    draw: int
    objective: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDiversity:
    """Diversity of the members of one set on the ID validation data, or the mean over several sets.

    Attributes:
        name: `chosen`, `sample`, or `mean of 3 samples`.
        objective: Mean objective of the members.
        mi: Mutual information, in nats.
        disagreement: Fraction of member pairs that predict different classes, in [0, 1].
    """

    name: str
    objective: float
    mi: float
    disagreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseReport:
    """Result of the strategy `diverse`.

    Attributes:
        objective: Objective of the candidates.
        median: Median objective of all candidates. Candidates below the median are chosen only if too few
            others exist.
        chosen: Chosen candidates in the order of their choice.
        sets: Diversity of the chosen set, of the first M candidates (the set of `sample`), and the mean over
            all consecutive sets of M candidates.
    """

    objective: str
    median: float
    chosen: tuple[Candidate, ...]
    sets: tuple[SetDiversity, ...]


class DiverseChoice(NamedTuple):
    """Report, options that masks record in their origin, and provenance entries of the data."""

    report: DiverseReport
    options: dict[str, OptionValue]
    sources: tuple[InputFile, ...]


def open_validation(
    model_file: OpenModel,
    references: Mapping[str, DataRef | str | None],
    evaluator: ObjectiveEvaluator,
    *,
    naming: Naming,
    candidates: int,
    execution: Execution,
) -> Validation:
    """Open validation data and load the base.

    Args:
        model_file: The base.
        references: Labelled data under the key `id`, and optional OOD data under `ood`.
        evaluator: Objective of the candidates.
        naming: Classes of a zero-shot model.
        candidates: Number of candidates.
        execution: Device, dtype, batch size and processes.

    Raises:
        DataError: If the data do not fit the model.
        UsageError: If the model reads fewer tokens than `--max-length`, or the probabilities need too much
            memory.
    """
    team = execution.team
    preprocess = with_max_length(
        model_file.header.preprocess, execution.max_length, model=model_file.reference
    )
    model_file = replace(model_file, header=model_file.header.model_copy(update={"preprocess": preprocess}))
    sets = open_sets(model_file, references, workers=execution.workers)
    classes = naming.classes(model_file, data=sets["id"].class_names)
    labels, count = labels_of(model_file, sets["id"], classes)
    is_multi_label = model_file.header.architecture.task.by_label
    check_memory(candidates, int((labels >= 0).sum()), 2 if is_multi_label else count)
    model = load_model(model_file).to(answering_device(execution.device))
    run_both_towers(model, model_file, classes)
    if evaluator.needs_features:
        check_halves(labels)
        evaluator = evaluator._replace(
            features=FeatureExtractor.of(model, model_file.family, name=model_file.reference)
        )
    device_tensor = torch.empty(0, device=model.device, dtype=model.dtype)
    batches = {
        role: RepeatedBatches(
            eval_batches(dataset, preprocess, batch_size=execution.batch_size, batch_share=execution.share),
            labels if role == "id" else None,
            device_tensor,
        )
        for role, dataset in sets.items()
    }
    return Validation(
        model=model,
        labelled=batches["id"],
        ood=batches.get("ood", ()),
        evaluator=evaluator,
        sources=tuple(data_input(dataset, team) for dataset in sets.values()),
        team=team,
    )


def choose(draws: Sequence[Mask], data: Validation, *, members: int, diversity: Diversity) -> DiverseChoice:
    """Choose masks greedily: the best mask first, then the mask with the largest gain in diversity.

    Only draws with at least the median objective are eligible. If these are fewer than M, the next best draws
    are eligible too. Candidates run in the dtype of the base. Their float64 probabilities on the ID data stay
    in memory: 8 N S C bytes.

    Args:
        draws: N different masks of the towers that lose heads.
        data: The data and the base.
        members: Number of members M, at most N.
        diversity: Measure of diversity to maximize.

    Returns:
        The choice. It is the same in every process.

    Raises:
        DataError: If the logits of a candidate are not finite.
        torch.OutOfMemoryError: If the memory of the device is too small.
    """
    name = data.evaluator.objective.text
    progress.step(f"Evaluating {counted(len(draws), 'candidate')} by {name}")
    probs, values = run_candidates(draws, data)
    text = ""
    if data.team.leads:
        measure = MEASURES[diversity]
        chosen = choose_diverse(
            values, lambda candidates: measure(stacked(probs, candidates)), members=members
        )
        report = DiverseReport(
            objective=name,
            median=statistics.median_low(values),
            chosen=tuple(Candidate(draw=i, objective=values[i]) for i in chosen),
            sets=_sets(probs, values, chosen),
        )
        text = _REPORT.dump_json(report).decode()
    return DiverseChoice(
        report=_REPORT.validate_json(data.team.broadcast(text)),
        options={"candidates": len(draws), "diversity": diversity.value, "objective": name},
        sources=data.sources,
    )


_REPORT = TypeAdapter(DiverseReport)


def _sets(
    probs: Sequence[torch.Tensor], values: Sequence[float], chosen: Sequence[int]
) -> tuple[SetDiversity, SetDiversity, SetDiversity]:
    """Return the diversity of the chosen set, of the first `sample` set, and of all `sample` sets on average."""
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
    """Return the probabilities (M, S, C) of the given candidates."""
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
