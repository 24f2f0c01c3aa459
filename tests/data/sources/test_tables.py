from __future__ import annotations

import csv
import json
import os
import re
from decimal import Decimal

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydractl.data.datasets import Content
from hydractl.data.labels import required_labels
from hydractl.data.open_dataset import open_data, open_items
from hydractl.data.reference import DataRef
from hydractl.data.sources.columns import read_labels
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Preprocess
from support.tabular import parquet, write

GREY = Preprocess(input_size=(1, 8, 8), mean=(0.0,), std=(1.0,))
ROWS = ({"image": "img/0.png", "label": "cat"}, {"image": "img/1.png", "label": "ant"})


@pytest.fixture
def here(tmp_path, picture, monkeypatch):
    (tmp_path / "img").mkdir()
    for seed in range(2):
        picture(seed).save(tmp_path / "img" / f"{seed}.png")
    # an empty cache folder, to detect writes
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_of_paths(here, picture, suffix):
    images = open_data(str(write(here / f"t.{suffix}", ROWS)))

    assert images.class_names == ("ant", "cat")
    assert images.labels == (1, 0)
    assert images.name == f"t.{suffix}"
    for i in range(2):
        assert np.array_equal(np.asarray(images.image(i)), np.asarray(picture(i)))
    assert not (here / "cache").exists()


def test_the_formats_agree(here):
    tables = [open_data(str(write(here / f"t.{suffix}", ROWS))) for suffix in ("csv", "jsonl", "parquet")]

    assert len({table.fingerprint() for table in tables}) == 1


def test_parquet_with_features(here, picture):
    features = datasets.Features(
        img=datasets.Image(), fine_label=datasets.ClassLabel(names=["b", "a", "never"])
    )
    parquet(here / "t.parquet", {"img": [picture(0), picture(1)], "fine_label": [1, 0]}, features)

    images = open_data(str(here / "t.parquet"))

    assert (images.class_names, images.labels) == (("b", "a", "never"), (1, 0))
    assert np.array_equal(np.asarray(images.image(1)), np.asarray(picture(1)))


def test_parquet_of_encoded_bytes(here, picture):
    parquet(here / "t.parquet", {"image": [(here / "img" / "0.png").read_bytes()]})

    images = open_data(str(here / "t.parquet"))

    assert images.labels is None
    assert np.array_equal(np.asarray(images.image(0)), np.asarray(picture(0)))


def test_columns_can_be_named(here):
    path = write(here / "t.csv", [{"where": row["image"], "what": row["label"]} for row in ROWS])

    assert open_data(f"{path}::image=where,label=what").labels == (1, 0)


def test_no_label_column(here):
    images = open_data(str(write(here / "t.csv", [{"file": "img/0.png"}])))

    assert (images.class_names, images.labels) == ((), None)


def test_numbers_sort_as_numbers(here):
    rows = [{"path": "img/0.png", "class": number} for number in (10, 2)]

    for suffix in ("csv", "jsonl", "parquet"):
        images = open_data(str(write(here / f"t.{suffix}", rows)))
        assert (images.class_names, images.labels) == (("2", "10"), (1, 0))


def test_withheld_labels_are_said(here, progress_log):
    images = open_data(str(write(here / "t.jsonl", [{"img": "img/0.png", "label": -1}])))

    assert images.labels is None
    assert progress_log.warnings == [
        f"{here}/t.jsonl: column `label`: every label is -1, so the items are unlabelled"
    ]


