from __future__ import annotations

import pytest

from hydractl.data.datasets import Content
from hydractl.data.labels import check_training_labels, select_classes
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (("3", "4", "5"), ("4-5",), (1, 2)),
        (("cat", "dog", "owl"), ("0-1",), (0, 1)),
        (("cat", "dog", "owl"), ("owl", "0"), (0, 2)),
        (("0-1", "0", "1"), ("0-1",), (0,)),
        (("1", "cat"), ("1",), (0,)),
        (("LABEL_0", "LABEL_1", "LABEL_10", "LABEL_2"), ("2", "10"), (2, 3)),
        (("07", "10"), ("7",), (0,)),
    ],
)
def test_selection(names, wanted, chosen):
    assert select_classes(names, wanted) == chosen


def test_backward_range():
    with pytest.raises(UsageError, match="is reversed") as caught:
        select_classes(("a", "b"), ("1-0",))
    assert caught.value.hint == "write 0-1"


def test_a_huge_range_is_not_walked():
    with pytest.raises(DataError, match="have no class `999999999999`"):
        select_classes(("a", "b"), ("0-999999999999",))


@pytest.mark.parametrize(
    ("name", "content", "numbered"),
    [
        ("t.jsonl", '{"text": "a", "label": 0}\n{"text": "b", "label": 7}\n', True),
        ("t.jsonl", '{"text": "a", "label": "0"}\n{"text": "b", "label": "bad"}\n', False),
        ("t.csv", "text,label\na,0\nb,7\n", True),
        ("t.csv", "text,label\na,bad\nb,good\n", False),
        ("t.csv", "text\na\nb\n", False),
    ],
)
def test_labels_of_a_table_are_numbers_or_names_however_it_is_cut(tmp_path, name, content, numbered):
    path = tmp_path / name
    path.write_text(content)
    whole = open_data(str(path), content=Content.TEXTS)
    assert whole.numbered is numbered
    if whole.labels is not None:
        assert (
            open_data(f"{path}::classes={whole.class_names[1]}", content=Content.TEXTS).numbered is numbered
        )


def test_classes_that_a_folder_or_a_data_set_calls_by_a_number_have_names(tmp_path):
    for name in ("0", "7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a")
    assert not open_data(str(tmp_path), content=Content.TEXTS).numbered
    assert not open_data("digits::classes=7-9,limit=3").numbered


def folder(root, names):
    """Create a folder of texts. Each text is the name of its class."""
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "a.txt").write_text(name, encoding="utf-8")
    return root


def pairs(items):
    """Return each text with the name of its class."""
    return [(text, items.class_names[label]) for text, label in zip(items.texts, items.labels, strict=True)]


def test_classes_are_chosen_and_renamed_and_counted_in_an_order(tmp_path, progress_log):
    names = [f"class{i}" for i in range(12)]
    root = folder(tmp_path / "data", names)
    for by, order in (("position", names), ("number", names), ("alphabet", sorted(names))):
        items = open_data(f"{root}::classes-by={by}", content=Content.TEXTS)
        assert items.by_position
        assert items.class_names == tuple(order)
        assert all(text == name for text, name in pairs(items))
    (warning,) = progress_log.warnings  # `position` alone is ambiguous if names have numbers
    assert "`::classes-by=alphabet` sorts alphabetically" in warning

    chosen = open_data(f"{root}::classes=class3+class10,map=class10:ten,class11:x", content=Content.TEXTS)
    assert pairs(chosen) == [("class10", "ten"), ("class3", "class3")]
    assert not chosen.by_position


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("map=owl:cat", "the data have no class `owl`"),
        ("map=dog:cat", "gives two classes the name `cat`"),
        ("classes-by=number", "needs class names that differ only in a number"),
    ],
)
def test_options_of_classes_that_do_not_fit(tmp_path, options, message):
    folder(tmp_path, ["cat", "dog"])
    with pytest.raises(DataError, match=message):
        open_data(f"{tmp_path}::{options}", content=Content.TEXTS)


def test_numbers_that_are_renamed_are_names(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    items = open_data(f"{path}::map=0:cat,1:dog", content=Content.TEXTS)
    assert items.class_names == ("cat", "dog")
    assert not items.numbered
    assert open_data(f"{path}::map=0:1,1:0", content=Content.TEXTS).numbered
    unlabelled = tmp_path / "u.jsonl"
    unlabelled.write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match="has no labels"):
        open_data(f"{unlabelled}::map=a:b", content=Content.TEXTS, labelled=False)


def test_two_classes_of_one_name_are_refused(tmp_path):
    folder(tmp_path, ["caf\u00e9", "cafe\u0301", "tea"])
    with pytest.raises(DataError, match="two classes have the name `caf\u00e9`"):
        open_data(str(tmp_path), content=Content.TEXTS)


def test_a_classifier_is_trained_on_two_classes_at_least(tmp_path):
    folder(tmp_path, ["cat", "dog"])
    check_training_labels(open_data(str(tmp_path), content=Content.TEXTS), "--data")
    with pytest.raises(DataError, match="every label is `dog`, but training needs at least two classes"):
        check_training_labels(open_data(f"{tmp_path}::classes=dog", content=Content.TEXTS), "--data")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_table_that_withholds_every_label_trains_nothing(tmp_path, name):
    path = tmp_path / name
    csv, rows = "text,label\na,-1\nb,-1\n", '{"text": "a", "label": -1}\n{"text": "b", "label": -1}\n'
    path.write_text(csv if name.endswith("csv") else rows)
    with pytest.raises(DataError, match="has no labels, but `--data` needs them"):
        check_training_labels(open_data(str(path), content=Content.TEXTS), "--data")
