from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hydractl.cli.tables import Grid, HeadMaps, Newspaper, RankMap, facts


def shown(item: object, width: int, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, color_system=None, highlight=False).print(item)
    file.flush()
    return raw.getvalue().decode(encoding).splitlines()


CELLS = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=9)


@given(st.data(), st.integers(2, 9), st.integers(0, 4), st.integers(30, 140))
def test_no_cell_is_cut_and_no_line_is_too_long(data, columns, rows, width):
    heads = tuple(data.draw(CELLS) for _ in range(columns))
    cells = tuple(tuple(data.draw(CELLS) for _ in range(columns)) for _ in range(rows))

    lines = shown(Grid(columns=heads, rows=cells), width)

    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(cell in text for row in (heads, *cells) for cell in row)


@given(st.text("abc/[]", min_size=1, max_size=90), st.integers(40, 100))
def test_a_long_first_column_is_folded_whole(name, width):
    lines = shown(Grid(columns=("model", "heads", "bytes"), rows=((name, "144", "12.00 MB"),)), width)

    body = lines[2:]
    assert max(map(len, lines)) <= width
    assert "".join(line[: line.find("   ")] if "   " in line else line.rstrip() for line in body) == name
    assert any("144" in line and "12.00 MB" in line for line in body)


@given(st.lists(st.sampled_from("↑↓−±×a "), min_size=1, max_size=9).map("".join), st.integers(30, 80))
def test_a_stream_without_arrows_gets_letters_as_wide_as_cells_are(text, width):
    """In encodings without arrows, nothing is escaped and the columns stay aligned."""
    grid = Grid(columns=("model", f"Acc {text}"), rows=((text, "0.5"), ("b", "0.25")))

    lines = shown(grid, width, "ascii")
    assert not any("\\" in line or "?" in line for line in lines)
    assert len({len(line.rstrip()) for line in lines[2:] if "0." in line}) == 1


def test_arrows_have_letters_in_ascii():
    lines = shown(Grid(columns=("", "Acc ↑", "NLL ↓"), rows=(("a − b", "1 ± 2", "3"),)), 60, "ascii")

    assert [line.split("|") for line in (lines[0], lines[2])] == [
        ["      ", "  Acc ^ ", " NLL v"],
        ["a - b ", " 1 +- 2 ", "     3"],
    ]


def test_a_wide_table_repeats_its_first_column():
    lines = shown(
        Grid(columns=("model", *(f"metric {i}" for i in range(9))), rows=(("hydra", *["0.123456"] * 9),)), 40
    )

    assert sum(line.startswith("hydra") for line in lines) > 1
    assert sum(line.count("0.123456") for line in lines) == 9


def test_a_title_stands_above_and_is_not_squeezed():
    lines = shown(
        Grid(columns=("a", "b"), rows=(("x", "y"),), title="a title that is wider than its table"), 60
    )

    assert lines[:3] == ["", "a title that is wider than its table", "a   b"]


def test_markup_is_text():
    assert "[red]x.st" in "\n".join(shown(Grid(columns=("[b]",), rows=(("[red]x.st",), ("[/x]",))), 80))
    assert shown(facts([("[red]", "[/x]")]), 80)[0].split() == ["[red]", "[/x]"]


MAPS = HeadMaps(names=("a.st", "b.st"), keep=(((0, 2), ()), ((0, 1, 2, 3), (3,))), num_heads=4)


def test_head_maps_stand_side_by_side():
    assert shown(MAPS, 80) == [
        "layer   a.st     b.st",
        "    0   ■·■· 2   ■■■■ 4",
        "    1   ···· 0   ···■ 1",
    ]


def test_head_maps_in_ascii():
    assert shown(MAPS, 80, "ascii") == [
        "layer   a.st     b.st",
        "    0   #.#. 2   #### 4",
        "    1   .... 0   ...# 1",
    ]


def test_head_maps_go_below_each_other_where_they_do_not_fit():
    lines = shown(MAPS, 20)

    assert lines == [
        "layer   a.st",
        "    0   ■·■· 2",
        "    1   ···· 0",
        "",
        "layer   b.st",
        "    0   ■■■■ 4",
        "    1   ···■ 1",
    ]


@given(st.integers(1, 6), st.integers(1, 40), st.integers(24, 120))
def test_a_rank_map_shows_every_rank_once(layers, heads, width):
    total = layers * heads
    ranks = tuple(tuple(range(1 + layer * heads, 1 + (layer + 1) * heads)) for layer in range(layers))

    lines = shown(RankMap(ranks=ranks, total=total), width)

    assert max(map(len, lines)) <= width
    found = sorted(int(word) for line in lines if line and "h" not in line for word in line[5:].split())
    assert found == list(range(1, total + 1))


def test_a_head_without_a_rank_is_a_dash():
    assert shown(RankMap(ranks=((None, 4), (3, None)), total=4), 80) == [
        "layer h0 h1",
        "    0  -  4",
        "    1  3  -",
    ]


@given(st.integers(0, 60), st.integers(10, 120))
def test_a_newspaper_holds_every_line_in_order_of_columns(count, width):
    items = tuple(f"{i:02d}-x" for i in range(count))

    lines = shown(Newspaper(lines=items), width)

    assert sorted(word for line in lines for word in line.split()) == list(items)
    assert [line.split()[0] for line in lines if line] == list(items[: len([x for x in lines if x])])


@pytest.mark.parametrize("width", [20, 40, 80])
def test_facts_fold_values(width):
    lines = shown(facts([("labels", "x" * 200)]), width)

    assert max(map(len, lines)) <= width
    assert "".join(lines).count("x") == 200


HOSTILE = "a\x1b[31m\x9b\u202e\u200b\u2066\n\r\t::error::b"
ESCAPED = r"a\x1b[31m\x9b\u202e\u200b\u2066\n\r\t::error::b"


@pytest.mark.parametrize(
    "item",
    [
        Grid(columns=("model", HOSTILE), rows=(("x", "1"),)),
        Grid(columns=("model", "n"), rows=((HOSTILE, "1"), ("x", "2"))),
        Grid(columns=("model", "n"), rows=(("x", "1"),), title=HOSTILE),
        HeadMaps(names=(HOSTILE,), keep=(((0, 1),),), num_heads=2),
        Newspaper(lines=(HOSTILE,)),
        facts([(HOSTILE, "x")]),
        facts([("x", HOSTILE)]),
    ],
)
def test_a_text_is_one_line_that_steers_no_terminal(item):
    text = "\n".join(shown(item, 120))

    assert ESCAPED in text
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") <= 4
