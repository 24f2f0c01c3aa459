"""Tokenizers that transformers has in Python only, which no `tokenizer.json` describes.

A checkpoint holds such a tokenizer as its class and files, `{"tokenizer_class": "EsmTokenizer", "files": {"vocab.txt": BASE64}}`,
and transformers splits the texts at every stage.
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
"""Tokenizer classes whose files are plain texts and SentencePiece models, which run no code."""
SETTINGS = "tokenizer_config.json"
REFUSED = {
    "sp_model_kwargs": "refers to other files, or samples tokens at random",
    "split_special_tokens": "splits special tokens in texts",
}
MOST_GROWTH = 10_000.0
"""Maximum number of characters that the replacements of a normalizer may produce from one; the largest known is 288."""
_START = '{"tokenizer_class":'


def is_python_tokenizer(text: str) -> bool:
    """Return whether a checkpoint's tokenizer is one of this module's, not a `tokenizer.json`."""
    return text.startswith(_START)


@lru_cache(maxsize=4)
def unknown_token(text: str) -> str | None:
    """Return the token that a `tokenizer.json` has for what is not in its vocabulary, None where it has none.

    Unigram models name it by its number; the library does not tell that of a tokenizer that it has opened.
    """
    model = parse(text)["model"]
    number, vocab = model.get("unk_id"), model["vocab"]
    # models with another vocabulary than Unigram's may have the key, which the library ignores
    token: str | None = (
        vocab[number][0] if number is not None and isinstance(vocab, list) else model.get("unk_token")
    )
    return token


def with_leading_blank(text: str) -> str:
    """Return a tokenizer whose byte-level BPE puts a blank before each text and each word of a list; others are unchanged.

    transformers' scripts for token classification set `add_prefix_space` in the same way: without it, the words of a list have
    no blank between them. If a regular expression splits texts first, `add_prefix_space` would put a blank before each piece,
    so a normalizer puts the blank there.
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


def to_text(tokenizer: Any, folder: Path) -> str:  # noqa: ANN401 - as above
    """Return a tokenizer as a checkpoint holds it.

    Args:
        tokenizer: As transformers read it.
        folder: The folder that it was read from.

    Raises:
        UnsupportedModelError: If a checkpoint cannot hold it.
    """
    name = type(tokenizer).__name__
    if name not in CLASSES:
        raise UnsupportedModelError(
            f"{folder}: its tokenizer is a {name}, which exists only in Python and cannot be stored in a checkpoint",
            hint=f"convert it to a `tokenizer.json`, or use one of {', '.join(CLASSES)}",
        )
    check_packages(tokenizer, str(folder))
    with TemporaryDirectory() as saved:
        tokenizer.save_pretrained(saved)  # all settings in one file, and no path of this machine
        paths = [Path(saved) / SETTINGS, *(folder / file for file in tokenizer.vocab_files_names.values())]
        files = {path.name: b64encode(path.read_bytes()).decode() for path in paths if path.is_file()}
    return compact({"tokenizer_class": name, "files": files})


def parts_of(text: str) -> tuple[str, dict[str, bytes]]:
    """Return the class of a stored tokenizer, and its files by name.

    Raises:
        CheckpointError: If the text is not of this form.
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


def check_settings(settings: Mapping[str, object], where: str) -> None:
    """Refuse settings of a `tokenizer_config.json` that cannot be honoured.

    Raises:
        UnsupportedModelError: Naming the setting.
    """
    for name, effect in REFUSED.items():
        if settings.get(name):
            raise UnsupportedModelError(
                f"{where}: its tokenizer's `{name}` is set, but not supported: it {effect}",
                hint=f"set it to false in {SETTINGS}, if the model was trained without it",
            )


def check_packages(tokenizer: Any, where: str) -> None:  # noqa: ANN401 - as above
    """Refuse a tokenizer that splits texts otherwise where an optional package is installed.

    Raises:
        UnsupportedModelError: Naming the package.
    """
    if getattr(tokenizer, "normalization", False) and tokenizer.demojizer is None:
        raise UnsupportedModelError(
            f"{where}: its tokenizer normalizes emoji with a package that is not installed",
            hint="`pip install emoji`",
        )


def check_document(document: Any, where: str) -> None:  # noqa: ANN401 - JSON may be anything
    """Refuse a `tokenizer.json` that makes far more of a text than there is, or draws its tokens at random.

    Raises:
        CheckpointError: Saying why.
    """
    parts = [*_parts(document)]
    growth = prod(max(1.0, _growth(part)) for part in parts if part.get("type") == "Replace")
    tables = sum(part.get("type") == "Precompiled" for part in parts)
    copies = any(part.get("type") == "TemplateProcessing" and _repeats(part) for part in parts)
    if growth > MOST_GROWTH or tables > 1 or copies:
        raise CheckpointError(f"{where}: its tokenizer expands texts too much")
    if any(part.get("dropout") for part in parts):
        raise CheckpointError(
            f"{where}: its tokenizer samples tokens at random (`dropout`)",
            hint="set `dropout` to null in tokenizer.json; it is only for training",
        )


def _parts(value: object) -> Iterator[dict[str, Any]]:
    """Yield the objects of a `tokenizer.json` that say how it works, those within others too; not its vocabulary."""
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield value
        for key in ("normalizer", "normalizers", "model", "post_processor", "processors"):
            yield from _parts(value.get(key))


def _growth(replace: Mapping[str, Any]) -> float:
    """Return how many characters at most a replacement makes of one; an expression may stand for no character."""
    content, pattern = str(replace.get("content") or ""), replace.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return len(content) / len(text) if isinstance(text, str) and text else len(content) + 1.0


def _repeats(template: Mapping[str, Any]) -> bool:
    """Return whether a template holds a text more than once."""
    names = [
        [piece["Sequence"]["id"] for piece in template.get(kind) or () if "Sequence" in piece]
        for kind in ("single", "pair")
    ]
    return any(len(set(ids)) < len(ids) for ids in names)
