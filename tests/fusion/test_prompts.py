"""Prompts of classes: two classes with the same tokens are refused by name."""

from __future__ import annotations

import pytest

import hydractl
from hydractl.errors import UsageError
from hydractl.families.open_model import open_model
from hydractl.prediction.class_names import Classes, prompts_of
from support.pairs import pair

LONG = "a photo of a big photo of a big photo"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    return str(pair("clip", folder).save(folder / "clip.st"))


@pytest.mark.parametrize(
    ("names", "templates"),
    [
        pytest.param(("1", "cat", "dog"), ("a {label}",), id="words that the tokenizer does not know"),
        pytest.param(("1", f"{LONG} . the 2", f"{LONG} . the 3"), ("the {label}",), id="names that are cut"),
        pytest.param(("1", "2"), (f"{LONG} of a number {{label}}",), id="a template that is too long"),
        pytest.param(("1", "2 3", "2  3"), ("a {label}", "the {label}"), id="blanks"),
    ],
)  # fmt: skip
def test_classes_whose_prompts_become_the_same_tokens_are_refused(path, names, templates):
    for ask in (
        lambda: prompts_of(open_model(path), Classes(names=names, templates=templates)),
        lambda: hydractl.load(path, classes=names, templates=templates),
    ):
        with pytest.raises(UsageError, match="have prompts with the same tokens") as caught:
            ask()
        assert f"`{names[-2]}` and `{names[-1]}`" in str(caught.value)
        assert "12 tokens" in caught.value.hint


def test_one_template_of_two_may_leave_no_room_for_the_name(path):
    """The other template still distinguishes the classes."""
    classes = Classes(names=("1", "2"), templates=(f"{LONG} of a number {{label}}", "a {label}"))

    assert len(prompts_of(open_model(path), classes)["input_ids"]) == 4
