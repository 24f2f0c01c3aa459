"""How OpenCLIP's texts become ids: CLIP's byte-pair encoding, or the tokenizer in a model's folder.

open_clip cleans texts in Python before it encodes them: ftfy's repairs, HTML entities, white space, capitals. Here a
tokenizer's normaliser does it, so that ids need nothing but the tokenizers library. What it does not repeat: repairs of
text that was decoded wrongly (mojibake), full-width letters, and entities without an ASCII character.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hydractl.errors import UnsupportedModelError
from hydractl.families.openclip.config import CLIP_TOKENS, library
from hydractl.families.transformers.tokenizers import read_tokenizer
from hydractl.manifest.document import first_problem
from hydractl.manifest.header import Tokenization
from hydractl.manifest.tokenizers import is_python_tokenizer
from hydractl.strict_json import compact, parse

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, END = "<start_of_text>", "<end_of_text>"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
CONTROLS = r"[\x00-\x08\x0b\x0e-\x1f\x7f\x{206a}-\x{206f}\x{feff}\x{fff9}-\x{fffc}]"
REPAIRS = {
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&apos;": "'", "&nbsp;": " ",
    "ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "ſt", "ﬆ": "st",
}  # fmt: skip
"""Applied one after another, `&amp;` first, because open_clip resolves entities twice."""
CLEAN = ("lower", "whitespace", "canonicalize")


def tokenization(options: Mapping[str, Any], source: Path | None, sizes: tuple[int, int]) -> Tokenization:
    """Return how texts are read.

    Args:
        options: The `text_cfg`.
        source: The model's folder, a `tokenizer.json`, or None.
        sizes: Tokens in a text, and tokens that the model knows.

    Raises:
        CheckpointError: If the folder's tokenizer is needed and cannot be read.
        UnsupportedModelError: If texts are cleaned in an unknown way.
    """
    length, vocab_size = sizes
    kwargs = options.get("tokenizer_kwargs") or {}
    if not isinstance(kwargs, dict):
        raise UnsupportedModelError("its tokenizer_kwargs are not an object")
    named = bool(options.get("hf_tokenizer_name"))
    clean = kwargs.get("clean", "whitespace" if named else "lower")
    if clean not in CLEAN:
        raise UnsupportedModelError(
            f"texts cleaned by `{clean}` are not supported: open_clip has no such cleaning"
        )
    try:
        how = Tokenization(max_length=length, pad_id=0, vocab_size=vocab_size, padding="max_length")
    except ValidationError as error:
        raise UnsupportedModelError(
            f"its text preprocessing is not supported: {first_problem(error)}"
        ) from error
    if source is not None and (named or source.is_file()):
        config = SimpleNamespace(vocab_size=vocab_size, pad_token_id=options.get("pad_id", 0))
        folder_tokenization = read_tokenizer(source, config, max_length=length, padding="max_length")
        text = folder_tokenization.tokenizer or ""
        if is_python_tokenizer(text):
            raise UnsupportedModelError(
                f"{source}: its tokenizer exists only in Python, so open_clip's cleaning of texts cannot be added to it",
                hint="give a `tokenizer.json`: `arch:openclip:NAME::tokenizer=PATH/tokenizer.json`",
            )
        text = _cleaned(_without_separator(text) if kwargs.get("strip_sep_token") else text, clean)
        return how.model_copy(
            update={
                "tokenizer": text,
                **{
                    name: getattr(folder_tokenization, name)
                    for name in ("pad_id", "max_length", "padding_side", "truncation_side")
                },
            }
        )
    if named or vocab_size < CLIP_TOKENS:
        return how
    return how.model_copy(update={"tokenizer": clip_tokenizer(clean)})


@cache
def clip_tokenizer(clean: str = "lower") -> str:
    """Return the `tokenizer.json` of open_clip's SimpleTokenizer, from the vocabulary that it ships.

    Args:
        clean: `lower`, `whitespace` (capitals stay), or `canonicalize` (no punctuation either).
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

    symbols, merges = _vocabulary()
    names = [*symbols, *(f"{s}</w>" for s in symbols), *("".join(pair) for pair in merges), START, END]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>", fuse_unk=False)
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in (START, END)])
    tokenizer.normalizer = _cleaning(clean)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(name, vocabulary[name]) for name in (START, END)]
    )
    return _compact(tokenizer)


def _vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the symbols of the 256 bytes in the order of their ids, and the merges in theirs."""
    shipped = library().tokenizer
    with gzip.open(shipped.default_bpe(), "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    symbols = list(shipped.bytes_to_unicode().values())
    count = CLIP_TOKENS - 2 * len(symbols) - 2
    pairs = [line.split() for line in lines[1 : count + 1]]
    return symbols, [(first, second) for first, second in pairs]


def _cleaning(clean: str) -> Any:  # noqa: ANN401 - tokenizers has no common type that mypy knows
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Replace(old, new) for old, new in REPAIRS.items()]
    steps += [
        normalizers.Replace(Regex("[\u02bc\u2018-\u201b]"), "'"),
        normalizers.Replace(Regex("[\u201c-\u201f]"), '"'),
        normalizers.Replace(Regex(CONTROLS), ""),
        normalizers.NFC(),
    ]
    if clean == "canonicalize":
        steps += [normalizers.Replace("_", " "), normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")]
    if clean != "whitespace":
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence([*steps, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])


def _cleaned(text: str, clean: str) -> str:
    """Return the text of a `tokenizer.json` with open_clip's cleaning before its own."""
    from tokenizers import Tokenizer, normalizers

    tokenizer = Tokenizer.from_str(text)
    normalizer = tokenizer.normalizer
    tokenizer.normalizer = normalizers.Sequence(
        [_cleaning(clean), *([] if normalizer is None else [normalizer])]
    )
    return _compact(tokenizer)


def _without_separator(text: str) -> str:
    """Return the text of a `tokenizer.json` that ends texts with a 0 where it had `[SEP]`.

    Raises:
        UnsupportedModelError: If it had none.
    """
    raw = parse(text)
    ends = raw.get("post_processor") or {}
    if ends.get("type") == "TemplateProcessing" and "[SEP]" in ends["special_tokens"]:
        ends["special_tokens"]["[SEP]"]["ids"] = [0]
    elif ends.get("type") == "BertProcessing":
        ends["sep"][1] = 0
    else:
        raise UnsupportedModelError("its tokenizer has no `[SEP]` to strip (strip_sep_token)")
    return compact(raw)


def _compact(tokenizer: Tokenizer) -> str:
    return compact(parse(tokenizer.to_str()))
