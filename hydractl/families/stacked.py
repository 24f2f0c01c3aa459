"""Parts of M members that compute all at once: one call of each operator, whatever the number of members.

A device that waits for each call more than it computes, as a GPU with few samples does, is as fast then with a hydra as with
one model. The members' weights lie on a first axis of their own, and the streams of the members one after another on the
batch axis, N = M B. Everything that has no weights of its own, or the same in all members, is the library's and runs as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Source(NamedTuple):
    """A tensor that was copied: what holds it, under which name, and how often it had been written to."""

    holder: Mapping[str, torch.Tensor | None]
    name: str
    tensor: torch.Tensor
    version: int | None

    @classmethod
    def all_of(cls, module: nn.Module) -> Iterator[Source]:
        """Yield what a module holds as it is now; tensors of inference mode do not count what is written to them."""
        for part in module.modules():
            for holder in (part._parameters, part._buffers):
                for name, tensor in holder.items():
                    if tensor is not None:
                        yield cls(holder, name, tensor, None if tensor.is_inference() else tensor._version)

    @property
    def changed(self) -> bool:
        """Whether another tensor is there now, or this one was written to."""
        written = self.version is not None and self.tensor._version != self.version
        return self.holder.get(self.name) is not self.tensor or written


class Abreast(nn.Module):
    """The same part of M members.

    They run in turn; or stacked, where that is possible, asked for, and neither trained nor in need of gradients, which only
    the members' own weights have. Once these have changed they are stacked anew.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._asked = False
        # in a tuple, as its tensors are none of the model's own
        self._stack: tuple[nn.Module | None, ...] = ()
        self._sources: tuple[Source, ...] = ()

    def stack(self, on: bool) -> None:
        """Copy the members' weights as they are now, to be run at once from here on; or forget the copy.

        Nothing is copied in training: what holds the copy has the members' own parts without weights, and to switch it to
        evaluation would end their dropout. Nor where the copy is what it would become: whoever holds it, as a captured graph
        of a GPU does, may go on with it.
        """
        self._asked = on
        if not on or self.training or any(source.changed for source in self._sources):
            self._stack = self._sources = ()
        if on and not self.training and not self._stack:
            with torch.inference_mode(mode=False), torch.no_grad():
                found = self.at_once()
            self._stack = (None if found is None else found.eval(),)
            self._sources = tuple(Source.all_of(self.members))

    @override
    def __getstate__(self) -> dict[str, object]:
        # who reads it has other weights, and stacks them
        return self.__dict__ | {"_stack": (), "_sources": ()}

    def at_once(self) -> nn.Module | None:
        """Return a part that computes all members at once, None where that is not possible."""
        raise NotImplementedError

    @property
    def stacked(self) -> nn.Module | None:
        """What computes all members at once, None where they run in turn."""
        if not self._asked or self.training or torch.is_grad_enabled():
            return None
        if not torch.compiler.is_compiling():
            self.stack(on=True)
        return self._stack[0] if self._stack else None


def fixed(tensor: torch.Tensor) -> nn.Parameter:
    """Return a parameter that is not trained; what compiles a model takes a parameter's size for given."""
    return nn.Parameter(tensor, requires_grad=False)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return a linear layer's (N, ..., O) of x (N, ..., D): of weight (O, D), or of each member's, (M, O, D)."""
    if weight.ndim < 3:
        return F.linear(x, weight, bias)
    rows = _rows(x, len(weight))
    found = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return found.view(*x.shape[:-1], -1)


class StackedLinear(nn.Module):
    """Linear layers of M members, which may be of as many sizes: to the smaller are added weights of zero.

    Attributes:
        weight: (M, O, D).
        bias: (M, O), or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = fixed(weight), None if bias is None else fixed(bias)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, ..., O) of x (N, ..., D)."""
        return product(x, self.weight, self.bias)


class StackedNorm(nn.Module):
    """Norms of M members: the library's own without weights, and then each member's weights (M, ..., D)."""

    def __init__(self, norm: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.norm = shallow(norm)
        self.norm._parameters.update(dict.fromkeys(norm._parameters))
        self.weight, self.bias = fixed(weight), None if bias is None else fixed(bias)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, ..., D) normed."""
        normed: torch.Tensor = self.norm(x)
        rows, weight = _rows(normed, len(self.weight)), self.weight.unsqueeze(1)
        out = rows * weight if self.bias is None else torch.addcmul(self.bias.unsqueeze(1), rows, weight)
        return out.view(normed.shape)


class StackedScale(nn.Module):
    """Modules of M members that multiply with a number a feature: the library's own, with numbers (M, 1, D)."""

    def __init__(self, first: nn.Module, name: str, scale: torch.Tensor) -> None:
        super().__init__()
        self.members = len(scale)
        self.first = shallow(first)
        del self.first._parameters[name]
        self.first.register_parameter(name, fixed(scale.unsqueeze(1)))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, ..., D) scaled."""
        out: torch.Tensor = self.first(_rows(x, self.members))
        return out.view(x.shape)


def _rows(x: torch.Tensor, members: int) -> torch.Tensor:
    """Return (M, N / M ..., D) of x (N, ..., D)."""
    return x.reshape(members, -1, x.shape[-1])


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
    own = [{**m._parameters, **m._buffers} for m in members]
    if not members[0]._modules or any(t is not own[0][n] for other in own for n, t in other.items()):
        return None
    found = shallow(first)
    for name, child in first._modules.items():
        part = None if child is None else stacked([m.get_submodule(name) for m in members])
        if part is None and child is not None:
            return None
        found._modules[name] = part
    return found


def _leaf(members: Sequence[nn.Module]) -> nn.Module | None:
    """Return what modules without children are at once, None where there is no rule for such."""
    first = members[0]
    names = [name for name, tensor in first._parameters.items() if tensor is not None]
    tensors = {name: torch.stack([getattr(m, name) for m in members]) for name in names}
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
    return all(own.keys() == first.keys() and all(t is first[n] for n, t in own.items()) for own in others)


def _read(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's parameters and persistent buffers that it reads, by their dotted names."""
    return {
        f"{path}.{name}": tensor
        for path, part in module.named_modules()
        for name, tensor in (part._parameters | part._buffers).items()
        if tensor is not None and name not in {*part._non_persistent_buffers_set, *getattr(part, "aside", ())}
    }


def shallow(module: AnyModule) -> AnyModule:
    """Return a copy that has the same parts, each of which may be replaced without touching the original."""
    other = copy.copy(module)
    for parts in ("_modules", "_parameters"):
        other.__dict__[parts] = dict(getattr(module, parts))
    return other


def only_rows(layer: nn.Linear, rows: torch.Tensor) -> nn.Linear:
    """Return a linear layer with only some output features."""
    sliced = shallow(layer)
    sliced.out_features = len(rows)
    sliced.weight = nn.Parameter(layer.weight.detach()[rows])
    if layer.bias is not None:
        sliced.bias = nn.Parameter(layer.bias.detach()[rows])
    return sliced
