"""What `finetune` knows before it computes anything: every check that headers and labels allow."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hydractl.data.datasets import Items, TextSet
from hydractl.data.encode import Reading, check_augment, check_reads, limited, open_items, shortened
from hydractl.data.labels import (
    check_labels,
    check_training_labels,
    filled_names,
    first_names,
    match_classes,
    model_labels,
)
from hydractl.data.reference import folded
from hydractl.data.words import by_word, check_answerable
from hydractl.errors import DataError, UsageError
from hydractl.families.base import Family
from hydractl.families.load import OpenModel, check_tensors, open_model
from hydractl.fusion.build import stored_specs
from hydractl.manifest.document import pack
from hydractl.manifest.header import Fate, Header, InputFile, SampledFile, Tokenization
from hydractl.messages import counted
from hydractl.output.publish import OutputLock
from hydractl.plugins import load
from hydractl.progress import Progress
from hydractl.runtime import pick_device
from hydractl.settings import long_option
from hydractl.stages.finetune.classifier_head import fitted
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.teachers import check_teachers, open_teachers
from hydractl.stages.finetune.trainable import TrainableModel, Training
from hydractl.stages.shared.finite import warn_temperature
from hydractl.stages.shared.open_inputs import check_takes, identified, overlap, reading_images, warn_assumed
from hydractl.stages.shared.outputs import check_models
from hydractl.training.dropout import HAS_LAYERS_FOR
from hydractl.training.feeding import Mixing
from hydractl.training.optimizers import reset_head, trainable
from hydractl.training.recipe import FOR_IMAGES, PARTS, RECIPES, Recipe
from hydractl.training.trainer import keeps_statistics

EVAL_BATCH = 256
_TAKEN_BY_NONE = {
    "dropout": "the model has no dropout, except for attention weights",
    "drop_path": "the model has one block, and stochastic depth never skips the first",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledItems:
    """A data set whose labels are the model's: (N,), or (N, Q) of Q labels or words, as `model_labels` has them."""

    items: Items
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Everything that is known before anything is computed.

    Attributes:
        config: What was asked.
        opened: The model.
        header: Its, with the classes of the data.
        how: How it reads items in this run.
        names: The tensors that are others afterwards.
        training: How these tensors train.
        train: What it learns from.
        val: What it is measured on.
        teachers: Opened.
        mixing: How samples of a batch are mixed.
        inputs: All that is read, for the lineage.
    """

    config: FinetuneConfig
    opened: OpenModel
    header: Header
    how: Reading
    names: tuple[str, ...]
    training: Training
    train: LabelledItems
    val: LabelledItems
    teachers: tuple[OpenModel, ...]
    mixing: Mixing | None
    inputs: tuple[InputFile, ...]

    def initial_tensors(self) -> dict[str, Tensor]:
        """Return the tensors at the start of training."""
        state = self.opened.checkpoint.tensors()
        resets = self.config.recipe.reset_head and self.config.head_seed is None
        return reset_head(self.opened.family, state) if resets else state

    def load(self) -> TrainableModel:
        """Return the model in fp32; the tensors that may train require gradients."""
        subject = self.training.load(
            self.opened.family, self.header, self.initial_tensors(), where=self.config.model
        )
        for state in subject.states:
            for name, tensor in state.items():
                tensor.requires_grad_(name in self.names)
        return subject

    def build(self) -> TrainableModel:
        """Return the model at the start of training."""
        return self.training.build(self.load(), self.names)

    @property
    def trains_head(self) -> bool:
        """Whether nothing but classifiers trains."""
        return self.config.recipe.parts == ("head",)


def prepare(config: FinetuneConfig, progress: Progress, output_lock: OutputLock | None) -> TrainingPlan:
    """Check everything that headers and labels can tell, and whether the output may be where it is to go; None: nothing is written.

    Raises:
        InputError: If the model, a teacher or the data cannot be used, or the output cannot be written.
        UsageError: If an option does not fit them.
        OutputExists: If the output is one of them, or is there already.
        HubError: If the Hub cannot be reached.
    """
    pick_device(config.device)
    opened = reading_images(open_trained(config), config.images)
    check_takes(opened.header, where=opened.reference)
    teachers = open_teachers(config)
    if output_lock is not None:
        check_models(
            config.outputs(), output_lock, models=[opened, *teachers], data=[config.data, config.val]
        )
    check_reads(opened.header.preprocess, model=config.model)
    warn_assumed(opened, progress)
    items = open_items(
        config.data,
        opened.header.preprocess,
        workers=config.num_workers,
        skip_bad=config.skip_bad,
        progress=progress,
    )
    check_training_labels(items, "--data")
    how = limited(opened.header.preprocess, config.max_length, model=config.model)
    if config.max_length is None:
        how = shortened(how, config.recipe.max_length)
    _check_recipe(config, how)
    check_augment(how, config.recipe.augment)
    opened = fitted(config, opened, items, progress)
    header = opened.header
    if isinstance(how, Tokenization) and items.task.by_word:
        how = how.model_copy(update=dict(header.preprocess) | {"max_length": how.max_length})
        items = check_answerable(by_word(items, how, progress))
    check_tensors(config.model, opened.checkpoint.specs, stored_specs(opened))
    _check_apart(config, header)
    _check_repulsion(config, header, how)
    training = open_training(config, opened.header)
    training.check(items.task, items.name)
    names = trained_names(opened, training)
    _check_layers(config, header, opened.family, progress)
    labelled, header = _training(items, header, progress)
    if isinstance(how, Tokenization) and isinstance(items, TextSet) and items.task.has_one_question:
        pairs = {"pairs": not isinstance(items.texts[0], str)}
        how = how.model_copy(update=pairs)
        header = header.model_copy(update={"preprocess": header.preprocess.model_copy(update=pairs)})
    validation = _validation(
        open_items(
            config.val,
            how,
            workers=config.num_workers,
            skip_bad=config.skip_bad,
            progress=progress,
        ),
        items,
        header,
        progress,
    )
    check_teachers(teachers, header, how)
    if len(teachers) == 1 and teachers[0].checkpoint.digest == opened.checkpoint.digest:
        progress.warn(
            f"{config.model} is its own teacher: its predictions match the teacher from the start, "
            "which weakens the effect of the labels"
        )
    warn_temperature(opened, progress)
    mixing = Mixing.of(
        config.recipe, how, classes=2 if header.architecture.task.by_label else header.num_classes
    )
    steps = config.recipe.total_steps(-(-len(labelled.items) // config.recipe.batch_size))
    progress.step(
        f"Training `{opened.name}` on {len(labelled.items)} {labelled.items.content} for {counted(steps, 'step')}, "
        f"validating on {len(validation.items)}"
        + (f", taught by {', '.join(t.name for t in teachers)}" if teachers else "")
    )
    return TrainingPlan(
        config=config,
        opened=opened,
        header=header,
        how=how,
        names=names,
        training=training,
        train=labelled,
        val=validation,
        mixing=mixing,
        teachers=teachers,
        inputs=(
            opened.as_input(),
            *_data_inputs(labelled.items, validation.items, progress),
            *(t.as_input() for t in teachers),
        ),
    )


def open_trained(config: FinetuneConfig) -> OpenModel:
    """Open what trains.

    Raises:
        InputError: If it cannot be read.
        UsageError: If it has no classifier and can have none, or a packed member cannot be made of it.
    """
    opened = open_model(
        config.extension.reference(config.model), arch=config.arch, seed=config.seed, backbone=True
    )
    check_classes(opened)
    return opened


def check_classes(opened: OpenModel) -> None:
    """Refuse a model that is told what to compare images with.

    Raises:
        UsageError: If it is one.
    """
    if opened.header.prompting is not None:
        raise UsageError(
            f"{opened.reference}: is a zero-shot model without classes to train on",
            hint="prune and fuse zero-shot models without training",
        )


def _check_recipe(config: FinetuneConfig, how: Reading) -> None:
    """Refuse a recipe that would change texts as images are changed, where nothing but it says so."""
    if config.recipe_name is None or not isinstance(how, Tokenization):
        return
    named = RECIPES[config.recipe_name]
    if any(getattr(named, n) and getattr(named, n) == getattr(config.recipe, n) for n in FOR_IMAGES):
        others = [name for name, recipe in RECIPES.items() if not any(getattr(recipe, n) for n in FOR_IMAGES)]
        raise UsageError(
            f"`--recipe {config.recipe_name}` is for images, but {config.model} reads texts",
            hint=f"recipes for texts: {', '.join(others)}",
        )


def _check_layers(config: FinetuneConfig, header: Header, family: Family, progress: Progress) -> None:
    """Refuse shares to drop that no layer would; a recipe's own are for many models. Say where a norm is none."""
    model = family.build(header.architecture, header.masks[0], None)
    named = Recipe() if config.recipe_name is None else RECIPES[config.recipe_name]
    for name, has_layers in HAS_LAYERS_FOR.items():
        share = getattr(config.recipe, name)
        if share and share != getattr(named, name) and not has_layers(model):
            raise UsageError(
                f"`{long_option(name)} {share:g}` has no effect on {config.model}: {_TAKEN_BY_NONE[name]}",
                hint=f"leave `{long_option(name)}` out",
            )
    if config.model.startswith("arch:") and keeps_statistics(model):
        progress.warn(
            f"{config.model} keeps the initial means of 0 and variances of 1 in its batch norms, so it "
            "learns slowly; use pretrained weights if available"
        )


