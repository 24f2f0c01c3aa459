"""Choice of the classifier before training: the model's own, or a new one for the classes of the data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hydractl import progress
from hydractl.checkpoint import Checkpoint
from hydractl.data.datasets import Dataset
from hydractl.data.labels import match_classes, nameless, names_agree, names_all, new_names
from hydractl.errors import DataError, UsageError
from hydractl.families.base import ModelDescription, position_of, with_task
from hydractl.families.open_model import CLASSES, OpenModel, requested_classes, with_classifier
from hydractl.fusion.build import member_headers
from hydractl.fusion.plan import join_members
from hydractl.manifest.header import Fate, Header, Tokenization
from hydractl.manifest.terms import DEFAULT_POOLING
from hydractl.manifest.tokenizers import with_leading_space
from hydractl.messages import counted
from hydractl.prediction.class_names import POOLED
from hydractl.tasks import SINGLE_LABEL, Task
from hydractl.training.recipe import Recipe

MAX_SHOWN = 5
"""Maximum number of class names in a message. Chosen by hand for one line; 10 would often need two lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierRequest:
    """Requested properties of the classifier.

    Attributes:
        number: Number of classes; None for the number of the model or the data.
        pooling: Pooling of texts; None for the pooling of the model.
        seed: Seed of the run.
        head_seed: Seed of a new classifier; None for `seed`.
    """

    number: int | None
    pooling: str | None
    seed: int
    head_seed: int | None


def fit_classifier(
    model_file: OpenModel, dataset: Dataset, recipe: Recipe, request: ClassifierRequest
) -> OpenModel:
    """Return a model whose classifier has the classes of the data.

    The model's own classifier stays if the requested pooling, the task and the number of classes fit, and if
    class names are equal or missing. With `Recipe.reset_head`, the weights of this classifier become zero
    later (`TrainingPlan.zeroes_head`), or are drawn again if `head_seed` is given.

    Args:
        model_file: The model.
        dataset: Training data.
        recipe: Recipe with `reset_head` and the parts to train.
        request: Requested properties of the classifier.

    Raises:
        UsageError: If options contradict the model or each other.
        DataError: If the data has more classes than requested, or does not fit the classifier with
            `--keep-head`.
        UnsupportedModelError: If words have labels, and the model cannot label words.
    """
    before, pooling = model_file.header.architecture, _pooling(model_file, dataset, recipe, request.pooling)
    head_seed = request.head_seed
    reads_as_asked = not model_file.lacks and pooling == (before.pooling or DEFAULT_POOLING)
    if recipe.reset_head is False:
        _check_kept(model_file, dataset, request, reads_as_asked=reads_as_asked)
        return model_file
    number = _number(model_file, dataset, request.number)
    fits = (
        reads_as_asked
        and number == before.num_classes
        and dataset.task is before.task
        and names_agree(dataset, model_file.header.labels, number)
    )
    draws_anew = head_seed is not None and (recipe.reset_head or model_file.is_random)
    if recipe.trains_own_parts and (recipe.reset_head or not fits) and _shares_head(model_file):
        raise UsageError(
            f"`--train-parts own`: members of {model_file.reference} share their classifier, so a new one would not be trained",
            hint="leave out `own`, or fuse with `--own-blocks`",
        )
    if fits and not draws_anew:
        if head_seed is not None:
            raise UsageError(
                f"`--head-seed {head_seed}` has no effect: {model_file.reference} already has a classifier",
                hint="leave `--head-seed` out, or add `--reset-head` for a new classifier",
            )
        if recipe.reset_head and not model_file.is_random:
            progress.step("A classifier of zeros in place of the model's own")
        return model_file
    if "head" not in recipe.parts and not model_file.is_random:
        raise UsageError(
            f"{model_file.reference} gets a new classifier, which `--train-parts {','.join(recipe.train_parts)}` does not train",
            hint="add `head` to `--train-parts`",
        )
    if not (fits and model_file.is_random):
        progress.step(_classifier_text(model_file, number, dataset, fits=fits))
    labels = model_file.header.labels if fits else new_names(dataset.class_names, number)
    members = [
        with_classifier(
            replace(model_file, header=member_header),
            number,
            labels=labels,
            seed=request.seed + i,
            head_seed=None if head_seed is None else head_seed + i,
            pooling=pooling,
        )
        for i, member_header in enumerate(member_headers(_answering(model_file.header, dataset.task)))
    ]
    return members[0] if model_file.header.plan is None else _rejoined(model_file, members)


