"""From texts to a text model's inputs.

Tokenizers that transformers has in Python only are run by transformers itself; `manifest/tokenizers.py` says how they are stored.

Axes: N texts, B batch, T tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from hydractl.data.datasets import Text, change_text
from hydractl.errors import (
    CheckpointError,
    DataError,
    HydraError,
    UnsupportedModelError,
    UsageError,
    reason_of,
)
from hydractl.manifest.tokenizers import (
    SENTENCEPIECE,
    SETTINGS,
    check_document,
    check_packages,
    check_settings,
    is_python_tokenizer,
    parts_of,
)
from hydractl.messages import counted
from hydractl.runtime import without_panic
from hydractl.strict_json import parse

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from hydractl.manifest.header import Tokenization

CHUNK = 1024
"""Number of texts that are tokenized together."""
SHORT = 1000
"""Minimum number of characters that are tokenized, whatever `max_length` is; more than any word has."""
CHARACTERS = 16
"""Characters per token up to which the prefix of a long text is enough; otherwise more of the text is tokenized."""
GROWTH = 8
"""Factor by which the prefix grows."""
SEGMENTS = 2
"""Maximum number of segments of a text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """Tokenised texts in memory, end to end and without padding.

    Attributes:
        how: What made them.
        ids: All tokens, int32.
        segments: For each token which text of a pair it is from, uint8.
        starts: Shape (N + 1,), int64: text i's tokens lie in starts[i]..starts[i + 1] - 1.
    """

    how: Tokenization
    ids: Tensor
    segments: Tensor
    starts: Tensor

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each text, special ones included, (N,), int64; all of them `max_length` where the model pads so far."""
        if self.how.padding == "max_length":
            return torch.full((len(self),), self.how.max_length)
        return self.starts.diff()

    def batch(self, chosen: Tensor, *, length: int | None = None) -> dict[str, Tensor]:
        """Return some texts as a model's inputs by name, padded on the side that the model's are, each (B, T), int64.

        Args:
            chosen: Shape (B,), int64, positions in 0..N-1.
            length: T, at least that of the longest; None for that of the longest.
        """
        text_lengths = self.starts.diff()[chosen, None]
        longest = int(self.lengths[chosen].max()) if length is None else length
        positions = torch.arange(longest) - (longest - text_lengths if self.how.padding_side == "left" else 0)
        token_mask = (positions >= 0) & (positions < text_lengths)
        places = (self.starts[chosen, None] + positions).where(token_mask, self.starts[chosen, None])
        inputs = {
            "input_ids": self.ids[places].long().masked_fill_(~token_mask, self.how.pad_id),
            "attention_mask": token_mask.long(),
            "token_type_ids": self.segments[places].long().masked_fill_(~token_mask, 0),
        }
        return {name: inputs[name] for name in ("input_ids", *self.how.names)}


def tokenize(
    texts: Sequence[Text] | Sequence[str | list[str]],
    how: Tokenization,
    *,
    where: str = "the data",
    encode: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> Tokens:
    """Return texts as tokens: cut to `max_length`, of a pair the longer text first.

    Args:
        texts: At least one.
        how: Of the model.
        where: What messages call the texts.
        encode: Returns the encodings of some of the texts, which must be cut; None for the model's tokenizer.

    Raises:
        CheckpointError: If the model has no tokenizer, or one that cannot be read or has other tokens than the model.
        UsageError: If `max_length` leaves no room beside the special tokens.
        DataError: If a text becomes no token at all.
    """
    tokenizer = open_cutting(how)
    special = tokenizer.num_special_tokens_to_add(is_pair=any(isinstance(text, tuple) for text in texts))
    if how.max_length <= special:
        raise UsageError(
            f"{counted(how.max_length, 'token')} {'leaves' if how.max_length == 1 else 'leave'} no "
            f"room for a text: {special} {'is a special one' if special == 1 else 'are special ones'}",
            hint=f"add `--max-length {2 * special + 1}` or more",
        )
    shorten = partial(_shortened, tokenizer=tokenizer, how=how)
    encode = encode or (
        lambda part: tokenizer.encode_batch_fast([change_text(text, shorten) for text in part])
    )
    ids, segments, lengths = [], [], []
    for begin in range(0, len(texts), CHUNK):
        with translated("fails on the data"):
            encodings = encode(texts[begin : begin + CHUNK])
        lengths += [len(encoding.ids) for encoding in encodings]
        ids.append(torch.tensor([*chain.from_iterable(e.ids for e in encodings)], dtype=torch.int32))
        marks = torch.tensor([*chain.from_iterable(e.type_ids for e in encodings)], dtype=torch.int64)
        segments.append(marks.clamp(max=SEGMENTS).to(torch.uint8))
    starts = torch.tensor([0, *lengths]).cumsum(0)
    tokens = Tokens(how=how, ids=torch.cat(ids), segments=torch.cat(segments), starts=starts)
    if int(starts.diff().min()) == 0:
        raise DataError(
            f"{where}: text {int(starts.diff().argmin())} has no token that the model knows",
            hint="write a text into that row, or select another column: `::text=COLUMN`",
        )
    if (most := int(tokens.ids.max())) >= how.vocab_size:
        raise CheckpointError(
            f"the tokenizer returns token {most}, but the model has tokens 0 to {how.vocab_size - 1}",
            hint=(
                "the tokenizer may be of another model; in an `arch:` reference set `vocab_size=` to "
                "that of the tokenizer"
            ),
        )
    if "token_type_ids" in how.names and int(tokens.segments.max()) >= SEGMENTS:
        raise CheckpointError(
            "the tokenizer returns segment ids above 1, but an item has at most two texts",
            hint="the tokenizer may be of another model",
        )
    return tokens


def _shortened(text: str, tokenizer: Tokenizer | PythonTokenizer, how: Tokenization) -> str:
    """Return a text without what lies far beyond `max_length`: the whole would be tokenised before it is cut.

    Twice as much stays as makes `max_length` tokens, so that the tokens at the cut are not among them.
    """
    length = max(SHORT, CHARACTERS * how.max_length)
    while 2 * length < len(text):
        part = text[-length:] if how.truncation_side == "left" else text[:length]
        if len(tokenizer.encode_batch_fast([part])[0].ids) >= how.max_length:
            return text[-2 * length :] if how.truncation_side == "left" else text[: 2 * length]
        length *= GROWTH
    return text


def encode_texts(texts: Sequence[Text], how: Tokenization) -> dict[str, Tensor]:
    """Return a few texts as one batch of a model's inputs by name, each (B, T), int64; raises as `tokenize` does."""
    tokens = tokenize(texts, how, where="the texts")
    return tokens.batch(torch.arange(len(tokens)))