def _check_apart(config: FinetuneConfig, header: Header) -> None:
    """Refuse batches of members' own where there are no members, or where they run as one at first."""
    if not config.has_own_batches:
        return
    if header.plan is None:
        raise UsageError(
            f"`--batches own`: {config.model} is a {header.kind}, but only members of a hydra can have their own batches",
            hint="leave it out",
        )
    if header.plan.trunk > 0:
        raise UsageError(
            f"`--batches own`: members of {config.model} share {counted(header.plan.trunk, 'block')}, "
            "which run once on one common batch",
            hint="leave it out, or fuse with `--own-from 0`",
        )


def _check_repulsion(config: FinetuneConfig, header: Header, how: Reading) -> None:
    """Refuse repulsion without several members, or of texts."""
    if config.repulsion is None:
        return
    if header.plan is None:
        raise UsageError(
            f"`--repulsion`: {config.model} is a {header.kind}, but only members of a hydra can be pushed apart",
            hint="leave it out, or `hydractl fuse` members first",
        )
    if isinstance(how, Tokenization):
        raise UsageError(
            f"`--repulsion`: {config.model} reads texts, but only patches of images can be permuted",
            hint="leave it out",
        )


def open_training(config: FinetuneConfig, header: Header) -> Training:
    """Return the way of training that the options select."""
    training: Training = load(config.extension.training)(config, header)
    return training


