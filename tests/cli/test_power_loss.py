"""Commands store outputs on the disk before the report, and replace outputs of 0 bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.disk import Disk

DIGITS = "digits::split=val,classes=0-6,limit=8"
STEPS = ("--steps", "3", "--batch-size", "4", "--save-every", "1")
COMMANDS = {
    "fuse": ("fuse", "m-0.st", "m-1.st", "-o", "h.st"),
    "a folder": ("fuse", "m-0.st", "m-1.st", "-o", "h/"),
    "prune": ("prune", "base.st", "--mask", "m-0.mask.json", "-o", "p.st"),
    "finetune": ("finetune", "base.st", "--train", DIGITS, "--val", DIGITS, *STEPS, "-o", "t.st"),
    "score": ("score", "base.st", "--data", DIGITS, "--objective", "acc", "--remove", "2", "-o", "s.json"),
    "predict": ("predict", "hydra.st", DIGITS, "-o", "p.jsonl"),
    "eval": ("eval", "hydra.st", "--data", DIGITS, "--no-latency", "--bootstrap", "0", "-o", "r.json"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_stores_its_outputs_and_replaces_empty_ones(call, work, monkeypatch, name):
    words = COMMANDS[name]
    out = Path(words[-1])
    disk = Disk(monkeypatch)

    first = call(*words)

    assert (first.code, disk.end()) == (0, []), first.err
    assert disk.renamed
    masks = sorted(out.parent.glob("p.mask.json"))
    files = sorted(out.iterdir()) if out.is_dir() else [out, *masks]
    before = [path.read_bytes() for path in files]
    assert call(*words).code == 6
    for path in files:
        path.write_bytes(b"")
    again = call(*words)
    assert again.code == 0, again.err
    assert name in {"eval", "score"} or [path.read_bytes() for path in files] == before


@pytest.mark.parametrize("name", ["fuse", "a folder", "prune", "score"])
def test_if_changed_makes_an_empty_output_anew(call, work, name):
    words = (*COMMANDS[name], "--if-changed")
    out = Path(words[-2])
    assert call(*words).code == 0
    file = out / "model.safetensors" if out.is_dir() else out
    before = file.read_bytes()
    assert "up to date" in call(*words).out

    file.write_bytes(b"")
    again = call(*words)

    assert (again.code, file.read_bytes() == before) == (0, True), again.err
    assert "up to date" in call(*words).out


def test_a_state_that_a_power_loss_emptied_is_begun_anew(call, work):
    words = COMMANDS["finetune"]
    assert call(*words).code == 0
    before = Path("t.st").read_bytes()
    Path("t.st").unlink()
    Path("t.st.state").mkdir()
    for name in ("state.json", "weights-0-2.st"):
        Path("t.st.state", name).touch()

    again = call(*words)

    assert again.code == 0
    assert "state.json is empty, as after a power loss: the state of an unfinished run" in again.err
    assert Path("t.st").read_bytes() == before
    assert not Path("t.st.state").exists()


def test_a_journal_that_a_power_loss_emptied_is_begun_anew(call, work):
    Path("s.json.journal").touch()

    assert call(*COMMANDS["score"]).code == 0
    assert not Path("s.json.journal").exists()