def _rejoined(model_file: OpenModel, members: list[OpenModel]) -> OpenModel:
    """Return a hydra with the classifiers of its members. New tensors are grouped, one per member."""
    first, specs, header = members[0], model_file.checkpoint.specs, model_file.header
    stored = {} if header.plan is None else header.plan.fates
    fates = {name: stored.get(name, Fate.GROUPED) for name in first.checkpoint.specs}
    drawn_fates = {
        n: f for n, f in fates.items() if n not in specs or position_of(model_file.family, n).part == "head"
    }
    states = [{name: member.checkpoint.tensor(name) for name in drawn_fates} for member in members]
    fresh = Checkpoint.of(join_members(model_file.family, drawn_fates, states))
    kept_specs = {n: s for n, s in specs.items() if n in fates and n not in drawn_fates}
    changes = {
        "architecture": first.header.architecture,
        "preprocess": first.header.preprocess,
        "labels": first.header.labels,
        "plan": header.plan and header.plan.model_copy(update={"fates": fates}),
    }
    return replace(
        model_file,
        checkpoint=replace(model_file.checkpoint, specs=kept_specs).joined(fresh),
        header=header.model_copy(update=changes),
    )


def _answering(header: Header, task: Task) -> Header:
    """Return a header for a model that predicts the labels of a task.

    Raises:
        UnsupportedModelError: If the task labels words, and the model reads images or has a single logit.
    """
    described = with_task(
        ModelDescription(architecture=header.architecture, preprocess=header.preprocess), task
    )
    preprocess = described.preprocess
    if task.by_word and not header.architecture.task.by_word and isinstance(preprocess, Tokenization):
        preprocess = preprocess.model_copy(
            update={"tokenizer": preprocess.tokenizer and with_leading_space(preprocess.tokenizer)}
        )
    return header.model_copy(update={"architecture": described.architecture, "preprocess": preprocess})


def _shares_head(model_file: OpenModel) -> bool:
    """Return whether the model is a hydra with one classifier for all members."""
    plan, family = model_file.header.plan, model_file.family
    return plan is not None and not any(
        fate == Fate.GROUPED and position_of(family, name).part == "head" for name, fate in plan.fates.items()
    )


def _pooling(model_file: OpenModel, dataset: Dataset, recipe: Recipe, pooling: str | None) -> str:
    """Return the pooling of the classifier.

    The order of precedence is: the request; the `1_Pooling` folder of a sentence encoder, unless the
    classifier is kept; the model. A classifier of words has the default pooling.

    Raises:
        UsageError: If a pooling is requested for words or images.
    """
    header, by_word = model_file.header, dataset.task.by_word
    if pooling not in {None, DEFAULT_POOLING} and by_word:
        raise UsageError(
            f"`--pooling {pooling}`: each word has a label, so its classifier pools nothing",
            hint="leave `--pooling` out",
        )
    if pooling not in {None, DEFAULT_POOLING} and not isinstance(header.preprocess, Tokenization):
        raise UsageError(
            f"`--pooling {pooling}` is for texts, but {model_file.reference} reads images",
            hint="leave it out; an image model uses the pooling of its family",
        )
    if by_word or pooling is not None:
        return pooling or DEFAULT_POOLING
    if model_file.pools is not None and recipe.reset_head is not False:
        progress.step(POOLED.format(pooling=model_file.pools))
        return model_file.pools
    return header.architecture.pooling or DEFAULT_POOLING


