from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.data.datasets import TextSet
from hydractl.data.labels import filled_names, match_classes, names_agree, names_all, new_names
from hydractl.errors import DataError


def align_labels(items, model_labels, **options):
    """Return the labels of the data as class indices of the model."""
    table = match_classes(items, model_labels, **options)
    return tuple(table[label] for label in items.labels)


def data(names, labels, **options):
    texts = ("a",) * len(labels)
    return TextSet(texts=texts, name="the set", class_names=tuple(names), labels=tuple(labels), **options)


@given(st.permutations("abcdef"), st.lists(st.integers(0, 3)))
def test_names_decide_whatever_the_order(model_labels, labels):
    names = "fcab"

    aligned = align_labels(data(names, labels), model_labels, num_classes=6)

    assert [model_labels[place] for place in aligned] == [names[label] for label in labels]


def test_a_match_by_name_is_silent(progress_log):
    align_labels(data(("b", "a"), (0, 1)), ("a", "b", "c"), num_classes=3)

    assert progress_log.warnings == []


def test_names_of_which_none_is_the_models_are_refused_unless_the_user_insists_on_order(progress_log):
    names, labels = ("n01", "n02"), ("cat", "dog")
    with pytest.raises(DataError) as caught:
        align_labels(data(names, (1, 0)), labels, num_classes=2)
    assert caught.value.exit_code == 3
    assert caught.value.message == (
        "the set: no class name is in the model: the data have `n01`, `n02`, the model has `cat`, `dog`"
    )
    assert "`::classes-by=position`" in caught.value.hint

    assert align_labels(data(names, (1, 0), by_position=True), labels, num_classes=2) == (
        1,
        0,
    )
    assert progress_log.warnings == []


def test_names_of_which_some_are_the_models_disprove_order():
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    labels = ("plane", "car", *names[2:])
    with pytest.raises(DataError) as caught:
        align_labels(data(names, range(10)), labels, num_classes=10)
    assert caught.value.exit_code == 3
    assert caught.value.message == (
        "the set: 2 of 10 class names are not those of the model: `airplane`, `automobile`; "
        "the model's other classes are `plane`, `car`"
    )
    assert "`::map=airplane:plane`" in caught.value.hint
    assert "position" not in caught.value.hint

    moved = data(names[::-1], range(10), by_position=True)
    with pytest.raises(DataError, match="its class 0, `truck`, is class 9 of the model"):
        align_labels(moved, labels, num_classes=10)


@pytest.mark.parametrize("form", ["LABEL_{}", "{}.0", "{}", "label_{}"])
@given(st.permutations(range(11)))
def test_placeholders_are_taken_by_their_numbers_in_any_order(form, order):
    names = [form.format(i) for i in order]
    for labels in (
        (),
        tuple("abcdefghijk"),
        tuple(f"LABEL_{i}" for i in range(11)),
        tuple(map(str, range(11))),
    ):
        assert match_classes(data(names, ()), labels, num_classes=11) == tuple(order)


def test_placeholders_that_count_from_one_are_taken_in_the_order_of_their_numbers(progress_log):
    names = sorted(f"LABEL_{i}" for i in range(1, 12))
    table = match_classes(data(names, ()), tuple("abcdefghijk"), num_classes=11)
    assert [f"LABEL_{i + 1}" for i in table] == names
    (warning,) = progress_log.warnings
    assert "matched by position, from `LABEL_1` as class 0 to `LABEL_11` as class 10" in warning


@pytest.mark.parametrize("form", ["class{}", "{}"])
@pytest.mark.parametrize("labels", [(), tuple(f"LABEL_{i}" for i in range(11))])
def test_two_orders_are_mentioned_with_how_to_take_the_other(form, labels, progress_log):
    names = sorted(form.format(i) for i in range(11))
    table = match_classes(data(names, ()), labels, num_classes=11)
    assert [form.format(i) for i in table] == names
    (warning,) = progress_log.warnings
    assert "sorted by number" in warning
    assert "`::classes-by=alphabet` sorts alphabetically" in warning


@pytest.mark.parametrize(
    "names", [tuple(f"class{i}" for i in range(10)), [f"class{i:02}" for i in range(11)]]
)
def test_one_order_is_not_doubted(names, progress_log):
    count = len(names)
    assert match_classes(data(names, ()), (), num_classes=count) == tuple(range(count))
    assert "alphabet" not in progress_log.warnings[0]


