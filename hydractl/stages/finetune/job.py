"""Build the inputs of the training loop: batches, model, loss and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl import progress
from hydractl.data.batches import Batch, BatchShare, encoded
from hydractl.data.datasets import UNASKED, Items
from hydractl.data.words import WordSet
from hydractl.families.base import Family
from hydractl.families.finite import stored_tensors
from hydractl.families.tower import Towers, blank_inputs
from hydractl.metrics.cost import macs_of
from hydractl.metrics.per_sample import question_losses
from hydractl.metrics.spans import span_f1_of
from hydractl.model_inputs import Inputs, inputs_like, inputs_on
from hydractl.output.scratch import scratch_tensor
from hydractl.prediction.feature_ood import give_head_inputs, heads_of
from hydractl.processes.distributed import start_team
from hydractl.settings import long_option
from hydractl.stages.finetune.prepare import EVAL_BATCH, TrainingPlan
from hydractl.stages.finetune.teachers import lesson_of
from hydractl.stages.finetune.trainable import Together, TrainableModel, of_each
from hydractl.training.accelerator import Engine
from hydractl.training.dropout import HAS_LAYERS_FOR, set_dropout
from hydractl.training.feeding import InputSource, ItemFeed, MemberFeeds, Planned
from hydractl.training.loop import classifier_metrics
from hydractl.training.losses import Repulsion
from hydractl.training.optimizers import rate_scales
from hydractl.training.recipe import Recipe
from hydractl.training.resume import Metrics
from hydractl.training.trainer import Job, begin_training, copy_weights


def begin_head_training(model: nn.Module, *, family: Family) -> None:
    """Switch the classifiers to training mode, and the rest of the model, which is frozen, to evaluation mode."""
    begin_training(model)
    for towers in (part for part in model.modules() if isinstance(part, Towers)):
        towers.towers.eval()
        for heads in heads_of(towers, family):
            for head in heads:
                head.train()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptFeatures(InputSource):
    """Inputs of the classifiers, from one pass of the encoder.

    Attributes:
        train: Features of the training data, (N, M, F), float32, on the CPU.
        val: Features of the validation data, likewise.
    """

    train: Tensor
    val: Tensor

    @override
    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        del epoch
        for step in plan:
            yield [self.train[piece] for piece in step.pieces]

    def val_batches(self) -> list[Batch[Inputs]]:
        """Return the features of the validation data in batches, in order."""
        places = torch.arange(len(self.val)).split(EVAL_BATCH)
        return [Batch(self.val[indices], indices) for indices in places]


def items_to_encode(work: TrainingPlan, engine: Engine) -> Items | None:
    """Return the training data if the features of a frozen encoder can be stored, else None.

    The encoder must run in each step if more than the classifiers train, if augmentation or mixing changes its inputs, if there are
    teachers or repulsion, if each word is answered, or if the model is sharded.
    """
    changes = (
        work.config.recipe.augment
        or work.mixing
        or work.teachers
        or work.config.repulsion is not None
        or not work.training.trains_all
        or engine.shards
        or work.header.architecture.task.by_word
    )
    return None if changes or not work.trains_head else work.train.items


def features_of(model: Towers, batch: Batch[Inputs], recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Return the indices (B,) of a batch's samples and their features (B, M, F), float32, on the CPU."""
    autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=recipe.precision == "bf16")
    with torch.inference_mode(), autocast:
        features = model.member_logits(inputs_like(batch.inputs, torch.empty(0, device=model.device)))
        return batch.indices, features.float().transpose(0, 1).cpu()


