"""Words of texts for token classification: their tokens, windows of long texts, and data sets of words.

Axes: N rows, Q maximum number of words per row, A members, D texts.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from typing_extensions import override

from hydractl import progress
from hydractl.data.datasets import NO_LABEL, Dataset, ItemLabels, Text, TextSet, fingerprint_of, text_sample
from hydractl.data.tokenize import CHUNK, Tokens, offset_tokenizer, tokenize, translated, truncating_tokenizer
from hydractl.errors import DataError
from hydractl.manifest.tokenizers import unknown_token
from hydractl.messages import counted
from hydractl.model_inputs import WORDS

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from hydractl.manifest.header import Tokenization


Span: TypeAlias = tuple[int, int]
"""Position of the first character, and of the first character after the end."""
OVERLAP = 4
"""Neighbouring windows share 1 / `OVERLAP` of their tokens, so each word has context of at least an eighth of
a window on both sides. Chosen by hand; doubling it halves this context and needs fewer windows."""
SHRINK = 8
"""Windows shrink by 1 / `SHRINK` if they have too many tokens when they are tokenized alone. Chosen by hand;
doubling it gives longer windows after more attempts."""


class Word(NamedTuple):
    """Word of a text, with its characters and the index of the first token."""

    span: Span
    token: int


class Window(NamedTuple):
    """Part of a text that a model reads at once.

    Attributes:
        characters: Characters of the window in the text.
        words: Indices of the words in the window.
        answered: Indices of the words whose predictions are taken from this window.
    """

    characters: Span
    words: range
    answered: range


def spans_of_window(window: Window, words: Sequence[Word]) -> list[Span]:
    """Return the spans of the words in a window, counted from the start of the window."""
    begin = window.characters[0]
    return [(b - begin, e - begin) for (b, e), _ in words[window.words.start : window.words.stop]]


def sources_of(texts: Sequence[str], lists: Sequence[Sequence[Span]]) -> Sequence[str | list[str]]:
    """Return the inputs of the tokenizer: the texts, or their words if `lists` has spans for each text."""
    return (
        [[text[b:e] for b, e in spans] for text, spans in zip(texts, lists, strict=True)] if lists else texts
    )


def words_of_text(text: str, spans: Sequence[Span] | None, encoding: Encoding, cutter: Cutter) -> list[Word]:
    """Return the words of a text that have tokens.

    Args:
        text: The text.
        spans: Characters of each word, if the text is a list of words. None finds the words with `words_in`.
        encoding: Tokens of the text.
        cutter: Tokenizer of the model.
    """
    if spans is None:
        return words_in(text, encoding, cutter)
    tokens = {number: i for i, number in reversed([*enumerate(encoding.word_ids)])}
    return [Word(span, tokens[number]) for number, span in enumerate(spans) if number in tokens]


def words_in(text: str, encoding: Encoding, cutter: Cutter) -> list[Word]:
    """Find the words of a text from its tokens, like transformers' pipeline for token classification.

    If the tokenizer marks tokens within words (`##ing`), a token with more characters than its span continues
    a word. Otherwise, a token continues a word if there is no space at its start. An unknown token starts a
    word. Several words may share characters (bytes of an emoji), and a word may be empty (a space that the
    tokenizer trims).
    """
    marks = bool(getattr(cutter.tokenizer.model, "continuing_subword_prefix", None))
    words: list[Word] = []
    for i, (token, number, (begin, end), special) in enumerate(
        zip(encoding.tokens, encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True)
    ):
        if special:
            continue
        inner = len(token) != end - begin if marks else begin > 0 and " " not in text[begin - 1 : begin + 1]
        if words and inner and number != cutter.unknown:
            words[-1] = Word((words[-1].span[0], end), words[-1].token)
        else:
            words.append(Word((begin, end), i))
    return words


class Cutter(NamedTuple):
    """Splits long texts into windows.

    Attributes:
        preprocess: Tokenization of the model.
        tokenizer: Tokenizer without truncation.
        capacity: Maximum number of tokens in a window, without special tokens.
        unknown: Id of the unknown token. None if the tokenizer has no unknown token.
    """

    preprocess: Tokenization
    tokenizer: Tokenizer
    capacity: int
    unknown: int | None

    @classmethod
    def of(cls, preprocess: Tokenization) -> Cutter:
        """Return the cutter of a model; raises like `offset_tokenizer`."""
        tokenizer = offset_tokenizer(preprocess)
        unknown = unknown_token(preprocess.tokenizer or "")
        return cls(
            preprocess,
            tokenizer,
            capacity=preprocess.max_length - tokenizer.num_special_tokens_to_add(is_pair=False),
            unknown=None if unknown is None else tokenizer.token_to_id(unknown),
        )

    def encode(self, sources: Sequence[str | list[str]]) -> Iterator[Encoding]:
        """Yield the tokens of texts or lists of words. Memory holds `CHUNK` texts at a time.

        Raises:
            CheckpointError: If the tokenizer fails.
        """
        for begin in range(0, len(sources), CHUNK):
            with translated("fails on the data"):
                encodings = self.encode_part(sources[begin : begin + CHUNK])
            yield from encodings

    def encode_part(self, sources: Sequence[str | list[str]]) -> list[Encoding]:
        """Return the tokens of at least one text or list of words, with the errors of the library."""
        return self.tokenizer.encode_batch(list(sources), is_pretokenized=not isinstance(sources[0], str))

    def windows(
        self, text: str, words: Sequence[Word], encoding: Encoding, *, in_words: bool
    ) -> list[Window]:
        """Split a text into windows: one window if the text is short enough.

        Args:
            text: The text.
            words: Words of the text.
            encoding: Tokens of the text.
            in_words: Whether the text is tokenized word by word.
        """
        number, spans = len(words), [word.span for word in words]
        windows = [Window((0, len(text)), range(number), range(number))]
        if len(encoding.ids) <= self.preprocess.max_length or not words:
            return windows
        # words that share characters must stay in the same window
        heads = [i for i, (begin, _) in enumerate(spans) if i == 0 or begin >= spans[i - 1][1]]
        ordinary = (i for i, special in enumerate(encoding.special_tokens_mask) if not special)
        starts = [*(words[i].token for i in heads), max(ordinary, default=0) + 1]
        heads.append(number)
        bounds = [0, *(begin for begin, _ in spans[1:])], [*(end for _, end in spans[:-1]), len(text)]
        capacity = self.capacity
        while capacity > 1:
            cuts = _cut(starts, capacity)
            windows = [
                Window(
                    (bounds[0][heads[first]], bounds[1][heads[last] - 1]),
                    range(heads[first], heads[last]),
                    range(heads[answered.start], heads[answered.stop]),
                )
                for first, last, answered in cuts
            ]
            texts = [text[slice(*window.characters)] for window in windows]
            lists = [spans_of_window(window, words) for window in windows] if in_words else ()
            too_long = (
                len(part.ids) > self.preprocess.max_length for part in self.encode(sources_of(texts, lists))
            )
            # a word longer than a window is truncated, so a window with a single word is accepted
            if not any(
                long and last - first > 1 for long, (first, last, _) in zip(too_long, cuts, strict=True)
            ):
                return windows
            capacity -= max(1, capacity // SHRINK)
        return windows


def _cut(starts: Sequence[int], capacity: int) -> list[tuple[int, int, range]]:
    """Split words into overlapping windows.

    Args:
        starts: Index of the first token of each word, followed by the number of all tokens.
        capacity: Maximum number of tokens per window. A longer word gets a separate window.

    Returns:
        For each window: the first word, the word after the last, and the words to answer.
    """
    windows: list[tuple[int, int, range]] = []
    first, answered, number = 0, 0, len(starts) - 1
    while True:
        last = max(first + 1, bisect_right(starts, starts[first] + capacity) - 1)
        if last >= number:
            return [*windows, (first, number, range(answered, number))]
        overlapping = bisect_left(starts, starts[last] - capacity // OVERLAP)
        # the smallest start at which the next window also holds the next word
        reaching = bisect_left(starts, starts[last + 1] - capacity)
        following = min(last, max(overlapping, reaching))
        border = min(last, bisect_left(starts, (starts[following] + starts[last]) // 2))
        border = max(border, following, answered)
        if border > answered:
            windows.append((first, last, range(answered, border)))
        first, answered = following, border


WORDS_HINT = "check that the column of words is the right one: `::text=COLUMN`"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordSet(TextSet):
    """Texts for token classification, or windows of texts.

    Attributes:
        words: Spans of the answered words of each row, in order. A window contains more words as context.
        pieces: Spans of all words of each row, if the rows are lists of words. Empty for running texts. Rows
            not yet read by `by_word` are always lists of words: `words` if `pieces` is empty.
        documents: Number of the text of each row, increasing from 0. Empty if each row is a text.
        offsets: Position of each row in its text, in characters. Empty if each row is a text.
        digests: `item_digest` of the text of each row. Empty if each row is a text with its own digest.
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
        """Return the fingerprint of the texts. Windows have no influence."""
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
        """Join the values of windows to values of texts.

        Args:
            values: Shape (A, N, Q, ...), one value per answered word of each row.

        Returns:
            Shape (A, D, Q', ...) with Q' the maximum number of words per text. Missing words are NaN, or -100
            for integers (labels). `values` itself if no text has several windows.
        """
        if len({*self.documents}) == len(self.documents):
            return values
        counts = torch.tensor([len(words) for words in self.words])
        documents = torch.tensor(self.documents)
        lengths = torch.zeros(int(documents[-1]) + 1, dtype=torch.int64).index_add_(0, documents, counts)
        joined = values.new_full(
            (len(values), len(lengths), int(lengths.max()), *values.shape[3:]),
            math.nan if values.is_floating_point() else NO_LABEL,
        )
        joined[:, torch.arange(joined.shape[2]) < lengths[:, None]] = values[
            :, torch.arange(values.shape[2]) < counts[:, None]
        ]
        return joined


