"""Tokens on their way through blocks, and parts of M members that compute all at once.

One call of each operator serves all members. A device that waits for each call more than it computes, as a GPU with few
samples does, is then as fast with a hydra as with one model. Weights of members have a first axis of their own; streams of
members follow each other on the batch axis, N = M B. Parts without weights, or with equal weights, are the library's.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from hydractl.model_inputs import repeat_batch, split_batch
from hydractl.runtime import at_least_single


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


AnyModule = TypeVar("AnyModule", bound=nn.Module)


_VERSION, _TRAINING = operator.attrgetter("_version"), operator.attrgetter("training")
"""Version counters of tensors and training modes of modules."""


class Sources:
    """Tensors that were copied, and whether they still are what and where they were.

    It is asked before each forward pass, about some hundred tensors, and so written for speed: no loop of Python's own.
    """

    def __init__(self, modules: Iterable[nn.Module], *, within: Iterable[nn.Module] = ()) -> None:
        """Take what modules hold, as it is now; and of some that they are within which parts there are, of which none may train."""
        around = [*within]
        self._within = [part for parent in around for part in parent.children()]
        parts = [part for module in modules for part in module.modules()]
        tensor_views = [
            holder.values() for part in parts for holder in (part._parameters, part._buffers) if holder
        ]
        # itself at the end, so that none can come or go there
        self._places = (*tensor_views, *(parent._modules.values() for parent in around), (self,))
        self._tensors = (*chain.from_iterable(self._places),)
        # what is written to tensors of inference mode is not counted
        self._counted = [x for x in self._tensors if isinstance(x, torch.Tensor) and not x.is_inference()]
        self._written = self._writes()

    def _writes(self) -> int:
        return sum(map(_VERSION, self._counted))

    @property
    def changed(self) -> bool:
        """Whether something else is in the place of a tensor or a part, a tensor was written to, or a module trains."""
        unchanged = all(map(operator.is_, chain.from_iterable(self._places), self._tensors))
        return not unchanged or self._writes() != self._written or any(map(_TRAINING, self._within))


class MemberParallel(nn.Module):
    """The same part of M members.

    They run in turn; or stacked, where that is possible, asked for, and neither trained nor in need of gradients, which only
    the members' own weights have. The tower that they are in asks for it, and anew once their weights have changed.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.apart = False
        # in a tuple, as its tensors are none of the model's own
        self._stack: tuple[nn.Module | None, ...] = ()

    def stack(self, on: bool) -> None:
        """Copy the members' weights as they are now, to be run at once from here on; or forget the copy.

        In training there is none: what holds it has the members' own parts without weights, and to switch it to
        evaluation would end their dropout.
        """
        self._stack = ()
        if on and not self.training:
            with torch.inference_mode(mode=False), torch.no_grad():
                stacked_copy = self.at_once()
            self._stack = (None if stacked_copy is None else stacked_copy.eval(),)

    def restack(self) -> None:
        """Copy the members as they are now, if they are stacked."""
        if self._stack:
            self.stack(on=True)

    def fold_into(self, reader: MemberParallel) -> bool:
        """Have what is stacked and alone reads these norms multiply with their weights, if it reads them by linear layers alone.

        W (x g + b) + c = (W g) x + (W b + c): a call less for each norm. Returns whether it does.
        """
        norm = self._copy
        if not isinstance(norm, StackedNorm):
            return False
        with torch.inference_mode(mode=False), torch.no_grad():
            layers = reader.first_layers(norm)
            for layer in layers:
                layer.absorb(norm)
        if layers:
            self._stack = (norm.norm,)
        return bool(layers)

    def delay(self, width: int) -> None:
        """Have what is stacked, which reads `width` features, leave its last linear layer to `residual`, if it ends with that."""
        if self._copy is not None and (layer := last_layer(self._copy, width)) is not None:
            layer.delays = True

    def first_layers(self, norm: StackedNorm) -> Sequence[StackedLinear]:
        """Return the layers that alone read what this part is given, of these norms; none where it is not stacked, or reads otherwise."""
        return [] if self._copy is None else readers(self._copy, norm)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run each member by itself meanwhile, whatever is stacked: a copy has none of their hooks."""
        before, self.apart = self.apart, True
        try:
            yield
        finally:
            self.apart = before

    @override
    def __getstate__(self) -> dict[str, object]:
        # who reads it has other weights, and stacks them
        return self.__dict__ | {"_stack": ()}

    def at_once(self) -> nn.Module | None:
        """Return a part that computes all members at once, None where that is not possible."""
        raise NotImplementedError

    @property
    def folded(self) -> bool:
        """Whether what is stacked is a norm whose weights its reader multiplies with: see `fold_into`."""
        return self._copy is not None and not isinstance(self._copy, StackedNorm)

    @property
    def _copy(self) -> nn.Module | None:
        """What is stacked, whether it runs or not."""
        return self._stack[0] if self._stack else None

    @property
    def stacked(self) -> nn.Module | None:
        """What computes all members at once, None where they run in turn."""
        if not self._stack or self.apart or self.training or torch.is_grad_enabled():
            return None
        return self._stack[0]


def fixed(tensor: torch.Tensor) -> nn.Parameter:
    """Return a parameter that is not trained; what compiles a model takes a parameter's size for given."""
    return nn.Parameter(tensor, requires_grad=False)


