"""Classes of data: names, selection, order, and the match with the classes of a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar, cast

from hydractl import progress
from hydractl.data.datasets import LABELS_HINT, NO_LABEL, Dataset, columns_message
from hydractl.data.reference import (
    ALPHABET,
    MAP,
    MIN_CLASSES,
    NUMBER,
    POSITION,
    TWO_ORDERS,
    DataRef,
    by_number,
    counters,
    first_twice,
    folded,
    has_two_orders,
    normal,
    placeholders,
    write_name,
)
from hydractl.errors import DataError, UsageError
from hydractl.messages import counted, nearest, quoted
from hydractl.progress import SILENT, reporting
from hydractl.tasks import SINGLE_LABEL, Task

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.manifest.header import Architecture


T = TypeVar("T", bound=Dataset)

_NUMERAL = re.compile(r"0|[1-9][0-9]{0,17}")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_MAX_SHOWN = 10


def are_numerals(names: Iterable[str]) -> bool:
    """Return whether every name is an integer in Python's notation: `7`, not `07`."""
    return all(_NUMERAL.fullmatch(name) for name in names)


def select_classes(class_names: Sequence[str], selectors: Sequence[str]) -> tuple[int, ...]:
    """Return the sorted indices of the classes selected by `classes=`.

    A selector that equals a class name selects this class. Otherwise a number selects by the numbers in the
    names if all names are only numbers (`7`, `LABEL_7`), and by position (from 0) if not.

    Args:
        class_names: Class names of the data set.
        selectors: Names, numbers, or inclusive ranges of numbers like `0-6`.

    Raises:
        UsageError: If a range is decreasing.
        DataError: If a class does not exist.
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
            # check both ends first: a range of billions of numbers must fail at once
            _number_of(str(last), numbered, class_names)
            chosen.update(_number_of(str(number), numbered, class_names) for number in range(first, last + 1))
    return tuple(sorted(chosen))


def required_labels(dataset: Dataset, option: str, *, hint: str = LABELS_HINT) -> tuple[int, ...]:
    """Return the labels of the data, as indices into the data's own classes.

    Args:
        dataset: The data.
        option: Option that needs labels, for messages.
        hint: Advice if labels are missing.

    Raises:
        DataError: If labels are missing, or items have several labels or labels of words.
    """
    check_labels(
        dataset, option, task=dataset.task if dataset.task.has_one_question else SINGLE_LABEL, hint=hint
    )
    return cast("tuple[int, ...]", dataset.labels)


def check_labels(dataset: Dataset, option: str, *, task: Task, hint: str = LABELS_HINT) -> None:
    """Check that data have labels of a task.

    Args:
        dataset: The data.
        option: Option that needs labels, for messages.
        task: The required task.
        hint: Advice if labels are missing.

    Raises:
        DataError: If labels are missing or of another task.
    """
    if dataset.labels is None:
        needs = "them" if task is SINGLE_LABEL else task.labels
        raise DataError(
            f"{dataset.name}: has no labels, but `{option}` needs {needs}{columns_message(dataset.columns)}",
            hint=hint,
        )
    if dataset.task is not task:
        raise DataError(
            f"{dataset.name}: has {dataset.task.labels}, but `{option}` needs {task.labels}",
            hint=task.hint.format(name=dataset.name),
        )


def model_labels(
    dataset: Dataset,
    table: Sequence[int],
    option: str,
    *,
    architecture: Architecture,
    hint: str = LABELS_HINT,
) -> Tensor:
    """Return the labels of the data as class indices of a model.

    Args:
        dataset: The data.
        table: Model class of each data class, from `match_classes`.
        option: Option that needs labels, for messages.
        architecture: Architecture of the model.
        hint: Advice if labels are missing.

    Returns:
        Int64. For single labels shape (N,). For several labels shape (N, number of classes), 1 if a label
        applies and 0 if not. For token classification shape (N, maximum number of words), -100 after the last
        word.

    Raises:
        DataError: See `check_labels`. Also if `classes=` removed labels of the model from data with several
            labels.
    """
    import torch  # noqa: PLC0415 - readers of labels do without it

    task = architecture.task
    check_labels(dataset, option, task=task, hint=hint)
    if task.has_one_question:
        return torch.tensor([table[label] for label in cast("tuple[int, ...]", dataset.labels)])
    lists = cast("tuple[tuple[int, ...], ...]", dataset.labels)
    if task.by_word:
        by_word = torch.full((len(lists), max(map(len, lists))), NO_LABEL)
        for row, word_labels in zip(by_word, lists, strict=True):
            row[: len(word_labels)] = torch.tensor([table[label] for label in word_labels])
        return by_word
    if dataset.is_selection and len(table) < architecture.num_classes:
        raise DataError(
            f"{dataset.name}: `classes=` selects {len(table)} of the {architecture.num_classes} labels of the model, and nothing "
            "says whether the others apply",
            hint="leave `classes=` out",
        )
    labels = torch.zeros(len(lists), architecture.num_classes, dtype=torch.int64)
    for row, label_set in zip(labels, lists, strict=True):
        row[[table[label] for label in label_set]] = 1
    return labels


def check_training_labels(dataset: Dataset, option: str) -> None:
    """Check that a classifier can be trained on the labels.

    Args:
        dataset: The data.
        option: Option of the data, for messages.

    Raises:
        DataError: If labels are missing, or all labels are equal.
    """
    check_labels(dataset, option, task=dataset.task)
    labels = dataset.labels or ()
    if dataset.task.by_word:
        labels = tuple(chain.from_iterable(cast("tuple[tuple[int, ...], ...]", labels)))
    if len({*labels}) >= MIN_CLASSES and len(dataset.class_names) >= MIN_CLASSES:
        return
    first = labels[0]
    problem = (
        f"every label is `{dataset.class_names[first]}`"
        if isinstance(first, int)
        else "all have the same labels"
    )
    raise DataError(
        f"{dataset.name}: {problem}, but training needs at least two classes",
        hint=f"give data with several classes to `{option}`",
    )


def apply_class_options(dataset: T, ref: DataRef) -> T:
    """Apply `classes`, `map` and `classes-by` of a reference to data, in this order.

    Raises:
        UsageError: If a range of classes is decreasing.
        DataError: If labels or selected classes are missing, two classes get the same name, or a name has no
            number to order by.
    """
    if dataset.labels is None:
        if ref.classes is None and ref.reads_classes:
            required_labels(dataset, f"::{MAP}=" if ref.map else "::classes-by=")
        # without labels, `Dataset.select_classes` raises
        return dataset if ref.classes is None else dataset.select_classes(())
    names = tuple(map(normal, dataset.class_names))
    if (twice := first_twice(names)) is not None:
        raise DataError(
            f"{dataset.name}: two classes have the name `{twice}`",
            hint="rename one; names are compared without surrounding spaces and in Unicode normal form",
        )
    dataset = replace(dataset, class_names=names)
    chosen = None if ref.classes is None else select_classes(dataset.class_names, ref.classes)
    if ref.map is not None:
        dataset = _renamed(dataset, dict(ref.map))
    if chosen is not None:
        dataset = dataset.select_classes(chosen)
    return dataset if ref.classes_by is None else _ordered(dataset, ref.classes_by)


def _renamed(dataset: T, names: dict[str, str]) -> T:
    for old in names:
        if old not in dataset.class_names:
            _number_of(old, {}, dataset.class_names)
    renamed = tuple(names.get(name, name) for name in dataset.class_names)
    if (twice := first_twice(renamed)) is not None:
        raise DataError(f"{dataset.name}: `{MAP}=` gives two classes the name `{twice}`")
    return replace(dataset, class_names=renamed, numbered=dataset.numbered and are_numerals(renamed))


def _ordered(dataset: T, by: str) -> T:
    """Return items with their classes in an order: `position`, `number` or `alphabet`.

    Raises:
        DataError: If class names have no numbers to order by.
    """
    names = dataset.class_names
    order: Sequence[int] | None = range(len(names))
    if by == ALPHABET:
        order = sorted(range(len(names)), key=names.__getitem__)
    elif by == NUMBER or has_two_orders(names):
        order = by_number(names)
    if order is None:
        raise DataError(
            f"{dataset.name}: `classes-by={by}`: needs class names that differ only in a number, "
            f"found {first_names(names)}",
            hint=f"write `classes-by={POSITION}` or `classes-by={ALPHABET}`",
        )
    if by == POSITION and order != range(len(names)):
        progress.warn(f"{dataset.name}: {TWO_ORDERS}")
    return replace(dataset.select_classes(order), numbered=False, by_position=True)


def first_names(names: Sequence[str]) -> str:
    """Return at most ten names for messages, for example "`cat`, `dog`", or with " and 3 more" at the end."""
    suffix = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return quoted(names[:_MAX_SHOWN]) + suffix


def _number_of(item: str, numbered: dict[str, int], class_names: Sequence[str]) -> int:
    if item not in numbered:
        class_list = quoted(class_names, most=2 * _MAX_SHOWN)
        raise DataError(f"the data have no class `{item}`; their {len(class_names)} classes are {class_list}")
    return numbered[item]


_BY_POSITION = f"add `::classes-by={POSITION}` to match classes by position and ignore their names"


def match_classes(
    dataset: Dataset,
    model_labels: Sequence[str],
    *,
    num_classes: int,
    by_text: bool = False,
    data_name: str = "the data",
) -> tuple[int, ...]:
    """Return the model class of each data class.

    The rules, in order:

    1. `::classes-by=` matches by order. A model without class names may have further classes at the end.
    2. Names match if the model knows every class of the data, ignoring upper and lower case, surrounding
      spaces and Unicode forms. If only some names match, the data are refused.
    3. Data names that are only numbers (`7`, `LABEL_7`) are class indices of the model, if in range. For a
      model without class names and with equally many classes, numbers at the end of names (`class7`) are
      indices, too.
    4. Classes match in order if the model has no class names or the data's names are numbers, and both have
      equally many classes.

    Rules 3 and 4, and names that differ in case, give a warning, except integers for a model without class
    names. Rule 4 never applies to labels that are integers (`Dataset.numbered`), or with `by_text`, because
    names then define the classes.

    Args:
        dataset: The data.
        model_labels: Class names of the model. Empty if it has no names.
        num_classes: Number of classes of the model.
        by_text: Whether class names define the classes of the model (zero-shot).
        data_name: Name of the data in warnings.

    Returns:
        One index per data class, in 0..num_classes-1. Empty for data without labels.

    Raises:
        DataError: If the classes do not match.
    """
    class_names = dataset.class_names
    if dataset.by_position:
        return _in_position(dataset, model_labels, num_classes)
    matches, exactly = _by_name(class_names, model_labels)
    matched = tuple(place for place in matches if place is not None)
    if len(matched) == len(class_names):
        if not exactly:
            progress.warn(
                f"{data_name}: class names differ from the model's only in upper and lower case, so they count as equal"
            )
        return matched
    high = next((name for name in class_names if dataset.numbered and int(name) >= num_classes), None)
    if high is not None:
        names = f", or use class names; the model has {first_names(model_labels)}" if model_labels else ""
        raise DataError(
            f"label {high} is out of range: the model has {num_classes} classes, 0 to {num_classes - 1}",
            hint=f"count the labels from 0{names}; for an `arch:` reference set the number of classes",
        )
    indices = None if matched else _indices(dataset, model_labels, num_classes, by_text=by_text)
    if indices is not None:
        _warn_indices(dataset, model_labels, indices, called=data_name)
        return indices
    strange = [name for name, place in zip(class_names, matches, strict=True) if place is None]
    order = None if matched or by_text else _order(class_names, model_labels, num_classes)
    if order is None:
        raise _mismatch_error(dataset, strange, model_labels, num_classes=num_classes, by_text=by_text)
    reason = "the model has no class names" if nameless(model_labels) else f"{data_name} has numbered classes"
    progress.warn(
        f"{reason}: the {len(order)} classes of {data_name} are matched by position, from `{class_names[order[0]]}` "
        f"as class 0 to `{class_names[order[-1]]}` as class {len(order) - 1}{_other_order(dataset)}; `hydractl import --labels` names them"
    )
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def nameless(model_labels: Sequence[str]) -> bool:
    """Return whether a model has no class names, or only numbers: `LABEL_0`, `LABEL_1`, ..."""
    return placeholders(model_labels) == tuple(range(len(model_labels)))


def has_default_names(model_labels: Sequence[str]) -> bool:
    """Return whether a model has no class names, or the defaults of transformers: `LABEL_0`, `LABEL_1`, ..."""
    return tuple(model_labels) == tuple(f"LABEL_{i}" for i in range(len(model_labels)))


def names_agree(dataset: Dataset, model_labels: Sequence[str], num_classes: int) -> bool:
    """Return whether data and model agree about the classes by name, by number, or by order if requested.

    Data also agree with a model without names that has equally many classes.
    """
    are_as_many = len(dataset.class_names) == num_classes
    if (not model_labels or are_as_many) if dataset.by_position else (not model_labels and are_as_many):
        return True
    matches, _ = _by_name(dataset.class_names, model_labels)
    if {*matches} - {None}:
        return None not in matches
    return _indices(dataset, model_labels, num_classes, by_text=True) is not None


def new_names(class_names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return class names for a new classifier.

    The data's classes come first, in their order. If there are fewer than `number` and all are integers below
    `number`, each class gets the index in its name instead, like in `match_classes`. Other classes are named
    like `unnamed class 3`.

    Args:
        class_names: Class names of the data.
        number: Number of classes of the classifier, at least the number of names.
    """
    spare = (
        number > len(class_names) and are_numerals(class_names) and all(int(n) < number for n in class_names)
    )
    places = [int(name) if spare else place for place, name in enumerate(class_names)]
    return filled_names((), class_names, places, number)


