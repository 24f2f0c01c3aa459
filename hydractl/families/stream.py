"""Residual streams, and parts of M members that compute all members at once.

Each operator runs once for all members. Calls take longer than computation on a GPU with few samples; a hydra
is then as fast as a single model. Stacked weights have a leading member axis. Streams of members are
concatenated along the batch axis, N = M B. Parts without weights, or with equal weights, are the library's
modules.
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
        tokens: Shape (N, T, D).
        context: Further inputs of blocks per sample, (N, ...), for example a padding mask.
        constants: Inputs of blocks shared by all samples, (1, ...), or (M, ...) per member, for example
            rotary angles.
    """

    tokens: torch.Tensor
    context: Mapping[str, torch.Tensor] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def with_tokens(self, tokens: torch.Tensor) -> Stream:
        """Return the stream with other tokens."""
        return Stream(tokens, self.context, self.constants)  # `dataclasses.replace` takes three times as long

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean (N, F) of x (N, T, F) over the tokens of each text, without padding."""
        token_mask = self.context["mask"][:, 0, 0, :, None].to(x.dtype)
        return (x * token_mask).sum(dim=1) / token_mask.sum(dim=1)

    def spread(self, times: int) -> Stream:
        """Return the stream for `times` members, like `tile`, with tokens (times, N, T, D) as a view."""
        context = {name: repeat_batch(x, times) for name, x in self.context.items()}
        return replace(self, tokens=self.tokens.expand(times, -1, -1, -1), context=context)

    def tile(self, times: int) -> Stream:
        """Return the stream repeated along the batch axis, one copy per member."""
        context = {name: repeat_batch(x, times) for name, x in self.context.items()}
        return replace(self, tokens=repeat_batch(self.tokens, times), context=context)

    def split(self, members: int) -> list[Stream]:
        """Return the streams of the members."""
        context = {name: split_batch(x, members) for name, x in self.context.items()}
        return [
            Stream(
                tokens,
                {name: parts[m] for name, parts in context.items()},
                {name: member_slice(x, m) for name, x in self.constants.items()},
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


def member_slice(x: torch.Tensor, member: int) -> torch.Tensor:
    """Return a member's slice (1, ...) of x (M, ...). A shared x (1, ...) is returned unchanged."""
    return x if x.shape[0] == 1 else x[member : member + 1]


Product: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]"
"""Operands of a linear layer's output (N, ..., O) that is computed when it is added to the stream: inputs (N, ..., D), weights
(M, D, O) and biases (M, 1, O) or None. A plain tuple is used because it is created in each layer of each forward pass."""
LARGE = 2**24
"""Number of output elements from which `faster_per_member` runs a product per member. Measured in bf16 on an H200:
the copy of biases takes 2 us per 2**20 elements, a call 14 us, so at 2**24 the copy takes as long as two
additional calls. If doubled, products with up to 2**25 elements run in one call, up to 36 us slower."""
Value = TypeVar("Value", bound="torch.Tensor | Product")


def compute_product(x: torch.Tensor | Product) -> torch.Tensor:
    """Return the tensor of a `Product`. Tensors are returned unchanged."""
    return products_of(*x, fusible=True) if isinstance(x, tuple) else x


def apply_module(module: nn.Module, x: Value) -> Value:
    """Return `module(x)`. `nn.Identity` is not called, because a call takes as long as a small operator.

    A `Product` is computed first, except for dropout, which returns the `Product` unchanged in evaluation.
    """
    if type(module) is nn.Identity:
        return x
    output: Value = module(
        compute_product(x) if type(x) is tuple and not isinstance(module, nn.Dropout) else x
    )
    return output


