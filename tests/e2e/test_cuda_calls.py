"""Calls of torch's CUDA code to a simulated runtime: launches, waits, copies, memory, devices.

Kernels do nothing; `test_gpu.py` compares numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.fake_cuda import build, environment, missing_requirement

pytestmark = [
    pytest.mark.newer,  # device properties have the layout of CUDA 13
    pytest.mark.skipif(missing_requirement() is not None, reason=missing_requirement() or ""),
]
TESTS = Path(__file__).parents[1]
IDLE = {"waits": 0, "copies": 0, "allocations": 0}
MOST = {"pruned": 1.12, "tuned": 1.25}
"""Upper bounds of launches of a stacked hydra, relative to the library's model, for texts with padding.

Fine-tuned members share the embedding.
"""
WAITS = {
    "finetune": {"training.loop._steps": 2, "training.loop.tally": 2, "runtime.wait_for": 1},  # 2 epochs
    "score": {
        "scoring.gradients.mean_gradient": 3,  # 3 layers: check for finite values
        "scoring.weight_importance._l1.<locals>.<dictcomp>": 3,
    },
    "cahp": {  # labels and moments of 4 batches, and gradients
        "scoring.head_profiles.signatures": 4,
        "runtime.wait_for": 12,
    },
    "prune": {"runtime.wait_for": 12},  # 3 candidates on 4 batches
    "fuse": {"runtime.wait_for": 8},  # 2 members
    "eval": {"runtime.wait_for": 12},  # 2 models, 4 ID batches and 2 OOD batches
    "predict": {"runtime.wait_for": 4},
}
"""Number of waits for the GPU by stage and function. Each function reads a number; no other function may
wait."""


@pytest.fixture(scope="module")
def cuda(tmp_path_factory):
    """Path of the simulated runtime."""
    return build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def counted(cuda, tmp_path_factory):
    """Counts of calls by models, measured in one process."""
    folder = tmp_path_factory.mktemp("models")
    done = run(cuda, "-m", "support.launches", str(folder), GPUS=2)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def stages(cuda, tmp_path_factory):
    """Counts of calls by stages with `--device cuda:1`, measured in one process."""
    done = run(cuda, "-m", "support.fake_cuda_stages", str(tmp_path_factory.mktemp("stages")), GPUS=2)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run(cuda, *arguments, **settings):
    path = f"{TESTS.parent}:{TESTS}"
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(cuda, OMP_NUM_THREADS=1, PYTHONPATH=path, **settings),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.more
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", MOST)
@pytest.mark.parametrize("family", ["vit", "bert", "decoder", "clip"])
def test_a_hydra_launches_little_more_than_one_model(counted, family, kind, batch):
    rows = counted[family]
    ratio = rows[f"{kind}, {batch}"]["launches"] / rows[f"single, {batch}"]["launches"]
    assert ratio <= MOST[kind], ratio


@pytest.mark.more
@pytest.mark.parametrize("family", ["vit", "bert", "decoder", "clip"])
def test_a_steady_pass_leaves_the_processor_out(counted, family):
    """Without waits and copies, the kernels can be captured as a CUDA graph."""
    for kind in MOST:
        for batch in (1, 4):
            row = counted[family][f"{kind}, {batch}"]
            assert row == {"launches": row["launches"], **IDLE, "captured": ""}
    assert counted[family]["second"] == {"devices": [1], **IDLE}


@pytest.mark.more
def test_a_wait_and_a_copy_are_found(counted):
    """Planted waits and copies are counted."""
    found = counted["planted"]
    refused = {name: "captur" in row.pop("captured") for name, row in found.items()}
    assert refused == {"read": True, "sent": True, "nothing": False}
    assert found["nothing"] == IDLE
    assert found["read"]["waits"] == found["sent"]["waits"] == 1
    assert found["read"]["copies"] == found["sent"]["copies"] == 1


@pytest.mark.more
def test_training_leaves_the_generator_of_its_gpu(counted):
    assert counted["generator"]


@pytest.mark.parametrize("stage", WAITS)
def test_a_stage_keeps_to_its_gpu_and_waits_where_it_reads_a_number(stages, stage):
    found = stages[stage]
    assert found["code"] == 0, found["said"]
    assert found["devices"] == [1]
    assert found["waits"].pop("weights", 0) <= 100  # copied once; two models have about 100 tensors
    assert found["waits"] == WAITS[stage]


def test_a_wait_and_another_device_are_found(stages):
    """Planted waits of a stage, and a kernel on the first GPU, are counted."""
    found = stages["planted"]
    assert found["devices"] == [0, 1]
    assert found["waits"]["__main__.blocking_on_device"] == 4


def test_values_are_those_of_the_processor(stages):
    """With wrong values, the number of waits could differ from a real GPU."""
    ours, processors = stages["probabilities"].values()
    assert ours == pytest.approx(processors, abs=1e-6)


@pytest.mark.parametrize("stage", WAITS)
def test_too_little_memory_is_one_line(stages, stage):
    code, said = stages["short"][stage]
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert (code, len(errors)) == (3, 1), said
    assert "memory" in errors[0]
    assert "Traceback" not in said
