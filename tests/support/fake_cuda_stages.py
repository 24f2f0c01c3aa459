"""Program for a process with `fake_cuda`: print the requests of each stage to the second GPU as JSON.

python -m support.fake_cuda_stages FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import torch

from hydractl.cli.app import main as command
from support.fake_cuda import ALLOCATIONS, COPIES, LAUNCHES, counts
from support.fake_cuda_values import values, waits

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=7"
DATA, OOD = "digits::classes=0-6,split=val,limit=32", "digits::classes=9,limit=16"
STAGES = {
    "finetune": f"finetune {MODEL} --train {DATA} --val {DATA} --epochs 2 --ema 0.9 --clip 1 -o base.st",
    "score": f"score base.st --method taylor --data {DATA} -o s.json",
    "cahp": f"score base.st --method cahp --salience-share 1 --data {DATA} -o c.json",
    "prune": f"prune base.st --scores s.json --strategy diverse --data {DATA} --candidates 3 --remove 4 --members 2 --pool 6 -o m-{{i}}.st",
    "fuse": f"fuse m-0.st m-1.st --val {DATA} -o hydra.st",
    "eval": f"eval hydra.st --compare base=base.st --data {DATA} --near {OOD} --no-latency -o r.json",
    "predict": f"predict hydra.st {DATA} -o p.jsonl",
}
"""Commands of the stages, with four batches of ID data and two of OOD data."""


def main() -> None:
    os.chdir(sys.argv[1])
    found = {name: stage_requests(words) for name, words in STAGES.items()}
    with mock.patch("hydractl.model_inputs.on_device", blocking_on_device):
        found["planted"] = stage_requests(f"{STAGES['predict']} --force")
    run(STAGES["predict"].replace("p.jsonl", "cpu.jsonl"), device="cpu")
    found["probabilities"] = {file: probabilities(file) for file in ("p.jsonl", "cpu.jsonl")}
    torch.cuda.empty_cache()
    os.environ["MEGABYTES"] = "1"
    found["short"] = {name: run(f"{words} --force") for name, words in STAGES.items()}
    print(json.dumps(found))


def run(words: str, *, device: str = "cuda:1") -> tuple[int, str]:
    """Run a command and return exit code and standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), values():
        code = command([*words.split(), "--batch-size", "8", "--device", device])
    return code, said.getvalue()


def stage_requests(words: str) -> dict[str, object]:
    """Run a command and return exit code, messages, used devices, and number of waits by function."""
    with counts(Path()) as found, waits() as waited:
        code, said = run(words)
    devices = found.devices(LAUNCHES) | found.devices(COPIES) | found.devices(ALLOCATIONS)
    return {"code": code, "said": said, "devices": sorted(devices), "waits": waited}


def blocking_on_device(
    tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Replacement for `on_device` with a blocking copy and a kernel on another device."""
    torch.zeros(4, device="cuda:0")
    return tensor.to(device, dtype)


def probabilities(file: str) -> Mapping[str, float]:
    """Return the probabilities of a file of predictions by row."""
    return {line["row"]: line["probability"] for line in map(json.loads, Path(file).read_text().splitlines())}


if __name__ == "__main__":
    main()
