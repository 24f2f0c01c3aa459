"""import: convert the weights of a training script to a base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl import progress
from hydractl.checkpoint import write_tensors
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.base import ModelDescription
from hydractl.families.finite import check_finite
from hydractl.families.registry import FAMILIES, base_header
from hydractl.heads.budget import total_heads
from hydractl.importing.architecture import describe, resolve, with_preprocessing
from hydractl.importing.tensor_names import MatchedTensors, OtherClassesError, match_tensors
from hydractl.importing.weights import Weights, read_weights, rename_tensors, weight_files
from hydractl.manifest.header import Header, InputFile, Tokenization
from hydractl.messages import counted, quoted
from hydractl.model_source import folder_files, parse_arch
from hydractl.prediction.class_names import POOLED, read_names
from hydractl.processes.distributed import require_one_process
from hydractl.progress import stage
from hydractl.provenance.output import Output, make_step
from hydractl.runtime import digest_files
from hydractl.stages.importing.config import ImportConfig

SETS_HEADS = {"num_heads", "embed_dim"}
"""Options of `--arch` that determine the number of heads. The shapes of tensors do not show this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Result of `import`.

    Attributes:
        path: Written file.
        architecture: Name of the architecture.
        num_classes: Number of classes; 0 for a zero-shot model.
        heads: Number of attention heads.
        tensors: Number of tensors.
        parameters: Number of elements of all tensors.
        size_bytes: Size of the tensors in bytes.
        wrapper: Keys above the state dict; see `Weights`.
        prefix: Prefix stripped from tensor names.
        left_out: Names of ignored tensors.
        converted: Library that converted the names; None without conversion.
    """

    path: Path
    architecture: str
    num_classes: int
    heads: int
    tensors: int
    parameters: int
    size_bytes: int
    wrapper: str
    prefix: str
    left_out: tuple[str, ...]
    converted: str | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return (self.path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReports:
    """Results of `import` for several files."""

    imports: tuple[ImportReport, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return tuple(report.path for report in self.imports)


@stage
def run_import(config: ImportConfig) -> ImportReport:
    """Import the weights of a single file.

    Memory contains the weights at most once. Weights of an uncompressed archive stay on disk until they are
    written.

    Raises:
        CheckpointError: If the file does not contain weights, cannot be read without running code, or does
            not fit the architecture.
        UnsupportedModelError: If heads of the architecture cannot be pruned.
        UsageError: If an option contradicts the file or another option.
        OutputExists: If the output already exists.
    """
    require_one_process("import")
    with Output.claim(config, [config.out]) as output:
        files = weight_files(config.source)
        labels, label_file = (
            ((), None) if config.labels is None else read_names(config.labels, option="--labels")
        )
        output.check(config.out, files=[*files, *_files_beside(config), label_file], folders=True)
        progress.step(f"Reading {config.source}")
        weights = read_weights(files, ema=config.ema, key=config.weights_key)
        weights = rename_tensors(weights, config.rename, place=config.source)
        image_options = config.images.options()
        resolved = resolve(
            config.arch,
            weights.metadata,
            place=config.source,
            image_options=image_options,
            sets_classes=config.num_classes is not None or config.labels is not None,
        )
        if resolved.from_file:
            progress.step(f"{config.source} says: {', '.join(resolved.from_file)}")
        described = describe(
            resolved,
            num_classes=config.num_classes,
            label_count=len(labels) or None,
            tokenizer=config.tokenizer,
            pooling=config.pooling,
        )
        header = with_preprocessing(base_header(described), resolved, image_options, place=config.source)
        header = _labelled(header, labels)
        fitted = _match(config, weights, header, described)
        check_finite(fitted.tensors, place=config.source)
        _report(config, weights, fitted, header)
        step = make_step(
            config,
            family=FAMILIES[header.architecture.family],
            options={
                "arch": config.arch or header.architecture.name,
                "num_classes": config.num_classes,
                "head_seed": config.head_seed,
                "pooling": config.pooling,
                "ema": config.ema,
                "weights_key": config.weights_key,
                "rename": tuple("=".join(pair) for pair in config.rename) or None,
                **image_options,
            },
            inputs=[InputFile(name=Path(config.source).name, sha256=digest_files(files))],
            results={"wrapper": weights.wrapper, "prefix": fitted.prefix, "converted": fitted.converted},
        )
        header = header.model_copy(update={"made_by": step})
        progress.step(f"Writing {config.out}")
        with output.publish() as begin:
            write_tensors(begin(config.out, header), fitted.tensors, header=header)
        return ImportReport(
            path=config.out,
            architecture=header.architecture.name,
            num_classes=header.architecture.num_classes,
            heads=total_heads(header.architecture.towers),
            tensors=len(fitted.tensors),
            parameters=sum(tensor.numel() for tensor in fitted.tensors.values()),
            size_bytes=sum(tensor.numel() * tensor.element_size() for tensor in fitted.tensors.values()),
            wrapper=weights.wrapper,
            prefix=fitted.prefix,
            left_out=fitted.left_out,
            converted=fitted.converted,
        )


def _files_beside(config: ImportConfig) -> list[Path]:
    """Return other input files: an index, the configuration in a folder, a tokenizer."""
    folders = [path for path in (config.folder, config.tokenizer) if path is not None and path.is_dir()]
    return [
        Path(config.source),
        *([] if config.tokenizer is None else [config.tokenizer]),
        *(path for folder in folders for path in folder_files(folder)),
    ]


def _labelled(header: Header, labels: tuple[str, ...]) -> Header:
    number = header.architecture.num_classes
    if labels and len(labels) != number:
        raise UsageError(
            f"`--labels`: got {counted(len(labels), 'name')} for {counted(number, 'class', 'classes')}",
            hint=f"give {counted(number, 'label')}, one per class",
        )
    return header.model_copy(update={"labels": labels}) if labels else header


def _match(
    config: ImportConfig, weights: Weights, header: Header, described: ModelDescription
) -> MatchedTensors:
    if config.head_seed is not None and header.prompting is not None:
        raise UsageError(
            f"`--head-seed`: `{header.architecture.name}` has no classifier", hint="leave it out"
        )
    try:
        return match_tensors(
            weights.tensors,
            header,
            place=config.source,
            new_classifier=bool(described.lacks) or config.head_seed is not None,
            may_add_classifier=config.num_classes is not None or config.labels is not None,
            seed=config.head_seed or 0,
        )
    except OtherClassesError as error:
        raise CheckpointError(error.message, hint=_classes_hint(config, error)) from error


def _classes_hint(config: ImportConfig, error: OtherClassesError) -> str | None:
    """Return the hint for a classifier with another number of classes."""
    if config.folder is not None:
        return (
            f"add `--num-classes {error.number}`, correct config.json in {config.folder}, or add `--head-seed 0` for a new "
            "classifier"
        )
    if config.labels is not None and config.num_classes is None and error.number > 1:
        return f"give {counted(error.number, 'label')}: `--labels` needs one name per class"
    return f"{error.hint}, or `--head-seed 0` for a new classifier"


def _report(config: ImportConfig, weights: Weights, fitted: MatchedTensors, header: Header) -> None:
    if weights.ema is not None:
        progress.warn(
            f"{config.source}: also has an exponential moving average of the weights "
            f"(`{weights.ema}`); add `--ema` to import it"
        )
    if fitted.converted is not None:
        progress.warn(
            f"{config.source}: its tensors have other names, which {fitted.converted} itself converted"
        )
    if fitted.left_out:
        progress.warn(
            f"{config.source}: ignored {counted(len(fitted.left_out), 'tensor')} outside "
            f"`{fitted.prefix}`, for example `{fitted.left_out[0]}`"
        )
    if config.pooling is None and header.architecture.pooling is not None and config.folder is not None:
        progress.step(POOLED.format(pooling=header.architecture.pooling))
    if fitted.drawn_names:
        number = counted(header.architecture.num_classes, "class", "classes")
        progress.step(f"New random classifier for {number}: {quoted(fitted.drawn_names)}")
    if header.assumed and config.folder is not None:
        progress.warn(
            f"{config.folder}: has no image preprocessing; the base stores the usual one of such "
            "models (change it with `--img-size`, `--mean` and `--std`)"
        )
    if config.arch is not None and parse_arch(config.arch)[1].keys() & SETS_HEADS:
        heads = ", ".join(
            f"{tower.num_heads} heads of width {tower.head_dim}"
            for tower in header.architecture.towers.values()
        )
        progress.step(f"By `--arch`, a block has {heads}; weights do not tell their number")
    if isinstance(header.preprocess, Tokenization) and header.preprocess.tokenizer is None:
        progress.warn(
            "the base has no tokenizer, so it reads only token numbers; `--tokenizer PATH` adds one"
        )
