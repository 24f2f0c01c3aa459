"""finetune: train a base or a member on labelled data, and write what it was with other weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl import __version__
from hydractl.checkpoint import TORCH_NAMES, write_tensors
from hydractl.data.batches import tensor_cache
from hydractl.data.dataset import open_data
from hydractl.data.labels import align_labels
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.errors import CheckFailed, CheckpointError, DataError, UsageError
from hydractl.families.opening import build_checked, check_tensors, expected_specs, open_model
from hydractl.manifest import InputFile, Kind
from hydractl.progress import SILENT, Progress
from hydractl.publish import check_output, is_stream, publish
from hydractl.runtime import digest_text, pick_device, versions, world_size
from hydractl.stages.lineage import make_step
from hydractl.training.engine import start_engine
from hydractl.training.evaluate import classifier_metrics
from hydractl.training.feed import ImageFeed
from hydractl.training.loop import Job, train
from hydractl.training.parts import reset_head, trainable
from hydractl.training.state import Snapshot, StateFolder

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.data.images import ImageSet
    from hydractl.data.reference import DataRef
    from hydractl.families.opening import OpenModel
    from hydractl.families.tower import Model
    from hydractl.manifest import Header
    from hydractl.training.engine import Engine
    from hydractl.training.loop import Trained
    from hydractl.training.recipes import Recipe

EVAL_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """What to train, on what, how, and where to.

    Attributes:
        model: A base or a member; `arch:NAME` trains from random weights.
        data: Labelled training data.
        val: Labelled validation data.
        out: Output.
        recipe: How to train.
        arch: Architecture of a bare file.
        save_every: Steps between saves of the state; None for every half minute, and for epochs.
        seed: Of random weights, the order of the data, augmentation and dropout.
        device: auto, cpu, cuda, cuda:N or mps.
        force: Replace an existing output, and drop the state of another run.
    """

    model: str
    data: DataRef
    val: DataRef
    out: Path
    recipe: Recipe
    arch: str | None = None
    save_every: int | None = None
    seed: int = 0
    device: str = "auto"
    force: bool = False

    def __post_init__(self) -> None:
        if self.save_every is not None and self.save_every < 1:
            raise UsageError(f"`--save-every {self.save_every}`: must be at least 1")
        if self.model == "-" and world_size() > 1:
            raise UsageError(
                "several processes cannot share standard input", hint="write the model to a file first"
            )

    @property
    def state(self) -> Path | None:
        """Where the state of an unfinished run lies; nowhere for a stream."""
        return None if is_stream(self.out) else self.out.with_name(f"{self.out.name}.state")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneReport:
    """What `finetune` did.

    Attributes:
        path: The output.
        kind: base or member.
        accuracy: On the validation data, of the weights as written, in [0, 1].
        nll: Likewise, in nats.
        lr: The learning rate that validated best.
        step: How many steps the written weights took.
        total_steps: How many were planned.
        trained_parameters: How many parameters trained.
        frozen_parameters: How many did not.
        resumed_from: The step at which the run went on, None if it ran through.
    """

    path: Path
    kind: Kind
    accuracy: float
    nll: float
    lr: float
    step: int
    total_steps: int
    trained_parameters: int
    frozen_parameters: int
    resumed_from: int | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return (self.path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labelled:
    """A data set whose labels are the model's."""

    images: ImageSet
    labels: tuple[int, ...]

    def as_input(self) -> InputFile:
        """Return its lineage entry."""
        return InputFile(name=self.images.name, sha256=self.images.fingerprint())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Everything that is known before anything is computed."""

    config: FinetuneConfig
    opened: OpenModel
    header: Header
    names: tuple[str, ...]
    train: _Labelled
    val: _Labelled
    inputs: tuple[InputFile, ...]


def run_finetune(config: FinetuneConfig, progress: Progress = SILENT) -> FinetuneReport:
    """Train a model and publish it; an interrupted run goes on where its state says.

    Raises:
        InputError: If an input cannot be used; nothing is written then.
        UsageError: If the options do not fit the model, the data or the state of an earlier run.
        CheckFailed: If training diverged.
        OutputExists: If the output is there already.
    """
    work = _prepare(config, progress)
    folder = None if config.state is None else StateFolder(config.state, _fingerprint(work))
    resumes = folder is not None and folder.check(force=config.force)
    start = folder.load() if folder is not None and resumes else Snapshot()
    if resumes:
        progress.step(f"Going on at step {start.position.step}, from {config.state}")
    try:
        with start_engine(config.device, precision=config.recipe.precision) as engine:
            report = _train(work, engine, folder, start, progress)
    except (CheckFailed, DataError):
        # the same would happen again, so there is nothing to go on with
        if folder is not None:
            folder.clear()
        raise
    return report


def _prepare(config: FinetuneConfig, progress: Progress) -> _Work:
    """Check everything that headers and labels can tell."""
    pick_device(config.device)
    opened = open_model(config.model, arch=config.arch, seed=config.seed)
    header = opened.header
    if header.kind == Kind.HYDRA:
        raise CheckpointError(
            f"{config.model}: is a hydra, whose members are fused already",
            hint="fine-tune the members, then fuse them again",
        )
    check_output(config.out, force=config.force, inputs=opened.checkpoint.paths)
    check_tensors(config.model, opened.checkpoint.specs, expected_specs(opened.family, header))
    train_transform(header.preprocess, config.recipe.augment)
    names = _trainable(config, opened)
    training = _labelled(config.data, header, progress)
    header = _with_class_names(header, training.images, training.labels)
    validation = _labelled(config.val, header, progress)
    steps = config.recipe.total_steps(-(-len(training.images) // config.recipe.batch_size))
    progress.step(
        f"Training {opened.name} on {len(training.images)} images for {steps} steps, validating on {len(validation.images)}"
    )
    return _Work(
        config=config,
        opened=opened,
        header=header,
        names=names,
        train=training,
        val=validation,
        inputs=(opened.as_input(), training.as_input(), validation.as_input()),
    )


def _trainable(config: FinetuneConfig, opened: OpenModel) -> tuple[str, ...]:
    """Return the tensors that train, told by the shapes alone."""
    header = opened.header
    state = opened.family.build(header.architecture, header.masks[0], None).library_state()
    with_elements = {n: t for n, t in state.items() if t.numel()}
    return trainable(opened.family, header.architecture, config.recipe, with_elements)


def _labelled(reference: DataRef, header: Header, progress: Progress) -> _Labelled:
    images = open_data(reference, progress=progress)
    if images.labels is None:
        raise DataError(
            f"{images.name}: has no labels", hint="training and validation data need a class for each item"
        )
    labels = align_labels(
        images.class_names,
        images.labels,
        header.labels,
        num_classes=header.architecture.num_classes,
        progress=progress,
    )
    return _Labelled(images=images, labels=labels)


def _with_class_names(header: Header, images: ImageSet, labels: tuple[int, ...]) -> Header:
    """Take over the data's class names where the model has none and every class is named once."""
    position = dict(zip(images.labels or (), labels, strict=True))
    if header.labels or sorted(position.values()) != list(range(header.architecture.num_classes)):
        return header
    names = {position[own]: name for own, name in enumerate(images.class_names) if own in position}
    return header.model_copy(update={"labels": tuple(names[i] for i in sorted(names))})


