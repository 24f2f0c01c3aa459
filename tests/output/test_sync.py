"""After a power loss each output is complete, old or new. File systems without `fsync` are supported."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from hydractl.errors import OutputError, OutputExists
from hydractl.output import publish as module
from hydractl.output.publish import Folder, check_output, claimed, make_folder, publish_text, publish_together
from hydractl.training.resume import Position, Snapshot, StateFolder
from support.disk import Disk


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def one(folder):
    publish_text(folder / "a.json", "{}")


def replaced(folder):
    one(folder)
    one(folder)


def several(folder):
    make_folder(folder / "new" / "sub")
    paths = (folder / "a.st", folder / "b.st", folder / "new" / "sub" / "c.st")
    with claimed(paths[0], force=False) as claim, publish_together(claim) as begin:
        for path in paths:
            begin(path).write(b"content")


def new_folder(folder):
    with claimed(folder / "new", force=False) as claim, publish_together(claim) as begin:
        for name in ("config.json", "model.safetensors"):
            begin(Folder(folder / "new") / name).write(b"content")
    assert len([*(folder / "new").iterdir()]) == 2


def into_a_folder(folder):
    (folder / "new").mkdir()
    new_folder(folder)


def state(folder):
    for fingerprint in ("a", "b"):
        run = StateFolder(folder / "out.st.state", f"sha256:{fingerprint * 64}")
        for step in (1, 2, 3):
            run.save(Snapshot(position=Position(step=step), weights={"w": torch.full((9,), float(step))}))
    run.clear()


@pytest.mark.parametrize("write", [one, replaced, several, new_folder, into_a_folder, state])
def test_files_are_stored_before_their_names_and_old_files_go_last(tmp_path, disk, write):
    write(tmp_path)

    assert disk.renamed
    assert disk.end() == []


def test_names_of_several_outputs_are_recorded_on_the_disk_before_the_first_appears(tmp_path, monkeypatch):
    paths = (tmp_path / "a.st", tmp_path / "b.st")
    stored, real = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda d: (stored.append((os.fstat(d).st_ino, paths[0].exists())), real(d))
    )
    with claimed(paths[0], force=False) as claim, publish_together(claim) as begin:
        lock = next(path.stat().st_ino for path in tmp_path.iterdir() if path.name.endswith("-lock"))
        for path in paths:
            begin(path).write(b"content")

    assert (lock, False) in stored
    assert (tmp_path.stat().st_ino, False) in stored  # the folder stores the name of the lock file


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_fsync_is_served(tmp_path, monkeypatch, number):
    def unsupported(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", unsupported)
    for write in (one, several, new_folder):
        (tmp_path / write.__name__).mkdir()
        write(tmp_path / write.__name__)

    assert (tmp_path / "one" / "a.json").read_text() == "{}"


def test_a_folder_that_may_not_be_read_is_served(tmp_path, monkeypatch):
    real = os.open

    def unreadable(path, flags, *mode, **named):
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "no", str(path))
        return real(path, flags, *mode, **named)

    monkeypatch.setattr(os, "open", unreadable)
    one(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fails_to_store_a_file_keeps_the_old_one(tmp_path, monkeypatch, number):
    (tmp_path / "a.json").write_text("old")

    def failing(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputError, match=r"a\.json: "):
        one(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "old")]


def test_an_empty_output_counts_as_missing(tmp_path):
    path = tmp_path / "a.json"
    path.touch()

    check_output(path, force=False)
    with claimed(path, force=False) as claim, publish_together(claim) as begin:
        begin(path).write(b"{}")
    assert path.read_text() == "{}"

    with pytest.raises(OutputExists):
        check_output(path, force=False)
    assert [module.has_content(place) for place in (path, tmp_path, tmp_path / "none")] == [True, True, False]
