"""Per-sample gradients with respect to gates on head outputs (Michel et al. 2019, equation 2).

Axes: B samples of a batch, L layers, H heads, K remaining heads of a tower, N inputs of a tower, F features, C classes.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl.families.attention import Attention
from hydractl.families.tower import Tower
from hydractl.model_inputs import Inputs, batch_of
from hydractl.runtime import at_least_single
from hydractl.scoring.attention_hooks import Gated, heads_left, tapped
from hydractl.scoring.gradients.iterative import HeadImportance
from hydractl.scoring.gradients.weight_gradients import checked_loss, losses_of, not_finite
from hydractl.scoring.job import Samples, ScoreJob


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
    sums = _summed(job)
    count = sums[-1]
    if not sums.isfinite().all():
        raise not_finite("gradients")
    means = iter((sums[:-2] / count).tolist())
    tables = {
        name: [[next(means) for _ in heads_left(job.model.tower(name), i)] for i in range(t.layers)]
        for name, t in job.scored.items()
    }
    return HeadImportance(tables, checked_loss((sums[-2] / count).item()))


def _summed(job: ScoreJob) -> torch.Tensor:
    """Return Σ|∂L/∂ξ| of all heads that are left, tower after tower; then the summed loss and the number of samples."""
    job.model.requires_grad_(requires_grad=False)
    fixed_towers: dict[str, Fixed] = {}
    batch_sums = [_of_batch(job, samples, fixed_towers) for samples in job.id_data]
    return torch.stack(job.team.in_order(batch_sums)).sum(dim=0)


def _of_batch(job: ScoreJob, samples: Samples, fixed_towers: dict[str, Fixed]) -> torch.Tensor:
    """Return one batch's share of `_summed`, float64."""
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