def test_a_byte_order_mark_and_blank_lines(here):
    (here / "t.csv").write_bytes("\ufeffimage,label\nimg/0.png,a\n\n".encode())
    (here / "t.jsonl").write_text('{"image": "img/0.png", "label": "a"}\n\n')

    assert open_data(str(here / "t.csv")).labels == open_data(str(here / "t.jsonl")).labels == (0,)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("t.csv", "", "", "has no rows"),
        ("t.csv", "image,label\n", "", "has no rows"),
        ("t.jsonl", "\n", "", "has no rows"),
        ("t.csv", "image,label\nimg/0.png\n", "", "line 2 has 1 cells under 2 columns"),
        ("t.csv", "image,image\na,b\n", "", "two columns have the same name: image, image"),
        ("t.csv", 'image\n"a\n\n', "", "line 2 cannot be read as CSV: unexpected end of data"),
        ("t.csv", b"image\n\xff\n", "", "line 2 is not UTF-8 text: invalid start byte at byte 6"),
        ("t.csv", "picture\nx\n", "", "none of its columns (`picture`) has one of the names `image`, `img`"),
        (
            "t.csv",
            "image\nimg/0.png\n",
            "::image=imag",
            "has no column `imag` for `image=`; its columns are `image`",
        ),
        (
            "t.csv",
            "image\nimg/0.png\n",
            "::label=y",
            "has no column `y` for `label=`; its columns are `image`",
        ),
        (
            "t.csv",
            "image\nimg/9.png\n",
            "",
            ("column `image`: row 0 has the path `img/9.png`, which does not exist"),
        ),
        ("t.csv", f"image\n{'x' * 5000}\n", "", "x`, which does not exist"),
        (
            "t.jsonl",
            '{"image": "\\ud800"}\n',
            "",
            "line 1 is not JSON: an unpaired surrogate, which is not a character",
        ),
        ("t.csv", "image,label\nimg/0.png,\n", "", "column `label`: row 0 has an invalid label: ''"),
        ("t.jsonl", "{}\n[", "", "line 2 is not JSON: Expecting value at column 2"),
        (
            "t.jsonl",
            '{"image": "a",}',
            "",
            "line 1 is not JSON: there is a comma before the closing `}` at column 15",
        ),
        (
            "t.jsonl",
            '{"image": "a"},\n',
            "",
            ("line 1 is not JSON: there is a comma after the end at column 15"),
        ),
        ("t.jsonl", "[]", "", "has no rows"),
        ("t.json", "[1]", "", "row 0 of the array is not a JSON object"),
        (
            "t.json",
            '[{"image": "a"},\n {"img": "a"}]',
            "",
            "row 1 of the array and the first row differ in the key",
        ),
        ("t.json", '[{"image": "a"},\n {"image": }]', "", "line 2 is not JSON: Expecting value at column 12"),
        ("t.tsv", "image\tlabel\nimg/0.png,a\n", "", "line 2 has 1 cells under 2 columns"),
        ("t.tsv", 'image\tlabel\na\t0\n"b\t1\nc"\t2\n', "", "line 3: a quoted cell contains tabs and line"),
        ("t.csv", 'image,label\n"a\nb",c\n"d"e,f\n', "", "line 4 cannot be read as CSV: ',' expected after"),
        ("t.csv", "image\nimg/0.png\n".encode("utf-16-le"), "", "line 1 contains a NUL character"),
        ("t.csv", b"image\nimg/0.png\n\xff\n", "", "line 3 is not UTF-8 text: invalid start byte at byte 16"),
        ("t.csv", "image\n".encode("utf-16") + b"x", "", "line 2 is not UTF-16 text: truncated data"),
        ("t.csv", "image,label\nimg/0.png,1.5\n", "", "column `label`: row 0 has an invalid label: '1.5'"),
        ("t.jsonl", b"\xff", "", "is not UTF-8 text: invalid start byte at byte 0"),
        ("t.jsonl", '{"image": "a"}\n{"img": "a"}', "", "line 2 and the first row differ in the key `image`"),
        ("t.jsonl", '{"image": 3}', "", "row 0 has no image path: 3"),
        ("t.jsonl", '{"image": "img/0.png", "label": -2}', "", "row 0 has label -2, out of range 0.."),
        ("t.jsonl", '{"image": "img/0.png", "label": 1.5}', "", "row 0 has an invalid label: 1.5"),
        ("t.jsonl", '{"image": "img/0.png", "label": null}', "", "row 0 has an invalid label: None"),
        ("t.parquet", "junk", "", "cannot be read as Parquet"),
    ],
)
def test_bad_tables(here, name, content, options, message):
    (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(DataError) as caught:
        open_data(f"{here / name}{options}")

    assert f"{here / name}: " in caught.value.message
    assert message in caught.value.message


def test_bad_parquet_contents(here, picture):
    path = here / "t.parquet"
    parquet(
        path,
        {"image": [], "label": []},
        datasets.Features(image=datasets.Image(), label=datasets.Value("string")),
    )
    with pytest.raises(DataError, match="has no rows"):
        open_data(str(path))

    parquet(path, {"image": [1, 2]})
    with pytest.raises(DataError, match="column `image`: has no images"):
        open_data(str(path))

    parquet(path, {"image": [picture(0), None]}, datasets.Features(image=datasets.Image()))
    with pytest.raises(DataError, match="column `image`: row 1 has no image"):
        open_data(str(path)).image(1)

    parquet(path, {"image": [b"junk"]})
    with pytest.raises(DataError, match="row 0: is not an image that can be decoded"):
        open_data(str(path)).image(0)


MAP = pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64()))