def residual(x: torch.Tensor, y: torch.Tensor | Product, *modules: nn.Module) -> torch.Tensor:
    """Return x + y, both (N, T, O), after applying modules to y. A `Product` takes two calls.

    The two calls add the bias, and multiply with addition. In the first block with separate members, x is a
    view (M, B, T, O) of the shared stream, and y has the same shape.
    """
    for module in modules:
        if type(module) is not nn.Identity:
            y = apply_module(module, y)
    # A compiler fuses additions itself, and autocast does not support `baddbmm_`.
    if type(y) is tuple and not (
        torch.compiler.is_dynamo_compiling()
        or torch.is_autocast_enabled(x.device.type)
        or faster_per_member(*y)
    ):
        rows, weight, bias = y
        total = x.reshape(weight.shape[0], -1, x.shape[-1])
        rows = rows.reshape(weight.shape[0], -1, rows.shape[-1])
        total = torch.baddbmm(total, rows, weight) if bias is None else (total + bias).baddbmm_(rows, weight)
        return total.view(-1, *x.shape[-2:])
    total = x + compute_product(y) if isinstance(y, tuple) else x + y
    return total if total.ndim == 3 else total.flatten(0, 1)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the output (N, ..., O) of a linear layer for x (N, ..., D).

    Args:
        x: Input.
        weight: Shape (O, D), or (M, O, D) for M members.
        bias: Shape (O) or (M, O), or None.
    """
    if weight.ndim < 3:
        return F.linear(x, weight, bias)
    return products_of(x, weight.mT, None if bias is None else bias.unsqueeze(1))


def products_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, fusible: bool = False
) -> torch.Tensor:
    """Return the outputs (N, ..., O) of one linear layer per member.

    Args:
        x: Inputs of all members, (N, ..., D) with N = M B.
        weight: Weights of the members, (M, D, O).
        bias: Biases of the members, (M, 1, O), or None.
        fusible: Whether a compiler can fuse the addition of the bias with the next operation. Not true for
            attention: queries, keys and values would each add the bias in a separate kernel.
    """
    members, compiles = weight.shape[0], torch.compiler.is_dynamo_compiling()
    # Inductor copies the operand of the product after a `reshape` with a symbolic batch size.
    rows = x.unflatten(0, (members, -1)).flatten(1, -2) if compiles else x.reshape(members, -1, x.shape[-1])
    if bias is None:
        products = torch.bmm(rows, weight)
    elif compiles and fusible:
        products = torch.bmm(rows, weight) + bias
    elif not compiles and faster_per_member(rows, weight, bias):
        products = rows.new_empty(*rows.shape[:-1], weight.shape[-1])
        for own_bias, own_rows, own_weight, out in zip(bias.squeeze(1), rows, weight, products, strict=True):
            torch.addmm(own_bias, own_rows, own_weight, out=out)
    else:
        products = torch.baddbmm(bias, rows, weight)
    return products.view(*x.shape[:-1], weight.shape[-1])


def faster_per_member(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return whether a GPU computes this product faster with one call per member.

    A single product (`addmm`) adds the bias while writing the output. A batched product (`baddbmm`) first
    copies the bias to every row, which takes longer than the additional calls if the output is large.
    """
    large = x.is_cuda and bias is not None and weight.shape[-1] * x.numel() >= LARGE * x.shape[-1]
    return large and not torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type)


AnyModule = TypeVar("AnyModule", bound=nn.Module)


_VERSION, _TRAINING = operator.attrgetter("_version"), operator.attrgetter("training")
"""Version counters of tensors and training modes of modules."""


