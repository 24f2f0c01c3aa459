"""Parts of M members that compute all at once: one call of each operator, whatever the number of members.

A device that waits for each call more than it computes, as a GPU with few samples does, is as fast then with a hydra as with
one model. The members' weights lie on a first axis of their own, and the streams of the members one after another on the
batch axis, N = M B. Everything that has no weights of its own, or the same in all members, is the library's and runs as it is.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

AnyModule = TypeVar("AnyModule", bound=nn.Module)


_VERSION = operator.attrgetter("_version")
"""How often a tensor was written to."""


class Sources:
    """Tensors that were copied, and whether they still are what they were.

    It is asked before each forward pass, about some hundred tensors, and so written for speed: no loop of Python's own.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """Take what modules hold, as it is now."""
        parts = [part for module in modules for part in module.modules()]
        held = [holder for part in parts for holder in (part._parameters, part._buffers) if holder]
        # itself at the end, so that none can come or go there
        self._places = (*(holder.values() for holder in held), (self,))
        self._tensors = (*chain.from_iterable(self._places),)
        # what is written to tensors of inference mode is not counted
        self._counted = [x for x in self._tensors if isinstance(x, torch.Tensor) and not x.is_inference()]
        self._written = self._writes()

    def _writes(self) -> int:
        return sum(map(_VERSION, self._counted))

    @property
    def changed(self) -> bool:
        """Whether another tensor is in the place of one, or one was written to."""
        same = all(map(operator.is_, chain.from_iterable(self._places), self._tensors))
        return not same or self._writes() != self._written


class Abreast(nn.Module):
    """The same part of M members.

    They run in turn; or stacked, where that is possible, asked for, and neither trained nor in need of gradients, which only
    the members' own weights have. The tower that they are in stacks them anew once these have changed.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._asked = False
        # in a tuple, as its tensors are none of the model's own
        self._stack: tuple[nn.Module | None, ...] = ()
        self._sources: Sources | None = None

    def stack(self, on: bool) -> None:
        """Copy the members' weights as they are now, to be run at once from here on; or forget the copy.

        Nothing is copied in training: what holds the copy has the members' own parts without weights, and to switch it to
        evaluation would end their dropout. Nor where the copy is what it would become: whoever holds it, as a captured graph
        of a GPU does, may go on with it.
        """
        self._asked = on
        if not on or self.training or (self._sources is not None and self._sources.changed):
            self._stack, self._sources = (), None
        if on and not self.training and not self._stack:
            with torch.inference_mode(mode=False), torch.no_grad():
                found = self.at_once()
            self._stack = (None if found is None else found.eval(),)
            self._sources = Sources(self.members)

    def keep_up(self) -> None:
        """Stack the members anew if they are to be and have changed since."""
        self.stack(self._asked)

    @override
    def __getstate__(self) -> dict[str, object]:
        # who reads it has other weights, and stacks them
        return self.__dict__ | {"_stack": (), "_sources": None}

    def at_once(self) -> nn.Module | None:
        """Return a part that computes all members at once, None where that is not possible."""
        raise NotImplementedError

    @property
    def stacked(self) -> nn.Module | None:
        """What computes all members at once, None where they run in turn."""
        if not self._stack or self.training or torch.is_grad_enabled():
            return None
        return self._stack[0]


def applied(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return what a module makes of x; one that never changes it is not called, which takes as long as a small operator."""
    if type(module) is nn.Identity:
        return x
    made: torch.Tensor = module(x)
    return made


def fixed(tensor: torch.Tensor) -> nn.Parameter:
    """Return a parameter that is not trained; what compiles a model takes a parameter's size for given."""
    return nn.Parameter(tensor, requires_grad=False)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return a linear layer's (N, ..., O) of x (N, ..., D): of weight (O, D), or of each member's, (M, O, D)."""
    if weight.ndim < 3:
        return F.linear(x, weight, bias)
    return _products(x, weight.mT, None if bias is None else bias.unsqueeze(1))


def _products(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return (N, ..., O) of x (N, ..., D), weights (M, D, O) and biases (M, 1, O)."""
    rows = x.reshape(weight.shape[0], -1, x.shape[-1])
    found = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias, rows, weight)
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
        self._operands = fixed(weight.mT), None if bias is None else fixed(bias.unsqueeze(1))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, ..., O) of x (N, ..., D)."""
        return _products(x, *self._operands)


class StackedNorm(nn.Module):
    """Norms of M members: the library's own without weights, and then each member's weights (M, 1, D)."""

    def __init__(self, norm: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.norm = shallow(norm)
        self.norm._parameters.update(dict.fromkeys(norm._parameters))
        self._own = fixed(weight.unsqueeze(1)), None if bias is None else fixed(bias.unsqueeze(1))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, ..., D) normed."""
        normed: torch.Tensor = self.norm(x)
        weight, bias = self._own
        rows = normed.reshape(weight.shape[0], -1, normed.shape[-1])
        out = rows * weight if bias is None else torch.addcmul(bias, rows, weight)
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
        out: torch.Tensor = self.first(x.reshape(self.members, -1, x.shape[-1]))
        return out.view(x.shape)


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
