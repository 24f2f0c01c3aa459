"""What flows through a tower, and how a block adds to it.

Axes: M members, N = M B batch (B where the members agree), T tokens, D width, O outputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.model_inputs import repeat_batch, split_batch


@dataclass(frozen=True, slots=True)
class Stream:
    """What flows through a tower.

    Attributes:
        tokens: (N, T, D).
        context: What blocks need of each sample besides, batch axis first: a padding mask.
        constants: What they need that is the same for all samples of a member, G first, which is 1 or M: rotary angles.
    """

    tokens: torch.Tensor
    context: Mapping[str, torch.Tensor] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def with_tokens(self, tokens: torch.Tensor) -> Stream:
        """Return the stream with other tokens."""
        return Stream(tokens, self.context, self.constants)  # `replace` takes thrice as long

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean (N, F) of x (N, T, F) over the tokens that are no padding, of texts."""
        token_mask = self.context["mask"][:, 0, 0, :, None].to(x.dtype)
        return (x * token_mask).sum(dim=1) / token_mask.sum(dim=1)

    def spread(self, times: int) -> Stream:
        """Return the stream as `tile` does, but for the tokens (times, N, T, D), which are not copied."""
        context = {name: repeat_batch(x, times) for name, x in self.context.items()}
        return replace(self, tokens=self.tokens.expand(times, -1, -1, -1), context=context)

    def tile(self, times: int) -> Stream:
        """Return the stream `times` times over on the batch axis: as that of as many members, one after another."""
        context = {name: repeat_batch(x, times) for name, x in self.context.items()}
        return replace(self, tokens=repeat_batch(self.tokens, times), context=context)

    def split(self, members: int) -> list[Stream]:
        """Return each member's share."""
        context = {name: split_batch(x, members) for name, x in self.context.items()}
        return [
            Stream(
                tokens,
                {name: parts[m] for name, parts in context.items()},
                {name: share(x, m) for name, x in self.constants.items()},
            )
            for m, tokens in enumerate(split_batch(self.tokens, members))
        ]


def joined(streams: Sequence[Stream]) -> Stream:
    """Return members' streams as one: the inverse of `Stream.split`."""
    first = streams[0]
    return Stream(
        torch.cat([s.tokens for s in streams]),
        {name: torch.cat([s.context[name] for s in streams]) for name in first.context},
        {name: torch.cat([s.constants[name] for s in streams]) for name in first.constants},
    )


def share(x: torch.Tensor, member: int) -> torch.Tensor:
    """Return a member's share (1, ...) of x (G, ...), which is all of it where it is every member's."""
    return x if x.shape[0] == 1 else x[member : member + 1]


Product: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]"
"""Linear layers' outputs (N, ..., O) of M members that are not computed yet, to be added to something in the same call: inputs
(N, ..., D), weights (M, D, O) and biases (M, 1, O) or None. A plain tuple, as one is made for each layer of each forward pass."""
Value = TypeVar("Value", bound="torch.Tensor | Product")


def computed(x: torch.Tensor | Product) -> torch.Tensor:
    """Return a product, computed if it is not."""
    return products_of(*x) if isinstance(x, tuple) else x


def applied(module: nn.Module, x: Value) -> Value:
    """Return what a module makes of x; one that never changes it is not called, which takes as long as a small operator."""
    if type(module) is nn.Identity:
        return x
    output: Value = module(computed(x) if type(x) is tuple and not isinstance(module, nn.Dropout) else x)
    return output


def residual(x: torch.Tensor, y: torch.Tensor | Product, *modules: nn.Module) -> torch.Tensor:
    """Return x + y, both (N, T, O), with modules applied to y; a product is computed and added in two calls, bias and rest.

    Where members part, x is the same for all of them and a view (M, B, T, O), as y is then.
    """
    for module in modules:
        if type(module) is not nn.Identity:
            y = applied(module, y)
    # a compiler makes additions part of others itself, and autocast takes no product in place
    if type(y) is tuple and not (
        torch.compiler.is_dynamo_compiling() or torch.is_autocast_enabled(x.device.type)
    ):
        rows, weight, bias = y
        total = x.reshape(weight.shape[0], -1, x.shape[-1])
        rows = rows.reshape(weight.shape[0], -1, rows.shape[-1])
        total = torch.baddbmm(total, rows, weight) if bias is None else (total + bias).baddbmm_(rows, weight)
        return total.view(-1, *x.shape[-2:])
    total = x + computed(y) if isinstance(y, tuple) else x + y
    return total if total.ndim == 3 else total.flatten(0, 1)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return a linear layer's (N, ..., O) of x (N, ..., D): of weight (O, D), or of each member's, (M, O, D)."""
    if weight.ndim < 3:
        return F.linear(x, weight, bias)
    return products_of(x, weight.mT, None if bias is None else bias.unsqueeze(1))


def products_of(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return (N, ..., O) of x (N, ..., D), weights (M, D, O) and biases (M, 1, O)."""
    rows = x.reshape(weight.shape[0], -1, x.shape[-1])
    if bias is None:
        products = torch.bmm(rows, weight)
    elif torch.compiler.is_dynamo_compiling():
        products = torch.bmm(rows, weight) + bias  # an addition that a compiler makes part of what comes next
    else:
        products = torch.baddbmm(bias, rows, weight)
    return products.view(*x.shape[:-1], weight.shape[-1])
