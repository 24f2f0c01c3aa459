"""Build the inputs of the training loop: batches, model, loss and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from hydractl.data.batches import Batch
from hydractl.data.datasets import UNASKED
from hydractl.data.encode import encoded
from hydractl.data.words import WordSet
from hydractl.families.tower import blank_inputs
from hydractl.messages import counted
from hydractl.metrics.per_sample import question_losses
from hydractl.metrics.spans import span_f1_of
from hydractl.model_inputs import Inputs, inputs_on
from hydractl.progress import Progress
from hydractl.runtime import on_device
from hydractl.stages.finetune.head_training import KeptFeatures, begin_head_training, on_features
from hydractl.stages.finetune.prepare import EVAL_BATCH, TrainingPlan
from hydractl.stages.finetune.teachers import lesson_of
from hydractl.stages.finetune.trainable import (
    TrainableModel,
    build_trainable,
    load_trainable,
    of_each,
    scale_rates,
)
from hydractl.training.accelerator import Engine, Share
from hydractl.training.evaluate import classifier_metrics
from hydractl.training.feeding import Feed, ItemFeed, MemberFeeds, Piece
from hydractl.training.repulsion import Repulsion
from hydractl.training.resume import Metrics
from hydractl.training.step_modes import begin_training
from hydractl.training.trainer import Job
from hydractl.training.weight_sites import sites_of


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
    feed = _feed(work, features)
    _look(work, feed, engine, progress)
    return _job(work, feed, engine, features, batches)


def _feed(work: TrainingPlan, features: KeptFeatures | None) -> ItemFeed:
    """Return the source of training batches."""
    config, recipe = work.config, work.config.recipe
    seed = config.seed if config.order_seed is None else config.order_seed
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


def _look(work: TrainingPlan, feed: ItemFeed, engine: Engine, progress: Progress) -> None:
    """Pass an adapter the batches that it inspects before training. Each process passes all of them, so that all get the same result."""
    if work.adapter is None or not work.adapter.data:
        return
    subject, accumulate = load_trainable(work), work.config.recipe.accumulate
    sites = sites_of(subject.family, subject.module, subject.states[0])
    model, device = subject.module.to(engine.device).eval(), engine.device
    count = min(work.adapter.data, feed.steps_per_epoch)
    progress.step(f"Checking {counted(count, 'batch', 'batches')}")

    def loss(piece: Piece) -> torch.Tensor:
        logits = model(inputs_on(piece.inputs, device))
        return question_losses(logits, on_device(piece.labels, device)).mean() * piece.weight

    pieces = (piece for step in feed.steps(0, count, Share(0, accumulate, accumulate)) for piece in step)
    weights = {name: sites[name].layer.weight for name in work.adapter.own(sites, work.names)}
    work.adapter.look(weights, (partial(loss, piece) for piece in pieces))


def build(work: TrainingPlan, features: KeptFeatures | None) -> TrainableModel:
    """Return the model at the start of training."""
    return build_trainable(work) if features is None else on_features(load_trainable(work))


def val_batches(work: TrainingPlan, features: KeptFeatures | None) -> Iterable[Batch[Inputs]]:
    """Return batches of the validation data, or of its features if they are stored. Data that fit in memory are decoded once."""
    if features is not None:
        return features.val_batches()
    return encoded(work.val.items, work.how, batch_size=EVAL_BATCH)


def validate(work: TrainingPlan, engine: Engine, model: nn.Module) -> Metrics | None:
    """Return a model's metrics on the validation data."""
    return measure_of(work, engine, val_batches(work, None))(model)


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
    feed: ItemFeed,
    engine: Engine,
    features: KeptFeatures | None,
    batches: Iterable[Batch[Inputs]],
) -> Job:
    """Return the job of the training loop."""
    config, recipe = work.config, work.config.recipe
    seed = config.seed if config.dropout_seed is None else config.dropout_seed
    feed_of_members: Feed = feed if work.adapter is None else work.adapter.feed(feed)
    if feed_of_members is feed and config.has_own_batches:
        feed_of_members = MemberFeeds.of(feed, len(work.header.masks), work.how)
    has_member_feed = feed_of_members is not feed
    if work.trains_head:
        recipe = replace(recipe, dropout=None, drop_path=None)  # the frozen encoder has no dropout
    return Job(
        build=lambda: build(work, features).module,
        feed=feed_of_members,
        loss=of_each(
            work.header,
            partial(question_losses, label_smoothing=recipe.label_smoothing),
            by_member=has_member_feed,
            several=config.models > 1,
        ),
        evaluate=measure_of(work, engine, batches),
        probe=blank_inputs(work.header.preprocess, 1, device="cpu")
        if features is None
        else features.train[:1],
        recipe=recipe,
        seed=seed,
        save_every=config.save_every,
        recomputes=config.gradient_checkpointing,
        compiles=config.model if config.compile else None,
        lesson=lesson_of(config, work.teachers, work.header, engine) if work.teachers else None,
        repulsion=None if config.repulsion is None else Repulsion(config.repulsion, seed),
        scales=scale_rates(work),
        pieces=None if features is None else recipe.accumulate,
        begin_training=partial(begin_head_training, family=work.opened.family)
        if work.trains_head
        else begin_training,
    )