def require_tokenizer(how: Tokenization, *, model: str) -> None:
    """Refuse a text model that cannot read texts.

    Raises:
        CheckpointError: If it has no tokenizer.
        UnsupportedModelError: If a package that the tokenizer needs is not installed.
    """
    if how.tokenizer is None:
        raise CheckpointError(
            f"{model}: is a text model without a tokenizer",
            hint="give one in its `arch:` reference: `arch:NAME::...,tokenizer=PATH/tokenizer.json`",
        )
    if is_python_tokenizer(how.tokenizer):
        _tokenizer(how.tokenizer, how.max_length, how.truncation_side)


def open_whole(how: Tokenization) -> Tokenizer:
    """Return a model's tokenizer, which leaves texts as long as they are and tells where its tokens stand in them.

    Raises:
        CheckpointError: If the model has none, or one that cannot be read.
        UnsupportedModelError: If it tells no places.
    """
    require_tokenizer(how, model="the model")
    if is_python_tokenizer(how.tokenizer or ""):
        raise UnsupportedModelError(
            "the model's tokenizer is in Python only and does not tell where in a text its tokens stand, so words cannot be told",
            hint="save a fast tokenizer (`tokenizer.json`) into the model's folder",
        )
    return cast("Tokenizer", _tokenizer(how.tokenizer or "", None, "right"))


