"""The reader of JSON: limits and error messages."""

from __future__ import annotations

import json
import os

import pytest

from hydractl import strict_json
from hydractl.errors import CheckpointError, ManifestError
from hydractl.strict_json import NotJSONError, canonical, compact, parse, plain, read_object, read_text


@pytest.mark.parametrize(("text", "words"), [
    ('{"a": 1,}', "there is a comma before the closing `}`"),
    ('[1, 2,\n]', "there is a comma before the closing `]`"),
    ('{"a": [1,], "b": 2}', "there is a comma before the closing `]`"),
    ('{"a": 1},', "there is a comma after the end"),
])  # fmt: skip
def test_a_comma_too_many_is_said(text, words):
    with pytest.raises(NotJSONError) as caught:
        parse(text)

    assert caught.value.words == words


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\uDFFF": 1}', b'["\\ud83d \\ude42"]'])
def test_half_a_character_is_no_text(text):
    with pytest.raises(NotJSONError, match="an unpaired surrogate, which is not a character"):
        parse(text)
    assert parse('"\\ud83d\\ude42"') == "\U0001f642"


@pytest.mark.parametrize("write", [compact, canonical])
def test_names_of_files_that_are_not_utf_8_are_written_readably(write):
    name = os.fsdecode(b"m\xff\xe9\xc3\xa9.st")

    text = write({name: [name]})

    assert parse(text.encode()) == {"m\\xff\\xe9é.st": ["m\\xff\\xe9é.st"]}


@pytest.mark.parametrize("text", ["", "{", '{"a" 1}', "[1,,2]", '{"a", 1}', "[1 2]", "1 2"])
def test_other_problems_are_the_parsers(text):
    with pytest.raises(json.JSONDecodeError) as parsers:
        json.loads(text)
    with pytest.raises(NotJSONError) as caught:
        parse(text)

    assert caught.value.words == parsers.value.msg
    assert str(caught.value) == f"{caught.value.words} at line 1 column {parsers.value.colno}"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "[" * 200_000 + "],",
        "[" * 201 + "]" * 201,
        '{"a":' * 500 + "1" + "}" * 500,
        "[" + "0," * 4_000_000 + "0]",
        "9" * 5000,
        b'"\xff"',
        '{"a": 1}'.encode("utf-16"),
        "\ufeff{}",
        b"\xef\xbb\xbf{}",
    ],
    ids=[
        "deep",
        "deep-and-a-comma",
        "deeper-than-is-read",
        "deep-objects",
        "many",
        "long-number",
        "bad-utf8",
        "utf-16",
        "byte-order-mark",
        "byte-order-mark-in-bytes",
    ],
)
def test_what_is_beyond_the_limits_is_no_json(text):
    with pytest.raises(NotJSONError):
        parse(text)


def test_what_is_just_within_the_limits():
    assert parse("[" * 200 + "]" * 200)
    assert len(parse('["' + "," * 3_999_999 + '"]')[0]) == 3_999_999


def test_a_key_that_stands_twice():
    text = '{"b": {"a": 1, "c": 2, "a": 3}}'

    assert parse(text) == {"b": {"a": 3, "c": 2}}
    with pytest.raises(NotJSONError, match="key `a` appears twice"):
        parse(text, keys_once=True)


def test_reading_text_of_a_file(tmp_path):
    (tmp_path / "a").write_text("é")
    assert read_text(tmp_path / "a") == "é"


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b'"0123456"', "has more than 8 bytes"), ('"012345é"'.encode(), "has more than 8 bytes"), (b"\0\xff" * 5, "is not UTF-8 text")],
    ids=["text", "cut in a letter", "no text"],
)  # fmt: skip
def test_a_file_is_not_read_beyond_the_limit(tmp_path, monkeypatch, data, problem):
    monkeypatch.setattr(strict_json, "MAX_BYTES", 8)
    (tmp_path / "a.json").write_bytes(data)
    (tmp_path / "b.json").write_bytes(data[:7] + b'"')

    with pytest.raises(ManifestError, match=f"a.json: {problem}") as caught:
        read_text(tmp_path / "a.json")
    assert caught.value.hint == "this argument takes a JSON file; a checkpoint is not one"
    with pytest.raises(CheckpointError, match=r"a\.json: cannot be read as JSON: "):
        read_object(tmp_path / "a.json")
    if problem.startswith("has"):
        assert parse(read_text(tmp_path / "b.json")) == "012345"


def test_the_two_plain_forms():
    value = {"b": (1, {"d": 2.5, "c": "é"}), "a": None}

    copied = plain(value)

    assert list(copied) == ["a", "b"]
    assert copied == {"a": None, "b": [1, {"c": "é", "d": 2.5}]}
    assert list(copied["b"][1]) == ["c", "d"]
    assert compact(value) == '{"b":[1,{"d":2.5,"c":"é"}],"a":null}'
    assert compact(value, sort_keys=True) == '{"a":null,"b":[1,{"c":"é","d":2.5}]}'
