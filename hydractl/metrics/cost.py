"""Costs of a model: number of parameters, and multiply-accumulates of a forward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters; a shared parameter counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def count_macs(fn: Callable[..., object], *args: object) -> int:
    """Return the multiply-accumulates (MACs) of one call, without gradients.

    Counts matrix products, convolutions and attention, as half of torch's FLOP counter. Norms, activations
    and softmax do not count. Modules and inputs may be on the meta device, where nothing is computed or
    stored.

    Args:
        fn: Function, called once. For a module use `macs_of`: torch's counter fails on views of parameters
            with `requires_grad`.
        *args: Arguments of `fn`.
    """
    # torch has no FLOP formula for the fused inference path of `nn.MultiheadAttention`, and torch 2.5 has no
    # formula for attention on a CPU. Both would count as 0, so the fast path is off and attention uses the
    # math backend.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
            fn(*args)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) // 2


def macs_of(module: nn.Module, inputs: object) -> int:
    """Return the MACs of a module on any device, for inputs on the meta device; see `count_macs`.

    The parameters are moved to the meta device too, where every attention backend runs the same operators.
    """
    tensors = {
        name: t.detach().to("meta") for name, t in (*module.named_parameters(), *module.named_buffers())
    }

    def call(x: object) -> None:
        # A hydra stacks and pads copies of its weights if gradients are off, and padding would count as MACs.
        # The meta device stores nothing for gradients.
        with torch.enable_grad():
            functional_call(module, tensors, (x,))

    return count_macs(call, inputs)
