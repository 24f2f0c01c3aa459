"""finetune: trains a base, a member or a hydra on labelled data and writes it with the new weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from hydractl.checkpoint import write_tensors
from hydractl.errors import CheckFailed, HubError, HydraError, InputError, UsageError
from hydractl.families.finite import check_finite, check_weights
from hydractl.families.tower import blank_inputs
from hydractl.manifest.header import Kind, samples_of
from hydractl.metrics.cost import macs_of
from hydractl.processes.distributed import follow_leader, rank
from hydractl.progress import stage
from hydractl.provenance.output import Output, make_step, resumable, resume_hint
from hydractl.runtime import digest_text, versions
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.job import (
    KeptFeatures,
    build,
    head_macs,
    items_to_encode,
    keep_features,
    load_output,
    measure_of,
    open_job,
    output_tensors,
    val_batches,
    warn_equal,
)
from hydractl.stages.finetune.prepare import TrainingPlan, prepare
from hydractl.training.accelerator import Engine, launcher_uses_fsdp, start_engine
from hydractl.training.loop import Trained, train
from hydractl.training.resume import Metrics, Snapshot, StateFolder, texts_of
from hydractl.training.run_log import open_run_log
from hydractl.training.trainer import Job
from hydractl.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneReport:
    """Result of `finetune`.

    Attributes:
        path: Output, with `{i}` if there are several.
        kind: base, member or hydra.
        accuracy: Accuracy on the validation data of the written weights, in [0, 1]; for a hydra or several models that of
            the ensemble.
        nll: NLL on the validation data, in nats.
        lr: Learning rate with the best validation.
        step: Steps of the written weights.
        total_steps: Planned number of steps.
        trained_parameters: Number of trained parameters, including those of a method.
        frozen_parameters: Number of the model's parameters that did not train.
        training_macs: Multiply-accumulates of the training of the written weights; see the metric.
        resumed_from: Step at which the run was resumed, None if it was not.
        members: Paths of several outputs.
        span_f1: F1 of spans on the validation data; None for models that do not answer words.
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
    span_f1: float | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return self.members or (self.path,)


@stage
def run_finetune(config: FinetuneConfig) -> FinetuneReport:
    """Train a model and write it; an interrupted run resumes from its state.

    Raises:
        InputError: If an input cannot be used; nothing is written.
        UsageError: If the options do not fit the model or the data.
        CheckFailed: If training diverged.
        OutputExists: If the output or the state of another run already exists, or another command is writing it.
    """
    leads, shards = rank() == 0, launcher_uses_fsdp()
    _check_fsdp(config, shards=shards)
    with (
        resumable(config.out, force=config.force),
        Output.claim(config, config.outputs(), writes=leads) as output,
    ):
        work = prepare(config, output)
        follow_leader("claim")
        # training cannot repair weights that are not finite
        check_finite(work.initial_tensors(), where=config.model)
        for teacher in work.teachers:
            check_weights(teacher)
        folder = _state_folder(work)
        start = Snapshot() if folder is None else folder.resumed(force=config.force, others=config.if_changed)
        with (
            _settling_state(config, folder, leads=leads),
            start_engine(config.device, precision=config.recipe.precision, shards=shards) as engine,
        ):
            items = items_to_encode(work, engine)
            features = None if items is None else keep_features(work, items, engine)
            job = open_job(work, features, val_batches(work, features), engine)
            log = open_run_log(
                config.log_to,
                config.log_dir,
                out=config.out,
                options={"model": config.model, "seed": config.seed, **config.options()},
                resumes=bool(start.weights or start.winner),
                leads=engine.leads,
            )
            if engine.leads:
                warn_equal(work, build(work, features), job, engine.device)
            engine.wait()  # all have read the state before one writes it
            with log as run_log:
                trained = train(replace(job, run_log=run_log), engine, folder=folder, start=start)
            tensors = output_tensors(work, trained.weights)
            evaluate = job.evaluate if features is None else measure_of(work, engine, val_batches(work, None))
            trained = replace(trained, metrics=_final_metrics(work, engine, trained, tensors, evaluate))
            macs = _training_macs(work, features, trained.step, job.feed.steps_per_epoch)
            report = _report(work, job, trained, tensors, start, macs)
            if engine.leads:
                _publish(work, report, tensors, output, folder)
            engine.wait()
            return report


def _check_fsdp(config: FinetuneConfig, *, shards: bool) -> None:
    if config.compile and shards:
        raise UsageError(
            "`--compile` and `--use_fsdp` exclude each other: a sharded model cannot be compiled as one graph",
            hint="leave one of them out",
        )
    if shards:
        config.extension.check_sharding()


