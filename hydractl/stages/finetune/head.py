"""Which classifier is trained: the model's own, or a new one for the classes of the data."""

from __future__ import annotations

from dataclasses import replace

from hydractl.checkpoint import Checkpoint
from hydractl.data.items import Items
from hydractl.data.labels import names_agree
from hydractl.errors import DataError, UsageError
from hydractl.families.base import OWN, place_of
from hydractl.families.classifier import asked_number, with_classifier
from hydractl.families.opening import OpenModel
from hydractl.fusion.hydra import member_headers
from hydractl.fusion.plan import join_members
from hydractl.manifest.header import Fate, Tokenization
from hydractl.progress import Progress, counted
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.shared.classes import POOLED

SHOWN = 5


def fitted(config: FinetuneConfig, opened: OpenModel, items: Items, progress: Progress) -> OpenModel:
    """Return a model whose classifier tells apart the classes of the data.

    Its own stays where it counts as many classes, knows their names or has none itself, and reads what is asked for.

    Raises:
        UsageError: If options contradict the model or one another.
        DataError: If the data have more classes than were asked for.
    """
    before, pooling = opened.header.architecture, _pooling(config, opened, progress)
    same = not opened.lacks and pooling == (before.pooling or OWN)
    if config.keep_head:
        _check_kept(config, opened, same=same)
        return opened
    number = _number(config, opened, items)
    fits = same and number == before.num_classes and names_agree(items, opened.header.labels, number)
    drawn = config.head_seed is not None and (config.reset_head or opened.is_random)
    if config.recipe.own and (config.reset_head or not fits) and _shares_head(opened):
        raise UsageError(
            f"`--train own`: members of {config.model} share their classifier, and a new one would not train",
            hint="leave `own` out, or fuse with `--own-from`",
        )
    if fits and not drawn:
        if config.head_seed is not None:
            raise UsageError(
                f"`--head-seed {config.head_seed}` has no effect on {config.model}, whose classifier is there already",
                hint="leave `--head-seed` out, or add `--reset-head` for a new classifier",
            )
        return opened
    if "head" not in config.recipe.parts and not opened.is_random:
        raise UsageError(
            f"{config.model} gets a new classifier, which `--train {','.join(config.recipe.train)}` leaves as it is drawn",
            hint="add `head` to `--train`",
        )
    names = items.class_names if number == len(items.class_names) else ()
    if not fits:
        progress.step(_told(opened, number, items.class_names))
    return _with_classifiers(
        opened, config, number=number, labels=opened.header.labels if fits else names, pooling=pooling
    )


def _with_classifiers(
    opened: OpenModel, config: FinetuneConfig, *, number: int, labels: tuple[str, ...], pooling: str
) -> OpenModel:
    """Return a model with a new classifier; members of a hydra that have one each get one each, of seeds one after another."""
    plan = opened.header.plan
    each = [
        with_classifier(
            replace(opened, header=alone),
            number,
            labels=labels,
            seed=config.seed + i,
            head_seed=None if config.head_seed is None else config.head_seed + i,
            pooling=pooling,
        )
        for i, alone in enumerate(member_headers(opened.header))
    ]
    if plan is None:
        return each[0]
    first, specs = each[0], opened.checkpoint.specs
    fates = {name: plan.fates.get(name, Fate.GROUPED) for name in first.checkpoint.specs}
    drawn = {n: f for n, f in fates.items() if n not in specs or place_of(opened.family, n).part == "head"}
    states = [{name: member.checkpoint.tensor(name) for name in drawn} for member in each]
    fresh = Checkpoint.of(join_members(opened.family, drawn, states))
    kept = replace(opened.checkpoint, specs={n: s for n, s in specs.items() if n in fates and n not in drawn})
    changes = {
        "architecture": first.header.architecture,
        "labels": labels,
        "plan": plan.model_copy(update={"fates": fates}),
    }
    return replace(opened, checkpoint=kept.joined(fresh), header=opened.header.model_copy(update=changes))


def _shares_head(opened: OpenModel) -> bool:
    """Return whether it is a hydra with one classifier for all members."""
    plan, family = opened.header.plan, opened.family
    return plan is not None and not any(
        fate == Fate.GROUPED and place_of(family, name).part == "head" for name, fate in plan.fates.items()
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
        progress.step(POOLED.format(pooling=opened.pools))
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
