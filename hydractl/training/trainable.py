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


class TrainingHydra(nn.Module):
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
        module: Function from inputs to logits (B, C). For a hydra a `TrainingHydra`; for several models, a
            module with the same outputs as `TrainingHydra`.
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
        place: str,
        by_member: bool = False,
    ) -> TrainableModel:
        """Build the model of a checkpoint in fp32.

        Args:
            family: Family of the model.
            header: Header of the checkpoint.
            state: Tensors of the checkpoint.
            place: Name of the model in messages.
            by_member: See `TrainingHydra`; ignored for single models.

        Raises:
            CheckpointError: If the tensors do not fit architecture, masks and plan.
        """
        module: nn.Module
        if header.plan is None:
            members = [build_checked(family, header, state, place=place, dtype=torch.float32)]
            module = members[0]
        else:
            members = members_from_state(header, state, place=place, dtype=torch.float32)
            module = TrainingHydra(Hydra(members), by_member=by_member)
        states = tuple(member.library_state() for member in members)
        return cls(module=module, states=states, header=header, family=family)

    def tensors(self) -> list[dict[str, torch.Tensor]]:
        """Return the tensors of each output file, by the names in the file.

        A hydra is a single file. Otherwise each model is a file.
        """
        if self.header.plan is None:
            return [dict(state) for state in self.states]
        return [join_members(self.family, self.header.plan.fates, [dict(state) for state in self.states])]

    def tensor_names(self) -> dict[int, str]:
        """Return the name in the file of each parameter and buffer, by its `id`."""
        return {id(tensor): name for state in self.states for name, tensor in state.items()}


@dataclass(kw_only=True)
class Training:
    """Training method: full fine-tuning in this base class. Plugins derive other methods, for example LoRA.

    A run has a single instance, which builds the model several times.

    Attributes:
        model: Name of the model in messages.
        header: Header of the opened model.
        recipe: The recipe.
        seed: Seed of the run.
        own_batches: Whether each member of a hydra has its own batches.
        options: Options of the plugin with this class.
        trains_all: Whether the selected weights are trained themselves. False if the method computes weights
            from other parameters.
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
        """Raise `UsageError` if a hydra of this base could not be trained by the method.

        Called before fusing. The base class never raises.
        """

    def check(self, task: Task, data: str) -> None:
        """Raise `UsageError` if the model or the task of the data does not suit the method.

        The base class never raises.

        Args:
            task: Task of the training data.
            data: Name of the training data in messages.
        """

    def select(
        self, family: Family, model: nn.Module, state: Mapping[str, torch.Tensor], names: Collection[str]
    ) -> tuple[str, ...]:
        """Return the names of the tensors to train; in this base class all given names.

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
        self, family: Family, header: Header, state: Mapping[str, torch.Tensor], *, place: str
    ) -> TrainableModel:
        """Build the model in fp32 from a state dict."""
        return TrainableModel.of(family, header, state, place=place, by_member=self.own_batches)

    def build(self, subject: TrainableModel, names: Collection[str]) -> TrainableModel:
        """Return a loaded model after the changes of the method; unchanged in this base class.

        Args:
            subject: The model, which may be changed in place.
            names: Names of the tensors to train.
        """
        del names
        return subject

    def open_feed(
        self, feed: ItemFeed, load: Callable[[], TrainableModel], names: Collection[str], engine: Engine
    ) -> Feed:
        """Return the batches of the training; in this base class the given feed.

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
        """Return whether a trained parameter belongs to the model, not to the method or a copy.

        True in this base class.
        """
        del parameter
        return True

    def join(self, modules: Sequence[nn.Module]) -> nn.Module:
        """Return a module with the predictions of the output models; in this base class the only model."""
        return modules[0]


def of_each(header: Header, loss: Loss, *, by_member: bool = False, several: bool = False) -> Loss:
    """Return the loss function of a model in training, averaged over members.

    Args:
        header: Header of the model.
        loss: Loss of one member for logits (B, C) and labels (B,).
        by_member: Whether each member has its own labels, concatenated on the batch axis.
        several: Whether several models train together that are not members of a hydra.

    Returns:
        `loss` itself for a single model. Otherwise a function of logits (M, B, C) and labels, with the result
        (B,).
    """
    if header.plan is None and not several:
        return loss

    def mean(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        member_labels = split_batch(labels, len(outputs)) if by_member else [labels] * len(outputs)
        return torch.stack(
            [loss(z, labels_of_member) for z, labels_of_member in zip(outputs, member_labels, strict=True)]
        ).mean(0)

    return mean
