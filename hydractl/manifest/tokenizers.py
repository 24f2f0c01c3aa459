"""Tokenizers that transformers has in Python only, which no `tokenizer.json` describes.

A checkpoint holds such a tokenizer as its class and files, `{"tokenizer_class": "EsmTokenizer", "files": {"vocab.txt": BASE64}}`,
and transformers splits the texts at every stage.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.jsonfile import NotJSONError, compact, parse

SENTENCEPIECE = "`pip install 'hydractl[sentencepiece]'`"
CLASSES = ("BertweetTokenizer", "EsmTokenizer", "PhobertTokenizer", "SiglipTokenizer")
"""Their files are plain texts and SentencePiece models: they run no code."""
SETTINGS = "tokenizer_config.json"
REFUSED = {
    "sp_model_kwargs": "names other files, or draws tokens at random",
    "split_special_tokens": "splits special tokens that stand in texts",
}
_START = '{"tokenizer_class":'


def is_python_tokenizer(text: str) -> bool:
    """Return whether a checkpoint's tokenizer is one of this module's, not a `tokenizer.json`."""
    return text.startswith(_START)


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
            f"{folder}: its tokenizer is a {name}, which transformers has in Python only and a checkpoint cannot hold",
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
                f"{where}: its tokenizer's `{name}` is set, which is not supported: it {effect}",
                hint=f"remove it from {SETTINGS}, if the model was trained without it",
            )


def check_packages(tokenizer: Any, where: str) -> None:  # noqa: ANN401 - as above
    """Refuse a tokenizer that splits texts otherwise where an optional package is installed.

    Raises:
        UnsupportedModelError: Naming the package.
    """
    if getattr(tokenizer, "normalization", False) and tokenizer.demojizer is None:
        raise UnsupportedModelError(
            f"{where}: its tokenizer normalises emoji with a package that is not installed",
            hint="`pip install emoji`",
        )
