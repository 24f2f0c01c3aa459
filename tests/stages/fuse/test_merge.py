"""`fuse --trunk`: averaged tensors, refused merges, and origins of mergeable members."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.base import position_of
from hydractl.families.open_model import open_model
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.header import Fate
from hydractl.prediction.loaded_model import load
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig, Measuring
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.training.recipe import Recipe
from support.builders import base, scores_file, sha
from support.progress_log import ProgressLog
from support.variants import PLAIN

TRAIN, VAL = (DataRef.parse(f"digits::split={name},classes=0-6,limit=24") for name in ("train", "val"))


def fuse(paths, out, **changes):
    return run_fuse(FuseConfig(models=tuple(map(str, paths)), out=out, **changes))


def saved(folder, samples):
    return [sample.save(folder / f"{i}.st") for i, sample in enumerate(samples)]


def from_one_base(count=3):
    """Return fine-tuned members of one base, with all heads."""
    one = base(PLAIN)
    header = one.header.model_copy(update={"base": sha("base")})
    return [replace(one, header=header).tuned(i) for i in range(count)]


def fates(path):
    plan = open_model(str(path)).header.plan
    assert plan is not None
    return {fate: {n for n, found in plan.fates.items() if found == fate} for fate in Fate}


def finetuned(model, out, seed, **changes):
    given = Recipe(steps=2, batch_size=8, warmup=0, **changes)
    run_finetune(FinetuneConfig(
        model=str(model), train=TRAIN, val=VAL, out=out, recipe=given, seed=seed, device="cpu",
        head_seed=seed if given.reset_head else None,
    ))  # fmt: skip
    return out


@pytest.mark.more
def test_the_paper_s_pipeline_with_a_merged_trunk(tmp_path):
    """Members are pruned from block 1 on and fine-tuned separately: only block 0 runs once for all."""
    model = base(PLAIN).save(tmp_path / "base.st")
    scores = scores_file(tmp_path / "s.json", ((0.4, 0.3, 0.2, 0.1),) * 3)
    pruned = run_prune(PruneConfig(
        model=str(model), out=tmp_path / "m-{i}.st", scores=(scores,), budget=HeadBudget(remove=4), members=2, pool=9,
        trunk=1,
    ))  # fmt: skip
    members = [finetuned(m.path, tmp_path / f"t-{i}.st", i) for i, m in enumerate(pruned.members)]

    report = fuse(members, tmp_path / "hydra.st", trunk=1)

    found = fates(tmp_path / "hydra.st")
    assert report.trunk == 1
    assert report.gap is not None
    assert 0 < report.gap.probabilities < 1
    assert {n.split(".")[1] for n in found[Fate.MERGED] if n.startswith("blocks.")} == {"0"}
    assert {"pos_embed", "cls_token", "patch_embed.proj.weight"} <= found[Fate.MERGED]
    assert {n.split(".")[0] for n in found[Fate.GROUPED]} == {"blocks", "norm", "head"}
    with pytest.raises(
        CheckpointError, match=r"t-1\.st: keeps other heads than .*t-0\.st in block 1"
    ) as caught:
        fuse(members, tmp_path / "more.st", trunk=2)
    assert "`--trunk 2`" in str(caught.value.hint)
    assert "`--trunk 1`" in str(caught.value.hint)


def test_checkpoints_tuned_from_one_file_with_heads_of_their_own(tmp_path):
    model = base(PLAIN).save(tmp_path / "base.st")
    members = [finetuned(model, tmp_path / f"{i}.st", i, reset_head=True) for i in range(3)]

    report = fuse(members, tmp_path / "hydra.st", trunk=3)

    assert report.trunk == report.layers == 3
    assert fates(tmp_path / "hydra.st")[Fate.GROUPED] == {
        "norm.weight",
        "norm.bias",
        "head.weight",
        "head.bias",
    }
    options = open_model(str(tmp_path / "hydra.st")).header.made_by.options
    assert options == {"mlp": "keep", "merge_trunk": 3}


def test_models_of_two_random_starts_have_no_mean(tmp_path):
    members = saved(tmp_path, [base(PLAIN), base(PLAIN, seed=1)])
    with pytest.raises(CheckpointError, match="does not record which weights it was trained from") as caught:
        fuse(members, tmp_path / "hydra.st", trunk=1)
    assert "`--force-merge`" in str(caught.value.hint)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "hydra.st").exists()

    fuse(members, tmp_path / "hydra.st", trunk=1, force_merge=True)

    assert open_model(str(tmp_path / "hydra.st")).header.made_by.options["force_merge"] is True


def test_models_of_two_random_starts_may_own_every_block(tmp_path):
    """Without averaging, the hydra equals the two models."""
    paths = saved(tmp_path, [base(PLAIN), base(PLAIN, seed=1)])

    report = fuse(paths, tmp_path / "hydra.st", trunk=0, own_blocks=True)

    assert report.tensors["merged"] == 0
    assert report.gap.logits <= 1e-5


def test_another_base_is_told_from_none(tmp_path):
    samples = from_one_base(2)
    samples[1] = replace(samples[1], header=samples[1].header.model_copy(update={"base": sha("another")}))
    with pytest.raises(CheckpointError, match=r"0\.st; averaging unrelated weights gives a useless model"):
        fuse(saved(tmp_path, samples), tmp_path / "hydra.st", trunk=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"trunk": 0},
            [
                (
                    "`--trunk 0` averages nothing, not even MLPs: every tensor that "
                    "differs is stored for each member; leave it out or add `--mlp merge` to "
                    "average MLPs"
                )
            ],
        ),
        ({"trunk": 0, "mlp": "keep"}, []),
        ({"trunk": 0, "mlp": "merge"}, []),
        (
            {"trunk": 1},
            [("`--trunk 1` averages nothing, because members are equal before that block")],
        ),
        ({"trunk": 2}, []),
        ({"trunk": 1, "own_blocks": True}, []),
        ({}, []),
    ],
)
def test_a_merge_that_saves_nothing_says_so(tmp_path, changes, said):
    one, other = from_one_base(2)
    same = {name: one.state[name] for name in one.state if position_of(one.family, name).layer in {None, 0}}
    paths = saved(tmp_path, [one, replace(other, state=other.state | same)])

    config = FuseConfig(models=tuple(map(str, paths)), out=tmp_path / "hydra.st", verify=False, **changes)

    run_fuse(config, ear := ProgressLog())

    assert len(ear.warnings) == len(said)
    assert all(map(str.startswith, ear.warnings, said))


def test_equal_members_are_exact(tmp_path):
    one = base(PLAIN).pruned((0, 1), (2,), ())
    report = fuse(saved(tmp_path, [one, one]), tmp_path / "hydra.st", trunk=2)
    assert report.tensors["merged"] == report.tensors["grouped"] == 0
    inputs = one.inputs()
    with torch.inference_mode():
        assert torch.equal(load(tmp_path / "hydra.st").member_logits(inputs)[1], one.model()(inputs))


@pytest.mark.parametrize(("changes", "layers"), [
    ({"trunk": 2}, {"0", "1"}),
    ({"trunk": 2, "mlp": "merge"}, {"0", "1", "2"}),
    ({"trunk": 0}, set()),
    ({}, {"0", "1", "2"}),
], ids=["trunk", "trunk-and-mlps", "nothing", "mlps"])  # fmt: skip
def test_mlps_of_own_blocks_are_averaged_only_if_asked(tmp_path, changes, layers):
    fuse(saved(tmp_path, from_one_base(2)), tmp_path / "hydra.st", verify=False, **changes)
    merged = fates(tmp_path / "hydra.st")[Fate.MERGED]
    assert {name.split(".")[1] for name in merged if ".mlp." in name} == layers
    assert ("pos_embed" in merged) is bool(changes.get("trunk"))


def test_whole_numbers_that_differ_have_no_mean(tmp_path):
    one, other = from_one_base(2)
    for i, sample in enumerate((one, other)):
        sample.state["pos_embed"] = torch.full_like(sample.state["pos_embed"], i, dtype=torch.int64)
    with pytest.raises(CheckpointError, match="tensor `pos_embed` differs between the members and is I64"):
        fuse(saved(tmp_path, [one, other]), tmp_path / "hydra.st", trunk=1)


def test_more_blocks_than_there_are(tmp_path):
    with pytest.raises(UsageError, match=re.escape("`--trunk 4`: must be in 0..3; the model has 3 blocks")):
        fuse(saved(tmp_path, from_one_base(2)), tmp_path / "hydra.st", trunk=4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trunk": 1, "mlp": "merge"}, "`--mlp merge` and `--own-blocks` exclude each other"),
        ({}, "`--own-blocks` needs the number of blocks"),
        ({"measuring": Measuring(val=VAL)}, "`--own-blocks` needs the number of blocks"),
    ],
)
def test_averaging_what_members_own(changes, said):
    with pytest.raises(UsageError, match=said):
        FuseConfig(models=("a.st",), out=Path("h.st"), own_blocks=True, **changes)


@pytest.mark.parametrize("changes", [{"mlp": "keep"}, {"trunk": 0}, {"trunk": 0, "own_blocks": True}])
def test_insisting_on_a_merge_that_is_none(changes):
    with pytest.raises(UsageError, match="`--force-merge` has no effect"):
        FuseConfig(models=("a.st",), out=Path("h.st"), force_merge=True, **changes)
