"""Which model a checkpoint or a folder holds, and how its inputs are made."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from hydractl.errors import HydraError, UnsupportedModelError
from hydractl.families.base import Described, Family
from hydractl.families.load import classifier_hint
from hydractl.families.registry import FAMILIES, describe_folder, family_for_config
from hydractl.families.transformers.unsupported import REFUSED
from hydractl.heads.budget import total_heads
from hydractl.heads.masks import total_kept
from hydractl.manifest.head_mask import Mask
from hydractl.manifest.header import Architecture, Header, Preprocess, Prompting, Tokenization
from hydractl.runtime import digest_text
from hydractl.strict_json import parse
from hydractl.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Which model this is, as far as the file says.

    Attributes:
        name: Architecture, or what a folder's `config.json` calls it.
        num_classes: How many.
        labels: Their names.
        architecture: The whole description; None for a foreign file.
        preprocess: How an image or a text becomes an input; of a tokenizer only the digest.
        prompting: Of a zero-shot model, how its classes become texts; likewise.
        tokenizer_size: How many tokens its tokenizer knows, added ones included; the model may know more.
        masks: For each member the kept heads of each tower; empty for a foreign file.
        heads_kept: For each member, over all towers.
        heads_total: Heads of the base.
    """

    name: str | None = None
    num_classes: int | None = None
    labels: tuple[str, ...] = ()
    architecture: Architecture | None = None
    preprocess: Preprocess | Tokenization | None = None
    prompting: Prompting | None = None
    tokenizer_size: int | None = None
    masks: tuple[Mask, ...] = ()
    heads_kept: tuple[int, ...] = ()
    heads_total: int = 0


class Foreign(NamedTuple):
    """What a file or folder that hydractl did not write says of its model, and what to type next where that is not enough."""

    identity: ModelIdentity
    family: Family | None = None
    hint: str | None = None


def identity_of(
    described: Header | Described, name: str | None = None, masks: tuple[Mask, ...] = ()
) -> ModelIdentity:
    """Return which model the header of a checkpoint of ours, or a family, says it is.

    Args:
        described: What is said.
        name: What to call the architecture; None for its own name.
        masks: Each member's; none for a model that keeps all of its heads.
    """
    total, prompting = total_heads(described.architecture.towers), described.prompting
    return ModelIdentity(
        name=name or described.architecture.name,
        num_classes=described.architecture.num_classes or len(described.labels),
        labels=described.labels,
        architecture=described.architecture,
        preprocess=_without_tokenizer_text(described.preprocess),
        prompting=prompting
        and prompting.model_copy(update={"tokenization": _without_tokenizer_text(prompting.tokenization)}),
        tokenizer_size=_tokenizer_size(described.preprocess, prompting),
        masks=masks,
        heads_kept=tuple(map(total_kept, masks)) or (total,),
        heads_total=total,
    )


def of_folder(
    file: str, config: Mapping[str, object], folder: Path, specs: Mapping[str, TensorSpec]
) -> Foreign:
    """Return which model a library's folder holds: as the commands that use it will read it, else as its configuration says.

    Args:
        file: What the user named.
        config: Its `config.json`, empty for a bare file.
        folder: Where it lies.
        specs: Its tensors.
    """
    try:
        family = family_for_config(config, where=file)
    except UnsupportedModelError:
        return Foreign(_guessed(config), None, _hint(file, config))
    try:
        described = describe_folder(folder, config, specs)
    except HydraError as error:
        advice = f"{error.message.removesuffix('.')}; {error.hint}" if error.hint else error.message
        return Foreign(_guessed(config), family, f"other commands cannot use it: {advice}")
    identity = identity_of(described, _guessed(config).name)
    if described.lacks:
        advice = f"{described.lacks}; {classifier_hint(file)}"
        return Foreign(replace(identity, num_classes=None), family, advice)
    assumed = "it has no image preprocessing; the usual one of such models is used"
    return Foreign(identity, family, "; ".join([*described.notes, *[assumed] * described.assumed]) or None)


def _without_tokenizer_text(how: Preprocess | Tokenization) -> Preprocess | Tokenization:
    """Return how an item becomes an input, with a tokenizer's digest in the place of its text, which nobody wants to read."""
    if not isinstance(how, Tokenization) or how.tokenizer is None:
        return how
    return how.model_copy(update={"tokenizer": digest_text(how.tokenizer)})


def _tokenizer_size(how: Preprocess | Tokenization, prompting: Prompting | None) -> int | None:
    """Return how many tokens a tokenizer knows, added ones included; None without one, or where its text does not tell."""
    texts = prompting.tokenization if prompting else how
    if not isinstance(texts, Tokenization) or texts.tokenizer is None:
        return None
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # a header says what it likes
        raw = parse(texts.tokenizer)
        vocabulary = raw["model"]["vocab"]  # {token: number}, or [[token, weight], ...]
        tokens = {*vocabulary} if isinstance(vocabulary, dict) else {token for token, _ in vocabulary}
        return len(tokens | {added["content"] for added in raw.get("added_tokens") or ()})
    return None


def _guessed(folder: Mapping[str, object]) -> ModelIdentity:
    """Read what a library's `config.json` says without the library."""
    classes = folder.get("architectures")
    name = folder.get("architecture") or (classes[0] if isinstance(classes, list) and classes else None)
    num_classes = folder.get("num_classes")
    labels = folder.get("label_names")
    pretrained_cfg = folder.get("pretrained_cfg")
    preprocess_fields = (
        {k: v for k, v in pretrained_cfg.items() if k in Preprocess.model_fields}
        if isinstance(pretrained_cfg, dict)
        else {}
    )
    try:
        preprocess = Preprocess.model_validate_json(json.dumps(preprocess_fields))
    except ValidationError:
        preprocess = None
    return ModelIdentity(
        name=str(name) if name else None,
        num_classes=num_classes if isinstance(num_classes, int) else None,
        labels=tuple(str(label) for label in labels) if isinstance(labels, list) else (),
        preprocess=preprocess,
    )


def _hint(file: str, folder: Mapping[str, object]) -> str:
    kind = str(folder.get("model_type"))
    if kind in REFUSED:
        return f"models of type `{kind}` are not supported: {REFUSED[kind]}"
    trained = folder.get("architectures")
    covered = next((f.covers for f in FAMILIES.values() if f.matches({"model_type": kind})), None)
    if covered is not None and isinstance(trained, list):
        return f"its `config.json` is for {', '.join(map(str, trained))}; hydractl supports {covered}"
    if folder:
        return f"the model family in its `config.json` is not supported (supported: {', '.join(FAMILIES)})"
    return f"it does not name its architecture; give it: `hydractl score {shlex.quote(str(file))} --arch NAME ...`"
