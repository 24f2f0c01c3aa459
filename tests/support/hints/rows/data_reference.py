"""Hints of `hydractl/data/reference.py`."""

from __future__ import annotations

import gzip
from pathlib import Path

from support.hints.rows.data_sets import list_images
from support.hints.table import Row

REFUSED = "tests/data/test_reference.py::test_bad_references"
ROWS = (
    Row(
        hint="for example `{}`; if the name contains `::`, end it with `::`: `{}::`",
        wrong="predict base.st images/a::limit",
        right="predict base.st images/a::limit=2",
    ),
    Row(
        hint="for example `val/::part=1/2`",
        wrong="predict base.st images/a::part=3/2",
        right="predict base.st images/a::part=1/2",
    ),
    Row(
        "DATA is `digits`, `photos`, `noise`, `intents`, `manual`, `letters`, a folder with one sub-folder a class, "
        "a .jsonl, .json, .csv, .tsv, .parquet or .conll file, a .txt list of images, .tar shards, `hf:org/name`, or `preset:NAME` of "
        "`hydractl data list`",
        "predict base.st unknown-data",
        "predict base.st digits::limit=2",
    ),
    Row("type {}", "predict base.st digits::limit=2,streaming=true", "predict base.st digits::limit=2"),
    Row(
        "write it to a file first: `{} > {}`, then give `{}`",
        "eval bert --data - --no-latency",
        "eval bert --data texts.jsonl --no-latency",
    ),
    Row(
        "decompress it: `{} < {} > {}`, then give `{}`",
        "eval bert --data texts.jsonl.gz --no-latency",
        "eval bert --data texts.jsonl --no-latency",
        prepare=lambda: Path("texts.jsonl.gz").write_bytes(gzip.compress(Path("texts.jsonl").read_bytes())),
    ),
    Row("for example `hf:ylecun/mnist`", test=REFUSED),
    Row(
        "for example `digits::split=test,classes=0-6`",
        "predict base.st digits::split=test::limit=2",
        "predict base.st digits::split=test,limit=2",
    ),
    Row(
        "give one of {}: `{}`",
        "predict base.st preset:cifar10/near::openood=lists",
        "predict base.st preset:cifar10/cifar100::openood=lists",
        prepare=list_images,
    ),
    Row(
        "or leave it out",
        "predict base.st pictures.csv::decode=slow",
        "predict base.st pictures.csv::decode=fast",
    ),
    Row(
        "write `text=COLUMN`, or `text=FIRST+SECOND` for pairs",
        "predict bert texts.csv::text=text+label+other",
        "predict bert texts.csv::text=text+label",
    ),
    Row(
        "write `{}=VALUE`, or leave it out",
        "predict bert texts.csv::text=text,label=",
        "predict bert texts.csv::text=text,label=label",
    ),
)
