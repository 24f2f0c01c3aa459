"""Hints of `hydractl/data/sources/`."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from support.hints.table import Row

END = "--no-latency --bootstrap 0"
BERT, VIT = f"eval bert {END} --data", f"eval vit {END} --data"
HUB = "tests/data/test_hub_data.py"
ROW = '{"text": "a cat", "label": "a"}'


def _write(path: str, text: str) -> None:
    """Write a file anew, which may be linked elsewhere."""
    Path(path).unlink(missing_ok=True)
    Path(path).write_text(text)


def _save_parquet(**columns: list[object]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), "own.parquet")


def _save_dates() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    dates = pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"text": ["a cat", "a mat"], "date": dates, "label": ["a", "b"]}), "own.parquet")


def _save_splits(**splits: list[str]) -> None:
    """Write texts as `save_to_disk` of datasets does, with a folder for each split; one without a name directly."""
    import datasets

    saved = {name: datasets.Dataset.from_dict({"text": texts}) for name, texts in splits.items()}
    (saved["whole"] if "whole" in saved else datasets.DatasetDict(saved)).save_to_disk("saved")


def _write_shard(members: Mapping[str, bytes | str], name: str = "own.tar", mode: str = "w") -> None:
    with tarfile.open(name, mode) as tar:
        for member, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _images(*names: str) -> dict[str, bytes | str]:
    return {name: Path("images/a/0.png").read_bytes() if name.endswith(".png") else "a" for name in names}


def _cut_shard() -> None:
    _write_shard({"1.txt": "a cat", "2.txt": "a mat" * 999})
    Path("own.tar").write_bytes(Path("own.tar").read_bytes()[:2000])


def _write_metadata(folder: str, text: str = "file_name,label\n0.png,a\n") -> None:
    """Write an image with a metadata file beside it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    shutil.copy("images/a/0.png", folder)
    Path(folder, "metadata.csv").write_text(text)


