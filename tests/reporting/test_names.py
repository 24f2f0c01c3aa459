from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.reporting.names import printable, shortened, told_apart, wrapped

PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@given(st.lists(PATHS, min_size=1, max_size=5))
def test_short_names_tell_apart_what_names_do(names):
    found = told_apart(names)

    assert len(set(found)) == len(set(names))
    assert all(f"/{name}".endswith(f"/{short}") for name, short in zip(names, found, strict=True))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["runs/0/scores.json"], ["scores.json"]),
        (["x/taylor/s.json", "x/circuit/s.json", "m.json"], ["taylor/s.json", "circuit/s.json", "m.json"]),
        (["s.json", "x/s.json"], ["s.json", "x/s.json"]),
        (["x/s.json", "x/s.json"], ["s.json", "s.json"]),
        (["out/hydra.st: a.st", "out/hydra.st: b.st"], ["hydra.st: a.st", "hydra.st: b.st"]),
        (["folder/", "stdin"], ["folder/", "stdin"]),
    ],
)
def test_names_lose_the_folders_that_say_nothing(names, shown):
    assert told_apart(names) == tuple(shown)


@given(st.text(max_size=60), st.integers(2, 20))
def test_a_shortened_text_fits_and_keeps_its_ends(text, letters):
    found = shortened(text, letters)

    assert len(found) <= letters
    assert (found == text) == (len(text) <= letters)
    assert not text or found[-1] in {text[-1], "…"}


@given(st.text(max_size=80), st.integers(2, 20), st.integers(1, 4))
def test_a_wrapped_name_fits_its_place(name, letters, lines):
    found = wrapped(name, letters, lines=lines).split("\n")

    assert len(found) <= lines
    assert all(len(line) <= letters for line in found)
    if len(name) <= letters * lines:
        assert "".join(found) == printable(name)


@pytest.mark.parametrize(
    ("name", "shown"), [("a\nb", "a?b"), ("\udcff.json", "?.json"), ("$x_1$ é 日", "$x_1$ é 日")]
)
def test_what_a_figure_cannot_show(name, shown):
    assert printable(name) == shown


def test_the_end_of_a_path_says_most():
    assert (
        shortened("/data/runs/seed-0/scores.json", 20)
        == "/data/…/scores.json"[:6] + "…" + "-0/scores.json"[-13:]
    )
