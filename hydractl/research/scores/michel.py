"""Head importance by gradients of gates (Michel, Levy and Neubig 2019).

Axes: B batch, H remaining heads of a layer, K scored heads of a tower, N inputs of a tower, F features.
"""

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
    """Compute I_h = E|∂L/∂ξ_h| with a gate ξ_h = 1 on each head's output, before the output projection.

    With `form` `sample`, the absolute value is taken per sample (equation 2 of the paper). With `batch`, the
    absolute value of the gradient of a batch's mean loss is averaged over batches (code of DSP and CAHP).
    Samples then cancel each other, so the result depends on the batch size. With batches of equal size, the
    result is at most the result with `sample`. The authors divide by the number of tokens, which is the same
    for all heads and has no effect.

    Importance is then normalized by `normalize` (by layer in the authors' code) and scaled to [0, 1] over all
    heads. With `normalize` `none` the result is I_h.

    With `recompute` N > 0, the N least important heads are removed and the importance is computed again,
    until `budget` heads are removed (pruning in steps in the paper, `exact_pruning` of DSP); see
    `remove_lowest`.

    Raises:
        DataError: If a gradient or loss is not finite, or if there are no labels.
    """
    settings = job.set_for(MichelSettings)
    warn_of_unlike_towers(job, settings.normalize)

    def measure() -> GateImportance:
        tables, loss = gate_importance(job, settings.form)
        return (
            GateImportance(tables, loss)
            if settings.normalize == "none"
            else GateImportance(min_max(normalized(tables, settings.normalize)), loss)
        )

    return (
        remove_lowest(job, measure, at_once=settings.recompute)
        if settings.recompute
        else Ranking(scores=measure().tables)
    )


def gate_importance(job: ScoreJob, form: str) -> GateImportance:
    """Return I_h of every remaining head, and the mean cross-entropy.

    Args:
        job: Job whose model may have fewer heads than the base.
        form: `sample` or `batch`.

    Raises:
        DataError: If a gradient is not finite, or if there are no labels.
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
    return GateImportance(tables, mean_loss(job))


def mean_loss(job: ScoreJob) -> float:
    """Return the mean cross-entropy of all samples.

    Raises:
        DataError: If it is not finite, or if samples have no labels.
    """
    # Not inference mode: tensors that a library caches for later passes must support gradients.
    with torch.no_grad():
        batch_losses = [sample_losses(job.model, samples).double() for samples in job.id_data]
    return checked_loss(torch.cat(job.team.in_order(batch_losses)).mean().item())


def checked_loss(loss: float) -> float:
    """Return a loss unchanged if it is finite.

    Raises:
        DataError: If the loss is not finite.
    """
    if not torch.tensor(loss).isfinite():
        raise not_finite("losses")
    return loss


class FixedTower(NamedTuple):
    """Outputs of a tower with fixed inputs, and their derivatives.

    Attributes:
        outputs: Shape (1, N, F).
        tangents: Derivatives with respect to each head's gate, (K, N, F).
    """

    outputs: torch.Tensor
    tangents: torch.Tensor


def absolute_gradients(job: ScoreJob) -> GateImportance:
    """Return E_x |∂L(x)/∂ξ_h| over all samples x, for gates ξ = 1 on the outputs of the remaining heads.

    Gates (B, 1, H) per sample give the gradient of each sample's cross-entropy in a single backward pass per
    batch. Gates of a tower with fixed inputs (a text tower with prompts) are shared by all samples.
    Derivatives of its outputs with respect to each gate are computed once in forward mode, and give each
    sample's gradient. Their cost is half a pass over the prompts per head and memory for (K + 1) N F numbers,
    for any number of samples.

    Raises:
        DataError: If there are no labels, or if a gradient is not finite.
    """
    job.model.requires_grad_(requires_grad=False)
    fixed_towers: dict[str, FixedTower] = {}
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
    return GateImportance(tables, checked_loss((sums[-2] / count).item()))


def _of_batch(job: ScoreJob, samples: Samples, fixed_towers: dict[str, FixedTower]) -> torch.Tensor:
    """Return a batch's Σ|∂L/∂ξ| for all remaining heads, then the summed loss and the number of samples.

    Heads are in the order of towers and layers; values are float64.
    """
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
    job: ScoreJob, outputs: dict[str, torch.Tensor], name: str, fixed: FixedTower, labels: torch.Tensor
) -> torch.Tensor:
    """Return Σ_b |∂L_b/∂ξ| (K,) of a tower with fixed inputs."""
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


def _fixed(tower: Tower, inputs: Inputs, *, moved: bool) -> FixedTower:
    """Return a tower's outputs, and with `moved` the derivative with respect to each head's gate.

    A gate's derivative of a layer's attention output is the head's own term. The remaining layers run on dual
    numbers.
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
    return FixedTower(
        outputs.unsqueeze(0),
        torch.stack([torch.zeros_like(outputs) if t is None else t for t in tangents])
        if tangents
        else outputs.new_zeros(0, *outputs.shape),
    )


@contextlib.contextmanager
def _forward_mode() -> Iterator[None]:
    """Restrict computation to operators with forward-mode derivatives: plain attention."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        # Forward-mode rules of torch 2.15 use torch.jit, which warns that it is deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class GateImportance(NamedTuple):
    """Importance of the remaining heads, and the mean cross-entropy.

    Attributes:
        tables: Importance by tower and layer, in the order of `heads_left`.
        loss: Mean cross-entropy.
    """

    tables: Tables
    loss: float


def remove_lowest(job: ScoreJob, measure: Callable[[], GateImportance], *, at_once: int) -> Ranking:
    """Remove `job.budget` heads, the `at_once` least important in each step.

    Ties go to the lower (tower, layer, head). The objective of a removal is −(mean cross-entropy) after the
    step, the same for all heads of the step (`-nll` of `circuit`). The next step computes this loss anyway;
    only the last step needs another pass. The importance of a removed head is the position in the order of
    removal, like `circuit`; remaining heads have the last position plus 1.

    An interrupted run resumes after the last complete recorded step, and gives the same bytes.

    Args:
        job: The job's model loses the heads.
        measure: Computes the importance of the remaining heads.
        at_once: Heads per step, at least 1.
    """
    recorded = job.log.recorded
    removals = list(recorded[: len(recorded) // at_once * at_once])
    for removal in removals:
        remove_head(job.model, removal.id)
    # after the last step no scores are needed
    importance = measure() if len(removals) < job.budget else GateImportance({}, mean_loss(job))
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
        importance = measure() if remaining else GateImportance({}, mean_loss(job))
        for head in lowest:
            removal = Removal(tower=head.tower, layer=head.layer, head=head.head, objective=-importance.loss)
            if len(removals) >= len(
                recorded
            ):  # an incomplete step runs again, although some of its removals are recorded
                job.log.record(removal)
            removals.append(removal)
    return Ranking.of_removals(job, removals, baseline=baseline)
