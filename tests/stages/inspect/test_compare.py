"""Comparing files: every pair once, the same numbers whatever the order, a figure whole or not at all."""

from __future__ import annotations

from itertools import combinations

import pytest

from hydractl.errors import OutputError, OutputExists, UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.heads.compare import jaccard, jensen_shannon, kendall, overlap, spearman
from hydractl.manifest.head_mask import HeadMask, TowerKeep, TowerScores
from hydractl.stages.inspect import compare as inspect_compare
from hydractl.stages.inspect.compare import run_compare
from hydractl.stages.inspect.config import InspectConfig
from support.builders import scores
from support.heard import Heard

TABLES = {
    "a": ((0.6, 0.1, 0.5), (0.4, 0.2, 0.3)),
    "b": ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    "c": ((0.9, 0.1, 0.8), (0.2, 0.2, 0.1)),
}
TEXT = ((0.3, 0.1), (0.2, 0.9))


@pytest.fixture
def files(tmp_path):
    """Three scores and a mask of a model with two towers."""
    paths = []
    for name, table in TABLES.items():
        towers = {"vision": TowerScores(scores=table), "text": TowerScores(scores=TEXT)}
        document = scores(table).model_copy(update={"towers": towers, "architecture": "clip"})
        (tmp_path / f"{name}.json").write_text(document.to_json())
        paths.append(str(tmp_path / f"{name}.json"))
    keep = {
        "text": TowerKeep(num_heads=2, keep=((0,), (0, 1))),
        "vision": TowerKeep(num_heads=3, keep=((), (0, 1, 2))),
    }
    (tmp_path / "m.json").write_text(HeadMask(towers=keep).to_json())
    return (*paths, str(tmp_path / "m.json"))


def compared(*files, **options):
    return run_compare(InspectConfig(files=files, **options))


def numbers(report):
    return {frozenset((pair.first, pair.second)): (pair.overall, dict(pair.towers)) for pair in report.pairs}


def test_every_pair_is_compared_once(files):
    report = compared(*files)

    assert [c.name for c in report.choices] == list(files)
    assert [(p.first, p.second) for p in report.pairs] == list(combinations(files, 2))
    assert report.paths == ()


def test_the_order_of_files_changes_no_number(files):
    forwards, backwards = numbers(compared(*files)), numbers(compared(*files[::-1]))

    assert forwards.keys() == backwards.keys()
    for pair, (overall, towers) in forwards.items():
        for mine, other in (
            (overall, backwards[pair][0]),
            *((towers[t], backwards[pair][1][t]) for t in towers),
        ):
            for field in mine.__dataclass_fields__:
                assert getattr(mine, field) == pytest.approx(getattr(other, field), abs=1e-12)


def test_the_numbers_are_those_of_heads_compare(files):
    report = compared(*files, budget=HeadBudget(remove=4))
    first, second = report.choices[:2]
    pair = report.pairs[0]
    tables = [{"text": TEXT, "vision": TABLES[name]} for name in "ab"]

    assert pair.overall.overlap == overlap(first.mask, second.mask)
    assert pair.overall.jaccard == jaccard(first.mask, second.mask)
    assert pair.overall.jsd_nats == jensen_shannon(first.mask, second.mask)
    assert pair.overall.spearman == spearman(*tables)
    assert pair.towers["vision"].kendall == kendall(*({"vision": t["vision"]} for t in tables))
    assert pair.towers["vision"].overlap == overlap(
        {"vision": first.mask["vision"]}, {"vision": second.mask["vision"]}
    )
    assert pair.towers["text"].spearman == pytest.approx(1.0)


def test_a_file_equals_itself(files):
    for file in files:
        pair = compared(file, file).pairs[0]
        assert (pair.overall.overlap, pair.overall.jaccard, pair.overall.jsd_nats) == (1.0, 1.0, 0.0)
        assert pair.overall.kendall == (None if file.endswith("m.json") else pytest.approx(1.0))


def test_masks_have_no_ranks(files):
    pair = compared(files[0], files[3]).pairs[0]

    assert pair.overall.spearman is pair.overall.kendall is pair.towers["text"].spearman is None


def test_other_architectures_of_the_same_shape_are_warned_of(files, tmp_path):
    other = HeadMask.read(tmp_path / "m.json").model_copy(update={"architecture": "siglip"})
    (tmp_path / "n.json").write_text(other.to_json())
    heard = Heard()

    run_compare(InspectConfig(files=(*files, str(tmp_path / "n.json"))), heard)

    assert heard.warnings == [
        f"the files are for different architectures: {files[0]} for `clip`, {tmp_path}/n.json for `siglip`"
    ]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_a_figure_is_written_and_the_same_again(files, tmp_path, suffix):
    plot = tmp_path / f"heads{suffix}"

    report = compared(*files, plot=plot)
    first = plot.read_bytes()
    compared(*files, plot=plot, force=True)

    assert report.paths == (plot,)
    assert plot.read_bytes() == first
    assert first.startswith(b"\x89PNG" if suffix.lower() == ".png" else b"<?xml")


def test_one_file_alone_can_be_drawn(files, tmp_path):
    report = compared(files[0], plot=tmp_path / "a.svg")

    assert report.pairs == ()
    assert (tmp_path / "a.svg").is_file()


@pytest.mark.parametrize("name", ["a.json", "taken.svg"])
def test_nothing_is_replaced_unasked(files, tmp_path, name):
    (tmp_path / "taken.svg").write_text("mine")
    plot = tmp_path / "taken.svg"
    if name == "a.json":
        (tmp_path / "a.svg").symlink_to(tmp_path / "a.json")
        plot = tmp_path / "a.svg"
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}

    with pytest.raises(OutputExists) as caught:
        compared(*files, plot=plot, force=name == "a.json")

    assert "`--plot`" in caught.value.hint
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_that_is_missing_is_told_before_any_reading(tmp_path):
    with pytest.raises(OutputError, match=r"folder .* does not exist"):
        compared("none.json", plot=tmp_path / "no" / "a.svg")


def test_a_figure_that_fails_leaves_nothing(files, tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect_compare, "draw_heads", fail)
    before = set(tmp_path.iterdir())

    with pytest.raises(KeyboardInterrupt):
        compared(*files, plot=tmp_path / "x.svg")

    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"files": ()}, "nothing to inspect"),
        ({"files": ("-", "a", "-")}, "only one file can come from standard input"),
        ({"files": ("a", "hf-hub:x/y")}, "`inspect` reads only local files"),
        ({"files": ("a", "b"), "force": True}, "`--force` has no effect without `--plot`"),
    ],
)
def test_configurations_that_make_no_sense(options, text):
    with pytest.raises(UsageError, match=text):
        InspectConfig(**options)


def test_a_budget_needs_scores(files):
    with pytest.raises(
        UsageError, match="`--remove 1`: a budget turns scores into masks, but no file has scores"
    ):
        compared(files[3], files[3], budget=HeadBudget(remove=1))


def test_a_figure_holds_so_many_choices_and_no_more(files, tmp_path):
    with pytest.raises(UsageError, match="a figure shows at most 40 head masks, not 41"):
        compared(*[files[3]] * 41, plot=tmp_path / "x.svg")
