"""Texts whose words are answered one by one, as rows and as tokens.

Axes: N rows, Q words of a row at most, A members, D texts.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from typing_extensions import override

from hydractl.data.datasets import UNASKED, ItemLabels, Items, Text, TextSet, fingerprint_of, text_sample
from hydractl.data.tokenize import Tokens, open_cutting, tokenize
from hydractl.data.word_windows import Cutter, Span, Window, Word, sources_of, spans_of_window, words_of_text
from hydractl.errors import DataError
from hydractl.messages import counted
from hydractl.model_inputs import WORDS
from hydractl.progress import SILENT, Progress

if TYPE_CHECKING:
    from tokenizers import Encoding

    from hydractl.manifest.header import Tokenization

WORDS_HINT = "check that the column of words is the right one: `::text=COLUMN`"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordSet(TextSet):
    """Texts of which words are answered, or windows of such texts.

    Attributes:
        words: Of each row the characters of the words that it answers, in order; a window has others around them.
        pieces: Characters of all words of each row, if rows are lists of words; empty for running texts. Rows that `by_word` has
            not read yet are lists of words: if `pieces` is empty, of `words`.
        documents: Of which text each row is a window, from 0 and increasing; empty where each row is a text.
        offsets: Where each row begins in its text, in characters; empty where each row is a text.
        digests: `item_digest` of the text of each row; empty where it is that of the row.
    """

    words: tuple[tuple[Span, ...], ...]
    pieces: tuple[tuple[Span, ...], ...] = ()
    documents: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    digests: tuple[bytes, ...] = ()

    @property
    @override
    def total(self) -> int:
        return self.documents[-1] + 1 if self.documents else len(self)

    @override
    def item_digest(self, index: int) -> bytes:
        if self.digests:
            return self.digests[index]
        text = self.texts[index]
        return hashlib.sha256(json.dumps([text, self.words[index]]).encode()).digest() + text_sample(text)

    @property
    @override
    def firsts(self) -> Sequence[int]:
        documents = self.documents
        return [i for i in range(len(self)) if not documents or i == 0 or documents[i - 1] != documents[i]]

    @override
    def fingerprint(self, digests: Iterable[bytes] | None = None) -> str:
        """Return the fingerprint of the texts, in however many windows they are read."""
        of_rows = tuple(map(self.item_digest, range(len(self))) if digests is None else digests)
        firsts, labels = self.firsts, self.labels
        if labels is not None and self.documents and self.task.by_word:
            by_text: list[list[int]] = [[] for _ in firsts]
            for document, of_window in zip(self.documents, labels, strict=True):
                by_text[document] += cast("tuple[int, ...]", of_window)
            labels = tuple(map(tuple, by_text))
        elif self.documents:
            labels = self.labels_at(firsts)
        of_texts = [of_rows[i] for i in firsts]
        return fingerprint_of(self.total, self.class_names, labels, of_texts, decoding=self.decoding)

    @override
    def at(self, indices: Sequence[int]) -> WordSet:
        documents = [self.documents[i] for i in indices] if self.documents else []
        numbers = {document: number for number, document in enumerate(dict.fromkeys(documents))}
        return replace(
            self,
            texts=tuple(self.texts[i] for i in indices),
            keys=tuple(map(self.key, indices)),
            words=tuple(self.words[i] for i in indices),
            pieces=tuple(self.pieces[i] for i in indices) if self.pieces else (),
            documents=tuple(numbers[document] for document in documents),
            offsets=tuple(self.offsets[i] for i in indices) if self.offsets else (),
            digests=tuple(self.digests[i] for i in indices) if self.digests else (),
        )

    def by_document(self, values: Tensor) -> Tensor:
        """Return values (A, D, Q', ...) of the words of texts, of those of their windows (A, N, Q, ...).

        What a text or window has no word for is not-a-number; of labels, which are whole numbers, -100.
        """
        if len({*self.documents}) == len(self.documents):
            return values
        counts = torch.tensor([len(words) for words in self.words])
        documents = torch.tensor(self.documents)
        lengths = torch.zeros(int(documents[-1]) + 1, dtype=torch.int64).index_add_(0, documents, counts)
        joined = values.new_full(
            (len(values), len(lengths), int(lengths.max()), *values.shape[3:]),
            math.nan if values.is_floating_point() else UNASKED,
        )
        joined[:, torch.arange(joined.shape[2]) < lengths[:, None]] = values[
            :, torch.arange(values.shape[2]) < counts[:, None]
        ]
        return joined


def whole_words(texts: TextSet, rows: WordSet) -> list[tuple[str, list[Span]]]:
    """Return each text that rows were made of, and the characters of its words."""
    words: list[tuple[str, list[Span]]] = [(str(text), []) for text in texts.texts]
    for i, spans in enumerate(rows.words):
        begin = rows.offsets[i] if rows.offsets else 0
        words[rows.documents[i] if rows.documents else i][1].extend((begin + b, begin + e) for b, e in spans)
    return words


class Row(NamedTuple):
    """A window as a row of a `WordSet`.

    Attributes:
        text: Number of the text.
        begin: First character in the text.
        end: Character behind the last.
        pieces: Characters of all words in the row, counted from `begin`.
        words: Characters of the answered words, counted from `begin`.
        places: Positions of the answered words among the labels of the text.
    """

    text: int
    begin: int
    end: int
    pieces: tuple[Span, ...]
    words: tuple[Span, ...]
    places: tuple[int, ...]


def by_word(items: Items, how: Tokenization, progress: Progress = SILENT) -> WordSet:
    """Return texts as rows in which each word is answered once. Texts longer than the model reads become windows that overlap.

    Lists of words are tokenized word by word, as transformers' scripts for token classification do. Running texts have the
    words of the tokenizer, see `words_in`. Words without tokens are left out.

    Args:
        items: Texts, not yet in windows.
        how: Of the model.
        progress: Receives the number of long texts, and warnings.

    Raises:
        DataError: If items are images or pairs of texts.
        UsageError: If `max_length` leaves no room beside the special tokens.
        UnsupportedModelError: If the tokenizer has no offsets.
        CheckpointError: As `tokenize`.
    """
    if not isinstance(items, TextSet):
        raise DataError(f"{items.name}: contains {items.content}, but the model reads {TextSet.content}")
    texts, cutter = [_single(text, items.name) for text in items.texts], Cutter.of(how)
    labelled, lists = (items.words, items.pieces or items.words) if isinstance(items, WordSet) else ((), ())
    rows, unread = list[Row](), list[str]()
    sources = sources_of(texts, lists)
    for number, (text, encoding) in enumerate(zip(texts, cutter.encode(sources), strict=True)):
        words = words_of_text(text, lists[number] if lists else None, encoding, cutter)
        places: Sequence[int | None] = range(len(words))
        if lists:
            place_of_span = {span: place for place, span in enumerate(labelled[number])}
            places = [place_of_span.pop(word.span, None) for word in words]
            unread += [f"`{text[begin:end]}` in text {items.key(number)}" for begin, end in place_of_span]
        of_text = [
            _row(number, window, words, places)
            for window in cutter.windows(text, words, encoding, in_words=bool(lists))
        ]
        answering = [row for row in of_text if row.words]
        # a labelled text whose words have no tokens is left out; all others keep a row
        rows += answering or ([] if unread and labelled[number] and items.labels else of_text[:1])
    numbers = [row.text for row in rows]
    documents = {number: i for i, number in enumerate(dict.fromkeys(numbers))}
    has_windows = len(rows) > len(documents)
    if has_windows:
        long = len({number for i, number in enumerate(numbers[1:]) if number == numbers[i]})
        progress.step(
            f"{items.name}: {counted(long, 'text')} longer than {how.max_length} tokens, read in windows that overlap"
        )
    if unread:
        progress.warn(
            f"{items.name}: {counted(len(unread), 'word')} without tokens of the model, left out; the first is {unread[0]}"
        )
    if not rows:
        raise DataError(f"{items.name}: no word has a token of the model", hint=WORDS_HINT)
    shared = {
        field.name: getattr(items, field.name)
        for field in fields(TextSet)
        if field.name not in {"texts", "keys", "labels"}
    }
    return WordSet(
        **shared,
        texts=tuple(texts[row.text][row.begin : row.end] for row in rows),
        keys=tuple(map(items.key, numbers)),
        labels=_labels(items, rows),
        words=tuple(row.words for row in rows),
        pieces=tuple(row.pieces for row in rows) if lists else (),
        documents=tuple(documents[number] for number in numbers) if has_windows else (),
        offsets=tuple(row.begin for row in rows) if has_windows else (),
        digests=tuple(map(items.item_digest, numbers)),
    )


def check_answerable(rows: WordSet) -> WordSet:
    """Return the rows.

    Raises:
        DataError: If a text has no word to answer.
    """
    if () in rows.words:
        key = rows.key(rows.words.index(()))
        raise DataError(f"{rows.name}: text {key} has no word to answer", hint="leave it out")
    return rows


def _single(text: Text, name: str) -> str:
    if not isinstance(text, str):
        raise DataError(
            f"{name}: has pairs of texts, but the model answers the words of single texts",
            hint="select one column: `::text=COLUMN`",
        )
    return text


def _row(number: int, window: Window, words: Sequence[Word], places: Sequence[int | None]) -> Row:
    pieces = spans_of_window(window, words)
    answered = [i for i in window.answered if places[i] is not None]
    return Row(
        number,
        *window.characters,
        tuple(pieces),
        tuple(pieces[i - window.words.start] for i in answered),
        tuple(place for i in answered if (place := places[i]) is not None),
    )


def _labels(items: TextSet, rows: Sequence[Row]) -> ItemLabels | None:
    if items.labels is None or not items.task.by_word:
        return items.labels_at([row.text for row in rows])
    labels = cast("tuple[tuple[int, ...], ...]", items.labels)
    return tuple(tuple(labels[row.text][place] for place in row.places) for row in rows)


def _tokens_of_spans(spans: Sequence[Span], words: Iterable[Word]) -> list[int]:
    """Return the first token of the word at each span, -1 where `words`, which has the same order, has no such word."""
    rest = iter(words)
    return [next((word.token for word in rest if word.span == span), -1) for span in spans]


def _tokens_at(spans: Sequence[Span], encoding: Encoding) -> list[int]:
    """Return the first token that ends behind the begin of each span, -1 for none: spans are words of another tokenizer."""
    offsets = encoding.offsets
    places = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    ends = [offsets[i][1] for i in places]
    return [[*places, -1][bisect_right(ends, begin)] for begin, _ in spans]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordTokens(Tokens):
    """Tokens of rows, and where their words begin.

    Attributes:
        word_starts: Shape (N, Q), int64: each word's first token in its row, -1 behind the last word.
    """

    word_starts: Tensor

    @override
    def batch(self, chosen: Tensor, *, length: int | None = None) -> dict[str, Tensor]:
        inputs = Tokens.batch(self, chosen, length=length)
        starts = self.word_starts[chosen]
        if self.how.padding_side == "left":
            padding = inputs["input_ids"].shape[1] - self.starts.diff()[chosen, None]
            starts = torch.where(starts < 0, starts, starts + padding)
        return {**inputs, WORDS: starts}


def tokens_of(items: TextSet, how: Tokenization) -> Tokens:
    """Return texts as tokens, with the words of a `WordSet` where the model answers these.

    Raises:
        DataError: If an answered word has no token. `by_word` leaves out such words for the tokenizer of its model only.
        CheckpointError: As `tokenize`.
        UsageError: Likewise.
    """
    if not how.by_word or not isinstance(items, WordSet):
        return tokenize(items.texts, how, where=items.name)
    from_begin = how.model_copy(update={"truncation_side": "right"})
    cutter = Cutter.of(how)._replace(tokenizer=open_cutting(from_begin))
    texts = [_single(text, items.name) for text in items.texts]
    word_starts = torch.full((len(items), max(1, *map(len, items.words))), -1)
    numbers = iter(range(len(items)))

    def encode(sources: Sequence[str | list[str]]) -> list[Encoding]:
        encodings = cutter.encode_part(sources)
        for encoding, i in zip(encodings, numbers):  # noqa: B905 - the numbers go on with the next part
            words = words_of_text(texts[i], items.pieces[i] if items.pieces else None, encoding, cutter)
            spans = items.words[i]
            starts = _tokens_of_spans(spans, words)
            if -1 in starts and not items.pieces:
                starts = _tokens_at(spans, encoding)
            if -1 in starts:
                begin, end = spans[starts.index(-1)]
                raise DataError(
                    f"{items.name}: text {items.key(i)}: the model has no token for the word `{texts[i][begin:end]}`, "
                    "which another model has",
                    hint="evaluate models with different tokenizers apart",
                )
            word_starts[i, : len(spans)] = torch.tensor(starts, dtype=torch.int64)
        return encodings

    tokens = tokenize(sources_of(texts, items.pieces), from_begin, where=items.name, encode=encode)
    shared: dict[str, Any] = {field.name: getattr(tokens, field.name) for field in fields(Tokens)}
    return WordTokens(**shared | {"how": how}, word_starts=word_starts)
