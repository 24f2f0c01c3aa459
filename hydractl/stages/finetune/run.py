"""finetune: train a base, a member or a hydra on labelled data, and write what it was with other weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.checkpoint import write_tensors
from hydractl.data.encode import encoded
from hydractl.errors import CheckFailed, HubError, HydraError, InputError, UsageError
from hydractl.families.dummy_inputs import blank_inputs
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.header import Header, Kind
from hydractl.messages import counted
from hydractl.metrics.cost import macs_of
from hydractl.model_inputs import map_inputs
from hydractl.output.locks import OutputLock
from hydractl.processes.distributed import follow_leader, rank
from hydractl.progress import SILENT, Progress
from hydractl.settings import long_option
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.prepare import TrainingPlan, prepare
from hydractl.stages.finetune.state import state_folder
from hydractl.stages.finetune.teachers import lesson_of
from hydractl.stages.finetune.trainable import Jointly, TrainableModel, is_own, of_each, stay_equal
from hydractl.stages.shared.finite import check_finite, check_weights, stored_tensors
from hydractl.stages.shared.output_record import make_step
from hydractl.stages.shared.outputs import claim, resumable, resume_hint
from hydractl.training import fsdp
from hydractl.training.accelerator import Engine, Share, start_engine
from hydractl.training.dropout import HAS_LAYERS_FOR
from hydractl.training.evaluate import classifier_metrics
from hydractl.training.feeding.feed import Feed, ItemFeed, Piece
from hydractl.training.feeding.per_member import MemberFeeds
from hydractl.training.loop import Trained, train
from hydractl.training.recipes.parameter_groups import rate_scales, reset_head
from hydractl.training.resume import Metrics, Snapshot, StateFolder
from hydractl.training.trainer import Job
from hydractl.training.weight_sites import sites_of

EVAL_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneReport:
    """What `finetune` did.

    Attributes:
        path: The output, with `{i}` where there are several.
        kind: base, member or hydra.
        accuracy: On the validation data, of the weights as written, in [0, 1]; a hydra's is its ensemble's, and so is that of
            several models.
        nll: Likewise, in nats.
        lr: The learning rate that validated best.
        step: How many steps the written weights took.
        total_steps: How many were planned.
        trained_parameters: How many parameters trained, those that weights are made of included.
        frozen_parameters: How many of the model's own did not.
        training_macs: Multiply-accumulates that training the written weights took: see the metric of that name.
        resumed_from: The step at which the run went on, None if it ran through.
        members: Of several outputs, each.
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
    training_macs: int
    resumed_from: int | None
    members: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return self.members or (self.path,)


def run_finetune(config: FinetuneConfig, progress: Progress = SILENT) -> FinetuneReport:
    """Train a model and publish it; an interrupted run goes on where its state says.

    Raises:
        InputError: If an input cannot be used; nothing is written then.
        UsageError: If the options do not fit the model or the data.
        CheckFailed: If training diverged.
        OutputExists: If the output is there already, or what another run left of it, or another command makes it.
    """
    leads, shards = rank() == 0, fsdp.launcher_uses_fsdp()
    if config.compile and shards:
        raise UsageError(
            "`--compile` and `--use_fsdp` exclude each other: a model that lies in parts is no single graph",
            hint="leave one of them out",
        )
    if shards and config.trains_by is not None and config.trains_by.ADAPTER is not None:
        raise UsageError(
            "`--method` and `--use_fsdp` exclude each other: weights that are made of others do not lie in parts",
            hint="leave `--use_fsdp` out",
        )
    with (
        resumable(config.out, force=config.force),
        claim(config, config.outputs() if leads else [], progress) as output_lock,
    ):
        work = prepare(config, progress, output_lock)
        follow_leader("claim")
        _check_weights(work)
        folder = state_folder(work)
        start = Snapshot()
        if folder is not None:
            start = folder.resumed(force=config.force, others=config.if_changed, progress=progress)
        try:
            with start_engine(config.device, precision=config.recipe.precision, shards=shards) as engine:
                return _train(work, engine, folder, start, output_lock, progress)
        except CheckFailed:
            # the same would happen again, so there is nothing to go on with
            if folder is not None and leads:
                folder.clear()
            raise
        except (InputError, HubError) as error:
            # what cannot be read or written now may be so later
            if leads and (resume_hint := _way_on(config, folder)):
                first_hint = f"{error.hint}; " if error.hint else ""
                error.hint = f"{first_hint}{resume_hint}, with inputs as they were"
            raise


def _way_on(config: FinetuneConfig, folder: StateFolder | None) -> str | None:
    """Return what goes on with the state of this run, None where there is none that can be read."""
    with contextlib.suppress(HydraError, OSError):
        if folder is not None and folder.check(force=False):
            return resume_hint(config.out, force=config.force)
    return None