def trained_names(opened: OpenModel, training: Training) -> tuple[str, ...]:
    """Return the names of the tensors that training changes. They follow from the header.

    Raises:
        UsageError: If there are none.
    """
    config, header = training.config, opened.header
    recipe = config.recipe
    if recipe.trains_own_parts and header.plan is None:
        raise UsageError(
            f"`--train own`: {config.model} is a {header.kind}, but only members of a hydra have weights of their own",
            hint=f"leave out `own`, or choose from {', '.join(PARTS)}",
        )
    family = opened.family
    models = [family.build(header.architecture, mask, None) for mask in header.masks]
    states = [model.library_state() for model in models]
    with_elements = {n: t for state in states for n, t in state.items() if t.numel()}
    if recipe.trains_own_parts and header.plan is not None:
        fates = header.plan.fates
        if Fate.GROUPED not in fates.values():
            raise UsageError(
                f"`--train own`: members of {config.model} share all weights",
                hint="fuse with `--own-from L` to give each member its own blocks from L on, readout and head",
            )
        with_elements = {n: t for n, t in with_elements.items() if fates[n] == Fate.GROUPED}
    names = trainable(family, header.architecture, recipe, with_elements)
    return training.select(family, models[0], states[0], names)


def _training(items: Items, header: Header, progress: Progress) -> tuple[LabelledItems, Header]:
    """Return the training data, and the header with their names for classes that have none."""
    number = header.num_classes
    table = match_classes(items, header.labels, num_classes=number, called="`--data`", progress=progress)
    labels = filled_names(header.labels, items.class_names, table, number)
    training = LabelledItems(
        items=items, labels=model_labels(items, table, "--data", architecture=header.architecture)
    )
    return training, header.model_copy(update={"labels": labels})


def _validation(items: Items, trained: Items, header: Header, progress: Progress) -> LabelledItems:
    """Return the validation data; a class that the training data do not have is never taken for one that they have."""
    check_labels(items, "--val", task=header.architecture.task)
    known_names = {folded(name) for name in (*trained.class_names, *header.labels)}
    strange = [name for name in items.class_names if folded(name) not in known_names]
    try:
        table = match_classes(
            items,
            header.labels,
            num_classes=header.num_classes,
            by_text=bool(strange),
            called="`--val`",
            progress=progress,
        )
    except DataError as error:
        if not strange:
            raise
        raise DataError(
            f"`--val {items.name}`: has classes that `--data {trained.name}` does not have: {first_names(strange)}",
            hint="use the same names, or select the classes of `--data` with `::classes=`",
        ) from error
    return LabelledItems(
        items=items, labels=model_labels(items, table, "--val", architecture=header.architecture)
    )


def _data_inputs(trained: Items, validated: Items, progress: Progress) -> tuple[SampledFile, SampledFile]:
    """Return the data's lineage entries. Warns about samples of both."""
    read = [identified(items, map(items.item_digest, range(len(items)))) for items in (trained, validated)]
    (_, data), (_, content) = read
    if twice := overlap("--val", content, "--data", data):
        progress.warn(
            f"{twice}: validation accuracy and NLL will be too good, and the learning rate and weights "
            "are selected on data that the model was trained on"
        )
    training, validation = (
        SampledFile(name=items.name, sha256=sha256, samples=pack(content))
        for items, (sha256, content) in zip((trained, validated), read, strict=True)
    )
    return training, validation
