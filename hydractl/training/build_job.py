"""Inputs of the training loop (batches, model, loss and validation), and tensors and metrics of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import nn

from hydractl import progress
from hydractl.data.batches import eval_batches
from hydractl.data.datasets import NO_LABEL
from hydractl.data.words import WordSet
from hydractl.errors import CheckFailed
from hydractl.families.finite import stored_tensors
from hydractl.families.tower import blank_inputs
from hydractl.metrics.per_sample import item_losses
from hydractl.metrics.spans import span_f1_of
from hydractl.model_inputs import inputs_on
from hydractl.settings import long_option
from hydractl.training.accelerator import Engine
from hydractl.training.dropout import HAS_LAYERS_FOR, set_dropout
from hydractl.training.feeding import ItemFeed, MemberFeeds
from hydractl.training.frozen_encoder import KeptFeatures, begin_head_training, on_features
from hydractl.training.loop import classifier_metrics
from hydractl.training.losses import DistillationLoss
from hydractl.training.optimizers import rate_scales
from hydractl.training.plan import EVAL_BATCH, TrainingPlan
from hydractl.training.resume import Metrics
from hydractl.training.trainable import TrainableModel, of_each
from hydractl.training.trainer import Job, begin_training, copy_weights


def open_job(
    work: TrainingPlan, features: KeptFeatures | None, engine: Engine, *, lesson: DistillationLoss | None
) -> Job:
    """Open the training data and return the job of the training loop.

    Args:
        work: The training plan.
        features: Stored features of a frozen encoder, or None.
        engine: Device and processes.
        lesson: Distillation loss, or None without teachers.

    Raises:
        DataError: If an item cannot be read.
    """
    training, recipe = work.training, work.recipe
    data: dict[str, Any] = {"batch_size": recipe.batch_size, "seed": training.seed}
    if features is not None:
        dataset = ItemFeed(source=features, labels=work.train_labels, **data)
    else:
        model_file = ItemFeed.open(
            work.train, work.train_labels, work.preprocess, augment=recipe.augment, **data
        )
        dataset = replace(model_file, mixing=work.mixing)
    feed = training.open_feed(dataset, work.load, work.names, engine)
    if isinstance(feed, ItemFeed) and training.own_batches:
        feed = MemberFeeds.of(feed, len(work.header.masks), work.preprocess)
    if work.trains_head:
        # The stored features were computed without dropout.
        recipe = replace(recipe, dropout=None, drop_path=None)
    return Job(
        build=lambda: build(work, features).module,
        feed=feed,
        loss=of_each(
            work.header,
            partial(item_losses, label_smoothing=recipe.label_smoothing),
            by_member=not isinstance(feed, ItemFeed),
            several=training.options.models > 1,
        ),
        evaluate=measure_of(work, features, engine),
        probe=blank_inputs(work.header.preprocess, 1, device="cpu")
        if features is None
        else features.train[:1],
        recipe=recipe,
        seed=training.seed,
        distillation_loss=lesson,
        repulsion=work.repulsion,
        scales=scale_rates(work),
        pieces=None if features is None else recipe.accumulate,
        begin_training=partial(begin_head_training, family=work.model_file.family)
        if work.trains_head
        else begin_training,
    )


def build(work: TrainingPlan, features: KeptFeatures | None) -> TrainableModel:
    """Return the model at the start of training.

    With stored features, the model takes features instead of the original inputs, and its forward pass runs
    only the classifiers.
    """
    return work.build() if features is None else on_features(work.load())


def measure_of(
    work: TrainingPlan, features: KeptFeatures | None, engine: Engine
) -> Callable[[nn.Module], Metrics | None]:
    """Return a function that computes the validation metrics of a model.

    The metrics include the F1 of spans if the data has a label per word.

    Args:
        work: The training plan.
        features: Stored features as inputs; None for the original data, decoded once if memory suffices.
        engine: Device and processes.

    Returns:
        Function from a model to metrics, or to None if the outputs are not finite.
    """
    dataset, labels = work.val, work.val_labels
    batches = (
        eval_batches(dataset, work.preprocess, batch_size=EVAL_BATCH)
        if features is None
        else features.val_batches()
    )
    if not isinstance(dataset, WordSet) or not work.header.architecture.task.by_word:
        return classifier_metrics(engine, batches, labels)

    def span_f1(classes: torch.Tensor) -> float:
        tags = torch.stack([classes.masked_fill(labels < 0, NO_LABEL), labels])
        return span_f1_of(dataset.by_document(tags), work.header.class_names)

    return classifier_metrics(engine, batches, labels, span_f1)


def scale_rates(work: TrainingPlan) -> dict[str, float]:
    """Return the learning-rate factor of each parameter of the module by name; empty without layer decay."""
    decay = work.recipe.layer_decay
    if decay is None:
        return {}
    subject = work.build()
    tensor_names = subject.tensor_names()
    names = {name: tensor_names[id(parameter)] for name, parameter in subject.module.named_parameters()}
    scales = rate_scales(work.model_file.family, work.header.architecture, decay, tensor_names.values())
    return {name: scales[tensor_name] for name, tensor_name in names.items()}


def warn_equal(work: TrainingPlan, subject: TrainableModel, job: Job, device: torch.device) -> None:
    """Warn if members of a hydra are equal at the start and would stay equal.

    Members with own batches, and methods that train parameters other than the selected weights, are not
    checked.

    Args:
        work: The training plan.
        subject: Model at the start of training. The function replaces dropout layers and sets gradients.
        job: Job of the training loop.
        device: Device of the teachers.
    """
    if work.header.plan is None or work.training.own_batches or not work.training.trains_all:
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
    """Return whether two members have equal weights and equal gradients for the sample `Job.probe`.

    Dropout and teachers can make the gradients of equal members differ.

    Args:
        subject: Model at the start of training. The function replaces dropout layers and sets gradients.
        job: Job of the training loop.
        device: Device of the teachers.
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
    (
        log_probs[..., 0]
        if job.distillation_loss is None
        else log_probs * job.distillation_loss.targets(inputs_on(job.probe, device)).cpu()
    ).sum().backward()
    return any(
        all(
            tensor.grad is (gradient := second[n].grad)
            or (tensor.grad is not None and gradient is not None and torch.equal(tensor.grad, gradient))
            for n, tensor in first.items()
        )
        for first, second in twins
    )


