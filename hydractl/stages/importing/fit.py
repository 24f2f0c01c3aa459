"""Names that wrappers and other repositories gave → the names of an architecture."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hydractl.errors import CheckpointError
from hydractl.families.base import Family, is_replaceable, place_of
from hydractl.families.conversion import convert, encoder_of
from hydractl.families.registry import FAMILIES
from hydractl.manifest.header import Architecture, Header
from hydractl.tensors import TensorSpec, spec_of
from hydractl.wording import quoted

if TYPE_CHECKING:
    import torch

COMPILED = "_orig_mod."
WHOLE = ("module.", "model.", "net.")
PREFIXES = (*WHOLE, "backbone.", "encoder.")
"""What DataParallel, Lightning and training scripts put before a name."""
DEEPEST = 4
SHOWN = 3
FLOATS = {"F64", "F32", "F16", "BF16"}


class OtherClassesError(CheckpointError):
    """Weights whose classifier tells apart another number of classes than was thought."""

    def __init__(self, where: str, number: int, reason: str) -> None:
        super().__init__(f"{where}: has {number} classes, {reason}", hint=f"add `--num-classes {number}`")
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Tensors under the names of an architecture.

    Attributes:
        tensors: All of the architecture's, and no others.
        prefix: What stood before the names.
        left_out: Names without that prefix, which belong to something else.
        converted: The library that translated them, or None.
        drawn: Names of those that were not among the weights.
    """

    tensors: dict[str, torch.Tensor]
    prefix: str = ""
    left_out: tuple[str, ...] = ()
    converted: str | None = None
    drawn: tuple[str, ...] = ()


def fit(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    *,
    family: Family,
    architecture: Architecture,
    where: str,
) -> Fitted:
    """Bring tensors under the names of an architecture.

    A prefix goes if exactly the architecture's tensors remain; failing that, the library's own conversion is asked.

    Raises:
        CheckpointError: If they do not fit; with counts, the first few names, and the likely cause.
    """
    plain = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    found = _without_prefix(plain, lambda names: names == expected.keys())
    if found is None:
        bare = _without_common(plain, expected)
        made = convert(family, architecture, bare)
        fits_better = made is not None and _distance(made, expected) < _distance(bare, expected)
        if made is not None and fits_better:
            found = Fitted(tensors=made, converted=family.library)
        else:
            found = Fitted(tensors=bare)
    _check(where, {k: spec_of(v) for k, v in found.tensors.items()}, expected, family, architecture)
    return found


def fit_encoder(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    *,
    header: Header,
    where: str,
    new: bool,
) -> Fitted:
    """Bring the tensors of an encoder under the names of an architecture, without a classifier and maybe a pooler.

    What the library's own model has besides, outside of blocks, is left out: other heads than a classifier's.

    Args:
        tensors: By the names that the file has.
        expected: What the architecture has.
        header: Of the base to be.
        where: What messages call the file.
        new: Whether a classifier is left out that is there; otherwise it is an error.

    Raises:
        CheckpointError: If they do not fit.
    """
    architecture = header.architecture
    family = FAMILIES[architecture.family]
    plain = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    wanted = {n: s for n, s in expected.items() if not is_replaceable(family, n)}
    found = _without_prefix(plain, lambda names: wanted.keys() <= names)
    if found is None:
        bare = _without_common(plain, expected)
        made = encoder_of(family, architecture, bare)
        found = Fitted(tensors=bare) if made is None else Fitted(tensors=made, converted=family.library)
    kept = {n: t for n, t in found.tensors.items() if n in expected or place_of(family, n).layer is not None}
    if new:
        kept = {n: t for n, t in kept.items() if place_of(family, n).part != "head"}
    elif any(place_of(family, n).part == "head" for n in kept):
        raise CheckpointError(f"{where}: has a classifier, but does not fit {architecture.name} otherwise")
    specs = {n: s for n, s in expected.items() if n in wanted or n in kept}
    _check(where, {k: spec_of(v) for k, v in kept.items()}, specs, family, architecture)
    left = (
        () if found.converted else tuple(sorted(found.prefix + n for n in found.tensors.keys() - kept.keys()))
    )
    return replace(found, tensors=kept, left_out=(*found.left_out, *left))


