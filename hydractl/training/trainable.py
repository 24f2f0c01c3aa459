"""Models in training: a base, a member, or all members of a hydra; base class of training methods.

Axes: M members, B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.base import Family
from hydractl.families.open_model import build_checked
from hydractl.fusion.build import members_from_state
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import join_members
from hydractl.manifest.header import Header
from hydractl.metrics.per_sample import ensemble_log_probs
from hydractl.model_inputs import Inputs, split_batch
from hydractl.tasks import Task
from hydractl.training.accelerator import Engine
from hydractl.training.feeding import Feed, ItemFeed
from hydractl.training.recipe import FinetuneExtension, Recipe
from hydractl.training.trainer import Job

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Together(nn.Module):
    """Hydra in training: the trunk runs once, then each member."""

    def __init__(self, hydra: Hydra, *, by_member: bool = False) -> None:
        """Wrap a hydra.

        Args:
            hydra: The hydra.
            by_member: Whether each member has its own samples in training, (M B, ...). Such a hydra has no
                trunk.
        """
        super().__init__()
        hydra.lay_out("in turn")  # Stacked weights are copies, which each step would have to make again.
        self.hydra, self.by_member = hydra, by_member

    @override
    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return members' logits (M, B, C) in training mode, and log-probabilities (B, C) in evaluation.

        Args:
            inputs: Batch of B samples; in training mode with `by_member`, M B samples.
        """
        if self.by_member and self.training:
            outputs = self.hydra.tower().forward_member_inputs(self.hydra.adapted(inputs))
            return self.hydra.answer.class_logits(outputs.unflatten(0, (self.hydra.members, -1)))
        return self.answer(self.hydra.member_logits(inputs))

    def answer(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the result of `forward` for members' logits (M, B, C)."""
        return logits if self.training else ensemble_log_probs(logits.log_softmax(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableModel:
    """Model in memory, or several models that train together.

    Attributes:
        module: Module with inputs to logits (B, C); for a hydra a `Together`.
        states: Parameters and buffers of each member or model, by the library's names. The dicts contain the
            module's tensors; members of a hydra share tensor objects.
        header: Header of the model.
        family: Family of the model.
    """

    module: nn.Module
    states: tuple[Mapping[str, torch.Tensor], ...]
    header: Header
    family: Family

    @classmethod
    def of(
        cls,
        family: Family,
        header: Header,
        state: Mapping[str, torch.Tensor],
        *,
        where: str,
        by_member: bool = False,
    ) -> TrainableModel:
        """Build the model of a checkpoint in fp32.

        Args:
            family: Family of the model.
            header: Header of the checkpoint.
            state: Tensors of the checkpoint.
            where: Name of the model in messages.
            by_member: See `Together`; ignored for single models.

        Raises:
            CheckpointError: If the tensors do not fit architecture, masks and plan.
        """
        module: nn.Module
        if header.plan is None:
            members = [build_checked(family, header, state, where=where, dtype=torch.float32)]
            module = members[0]
        else:
            members = members_from_state(header, state, where=where, dtype=torch.float32)
            module = Together(Hydra(members), by_member=by_member)
        states = tuple(member.library_state() for member in members)
        return cls(module=module, states=states, header=header, family=family)

    def tensors(self) -> list[dict[str, torch.Tensor]]:
        """Return the tensors of each file by the names in the file; the inverse of `of`."""
        if self.header.plan is None:
            return [dict(state) for state in self.states]
        return [join_members(self.family, self.header.plan.fates, [dict(state) for state in self.states])]

    def tensor_names(self) -> dict[int, str]:
        """Return the name in the file of each parameter and buffer, by its `id`."""
        return {id(tensor): name for state in self.states for name, tensor in state.items()}


@dataclass(kw_only=True)
class Training:
    """Full fine-tuning: each selected weight trains itself. Plugins derive other training methods.

    A run has a single instance, which builds the model several times.

    Attributes:
        model: Name of the model in messages.
        header: Header of the opened model.
        recipe: The recipe.
        seed: Seed of the run.
        own_batches: Whether each member of a hydra has its own batches.
        options: Options of the plugin with this class.
        trains_all: Whether each selected weight trains itself.
        repeat: Number of times each sample is used per epoch.
    """

    model: str
    header: Header
    recipe: Recipe
    seed: int
    own_batches: bool
    options: FinetuneExtension
    trains_all: ClassVar[bool] = True
    repeat: int = 1

    def __post_init__(self) -> None:
        """Set further attributes of a derived class."""

    def check_base(self) -> None:
        """Raise if a hydra of the base cannot be trained by this method. Called before fusing."""

    def check(self, task: Task, data: str) -> None:
        """Raise if the model, or the task of the training data `data`, does not suit the method."""

    def select(
        self, family: Family, model: nn.Module, state: Mapping[str, torch.Tensor], names: Collection[str]
    ) -> tuple[str, ...]:
        """Return the names of the tensors to train.

        Args:
            family: Family of the model.
            model: Model without weights; for a hydra its first member.
            state: Tensors of `model` by the library's names.
            names: Names that options select.

        Raises:
            UsageError: If no name remains.
        """
        del family, model, state
        return tuple(names)

    def load(
        self, family: Family, header: Header, state: Mapping[str, torch.Tensor], *, where: str
    ) -> TrainableModel:
        """Build the model in fp32 from a state dict."""
        return TrainableModel.of(family, header, state, where=where, by_member=self.own_batches)

    def build(self, subject: TrainableModel, names: Collection[str]) -> TrainableModel:
        """Change a loaded model for training, and return the result; `names` are the tensors to train."""
        del names
        return subject

    def open_feed(
        self, feed: ItemFeed, load: Callable[[], TrainableModel], names: Collection[str], engine: Engine
    ) -> Feed:
        """Return the batches of the training.

        Args:
            feed: Batches of the data.
            load: Returns the model.
            names: Names of the tensors to train.
            engine: Device and processes.
        """
        del load, names, engine
        return feed

    def change_job(self, job: Job) -> Job:
        """Return the job of the training loop, changed for the method."""
        return job

    def is_own(self, parameter: str) -> bool:
        """Return whether a trained parameter belongs to the model, not to the method or a copy."""
        del parameter
        return True

    def join(self, modules: Sequence[nn.Module]) -> nn.Module:
        """Return a module with the predictions of the published models."""
        return modules[0]


def of_each(header: Header, loss: Loss, *, by_member: bool = False, several: bool = False) -> Loss:
    """Return the loss of a model in training, averaged over members.

    Args:
        header: Header of the model.
        loss: Loss of one member for logits (B, C) and labels (B,).
        by_member: Whether each member has its own labels, concatenated on the batch axis.
        several: Whether several models train without being members of a hydra.
    """
    if header.plan is None and not several:
        return loss

    def mean(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        member_labels = split_batch(labels, len(outputs)) if by_member else [labels] * len(outputs)
        return torch.stack(
            [loss(z, labels_of_member) for z, labels_of_member in zip(outputs, member_labels, strict=True)]
        ).mean(0)

    return mean
