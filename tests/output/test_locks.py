"""A single command writes an output at a time, and several outputs are published together."""

from __future__ import annotations

import errno
import fcntl
import os
import threading

import pytest

from hydractl.errors import OutputError, OutputExists
from hydractl.output.publish import check_output, claimed, publish_together
from hydractl.progress import reporting
from support.progress_log import ProgressLog, cut_between_names


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("name", ["a.st", "n" * 252 + ".st", "é" * 120])
def test_a_second_command_is_told_who_makes_it(tmp_path, name):
    out = tmp_path / name
    with claimed(out, force=False):
        for wait, way in ((False, "`--wait`"), (None, "wait until it ends")):
            with (
                pytest.raises(OutputExists, match=f"process {os.getpid()} on .* is writing it now") as caught,
                claimed(out, force=True, wait=wait),
            ):
                pytest.fail("two have it")
            assert way in caught.value.hint
        with claimed(tmp_path / "other.st", force=False):
            pass
    assert names(tmp_path) == []


def test_another_name_of_the_same_output_is_no_way_round(tmp_path):
    (tmp_path / "link.st").symlink_to("a.st")
    with (
        claimed(tmp_path / "a.st", force=False),
        pytest.raises(OutputExists, match="is writing it now"),
        claimed(tmp_path / "link.st", force=False),
    ):
        pytest.fail("two have it")


def test_who_waits_has_it_next(tmp_path):
    out, progress_log, waits, order = tmp_path / "a.st", ProgressLog(), threading.Event(), []

    def second():
        progress_log.step = lambda message: (progress_log.steps.append(message), waits.set())
        with reporting(progress_log), claimed(out, force=False, wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with claimed(out, force=False):
        thread.start()
        assert waits.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert progress_log.steps == [
        f"Waiting for process {os.getpid()} on {os.uname().nodename}, which is writing {out}"
    ]
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "said", ["", '{"host": "here", "pi', '{"host": "here", "pid": 1, "left": {"a": [1]}}\n', "[1]\n"]
)
def test_what_a_killed_command_left_is_taken_over(tmp_path, said):
    out = tmp_path / "a.st"
    with claimed(out, force=False):
        (left,) = tmp_path.iterdir()
    left.write_text(said)
    with claimed(out, force=False) as claim:
        assert not claim.may_replace(out)
    assert names(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(OutputError, match=r"folder `.*none` does not exist") as caught,
        claimed(tmp_path / "none" / "a.st", force=False),
    ):
        pass
    assert "mkdir -p" in caught.value.hint


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, progress_log):
    def none(*_):
        raise OSError(errno.ENOTSUP, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    with claimed(tmp_path / "a.st", force=False) as claim:
        publish_all(claim, tmp_path)
    assert [("has no locks" in said) for said in progress_log.warnings] == [True]
    assert names(tmp_path) == ["a.st", "b.json", "c.st"]


# several outputs


def publish_all(claim, folder, content="new"):
    with publish_together(claim) as begin:
        for name in ("a.st", "b.json", "c.st"):
            check_output(folder / name, force=claim.may_replace(folder / name))
            begin(folder / name).write(content.encode())


def cut(monkeypatch, folder, after):
    """Publish, and simulate a kill after some renames."""

    def work():
        with claimed(folder / "a.st", force=False) as claim:
            publish_all(claim, folder)

    cut_between_names(monkeypatch, work, after)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_the_same_command_finishes_what_a_kill_cut_off(tmp_path, monkeypatch, after):
    cut(monkeypatch, tmp_path, after)
    there = [tmp_path / name for name in ("a.st", "b.json", "c.st")][:after]
    before = [path.stat().st_ino for path in there]
    assert [path.exists() for path in (tmp_path / "a.st", tmp_path / "c.st")] == [after > 0, False]
    with pytest.raises(RuntimeError), claimed(tmp_path / "a.st", force=False):
        raise RuntimeError  # an error must not clear the record

    with claimed(tmp_path / "a.st", force=False) as claim:
        publish_all(claim, tmp_path)

    assert names(tmp_path) == ["a.st", "b.json", "c.st"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"new"}
    assert [path.stat().st_ino for path in there] == before


def test_another_command_does_not_finish_it(tmp_path, monkeypatch):
    cut(monkeypatch, tmp_path, 1)
    with (
        pytest.raises(OutputExists, match="already exists with other content; nothing was written"),
        claimed(tmp_path / "a.st", force=False) as claim,
    ):
        publish_all(claim, tmp_path, "other")
    assert (tmp_path / "a.st").read_text() == "new"
    assert not (tmp_path / "b.json").exists()
    with claimed(tmp_path / "a.st", force=True) as claim:
        publish_all(claim, tmp_path, "other")
    assert {path.read_text() for path in tmp_path.iterdir()} == {"other"}


def test_a_file_of_the_user_s_own_is_not_taken_for_one_of_them(tmp_path, monkeypatch):
    cut(monkeypatch, tmp_path, 1)
    (tmp_path / "b.json").write_text("mine")
    with (
        pytest.raises(OutputExists, match=r"b\.json: already exists"),
        claimed(tmp_path / "a.st", force=False) as claim,
    ):
        publish_all(claim, tmp_path)
    (tmp_path / "a.st").write_text("new")  # a file of another program
    with (
        pytest.raises(OutputExists, match=r"a\.st: already exists"),
        claimed(tmp_path / "a.st", force=False) as claim,
    ):
        publish_all(claim, tmp_path)
    assert (tmp_path / "b.json").read_text() == "mine"