class CopiedWeights:
    """A snapshot of copied tensors, to detect changes.

    Checked before every forward pass, on hundreds of tensors, with C-level iteration (`map`, `chain`) instead
    of loops.
    """

    def __init__(self, modules: Iterable[nn.Module], *, within: Iterable[nn.Module] = ()) -> None:
        """Store the current tensors of modules.

        Args:
            modules: Modules whose parameters and buffers were copied.
            within: Parents whose children must not be replaced or trained.
        """
        around = [*within]
        self._within = [part for parent in around for part in parent.children()]
        parts = [part for module in modules for part in module.modules()]
        tensor_views = [
            holder.values() for part in parts for holder in (part._parameters, part._buffers) if holder
        ]
        # The tuple ends with `self`, so that a view that got longer or shorter changes the comparison.
        self._places = (*tensor_views, *(parent._modules.values() for parent in around), (self,))
        self._tensors = (*chain.from_iterable(self._places),)
        # Tensors of inference mode have no version counter.
        self._counted = [x for x in self._tensors if isinstance(x, torch.Tensor) and not x.is_inference()]
        self._written = self._writes()

    def _writes(self) -> int:
        return sum(map(_VERSION, self._counted))

    @property
    def changed(self) -> bool:
        """Whether a tensor or child was replaced or modified, or a child of `within` is in training mode."""
        unchanged = all(map(operator.is_, chain.from_iterable(self._places), self._tensors))
        return not unchanged or self._writes() != self._written or any(map(_TRAINING, self._within))


class MemberParallel(nn.Module):
    """The same part of M members.

    Members run in turn, or stacked, in a module with copied weights of all members. The tower decides, and
    copies again after weights changed. Stacking is possible in evaluation mode without gradients, because
    only the members' own weights have gradients.

    Attributes:
        members: The members' modules.
        apart: Whether members run in turn although a stacked copy exists.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.apart = False
        # In a tuple, so that the tensors of the copy do not become parameters of the model.
        self._stack: tuple[nn.Module | None, ...] = ()

    def stack(self, on: bool) -> None:
        """Copy the members' current weights, to run all members at once, or discard the copy.

        In training mode nothing is copied. The copy shares modules without weights with the members, for
        example dropout, and `eval` of the copy would also switch these modules to evaluation mode.
        """
        self._stack = ()
        if on and not self.training:
            with torch.inference_mode(mode=False), torch.no_grad():
                stacked_copy = self.at_once()
            self._stack = (None if stacked_copy is None else stacked_copy.eval(),)

    def restack(self) -> None:
        """Copy the members' current weights again, if stacked."""
        if self._stack:
            self.stack(on=True)

    def fold_into(self, reader: MemberParallel) -> bool:
        """Fold the weights of stacked norms into the linear layers that read them.

        W (x g + b) + c = (W g) x + (W b + c) saves a call per norm. Only possible if stacked linear layers
        alone read the norms.

        Args:
            reader: The part that reads the norms.

        Returns:
            Whether the weights were folded.
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
        """Let a stacked copy that ends with a linear layer return a `Product`.

        Args:
            width: Number of input features of the copy.
        """
        if self._copy is not None and (layer := last_layer(self._copy, width)) is not None:
            layer.delays = True

    def first_layers(self, norm: StackedNorm) -> Sequence[StackedLinear]:
        """Return this part's stacked layers that read the output of `norm`.

        Empty if other operators read the output too.
        """
        return [] if self._copy is None else readers(self._copy, norm)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run members one after another inside the `with` statement, so that hooks on members take effect."""
        before, self.apart = self.apart, True
        try:
            yield
        finally:
            self.apart = before

    @override
    def __getstate__(self) -> dict[str, object]:
        # a loaded copy has other weights and stacks them again
        return self.__dict__ | {"_stack": ()}

    def at_once(self) -> nn.Module | None:
        """Return a module that computes all members at once, or None if impossible."""
        raise NotImplementedError

    @property
    def folded(self) -> bool:
        """Whether the stacked copy is a norm whose weights are folded into the reader; see `fold_into`."""
        return self._copy is not None and not isinstance(self._copy, StackedNorm)

    @property
    def _copy(self) -> nn.Module | None:
        """The stacked copy, even if members currently run in turn."""
        return self._stack[0] if self._stack else None

    @property
    def stacked(self) -> nn.Module | None:
        """The module that computes all members at once, or None if members run in turn."""
        if not self._stack or self.apart or self.training or torch.is_grad_enabled():
            return None
        return self._stack[0]


