"""The words of texts by their tokens, and windows of long texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hydractl.data.tokenize import CHUNK, open_whole, translated
from hydractl.manifest.tokenizers import unknown_token

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from hydractl.manifest.header import Tokenization

Span: TypeAlias = tuple[int, int]
"""First character and the one behind the last."""
OVERLAP = 4
"""Neighbouring windows share one in so many tokens: each word has an eighth of a window before and behind it, if its text has."""
SHRINK = 8
"""By itself a window may have more tokens than within its text; it is then made shorter by one in so many."""


class Word(NamedTuple):
    """A word of a text, and the number of its first token."""

    span: Span
    token: int


class Window(NamedTuple):
    """A part of a text.

    Attributes:
        characters: Its characters.
        words: Numbers of the words in it.
        answered: Numbers of those words that it answers.
    """

    characters: Span
    words: range
    answered: range


def spans_of_window(window: Window, words: Sequence[Word]) -> list[Span]:
    """Return the characters of the words in a window of a text, counted from its begin."""
    begin = window.characters[0]
    return [(b - begin, e - begin) for (b, e), _ in words[window.words.start : window.words.stop]]


def sources_of(texts: Sequence[str], lists: Sequence[Sequence[Span]]) -> Sequence[str | list[str]]:
    """Return the inputs of the tokenizer: texts, or if `lists` has the words of each text, lists of words."""
    if not lists:
        return texts
    return [[text[b:e] for b, e in spans] for text, spans in zip(texts, lists, strict=True)]


def words_of_text(text: str, spans: Sequence[Span] | None, encoding: Encoding, cutter: Cutter) -> list[Word]:
    """Return the words of a text that have tokens: those at `spans` if it is a list of words, else those of `words_in`."""
    if spans is None:
        return words_in(text, encoding, cutter)
    tokens = {number: i for i, number in reversed([*enumerate(encoding.word_ids)])}
    return [Word(span, tokens[number]) for number, span in enumerate(spans) if number in tokens]


def words_in(text: str, encoding: Encoding, cutter: Cutter) -> list[Word]:
    """Return the words of a running text as transformers' pipeline for token classification tells them by the tokens.

    Where the tokenizer marks tokens within words, a token that is longer than its characters continues a word; where it
    does not, a token continues a word if there is no blank at its begin. An unknown token begins a word. Several words may
    have the same characters, such as the bytes of an emoji, and a word may have none, such as a blank that the tokenizer trims.
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
    """Cuts texts into windows of at most `capacity` tokens without special ones; `unknown` is the unknown token's number."""

    how: Tokenization
    tokenizer: Tokenizer
    capacity: int
    unknown: int | None

    @classmethod
    def of(cls, how: Tokenization) -> Cutter:
        """Return the cutter of a model; raises as `open_whole`."""
        tokenizer = open_whole(how)
        unknown = unknown_token(how.tokenizer or "")
        return cls(
            how,
            tokenizer,
            capacity=how.max_length - tokenizer.num_special_tokens_to_add(is_pair=False),
            unknown=None if unknown is None else tokenizer.token_to_id(unknown),
        )

    def encode(self, sources: Sequence[str | list[str]]) -> Iterator[Encoding]:
        """Yield the tokens of texts or lists of words. Memory holds `CHUNK` of them at a time.

        Raises:
            CheckpointError: If the tokenizer fails.
        """
        for begin in range(0, len(sources), CHUNK):
            with translated("fails on the data"):
                encodings = self.encode_part(sources[begin : begin + CHUNK])
            yield from encodings

    def encode_part(self, sources: Sequence[str | list[str]]) -> list[Encoding]:
        """Return the tokens of at least one text or list of words. Errors are those of the tokenizers library."""
        are_lists = not isinstance(sources[0], str)
        return self.tokenizer.encode_batch(list(sources), is_pretokenized=are_lists)

    def windows(
        self, text: str, words: Sequence[Word], encoding: Encoding, *, in_words: bool
    ) -> list[Window]:
        """Return the windows of a text.

        Args:
            text: The text.
            words: Its words.
            encoding: Its tokens.
            in_words: Whether it is tokenized word by word.
        """
        number, spans = len(words), [word.span for word in words]
        windows = [Window((0, len(text)), range(number), range(number))]
        if len(encoding.ids) <= self.how.max_length or not words:
            return windows
        # words that share characters stay together
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
            parts = self.encode(sources_of(texts, lists))
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
