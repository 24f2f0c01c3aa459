"""Choice of the classifier before training: the model's own, or a new one for the classes of the data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hydractl import progress
from hydractl.checkpoint import Checkpoint
from hydractl.data.datasets import Dataset
from hydractl.data.labels import match_classes, nameless, names_agree, names_all, new_names
from hydractl.errors import DataError, UsageError
from hydractl.families.base import Described, answering, place_of
from hydractl.families.open_model import CLASSES, OpenModel, asked_number, with_classifier
from hydractl.fusion.build import member_headers
from hydractl.fusion.plan import join_members
from hydractl.manifest.header import Fate, Header, Tokenization
from hydractl.manifest.terms import DEFAULT_POOLING
from hydractl.manifest.tokenizers import with_leading_blank
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
    opened: OpenModel, dataset: Dataset, recipe: Recipe, request: ClassifierRequest
) -> OpenModel:
    """Return a model whose classifier has the classes of the data.

    The model's own classifier stays if the requested pooling, the task and the number of classes fit, and if
    class names are equal or missing.

    Args:
        opened: The model.
        dataset: Training data.
        recipe: Recipe with `reset_head` and the parts to train.
        request: Requested properties of the classifier.

    Raises:
        UsageError: If options contradict the model or each other.
        DataError: If the data has more classes than requested, or does not fit the classifier with
            `--keep-head`.
    """
    before, pooling = opened.header.architecture, _pooling(opened, dataset, recipe, request.pooling)
    head_seed = request.head_seed
    reads_as_asked = not opened.lacks and pooling == (before.pooling or DEFAULT_POOLING)
    if recipe.reset_head is False:
        _check_kept(opened, dataset, request, reads_as_asked=reads_as_asked)
        return opened
    number = _number(opened, dataset, request.number)
    fits = (
        reads_as_asked
        and number == before.num_classes
        and dataset.task is before.task
        and names_agree(dataset, opened.header.labels, number)
    )
    draws_anew = head_seed is not None and (recipe.reset_head or opened.is_random)
    if recipe.trains_own_parts and (recipe.reset_head or not fits) and _shares_head(opened):
        raise UsageError(
            f"`--train own`: members of {opened.reference} share their classifier, so a new one would not be trained",
            hint="leave out `own`, or fuse with `--own-from`",
        )
    if fits and not draws_anew:
        if head_seed is not None:
            raise UsageError(
                f"`--head-seed {head_seed}` has no effect: {opened.reference} already has a classifier",
                hint="leave `--head-seed` out, or add `--reset-head` for a new classifier",
            )
        if recipe.reset_head and not opened.is_random:
            progress.step("A classifier of zeros in place of the model's own")
        return opened
    if "head" not in recipe.parts and not opened.is_random:
        raise UsageError(
            f"{opened.reference} gets a new classifier, which `--train {','.join(recipe.train)}` does not train",
            hint="add `head` to `--train`",
        )
    if not (fits and opened.is_random):
        progress.step(_classifier_text(opened, number, dataset, fits=fits))
    labels = opened.header.labels if fits else new_names(dataset.class_names, number)
    members = [
        with_classifier(
            replace(opened, header=member_header),
            number,
            labels=labels,
            seed=request.seed + i,
            head_seed=None if head_seed is None else head_seed + i,
            pooling=pooling,
        )
        for i, member_header in enumerate(member_headers(_answering(opened.header, dataset.task)))
    ]
    return members[0] if opened.header.plan is None else _rejoined(opened, members)


def _rejoined(opened: OpenModel, members: list[OpenModel]) -> OpenModel:
    """Return a hydra with the classifiers of its members. New tensors are grouped, one per member."""
    first, specs, header = members[0], opened.checkpoint.specs, opened.header
    stored = {} if header.plan is None else header.plan.fates
    fates = {name: stored.get(name, Fate.GROUPED) for name in first.checkpoint.specs}
    drawn_fates = {
        n: f for n, f in fates.items() if n not in specs or place_of(opened.family, n).part == "head"
    }
    states = [{name: member.checkpoint.tensor(name) for name in drawn_fates} for member in members]
    fresh = Checkpoint.of(join_members(opened.family, drawn_fates, states))
    kept_specs = {n: s for n, s in specs.items() if n in fates and n not in drawn_fates}
    changes = {
        "architecture": first.header.architecture,
        "preprocess": first.header.preprocess,
        "labels": first.header.labels,
        "plan": header.plan and header.plan.model_copy(update={"fates": fates}),
    }
    return replace(
        opened,
        checkpoint=replace(opened.checkpoint, specs=kept_specs).joined(fresh),
        header=header.model_copy(update=changes),
    )


def _answering(header: Header, task: Task) -> Header:
    """Return a header for a model that predicts the labels of a task."""
    described = answering(Described(architecture=header.architecture, preprocess=header.preprocess), task)
    how = described.preprocess
    if task.by_word and not header.architecture.task.by_word and isinstance(how, Tokenization):
        how = how.model_copy(update={"tokenizer": how.tokenizer and with_leading_blank(how.tokenizer)})
    return header.model_copy(update={"architecture": described.architecture, "preprocess": how})


def _shares_head(opened: OpenModel) -> bool:
    """Return whether the model is a hydra with one classifier for all members."""
    plan, family = opened.header.plan, opened.family
    return plan is not None and not any(
        fate == Fate.GROUPED and place_of(family, name).part == "head" for name, fate in plan.fates.items()
    )


def _pooling(opened: OpenModel, dataset: Dataset, recipe: Recipe, pooling: str | None) -> str:
    """Return the pooling of the classifier: as requested, else of the folder, else of the model."""
    header, by_word = opened.header, dataset.task.by_word
    if pooling not in {None, DEFAULT_POOLING} and by_word:
        raise UsageError(
            f"`--pooling {pooling}`: each word has a label, so its classifier pools nothing",
            hint="leave `--pooling` out",
        )
    if pooling not in {None, DEFAULT_POOLING} and not isinstance(header.preprocess, Tokenization):
        raise UsageError(
            f"`--pooling {pooling}` is for texts, but {opened.reference} reads images",
            hint="leave it out; an image model uses the pooling of its family",
        )
    if by_word or pooling is not None:
        return pooling or DEFAULT_POOLING
    if opened.pools is not None and recipe.reset_head is not False:
        progress.step(POOLED.format(pooling=opened.pools))
        return opened.pools
    return header.architecture.pooling or DEFAULT_POOLING


def _check_kept(
    opened: OpenModel, dataset: Dataset, request: ClassifierRequest, *, reads_as_asked: bool
) -> None:
    """Raise if the classifier is missing, or does not fit the request or the data.

    If the classifier has class names, the data must have the same names. Matching classes in order would
    train classes under wrong names.
    """
    name, labels, architecture = opened.reference, opened.header.labels, opened.header.architecture
    for refused, error in (
        (
            architecture.task is not dataset.task,
            UsageError(
                f"`--keep-head`: `--data {dataset.name}` has {dataset.task.labels}, but {name} answers {architecture.task.labels}",
                hint="leave `--keep-head` out for a new classifier",
            ),
        ),
        (
            opened.lacks,
            UsageError(f"`--keep-head`: {name} {opened.lacks}", hint="leave `--keep-head` out"),
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
    number = opened.header.num_classes
    try:
        with progress.reporting(progress.SILENT):  # The same messages appear later, when the labels are read.
            match_classes(dataset, labels, num_classes=number, by_text=not nameless(labels))
    except DataError as error:
        raise DataError(
            f"`--keep-head`: `--data {dataset.name}` has {_classes(len(dataset.class_names), dataset.class_names)}, but "
            f"{name} has {_classes(number, labels)}",
            hint="leave `--keep-head` out for a new classifier, rename the data's classes to the "
            "model's with `::map=OLD:NEW,...`, or select some of them with `::classes=`",
        ) from error


def _number(opened: OpenModel, dataset: Dataset, option_number: int | None) -> int:
    """Return the number of classes of the model: the requested number, or the number in the data."""
    model_number, data_number, name = asked_number(opened), len(dataset.class_names), opened.reference
    key = CLASSES[opened.family.library]
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
    stored_number = opened.header.num_classes if names_all(dataset, opened.header.labels) else None
    return number or stored_number or data_number


def _classifier_text(opened: OpenModel, number: int, dataset: Dataset, *, fits: bool) -> str:
    """Return the message about a new classifier, with the reason."""
    new = f"A new classifier for {_classes(number, dataset.class_names)}"
    if dataset.task is not SINGLE_LABEL:
        new += f", {dataset.task.answer}"
    if opened.lacks:
        return f"{new}; {opened.reference}: {opened.lacks}"
    had = opened.header.architecture.num_classes
    reason = (
        ""
        if opened.is_random
        else ", in place of the model's own"
        if fits
        else f", the model had {had} classes"
        if had != number
        else ", the model's has other inputs or other classes"
    )
    return new + reason


def _classes(number: int, names: tuple[str, ...]) -> str:
    """Return the number of classes with the first names, for a message."""
    unnamed = (f"{number - len(names)} unnamed",) if number > len(names) else ()
    first_names = ", ".join((*names[:MAX_SHOWN], *(("...",) if len(names) > MAX_SHOWN else ()), *unnamed))
    return counted(number, "class", "classes") + (f" ({first_names})" if names else "")