def _train(
    work: TrainingPlan,
    engine: Engine,
    folder: StateFolder | None,
    start: Snapshot,
    output_lock: OutputLock,
    progress: Progress,
) -> FinetuneReport:
    config, recipe = work.config, work.config.recipe
    measure = _measure(work, engine)
    feed = _feed(work)
    _look(work, feed, engine, progress)
    job = _job(work, feed, measure, engine)
    if engine.leads and work.header.plan is not None and not (config.has_own_batches or config.method):
        _warn_equal(work, job, engine, progress)
    engine.wait()  # all have read the state before one writes it
    trained = train(job, engine, progress, folder=folder, start=start)
    tensors = _tensors(work, trained)
    metrics = trained.metrics
    if recipe.precision != "fp32" or any(t.dtype != torch.float32 for t in tensors[0].values()):
        metrics = measure(_stored(work, tensors).to(engine.device).eval()) or metrics
    report = FinetuneReport(
        path=config.out,
        members=config.outputs() if _copies(work) > 1 else (),
        kind=work.header.kind,
        accuracy=metrics.accuracy,
        nll=metrics.nll,
        lr=trained.lr,
        step=trained.step,
        total_steps=job.total,
        trained_parameters=sum(t.numel() for t in trained.weights.values()),
        frozen_parameters=sum(t.numel() for t in tensors[0].values())
        - sum(t.numel() for n, t in trained.weights.items() if is_own(n)),
        training_macs=_training_macs(work, trained.step, feed.steps_per_epoch),
        resumed_from=start.position.step if start.weights or start.winner else None,
    )
    if engine.leads:
        header = _finished(work, report)
        with publish_models(output_lock) as begin:
            for path, own_tensors in zip(report.paths, tensors, strict=True):
                write_tensors(begin(path, header), own_tensors, header=header)
        if folder is not None:
            folder.clear()
    engine.wait()
    return report


def _stored(work: TrainingPlan, tensors: Sequence[Mapping[str, torch.Tensor]]) -> nn.Module:
    """Return what answers with tensors as they are written."""
    modules = [
        TrainableModel.of(work.opened.family, work.header, state, where=work.config.model).module
        for state in tensors
    ]
    return modules[0] if len(modules) == 1 else Jointly(modules)


def _warn_equal(work: TrainingPlan, job: Job, engine: Engine, progress: Progress) -> None:
    """Say that members which begin equal would end so."""
    targets = None
    if job.lesson is not None:
        targets = job.lesson.targets(map_inputs(lambda x: x.to(engine.device), job.probe))
    subject = _build(work)
    drops = [
        f"`{long_option(name)} 0.1`, or "
        for name, has_layers in HAS_LAYERS_FOR.items()
        if has_layers(subject.module)
    ]
    if stay_equal(subject, job.probe, work.config.recipe, targets):
        progress.warn(
            f"members that are equal now stay equal, for nothing is dropped: add {''.join(drops[:1])}"
            "`--reset-head --head-seed 1` for classifiers of their own"
        )


def _measure(work: TrainingPlan, engine: Engine) -> Callable[[nn.Module], Metrics | None]:
    """Return what measures a model on the validation data."""
    return classifier_metrics(
        engine,
        encoded(work.val.items, work.how, batch_size=EVAL_BATCH),
        torch.tensor(work.val.labels),
    )


def _feed(work: TrainingPlan) -> ItemFeed:
    """Return where batches come from."""
    config, recipe = work.config, work.config.recipe
    feed = ItemFeed.open(
        work.train.items,
        work.train.labels,
        work.how,
        augment=recipe.augment,
        batch_size=recipe.batch_size,
        seed=config.seed if config.order_seed is None else config.order_seed,
    )
    return replace(feed, mixing=work.mixing)


def _look(work: TrainingPlan, feed: ItemFeed, engine: Engine, progress: Progress) -> None:
    """Show a method the batches that it must see before anything trains: every process all of them, so that all find the same."""
    if work.adapter is None or not work.adapter.data:
        return
    subject, accumulate = _plain(work), work.config.recipe.accumulate
    sites = sites_of(subject.family, subject.module, subject.states[0])
    model, device = subject.module.to(engine.device).eval(), engine.device
    count = min(work.adapter.data, feed.steps_per_epoch)
    progress.step(f"Looking at {counted(count, 'batch', 'batches')}")

    def loss(piece: Piece) -> torch.Tensor:
        logits = model(map_inputs(lambda x: x.to(device), piece.inputs))
        return F.cross_entropy(logits, piece.labels.to(device)) * piece.weight

    pieces = (piece for step in feed.steps(0, count, Share(0, accumulate, accumulate)) for piece in step)
    weights = {name: sites[name].layer.weight for name in work.adapter.own(sites, work.names)}
    work.adapter.look(weights, (partial(loss, piece) for piece in pieces))


