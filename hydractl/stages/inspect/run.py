"""inspect: describes a file from its header, or a library's folder from its configuration files.

Reads no tensors. Files need no model library; a folder is read by its library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from hydractl.checkpoint import METADATA_KEY, Checkpoint
from hydractl.errors import EDITED, CheckpointError, UsageError
from hydractl.families.base import Family, place_of, place_on_disk
from hydractl.families.registry import FAMILIES
from hydractl.manifest.document import Document
from hydractl.manifest.guarantees import PredictionSets, Threshold
from hydractl.manifest.head_mask import HeadScores
from hydractl.manifest.header import Fate, FittedScores, Header, Step
from hydractl.manifest.temperature import Temperature, TemperatureFields
from hydractl.model_source import Located
from hydractl.progress import SILENT, Progress
from hydractl.reporting.lineage import member_names
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.identity import ModelIdentity, identity_of, of_folder
from hydractl.stages.inspect.open_any import open_local
from hydractl.stages.shared.mask_selection import order_of
from hydractl.tensor_spec import TensorSpec

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

    @property
    def paths(self) -> tuple[Path, ...]:
        """Nothing is written."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReport:
    """A JSON file of ours: `kind` is `scores`, `head-mask` or `report`; or a folder with a `training-state`."""

    file: str
    kind: str
    document: Document

    @property
    def paths(self) -> tuple[Path, ...]:
        """Nothing is written."""
        return ()


def run_inspect(
    config: InspectConfig,
    progress: Progress = SILENT,  # noqa: ARG001 - every stage takes one
) -> CheckpointReport | DocumentReport:
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


def ranks(scores: HeadScores, *, file: str = "scores") -> dict[str, tuple[tuple[int | None, ...], ...]]:
    """Return each head's rank among all heads of all towers, by tower and layer; 1 is the most important.

    The head that `prune` removes first has the last rank; among equal scores that is the lowest tower, layer and head. A
    greedy method ranks only removed heads.

    Raises:
        ManifestError: If removals include heads without scores; the message names the `file`.
    """
    total = sum(len(row) for table in scores.towers.values() for row in table.scores)
    rank: dict[tuple[str, int, int], int] = {
        head: total - i for i, head in enumerate(order_of(file, scores, scores.towers))
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
            case ["log_probs", row, data], [members, samples, classes]:
                log_probs.append(
                    Predicted(row=row, data=data, members=members, samples=samples, classes=classes)
                )
            case ["logsumexp", _, _], [_, _]:
                pass  # beside the log-probabilities, where a score reads logits
            case ["labels", data], [samples]:
                labels[data] = samples
            case _:
                return None
    return SavedPredictions(log_probs=tuple(log_probs), labels=labels) if log_probs else None


def _part(family: Family | None, name: str, *, ours: bool) -> str:
    """Return what a tensor belongs to; in files that are not ours it has the name that its library gives it on disk."""
    if family is None:
        return _stem(name)
    return (place_of if ours else place_on_disk)(family, name).part


def _stem(name: str) -> str:
    """Return what a tensor of an unknown family belongs to: its name to three levels, layer numbers left out."""
    levels = ["*" if part.isdecimal() else part for part in name.split(".")]
    return ".".join(levels[: max(1, min(3, len(levels) - 1))])


def _fused(header: Header, lines: tuple[TensorLine, ...]) -> Fused | None:
    plan, count = header.plan, len(header.masks)
    if plan is None:
        return None
    by_part = _grouped(sorted(lines, key=_place), lambda line: line.part)
    grouped = sum(line.size_bytes for line in lines if line.fate == Fate.GROUPED)
    stored = sum(line.size_bytes for line in lines)
    return Fused(
        members=member_names(header),
        trunk=plan.trunk,
        mlp=plan.mlp,
        merge_trunk=plan.merge_trunk,
        amounts={part: _by(part_lines, lambda line: line.fate or "") for part, part_lines in by_part.items()},
        apart_bytes=grouped + count * (stored - grouped),
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
