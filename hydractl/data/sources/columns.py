"""Roles of the columns of a table, and the data sets of images, texts and words in these columns."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any

from hydractl import progress
from hydractl.data.datasets import NO_LABEL, ImageSet, ImageStore, Labels, Text, TextSet
from hydractl.data.labels import are_numerals
from hydractl.data.reference import DataRef
from hydractl.data.sources.tables import (
    AS_IS,
    LIST_FORM,
    DataTable,
    ImageFiles,
    list_in,
    separator_in,
    split_labels,
)
from hydractl.data.words import Span, WordSet
from hydractl.errors import DataError
from hydractl.messages import did_you_mean, quoted
from hydractl.plugins import load
from hydractl.tasks import MULTI_LABEL, SINGLE_LABEL, TASKS, TOKENS, Task

IMAGE_COLUMNS = ("image", "img", "file_name", "path", "file")
TEXT_COLUMNS = ("text", "sentence", "content", "review", "document", "comment", "tweet", "body")
LABEL_COLUMNS = ("label", "labels", "class", "fine_label")
PAIR_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "query": ("passage", "document", "doc", "text", "context", "answer", "response", "positive"),
        "question": ("sentence", "passage", "document", "context", "paragraph", "answer", "text"),
        "premise": ("hypothesis", "conclusion"),
        "claim": ("evidence", "document", "context", "sentence", "text"),
        "anchor": ("positive",),
        "prompt": ("response", "completion", "answer"),
        "context": ("response",),
        "text": ("hypothesis",),
        "document": ("summary",),
        "article": ("summary",),
        "headline": ("body",),
    }
)
"""Names of second columns by the name of the first, from GLUE, MS MARCO, SQuAD, FEVER and the data sets of
sentence-transformers."""
_FIRST_OF_TWO = re.compile(
    r"(?:sentence|sent|text|question|query|doc|document|passage|paragraph|phrase|title|input|utterance|s|q|t)[_ ]?[01a]",
    re.IGNORECASE,
)
"""Pattern of numbered or lettered first columns: `sentence1` (with `sentence2`), `text_a` (with `text_b`)."""
_EXAMINED = 100
"""Number of rows that are checked for texts. Chosen by hand; doubling it reads twice as many cells for a more
reliable majority."""


def find_column(table: DataTable, *, column: str | None, usual: Sequence[str], role: str) -> str | None:
    """Return the column for a role.

    Args:
        table: The table.
        column: Column named in the reference, or None.
        usual: Well-known names, preferred ones first.
        role: Key of the data reference, for messages.

    Returns:
        The named column, otherwise the first existing column with a well-known name. None without a match.

    Raises:
        DataError: If the named column does not exist.
    """
    columns = columns_of(table)
    if column is None:
        return next((columns[name] for name in usual if name in columns), None)
    if column not in columns:
        raise DataError(
            f"{table.display_name}: has no column `{column}` for `{role}=`; its columns are {quoted(table.columns)}",
            hint=did_you_mean(column, table.columns),
        )
    return columns[column]


def columns_of(table: DataTable) -> dict[str, str]:
    """Return the column name of a table for each name, written with or without surrounding spaces."""
    return {name.strip(): name for name in table.columns} | {name: name for name in table.columns}


def text_columns(table: DataTable, ref: DataRef, *, pairs: bool | None) -> tuple[str, ...]:
    """Return the column of texts, or the two columns of pairs of texts.

    Pairs are preferred to single texts, unless the model was trained on single texts.

    Args:
        table: The table.
        ref: Data reference, which may name the columns.
        pairs: Whether the model was trained on pairs. None if unknown.

    Raises:
        DataError: If a column is missing or several pairs are possible. Also if the model was trained on
            pairs, but only one of several text columns has a well-known name.
    """
    columns = columns_of(table)
    if ref.text_columns:
        chosen = (find_column(table, column=name, usual=(), role="text") for name in ref.text_columns)
        return tuple(filter(None, chosen))
    two, one = usual_texts(table)
    if two and not (one and pairs is False):
        if len(two) > 1:
            raise _ambiguous(table, ref, two)
        (progress.warn if pairs is False else progress.step)(
            f"{table.display_name}: reading pairs of texts from the columns {quoted(two[0])}"
            + ("; the model was trained on single texts" if pairs is False else "")
        )
        return tuple(columns[name] for name in two[0])
    if one:
        label = find_column(table, column=ref.label, usual=LABEL_COLUMNS, role="label")
        others = [
            name for name in table.columns if name not in {columns[one], label} and _holds_texts(table, name)
        ]
        if others and pairs:
            raise _ambiguous(table, ref, [(one, text) for text in others])
        if others:
            progress.step(
                f"{table.display_name}: reading the texts of column `{one}`, and no other ({quoted(others)}); "
                f"`::text={one}+{others[0]}` reads pairs"
            )
        return (columns[one],)
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    raise DataError(
        f"{table.display_name}: none of its columns ({quoted(table.columns)}) has one of the names "
        f"{quoted(TEXT_COLUMNS)}, but the model reads texts",
        hint=(
            f"column `{image}` seems to contain images, which this model cannot read; select a column "
            "of texts: `::text=COLUMN`"
        )
        if image
        else "select the column with the texts: `::text=COLUMN`, or `::text=FIRST+SECOND` for pairs; for words in strings add "
        "`label=COLUMN,label-separator=space`",
    )


def _ambiguous(table: DataTable, ref: DataRef, pairs: Sequence[tuple[str, str]]) -> DataError:
    options = [shlex.quote(f"{ref.source}::text={first}+{second}") for first, second in pairs]
    return DataError(
        f"{table.display_name}: several of its columns may hold pairs of texts",
        hint=f"choose the columns: {quoted(options)}; or `::text=COLUMN` for single texts",
    )


def usual_texts(table: DataTable) -> tuple[list[tuple[str, str]], str | None]:
    """Return the pairs of columns with well-known names, and the well-known column of single texts or None."""
    columns = columns_of(table)
    partners = {
        name: (f"{name[:-1]}{chr(ord(name[-1]) + 1)}",) for name in columns if _FIRST_OF_TWO.fullmatch(name)
    }
    pairs = [
        (first, second)
        for first, seconds in {**PAIR_COLUMNS, **partners}.items()
        for second in seconds
        if {first, second} <= {*columns}
    ]
    return pairs, next((name for name in TEXT_COLUMNS if name in columns), None)


def _holds_texts(table: DataTable, column: str) -> bool:
    """Return whether most examined cells of a column are strings with several words.

    False for unsupported types.
    """
    cells: Sequence[object] = ()
    with suppress(DataError):
        cells = table.cells(column, most=_EXAMINED)
    return 2 * sum(isinstance(cell, str) and len(cell.split()) > 1 for cell in cells) > len(cells)


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]+)?")
UNKNOWN = -1
"""Label of unlabelled rows in data sets of the Hub."""


def images_of(table: DataTable, ref: DataRef, *, labelled: bool = True) -> ImageSet:
    """Return the images in a column of a table, or in the files that the column names.

    Raises:
        DataError: If a column is missing or has other content.
    """
    image = find_column(table, column=ref.image, usual=IMAGE_COLUMNS, role="image")
    if image is None:
        _, text = usual_texts(table)
        raise DataError(
            f"{table.display_name}: none of its columns ({quoted(table.columns)}) has one of the names {quoted(IMAGE_COLUMNS)}",
            hint=f"column `{text}` seems to contain texts, which this model cannot read"
            if text
            else "select the column with the images: `::image=COLUMN`",
        )
    labels, read = _labels(table, ref, labelled=labelled), table.images(image)
    return ImageSet(
        store=ImageStore(source=read, table=table.display_name, checks_paths=isinstance(read, ImageFiles)),
        places=range(len(table)),
        name=table.name,
        columns=tuple(table.columns),
        **labels._asdict(),
    )


def texts_of(table: DataTable, ref: DataRef, *, labelled: bool = True, pairs: bool | None = None) -> TextSet:
    """Return the texts in the columns of a table. `text_columns` explains `pairs`.

    Raises:
        DataError: If a column is missing, a cell is not text, or a label is malformed.
    """
    columns = text_columns(table, ref, pairs=pairs)
    cells = [
        [_checked(cell, f"{table.place(c)}: row {row}") for row, cell in enumerate(table.cells(c))]
        for c in columns
    ]
    texts: tuple[Text, ...] = tuple(zip(*cells, strict=True)) if len(cells) > 1 else tuple(cells[0])
    labels = _labels(table, ref, labelled=labelled)
    return TextSet(texts=texts, name=table.name, columns=tuple(table.columns), **labels._asdict())


def _checked(cell: object, place: str) -> str:
    """Return the text of a cell, or raise DataError if the cell has another type.

    Missing cells give an empty text, because .csv files do not distinguish the two.
    """
    if cell is None or cell != cell:  # noqa: PLR0124 - NaN, which pandas writes for what is missing
        return ""
    if not isinstance(cell, str):
        raise DataError(f"{place} is not a string: {cell!r:.80}")
    return cell


def _labels(table: DataTable, ref: DataRef, *, labelled: bool) -> Labels:
    column = find_column(table, column=ref.label, usual=LABEL_COLUMNS, role="label") if labelled else None
    if column is None:
        return Labels()
    return read_labels(
        table.label_cells(column),
        names=table.classes(column),
        place=table.place(column),
        separator=table.label_separator,
    )


def read_labels(
    values: Sequence[object], *, names: Sequence[str] | None, place: str, separator: str | None = None
) -> Labels:
    """Convert a column to class names and labels.

    Args:
        values: One cell per row. A cell is a string, an integer from 0, or -1 (only if all labels are
            withheld); or, for data with several labels, a list of strings or integers, or a list with 0 or 1
            for each class.
        names: Class names declared by the table; integers are then indices into `names`. None if not
            declared.
        place: Name of the column in messages.
        separator: Value of `label-separator=`. If None, names that look like several labels raise.

    Returns:
        Class names (numbers in numeric order) and one label per row; empty if labels are withheld. Integers
        without declared names become class names with `numbered=True`, also in .csv files, where every cell
        is text.

    Raises:
        DataError: If a label is missing, of another type, or out of range.
    """
    task, cells = _cells_of_task(values, place)
    if task.by_label:
        return _label_sets(cells, names, place)
    labels = [label_of(cell, f"{place}: row {row}") for row, cell in enumerate(cells)]
    if all(label == UNKNOWN for label in labels):
        progress.warn(f"{place}: every label is {UNKNOWN}, so the items are unlabelled")
        return Labels()
    top = math.inf if names is None else len(names) - 1
    for row, label in enumerate(labels):
        if isinstance(label, int) and not 0 <= label <= top:
            raise DataError(
                f"{place}: row {row} has label {label}, out of range 0..{'' if names is None else top}",
                hint="count the labels from 0, or use class names; -1 means unlabelled only if every label is -1",
            )
        if names is not None and not isinstance(label, int):
            raise DataError(
                f"{place}: row {row} has the label {label!r}, but must have an index into {len(names)} class names"
            )
    texts = dict.fromkeys(map(str, labels))
    if separator is None and names is None:
        _check_separators(texts, place)
    class_names, position, numbered = _classes(texts, names)
    return Labels(class_names, tuple(position[str(label)] for label in labels), numbered, task)


def _classes(
    labels: Iterable[str], names: Sequence[str] | None
) -> tuple[tuple[str, ...], Mapping[str, int], bool]:
    """Return the class names, the index of each label, and whether the names are numbers.

    Args:
        labels: All labels, with or without repetitions.
        names: Class names declared by the table; labels are then indices into `names`.
    """
    numbered = names is None and are_numerals(labels)
    if names is None:
        names = keys = sorted({*labels}, key=int if numbered else None)
    else:
        keys = [str(number) for number in range(len(names))]
    return tuple(names), {key: number for number, key in enumerate(keys)}, numbered


def _cells_of_task(cells: Sequence[object], place: str) -> tuple[Task, Sequence[Any]]:
    """Return the task that the form of the cells implies, and the cells in this form.

    Raises:
        DataError: If only some cells have this form.
    """
    for task, path in ((task, task.cell) for task in TASKS.values() if task.cell and cells):
        labels = [*map(load(path), cells)]
        if all(label is None for label in labels):
            continue
        if None in labels:
            raise DataError(
                f"{place}: row {labels.index(None)} and others differ: give {task.labels}, or for none",
                hint=task.hint.format(name=place),
            )
        return task, labels
    return SINGLE_LABEL, cells


def label_of(cell: object, place: str) -> int | str:
    """Return the label in a cell: an integer in any notation, or a name without surrounding spaces.

    Args:
        cell: The cell.
        place: Name of the cell in messages.

    Raises:
        DataError: If the cell is neither.
    """
    value = str(cell) if isinstance(cell, bool) else cell.strip() if isinstance(cell, str) else cell
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value) if value.lstrip("-").isdigit() else float(value)
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        return int(value)
    if (
        value == ""
        or not isinstance(value, int | str)
        or (LIST_FORM.fullmatch(str(value)) and list_in(value) is None)
    ):
        raise DataError(
            f"{place} has an invalid label: {cell!r:.80}",
            hint='labels must be names or integers; write lists in JSON, `["bad", "long"]`; for cells such as `bad|long` add `::label-separator=|` in quotes',
        )
    return value


def _check_separators(names: Iterable[str], place: str) -> None:
    """Raise DataError for names with probable separators of several labels, and warn about possible ones."""
    if separator := separator_in(names):
        raise DataError(
            f"{place}: labels such as `{next(t for t in names if separator in t)}` look like several labels in one cell",
            hint=f"add `::label-separator={'comma' if separator == ',' else separator}` in quotes, or `::label-separator={AS_IS}` if they are names",
        )
    if several := next((t for t in names if "|" in t or ";" in t), None):
        progress.warn(
            f"{place}: reads `{several}` as one name; for several labels in a cell add "
            f"`::label-separator={'|' if '|' in several else ';'}` in quotes, for one name `::label-separator={AS_IS}`"
        )


def _label_sets(cells: Sequence[list[Any]], names: Sequence[str] | None, place: str) -> Labels:
    """Return the labels of cells with lists.

    Lists contain names, class indices, or (if all have the same length) a 0 or 1 for each class.

    Raises:
        DataError: If a label is not a class index, the lists are ambiguous, or all lists are empty.
    """
    top, lists = math.inf if names is None else len(names) - 1, list[tuple[int | str, ...]]()
    for row, cell in enumerate(cells):
        values = tuple(label_of(int(v) if isinstance(v, bool) else v, f"{place}: row {row}") for v in cell)
        wrong = (v for v in values if (v < 0 or v > top if isinstance(v, int) else top < math.inf))
        if (value := next(wrong, None)) is not None:
            raise DataError(
                f"{place}: row {row} has label {value}, which is no class number"
                + (f" in 0..{top}" if names is not None else "")
            )
        lists.append(values)
    width = len(lists[0])
    if names is None and width > 1 and all(len(row) == width and {*row} <= {0, 1} for row in lists):
        if all({*row} == {0, 1} for row in lists) and width == 2:
            raise DataError(
                f"{place}: every list is a 0 and a 1, which may be class numbers or which classes apply",
                hint="write the names of the classes instead",
            )
        hot = tuple(tuple(i for i, value in enumerate(row) if value) for row in lists)
        return Labels(tuple(map(str, range(width))), numbered=True, labels=hot, task=MULTI_LABEL)
    texts = {str(value) for row in lists for value in row}
    if not texts:
        raise DataError(f"{place}: every list of labels is empty")
    class_names, position, numbered = _classes(texts, names)
    sets = tuple(tuple(sorted({position[str(label)] for label in row})) for row in lists)
    return Labels(class_names, sets, numbered, MULTI_LABEL)


WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "pos_tags", "labels", "label")


def word_column(table: DataTable, ref: DataRef, *, has_texts: bool) -> str | None:
    """Return the column with lists of words, or None.

    A column of texts is preferred to a column of words without labels.

    Args:
        table: The table.
        ref: Data reference, possibly with a name for the column.
        has_texts: Whether another column has texts.
    """
    requested = ref.text_columns
    column = find_column(table, column=requested[0] if requested else None, usual=WORD_COLUMNS, role="text")
    if len(requested) > 1 or column is None or list_in(_word_cells(table, column)[0]) is None:
        return None
    tags = find_column(table, column=ref.label, usual=TAG_COLUMNS, role="label")
    labels = [] if tags is None else table.label_cells(tags)
    if list_in(table.cells(column)[0]) is not None:
        are_tagged = bool(labels) and list_in(labels[0]) is not None
        return column if requested or are_tagged or not has_texts else None
    # Only token classification has as many labels as words in most rows.
    are_alike = [
        len(list_in(cell) or ()) == len(list_in(row) or ())
        for cell, row in zip(_word_cells(table, column), labels, strict=False)
    ]
    is_usual = column in WORD_COLUMNS and not has_texts
    return column if is_usual or 2 * sum(are_alike) > len(table) else None


def _word_cells(table: DataTable, column: str) -> list[object]:
    """Return the cells of a column of words.

    If the reference has a `label-separator=` other than `none`, strings are split at white space into lists
    of words. Other cells are returned unchanged.
    """
    is_split = table.label_separator not in {None, AS_IS}
    return [split_labels(cell, "space" if is_split else None) for cell in table.cells(column)]


def words_of(table: DataTable, column: str, ref: DataRef, *, labelled: bool = True) -> WordSet:
    """Return the texts in a column of lists of words, joined by spaces.

    Args:
        table: The table.
        column: Column of the words.
        ref: Data reference, which may name the column of labels.
        labelled: Whether to read labels.

    Raises:
        DataError: If a cell is not a list of words, or the numbers of labels and words differ in a row.
    """
    place = table.place(column)
    words = [_words(cell, f"{place}: row {row}") for row, cell in enumerate(_word_cells(table, column))]
    if not ref.text and all(row and row[0] in {"0", "1", "1-2"} and row[-1].isdecimal() for row in words):
        text, *others = table.columns[1:] or table.columns
        # CoNLL-U has parts of speech in its fourth column; files with fewer columns have labels in the last
        raise DataError(
            f"{place}: numbers the words of each text, as CoNLL-U does, and has no words",
            hint="select the columns: "
            f"`{shlex.quote(','.join([f'{ref.source}::text={text}', *(f'label={name}' for name in others[:2][-1:])]))}`",
        )
    tag_column = find_column(table, column=ref.label, usual=TAG_COLUMNS, role="label") if labelled else None
    pieces, labels = [_spans(row) for row in words], Labels()
    spans = pieces
    if tag_column is not None:
        tags = _tags(table, tag_column, [len(row) for row in words])
        labels = _word_labels(tags, table.classes(tag_column), table.place(tag_column))
        if labels.labels is not None:
            spans = [
                tuple(span for span, tag in zip(row, row_tags, strict=True) if tag != NO_LABEL)
                for row, row_tags in zip(pieces, tags, strict=True)
            ]
    return WordSet(
        texts=tuple(" ".join(row) for row in words),
        words=tuple(spans),
        pieces=tuple(pieces),
        name=table.name,
        columns=tuple(table.columns),
        **labels._asdict(),
    )


def _words(cell: object, place: str) -> list[str]:
    words = list_in(cell)
    if words is None:
        raise DataError(f"{place} is not a list of words: {cell!r:.80}")
    for word in words:
        if not isinstance(word, str) or not word:
            raise DataError(
                f"{place} has a word that is {'empty' if word == '' else f'no string: {word!r:.80}'}"
            )
    return words


def _spans(words: Sequence[str]) -> tuple[Span, ...]:
    starts = accumulate((len(word) + 1 for word in words), initial=0)
    return tuple((begin, begin + len(word)) for begin, word in zip(starts, words, strict=False))


def _tags(table: DataTable, column: str, counts: Sequence[int]) -> list[list[int | str]]:
    """Return the label of each word of each row: names or integers, as in the table.

    Raises:
        DataError: If a cell is not a list, or its length differs from the number of words.
    """
    place = table.place(column)
    tags: list[list[int | str]] = []
    for row, (cell, count) in enumerate(zip(table.label_cells(column), counts, strict=True)):
        values = list_in(cell)
        if values is None:
            raise DataError(
                f"{place}: row {row} is not a list of labels: {cell!r:.80}",
                hint="each word needs a label; select the column with `::label=COLUMN`; for strings add `::label-separator=space`",
            )
        if len(values) != count:
            raise DataError(f"{place}: row {row} has {len(values)} labels for {count} words")
        tags.append([label_of(value, f"{place}: row {row}") for value in values])
    return tags


def _word_labels(tags: Sequence[Sequence[int | str]], names: Sequence[str] | None, place: str) -> Labels:
    """Return the class index of each labelled word. Empty if all labels are withheld.

    Raises:
        DataError: If a label is out of range, or is a name although the table declares class names.
    """
    unique = {*chain.from_iterable(tags)} - {NO_LABEL}
    if unique <= {UNKNOWN}:
        progress.warn(f"{place}: no word has a label, so the texts are unlabelled")
        return Labels()
    for tag in unique:
        if isinstance(tag, int) and not 0 <= tag < (len(names) if names is not None else tag + 1):
            row = next(row for row, row_tags in enumerate(tags) if tag in row_tags)
            raise DataError(
                f"{place}: row {row} has label {tag}, which is no class number; -100 is that of no class"
            )
        if isinstance(tag, str) and names is not None:
            raise DataError(
                f"{place}: has the label `{tag}`, but its labels must be indices into {len(names)} class names"
            )
    class_names, position, numbered = _classes({*map(str, unique)}, names)
    labels = tuple(tuple(position[str(tag)] for tag in row if tag != NO_LABEL) for row in tags)
    return Labels(class_names, labels, numbered, TOKENS)
