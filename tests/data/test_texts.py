"""Texts in tables and folders."""

from __future__ import annotations

import datasets
import pytest

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UsageError
from support.tabular import write

ROWS = (
    {"text": "a fine film, truly", "label": "positive"},
    {"text": "dull\nand long", "label": "negative"},
    {"text": "", "label": "negative"},
)


def texts_of(reference, **options):
    return open_data(str(reference), content=Content.TEXTS, **options)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_of_texts(tmp_path, suffix):
    found = texts_of(write(tmp_path / f"t.{suffix}", ROWS))

    assert found.texts == tuple(row["text"] for row in ROWS)
    assert (found.class_names, found.labels) == (("negative", "positive"), (1, 0, 0))
    assert found.name == f"t.{suffix}"
    assert (found.content, len(found), found.texts[1]) == (Content.TEXTS, 3, "dull\nand long")


def test_the_formats_agree(tmp_path):
    found = [texts_of(write(tmp_path / f"t.{suffix}", ROWS)) for suffix in ("csv", "jsonl", "parquet")]

    assert len({one.fingerprint() for one in found}) == 1


@pytest.mark.parametrize(
    "columns",
    [
        ("sentence1", "sentence2"),
        ("premise", "hypothesis"),
        ("question1", "question2"),
        ("question", "sentence"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_pairs_are_found_by_usual_names(tmp_path, columns, suffix):
    rows = [dict(zip(columns, (f"a{i}", f"b{i}"), strict=True)) | {"label": i} for i in range(3)]

    found = texts_of(write(tmp_path / f"t.{suffix}", rows))

    assert found.texts == (("a0", "b0"), ("a1", "b1"), ("a2", "b2"))
    assert found.labels == (0, 1, 2)


@pytest.mark.parametrize("name", ["text", "sentence", "content", "review"])
def test_single_texts_are_found_by_usual_names(tmp_path, name):
    assert texts_of(write(tmp_path / "t.jsonl", [{"id": "x", name: "hello"}])).texts == ("hello",)


def test_columns_can_be_named(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"text": "no", "a": "yes", "b": "yes too", "y": "dog"}])

    assert texts_of(f"{path}::text=a,label=y").texts == ("yes",)
    assert texts_of(f"{path}::text=b+a").texts == (("yes too", "yes"),)
    assert texts_of(f"{path}::text=a,label=y").class_names == ("dog",)
    assert texts_of(f"{path}::text=a").labels is None


def test_a_column_within_a_column(tmp_path):
    path = write(tmp_path / "t.parquet", [{"translation": {"en": "good day", "de": "guten Tag"}}])

    assert texts_of(f"{path}::text=translation.en").texts == ("good day",)


def test_declared_classes(tmp_path):
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["b", "a"]))
    path = write(tmp_path / "t.parquet", [{"text": "x", "label": 1}], features)

    assert (texts_of(path).class_names, texts_of(path).labels) == (("b", "a"), (1,))


def test_classes_and_limit(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"text": f"{i}", "label": "abc"[i % 3]} for i in range(9)])

    assert texts_of(f"{path}::classes=b+c").texts == ("1", "2", "4", "5", "7", "8")
    assert texts_of(f"{path}::classes=c").labels == (0, 0, 0)
    assert len(texts_of(f"{path}::limit=4")) == 4
    assert texts_of(f"{path}::limit=2").name == "t.jsonl::limit=2"


def test_the_fingerprint_knows_texts_labels_and_order(tmp_path):
    variants = (
        ROWS,
        ROWS[:2],
        ROWS[::-1],
        [{**row, "label": "positive"} for row in ROWS],
        [{**row, "text": "x"} for row in ROWS],
    )
    found = [texts_of(write(tmp_path / "t.jsonl", rows)).fingerprint() for rows in variants]

    assert len(set(found)) == len(variants)
    moved = texts_of(write(tmp_path / "u.jsonl", [{"review": r["text"], "class": r["label"]} for r in ROWS]))
    assert moved.fingerprint() == found[0]


def test_a_pair_is_not_its_texts_put_together(tmp_path):
    pair = texts_of(write(tmp_path / "t.jsonl", [{"premise": "a", "hypothesis": "b"}]))
    one = texts_of(write(tmp_path / "u.jsonl", [{"text": "a b"}]))

    assert pair.fingerprint() != one.fingerprint()


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "reviews"
    for name, texts in (("pos", ("great", "ﬁne")), ("neg", ("bad",))):
        (root / name).mkdir(parents=True)
        for i, text in enumerate(texts):
            (root / name / f"{i}.txt").write_text(text, encoding="utf-8")
    return root