def test_a_column_that_datasets_cannot_hold_is_in_the_way_only_where_it_is_asked_for(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["good", "bad"], "extra": MAP, "label": ["x", "y"]}), path)
    with pytest.raises(ValueError, match="map"):
        datasets.Features.from_arrow_schema(pq.read_schema(path))

    found = open_data(str(path), content=Content.TEXTS)
    assert (found.texts, found.class_names, found.labels) == (("good", "bad"), ("x", "y"), (0, 1))
    for option in ("text", "label"):
        with pytest.raises(DataError, match="column `extra`: has the unsupported type `map<"):
            open_data(f"{path}::{option}=extra", content=Content.TEXTS)
    with pytest.raises(DataError, match="its columns are `text`, `label`, `extra`"):
        open_data(f"{path}::label=other", content=Content.TEXTS)
    pq.write_table(pa.table({"extra": MAP}), path)
    with pytest.raises(DataError, match=r"has no column of a supported type, only `extra` \(map<"):
        open_data(str(path), content=Content.TEXTS)


@pytest.mark.parametrize(
    "note",
    ["[]", "no JSON", '{"info": {"features": 3}}', '{"info": {"features": {"text": {"_type": "No"}}}}'],
)
def test_notes_of_datasets_in_a_file_that_are_none(tmp_path, note):
    table = pa.table({"text": ["good", "bad"], "label": ["x", "y"]}).replace_schema_metadata(
        {"huggingface": note}
    )
    pq.write_table(table, tmp_path / "t.parquet")

    with pytest.raises(DataError, match=r"t\.parquet: cannot be read as Parquet"):
        open_data(str(tmp_path / "t.parquet"), content=Content.TEXTS)


def test_label_outside_the_declared_classes(progress_log):
    with pytest.raises(DataError, match=r"t: row 1 has label 2, out of range 0\.\.1"):
        read_labels([0, 2], names=("a", "b"), place="t")
    with pytest.raises(
        DataError, match=("t: row 0 has the label 'a', but must have an index into 2 class names")
    ):
        read_labels(["a"], names=("a", "b"), place="t")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_whose_image_is_missing_are_left_out_where_that_is_wanted(here, progress_log, suffix, workers):
    rows = [ROWS[0], {"image": "img/none.png", "label": "cat"}, ROWS[1], {"image": "", "label": "ant"}]
    path = str(write(here / f"t.{suffix}", rows))

    found = open_items(path, GREY, skip_bad=True, workers=workers)

    assert [found.key(i) for i in range(len(found))] == [0, 2]
    assert found.labels == (1, 0)
    assert len(progress_log.warnings) == 1
    assert progress_log.warnings[0].startswith(
        f"t.{suffix}: skipped 2 of 4 images, which are unreadable; the first is "
    )
    assert progress_log.warnings[0].endswith("row 1 has the path `img/none.png`, which does not exist")
    with pytest.raises(DataError, match=r"row 1 has the path `img/none\.png`, which does not exist"):
        open_items(path, GREY, workers=workers)


