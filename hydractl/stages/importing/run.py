"""import: weights that a training script saved become a base of ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hydractl.checkpoint import write_tensors
from hydractl.errors import CheckpointError, UnsupportedModelError, UsageError
from hydractl.families.base import DEFAULT_POOLING, Described, Family, with_pooling
from hydractl.families.classifier import CLASSES, drawn_for, resized
from hydractl.families.model_folder import answer_problem
from hydractl.families.registry import (
    FAMILIES,
    base_header,
    describe_folder,
    described_as,
    expected_specs,
    family_for_name,
)
from hydractl.heads.budget import total_heads
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.header import Header, InputFile, Step, Tokenization
from hydractl.messages import counted, quoted
from hydractl.model_source import folder_config, folder_files
from hydractl.output.locks import OutputLock
from hydractl.processes.distributed import require_one_process
from hydractl.progress import SILENT, Progress
from hydractl.runtime import digest_files
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.match_keys import (
    MatchedTensors,
    OtherClassesError,
    TrainedHeadError,
    fit,
    fit_encoder,
)
from hydractl.stages.importing.read import Weights, files_of, read_weights
from hydractl.stages.importing.resolve import Resolved, resolve, with_images
from hydractl.stages.shared.finite import check_finite
from hydractl.stages.shared.image_preprocessing import check_takes, override_preprocessing
from hydractl.stages.shared.output_record import make_step
from hydractl.stages.shared.outputs import check_models, claim
from hydractl.stages.shared.zero_shot_classes import POOLED, read_names
from hydractl.tensor_spec import spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What `import` found and made of it; `wrapper`, `prefix`, `left_out` and `converted` as in the stage's parts."""

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
        """The files written."""
        return (self.path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReports:
    """What `import` made of several files."""

    imports: tuple[ImportReport, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return tuple(report.path for report in self.imports)


def run_import(config: ImportConfig, progress: Progress = SILENT) -> ImportReport:
    """Import the weights of one file.

    Memory holds them once at most: those of an uncompressed archive stay on disk until they are written.

    Raises:
        CheckpointError: If the file is no file of weights, needs code to be read, or does not fit the architecture.
        UnsupportedModelError: If heads cannot be cut in the architecture.
        OutputExists: If the output is there already.
    """
    require_one_process("import")
    with claim(config, [config.out], progress) as output_lock:
        return _run(config, output_lock, progress)


def _run(config: ImportConfig, output_lock: OutputLock, progress: Progress) -> ImportReport:
    files = files_of(config.source)
    labels, listed = ((), None) if config.labels is None else read_names(config.labels, option="--labels")
    check_models([config.out], output_lock, files=[*files, *_beside(config), listed])
    progress.step(f"Reading {config.source}")
    weights = _renamed(config, read_weights(files, ema=config.ema, key=config.weights_key))
    resolved = resolve(config, weights.metadata)
    if resolved.from_file:
        progress.step(f"{config.source} says: {', '.join(resolved.from_file)}")
    described = _described(config, resolved, len(labels) or None)
    family = FAMILIES[described.architecture.family]
    where = config.arch or resolved.name
    if problem := answer_problem({}, described.architecture.num_classes):
        raise UnsupportedModelError(
            f"{where}: {problem}",
            hint="`--num-classes N --head-seed 0` draws a classifier for N classes in its place, which `finetune` trains",
        )
    header = with_images(base_header(described), resolved.images, where=config.source)
    header = override_preprocessing(header, config.images, where=where)
    check_takes(header, where=where)
    if labels:
        header = _labelled(header, labels)
    fitted = _fitted(
        config, weights, header, draws_classifier=bool(described.lacks) or config.head_seed is not None
    )
    check_finite(fitted.tensors, where=config.source)
    _tell(progress, config, weights, fitted, header)
    step = _step(config, files, family, header, weights, fitted)
    progress.step(f"Writing {config.out}")
    header = header.model_copy(update={"made_by": step})
    with publish_models(output_lock) as begin:
        write_tensors(begin(config.out, header), fitted.tensors, header=header)
    return _report(config, header, weights, fitted)


def _renamed(config: ImportConfig, weights: Weights) -> Weights:
    """Return weights under the names that `--rename` gives them.

    Raises:
        UsageError: If a name is not there, or two tensors would have one name.
    """
    tensors = weights.tensors
    for old, new in config.rename:
        names = {name: new + name.removeprefix(old) for name in tensors if f"{name}.".startswith(f"{old}.")}
        if not names:
            raise UsageError(
                f"`--rename {old}={new}`: {config.source} has no tensor whose name begins with `{old}.`",
                hint=f"its tensors begin with {quoted(sorted({n.partition('.')[0] for n in tensors}), most=5)}",
            )
        if twice := tensors.keys() & names.values() - names.keys():
            raise UsageError(f"`--rename {old}={new}`: {config.source} has `{min(twice)}` too")
        tensors = {names.get(name, name): tensor for name, tensor in tensors.items()}
    return replace(weights, tensors=tensors)


def _fitted(
    config: ImportConfig, weights: Weights, header: Header, *, draws_classifier: bool
) -> MatchedTensors:
    """Return the tensors under the architecture's names, the classifier drawn if it is to be, or if there is none."""
    architecture, where = header.architecture, config.source
    family = FAMILIES[architecture.family]
    expected = expected_specs(family, header)
    if config.head_seed is not None and header.prompting is not None:
        raise UsageError(f"`--head-seed`: `{architecture.name}` has no classifier", hint="leave it out")
    if draws_classifier:
        fitted = fit_encoder(weights.tensors, expected, header=header, where=where, new=True)
    else:
        try:
            return fit(weights.tensors, expected, family=family, architecture=architecture, where=where)
        except OtherClassesError as error:
            raise CheckpointError(error.message, hint=_classes_hint(config, error)) from error
        except CheckpointError as error:
            if header.prompting is not None:
                raise
            try:
                fitted = fit_encoder(weights.tensors, expected, header=header, where=where, new=False)
            except TrainedHeadError:
                raise
            except CheckpointError:  # what kept the whole from fitting says more
                raise error from None
            if config.num_classes is None and config.labels is None:
                raise
    kept_specs = {name: spec_of(tensor) for name, tensor in fitted.tensors.items()}
    fresh = drawn_for(family, architecture, expected, kept_specs, seed=config.head_seed or 0)
    return replace(fitted, tensors=fitted.tensors | fresh, drawn_names=tuple(fresh))


def _labelled(header: Header, labels: tuple[str, ...]) -> Header:
    """Return a header with names of its classes.

    Raises:
        UsageError: If there are more or fewer than classes.
    """
    number = header.architecture.num_classes
    if len(labels) != number:
        raise UsageError(
            f"`--labels`: {counted(len(labels), 'name')} for {counted(number, 'class', 'classes')}",
            hint=f"give {counted(number, 'label')}, one a class",
        )
    return header.model_copy(update={"labels": labels})


def _beside(config: ImportConfig) -> list[Path]:
    """Return the files that are read besides weights: an index, those that say the architecture, a tokenizer."""
    folders = [path for path in (config.folder, config.tokenizer) if path is not None and path.is_dir()]
    tokenizer = [] if config.tokenizer is None else [config.tokenizer]
    return [
        Path(config.source),
        *tokenizer,
        *(path for folder in folders for path in folder_files(folder)),
    ]


def _described(config: ImportConfig, resolved: Resolved, labels: int | None) -> Described:
    """Describe the architecture; as many classes as `labels` where nothing else says how many."""
    num_classes = config.num_classes or labels
    if config.folder is not None:
        try:
            library_config = folder_config(config.folder)
            described = describe_folder(config.folder, library_config, {}, backbone=num_classes is not None)
            return _with_classes(config, described, num_classes)
        except (CheckpointError, UnsupportedModelError) as error:
            if config.way_out is None:
                raise
            raise type(error)(
                error.message, hint="; ".join(filter(None, (error.hint, config.way_out)))
            ) from error
    name, options = resolved.name, dict(resolved.options)
    family = family_for_name(name)
    key = CLASSES[family.library]
    if config.num_classes is not None and options.get(key, config.num_classes) != config.num_classes:
        raise UsageError(
            f"`--num-classes {config.num_classes}` and `{key}={options[key]}` of `--arch` differ"
        )
    if num_classes is not None and key not in options:
        options[key] = num_classes
    described = _pooled(config, described_as(name, options))
    if described.prompting is not None and (config.num_classes or labels):
        raise UsageError(
            f"`{name}` has no classes of its own: texts name them", hint="drop `--num-classes` and `--labels`"
        )
    if config.tokenizer is None:
        return described
    if not isinstance(described.preprocess, Tokenization) and described.prompting is None:
        raise UsageError(f"`--tokenizer` is for texts, which `{name}` does not read")
    return _pooled(config, described_as(name, options | {"tokenizer": str(config.tokenizer)}))


def _with_classes(config: ImportConfig, described: Described, number: int | None) -> Described:
    """Return what a folder describes, with another number of classes where one was asked for."""
    if described.lacks and number is None:
        raise CheckpointError(
            f"{config.folder}: {described.lacks}",
            hint="add `--num-classes N` or `--labels a,b,c` for a classifier that is drawn anew",
        )
    if number is None or described.prompting is not None:
        return _pooled(config, described)
    architecture = described.architecture
    if number != architecture.num_classes:
        library = FAMILIES[architecture.family].library
        described = replace(described, architecture=resized(architecture, number, library), labels=())
    return _pooled(config, described)


def _pooled(config: ImportConfig, described: Described) -> Described:
    """Return what is described, its classifier reading what was asked for, or what the folder says."""
    architecture, pooling = described.architecture, config.pooling or described.pools
    if pooling is None:
        return described
    if pooling != DEFAULT_POOLING and (
        described.prompting is not None or not isinstance(described.preprocess, Tokenization)
    ):
        raise UsageError(
            f"`--pooling {pooling}` is for texts, which `{architecture.name}` does not read",
            hint="leave it out",
        )
    return replace(described, architecture=with_pooling(architecture, pooling))


def _classes_hint(config: ImportConfig, error: OtherClassesError) -> str | None:
    """Return what to type where the weights' classifier is of another size."""
    if config.folder is not None:
        return (
            f"add `--num-classes {error.number}`, correct config.json in {config.folder}, or add `--head-seed 0` for a new "
            "classifier"
        )
    if config.labels is not None and config.num_classes is None:
        return f"give {counted(error.number, 'label')}: `--labels` has one name a class"
    return f"{error.hint}, or `--head-seed 0` for a new classifier"


def _tell(
    progress: Progress, config: ImportConfig, weights: Weights, fitted: MatchedTensors, header: Header
) -> None:
    """Say what was decided that the user may have wanted otherwise."""
    if weights.ema is not None:
        progress.warn(
            f"{config.source}: has a moving average of the weights too (`{weights.ema}`); `--ema` takes it"
        )
    if fitted.converted is not None:
        progress.warn(
            f"{config.source}: its tensors have other names; {fitted.converted}'s own conversion was used"
        )
    if fitted.left_out:
        progress.warn(
            f"{config.source}: left out {counted(len(fitted.left_out), 'tensor')} beside `{fitted.prefix}`, "
            f"for example `{fitted.left_out[0]}`"
        )
    if config.pooling is None and header.architecture.pooling is not None and config.folder is not None:
        progress.step(POOLED.format(pooling=header.architecture.pooling))
    if fitted.drawn_names:
        number = counted(header.architecture.num_classes, "class", "classes")
        progress.step(f"A new classifier for {number}, drawn: {quoted(fitted.drawn_names)}")
    if header.assumed:
        progress.warn(
            f"{config.folder}: no file says how its images are read; stored is what is usual for such models "
            "(`--img-size`, `--mean` and `--std` say otherwise)"
        )
    if isinstance(header.preprocess, Tokenization) and header.preprocess.tokenizer is None:
        progress.warn(
            "the base has no tokenizer, so it reads token numbers alone; `--tokenizer PATH` adds one"
        )


def _step(
    config: ImportConfig,
    files: tuple[Path, ...],
    family: Family,
    header: Header,
    weights: Weights,
    fitted: MatchedTensors,
) -> Step:
    return make_step(
        config,
        family=family,
        options={
            "arch": header.architecture.name,
            "num_classes": config.num_classes,
            "head_seed": config.head_seed,
            "pooling": config.pooling,
            "ema": config.ema,
            "weights_key": config.weights_key,
            "rename": tuple("=".join(pair) for pair in config.rename) or None,
            **config.images.options(),
        },
        inputs=[InputFile(name=Path(config.source).name, sha256=digest_files(files))],
        results={"wrapper": weights.wrapper, "prefix": fitted.prefix, "converted": fitted.converted},
    )


def _report(config: ImportConfig, header: Header, weights: Weights, fitted: MatchedTensors) -> ImportReport:
    architecture = header.architecture
    return ImportReport(
        path=config.out,
        architecture=architecture.name,
        num_classes=architecture.num_classes,
        heads=total_heads(architecture.towers),
        tensors=len(fitted.tensors),
        parameters=sum(tensor.numel() for tensor in fitted.tensors.values()),
        size_bytes=sum(tensor.numel() * tensor.element_size() for tensor in fitted.tensors.values()),
        wrapper=weights.wrapper,
        prefix=fitted.prefix,
        left_out=fitted.left_out,
        converted=fitted.converted,
    )
