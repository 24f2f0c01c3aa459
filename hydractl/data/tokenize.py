"""Tokenization of texts into the inputs of a text model.

A tokenizer that transformers implements only in Python runs in transformers. `manifest/tokenizers.py` defines
its stored form.

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
"""Number of texts per call of the tokenizer. Chosen by hand to limit the memory of Python token lists, which
doubling doubles."""
SHORT = 1000
"""Minimum length of the tokenized part of a text, in characters. Chosen by hand, longer than any word: a cut
within a word changes its tokens. The value matters if `max_length` is at most 62; doubling it tokenizes up to
twice as much text."""
CHARACTERS = 16
"""Assumed maximum of characters per token. A long text is first tokenized up to `max_length` times this
number. Chosen by hand, well above the four or so of English text; doubling it tokenizes twice as much of each
long text."""
GROWTH = 8
"""Factor by which the tokenized part of a text grows if it has fewer than `max_length` tokens. Chosen by
hand; doubling it needs fewer attempts, but may tokenize more text than necessary."""
SEGMENTS = 2
"""Maximum number of texts per item."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """Tokenized texts in memory, concatenated without padding.

    Attributes:
        preprocess: Tokenization of the model.
        ids: Tokens of all texts, int32.
        segments: Number of the text within its pair for each token, uint8.
        starts: Shape (N + 1,), int64. Text i has the tokens starts[i]..starts[i + 1] - 1.
    """

    preprocess: Tokenization
    ids: Tensor
    segments: Tensor
    starts: Tensor

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Tensor:
        """Padded length of each text in a batch of its own, shape (N,), int64, including special tokens."""
        if self.preprocess.padding == "max_length":
            return torch.full((len(self),), self.preprocess.max_length)
        return self.starts.diff()

    def batch(self, chosen: Tensor, *, length: int | None = None) -> dict[str, Tensor]:
        """Return some texts as model inputs by name, each of shape (B, T), int64, with padding.

        Args:
            chosen: Shape (B,), int64, positions in 0..N-1.
            length: T, at least the length of the longest text. None uses the largest of their `lengths`.
        """
        text_lengths = self.starts.diff()[chosen, None]
        longest = int(self.lengths[chosen].max()) if length is None else length
        positions = torch.arange(longest) - (
            longest - text_lengths if self.preprocess.padding_side == "left" else 0
        )
        token_mask = (positions >= 0) & (positions < text_lengths)
        # padding reads the first token of its text, a valid position, and is masked below
        places = (self.starts[chosen, None] + positions).where(token_mask, self.starts[chosen, None])
        inputs = {
            "input_ids": self.ids[places].long().masked_fill_(~token_mask, self.preprocess.pad_id),
            "attention_mask": token_mask.long(),
            "token_type_ids": self.segments[places].long().masked_fill_(~token_mask, 0),
        }
        return {name: inputs[name] for name in ("input_ids", *self.preprocess.names)}


def tokenize(
    texts: Sequence[Text] | Sequence[str | list[str]],
    preprocess: Tokenization,
    *,
    place: str = "the data",
    encode: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> Tokens:
    """Tokenize texts, truncated to `max_length` tokens. The longer text of a pair is truncated first.

    Args:
        texts: At least one text, pair of texts or list of words.
        preprocess: Tokenization of the model.
        place: Name of the texts in messages.
        encode: Function from some texts to truncated encodings. None uses the model's tokenizer.

    Raises:
        CheckpointError: If the tokenizer is missing or malformed, or returns tokens that the model does not
            have.
        UsageError: If `max_length` allows only the special tokens.
        DataError: If a text has no token.
    """
    tokenizer = truncating_tokenizer(preprocess)
    special = tokenizer.num_special_tokens_to_add(is_pair=any(isinstance(text, tuple) for text in texts))
    if preprocess.max_length <= special:
        raise UsageError(
            f"{counted(preprocess.max_length, 'token')} {'leaves' if preprocess.max_length == 1 else 'leave'} no "
            f"room for a text: {special} {'is a special one' if special == 1 else 'are special ones'}",
            hint=f"add `--max-length {2 * special + 1}` or more",
        )
    shorten = partial(_shortened, tokenizer=tokenizer, preprocess=preprocess)
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
        # Clamp before the cast: segment ids above 255 would wrap around in uint8 and pass the check below.
        segments.append(marks.clamp(max=SEGMENTS).to(torch.uint8))
    starts = torch.tensor([0, *lengths]).cumsum(0)
    tokens = Tokens(preprocess=preprocess, ids=torch.cat(ids), segments=torch.cat(segments), starts=starts)
    if int(starts.diff().min()) == 0:
        raise DataError(
            f"{place}: text {int(starts.diff().argmin())} has no token that the model knows",
            hint="write a text into that row, or select another column: `::text=COLUMN`",
        )
    if (most := int(tokens.ids.max())) >= preprocess.vocab_size:
        raise CheckpointError(
            f"the tokenizer returns token {most}, but the model has tokens 0 to {preprocess.vocab_size - 1}",
            hint=(
                "the tokenizer may be of another model; in an `arch:` reference set `vocab_size=` to "
                "that of the tokenizer"
            ),
        )
    if "token_type_ids" in preprocess.names and int(tokens.segments.max()) >= SEGMENTS:
        raise CheckpointError(
            "the tokenizer returns segment ids above 1, but an item has at most two texts",
            hint="the tokenizer may be of another model",
        )
    return tokens


def _shortened(text: str, tokenizer: Tokenizer | PythonTokenizer, preprocess: Tokenization) -> str:
    """Return the part of a long text that is sufficient for `max_length` tokens.

    The tokenizers library tokenizes a whole text before truncation. The returned part is twice as long as a
    part with `max_length` tokens, because tokens at the cut differ from the tokens of the whole text.
    """
    length = max(SHORT, CHARACTERS * preprocess.max_length)
    while 2 * length < len(text):
        part = text[-length:] if preprocess.truncation_side == "left" else text[:length]
        if len(tokenizer.encode_batch_fast([part])[0].ids) >= preprocess.max_length:
            return text[-2 * length :] if preprocess.truncation_side == "left" else text[: 2 * length]
        length *= GROWTH
    return text


def encode_texts(texts: Sequence[Text], preprocess: Tokenization) -> dict[str, Tensor]:
    """Tokenize texts into one batch of model inputs by name, each (B, T), int64; see `tokenize`."""
    tokens = tokenize(texts, preprocess, place="the texts")
    return tokens.batch(torch.arange(len(tokens)))


def require_tokenizer(preprocess: Tokenization, *, model: str) -> None:
    """Check that a text model has a tokenizer and the packages for its use.

    Args:
        preprocess: Tokenization of the model.
        model: Name of the model in messages.

    Raises:
        CheckpointError: If the model has no tokenizer.
        UnsupportedModelError: If a package is not installed.
    """
    if preprocess.tokenizer is None:
        raise CheckpointError(
            f"{model}: is a text model without a tokenizer",
            hint="give one in its `arch:` reference: `arch:NAME::...,tokenizer=PATH/tokenizer.json`",
        )
    if is_python_tokenizer(preprocess.tokenizer):
        _tokenizer(preprocess.tokenizer, preprocess.max_length, preprocess.truncation_side)


def offset_tokenizer(preprocess: Tokenization) -> Tokenizer:
    """Return a model's tokenizer with character offsets and without truncation.

    Raises:
        CheckpointError: If the tokenizer is missing or malformed.
        UnsupportedModelError: If the tokenizer has no offsets.
    """
    require_tokenizer(preprocess, model="the model")
    if is_python_tokenizer(preprocess.tokenizer or ""):
        raise UnsupportedModelError(
            "the model's tokenizer is in Python only and does not tell where in a text its tokens stand, so words cannot be told",
            hint="save a fast tokenizer (`tokenizer.json`) into the model's folder",
        )
    return cast("Tokenizer", _tokenizer(preprocess.tokenizer or "", None, "right"))


def truncating_tokenizer(preprocess: Tokenization) -> Any:  # noqa: ANN401 - a `Tokenizer` or `PythonTokenizer`
    """Return a model's tokenizer with truncation to `max_length` tokens; raises like `require_tokenizer`."""
    require_tokenizer(preprocess, model="the model")
    return _tokenizer(preprocess.tokenizer or "", preprocess.max_length, preprocess.truncation_side)


