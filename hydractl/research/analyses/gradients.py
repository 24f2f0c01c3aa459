"""Taylor importance of heads, and the terms of Proposition 1 of Hydra Ensembles.

The paper has Taylor importance in C.3 (Figure 7), and the proposition in A.2 and B.1. The proposition states
when pruning hurts more on corrupted data than on clean data. Let t be the weights of the base, d the step to
the member's weights, and L the mean cross-entropy. To second order

    (L_noisy - L_clean)(t + d) - (L_noisy - L_clean)(t) = (g_noisy - g_clean) d + d (H_noisy - H_clean) d / 2

with gradients g and Hessians H at t. The proposition assumes g_clean = 0, g_noisy d >= 0 and a positive
definite H_noisy - H_clean. The paper reports g_noisy d and the mean of the Hessians' diagonals. This module
measures both sides and every term. All values are exact except the diagonal, which `diagonal_probes`
estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl.errors import DataError, InputError
from hydractl.families.base import position_of
from hydractl.families.open_model import OpenModel
from hydractl.families.tower import Model
from hydractl.fusion.plan import split_members
from hydractl.manifest.head_mask import Mask
from hydractl.manifest.header import Kind
from hydractl.manifest.terms import ID_NAME
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.progress import SILENT, reporting
from hydractl.research.analyses.context import (
    AnalysisContext,
    LabelledBatches,
    ModelOfRow,
    load_single,
    members_of,
)
from hydractl.research.corruptions.names import Corruption
from hydractl.research.schema import HeadTable, Pruned
from hydractl.runtime import on_device
from hydractl.scoring.gradients import losses_of
from hydractl.scoring.job import ScoreJob
from hydractl.scoring.settings import TaylorSettings
from hydractl.scoring.weight_importance import score_taylor

PROBES = 8
"""Random vectors of the diagonal's estimate. Chosen by hand; doubling lowers the standard error by a factor
of sqrt(2) and nearly doubles the time, since each vector costs one second derivative per batch."""


def analyse_proposition(context: AnalysisContext) -> tuple[Pruned, ...]:
    """Measure the terms of Proposition 1 for each pruned member under each corruption.

    The step goes from the base's weights to the member's weights. The weights of removed heads become 0:
    queries, keys and values with their biases, and the heads' part of the output projection. Training of a
    member adds to the step. Logits are not divided by a temperature.

    Returns:
        An entry per member and corruption. Empty if the base is not a row; members equal to the base are
        omitted.
    """
    if context.base is None or not context.parts:
        return ()
    model = load_single(context.base, context)
    pruned: list[Pruned] = []
    for part in context.parts:
        for member, (mask, state) in enumerate(_members(part.model_file)):
            moves = steps(context.base, model, mask, state, name=part.model_file.reference)
            if not moves:
                continue
            terms = ExpansionTerms(model=model, moves=moves, seed=context.run.measurement.resampling.seed)
            clean = terms.on(context, part, ID_NAME)
            for corruption in context.corruptions:
                noisy = terms.on(context, part, corruption)
                pruned.append(_pruned_record(part.first + member, corruption, terms, clean, noisy))
    return tuple(pruned)


def _members(model_file: OpenModel) -> Iterator[tuple[Mask, Mapping[str, Tensor]]]:
    state, header = model_file.checkpoint.tensors(), model_file.header
    states = split_members(model_file.family, header, state) if header.kind == Kind.HYDRA else [state]
    yield from zip(header.masks, states, strict=True)


def steps(
    base: OpenModel, model: Model, mask: Mask, state: Mapping[str, Tensor], *, name: str
) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the parameters of a base that differ in a member, each with the difference to the member.

    Args:
        base: Header and files of the base.
        model: The loaded base.
        mask: The member's mask.
        state: State dict of the member.
        name: Name of the member in errors.

    Raises:
        InputError: If a tensor is missing in the member, or its shape does not fit the base and the mask.
    """
    # by identity, because a tied weight has several names
    differences: dict[int, tuple[nn.Parameter, Tensor]] = {}
    for key, weight in model.library_state().items():
        if not isinstance(weight, nn.Parameter) or not weight.is_floating_point():
            continue
        unpruned = _unpruned(base, mask, key, state.get(key), weight.shape)
        if unpruned is None:
            raise InputError(
                f"{name}: tensor `{key}` has another shape than in {base.reference}, so there is no step between them",
                hint="compare with its base: `--compare base=BASE`",
            )
        move = unpruned.to(weight) - weight.detach()
        if bool(move.any()):
            differences[id(weight)] = weight, move
    return [*differences.values()]


