"""What torch's own CUDA code is asked for, on a runtime without a GPU: launches, waits, copies, memory, a second device.

Kernels do nothing there, so numbers are not looked at; `test_gpu.py` does that.
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
COMMANDS = {
    "score": ("score", "MODEL", "--method", "taylor", "--data", "digits::limit=8", "-o", "OUT.json"),
    "finetune": (
        "finetune",
        "MODEL",
        "--data",
        "digits::limit=8",
        "--val",
        "digits::limit=8",
        "--epochs",
        "1",
        "-o",
        "OUT.st",
    ),
    "eval": ("eval", "MODEL", "--data", "digits::limit=8", "-o", "OUT.json"),
    "predict": ("predict", "MODEL", "digits::limit=8", "-o", "OUT.jsonl"),
}


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


def run(cuda, *arguments, **settings):
    path = f"{TESTS.parent}:{TESTS}"
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(cuda, OMP_NUM_THREADS=1, PYTHONPATH=path, **settings),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", MOST)
@pytest.mark.parametrize("family", ["vit", "bert", "clip"])
def test_a_hydra_launches_little_more_than_one_model(counted, family, kind, batch):
    rows = counted[family]
    ratio = rows[f"{kind}, {batch}"]["launches"] / rows[f"single, {batch}"]["launches"]
    assert ratio <= MOST[kind], ratio


@pytest.mark.parametrize("family", ["vit", "bert", "clip"])
def test_a_steady_pass_leaves_the_processor_out(counted, family):
    """So that kernels wait for nothing, and a graph of them can be made."""
    for kind in MOST:
        for batch in (1, 4):
            row = counted[family][f"{kind}, {batch}"]
            assert row == {"launches": row["launches"], **IDLE, "captured": ""}
    assert counted[family]["second"] == {"devices": [1], **IDLE}


def test_a_wait_and_a_copy_are_found(counted):
    """The laws are worth nothing if the runtime hears nothing."""
    found = counted["planted"]
    refused = {name: "captur" in row.pop("captured") for name, row in found.items()}
    assert refused == {"read": True, "sent": True, "nothing": False}
    assert found["nothing"] == IDLE
    assert found["read"]["waits"] == found["sent"]["waits"] == 1
    assert found["read"]["copies"] == found["sent"]["copies"] == 1


def test_training_leaves_the_generator_of_its_gpu(counted):
    assert counted["generator"]


OUT_OF_MEMORY = """
import contextlib, io, json, sys
from hydractl.cli.app import main
found = {}
for name, command in json.loads(sys.argv[1]).items():
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        found[name] = [main([*command, "--device", "cuda:1"]), errors.getvalue()]
print(json.dumps(found))
"""


def test_too_little_memory_is_one_line(cuda, tmp_path):
    """On the second of two GPUs, in one process."""
    model = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,num_classes=10"
    commands = {
        name: [word.replace("MODEL", model).replace("OUT", str(tmp_path / name)) for word in command]
        for name, command in COMMANDS.items()
    }
    done = run(cuda, "-c", OUT_OF_MEMORY, json.dumps(commands), GPUS=2, MEGABYTES=8)
    assert done.returncode == 0, done.stderr
    for name, (code, said) in json.loads(done.stdout.splitlines()[-1]).items():
        errors = [line for line in said.splitlines() if line.startswith("error:")]
        assert (name, code, len(errors)) == (name, 3, 1), said
        assert "memory" in errors[0]
        assert "Traceback" not in said