def _state_folder(work: TrainingPlan) -> StateFolder | None:
    """Return the folder of the run's state; None where it keeps none."""
    if work.config.state is None:
        return None
    options, seed = work.config.options(), work.config.seed
    libraries = {"hydractl": __version__, **versions("torch", work.opened.family.library)}
    depends_on = {
        "options": options,
        "seed": seed,
        "inputs": [(file.name, file.sha256) for file in work.inputs],
        "header": work.header.to_metadata(),
        "versions": libraries,
    }
    files = {f"input {i}": f"{file.name[-30:]} ({file.sha256[:19]})" for i, file in enumerate(work.inputs)}
    return StateFolder(
        work.config.state,
        digest_text(json.dumps(depends_on, sort_keys=True)),
        texts_of({**options, "seed": seed, **files, **libraries}),
    )


@contextlib.contextmanager
def _settling_state(config: FinetuneConfig, folder: StateFolder | None, *, leads: bool) -> Iterator[None]:
    """Drop the state of a run that failed for good; say of one that may not fail again what goes on with its state."""
    try:
        yield
    except CheckFailed:
        # the same would happen again, so there is nothing to go on with
        if folder is not None and leads:
            folder.clear()
        raise
    except (InputError, HubError) as error:
        # what cannot be read or written now may be so later
        if leads and (hint := _way_on(config, folder)):
            first_hint = f"{error.hint}; " if error.hint else ""
            error.hint = f"{first_hint}{hint}, with unchanged inputs"
        raise


def _way_on(config: FinetuneConfig, folder: StateFolder | None) -> str | None:
    """Return what goes on with the state of this run, None where there is none that can be read."""
    with contextlib.suppress(HydraError, OSError):
        if folder is not None and folder.check(force=False):
            return resume_hint(config.out, force=config.force)
    return None


def _final_metrics(
    work: TrainingPlan,
    engine: Engine,
    trained: Trained,
    tensors: Sequence[Mapping[str, torch.Tensor]],
    evaluate: Callable[[nn.Module], Metrics | None],
) -> Metrics:
    """Return the metrics of the weights as written, measured again where they are rounded."""
    rounds = work.config.recipe.precision != "fp32" or any(
        t.dtype != torch.float32 for t in tensors[0].values()
    )
    measured = evaluate(load_output(work, tensors).to(engine.device).eval()) if rounds else None
    return measured or trained.metrics


def _report(
    work: TrainingPlan,
    job: Job,
    trained: Trained,
    tensors: Sequence[Mapping[str, torch.Tensor]],
    start: Snapshot,
    macs: int,
) -> FinetuneReport:
    config = work.config
    return FinetuneReport(
        path=config.out,
        members=config.outputs() if config.extension.models > 1 else (),
        kind=work.header.kind,
        accuracy=trained.metrics.accuracy,
        nll=trained.metrics.nll,
        span_f1=trained.metrics.span_f1,
        lr=trained.lr,
        step=trained.step,
        total_steps=job.total,
        trained_parameters=sum(t.numel() for t in trained.weights.values()),
        frozen_parameters=sum(t.numel() for t in tensors[0].values())
        - sum(t.numel() for n, t in trained.weights.items() if work.training.is_own(n)),
        training_macs=macs,
        resumed_from=start.position.step if start.weights or start.winner else None,
    )


def _training_macs(work: TrainingPlan, features: KeptFeatures | None, steps: int, per_epoch: int) -> int:
    """Return three forward passes for each sample that weights have seen after so many steps; on features, of the classifiers."""
    epochs, last_steps = divmod(steps, per_epoch)
    times = work.training.repeat if work.config.repulsion is None else 2
    samples = epochs * len(work.train.items) + last_steps * work.config.recipe.batch_size
    if features is not None:
        return head_macs(work, features, samples)
    macs = macs_of(work.load().module.eval(), blank_inputs(work.header.preprocess, 1, device="meta"))
    return 3 * times * samples * macs


def _publish(
    work: TrainingPlan,
    report: FinetuneReport,
    tensors: Sequence[Mapping[str, torch.Tensor]],
    output: Output,
    folder: StateFolder | None,
) -> None:
    """Write what the input was with other weights and one more step, and drop the state."""
    step = make_step(
        work.config,
        family=work.opened.family,
        options=work.config.options(),
        inputs=work.inputs,
        seed=work.config.seed,
        results={
            "validation_accuracy": report.accuracy,
            "validation_nll": report.nll,
            **({} if report.span_f1 is None else {"validation_span_f1": report.span_f1}),
            "validation_count": len(work.val.items),
            "lr": report.lr,
            "steps": report.step,
            "trained_parameters": report.trained_parameters,
            "training_macs": report.training_macs,
        },
    )
    samples = samples_of(work.inputs, work.header, *(teacher.header for teacher in work.teachers))
    header = work.header.of_other_weights(
        {"base": work.opened.base, "assumed": False, "samples": samples, "made_by": step}
    )
    with output.publish() as begin:
        for path, own_tensors in zip(report.paths, tensors, strict=True):
            write_tensors(begin(path, header), own_tensors, header=header)
    if folder is not None:
        folder.clear()