def _fingerprint(work: _Work) -> str:
    """Return the digest of everything that the result hangs on."""
    told = {
        "recipe": work.config.recipe.options(),
        "seed": work.config.seed,
        "inputs": [(file.name, file.sha256) for file in work.inputs],
        "header": work.header.to_metadata(),
        "versions": {"hydractl": __version__, **versions("torch", work.opened.family.library)},
    }
    return digest_text(json.dumps(told, sort_keys=True))


def _train(
    work: _Work, engine: Engine, folder: StateFolder | None, start: Snapshot, progress: Progress
) -> FinetuneReport:
    config, recipe = work.config, work.config.recipe
    feed = ImageFeed.open(
        work.train.images,
        work.train.labels,
        work.header.preprocess,
        augment=recipe.augment,
        batch_size=recipe.batch_size,
        seed=config.seed,
    )
    measure = classifier_metrics(
        engine,
        tensor_cache(work.val.images, eval_transform(work.header.preprocess), batch_size=EVAL_BATCH),
        torch.tensor(work.val.labels),
    )
    job = Job(
        build=lambda: _build(work),
        feed=feed,
        loss=lambda logits, labels: F.cross_entropy(
            logits, labels, label_smoothing=recipe.label_smoothing, reduction="none"
        ),
        evaluate=measure,
        probe=torch.zeros(1, *work.header.preprocess.input_size),
        recipe=recipe,
        seed=config.seed,
        save_every=config.save_every,
    )
    engine.wait()  # all have read the state before one writes it
    trained = train(job, engine, progress, folder=folder, start=start)
    tensors = _tensors(work, trained)
    metrics = trained.metrics
    if recipe.precision != "fp32" or any(t.dtype != torch.float32 for t in tensors.values()):
        stored = build_checked(
            work.opened.family, work.header, tensors, where=config.model, dtype=torch.float32
        )
        metrics = measure(stored.to(engine.device)) or metrics
    report = FinetuneReport(
        path=config.out,
        kind=work.header.kind,
        accuracy=metrics.accuracy,
        nll=metrics.nll,
        lr=trained.lr,
        step=trained.step,
        total_steps=job.total,
        trained_parameters=(count := sum(t.numel() for t in trained.weights.values())),
        frozen_parameters=sum(t.numel() for t in tensors.values()) - count,
        resumed_from=start.position.step if start.weights or start.winner else None,
    )
    if engine.leads:
        with publish(config.out) as file:
            write_tensors(file, tensors, header=_finished(work, report))
        if folder is not None:
            folder.clear()
    engine.wait()
    return report


