"""The residual stream of a tower, and the products that blocks add to it.

Axes: M members, B samples, N = M B (B in shared blocks), T tokens, D width, O outputs of a linear layer.
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
    """The residual stream of a tower.

    Attributes:
        tokens: (N, T, D).
        context: Further inputs of blocks for each sample, (N, ...): a padding mask.
        constants: Inputs of blocks that are the same for all samples, (1, ...) or one per member, (M, ...): rotary angles.
    """

    tokens: torch.Tensor
    context: Mapping[str, torch.Tensor] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def with_tokens(self, tokens: torch.Tensor) -> Stream:
        """Return the stream with other tokens."""
        return Stream(tokens, self.context, self.constants)  # `replace` takes thrice as long

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean (N, F) of x (N, T, F) over the tokens of a text, without padding."""
        token_mask = self.context["mask"][:, 0, 0, :, None].to(x.dtype)
        return (x * token_mask).sum(dim=1) / token_mask.sum(dim=1)

    def spread(self, times: int) -> Stream:
        """Return the same as `tile`, with tokens (times, N, T, D) that are a view."""
        context = {name: repeat_batch(x, times) for name, x in self.context.items()}
        return replace(self, tokens=self.tokens.expand(times, -1, -1, -1), context=context)

    def tile(self, times: int) -> Stream:
        """Return the stream repeated along the batch axis: one copy per member."""
        context = {name: repeat_batch(x, times) for name, x in self.context.items()}
        return replace(self, tokens=repeat_batch(self.tokens, times), context=context)

    def split(self, members: int) -> list[Stream]:
        """Return the stream of each member."""
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
    """Concatenate the streams of members: the inverse of `Stream.split`."""
    first = streams[0]
    return Stream(
        torch.cat([s.tokens for s in streams]),
        {name: torch.cat([s.context[name] for s in streams]) for name in first.context},
        {name: torch.cat([s.constants[name] for s in streams]) for name in first.constants},
    )


def share(x: torch.Tensor, member: int) -> torch.Tensor:
    """Return a member's part (1, ...) of x: of (M, ...) its slice, of (1, ...) all."""
    return x if x.shape[0] == 1 else x[member : member + 1]


Product: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]"
"""Operands of a linear layer's output (N, ..., O) that is computed when it is added to the stream: inputs (N, ..., D), weights
(M, D, O) and biases (M, 1, O) or None. A plain tuple is used because it is created in each layer of each forward pass."""
LARGE = 2**24
"""Numbers in a product from which `one_by_one` holds: bf16 on an H200, where 2**20 of them cost 2 us more and a call 14 us."""
Value = TypeVar("Value", bound="torch.Tensor | Product")


def computed(x: torch.Tensor | Product) -> torch.Tensor:
    """Return the tensor of a product, or a tensor as it is."""
    return products_of(*x, fusible=True) if isinstance(x, tuple) else x


def applied(module: nn.Module, x: Value) -> Value:
    """Return `module(x)`. `nn.Identity` is not called, because a call takes as long as a small operator."""
    if type(module) is nn.Identity:
        return x
    output: Value = module(computed(x) if type(x) is tuple and not isinstance(module, nn.Dropout) else x)
    return output


def residual(x: torch.Tensor, y: torch.Tensor | Product, *modules: nn.Module) -> torch.Tensor:
    """Return x + y, both (N, T, O), after applying modules to y. A product takes two calls: bias, then multiplication and addition.

    In the first block with separate members, x is a view (M, B, T, O) of the shared stream, and y has the same shape.
    """
    for module in modules:
        if type(module) is not nn.Identity:
            y = applied(module, y)
    # a compiler fuses additions itself, and autocast does not support `baddbmm_`
    if type(y) is tuple and not (
        torch.compiler.is_dynamo_compiling() or torch.is_autocast_enabled(x.device.type) or one_by_one(*y)
    ):
        rows, weight, bias = y
        total = x.reshape(weight.shape[0], -1, x.shape[-1])
        rows = rows.reshape(weight.shape[0], -1, rows.shape[-1])
        total = torch.baddbmm(total, rows, weight) if bias is None else (total + bias).baddbmm_(rows, weight)
        return total.view(-1, *x.shape[-2:])
    total = x + computed(y) if isinstance(y, tuple) else x + y
    return total if total.ndim == 3 else total.flatten(0, 1)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the output (N, ..., O) of a linear layer for x (N, ..., D) and weight (O, D), or (M, O, D) with one per member."""
    if weight.ndim < 3:
        return F.linear(x, weight, bias)
    return products_of(x, weight.mT, None if bias is None else bias.unsqueeze(1))


def products_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, fusible: bool = False
) -> torch.Tensor:
    """Return the outputs (N, ..., O) of one linear layer per member for x (N, ..., D), weight (M, D, O) and bias (M, 1, O) or None.

    Args:
        x: Inputs of all members.
        weight: The members' weights.
        bias: Their biases.
        fusible: Whether an operation follows that a compiler fuses with the addition of the bias. Attention is none: queries, keys
            and values would each get their bias in a kernel of its own.
    """
    members, compiles = weight.shape[0], torch.compiler.is_dynamo_compiling()
    # inductor copies its operand after a `reshape` with an open batch size
    rows = x.unflatten(0, (members, -1)).flatten(1, -2) if compiles else x.reshape(members, -1, x.shape[-1])
    if bias is None:
        products = torch.bmm(rows, weight)
    elif compiles and fusible:
        products = torch.bmm(rows, weight) + bias
    elif not compiles and one_by_one(rows, weight, bias):
        products = rows.new_empty(*rows.shape[:-1], weight.shape[-1])
        for own_bias, own_rows, own_weight, out in zip(bias.squeeze(1), rows, weight, products, strict=True):
            torch.addmm(own_bias, own_rows, own_weight, out=out)
    else:
        products = torch.baddbmm(bias, rows, weight)
    return products.view(*x.shape[:-1], weight.shape[-1])


def one_by_one(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return whether a GPU computes this product faster with a call per member.

    Alone, a product adds its bias as it is written. In a batch of products the bias is first copied to every row, which takes longer
    than two calls more where the output is large.
    """
    large = x.is_cuda and bias is not None and weight.shape[-1] * x.numel() >= LARGE * x.shape[-1]
    return large and not torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type)
