"""Names that wrappers and other repositories gave → the names of an architecture."""

from __future__ import annotations

from collections.abc import Callable, Collection, KeysView, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hydractl.errors import CheckpointError
from hydractl.families.base import COMPILED, Family, is_replaceable, name_in_memory, place_of
from hydractl.families.conversion import convert, encoder_of
from hydractl.families.registry import FAMILIES
from hydractl.manifest.header import Architecture, Header
from hydractl.messages import counted, quoted
from hydractl.tensor_spec import TensorSpec, spec_of

if TYPE_CHECKING:
    import torch

WRAPPER_PREFIXES = ("module.", "model.", "net.")
USUAL = {"module", "model", "net", "backbone", "encoder"}
"""Prefixes that DataParallel, Lightning and training scripts add to tensor names. They are stripped before
any other prefix.
"""
HEADS = {"fc", "classifier", "head", "heads", "linear"}
"""Names of classifiers in training scripts, whatever the number of classes."""
DEEPEST = 4
MAX_SHOWN = 3
FLOATS = {"F64", "F32", "F16", "BF16"}


class OtherClassesError(CheckpointError):
    """Weights whose classifier tells apart another number of classes than was thought."""

    def __init__(self, where: str, number: int, reason: str) -> None:
        super().__init__(
            f"{where}: has {counted(number, 'class', 'classes')}, {reason}",
            hint=f"add `--num-classes {number}`, or `num_classes={number}` to the options of `--arch`",
        )
        self.number = number


class TrainedHeadError(CheckpointError):
    """Weights with a trained classifier under a name that the architecture does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedTensors:
    """Tensors under the names of an architecture.

    Attributes:
        tensors: All of the architecture's, and no others.
        prefix: What stood before the names.
        left_out: Names without that prefix, which belong to something else.
        converted: The library that translated them, or None.
        drawn_names: Names of those that were not among the weights.
    """

    tensors: dict[str, torch.Tensor]
    prefix: str = ""
    left_out: tuple[str, ...] = ()
    converted: str | None = None
    drawn_names: tuple[str, ...] = ()


def fit(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    *,
    family: Family,
    architecture: Architecture,
    where: str,
) -> MatchedTensors:
    """Bring tensors under the names of an architecture.

    A prefix goes if exactly the architecture's tensors remain; failing that, the library's own conversion is asked.

    Raises:
        CheckpointError: If they do not fit; with counts, the first few names, and the likely cause.
    """
    plain = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    matched = _without_prefix(where, plain, expected, lambda names: names == expected.keys())
    if matched is None:
        matched = _on_disk(where, plain, expected, family, lambda names: names == expected.keys())
        converted = convert(family, architecture, matched.tensors)
        if converted is not None and _distance(converted, expected) < _distance(matched.tensors, expected):
            matched = replace(matched, tensors=converted, converted=family.library)
    _check(where, {k: spec_of(v) for k, v in matched.tensors.items()}, expected, family, architecture)
    return matched


def fit_encoder(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    *,
    header: Header,
    where: str,
    new: bool,
) -> MatchedTensors:
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
        TrainedHeadError: If a classifier under another name would be left out, and `new` is off.
    """
    architecture = header.architecture
    family = FAMILIES[architecture.family]
    plain = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    required = {n: s for n, s in expected.items() if not is_replaceable(family, n)}
    matched = _without_prefix(where, plain, required, lambda names: required.keys() <= names)
    if matched is None:
        matched = _on_disk(where, plain, expected, family, lambda names: required.keys() <= names)
        converted = encoder_of(family, architecture, matched.tensors)
        matched = (
            matched if converted is None else replace(matched, tensors=converted, converted=family.library)
        )
    kept_tensors = {
        n: t for n, t in matched.tensors.items() if n in expected or place_of(family, n).layer is not None
    }
    if new:
        kept_tensors = {n: t for n, t in kept_tensors.items() if place_of(family, n).part != "head"}
    elif any(place_of(family, n).part == "head" for n in kept_tensors):
        raise CheckpointError(
            f"{where}: has a classifier, but its other tensors do not fit {architecture.name}"
        )
    specs = {n: s for n, s in expected.items() if n in required or n in kept_tensors}
    _check(where, {k: spec_of(v) for k, v in kept_tensors.items()}, specs, family, architecture)
    left_out = (
        ()
        if matched.converted
        else tuple(sorted(matched.prefix + n for n in matched.tensors.keys() - kept_tensors.keys()))
    )
    fitted = replace(matched, tensors=kept_tensors, left_out=(*matched.left_out, *left_out))
    if not new:
        _check_head(where, plain, fitted, expected, header)
    return fitted


def _on_disk(
    where: str,
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    family: Family,
    fits: Callable[[KeysView[str]], bool],
) -> MatchedTensors:
    """Return the tensors without the prefix that leaves names as the library stores them, or else without a common one."""
    required = [name for name in expected if not is_replaceable(family, name)]
    in_memory = {name_in_memory(family, name): tensor for name, tensor in tensors.items()}
    matched = _without_prefix(where, in_memory, required, fits)
    if matched is None or not matched.prefix:
        return MatchedTensors(tensors=_without_common(tensors, expected))
    beneath = {k.removeprefix(matched.prefix): v for k, v in tensors.items() if k.startswith(matched.prefix)}
    return replace(matched, tensors=beneath)


