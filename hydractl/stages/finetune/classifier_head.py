"""Which classifier is trained: the model's own, or a new one for the classes of the data."""

from __future__ import annotations

from dataclasses import replace

from hydractl.checkpoint import Checkpoint
from hydractl.data.datasets import Items
from hydractl.data.labels import match_classes, nameless, names_agree, names_all, new_names
from hydractl.errors import DataError, UsageError
from hydractl.families.base import DEFAULT_POOLING, Described, answering, place_of
from hydractl.families.load import CLASSES, OpenModel, asked_number, with_classifier
from hydractl.fusion.build import member_headers
from hydractl.fusion.plan import join_members
from hydractl.manifest.header import Fate, Header, Tokenization
from hydractl.manifest.tokenizers import with_leading_blank
from hydractl.messages import counted
from hydractl.progress import Progress
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.shared.zero_shot_classes import POOLED
from hydractl.tasks import SINGLE_LABEL, Task

MAX_SHOWN = 5


def fitted(config: FinetuneConfig, opened: OpenModel, items: Items, progress: Progress) -> OpenModel:
    """Return a model whose classifier tells apart the classes of the data.

    Its own stays where it counts as many classes, knows their names or has none itself, and reads what is asked for.

    Raises:
        UsageError: If options contradict the model or one another.
        DataError: If the data have more classes than were asked for, or do not fit a classifier that is to be kept.
    """
    before, pooling = opened.header.architecture, _pooling(config, opened, items, progress)
    reads_as_asked = not opened.lacks and pooling == (before.pooling or DEFAULT_POOLING)
    if config.recipe.reset_head is False:
        _check_kept(config, opened, items, reads_as_asked=reads_as_asked)
        _check_fits(config, opened, items)
        return opened
    number = _number(config, opened, items)
    fits = (
        reads_as_asked
        and number == before.num_classes
        and items.task is before.task
        and names_agree(items, opened.header.labels, number)
    )
    draws_anew = config.head_seed is not None and (config.recipe.reset_head or opened.is_random)
    if config.recipe.trains_own_parts and (config.recipe.reset_head or not fits) and _shares_head(opened):
        raise UsageError(
            f"`--train own`: members of {config.model} share their classifier, so a new one would not be trained",
            hint="leave out `own`, or fuse with `--own-from`",
        )
    if fits and not draws_anew:
        if config.head_seed is not None:
            raise UsageError(
                f"`--head-seed {config.head_seed}` has no effect: {config.model} already has a classifier",
                hint="leave `--head-seed` out, or add `--reset-head` for a new classifier",
            )
        if config.recipe.reset_head and not opened.is_random:
            progress.step("A classifier of zeros in place of the model's own")
        return opened
    if "head" not in config.recipe.parts and not opened.is_random:
        raise UsageError(
            f"{config.model} gets a new classifier, which `--train {','.join(config.recipe.train)}` does not train",
            hint="add `head` to `--train`",
        )
    if not (fits and opened.is_random):
        progress.step(_classifier_text(opened, number, items, fits=fits))
    labels = opened.header.labels if fits else new_names(items.class_names, number)
    header = _answering(opened.header, items.task)
    return _with_classifiers(
        replace(opened, header=header), config, number=number, labels=labels, pooling=pooling
    )


def _with_classifiers(
    opened: OpenModel,
    config: FinetuneConfig,
    *,
    number: int,
    labels: tuple[str, ...],
    pooling: str,
) -> OpenModel:
    """Return a model with a new classifier; members of a hydra that have one each get one each, of seeds one after another."""
    plan = opened.header.plan
    members = [
        with_classifier(
            replace(opened, header=member_header),
            number,
            labels=labels,
            seed=config.seed + i,
            head_seed=None if config.head_seed is None else config.head_seed + i,
            pooling=pooling,
        )
        for i, member_header in enumerate(member_headers(opened.header))
    ]
    if plan is None:
        return members[0]
    first, specs = members[0], opened.checkpoint.specs
    fates = {name: plan.fates.get(name, Fate.GROUPED) for name in first.checkpoint.specs}
    drawn_fates = {
        n: f for n, f in fates.items() if n not in specs or place_of(opened.family, n).part == "head"
    }
    states = [{name: member.checkpoint.tensor(name) for name in drawn_fates} for member in members]
    fresh = Checkpoint.of(join_members(opened.family, drawn_fates, states))
    kept_checkpoint = replace(
        opened.checkpoint, specs={n: s for n, s in specs.items() if n in fates and n not in drawn_fates}
    )
    changes = {
        "architecture": first.header.architecture,
        "labels": labels,
        "plan": plan.model_copy(update={"fates": fates}),
    }
    return replace(
        opened, checkpoint=kept_checkpoint.joined(fresh), header=opened.header.model_copy(update=changes)
    )


def _answering(header: Header, task: Task) -> Header:
    """Return a header whose model answers a task."""
    described = answering(Described(architecture=header.architecture, preprocess=header.preprocess), task)
    how = described.preprocess
    if task.by_word and not header.architecture.task.by_word and isinstance(how, Tokenization):
        how = how.model_copy(update={"tokenizer": how.tokenizer and with_leading_blank(how.tokenizer)})
    return header.model_copy(update={"architecture": described.architecture, "preprocess": how})


