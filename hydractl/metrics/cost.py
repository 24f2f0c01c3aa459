"""Cost of a model: parameters and multiply-accumulates."""

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

    Matrix products, convolutions and attention are counted, as half of torch's FLOP counter; norms,
    activations and softmax are not. Works with modules and inputs on the meta device, where nothing is
    computed or stored.

    Args:
        fn: Function, called once. For a module use `macs_of`: torch's counter fails on views of parameters that require
            gradients.
        *args: Its arguments.
    """
    # For the fused inference path of nn.MultiheadAttention torch has no formula, and 2.5 has none for attention on a CPU:
    # both would count as nothing.
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

    On the meta device every backend runs the same operators.
    """
    tensors = {
        name: t.detach().to("meta") for name, t in (*module.named_parameters(), *module.named_buffers())
    }

    def call(x: object) -> None:
        # nothing is kept for gradients here, and where they may be no copies of weights run, which a hydra stacks and pads
        with torch.enable_grad():
            functional_call(module, tensors, (x,))

    return count_macs(call, inputs)