def test_numbers_within_names_are_no_placeholders_for_classes_that_have_names():
    names = [f"class{i}" for i in range(3)]
    with pytest.raises(DataError, match="no class name is in the model"):
        match_classes(data(names, ()), ("a", "b", "c"), num_classes=3)


@pytest.mark.parametrize("name", [" caf\u00e9", "cafe\u0301", "cafe\u0301 \t", "caf\u00e9"])
def test_blanks_and_forms_of_unicode_do_not_tell_classes_apart(name, progress_log):
    for own, other in ((name, "caf\u00e9"), ("caf\u00e9", name)):
        items = data(("tea", own), (0, 1))
        assert align_labels(items, (other, "tea "), num_classes=2) == (1, 0)
    assert progress_log.warnings == []


def test_an_order_that_is_insisted_on_needs_as_many_classes():
    items = data(("x", "y"), (0, 1), by_position=True)
    with pytest.raises(DataError, match="has 2 classes and the model 3") as caught:
        align_labels(items, ("a", "b", "c"), num_classes=3)
    assert "::map=OLD:NEW" in caught.value.hint
    assert align_labels(items, (), num_classes=3) == (0, 1)
    assert names_agree(items, ("a", "b"), 2)
    assert not names_agree(data(("x", "y"), ()), ("a", "b"), 2)


def test_a_warning_shows_a_number_that_a_models_class_of_another_number_takes(progress_log):
    model_labels = sorted(f"class{i}" for i in range(11))  # the order of torchvision

    aligned = align_labels(data(("0", "1", "2"), (2,)), model_labels, num_classes=11)

    assert aligned == (2,)
    assert progress_log.warnings[0].endswith("count as class indices of the model (`2` is `class10`)")


def test_numbers_are_the_models_indices(progress_log):
    # sorted as text, "10" comes before "2", so a match by order would be wrong
    aligned = align_labels(data(("2", "10"), (1, 0)), tuple("abcdefghijkl"), num_classes=12)

    assert aligned == (10, 2)
    assert progress_log.warnings == [
        "the data: class names are numbers, so they count as class indices of the model (`2` is `c`)"
    ]


def test_a_model_without_names(progress_log):
    assert align_labels(data(("7", "8"), (0, 1)), (), num_classes=10) == (7, 8)
    assert progress_log.warnings == []
    assert align_labels(data(("a", "b"), (0, 1)), (), num_classes=2) == (0, 1)
    assert "the model has no class names" in progress_log.warnings[0]


@pytest.mark.parametrize("form", [None, "LABEL_{}", "{}", "unnamed class {}"])
@pytest.mark.parametrize(
    "names", ["cat dog eel", "stage1 stage2 stage3", "0 dog eel", "stage0 stage2 stage1"]
)
@given(st.integers(1, 7))
def test_a_model_without_names_needs_as_many_classes_as_the_data_have(form, names, count):
    """Named classes match some of a model's unnamed classes only with `classes-by=`."""
    labels = () if form is None else tuple(form.format(i) for i in range(count))
    few, insisted = data(names.split(), ()), data(names.split(), (), by_position=True)
    if count == 3 and not (form in {"{}", "unnamed class {}"} and names.startswith("0")):
        assert {*match_classes(few, labels, num_classes=count)} == {0, 1, 2}
        return
    with pytest.raises(DataError) as caught:
        match_classes(few, labels, num_classes=count)
    assert caught.value.exit_code == 3
    assert names_agree(few, labels, count) is False
    if count < 3:
        assert "::classes-by=position" not in caught.value.hint
        return
    assert "`::classes-by=position`" in caught.value.hint
    assert match_classes(insisted, labels, num_classes=count) == (0, 1, 2)


def test_a_name_that_two_model_classes_share_decides_nothing():
    names, labels = ("crane", "owl", "dog"), ("crane", "crane", "dog")
    with pytest.raises(DataError) as caught:
        align_labels(data(names, (2,)), labels, num_classes=3)

    assert "2 of 3 class names are not those of the model: `crane`, `owl`" in caught.value.message
    assert "`::classes-by=position`" in caught.value.hint
    assert align_labels(data(names, (2,), by_position=True), labels, num_classes=3) == (2,)


