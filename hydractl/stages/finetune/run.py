"""finetune: train a base, a member or a hydra on labelled data and write the model with new weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from hydractl.checkpoint import write_tensors
from hydractl.data.batches import check_readable_by
from hydractl.data.labels import check_training_labels
from hydractl.data.open_dataset import open_items
from hydractl.errors import CheckFailed, HubError, HydraError, InputError, UsageError
from hydractl.families.finite import check_finite, check_finite_weights
from hydractl.families.open_model import check_tensors
from hydractl.fusion.build import stored_specs
from hydractl.manifest.header import Header, InputFile, Kind, samples_of
from hydractl.plugins import load
from hydractl.prediction.open_inputs import warn_assumed
from hydractl.processes.distributed import follow_leader, rank
from hydractl.progress import stage
from hydractl.provenance.output import Output, make_step, resumable, resume_hint
from hydractl.runtime import digest_text, pick_device, versions
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.training.accelerator import launcher_uses_fsdp, start_engine
from hydractl.training.build_job import (
    build,
    measure_of,
    open_job,
    output_metrics,
    output_tensors,
    warn_equal,
)
from hydractl.training.classifier import ClassifierRequest, fit_classifier
from hydractl.training.feeding import Mixing
from hydractl.training.frozen_encoder import keep_features, training_macs
from hydractl.training.loop import train
from hydractl.training.losses import Repulsion
from hydractl.training.plan import (
    TrainingPlan,
    by_words,
    check_layers,
    check_members,
    open_student,
    run_preprocessing,
    trained_names,
    training_labels,
    validation_labels,
)
from hydractl.training.resume import Snapshot, StateFolder, texts_of
from hydractl.training.run_log import open_run_log
from hydractl.training.teachers import check_teachers, lesson_of, open_teachers
from hydractl.training.trainable import Training
from hydractl.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneReport:
    """Result of `finetune`.

    Attributes:
        path: Output, with `{i}` if there are several.
        kind: Base, member or hydra.
        accuracy: Accuracy of the written weights on the validation data, in [0, 1]; for a hydra or several
            models, accuracy of the ensemble.
        nll: NLL on the validation data, in nats.
        lr: Learning rate with the best validation result.
        step: Number of steps before the written weights.
        total_steps: Planned number of steps.
        trained_parameters: Number of trained parameters, including parameters of a training method.
        frozen_parameters: Number of frozen parameters of the model.
        training_macs: Multiply-accumulates for training the written weights; see the metric.
        resumed_from: Step at which the run was resumed; None if it started from the beginning.
        members: Paths of several outputs; empty for a single output.
        span_f1: F1 of spans on the validation data; None for models without predictions per word.
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
    """Train a model and write it. An interrupted run resumes from its saved state.

    Raises:
        InputError: If an input cannot be used. Nothing is written.
        UsageError: If the options do not fit the model or the data.
        CheckFailed: If training diverged.
        OutputExists: If the output or the state of another run already exists, or another command is writing
            it.
    """
    leads, shards = rank() == 0, launcher_uses_fsdp()
    if shards:
        _check_sharding(config)
    with (
        resumable(config.out, force=config.force),
        Output.claim(config, config.outputs(), writes=leads) as output,
    ):
        work = prepare(config, output)
        inputs = work.inputs()
        follow_leader("claim")
        # check before training, because training cannot repair NaN or infinite weights
        check_finite(work.initial_tensors(), place=config.model)
        for teacher in work.teachers:
            check_finite_weights(teacher)
        folder = _state_folder(config, work, inputs)
        start = Snapshot() if folder is None else folder.resumed(force=config.force, others=config.if_changed)
        with (
            _settling_state(config, folder, leads=leads),
            start_engine(config.device, precision=config.recipe.precision, shards=shards) as engine,
        ):
            features = keep_features(work, engine)
            lesson = lesson_of(
                work.teachers,
                work.header,
                engine,
                temperature=config.temperature,
                weight=config.weight,
                halves=config.recipe.precision == "bf16",
            )
            job = replace(
                open_job(work, features, engine, lesson=lesson),
                save_every=config.save_every,
                recomputes=config.gradient_checkpointing,
                compiles=config.model if config.compile else None,
            )
            job = work.training.change_job(job)
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
            engine.wait()  # all processes must have read the state before the first process writes it
            with log as run_log:
                trained = train(replace(job, run_log=run_log), engine, folder=folder, start=start)
            tensors = output_tensors(work, trained.weights)
            evaluate = job.evaluate if features is None else measure_of(work, None, engine)
            metrics = output_metrics(work, engine, tensors, evaluate) or trained.metrics
            report = FinetuneReport(
                path=config.out,
                members=config.outputs() if config.extension.models > 1 else (),
                kind=work.header.kind,
                accuracy=metrics.accuracy,
                nll=metrics.nll,
                span_f1=metrics.span_f1,
                lr=trained.lr,
                step=trained.step,
                total_steps=job.total,
                trained_parameters=_size(trained.weights),
                frozen_parameters=_size(tensors[0])
                - _size({n: t for n, t in trained.weights.items() if work.training.is_own(n)}),
                training_macs=training_macs(
                    work, features, steps=trained.step, per_epoch=job.feed.steps_per_epoch
                ),
                resumed_from=start.position.step if start.weights or start.winner else None,
            )
            if engine.leads:
                header = _trained_header(config, work, inputs, report)
                with output.publish() as begin:
                    for path, own_tensors in zip(report.paths, tensors, strict=True):
                        write_tensors(begin(path, header), own_tensors, header=header)
                if folder is not None:
                    folder.clear()
            engine.wait()
            return report


