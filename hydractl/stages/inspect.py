"""inspect: say what a file is, from its header alone. Neither tensors nor model libraries are loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hydractl.checkpoint import METADATA_KEY, Checkpoint
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.base import locate as locate_tensor
from hydractl.families.table import FAMILIES
from hydractl.families.transformers_refused import REFUSED
from hydractl.manifest import Fate, Preprocess, Tokenization
from hydractl.progress import SILENT, Progress
from hydractl.runtime import digest_text
from hydractl.source import HUB_ID, locate
from hydractl.stages.inspect_report import (
    Amount,
    CheckpointReport,
    DocumentReport,
    Fused,
    Identity,
    Predicted,
    Predictions,
    TensorLine,
)
from hydractl.stages.sniff import open_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hydractl.checkpoint import TensorSpec
    from hydractl.families.base import Family
    from hydractl.manifest import Header, HeadScores

FOREIGN, PREDICTIONS = "foreign", "predictions"
PARTS = ("embed", "attention", "mlp", "norm", "readout", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig:
    """What to look at.

    Attributes:
        file: A checkpoint, a folder, an index of shards or a JSON file of ours; `-` is standard input.
        tensors: Whether a checkpoint's tensors are listed one by one.
    """

    file: str
    tensors: bool = False

    def __post_init__(self) -> None:
        if self.file.startswith(("arch:", "hf-hub:")):
            raise UsageError(
                f"{self.file}: `inspect` reads local files",
                hint="fetch a Hub model with `hf download ID --local-dir FOLDER` and inspect the folder",
            )


def run_inspect(
    config: InspectConfig,
    progress: Progress = SILENT,  # noqa: ARG001 - every stage takes one
) -> CheckpointReport | DocumentReport:
    """Say what a file is; its content decides, not its name.

    Raises:
        CheckpointError: If a checkpoint is missing or malformed.
        ManifestError: If a JSON file is none of ours, or malformed.
        InputError: If it is neither, or cannot be read.
        UsageError: If `--tensors` is asked of a JSON file.
    """
    path = Path(config.file.removeprefix("local-dir:"))
    is_id = HUB_ID.match(config.file) and path.suffix not in {".st", ".safetensors", ".json"}
    if is_id and not path.exists():
        raise CheckpointError(
            f"{config.file}: no such file or folder",
            hint="if it is a Hub id: `hf download ID --local-dir FOLDER`, then inspect the folder",
        )
    located = locate(config.file)
    if located.path.is_dir():
        opened = Checkpoint.open(located.path, shards=located.weights)
        return _described(config, opened, located.config or {})
    found = open_any(located.path)
    if isinstance(found, Checkpoint):
        return _described(config, found, {})
    if config.tensors:
        raise UsageError(f"{config.file}: is a {found.kind_of_file} file; `--tensors` is for checkpoints")
    return DocumentReport(file=config.file, kind=found.kind_of_file, document=found)


def ranks(scores: HeadScores) -> dict[str, tuple[tuple[int | None, ...], ...]]:
    """Return each head's rank among all heads of all towers, by tower and layer: 1 matters most.

    Equal scores are ranked by tower, layer and head. A greedy method ranks what it removed, the first to go last;
    the heads that it kept have no rank.
    """
    heads = [
        (-value, (tower, layer, head))
        for tower, table in scores.towers.items()
        for layer, row in enumerate(table.scores)
        for head, value in enumerate(row)
    ]
    rank = {place: i for i, (_, place) in enumerate(sorted(heads), 1)}
    if scores.removals is not None:
        rank = {(r.tower, r.layer, r.head): len(heads) - i for i, r in enumerate(scores.removals)}
    return {
        tower: tuple(
            tuple(rank.get((tower, layer, head)) for head in range(len(row)))
            for layer, row in enumerate(table.scores)
        )
        for tower, table in scores.towers.items()
    }


def _described(
    config: InspectConfig, checkpoint: Checkpoint, folder: Mapping[str, object]
) -> CheckpointReport:
    header = checkpoint.header
    family = FAMILIES.get(header.architecture.family) if header else _family_of_folder(folder)
    fates = header.plan.fates if header and header.plan else {}
    if header and header.plan and (astray := checkpoint.specs.keys() ^ fates.keys()):
        raise CheckpointError(
            f"{config.file}: tensor `{min(astray)}` is in the file or in its fuse plan, but not in both",
            hint="was the file edited? fuse the members again",
        )
    lines = tuple(
        TensorLine(
            name=name,
            dtype=spec.dtype,
            shape=spec.shape,
            size_bytes=spec.size_bytes,
            part=locate_tensor(family, name).part if family else _stem(name),
            fate=fates[name].value if fates else None,
        )
        for name, spec in sorted(checkpoint.specs.items())
    )
    predictions = None if header or folder else _predictions(checkpoint.specs)
    return CheckpointReport(
        file=config.file,
        kind=header.kind.value if header else PREDICTIONS if predictions else FOREIGN,
        model=_stated(header) if header else _guessed(folder),
        total=_amount(lines),
        dtypes=_by(lines, lambda line: line.dtype),
        parts=_by(sorted(lines, key=_place), lambda line: line.part),
        fused=_fused(header, lines) if header else None,
        predictions=predictions,
        lineage=header.made_by if header else None,
        metadata={k: v for k, v in sorted(checkpoint.metadata.items()) if k not in {METADATA_KEY, "format"}},
        listing=lines if config.tensors else None,
        hint=None if header or predictions else _hint(config.file, family, folder),
    )


def _predictions(specs: Mapping[str, TensorSpec]) -> Predictions | None:
    """Read what `eval --save-predictions` wrote off its tensors' names and shapes; None if it is not such a file."""
    log_probs, labels = [], {}
    for name, spec in sorted(specs.items()):
        match name.split("/"), spec.shape:
            case ["log_probs", row, data], [members, samples, classes]:
                log_probs.append(
                    Predicted(row=row, data=data, members=members, samples=samples, classes=classes)
                )
            case ["labels", data], [samples]:
                labels[data] = samples
            case _:
                return None
    return Predictions(log_probs=tuple(log_probs), labels=labels) if log_probs else None


