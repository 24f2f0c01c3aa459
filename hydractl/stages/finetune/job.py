"""Build the inputs of the training loop: batches, model, loss and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import torch
from torch import nn

from hydractl.data.batches import Batch
from hydractl.data.datasets import UNASKED
from hydractl.data.encode import encoded
from hydractl.data.words import WordSet
from hydractl.families.tower import blank_inputs
from hydractl.metrics.per_sample import question_losses
from hydractl.metrics.spans import span_f1_of
from hydractl.model_inputs import Inputs, inputs_on
from hydractl.progress import Progress
from hydractl.settings import long_option
from hydractl.stages.finetune.head_training import KeptFeatures, begin_head_training, on_features
from hydractl.stages.finetune.prepare import EVAL_BATCH, TrainingPlan
from hydractl.stages.finetune.teachers import lesson_of
from hydractl.stages.finetune.trainable import TrainableModel, of_each
from hydractl.stages.shared.finite import stored_tensors
from hydractl.training.accelerator import Engine
from hydractl.training.dropout import HAS_LAYERS_FOR, set_dropout
from hydractl.training.feeding import Feed, ItemFeed, MemberFeeds
from hydractl.training.loop import classifier_metrics
from hydractl.training.losses import Repulsion
from hydractl.training.optimizers import rate_scales
from hydractl.training.resume import Metrics
from hydractl.training.trainer import Job, begin_training, copy_weights


def open_job(
    work: TrainingPlan,
    features: KeptFeatures | None,
    batches: Iterable[Batch[Inputs]],
    engine: Engine,
    progress: Progress,
) -> Job:
    """Open the training data and return the job of the training loop.

    Args:
        work: The training plan.
        features: Stored features of a frozen encoder, or None.
        batches: Batches of the validation data.
        engine: Device and processes.
        progress: Shows progress.

    Raises:
        DataError: If an item cannot be read.
    """
    feed = work.training.open_feed(_feed(work, features), work.load, work.names, engine, progress)
    if isinstance(feed, ItemFeed) and work.config.has_own_batches:
        feed = MemberFeeds.of(feed, len(work.header.masks), work.how)
    return work.training.change_job(_job(work, feed, engine, features, batches))


def _feed(work: TrainingPlan, features: KeptFeatures | None) -> ItemFeed:
    """Return the source of training batches."""
    recipe, seed = work.config.recipe, work.config.seed
    if features is not None:
        return ItemFeed(source=features, labels=work.train.labels, batch_size=recipe.batch_size, seed=seed)
    feed = ItemFeed.open(
        work.train.items,
        work.train.labels,
        work.how,
        augment=recipe.augment,
        batch_size=recipe.batch_size,
        seed=seed,
    )
    return replace(feed, mixing=work.mixing)


def build(work: TrainingPlan, features: KeptFeatures | None) -> TrainableModel:
    """Return the model at the start of training."""
    return work.build() if features is None else on_features(work.load())


def val_batches(work: TrainingPlan, features: KeptFeatures | None) -> Iterable[Batch[Inputs]]:
    """Return batches of the validation data, or of its features if they are stored. Data that fit in memory are decoded once."""
    if features is not None:
        return features.val_batches()
    return encoded(work.val.items, work.how, batch_size=EVAL_BATCH)


def measure_of(
    work: TrainingPlan, engine: Engine, batches: Iterable[Batch[Inputs]]
) -> Callable[[nn.Module], Metrics | None]:
    """Return a function that measures a model on the validation data, of words with the F1 of spans in whole texts."""
    items, labels = work.val.items, work.val.labels
    if not isinstance(items, WordSet) or not work.header.architecture.task.by_word:
        return classifier_metrics(engine, batches, labels)

    def span_f1(classes: torch.Tensor) -> float:
        tags = torch.stack([classes.masked_fill(labels < 0, UNASKED), labels])
        return span_f1_of(items.by_document(tags), work.header.class_names)

    return classifier_metrics(engine, batches, labels, span_f1)


def _job(
    work: TrainingPlan,
    feed: Feed,
    engine: Engine,
    features: KeptFeatures | None,
    batches: Iterable[Batch[Inputs]],
) -> Job:
    """Return the job of the training loop."""
    config, recipe = work.config, work.config.recipe
    if work.trains_head:
        recipe = replace(recipe, dropout=None, drop_path=None)  # the frozen encoder has no dropout
    return Job(
        build=lambda: build(work, features).module,
        feed=feed,
        loss=of_each(
            work.header,
            partial(question_losses, label_smoothing=recipe.label_smoothing),
            by_member=not isinstance(feed, ItemFeed),
            several=config.extension.models > 1,
        ),
        evaluate=measure_of(work, engine, batches),
        probe=blank_inputs(work.header.preprocess, 1, device="cpu")
        if features is None
        else features.train[:1],
        recipe=recipe,
        seed=config.seed,
        save_every=config.save_every,
        recomputes=config.gradient_checkpointing,
        compiles=config.model if config.compile else None,
        lesson=lesson_of(config, work.teachers, work.header, engine) if work.teachers else None,
        repulsion=None if config.repulsion is None else Repulsion(config.repulsion, config.seed),
        scales=scale_rates(work),
        pieces=None if features is None else recipe.accumulate,
        begin_training=partial(begin_head_training, family=work.opened.family)
        if work.trains_head
        else begin_training,
    )


def scale_rates(work: TrainingPlan) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter of the module, by the parameter's name."""
    decay = work.config.recipe.layer_decay
    if decay is None:
        return {}
    subject = work.build()
    tensor_names = subject.tensor_names()
    names = {name: tensor_names[id(parameter)] for name, parameter in subject.module.named_parameters()}
    scales = rate_scales(work.opened.family, work.header.architecture, decay, tensor_names.values())
    return {name: scales[tensor_name] for name, tensor_name in names.items()}