def _unpruned(
    base: OpenModel, mask: Mask, key: str, weight: Tensor | None, shape: torch.Size
) -> Tensor | None:
    """Return a member's tensor with zeros for removed heads, or None if the shape does not fit."""
    place = position_of(base.family, key)
    if weight is None or place.heads is None or place.layer is None:
        return weight if weight is not None and weight.shape == shape else None
    size, axis = base.header.architecture.towers[place.tower], place.heads.axis
    kept_heads = mask[place.tower].keep[place.layer]
    index = torch.tensor(place.heads.index(kept_heads, size), dtype=torch.long)
    unpruned = weight.new_zeros(shape)
    return (
        None
        if weight.shape != unpruned.index_select(axis, index).shape
        else unpruned.index_copy_(axis, index, weight)
    )


def diagonal_probes(moves: Sequence[Tensor], *, seed: int) -> list[list[Tensor]]:
    """Draw probes of the Hessian's trace: random signs at changed weights, otherwise 0 (Hutchinson).

    For a probe v, E[v H v] is the trace of H over the changed weights, which is the mean of the diagonal
    times the number of these weights. Clean and corrupted data use the same probes, so shared noise cancels
    in the difference.

    Args:
        moves: Changes of the parameters.
        seed: Seed of the probes.

    Returns:
        `PROBES` probes, with an int8 tensor per parameter.
    """
    draw = torch.Generator().manual_seed(seed)
    return [
        [
            torch.randint(2, move.shape, generator=draw, dtype=torch.int8)
            .mul_(2)
            .sub_(1)
            .mul_((move != 0).to("cpu", torch.int8))
            for move in moves
        ]
        for _ in range(PROBES)
    ]


@dataclass(frozen=True, slots=True)
class _TermMeans:
    """Means over samples: loss of base and member, first- and second-order term, v H v of each probe."""

    loss: float
    pruned: float
    slope: float
    curvature: float
    probes: Tensor


