"""Several processes give the same bits as a single process.

Here, a thread with a separate group replaces each process.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.distributed import DistNetworkError, HashStore

from hydractl.errors import DataError, Interrupted, UsageError
from hydractl.processes import distributed
from hydractl.processes.distributed import (
    LINGER_S,
    PROCESS_ENDED,
    ProcessGroup,
    _FailureReporter,
    refuse_shared_device,
    refuse_shared_input,
    start_team,
)
from support.together import CPU, together

WORLDS = [1, 2, 3]
COUNTS = [0, 1, 2, 5, 6]


def results(count):
    """Return one result per batch, with different shapes, because a last batch may be smaller."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, 1 + i % 2, generator=generator) * 10.0**i for i in range(count)]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("count", COUNTS)
def test_results_come_in_the_order_of_the_data(world, count):
    batches = results(count)

    found = together(world, lambda team: team.in_order(batches[team.rank :: team.world]))

    for each in found:
        assert [t.shape for t in each] == [t.shape for t in batches]
        assert all(torch.equal(a, b) for a, b in zip(each, batches, strict=True))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("count", COUNTS)
def test_sums_have_the_bits_of_one_process(world, count):
    generator = torch.Generator().manual_seed(2)
    batches = [
        (torch.randn(40, generator=generator) * 1e3 ** (i % 3), torch.tensor(float(i))) for i in range(count)
    ]
    alone = ProcessGroup().added(iter(batches))

    found = together(world, lambda team: team.added(iter(batches[team.rank :: team.world])))

    assert len(alone) == (2 if count else 0)
    for each in found:
        assert [t.numpy().tobytes() for t in each] == [t.numpy().tobytes() for t in alone]


@pytest.mark.parametrize(
    "team", [lambda w: ProcessGroup().added(iter(w)), lambda w: together(2, lambda t: t.added(iter(w)))]
)
def test_summands_stay_as_they_are(team):
    batches = [(torch.ones(2),), (torch.ones(2),)]

    team(batches)

    assert all(torch.equal(tensor, torch.ones(2)) for (tensor,) in batches)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([True, False]),
        torch.tensor([1, 2**40]),
        torch.tensor([1.5, -0.0, float("inf")], dtype=torch.bfloat16),
        torch.tensor(3.0, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.arange(12.0).reshape(3, 4).T,
        torch.ones(3, requires_grad=True) * 2,
    ],
    ids=["bool", "int64", "bf16", "scalar", "empty", "strided", "in a graph"],
)
def test_any_tensor_travels(tensor):
    def work(team):
        return team.in_order([tensor.detach() if team.rank == 0 else torch.zeros(1)])

    for first, _ in together(2, work):
        assert first.dtype == tensor.dtype
        assert torch.equal(first, tensor)


def test_many_tensors_keep_their_order():
    batches = [torch.tensor(i) for i in range(41)]

    for each in together(3, lambda team: team.in_order(batches[team.rank :: 3])):
        assert [int(t) for t in each] == list(range(41))


@pytest.mark.parametrize("text", ["", "a\nb\n", "é"])
def test_the_leaders_text_is_told(text):
    found = together(2, lambda team: team.broadcast(text if team.leads else "mine"))

    assert found == [text, text]
    assert ProcessGroup().broadcast(text) == text


def test_a_process_that_ends_is_noticed():
    def work(team):
        if team.rank == 1:
            return None  # the end of the process closes its connections
        with pytest.raises(Interrupted, match="another process of this run has ended") as caught:
            team.in_order([torch.zeros(1)])
        return caught.value.hint

    assert "run the same command again" in together(2, work)[0]


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")

    with start_team(CPU) as team:
        assert team._group is None
        assert (team.rank, team.world, team.leads) == (0, 1, True)


@pytest.mark.parametrize(
    ("refuse", "shared", "fine"),
    [(refuse_shared_input, "-", "base.st"), (refuse_shared_device, "cuda:1", "cuda")],
)
def test_some_things_are_for_one_process(monkeypatch, refuse, shared, fine):
    monkeypatch.setenv("WORLD_SIZE", "1")
    refuse(shared)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse(fine)
    with pytest.raises(UsageError):
        refuse(shared)


def voices(count=2):
    store = HashStore()
    return [_FailureReporter(store, rank) for rank in range(count)]