def output_tensors(work: TrainingPlan, weights: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return the tensors of each output file by name, in their stored dtypes.

    Tensors that did not train are unchanged.

    Args:
        work: The training plan.
        weights: Trained parameters by name.

    Raises:
        CheckFailed: If a weight does not fit its dtype.
    """
    subject = work.build()
    copy_weights(subject.module, weights)
    hint = "lower `--lr`, or add `--clip 1.0`"
    return [
        stored_tensors(work.model_file.checkpoint, state, trained=work.names, hint=hint)
        for state in subject.tensors()
    ]


def output_metrics(
    work: TrainingPlan,
    engine: Engine,
    tensors: Sequence[Mapping[str, torch.Tensor]],
    evaluate: Callable[[nn.Module], Metrics | None],
) -> Metrics | None:
    """Return the validation metrics of the output tensors, if they may differ from those of the training.

    Args:
        work: The training plan.
        engine: Device and processes.
        tensors: Tensors of each output file.
        evaluate: Function from `measure_of`.

    Returns:
        None if the model trained in fp32 and all tensors are float32: the metrics of the training are still
            valid.

    Raises:
        CheckFailed: If an output of the rounded weights is not finite.
    """
    if work.recipe.precision == "fp32" and all(t.dtype == torch.float32 for t in tensors[0].values()):
        return None
    family, place = work.model_file.family, work.model_file.reference
    models = [TrainableModel.of(family, work.header, state, place=place).module for state in tensors]
    metrics = evaluate(work.training.join(models).to(engine.device).eval())
    if metrics is None:
        raise CheckFailed(
            f"{place}: the outputs are not finite after the trained weights are rounded to the types of the file",
            hint="use a lower learning rate, or start from weights in float32",
        )
    return metrics
