"""inspect: describe a file of any kind, and compare a hydra's members with other files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from pydantic import ValidationError

from hydractl.checkpoint import METADATA_KEY, Checkpoint, ScratchFolder, TensorSpec
from hydractl.errors import (
    EDITED,
    CheckpointError,
    HydraError,
    InputError,
    ManifestError,
    UnsupportedModelError,
    UsageError,
)
from hydractl.families.base import Described, Family, place_of, place_on_disk
from hydractl.families.load import classifier_hint
from hydractl.families.registry import FAMILIES, describe_folder, family_for_config
from hydractl.families.transformers.hf_models import REFUSED
from hydractl.heads.budget import total_heads
from hydractl.heads.masks import total_kept
from hydractl.manifest.document import Document
from hydractl.manifest.guarantees import PredictionSets, Threshold
from hydractl.manifest.head_mask import HeadScores, Mask
from hydractl.manifest.header import (
    Architecture,
    Fate,
    FittedScores,
    Header,
    Preprocess,
    Prompting,
    Step,
    Temperature,
    TemperatureFields,
    Tokenization,
)
from hydractl.manifest.report import DOCUMENTS
from hydractl.model_source import HUB_ID, Located, locate
from hydractl.output.publish import is_stream
from hydractl.progress import stage
from hydractl.pruning.selection import order_of
from hydractl.reporting.lineage import member_names
from hydractl.runtime import CHUNK_BYTES, digest_text
from hydractl.stages.inspect.config import InspectConfig
from hydractl.strict_json import MAX_BYTES, NotJSONError, opened, parse, read_exactly, read_limited
from hydractl.training.resume import NAME, StateFile
from hydractl.version import UPGRADE

PICKLE_STARTS = (b"PK\x03\x04", b"\x80")
TEXT_STARTS = b"\xef\xbb\xbf \t\r\n"


def open_local(file: str) -> tuple[Checkpoint | Document, Located]:
    """Open a file or folder, and say where it was found.

    Raises:
        CheckpointError: If a checkpoint is missing or malformed.
        ManifestError: If a JSON file is none of ours, or malformed.
        InputError: If it is neither, or cannot be read.
    """
    path = Path(file.removeprefix("local-dir:"))
    if HUB_ID.match(file) and path.suffix not in {".st", ".safetensors", ".json"} and not path.exists():
        raise CheckpointError(
            f"{file}: no such file or folder",
            hint="for a Hub id: `hf download ID --local-dir FOLDER`, then inspect the folder",
        )
    if (path / NAME).is_file():
        return StateFile.read(path / NAME), Located(reference=file, path=path, weights=())
    located = locate(file)
    if located.path.is_dir():
        return Checkpoint.open(located.path, shards=located.weights), located
    return open_any(located.path), located


def open_any(path: Path) -> Checkpoint | Document:
    """Open a checkpoint, or read a JSON file of ours.

    A stream is read to its end, so that its writer never meets a closed pipe; of a checkpoint that comes this way
    nothing but the header can be read afterwards.

    Args:
        path: A file, a FIFO, or `-` for standard input.

    Raises:
        CheckpointError: If it is a malformed checkpoint, or a pickle.
        ManifestError: If it is JSON but none of our files, or a malformed one.
        InputError: If it is neither, or cannot be read.
    """
    try:
        with opened(path) as source:
            begin = read_exactly(source, 8)
            if b"\0" in begin:  # the length of a safetensors header; a JSON text holds no zero byte
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


def _text(where: str, begin: bytes, source: BinaryIO) -> str:
    if not begin:
        raise InputError(f"{where}: is empty", hint="check whether the command that writes it failed")
    if begin.startswith(PICKLE_STARTS):
        raise CheckpointError(
            f"{where}: is a pickle or an archive, but hydractl reads only safetensors",
            hint="convert it to a base: `hydractl import WEIGHTS --arch NAME -o base.st`",
        )
    if begin.lstrip(TEXT_STARTS)[:1] not in {b"{", b""}:
        raise InputError(
            f"{where}: is neither a safetensors file nor a JSON file of hydractl",
            hint="give a checkpoint, scores, a head mask or a report",
        )
    try:
        return (begin + read_limited(source)).decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{where}: is not UTF-8 text") from error
    except NotJSONError as error:
        raise ManifestError(f"{where}: {error}") from error


def _document(where: str, text: str) -> Document:
    try:
        raw = parse(text, keys_once=True)
    except NotJSONError as error:
        raise ManifestError(f"{where}: is not JSON: {error}") from error
    classes_by_schema = {cls.schema_name(): cls for cls in DOCUMENTS.values()}
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, str) or schema not in classes_by_schema:
        raise ManifestError(
            f"{where}: has the unknown schema {json.dumps(schema)}",
            hint=f"known schemas: {', '.join(f'`{name}`' for name in classes_by_schema)}; {UPGRADE}",
        )
    return classes_by_schema[schema].from_json(text, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Which model this is, as far as the file says.

    Attributes:
        name: Architecture, or what a folder's `config.json` calls it.
        num_classes: How many.
        labels: Their names.
        architecture: The whole description; None for a foreign file.
        preprocess: How an image or a text becomes an input; of a tokenizer only the digest.
        prompting: Of a zero-shot model, how its classes become texts; likewise.
        tokenizer_size: How many tokens its tokenizer knows, added ones included; the model may know more.
        masks: For each member the kept heads of each tower; empty for a foreign file.
        heads_kept: For each member, over all towers.
        heads_total: Heads of the base.
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


class Foreign(NamedTuple):
    """What a file or folder that hydractl did not write says of its model, and what to type next where that is not enough."""

    identity: ModelIdentity
    family: Family | None = None
    hint: str | None = None


def identity_of(
    described: Header | Described, name: str | None = None, masks: tuple[Mask, ...] = ()
) -> ModelIdentity:
    """Return which model the header of a checkpoint of ours, or a family, says it is.

    Args:
        described: What is said.
        name: What to call the architecture; None for its own name.
        masks: Each member's; none for a model that keeps all of its heads.
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


