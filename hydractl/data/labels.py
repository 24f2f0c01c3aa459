"""Which class of the model is which class of the data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from hydractl.data.items import LABELS_HINT, columns_there
from hydractl.errors import DataError, UsageError
from hydractl.progress import SILENT, Progress
from hydractl.wording import quoted

_NUMERAL = re.compile(r"0|[1-9][0-9]{0,17}")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_SHOWN = 5


class Classed(Protocol):
    """What is said of the classes of a data set; as `Items` have it."""

    @property
    def name(self) -> str:
        """What reports call the set."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name a class."""

    @property
    def labels(self) -> tuple[int, ...] | None:
        """For each item an index into these."""

    @property
    def numbered(self) -> bool:
        """Whether classes have no names."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the table that the set was read from."""


def are_numerals(names: Iterable[str]) -> bool:
    """Return whether every name is a whole number as Python writes it: `7`, not `07`."""
    return all(_NUMERAL.fullmatch(name) for name in names)


def select_classes(class_names: Sequence[str], wanted: Sequence[str]) -> tuple[int, ...]:
    """Return the classes that `classes=` chooses, increasing.

    A class's name goes before everything. Otherwise a number is a name where all names are numbers, and a
    position counted from 0 where they are not.

    Args:
        class_names: The data set's classes.
        wanted: Names, numbers, or inclusive ranges of numbers such as `0-6`.

    Raises:
        UsageError: If a range runs backwards.
        DataError: If the data have no such class.
    """
    by_name = {name: index for index, name in enumerate(class_names)}
    numbered = by_name if are_numerals(class_names) else {str(i): i for i in range(len(class_names))}
    chosen: set[int] = set()
    for item in wanted:
        ends = _RANGE.fullmatch(item)
        if item in by_name:
            chosen.add(by_name[item])
        elif ends is None:
            chosen.add(_number_of(item, numbered, class_names))
        else:
            first, last = int(ends[1]), int(ends[2])
            if first > last:
                raise UsageError(f"`classes={item}`: the range runs backwards", hint=f"write {last}-{first}")
            # both ends first: a range far too long must not be walked
            _number_of(str(last), numbered, class_names)
            chosen.update(_number_of(str(number), numbered, class_names) for number in range(first, last + 1))
    return tuple(sorted(chosen))


def required_labels(items: Classed, option: str, *, hint: str = LABELS_HINT) -> tuple[int, ...]:
    """Return the data's labels, in the data's own classes.

    Args:
        items: The data.
        option: Which option of the command line needs them.
        hint: What to do without.

    Raises:
        DataError: If there are none.
    """
    if items.labels is None:
        raise DataError(
            f"{items.name}: has no labels, which `{option}` needs{columns_there(items.columns)}", hint=hint
        )
    return items.labels


def match_classes(
    items: Classed,
    model_labels: Sequence[str],
    *,
    num_classes: int,
    by_text: bool = False,
    called: str = "the data",
    progress: Progress = SILENT,
) -> tuple[int, ...]:
    """Return for each class of the data the model's.

    By name if the model knows every class of the data, or knows it but for capitals; else class names that are numbers are
    taken for the model's class indices; else classes are taken in order, which needs equal counts, or a model whose
    classes have no names. Anything but a match by name is said through `progress.warn`.

    Labels that are numbers and not names (`Items.numbered`) are never taken in order, and neither are the classes of a model
    that is asked about texts: a class is there what its name says.

    Args:
        items: The data.
        model_labels: The model's class names, one each; empty if it has none.
        num_classes: How many classes the model tells apart.
        by_text: Whether the names are what the model is asked about (zero-shot), or count as if they were: never in order.
        called: What warnings call the data.
        progress: Hears the warnings.

    Returns:
        Each in 0..num_classes-1; none for data without labels.

    Raises:
        DataError: If the classes do not fit.
    """
    class_names = items.class_names
    found, exactly = _by_name(class_names, model_labels)
    if found is not None:
        if not exactly:
            progress.warn(f"{called}'s class names are the model's but for capitals: taken for the same")
        return found
    if items.numbered:
        _check_numbers(class_names, model_labels, num_classes)
    if items.numbered or _are_indices(class_names, model_labels, num_classes):
        if model_labels:
            progress.warn(
                f"{called}'s classes are named by numbers: taken for the model's class indices "
                f"(`{class_names[0]}` is `{model_labels[int(class_names[0])]}`)"
            )
        return tuple(int(name) for name in class_names)
    if by_text:
        raise DataError(
            f"{items.name}: its classes are {some(class_names)}, but the model is asked about {some(model_labels)}",
            hint="name the model's classes as the data's are, with `--classes`, in any order; or rename the data's",
        )
    count = len(class_names)
    if count == num_classes or (not model_labels and count < num_classes):
        reason = (
            f"{called}'s class names are not the model's"
            if model_labels
            else "the model's classes have no names"
        )
        progress.warn(
            f"{reason}: {called}'s {count} classes are taken in order, "
            f"from `{class_names[0]}` as class 0 to `{class_names[-1]}` as class {count - 1}"
        )
        return tuple(range(count))
    once = Counter(model_labels)
    unmatched = [name for name in class_names if once[name] != 1]
    raise DataError(
        f"the data have {count} classes and the model {num_classes}; the model does not know {some(unmatched)}",
        hint="name the classes as the model does, or choose some of them with `::classes=`"
        if model_labels
        else f"set `num_classes={count}` in an `arch:` reference, or choose some of the data's classes with `::classes=`",
    )


