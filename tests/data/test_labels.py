from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.data.dataset import open_data
from hydractl.data.items import Content, TextSet
from hydractl.data.labels import (
    filled_names,
    match_classes,
    names_agree,
    names_all,
    new_names,
    select_classes,
)
from hydractl.errors import DataError, UsageError


def align_labels(items, model_labels, **options):
    """Return the data's labels as the model's."""
    table = match_classes(items, model_labels, **options)
    return tuple(table[label] for label in items.labels)


def data(names, labels, *, numbered=False):
    texts = ("a",) * len(labels)
    return TextSet(
        texts=texts, name="the set", class_names=tuple(names), labels=tuple(labels), numbered=numbered
    )


@given(st.permutations("abcdef"), st.lists(st.integers(0, 3)))
def test_names_decide_whatever_the_order(model_labels, labels):
    names = "fcab"

    aligned = align_labels(data(names, labels), model_labels, num_classes=6)

    assert [model_labels[place] for place in aligned] == [names[label] for label in labels]


def test_a_match_by_name_is_silent(heard):
    align_labels(data(("b", "a"), (0, 1)), ("a", "b", "c"), num_classes=3, progress=heard)

    assert heard.warnings == []


def test_equal_counts_go_in_order_and_say_so(heard):
    aligned = align_labels(data(("n01", "n02"), (1, 0)), ("cat", "dog"), num_classes=2, progress=heard)

    assert aligned == (1, 0)
    (warning,) = heard.warnings
    assert warning.startswith(
        "the data's class names are not the model's: the data's 2 classes are taken in order"
    )
    assert warning.endswith("from `n01` as class 0 to `n02` as class 1")


def test_numbers_are_the_models_indices(heard):
    # sorted as text, "10" comes before "2": order would be wrong
    aligned = align_labels(data(("10", "2"), (0, 1)), tuple("abcdefghijkl"), num_classes=12, progress=heard)

    assert aligned == (10, 2)
    assert heard.warnings == [
        "the data's classes are named by numbers: taken for the model's class indices (`10` is `k`)"
    ]


def test_a_model_without_names(heard):
    assert align_labels(data(("7", "8"), (0, 1)), (), num_classes=10, progress=heard) == (7, 8)
    assert heard.warnings == []
    assert align_labels(data(("a", "b"), (0, 1)), (), num_classes=3, progress=heard) == (0, 1)
    assert "the model's classes have no names" in heard.warnings[0]


def test_a_name_that_two_model_classes_share_decides_nothing(heard):
    aligned = align_labels(
        data(("crane", "dog", "owl"), (2,)), ("crane", "crane", "dog"), num_classes=3, progress=heard
    )

    assert aligned == (2,)
    assert len(heard.warnings) == 1


@pytest.mark.parametrize(
    ("names", "model_labels", "num_classes", "message"),
    [
        (
            ("a", "x"),
            ("a", "b", "c"),
            3,
            "the data have 2 classes and the model 3; the model does not know `x`",
        ),
        (tuple("uvwxyza"), ("a", "b"), 2, "does not know `u`, `v`, `w`, `x`, `y` and 1 more"),
        (("0", "5"), ("a", "b", "c"), 3, "the data have 2 classes and the model 3"),
        (("a", "b"), (), 1, "the data have 2 classes and the model 1"),
    ],
)
def test_classes_that_do_not_fit(names, model_labels, num_classes, message):
    with pytest.raises(DataError) as caught:
        align_labels(data(names, (0,)), model_labels, num_classes=num_classes)

    assert message in caught.value.message
    assert "::classes=" in caught.value.hint


@given(
    st.lists(st.sampled_from(["a", "b", "0", "1", "5", "10"]), min_size=1, unique=True),
    st.integers(0, 9),
    st.data(),
)
def test_names_of_a_new_classifier_mean_the_same_in_every_part_of_the_data(names, more, drawn):
    number = len(names) + more
    labels = new_names(names, number)
    assert len({*labels}) == len(labels) == number
    assert more or labels == tuple(names)
    whole = match_classes(data(names, ()), labels, num_classes=number)
    assert [labels[place] for place in whole] == names
    if more and all(name.isdigit() and int(name) < number for name in names):
        assert whole == match_classes(data(names, ()), (), num_classes=number)  # as without names
    part = drawn.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    assert [labels[i] for i in match_classes(data(part, ()), labels, num_classes=number)] == part
    assert names_all(data(part, ()), labels) == (len(part) == len(names))


