"""Tag schemes are read like in seqeval, for any spelling of tags."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from seqeval import scheme as strict
from seqeval.metrics.sequence_labeling import get_entities

from hydractl.errors import DataError
from hydractl.metrics.spans import span_labels, spans_of
from hydractl.tags import tag_scheme

LABELS = ("PER", "LOC_X", "ORG-Y")
CANONICAL = dict(zip("OBIESLUMW", "OBIESESIS", strict=True))
SCHEMES = {
    "IOB1": ("IOB1 or IOB2", "BI"),
    "IOB2": ("IOB1 or IOB2", "BI"),
    "IOE1": ("IOE1 or IOE2", "IE"),
    "IOE2": ("IOE1 or IOE2", "IE"),
    "IOBES": ("IOBES", "BIES"),
    "BILOU": ("BILOU", "BILU"),
    "BMES": ("BMES", "BMES"),
    "BMEWO": ("BMEWO", "BMEW"),
}
SPELLINGS = {
    "B-PER": "{prefix}-{label}".format,
    "B_PER": "{prefix}_{label}".format,
    "B:PER": "{prefix}:{label}".format,
    "PER-B": "{label}-{prefix}".format,
    "PER_B": "{label}_{prefix}".format,
}


def entities(rows, names):
    """Return the spans of rows of tag names, in the form of `get_entities`."""
    tags = torch.full((len(rows), max(map(len, rows))), -1)
    for to, row in zip(tags, rows, strict=True):
        to[: len(row)] = torch.tensor([names.index(name) for name in row])
    spans, labels = spans_of(tags, names), span_labels(names)
    by_row = [[] for _ in rows]
    for row, first, last, label in zip(*(x.tolist() for x in spans), strict=True):
        by_row[row].append((labels[label], first, last))
    return by_row


def well_formed(random, scheme, length=12):
    """Return valid (prefix, label) pairs of words in a scheme, and their entities."""
    words, spans = [], []
    while len(words) < length:
        count, label = int(random.integers(1, 4)), str(random.choice(LABELS))
        if random.random() < 0.4:
            words += [("O", "")] * count
            continue
        follows = bool(words) and words[-1][1] == label
        begin, inside, end, single = {
            "IOB1": "BIIB" if follows else "IIII",
            "IOB2": "BIIB",
            "IOE1": "IIII",
            "IOE2": "IIEE",
            "IOBES": "BIES",
            "BILOU": "BILU",
            "BMES": "BMES",
            "BMEWO": "BMEW",
        }[scheme]
        if scheme == "IOE1" and follows:
            words[-1] = ("E", label)
        prefixes = single if count == 1 else begin + inside * (count - 2) + end
        spans.append((label, len(words), len(words) + count - 1))
        words += [(prefix, label) for prefix in prefixes]
    return words, spans


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_well_formed_tags_are_those_of_the_strict_scheme(scheme, spelling):
    random, write = np.random.default_rng(0), SPELLINGS[spelling]
    sentences = [well_formed(random, scheme) for _ in range(60)]
    named = [[write(prefix=p, label=t) if t else p for p, t in words] for words, _ in sentences]
    names = ["O", *sorted({name for row in named for name in row} - {"O"})]
    expected = [spans for _, spans in sentences]
    assert entities(named, names) == expected
    assert tag_scheme(names).name == SCHEMES[scheme][0]
    if (
        hasattr(strict, scheme) and scheme != "IOE1"
    ):  # Tests of seqeval list cases of IOE1 that seqeval gets wrong.
        plain = [[f"{p}-{t}" if t else p for p, t in words] for words, _ in sentences]
        strictly = strict.Entities(plain, scheme=getattr(strict, scheme)).entities
        assert [[(e.tag, e.start, e.end - 1) for e in row] for row in strictly] == expected


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("scheme", [*SCHEMES, "bare IOB2", "bare IOBES", "bare BMES", "bare BILOU"])
def test_random_tags_are_those_of_the_default_mode(scheme, spelling):
    random = np.random.default_rng(1)
    letters = SCHEMES[scheme.removeprefix("bare ")][1]
    tags = [("O", ""), *((p, t) for p in letters for t in (("",) if "bare" in scheme else LABELS))]
    sentences = [[tags[i] for i in random.integers(len(tags), size=15)] for _ in range(150)]
    write = SPELLINGS[spelling]
    names = [write(prefix=p, label=t) if t else p for p, t in tags]
    named = [[names[tags.index(tag)] for tag in row] for row in sentences]
    canonical = [[f"{CANONICAL[p]}-{t}" if t else CANONICAL[p] for p, t in row] for row in sentences]
    assert entities(named, names) == [get_entities(row) for row in canonical]
    if spelling == "PER-B" and letters in {"BI", "IE", "BIES"}:
        # seqeval cuts a label at the last hyphen only if the label follows the prefix.
        assert [[(a, b) for _, a, b in row] for row in entities(named, names)] == [
            [(a, b) for _, a, b in get_entities(row, suffix=True)] for row in named
        ]


@pytest.mark.parametrize(
    ("names", "name", "labels"),
    [
        (["o", "b-per", "i-per"], "IOB1 or IOB2", ("per",)),
        (["O", "I-PER", "I-LOC"], "IOB1 or IOB2", ("PER", "LOC")),
        (["O", "B-PER", "I-PER", "[CLS]", "[SEP]", "X", "<pad>"], "IOB1 or IOB2", ("PER",)),
        (["B", "M", "E", "S"], "BMES", ("_",)),
        (["O", "B-", "I-"], "IOB1 or IOB2", ("_",)),
        (["O", "U-PER", "B-PER", "L-PER"], "BILOU", ("PER",)),
        (["O", "B-B", "I-B", "E-S"], "IOBES", ("B", "S")),
        (["O", "VERB", "NOUN"], "", ("VERB", "NOUN")),
        (["X", "NOUN"], "", ("X", "NOUN")),
        (["S", "V", "O"], "", ("S", "V")),
        (["O", "e-mail", "Hepatitis_B", "phone"], "", ("e-mail", "Hepatitis_B", "phone")),
        (["0", "1"], "", ("0", "1")),
    ],
)
def test_the_scheme_follows_from_the_names(names, name, labels):
    assert tag_scheme(names).name == name
    assert span_labels(names) == labels


@pytest.mark.parametrize(
    "names",
    [
        ["O", "B-PER", "I-PER", "L-LOC", "E-LOC"],
        ["O", "B-PER", "I-PER", "LOC-B", "LOC-I"],
        ["O", "B-PER", "I-PER", "LOC"],
        ["O", "I-PER", "DATE"],
        ["O", "B-PER", "I-PER", "B_LOC", "I_LOC"],
        ["_", "B-PER", "I-PER"],
        ["O", "S-PER", "U-PER"],
    ],
)
def test_mixtures_are_refused(names):
    with pytest.raises(DataError, match="mix tag schemes") as caught:
        tag_scheme(names)
    assert "\n" not in str(caught.value)