def of_folder(
    file: str, config: Mapping[str, object], folder: Path, specs: Mapping[str, TensorSpec]
) -> Foreign:
    """Return which model a library's folder holds: as the commands that use it will read it, else as its configuration says.

    Args:
        file: What the user named.
        config: Its `config.json`, empty for a bare file.
        folder: Where it lies.
        specs: Its tensors.
    """
    try:
        family = family_for_config(config, where=file)
    except UnsupportedModelError:
        return Foreign(_guessed(config), None, _hint(file, config))
    try:
        described = describe_folder(folder, config, specs)
    except HydraError as error:
        advice = f"{error.message.removesuffix('.')}; {error.hint}" if error.hint else error.message
        return Foreign(_guessed(config), family, f"other commands cannot use it: {advice}")
    identity = identity_of(described, _guessed(config).name)
    if described.lacks:
        advice = f"{described.lacks}; {classifier_hint(file)}"
        return Foreign(replace(identity, num_classes=None), family, advice)
    assumed = "it has no image preprocessing; the usual one of such models is used"
    return Foreign(identity, family, "; ".join([*described.notes, *[assumed] * described.assumed]) or None)


def _without_tokenizer_text(how: Preprocess | Tokenization) -> Preprocess | Tokenization:
    """Return how an item becomes an input, with a tokenizer's digest in the place of its text, which nobody wants to read."""
    return (
        how
        if not isinstance(how, Tokenization) or how.tokenizer is None
        else how.model_copy(update={"tokenizer": digest_text(how.tokenizer)})
    )


def _tokenizer_size(how: Preprocess | Tokenization, prompting: Prompting | None) -> int | None:
    """Return how many tokens a tokenizer knows, added ones included; None without one, or where its text does not tell."""
    texts = prompting.tokenization if prompting else how
    if not isinstance(texts, Tokenization) or texts.tokenizer is None:
        return None
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # a header says what it likes
        raw = parse(texts.tokenizer)
        vocabulary = raw["model"]["vocab"]  # {token: number}, or [[token, weight], ...]
        tokens = {*vocabulary} if isinstance(vocabulary, dict) else {token for token, _ in vocabulary}
        return len(tokens | {added["content"] for added in raw.get("added_tokens") or ()})
    return None


def _guessed(folder: Mapping[str, object]) -> ModelIdentity:
    """Read what a library's `config.json` says without the library."""
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


