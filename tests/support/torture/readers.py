"""Files by type, with the command lines that read them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.torture.stages import ARCH, STAGES, VAL

if TYPE_CHECKING:
    from collections.abc import Iterable

Words = tuple[str, ...]
WRITTEN = {"-o", "--trained", "--save-predictions"}
EVAL = ("--no-latency", "--bootstrap", "0", "-q", "-o", "out.json")
TEXT = "bert::hidden_size=32,num_hidden_layers=3,num_attention_heads=4,intermediate_size=48,num_labels=7,vocab_size=61"


def _tuned(model: str, data: str) -> Words:
    return (
        "finetune",
        model,
        "--train",
        data,
        "--val",
        data,
        "--steps",
        "1",
        "--batch-size",
        "4",
        "-q",
        "-o",
        "out.st",
    )


def _scored(model: str, data: str) -> Words:
    return ("score", model, "--data", data, "--method", "taylor", "--remove", "1", "-q", "-o", "out.json")


def _pruned(model: str) -> Words:
    return ("prune", model, "--strategy", "random", "--remove", "1", "-q", "-o", "out.st")


def _evaluated(model: str, data: str, *more: str) -> Words:
    return ("eval", model, "--data", data, *more, *EVAL)


def _predicted(model: str, data: str, *more: str) -> Words:
    return ("predict", model, data, *more, "-q", "-o", "out.jsonl")


def _imported(weights: str, arch: str, *more: str) -> Words:
    return ("import", weights, "--arch", arch, *more, "-q", "-o", "out.st")


def _stages(*names: str) -> tuple[Words, ...]:
    return tuple(STAGES[name].words for name in names)


def _inspected(*names: str) -> tuple[Words, ...]:
    return (("inspect", *names), ("inspect", *names, "--json"))


ZERO_SHOT = ("--classes", "classes.txt", "--template", "a photo of a {label}")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A file, or a folder (with a slash at the end), with the command lines that read it.

    Attributes:
        kind: Name in the table of results.
        lines: Command lines that read the file.
        beside: Further files that the command lines read without naming them.
    """

    kind: str
    lines: tuple[Words, ...]
    beside: tuple[str, ...] = ()


def _listed(name: str) -> tuple[Words, ...]:
    return (*_inspected(name), ("inspect", name, "--tensors"))


UNITS = {
    "base.st": Unit(kind="checkpoints", lines=(
        *_stages("prune-mask", "score"), *_listed("base.st"), ("fuse", "base.st", "base.st", "--trunk", "1", "--own-blocks", "-q", "-o", "out.st"),
    )),
    "m-0.st": Unit(kind="checkpoints", lines=(
        *_stages("fuse"), *_listed("m-0.st"), _tuned("m-0.st", VAL),
    )),
    "h.st": Unit(kind="checkpoints", lines=(
        *_stages("eval"), *_listed("h.st"), _tuned("h.st", VAL), ("inspect", "h.st", "--lineage"), ("inspect", "h.st", "--lineage", "--json"),
        _predicted("h.st", VAL), ("push", "h.st", "org/name", "--dry-run"),
    )),
    "w.safetensors": Unit(kind="checkpoints", lines=(*_stages("import"), ("inspect", "w.safetensors", "--tensors"))),
    "y.safetensors": Unit(kind="checkpoints", lines=_inspected("y.safetensors")),
    "s.json": Unit(kind="documents", lines=(*_stages("prune"), *_inspected("s.json"))),
    "m-0.mask.json": Unit(kind="documents", lines=(*_stages("prune-mask"), *_inspected("m-0.mask.json"))),
    "r.json": Unit(kind="documents", lines=(
        *_inspected("r.json"), ("push", "h.st", "org/name", "--report", "r.json", "--dry-run"),
    )),
    "labels.txt": Unit(kind="documents", lines=_stages("import")),
    "labels.json": Unit(kind="documents", lines=(_imported("w.safetensors", ARCH, "--labels", "labels.json"),)),
    "classes.txt": Unit(kind="documents", lines=(_evaluated("clip", "images", *ZERO_SHOT),)),
    "s.json.journal": Unit(kind="journals", lines=_stages("score")),
    "base.st.state/": Unit(kind="states", lines=_stages("finetune")),
    "timm/": Unit(kind="model folders", lines=(
        *_listed("timm"), _pruned("timm"), _tuned("timm", VAL), _imported("w.pth", "timm"),
    )),
    "vit/": Unit(kind="model folders", lines=(*_listed("vit"), _evaluated("vit", VAL), _scored("vit", VAL))),
    "bert/": Unit(kind="model folders", lines=(*_listed("bert"), _evaluated("bert", "texts.csv"), _pruned("bert"))),
    "shards/": Unit(kind="model folders", lines=(
        *_listed("shards"), _pruned("shards"), _pruned("shards/model.safetensors.index.json"), _evaluated("shards", "texts.csv"),
    )),
    "clip/": Unit(kind="model folders", lines=(*_listed("clip"), _evaluated("clip", "images", *ZERO_SHOT), _pruned("clip"))),
    "bert/tokenizer.json": Unit(kind="tokenizers", lines=(
        _evaluated("bert", "texts.csv"), ("inspect", "bert"),
        _imported("bert/model.safetensors", TEXT, "--tokenizer", "bert/tokenizer.json"),
        _evaluated(f"arch:{TEXT},tokenizer=bert/tokenizer.json", "texts.csv"),
    )),
    "clip/tokenizer.json": Unit(kind="tokenizers", lines=(_evaluated("clip", "images", *ZERO_SHOT), ("inspect", "clip"))),
    "w.pth": Unit(kind="pickles", lines=(_imported("w.pth", "timm"),)),
    "old.pth": Unit(kind="pickles", lines=(_imported("old.pth", "timm"),)),
    "last.ckpt": Unit(kind="pickles", lines=(_imported("last.ckpt", "timm"), _imported("last.ckpt", "timm", "--ema"))),
    "bins/": Unit(kind="pickles", lines=(_imported("bins/pytorch_model.bin.index.json", "bert"),)),
    "texts.csv": Unit(kind="tables", lines=(_evaluated("bert", "texts.csv"), _tuned("bert", "texts.csv"))),
    "texts.jsonl": Unit(kind="tables", lines=(_evaluated("bert", "texts.jsonl"), _predicted("bert", "texts.jsonl"), _scored("bert", "texts.jsonl"))),
    "texts.parquet": Unit(kind="tables", lines=(_evaluated("bert", "texts.parquet"), _tuned("bert", "texts.parquet"))),
    "pictures.csv": Unit(kind="tables", lines=(_evaluated("base.st", "pictures.csv"), _predicted("base.st", "pictures.csv")), beside=("images/",)),
    "pictures.jsonl": Unit(kind="tables", lines=(_evaluated("base.st", "pictures.jsonl"),), beside=("images/",)),
    "pictures.parquet": Unit(kind="tables", lines=(_evaluated("base.st", "pictures.parquet"),)),
    "images/": Unit(kind="images", lines=(_evaluated("vit", "images"), _predicted("vit", "images", "--skip-bad"), _evaluated("clip", "images", *ZERO_SHOT))),
    "texts/": Unit(kind="texts", lines=(_evaluated("bert", "texts"),)),
}  # fmt: skip


def read_by(words: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the files that a command line reads: named files, and files in named folders."""
    parts, written = set(), False
    for word in words:
        if not written:
            parts |= {*re.split(r"::|[:,=]", word), word}
        written = word in WRITTEN
    folders = {part.partition("/")[0] for part in parts}
    return {name for name in names if name in parts or ("/" in name and name.partition("/")[0] in folders)}