def keep_features(work: TrainingPlan, items: Items, engine: Engine) -> KeptFeatures:
    """Run a frozen encoder over all data. The batches, and so the features, do not depend on the number of processes.

    Args:
        work: The training plan.
        items: The training data.
        engine: Device and processes.

    Raises:
        DataError: If an item cannot be read.
        OutputError: If the disk has no room for the features.
    """
    model = _towers_of(work.load().module).eval()
    give_head_inputs(model, work.opened.family)  # outputs (M, B, F)
    model = model.to(engine.device)
    shape = model.member_logits(blank_inputs(work.header.preprocess, 1, device=engine.device)).shape[::2]
    progress.step("Running the frozen encoder once and storing its features")
    with start_team(engine.device) as team:

        def encode_all(items: Items) -> Tensor:
            deal = BatchShare(team.rank, team.world)
            batches = encoded(items, work.how, batch_size=EVAL_BATCH, limit_bytes=0, deal=deal)
            features = scratch_tensor(
                (len(items), *shape),
                name=f"the features of {len(items)} samples",
                until="the classifier is trained",
            )
            parts = team.iterate(features_of(model, batch, work.config.recipe) for batch in batches)
            total = -(-len(items) // EVAL_BATCH)
            for indices, part in progress.track(parts, label=f"encoding {items.name}", total=total):
                features[indices] = part
            return features

        return KeptFeatures(train=encode_all(items), val=encode_all(work.val.items))


def _towers_of(module: nn.Module) -> Towers:
    towers = module.hydra if isinstance(module, Together) else module
    if not isinstance(towers, Towers):
        raise TypeError(f"expected one model, got {type(module).__name__}")
    return towers


def on_features(subject: TrainableModel) -> TrainableModel:
    """Make a model take features (B, M, F) instead of inputs, or (M P, M, F) if each member has its own samples."""
    module, members = subject.module, len(subject.header.masks)
    heads = heads_of(_towers_of(module), subject.family) * members
    by_member = isinstance(module, Together) and module.by_member

    def forward(features: Tensor) -> Tensor:
        member_features = (
            features.unflatten(0, (members, -1)).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            if by_member and module.training
            else features.unbind(1)
        )
        outputs = torch.stack([_classified(*pair) for pair in zip(heads, member_features, strict=False)])
        logits = _towers_of(module).answer.class_logits(outputs)
        return module.answer(logits) if isinstance(module, Together) else logits.squeeze(0)

    vars(module)["forward"] = forward  # names of parameters stay, as in `training.trainer`
    return subject


def _classified(heads: Sequence[nn.Module], features: Tensor) -> Tensor:
    """Return the mean of the outputs (B, F) that a member's classifiers compute from features (B, F)."""
    logits = [
        head(part if isinstance(head, nn.Linear) else part.unsqueeze(1))
        for head, part in zip(heads, features.chunk(len(heads), -1), strict=True)
    ]
    return logits[0] if len(logits) == 1 else torch.stack(logits).mean(0)


def head_macs(work: TrainingPlan, features: KeptFeatures, samples: int) -> int:
    """Return the multiply-accumulates of one pass of the encoder over all data, and of three passes of the classifiers per training sample."""
    encoder = macs_of(work.load().module.eval(), blank_inputs(work.header.preprocess, 1, device="meta"))
    heads = macs_of(on_features(work.load()).module.eval(), features.train[:1].to("meta"))
    return len(features.train) * encoder + 3 * samples * heads


def open_job(
    work: TrainingPlan, features: KeptFeatures | None, batches: Iterable[Batch[Inputs]], engine: Engine
) -> Job:
    """Open the training data and return the job of the training loop.

    Args:
        work: The training plan.
        features: Stored features of a frozen encoder, or None.
        batches: Batches of the validation data.
        engine: Device and processes.

    Raises:
        DataError: If an item cannot be read.
    """
    feed = work.training.open_feed(_feed(work, features), work.load, work.names, engine)
    if isinstance(feed, ItemFeed) and work.config.has_own_batches:
        feed = MemberFeeds.of(feed, len(work.header.masks), work.how)
    config, recipe = work.config, work.config.recipe
    if work.trains_head:
        recipe = replace(recipe, dropout=None, drop_path=None)  # the frozen encoder has no dropout
    job = Job(
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
    return work.training.change_job(job)


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
    return (
        features.val_batches()
        if features is not None
        else encoded(work.val.items, work.how, batch_size=EVAL_BATCH)
    )


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


def warn_equal(work: TrainingPlan, subject: TrainableModel, job: Job, device: torch.device) -> None:
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
    (
        log_probs[..., 0]
        if job.lesson is None
        else log_probs * job.lesson.targets(inputs_on(job.probe, device)).cpu()
    ).sum().backward()
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
