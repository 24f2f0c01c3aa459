"""Hints of `hydractl/data/reference.py`."""

from __future__ import annotations

from support.hints.rows.data_sets import list_images
from support.hints.table import Row

FILE = "data/reference.py"
REFUSED = "tests/data/test_reference.py::test_bad_references"
STREAMS = "tests/stages/finetune/test_streams.py::test_what_cannot_be_is_refused_before_a_row_is_read"
ROWS = (
    Row(
        file=FILE,
        hint="for example `{}`; if the name contains `::`, end it with `::`: `{}::`",
        wrong="predict base.st images/a::limit",
        right="predict base.st images/a::limit=2",
    ),
    Row(
        file=FILE,
        hint="for example `val/::part=1/2`",
        wrong="predict base.st images/a::part=3/2",
        right="predict base.st images/a::part=1/2",
    ),
    Row(
        FILE,
        "DATA is `digits`, `shapes`, `photos`, `noise`, `reviews`, `intents`, `manual`, `letters`, a folder with one sub-folder a class, "
        "a .jsonl, .json, .csv, .tsv, .parquet or .conll file, a .txt list of images, .tar shards, `hf:org/name`, or `preset:NAME` of "
        "`hydractl data list`",
        "predict base.st unknown-data",
        "predict base.st digits::limit=2",
    ),
    Row(
        FILE, "add `limit=N`: the first N rows are read once and kept; or leave `streaming` out", test=REFUSED
    ),
    Row(FILE, "{}. `predict` and the test data of `eval` accept streams", test=REFUSED),
    Row(FILE, "add `streaming=true`, or leave it out", test=STREAMS),
    Row(FILE, "leave it out", test=STREAMS),
    Row(FILE, "leave it out; `finetune --data` shuffles", test=STREAMS),
    Row(FILE, "for example `hf:ylecun/mnist`", test=REFUSED),
    Row(
        FILE,
        "for example `digits::split=test,classes=0-6`",
        "predict base.st digits::split=test::limit=2",
        "predict base.st digits::split=test,limit=2",
    ),
    Row(
        FILE,
        "give one of {}: `{}`",
        "predict base.st preset:cifar10/near::openood=lists",
        "predict base.st preset:cifar10/cifar100::openood=lists",
        prepare=list_images,
    ),
    Row(
        FILE,
        "or leave it out",
        "predict base.st pictures.csv::decode=slow",
        "predict base.st pictures.csv::decode=fast",
    ),
    Row(
        FILE,
        "write `text=COLUMN`, or `text=FIRST+SECOND` for pairs",
        "predict bert texts.csv::text=text+label+other",
        "predict bert texts.csv::text=text+label",
    ),
    Row(
        FILE,
        "write `{}=VALUE`, or leave it out",
        "predict bert texts.csv::text=text,label=",
        "predict bert texts.csv::text=text,label=label",
    ),
)
