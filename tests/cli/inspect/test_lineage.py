"""`hydractl inspect --lineage`: the provenance up to the base, and the comparison of files with it."""

from __future__ import annotations

import json
import shutil

import pytest

from hydractl.checkpoint import Checkpoint, write_checkpoint

FILES = ("base.st", "scores.json", "m-0.st", "m-1.st", "m-2.st")


def test_the_chain_ends_at_the_base(work, call):
    seen = call("inspect", "hydra.st", "--lineage")
    lines = seen.out.splitlines()

    assert (seen.code, seen.err) == (0, "")
    assert lines[0].startswith("hydra.st  fuse ")
    assert "m-0.st" in lines[1]
    assert "prune" in lines[1]
    assert "base.st" in lines[2]
    assert Checkpoint.open(work / "base.st").digest[:16] in lines[2]
    assert all(name in seen.out for name in FILES)
    assert json.loads(call("inspect", "hydra.st", "--lineage", "--json").out)["step"]["command"] == "fuse"


def test_genuine_files(work, call):
    shutil.copy("base.st", "renamed.st")
    seen = call("inspect", "hydra.st", "--verify", *FILES, "renamed.st")

    assert (seen.code, seen.err) == (0, "")
    assert [line.split(", sha256:")[0] for line in seen.out.splitlines()] == [
        *(f"ok: {name} is `{name}`" for name in FILES),
        "ok: renamed.st is `base.st`",
    ]


def test_the_file_that_is_not_what_it_claims_is_named(work, call):
    scores = work / "scores.json"
    scores.write_text(scores.read_text().replace("circuit", "taylor"))
    shutil.copy("m-1.st", "m-2.st")  # The provenance has this content under another name.
    shutil.copy("five.st", "base.st")
    shutil.copy("five.st", "other.st")
    seen = call("inspect", "hydra.st", "--verify", *FILES, "other.st", "--json")
    found = {one["file"]: (one["read_as"], one["problem"]) for one in json.loads(seen.out)["verified"]}

    assert seen.code == 5
    assert (
        "3 of 6 files do not match the lineage of hydra.st: `base.st`, `scores.json`, `other.st`" in seen.err
    )
    assert found["m-0.st"] == ("m-0.st", "")
    assert found["m-2.st"] == ("m-1.st", "")
    assert found["base.st"][0] == "base.st"
    assert found["base.st"][1].startswith("is not the `base.st` that was read (sha256:")
    assert found["other.st"] == (None, "no stage read a file with this name or content")
    assert call("inspect", "hydra.st", "--verify", *FILES, "-q").out == ""


def test_files_of_the_lineage_that_were_not_given_are_named(work, call):
    shutil.copy("base.st", "renamed.st")
    shutil.copy("m-1.st", "copy.st")
    (work / "m-2.st").write_bytes((work / "five.st").read_bytes())
    seen = call("inspect", "hydra.st", "--verify", "renamed.st", "copy.st", "m-2.st")

    assert seen.out.splitlines()[-1] == "not verified: `scores.json`, `m-0.st`"
    assert json.loads(call("inspect", "hydra.st", "--verify", "copy.st", "--json").out)["left"] == [
        "scores.json",
        "m-0.st",
        "m-2.st",
    ]  # `base.st` was not made by a stage.
    assert json.loads(call("inspect", "hydra.st", "--lineage", "--json").out)["left"] == []


def test_a_lineage_that_was_edited_is_not_believed(work, call):
    checkpoint = Checkpoint.open(work / "hydra.st")
    step = checkpoint.header.made_by
    member = step.inputs[0]
    forged = member.model_copy(update={"made_by": member.made_by.model_copy(update={"command": "finetune"})})
    step = step.model_copy(update={"inputs": (forged, *step.inputs[1:])})
    header = checkpoint.header.model_copy(update={"made_by": step})
    with (work / "forged.st").open("wb") as file:
        write_checkpoint(file, checkpoint.specs, lambda n: checkpoint.spans[n].pieces(), header=header)

    seen = call("inspect", "forged.st", "--verify", "m-0.st", "m-1.st")

    assert seen.code == 5
    assert "failed: m-0.st: has another history than the lineage records for `m-0.st`" in seen.out
    assert "ok: m-1.st" in seen.out


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["none.st", "--lineage"], 3, "none.st: no such file"),
        (["scores.json", "--lineage"], 3, "scores.json: is a JSON file, not a checkpoint"),
        (["foreign.st", "--lineage"], 3, "foreign.st: has no lineage"),
        (["arch:bert", "--lineage"], 3, "arch:bert: random weights have no lineage"),
        (["hydra.st", "base.st"], 2, "`--verify` compares more files with the lineage of the first"),
        (["hydra.st", "--lineage", "--tensors"], 2, "exclude each other"),
        (["hydra.st", "--verify"], 2, "`--verify` needs files to verify"),
        (["hydra.st", "--verify", "none.st"], 3, "none.st: no such file"),
        (["hydra.st", "--verify", "none.json"], 3, "none.json: cannot be read: No such file"),
    ],
)  # fmt: skip
def test_refused(work, call, argv, code, text):
    checkpoint = Checkpoint.open(work / "base.st")
    with (work / "foreign.st").open("wb") as file:
        write_checkpoint(file, checkpoint.specs, lambda n: checkpoint.spans[n].pieces(), header=None)

    seen = call("inspect", *argv)

    assert seen.code == code
    assert text in seen.err