def _shares_head(opened: OpenModel) -> bool:
    """Return whether it is a hydra with one classifier for all members."""
    plan, family = opened.header.plan, opened.family
    return plan is not None and not any(
        fate == Fate.GROUPED and place_of(family, name).part == "head" for name, fate in plan.fates.items()
    )


def _pooling(config: FinetuneConfig, opened: OpenModel, items: Items, progress: Progress) -> str:
    """Return what the classifier is to read: what was asked for, or the folder says, or the model has."""
    header = opened.header
    if items.task.by_word:
        if config.pooling not in {None, DEFAULT_POOLING}:
            raise UsageError(
                f"`--pooling {config.pooling}`: each word has a label, so its classifier pools nothing",
                hint="leave it out",
            )
        return DEFAULT_POOLING
    if config.pooling is not None:
        if config.pooling != DEFAULT_POOLING and not isinstance(header.preprocess, Tokenization):
            raise UsageError(
                f"`--pooling {config.pooling}` is for texts, but {config.model} reads images",
                hint="leave it out; an image model uses the pooling of its family",
            )
        return config.pooling
    if opened.pools is not None and config.recipe.reset_head is not False:
        progress.step(POOLED.format(pooling=opened.pools))
        return opened.pools
    return header.architecture.pooling or DEFAULT_POOLING


def _check_kept(config: FinetuneConfig, opened: OpenModel, items: Items, *, reads_as_asked: bool) -> None:
    """Refuse to keep a classifier that is not there, or is not the one that was asked for or the data need."""
    task = opened.header.architecture.task
    if task is not items.task:
        raise UsageError(
            f"`--keep-head`: `--data {items.name}` has {items.task.labels}, but {config.model} answers {task.labels}",
            hint="leave `--keep-head` out for a new classifier",
        )
    number, requested = opened.header.architecture.num_classes, config.num_classes
    if opened.lacks:
        raise UsageError(f"`--keep-head`: {config.model} {opened.lacks}", hint="leave `--keep-head` out")
    if not reads_as_asked:
        raise UsageError(
            f"`--keep-head`: the classifier of {config.model} does not fit `--pooling {config.pooling}`",
            hint="leave one of them out",
        )
    if requested not in {None, number}:
        raise UsageError(
            f"`--keep-head`: the classifier of {config.model} has {number} classes, not {requested}",
            hint="leave `--keep-head` or `--num-classes` out",
        )


def _check_fits(config: FinetuneConfig, opened: OpenModel, items: Items) -> None:
    """Refuse data whose classes are not those of the classifier that is to be kept.

    Where those have names, classes are taken in order only if the user insists: others would be trained under them.
    """
    number, labels = opened.header.num_classes, opened.header.labels
    try:
        match_classes(items, labels, num_classes=number, by_text=not nameless(labels))
    except DataError as error:
        raise DataError(
            f"`--keep-head`: `--data {items.name}` has {_classes(len(items.class_names), items.class_names)}, but "
            f"{config.model} has {_classes(number, labels)}",
            hint="leave `--keep-head` out for a new classifier, rename the data's classes to the "
            "model's with `::map=OLD:NEW,...`, or select some of them with `::classes=`",
        ) from error


def _number(config: FinetuneConfig, opened: OpenModel, items: Items) -> int:
    """Return how many classes the model is to tell apart: as many as were asked for, or the data have."""
    model_number, data_number, option_number = (
        asked_number(opened),
        len(items.class_names),
        config.num_classes,
    )
    key = CLASSES[opened.family.library]
    if option_number is not None and model_number not in {None, option_number}:
        raise UsageError(
            f"`--num-classes {option_number}` and `{config.model}` differ",
            hint=f"leave `--num-classes` or `{key}={model_number}` out",
        )
    if option_number is not None and option_number < data_number:
        raise DataError(
            f"{items.name}: has {data_number} classes, but `--num-classes {option_number}` is smaller",
            hint=f"add `--num-classes {data_number}`, or select some of the classes with `::classes=`",
        )
    if model_number is not None and model_number < data_number:
        raise DataError(
            f"{items.name}: has {data_number} classes, but `{config.model}` has {model_number}",
            hint=(
                f"leave `{key}={model_number}` out, write `{key}={data_number}`, or select some of the "
                "classes with `::classes=`"
            ),
        )
    stored_number = opened.header.num_classes if names_all(items, opened.header.labels) else None
    return option_number or model_number or stored_number or data_number


def _classifier_text(opened: OpenModel, number: int, items: Items, *, fits: bool) -> str:
    """Say what classifier is made, and why."""
    new = f"A new classifier for {_classes(number, items.class_names)}"
    if items.task is not SINGLE_LABEL:
        new += f", {items.task.answer}"
    if opened.lacks:
        return f"{new}; {opened.reference}: {opened.lacks}"
    had = opened.header.architecture.num_classes
    reason = (
        ""
        if opened.is_random
        else "in place of the model's own"
        if fits
        else f"the model had {had} classes"
        if had != number
        else "the model's has other inputs or other classes"
    )
    return f"{new}, {reason}" if reason else new


def _classes(number: int, names: tuple[str, ...]) -> str:
    """Return how many classes there are, and what some are called."""
    unnamed = (f"{number - len(names)} unnamed",) if number > len(names) else ()
    first_names = ", ".join((*names[:MAX_SHOWN], *(("...",) if len(names) > MAX_SHOWN else ()), *unnamed))
    return counted(number, "class", "classes") + (f" ({first_names})" if names else "")
