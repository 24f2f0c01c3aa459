"""What candidate masks make of validation data: each one's probabilities, and its objective.

Axes: N candidates, S samples, C classes, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from hydractl.data.inputs import encoded, limited
from hydractl.errors import DataError, InputError, ManifestError, UsageError
from hydractl.families.attention import Attention
from hydractl.metrics.scores import LOGIT_SCORES
from hydractl.scoring.circuit.objective import AVERAGE, Objective, parse_objective
from hydractl.scoring.circuit.outcomes import MSP, Outcomes, outcomes_of, values_of
from hydractl.scoring.taps import tapped
from hydractl.stages.shared.reading import Again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hydractl.data.items import Items
    from hydractl.families.opening import OpenModel
    from hydractl.families.tower import Model
    from hydractl.inputs import Inputs
    from hydractl.manifest.heads import HeadScores, Mask
    from hydractl.progress import Progress
    from hydractl.scoring.job import Samples
    from hydractl.stages.prune.config import DiverseConfig

ACCURACY = "acc"
PREDICTION_BYTES = 8 << 30
"""How much memory the candidates' probabilities may take, 8 N S C bytes."""


class Yardstick(NamedTuple):
    """What candidates are valued by: an objective, and the OOD score where it reads one."""

    objective: Objective
    ood_score: str

    def outcomes(self, logits: torch.Tensor, labels: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return what the objective reads of one candidate's logits (B, C), each (1, B)."""
        return outcomes_of(logits.unsqueeze(0), labels, self.objective, self.ood_score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The data that candidates are compared on, as the model takes them; `labelled` and `ood` can be gone over again."""

    labelled: Iterable[Samples]
    ood: Iterable[Samples]


def yardstick_for(scores: HeadScores, asked: DiverseConfig) -> Yardstick:
    """Return what candidates are valued by."""
    recorded = scores.objective or (ACCURACY if asked.ood is None else AVERAGE)
    objective = parse_objective(recorded)
    if asked.ood is None and objective.needs_ood:
        objective = parse_objective(ACCURACY)
    if asked.ood is not None and not objective.needs_ood:
        raise UsageError(
            f"`--ood` has no effect: the scores were searched by `{recorded}`, which reads no OOD data",
            hint="leave it out, or take scores of a circuit by `--objective avg`",
        )
    ood_score = scores.options.get("ood_score", MSP)
    if ood_score not in LOGIT_SCORES:
        raise ManifestError(
            f"the scores file has the OOD score `{ood_score}`",
            hint=f"it must be one of {', '.join(LOGIT_SCORES)}",
        )
    return Yardstick(objective, str(ood_score))


def check_memory(candidates: int, samples: int, classes: int) -> None:
    """Refuse what would hold more probabilities than fit into `PREDICTION_BYTES`.

    Raises:
        UsageError: With a number of samples that would fit.
    """
    needed = 8 * candidates * samples * classes
    if needed > PREDICTION_BYTES:
        most = max(1, PREDICTION_BYTES // (8 * candidates * classes))
        raise UsageError(
            f"{candidates} candidates on {samples} samples of {classes} classes take {needed / 2**30:.1f} GiB of "
            f"probabilities, more than {PREDICTION_BYTES >> 30}",
            hint=f"use fewer samples, `--data DATA::limit={most}`, or fewer `--candidates`",
        )


def validation_for(
    opened: OpenModel, asked: DiverseConfig, sets: Mapping[str, Items], labels: torch.Tensor, model: Model
) -> Validation:
    """Return the data as the model takes them, on its device and in its dtype.

    Raises:
        UsageError: If there are no texts to cut, or the model reads fewer tokens.
    """
    how = limited(opened.header.preprocess, asked.max_length, model=opened.reference)
    like = torch.empty(0, device=model.device, dtype=model.dtype)
    batches = {role: encoded(items, how, batch_size=asked.batch_size) for role, items in sets.items()}
    return Validation(
        labelled=Again(batches["id"], labels, like),
        ood=Again(batches["ood"], None, like) if "ood" in batches else (),
    )


def run_candidates(
    model: Model, draws: Sequence[Mask], data: Validation, yardstick: Yardstick, progress: Progress
) -> tuple[list[torch.Tensor], list[float]]:
    """Return each of N candidates' probabilities (S, C), float64, on the CPU, and its objective.

    Samples come in the order of the batches. A candidate runs with the heads that it drops cut out, which is what a member
    of its mask computes; a tower that is always asked the same runs once a candidate, and once in all if it loses no heads.

    Raises:
        DataError: If a candidate answers with numbers that are not finite.
        InputError: If the device's memory does not suffice.
    """
    probs, values = [], []
    unvaried: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        for mask in progress.track(draws, label="Running candidates", total=len(draws)):
            held = {name: found for name, found in unvaried.items() if name not in mask}
            with tapped(model, mask, _cut(mask)):
                found, value = _run_one(model, data, yardstick, held)
            probs.append(found)
            values.append(value)
            unvaried = held
    return probs, values


def _cut(mask: Mask) -> Callable[[str, int, Attention], Attention]:
    """Return what puts attention with a mask's heads alone in the place of one with all."""

    def cut(tower: str, layer: int, attention: Attention) -> Attention:
        return Attention([attention.groups()[0].select(mask[tower].keep[layer])])

    return cut


def _run_one(
    model: Model, data: Validation, yardstick: Yardstick, held: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, float]:
    """Return one candidate's probabilities (S, C) and its objective."""
    probs, inside, outside = [], [], []
    for inputs, labels in data.labelled:
        logits = _logits(model, inputs, held)
        probs.append(logits.double().softmax(-1))
        inside.append(yardstick.outcomes(logits, None if labels is None else labels.cpu()))
    if yardstick.objective.needs_ood:
        outside = [yardstick.outcomes(_logits(model, x, held), None) for x, _ in data.ood]
    value = values_of(yardstick.objective, Outcomes(_joined(inside), _joined(outside)))
    return torch.cat(probs), float(value[0])


def _joined(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return batches' outcomes (1, B) as one, by name."""
    return {name: torch.cat([part[name] for part in parts], dim=-1) for name in (parts[0] if parts else ())}


def _logits(model: Model, inputs: Inputs, held: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return logits (B, C) on the CPU; what a tower says that is always asked the same is kept in `held`."""
    try:
        outputs = {}
        for name, asked in model.routed(inputs).items():
            outputs[name] = held[name] if name in held else model.tower(name)(asked).unsqueeze(0)
            if name in model.answer.fixed:
                held[name] = outputs[name]
        logits: torch.Tensor = model.answer(outputs).squeeze(0).cpu()
    except torch.OutOfMemoryError as error:
        raise InputError(
            "the device has not enough memory for so many samples at once",
            hint="choose a smaller `--batch-size`",
        ) from error
    if not logits.isfinite().all():
        raise DataError("a candidate answers with numbers that are not finite on this data")
    return logits
