"""Texts whose words are answered one by one: which words there are, and long texts in windows.

Axes: N rows, Q words of a row at most, A members, D texts.
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

from hydractl.data.datasets import UNASKED, ItemLabels, Items, Text, TextSet, fingerprint_of, text_sample
from hydractl.data.tokenize import CHUNK, Tokens, open_whole, tokenize
from hydractl.errors import DataError
from hydractl.manifest.tokenizers import unknown_token
from hydractl.messages import counted
from hydractl.model_inputs import WORDS
from hydractl.progress import SILENT, Progress

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from hydractl.manifest.header import Tokenization

Span: TypeAlias = tuple[int, int]
"""First character and the one behind the last."""
OVERLAP = 4
"""Neighbouring windows share one in so many tokens: each word has an eighth of a window before and behind it, if its text has."""
SHRINK = 8
"""By itself a window may have more tokens than within its text; it is then made shorter by one in so many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordSet(TextSet):
    """Texts of which words are answered, or windows of such texts.

    Attributes:
        words: Of each row the characters of the words that it answers, in order; a window has others around them.
        documents: Of which text each row is a window, from 0 and increasing; empty where each row is a text.
        offsets: Where each row begins in its text, in characters; empty where each row is a text.
        digests: `item_digest` of the text of each row; empty where it is that of the row.
    """

    words: tuple[tuple[Span, ...], ...]
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


class Window(NamedTuple):
    """Characters of a text, and which of its words are answered there."""

    characters: Span
    words: range


def by_word(items: Items, how: Tokenization, progress: Progress = SILENT) -> WordSet:
    """Return texts as rows of which each word is answered once: those longer than the model reads as windows that overlap.

    Texts without words of their own have those of the tokenizer, see `words_in`.

    Args:
        items: Texts, not yet in windows.
        how: Of the model.
        progress: Hears of long texts.

    Raises:
        DataError: If items are images or pairs of texts.
        UsageError: If `max_length` leaves no room beside the special tokens.
        UnsupportedModelError: If the tokenizer does not tell where in a text its tokens stand.
        CheckpointError: As `tokenize`.
    """
    if not isinstance(items, TextSet):
        raise DataError(f"{items.name}: contains {items.content}, but the model reads {TextSet.content}")
    texts = [_single(text, items.name) for text in items.texts]
    cutter, rows, windows = Cutter.of(how), list[int](), list[Window]()
    spans: list[tuple[Span, ...]] = []
    for number, (text, encoding) in enumerate(zip(texts, cutter.encode(texts), strict=True)):
        spans_of_text = (
            items.words[number] if isinstance(items, WordSet) else words_in(text, encoding, cutter)
        )
        of_text = cutter.windows(text, spans_of_text, encoding)
        windows += of_text
        rows += [number] * len(of_text)
        spans.append(spans_of_text)
    if len(windows) > len(texts):
        long = len({number for i, number in enumerate(rows[1:]) if number == rows[i]})
        progress.step(
            f"{items.name}: {counted(long, 'text')} longer than {how.max_length} tokens, read in windows that overlap"
        )
    shared = {
        field.name: getattr(items, field.name)
        for field in fields(TextSet)
        if field.name not in {"texts", "keys", "labels"}
    }
    return WordSet(
        **shared,
        texts=tuple(texts[n][slice(*window.characters)] for n, window in zip(rows, windows, strict=True)),
        keys=tuple(map(items.key, rows)),
        labels=_labels(items, rows, windows),
        words=tuple(
            tuple(
                (b - w.characters[0], e - w.characters[0]) for b, e in spans[n][w.words.start : w.words.stop]
            )
            for n, w in zip(rows, windows, strict=True)
        ),
        documents=tuple(rows) if len(windows) > len(texts) else (),
        offsets=tuple(w.characters[0] for w in windows) if len(windows) > len(texts) else (),
        digests=tuple(map(items.item_digest, rows)),
    )


def _single(text: Text, name: str) -> str:
    if not isinstance(text, str):
        raise DataError(
            f"{name}: has pairs of texts, but the model answers the words of single texts",
            hint="select one column: `::text=COLUMN`",
        )
    return text


def _labels(items: TextSet, rows: Sequence[int], windows: Sequence[Window]) -> ItemLabels | None:
    if items.labels is None or not items.task.by_word:
        return items.labels_at(rows)
    labels = cast("tuple[tuple[int, ...], ...]", items.labels)
    return tuple(labels[n][w.words.start : w.words.stop] for n, w in zip(rows, windows, strict=True))


def words_in(text: str, encoding: Encoding, cutter: Cutter) -> tuple[Span, ...]:
    """Return the words of a text as transformers' pipeline for token classification tells them by the tokens.

    Where the tokenizer marks tokens within words, a token that is longer than its characters goes on with a word; where it
    does not, one at whose begin there is no blank. An unknown token begins a word.
    """
    marks = bool(getattr(cutter.tokenizer.model, "continuing_subword_prefix", None))
    spans: list[Span] = []
    for token, number, (begin, end), special in zip(
        encoding.tokens, encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True
    ):
        if special or end <= begin:
            continue
        inner = len(token) != end - begin if marks else begin > 0 and " " not in text[begin - 1 : begin + 1]
        if spans and inner and number != cutter.unknown:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    return tuple(spans)