def frozen_parameter(tensor: torch.Tensor) -> nn.Parameter:
    """Return a parameter without gradient. torch.compile takes the sizes of parameters as static."""
    return nn.Parameter(tensor, requires_grad=False)


class StackedLinear(nn.Module):
    """Linear layers of M members. Smaller layers are padded with zero weights.

    Attributes:
        weight: Shape (M, O, D).
        bias: Shape (M, O), or None.
        delays: Whether `forward` returns a `Product` instead of a tensor.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    delays = False

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._hold(weight, bias)

    def _hold(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = frozen_parameter(weight), None if bias is None else frozen_parameter(bias)
        self._operands = (
            frozen_parameter(weight.mT),
            None if bias is None else frozen_parameter(bias.unsqueeze(1)),
        )

    def absorb(self, norm: StackedNorm) -> None:
        """Fold the weights of norms into the layers, which then expect inputs without scale and shift.

        The products are computed in float32 at least.
        """
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
        """Return (N, ..., O) for x (N, ..., D); a `Product` if `delays` is set."""
        return (x, *self._operands) if self.delays else products_of(x, *self._operands, fusible=True)


class FeatureLinear(nn.Linear):
    """The last layer of a classifier that returns logits and input features.

    Inputs have shape (..., D), outputs (..., C + P D). The library's operations on the output are linear: a
    mean over tokens, or over P classifiers. Logits and features are averaged in the same way, so no library
    head needs special code, and features pass through stacked, compiled and exported graphs like logits. Each
    of P classifiers writes P times the features to a separate slot, and the mean over classifiers holds all
    features.

    Attributes:
        place: Index of the classifier, from 0 to P - 1.
        places: P, the number of classifiers.
    """

    place: int
    places: int

    @classmethod
    def take_over(cls, layer: nn.Linear, place: int, places: int) -> None:
        """Turn an `nn.Linear` in place into the `FeatureLinear` number `place` of `places`."""
        layer.__class__ = cls
        vars(layer).update(place=place, places=places)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            (product(x, self.weight, self.bias), *placed_features(x, self.place, self.places)), -1
        )


def placed_features(x: torch.Tensor, place: int, places: int) -> list[torch.Tensor]:
    """Return P tensors: P x at index `place`, zeros elsewhere.

    The mean over the lists of P classifiers has the x of each classifier.
    """
    parts = [torch.zeros_like(x)] * places
    parts[place] = x if places == 1 else x * places
    return parts


class StackedNorm(nn.Module):
    """Norms of M members: the library's norm without weights, followed by each member's scale and shift.

    Attributes:
        norm: The library's norm without weights.
        affine: Weights and biases, (M, 1, D) each; biases may be None.
    """

    def __init__(self, norm: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.norm = shallow_copy(norm)
        self.norm._parameters.update(dict.fromkeys(norm._parameters))
        self.affine = (
            frozen_parameter(weight.unsqueeze(1)),
            None if bias is None else frozen_parameter(bias.unsqueeze(1)),
        )

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, ..., D) normalized, scaled and shifted."""
        normed: torch.Tensor = self.norm(x)
        weight, bias = self.affine
        rows = normed.reshape(weight.shape[0], -1, normed.shape[-1])
        out = rows * weight if bias is None else torch.addcmul(bias, rows, weight)
        return out.view(normed.shape)


class StackedScale(nn.Module):
    """Elementwise scales of M members: the library's module with a parameter (M, 1, D)."""

    def __init__(self, first: nn.Module, name: str, scale: torch.Tensor) -> None:
        super().__init__()
        self.members = len(scale)
        self.first = shallow_copy(first)
        del self.first._parameters[name]
        self.first.register_parameter(name, frozen_parameter(scale.unsqueeze(1)))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, ..., D) scaled."""
        out: torch.Tensor = self.first(x.reshape(self.members, -1, x.shape[-1]))
        return out.view(x.shape)


class _ReadCounter(TorchDispatchMode):
    """Counts how often operators receive a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensor, self.count = tensor, 0

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # some operators take lists of tensors
        self.count += sum(x is self.tensor for x in tree_leaves((args, kwargs)))
        return func(*args, **(kwargs or {}))


