"""Checkpoints with mixed dtypes, or with a storage-only dtype: commands compute in a wider common dtype."""

from __future__ import annotations

from math import log

import pytest
import torch

from hydractl.data.reference import DataRef
from hydractl.families.base import SCALE
from hydractl.families.open_model import open_model
from hydractl.families.registry import family_of
from hydractl.manifest.head_mask import HeadImportance, HeadMask
from hydractl.prediction.loaded_model import load
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from support.builders import Sample, base, mask_file
from support.progress_log import ProgressLog
from support.variants import VARIANTS

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


def values(path, progress_log=None, **changes):
    data = DataRef.parse(DATA)
    config = EvalConfig(model=str(path), data=data, latency=False, bootstrap=0, device="cpu", **changes)
    return run_eval(config, progress_log or ProgressLog()).document.rows[0].values


@pytest.mark.spread(cases=2)
def test_it_is_measured_and_scored_as_in_fp32(model, tmp_path):
    progress_log, towers = ProgressLog(), []
    assert values(model, progress_log) == values(model, dtype="fp32")
    kinds = sorted({*dtypes(model).values()})
    said = f"its weights are stored as {', '.join(f'`{k}`' for k in kinds)}; it runs in the smallest data type that can represent all of them"
    assert [said in warning for warning in progress_log.warnings] == [True] * (len(kinds) > 1)

    for dtype in (None, "fp32"):
        out = tmp_path / f"{dtype}.json"
        run_score(
            ScoreConfig(model=str(model), method="taylor", data=DATA, device="cpu", dtype=dtype, out=out)
        )
        towers.append(HeadImportance.read(out).towers)
    assert towers[0] == towers[1]


@pytest.mark.spread(cases=1)
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
    assert sum(p.numel() for p in parameters) == sum(t.numel() for t in stored)  # shared tensors count once


def test_one_dtype_is_made_of_all(model, tmp_path):
    mask = mask_file(tmp_path / "mask.json", opened(model).header, (0,), (1,), (2,))
    run_prune(PruneConfig(model=str(model), masks=(mask,), dtype="bf16", out=tmp_path / "m.st", verify=False))
    assert {*dtypes(tmp_path / "m.st").values()} == {"BF16"}


PAIRS = {
    v.family: v for v in VARIANTS if v.family in {"transformers-clip", "transformers-siglip", "openclip"}
}


@pytest.mark.more
@pytest.mark.newer  # older libraries lack some variants
def test_models_of_images_and_texts_have_exact_tensors():
    for row in VARIANTS:
        sample = base(row)
        exact = family_of(sample.header.architecture).exact & {*sample.state}
        assert exact == ({*SCALE} & {*sample.state}), row
        assert bool(exact) == (len(sample.header.architecture.towers) == 2), row


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("row", PAIRS.values(), ids=PAIRS)
@torch.inference_mode()
def test_what_multiplies_cosines_is_never_rounded(tmp_path, row):
    """The logit scale stays float32 everywhere: log(100) rounded to bf16 is the logarithm of 98.9."""
    wanted = {}
    for i in range(2):
        sample = base(row, seed=i)
        given = {n: torch.full_like(t, log(100 + i)) for n, t in sample.state.items() if n in SCALE}
        path = Sample(sample.header, sample.state | given).save(tmp_path / f"base-{i}.st")
        mask = HeadMask(
            towers=sample.header.masks[0], architecture=sample.header.architecture.name, base=None
        )
        (tmp_path / f"{i}.json").write_text(mask.to_json())
        run_prune(
            PruneConfig(
                model=str(path), masks=(tmp_path / f"{i}.json",), dtype="bf16", out=tmp_path / f"{i}.st"
            )
        )
        wanted |= {(i, n): t for n, t in given.items()}
    members, out = tuple(str(tmp_path / f"{i}.st") for i in range(2)), tmp_path / "hydra.st"
    run_fuse(FuseConfig(models=members, out=out, mlp="keep"))

    for path in (*members, out):
        kinds = {n: kind for n, kind in dtypes(path).items() if kind != "I64"}
        assert {n for n, kind in kinds.items() if kind == "F32"} == {n for _, n in wanted}
        assert {*kinds.values()} == {"F32", "BF16"}
    stored, hydra, inputs = opened(out).checkpoint, load(out), base(row).inputs(batch=2)
    for (i, name), number in wanted.items():
        assert torch.equal(opened(members[i]).checkpoint.tensor(name), number)
        assert torch.equal(stored.tensor(name)[i].reshape(number.shape), number)
    for i, path in enumerate(members):
        for model in (load(path), load(tmp_path / f"base-{i}.st", dtype="bf16")):
            assert model.dtype == hydra.dtype == torch.bfloat16
            (answer,) = model.answers
            torch.testing.assert_close(answer.scale.reshape(()), torch.tensor(100.0 + i), rtol=1e-5, atol=0)
        alone, together = (load(p, dtype="fp32").member_logits(inputs) for p in (path, out))
        torch.testing.assert_close(together[i], alone[0], rtol=1e-5, atol=1e-4)