def whole_words(texts: TextSet, rows: WordSet) -> list[tuple[str, list[Span]]]:
    """Return each text and the spans of its answered words.

    Args:
        texts: Texts before `by_word`.
        rows: Result of `by_word` for these texts.
    """
    words: list[tuple[str, list[Span]]] = [(str(text), []) for text in texts.texts]
    for i, spans in enumerate(rows.words):
        begin = rows.offsets[i] if rows.offsets else 0
        words[rows.documents[i] if rows.documents else i][1].extend((begin + b, begin + e) for b, e in spans)
    return words


class Row(NamedTuple):
    """Window of a text, as one row of a `WordSet`.

    Attributes:
        text: Index of the text.
        begin: First character in the text.
        end: Character after the last.
        pieces: Spans of all words in the row, counted from `begin`.
        words: Spans of the answered words, counted from `begin`.
        places: Indices of the answered words among the labels of the text.
    """

    text: int
    begin: int
    end: int
    pieces: tuple[Span, ...]
    words: tuple[Span, ...]
    places: tuple[int, ...]


def by_word(dataset: Dataset, preprocess: Tokenization) -> WordSet:
    """Split texts into rows for token classification. Each word is answered in exactly one row.

    Texts with more than `max_length` tokens become overlapping windows. Lists of words are tokenized word by
    word, like in transformers' scripts for token classification. Words of running texts are found with
    `words_in`. Words without tokens are left out, with a warning.

    Args:
        dataset: Texts, not split into windows.
        preprocess: Tokenization of the model.

    Raises:
        DataError: If the items are images or pairs of texts, or no word has a token.
        UsageError: If `max_length` allows only the special tokens.
        UnsupportedModelError: If the tokenizer has no offsets.
        CheckpointError: See `tokenize`.
    """
    if not isinstance(dataset, TextSet):
        raise DataError(f"{dataset.name}: contains {dataset.content}, but the model reads {TextSet.content}")
    texts, cutter = [_single(text, dataset.name) for text in dataset.texts], Cutter.of(preprocess)
    labelled, lists = (
        (dataset.words, dataset.pieces or dataset.words) if isinstance(dataset, WordSet) else ((), ())
    )
    rows, unread = list[Row](), list[str]()
    for number, (text, encoding) in enumerate(
        zip(texts, cutter.encode(sources_of(texts, lists)), strict=True)
    ):
        words = words_of_text(text, lists[number] if lists else None, encoding, cutter)
        places: Sequence[int | None] = range(len(words))
        if lists:
            place_of_span = {span: place for place, span in enumerate(labelled[number])}
            places = [place_of_span.pop(word.span, None) for word in words]
            unread += [f"`{text[begin:end]}` in text {dataset.key(number)}" for begin, end in place_of_span]
        of_text = [
            _row(number, window, words, places)
            for window in cutter.windows(text, words, encoding, in_words=bool(lists))
        ]
        answering = [row for row in of_text if row.words]
        # a labelled text whose words have no tokens is left out; all others keep a row
        rows += answering or ([] if unread and labelled[number] and dataset.labels else of_text[:1])
    numbers = [row.text for row in rows]
    documents = {number: i for i, number in enumerate(dict.fromkeys(numbers))}
    has_windows = len(rows) > len(documents)
    if has_windows:
        long = len({number for i, number in enumerate(numbers[1:]) if number == numbers[i]})
        progress.step(
            f"{dataset.name}: {counted(long, 'text')} longer than {preprocess.max_length} tokens, read in windows that overlap"
        )
    if unread:
        progress.warn(
            f"{dataset.name}: {counted(len(unread), 'word')} without tokens of the model, left out; the first is {unread[0]}"
        )
    if not rows:
        raise DataError(f"{dataset.name}: no word has a token of the model", hint=WORDS_HINT)
    shared = {
        field.name: getattr(dataset, field.name)
        for field in fields(TextSet)
        if field.name not in {"texts", "keys", "labels"}
    }
    return WordSet(
        **shared,
        texts=tuple(texts[row.text][row.begin : row.end] for row in rows),
        keys=tuple(map(dataset.key, numbers)),
        labels=_labels(dataset, rows),
        words=tuple(row.words for row in rows),
        pieces=tuple(row.pieces for row in rows) if lists else (),
        documents=tuple(documents[number] for number in numbers) if has_windows else (),
        offsets=tuple(row.begin for row in rows) if has_windows else (),
        digests=tuple(map(dataset.item_digest, numbers)),
    )