def _stated(header: Header) -> Identity:
    return Identity(
        name=header.architecture.name,
        num_classes=header.architecture.num_classes,
        labels=header.labels,
        architecture=header.architecture,
        preprocess=_shown(header.preprocess),
        masks=header.masks,
        heads_kept=tuple(sum(len(k) for t in mask.values() for k in t.keep) for mask in header.masks),
        heads_total=sum(t.layers * t.num_heads for t in header.architecture.towers.values()),
    )


def _shown(how: Preprocess | Tokenization) -> Preprocess | Tokenization:
    """Return how an item becomes an input, with a tokenizer's digest in the place of its text, which nobody wants to read."""
    if not isinstance(how, Tokenization) or how.tokenizer is None:
        return how
    return how.model_copy(update={"tokenizer": digest_text(how.tokenizer)})


def _guessed(folder: Mapping[str, object]) -> Identity:
    """Read what a library's `config.json` says without the library."""
    classes = folder.get("architectures")
    name = folder.get("architecture") or (classes[0] if isinstance(classes, list) and classes else None)
    num_classes = folder.get("num_classes")
    labels = folder.get("label_names")
    wanted = folder.get("pretrained_cfg")
    given = (
        {k: v for k, v in wanted.items() if k in Preprocess.model_fields} if isinstance(wanted, dict) else {}
    )
    try:
        preprocess = Preprocess.model_validate_json(json.dumps(given))
    except ValidationError:
        preprocess = None
    return Identity(
        name=str(name) if name else None,
        num_classes=num_classes if isinstance(num_classes, int) else None,
        labels=tuple(str(label) for label in labels) if isinstance(labels, list) else (),
        preprocess=preprocess,
    )


def _family_of_folder(folder: Mapping[str, object]) -> Family | None:
    return next((family for family in FAMILIES.values() if family.matches(folder)), None)


def _hint(file: str, family: Family | None, folder: Mapping[str, object]) -> str | None:
    if family is not None:
        return None
    kind = str(folder.get("model_type"))
    if kind in REFUSED:
        return f"models of type `{kind}` are not supported: {REFUSED[kind]}"
    if folder:
        return f"its `config.json` is of no family that this version knows ({', '.join(FAMILIES)})"
    return f"it does not say which architecture it is; say so: `hydractl score {file} --arch NAME ...`"


def _stem(name: str) -> str:
    """Return what a tensor of an unknown family belongs to: its name to three levels, layer numbers left out."""
    levels = ["*" if part.isdecimal() else part for part in name.split(".")]
    return ".".join(levels[: max(1, min(3, len(levels) - 1))])


def _fused(header: Header, lines: tuple[TensorLine, ...]) -> Fused | None:
    plan, count = header.plan, len(header.masks)
    if plan is None:
        return None
    inputs = header.made_by.inputs if header.made_by else ()
    names = tuple(i.name for i in inputs) if len(inputs) == count else ()
    by_part: dict[str, list[TensorLine]] = {}
    for line in sorted(lines, key=_place):
        by_part.setdefault(line.part, []).append(line)
    grouped = sum(line.size_bytes for line in lines if line.fate == Fate.GROUPED)
    stored = sum(line.size_bytes for line in lines)
    return Fused(
        members=names or tuple(f"member {i}" for i in range(count)),
        trunk=plan.trunk,
        mlp=plan.mlp,
        amounts={part: _by(found, lambda line: line.fate or "") for part, found in by_part.items()},
        apart_bytes=grouped + count * (stored - grouped),
    )


def _place(line: TensorLine) -> int:
    """Return where a part stands in a model, so that parts are listed from input to output."""
    return PARTS.index(line.part) if line.part in PARTS else len(PARTS)


def _by(lines: Iterable[TensorLine], key: Callable[[TensorLine], str]) -> dict[str, Amount]:
    found: dict[str, list[TensorLine]] = {}
    for line in lines:
        found.setdefault(key(line), []).append(line)
    return {name: _amount(group) for name, group in found.items()}


def _amount(lines: Sequence[TensorLine]) -> Amount:
    return Amount(
        tensors=len(lines),
        parameters=sum(prod(line.shape) for line in lines),
        size_bytes=sum(line.size_bytes for line in lines),
    )
