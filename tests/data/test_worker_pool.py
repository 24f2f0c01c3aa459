"""Worker processes do not change batches, and end with their parent."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from hydractl.data import worker_pool
from hydractl.data.batches import _stack_shared, batches
from hydractl.data.datasets import given_items
from hydractl.data.open_dataset import open_data, with_workers
from hydractl.data.preprocess import AUGMENTATIONS, eval_transform, train_transform
from hydractl.data.reference import DataRef
from hydractl.data.worker_pool import MIN_IMAGES, WorkerPool
from hydractl.errors import DataError, InputError
from hydractl.manifest.header import Preprocess
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from hydractl.training.recipe import Recipe
from support.builders import base

HOW = Preprocess(input_size=(3, 8, 6), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
TRANSFORMS = {"evaluation": eval_transform(HOW)} | {
    name: train_transform(HOW, (name,)).at(seed=1, epoch=2) for name in AUGMENTATIONS
}


@pytest.fixture(scope="module")
def crews():
    """Two pools, referenced for the whole module: a pool without references ends."""
    return [WorkerPool.of(count, images=0) for count in (1, 2)]


@pytest.fixture
def sets(folder, picture, tmp_path):
    """Image sets with every kind of store."""
    (tmp_path / "files.csv").write_text(
        "image,label\n" + "".join(f"insects/ant/{i}.png,a\n" for i in range(3))
    )
    kept = [picture(7), np.asarray(picture(8)), folder / "bee" / "3.png"]
    return [
        open_data(f"{folder}/"),
        open_data(f"{tmp_path}/files.csv"),
        open_data("digits::limit=5"),
        open_data("noise::limit=5"),
        given_items(kept, HOW),
    ]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_any_number_of_workers_gives_the_same_batches(crews, sets, name):
    for items in sets:
        order = [*reversed(range(len(items))), 0]
        alone, *others = (
            list(batches(with_workers(items, count), TRANSFORMS[name], batch_size=4, indices=order))
            for count in (0, 1, 2)
        )
        for found in others:
            assert [batch.indices.tolist() for batch in found] == [batch.indices.tolist() for batch in alone]
            assert torch.equal(
                torch.cat([batch.inputs for batch in found]), torch.cat([batch.inputs for batch in alone])
            )


def test_what_a_worker_cannot_read_is_named_as_ever(crews, folder):
    (folder / "bee" / "3.png").write_bytes(b"junk")
    (folder / "ant" / "1.png").unlink()
    items = open_data(f"{folder}/")
    (folder / "ant" / "0.png").unlink()
    said = []
    for count in (0, 2):
        with pytest.raises(DataError) as refused:
            list(batches(with_workers(items, count), TRANSFORMS["evaluation"], batch_size=4))
        said.append((refused.value.message, refused.value.hint, refused.value.exit_code))

    assert said[0] == said[1]
    assert "ant/0.png" in said[0][0]


def test_files_hang_not_on_who_decodes(crews, folder, tmp_path):
    model = base().save(tmp_path / "base.st")
    (folder / "bee" / "5.png").write_bytes(b"junk")
    said = []
    for count in (0, 1, 2):
        out = tmp_path / f"{count}.jsonl"
        preprocess = {"batch_size": 2, "device": "cpu", "num_workers": count}
        run_predict(
            PredictConfig(model=str(model), data=(f"{folder}/",), out=out, skip_bad=True, **preprocess)
        )
        said.append(out.read_bytes())
    assert said[0] == said[1] == said[2]
    assert b"bee/5.png: is not an image" in said[0]

    (folder / "bee" / "5.png").unlink()
    recipe = Recipe(augment=("rrc", "randaugment"), mixup=0.3, batch_size=3, accumulate=2, steps=4, warmup=0)
    data = DataRef.parse(f"{folder}/")
    trained = []
    for count in (0, 2):
        out = tmp_path / f"{count}.st"
        run_finetune(
            FinetuneConfig(
                model=str(model),
                train=data,
                val=data,
                out=out,
                recipe=recipe,
                device="cpu",
                num_workers=count,
            )
        )
        trained.append(out.read_bytes())
    assert trained[0] == trained[1]


def test_a_worker_that_dies_is_told_of_and_replaced(folder):
    own = WorkerPool(3)
    WorkerPool._living[3] = own
    items = with_workers(open_data(f"{folder}/"), 3)
    assert items.workers is own
    for future in [own.submit(time.sleep, 0.05) for _ in range(6)]:  # wait until all workers run
        future.result()
    os.kill(own.submit(os.getpid).result(), signal.SIGKILL)
    with pytest.raises(InputError, match="one of 3 processes that decode images was killed"):
        own.result(own.submit(time.sleep, 20))
    with pytest.raises(InputError, match="was killed"):
        list(batches(items, TRANSFORMS["evaluation"], batch_size=4))

    assert WorkerPool.of(3, images=0) is not own


def test_a_crew_that_nobody_refers_to_has_ended(folder):
    before = {*threading.enumerate()}
    own = WorkerPool(2)
    workers = {own.submit(os.getpid).result() for _ in range(8)}
    assert {*threading.enumerate()} - before
    del own
    gc.collect()

    assert not {*threading.enumerate()} - before
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("cores", "images", "shared", "workers"),
    [
        (2, 10**6, 1 << 40, 0),
        (16, MIN_IMAGES - 1, 1 << 40, 0),
        (16, MIN_IMAGES, 1 << 20, 0),
        (3, MIN_IMAGES, 1 << 40, 3),
        (96, MIN_IMAGES, 1 << 40, 8),
    ],
)
def test_auto_takes_what_pays(monkeypatch, cores, images, shared, workers):
    room = os.statvfs_result((1, 1, 0, 0, shared, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    monkeypatch.setattr(worker_pool.os, "statvfs", lambda _: room)
    assert worker_pool.default_workers(images) == workers

    read_only = os.statvfs_result((*room[:8], os.ST_RDONLY, 0))
    monkeypatch.setattr(worker_pool.os, "statvfs", lambda _: read_only)
    assert worker_pool.default_workers(images) == 0
    monkeypatch.setattr(worker_pool.os, "statvfs", lambda _: room)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(cores))
    assert worker_pool.default_workers(images) == 0


def test_memory_that_cannot_be_shared_is_said(monkeypatch):
    """If /dev/shm is read-only, the pool cannot create locks.

    If it is full, a worker cannot allocate a batch.
    """

    def refuse(*_args, **_named):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(worker_pool, "ProcessPoolExecutor", refuse)
    with pytest.raises(
        InputError, match=r"cannot share memory in `/dev/shm`: .*Read-only file system"
    ) as refused:
        WorkerPool.of(7, images=1)
    assert "`--num-workers 0`" in refused.value.hint

    def full(_size):
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </x>: No space left on device (28)"
        )

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    with pytest.raises(InputError, match=r"cannot share memory in `/dev/shm`: .*No space left"):
        _stack_shared([torch.zeros(3)])


WORKING = """
import sys
from hydractl.data import worker_pool
from hydractl.data.worker_pool import WorkerPool
import time, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit that it is ignored
worker_pool._LOADED[:] = []
own = WorkerPool(2)
print(*{f.result() for f in [own.submit(os.getpid) for _ in range(8)]}, flush=True)
own.submit(time.sleep, float(sys.argv[1]))
for _ in range(600):
    time.sleep(0.1)  # a signal that came while this thread was deaf is heard when it next waits
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_who_they_work_for(number, tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(WORKING)
    with subprocess.Popen(
        [sys.executable, str(script), "60" if number == signal.SIGKILL else "0.2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as program:
        workers = program.stdout.readline().split()
        assert workers
        if number == signal.SIGKILL:
            program.kill()
        else:
            os.killpg(program.pid, number)  # a terminal sends Ctrl-C to the whole process group
        _, said = program.communicate(timeout=100)
    assert said.count("Traceback") == (number == signal.SIGINT)  # the traceback of the program itself
    deadline = time.monotonic() + 100
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
