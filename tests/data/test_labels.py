from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydractl.data.labels import align_labels, select_classes
from hydractl.errors import DataError, UsageError


@settings(deadline=None)
@given(st.permutations("abcdef"), st.lists(st.integers(0, 3)))
def test_names_decide_whatever_the_order(model_labels, labels):
    names = "fcab"

    aligned = align_labels(names, labels, model_labels, num_classes=6)

    assert [model_labels[place] for place in aligned] == [names[label] for label in labels]


def test_a_match_by_name_is_silent(heard):
    align_labels(("b", "a"), (0, 1), ("a", "b", "c"), num_classes=3, progress=heard)

    assert heard.warnings == []


def test_equal_counts_go_in_order_and_say_so(heard):
    aligned = align_labels(("n01", "n02"), (1, 0), ("cat", "dog"), num_classes=2, progress=heard)

    assert aligned == (1, 0)
    (warning,) = heard.warnings
    assert warning.startswith(
        "the data's class names are not the model's: the data's 2 classes are taken in order"
    )
    assert warning.endswith("from `n01` as class 0 to `n02` as class 1")


def test_numbers_are_the_models_indices(heard):
    # sorted as text, "10" comes before "2": order would be wrong
    aligned = align_labels(("10", "2"), (0, 1), tuple("abcdefghijkl"), num_classes=12, progress=heard)

    assert aligned == (10, 2)
    assert heard.warnings == [
        "the data's classes are named by numbers: taken for the model's class indices (`10` is `k`)"
    ]


def test_a_model_without_names(heard):
    assert align_labels(("7", "8"), (0, 1), (), num_classes=10, progress=heard) == (7, 8)
    assert heard.warnings == []
    assert align_labels(("a", "b"), (0, 1), (), num_classes=3, progress=heard) == (0, 1)
    assert "the model's classes have no names" in heard.warnings[0]


def test_a_name_that_two_model_classes_share_decides_nothing(heard):
    aligned = align_labels(
        ("crane", "dog", "owl"), (2,), ("crane", "crane", "dog"), num_classes=3, progress=heard
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
        align_labels(names, (0,), model_labels, num_classes=num_classes)

    assert message in caught.value.message
    assert "::classes=" in caught.value.hint


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
