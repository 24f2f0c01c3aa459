"""What torch's own CUDA code is asked for, on a runtime without a GPU: launches, waits, copies, memory, a second device.

Kernels do nothing there, so numbers are hardly looked at; `test_gpu.py` does that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.unreal_cuda import build, environment, why_not

pytestmark = [
    pytest.mark.newer,  # the layout of what CUDA 13 says of a device
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
TESTS = Path(__file__).parents[1]
IDLE = {"waits": 0, "copies": 0, "allocations": 0}
MOST = {"pruned": 1.12, "tuned": 1.25}
"""Launches of a stacked hydra over those of the library's model, texts with padding; fine-tuned members share the embedding."""
WAITS = {
    "finetune": {"training.loop._steps": 2, "training.loop.tally": 2, "runtime.wait_for": 1},  # 2 epochs
    "score": {
        "scoring.gradients.mean_gradient": 3,  # 3 layers: whether it is finite
        "scoring.weight_scores._l1.<locals>.<dictcomp>": 3,
    },
    "cahp": {  # labels and moments of 4 batches, and gradients
        "scoring.head_profiles.signatures": 4,
        "runtime.wait_for": 12,
    },
    "prune": {"runtime.wait_for": 12},  # 3 candidates on 4 batches
    "fuse": {"runtime.wait_for": 8},  # 2 members
    "eval": {"runtime.wait_for": 12},  # 2 models, 4 batches and 2 of what is OOD
    "predict": {"runtime.wait_for": 4},
}
"""Where a stage waits for its GPU, how often, when it runs models: where a number is read, and nowhere else."""


@pytest.fixture(scope="module")
def cuda(tmp_path_factory):
    """The runtime."""
    return build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def counted(cuda, tmp_path_factory):
    """What models asked for, all in one process."""
    folder = tmp_path_factory.mktemp("models")
    done = run(cuda, "-m", "support.launches", str(folder), GPUS=2)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def stages(cuda, tmp_path_factory):
    """What stages asked for with `--device cuda:1`, all in one process."""
    done = run(cuda, "-m", "support.unreal_stages", str(tmp_path_factory.mktemp("stages")), GPUS=2)
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
    """So that kernels wait for nothing, and a graph of them can be made."""
    for kind in MOST:
        for batch in (1, 4):
            row = counted[family][f"{kind}, {batch}"]
            assert row == {"launches": row["launches"], **IDLE, "captured": ""}
    assert counted[family]["second"] == {"devices": [1], **IDLE}


@pytest.mark.more
def test_a_wait_and_a_copy_are_found(counted):
    """The laws are worth nothing if the runtime hears nothing."""
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
    assert found["waits"].pop("weights", 0) <= 100  # once: two models have about so many tensors
    assert found["waits"] == WAITS[stage]


def test_a_wait_and_another_device_are_found(stages):
    """In a stage whose inputs are copied by one who waits, beside a kernel on the first GPU."""
    found = stages["planted"]
    assert found["devices"] == [0, 1]
    assert found["waits"]["__main__.carelessly"] == 4


def test_values_are_those_of_the_processor(stages):
    """So that what stages wait for is what they wait for on a GPU, however it depends on what was computed."""
    ours, processors = stages["probabilities"].values()
    assert ours == pytest.approx(processors, abs=1e-6)


@pytest.mark.parametrize("stage", WAITS)
def test_too_little_memory_is_one_line(stages, stage):
    code, said = stages["short"][stage]
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert (code, len(errors)) == (3, 1), said
    assert "memory" in errors[0]
    assert "Traceback" not in said
