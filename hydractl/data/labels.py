"""The classes of data: which there are, and which a data reference chooses, renames and orders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar, cast

from hydractl.data.datasets import LABELS_HINT, UNASKED, Items, columns_there
from hydractl.data.names import (
    ALPHABET,
    LEAST,
    MAP,
    NUMBER,
    POSITION,
    TWO_ORDERS,
    by_number,
    first_twice,
    has_two_orders,
    normal,
    placeholders,
)
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UsageError
from hydractl.messages import quoted
from hydractl.progress import Progress
from hydractl.tasks import SINGLE_LABEL, Task

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.manifest.header import Architecture

T = TypeVar("T", bound=Items)

_NUMERAL = re.compile(r"0|[1-9][0-9]{0,17}")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_MAX_SHOWN = 10


def are_numerals(names: Iterable[str]) -> bool:
    """Return whether every name is a whole number as Python writes it: `7`, not `07`."""
    return all(_NUMERAL.fullmatch(name) for name in names)


def select_classes(class_names: Sequence[str], selectors: Sequence[str]) -> tuple[int, ...]:
    """Return the classes that `classes=` chooses, increasing.

    A class's name goes before everything. Otherwise a number is that in a name where all names are no more than numbers
    (`7`, `LABEL_7`), and a position counted from 0 where they are not.

    Args:
        class_names: The data set's classes.
        selectors: Names, numbers, or inclusive ranges of numbers such as `0-6`.

    Raises:
        UsageError: If a range runs backwards.
        DataError: If the data have no such class.
    """
    by_name = {name: index for index, name in enumerate(class_names)}
    numbered = {str(n): i for i, n in enumerate(placeholders(class_names) or range(len(class_names)))}
    chosen: set[int] = set()
    for item in map(normal, selectors):
        ends = _RANGE.fullmatch(item)
        if item in by_name:
            chosen.add(by_name[item])
        elif ends is None:
            chosen.add(_number_of(item, numbered, class_names))
        else:
            first, last = int(ends[1]), int(ends[2])
            if first > last:
                raise UsageError(f"`classes={item}`: the range is reversed", hint=f"write {last}-{first}")
            # both ends first: a range far too long must not be walked
            _number_of(str(last), numbered, class_names)
            chosen.update(_number_of(str(number), numbered, class_names) for number in range(first, last + 1))
    return tuple(sorted(chosen))


def required_labels(items: Items, option: str, *, hint: str = LABELS_HINT) -> tuple[int, ...]:
    """Return the data's labels, in the data's own classes.

    Args:
        items: The data.
        option: Which option of the command line needs them.
        hint: What to do without.

    Raises:
        DataError: If there are none, or items have several, of labels or of words.
    """
    check_labels(items, option, task=items.task if items.task.has_one_question else SINGLE_LABEL, hint=hint)
    return cast("tuple[int, ...]", items.labels)


def check_labels(items: Items, option: str, *, task: Task, hint: str = LABELS_HINT) -> None:
    """Refuse data without labels, or with those of another task.

    Raises:
        DataError: If they have none of the task.
    """
    if items.labels is None:
        needs = "them" if task is SINGLE_LABEL else task.labels
        raise DataError(
            f"{items.name}: has no labels, but `{option}` needs {needs}{columns_there(items.columns)}",
            hint=hint,
        )
    if items.task is not task:
        raise DataError(
            f"{items.name}: has {items.task.labels}, but `{option}` needs {task.labels}",
            hint=task.hint.format(name=items.name),
        )


def model_labels(
    items: Items, table: Sequence[int], option: str, *, architecture: Architecture, hint: str = LABELS_HINT
) -> Tensor:
    """Return the labels of the data as a model counts classes.

    Args:
        items: The data.
        table: For each class of the data the model's.
        option: Which option of the command line needs them.
        architecture: Of the model.
        hint: What to do without.

    Returns:
        Shape (N,), int64; of a model for several labels (N, Q), 1 where a label applies and 0 where it does not; of a classifier
        of tokens (N, Q), the class of each word, -100 where a text has no more.

    Raises:
        DataError: As `check_labels`, and if some of the model's labels are left out of the data.
    """
    import torch  # noqa: PLC0415 - readers of labels do without it

    task = architecture.task
    check_labels(items, option, task=task, hint=hint)
    if task.has_one_question:
        return torch.tensor([table[label] for label in cast("tuple[int, ...]", items.labels)])
    lists = cast("tuple[tuple[int, ...], ...]", items.labels)
    if task.by_word:
        by_word = torch.full((len(lists), max(map(len, lists))), UNASKED)
        for row, word_labels in zip(by_word, lists, strict=True):
            row[: len(word_labels)] = torch.tensor([table[label] for label in word_labels])
        return by_word
    if items.is_selection and len(table) < architecture.num_classes:
        raise DataError(
            f"{items.name}: `classes=` selects {len(table)} of the {architecture.num_classes} labels of the model, and nothing "
            "says whether the others apply",
            hint="leave `classes=` out",
        )
    labels = torch.zeros(len(lists), architecture.num_classes, dtype=torch.int64)
    for row, label_set in zip(labels, lists, strict=True):
        row[[table[label] for label in label_set]] = 1
    return labels


def check_training_labels(items: Items, option: str) -> None:
    """Refuse labels that a classifier cannot be trained on.

    Raises:
        DataError: If there are none, or all are the same.
    """
    check_labels(items, option, task=items.task)
    labels = items.labels or ()
    if items.task.by_word:
        labels = tuple(chain.from_iterable(cast("tuple[tuple[int, ...], ...]", labels)))
    if len({*labels}) >= LEAST and len(items.class_names) >= LEAST:
        return
    first = labels[0]
    problem = (
        f"every label is `{items.class_names[first]}`"
        if isinstance(first, int)
        else "all have the same labels"
    )
    raise DataError(
        f"{items.name}: {problem}, but training needs at least two classes",
        hint=f"give data with several classes to `{option}`",
    )


def normal_names(names: Iterable[str], *, where: str) -> tuple[str, ...]:
    """Return class names as they are compared, see `normal`.

    Raises:
        DataError: If two become one.
    """
    normalised = tuple(map(normal, names))
    if (twice := first_twice(normalised)) is not None:
        raise DataError(
            f"{where}: two classes have the name `{twice}`",
            hint="rename one; names are compared without surrounding spaces and in Unicode normal form",
        )
    return normalised


def apply_class_options(items: T, ref: DataRef, progress: Progress) -> T:
    """Return items whose classes a reference chooses, renames and orders, in this turn.

    Raises:
        UsageError: If a range of classes runs backwards.
        DataError: If there are no labels, or no such classes, or two would have one name, or a name has no number to order by.
    """
    if items.labels is None:
        if ref.classes is None and ref.reads_classes:
            required_labels(items, f"::{MAP}=" if ref.map else "::classes-by=")
        return items if ref.classes is None else items.of_classes(())  # which are refused
    items = replace(items, class_names=normal_names(items.class_names, where=items.name))
    chosen = None if ref.classes is None else select_classes(items.class_names, ref.classes)
    if ref.map is not None:
        items = _renamed(items, dict(ref.map))
    if chosen is not None:
        items = items.of_classes(chosen)
    return items if ref.classes_by is None else _ordered(items, ref.classes_by, progress)


def _renamed(items: T, names: dict[str, str]) -> T:
    for old in names:
        if old not in items.class_names:
            _number_of(old, {}, items.class_names)
    renamed = tuple(names.get(name, name) for name in items.class_names)
    if (twice := first_twice(renamed)) is not None:
        raise DataError(f"{items.name}: `{MAP}=` gives two classes the name `{twice}`")
    return replace(items, class_names=renamed, numbered=items.numbered and are_numerals(renamed))


def _ordered(items: T, by: str, progress: Progress) -> T:
    """Return items whose classes are counted in an order, in which they are to be taken."""
    names = items.class_names
    order: Sequence[int] | None = range(len(names))
    if by == ALPHABET:
        order = sorted(range(len(names)), key=names.__getitem__)
    elif by == NUMBER or has_two_orders(names):
        order = by_number(names)
    if order is None:
        raise DataError(
            f"{items.name}: `classes-by={by}`: needs class names that differ only in a number, "
            f"found {first_names(names)}",
            hint=f"write `classes-by={POSITION}` or `classes-by={ALPHABET}`",
        )
    if by == POSITION and order != range(len(names)):
        progress.warn(f"{items.name}: {TWO_ORDERS}")
    return replace(items.of_classes(order), numbered=False, by_position=True)


def first_names(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    suffix = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return quoted(names[:_MAX_SHOWN]) + suffix


def _number_of(item: str, numbered: dict[str, int], class_names: Sequence[str]) -> int:
    if item not in numbered:
        class_list = quoted(class_names, most=2 * _MAX_SHOWN)
        raise DataError(f"the data have no class `{item}`; their {len(class_names)} classes are {class_list}")
    return numbered[item]
