"""Tag schemes of words, for named entity recognition. Importing this module does not load torch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hydractl.errors import DataError
from hydractl.messages import quoted

OUTSIDE = "O"
_SCHEMES = (
    ("IOB1 or IOB2", "BI"),
    ("IOE1 or IOE2", "IE"),
    ("IOBES", "BIES"),
    ("BILOU", "BILU"),
    ("BMES", "BMES"),
    ("BMEWO", "BMEW"),
)
"""Schemes and their prefixes besides `O`. Both variants of IOB, and of IOE, give the same spans in seqeval's
default mode."""
_CANONICAL = dict(zip("BIESLUMW", "BIESESIS", strict=True))
_TYPED = (
    re.compile(r"(?P<prefix>[BIESLUMW])(?P<separator>[-_:/.|])(?P<label>.*)", re.IGNORECASE | re.DOTALL),
    re.compile(r"(?P<label>.*)(?P<separator>[-_:/.|])(?P<prefix>[BIESLUMW])", re.IGNORECASE | re.DOTALL),
)
"""A prefix before or after a type."""
_BARE = re.compile(r"(?P<prefix>[BIESLUMW])(?P<label>)(?P<separator>)", re.IGNORECASE)
_OUTSIDE = re.compile(r"O|X|PAD|UNK|\[\w+\]|<\w+>", re.IGNORECASE)
"""Tags outside of spans: `O`, and special tokens and subwords that the first NER scripts for BERT made
classes."""


class TagScheme(NamedTuple):
    """The tag scheme of class names.

    Attributes:
        name: Name of the scheme, empty for labels without a scheme.
        prefixes: Prefix of each class in the letters of IOBES. Labels without a scheme have `I`.
        labels: Label of the spans of each class, empty for `O`.
    """

    name: str
    prefixes: tuple[str, ...]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        """Describe the scheme for messages, for example "tags in IOBES, spans of `PER`, `LOC`".

        Without a scheme, the text is "labels without a tag scheme".
        """
        labels = quoted(dict.fromkeys(filter(None, self.labels)))
        return f"tags in {self.name}, spans of {labels}" if self.name else "labels without a tag scheme"


def tag_scheme(names: Sequence[str]) -> TagScheme:
    """Detect the tag scheme of class names.

    The label of tags without a type (`B`, `I`) is `_`, as in seqeval.

    Raises:
        DataError: If the names mix several schemes, or tags and other labels.
    """
    tags = [name for name in names if not _OUTSIDE.fullmatch(name)]
    letters_by_label = defaultdict[tuple[str, ...], set[str]](set)
    for typed in _TYPED:
        matches = {tag: match for tag in tags if (match := typed.fullmatch(tag) or _BARE.fullmatch(tag))}
        for match in matches.values():
            letters_by_label[match["separator"], match["label"]].add(match["prefix"].upper())
        letters = {match["prefix"].upper() for match in matches.values()}
        separators = {match["separator"] for match in matches.values()} - {""}
        is_alike = len(matches) == len(tags) and len(separators) <= 1 and (separators or letters & {*"BI"})
        scheme = next((scheme for scheme, allowed in _SCHEMES if letters <= {*allowed}), None)
        if letters and is_alike and scheme:
            parsed = {tag: (_CANONICAL[m["prefix"].upper()], m["label"] or "_") for tag, m in matches.items()}
            prefixes, labels = zip(*(parsed.get(name, (OUTSIDE, "")) for name in names), strict=True)
            return TagScheme(scheme, prefixes, labels)
    # Names like `e-mail` or `Hepatitis_B` are not tags. Mixed names have a type with two prefixes, or `O`
    # together with `B-` or `I-`.
    is_tag = OUTSIDE in names and any(re.match("[BI][-_]", tag) for tag in tags)
    if is_tag or any(label and len(letters) > 1 for (label, _), letters in letters_by_label.items()):
        raise DataError(
            f"the class names {quoted(tags)} mix tag schemes, or tags with other labels",
            hint=f"use one of {', '.join(scheme for scheme, _ in _SCHEMES)}, with the prefix always before or always after the type; "
            "`::map=OLD:NEW,...` renames classes of data",
        )
    prefixes = tuple(OUTSIDE if name == OUTSIDE else "I" for name in names)
    return TagScheme("", prefixes, tuple("" if name == OUTSIDE else name for name in names))