def test_a_folder_of_texts(folder, progress_log):
    (folder / "pos" / "x.log").write_text("no")
    found = texts_of(folder)

    assert found.texts == ("bad", "great", "ﬁne")
    assert (found.class_names, found.labels, found.name) == (("neg", "pos"), (0, 1, 1), "reviews")
    assert progress_log.warnings == [f"{folder}: skipped files that are not texts (1): `pos/x.log`"]
    assert texts_of(folder / "pos").labels is None
    assert texts_of(f"{folder.parent}::split=reviews").fingerprint() == found.fingerprint()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b" \n", "has no text"), (b"", "has no text"), (b"\xff", "line 1 is not UTF-8 text")],
)
def test_a_bad_text_file_is_named(folder, content, message):
    (folder / "pos" / "1.txt").write_bytes(content)

    with pytest.raises(DataError, match=rf"pos/1\.txt: {message}"):
        texts_of(folder)


def test_images_for_a_text_model(tmp_path, picture):
    (tmp_path / "cat").mkdir()
    picture(0).save(tmp_path / "cat" / "0.png")

    with pytest.raises(DataError, match="class folder `cat` has no text") as caught:
        texts_of(tmp_path)
    assert caught.value.hint == "it has images, such as `cat/0.png`, but the model reads texts"
    with pytest.raises(DataError, match="has no text") as caught:
        texts_of(tmp_path / "cat")
    assert "`0.png`" in caught.value.hint
    for name in ("digits", "photos", "noise"):
        with pytest.raises(DataError, match=f"`{name}` are images, but the model reads texts"):
            texts_of(name)
    with pytest.raises(UsageError, match="`image=img` selects a column of images, but the model reads texts"):
        texts_of("a.csv::image=img")
    with pytest.raises(
        DataError, match=r"none of its columns \(`image`\) has one of the names `text`, .* reads"
    ) as caught:
        texts_of(write(tmp_path / "t.jsonl", [{"image": "cat/0.png"}]))
    assert "column `image` seems to contain images" in caught.value.hint


def test_texts_for_an_image_model(folder, tmp_path):
    with pytest.raises(DataError, match="class folder `neg` has no image") as caught:
        open_data(str(folder))
    assert caught.value.hint == "it has texts, such as `neg/0.txt`, but the model reads images"
    with pytest.raises(DataError, match="has one of the names `image`") as caught:
        open_data(str(write(tmp_path / "t.jsonl", ROWS)))
    assert caught.value.hint == "column `text` seems to contain texts, which this model cannot read"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("\n", "", "has no rows"),
        ('{"words": "a"}', "", "none of its columns (`words`) has one of the names `text`, `sentence`"),
        ('{"text": "a"}', "::text=txt", "has no column `txt` for `text=`; its columns are `text`"),
        ('{"text": "a"}', "::text=text+more", "has no column `more` for `text=`"),
        ('{"text": 3}', "", "column `text`: row 0 is not a string: 3"),
        ('{"text": "a"}\n{"text": []}', "", "column `text`: row 1 is not a string: []"),
        ('{"text": "\\ud800"}', "", "line 1 is not JSON: an unpaired surrogate"),
        ('{"text": "a", "label": null}', "", "row 0 has an invalid label"),
    ],
)
def test_bad_tables(tmp_path, content, options, message):
    path = tmp_path / "t.jsonl"
    path.write_text(content)

    with pytest.raises(DataError) as caught:
        texts_of(f"{path}{options}")
    assert f"{path}: " in caught.value.message
    assert message in caught.value.message


def test_nothing_left(tmp_path):
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["a", "never"])
    )
    path = write(tmp_path / "t.parquet", [{"text": "x", "label": 0}], features)

    with pytest.raises(DataError, match="classes=never: selects no text"):
        texts_of(f"{path}::classes=never")


@pytest.mark.parametrize("text", ["a+b+c", "a+", "+"])
def test_more_than_two_texts(text):
    with pytest.raises(UsageError, match="expected one or two columns"):
        DataRef.parse(f"t.jsonl::text={text}")


def test_a_reference_reads_back():
    ref = DataRef.parse("hf:nyu-mll/glue::config=mnli,split=validation_mismatched,text=premise+hypothesis")

    assert ref.text_columns == ("premise", "hypothesis")
    assert DataRef.parse(str(ref)) == ref


def test_a_txt_file_without_labels_has_one_text_per_line(tmp_path):
    """Empty lines are texts, a final line break adds no text, and U+2028 breaks no line."""
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffa film\r\n\nb\u2028c\n".encode())

    assert open_data(str(path), content=Content.TEXTS, labelled=False).texts == ("a film", "", "b\u2028c")
    with pytest.raises(DataError, match="is not a path and a label"):
        open_data(str(path), content=Content.TEXTS)
