"""Training of classifiers alone: the frozen encoder runs once over all data, and its features are stored.

Axes: N samples, B batch, M members, F features of a member, P samples of a member.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl import progress
from hydractl.data.batches import Batch, BatchShare, eval_batches
from hydractl.data.datasets import Dataset
from hydractl.families.base import Family
from hydractl.families.tower import Towers, blank_inputs
from hydractl.metrics.cost import macs_of
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.output.scratch import scratch_tensor
from hydractl.prediction.feature_ood import give_head_inputs, heads_of
from hydractl.processes.distributed import start_team
from hydractl.training.accelerator import Engine
from hydractl.training.feeding import InputSource, Planned
from hydractl.training.plan import EVAL_BATCH, TrainingPlan
from hydractl.training.trainable import TrainableModel, TrainingHydra
from hydractl.training.trainer import begin_training


def begin_head_training(model: nn.Module, *, family: Family) -> None:
    """Switch the classifiers to training mode, and the rest of the model, which is frozen, to evaluation mode."""
    begin_training(model)
    for towers in (part for part in model.modules() if isinstance(part, Towers)):
        towers.towers.eval()
        for heads in heads_of(towers, family):
            for head in heads:
                head.train()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptFeatures(InputSource):
    """Features of a frozen encoder, the inputs of the classifiers.

    Attributes:
        train: Features of the training data, shape (N, M, F), float32, on the CPU.
        val: Features of the validation data, with the same axes.
    """

    train: Tensor
    val: Tensor

    @override
    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        del epoch
        for step in plan:
            yield [self.train[piece] for piece in step.pieces]

    def val_batches(self) -> list[Batch[Inputs]]:
        """Return the features of the validation data as batches, in the order of the data."""
        places = torch.arange(len(self.val)).split(EVAL_BATCH)
        return [Batch(self.val[indices], indices) for indices in places]


def keep_features(work: TrainingPlan, engine: Engine) -> KeptFeatures | None:
    """Run a frozen encoder over all data and store its features.

    Batches, and therefore features, do not depend on the number of processes.

    Args:
        work: The training plan.
        engine: Device and processes.

    Returns:
        None if the encoder must run in each step: more than the classifiers trains, augmentation or mixing
            changes the images, the loss has teachers or repulsion, each word has a label, the model is
            sharded, or a plugin trains other weights.

    Raises:
        DataError: If an item cannot be read.
        OutputError: If the disk has no space for the features.
    """
    changes = (
        work.recipe.augment
        or work.mixing
        or work.teachers
        or work.repulsion
        or not work.training.trains_all
        or engine.shards
        or work.header.architecture.task.by_word
    )
    if changes or not work.trains_head:
        return None
    model = _towers_of(work.load().module).eval()
    give_head_inputs(model, work.model_file.family)  # outputs (M, B, F)
    model = model.to(engine.device)
    shape = model.member_logits(blank_inputs(work.header.preprocess, 1, device=engine.device)).shape[::2]
    progress.step("Running the frozen encoder once and storing its features")

    def features_of(batch: Batch[Inputs]) -> tuple[Tensor, Tensor]:
        """Return the indices (B,) of the samples and their features (B, M, F), float32, on the CPU."""
        autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=work.recipe.precision == "bf16")
        with torch.inference_mode(), autocast:
            features = model.member_logits(inputs_like(batch.inputs, torch.empty(0, device=model.device)))
            return batch.indices, features.float().transpose(0, 1).cpu()

    with start_team(engine.device) as team:

        def encode_all(dataset: Dataset) -> Tensor:
            batch_share = BatchShare(team.rank, team.world)
            batches = eval_batches(
                dataset, work.preprocess, batch_size=EVAL_BATCH, limit_bytes=0, batch_share=batch_share
            )
            features = scratch_tensor(
                (len(dataset), *shape),
                name=f"the features of {len(dataset)} samples",
                until="the classifier is trained",
            )
            total = -(-len(dataset) // EVAL_BATCH)
            parts = team.iterate(map(features_of, batches))
            for indices, part in progress.track(parts, label=f"encoding {dataset.name}", total=total):
                features[indices] = part
            return features

        return KeptFeatures(train=encode_all(work.train), val=encode_all(work.val))


def _towers_of(module: nn.Module) -> Towers:
    towers = module.hydra if isinstance(module, TrainingHydra) else module
    if not isinstance(towers, Towers):
        raise TypeError(f"expected one model, got {type(module).__name__}")
    return towers


def on_features(subject: TrainableModel) -> TrainableModel:
    """Replace the forward pass of a model by the forward pass of the classifiers on stored features.

    Args:
        subject: The model; changed in place.

    Returns:
        The same model. The module takes features (B, M, F) and returns the same outputs as before. If members
        have different samples, the module takes (M P, M, F) in training mode.
    """
    module, members = subject.module, len(subject.header.masks)
    heads = heads_of(_towers_of(module), subject.family) * members
    by_member = isinstance(module, TrainingHydra) and module.by_member

    def forward(features: Tensor) -> Tensor:
        member_features = (
            features.unflatten(0, (members, -1)).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            if by_member and module.training
            else features.unbind(1)
        )
        outputs = torch.stack([_classified(*pair) for pair in zip(heads, member_features, strict=False)])
        logits = _towers_of(module).answer.class_logits(outputs)
        return module.answer(logits) if isinstance(module, TrainingHydra) else logits.squeeze(0)

    # The forward pass is replaced on the instance, because a wrapper module would change the names of
    # parameters.
    vars(module)["forward"] = forward
    return subject


def _classified(heads: Sequence[nn.Module], features: Tensor) -> Tensor:
    """Return the outputs of a member's classifiers for features (B, F), averaged over its classifiers.

    A model with a distillation token has two classifiers, each for a part of the features.
    """
    logits = [
        head(part if isinstance(head, nn.Linear) else part.unsqueeze(1))
        for head, part in zip(heads, features.chunk(len(heads), -1), strict=True)
    ]
    return logits[0] if len(logits) == 1 else torch.stack(logits).mean(0)


def training_macs(work: TrainingPlan, features: KeptFeatures | None, *, steps: int, per_epoch: int) -> int:
    """Return the number of multiply-accumulates of a training.

    A training step costs three forward passes per sample, because the backward pass costs two. With repulsion
    each sample counts twice, otherwise `Training.repeat` times. Stored features cost a single pass of the
    encoder over the training data, and each step three passes of the classifiers.

    Args:
        work: The training plan.
        features: Stored features, or None.
        steps: Number of steps after which the published weights were reached.
        per_epoch: Number of steps per epoch.
    """
    epochs, last_steps = divmod(steps, per_epoch)
    samples = epochs * len(work.train) + last_steps * work.recipe.batch_size
    macs = macs_of(work.load().module.eval(), blank_inputs(work.header.preprocess, 1, device="meta"))
    if features is None:
        return 3 * (work.training.repeat if work.repulsion is None else 2) * samples * macs
    heads = macs_of(on_features(work.load()).module.eval(), features.train[:1].to("meta"))
    return len(features.train) * macs + 3 * samples * heads
