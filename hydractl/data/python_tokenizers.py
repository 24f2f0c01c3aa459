"""Tokenizers that transformers has in Python only, run by transformers itself; `manifest/tokenizers.py` says how they are stored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.errors import CheckpointError, UnsupportedModelError, reason_of
from hydractl.manifest.tokenizers import SENTENCEPIECE, SETTINGS, check_packages, check_settings, parts_of
from hydractl.strict_json import parse

if TYPE_CHECKING:
    from hydractl.data.datasets import Text


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
            return [self._encode(text) for text in texts]

    def _encode(self, text: Text) -> Encoding:
        parts = (text,) if isinstance(text, str) else text
        tokens = self.tokenizer(
            *parts, truncation="longest_first", max_length=self.max_length, return_token_type_ids=True
        )
        return Encoding(tokens["input_ids"], tokens["token_type_ids"])


def from_text(text: str, *, max_length: int, truncation_side: str) -> PythonTokenizer:
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
                f"the model's tokenizer holds `{min(strange)}`, which is no file of a {name}"
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