def test_missing_file_and_folder_of_that_name(here):
    with pytest.raises(DataError, match=r"no\.csv: no such file"):
        open_data(str(here / "no.csv"))

    (here / "odd.csv").mkdir()
    with pytest.raises(DataError, match="is a folder, not a file") as caught:
        open_data(str(here / "odd.csv"))
    assert caught.value.hint == f"write `{here}/odd.csv/` to read it as a folder of images"


def test_a_text_column_is_no_image():
    with pytest.raises(UsageError, match="`text=body` selects a column of texts"):
        open_data("a.csv::text=body")


def test_fingerprint_knows_bytes_not_paths(here):
    before = open_data(str(write(here / "t.csv", ROWS))).fingerprint()
    (here / "img" / "0.png").rename(here / "zero.png")
    moved = open_data(
        str(write(here / "t.csv", [{"image": "zero.png", "label": "cat"}, ROWS[1]]))
    ).fingerprint()
    (here / "img" / "1.png").replace(here / "zero.png")
    changed = open_data(
        str(
            write(
                here / "t.csv", [{"image": "zero.png", "label": "cat"}, {"image": "zero.png", "label": "ant"}]
            )
        )
    ).fingerprint()

    assert before == moved != changed


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_json_is_an_array_or_an_object_a_line(here, suffix):
    (here / f"a.{suffix}").write_text(json.dumps(ROWS, indent=2))
    (here / f"b.{suffix}").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))

    array, lines = (open_data(str(here / f"{name}.{suffix}")) for name in "ab")

    assert array.labels == lines.labels == (1, 0)
    assert array.fingerprint() == lines.fingerprint()


def _texts(path):
    found = open_data(str(path), content=Content.TEXTS)
    return found.texts, found.class_names, found.labels, found.numbered


@pytest.mark.parametrize(
    "labels",
    [
        [0.0, 10.0, 2.0],
        [0, 10, 2],
        ["0.0", "10", "2"],
        ["cat", " dog ", "cat"],
        [True, False, True],
        [-1, -1, -1],
        ["-1", "-1.0", "-1"],
        [-1, 0, 1],
        [0.5, 1.0, 2.0],
        ["cat", None, "dog"],
        ["cat", "", "dog"],
        [1.0, None, 2.0],
    ],
)
@pytest.mark.parametrize("texts", [["a b", "", "c"], ["a b", None, " c "]])
def test_a_frame_means_the_same_in_every_form_that_pandas_writes(tmp_path, texts, labels):
    frame = pd.DataFrame({"text": texts, "label": labels})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "t.json", orient="records")
    frame.to_parquet(tmp_path / "t.parquet")

    def read(suffix):
        try:
            return _texts(tmp_path / f"t.{suffix}")
        except DataError as error:
            return re.search("row [0-9]+ has [a-z ]+", error.message)[0]

    found = [read(suffix) for suffix in ("csv", "tsv", "jsonl", "json", "parquet")]

    assert all(one == found[0] for one in found), found


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_delimiter_and_the_encoding_of_a_table_are_detected(tmp_path, encoding, delimiter, end):
    rows = [["text", " label "], ["a, b; c\td | é", "x"], ['say "hi"\nand go', "y"]]
    with (tmp_path / "t.csv").open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(rows)

    assert _texts(tmp_path / "t.csv") == (("a, b; c\td | é", 'say "hi"\nand go'), ("x", "y"), (0, 1), False)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "windows-1252"])