def _job(
    work: TrainingPlan, feed: ItemFeed, measure: Callable[[nn.Module], Metrics | None], engine: Engine
) -> Job:
    """Say to the loop what to train."""
    config, recipe = work.config, work.config.recipe

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing, reduction="none")

    feed_of_members: Feed = feed if work.adapter is None else work.adapter.feed(feed)
    if feed_of_members is feed and config.has_own_batches:
        feed_of_members = MemberFeeds.of(feed, len(work.header.masks), work.how)
    has_member_feed = feed_of_members is not feed
    return Job(
        build=lambda: _build(work).module,
        feed=feed_of_members,
        loss=of_each(work.header, loss, by_member=has_member_feed, several=_copies(work) > 1),
        evaluate=measure,
        probe=blank_inputs(work.header.preprocess, 1, device="cpu"),
        recipe=recipe,
        seed=config.seed if config.dropout_seed is None else config.dropout_seed,
        save_every=config.save_every,
        recomputes=config.gradient_checkpointing,
        compiles=config.model if config.compile else None,
        lesson=lesson_of(config, work.teachers, work.header, engine) if work.teachers else None,
        scales=_scales(work),
    )


def _scales(work: TrainingPlan) -> dict[str, float]:
    """Return what the learning rate of each parameter is multiplied by, under the model's own names."""
    decay = work.config.recipe.layer_decay
    if decay is None:
        return {}
    subject = _build(work)
    theirs = {id(tensor): name for state in subject.states for name, tensor in state.items()}
    for name, site in (pair for sites in subject.sites for pair in sites.items()):
        theirs |= {id(weight): name for weight in site.layer.parameters() if id(weight) not in theirs}
    names = {name: theirs[id(parameter)] for name, parameter in subject.module.named_parameters()}
    scales = rate_scales(work.opened.family, work.header.architecture, decay, theirs.values())
    return {name: scales[tensor_name] for name, tensor_name in names.items()}


def _build(work: TrainingPlan) -> TrainableModel:
    """Return the model as training begins."""
    subject = _plain(work)
    return (
        subject if work.adapter is None else subject.adapted(work.adapter, work.names, seed=work.config.seed)
    )


def _copies(work: TrainingPlan) -> int:
    """Return how many models train together that are no hydra."""
    method = work.config.trains_by
    return 1 if method is None else method.models


def _state(work: TrainingPlan) -> dict[str, torch.Tensor]:
    """Return the tensors that training begins with."""
    state = work.opened.checkpoint.tensors()
    if work.config.reset_head and work.config.head_seed is None:
        return reset_head(work.opened.family, state)
    return state


def _check_weights(work: TrainingPlan) -> None:
    """Refuse weights that are not finite before anything trains: no rate would help.

    Raises:
        CheckpointError: If the model has some, or a teacher.
    """
    check_finite(_state(work), where=work.config.model)
    for teacher in work.teachers:
        check_weights(teacher)


def _plain(work: TrainingPlan) -> TrainableModel:
    """Return it before a method makes weights of others: in fp32 whatever is stored, gradients where parameters train."""
    subject = TrainableModel.of(
        work.opened.family,
        work.header,
        _state(work),
        where=work.config.model,
        by_member=work.config.has_own_batches,
        copies=_copies(work),
    )
    for state in subject.states:
        for name, tensor in state.items():
            tensor.requires_grad_(name in work.names)
    return subject


def _tensors(work: TrainingPlan, trained: Trained) -> list[dict[str, torch.Tensor]]:
    """Return what is written of each model: every tensor in its stored dtype, untouched where it did not train.

    Raises:
        CheckFailed: If a weight does not fit its dtype.
    """
    subject = _build(work)
    parameters = dict(subject.module.named_parameters())
    with torch.no_grad():
        for name, tensor in trained.weights.items():
            parameters[name].copy_(tensor)
    hint = "lower `--lr`, or add `--clip 1.0`"
    return [
        stored_tensors(work.opened.checkpoint, state, trained=work.names, hint=hint)
        for state in subject.tensors()
    ]


def _training_macs(work: TrainingPlan, steps: int, per_epoch: int) -> int:
    """Return three forward passes for each sample that weights have seen after so many steps."""
    epochs, last_steps = divmod(steps, per_epoch)
    times = 1 if work.adapter is None else work.adapter.repeat
    samples = epochs * len(work.train.items) + last_steps * work.config.recipe.batch_size
    model = _plain(work).module.eval()
    return 3 * times * samples * macs_of(model, blank_inputs(work.header.preprocess, 1, device="meta"))


def _finished(work: TrainingPlan, report: FinetuneReport) -> Header:
    """Return the header of the output: what the input was, and one more step."""
    opened, header = work.opened, work.header
    step = make_step(
        work.config,
        family=opened.family,
        options=work.config.options(),
        inputs=work.inputs,
        seed=work.config.seed,
        results={
            "validation_accuracy": report.accuracy,
            "validation_nll": report.nll,
            "validation_count": len(work.val.items),
            "lr": report.lr,
            "steps": report.step,
            "trained_parameters": report.trained_parameters,
            "training_macs": report.training_macs,
        },
    )
    return header.of_other_weights({"base": opened.base, "assumed": False, "made_by": step})
