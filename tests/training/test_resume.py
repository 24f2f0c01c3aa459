"""State of an unfinished run: round trip, errors, and remains after a kill."""

from __future__ import annotations

import json

import pytest
import torch

from hydractl.errors import CheckpointError, ManifestError, OutputExists
from hydractl.training import resume as module
from hydractl.training.resume import Metrics, OtherRunError, Position, Snapshot, StateFolder, Winner

ONE, OTHER = (f"sha256:{c * 64}" for c in "ab")


def snapshot(step=3, **changes):
    tensors = {"a.weight": torch.full((2, 3), float(step)), "empty": torch.zeros(0, 4)}
    given = {
        "position": Position(
            candidate=1,
            step=step,
            last=Metrics(accuracy=0.1 + 0.2, nll=1 / 3),
            best=Metrics(accuracy=1.0, nll=0.1),
        ),
        "weights": tensors,
        "optimizer": {
            "exp_avg.a.weight": torch.ones(2, 3, dtype=torch.bfloat16),
            "step.a.weight": torch.tensor(3.0),
        },
        "best": {"a.weight": torch.zeros(2, 3)},
        "winner": Winner(candidate=0, metrics=Metrics(accuracy=0.5, nll=0.5), step=9),
        "winner_weights": {"a.weight": torch.full((2, 3), 7.0)},
    }
    return Snapshot(**(given | changes))


def equal(left, right):
    groups = ("weights", "optimizer", "best", "winner_weights")
    return (left.position, left.winner) == (right.position, right.winner) and all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)
        for a, b in ((getattr(left, g), getattr(right, g)) for g in groups)
    )


@pytest.fixture
def folder(tmp_path):
    return StateFolder(tmp_path / "out.st.state", ONE)


@pytest.mark.parametrize(
    "changes", [{}, {"best": {}}, {"winner": None, "winner_weights": {}}, {"weights": {}}]
)
def test_what_is_saved_is_loaded(folder, changes):
    given = snapshot(**changes)
    folder.save(given)

    assert folder.check(force=False)
    assert equal(folder.load(), given)


def test_a_save_replaces_the_one_before_and_keeps_nothing_else(folder):
    folder.save(snapshot(3))
    folder.save(snapshot(4))

    assert equal(folder.load(), snapshot(4))
    assert len(list(folder.path.iterdir())) == 5


@pytest.mark.parametrize("at", range(5))
def test_a_kill_while_saving_leaves_the_state_before(folder, monkeypatch, at):
    folder.save(snapshot(3))
    writes = iter(range(99))
    for name in ("publish", "publish_text"):
        real = getattr(module, name)

        def dying(*args, _real=real):
            if next(writes) == at:
                raise KeyboardInterrupt
            return _real(*args)

        monkeypatch.setattr(module, name, dying)
    later = snapshot(4, position=Position(candidate=1, step=4, best_step=4))
    try:
        folder.save(later)
        wanted = later
    except KeyboardInterrupt:
        wanted = snapshot(3)

    assert folder.check(force=False)
    assert equal(folder.load(), wanted)


def test_another_run_is_refused_unless_forced(folder):
    folder.save(snapshot())
    other = StateFolder(folder.path, OTHER)

    with pytest.raises(OtherRunError, match="other options") as caught:
        other.check(force=False)
    assert "--force" in caught.value.hint
    assert other.check(force=True) is False
    # keeps the digest of states written before settings were stored
    assert '"settings"' not in (folder.path / "state.json").read_text()


def test_a_refusal_names_the_settings_that_differ(folder):
    StateFolder(folder.path, ONE, {"lr": "0.1", "torch": "2.1"}).save(snapshot())

    with pytest.raises(OtherRunError, match=r"inputs or versions: `lr` was 0\.1, is now 0\.3$"):
        StateFolder(folder.path, OTHER, {"lr": "0.3", "torch": "2.1"}).check(force=False)


def test_force_starts_anew_and_says_so(folder, progress_log):
    folder.save(snapshot())

    start = folder.resumed(force=True)

    assert start == Snapshot()
    assert progress_log.warnings == [
        f"`--force` starts again: the state of an unfinished run in {folder.path} is discarded"
    ]
    assert equal(folder.load(), snapshot())  # the old state stays until a new state replaces it


