"""Training of gates, in the same loop as fine-tuning, on the data of the method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from hydractl.errors import CheckFailed
from hydractl.metrics.per_sample import question_losses
from hydractl.model_inputs import map_inputs
from hydractl.processes.distributed import world_size
from hydractl.progress import Progress
from hydractl.scoring.gates.learned import GatedModel, Gates
from hydractl.scoring.gates.settings import GateSettings
from hydractl.scoring.job import GateTraining, ScoreJob
from hydractl.training.accelerator import Share, start_engine
from hydractl.training.evaluate import metrics_of, tally
from hydractl.training.loop import Trained, train
from hydractl.training.recipes.recipe import Recipe
from hydractl.training.resume import Metrics, Snapshot
from hydractl.training.trainer import Job

if TYPE_CHECKING:
    from hydractl.training.feeding import Feed

PIECES = 4
"""Of each batch: so many processes share the work at most, and the result hangs on no number of them."""
CLIP = 1.0
"""Largest gradient norm, of gates and weights together, as in the code of Li et al.: a relaxed choice that is about to harden
has gradients of any size."""
_GATES = "gates."


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Result of the training.

    Attributes:
        model: In evaluation mode, on the CPU, fp32, with its gates.
        metrics: Metrics of the gated model in evaluation mode, on the training data.
        steps: Number of steps.
    """

    model: GatedModel
    metrics: Metrics
    steps: int


def train_gates(
    job: ScoreJob,
    settings: GateSettings,
    make: Callable[[int], Gates],
    progress: Progress,
    *,
    penalty: Callable[[Gates], torch.Tensor] | None = None,
) -> Learned:
    """Train gates, and with `joint` training also the model's weights; the job's model does not change.

    AdamW without weight decay trains the gates at `gate_lr` and the weights at `weights_lr`; both decrease linearly to 0,
    and gradients are clipped to norm 1. Weights are fp32, with autocast if the job's model is bf16. An fp16 model trains
    in fp32 from its rounded weights, with a warning. The result is bit-identical for any number of processes.

    Args:
        job: Job with its `training`.
        settings: Epochs and learning rates.
        make: Returns the initial gates, given the number of steps.
        progress: Receives epochs, and a warning if trained weights will be discarded.
        penalty: Term added to the loss of each batch.

    Raises:
        CheckFailed: If outputs or gates are not finite.
        DataError: If there are no labels.
        ValueError: If the job has no `training`.
    """
    if job.training is None:
        raise ValueError("a method that trains needs to be offered training")
    if settings.trains_weights and not job.training.keeps_weights:
        progress.warn(
            "joint training also changes the weights, which are discarded, so the scores are for a model that is "
            "not saved; save it with `--trained PATH`"
        )
    if job.model.dtype == torch.float16:  # whose gradients vanish where no loss is scaled
        progress.warn(
            "gates cannot be trained in fp16; training in fp32 with the weights rounded to fp16; `--dtype "
            "bf16` trains under autocast"
        )
    feed = job.training.feed()
    recipe = Recipe(
        optimizer="adamw",
        lr=(settings.weights_lr or settings.gate_lr,),
        weight_decay=0.0,
        schedule="linear",
        warmup=0,
        epochs=settings.epochs,
        clip=CLIP,
        precision="bf16" if job.model.dtype == torch.bfloat16 else "fp32",
    )
    total = recipe.total_steps(feed.steps_per_epoch)

    def build() -> GatedModel:
        return _gated(job, make(total), weights=settings.trains_weights)

    def begin_step(model: nn.Module, step: int) -> None:
        _gates_of(model).begin(step, seed=job.seed)

    names = [f"{_GATES}{name}" for name, _ in make(total).named_parameters()]
    work = Job(
        build=build,
        feed=feed,
        loss=lambda logits, labels: question_losses(logits.float(), labels),
        evaluate=_measure(job),
        probe=_probe(feed),
        recipe=recipe,
        seed=job.seed,
        rates=dict.fromkeys(names, settings.gate_lr),
        begin_step=begin_step,
        penalty=None if penalty is None else lambda model: penalty(_gates_of(model)),
        pieces=PIECES,
        measured_on="training",
        run_log=job.training.run_log,
    )
    trained = _trained(job.training, work, job.model.device, progress, settings=settings)
    model = build()
    _restore(model, trained.weights)
    if not all(p.isfinite().all() for p in model.parameters()):
        raise _diverged(settings)
    return Learned(model=model.eval(), metrics=trained.metrics, steps=trained.step)


def joint_weights(model: GatedModel) -> dict[str, torch.Tensor]:
    """Return a gated model's tensors without its gates, under the library's names."""
    return {name: tensor.detach() for name, tensor in model.model.library_state().items()}


def _trained(
    offered: GateTraining, work: Job, device: torch.device, progress: Progress, *, settings: GateSettings
) -> Trained:
    name = str(device) if world_size() == 1 else device.type
    start = Snapshot() if offered.start is None else offered.start
    with start_engine(name, precision=work.recipe.precision) as engine:
        engine.wait()  # all have read the state before one writes it
        try:
            return train(work, engine, progress, folder=offered.folder, start=start)
        except CheckFailed as error:
            raise _diverged(settings) from error


def _diverged(settings: GateSettings) -> CheckFailed:
    or_weights_lr = " and `--weights-lr`" if settings.trains_weights else ""
    return CheckFailed(
        f"training of the gates diverged with learning rate {settings.gate_lr:g}: the outputs are not finite",
        hint=f"lower `--gate-lr`{or_weights_lr}",
    )


def _gated(job: ScoreJob, gates: Gates, *, weights: bool) -> GatedModel:
    """Return a copy of the job's model with gates, on the CPU; its weights train or not."""
    model = copy.deepcopy(job.model).to("cpu", torch.float32)
    return GatedModel(model.requires_grad_(requires_grad=weights), gates, job.scored)


def _gates_of(model: nn.Module) -> Gates:
    if not isinstance(model, GatedModel):
        raise TypeError(f"expected a gated model, got {type(model).__name__}")
    return model.gates


def _restore(model: GatedModel, weights: Mapping[str, torch.Tensor]) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)


def _probe(feed: Feed) -> torch.Tensor | Mapping[str, torch.Tensor]:
    """Return the inputs of one training sample, whatever this process's share."""
    return map_inputs(lambda x: x[:1], next(feed.steps(0, 1, Share(first=0, pieces=1, total=1)))[0].inputs)


def _measure(job: ScoreJob) -> Callable[[nn.Module], Metrics | None]:
    """Return what measures a model on the job's data, all processes together and in the order of the data."""

    def measure(model: nn.Module) -> Metrics | None:
        tallies = []
        with torch.inference_mode():
            for samples in job.id_data:
                inputs, labels = samples.labelled("training gates")
                tallies.append(torch.tensor(tally(model(inputs), labels.cpu()), dtype=torch.float64))
        return metrics_of(torch.stack(job.team.in_order(tallies)).sum(dim=0).tolist())

    return measure