@pytest.mark.parametrize(
    ("names", "model_labels", "num_classes", "message"),
    [
        (
            ("a", "x"),
            ("a", "b", "c"),
            3,
            "the set: 1 of 2 class names are not those of the model: `x`; the model's other classes are `b`, `c`",
        ),
        (
            tuple("uvwxyza"),
            ("a", "b"),
            2,
            "6 of 7 class names are not those of the model: `u`, `v`, `w`, `x`, `y`, `z`",
        ),
        (
            ("0", "5"),
            ("a", "b", "c"),
            3,
            "no class name is in the model: the data have `0`, `5`, the model has `a`, `b`, `c`",
        ),
        (
            ("a", "b"),
            (),
            1,
            "the set: has 2 classes and the model 1 without names; the classes of the data are `a`, `b`",
        ),
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
        # the same match as without names
        assert whole == match_classes(data(names, ()), (), num_classes=number)
    part = drawn.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    assert [labels[i] for i in match_classes(data(part, ()), labels, num_classes=number)] == part
    assert names_all(data(part, ()), labels) == (len(part) == len(names))


def test_a_number_is_no_index_of_a_class_that_has_another(progress_log):
    items = data(("0", "1"), (0, 1))
    assert not names_agree(items, ("5", "6", "7"), 3)
    assert names_agree(items, ("5", "6", "0", "1"), 4)
    assert names_agree(items, ("0", "unnamed class 1"), 2)
    with pytest.raises(DataError):
        align_labels(items, ("5", "6"), num_classes=2, by_text=True)
    align_labels(data(("0", "1"), (0, 1), numbered=True), ("5", "6"), num_classes=2)
    # integers of a table are indices, not names
    assert "class indices of the model (`0` is `5`)" in progress_log.warnings[0]


def test_a_class_without_a_name_takes_the_next_datas():
    labels = new_names(("0", "2"), 4)
    assert labels == ("0", "unnamed class 1", "2", "unnamed class 3")
    assert filled_names(labels, ("1", "2"), (1, 2), 4) == ("0", "1", "2", "unnamed class 3")
    assert filled_names(("a", "b"), ("1",), (1,), 2) == ("a", "b")


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 8))
def test_labels_that_are_numbers_are_the_models_classes_or_refused(numbers, num_classes):
    """An integer label never matches a class with another index."""
    names = tuple(str(number) for number in sorted(numbers))
    items = data(names, range(len(names)), numbered=True)

    if max(numbers) < num_classes:
        assert align_labels(items, (), num_classes=num_classes) == tuple(sorted(numbers))
        return
    with pytest.raises(DataError, match=f"the model has {num_classes} classes, 0 to {num_classes - 1}"):
        align_labels(items, (), num_classes=num_classes)


def test_a_number_that_is_no_class_is_named_and_a_folder_of_that_name_is_not(progress_log):
    names, labels = ("0", "7"), (0, 1)
    with pytest.raises(DataError, match="label 7 is out of range") as caught:
        align_labels(data(names, labels, numbered=True), ("bad", "good"), num_classes=2)
    assert "count the labels from 0, or use class names; the model has `bad`, `good`" in caught.value.hint

    assert align_labels(data(names, labels), (), num_classes=2) == (0, 1)
    assert "matched by position" in progress_log.warnings[0]
    assert align_labels(data(names, labels, numbered=True), ("7", "0"), num_classes=2) == (1, 0)


def test_capitals_do_not_tell_classes_apart_but_are_mentioned(progress_log):
    assert align_labels(data(("DOG", "cat"), (0, 1)), ("Cat", "dog"), num_classes=2) == (1, 0)
    assert progress_log.warnings == [
        ("the data: class names differ from the model's only in upper and lower case, so they count as equal")
    ]


@pytest.mark.parametrize("names", [("A", "a"), ("a", "b")])
def test_capitals_that_do_tell_classes_apart(names, progress_log):
    if "b" in names:
        with pytest.raises(DataError, match="`b`"):
            align_labels(data(names, (0, 1)), ("a", "A"), num_classes=2)
        return
    assert align_labels(data(names, (0, 1)), ("a", "A"), num_classes=2) == (1, 0)
    assert progress_log.warnings == []


def test_classes_that_texts_name_are_never_taken_in_order():
    items = data(("circle", "square"), (0, 1))
    with pytest.raises(DataError) as caught:
        align_labels(items, ("dog", "cat"), num_classes=2, by_text=True)
    assert str(caught.value) == (
        "the set: no class name is in the model: the data have `circle`, `square`, the model has `dog`, `cat`"
    )
    assert "`--classes`" in caught.value.hint
    assert align_labels(items, ("Square", "dog", "circle"), num_classes=3, by_text=True) == (2, 0)