@pytest.fixture
def sleeps(monkeypatch):
    """Record the seconds of calls to `time.sleep`, without sleeping."""
    found = []
    monkeypatch.setattr(distributed.time, "sleep", found.append)
    return found


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_to_fail_speaks_and_the_others_wait_to_be_ended(sleeps, first):
    pair = voices()
    error = DataError("corrupt image")

    assert pair[first].ending(error) is error
    other = pair[1 - first].ending(Interrupted("another process has ended"))

    assert isinstance(other, Interrupted)
    assert other.message == ""
    assert sleeps[-1] == LINGER_S


def test_what_all_find_the_leader_says(sleeps):
    leader, follower = voices()

    assert leader.ending(DataError("here")).message == "here"
    assert sum(sleeps) == 0
    assert follower.ending(DataError("here")).message == ""
    assert sleeps[1] > 0


def test_a_loss_that_nobody_explains_is_said_once(sleeps):
    first, second, _ = voices(3)
    lost = Interrupted("another process has ended")

    assert first.ending(lost) is lost
    assert second.ending(lost).message == ""


def test_of_interrupted_processes_the_leader_speaks(sleeps):
    leader, follower = voices()

    assert isinstance(leader.interrupted(), KeyboardInterrupt)
    assert follower.interrupted().message == ""


def test_without_the_leader_another_says_what_happened(sleeps):
    _, follower = voices()

    assert "has ended" in follower.interrupted().message


def test_a_signal_ends_the_waiting(monkeypatch):
    leader, follower = voices()
    leader.is_reporter()

    def sleep(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(distributed.time, "sleep", sleep)

    assert follower.ending(DataError("here")).message == ""


ENDED_ON_THE_WAY_OUT = """
import os, signal, sys
from torch.distributed import HashStore
from hydractl.errors import Interrupted
from hydractl.processes.distributed import one_failure_report
from hydractl.processes.signals import heed_signals

heed_signals(only_first=True)
try:
    with one_failure_report(HashStore(), 1):
        raise Interrupted("another process has ended") if sys.argv[1] == "lost" else KeyboardInterrupt
except Interrupted as error:
    os.kill(os.getpid(), signal.SIGTERM)
    print(error.message)
"""


@pytest.mark.parametrize("end", ["lost", "interrupted"])
def test_a_signal_after_the_choice_of_the_speaker_does_not_silence_the_speaker(end):
    """A launcher may signal a process that is on the way from the failed training to the printed line."""
    done = subprocess.run(
        [sys.executable, "-c", ENDED_ON_THE_WAY_OUT, end], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "process" in done.stdout
    assert "has ended" in done.stdout


def test_nobody_else_speaks_when_the_store_is_gone(sleeps):
    class Gone:
        def compare_set(self, *_):
            raise RuntimeError("connection refused")

    assert [_FailureReporter(Gone(), rank).is_reporter() for rank in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer."
        ),
        DistNetworkError("The client socket has failed"),
    ],
)
def test_a_library_that_lost_a_process_is_said_without_its_traceback(error):
    ending = _FailureReporter(HashStore(), 0).ending(error)

    assert (type(ending), ending.message) == (Interrupted, PROCESS_ENDED)


def test_other_errors_of_libraries_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(distributed.time, "sleep", lambda _: None)
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    assert _FailureReporter(HashStore(), 0).ending(error) is error


def test_a_group_within_a_group_leaves_the_choice_of_the_speaker(monkeypatch):
    """A silent process of the inner group does not become the speaker of the outer group."""
    monkeypatch.setattr(distributed.time, "sleep", lambda _: None)
    inner, outer = (
        [_FailureReporter(store, rank) for rank in range(2)] for store in (HashStore(), HashStore())
    )
    error = DataError("rank 1's")

    said = inner[1].ending(error)
    silent = inner[0].ending(Interrupted(PROCESS_ENDED))

    assert outer[0].ending(silent).message == ""
    assert outer[1].ending(said) is error


@pytest.mark.parametrize(
    ("name", "device", "hint"),
    [
        ("mps", "mps", "use `--device cpu`"),
        ("auto", "cuda", "start `torchrun --nproc-per-node 1`, or use `--device cpu`"),
        ("cuda:0", "cuda", "use `--device cuda`"),
    ],
)
def test_a_device_that_processes_cannot_share_is_refused(monkeypatch, name, device, hint):
    for variable in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, "2")
    monkeypatch.setattr(distributed, "pick_device", lambda _: torch.device(device))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    with pytest.raises(UsageError) as caught:
        distributed.own_device(name)
    assert caught.value.hint == hint