@contextmanager
def translated(failure: str) -> Iterator[None]:
    """Convert errors and panics of the tokenizers library to `CheckpointError`.

    Args:
        failure: Verb of the message after "the model's tokenizer".
    """
    try:
        with without_panic():
            yield
    except HydraError:
        raise
    except Exception as error:  # the library raises plain `Exception`, without subclasses
        raise CheckpointError(f"the model's tokenizer {failure}: {reason_of(error)}") from error


@lru_cache(maxsize=8)
def _tokenizer(text: str, max_length: int | None, side: str) -> Tokenizer | PythonTokenizer:
    """Return a tokenizer that truncates to `max_length` tokens. None disables truncation."""
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
    """Tokens of a text, with the field names of the tokenizers library."""

    ids: list[int]
    type_ids: list[int]


class PythonTokenizer:
    """Adapter from a Python tokenizer of transformers to the interface of the tokenizers library."""

    def __init__(self, tokenizer: Any, *, max_length: int, truncation_side: str) -> None:  # noqa: ANN401 - untyped
        """Wrap a tokenizer.

        Args:
            tokenizer: Tokenizer of transformers.
            max_length: Maximum number of tokens per text or pair.
            truncation_side: `left` or `right`.
        """
        self.tokenizer = tokenizer
        self.tokenizer.truncation_side = truncation_side
        self.max_length = max_length

    def num_special_tokens_to_add(self, *, is_pair: bool) -> int:
        """Return the number of special tokens of a text or a pair of texts."""
        return int(self.tokenizer.num_special_tokens_to_add(pair=is_pair))

    def encode_batch_fast(self, texts: Sequence[Text]) -> list[Encoding]:
        """Return the tokens of texts and pairs of texts."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SigLIP's tokenizer warns about texts that contain its end token
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
    """Create the Python tokenizer stored in a checkpoint.

    Raises:
        CheckpointError: If the stored text is malformed.
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