def check_answerable(rows: WordSet) -> WordSet:
    """Return the rows unchanged if every row has a word to answer.

    Raises:
        DataError: If a row has no word to answer.
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


def _labels(dataset: TextSet, rows: Sequence[Row]) -> ItemLabels | None:
    if dataset.labels is None or not dataset.task.by_word:
        return dataset.labels_at([row.text for row in rows])
    labels = cast("tuple[tuple[int, ...], ...]", dataset.labels)
    return tuple(tuple(labels[row.text][place] for place in row.places) for row in rows)


def _tokens_at(spans: Sequence[Span], encoding: Encoding) -> list[int]:
    """Return the first token that ends after the start of each span, or -1 for missing tokens.

    Used for words found with the tokenizer of another model.
    """
    places = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    ends = [encoding.offsets[i][1] for i in places]
    return [[*places, -1][bisect_right(ends, begin)] for begin, _ in spans]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordTokens(Tokens):
    """Tokens of rows, with the first token of each answered word.

    Attributes:
        word_starts: Shape (N, Q), int64, index of each word's first token in its row. -1 after the last word.
    """

    word_starts: Tensor

    @override
    def batch(self, chosen: Tensor, *, length: int | None = None) -> dict[str, Tensor]:
        inputs = Tokens.batch(self, chosen, length=length)
        starts = self.word_starts[chosen]
        if self.preprocess.padding_side == "left":
            padding = inputs["input_ids"].shape[1] - self.starts.diff()[chosen, None]
            starts = torch.where(starts < 0, starts, starts + padding)
        return {**inputs, WORDS: starts}


def tokens_of(dataset: TextSet, preprocess: Tokenization) -> Tokens:
    """Tokenize texts, including the tokens of words if the model is a token classifier.

    Args:
        dataset: Texts or rows of words.
        preprocess: Tokenization of the model.

    Returns:
        `WordTokens` for a `WordSet` and a token classifier, otherwise `Tokens`.

    Raises:
        DataError: If an answered word has no token. This may happen if `by_word` used another model's
            tokenizer.
        CheckpointError: See `tokenize`.
        UsageError: See `tokenize`.
    """
    if not preprocess.by_word or not isinstance(dataset, WordSet):
        return tokenize(dataset.texts, preprocess, place=dataset.name)
    # truncation on the left would remove the first token of a word longer than a window
    from_begin = preprocess.model_copy(update={"truncation_side": "right"})
    cutter = Cutter.of(preprocess)._replace(tokenizer=truncating_tokenizer(from_begin))
    texts = [_single(text, dataset.name) for text in dataset.texts]
    word_starts = torch.full((len(dataset), max(1, *map(len, dataset.words))), -1)
    numbers = iter(range(len(dataset)))

    def encode(sources: Sequence[str | list[str]]) -> list[Encoding]:
        encodings = cutter.encode_part(sources)
        for encoding, i in zip(encodings, numbers):  # noqa: B905 - the numbers go on with the next part
            words = words_of_text(texts[i], dataset.pieces[i] if dataset.pieces else None, encoding, cutter)
            spans = dataset.words[i]
            remaining = iter(words)  # in the order of the spans
            starts = [next((word.token for word in remaining if word.span == span), -1) for span in spans]
            if -1 in starts and not dataset.pieces:
                starts = _tokens_at(spans, encoding)
            if -1 in starts:
                begin, end = spans[starts.index(-1)]
                raise DataError(
                    f"{dataset.name}: text {dataset.key(i)}: the model has no token for the word `{texts[i][begin:end]}`, "
                    "which another model has",
                    hint="evaluate models with different tokenizers apart",
                )
            word_starts[i, : len(spans)] = torch.tensor(starts, dtype=torch.int64)
        return encodings

    tokens = tokenize(sources_of(texts, dataset.pieces), from_begin, place=dataset.name, encode=encode)
    shared: dict[str, Any] = {field.name: getattr(tokens, field.name) for field in fields(Tokens)}
    return WordTokens(**shared | {"preprocess": preprocess}, word_starts=word_starts)