def filled_names(
    model_labels: Sequence[str], class_names: Sequence[str], table: Sequence[int], number: int
) -> tuple[str, ...]:
    """Return the class names of a model, with names of the data for unnamed classes.

    Args:
        model_labels: Class names of the model, or empty.
        class_names: Class names of the data.
        table: Model class of each data class.
        number: Number of classes of the model.

    Returns:
        One name per class. Remaining classes are named like `unnamed class 3`.
    """
    theirs = dict(zip(table, class_names, strict=True))
    model_names = model_labels or [_unnamed(i) for i in range(number)]
    return tuple(theirs.get(i, name) if name == _unnamed(i) else name for i, name in enumerate(model_names))


def names_all(dataset: Dataset, model_labels: Sequence[str]) -> bool:
    """Return whether the data have every named class of the model, and the model every class of the data."""
    if not model_labels or not names_agree(dataset, model_labels, len(model_labels)):
        return False
    with reporting(SILENT):
        matched = {*match_classes(dataset, model_labels, num_classes=len(model_labels))}
    return all(i in matched or name == _unnamed(i) for i, name in enumerate(model_labels))


def _unnamed(index: int) -> str:
    return f"unnamed class {index}"


def _by_name(class_names: Sequence[str], model_labels: Sequence[str]) -> tuple[list[int | None], bool]:
    """Return the model class of each data class by name, and whether all names match in upper and lower case.

    A class without a unique match has None. A number also matches the model's unnamed class with this index.
    """
    places: list[int | None] = [None] * len(class_names)
    exactly = True
    for form in (normal, folded):
        names = [form(name) for name in class_names]
        positions = {form(name): i for i, name in enumerate(model_labels)}
        counts = Counter(names) | Counter(form(name) for name in model_labels)
        for i, name in enumerate(names):
            if places[i] is None and counts[name] == 1 and name in positions:
                places[i] = positions[name]
                exactly = exactly and form is normal
    unnamed = {str(i): i for i, name in enumerate(model_labels) if name == _unnamed(i)}
    return [unnamed.get(n) if p is None else p for n, p in zip(class_names, places, strict=True)], exactly


