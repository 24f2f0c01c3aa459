"""Contents of a file for `inspect`: the header of a checkpoint, the folder of a model, or a document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import BinaryIO, ClassVar

from pydantic import ValidationError

from hydractl.checkpoint import METADATA_KEY, Checkpoint, ScratchFolder, TensorSpec
from hydractl.errors import (
    EDITED,
    CheckpointError,
    HydraError,
    InputError,
    ManifestError,
    UnsupportedModelError,
)
from hydractl.families.base import Family, ModelDescription, position_of, position_on_disk
from hydractl.families.open_model import classifier_hint
from hydractl.families.registry import FAMILIES, describe_folder, family_for_config
from hydractl.families.transformers.hf_models import REFUSED
from hydractl.heads.budget import total_heads
from hydractl.heads.masks import total_kept
from hydractl.manifest.document import Document
from hydractl.manifest.guarantees import KnownTest, PredictionSets, Threshold
from hydractl.manifest.head_mask import Mask
from hydractl.manifest.header import (
    Architecture,
    Fate,
    FittedScores,
    FusePlan,
    Header,
    Preprocess,
    Prompting,
    Step,
    Tokenization,
)
from hydractl.manifest.report import DOCUMENTS
from hydractl.manifest.terms import Temperature, TemperatureFields
from hydractl.model_source import Located
from hydractl.output.publish import is_stream
from hydractl.reporting.lineage import member_names
from hydractl.runtime import CHUNK_BYTES, digest_text
from hydractl.strict_json import MAX_BYTES, NotJSONError, open_binary, parse, read_exactly, read_limited
from hydractl.version import UPGRADE

FOREIGN, PREDICTIONS = "foreign", "predictions"
PART_ORDER = ("embed", "attention", "mlp", "norm", "readout", "head")
"""Parts of a model from input to output, the order of lines."""
PICKLE_STARTS = (b"PK\x03\x04", b"\x80")
"""First bytes of a zip archive (torch's format) and of a pickle."""
TEXT_STARTS = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may precede JSON: a byte order mark and white space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """The model in a file.

    Attributes:
        name: Architecture, or its name in a folder's `config.json`.
        num_classes: Number of classes.
        labels: Names of the classes.
        architecture: Complete description. `None` for a foreign file.
        preprocess: Preprocessing of images or texts, with the digest of a tokenizer instead of its text.
        prompting: Prompts of a zero-shot model, also with the digest of the tokenizer.
        tokenizer_size: Number of tokens of the tokenizer, including added tokens. The model may have more.
        masks: Remaining heads of each tower, for each member; empty for a foreign file.
        heads_kept: Number of remaining heads in all towers, for each member.
        heads_total: Number of heads of the base.
    """

    name: str | None = None
    num_classes: int | None = None
    labels: tuple[str, ...] = ()
    architecture: Architecture | None = None
    preprocess: Preprocess | Tokenization | None = None
    prompting: Prompting | None = None
    tokenizer_size: int | None = None
    masks: tuple[Mask, ...] = ()
    heads_kept: tuple[int, ...] = ()
    heads_total: int = 0


def identity_of(
    described: Header | ModelDescription, name: str | None = None, masks: tuple[Mask, ...] = ()
) -> ModelIdentity:
    """Return the model that a header or a family describes.

    Args:
        described: The header or description.
        name: Name of the architecture. `None` for the name in the description.
        masks: Head mask of each member; empty for a model with all heads.
    """
    total, prompting = total_heads(described.architecture.towers), described.prompting
    return ModelIdentity(
        name=name or described.architecture.name,
        num_classes=described.architecture.num_classes or len(described.labels),
        labels=described.labels,
        architecture=described.architecture,
        preprocess=_without_tokenizer_text(described.preprocess),
        prompting=prompting
        and prompting.model_copy(update={"tokenization": _without_tokenizer_text(prompting.tokenization)}),
        tokenizer_size=_tokenizer_size(described.preprocess, prompting),
        masks=masks,
        heads_kept=tuple(map(total_kept, masks)) or (total,),
        heads_total=total,
    )


def _of_folder(
    file: str, config: Mapping[str, object], folder: Path, specs: Mapping[str, TensorSpec]
) -> tuple[ModelIdentity, Family | None, str | None]:
    """Describe the model in a transformers or timm folder.

    If hydractl cannot load the model, the result is read from its `config.json`.

    Args:
        file: Path as typed.
        config: Content of `config.json`; empty for a file without folder.
        folder: The folder.
        specs: Tensors of the model.

    Returns:
        The model; its family, or `None`; a hint for the user, or `None`.
    """
    try:
        family = family_for_config(config, place=file)
    except UnsupportedModelError:
        return _guessed(config), None, _hint(file, config)
    try:
        described = describe_folder(folder, config, specs)
    except HydraError as error:
        advice = f"{error.message.removesuffix('.')}; {error.hint}" if error.hint else error.message
        return _guessed(config), family, f"other commands cannot use it: {advice}"
    identity = identity_of(described, _guessed(config).name)
    if described.lacks:
        return replace(identity, num_classes=None), family, f"{described.lacks}; {classifier_hint(file)}"
    assumed = "it has no image preprocessing; the usual one of such models is used"
    return identity, family, "; ".join([*described.notes, *[assumed] * described.assumed]) or None


def _without_tokenizer_text(preprocess: Preprocess | Tokenization) -> Preprocess | Tokenization:
    if not isinstance(preprocess, Tokenization) or preprocess.tokenizer is None:
        return preprocess
    return preprocess.model_copy(update={"tokenizer": digest_text(preprocess.tokenizer)})


def _tokenizer_size(preprocess: Preprocess | Tokenization, prompting: Prompting | None) -> int | None:
    """Return the number of tokens of a tokenizer, including added tokens.

    `None` without a tokenizer, or if its text is malformed.
    """
    texts = prompting.tokenization if prompting else preprocess
    if not isinstance(texts, Tokenization) or texts.tokenizer is None:
        return None
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # the text was not validated
        raw = parse(texts.tokenizer)
        # {token: index} in most models, [[token, weight], ...] in Unigram models
        vocabulary = raw["model"]["vocab"]
        tokens = {*vocabulary} if isinstance(vocabulary, dict) else {token for token, _ in vocabulary}
        return len(tokens | {added["content"] for added in raw.get("added_tokens") or ()})
    return None


def _guessed(folder: Mapping[str, object]) -> ModelIdentity:
    """Read a `config.json` without its library."""
    classes = folder.get("architectures")
    name = folder.get("architecture") or (classes[0] if isinstance(classes, list) and classes else None)
    num_classes, labels, stated = (folder.get(k) for k in ("num_classes", "label_names", "pretrained_cfg"))
    fields = (
        {k: v for k, v in stated.items() if k in Preprocess.model_fields} if isinstance(stated, dict) else {}
    )
    preprocess = None
    with suppress(ValidationError):
        preprocess = Preprocess.model_validate_json(json.dumps(fields))
    return ModelIdentity(
        name=str(name) if name else None,
        num_classes=num_classes if isinstance(num_classes, int) else None,
        labels=tuple(str(label) for label in labels) if isinstance(labels, list) else (),
        preprocess=preprocess,
    )


def _hint(file: str, folder: Mapping[str, object]) -> str:
    kind = str(folder.get("model_type"))
    if kind in REFUSED:
        return f"models of type `{kind}` are not supported: {REFUSED[kind]}"
    trained = folder.get("architectures")
    covered = next((f.covers for f in FAMILIES.values() if f.matches({"model_type": kind})), None)
    if covered is not None and isinstance(trained, list):
        return f"its `config.json` is for {', '.join(map(str, trained))}; hydractl supports {covered}"
    if folder:
        return f"the model family in its `config.json` is not supported (supported: {', '.join(FAMILIES)})"
    return f"it does not name its architecture; give it: `hydractl score {shlex.quote(str(file))} --arch NAME ...`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Totals of several tensors.

    Attributes:
        tensors: Number of tensors.
        parameters: Number of elements.
        size_bytes: Size in bytes.
    """

    tensors: int
    parameters: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """A tensor in the header.

    Attributes:
        part: Part of the model that contains the tensor.
        fate: Fate of the tensor in `fuse`. `None` unless the file is a hydra.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    part: str
    fate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """Properties of a hydra.

    Attributes:
        members: File names of the members, or `member 0`, ... if the lineage does not record names.
        trunk: Number of leading blocks that run once for all members.
        mlp: `merge` or `keep`.
        merge_trunk: Differing tensors before this block of each tower are averaged; 0 for no averaging.
        amounts: Totals by part and fate.
        apart_bytes: Size of the separate members in bytes.
    """

    members: tuple[str, ...]
    trunk: int
    mlp: str
    merge_trunk: int
    amounts: dict[str, dict[str, Tally]]
    apart_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Predictions of a row on a data set, from `eval --save-predictions`."""

    row: str
    data: str
    members: int
    samples: int
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPredictions:
    """Contents of a predictions file.

    Attributes:
        log_probs: An entry per row and data set.
        labels: Number of labels of each labelled data set.
    """

    log_probs: tuple[Predicted, ...]
    labels: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport(TemperatureFields):
    """Contents of a checkpoint's header.

    Attributes:
        file: Path as typed.
        kind: `base`, `member`, `hydra`, `predictions`, or `foreign` for files that hydractl did not write.
        model: The model.
        label_thresholds: Probability above which each label is predicted; empty if not stored.
        threshold: Stored threshold, or `None`.
        known_test: Stored bound of known inputs, or `None`.
        prediction_sets: Stored prediction sets, or `None`.
        fitted: Stored feature-based OOD scores, or `None`.
        beside_bytes: Size of the stored OOD scores in bytes.
        beside_macs: Multiply-accumulates of the stored OOD scores per sample.
        total: Totals of all tensors.
        dtypes: Totals by safetensors dtype.
        parts: Totals by part of the model.
        fused: Properties of a hydra.
        predictions: Contents of a file from `eval --save-predictions`.
        lineage: Step that wrote the file.
        metadata: Other metadata of the safetensors header.
        listing: All tensors, with `--tensors`.
        hint: Next command to type, for a foreign file.
    """

    file: str
    kind: str
    model: ModelIdentity
    label_thresholds: tuple[float, ...]
    threshold: Threshold | None
    known_test: KnownTest | None
    prediction_sets: PredictionSets | None
    fitted: FittedScores | None
    beside_bytes: int
    beside_macs: int
    total: Tally
    dtypes: dict[str, Tally]
    parts: dict[str, Tally]
    fused: Fused | None
    predictions: SavedPredictions | None
    lineage: Step | None
    metadata: dict[str, str]
    listing: tuple[TensorLine, ...] | None
    hint: str | None
    paths: ClassVar[tuple[Path, ...]] = ()


def describe_checkpoint(
    file: str, checkpoint: Checkpoint, located: Located, *, lists_tensors: bool
) -> CheckpointReport:
    """Describe a checkpoint without reading tensors, from its header or the configuration in its folder.

    The configuration is used for files that hydractl did not write.

    Args:
        file: Path as typed.
        checkpoint: The checkpoint.
        located: Files of the model.
        lists_tensors: Whether the report lists all tensors.

    Raises:
        CheckpointError: If the file and its fuse plan have different tensor names.
    """
    header, folder = checkpoint.header, located.config or {}
    if header is None:
        model, family, hint = _of_folder(file, folder, located.path, checkpoint.specs)
    else:
        model, hint = identity_of(header, masks=header.masks), None
        family = FAMILIES.get(header.architecture.family)
    fates = header.plan.fates if header and header.plan else {}
    if header and header.plan and (astray := checkpoint.specs.keys() ^ fates.keys()):
        raise CheckpointError(
            f"{file}: tensor `{min(astray)}` exists in only one of the file and its fuse plan",
            hint=f"{EDITED}; fuse the members again",
        )
    lines = tuple(
        TensorLine(
            name=name,
            dtype=spec.dtype,
            shape=spec.shape,
            size_bytes=spec.size_bytes,
            part=_part(family, name, stored_by_library=header is None),
            fate=fates[name].value if fates else None,
        )
        for name, spec in sorted(checkpoint.specs.items())
    )
    ordered = sorted(lines, key=lambda line: (*PART_ORDER, line.part).index(line.part))
    predictions = None if header or folder else _predictions(checkpoint.specs)
    return CheckpointReport(
        file=file,
        kind=header.kind.value if header else PREDICTIONS if predictions else FOREIGN,
        model=model,
        **(header.scale if header else Temperature()).fields,
        label_thresholds=header.label_thresholds if header else (),
        threshold=header.threshold if header else None,
        known_test=header.known_test if header else None,
        prediction_sets=header.prediction_sets if header else None,
        fitted=header.fitted if header else None,
        beside_bytes=sum(spec.size_bytes for spec in checkpoint.beside.values()),
        beside_macs=sum(prod(spec.shape) for spec in checkpoint.beside.values() if len(spec.shape) > 1),
        total=_tally(lines),
        dtypes=_tallies(lines, lambda line: line.dtype),
        parts=_tallies(ordered, lambda line: line.part),
        fused=_fused(header, header.plan, ordered) if header and header.plan else None,
        predictions=predictions,
        lineage=header.made_by if header else None,
        metadata={k: v for k, v in sorted(checkpoint.metadata.items()) if k not in {METADATA_KEY, "format"}},
        listing=lines if lists_tensors else None,
        hint=None if predictions else hint,
    )


def _predictions(specs: Mapping[str, TensorSpec]) -> SavedPredictions | None:
    """Describe a file of `eval --save-predictions` from its tensor names and shapes.

    Tensors of such a file are `log_probs/ROW/DATA` (M, N, C), `logsumexp/ROW/DATA` (M, N) and `labels/DATA`
    (N,).

    Returns:
        None if there is any other tensor, or no `log_probs`.
    """
    log_probs, labels = [], {}
    for name, spec in sorted(specs.items()):
        match name.split("/"), spec.shape:
            case [["log_probs", row, data], [members, samples, classes]]:
                log_probs.append(
                    Predicted(row=row, data=data, members=members, samples=samples, classes=classes)
                )
            case [["logsumexp", _, _], [_, _]]:
                pass  # stored for scores that need logits
            case [["labels", data], [samples]]:
                labels[data] = samples
            case _:
                return None
    return SavedPredictions(log_probs=tuple(log_probs), labels=labels) if log_probs else None


def _part(family: Family | None, name: str, *, stored_by_library: bool) -> str:
    """Return the part of the model that contains a tensor."""
    if family is None:
        # unknown family: up to three levels of the name, without layer indices
        levels = ["*" if part.isdecimal() else part for part in name.split(".")]
        return ".".join(levels[: max(1, min(3, len(levels) - 1))])
    return (position_on_disk if stored_by_library else position_of)(family, name).part


def _fused(header: Header, plan: FusePlan, lines: Sequence[TensorLine]) -> Fused:
    sizes = {fate: sum(line.size_bytes for line in lines if line.fate == fate) for fate in Fate}
    return Fused(
        members=member_names(header),
        trunk=plan.trunk,
        mlp=plan.mlp,
        merge_trunk=plan.merge_trunk,
        amounts={
            part: _tallies([line for line in lines if line.part == part], lambda line: line.fate or "")
            for part in dict.fromkeys(line.part for line in lines)
        },
        apart_bytes=sizes.pop(Fate.GROUPED) + len(header.masks) * sum(sizes.values()),
    )


def _tallies(lines: Sequence[TensorLine], key: Callable[[TensorLine], str]) -> dict[str, Tally]:
    groups: dict[str, list[TensorLine]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return {name: _tally(group) for name, group in groups.items()}


def _tally(lines: Sequence[TensorLine]) -> Tally:
    return Tally(
        tensors=len(lines),
        parameters=sum(prod(line.shape) for line in lines),
        size_bytes=sum(line.size_bytes for line in lines),
    )


def open_any(path: Path) -> Checkpoint | Document:
    """Open a checkpoint, or read a JSON document of hydractl.

    A stream is read to its end, because the writing program would otherwise fail with a broken pipe. Of a
    streamed checkpoint only the header is stored.

    Args:
        path: A file, a FIFO, or `-` for standard input.

    Raises:
        CheckpointError: If the file is a malformed checkpoint, or a pickle.
        ManifestError: If the file is JSON but not a valid document of hydractl.
        InputError: If the file has another format, or cannot be read.
    """
    try:
        with open_binary(path) as source:
            begin = read_exactly(source, 8)
            # safetensors begins with 8 bytes for the header's length, of which the last are 0; JSON has no
            # zero byte
            if b"\0" in begin:
                return _checkpoint(path, begin, source)
            return _document(str(path), _text(str(path), begin, source))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _checkpoint(path: Path, begin: bytes, source: BinaryIO) -> Checkpoint:
    if not is_stream(path):
        return Checkpoint.open(path)
    length = min(int.from_bytes(begin, "little"), MAX_BYTES)
    folder = ScratchFolder()
    hollow = folder.path / "header.safetensors"
    with folder.file(hollow.name) as file:
        size = file.write(begin) + file.write(read_exactly(source, length))
        while piece := source.read(CHUNK_BYTES):
            size += len(piece)
        file.truncate(size)
    try:
        return Checkpoint.open(path, shards=[hollow])
    except CheckpointError as error:
        raise CheckpointError(error.message.replace(str(hollow), str(path)), hint=error.hint) from error


def _text(place: str, begin: bytes, source: BinaryIO) -> str:
    if not begin:
        raise InputError(f"{place}: is empty", hint="check whether the command that writes it failed")
    if begin.startswith(PICKLE_STARTS):
        raise CheckpointError(
            f"{place}: is a pickle or an archive, but hydractl reads only safetensors",
            hint="convert it to a base: `hydractl import WEIGHTS --arch NAME -o base.st`",
        )
    if begin.lstrip(TEXT_STARTS)[:1] not in {b"{", b""}:
        raise InputError(
            f"{place}: is neither a safetensors file nor a JSON file of hydractl",
            hint="give a checkpoint, scores, a head mask or a report",
        )
    try:
        return (begin + read_limited(source)).decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{place}: is not UTF-8 text") from error
    except NotJSONError as error:
        raise ManifestError(f"{place}: {error}") from error


def _document(place: str, text: str) -> Document:
    try:
        raw = parse(text, keys_once=True)
    except NotJSONError as error:
        raise ManifestError(f"{place}: is not JSON: {error}") from error
    classes_by_schema = {cls.schema_name(): cls for cls in DOCUMENTS.values()}
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, str) or schema not in classes_by_schema:
        raise ManifestError(
            f"{place}: has the unknown schema {json.dumps(schema)}",
            hint=f"known schemas: {', '.join(f'`{name}`' for name in classes_by_schema)}; {UPGRADE}",
        )
    return classes_by_schema[schema].from_json(text, place=place)
