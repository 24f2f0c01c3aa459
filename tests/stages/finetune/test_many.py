"""`finetune` with several processes: gradient checkpointing, autocast, sharded weights (FSDP)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.errors import UsageError
from hydractl.runtime import one_thread
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training import accelerator
from support.builders import base
from support.ranks import environment, launcher
from support.sharded import config
from support.variants import TIMM_VIT, TINY, Variant

MEANS, BF16 = {"ema": 0.9}, {"precision": "bf16", "steps": 2}
JOBS = {
    "parts": {"model": "member.st", "val": 300, "recipe": MEANS, "given": {}, "shards": True, "cut": False},
    "parts-cut": {"model": "member.st", "val": 300, "recipe": MEANS, "given": {}, "shards": True, "cut": True},
    "left": {
        "model": "member.st", "val": 300, "recipe": MEANS, "given": {}, "shards": True, "cut": True, "left": True,
    },
    "parts-hydra": {
        "model": "hydra.st", "recipe": {"steps": 2}, "given": {"gradient_checkpointing": True}, "shards": True, "cut": False,
    },
    "bf16": {"model": "member.st", "recipe": BF16, "given": {}, "shards": False, "cut": False},
    "bf16-again": {
        "model": "member.st", "recipe": BF16, "given": {"gradient_checkpointing": True},
        "shards": False, "cut": False,
    },
}  # fmt: skip

sharded = pytest.mark.newer  # torch 2.5 cannot inspect sharded weights


@pytest.fixture(scope="module")
def output_folder(tmp_path_factory, python):
    """Folder with the models and the outputs of two processes."""
    folder = tmp_path_factory.mktemp("many")
    # The last layer has no heads, so its q/k norms are unused.
    variant = Variant("timm-vit", "qk-norm", TIMM_VIT["qk-norm"][0], TINY | {"qk_norm": True})
    base(variant).pruned((0, 1), (1, 2, 3), ()).save(folder / "member.st")
    for i, keep in enumerate((((0, 1), (1, 2), (0,)), ((0, 1), (0, 3), (2, 3)))):
        base().pruned(*keep).tuned(i).save(folder / f"{i}.st")
    members = tuple(str(folder / f"{i}.st") for i in range(2))
    run_fuse(FuseConfig(models=members, out=folder / "hydra.st", mlp="keep", verify=False))
    jobs = [
        {**job, "model": str(folder / job["model"]), "out": str(folder / f"{name}.st")}
        for name, job in JOBS.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [*launcher(2, python()), "-m", "support.sharded", "jobs.json"], cwd=folder,
        env=environment(PYTHON_EXEC=str(python())), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return {name: t for name, t in Checkpoint.open(path).tensors().items() if t.numel()}


def largest_difference(one, other):
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def run_in_one_process(folder, name, out):
    """Run a job in this process, from the start or from the saved state of other processes."""
    job = {k: v for k, v in JOBS[name].items() if k not in {"shards", "cut", "left"}}
    with one_thread():
        return run_finetune(config(**{**job, "model": folder / job["model"], "out": out}))


@pytest.mark.spread(cases=1)
@sharded
@pytest.mark.parametrize("name", ["parts", "parts-hydra"])
def test_weights_in_parts_train_as_whole_ones_do(output_folder, name, tmp_path):
    out = tmp_path / "alone.st"
    run_in_one_process(output_folder, name, out)

    assert largest_difference(tensors(out), tensors(output_folder / f"{name}.st")) < 1e-5
    assert largest_difference(tensors(out), tensors(output_folder / JOBS[name]["model"])) > 1e-3
    whole, together = (
        Checkpoint.open(path).header.made_by.results for path in (out, output_folder / f"{name}.st")
    )
    assert together == pytest.approx(whole, abs=1e-5)


@sharded
def test_what_was_cut_off_goes_on_from_its_parts(output_folder):
    assert (output_folder / "parts-cut.st").read_bytes() == (output_folder / "parts.st").read_bytes()


@sharded
def test_one_process_goes_on_from_what_several_left_in_parts(output_folder):
    report = run_in_one_process(output_folder, "left", output_folder / "left.st")

    assert report.resumed_from == 2
    assert largest_difference(tensors(output_folder / "left.st"), tensors(output_folder / "parts.st")) < 1e-5


@sharded
def test_blocks_that_run_again_under_autocast_change_no_bit_for_several_processes(output_folder):
    assert (output_folder / "bf16-again.st").read_bytes() == (output_folder / "bf16.st").read_bytes()
    assert largest_difference(tensors(output_folder / "bf16.st"), tensors(output_folder / "member.st")) > 1e-3


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"FSDP_OFFLOAD_PARAMS": "true"}, {}, "offloading of weights is not supported"),
        pytest.param(
            {}, {"compile": True}, "`--compile` and `--use_fsdp` exclude each other", marks=pytest.mark.newer
        ),
    ],
)
def test_what_parts_cannot_do_is_refused(monkeypatch, tmp_path, settings, options, message):
    for name, value in {"WORLD_SIZE": "2", accelerator.USE_FSDP: "true", **settings}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(UsageError, match=message):
        run_finetune(config("member.st", tmp_path / "out.st", given=options, recipe={}))


def test_compiling_and_running_again_exclude_each_other(tmp_path):
    both = {"compile": True, "gradient_checkpointing": True}

    with pytest.raises(UsageError, match="exclude each other"):
        config("member.st", tmp_path / "out.st", given=both, recipe={})
