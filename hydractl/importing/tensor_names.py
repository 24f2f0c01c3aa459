"""Matching of tensor names with an architecture: prefixes, conversions of libraries, and new classifiers."""

from __future__ import annotations

from collections.abc import Callable, Collection, KeysView, Mapping
from dataclasses import dataclass, replace

import torch

from hydractl.checkpoint import TensorSpec, spec_of
from hydractl.errors import CheckpointError
from hydractl.families.base import COMPILED, Family, is_replaceable, name_in_memory, position_of
from hydractl.families.open_model import convert, draw_missing, encoder_of
from hydractl.families.registry import FAMILIES, expected_specs
from hydractl.manifest.header import Header
from hydractl.messages import counted, quoted

WRAPPER_PREFIXES = ("module.", "model.", "net.")
USUAL = {"module", "model", "net", "backbone", "encoder"}
"""Prefixes that DataParallel, Lightning and training scripts add to tensor names. They are preferred to all
other prefixes."""
HEADS = {"fc", "classifier", "head", "heads", "linear"}
"""Names of classifiers in training scripts. A matrix with such a name is a classifier, whatever the number of
classes."""
DEEPEST = 4
"""Maximum number of passes that strip wrapper prefixes. Chosen by hand; twice the number has no effect on
files with fewer nested wrappers."""
MAX_SHOWN = 3
"""Maximum number of tensor names in a message. Chosen by hand; twice the number doubles the list."""
FLOATS = {"F64", "F32", "F16", "BF16"}
CHECK_ARCH = "check `--arch`: the weights may be of another architecture, or need other options (`--arch NAME::key=value`)"


class OtherClassesError(CheckpointError):
    """A classifier in the file with another number of classes than expected."""

    def __init__(self, place: str, number: int, reason: str) -> None:
        super().__init__(
            f"{place}: has {counted(number, 'class', 'classes')}, {reason}",
            hint=f"add `--num-classes {number}`, or `num_classes={number}` to the options of `--arch`",
        )
        self.number = number


