from __future__ import annotations

import json

import pytest

from hydractl.errors import json_problem


@pytest.mark.parametrize(("text", "words"), [
    ('{"a": 1,}', "a comma stands before the closing `}`"),
    ('[1, 2,\n]', "a comma stands before the closing `]`"),
    ('{"a": [1,], "b": 2}', "a comma stands before the closing `]`"),
    ('{"a": 1},', "a comma stands after the end"),
])  # fmt: skip
def test_a_comma_too_many_is_said(text, words):
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)

    assert json_problem(caught.value) == words


@pytest.mark.parametrize("text", ["", "{", '{"a" 1}', "[1,,2]", '{"a", 1}', "[1 2]", "1 2"])
def test_other_problems_are_the_parsers(text):
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)

    assert json_problem(caught.value) == caught.value.msg
