"""Head importance by gates (Michel, Levy, Neubig 2019: "Are sixteen heads really better than one?")."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl import progress
from hydractl.families.attention import Attention
from hydractl.families.tower import Tower
from hydractl.manifest.head_mask import HeadId, Removal
from hydractl.model_inputs import Inputs, batch_of
from hydractl.research.scores.options import MichelSettings
from hydractl.runtime import at_least_single
from hydractl.scoring.attention_hooks import Gated, heads_left, remove_head, tapped
from hydractl.scoring.gradients import gate_gradients, losses_of, not_finite, sample_losses
from hydractl.scoring.job import (
    Ranking,
    Samples,
    ScoreJob,
    Tables,
    min_max,
    normalized,
    warn_of_unlike_towers,
)


def score_michel(job: ScoreJob) -> Ranking:
    """Score heads by I_h = E|∂L/∂ξ_h|, ξ_h = 1 a gate on the head's output before the output projection.

    With `form` `sample` the absolute value is each sample's (equation 2 of the paper); with `batch` it is that of the
    gradient of a batch's mean loss, averaged over batches, as in the code that others use (DSP, CAHP): signs of samples
    cancel, so it is no larger where batches are of one size, and it depends on their size. The source's division by the
    number of tokens is the same for all heads and falls out.

    Then scores are normalised as the settings say (by layer, as in the source), and moved to [0, 1] over all heads; with
    `normalize` `none` they stay I_h itself.

    With `recompute` N > 0 the N lowest heads go and scores are computed anew without them, until `budget` heads are gone
    (the paper's pruning in steps, DSP's `exact_pruning`); see `remove_lowest`.
    """
    settings = job.set_for(MichelSettings)
    warn_of_unlike_towers(job, settings.normalize)

    def measure() -> HeadImportance:
        tables, loss = gate_importance(job, settings.form)
        return (
            HeadImportance(tables, loss)
            if settings.normalize == "none"
            else HeadImportance(min_max(normalized(tables, settings.normalize)), loss)
        )

    return (
        remove_lowest(job, measure, at_once=settings.recompute)
        if settings.recompute
        else Ranking(scores=measure().tables)
    )


def gate_importance(job: ScoreJob, form: str) -> HeadImportance:
    """Return I_h of every head that is left, and the mean cross-entropy.

    Args:
        job: Its model may have lost heads.
        form: `sample` or `batch`.

    Raises:
        DataError: If a gradient is not finite, or there are no labels.
    """
    if form == "sample":
        return absolute_gradients(job)
    means = {name: gradients.abs().mean(dim=0) for name, gradients in gate_gradients(job).items()}
    tables: Tables = {
        name: [
            mean[layer, list(heads_left(job.model.tower(name), layer))].tolist() for layer in range(len(mean))
        ]
        for name, mean in means.items()
    }
    return HeadImportance(tables, mean_loss(job))


def mean_loss(job: ScoreJob) -> float:
    """Return the mean cross-entropy of all samples.

    Raises:
        DataError: If it is not finite, or samples have no labels.
    """
    # not inference mode: what a library keeps for later passes must allow gradients
    with torch.no_grad():
        batch_losses = [sample_losses(job.model, samples).double() for samples in job.id_data]
    return checked_loss(torch.cat(job.team.in_order(batch_losses)).mean().item())


def checked_loss(loss: float) -> float:
    """Return a loss.

    Raises:
        DataError: If it is not finite.
    """
    if not torch.tensor(loss).isfinite():
        raise not_finite("losses")
    return loss


class Fixed(NamedTuple):
    """A tower with fixed inputs: its outputs (1, N, F), and their derivatives (K, N, F) with respect to each head's gate."""

    outputs: torch.Tensor
    tangents: torch.Tensor