FOREIGN, PREDICTIONS = "foreign", "predictions"
PART_ORDER = ("embed", "attention", "mlp", "norm", "readout", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Totals of tensors: number, elements, bytes."""

    tensors: int
    parameters: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """A tensor in the header; `part` is the part of the model that it belongs to, `fate` its fate in `fuse`."""

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
        members: File names of the members, or `member 0`, ... if the lineage does not record them.
        trunk: Number of leading blocks that are computed once.
        mlp: `merge` or `keep`.
        merge_trunk: Block of each tower before which tensors that differ are averaged; 0 for none.
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
    """Predictions of one row on one data set, from `eval --save-predictions`."""

    row: str
    data: str
    members: int
    samples: int
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPredictions:
    """Contents of a predictions file.

    Attributes:
        log_probs: One entry per row and data set.
        labels: Number of labels of each labelled data set.
    """

    log_probs: tuple[Predicted, ...]
    labels: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport(TemperatureFields):
    """Contents of a checkpoint's header.

    Attributes:
        file: Path as typed.
        kind: `base`, `member`, `hydra`, `predictions`, or `foreign` if hydractl did not write it.
        model: Identity of the model.
        label_thresholds: Above which each label is predicted, if stored.
        threshold: Stored threshold, if any.
        prediction_sets: Stored prediction sets, if any.
        fitted: Stored feature-based OOD scores, if any.
        beside_bytes: Size of these in bytes.
        beside_macs: Their multiply-accumulates for one sample.
        total: Totals of all tensors.
        dtypes: Totals by safetensors dtype.
        parts: Totals by part of the model.
        fused: Properties of a hydra.
        predictions: Contents of a file from `eval --save-predictions`.
        lineage: Stages that made the file.
        metadata: Other metadata of the safetensors header.
        listing: All tensors, with `--tensors`.
        hint: What to type next, for a foreign file.
    """

    file: str
    kind: str
    model: ModelIdentity
    label_thresholds: tuple[float, ...]
    threshold: Threshold | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReport:
    """A JSON file of ours: `kind` is `scores`, `head-mask` or `report`; or a folder with a `training-state`."""

    file: str
    kind: str
    document: Document
    paths: ClassVar[tuple[Path, ...]] = ()


@stage
def run_inspect(config: InspectConfig) -> CheckpointReport | DocumentReport:
    """Describe a file by its content, not by its name.

    Raises:
        CheckpointError: If a checkpoint is missing or malformed.
        ManifestError: If a JSON file is not of hydractl, or malformed.
        InputError: If the file is neither, or cannot be read.
        UsageError: If `--tensors` is given for a JSON file.
    """
    opened, located = open_local(config.file)
    if isinstance(opened, Checkpoint):
        return _described(config, opened, located)
    if config.tensors:
        raise UsageError(
            f"{config.file}: is a {opened.kind_of_file} file; `--tensors` is for checkpoints",
            hint="leave it out",
        )
    return DocumentReport(file=config.file, kind=opened.kind_of_file, document=opened)


def ranks(scores: HeadScores) -> dict[str, tuple[tuple[int | None, ...], ...]]:
    """Return each head's rank among all heads of all towers, by tower and layer; 1 is the most important.

    The head that `prune` removes first has the last rank; among equal scores that is the lowest tower, layer and head. A
    greedy method ranks only removed heads.
    """
    total = sum(len(row) for table in scores.towers.values() for row in table.scores)
    rank: dict[tuple[str, int, int], int] = {
        head: total - i for i, head in enumerate(order_of(scores, scores.towers))
    }
    return {
        tower: tuple(
            tuple(rank.get((tower, layer, head)) for head in range(len(row)))
            for layer, row in enumerate(table.scores)
        )
        for tower, table in scores.towers.items()
    }


def _described(config: InspectConfig, checkpoint: Checkpoint, located: Located) -> CheckpointReport:
    folder = located.config or {}
    header = checkpoint.header
    foreign_model = None if header else of_folder(config.file, folder, located.path, checkpoint.specs)
    family = (
        FAMILIES.get(header.architecture.family)
        if header
        else foreign_model.family
        if foreign_model
        else None
    )
    fates = header.plan.fates if header and header.plan else {}
    if header and header.plan and (astray := checkpoint.specs.keys() ^ fates.keys()):
        raise CheckpointError(
            f"{config.file}: tensor `{min(astray)}` exists in only one of the file and its fuse plan",
            hint=f"{EDITED}; fuse the members again",
        )
    lines = tuple(
        TensorLine(
            name=name,
            dtype=spec.dtype,
            shape=spec.shape,
            size_bytes=spec.size_bytes,
            part=_part(family, name, ours=header is not None),
            fate=fates[name].value if fates else None,
        )
        for name, spec in sorted(checkpoint.specs.items())
    )
    predictions = None if header or folder else _predictions(checkpoint.specs)
    return CheckpointReport(
        file=config.file,
        kind=header.kind.value if header else PREDICTIONS if predictions else FOREIGN,
        model=identity_of(header, masks=header.masks)
        if header
        else foreign_model.identity
        if foreign_model
        else ModelIdentity(),
        **(header.scale if header else Temperature()).fields,
        label_thresholds=header.label_thresholds if header else (),
        threshold=header.threshold if header else None,
        prediction_sets=header.prediction_sets if header else None,
        fitted=header.fitted if header else None,
        beside_bytes=sum(spec.size_bytes for spec in checkpoint.beside.values()),
        beside_macs=sum(prod(spec.shape) for spec in checkpoint.beside.values() if len(spec.shape) > 1),
        total=_tally(lines),
        dtypes=_by(lines, lambda line: line.dtype),
        parts=_by(sorted(lines, key=_place), lambda line: line.part),
        fused=_fused(header, lines) if header else None,
        predictions=predictions,
        lineage=header.made_by if header else None,
        metadata={k: v for k, v in sorted(checkpoint.metadata.items()) if k not in {METADATA_KEY, "format"}},
        listing=lines if config.tensors else None,
        hint=None if predictions or foreign_model is None else foreign_model.hint,
    )


def _predictions(specs: Mapping[str, TensorSpec]) -> SavedPredictions | None:
    """Read what `eval --save-predictions` wrote off its tensors' names and shapes; None if it is not such a file."""
    log_probs, labels = [], {}
    for name, spec in sorted(specs.items()):
        match name.split("/"), spec.shape:
            case [["log_probs", row, data], [members, samples, classes]]:
                log_probs.append(
                    Predicted(row=row, data=data, members=members, samples=samples, classes=classes)
                )
            case [["logsumexp", _, _], [_, _]]:
                pass  # beside the log-probabilities, where a score reads logits
            case [["labels", data], [samples]]:
                labels[data] = samples
            case _:
                return None
    return SavedPredictions(log_probs=tuple(log_probs), labels=labels) if log_probs else None


def _part(family: Family | None, name: str, *, ours: bool) -> str:
    """Return what a tensor belongs to; in files that are not ours it has the name that its library gives it on disk."""
    if family is None:
        # up to three levels of the name, without the numbers of layers
        levels = ["*" if part.isdecimal() else part for part in name.split(".")]
        return ".".join(levels[: max(1, min(3, len(levels) - 1))])
    return (place_of if ours else place_on_disk)(family, name).part


def _fused(header: Header, lines: tuple[TensorLine, ...]) -> Fused | None:
    plan, count = header.plan, len(header.masks)
    if plan is None:
        return None
    by_part = _grouped(sorted(lines, key=_place), lambda line: line.part)
    sizes = {fate: sum(line.size_bytes for line in lines if line.fate == fate) for fate in Fate}
    return Fused(
        members=member_names(header),
        trunk=plan.trunk,
        mlp=plan.mlp,
        merge_trunk=plan.merge_trunk,
        amounts={part: _by(part_lines, lambda line: line.fate or "") for part, part_lines in by_part.items()},
        apart_bytes=sizes.pop(Fate.GROUPED) + count * sum(sizes.values()),
    )


def _place(line: TensorLine) -> int:
    """Return where a part stands in a model, so that parts are listed from input to output."""
    return PART_ORDER.index(line.part) if line.part in PART_ORDER else len(PART_ORDER)


def _by(lines: Iterable[TensorLine], key: Callable[[TensorLine], str]) -> dict[str, Tally]:
    return {name: _tally(group) for name, group in _grouped(lines, key).items()}


def _grouped(lines: Iterable[TensorLine], key: Callable[[TensorLine], str]) -> dict[str, list[TensorLine]]:
    groups: dict[str, list[TensorLine]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return groups


def _tally(lines: Sequence[TensorLine]) -> Tally:
    return Tally(
        tensors=len(lines),
        parameters=sum(prod(line.shape) for line in lines),
        size_bytes=sum(line.size_bytes for line in lines),
    )
