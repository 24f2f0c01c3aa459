"""Weights that are stored in several dtypes, or in one that nothing computes in: every command runs them in one that holds all."""

from __future__ import annotations

import pytest
import torch

from hydractl.data.reference import DataRef
from hydractl.families.opening import open_model
from hydractl.fusion.loaded import load
from hydractl.manifest.heads import HeadScores
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from support.builders import Sample, base, mask_file
from support.heard import Heard

DATA = "digits::split=test,classes=0-6,limit=14"
STORED = {
    "fp16 and fp32": lambda name: torch.float16 if name.startswith("blocks.1.") else torch.float32,
    "fp16 and bf16": lambda name: torch.float16 if "norm" in name else torch.bfloat16,
    "8 bits": lambda _: torch.float8_e4m3fn,
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.newer if n == "8 bits" else ()) for n in STORED],
)
def model(request, tmp_path_factory):
    kind, sample = STORED[request.param], base()
    state = {n: t.to(kind(n)) if t.is_floating_point() else t for n, t in sample.state.items()}
    return Sample(sample.header, state).save(tmp_path_factory.mktemp("dtypes") / "base.st")


def opened(path):
    return open_model(str(path))


def dtypes(path):
    return {name: spec.dtype for name, spec in opened(path).checkpoint.specs.items()}


def values(path, heard=None, **changes):
    data = DataRef.parse(DATA)
    config = EvalConfig(model=str(path), data=data, latency=False, bootstrap=0, device="cpu", **changes)
    return run_eval(config, heard or Heard()).document.rows[0].values


def test_it_is_measured_and_scored_as_in_fp32(model, tmp_path):
    heard, towers = Heard(), []
    assert values(model, heard) == values(model, dtype="fp32")
    kinds = sorted({*dtypes(model).values()})
    said = (
        f"its weights are stored as {', '.join(f'`{k}`' for k in kinds)}; it runs in the least that holds all"
    )
    assert [said in warning for warning in heard.warnings] == [True] * (len(kinds) > 1)

    for dtype in (None, "fp32"):
        out = tmp_path / f"{dtype}.json"
        run_score(
            ScoreConfig(model=str(model), method="michel", data=DATA, device="cpu", dtype=dtype, out=out)
        )
        towers.append(HeadScores.read(out).towers)
    assert towers[0] == towers[1]


def test_what_is_made_of_it_stays_as_it_is_stored(model, tmp_path):
    for i, keep in enumerate((((0, 1), (2,), (0, 3)), ((0, 1), (3,), (1,)))):
        mask = mask_file(tmp_path / "mask.json", opened(model).header, *keep)
        run_prune(PruneConfig(model=str(model), masks=(mask,), out=tmp_path / f"{i}.st"))
    members, out = tuple(str(tmp_path / f"{i}.st") for i in range(2)), tmp_path / "hydra.st"
    gap = run_fuse(FuseConfig(models=members, out=out)).gap

    assert gap.logits < 1e-5
    assert dtypes(members[0]) == dtypes(out) == dtypes(model)
    parameters = [*load(out).parameters()]
    assert {p.dtype for p in parameters} == {torch.float32}
    stored = opened(out).checkpoint.tensors().values()
    assert sum(p.numel() for p in parameters) == sum(
        t.numel() for t in stored
    )  # what is shared is there once


def test_one_dtype_is_made_of_all(model, tmp_path):
    mask = mask_file(tmp_path / "mask.json", opened(model).header, (0,), (1,), (2,))
    run_prune(PruneConfig(model=str(model), masks=(mask,), dtype="bf16", out=tmp_path / "m.st", verify=False))
    assert {*dtypes(tmp_path / "m.st").values()} == {"BF16"}
