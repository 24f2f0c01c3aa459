"""Real texts that need no download: a subset of CLINC150, what people ask a voice assistant for, by intent.

Twenty intents are known, with their splits; all else is foreign to them: other intents of the same domains (`near-val` to choose
by, `near` to test on), intents of other domains (`far-val`, `far`), and queries out of any scope (`oos`). The file says where it is
from (Larson et al. 2019, CC BY 3.0); `benchmarks/clinc150.py` has the rule that made it.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TypeAlias, cast

from hydractl.data.datasets import TextSet
from hydractl.data.reference import DataRef
from hydractl.data.toys.builtin import SPLITS
from hydractl.errors import DataError
from hydractl.messages import did_you_mean

FILE = "intents.json.xz"
DOMAINS = ("near-val", "near", "far-val", "far")
OUT_OF_SCOPE = "oos"
Texts: TypeAlias = Mapping[str, Sequence[str]]


def open_intents(ref: DataRef) -> TextSet:
    """Return the known intents' texts, all or of a split, or the foreign ones of a domain; those out of scope have no labels.

    Raises:
        DataError: If there is no such domain or split.
    """
    if ref.domain is not None and ref.domain not in (domains := (*DOMAINS, OUT_OF_SCOPE)):
        raise DataError(
            f"`intents` has no domain `{ref.domain}`; it has {', '.join(domains)}, and known intents without one",
            hint=did_you_mean(ref.domain, domains),
        )
    if ref.split is not None and (ref.domain is not None or ref.split not in SPLITS):
        raise DataError(
            f"`intents`{f' of {ref.domain}' if ref.domain else ''} has no split `{ref.split}`",
            hint=f"known intents have {', '.join(SPLITS)}; domains have none",
        )
    names = [ref.domain] if ref.domain else [ref.split] if ref.split else SPLITS
    labelled_texts = [
        (text, intent) for name in names for intent, texts in _parts()[str(name)].items() for text in texts
    ]
    texts = tuple(text for text, _ in labelled_texts)
    if ref.domain == OUT_OF_SCOPE:
        return TextSet(texts=texts, name="intents")
    classes = tuple(sorted({intent for _, intent in labelled_texts}))
    return TextSet(
        texts=texts,
        name="intents",
        class_names=classes,
        labels=tuple(classes.index(intent) for _, intent in labelled_texts),
    )


@lru_cache(maxsize=1)
def _parts() -> Mapping[str, Texts]:
    """Return the texts of each part by intent."""
    packed = files("hydractl.data.toys").joinpath(FILE).read_bytes()
    return cast("Mapping[str, Texts]", json.loads(lzma.decompress(packed))["parts"])
