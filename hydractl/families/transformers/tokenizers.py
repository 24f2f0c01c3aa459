"""The tokenizers of Hugging Face transformers: what stands in a folder, and how texts are padded and cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from hydractl.errors import CheckpointError, UnsupportedModelError, reason_of
from hydractl.families.transformers.hf_models import check_small, quiet
from hydractl.manifest.header import InputName, Tokenization
from hydractl.manifest.tokenizers import SENTENCEPIECE, SETTINGS, check_document, check_settings, to_text
from hydractl.runtime import without_panic
from hydractl.strict_json import compact, parse, read_object

COMPLETE_TOKENIZERS = ("tokenizer.json", "tokenizer.*.json")
TOKENIZER_FILES = (*COMPLETE_TOKENIZERS, "vocab.*", "merges.txt", "bpe.codes", "*.model")
"""Tokenizer files in folders of text models."""
NOTES = ("config.json", SETTINGS, "special_tokens_map.json", "added_tokens.json")
"""Settings files that the library reads with them."""
BESIDE = (
    "a text model needs `tokenizer.json` or its vocabulary in the folder of its weights: "
    "`tokenizer.save_pretrained(FOLDER)`"
)


Padding = Literal["longest", "max_length"]
UNLISTED = ("token_type_ids",)
"""Default input names of a model without a library tokenizer that lists them."""


def read_tokenizer(
    source: Path,
    config: Any,  # noqa: ANN401 - untyped
    *,
    max_length: int,
    padding: Padding,
) -> Tokenization:
    """Return the tokenizer of a model's folder, or the one that a `tokenizer.json` holds.

    Args:
        source: A folder, or a file.
        config: The model's; says how many tokens it knows and which one pads.
        max_length: Tokens that the model can take at most.
        padding: To what length texts are padded.

    Raises:
        CheckpointError: If there is none, or it cannot be read. The library itself makes up a tokenizer of a few special
            tokens for a folder without one, to which every word is unknown.
    """
    tokenizer, backend = _opened(source)
    if (
        tokenizer is not None
        and backend is not None
        and not _is_stored(source, type(tokenizer).vocab_files_names)
    ):
        raise _no_tokenizer(source)
    limit = max_length if tokenizer is None else min(max_length, tokenizer.model_max_length)
    pad = getattr(tokenizer, "pad_token_id", None)
    if pad is None:
        pad = config.pad_token_id
    return Tokenization(
        tokenizer=_text_of(tokenizer, backend, source),
        names=_input_names(config, padding, getattr(tokenizer, "model_input_names", UNLISTED)),
        max_length=int(limit),
        pad_id=max(0, int(pad or 0)),  # some configurations have -1 for none
        vocab_size=int(config.vocab_size),
        padding=padding,
        padding_side="left" if getattr(tokenizer, "padding_side", None) == "left" else "right",
        truncation_side="left" if getattr(tokenizer, "truncation_side", None) == "left" else "right",
    )


def padding_token(folder: Path) -> int | None:
    """Return the token that the tokenizer of a folder pads with, the one that ends a text where it has none; None without either.

    Raises:
        CheckpointError: As `read_tokenizer`.
    """
    tokenizer, _ = _opened(folder)
    pad: int | None = tokenizer.pad_token_id
    return tokenizer.eos_token_id if pad is None else pad


def _opened(source: Path) -> tuple[Any, Any]:
    """Return the library's tokenizer of a folder, or None for a file, and its backend, or None where it is in Python only."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    if source.is_dir():
        check_small(source, (*TOKENIZER_FILES, *NOTES))
        settings = source / SETTINGS
        check_settings(read_object(settings) if settings.is_file() else {}, str(source))
    try:
        with quiet(), without_panic():
            if source.is_dir():
                tokenizer = AutoTokenizer.from_pretrained(
                    source, local_files_only=True, trust_remote_code=False
                )
                backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
            else:
                tokenizer, backend = None, Tokenizer.from_file(str(source))
    except Exception as error:  # the library raises whatever its parsers do
        if source.is_dir() and not any(_files(source, TOKENIZER_FILES)):
            raise _no_tokenizer(source) from error
        if any(_files(source, ("*.model",))) and find_spec("sentencepiece") is None:
            raise UnsupportedModelError(
                f"{source}: its tokenizer needs sentencepiece, which is not installed",
                hint=SENTENCEPIECE,
            ) from error
        raise CheckpointError(
            f"{source}: its tokenizer cannot be read: {reason_of(error)}", hint=BESIDE
        ) from error
    return tokenizer, backend


def _text_of(tokenizer: Any, backend: Any, source: Path) -> str:  # noqa: ANN401 - untyped
    """Return a tokenizer as a checkpoint holds it; those in Python only have no backend."""
    if backend is None:
        with quiet():
            return to_text(tokenizer, source)
    backend.no_padding()
    backend.no_truncation()
    document = parse(backend.to_str())
    check_document(document, str(source))
    return compact(document)


def _input_names(config: Any, padding: Padding, listed: Sequence[str]) -> tuple[InputName, ...]:  # noqa: ANN401 - untyped
    """Return what a model gets beside the tokens.

    Where batches have any length, that is always the mask: without it the padding changes the answer. All else is what the
    tokenizer returns: a model that gets no token types takes all of them for 0, also those of a pair's second text.

    Args:
        config: The model's.
        padding: To what length texts are padded.
        listed: The tokenizer's `model_input_names`.
    """
    mask = padding == "longest" or "attention_mask" in listed
    types = "token_type_ids" in listed and getattr(config, "type_vocab_size", 0) > 1
    return (*(("attention_mask",) if mask else ()), *(("token_type_ids",) if types else ()))


def _no_tokenizer(folder: Path) -> CheckpointError:
    return CheckpointError(f"{folder}: has no tokenizer", hint=BESIDE)


def _is_stored(folder: Path, names: Mapping[str, str]) -> bool:
    """Return whether a folder holds a tokenizer whole, or all files of the vocabulary that its class makes one of."""
    parts = [name for kind, name in names.items() if kind != "tokenizer_file"]
    return any(_files(folder, COMPLETE_TOKENIZERS)) or (
        bool(parts) and all((folder / name).is_file() for name in parts)
    )


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    return (path for pattern in patterns for path in folder.glob(pattern))


def read_texts(config: Any, source: Path | None, *, unused: int, padding: Padding) -> Tokenization:  # noqa: ANN401 - untyped
    """Return how a model's texts are read.

    Args:
        config: The model's.
        source: What holds its tokenizer, if it has one yet.
        unused: Positions that no token takes.
        padding: To what length texts are padded.
    """
    length = config.max_position_embeddings - unused
    if source is not None:
        return read_tokenizer(source, config, max_length=length, padding=padding)
    return Tokenization(
        names=_input_names(config, padding, UNLISTED),
        padding=padding,
        max_length=length,
        pad_id=max(0, int(config.pad_token_id or 0)),
        vocab_size=int(config.vocab_size),
    )