def _build(work: _Work) -> Model:
    """Return the model as training begins: in fp32 whatever is stored, gradients where parameters train."""
    state = work.opened.checkpoint.tensors()
    if work.config.recipe.reset_head:
        state = reset_head(work.opened.family, state)
    model = build_checked(
        work.opened.family, work.header, state, where=work.config.model, dtype=torch.float32
    )
    for name, tensor in model.library_state().items():
        tensor.requires_grad_(name in work.names)
    return model


def _tensors(work: _Work, trained: Trained) -> dict[str, torch.Tensor]:
    """Return what is written: every tensor in its stored dtype, untouched where it did not train.

    Raises:
        CheckFailed: If a weight does not fit its dtype.
    """
    model = _build(work)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in trained.weights.items():
            parameters[name].copy_(tensor)
    found = model.library_state()
    checkpoint = work.opened.checkpoint
    tensors = {}
    for name, spec in checkpoint.specs.items():
        tensors[name] = found[name].detach().to(getattr(torch, TORCH_NAMES[spec.dtype]))
        if name in work.names and not tensors[name].isfinite().all():
            raise CheckFailed(
                f"tensor `{name}` is not finite as {spec.dtype} after training; nothing was written",
                hint="lower `--lr`, or add `--clip 1.0`",
            )
    return tensors


def _finished(work: _Work, report: FinetuneReport) -> Header:
    """Return the header of the output: what the input was, and one more step."""
    opened, header, recipe = work.opened, work.header, work.config.recipe
    base = header.base
    if header.kind == Kind.BASE and base is None and opened.scratch is None:
        base = opened.checkpoint.digest
    step = make_step(
        "finetune",
        family=opened.family,
        options=recipe.options(),
        inputs=work.inputs,
        seed=work.config.seed,
        results={
            "validation_accuracy": report.accuracy,
            "validation_nll": report.nll,
            "validation_count": len(work.val.images),
            "lr": report.lr,
            "steps": report.step,
            "trained_parameters": report.trained_parameters,
        },
    )
    return header.model_copy(update={"base": base, "made_by": step})
