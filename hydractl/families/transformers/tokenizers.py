"""The tokenizers of Hugging Face transformers: what stands in a folder, and how texts are padded and cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydractl.errors import CheckpointError, reason_of
from hydractl.families.transformers.library import check_small, quiet
from hydractl.jsonfile import compact, parse
from hydractl.manifest.header import Tokenization
from hydractl.runtime import without_panic

WHOLE = ("tokenizer.json", "tokenizer.*.json")
TOKENIZER_FILES = (*WHOLE, "vocab.*", "merges.txt", "*.model")
"""What tokenizers are kept in, as far as folders of text models go."""
NOTES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""What the library reads with them."""
BESIDE = (
    "a text model needs `tokenizer.json`, or the vocabulary it is made of, beside its weights: "
    "`tokenizer.save_pretrained(FOLDER)`"
)


def read_tokenizer(source: Path, config: Any, *, max_length: int) -> Tokenization:  # noqa: ANN401 - untyped
    """Return the tokenizer of a model's folder, or the one that a `tokenizer.json` holds.

    Args:
        source: A folder, or a file.
        config: The model's; says how many tokens it knows and which one pads.
        max_length: Tokens that the model can take at most.

    Raises:
        CheckpointError: If there is none, or it cannot be read. The library itself makes up a tokenizer of a few special
            tokens for a folder without one, to which every word is unknown.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    if source.is_dir():
        check_small(source, (*TOKENIZER_FILES, *NOTES))
    try:
        with quiet(), without_panic():
            if source.is_dir():
                tokenizer = AutoTokenizer.from_pretrained(
                    source, local_files_only=True, trust_remote_code=False
                )
                backend = tokenizer.backend_tokenizer
            else:
                tokenizer, backend = None, Tokenizer.from_file(str(source))
    except Exception as error:  # the library raises whatever its parsers do
        if source.is_dir() and not any(_files(source, TOKENIZER_FILES)):
            raise _no_tokenizer(source) from error
        raise CheckpointError(
            f"{source}: its tokenizer cannot be read: {reason_of(error)}", hint=BESIDE
        ) from error
    if tokenizer is not None and not _is_stored(source, type(tokenizer).vocab_files_names):
        raise _no_tokenizer(source)
    backend.no_padding()
    backend.no_truncation()
    limit = max_length if tokenizer is None else min(max_length, tokenizer.model_max_length)
    pad = config.pad_token_id if tokenizer is None else tokenizer.pad_token_id
    segments = getattr(config, "type_vocab_size", 0) > 1
    return Tokenization(
        tokenizer=compact(parse(backend.to_str())),
        names=("attention_mask", "token_type_ids") if segments else ("attention_mask",),
        max_length=int(limit),
        pad_id=int(pad or 0),
        vocab_size=int(config.vocab_size),
        padding_side="left" if getattr(tokenizer, "padding_side", None) == "left" else "right",
        truncation_side="left" if getattr(tokenizer, "truncation_side", None) == "left" else "right",
    )


def _no_tokenizer(folder: Path) -> CheckpointError:
    return CheckpointError(f"{folder}: has no tokenizer", hint=BESIDE)


def _is_stored(folder: Path, names: Mapping[str, str]) -> bool:
    """Return whether a folder holds a tokenizer whole, or all files of the vocabulary that its class makes one of."""
    parts = [name for kind, name in names.items() if kind != "tokenizer_file"]
    return any(_files(folder, WHOLE)) or (bool(parts) and all((folder / name).is_file() for name in parts))


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    return (path for pattern in patterns for path in folder.glob(pattern))


def read_texts(config: Any, source: Path | None, *, unused: int) -> Tokenization:  # noqa: ANN401 - untyped
    """Return how a model's texts are read.

    Args:
        config: The model's.
        source: What holds its tokenizer, if it has one yet.
        unused: Positions that no token takes.
    """
    length = config.max_position_embeddings - unused
    if source is not None:
        return read_tokenizer(source, config, max_length=length)
    segments = getattr(config, "type_vocab_size", 0) > 1
    return Tokenization(
        names=("attention_mask", "token_type_ids") if segments else ("attention_mask",),
        max_length=length,
        pad_id=int(config.pad_token_id or 0),
        vocab_size=int(config.vocab_size),
    )