def _indices(
    dataset: Dataset, model_labels: Sequence[str], num_classes: int, *, by_text: bool
) -> tuple[int, ...] | None:
    """Return the numbers in the data's class names if they can be class indices of the model, else None.

    Numbers within longer names count only if the model has no class names, has equally many classes and
    `by_text` is False. Numbers conflict if the model gives one of these classes another number.
    """
    numbers = placeholders(dataset.class_names)
    if numbers is None and nameless(model_labels) and not by_text and len(dataset.class_names) == num_classes:
        numbers = counters(dataset.class_names)
    if numbers is None or not numbers or max(numbers) >= num_classes:
        return None
    model_numbers = [placeholders([model_labels[number]]) for number in numbers] if model_labels else []
    agree = all(
        model_number in {None, (number,)}
        for model_number, number in zip(model_numbers, numbers, strict=False)
    )
    return numbers if dataset.numbered or agree else None


def _order(class_names: Sequence[str], model_labels: Sequence[str], num_classes: int) -> list[int] | None:
    """Return the positions of the data's classes in the model's order, or None without an order."""
    count, by_numbers = len(class_names), by_number(class_names)
    if count != num_classes:
        return None
    if nameless(model_labels):
        return list(range(count)) if by_numbers is None else by_numbers
    has_numbers = any(placeholders([name]) is not None for name in model_labels)
    return by_numbers if placeholders(class_names) is not None and not has_numbers else None