class StackedLinear(nn.Module):
    """Linear layers of M members, which may be of as many sizes: to the smaller are added weights of zero.

    Attributes:
        weight: (M, O, D).
        bias: (M, O), or None.
        delays: Whether it leaves its product to what reads it.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    delays = False

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._hold(weight, bias)

    def _hold(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = fixed(weight), None if bias is None else fixed(bias)
        self._operands = fixed(weight.mT), None if bias is None else fixed(bias.unsqueeze(1))

    def absorb(self, norm: StackedNorm) -> None:
        """Take inputs from here on to be normed only, and multiply with the norms' weights here; in float32 at least."""
        weight, dtype = self.weight, at_least_single(self.weight.dtype)
        scale, shift = norm.affine
        bias = None if self.bias is None else self.bias.to(dtype)
        if shift is not None:
            moved = (weight.to(dtype) @ shift.to(dtype).mT).squeeze(-1)
            bias = moved if bias is None else bias + moved
        scaled = weight.to(dtype) * scale.to(dtype)
        self._hold(scaled.to(weight.dtype), None if bias is None else bias.to(weight.dtype))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor | Product:
        """Return (N, ..., O) of x (N, ..., D)."""
        return (x, *self._operands) if self.delays else products_of(x, *self._operands, fusible=True)


class FeatureLinear(nn.Linear):
    """The last layer of a classifier that gives the features which it reads beside its logits: (..., D) becomes (..., C + P D).

    What a library does after it is linear, a mean over tokens or over P classifiers: it makes logits of the former and features of
    the latter. So no library's head needs code of its own, and features come out of a graph as logits do: stacked, compiled,
    exported. Each of P classifiers puts its features in a place of its own, P times over: their mean has all of them side by side.
    """

    place: int
    places: int

    @classmethod
    def take_over(cls, layer: nn.Linear, place: int, places: int) -> None:
        """Make a layer of torch's, the `place`-th of P, one that gives features; it stays the same object with the same tensors."""
        layer.__class__ = cls
        vars(layer).update(place=place, places=places)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            (product(x, self.weight, self.bias), *placed_features(x, self.place, self.places)), -1
        )


def placed_features(x: torch.Tensor, place: int, places: int) -> list[torch.Tensor]:
    """Return P tensors: P times x at a place of its own, zeros elsewhere; a mean over P such lists has each x where it belongs."""
    parts = [torch.zeros_like(x)] * places
    parts[place] = x if places == 1 else x * places
    return parts


class StackedNorm(nn.Module):
    """Norms of M members: the library's own without weights, and then each member's.

    Attributes:
        affine: Their weights and biases, (M, 1, D) each.
    """

    def __init__(self, norm: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.norm = shallow_copy(norm)
        self.norm._parameters.update(dict.fromkeys(norm._parameters))
        self.affine = fixed(weight.unsqueeze(1)), None if bias is None else fixed(bias.unsqueeze(1))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, ..., D) normed."""
        normed: torch.Tensor = self.norm(x)
        weight, bias = self.affine
        rows = normed.reshape(weight.shape[0], -1, normed.shape[-1])
        out = rows * weight if bias is None else torch.addcmul(bias, rows, weight)
        return out.view(normed.shape)


class StackedScale(nn.Module):
    """Modules of M members that multiply with a number a feature: the library's own, with numbers (M, 1, D)."""

    def __init__(self, first: nn.Module, name: str, scale: torch.Tensor) -> None:
        super().__init__()
        self.members = len(scale)
        self.first = shallow_copy(first)
        del self.first._parameters[name]
        self.first.register_parameter(name, fixed(scale.unsqueeze(1)))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, ..., D) scaled."""
        out: torch.Tensor = self.first(x.reshape(self.members, -1, x.shape[-1]))
        return out.view(x.shape)


class _Reads(TorchDispatchMode):
    """Counts how often operators are given a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensor, self.count = tensor, 0

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += sum(x is self.tensor for x in tree_leaves((args, kwargs)))  # some take lists of tensors
        return func(*args, **(kwargs or {}))