def open_cutting(how: Tokenization) -> Any:  # noqa: ANN401 - a `Tokenizer` or `PythonTokenizer`
    """Return a model's tokenizer, which cuts texts to `max_length`; raises as `open_whole`."""
    require_tokenizer(how, model="the model")
    return _tokenizer(how.tokenizer or "", how.max_length, how.truncation_side)


@contextmanager
def translated(failure: str) -> Iterator[None]:
    """Raise errors and panics of the tokenizers library in the block as `CheckpointError`, with `failure` in the message."""
    try:
        with without_panic():
            yield
    except HydraError:
        raise
    except Exception as error:  # the library raises nothing more special
        raise CheckpointError(f"the model's tokenizer {failure}: {reason_of(error)}") from error


@lru_cache(maxsize=8)
def _tokenizer(text: str, max_length: int | None, side: str) -> Tokenizer | PythonTokenizer:
    """Return a tokenizer that cuts texts to `max_length` tokens, or not if it is None."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - commands that read no text do not load it

    with translated("cannot be read"):
        if max_length is not None and is_python_tokenizer(text):
            return _python_tokenizer(text, max_length=max_length, truncation_side=side)
        check_document(parse(text), "the model")
        tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_length is not None:
        tokenizer.enable_truncation(max_length, strategy="longest_first", direction=side)
    return tokenizer


class Encoding(NamedTuple):
    """A text's tokens, as the tokenizers library names them."""

    ids: list[int]
    type_ids: list[int]


class PythonTokenizer:
    """A tokenizer of transformers behind the interface of the tokenizers library."""

    def __init__(self, tokenizer: Any, *, max_length: int, truncation_side: str) -> None:  # noqa: ANN401 - untyped
        """Wrap a tokenizer, which cuts texts to `max_length` tokens."""
        self.tokenizer = tokenizer
        self.tokenizer.truncation_side = truncation_side
        self.max_length = max_length

    def num_special_tokens_to_add(self, *, is_pair: bool) -> int:
        """Return how many special tokens a text, or a pair of texts, gets."""
        return int(self.tokenizer.num_special_tokens_to_add(pair=is_pair))

    def encode_batch_fast(self, texts: Sequence[Text]) -> list[Encoding]:
        """Return the tokens of texts and pairs of texts."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SigLIP's warns of texts that hold its end token
            encodings = [
                self.tokenizer(
                    *((text,) if isinstance(text, str) else text),
                    truncation="longest_first",
                    max_length=self.max_length,
                    return_token_type_ids=True,
                )
                for text in texts
            ]
        return [Encoding(tokens["input_ids"], tokens["token_type_ids"]) for tokens in encodings]


def _python_tokenizer(text: str, *, max_length: int, truncation_side: str) -> PythonTokenizer:
    """Return the tokenizer that a checkpoint holds.

    Raises:
        CheckpointError: If the text is not of this form.
        UnsupportedModelError: If a package is missing.
    """
    name, files = parts_of(text)
    check_settings(parse(files.get(SETTINGS, b"{}")), "the model")
    import transformers  # noqa: PLC0415 - what reads no text need not load it

    tokenizer_class = getattr(transformers, name)
    try:
        if strange := files.keys() - {SETTINGS, *tokenizer_class.vocab_files_names.values()}:
            raise CheckpointError(
                f"the model's tokenizer contains `{min(strange)}`, which is not a file of a {name}"
            )
        with TemporaryDirectory() as folder:
            for file, content in files.items():
                (Path(folder) / file).write_bytes(content)
            tokenizer = tokenizer_class.from_pretrained(folder, local_files_only=True)
    except ImportError as error:
        raise UnsupportedModelError(
            f"the model's tokenizer is a {name}, which needs a package that is not installed: {reason_of(error)}",
            hint=SENTENCEPIECE,
        ) from error
    check_packages(tokenizer, "the model")
    return PythonTokenizer(tokenizer, max_length=max_length, truncation_side=truncation_side)
