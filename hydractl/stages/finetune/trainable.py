"""What trains: a base, a member, or all members of a hydra together, told apart here and nowhere else in this stage.

Axes: M members, B batch, C classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.base import Family
from hydractl.fusion.build import copies_of, members_from_state
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import join_members
from hydractl.manifest.header import Header
from hydractl.metrics.per_sample import ensemble_log_probs
from hydractl.model_inputs import Inputs, inputs_on, split_batch, split_inputs
from hydractl.progress import Progress
from hydractl.settings import long_option
from hydractl.stages.shared.finite import check_finite, check_weights, stored_tensors
from hydractl.training.dropout import HAS_LAYERS_FOR, set_dropout
from hydractl.training.methods.adapter import Adapter, SideBySide
from hydractl.training.recipes.parameter_groups import rate_scales, reset_head
from hydractl.training.trainer import Job
from hydractl.training.weight_sites import MADE, ORIGINAL, Site, realised, sites_of

if TYPE_CHECKING:
    from hydractl.stages.finetune.prepare import TrainingPlan

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Together(nn.Module):
    """A hydra as it trains: the trunk once, then each member apart."""

    def __init__(self, hydra: Hydra, *, by_member: bool = False) -> None:
        """Wrap a hydra.

        Args:
            hydra: What trains.
            by_member: Whether members have samples of their own in training, (M B, ...); it then has no trunk.
        """
        super().__init__()
        hydra.lay_out("in turn")  # what changes with each step, or lies in parts, is not worth a copy
        self.hydra = hydra
        self.by_member = by_member

    @override
    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return the members' logits (M, B, C) in training, the ensemble's log-probabilities (B, C) in evaluation.

        Members that have samples of their own in training are given (M B, ...).
        """
        if self.by_member and self.training:
            outputs = self.hydra.tower().forward_member_inputs(self.hydra.adapted(inputs))
            return self.hydra.answer.class_logits(outputs.unflatten(0, (self.hydra.members, -1)))
        logits = (
            self._side_by_side(inputs) if self.training and self.slots else self.hydra.member_logits(inputs)
        )
        return self.answer(logits)

    def answer(self, logits: torch.Tensor) -> torch.Tensor:
        """Return what `forward` does, of the members' logits (M, B, C)."""
        return logits if self.training else ensemble_log_probs(logits.log_softmax(-1))

    @property
    def slots(self) -> list[SideBySide]:
        """Where members see images side by side."""
        return [module for module in self.hydra.modules() if isinstance(module, SideBySide)]

    def _side_by_side(self, inputs: Inputs) -> torch.Tensor:
        images = [
            member_inputs
            for member_inputs in split_inputs(inputs, self.hydra.members)
            if isinstance(member_inputs, torch.Tensor)
        ]
        with contextlib.ExitStack() as stack:
            for slots in self.slots:
                stack.enter_context(slots.seeing(images))
            return self.hydra.member_logits(images[0])