def _check_kept(
    model_file: OpenModel, dataset: Dataset, request: ClassifierRequest, *, reads_as_asked: bool
) -> None:
    """Raise if `--keep-head` has no classifier to keep, or it does not fit the request or the data.

    If the classifier has class names, each data class must have a name or an index of the classifier, unless
    `::classes-by=` is given. Matching classes in order would train classes under wrong names.

    Args:
        model_file: The model.
        dataset: Training data.
        request: Requested properties of the classifier.
        reads_as_asked: Whether the requested pooling is the pooling of the model's classifier.

    Raises:
        UsageError: If the classifier is missing, or has another task, pooling or number of classes.
        DataError: If the classes of the data do not match.
    """
    name, labels, architecture = (
        model_file.reference,
        model_file.header.labels,
        model_file.header.architecture,
    )
    for refused, error in (
        (
            architecture.task is not dataset.task,
            UsageError(
                f"`--keep-head`: `--train {dataset.name}` has {dataset.task.labels}, but {name} answers {architecture.task.labels}",
                hint="leave `--keep-head` out for a new classifier",
            ),
        ),
        (
            model_file.lacks,
            UsageError(f"`--keep-head`: {name} {model_file.lacks}", hint="leave `--keep-head` out"),
        ),
        (
            not reads_as_asked,
            UsageError(
                f"`--keep-head`: the classifier of {name} does not fit `--pooling {request.pooling}`",
                hint="leave one of them out",
            ),
        ),
        (
            request.number not in {None, architecture.num_classes},
            UsageError(
                f"`--keep-head`: the classifier of {name} has {architecture.num_classes} classes, not {request.number}",
                hint="leave `--keep-head` or `--num-classes` out",
            ),
        ),
    ):
        if refused:
            raise error
    number = model_file.header.num_classes
    try:
        with progress.reporting(progress.SILENT):  # The same messages appear later, when the labels are read.
            match_classes(dataset, labels, num_classes=number, by_text=not nameless(labels))
    except DataError as error:
        raise DataError(
            f"`--keep-head`: `--train {dataset.name}` has {_classes(len(dataset.class_names), dataset.class_names)}, but "
            f"{name} has {_classes(number, labels)}",
            hint="leave `--keep-head` out for a new classifier, rename the data's classes to the "
            "model's with `::map=OLD:NEW,...`, or select some of them with `::classes=`",
        ) from error


def _number(model_file: OpenModel, dataset: Dataset, option_number: int | None) -> int:
    """Return the number of classes of the model.

    The order of precedence is: `--num-classes` or the option in the model's reference; the stored number, if
    model and data have the same class names; the number of classes in the data.

    Raises:
        UsageError: If both options differ.
        DataError: If the data has more classes than requested.
    """
    model_number, data_number, name = (
        requested_classes(model_file),
        len(dataset.class_names),
        model_file.reference,
    )
    key = CLASSES[model_file.family.library]
    if option_number is not None and model_number not in {None, option_number}:
        raise UsageError(
            f"`--num-classes {option_number}` and `{name}` differ",
            hint=f"leave `--num-classes` or `{key}={model_number}` out",
        )
    number = option_number or model_number
    if number is not None and number < data_number:
        raise DataError(
            f"{dataset.name}: has {data_number} classes, but "
            + (f"`{name}` has {number}" if option_number is None else f"`--num-classes {number}` is smaller"),
            hint=f"leave `{key}={number}` out, write `{key}={data_number}`, or select some of the "
            "classes with `::classes=`"
            if option_number is None
            else f"add `--num-classes {data_number}`, or select some of the classes with `::classes=`",
        )
    stored_number = model_file.header.num_classes if names_all(dataset, model_file.header.labels) else None
    return number or stored_number or data_number


def _classifier_text(model_file: OpenModel, number: int, dataset: Dataset, *, fits: bool) -> str:
    """Return the message about a new classifier, with the reason.

    An example is `A new classifier for 2 classes (cat, dog), the model had 10 classes`.
    """
    new = f"A new classifier for {_classes(number, dataset.class_names)}"
    if dataset.task is not SINGLE_LABEL:
        new += f", {dataset.task.answer}"
    if model_file.lacks:
        return f"{new}; {model_file.reference}: {model_file.lacks}"
    had = model_file.header.architecture.num_classes
    reason = (
        ""
        if model_file.is_random
        else ", in place of the model's own"
        if fits
        else f", the model had {had} classes"
        if had != number
        else ", the model's has other inputs or other classes"
    )
    return new + reason


def _classes(number: int, names: tuple[str, ...]) -> str:
    """Return the number of classes with the first names: `2 classes (cat, dog)`."""
    unnamed = (f"{number - len(names)} unnamed",) if number > len(names) else ()
    first_names = ", ".join((*names[:MAX_SHOWN], *(("...",) if len(names) > MAX_SHOWN else ()), *unnamed))
    return counted(number, "class", "classes") + (f" ({first_names})" if names else "")