def prepare(config: FinetuneConfig, output: Output) -> TrainingPlan:
    """Open the inputs. Check everything known from headers and labels, and whether the output may be written.

    Raises:
        InputError: If the model, a teacher or the data cannot be used, or the output cannot be written.
        UsageError: If an option does not fit the inputs.
        OutputExists: If the output is an input, or already exists.
        HubError: If the Hub cannot be reached.
    """
    recipe = config.recipe
    pick_device(config.device)
    model_file = open_student(
        config.extension.reference(config.model),
        arch=config.arch,
        seed=config.seed,
        image_options=config.images.options(),
    )
    teachers = open_teachers(config.teacher)
    data = [config.train, config.val]
    output.check(*config.outputs(), models=[model_file, *teachers], data=data, folders=True)
    check_readable_by(model_file.header.preprocess, model=config.model)
    warn_assumed(model_file)
    open_set = partial(open_items, workers=config.num_workers, skip_bad=config.skip_bad)
    dataset = open_set(config.train, model_file.header.preprocess)
    check_training_labels(dataset, "--train")
    preprocess = run_preprocessing(
        model_file, recipe, recipe_name=config.recipe_name, max_length=config.max_length
    )
    request = ClassifierRequest(
        number=config.num_classes, pooling=config.pooling, seed=config.seed, head_seed=config.head_seed
    )
    model_file = fit_classifier(model_file, dataset, recipe, request)
    dataset, preprocess = by_words(model_file, dataset, preprocess)
    check_tensors(config.model, model_file.checkpoint.specs, stored_specs(model_file))
    check_members(
        model_file, preprocess, own_batches=config.has_own_batches, repulsion=config.repulsion is not None
    )
    training = open_training(config, model_file.header)
    training.check(dataset.task, dataset.name)
    names = trained_names(model_file, training)
    check_layers(model_file, recipe, recipe_name=config.recipe_name)
    labels, model_file, preprocess = training_labels(model_file, dataset, preprocess)
    validation = open_set(config.val, preprocess)
    val_labels = validation_labels(model_file, validation, dataset)
    check_teachers(teachers, model_file.header, preprocess)
    by_label = model_file.header.architecture.task.by_label
    work = TrainingPlan(
        model_file=model_file,
        preprocess=preprocess,
        training=training,
        names=names,
        train=dataset,
        train_labels=labels,
        val=validation,
        val_labels=val_labels,
        teachers=teachers,
        repulsion=None if config.repulsion is None else Repulsion(config.repulsion, config.seed),
        zeroes_head=bool(recipe.reset_head) and config.head_seed is None,
        mixing=Mixing.of(recipe, preprocess, classes=2 if by_label else model_file.header.num_classes),
    )
    work.announce()
    return work


def open_training(config: FinetuneConfig, header: Header) -> Training:
    """Return the training method selected by the options."""
    training: Training = load(config.extension.training)(
        model=config.model,
        header=header,
        recipe=config.recipe,
        seed=config.seed,
        own_batches=config.has_own_batches,
        options=config.extension,
    )
    return training


def _check_sharding(config: FinetuneConfig) -> None:
    if config.compile:
        raise UsageError(
            "`--compile` and `--use_fsdp` exclude each other: a sharded model cannot be compiled as one graph",
            hint="leave one of them out",
        )
    config.extension.check_sharding()


def _state_folder(
    config: FinetuneConfig, work: TrainingPlan, inputs: Sequence[InputFile]
) -> StateFolder | None:
    """Return the folder for the state of the run; None if the output is a stream."""
    if config.state is None:
        return None
    options = config.options()
    libraries = {"hydractl": __version__, **versions("torch", work.model_file.family.library)}
    depends_on = {
        "options": options,
        "seed": config.seed,
        "inputs": [(file.name, file.sha256) for file in inputs],
        "header": work.header.to_metadata(),
        "versions": libraries,
    }
    files = {f"input {i}": f"{file.name[-30:]} ({file.sha256[:19]})" for i, file in enumerate(inputs)}
    return StateFolder(
        config.state,
        digest_text(json.dumps(depends_on, sort_keys=True)),
        texts_of({**options, "seed": config.seed, **files, **libraries}),
    )


@contextlib.contextmanager
def _settling_state(config: FinetuneConfig, folder: StateFolder | None, *, leads: bool) -> Iterator[None]:
    """Handle the saved state after an error.

    A run that would fail again has its state removed. For other errors, the hint explains how to resume.
    """
    try:
        yield
    except CheckFailed:
        if folder is not None and leads:
            folder.clear()
        raise
    except (InputError, HubError) as error:
        # the file may become readable or writable later
        with contextlib.suppress(HydraError, OSError):
            if folder is not None and leads and folder.check(force=False):
                first_hint = f"{error.hint}; " if error.hint else ""
                error.hint = (
                    f"{first_hint}{resume_hint(config.out, force=config.force)}, with unchanged inputs"
                )
        raise


def _size(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _trained_header(
    config: FinetuneConfig, work: TrainingPlan, inputs: Sequence[InputFile], report: FinetuneReport
) -> Header:
    """Return the header of the outputs: the header of the input with an additional step."""
    step = make_step(
        config,
        family=work.model_file.family,
        options=config.options(),
        inputs=inputs,
        seed=config.seed,
        results={
            "validation_accuracy": report.accuracy,
            "validation_nll": report.nll,
            **({} if report.span_f1 is None else {"validation_span_f1": report.span_f1}),
            "validation_count": len(work.val),
            "lr": report.lr,
            "steps": report.step,
            "trained_parameters": report.trained_parameters,
            "training_macs": report.training_macs,
        },
    )
    samples = samples_of(inputs, work.header, *(teacher.header for teacher in work.teachers))
    return work.header.of_other_weights(
        {"base": work.model_file.base, "assumed": False, "samples": samples, "made_by": step}
    )
