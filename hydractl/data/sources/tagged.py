"""Texts whose words have a label each: from a table with a list of words and one of labels in each row."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import accumulate, chain

from hydractl.data.datasets import UNASKED, Labels
from hydractl.data.labels import are_numerals
from hydractl.data.reference import DataRef
from hydractl.data.sources.column_roles import UNKNOWN, LabelReader
from hydractl.data.sources.lists import AS_IS, list_in, split_labels
from hydractl.data.sources.tables import DataTable
from hydractl.data.sources.text_columns import find_column
from hydractl.data.word_windows import Span
from hydractl.data.words import WordSet
from hydractl.errors import DataError
from hydractl.progress import Progress
from hydractl.tasks import TOKENS

WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "pos_tags", "labels", "label")


def word_column(table: DataTable, ref: DataRef, *, has_texts: bool) -> str | None:
    """Return the column with lists of words, None where there is none or the texts beside it are meant.

    Args:
        table: The rows.
        ref: May name the column.
        has_texts: Whether another column has texts: they are meant unless labels of words are there.
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
    # a text with several labels rarely has as many words
    are_alike = [
        len(list_in(cell) or ()) == len(list_in(row) or ())
        for cell, row in zip(_word_cells(table, column), labels, strict=False)
    ]
    is_usual = column in WORD_COLUMNS and not has_texts
    return column if is_usual or 2 * sum(are_alike) > len(table) else None


def _word_cells(table: DataTable, column: str) -> list[object]:
    """Return a column of words. Texts are lists of their words if labels have a separator."""
    is_split = table.label_separator not in {None, AS_IS}
    return [split_labels(cell, "space" if is_split else None) for cell in table.cells(column)]


def words_of(
    table: DataTable, column: str, ref: DataRef, progress: Progress, *, labelled: bool = True
) -> WordSet:
    """Return the texts of lists of words, which are joined by blanks.

    Raises:
        DataError: If a cell holds anything else, or a row has not as many labels as words.
    """
    place = table.place(column)
    words = [
        _words(cell, f"{place}: row {row}")
        for row, cell in enumerate(_word_cells(table, column), table.first)
    ]
    if not ref.text and all(row and row[0] in {"0", "1", "1-2"} and row[-1].isdecimal() for row in words):
        text, *others = table.columns[1:] or table.columns
        # CoNLL-U has parts of speech in its fourth column; a smaller file has labels in its last one
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
        labels = _labels(tags, table.classes(tag_column), table.place(tag_column), progress)
        if labels.labels is not None:
            spans = [
                tuple(span for span, tag in zip(row, row_tags, strict=True) if tag != UNASKED)
                for row, row_tags in zip(pieces, tags, strict=True)
            ]
    return WordSet(
        texts=tuple(" ".join(row) for row in words),
        words=tuple(spans),
        pieces=tuple(pieces),
        keys=tuple(range(table.first, table.first + len(table))) if table.first else (),
        name=table.name,
        columns=tuple(table.columns),
        **labels._asdict(),
    )


def _words(cell: object, where: str) -> list[str]:
    words = list_in(cell)
    if words is None:
        raise DataError(f"{where} is not a list of words: {cell!r:.80}")
    for word in words:
        if not isinstance(word, str) or not word:
            raise DataError(
                f"{where} has a word that is {'empty' if word == '' else f'no string: {word!r:.80}'}"
            )
    return words


def _spans(words: Sequence[str]) -> tuple[Span, ...]:
    starts = accumulate((len(word) + 1 for word in words), initial=0)
    return tuple((begin, begin + len(word)) for begin, word in zip(starts, words, strict=False))


def _tags(table: DataTable, column: str, counts: Sequence[int]) -> list[list[int | str]]:
    """Return the label of each word of each row, names or numbers as they are told."""
    where = table.place(column)
    reader, tags = LabelReader(table.classes(column), where=where), list[list[int | str]]()
    for row, (cell, count) in enumerate(zip(table.label_cells(column), counts, strict=True), table.first):
        values = list_in(cell)
        if values is None:
            raise DataError(
                f"{where}: row {row} is not a list of labels: {cell!r:.80}",
                hint="each word needs a label; select the column with `::label=COLUMN`; for strings add `::label-separator=space`",
            )
        if len(values) != count:
            raise DataError(f"{where}: row {row} has {len(values)} labels for {count} words")
        tags.append([reader.label(row, value) for value in values])
    return tags


def _labels(
    tags: Sequence[Sequence[int | str]], names: Sequence[str] | None, where: str, progress: Progress
) -> Labels:
    """Return the labels of words by their classes; none where all are withheld."""
    unique = {*chain.from_iterable(tags)} - {UNASKED}
    if unique <= {UNKNOWN}:
        progress.warn(f"{where}: no word has a label, so the texts are unlabelled")
        return Labels()
    for tag in unique:
        if isinstance(tag, int) and not 0 <= tag < (len(names) if names is not None else tag + 1):
            row = next(row for row, row_tags in enumerate(tags) if tag in row_tags)
            raise DataError(
                f"{where}: row {row} has label {tag}, which is no class number; -100 is that of no class"
            )
        if isinstance(tag, str) and names is not None:
            raise DataError(
                f"{where}: has the label `{tag}`, but its labels must be indices into {len(names)} class names"
            )
    texts = sorted(map(str, unique))
    numbered = names is None and are_numerals(texts)
    class_names = names or sorted(texts, key=int if numbered else None)
    position = {text: i for i, text in enumerate(class_names)} if names is None else None
    return Labels(
        tuple(class_names),
        tuple(
            tuple(int(tag) if position is None else position[str(tag)] for tag in row if tag != UNASKED)
            for row in tags
        ),
        numbered,
        TOKENS,
    )
