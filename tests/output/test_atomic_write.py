"""Outputs are complete or absent, and have the mode given by the umask."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hydractl.checkpoint import ScratchFolder
from hydractl.errors import OutputError, OutputExists
from hydractl.output.publish import check_output, is_stream, publish, publish_text, scratch_beside


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_what_is_published_is_what_was_written(tmp_path):
    with publish(tmp_path / "a.st") as file:
        file.write(b"one")
        file.write(memoryview(b"two"))
        assert not (tmp_path / "a.st").exists()
    assert (tmp_path / "a.st").read_bytes() == b"onetwo"
    assert names(tmp_path) == ["a.st"]


def test_a_scratch_that_another_command_took_for_a_dead_ones_is_begun_anew(tmp_path, monkeypatch):
    """Between creation and lock, another command with the same output may remove the scratch file."""
    taken = []

    def keep(_descriptor, path):
        if len(taken) < 2:
            taken.append(path)
            path.unlink() if path.is_file() else path.rmdir()
            return False
        return True

    monkeypatch.setattr("hydractl.output.publish.lock_new", keep)
    monkeypatch.setattr("hydractl.checkpoint.lock_new", keep)
    publish_text(tmp_path / "a.json", "{}")
    assert (names(tmp_path), len({*taken})) == (["a.json"], 2)

    taken.clear()
    assert ScratchFolder().path.is_dir()
    assert not any(path.exists() for path in taken)


@pytest.mark.parametrize("name", ["loop", "loop/a.st", "x" * 300])
def test_a_name_that_leads_nowhere_is_refused(tmp_path, name):
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")

    with pytest.raises(OutputError, match=r"cannot be written: (Too many levels|File name too long)"):
        check_output(tmp_path / name, force=True)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_behind_when_the_work_fails(tmp_path, error):
    (tmp_path / "a.st").write_bytes(b"old")
    with pytest.raises(error), publish(tmp_path / "a.st") as file:  # noqa: PT012 - the block is what fails
        file.write(b"half")
        raise error
    assert names(tmp_path) == ["a.st"]
    assert (tmp_path / "a.st").read_bytes() == b"old"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_is_honoured(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        publish_text(tmp_path / "a.json", "{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == mode


def test_a_symbolic_link_is_followed_and_stays(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a.st", tmp_path / "link.st"
    target.write_bytes(b"old")
    link.symlink_to(target)

    publish_text(link, "new")

    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(tmp_path / "real") == ["a.st"]


def test_a_dangling_link_is_filled(tmp_path):
    link = tmp_path / "link.st"
    link.symlink_to(tmp_path / "later.st")
    check_output(link, force=False)
    publish_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "later.st").read_text() == "new"


def test_a_reader_of_the_old_file_keeps_it(tmp_path):
    path = tmp_path / "a.st"
    path.write_text("old")
    with path.open() as reader:
        publish_text(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_a_fifo_is_written_through_and_stays(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    check_output(fifo, force=False)
    with publish(fifo) as file:
        file.write(b"through")
    reader.join(timeout=100)
    assert found == [b"through"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert names(tmp_path) == ["pipe"]


def test_dash_is_standard_output(capfdbinary):
    check_output(Path("-"), force=False)
    with publish(Path("-")) as file:
        file.write(b"\x00\xffbytes")
    assert capfdbinary.readouterr().out == b"\x00\xffbytes"


def test_what_is_a_stream(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert [is_stream(Path(p)) for p in ("-", tmp_path / "pipe", "/dev/null")] == [True] * 3
    (tmp_path / "file").touch()
    assert [
        is_stream(p) for p in (tmp_path / "file", tmp_path, tmp_path / "none", tmp_path / "file" / "x")
    ] == [False] * 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_in_one_sentence():
    message = "/dev/full: no space left on the disk"
    with pytest.raises(OutputError, match=message) as caught, publish(Path("/dev/full")) as file:
        file.write(b"x" * 100_000)
    assert caught.value.exit_code == 3
    assert caught.value.hint == "free some space or use another disk"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_on_a_full_disk_is_said_too():
    code = (
        "from pathlib import Path\nfrom hydractl.output.publish import publish\nfrom hydractl.errors import OutputError\n"
        "try:\n    with publish(Path('-')) as f: f.write(b'x')\n"
        "except OutputError as e:\n    import sys; sys.stderr.write(str(e)); sys.stderr.flush(); import os; os._exit(3)\n"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (3, "-: no space left on the disk; nothing was written")


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES]
)
def test_the_operating_system_s_refusals_are_ours(tmp_path, number):
    message = r"a\.st: (no space left|cannot be written)"
    with pytest.raises(OutputError, match=message), publish(tmp_path / "a.st") as file:  # noqa: PT012 - as above
        file.write(b"half")
        raise OSError(number, os.strerror(number))
    assert names(tmp_path) == []


def test_an_error_about_an_input_is_not_blamed_on_the_output(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(PermissionError), publish(tmp_path / "out" / "a.st"):
        raise PermissionError(errno.EACCES, "no", str(tmp_path / "elsewhere" / "in.st"))
    assert names(tmp_path / "out") == []


def test_an_error_about_an_input_beside_the_output_is_not_blamed_on_it(tmp_path):
    with pytest.raises(PermissionError), publish(tmp_path / "a.st"):
        raise PermissionError(errno.EACCES, "no", str(tmp_path / "in.st"))


def test_a_closed_pipe_stays_what_it_is(tmp_path):
    with pytest.raises(BrokenPipeError), publish(tmp_path / "a.st"):
        raise BrokenPipeError
    assert names(tmp_path) == []


def test_a_long_name_can_be_published(tmp_path):
    """If the file system accepts the name, it must also accept the scratch name."""
    path = tmp_path / ("n" * 252 + ".st")
    publish_text(path, "x")
    assert path.read_text() == "x"


def test_an_existing_file_needs_force(tmp_path):
    (tmp_path / "a.st").write_bytes(b"old")
    with pytest.raises(OutputExists, match=r"a\.st: already exists") as caught:
        check_output(tmp_path / "a.st", force=False)
    assert (caught.value.exit_code, "--force" in str(caught.value.hint)) == (6, True)
    check_output(tmp_path / "a.st", force=True)


@pytest.mark.parametrize("alias", ["same", "symlink", "hardlink", "dotted"])
def test_an_input_is_never_overwritten(tmp_path, alias):
    source = tmp_path / "in.st"
    source.touch()
    out = tmp_path / "out.st"
    match alias:
        case "same":
            out = source
        case "symlink":
            out.symlink_to(source)
        case "hardlink":
            out.hardlink_to(source)
        case "dotted":
            out = tmp_path / "." / "in.st"
    with pytest.raises(OutputExists, match="is an input of this command"):
        check_output(out, force=True, inputs=[tmp_path / "gone.st", source])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.mkdir(), r"is a folder, not a file"),
        (lambda _: None, None),
    ],
    ids=["folder", "free"],
)
def test_what_is_in_the_way(tmp_path, make, message):
    out = tmp_path / "out.st"
    make(out)
    if message is None:
        check_output(out, force=False)
        return
    with pytest.raises(OutputError, match=message):
        check_output(out, force=True)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"folder `.*none` does not exist") as caught:
        check_output(tmp_path / "none" / "a.st", force=False)
    assert str(caught.value.hint).startswith("create it: `mkdir -p ")


def test_a_file_as_a_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        check_output(tmp_path / "file" / "a.st", force=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="cannot be written: Permission denied"):
        check_output(tmp_path / "locked" / "a.st", force=False)


@pytest.mark.skipif(not Path("/proc/1").exists(), reason="needs /proc")
def test_a_place_that_holds_no_files_is_refused_before_the_work():
    with pytest.raises(OutputError, match=r"/proc/hydractl\.st: cannot be written") as caught:
        check_output(Path("/proc/hydractl.st"), force=False)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("exists", [False, True])
def test_checking_an_output_changes_nothing(tmp_path, exists):
    path = tmp_path / ("n" * 252 + ".st")
    if exists:
        path.write_bytes(b"old")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    check_output(path, force=True)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()} == before


@pytest.mark.skipif(not Path("/proc/1").exists(), reason="needs /proc")
def test_a_place_that_holds_no_files_is_refused():
    with pytest.raises(OutputError, match="cannot be written"), publish(Path("/proc/hydractl.st")) as file:
        file.write(b"x")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o777])
def test_what_is_replaced_hands_down_its_mode_from_the_first_byte(tmp_path, mode):
    path = tmp_path / "a.st"
    path.touch()
    path.chmod(mode)
    with publish(path) as file:
        file.write(b"new")
        grows = next(p for p in tmp_path.iterdir() if p != path)
        assert stat.S_IMODE(grows.stat().st_mode) == mode
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (mode, b"new")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_is_replaced_hands_down_its_owner(tmp_path):
    path = tmp_path / "a.st"
    path.touch()
    path.chmod(0o750)
    os.chown(path, 1234, 4321)
    publish_text(path, "new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 4321, 0o750)


def test_an_owner_that_cannot_be_kept_is_said_before_the_work(tmp_path, monkeypatch):
    path = tmp_path / "a.st"
    path.write_text("old")
    monkeypatch.setattr(os, "fchown", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EPERM, "no")))
    real = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda p, **given: os.stat_result((*real(p, **given)[:4], 77, *real(p, **given)[5:]))
    )
    with pytest.raises(OutputError, match="belongs to another user or group") as caught:
        check_output(path, force=True)
    assert "another name" in caught.value.hint
    assert names(tmp_path) == ["a.st"]


def test_a_read_only_file_is_not_replaced(tmp_path):
    path = tmp_path / "a.st"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(OutputError, match="is read-only") as caught:
        check_output(path, force=True)
    assert "chmod u+w" in caught.value.hint
    with pytest.raises(OutputError, match="is read-only"), publish(path):
        pass
    assert names(tmp_path) == ["a.st"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", ["a.st", "n" * 240 + ".st"])
@pytest.mark.parametrize("checked", [False, True])
def test_what_the_dead_left_goes_and_nothing_else(tmp_path, name, checked):
    path = tmp_path / name
    dead = scratch_beside(path)
    dead.write_text("half")
    other = [
        scratch_beside(tmp_path / f"{name[:-1]}u"),
        tmp_path / f"{dead.name}.mine",
        tmp_path / ".a.st.mine.part",
    ]
    for mine in other:
        mine.write_text("mine")
    with publish(path) as file:
        file.write(b"alive")
        (living,) = {*tmp_path.iterdir()} - {*other}
        if checked:
            check_output(path, force=True)
        publish_text(path, "second")
        assert living.exists()
    assert {*tmp_path.iterdir()} == {path, *other}
    assert path.read_text() == "alive"


def test_two_that_write_one_file_at_once_do_not_mix(tmp_path):
    path = tmp_path / "a.st"
    with publish(path) as one:
        one.write(b"first")
        with publish(path) as two:
            two.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["a.st"]