def warn_equal(
    work: TrainingPlan, subject: TrainableModel, job: Job, device: torch.device, progress: Progress
) -> None:
    """Say that members which begin equal would end so; the subject's gradients and its dropout are not as they were afterwards."""
    if work.header.plan is None or work.config.has_own_batches or not work.training.trains_all:
        return
    drops = [
        f"`{long_option(name)} 0.1`, or "
        for name, has_layers in HAS_LAYERS_FOR.items()
        if has_layers(subject.module) and not work.trains_head
    ]
    if _stay_equal(subject, job, device):
        progress.warn(
            f"equal members stay equal without dropout: add {''.join(drops[:1])}"
            "`--reset-head --head-seed 1` to give each its own classifier"
        )


def _stay_equal(subject: TrainableModel, job: Job, device: torch.device) -> bool:
    """Return whether two members hold the same weights and would for ever, as neither dropout nor teachers tell them apart.

    Args:
        subject: As training begins; its gradients and its dropout are not as they were afterwards.
        job: How it would train; the members' gradients of its probe are compared.
        device: Where teachers are.
    """
    twins = [
        (first, second)
        for first, second in combinations(subject.states, 2)
        if all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    ]
    if not twins:
        return False
    noise = set_dropout(subject.module, job.recipe.dropout, path=job.recipe.drop_path)
    with noise.at(seed=0, step=0, rows=range(1), total=1, device=torch.device("cpu")):
        job.begin_training(subject.module)
        outputs = subject.module(job.probe)
    log_probs = outputs.log_softmax(-1)
    if job.lesson is None:
        log_probs = log_probs[..., 0]
    else:
        log_probs = log_probs * job.lesson.targets(inputs_on(job.probe, device)).cpu()
    log_probs.sum().backward()
    return any(
        all(
            tensor.grad is (other := second[n].grad)
            or (tensor.grad is not None and other is not None and torch.equal(tensor.grad, other))
            for n, tensor in first.items()
        )
        for first, second in twins
    )


def output_tensors(
    work: TrainingPlan, trained_weights: Mapping[str, torch.Tensor]
) -> list[dict[str, torch.Tensor]]:
    """Return the tensors of each file in their stored dtypes; tensors that did not train are untouched.

    Raises:
        CheckFailed: If a weight does not fit its dtype.
    """
    subject = work.build()
    copy_weights(subject.module, trained_weights)
    hint = "lower `--lr`, or add `--clip 1.0`"
    return [
        stored_tensors(work.opened.checkpoint, state, trained=work.names, hint=hint)
        for state in subject.tensors()
    ]


def load_output(work: TrainingPlan, tensors: Sequence[Mapping[str, torch.Tensor]]) -> nn.Module:
    """Return a module that predicts with the tensors of each file."""
    family, where = work.opened.family, work.config.model
    return work.training.join(
        [TrainableModel.of(family, work.header, state, where=where).module for state in tensors]
    )