def absolute_gradients(job: ScoreJob) -> HeadImportance:
    """Return E_x |∂L(x)/∂ξ_h| over all samples x, L(x) the cross-entropy, for gates ξ = 1 on the outputs of the remaining heads.

    Gates (B, 1, H), one per sample, give the gradient of each sample in one backward pass per batch. The gates of a tower
    with fixed inputs (a text tower with prompts) are shared by all samples: the derivatives of its outputs with respect
    to each gate are computed once, in forward mode, and give the gradient of each sample. That costs half a pass over the
    prompts per head and memory for (K + 1) N F numbers, whatever the number of samples.

    Raises:
        DataError: If there are no labels, or a gradient is not finite.
    """
    job.model.requires_grad_(requires_grad=False)
    fixed_towers: dict[str, Fixed] = {}
    batch_sums = [_of_batch(job, samples, fixed_towers) for samples in job.id_data]
    sums = torch.stack(job.team.in_order(batch_sums)).sum(dim=0)
    count = sums[-1]
    if not sums.isfinite().all():
        raise not_finite("gradients")
    means = iter((sums[:-2] / count).tolist())
    tables = {
        name: [[next(means) for _ in heads_left(job.model.tower(name), i)] for i in range(t.layers)]
        for name, t in job.scored.items()
    }
    return HeadImportance(tables, checked_loss((sums[-2] / count).item()))


def _of_batch(job: ScoreJob, samples: Samples, fixed_towers: dict[str, Fixed]) -> torch.Tensor:
    """Return Σ|∂L/∂ξ| of a batch for all heads that are left, tower after tower; then the summed loss and the number of samples; float64."""
    inputs, labels = samples.labelled("computing gradients")
    routed = job.model.routed(inputs)
    for name in job.model.answer.fixed & routed.keys():
        if name not in fixed_towers:
            fixed_towers[name] = _fixed(job.model.tower(name), routed[name], moved=name in job.scored)
    outputs = {name: fixed.outputs for name, fixed in fixed_towers.items()}
    gates: dict[str, list[torch.Tensor]] = {name: [] for name in job.scored if name not in fixed_towers}

    def gated(tower: str, _: int, attention: Attention) -> Attention:
        gate = torch.ones(batch_of(inputs), 1, attention.groups()[0].heads, device=job.model.device)
        gates[tower].append(gate.to(at_least_single(job.model.dtype)).requires_grad_())
        return Gated(attention, gates[tower][-1])

    with torch.enable_grad(), tapped(job.model, gates, gated):
        for name, tower_inputs in routed.items():
            if name not in fixed_towers:
                outputs[name] = job.model.tower(name)(tower_inputs).unsqueeze(0)
        losses = losses_of(job.model.answer(outputs), labels)
        all_gates = [gate for tower_gates in gates.values() for gate in tower_gates]
        gradients = torch.autograd.grad(losses.sum(), all_gates) if all_gates else ()
    totals = iter(gradient.double().abs().sum(dim=(0, 1)) for gradient in gradients)
    outputs = {name: output.detach() for name, output in outputs.items()}
    parts = []
    for name in job.scored:
        if name in fixed_towers:
            parts.append(_by_fixed(job, {**outputs}, name, fixed_towers[name], labels))
        else:
            parts += [next(totals) for _ in gates[name]]
    ends = torch.stack([losses.detach().double().sum(), losses.new_tensor(len(labels)).double()])
    return torch.cat([*parts, ends])


def _by_fixed(
    job: ScoreJob, outputs: dict[str, torch.Tensor], name: str, fixed: Fixed, labels: torch.Tensor
) -> torch.Tensor:
    """Return Σ_b |∂L_b/∂ξ| (K,) of a tower that is always asked the same."""
    if not len(fixed.tangents):
        return fixed.tangents.new_zeros(0).double()
    with _forward_mode(), forward_ad.dual_level():
        repeated = fixed.outputs.expand_as(fixed.tangents).contiguous()
        outputs[name] = forward_ad.make_dual(repeated, fixed.tangents)
        moved = forward_ad.unpack_dual(losses_of(job.model.answer(outputs), labels)).tangent
        if moved is None:
            raise ValueError(f"the output does not depend on tower `{name}`")
        sums: torch.Tensor = moved.double().abs().sum(dim=1)
    return sums