class Jointly(nn.Module):
    """Models that train together and may hold some parameters in common."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @override
    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return what `Together` does."""
        logits = torch.stack([member(inputs) for member in self.members])
        return logits if self.training else ensemble_log_probs(logits.log_softmax(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableModel:
    """A model in memory, or several.

    Attributes:
        module: Inputs to logits (B, C); a hydra's as `Together` has it, several models' as `Jointly`.
        states: Each member's parameters and buffers by the library's names, the very ones of the module: what members of
            a hydra share is the same tensor in each.
        header: What it was made by.
        family: Likewise.
        sites: Of each model, the layers whose weights may be made of others, by the weights' names; none where none are.
    """

    module: nn.Module
    states: tuple[Mapping[str, torch.Tensor], ...]
    header: Header
    family: Family
    sites: tuple[Mapping[str, Site], ...] = ()

    @classmethod
    def of(
        cls,
        family: Family,
        header: Header,
        state: Mapping[str, torch.Tensor],
        *,
        where: str,
        by_member: bool = False,
        copies: int = 1,
    ) -> TrainableModel:
        """Build in fp32 what a checkpoint holds.

        Args:
            family: Who reads it.
            header: What it is.
            state: Its tensors.
            where: What to call it in messages.
            by_member: Of a hydra, see `Together`.
            copies: Of a model that is no hydra, how many to build, all of the same parameters.

        Raises:
            CheckpointError: If its tensors are not those of its architecture, masks and plan.
        """
        module: nn.Module
        if header.plan is None:
            members = copies_of(header, state, copies, where=where, dtype=torch.float32)
            module = members[0] if copies == 1 else Jointly(members)
        else:
            members = members_from_state(header, state, where=where, dtype=torch.float32)
            module = Together(Hydra(members), by_member=by_member)
        states = tuple(member.library_state() for member in members)
        return cls(module=module, states=states, header=header, family=family)

    def tensors(self) -> list[dict[str, torch.Tensor]]:
        """Return the tensors as checkpoints name them, of each model that is written: the inverse of `of`."""
        plan, made_tensors = self.header.plan, [realised(member_sites) for member_sites in self.sites] or [{}]
        if plan is not None:
            return [
                join_members(
                    self.family, plan.fates, [dict(state) | made_tensors[0] for state in self.states]
                )
            ]
        return [
            dict(state) | member_tensors
            for state, member_tensors in zip(self.states, made_tensors, strict=True)
        ]

    def adapted(self, adapter: Adapter, names: Collection[str], *, seed: int) -> TrainableModel:
        """Return one that trains by a method; this one, changed.

        Args:
            adapter: Of the method.
            names: What may train.
            seed: Of what it begins with.
        """
        models = self.module.members if isinstance(self.module, Jointly) else [self.module]
        # what members of a hydra share has its name in each
        sites = tuple(sites_of(self.family, *pair) for pair in zip(models, self.states, strict=False))
        generator = torch.Generator().manual_seed(seed)
        for member_sites in sites:
            adapter.attach(member_sites, names, generator)
        return replace(self, sites=sites)


def warn_equal(
    work: TrainingPlan, subject: TrainableModel, job: Job, device: torch.device, progress: Progress
) -> None:
    """Say that members which begin equal would end so; the subject's gradients and its dropout are not as they were afterwards."""
    if work.header.plan is None or work.config.has_own_batches or work.config.method:
        return
    drops = [
        f"`{long_option(name)} 0.1`, or "
        for name, has_layers in HAS_LAYERS_FOR.items()
        if has_layers(subject.module) and not work.trains_head
    ]
    if _stay_equal(subject, job, device):
        progress.warn(
            f"equal members stay equal without dropout: add {''.join(drops[:1])}"
            "`--reset-head --head-seed 1` to give each its own classifier"
        )


def _stay_equal(subject: TrainableModel, job: Job, device: torch.device) -> bool:
    """Return whether two members hold the same weights and would for ever, as neither dropout nor teachers tell them apart.

    Args:
        subject: As training begins; its gradients and its dropout are not as they were afterwards.
        job: How it would train; the members' gradients of its probe are compared.
        device: Where teachers are.
    """
    twins = [
        (first, second)
        for first, second in combinations(subject.states, 2)
        if all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    ]
    if not twins:
        return False
    noise = set_dropout(subject.module, job.recipe.dropout, path=job.recipe.drop_path)
    with noise.at(seed=0, step=0, rows=range(1), total=1, device=torch.device("cpu")):
        job.begin_training(subject.module)
        outputs = subject.module(job.probe)
    log_probs = outputs.log_softmax(-1)
    if job.lesson is None:
        log_probs = log_probs[..., 0]
    else:
        log_probs = log_probs * job.lesson.targets(inputs_on(job.probe, device)).cpu()
    log_probs.sum().backward()
    return any(
        all(_same_gradient(tensor.grad, second[n].grad) for n, tensor in first.items())
        for first, second in twins
    )


def _same_gradient(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def is_own(parameter: str) -> bool:
    """Return whether a module's parameter of that name is one of the model's own: not what a method adds, nor a copy's."""
    first = not parameter.startswith("members.") or parameter.startswith("members.0.")
    return first and (MADE not in parameter or parameter.endswith(ORIGINAL))


def of_each(header: Header, loss: Loss, *, by_member: bool = False, several: bool = False) -> Loss:
    """Return a loss of logits (B, C) and labels, (B,), as one of what a model answers in training: the mean over members.

    Args:
        header: Of the model.
        loss: Of one member.
        by_member: Whether members have labels of their own, one's after another's.
        several: Whether several models train that are no hydra.
    """
    if header.plan is None and not several:
        return loss

    def mean(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        member_labels = split_batch(labels, len(outputs)) if by_member else [labels] * len(outputs)
        return torch.stack(
            [loss(z, labels_of_member) for z, labels_of_member in zip(outputs, member_labels, strict=True)]
        ).mean(0)

    return mean


def build_trainable(work: TrainingPlan) -> TrainableModel:
    """Return the model as training begins."""
    model = load_trainable(work)
    return model if work.adapter is None else model.adapted(work.adapter, work.names, seed=work.config.seed)


def load_trainable(work: TrainingPlan) -> TrainableModel:
    """Return it before a method makes weights of others: in fp32 whatever is stored, gradients where parameters train."""
    subject = TrainableModel.of(
        work.opened.family,
        work.header,
        _initial_tensors(work),
        where=work.config.model,
        by_member=work.config.has_own_batches,
        copies=work.config.models,
    )
    for state in subject.states:
        for name, tensor in state.items():
            tensor.requires_grad_(name in work.names)
    return subject


def _initial_tensors(work: TrainingPlan) -> dict[str, torch.Tensor]:
    """Return the tensors that training begins with."""
    state = work.opened.checkpoint.tensors()
    resets = work.config.reset_head and work.config.head_seed is None
    return reset_head(work.opened.family, state) if resets else state


def check_initial_weights(work: TrainingPlan) -> None:
    """Refuse weights that are not finite before anything trains: no rate would help.

    Raises:
        CheckpointError: If the model has some, or a teacher.
    """
    check_finite(_initial_tensors(work), where=work.config.model)
    for teacher in work.teachers:
        check_weights(teacher)


def scale_rates(work: TrainingPlan) -> dict[str, float]:
    """Return what the learning rate of each parameter is multiplied by, under the model's own names."""
    decay = work.config.recipe.layer_decay
    if decay is None:
        return {}
    subject = build_trainable(work)
    theirs = {id(tensor): name for state in subject.states for name, tensor in state.items()}
    for name, site in (pair for sites in subject.sites for pair in sites.items()):
        theirs |= {id(weight): name for weight in site.layer.parameters() if id(weight) not in theirs}
    names = {name: theirs[id(parameter)] for name, parameter in subject.module.named_parameters()}
    scales = rate_scales(work.opened.family, work.header.architecture, decay, theirs.values())
    return {name: scales[tensor_name] for name, tensor_name in names.items()}


def output_tensors(
    work: TrainingPlan, trained_weights: Mapping[str, torch.Tensor]
) -> list[dict[str, torch.Tensor]]:
    """Return what is written of each model: every tensor in its stored dtype, untouched where it did not train.

    Raises:
        CheckFailed: If a weight does not fit its dtype.
    """
    subject = build_trainable(work)
    parameters = dict(subject.module.named_parameters())
    with torch.no_grad():
        for name, tensor in trained_weights.items():
            parameters[name].copy_(tensor)
    hint = "lower `--lr`, or add `--clip 1.0`"
    return [
        stored_tensors(work.opened.checkpoint, state, trained=work.names, hint=hint)
        for state in subject.tensors()
    ]


def load_output(work: TrainingPlan, tensors: Sequence[Mapping[str, torch.Tensor]]) -> nn.Module:
    """Return what answers with tensors as they are written."""
    modules = [
        TrainableModel.of(work.opened.family, work.header, state, where=work.config.model).module
        for state in tensors
    ]
    return modules[0] if len(modules) == 1 else Jointly(modules)
