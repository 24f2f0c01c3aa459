"""Plan of a training, and checks of headers and labels before any computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hydractl import progress
from hydractl.data.batches import check_augment, with_max_length, with_shorter_texts
from hydractl.data.datasets import Dataset, ItemPreprocess, TextSet
from hydractl.data.labels import check_labels, filled_names, first_names, match_classes, model_labels
from hydractl.data.reference import folded
from hydractl.data.words import by_word, check_answerable
from hydractl.errors import DataError, UsageError
from hydractl.families.finite import warn_temperature
from hydractl.families.open_model import OpenModel, open_model
from hydractl.manifest.document import pack_digests
from hydractl.manifest.header import Fate, Header, InputFile, SampledFile, Tokenization
from hydractl.messages import counted
from hydractl.prediction.open_inputs import check_image_size, identify, overlap, override_preprocessing
from hydractl.settings import long_option
from hydractl.training.dropout import HAS_LAYERS_FOR
from hydractl.training.feeding import Mixing
from hydractl.training.losses import Repulsion
from hydractl.training.optimizers import reset_head, trainable
from hydractl.training.recipe import FOR_IMAGES, PARTS, RECIPES, Recipe
from hydractl.training.trainable import TrainableModel, Training
from hydractl.training.trainer import keeps_statistics

EVAL_BATCH = 256
"""Number of samples in a batch of validation data. Chosen by hand; 512 doubles the memory of activations
during validation and does not change the metrics."""
_TAKEN_BY_NONE = {
    "dropout": "the model has no dropout, except for attention weights",
    "drop_path": "the model has one block, and stochastic depth never skips the first",
}
"""Why a dropout setting has no effect on a model without suitable layers, by the name of the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Model, data and settings of one training, known before any computation.

    Attributes:
        model_file: The model; its header has the classes of the data.
        preprocess: Preprocessing of this run.
        training: Training method, with recipe and seed.
        names: Names of the tensors to train.
        train: Training data.
        train_labels: Classes of the model from `model_labels`, shape (N,), or (N, Q) for Q labels or words.
        val: Validation data.
        val_labels: Labels of the validation data, with the same axes.
        teachers: Opened teachers.
        repulsion: Penalty on members with equal predictions, or None.
        zeroes_head: Whether the classifier is zero at the start of training.
        mixing: Mixing of the samples of a batch, or None.
    """

    model_file: OpenModel
    preprocess: ItemPreprocess
    training: Training
    names: tuple[str, ...]
    train: Dataset
    train_labels: Tensor
    val: Dataset
    val_labels: Tensor
    teachers: tuple[OpenModel, ...]
    repulsion: Repulsion | None
    zeroes_head: bool
    mixing: Mixing | None

    @property
    def header(self) -> Header:
        """Header of the model, with the classes of the data."""
        return self.model_file.header

    @property
    def recipe(self) -> Recipe:
        """Recipe of the training method."""
        return self.training.recipe

    @property
    def trains_head(self) -> bool:
        """Whether only the classifiers train."""
        return self.recipe.parts == ("head",)

    def initial_tensors(self) -> dict[str, Tensor]:
        """Return the tensors at the start of training, with a classifier of zeros if `zeroes_head`."""
        state = self.model_file.checkpoint.tensors()
        return reset_head(self.model_file.family, state) if self.zeroes_head else state

    def load(self) -> TrainableModel:
        """Load the model in fp32. Only tensors named in `names` require gradients."""
        subject = self.training.load(
            self.model_file.family, self.header, self.initial_tensors(), place=self.model_file.reference
        )
        for state in subject.states:
            for name, tensor in state.items():
                tensor.requires_grad_(name in self.names)
        return subject

    def build(self) -> TrainableModel:
        """Return the model at the start of training, changed by the training method: for example with LoRA."""
        return self.training.build(self.load(), self.names)

    def inputs(self) -> tuple[InputFile, ...]:
        """Return the lineage entries of model, training data, validation data and teachers, in this order.

        Warns of samples in both training and validation data.

        Raises:
            DataError: If an item cannot be read.
        """
        sets = (self.train, self.val)
        read = [identify(dataset, map(dataset.item_digest, range(len(dataset)))) for dataset in sets]
        if twice := overlap("--val", read[1][1], "--train", read[0][1]):
            progress.warn(
                f"{twice}: validation accuracy and NLL will be too good, and the learning rate and weights "
                "are selected on data that the model was trained on"
            )
        files = (
            SampledFile(name=dataset.name, sha256=sha256, samples=pack_digests(content))
            for dataset, (sha256, content) in zip(sets, read, strict=True)
        )
        return (self.model_file.as_input(), *files, *(teacher.as_input() for teacher in self.teachers))

    def announce(self) -> None:
        """Report the model, the data, the number of steps and the teachers.

        Warns if model and teacher are the same, or if training makes the model's temperature invalid.

        Raises:
            UsageError: If the recipe does not fit the number of steps.
        """
        teachers, name = self.teachers, self.model_file.reference
        if len(teachers) == 1 and teachers[0].checkpoint.digest == self.model_file.checkpoint.digest:
            progress.warn(
                f"{name} is its own teacher: its predictions match the teacher from the start, "
                "which weakens the effect of the labels"
            )
        warn_temperature(self.model_file)
        steps = self.recipe.total_steps(-(-len(self.train) // self.recipe.batch_size))
        taught = f", taught by {', '.join(t.name for t in teachers)}" if teachers else ""
        progress.step(
            f"Training `{self.model_file.name}` on {len(self.train)} {self.train.content} for {counted(steps, 'step')}, "
            f"validating on {len(self.val)}{taught}"
        )


def open_student(
    reference: str, *, arch: str | None = None, seed: int = 0, image_options: Mapping[str, Any]
) -> OpenModel:
    """Open the model to train.

    Args:
        reference: See `hydractl.model_source`.
        arch: Architecture of a file without a header, or None.
        seed: Seed of random weights.
        image_options: See `override_preprocessing`.

    Raises:
        InputError: If the model cannot be read.
        UsageError: If the model is a zero-shot model, does not accept the image options, or has a header
            although `arch` is given.
    """
    model_file = open_model(reference, arch=arch, seed=seed, backbone=True)
    check_classes(model_file)
    header = override_preprocessing(model_file.header, image_options, place=reference)
    check_image_size(header, place=reference)
    return replace(model_file, header=header)


def check_classes(model_file: OpenModel) -> None:
    """Raise if a model has no classes to train on.

    Raises:
        UsageError: If the model is a zero-shot model.
    """
    if model_file.header.prompting is not None:
        raise UsageError(
            f"{model_file.reference}: is a zero-shot model without classes to train on",
            hint="prune and fuse zero-shot models without training",
        )


def run_preprocessing(
    model_file: OpenModel, recipe: Recipe, *, recipe_name: str | None, max_length: int | None
) -> ItemPreprocess:
    """Return the preprocessing of this run.

    Args:
        model_file: The model.
        recipe: The recipe.
        recipe_name: Name of the recipe before overrides, or None.
        max_length: Maximum number of tokens from the command line. With None, texts have at most the number
            of tokens of the recipe and of the model.

    Raises:
        UsageError: If the model does not accept this number of tokens, the augmentations are unknown or not
            for this model, or the model reads texts and the recipe is for images.
    """
    stored, name = model_file.header.preprocess, model_file.reference
    preprocess = with_max_length(stored, max_length, model=name)
    if max_length is None:
        preprocess = with_shorter_texts(preprocess, recipe.max_length)
    if recipe_name is not None and isinstance(preprocess, Tokenization):
        named = RECIPES[recipe_name]
        if any(getattr(named, n) and getattr(named, n) == getattr(recipe, n) for n in FOR_IMAGES):
            others = [n for n, model in RECIPES.items() if not any(getattr(model, f) for f in FOR_IMAGES)]
            raise UsageError(
                f"`--recipe {recipe_name}` is for images, but {name} reads texts",
                hint=f"recipes for texts: {', '.join(others)}",
            )
    check_augment(preprocess, recipe.augment)
    return preprocess


def by_words(
    model_file: OpenModel, dataset: Dataset, preprocess: ItemPreprocess
) -> tuple[Dataset, ItemPreprocess]:
    """Split texts into words if each word has a label, with the tokenizer of the model.

    Args:
        model_file: The model, with its final classifier.
        dataset: The data.
        preprocess: Preprocessing of this run.

    Returns:
        Data and preprocessing; unchanged for images and for texts with one label.

    Raises:
        DataError: If a text has no word that the model can label.
    """
    if not isinstance(preprocess, Tokenization) or not dataset.task.by_word:
        return dataset, preprocess
    preprocess = preprocess.model_copy(
        update=dict(model_file.header.preprocess) | {"max_length": preprocess.max_length}
    )
    return check_answerable(by_word(dataset, preprocess)), preprocess


def check_members(
    model_file: OpenModel, preprocess: ItemPreprocess, *, own_batches: bool, repulsion: bool
) -> None:
    """Raise if own batches or repulsion are requested for an unsuitable model.

    Own batches need a hydra without a shared trunk. Repulsion needs a hydra for images.

    Raises:
        UsageError: If an option does not fit the model.
    """
    name, kind, plan = model_file.reference, model_file.header.kind, model_file.header.plan
    trunk = 0 if plan is None else plan.trunk
    for refused, error in (
        (
            own_batches and plan is None,
            UsageError(
                f"`--batches own`: {name} is a {kind}, but only members of a hydra can have their own batches",
                hint="leave it out",
            ),
        ),
        (
            own_batches and trunk > 0,
            UsageError(
                f"`--batches own`: members of {name} share {counted(trunk, 'block')}, which run once on one common batch",
                hint="leave it out, or fuse with `--trunk 0 --own-blocks`",
            ),
        ),
        (
            repulsion and plan is None,
            UsageError(
                f"`--repulsion`: {name} is a {kind}, but only members of a hydra can be pushed apart",
                hint="leave it out, or `hydractl fuse` members first",
            ),
        ),
        (
            repulsion and isinstance(preprocess, Tokenization),
            UsageError(
                f"`--repulsion`: {name} reads texts, but only patches of images can be permuted",
                hint="leave it out",
            ),
        ),
    ):
        if refused:
            raise error


def trained_names(model_file: OpenModel, training: Training) -> tuple[str, ...]:
    """Return the names of the tensors to train. Only the header is read.

    Raises:
        UsageError: If no tensor would train, the model has fewer blocks than the recipe names, or `--train
            own` is given for a model without tensors of single members.
    """
    header, recipe, family = model_file.header, training.recipe, model_file.family
    if recipe.trains_own_parts and header.plan is None:
        raise UsageError(
            f"`--train-parts own`: {training.model} is a {header.kind}, but only members of a hydra have weights of their own",
            hint=f"leave out `own`, or choose from {', '.join(PARTS)}",
        )
    models = [family.build(header.architecture, mask, None) for mask in header.masks]
    states = [model.library_state() for model in models]
    with_elements = {n: t for state in states for n, t in state.items() if t.numel()}
    if recipe.trains_own_parts and header.plan is not None:
        fates = header.plan.fates
        if Fate.GROUPED not in fates.values():
            raise UsageError(
                f"`--train-parts own`: members of {training.model} share all weights",
                hint="fuse with `--trunk N --own-blocks` to give each member its own readout, head and blocks after the first N",
            )
        with_elements = {n: t for n, t in with_elements.items() if fates[n] == Fate.GROUPED}
    names = trainable(family, header.architecture, recipe, with_elements)
    return training.select(family, models[0], states[0], names)


def check_layers(model_file: OpenModel, recipe: Recipe, *, recipe_name: str | None) -> None:
    """Raise if a dropout setting has no effect on the model, unless the rate is that of the named recipe.

    Warns if a model with random weights has batch norms, whose statistics do not change in training.

    Args:
        model_file: The model.
        recipe: The recipe.
        recipe_name: Name of the recipe before overrides, or None.

    Raises:
        UsageError: If a rate has no effect.
    """
    header = model_file.header
    model = model_file.family.build(header.architecture, header.masks[0], None)
    named = Recipe() if recipe_name is None else RECIPES[recipe_name]
    for name, has_layers in HAS_LAYERS_FOR.items():
        rate = getattr(recipe, name)
        if rate and rate != getattr(named, name) and not has_layers(model):
            raise UsageError(
                f"`{long_option(name)} {rate:g}` has no effect on {model_file.reference}: {_TAKEN_BY_NONE[name]}",
                hint=f"leave `{long_option(name)}` out",
            )
    if model_file.is_random and keeps_statistics(model):
        progress.warn(
            f"{model_file.reference} keeps the initial means of 0 and variances of 1 in its batch norms, so it "
            "learns slowly; use pretrained weights if available"
        )


def training_labels(
    model_file: OpenModel, dataset: Dataset, preprocess: ItemPreprocess
) -> tuple[Tensor, OpenModel, ItemPreprocess]:
    """Return the labels of the training data as classes of the model, with the updated model.

    Classes of the model without a name get the names of the data. Preprocessing is set to pairs or single
    texts, like the data.

    Returns:
        Labels of shape (N,), or (N, Q) for Q labels or words; the model with the new header; the
        preprocessing of this run.

    Raises:
        DataError: If the labels do not fit the model.
    """
    header = model_file.header
    table = match_classes(dataset, header.labels, num_classes=header.num_classes, data_name="`--train`")
    update: dict[str, object] = {
        "labels": filled_names(header.labels, dataset.class_names, table, header.num_classes)
    }
    labels = model_labels(dataset, table, "--train", architecture=header.architecture)
    if (
        isinstance(preprocess, Tokenization)
        and isinstance(dataset, TextSet)
        and dataset.task.has_one_question
    ):
        pairs = {"pairs": not isinstance(dataset.texts[0], str)}
        preprocess = preprocess.model_copy(update=pairs)
        update["preprocess"] = header.preprocess.model_copy(update=pairs)
    return labels, replace(model_file, header=header.model_copy(update=update)), preprocess


def validation_labels(model_file: OpenModel, dataset: Dataset, trained: Dataset) -> Tensor:
    """Return the labels of the validation data as classes of the model.

    If the validation data has a class name unknown to model and training data, classes are matched by name
    only. Matching in order would confuse the unknown class with a known class.

    Args:
        model_file: The model, with the classes of the training data.
        dataset: Validation data.
        trained: Training data.

    Raises:
        DataError: If the labels do not fit.
    """
    header = model_file.header
    check_labels(dataset, "--val", task=header.architecture.task)
    known_names = {folded(name) for name in (*trained.class_names, *header.labels)}
    strange = [name for name in dataset.class_names if folded(name) not in known_names]
    try:
        table = match_classes(
            dataset, header.labels, num_classes=header.num_classes, by_text=bool(strange), data_name="`--val`"
        )
    except DataError as error:
        if not strange:
            raise
        raise DataError(
            f"`--val {dataset.name}`: has classes that `--train {trained.name}` does not have: {first_names(strange)}",
            hint="use the same names, or select the classes of `--train` with `::classes=`",
        ) from error
    return model_labels(dataset, table, "--val", architecture=header.architecture)