def _fixed(tower: Tower, inputs: Inputs, *, moved: bool) -> Fixed:
    """Return a tower's outputs, and if `moved` how each head's gate moves them.

    A gate moves a layer's attention output by the head's own term, and what follows is run on the dual number of both.
    """
    tangents = []
    with _forward_mode():
        stream = tower.embed(inputs)
        for layer, block in enumerate(tower.layers()):
            queries = tower.queries(layer)
            z = block.heads(stream, queries)
            y = block.project(z)
            if queries is not None:
                stream = stream.with_tokens(stream.tokens[:, queries])
            group = block.attn.groups()[0]
            for head in range(group.heads if moved else 0):
                with forward_ad.dual_level():
                    dual = forward_ad.make_dual(y, group.head_term(z, head))
                    tangents.append(
                        forward_ad.unpack_dual(tower.resume(block.join(stream, dual), layer + 1)).tangent
                    )
            stream = block.join(stream, y)
        outputs = tower.finish(stream)
    return Fixed(
        outputs.unsqueeze(0),
        torch.stack([torch.zeros_like(outputs) if t is None else t for t in tangents])
        if tangents
        else outputs.new_zeros(0, *outputs.shape),
    )


@contextlib.contextmanager
def _forward_mode() -> Iterator[None]:
    """Compute what forward mode can differentiate: of attention only the plain form."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        # torch's own rules for forward mode still go through torch.jit
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class HeadImportance(NamedTuple):
    """Scores of the heads that are left, in each layer in the order of `heads_left`, and the mean cross-entropy."""

    tables: Tables
    loss: float


def remove_lowest(job: ScoreJob, measure: Callable[[], HeadImportance], *, at_once: int) -> Ranking:
    """Remove `job.budget` heads, the `at_once` lowest-scored in each step; of equal ones the lower (tower, layer, head).

    What a removal records as its objective is −(mean cross-entropy) once its step is done, the same for all heads of a
    step: `circuit`'s objective `-nll`. The next step's pass knows it anyway; only the last one costs a pass of its own.
    A head's score is its place in the order of removal, as with `circuit`; heads that stay have one more than the last.

    An interrupted run goes on after the last step that was recorded as a whole, and ends with the same bytes.

    Args:
        job: Its model loses the heads.
        measure: Scores what is left of the model.
        at_once: How many go before scores are computed anew, at least 1.
    """
    recorded = job.log.recorded
    removals = list(recorded[: len(recorded) // at_once * at_once])
    for removal in removals:
        remove_head(job.model, removal.id)
    # after the last step no scores are needed
    importance = measure() if len(removals) < job.budget else HeadImportance({}, mean_loss(job))
    baseline = -importance.loss if job.log.baseline is None else job.log.baseline
    job.log.begin(baseline)
    steps = range(len(removals), job.budget, at_once)
    for begin in progress.track(steps, label="Removing heads", total=len(steps)):
        scores = {
            HeadId(tower, layer, head): score
            for tower, rows in importance.tables.items()
            for layer, row in enumerate(rows)
            for head, score in zip(heads_left(job.model.tower(tower), layer), row, strict=True)
        }
        lowest = sorted(scores, key=scores.__getitem__)[: min(at_once, job.budget - begin)]
        for head in lowest:
            remove_head(job.model, head)
        remaining = begin + len(lowest) < job.budget
        importance = measure() if remaining else HeadImportance({}, mean_loss(job))
        for head in lowest:
            removal = Removal(tower=head.tower, layer=head.layer, head=head.head, objective=-importance.loss)
            if len(removals) >= len(
                recorded
            ):  # a step that was cut off is done again; some of it is on record
                job.log.record(removal)
            removals.append(removal)
    return Ranking.of_removals(job, removals, baseline=baseline)