def test_what_another_run_left_is_never_taken_for_one_s_own(folder):
    """Files of another run may have the names of this run's files."""
    StateFolder(folder.path, OTHER).save(snapshot(weights={"a.weight": torch.full((2, 3), 8.0)}))
    folder.resumed(force=True)

    folder.save(snapshot())

    assert equal(folder.load(), snapshot())


def test_no_state(folder):
    assert folder.check(force=False) is False
    folder.clear()
    assert folder.resumed(force=True) == Snapshot()


def test_cleared_state_is_gone(folder):
    folder.save(snapshot())
    folder.clear()

    assert not folder.path.exists()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_text("mine"), "is not a folder"),
        (lambda path: path.mkdir(), "has no `state.json`"),
        (lambda path: (path.mkdir(), (path / "notes.txt").write_text("mine")), r"contains `notes\.txt`"),
        (lambda path: (path.mkdir(), (path / "state.json").write_text("{}")), "has no `state.json` that"),
        (lambda path: path.symlink_to(path.parent), "is a symbolic link"),
        (lambda path: path.symlink_to("nowhere"), "is a symbolic link"),
    ],
    ids=["file", "empty", "notes", "json", "link", "dangling"],
)  # fmt: skip
def test_what_is_not_ours_is_never_touched(folder, make, why, force):
    make(folder.path)
    before = [(path, path.is_file() and path.read_bytes()) for path in sorted(folder.path.parent.rglob("*"))]

    with pytest.raises(OutputExists, match=why) as caught:
        folder.check(force=force)
    folder.clear()

    assert "-o" in caught.value.hint
    assert [
        (path, path.is_file() and path.read_bytes()) for path in sorted(folder.path.parent.rglob("*"))
    ] == before


def test_what_somebody_puts_into_it_meanwhile_stays(folder):
    folder.save(snapshot(3))
    (folder.path / "notes.txt").write_text("mine")

    folder.save(snapshot(4))
    folder.clear()

    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]


def test_what_killed_saves_left_goes(folder):
    for name in (".out.st.state.0123abcd.hydractl-part", ".out.st.state.4567abcd.hydractl-part"):
        (folder.path.parent / name).mkdir()
        (folder.path.parent / name / "best-0-1.st").write_bytes(b"half")

    folder.check(force=False)

    assert not list(folder.path.parent.iterdir())


def test_damaged_json(folder):
    folder.save(snapshot())
    path = folder.path / "state.json"
    path.write_text(path.read_text()[:-9])

    with pytest.raises(ManifestError, match="is not JSON") as caught:
        folder.check(force=False)
    assert "--force" in caught.value.hint
    assert folder.check(force=True) is False


@pytest.mark.parametrize("change", [
    {"position": {"step": 2}}, {"winner": {"step": 8}}, {"digests": {"best-1-0.st": ONE}}, {"own_digest": ""},
])  # fmt: skip
def test_a_state_that_says_something_else_is_refused(folder, change):
    folder.save(snapshot())
    path = folder.path / "state.json"
    said = json.loads(path.read_text())
    for key, value in change.items():
        said[key] = said[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(said))

    with pytest.raises(ManifestError, match="is damaged: its digest does not match") as caught:
        folder.check(force=False)
    assert "--force" in caught.value.hint


def test_a_flipped_bit_of_a_tensor_is_found(folder):
    folder.save(snapshot())
    path = next(folder.path.glob("optimizer-*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(
        CheckpointError, match=r"optimizer-1-3\.st: is damaged: its digest does not match"
    ) as caught:
        folder.load()
    assert "--force" in caught.value.hint


def test_missing_tensors(folder):
    folder.save(snapshot())
    next(folder.path.glob("weights-*")).unlink()

    with pytest.raises(CheckpointError, match="weights-1-3") as caught:
        folder.load()
    assert "--force" in caught.value.hint


def test_better_is_more_accurate_or_as_accurate_and_likelier():
    base = Metrics(accuracy=0.5, nll=1.0)

    assert base.beats(None)
    assert not base.beats(base)
    assert Metrics(accuracy=0.6, nll=2.0).beats(base)
    assert Metrics(accuracy=0.5, nll=0.9).beats(base)
    assert not Metrics(accuracy=0.4, nll=0.1).beats(base)
    assert not Metrics(accuracy=0.6, nll=2.0).beats(base, delta=0.2)
    assert not Metrics(accuracy=0.5, nll=0.9).beats(base, delta=0.2)