def names_agree(items: Classed, model_labels: Sequence[str], num_classes: int) -> bool:
    """Return whether the data's classes are the model's by name or number, or the model's have no names."""
    names = items.class_names
    return (
        not model_labels
        or _by_name(names, model_labels)[0] is not None
        or _are_indices(names, model_labels, num_classes)
    )


def new_names(class_names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return names for a new classifier of `number` classes, which are at least as many as the data's.

    The data's classes come first, in their order. Where they are fewer and all are numbers below `number`, each has its own
    index instead, as `match_classes` reads them.
    """
    spare = number > len(class_names) and _are_indices(class_names, (), number)
    places = [int(name) if spare else place for place, name in enumerate(class_names)]
    return filled_names((), class_names, places, number)


def filled_names(
    model_labels: Sequence[str], class_names: Sequence[str], table: Sequence[int], number: int
) -> tuple[str, ...]:
    """Return the model's class names, with the data's for classes that have none; what is left is `unnamed class 3`.

    Args:
        model_labels: One each, or none.
        class_names: The data's.
        table: Which class of the model each of those is.
        number: How many classes the model tells apart.
    """
    theirs = dict(zip(table, class_names, strict=True))
    own = model_labels or [_unnamed(i) for i in range(number)]
    return tuple(theirs.get(i, name) if name == _unnamed(i) else name for i, name in enumerate(own))


def names_all(items: Classed, model_labels: Sequence[str]) -> bool:
    """Return whether the data know every class of the model that has a name, and the model every class of the data."""
    if not model_labels or not names_agree(items, model_labels, len(model_labels)):
        return False
    known = {*match_classes(items, model_labels, num_classes=len(model_labels))}
    return all(i in known or name == _unnamed(i) for i, name in enumerate(model_labels))


def _unnamed(index: int) -> str:
    return f"unnamed class {index}"


def _by_name(class_names: Sequence[str], model_labels: Sequence[str]) -> tuple[tuple[int, ...] | None, bool]:
    """Return for each class of the data the model's of that name, if it has all of them, and whether capitals agree."""
    for known, asked in (
        (model_labels, class_names),
        ([name.casefold() for name in model_labels], [name.casefold() for name in class_names]),
    ):
        times = Counter(known)
        if all(times[name] == 1 for name in asked) and len({*asked}) == len(asked):
            position = {name: index for index, name in enumerate(known)}
            return tuple(position[name] for name in asked), known is model_labels
    return None, False


def _are_indices(class_names: Sequence[str], model_labels: Sequence[str], num_classes: int) -> bool:
    """Return whether names can be taken for the model's class indices: it has them, and calls none by another number."""
    return are_numerals(class_names) and all(
        int(name) < num_classes
        and (
            not model_labels or model_labels[int(name)] == name or not are_numerals([model_labels[int(name)]])
        )
        for name in class_names
    )


def _check_numbers(class_names: Sequence[str], model_labels: Sequence[str], num_classes: int) -> None:
    """Refuse a number that is none of the model's classes."""
    high = next((name for name in class_names if int(name) >= num_classes), None)
    if high is not None:
        names = f", or give names: the model's are {some(model_labels)}" if model_labels else ""
        raise DataError(
            f"label {high} is out of range: the model has {num_classes} classes, 0 to {num_classes - 1}",
            hint=f"count the labels from 0{names}; of an `arch:` reference set the number of classes",
        )


def some(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return quoted(names[:_SHOWN]) + more


def _number_of(item: str, numbered: dict[str, int], class_names: Sequence[str]) -> int:
    if item not in numbered:
        shown = quoted(class_names, most=2 * _SHOWN)
        raise DataError(f"the data have no class `{item}`; their {len(class_names)} classes are {shown}")
    return numbered[item]
