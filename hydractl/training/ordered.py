"""Gradients of a batch's pieces, added in the order of the pieces whichever process computed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from hydractl.training.engine import Engine


class OrderedGradients:
    """The gradients of one step: the same bits whatever the number of processes.

    A process holds those of its own pieces until the last is there: with P pieces and W processes, P / W times the
    parameters that train; one process holds none.
    """

    def __init__(self, engine: Engine, parameters: Mapping[str, nn.Parameter], pieces: int) -> None:
        """Begin a step.

        Args:
            engine: Who computes.
            parameters: What trains, by name; their gradients are empty.
            pieces: Of a batch, over all processes, dealt out by `Engine.cut`.
        """
        self._engine = engine
        self._parameters = list(parameters.values())
        self._pieces = pieces
        self._held: list[tuple[torch.Tensor, ...]] = []

    def add(self, loss: torch.Tensor) -> None:
        """Take note of the next of this process's pieces."""
        if self._engine.world == 1:
            loss.backward()
        else:
            self._held.append(torch.autograd.grad(loss, self._parameters))

    def finish(self) -> None:
        """Give every parameter the sum over all pieces of all processes, in every process."""
        if self._engine.world == 1:
            return
        own = iter(self._held)
        for piece in range(self._pieces):
            source = self._engine.owner(piece, self._pieces)
            mine = next(own) if source == self._engine.rank else None
            for i, parameter in enumerate(self._parameters):
                given = torch.empty_like(parameter) if mine is None else mine[i]
                found = self._engine.sent(given.contiguous(), source)
                parameter.grad = found.clone() if parameter.grad is None else parameter.grad + found
