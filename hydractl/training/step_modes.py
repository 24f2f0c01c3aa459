"""How a model's training step runs: which layers train, what it holds for the backward pass, and whether it is compiled.

Forward passes are replaced on the modules themselves, so that names of parameters stay, and only while gradients are recorded in
training: an evaluation runs as ever. No result hangs on how a step runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hydractl.families.stream import Stream
from hydractl.families.tower import Tower
from hydractl.runtime import compiled


def recompute_blocks(model: nn.Module) -> None:
    """Let the backward pass run each block's forward pass again, so that only what goes from block to block is held till then.

    The same numbers come again, drops included: gradients are the same to the last bit.
    """
    for tower in model.modules():
        for block in tower.layers() if isinstance(tower, Tower) else ():
            _run_instead(block, _checkpointed)


def compile_step(model: nn.Module, *, name: str) -> None:
    """Compile the forward and the backward pass of training, as one graph.

    Args:
        model: On its device, in the dtype that it trains in.
        name: What messages call it.

    Raises:
        UsageError: When it runs, if it is not one graph, or this machine cannot compile.
    """
    run = compiled(model.forward, name=name)
    _run_instead(model, lambda _, *args: run(*args))


def _checkpointed(forward: Callable[..., Stream], stream: Stream, *args: Any) -> Stream:  # noqa: ANN401 - as the block's
    # the tokens by themselves tell on which device the state of random numbers is to be kept
    def run(tokens: torch.Tensor) -> Stream:
        return forward(stream.with_tokens(tokens), *args)

    recomputed: Stream = checkpoint(run, stream.tokens, use_reentrant=False)
    return recomputed


def _run_instead(module: nn.Module, run: Callable[..., Any]) -> None:
    """Let `run`, given a module's forward pass and its arguments, stand for that where gradients are recorded in training."""
    forward = module.forward

    def chosen(*args: Any) -> Any:  # noqa: ANN401 - as the module's
        return run(forward, *args) if module.training and torch.is_grad_enabled() else forward(*args)

    vars(module)["forward"] = chosen


def begin_training(model: nn.Module) -> None:
    """Switch a model to training but for layers with running statistics, which stay in evaluation; their weights train.

    Batch norm in training mode makes a sample hang on the others of its piece, and changes buffers that are no parameters:
    results would hang on pieces and processes, and a file would hold other statistics than were validated.
    """
    model.train()
    for module in _with_statistics(model):
        module.eval()


def keeps_statistics(model: nn.Module) -> bool:
    """Return whether a model has layers that `begin_training` leaves in evaluation."""
    return bool(_with_statistics(model))


def _with_statistics(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "track_running_stats", False)]