def _without_prefix(
    tensors: Mapping[str, torch.Tensor], fits: Callable[[KeysView[str]], bool]
) -> Fitted | None:
    """Return the tensors beneath the shortest prefix that leaves names that fit."""
    level = [Fitted(tensors=dict(tensors))]
    for _ in range(DEEPEST + 1):
        for found in level:
            if fits(found.tensors.keys()):
                return found
        level = [
            Fitted(
                tensors={k.removeprefix(p): v for k, v in found.tensors.items() if k.startswith(p)},
                prefix=found.prefix + p,
                left_out=(*found.left_out, *(found.prefix + k for k in found.tensors if not k.startswith(p))),
            )
            for found in level
            for p in PREFIXES
            if any(k.startswith(p) for k in found.tensors)
        ]
    return None


def _without_common(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec]
) -> dict[str, torch.Tensor]:
    """Return the tensors without a wrapper's prefix that all of them have and none that is expected."""
    found = dict(tensors)
    for _ in range(DEEPEST):
        for prefix in WHOLE:
            common = all(k.startswith(prefix) for k in found)
            if common and not any(k.startswith(prefix) for k in expected):
                found = {k.removeprefix(prefix): v for k, v in found.items()}
    return found


def _distance(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec]) -> int:
    return len(tensors.keys() ^ expected.keys())


def _check(
    where: str,
    found: Mapping[str, TensorSpec],
    expected: Mapping[str, TensorSpec],
    family: Family,
    architecture: Architecture,
) -> None:
    heads = tuple(prefix for layout in family.towers.values() for prefix in layout.head)
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        parts = [
            f"{text} {len(names)} {'tensor' if len(names) == 1 else 'tensors'} ({quoted(names, most=SHOWN)})"
            for text, names in (("lacks", missing), ("has besides", extra))
            if names
        ]
        raise CheckpointError(
            f"{where}: does not fit {architecture.name}: {' and '.join(parts)}",
            hint="has it no classifier? `--num-classes N` gives it one that is yet to be trained to classify"
            if missing and all(name.startswith(heads) for name in missing)
            else "is it another architecture, or one with other options (`--arch NAME::key=value`)?",
        )
    other = [name for name in sorted(expected) if found[name].shape != expected[name].shape]
    if other:
        _refuse_shapes(where, other, found, expected, architecture, heads=heads)
    for name, spec in expected.items():
        if spec.dtype in FLOATS and found[name].dtype not in FLOATS:
            raise CheckpointError(
                f"{where}: tensor `{name}` is {found[name].dtype}, not of floating point",
                hint="quantised weights cannot be pruned; take those of the model as it was trained",
            )


def _refuse_shapes(
    where: str,
    names: list[str],
    found: Mapping[str, TensorSpec],
    expected: Mapping[str, TensorSpec],
    architecture: Architecture,
    *,
    heads: tuple[str, ...],
) -> None:
    first = names[0]
    theirs, ours = found[first].shape, expected[first].shape
    if all(name.startswith(heads) for name in names) and theirs[1:] == ours[1:]:
        raise OtherClassesError(where, theirs[0], f"not {architecture.num_classes} (`{first}` is {theirs})")
    position = all("pos" in name for name in names)
    raise CheckpointError(
        f"{where}: {len(names)} {'tensor has' if len(names) == 1 else 'tensors have'} another shape than "
        f"{architecture.name}'s, for example `{first}`: {theirs}, not {ours}",
        hint="was it trained on another size of inputs (`--arch NAME::img_size=N`)?"
        if position
        else "is it another architecture, or one with other options (`--arch NAME::key=value`)?",
    )
