"""Class names from options, files and data; refused names."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.errors import UsageError
from hydractl.families.open_model import open_model
from hydractl.prediction.class_names import (
    DEFAULT_TEMPLATE,
    NOTHING_NAMED,
    Classes,
    Naming,
    read_names,
    with_classes,
)
from support.builders import base
from support.pairs import pair

names = st.text(st.characters(exclude_characters=",", exclude_categories=("C", "Z")), min_size=1, max_size=9)


@given(st.lists(names, min_size=2, unique=True), st.integers(1, 3))
def test_prompts_stand_class_after_class(found, templates):
    classes = Classes(names=tuple(found), templates=tuple(f"{i} {{label}}" for i in range(templates)))

    assert classes.texts == [f"{i} {name}" for name in found for i in range(templates)]


@given(st.lists(names, min_size=2, unique=True))
def test_a_list_and_a_file_name_the_same(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("names") / "names.txt"
    path.write_text("\n".join(found) + "\n\n", encoding="utf-8")

    assert Naming.parse(str(path), None).names == tuple(found)
    assert Naming.parse(" , ".join(found), None).names == tuple(found)


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_names_in_a_file_may_hold_commas_and_other_letters(tmp_path, start):
    (tmp_path / "names.txt").write_text(f"{start}Äpfel, rot\r\n\r\n  猫 \n", encoding="utf-8")

    assert Naming.parse(str(tmp_path / "names.txt"), None).names == ("Äpfel, rot", "猫")


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("n.txt", "cat\n dog\n\n"),
        ("n.txt", "cat\r\n\r\ndog"),
        ("n.json", '["cat", "dog "]'),
        ("n.json", '[\n"cat",\n"dog"\n]\n\n'),
    ],
)
def test_every_option_reads_names_alike(tmp_path, name, text, start):
    (tmp_path / name).write_bytes((start + text).encode())

    for option in ("--classes", "--labels"):
        assert read_names(str(tmp_path / name), option=option) == (("cat", "dog"), tmp_path / name)
        assert read_names("cat, dog", option=option) == (("cat", "dog"), None)
    assert Naming.parse(str(tmp_path / name), None).names == ("cat", "dog")


def test_a_pipe_has_names_too():
    reading, writing = os.pipe()
    os.write(writing, b"cat\ndog\n")
    os.close(writing)

    assert read_names(f"/dev/fd/{reading}", option="--labels")[0] == ("cat", "dog")
    os.close(reading)


def test_a_file_that_is_not_there_gets_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("cat\ndog\n")

    with pytest.raises(
        UsageError, match=r"`--labels nams\.txt`: gives only one class, and is not a file"
    ) as caught:
        read_names("nams.txt", option="--labels")
    assert caught.value.hint == "did you mean `names.txt`?"


def test_nothing_said_is_nothing_named():
    assert Naming.parse(None, None) == Naming.parse(None, []) == NOTHING_NAMED


def test_a_list_longer_than_any_path_is_a_list():
    many = [f"class number {i}" for i in range(3000)]

    assert Naming.parse(",".join(many), None).names == tuple(many)


REFUSED = {
    "an empty list": ("", None, "has no name"),
    "an empty name": ("cat,,dog", None, "has no name"),
    "a name of blanks": ("cat, ", None, "has no name"),
    "a name twice": ("cat,dog,cat", None, "`cat` appears twice"),
    "one name": ("cat", None, "`--classes cat`: gives only one class"),
    "a file that is not there": (
        "names.txt",
        None,
        "`--classes names.txt`: gives only one class, and is not a file",
    ),
    "one very long name": ("x" * 9000, None, "xxx...`: gives only one class"),
    "a folder": (".", None, "gives only one class, and is not a file"),
    "a template without a label": (None, ["a photo"], "`a photo` does not contain {label}"),
    "the second without one": ("cat,dog", ["a {label}", "label"], "`label` does not contain"),
}


@pytest.mark.parametrize(("listed", "templates", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(listed, templates, message):
    with pytest.raises(UsageError, match=message.replace("{", r"\{")) as error:
        Naming.parse(listed, templates)
    assert len(str(error.value)) < 200


CONTENTS = {
    "nothing": (b"", "has no class names"),
    "no list": (b'{"cat": 0}', "is not a list of class names", "n.json"),
    "numbers": (b"[1, 2]", "is not a list of class names", "n.json"),
    "an empty list": (b"[]", "has no class names", "n.json"),
    "an empty name": (b'["cat", " "]', "a class has no name", "n.json"),
    "no JSON": (b'["cat"', "cannot be read as a list of class names", "n.json"),
    "blank lines": (b"\n \n\n", "has no class names"),
    "one name": (b"cat\n", "gives only one class, but at least two are needed"),
    "a name twice": (b"cat\ndog\ncat\n", "`cat` appears twice"),
    "no text": (b"\xff\xfe\x00", "not UTF-8"),
}


@pytest.mark.parametrize("case", CONTENTS.values(), ids=CONTENTS)
def test_files_that_are_refused(tmp_path, case):
    content, message, *name = case
    path = tmp_path / (name or ["names.txt"])[0]
    path.write_bytes(content)

    with pytest.raises(UsageError, match=message):
        Naming.parse(str(path), None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("cat\ndog\n")
    path.chmod(0)

    with pytest.raises(UsageError, match="cannot be read"):
        Naming.parse(str(path), None)


# --- models ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    pair("clip", made).save(made / "pair.st")
    base().save(made / "classifier.st")
    return made


def test_given_names_go_before_stored_ones_and_those_before_the_datas(folder):
    bare = open_model(str(folder / "pair.st"))
    stored = with_classes(bare, Classes(names=("1", "2"), templates=("the {label}",)))
    data, typed = ("3", "4"), Naming(names=("5", "6"))

    assert NOTHING_NAMED.classes(bare) is None
    assert NOTHING_NAMED.classes(bare, data=data) == Classes(names=data, templates=(DEFAULT_TEMPLATE,))
    assert NOTHING_NAMED.classes(stored, data=data) == Classes(names=("1", "2"), templates=("the {label}",))
    assert typed.classes(stored, data=data) == Classes(names=("5", "6"), templates=("the {label}",))
    assert typed.classes(bare, data=data) == Classes(names=("5", "6"), templates=(DEFAULT_TEMPLATE,))
    assert Naming(templates=("a {label}",)).classes(stored) == Classes(
        names=("1", "2"), templates=("a {label}",)
    )


def test_of_several_models_one_that_stores_names_has_the_word(folder):
    bare, classifier = (open_model(str(folder / name)) for name in ("pair.st", "classifier.st"))
    stored = with_classes(bare, Classes(names=("1", "2")))

    assert NOTHING_NAMED.classes_of_all([bare, stored], data=("3",)) == Classes(names=("1", "2"))
    assert NOTHING_NAMED.classes_of_all([bare], data=("3", "4")) == Classes(names=("3", "4"))
    with pytest.raises(UsageError, match="has 7 classes, which are not the 2 given"):
        NOTHING_NAMED.classes_of_all([classifier, bare, stored], data=("3",))
    assert NOTHING_NAMED.classes_of_all([classifier]) is None


def test_a_classifier_has_classes_of_its_own(folder):
    classifier = open_model(str(folder / "classifier.st"))

    assert NOTHING_NAMED.classes(classifier, data=("3",)) is None
    for naming in (Naming(names=("1", "2")), Naming(templates=("a {label}",))):
        with pytest.raises(UsageError, match="already has classes"):
            naming.classes(classifier)
    with pytest.raises(UsageError, match="already has classes"):
        with_classes(classifier, Classes(names=("1", "2")))


def test_classes_are_stored_beside_weights_that_stay(folder):
    bare = open_model(str(folder / "pair.st"))
    stored = with_classes(bare, Classes(names=("1", "2", "3")))

    assert stored.checkpoint.specs["class_embeddings"].shape == (3, 16)
    assert stored.checkpoint.specs.keys() - {"class_embeddings"} == bare.checkpoint.specs.keys()
    assert stored.checkpoint.digest == bare.checkpoint.digest
    assert bare.header.labels == ()
