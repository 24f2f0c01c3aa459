"""The state of an unfinished run: round trip, refusal, and what a kill may leave."""

from __future__ import annotations

import pytest
import torch

from hydractl.errors import CheckpointError, OutputError, UsageError
from hydractl.training import state as module
from hydractl.training.state import Metrics, Position, Snapshot, StateFolder, Winner

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

    with pytest.raises(UsageError, match="other options") as caught:
        other.check(force=False)
    assert "--force" in caught.value.hint
    assert other.check(force=True) is False
    assert folder.check(force=True) is True


def test_no_state(folder):
    assert folder.check(force=False) is False
    folder.clear()
    folder.path.mkdir()
    assert folder.check(force=False) is False


def test_cleared_state_is_gone(folder):
    folder.save(snapshot())
    folder.clear()

    assert not folder.path.exists()


def test_a_file_in_the_way(folder):
    folder.path.write_text("mine")

    with pytest.raises(OutputError, match="not a folder"):
        folder.check(force=True)


def test_damaged_json(folder):
    folder.save(snapshot())
    (folder.path / "state.json").write_text("{}")

    with pytest.raises(UsageError, match="schema is null") as caught:
        folder.check(force=False)
    assert "--force" in caught.value.hint
    assert folder.check(force=True) is False


def test_missing_tensors(folder):
    folder.save(snapshot())
    next(folder.path.glob("weights-*")).unlink()

    with pytest.raises(CheckpointError, match="weights-1-3") as caught:
        folder.load()
    assert f"rm -r {folder.path}" in caught.value.hint


def test_better_is_more_accurate_or_as_accurate_and_likelier():
    base = Metrics(accuracy=0.5, nll=1.0)

    assert base.beats(None)
    assert not base.beats(base)
    assert Metrics(accuracy=0.6, nll=2.0).beats(base)
    assert Metrics(accuracy=0.5, nll=0.9).beats(base)
    assert not Metrics(accuracy=0.4, nll=0.1).beats(base)
    assert not Metrics(accuracy=0.6, nll=2.0).beats(base, delta=0.2)
    assert not Metrics(accuracy=0.5, nll=0.9).beats(base, delta=0.2)