def readers(module: nn.Module, norm: StackedNorm) -> list[StackedLinear]:
    """Return the stacked linear layers which read the inputs of a stacked module.

    Empty if other operators read the inputs too.

    Found by a forward pass, because the module's code belongs to the library.

    Args:
        module: The stacked module.
        norm: The norms before the module.
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
    with _ReadCounter(x) as reads:
        module(x)
    for hook in hooks:
        hook.remove()
    return layers if reads.count == len({*layers}) == len(layers) else []


def last_layer(module: nn.Module, width: int) -> StackedLinear | None:
    """Return the stacked linear layer whose output is the module's output, or None. Found by a forward pass.

    Args:
        module: The stacked module.
        width: Number of input features of the module.
    """
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


def stack_modules(members: Sequence[nn.Module]) -> nn.Module | None:
    """Return a module that computes the modules of M members, each on a share of the batch axis.

    The module is a copy of the first member's. Stacked modules replace linear layers, norms and scales with
    different weights, at any depth. The library's other code runs unchanged on the longer batch. None if any
    other tensor differs.
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
        part = None if child is None else stack_modules([m.get_submodule(name) for m in members])
        if part is None and child is not None:
            return None
        copied._modules[name] = part
    return copied


def _leaf(members: Sequence[nn.Module]) -> nn.Module | None:
    """Return the stacked version of modules without children, or None for unknown types."""
    first = members[0]
    names = [name for name, tensor in first._parameters.items() if tensor is not None]
    tensors = {name: torch.stack([getattr(m, name) for m in members]) for name in names}
    if isinstance(first, FeatureLinear):
        layer = shallow_copy(first)
        layer._parameters.update({name: frozen_parameter(tensor) for name, tensor in tensors.items()})
        return layer
    # subclasses of `nn.Linear` may use their weights differently
    if type(first) is nn.Linear and "weight" in tensors:
        return StackedLinear(tensors["weight"], tensors.get("bias"))
    if hasattr(first, "normalized_shape") and "weight" in tensors:
        return StackedNorm(first, tensors["weight"], tensors.get("bias"))
    if len(names) == 1 and type(first).__name__.endswith(("RMSNorm", "LayerScale")):
        return StackedScale(first, names[0], tensors[names[0]])
    return None


def all_same(modules: Sequence[nn.Module]) -> bool:
    """Return whether modules share the same tensor objects under the same names.

    Non-persistent buffers and tensors of `set_aside` do not count.
    """
    first, *others = (_read(module) for module in modules)
    return all(
        tensors.keys() == first.keys() and all(t is first[n] for n, t in tensors.items())
        for tensors in others
    )


def _read(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and persistent buffers read by a module, by dotted name."""
    return {
        f"{path}.{name}": tensor
        for path, part in module.named_modules()
        for name, tensor in (part._parameters | part._buffers).items()
        if tensor is not None and name not in {*part._non_persistent_buffers_set, *getattr(part, "aside", ())}
    }


def shallow_copy(module: AnyModule) -> AnyModule:
    """Return a copy with the same children and parameters. Replacements do not change the original."""
    copied = copy.copy(module)
    for parts in ("_modules", "_parameters"):
        copied.__dict__[parts] = dict(getattr(module, parts))
    return copied


def only_rows(layer: nn.Linear, rows: torch.Tensor) -> nn.Linear:
    """Return a linear layer with a selection of output features."""
    sliced = shallow_copy(layer)
    sliced.out_features = len(rows)
    sliced.weight = nn.Parameter(layer.weight.detach()[rows])
    if layer.bias is not None:
        sliced.bias = nn.Parameter(layer.bias.detach()[rows])
    return sliced