class TrainedHeadError(CheckpointError):
    """A trained classifier in the file under a name that the architecture does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedTensors:
    """Tensors under the names of an architecture.

    Attributes:
        tensors: All tensors of the architecture, and no others.
        prefix: Prefix stripped from the names.
        left_out: Names of the ignored tensors.
        converted: Library with the conversion of the names; None without conversion.
        drawn_names: Names of the tensors with random weights.
    """

    tensors: dict[str, torch.Tensor]
    prefix: str = ""
    left_out: tuple[str, ...] = ()
    converted: str | None = None
    drawn_names: tuple[str, ...] = ()


def match_tensors(
    tensors: Mapping[str, torch.Tensor],
    header: Header,
    *,
    place: str,
    new_classifier: bool,
    may_add_classifier: bool,
    seed: int,
) -> MatchedTensors:
    """Rename tensors to the names of an architecture.

    A prefix is stripped if the remaining names are those of the architecture. Otherwise the library's own
    conversion is tried.

    Args:
        tensors: Tensors by the names in the file.
        header: Header of the base.
        place: Name of the file in messages.
        new_classifier: Whether to ignore a classifier in the file and draw a random one.
        may_add_classifier: Whether to draw a random classifier if the file has none.
        seed: Seed of the random classifier.

    Raises:
        OtherClassesError: If the classifier in the file has another number of classes.
        TrainedHeadError: If a random classifier would replace a trained classifier with another name.
        CheckpointError: If the tensors do not fit. The message has counts, the first few names, and the
            likely cause.
    """
    family = FAMILIES[header.architecture.family]
    expected = expected_specs(family, header)
    plain = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    if new_classifier:
        matched = _match_encoder(plain, expected, header, place=place, drops_classifier=True)
    else:
        try:
            return _match_all(plain, expected, header, place=place)
        except OtherClassesError:
            raise
        except CheckpointError as error:
            if header.prompting is not None:
                raise
            try:
                matched = _match_encoder(plain, expected, header, place=place, drops_classifier=False)
            except TrainedHeadError:
                raise
            except CheckpointError:  # The first error compares all tensors and is more precise.
                raise error from None
            if not may_add_classifier:
                raise
    kept_specs = {name: spec_of(tensor) for name, tensor in matched.tensors.items()}
    fresh = draw_missing(family, header.architecture, expected, kept_specs, seed=seed)
    return replace(matched, tensors=matched.tensors | fresh, drawn_names=tuple(fresh))


def _match_all(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec], header: Header, *, place: str
) -> MatchedTensors:
    family = FAMILIES[header.architecture.family]
    matched = _without_prefix(place, tensors, expected, lambda names: names == expected.keys())
    if matched is None:
        matched = _on_disk(place, tensors, expected, family, lambda names: names == expected.keys())
        converted = convert(family, header.architecture, matched.tensors)
        if converted is not None and len(converted.keys() ^ expected.keys()) < len(
            matched.tensors.keys() ^ expected.keys()
        ):
            matched = replace(matched, tensors=converted, converted=family.library)
    _check(place, matched.tensors, expected, header)
    return matched


def _match_encoder(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    header: Header,
    *,
    place: str,
    drops_classifier: bool,
) -> MatchedTensors:
    """Rename the tensors of an encoder to the names of an architecture. Classifier and pooler may be missing.

    Other heads of the library's model, which are outside of blocks, are ignored.

    Args:
        tensors: Tensors by the names in the file.
        expected: All tensors of the architecture.
        header: Header of the base.
        place: Name of the file in messages.
        drops_classifier: Whether to ignore a classifier in the file; otherwise a classifier is an error.

    Raises:
        CheckpointError: If the tensors do not fit, or include a classifier without `drops_classifier`.
        TrainedHeadError: If a classifier under another name would be ignored without `drops_classifier`.
    """
    architecture = header.architecture
    family = FAMILIES[architecture.family]
    required = {n: s for n, s in expected.items() if not is_replaceable(family, n)}
    matched = _without_prefix(place, tensors, required, lambda names: required.keys() <= names)
    if matched is None:
        matched = _on_disk(place, tensors, expected, family, lambda names: required.keys() <= names)
        if (converted := encoder_of(family, architecture, matched.tensors)) is not None:
            matched = replace(matched, tensors=converted, converted=family.library)
    kept_tensors = {
        n: t for n, t in matched.tensors.items() if n in expected or position_of(family, n).layer is not None
    }
    if drops_classifier:
        kept_tensors = {n: t for n, t in kept_tensors.items() if position_of(family, n).part != "head"}
    elif any(position_of(family, n).part == "head" for n in kept_tensors):
        raise CheckpointError(
            f"{place}: has a classifier, but its other tensors do not fit {architecture.name}"
        )
    specs = {n: s for n, s in expected.items() if n in required or n in kept_tensors}
    _check(place, kept_tensors, specs, header)
    left_out = (
        ()
        if matched.converted
        else tuple(sorted(matched.prefix + n for n in matched.tensors.keys() - kept_tensors.keys()))
    )
    matched = replace(matched, tensors=kept_tensors, left_out=(*matched.left_out, *left_out))
    if not drops_classifier:
        _check_head(place, tensors, matched, expected, header)
    return matched


def _on_disk(
    place: str,
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    family: Family,
    fits: Callable[[KeysView[str]], bool],
) -> MatchedTensors:
    """Return tensors under the names of the library's files, without the prefix of a wrapper.

    A prefix is stripped if the remaining names, converted to names in memory, are accepted by `fits`. Without
    such a prefix, `_without_common` strips the prefixes of common wrappers.

    Args:
        place: Name of the file in messages.
        tensors: Tensors by the names in the file.
        expected: All tensors of the architecture.
        family: Family of the architecture.
        fits: Returns whether a set of names fits the architecture.
    """
    required = [name for name in expected if not is_replaceable(family, name)]
    in_memory = {name_in_memory(family, name): tensor for name, tensor in tensors.items()}
    matched = _without_prefix(place, in_memory, required, fits)
    if matched is None or not matched.prefix:
        return MatchedTensors(tensors=_without_common(tensors, expected))
    beneath = {k.removeprefix(matched.prefix): v for k, v in tensors.items() if k.startswith(matched.prefix)}
    return replace(matched, tensors=beneath)


def _without_prefix(
    place: str,
    tensors: Mapping[str, torch.Tensor],
    required: Collection[str],
    fits: Callable[[KeysView[str]], bool],
) -> MatchedTensors | None:
    """Strip the prefix that leaves fitting names. None if no prefix does.

    Raises:
        CheckpointError: If several prefixes fit, and all have parts outside of `USUAL`.
    """
    probe = max(required, key=len)
    prefixes = {name.removesuffix(probe) for name in tensors if name == probe or name.endswith(f".{probe}")}
    beneath = {p: {k.removeprefix(p): v for k, v in tensors.items() if k.startswith(p)} for p in prefixes}
    unusual = {p: not {*filter(None, p.split("."))} <= USUAL for p in prefixes}
    fitting = sorted(
        (p for p in prefixes if fits(beneath[p].keys())), key=lambda p: (unusual[p], p.count("."), p)
    )
    if not fitting:
        return None
    prefix = fitting[0]
    if len(fitting) > 1 and unusual[prefix]:
        raise CheckpointError(
            f"{place}: has several sets of weights that fit, under {quoted(fitting)}",
            hint=f"`--weights-key {fitting[-1].rstrip('.')}` imports those",
        )
    return MatchedTensors(
        tensors=beneath[prefix],
        prefix=prefix,
        left_out=tuple(name for name in tensors if not name.startswith(prefix)),
    )


def _check_head(
    place: str,
    tensors: Mapping[str, torch.Tensor],
    fitted: MatchedTensors,
    expected: Collection[str],
    header: Header,
) -> None:
    """Raise if a random classifier would replace a trained classifier with another name.

    A classifier is an unmatched matrix outside of blocks, with a row per class or a name in `HEADS`.

    Args:
        place: Name of the file in messages.
        tensors: All tensors of the file.
        fitted: Matched tensors.
        expected: Tensor names of the architecture.
        header: Header of the base.

    Raises:
        TrainedHeadError: The hint contains a `--rename` for the classifier.
    """
    family = FAMILIES[header.architecture.family]
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last != "weight" or tensor.ndim != 2 or not tensor.is_floating_point():
            continue
        if tensor.shape[0] != header.architecture.num_classes and stem.rpartition(".")[2] not in HEADS:
            continue
        if position_of(family, name.removeprefix(fitted.prefix)).layer is not None or any(
            t.shape == tensor.shape and bool((t == tensor).all()) for t in fitted.tensors.values()
        ):
            continue
        heads = {n.rpartition(".")[0] for n in expected if position_of(family, n).part == "head"}
        way = (
            f"`--rename {stem}={fitted.prefix}{next(iter(heads))}` imports it; "
            if len(heads) == 1 and not fitted.converted
            else ""
        )
        raise TrainedHeadError(
            f"{place}: `{name}` {tuple(tensor.shape)} looks like a trained classifier, but "
            f"{header.architecture.name} uses another name",
            hint=f"{way}`--head-seed 0` ignores it and makes a random classifier",
        )


def _without_common(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec]
) -> dict[str, torch.Tensor]:
    """Strip wrapper prefixes that all tensors have, and no expected tensor has."""
    unwrapped = dict(tensors)
    for _ in range(DEEPEST):
        for prefix in WRAPPER_PREFIXES:
            common = all(k.startswith(prefix) for k in unwrapped)
            if common and not any(k.startswith(prefix) for k in expected):
                unwrapped = {k.removeprefix(prefix): v for k, v in unwrapped.items()}
    return unwrapped


def _check(
    place: str, tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec], header: Header
) -> None:
    """Compare names and shapes with the architecture, and refuse integers in place of floating-point tensors.

    Floating-point dtypes may differ.

    Raises:
        CheckpointError: If tensors do not fit.
        OtherClassesError: If only the number of classes differs.
    """
    actual = {name: spec_of(tensor) for name, tensor in tensors.items()}
    architecture = header.architecture
    heads = tuple(
        prefix for layout in FAMILIES[architecture.family].towers.values() for prefix in layout.head
    )
    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or extra:
        parts = [
            f"{text} {counted(len(names), 'tensor')} ({quoted(names, most=MAX_SHOWN)})"
            for text, names in (("lacks", missing), ("has besides", extra))
            if names
        ]
        raise CheckpointError(
            f"{place}: does not fit {architecture.name}: {' and '.join(parts)}",
            hint="if it has no classifier, `--num-classes N` adds a random one, which `finetune` must train"
            if missing and all(name.startswith(heads) for name in missing)
            else CHECK_ARCH,
        )
    if mismatched := [name for name in sorted(expected) if actual[name].shape != expected[name].shape]:
        first = mismatched[0]
        theirs, ours = actual[first].shape, expected[first].shape
        if all(name.startswith(heads) for name in mismatched) and theirs[1:] == ours[1:]:
            raise OtherClassesError(place, theirs[0], f"not {ours[0]} (`{first}` is {theirs})")
        have = "tensor has" if len(mismatched) == 1 else "tensors have"
        raise CheckpointError(
            f"{place}: {len(mismatched)} {have} a shape that does not fit {architecture.name}, for example "
            f"`{first}`: {theirs}, not {ours}",
            hint="the model may have been trained on another image size: `--arch NAME::img_size=N`"
            if all("pos" in name for name in mismatched)
            else CHECK_ARCH,
        )
    for name, spec in expected.items():
        if spec.dtype in FLOATS and actual[name].dtype not in FLOATS:
            raise CheckpointError(
                f"{place}: tensor `{name}` is {actual[name].dtype}, but must be floating point",
                hint="quantized weights cannot be pruned; import the weights from before quantization",
            )
