"""Which classifier is trained: the model's own, or a new one for the classes of the data."""

from __future__ import annotations

from hydractl.data.items import Items
from hydractl.data.labels import names_agree
from hydractl.errors import DataError, UsageError
from hydractl.families.base import OWN
from hydractl.families.classifier import asked_number, with_classifier
from hydractl.families.opening import OpenModel
from hydractl.manifest.header import Kind, Tokenization
from hydractl.progress import Progress, counted
from hydractl.stages.finetune.config import FinetuneConfig

SHOWN = 5


def fitted(config: FinetuneConfig, opened: OpenModel, items: Items, progress: Progress) -> OpenModel:
    """Return a model whose classifier tells apart the classes of the data.

    Its own stays where it counts as many classes, knows their names or has none itself, and reads what is asked for.

    Raises:
        UsageError: If options contradict the model or one another.
        DataError: If the data have more classes than were asked for.
    """
    if opened.header.kind == Kind.HYDRA:
        _check_fused(config)
        return opened
    before, pooling = opened.header.architecture, _pooling(config, opened, progress)
    same = not opened.lacks and pooling == (before.pooling or OWN)
    if config.keep_head:
        _check_kept(config, opened, same=same)
        return opened
    number = _number(config, opened, items)
    fits = same and number == before.num_classes and names_agree(items, opened.header.labels, number)
    drawn = config.head_seed is not None and (config.reset_head or opened.is_random)
    if fits and not drawn:
        if config.head_seed is not None:
            raise UsageError(
                f"`--head-seed {config.head_seed}` has no effect on {config.model}, whose classifier is there already",
                hint="leave `--head-seed` out, or add `--reset-head` for a new classifier",
            )
        return opened
    if "head" not in config.recipe.train and not opened.is_random:
        raise UsageError(
            f"{config.model} gets a new classifier, which `--train {','.join(config.recipe.train)}` leaves as it is drawn",
            hint="add `head` to `--train`",
        )
    names = items.class_names if number == len(items.class_names) else ()
    if not fits:
        progress.step(_told(opened, number, items.class_names))
    return with_classifier(
        opened,
        number,
        labels=opened.header.labels if fits else names,
        seed=config.seed,
        head_seed=config.head_seed,
        pooling=pooling,
    )


def _check_fused(config: FinetuneConfig) -> None:
    """Refuse to make classifiers for the members of a hydra."""
    given = {
        "--num-classes": config.num_classes,
        "--head-seed": config.head_seed,
        "--pooling": config.pooling,
    }
    if named := next((option for option, value in given.items() if value is not None), None):
        raise UsageError(
            f"`{named}`: {config.model} is a hydra, whose members have their classifiers",
            hint="fine-tune the members for other classes, then fuse them again",
        )


def _pooling(config: FinetuneConfig, opened: OpenModel, progress: Progress) -> str:
    """Return what the classifier is to read: what was asked for, or the folder says, or the model has."""
    header = opened.header
    if config.pooling is not None:
        if config.pooling != OWN and not isinstance(header.preprocess, Tokenization):
            raise UsageError(
                f"`--pooling {config.pooling}` is for texts, but {config.model} reads images",
                hint="leave it out: an image model pools as its family does",
            )
        return config.pooling
    if opened.pools is not None and not config.keep_head:
        progress.step(
            f"Reading the {opened.pools} over all tokens, as the folder's 1_Pooling/config.json says"
        )
        return opened.pools
    return header.architecture.pooling or OWN


def _check_kept(config: FinetuneConfig, opened: OpenModel, *, same: bool) -> None:
    """Refuse to keep a classifier that is not there, or is not the one that was asked for."""
    number, asked = opened.header.architecture.num_classes, config.num_classes
    if opened.lacks:
        raise UsageError(f"`--keep-head`: {config.model} {opened.lacks}", hint="leave `--keep-head` out")
    if not same:
        raise UsageError(
            f"`--keep-head`: the classifier of {config.model} does not read what `--pooling {config.pooling}` says",
            hint="leave one of them out",
        )
    if asked not in {None, number}:
        raise UsageError(
            f"`--keep-head`: the classifier of {config.model} tells apart {number} classes, not {asked}",
            hint="leave `--keep-head` or `--num-classes` out",
        )


def _number(config: FinetuneConfig, opened: OpenModel, items: Items) -> int:
    """Return how many classes the model is to tell apart: as many as were asked for, or the data have."""
    asked, found = asked_number(opened), len(items.class_names)
    if config.num_classes is not None and asked not in {None, config.num_classes}:
        raise UsageError(f"`--num-classes {config.num_classes}` and `{config.model}` differ")
    number = config.num_classes or asked
    if config.num_classes is not None and config.num_classes < found:
        raise DataError(
            f"{items.name}: has {found} classes, `--num-classes {config.num_classes}` is too few for them",
            hint=f"add `--num-classes {found}`, or choose some of the classes with `::classes=`",
        )
    return number or found


def _told(opened: OpenModel, number: int, names: tuple[str, ...]) -> str:
    """Say what classifier is made, and why."""
    had = opened.header.architecture.num_classes
    reason = (
        "the model has none"
        if opened.lacks
        else ""
        if opened.is_random
        else f"the model had {had}"
        if had != number
        else "the model's reads something else or has others"
    )
    return f"A new classifier for {_classes(number, names)}{f', {reason}' if reason else ''}"


def _classes(number: int, names: tuple[str, ...]) -> str:
    shown = ", ".join((*names[:SHOWN], *(("...",) if len(names) > SHOWN else ())))
    return f"{counted(number, 'class', 'classes')} ({shown})"