ROWS = (
    Row(
        "column `{}` seems to contain images, which this model cannot read; select a column of texts: `::text=COLUMN`",
        "predict bert pictures.csv",
        "predict bert pictures.csv::text=label",
    ),
    Row(
        "column `{}` seems to contain texts, which this model cannot read",
        "predict base.st texts.csv",
        "predict bert texts.csv",
    ),
    Row(
        "count the labels from 0, or use class names; -1 means unlabelled only if every label is -1",
        f"{BERT} own.csv",
        f"{BERT} own.csv",
        files={"own.csv": "text,label\na cat,-1\na mat,1\n"},
        mend=partial(_write, "own.csv", "text,label\na cat,0\na mat,1\n"),
    ),
    Row(
        'labels must be names or integers; write lists in JSON, `["bad", "long"]`; for cells such as `bad|long` add `::label-separator=|` in quotes',
        f"{BERT} own.jsonl",
        f"{BERT} own.jsonl",
        files={"own.jsonl": '{"text": "a cat", "label": 0.5}\n{"text": "a mat", "label": 1}\n'},
        mend=partial(_write, "own.jsonl", f"{ROW}\n{ROW}\n"),
    ),
    Row(
        "select the column with the images: `::image=COLUMN`",
        "predict base.st own.csv",
        "predict base.st own.csv::image=scan",
        files={"own.csv": "scan,label\nimages/a/0.png,a\n"},
    ),
    Row(
        "select the column with the texts: `::text=COLUMN`, or `::text=FIRST+SECOND` for pairs; for words in strings add `label=COLUMN,label-separator=space`",
        "predict bert own.csv",
        "predict bert own.csv::text=summary",
        files={"own.csv": "summary,label\na cat,a\n"},
    ),
    Row(
        "write the names of the classes instead",
        f"eval multi {END} --data own.jsonl",
        f"eval multi {END} --data own.jsonl",
        files={"own.jsonl": '{"text": "a cat", "labels": [0, 1]}\n{"text": "a mat", "labels": [1, 0]}\n'},
        mend=partial(
            _write,
            "own.jsonl",
            '{"text": "a cat", "labels": ["a", "b"]}\n{"text": "a mat", "labels": ["b"]}\n',
        ),
    ),
    Row(
        "a .txt file lists one image per line: `cats/1.png 3`; {}",
        "predict base.st list.txt",
        "predict base.st list.txt",
        files={"list.txt": "images/a/0.png\n"},
        mend=partial(_write, "list.txt", "images/a/0.png 0\n"),
    ),
    Row(
        "a line has a word, then its labels, parted by blanks or tabs: `Rome B-place`; a comment `# ...` comes before the first word of a text",
        "predict words own.conll",
        "predict words own.conll",
        files={"own.conll": "the O\ncat\n"},
        mend=partial(_write, "own.conll", "the O\ncat B-x\n"),
    ),
    Row(
        "a table must be an array of objects, or have one object per line, for example {}",
        "predict bert own.jsonl",
        "predict bert own.jsonl",
        files={"own.jsonl": "a cat\n"},
        mend=partial(_write, "own.jsonl", ROW),
    ),
    Row(
        'end a quoted cell with a quote, and double each quote in it: `"say ""hi"""`',
        "predict bert own.csv",
        "predict bert own.csv",
        files={"own.csv": 'text,label\n"a "cat",a\n'},
        mend=partial(_write, "own.csv", 'text,label\n"a ""cat""",a\n'),
    ),
    Row(
        'put a cell that contains {} in quotes: `"..."`',
        "predict bert own.csv",
        "predict bert own.csv",
        files={"own.csv": "text,label\na cat, a mat,a\n"},
        mend=partial(_write, "own.csv", 'text,label\n"a cat, a mat",a\n'),
    ),
    Row(
        "select another column, or convert it to strings or numbers",
        "predict bert own.parquet::text=date",
        "predict bert own.parquet::text=text",
        prepare=_save_dates,
    ),
    Row(
        "write `{}/` to read it as a folder of {}",
        "predict bert own.csv",
        "predict bert own.csv/",
        files={"own.csv/1.txt": "a cat"},
    ),
    Row(
        "add {} to it, or move it out of `{}`",
        f"{BERT} own",
        f"{BERT} own",
        files={"own/a/1.txt": "a cat", "own/b/1.txt": "a mat", "own/c/notes.md": "a mat"},
        mend=lambda: Path("own/c").rename("c"),
    ),
    Row(
        "for the classes in `{}` add `::split={}`",
        f"{BERT} own",
        f"{BERT} own::split=train",
        prepare=lambda: shutil.copytree("texts", "own/train"),
    ),
    Row(
        "it has {}, such as `{}`, but the model reads {}",
        "predict base.st texts",
        "predict bert texts",
    ),
    Row(
        "suffixes of {}: {}",
        "predict bert own",
        "predict bert own",
        files={"own/1.md": "a cat"},
        mend=lambda: Path("own/1.md").rename("own/1.txt"),
    ),
    Row(
        "use only one sub-folder per class, or only {} for a set without labels",
        f"{BERT} own",
        f"{BERT} own",
        files={"own/a/1.txt": "a cat", "own/b/1.txt": "a mat", "own/2.txt": "the mat"},
        mend=lambda: Path("own/2.txt").rename("own/b/2.txt"),
    ),
    Row(
        "write a text into it, or move it out of the folder",
        "predict bert own",
        "predict bert own",
        files={"own/1.txt": "a cat", "own/2.txt": " \n"},
        mend=partial(_write, "own/2.txt", "a mat"),
    ),
    Row(
        "its column `file_name` must have paths relative to its folder, separated by commas in a .csv file; rename the file if it is "
        "not image metadata",
        f"{VIT} own",
        f"{VIT} own",
        prepare=partial(_write_metadata, "own", "name,label\n0.png,a\n"),
        mend=partial(_write_metadata, "own"),
    ),
    Row(
        "leave `split=` out",
        "predict bert saved::split=test",
        "predict bert saved",
        prepare=partial(_save_splits, whole=["a cat"]),
    ),
    Row(
        "check the name; for a private or gated data set run `hf auth login`",
        test=f"{HUB}::test_foreign_errors",
    ),
    Row("check the network", test=f"{HUB}::test_foreign_errors"),
    Row("it is not in the cache; unset HF_HUB_OFFLINE", test=f"{HUB}::test_offline_and_not_cached"),
    Row(
        "choose one with `::{}=NAME`",
        "predict bert saved",
        "predict bert saved::split=test",
        prepare=partial(_save_splits, train=["a cat"], test=["a mat"]),
    ),
    Row("download it again", test="tests/data/sources/test_webdataset.py::test_bad_shards"),
    Row(
        "paths are relative to `{}`",
        "predict base.st own/own.csv --no-skip-bad",
        "predict base.st own/own.csv::root=. --no-skip-bad",
        files={"own/own.csv": "image,label\nimages/a/0.png,a\n"},
    ),
    Row(
        "select the column with the images: `::image=COLUMN`",
        "predict base.st own.parquet",
        "predict base.st own.parquet::image=scan",
        prepare=partial(_save_parquet, image=[1], scan=["images/a/0.png"]),
    ),
    Row(
        "each word needs a label; select the column with `::label=COLUMN`; for strings add `::label-separator=space`",
        f"eval words {END} --data own.jsonl",
        f"eval words {END} --data own.jsonl::label=spans",
        files={
            "own.jsonl": json.dumps({"tokens": ["the", "cat"], "label": "animals", "spans": ["O", "B-x"]})
        },
    ),
    Row(
        "convert it: `iconv -f {} -t UTF-8 {}`, or save it as UTF-8",
        "predict bert own.csv",
        "predict bert own.csv",
        files={"own.csv": "text,label\ncaf\xe9,a\n".encode("latin-1")},
        mend=lambda: _write("own.csv", Path("own.csv").read_text(encoding="windows-1252")),
    ),
    Row(
        "a sample needs `NAME.jpg` and `NAME.cls` or `NAME.json`",
        f"{VIT} own.tar",
        f"{VIT} own.tar",
        prepare=lambda: _write_shard(_images("1.png", "1.cls", "2.png")),
        mend=lambda: _write_shard(_images("1.png", "1.cls", "2.png", "2.cls")),
    ),
    Row(
        "download it again",
        "predict bert own.tar",
        "predict bert own.tar",
        prepare=_cut_shard,
        mend=lambda: _write_shard({"1.txt": "a cat"}),
    ),
    Row(
        "leave out `image=`",
        "predict base.st own.tar::image=label",
        "predict base.st own.tar",
        prepare=lambda: _write_shard(_images("1.png", "1.cls")),
    ),
    Row(
        "download or write it again",
        "predict bert own.tar",
        "predict bert own.tar",
        prepare=lambda: (_write_shard({"1.txt": "a cat"}), os.truncate("own.tar", 1024)),
        mend=lambda: _write_shard({"1.txt": "a cat"}),
    ),
    Row(
        "join tar files with `tar --concatenate --file=FIRST.tar SECOND.tar`, or give a folder of them",
        "predict bert own.tar",
        "predict bert own.tar",
        prepare=lambda: (
            _write_shard({"1.txt": "a cat"}),
            Path("own.tar").write_bytes(2 * Path("own.tar").read_bytes()),
        ),
        mend=lambda: _write_shard({"1.txt": "a cat", "2.txt": "a cat"}),
    ),
    Row(
        "write the shard without `--sparse` of tar",
        test="tests/data/sources/test_webdataset.py::test_false_sizes",
    ),
)