def _in_position(dataset: Dataset, model_labels: Sequence[str], num_classes: int) -> tuple[int, ...]:
    """Return the data's classes in order, as the user requested, unless a name contradicts the order.

    Raises:
        DataError: If the numbers of classes differ, or a class has the name of another class of the model.
    """
    count = len(dataset.class_names)
    if count > num_classes or (count < num_classes and not nameless(model_labels)):
        raise DataError(
            f"{dataset.name}: has {counted(count, 'class', 'classes')} and the model {num_classes}, so "
            "`classes-by=` cannot match them by position",
            hint=f"leave it out, and rename the data's classes to the model's: `::{MAP}=OLD:NEW,...`",
        )
    matches, _ = _by_name(dataset.class_names, () if nameless(model_labels) else model_labels)
    moved = next((i for i, place in enumerate(matches) if place not in {None, i}), None)
    if moved is not None:
        raise DataError(
            f"{dataset.name}: its class {moved}, `{dataset.class_names[moved]}`, is class {matches[moved]} "
            "of the model, so `classes-by=` cannot match classes by position",
            hint=f"leave it out, and rename the classes that differ: `::{MAP}=OLD:NEW,...`",
        )
    return tuple(range(count))


def _warn_indices(
    dataset: Dataset, model_labels: Sequence[str], indices: Sequence[int], *, called: str
) -> None:
    """Warn that class names are read as class indices, if another reading is possible."""
    numbers = counters(
        model_labels
    )  # numbers in the model's names differ from its indices if its classes were sorted alphabetically
    at = next((i for i, index in enumerate(indices) if numbers and numbers[index] != index), 0)
    name, index = dataset.class_names[at], indices[at]
    other_order = _other_order(dataset)
    if not model_labels and not other_order and are_numerals(dataset.class_names):
        return
    class_text = f"`{model_labels[index]}`" if model_labels else f"class {index}"
    progress.warn(
        f"{called}: class names are numbers, so they count as class indices of the model (`{name}` "
        f"is {class_text}){other_order}"
    )


