"""`hydractl prune`: names of models in the table, and messages about budgets."""

from __future__ import annotations

import json

import pytest

from hydractl.cli.output import model_cell


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("base.st", "base.st"),
        ("a/b::c.st", "a/b::c.st"),
        ("arch:vit_tiny_patch16_224", "arch:vit_tiny_patch16_224"),
        ("arch:vit_tiny_patch16_224::depth=2,num_classes=7", "arch:vit_tiny_patch16_224::..."),
        ("-", "stdin"),
    ],
)
def test_what_tables_call_a_model(reference, shown):
    assert model_cell(reference) == shown


def test_the_table_stays_narrow_and_the_json_says_all(call, work):
    arch = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
    argv = ("prune", arch, "--scores", "scores.json", "--keep-heads", "2", "--no-verify", "-o", "new.st")

    seen = call(*argv)

    assert "arch:vit_tiny_patch16_224::...  " in seen.out
    assert max(map(len, seen.out.splitlines())) < 120
    assert f'"model": "{arch}"' in call(*argv, "--force", "--json").out


@pytest.mark.parametrize(
    "options",
    [
        ("--keep-heads", "9"),
        ("--remove", "9"),
        ("--keep-heads", "2", "--remove", "3"),
        ("--keep-fraction", "0"),
        ("--keep-heads", "2", "--pool", "3"),
        ("--keep-heads", "2", "--pool", "9"),
        ("--keep-heads", "2", "--pool", "4", "--members", "2"),
        ("--remove", "2", "--per-layer"),
        ("--remove", "2", "--trunk", "3"),
        (),
    ],
)
def test_messages_about_budgets_speak_of_options(call, work, options):
    seen = call("prune", "base.st", "--scores", "scores.json", *options, "-o", "new-{i}.st")

    assert (seen.code, seen.out) == (2, "")
    assert "`--" in seen.err
    assert "_" not in seen.err


MODEL = ("prune", "base.st", "--scores", "scores.json")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--keep-heads", "few"), "`--keep-heads few`: must be a number of heads, or `auto`"),
        (("--keep-heads", "-1"), "`--keep-heads -1`: must be"),
        (("--keep-heads", "²"), "must be a number of heads"),
        (("--keep-heads", "auto", "--remove", "3"), "`--keep-heads auto` and `--remove` exclude each other"),
        (("--keep-heads", "auto", "--keep-fraction", "0.5"), "`--keep-heads auto` and `--keep-fraction` exclude each other"),
        (("--keep-heads", "auto", "--per-layer"), "`--per-layer` requires `--keep-heads N`"),
        (("--keep-heads", "2", "--data", "digits"), "`--data`: only `--strategy diverse` uses data"),
        (("--keep-heads", "2", "--candidates", "4", "--device", "cpu"), "`--candidates` and `--device`: only"),
        (("--keep-heads", "2", "--classes", "a,b"), "`--classes`: only `--strategy diverse`"),
        (("--keep-heads", "2", "--pool", "6", "--strategy", "diverse"), "add `--data DATA`"),
        (("--keep-heads", "2", "--strategy", "clusters"), "has no effect"),
        (("--keep-heads", "2", "--strategy", "random"), "uses no scores"),
        (("--strategy", "worst", "--keep-heads", "2"), "worst"),
    ],
)  # fmt: skip
def test_options_of_strategies_that_make_no_sense(call, work, options, text):
    before = sorted(p.name for p in work.iterdir())

    seen = call(*MODEL, *options, "-o", "new-{i}.st")

    assert (seen.code, seen.out) == (2, "")
    assert text in " ".join(seen.err.split())
    assert sorted(p.name for p in work.iterdir()) == before


def test_what_was_chosen_is_printed_and_in_the_json(call, work):
    """The scores in the folder fall by equal amounts after the first step, without a knee."""
    seen = call(*MODEL, "--keep-heads", "auto", "-o", "new.st")
    assert seen.code == 2
    assert "`--remove 0` gives the highest value, 0.9500" in seen.err

    raw = json.loads((work / "scores.json").read_text())
    for i, step in enumerate(raw["removals"]):
        step["objective"] = 0.97 if i < 4 else 0.9 - i / 10
    (work / "knee.json").write_text(json.dumps(raw))
    argv = ("prune", "base.st", "--scores", "knee.json", "--keep-heads", "auto", "-o", "new.st")

    assert "knee.json: keeps 4 heads of 8: `avg` drops after 4 removals" in call(*argv).out
    assert json.loads(call(*argv, "--force", "--json").out)["found"] == [
        "knee.json: keeps 4 heads of 8: `avg` drops after 4 removals"
    ]


def test_a_table_says_how_diverse_the_choice_is(call, work):
    argv = (
        *MODEL, "--keep-heads", "2", "--pool", "7", "--members", "2", "--strategy", "diverse", "--data",
        "digits::classes=0-6,limit=30", "--ood", "digits::classes=9,limit=10", "--candidates", "6", "-o", "new-{i}.st",
    )  # fmt: skip

    seen = call(*argv)

    lines = [line.split() for line in seen.out.splitlines()]
    assert ["set", "mask", "avg", "MI", "disagreement"] in lines
    assert [line[0] for line in lines if line[:1] in (["member"], ["chosen"], ["sample"], ["mean"])] == [
        "member", "member", "chosen", "sample", "mean",
    ]  # fmt: skip
    assert max(map(len, seen.out.splitlines())) < 120
    diverse = json.loads(call(*argv, "--force", "--json").out)["diverse"]
    assert len(diverse["chosen"]) == 2
    assert {s["name"] for s in diverse["sets"]} == {"chosen", "sample", "mean of 3 samples"}
    assert all(f"draw {c['draw']}" in seen.out for c in diverse["chosen"])


def test_a_control_without_scores(call, work):
    seen = call(
        "prune",
        "base.st",
        "--strategy",
        "random",
        "--keep-heads",
        "2",
        "--members",
        "2",
        "-o",
        "new-{i}.st",
        "-q",
    )
    assert (seen.code, seen.out.split()) == (
        0,
        ["new-0.st", "new-0.mask.json", "new-1.st", "new-1.mask.json"],
    )
    assert "random" in call("inspect", "new-0.mask.json").out