def _without_prefix(
    where: str,
    tensors: Mapping[str, torch.Tensor],
    required: Collection[str],
    fits: Callable[[KeysView[str]], bool],
) -> MatchedTensors | None:
    """Return the tensors beneath the prefix that leaves names that fit, None where no prefix does.

    Raises:
        CheckpointError: If several do, and none of them is a usual one.
    """
    probe = max(required, key=len)
    prefixes = {name.removesuffix(probe) for name in tensors if name == probe or name.endswith(f".{probe}")}
    beneath = {p: {k.removeprefix(p): v for k, v in tensors.items() if k.startswith(p)} for p in prefixes}
    fitting = sorted((p for p in prefixes if fits(beneath[p].keys())), key=_rank)
    if not fitting:
        return None
    prefix = fitting[0]
    if len(fitting) > 1 and not _is_usual(prefix):
        raise CheckpointError(
            f"{where}: has several sets of weights that fit, under {quoted(fitting)}",
            hint=f"`--weights-key {fitting[-1].rstrip('.')}` imports those",
        )
    left_out = tuple(k for k in tensors if not k.startswith(prefix))
    return MatchedTensors(tensors=beneath[prefix], prefix=prefix, left_out=left_out)


def _rank(prefix: str) -> tuple[bool, int, str]:
    """Return what prefixes are sorted by: usual ones first, the shortest of them first."""
    return not _is_usual(prefix), prefix.count("."), prefix


def _is_usual(prefix: str) -> bool:
    return set(filter(None, prefix.split("."))) <= USUAL


def _check_head(
    where: str,
    tensors: Mapping[str, torch.Tensor],
    fitted: MatchedTensors,
    expected: Collection[str],
    header: Header,
) -> None:
    """Refuse a trained classifier under another name, which a random one would replace.

    Args:
        where: What messages call the file.
        tensors: All of the file.
        fitted: Those that are taken.
        expected: Names of the architecture's.
        header: Of the base to be.

    Raises:
        TrainedHeadError: With how to name it.
    """
    family = FAMILIES[header.architecture.family]
    number = header.architecture.num_classes
    matched_tensors = list(fitted.tensors.values())
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last != "weight" or tensor.ndim != 2 or not tensor.is_floating_point():
            continue
        if tensor.shape[0] != number and stem.rpartition(".")[2] not in HEADS:
            continue
        if place_of(family, name.removeprefix(fitted.prefix)).layer is not None or any(
            t.shape == tensor.shape and bool((t == tensor).all()) for t in matched_tensors
        ):
            continue
        heads = {n.rpartition(".")[0] for n in expected if place_of(family, n).part == "head"}
        way = (
            f"`--rename {stem}={fitted.prefix}{next(iter(heads))}` imports it; "
            if len(heads) == 1 and not fitted.converted
            else ""
        )
        raise TrainedHeadError(
            f"{where}: `{name}` {tuple(tensor.shape)} looks like a trained classifier, but "
            f"{header.architecture.name} uses another name",
            hint=f"{way}`--head-seed 0` ignores it and makes a random classifier",
        )


def _without_common(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec]
) -> dict[str, torch.Tensor]:
    """Return the tensors without a wrapper's prefix that all of them have and none that is expected."""
    unwrapped = dict(tensors)
    for _ in range(DEEPEST):
        for prefix in WRAPPER_PREFIXES:
            common = all(k.startswith(prefix) for k in unwrapped)
            if common and not any(k.startswith(prefix) for k in expected):
                unwrapped = {k.removeprefix(prefix): v for k, v in unwrapped.items()}
    return unwrapped


def _distance(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec]) -> int:
    return len(tensors.keys() ^ expected.keys())


def _check(
    where: str,
    actual: Mapping[str, TensorSpec],
    expected: Mapping[str, TensorSpec],
    family: Family,
    architecture: Architecture,
) -> None:
    heads = tuple(prefix for layout in family.towers.values() for prefix in layout.head)
    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or extra:
        parts = [
            f"{text} {len(names)} {'tensor' if len(names) == 1 else 'tensors'} ({quoted(names, most=MAX_SHOWN)})"
            for text, names in (("lacks", missing), ("has besides", extra))
            if names
        ]
        raise CheckpointError(
            f"{where}: does not fit {architecture.name}: {' and '.join(parts)}",
            hint="if it has no classifier, `--num-classes N` adds a random one, which `finetune` must train"
            if missing and all(name.startswith(heads) for name in missing)
            else (
                "check `--arch`: the weights may be of another architecture, or need other options "
                "(`--arch NAME::key=value`)"
            ),
        )
    mismatched = [name for name in sorted(expected) if actual[name].shape != expected[name].shape]
    if mismatched:
        _refuse_shapes(where, mismatched, actual, expected, architecture, heads=heads)
    for name, spec in expected.items():
        if spec.dtype in FLOATS and actual[name].dtype not in FLOATS:
            raise CheckpointError(
                f"{where}: tensor `{name}` is {actual[name].dtype}, but must be floating point",
                hint="quantized weights cannot be pruned; import the weights from before quantization",
            )


def _refuse_shapes(
    where: str,
    names: list[str],
    actual: Mapping[str, TensorSpec],
    expected: Mapping[str, TensorSpec],
    architecture: Architecture,
    *,
    heads: tuple[str, ...],
) -> None:
    first = names[0]
    theirs, ours = actual[first].shape, expected[first].shape
    if all(name.startswith(heads) for name in names) and theirs[1:] == ours[1:]:
        raise OtherClassesError(where, theirs[0], f"not {ours[0]} (`{first}` is {theirs})")
    position = all("pos" in name for name in names)
    raise CheckpointError(
        f"{where}: {len(names)} {'tensor has' if len(names) == 1 else 'tensors have'} a shape that "
        f"does not fit {architecture.name}, for example `{first}`: {theirs}, not {ours}",
        hint="the model may have been trained on another image size: `--arch NAME::img_size=N`"
        if position
        else (
            "check `--arch`: the weights may be of another architecture, or need other options "
            "(`--arch NAME::key=value`)"
        ),
    )
