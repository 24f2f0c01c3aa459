"""Folders as outputs are complete or absent, and keep files of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hydractl.errors import OutputError, UsageError
from hydractl.output.publish import (
    WEIGHTS,
    Folder,
    OutputKind,
    OutputLock,
    check_folder,
    claimed,
    is_folder,
    output,
    publish_together,
)
from support.progress_log import cut_between_names


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def fill(folder, claim, **files):
    with publish_together(claim) as begin:
        for name, text in files.items():
            begin(folder / name).write(text.encode())


@pytest.mark.parametrize(
    ("text", "folder"), [("a.st", False), ("a.st/", True), ("there", True), (".", True), ("-", False)]
)
def test_a_slash_or_a_folder_that_is_there_says_folder(tmp_path, monkeypatch, text, folder):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)

    found = output(text)

    assert is_folder(found) is folder
    assert found.name  # scratch names are derived from the name
    if folder and text != ".":
        assert found == Path(text)


def test_a_new_folder_appears_with_all_its_files(tmp_path):
    with publish_together(OutputLock(force=False)) as begin:
        begin(Folder(tmp_path / "m") / "a").write(b"1")
        begin(Folder(tmp_path / "m") / "b").write(b"2")
        assert not (tmp_path / "m").exists()

    assert names(tmp_path) == ["m", "m/a", "m/b"]
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o777 & ~current_umask()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("there", [False, True])
def test_nothing_appears_where_the_work_fails(tmp_path, there):
    if there:
        (tmp_path / "m").mkdir()
    with pytest.raises(KeyboardInterrupt), publish_together(OutputLock(force=False)) as begin:  # noqa: PT012 - the block is what fails
        begin(Folder(tmp_path / "m") / "a").write(b"1")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["m"] * there


def test_what_a_killed_command_left_goes(tmp_path):
    dead = tmp_path / ".m.0123abcd.hydractl-part"
    dead.mkdir()
    (dead / "a").write_text("half")

    fill(Folder(tmp_path / "m"), OutputLock(force=False), a="1")

    assert names(tmp_path) == ["m", "m/a"]


def test_other_files_of_a_folder_stay(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes.txt").write_text("mine")

    fill(Folder(tmp_path / "m"), OutputLock(force=False), a="1")

    assert names(tmp_path) == ["m", "m/a", "m/notes.txt"]


def test_a_folder_that_is_half_published_is_finished_by_the_same_command(tmp_path, monkeypatch):
    """In an existing folder, files are renamed in turn."""
    folder = Folder(tmp_path / "m")
    folder.mkdir()

    def work():
        with claimed(folder, force=False) as claim, publish_together(claim) as begin:
            for name in ("a.st", "b.st"):
                assert claim.may_replace(folder / name) is (folder / name).exists()
                begin(folder / name).write(name.encode())

    assert cut_between_names(monkeypatch, work, 1) is not None
    assert names(folder) == ["a.st"]

    work()
    assert names(tmp_path) == ["m", "m/a.st", "m/b.st"]


def test_folders_that_are_published_together_are_finished_likewise(tmp_path, monkeypatch):
    def work():
        with claimed(tmp_path / "m.st", force=False) as claim, publish_together(claim) as begin:
            for name in ("m.st", "n.st"):
                assert claim.may_replace(tmp_path / name) is (tmp_path / name).exists()
                begin(Folder(tmp_path / name) / "a").write(b"1")

    assert cut_between_names(monkeypatch, work, 1) is not None
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["m.st", "m.st/a"]

    work()
    assert names(tmp_path) == ["m.st", "m.st/a", "n.st", "n.st/a"]


def test_a_folder_where_none_can_be_is_refused(tmp_path):
    (tmp_path / "a.st").write_text("file")
    with pytest.raises(OutputError, match="is a file, not a folder"):
        check_folder(Folder(tmp_path / "a.st"))
    with pytest.raises(OutputError, match="does not exist") as caught:
        check_folder(Folder(tmp_path / "no" / "m"))
    assert "mkdir -p" in caught.value.hint
    assert names(tmp_path) == ["a.st"]


@pytest.mark.parametrize("name", ["a.st", "A.ST", "a.safetensors", "a", "a-0.5", "-", "there", "new.model/"])
def test_a_name_that_says_nothing_else_will_do(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()

    WEIGHTS("-o", output(name))


@pytest.mark.parametrize(
    ("name", "fits"), [("a.json", "a.st"), ("to/a.onnx", "to/a.st"), ("a.st.gz", "a.st"), ("a.v2", "a.st")]
)
def test_a_name_that_says_something_else_is_refused(name, fits):
    with pytest.raises(UsageError, match=r"a model must have the suffix \.st or \.safetensors") as caught:
        WEIGHTS("-o", Path(name))
    assert caught.value.hint == f"for example `-o {fits}`"


@pytest.mark.parametrize("name", ["a", "a.st", "-"])
def test_where_the_suffix_decides_there_is_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=r"a figure must have the suffix \.png or \.svg"):
        OutputKind(description="a figure", suffixes=(".png", ".svg"), decides=True, streams=False)(
            "--plot", Path(name)
        )
