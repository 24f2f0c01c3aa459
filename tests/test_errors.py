"""Content of messages: long or unsafe values from files."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hydractl
from hydractl.errors import HINT, MESSAGE, VALUE, InputError, escape_line, escape_unsafe, reason_of, shortened
from hydractl.manifest.head_mask import HeadMask


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a.st: is no model", "a.st: is no model"),
        ("a.st: `x` and `y z`", "a.st: `x` and `y z`"),
        ("a.st:\n  line 1\n\nline 2\n", "a.st: line 1 line 2"),
        ("tensor `\x1b[31mred\x07`", "tensor `\\x1b[31mred\\x07`"),
        ("naïve 中 🙂 \x9b", "naïve 中 🙂 \\x9b"),
    ],
)
def test_a_message_is_one_line_that_steers_no_terminal(message, shown):
    assert InputError(message).message == str(InputError(message)) == shown


INVISIBLE = (
    *(*range(0x20), *range(0x7F, 0xA1), 0xAD, *range(0x200B, 0x2010), *range(0x2028, 0x202F)),
    *(*range(0x2060, 0x2070), 0x61C, 0x34F, 0x115F, 0x3164, 0xFEFF, 0xFFF9, 0xE0041, 0xDC80),
)


def test_what_is_not_seen_or_moves_what_is_seen_is_escaped():
    for letter in map(chr, INVISIBLE):
        check_escaped(letter)


def check_escaped(letter):
    shown = escape_line(f"a{letter}b")

    assert shown.isprintable()
    assert shown.isascii()
    assert shown[0] + shown[-1] == "ab"
    assert ast.literal_eval(f"'{shown}'") == f"a{letter}b"
    assert escape_unsafe(letter) == (letter if letter == "\n" else shown[1:-1])
    assert (
        json.loads(
            escape_unsafe(
                json.dumps(f"a{letter}b", ensure_ascii=False), escape=lambda one: json.dumps(one)[1:-1]
            )
        )
        == f"a{letter}b"
    )


@pytest.mark.parametrize("text", ["naïve 中文 עברית عربي हिन्दी ไทย", "🙂 ❤️ é", "C:\\x", "±∞²"])
def test_letters_of_all_languages_stay(text):
    assert escape_line(text) == text


@pytest.mark.parametrize("value", ["x" * 10**6, "x " * 10**6, "x`" * 10**6, "\x1b" * 10**6, "/x" * 10**6])
def test_a_megabyte_is_not_shown(value):
    error = InputError(f"a.st: `{value}`: is no model", hint=f"not {value}\n")

    assert error.message.startswith("a.st: `")
    assert error.message.endswith(": is no model")
    assert len(error.message) <= MESSAGE
    assert len(str(error.hint)) <= HINT
    assert str(error.hint).isprintable()


def test_a_long_value_keeps_its_ends_and_the_message_what_is_wrong():
    path = f"/first/{'x' * 1000}/last.st"

    message = InputError(f"{path}: has no tensor `{'y' * 1000}`").message

    shown, words = message.split(": ")
    assert shown.startswith("/first/x")
    assert shown.endswith("x/last.st")
    assert len(shown) <= VALUE
    assert words.startswith("has no tensor `y")
    assert len(words) <= VALUE + len("has no tensor ")


def test_a_document_of_a_megabyte_is_refused_in_one_line():
    text = '{"schema": "hydractl.head-mask/1", "towers": {"vision": {"num_heads": 4, "keep": [%s]}}}'

    with pytest.raises(InputError) as caught:
        HeadMask.from_json(text % ("[" + "3, " * 300_000 + "2]"), place="mask.json")

    assert caught.value.message.startswith("mask.json: towers.vision: keep[0] must be strictly increasing")
    assert len(caught.value.message) <= MESSAGE


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("\nwhat\nwhere\n"), "what"),
        (KeyError("k"), "there is no 'k'"),
        (KeyError(), "KeyError"),
        (StopIteration(), "StopIteration"),
    ],
)
def test_a_reason_is_one_line_also_of_an_error_that_says_nothing(error, shown):
    assert reason_of(error) == shown


def test_no_hint_advises_to_delete_data():
    advice = re.compile(r"\b(rm|remove|delete|erase|unlink)\b(?! heads)")
    found = [
        f"{path.name}:{part.lineno}: {part.value}"
        for path in Path(hydractl.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "hint"
        for part in ast.walk(node.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        if advice.search(part.value.replace("--remove", ""))
    ]

    assert not found


@given(st.text(max_size=60), st.integers(2, 20))
def test_a_shortened_text_fits_and_keeps_its_ends(text, letters):
    found = shortened(text, letters)

    assert len(found) <= letters
    assert (found == text) == (len(text) <= letters)
    assert not text or found[-1] in {text[-1], "…"}


def test_the_end_of_a_path_says_most():
    assert (
        shortened("/data/runs/seed-0/scores.json", 20)
        == "/data/…/scores.json"[:6] + "…" + "-0/scores.json"[-13:]
    )