class ExpansionTerms:
    """Terms of the expansion in the module docstring for one step, on any data.

    Attributes:
        model: The base.
        weights: Parameters changed by the step.
        moves: Changes of these parameters.
        moved: Number of changed weights.
        probes: See `diagonal_probes`.
    """

    def __init__(self, *, model: Model, moves: Sequence[tuple[nn.Parameter, Tensor]], seed: int) -> None:
        self.model = model
        self.weights = [weight for weight, _ in moves]
        self.moves = [move for _, move in moves]
        self.moved = sum(int(move.count_nonzero()) for move in self.moves)
        self.probes = diagonal_probes(self.moves, seed=seed)

    def on(self, context: AnalysisContext, part: ModelOfRow, of: str | Corruption) -> _TermMeans:
        """Measure the means of the terms on the ID set. All ranks must call the method.

        Args:
            context: The row.
            part: Model of the row, for preprocessing.
            of: Name of the ID set, or a corruption of the ID set.

        Raises:
            DataError: If a loss or gradient is not finite.
        """

        def batch_sums() -> Iterator[list[Tensor]]:
            for batch in context.batches(part, of):
                labels = on_device(context.labels[batch.indices], self.model.device)
                yield [self.term_sums(batch.inputs, labels).cpu(), torch.tensor(len(labels))]

        with (
            sdpa_kernel(SDPBackend.MATH),
            _needing_gradients(self.weights),
        ):  # fused attention kernels have no second derivative
            sums, count = context.run.team.added(batch_sums())
        if not bool(sums.isfinite().all()):
            raise DataError(
                f"{part.model_file.reference}: losses or gradients on `{of}` are not finite; check that the model is trained"
            )
        loss, pruned, slope, curvature, *probes = (sums / count).tolist()
        return _TermMeans(loss, pruned, slope, curvature, torch.tensor(probes, dtype=torch.float64))

    def term_sums(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """Return the sums over a batch in the order of `_TermMeans`, shape (4 + PROBES,), float64."""
        like = self.weights[0]
        placed = inputs_like(inputs, like)
        # before the graph exists: a graph would save the weights that this call replaces
        pruned = self._pruned_loss(placed, labels)
        loss = losses_of(self.model(placed).unsqueeze(0), labels).sum()
        gradients = torch.autograd.grad(loss, self.weights, create_graph=True, materialize_grads=True)
        terms = [loss.detach(), pruned, _product(gradients, self.moves).detach()]
        for direction in (self.moves, *self.probes):
            along = [x.to(like) for x in direction]
            slope = _product(gradients, along)
            curved = torch.autograd.grad(slope, self.weights, retain_graph=True, materialize_grads=True)
            terms.append(_product(curved, along))
        return torch.stack([term.double() for term in terms])

    @torch.no_grad()
    def _pruned_loss(self, inputs: Inputs, labels: Tensor) -> Tensor:
        before = [weight.data for weight in self.weights]
        try:
            for weight, move in zip(self.weights, self.moves, strict=True):
                weight.data = weight.data + move
            return losses_of(self.model(inputs).unsqueeze(0), labels).sum()
        finally:
            for weight, data in zip(self.weights, before, strict=True):
                weight.data = data


def _product(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([(x * y).double().sum() for x, y in zip(a, b, strict=True)]).sum()


@contextmanager
def _needing_gradients(weights: Sequence[nn.Parameter]) -> Iterator[None]:
    for weight in weights:
        weight.requires_grad = True
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad = False


def _pruned_record(
    member: int, corruption: Corruption, terms: ExpansionTerms, clean: _TermMeans, noisy: _TermMeans
) -> Pruned:
    probes = (noisy.probes - clean.probes) / terms.moved
    return Pruned(
        member=member,
        corruption=f"{corruption.name}:{corruption.severity}",
        moved=terms.moved,
        gap=noisy.loss - clean.loss,
        gap_pruned=noisy.pruned - clean.pruned,
        slope_clean=clean.slope,
        slope=noisy.slope,
        curvature_clean=clean.curvature,
        curvature=noisy.curvature,
        diagonal=float(probes.mean()),
        deviation=float(probes.std() / len(probes) ** 0.5),
    )


def analyse_taylor(context: AnalysisContext) -> tuple[HeadTable, ...]:
    """Measure the Taylor importance of each member's heads on the ID set (Hydra Ensembles, C.3, Figure 7).

    The values equal `score --method taylor --scope global`: mean |weight × gradient| over queries, keys and
    values. Values are not normalized, and can be compared between towers.
    """
    return tuple(_taylor_tables(context))


def _taylor_tables(context: AnalysisContext) -> Iterator[HeadTable]:
    for part in context.parts:
        model_file = part.model_file
        for member, model in enumerate(members_of(part, context)):
            job = ScoreJob(
                model=model,
                family=model_file.family,
                architecture=model_file.header.architecture,
                id_data=LabelledBatches(
                    context, part, torch.empty(0, device=model.device, dtype=model.dtype)
                ),
                settings=TaylorSettings(scope="global"),
                team=context.run.team,
            )
            # `score_taylor` would suggest an option of `score`, which does not apply to `eval`
            with reporting(SILENT):
                ranking = score_taylor(job)
            for tower, rows in ranking.scores.items():
                mask = model_file.header.masks[member][tower]
                placed = [
                    dict(zip(head_numbers, map(float, row), strict=True))
                    for head_numbers, row in zip(mask.keep, rows, strict=True)
                ]
                yield HeadTable(
                    member=part.first + member,
                    tower=tower,
                    scores=tuple(
                        tuple(importance_by_head.get(head) for head in range(mask.num_heads))
                        for importance_by_head in placed
                    ),
                )