def _other_order(dataset: Dataset) -> str:
    return f"; {TWO_ORDERS}" if has_two_orders(dataset.class_names) and not dataset.numbered else ""


def _mismatch_error(
    dataset: Dataset, strange: Sequence[str], model_labels: Sequence[str], *, num_classes: int, by_text: bool
) -> DataError:
    """Return the error for class names that the model does not know."""
    class_names, count = dataset.class_names, len(dataset.class_names)
    if nameless(model_labels) and not by_text:
        return DataError(
            f"{dataset.name}: has {counted(count, 'class', 'classes')} and the model {num_classes} without names; the classes of the "
            f"data are {first_names(class_names)}",
            hint=f"add `::classes-by={POSITION}` if they are the first {count} classes of the model, or name the model's classes "
            "with `hydractl import --labels`"
            if count <= num_classes
            else f"set `num_classes={count}` in an `arch:` reference, or select {num_classes} of the data's classes with `::classes=`",
        )
    matched = {place for place in _by_name(class_names, model_labels)[0] if place is not None}
    others = [name for i, name in enumerate(model_labels) if i not in matched]
    near = next(((old, new) for old in strange if (new := nearest(old, others))), ("OLD", "NEW"))
    pair = ":".join(map(write_name, near))
    hint = f"rename them to the model's classes, for example `::{MAP}={pair}`, or select classes with `::classes=`"
    if by_text:
        hint += "; or rename the model's classes to the data's with `--classes`, in any order"
    elif count == num_classes and (not matched or near[0] == near[1]):
        hint += f"; or {_BY_POSITION}"
    return DataError(
        f"{dataset.name}: {len(strange)} of {count} class names are not those of the model: "
        f"{first_names(strange)}; the model's other classes are {first_names(others) or 'none'}"
        if matched
        else (
            f"{dataset.name}: no class name is in the model: the data have {first_names(class_names)}, "
            f"the model has {first_names(model_labels)}"
        ),
        hint=hint,
    )
