"""First-order Taylor scores of heads (Hydra Ensembles, C.3, Figure 7), and the terms of Proposition 1 (A.2 and B.1).

The proposition says when pruning hurts more on corrupted data than on clean data.

With t the weights of the base, d the step to a member's, L the mean cross-entropy, to second order

    (L_noisy - L_clean)(t + d) - (L_noisy - L_clean)(t) = (g_noisy - g_clean) d + d (H_noisy - H_clean) d / 2,

g the gradients and H the Hessians at t. The proposition assumes that g_clean = 0, g_noisy d >= 0, and that H_noisy - H_clean is
positive definite; the paper looks at g_noisy d and at the mean of the Hessians' diagonals. Here every term is measured, and both
sides: all exact but the diagonal, for which see `diagonal_probes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl.errors import DataError, InputError
from hydractl.families.base import place_of
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
    members_of,
    single,
)
from hydractl.research.corruptions.names import Corruption
from hydractl.research.schema import HeadTable, Pruned
from hydractl.runtime import on_device
from hydractl.scoring.gradients import losses_of
from hydractl.scoring.job import ScoreJob
from hydractl.scoring.settings import TaylorSettings
from hydractl.scoring.weight_scores import score_taylor

PROBES = 8


def analyse_proposition(context: AnalysisContext) -> tuple[Pruned, ...]:
    """Return the terms of every member that a base stands beside, under each corruption.

    A step is from the base's weights to the member's, those of removed heads being 0: the removed heads' queries, keys and values with
    their biases, and their part of the output projection; of members that were trained, all that training changed too. A model with
    such weights answers as the member does. Logits are not divided by a temperature.
    """
    if context.base is None or not context.parts:
        return ()
    model = single(context.base, context)
    pruned: list[Pruned] = []
    for part in context.parts:
        for member, (mask, state) in enumerate(_members(part.opened)):
            moves = steps(context.base, model, mask, state, name=part.opened.reference)
            if not moves:
                continue
            terms = ExpansionTerms(model=model, moves=moves, seed=context.run.measurement.resampling.seed)
            clean = terms.on(context, part, ID_NAME)
            for corruption in context.corruptions:
                noisy = terms.on(context, part, corruption)
                pruned.append(_pruned(part.first + member, corruption, terms, clean, noisy))
    return tuple(pruned)


def _members(opened: OpenModel) -> Iterator[tuple[Mask, Mapping[str, Tensor]]]:
    state, header = opened.checkpoint.tensors(), opened.header
    states = split_members(opened.family, header, state) if header.kind == Kind.HYDRA else [state]
    yield from zip(header.masks, states, strict=True)


def steps(
    base: OpenModel, model: Model, mask: Mask, state: Mapping[str, Tensor], *, name: str
) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the parameters of the base that a member has otherwise, each with the difference.

    Args:
        base: Where it came from.
        model: The same, as it runs.
        mask: The heads that the member keeps.
        state: Its tensors.
        name: What errors call it.

    Raises:
        InputError: If they are of models with other tensors.
    """
    differences: dict[int, tuple[nn.Parameter, Tensor]] = {}  # one that has several names once
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
    """Return a member's tensor with zeros for the heads that it lacks; None if it is not of that shape."""
    place = place_of(base.family, key)
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
    """Return vectors of random signs on the weights that a step changes, 0 elsewhere, as int8 (Hutchinson 1990).

    For such a v, E[v H v] is the trace of H over these weights: the mean of the diagonal, times how many they are. The same vectors
    serve clean and corrupted data, so what they have in common drops out of the difference.
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
    """Means over samples, float64: the losses of base and member, slope and curvature, and each probe's v H v."""

    loss: float
    pruned: float
    slope: float
    curvature: float
    probes: Tensor


class ExpansionTerms:
    """The terms of one step on any data."""

    def __init__(self, *, model: Model, moves: Sequence[tuple[nn.Parameter, Tensor]], seed: int) -> None:
        self.model = model
        self.weights = [weight for weight, _ in moves]
        self.moves = [move for _, move in moves]
        self.moved = sum(int(move.count_nonzero()) for move in self.moves)
        self.probes = diagonal_probes(self.moves, seed=seed)

    def on(self, context: AnalysisContext, part: ModelOfRow, of: str | Corruption) -> _TermMeans:
        """Return them for the ID set, perhaps corrupted.

        Raises:
            DataError: If one is not finite.
        """

        def batch_sums() -> Iterator[list[Tensor]]:
            for batch in context.batches(part, of):
                labels = on_device(context.labels[batch.indices], self.model.device)
                yield [self.of_batch(batch.inputs, labels).cpu(), torch.tensor(len(labels))]

        with (
            sdpa_kernel(SDPBackend.MATH),
            _needing_gradients(self.weights),
        ):  # others have no second derivative
            sums, count = context.run.team.added(batch_sums())
        if not bool(sums.isfinite().all()):
            raise DataError(
                f"{part.opened.reference}: losses or gradients on `{of}` are not finite; check that the model is trained"
            )
        loss, pruned, slope, curvature, *probes = (sums / count).tolist()
        return _TermMeans(loss, pruned, slope, curvature, torch.tensor(probes, dtype=torch.float64))

    def of_batch(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """Return what `_TermMeans` has of a batch, as sums in one vector."""
        like = self.weights[0]
        placed = inputs_like(inputs, like)
        pruned = self._pruned_loss(placed, labels)  # first: what it changes, a graph would hold
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


def _pruned(
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
    """Return for each member what `score --method taylor --scope global` says on the ID set: |weight × gradient| of q, k and v.

    Nothing is normalised, so that towers can be compared.
    """
    return tuple(_taylor_tables(context))


def _taylor_tables(context: AnalysisContext) -> Iterator[HeadTable]:
    for part in context.parts:
        opened = part.opened
        for member, model in enumerate(members_of(part, context)):
            job = ScoreJob(
                model=model,
                family=opened.family,
                architecture=opened.header.architecture,
                id_data=LabelledBatches(
                    context, part, torch.empty(0, device=model.device, dtype=model.dtype)
                ),
                settings=TaylorSettings(scope="global"),
                team=context.run.team,
            )
            # it would say that `prune` compares the scores of towers, by an option of `score`
            with reporting(SILENT):
                ranking = score_taylor(job)
            for tower, rows in ranking.scores.items():
                mask = opened.header.masks[member][tower]
                placed = [
                    dict(zip(head_numbers, map(float, row), strict=True))
                    for head_numbers, row in zip(mask.keep, rows, strict=True)
                ]
                yield HeadTable(
                    member=part.first + member,
                    tower=tower,
                    scores=tuple(
                        tuple(score_by_head.get(head) for head in range(mask.num_heads))
                        for score_by_head in placed
                    ),
                )
