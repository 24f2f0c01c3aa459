"""Divide CLINC150 into known, near-OOD and far-OOD texts: the built-in `intents`, and other draws.

    python benchmarks/clinc150.py CLINC150.jsonl --seed 1 -o drawn/   one .jsonl file per part, as train.jsonl
    python benchmarks/clinc150.py CLINC150.jsonl --ship               hydractl/data/intents.json.xz, seed 0

The input file has one JSON object per line: `text`, `label` (intent), `domain`, `split` (train, val, test).
Out-of-scope queries have the domain and label `oos`. The rule only uses names and the seed, never predictions
of a model. Names are sorted by the SHA-256 of `SEED/NAME`. Each of the first four domains contributes five
known intents, five near-OOD intents for choosing (`near-val`) and five for testing (`near`). Of the other six
domains, two are far OOD for choosing (`far-val`) and four for testing (`far`). Parts for choosing come from
CLINC150's validation split, parts for testing from its test split. Texts of an intent are also taken in the
order of their hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SHIPPED = Path(__file__).parents[1] / "hydractl" / "data" / "intents.json.xz"
OOS = "oos"
HOME, CHOOSING = 4, 2
"""Number of domains with known intents, and number of other domains for choosing."""
KNOWN = 5
"""Number of known intents per domain, and of near-OOD intents for choosing and for testing."""
ATTRIBUTION = {
    "source": "A subset of CLINC150: Stefan Larson, Anish Mahendran, Joseph J. Peper, Christopher Clarke, Andrew Lee, Parker Hill, "
    "Jonathan K. Kummerfeld, Kevin Leach, Michael A. Laurenzano, Lingjia Tang and Jason Mars: An Evaluation Dataset for Intent "
    "Classification and Out-of-Scope Prediction, EMNLP-IJCNN 2019. https://github.com/clinc/oos-eval",
    "license": "CC BY 3.0, https://creativecommons.org/licenses/by/3.0/",
    "changes": "Texts are unchanged; which are here, and in which part, follows from benchmarks/clinc150.py.",
}


class Part(NamedTuple):
    """Source of a part.

    Attributes:
        split: Split of CLINC150.
        each: Upper bound on the texts per intent.
    """

    split: str
    each: int


PARTS = {
    "train": Part("train", 20),
    "val": Part("val", 20),
    "test": Part("test", 30),
    "near-val": Part("val", 20),
    "near": Part("test", 30),
    "far-val": Part("val", 10),
    "far": Part("test", 10),
    OOS: Part("test", 600),
}


class Query(NamedTuple):
    """A line of the file."""

    text: str
    label: str
    domain: str
    split: str


def ordered(names: Iterable[str], key: str) -> list[str]:
    """Return names sorted by the SHA-256 of `key/name`."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{key}/{name}".encode()).digest())


def classes(domains: Mapping[str, Sequence[str]], seed: int) -> dict[str, tuple[str, ...]]:
    """Return the intents of each part, sorted.

    Args:
        domains: Intents of every domain.
        seed: Seed of the draw.
    """
    home, others = (order := ordered(domains, str(seed)))[:HOME], order[HOME:]
    each = [ordered(domains[domain], f"{seed}/{domain}") for domain in home]

    def cut(begin: int) -> tuple[str, ...]:
        return tuple(sorted(name for names in each for name in names[begin : begin + KNOWN]))

    def whole(chosen: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(name for domain in chosen for name in domains[domain]))

    return {
        **dict.fromkeys(("train", "val", "test"), cut(0)),
        "near-val": cut(KNOWN),
        "near": cut(2 * KNOWN),
        "far-val": whole(others[:CHOOSING]),
        "far": whole(others[CHOOSING:]),
        OOS: (OOS,),
    }


def read(file: Path) -> list[Query]:
    """Read all queries of the file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [Query(**json.loads(line)) for line in lines]


def domains_of(queries: Iterable[Query]) -> dict[str, list[str]]:
    """Return the sorted intents of every domain, without out-of-scope queries."""
    found: dict[str, set[str]] = {}
    for query in queries:
        if query.domain != OOS:
            found.setdefault(query.domain, set()).add(query.label)
    return {domain: sorted(found[domain]) for domain in sorted(found)}


def draw(
    queries: Sequence[Query], seed: int, parts: Mapping[str, Part] = PARTS
) -> dict[str, dict[str, list[str]]]:
    """Return the texts of each part by intent.

    A part with fewer texts per intent contains the first texts of a larger one with the same name.

    Args:
        queries: All queries.
        seed: Seed of the draw.
        parts: Source and size of each part.
    """
    texts: dict[tuple[str, str], list[str]] = {}
    for query in queries:
        texts.setdefault((query.split, query.label), []).append(query.text)
    chosen = classes(domains_of(queries), seed)
    return {
        name: {
            intent: ordered(texts[part.split, intent], f"{seed}/{name}")[: part.each]
            for intent in chosen[name]
        }
        for name, part in parts.items()
    }


def shipped(queries: Sequence[Query], seed: int = 0) -> dict[str, object]:
    """Return the content of the shipped file: attribution, domain names for the rule, and texts."""
    return {**ATTRIBUTION, "seed": seed, "domains": domains_of(queries), "parts": draw(queries, seed)}


def write(path: Path, intents: Mapping[str, Sequence[str]]) -> int:
    """Write a part as JSON Lines and return its number of texts."""
    lines = [json.dumps({"text": t, "label": intent}) for intent, texts in intents.items() for t in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def main() -> None:
    """Write the parts, or the shipped file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="CLINC150.jsonl", help="all queries of CLINC150")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn intents")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("-o", dest="out", type=Path, metavar="DIR", help="folder for one .jsonl file per part")
    place.add_argument("--ship", action="store_true", help="write the file of intents in the package")
    arguments = parser.parse_args()
    queries = read(arguments.file)
    if arguments.ship:
        text = json.dumps(shipped(queries), ensure_ascii=False, separators=(",", ":"))
        SHIPPED.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{SHIPPED}: {SHIPPED.stat().st_size} bytes")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, intents in draw(queries, arguments.seed).items():
        count = write(arguments.out / f"{name}.jsonl", intents)
        print(f"{arguments.out / name}.jsonl: {count} texts of {len(intents)} intents")


if __name__ == "__main__":
    main()
