"""Storage of tokenizers that exist in transformers only as Python classes, without a `tokenizer.json`.

A checkpoint stores the class name and the files of the tokenizer, `{"tokenizer_class": "EsmTokenizer",
"files": {"vocab.txt": BASE64}}`. Every stage tokenizes with transformers.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.strict_json import NotJSONError, compact, parse

SENTENCEPIECE = "`pip install 'hydractl[sentencepiece]'`"
CLASSES = ("BertweetTokenizer", "EsmTokenizer", "PhobertTokenizer", "SiglipTokenizer")
"""Supported tokenizer classes. Their files are plain texts or SentencePiece models, which cannot run code."""
SETTINGS = "tokenizer_config.json"
REFUSED = {
    "sp_model_kwargs": "refers to other files, or samples tokens at random",
    "split_special_tokens": "splits special tokens in texts",
}
MOST_GROWTH = 10_000.0
"""Maximum number of characters that the replacements of a normalizer may produce from one character. The
largest known product is 288. Chosen by hand; doubling the limit doubles the memory that a malicious tokenizer
can use."""
_START = '{"tokenizer_class":'


def is_python_tokenizer(text: str) -> bool:
    """Return whether the text is in the format of this module instead of a `tokenizer.json`."""
    return text.startswith(_START)


@lru_cache(maxsize=4)
def unknown_token(text: str) -> str | None:
    """Return the token of a `tokenizer.json` for text outside the vocabulary, or `None` without such a token.

    Unigram models store the token's index. The tokenizers library does not expose the index, so this function
    reads the JSON.
    """
    model = parse(text)["model"]
    number, vocab = model.get("unk_id"), model["vocab"]
    # other models may have `unk_id` too, which the tokenizers library ignores; only Unigram has a list as
    # vocabulary
    token: str | None = (
        vocab[number][0] if number is not None and isinstance(vocab, list) else model.get("unk_token")
    )
    return token


def with_leading_space(text: str) -> str:
    """Return a tokenizer whose byte-level BPE adds a space before each text and each word of a list.

    Other tokenizers are returned unchanged. Scripts for token classification of transformers set
    `add_prefix_space` for the same reason: otherwise the words of a list are joined without spaces.

    If a regular expression splits texts first, `add_prefix_space` would add a space before each piece, so a
    normalizer adds the space.
    """
    document = parse(text)
    first, after = document.get("pre_tokenizer") or {}, document.get("post_processor") or {}
    if all(part.get("type") != "ByteLevel" for part in (first, *first.get("pretokenizers", ()))):
        return text
    for part in (first, after, *after.get("processors", ())):
        part.update({"add_prefix_space": True} if "add_prefix_space" in part else {})
    if first["type"] == "Sequence":
        normalizers = [*filter(None, [document.get("normalizer")]), {"type": "Prepend", "prepend": " "}]
        document["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    return compact(document)


def to_text(tokenizer: Any, folder: Path) -> str:  # noqa: ANN401 - transformers is an optional import
    """Return a tokenizer as the JSON text that a checkpoint stores: class name and files.

    The files are the settings and the vocabulary, in base64; see the module.

    Args:
        tokenizer: Tokenizer from transformers.
        folder: Folder of the tokenizer's files.

    Raises:
        UnsupportedModelError: If the class is not in `CLASSES`, or an optional package is missing.
    """
    name = type(tokenizer).__name__
    if name not in CLASSES:
        raise UnsupportedModelError(
            f"{folder}: its tokenizer is a {name}, which exists only in Python and cannot be stored in a checkpoint",
            hint=f"convert it to a `tokenizer.json`, or use one of {', '.join(CLASSES)}",
        )
    check_packages(tokenizer, str(folder))
    with TemporaryDirectory() as saved:
        # `save_pretrained` writes all settings to one file, without paths of this machine
        tokenizer.save_pretrained(saved)
        paths = [Path(saved) / SETTINGS, *(folder / file for file in tokenizer.vocab_files_names.values())]
        files = {path.name: b64encode(path.read_bytes()).decode() for path in paths if path.is_file()}
    return compact({"tokenizer_class": name, "files": files})


def parts_of(text: str) -> tuple[str, dict[str, bytes]]:
    """Return the class name and the files by name of a stored tokenizer.

    Raises:
        CheckpointError: If the text is invalid or the class is not in `CLASSES`.
    """
    try:
        stored = parse(text)
        name, files = stored["tokenizer_class"], stored["files"]
        contents = {file: b64decode(content, validate=True) for file, content in files.items()}
    except (NotJSONError, KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise CheckpointError("the model's tokenizer is not a class of transformers and its files") from error
    if name not in CLASSES:
        raise CheckpointError(f"the model's tokenizer is a `{name}`, not one of {', '.join(CLASSES)}")
    return name, contents


def check_settings(settings: Mapping[str, object], place: str) -> None:
    """Raise if a `tokenizer_config.json` has a setting that is not supported.

    Args:
        settings: Content of the file.
        place: Name of the model for error messages.

    Raises:
        UnsupportedModelError: If a setting in `REFUSED` is set. The message has its name.
    """
    for name, effect in REFUSED.items():
        if settings.get(name):
            raise UnsupportedModelError(
                f"{place}: its tokenizer's `{name}` is set, but not supported: it {effect}",
                hint=f"set it to false in {SETTINGS}, if the model was trained without it",
            )


def check_packages(tokenizer: Any, place: str) -> None:  # noqa: ANN401 - as above
    """Raise if the tokenizer would split texts differently with an optional package that is missing.

    Raises:
        UnsupportedModelError: If the package is missing. The message has its name.
    """
    if getattr(tokenizer, "normalization", False) and tokenizer.demojizer is None:
        raise UnsupportedModelError(
            f"{place}: its tokenizer normalizes emoji with a package that is not installed",
            hint="`pip install emoji`",
        )


def check_document(document: Any, place: str) -> None:  # noqa: ANN401 - JSON may be anything
    """Raise if a `tokenizer.json` may expand texts too much, or samples tokens at random.

    Args:
        document: Content of the file.
        place: Name of the model for error messages.

    Raises:
        CheckpointError: If replacements may produce more than `MOST_GROWTH` characters from one, several
            normalizers have a precompiled table, a template repeats a text, or `dropout` is set.
    """
    parts = [*_parts(document)]
    growth = prod(max(1.0, _growth(part)) for part in parts if part.get("type") == "Replace")
    tables = sum(part.get("type") == "Precompiled" for part in parts)
    copies = any(part.get("type") == "TemplateProcessing" and _repeats(part) for part in parts)
    if growth > MOST_GROWTH or tables > 1 or copies:
        raise CheckpointError(f"{place}: its tokenizer expands texts too much")
    if any(part.get("dropout") for part in parts):
        raise CheckpointError(
            f"{place}: its tokenizer samples tokens at random (`dropout`)",
            hint="set `dropout` to null in tokenizer.json; it is only for training",
        )


def _parts(value: object) -> Iterator[dict[str, Any]]:
    """Yield all nested objects of a `tokenizer.json` that define an algorithm, without the vocabulary."""
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield value
        for key in ("normalizer", "normalizers", "model", "post_processor", "processors"):
            yield from _parts(value.get(key))


def _growth(replace: Mapping[str, Any]) -> float:
    """Return the maximum number of characters that a replacement makes from one character.

    A regular expression may match the empty string, so its replacement counts in full plus one.
    """
    content, pattern = str(replace.get("content") or ""), replace.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return len(content) / len(text) if isinstance(text, str) and text else len(content) + 1.0


def _repeats(template: Mapping[str, Any]) -> bool:
    """Return whether a template inserts the same text more than once."""
    names = [
        [piece["Sequence"]["id"] for piece in template.get(kind) or () if "Sequence" in piece]
        for kind in ("single", "pair")
    ]
    return any(len(set(ids)) < len(ids) for ids in names)