def first_tokens(spans: Sequence[Span], encoding: Encoding) -> list[int]:
    """Return each word's first token, the first that reaches into it; that of the next word, or the last, where it has none."""
    places = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    ends = [encoding.offsets[i][1] for i in places]
    numbers = (bisect_right(ends, begin) for begin, _ in spans)
    return [places[min(number, len(places) - 1)] if places else 0 for number in numbers]


class Cutter(NamedTuple):
    """Cuts texts into windows of at most `capacity` tokens without special ones; `unknown` is the unknown token's number."""

    how: Tokenization
    tokenizer: Tokenizer
    capacity: int
    unknown: int | None

    @classmethod
    def of(cls, how: Tokenization) -> Cutter:
        """Return what cuts texts for a model; raises as `open_whole`."""
        tokenizer = open_whole(how)
        unknown = unknown_token(how.tokenizer or "")
        return cls(
            how,
            tokenizer,
            capacity=how.max_length - tokenizer.num_special_tokens_to_add(is_pair=False),
            unknown=None if unknown is None else tokenizer.token_to_id(unknown),
        )

    def encode(self, texts: Sequence[str]) -> Iterator[Encoding]:
        """Yield the tokens of texts, of which memory holds some at a time."""
        for begin in range(0, len(texts), CHUNK):
            yield from self.tokenizer.encode_batch(list(texts[begin : begin + CHUNK]))

    def windows(self, text: str, spans: Sequence[Span], encoding: Encoding) -> list[Window]:
        """Return the windows of a text, of which `encoding` is the whole."""
        full_text = Window((0, len(text)), range(len(spans)))
        if len(encoding.ids) <= self.how.max_length or not spans:
            return [full_text]
        ordinary = (i for i, special in enumerate(encoding.special_tokens_mask) if not special)
        starts = [*first_tokens(spans, encoding), max(ordinary, default=0) + 1]
        bounds = [0, *(begin for begin, _ in spans[1:])], [*(end for _, end in spans[:-1]), len(text)]
        capacity, windows = self.capacity, [full_text]
        while capacity > 1:
            cuts = _cut(starts, capacity)
            windows = [Window((bounds[0][first], bounds[1][last - 1]), words) for first, last, words in cuts]
            parts = self.encode([text[slice(*window.characters)] for window in windows])
            too_long = (len(part.ids) > self.how.max_length for part in parts)
            # a word that is longer than any window is read as far as it fits
            if not any(
                long and last - first > 1 for long, (first, last, _) in zip(too_long, cuts, strict=True)
            ):
                return windows
            capacity -= max(1, capacity // SHRINK)
        return windows


def _cut(starts: Sequence[int], capacity: int) -> list[tuple[int, int, range]]:
    """Return each window's first word and the one behind its last, and the words that it answers.

    Args:
        starts: Each word's first token, and the number of all tokens.
        capacity: Tokens in a window; a longer word has one of its own.
    """
    windows: list[tuple[int, int, range]] = []
    first, answered, number = 0, 0, len(starts) - 1
    while True:
        last = max(first + 1, bisect_right(starts, starts[first] + capacity) - 1)
        if last >= number:
            return [*windows, (first, number, range(answered, number))]
        overlapping = bisect_left(starts, starts[last] - capacity // OVERLAP)
        reaching = bisect_left(starts, starts[last + 1] - capacity)  # so far that the next word fits
        following = min(last, max(overlapping, reaching))
        border = min(last, bisect_left(starts, (starts[following] + starts[last]) // 2))
        border = max(border, following, answered)
        if border > answered:
            windows.append((first, last, range(answered, border)))
        first, answered = following, border


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
    """Return texts as tokens, with the words of a `WordSet` where the model answers these; raises as `tokenize`."""
    if not how.by_word or not isinstance(items, WordSet):
        return tokenize(items.texts, how, where=items.name)
    tokens, encodings = (
        tokenize(items.texts, how, where=items.name),
        Cutter.of(how).encode([_single(text, items.name) for text in items.texts]),
    )
    longest = max(1, *map(len, items.words))
    word_starts = torch.full((len(items), longest), -1)
    lengths = tokens.starts.diff().tolist()
    for row, spans, encoding, length in zip(word_starts, items.words, encodings, lengths, strict=True):
        starts = torch.tensor(first_tokens(spans, encoding), dtype=torch.int64)
        row[: len(spans)] = starts.clamp(max=length - 1)
    shared: dict[str, Any] = {field.name: getattr(tokens, field.name) for field in fields(Tokens)}
    return WordTokens(**shared, word_starts=word_starts)