def readers(module: nn.Module, norm: StackedNorm) -> list[StackedLinear]:
    """Return the stacked linear layers that a stacked module gives its inputs, normed ones; none if they are read otherwise, too.

    It is tried out, as modules are the library's.
    """
    x = torch.zeros_like(norm.affine[0])
    layers: list[StackedLinear] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda called, inputs: layers.append(called) if inputs[0] is x else None
        )
        for layer in module.modules()
        if isinstance(layer, StackedLinear)
    ]
    with _Reads(x) as reads:
        module(x)
    for hook in hooks:
        hook.remove()
    return layers if reads.count == len({*layers}) == len(layers) else []


def last_layer(module: nn.Module, width: int) -> StackedLinear | None:
    """Return the stacked linear layer whose output is a stacked module's, None if there is none; it is tried out, as in `readers`."""
    outputs: dict[StackedLinear, torch.Tensor] = {}
    if not (layers := [layer for layer in module.modules() if isinstance(layer, StackedLinear)]):
        return None
    hooks = [
        x.register_forward_hook(lambda layer, _, output: outputs.update({layer: output})) for x in layers
    ]
    with torch.no_grad():
        result = module(layers[0].weight.new_zeros(len(layers[0].weight), 1, width))
    for hook in hooks:
        hook.remove()
    return next((layer for layer, output in outputs.items() if output is result), None)


def stacked(members: Sequence[nn.Module]) -> nn.Module | None:
    """Return one module that computes what M members' modules do, each of its own share of the batch axis.

    It is a copy of the first in whose depths each linear layer, norm and scale that differs among the members has become one
    of M; all other code of the library is the same for any number of samples. None if anything else differs.
    """
    first = members[0]
    if all_same(members):
        return first
    if (leaf := _leaf(members)) is not None:
        return leaf
    member_tensors = [{**m._parameters, **m._buffers} for m in members]
    if not members[0]._modules or any(
        t is not member_tensors[0][n] for tensors in member_tensors for n, t in tensors.items()
    ):
        return None
    copied = shallow_copy(first)
    for name, child in first._modules.items():
        part = None if child is None else stacked([m.get_submodule(name) for m in members])
        if part is None and child is not None:
            return None
        copied._modules[name] = part
    return copied


def _leaf(members: Sequence[nn.Module]) -> nn.Module | None:
    """Return what modules without children are at once, None where there is no rule for such."""
    first = members[0]
    names = [name for name, tensor in first._parameters.items() if tensor is not None]
    tensors = {name: torch.stack([getattr(m, name) for m in members]) for name in names}
    if isinstance(first, FeatureLinear):
        layer = shallow_copy(first)
        layer._parameters.update({name: fixed(tensor) for name, tensor in tensors.items()})
        return layer
    if type(first) is nn.Linear and "weight" in tensors:  # whoever has one of its own kind reads its weights
        return StackedLinear(tensors["weight"], tensors.get("bias"))
    if hasattr(first, "normalized_shape") and "weight" in tensors:
        return StackedNorm(first, tensors["weight"], tensors.get("bias"))
    if len(names) == 1 and type(first).__name__.endswith(("RMSNorm", "LayerScale")):
        return StackedScale(first, names[0], tensors[names[0]])
    return None


def all_same(modules: Sequence[nn.Module]) -> bool:
    """Return whether the modules hold the very same tensors under the same names; see `set_aside` for what is not read."""
    first, *others = (_read(module) for module in modules)
    return all(
        tensors.keys() == first.keys() and all(t is first[n] for n, t in tensors.items())
        for tensors in others
    )


def _read(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's parameters and persistent buffers that it reads, by their dotted names."""
    return {
        f"{path}.{name}": tensor
        for path, part in module.named_modules()
        for name, tensor in (part._parameters | part._buffers).items()
        if tensor is not None and name not in {*part._non_persistent_buffers_set, *getattr(part, "aside", ())}
    }


def shallow_copy(module: AnyModule) -> AnyModule:
    """Return a copy that has the same parts, each of which may be replaced without touching the original."""
    copied = copy.copy(module)
    for parts in ("_modules", "_parameters"):
        copied.__dict__[parts] = dict(getattr(module, parts))
    return copied


def only_rows(layer: nn.Linear, rows: torch.Tensor) -> nn.Linear:
    """Return a linear layer with only some output features."""
    sliced = shallow_copy(layer)
    sliced.out_features = len(rows)
    sliced.weight = nn.Parameter(layer.weight.detach()[rows])
    if layer.bias is not None:
        sliced.bias = nn.Parameter(layer.bias.detach()[rows])
    return sliced