def test_a_number_is_no_index_of_a_class_that_has_another(heard):
    items = data(("0", "1"), (0, 1))
    assert not names_agree(items, ("5", "6", "7"), 3)
    assert names_agree(items, ("5", "6", "0", "1"), 4)
    assert names_agree(items, ("0", "unnamed class 1"), 2)
    with pytest.raises(DataError):
        align_labels(items, ("5", "6"), num_classes=2, by_text=True)
    align_labels(data(("0", "1"), (0, 1), numbered=True), ("5", "6"), num_classes=2, progress=heard)
    assert "class indices (`0` is `5`)" in heard.warnings[0]  # a table's numbers are never names


def test_a_class_without_a_name_takes_the_next_datas():
    labels = new_names(("0", "2"), 4)
    assert labels == ("0", "unnamed class 1", "2", "unnamed class 3")
    assert filled_names(labels, ("1", "2"), (1, 2), 4) == ("0", "1", "2", "unnamed class 3")
    assert filled_names(("a", "b"), ("1",), (1,), 2) == ("a", "b")


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 8))
def test_labels_that_are_numbers_are_the_models_classes_or_refused(numbers, num_classes):
    """Never another class than the number says, whatever the count."""
    names = tuple(str(number) for number in sorted(numbers))
    items = data(names, range(len(names)), numbered=True)

    if max(numbers) < num_classes:
        assert align_labels(items, (), num_classes=num_classes) == tuple(sorted(numbers))
        return
    with pytest.raises(DataError, match=f"the model has {num_classes} classes, 0 to {num_classes - 1}"):
        align_labels(items, (), num_classes=num_classes)


def test_a_number_that_is_no_class_is_named_and_a_folder_of_that_name_is_not(heard):
    names, labels = ("0", "7"), (0, 1)
    with pytest.raises(DataError, match="label 7 is out of range") as caught:
        align_labels(data(names, labels, numbered=True), ("bad", "good"), num_classes=2)
    assert "count the labels from 0, or give names: the model's are `bad`, `good`" in caught.value.hint

    assert align_labels(data(names, labels), (), num_classes=2, progress=heard) == (0, 1)
    assert "taken in order" in heard.warnings[0]
    assert align_labels(data(names, labels, numbered=True), ("7", "0"), num_classes=2) == (1, 0)


def test_capitals_do_not_tell_classes_apart_but_are_mentioned(heard):
    assert align_labels(data(("DOG", "cat"), (0, 1)), ("Cat", "dog"), num_classes=2, progress=heard) == (1, 0)
    assert heard.warnings == ["the data's class names are the model's but for capitals: taken for the same"]


@pytest.mark.parametrize("names", [("A", "a"), ("a", "b")])
def test_capitals_that_do_tell_classes_apart(names, heard):
    assert align_labels(data(names, (0, 1)), ("a", "A"), num_classes=2, progress=heard) == (
        (1, 0) if "A" in names else (0, 1)
    )
    assert len(heard.warnings) == (0 if "A" in names else 1)


def test_classes_that_texts_name_are_never_taken_in_order():
    items = data(("circle", "square"), (0, 1))
    with pytest.raises(DataError) as caught:
        align_labels(items, ("dog", "cat"), num_classes=2, by_text=True)
    assert str(caught.value) == (
        "the set: its classes are `circle`, `square`, but the model is asked about `dog`, `cat`"
    )
    assert "`--classes`" in caught.value.hint
    assert align_labels(items, ("Square", "dog", "circle"), num_classes=3, by_text=True) == (2, 0)


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (("3", "4", "5"), ("4-5",), (1, 2)),
        (("cat", "dog", "owl"), ("0-1",), (0, 1)),
        (("cat", "dog", "owl"), ("owl", "0"), (0, 2)),
        (("0-1", "0", "1"), ("0-1",), (0,)),
        (("1", "cat"), ("1",), (0,)),
    ],
)
def test_selection(names, wanted, chosen):
    assert select_classes(names, wanted) == chosen


def test_backward_range():
    with pytest.raises(UsageError, match="runs backwards") as caught:
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
    whole = open_data(str(path), wants=Content.TEXTS)
    assert whole.numbered is numbered
    if whole.labels is not None:
        assert open_data(f"{path}::classes={whole.class_names[1]}", wants=Content.TEXTS).numbered is numbered


def test_classes_that_a_folder_or_a_data_set_calls_by_a_number_have_names(tmp_path):
    for name in ("0", "7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a")
    assert not open_data(str(tmp_path), wants=Content.TEXTS).numbered
    assert not open_data("digits::classes=7-9,limit=3").numbered