def test_an_encoding_that_nothing_tells_is_named_in_the_hint(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes("text\né\n".encode(encoding))

    with pytest.raises(DataError) as caught:
        _texts(tmp_path / "t.csv")
    assert f"iconv -f {encoding.upper().replace('16-', '16')} -t UTF-8" in caught.value.hint


def test_nul_bytes_in_text_that_is_no_utf_16_get_no_hint_at_it(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\nthe cat\0,x\n")

    with pytest.raises(DataError, match="line 2 contains a NUL") as caught:
        _texts(tmp_path / "t.csv")
    assert caught.value.hint is None


@pytest.mark.parametrize(
    "head", ["text;label;;", ";text;label;", 'text;label;"a, b, c";', "text;label;a, b, c;"]
)
def test_columns_without_a_name_and_names_with_delimiters_are_in_nobodys_way(tmp_path, head):
    cells = {"text": "so, so", "label": "x"}
    row = ";".join(cells.get(name, "") for name in head.split(";"))
    (tmp_path / "t.csv").write_text(f"{head}\r\n{row}\r\n")

    assert _texts(tmp_path / "t.csv")[:2] == (("so, so",), ("x",))


def test_labels_may_be_decimal_numbers(tmp_path):
    labels = [Decimal("1.00"), Decimal(0)]
    pd.DataFrame({"text": ["a", "b"], "label": labels}).to_parquet(tmp_path / "t.parquet")

    assert _texts(tmp_path / "t.parquet")[2:] == ((1, 0), True)


def test_one_column_may_hold_any_delimiter_but_its_own(tmp_path):
    (tmp_path / "t.csv").write_text("text\na; b\tc | d\n")

    assert _texts(tmp_path / "t.csv")[0] == ("a; b\tc | d",)


def test_blanks_around_names_of_columns_do_not_count(tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        path = write(tmp_path / f"t.{suffix}", [{" text": "a", "label ": "x"}])

        assert _texts(path)[:2] == (("a",), ("x",))
        assert open_data(f"{path}::text=text,label=label", content=Content.TEXTS).class_names == ("x",)


def test_a_cell_may_be_longer_than_the_library_lets_it(tmp_path):
    text = "long " * 100_000
    (tmp_path / "t.csv").write_text(f"text,label\n{text},x\n")

    assert _texts(tmp_path / "t.csv")[0] == (text,)


def test_without_labels_the_columns_are_named(tmp_path):
    items = open_data(str(write(tmp_path / "t.csv", [{"text": "a", "mood": "x"}])), content=Content.TEXTS)

    with pytest.raises(
        DataError, match=r"needs them; its columns are `text`, `mood`: select one with `::label="
    ):
        required_labels(items, "--data")


def test_a_list_of_images_may_hold_a_name_that_is_no_utf_8(here, picture):
    name = os.fsencode(here) + b"/\xff.png"
    picture(0).save(os.fsdecode(name))
    (here / "t.txt").write_bytes(b"\xff.png 1\nimg/1.png\t0\r\n")

    assert open_data(str(here / "t.txt")).image(0).size == (9, 7)


@pytest.mark.parametrize(("wants", "column"), [(Content.IMAGES, "image"), (Content.TEXTS, "text")])
def test_a_line_that_is_no_row_is_shown_one_of_what_is_looked_for(here, wants, column):
    (here / "t.jsonl").write_text("the cat sat\n")

    with pytest.raises(DataError, match="line 1 is not JSON") as caught:
        open_data(str(here / "t.jsonl"), content=wants)
    _, _, example = caught.value.hint.partition("for example ")
    assert [*json.loads(example)] == [column, "label"]


def parquet_file(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("row_group_size", [None, 7])
def test_parquet_files_are_read_whole_in_batches(tmp_path, monkeypatch, row_group_size):
    from hydractl.data.sources import files

    monkeypatch.setattr(files, "_ROWS", 10)
    frame = pd.DataFrame(
        {
            "text": [f"text {i}" * (i % 5) for i in range(100)],
            "label": pd.Categorical([("x", "y", "z")[i % 3] for i in range(100)]),
            "lists": [["a"] * (i % 4) for i in range(100)],
        }
    )
    path = tmp_path / "t.parquet"
    frame.to_parquet(path, row_group_size=row_group_size)
    items = open_data(f"{path}::label=label", content=Content.TEXTS)
    assert items.texts == tuple(frame["text"])
    assert [items.class_names[i] for i in items.labels] == [*frame["label"]]
    table = files.open_table(DataRef.parse(str(path)), Content.TEXTS)
    assert table.cells("lists") == pq.read_table(path)["lists"].to_pylist()


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (
            {"text": ["a" * 100_000, "b"], "label": ["x", "y"]},
            {"compression": "zstd", "use_dictionary": False},
        ),
        ({"text": ["a" * 1000] * 100, "label": ["x", "y"] * 50}, {}),
        ({"text": ["a b", "c"], "label": [["x"] * 30_000, ["y"]]}, {}),
        ({"text": ["a b"] * 20_000, "label": [1] * 20_000}, {}),
    ],
)
def test_a_small_file_that_expands_is_refused(tmp_path, monkeypatch, columns, options):
    from hydractl.data.sources import files

    path = parquet_file(tmp_path / "t.parquet", columns, **options)
    monkeypatch.setattr(files, "_EXPANSION", 2)
    with pytest.raises(
        DataError, match=r"has a cell of more than 50000 bytes, or \d+ bytes in all"
    ) as caught:
        open_data(f"{path}::max-item=50000", content=Content.TEXTS)
    option = re.search(r"`(::max-item=\d+)`", caught.value.hint)[1]
    assert len(open_data(f"{path}{option}", content=Content.TEXTS)) == len(columns["text"])
    assert len(open_data(str(path), content=Content.TEXTS)) == len(columns["text"])


def test_a_cell_has_a_limit_in_a_large_file(tmp_path):
    texts = ["".join(letters) for letters in np.random.default_rng(0).choice([*"abcdefgh"], (2000, 100))]
    path = parquet_file(tmp_path / "t.parquet", {"text": [*texts, "a" * 60_000], "label": ["x"] * 2001})
    assert len(open_data(f"{path}::max-item=70000", content=Content.TEXTS)) == 2001
    with pytest.raises(DataError, match="has a cell of more than 50000 bytes"):
        open_data(f"{path}::max-item=50000", content=Content.TEXTS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_first_line_of_excel_names_the_delimiter(tmp_path, end):
    path = tmp_path / "t.csv"
    path.write_bytes(end.join(["sep=;", "text;label", '"a;b, c, d";x', "e, f;y", ""]).encode("utf-8-sig"))
    items = open_data(str(path), content=Content.TEXTS)
    assert (items.texts, items.class_names) == (("a;b, c, d", "e, f"), ("x", "y"))
    path.write_text("sep=;\ntext;label\na;x;z\n")
    with pytest.raises(DataError, match="line 3 has 3 cells under 2 columns"):
        open_data(str(path), content=Content.TEXTS)


def test_a_list_of_images_that_holds_words_gets_a_hint(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("-DOCSTART- O\n\nAnna B-PER\nflew O\n")
    with pytest.raises(DataError) as caught:
        open_data(str(path), content=Content.TEXTS)
    command = re.search(r"`mv (.*) (.*)`", caught.value.hint)
    path.rename(command[2])
    assert command[1] == str(path)
    assert open_data(command[2], content=Content.TEXTS).class_names == ("B-PER", "O")


@pytest.mark.parametrize("tagged", ["# id 1\nAnna B-PER\nflew O\n", "Anna NNP U-PER\n\n-DOCSTART- -X- O\n"])
def test_a_file_of_texts_that_holds_words_and_tags_is_refused(tmp_path, tagged):
    path = tmp_path / "train.txt"
    path.write_text(tagged)
    with pytest.raises(DataError, match="each line has a word and its tag") as caught:
        open_data(str(path), content=Content.TEXTS, labelled=False)
    command = re.search(r"`mv (.*) (.*)`", caught.value.hint)
    path.rename(command[2])
    assert len(open_data(command[2], content=Content.TEXTS, labelled=False)) == 1


@pytest.mark.parametrize("texts", ["my blood type is O\nO\n", "\n\n", "Anna B-PER\nA text\n"])
def test_a_file_of_texts_may_end_its_lines_with_letters(tmp_path, texts):
    path = tmp_path / "texts.txt"
    path.write_text(texts)
    assert len(open_data(str(path), content=Content.TEXTS, labelled=False)) == texts.count("\n")


def test_one_column_per_label_gets_a_hint(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,late,broken\na,0,1\nb,1,1\n")
    with pytest.raises(DataError) as caught:
        required_labels(open_data(str(path), content=Content.TEXTS), "--data")
    assert "one column per label as one column of lists" in caught.value.hint
