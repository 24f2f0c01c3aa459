"""What follows a block's heads, compiled once for all blocks alike.

Axes: N batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hydractl.families.tower import Block, Model, Stream
from hydractl.runtime import compiled


def compile_joins(model: Model, *, name: str) -> None:
    """Let each block's `join` run compiled: residual, norms, scales, MLP.

    Heads are cut out of what comes before it. Tokens are told neither by sample nor by place, so that one graph does for any
    number of candidates, samples and tokens, and for all blocks of a tower that are alike. A block whose `join` mixes tokens
    runs as ever, and so does a lone token, which would take a graph of its own.

    Args:
        model: In evaluation mode, on its device, in its dtype.
        name: What messages call it.

    Raises:
        UsageError: When it runs, if this machine cannot compile.
    """
    run = compiled(_joined, name=name, dynamic=True)
    for tower_name in model.towers:
        for block in model.tower(tower_name).layers():
            if block.tokenwise:
                vars(block)["join"] = partial(_join, run, block)


def _join(run: Callable[..., torch.Tensor], block: Block, stream: Stream, y: torch.Tensor) -> Stream:
    # what counts memory must see what is made
    if y.shape[:-1].numel() == 1 or _get_current_dispatch_mode() is not None:
        return type(block).join(block, stream, y)
    tokens = run(block, _in_one_row(stream.tokens), _in_one_row(y))
    return stream.with_tokens(tokens.view(y.shape))


def _in_one_row(x: torch.Tensor) -> torch.Tensor:
    """Return x (N, T, D) as (1, N T, D), whose strides are always the same: each other shape would be compiled anew."""
    return x.reshape(-1).view(1, -1, x.shape[-1])


def _joined(block: Block, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return type(block).join(block, Stream(tokens), y).tokens
