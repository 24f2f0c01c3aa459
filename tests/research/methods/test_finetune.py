"""`finetune --method`: ordinary checkpoints, no effect of interruptions, and conflicts of options."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.errors import OutputExists, UsageError
from hydractl.evaluation.options import NamedModels
from hydractl.families.base import position_of
from hydractl.families.open_model import load_model, open_model
from hydractl.families.tower import blank_inputs
from hydractl.metrics.cost import count_macs
from hydractl.research.methods.options import TrainingOptions
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training.recipe import Recipe
from support.builders import base
from support.progress_log import InterruptedProgress

TRAIN = "digits::split=train,classes=0-6,limit=32"
VAL = "digits::split=val,classes=0-6,limit=24"
RECIPE = Recipe(lr=(1e-2,), epochs=2, batch_size=16, dropout=0.1)
ONE_MODEL = ("lora-ensemble::rank=2", "singular-values")


def config(out, model, method, **changes):
    given = {"train": DataRef.parse(TRAIN), "val": DataRef.parse(VAL), "recipe": RECIPE, "device": "cpu"}
    options = {"method": method, "order_seed": changes.pop("order_seed", None)}
    return FinetuneConfig(
        model=str(model),
        out=out,
        extensions=() if method is None else (TrainingOptions(**options),),
        **(given | changes),
    )


def tensors(path):
    return Checkpoint.open(path).tensors()


def evaluated(*paths):
    """Return the metrics of a row with one or several models."""
    rows = (NamedModels.parse(f"row={','.join(map(str, paths))}"),) if len(paths) > 1 else ()
    given = {"latency": False, "bootstrap": 0, "device": "cpu", "dtype": "fp32"}
    asked = EvalConfig(model=str(paths[0]), data=DataRef.parse(VAL), compare=rows, **given)
    return run_eval(asked).document.rows[-1].values


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return base().save(tmp_path_factory.mktemp("methods") / "base.st")


@pytest.mark.parametrize("method", ONE_MODEL)
def test_the_model_that_is_written_is_the_one_that_was_measured(tmp_path, model, method):
    report = run_finetune(config(tmp_path / "out.st", model, method))
    model_file = open_model(str(tmp_path / "out.st"))
    step = model_file.header.made_by

    assert Checkpoint.open(tmp_path / "out.st").specs == Checkpoint.open(model).specs
    assert step.options["method"].startswith(method)
    assert step.results["trained_parameters"] == report.trained_parameters
    held = tensors(model)
    own = {n for n, t in tensors(tmp_path / "out.st").items() if not torch.equal(t, held[n])}
    of_blocks = {n for n in own if position_of(model_file.family, n).layer is not None}
    assert of_blocks
    assert {position_of(model_file.family, n).part for n in own - of_blocks} == {"head"}
    assert evaluated(tmp_path / "out.st")["nll"].value == pytest.approx(report.nll, abs=1e-5)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("method", ["lora-ensemble", "oba::keep=0.6,batches=2"])
def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path, model, method):
    run_finetune(config(tmp_path / "whole.st", model, method))
    asked = config(tmp_path / "cut.st", model, method, save_every=1)
    with pytest.raises(KeyboardInterrupt):
        run_finetune(asked, InterruptedProgress(after=2))
    report = run_finetune(asked)

    assert report.resumed_from
    assert (tmp_path / "cut.st").read_bytes() == (tmp_path / "whole.st").read_bytes()


def test_the_state_of_a_run_by_another_method_is_not_gone_on_with(tmp_path, model):
    asked = config(tmp_path / "cut.st", model, "lora-ensemble", save_every=1)
    with pytest.raises(KeyboardInterrupt):
        run_finetune(asked, InterruptedProgress(after=2))

    for other in ("lora-ensemble::rank=3", "singular-values", None):
        with pytest.raises(OutputExists, match="an unfinished run with other options"):
            run_finetune(config(tmp_path / "cut.st", model, other))


def test_layers_decay_and_blocks_stay_with_a_method_too(tmp_path, model):
    recipe = replace(RECIPE, layer_decay=0.5, last_blocks=1)
    run_finetune(config(tmp_path / "out.st", model, "lora-ensemble", recipe=recipe))
    held, found = tensors(model), tensors(tmp_path / "out.st")

    assert {n for n in held if not torch.equal(held[n], found[n])} == {
        "blocks.2.attn.qkv.weight", "blocks.2.attn.proj.weight", "head.weight", "head.bias",
    }  # fmt: skip


def test_a_member_and_one_without_heads_in_a_layer_train(tmp_path):
    member = base().pruned((0, 1), (), (2,)).save(tmp_path / "member.st")
    run_finetune(config(tmp_path / "out.st", member, "lora-ensemble"))
    held, found = tensors(member), tensors(tmp_path / "out.st")

    changed = {n for n in held if not torch.equal(held[n], found[n])}
    assert {n for n in changed if "attn" in n} == {
        f"blocks.{layer}.attn.{part}.weight" for layer in (0, 2) for part in ("qkv", "proj")
    }


def test_weights_that_a_loss_can_do_without_are_zero(tmp_path, model):
    """The masks depend on training batches, and not on gradient accumulation."""
    method = "oba::keep=0.6,batches=1"
    report = run_finetune(
        config(tmp_path / "out.st", model, method, recipe=replace(RECIPE, weight_decay=0.1))
    )
    run_finetune(config(tmp_path / "cut.st", model, method, recipe=replace(RECIPE, accumulate=4)))
    run_finetune(config(tmp_path / "other.st", model, method, order_seed=3))
    held = tensors(model)
    found, cut, other = (tensors(tmp_path / f"{name}.st") for name in ("out", "cut", "other"))
    matrices = [n for n in found if "blocks" in n and n.endswith("weight") and found[n].ndim == 2]

    assert sum(found[n].count_nonzero().item() for n in matrices) == int(
        0.6 * sum(found[n].numel() for n in matrices)
    )
    assert all(found[n].count_nonzero() == found[n].numel() for n in found if n not in matrices)
    assert not any(torch.equal(found[n], held[n]) for n in found)
    assert all(torch.equal(found[n] == 0, cut[n] == 0) for n in matrices)
    assert any(not torch.equal(found[n] == 0, other[n] == 0) for n in matrices)
    assert report.trained_parameters + report.frozen_parameters == sum(t.numel() for t in held.values())


def test_a_run_says_what_training_the_weights_took(tmp_path, model):
    """3 epochs of 32 samples and a batch of 20, with three forward passes per step."""
    recipe = replace(RECIPE, epochs=None, steps=7, batch_size=20)
    report = run_finetune(config(tmp_path / "out.st", model, "lora-ensemble", recipe=recipe))
    model_file = open_model(str(tmp_path / "out.st"))
    macs = count_macs(load_model(model_file), blank_inputs(model_file.header.preprocess, 1, device="cpu"))

    assert (
        report.training_macs == model_file.header.made_by.results["training_macs"] == 3 * (3 * 32 + 20) * macs
    )


def test_members_of_a_batch_ensemble_differ_by_an_outer_product_and_biases(tmp_path, model):
    """Members share all other tensors exactly, and all outputs appear together."""
    asked = config(tmp_path / "be-{i}.st", model, "batch-ensemble::members=3", save_every=1)
    with pytest.raises(KeyboardInterrupt):
        run_finetune(asked, InterruptedProgress(after=2))
    assert not [*tmp_path.glob("*.st")]
    report = run_finetune(asked)
    run_finetune(config(tmp_path / "again-{i}.st", model, "batch-ensemble::members=3"))

    paths = [tmp_path / f"be-{i}.st" for i in range(3)]
    assert report.paths == tuple(paths)
    assert [p.read_bytes() for p in paths] == [(tmp_path / f"again-{i}.st").read_bytes() for i in range(3)]
    first, second, third = map(tensors, paths)
    same = {n for n in first if torch.equal(first[n], second[n])}
    linear = {
        n
        for n in first
        if n.endswith(("qkv.weight", "proj.weight", "fc1.weight", "fc2.weight")) and "block" in n
    }
    linear.add("head.weight")
    assert same == first.keys() - linear - {n.replace("weight", "bias") for n in linear}
    for name in linear:
        for ratio in (second[name] / first[name], third[name] / first[name]):
            values = torch.linalg.svdvals(ratio.double())
            assert values[1] < 1e-4 * values[0]
    assert all(not torch.equal(first[n], tensors(model)[n]) for n in first)
    row = evaluated(*paths)
    assert row["nll"].value == pytest.approx(report.nll, abs=1e-5)
    # 2 epochs of 32 samples, three passes each
    assert row["training_macs"].value == report.training_macs == 3 * 2 * 32 * row["macs"].value
    vectors = sum(sum(first[name].shape) for name in linear)
    biases = sum(first[name.replace("weight", "bias")].numel() for name in linear)
    assert report.trained_parameters == sum(t.numel() for t in first.values()) + 3 * vectors + 2 * biases
    assert report.frozen_parameters == 0


def test_members_that_train_together_as_one_alone_would(tmp_path, model):
    """Members without own values have equal losses, so joint training equals training a single model."""
    recipe = replace(RECIPE, dropout=0.0, optimizer="sgd", lr=(1e-2,), steps=1, epochs=None, warmup=0)
    run_finetune(config(tmp_path / "be-{i}.st", model, "batch-ensemble::members=2,spread=0", recipe=recipe))
    run_finetune(config(tmp_path / "one.st", model, None, recipe=recipe))
    held, member, one = (tensors(p) for p in (model, tmp_path / "be-1.st", tmp_path / "one.st"))
    shared = [n for n in one if "norm" in n or "embed" in n or "token" in n]

    assert shared
    for name in shared:
        torch.testing.assert_close(member[name] - held[name], one[name] - held[name], atol=1e-6, rtol=1e-3)


@pytest.fixture(scope="module")
def copies(model):
    """Return a hydra of equal members that share everything before the classifiers."""
    out = model.with_name("copies.st")
    run_fuse(FuseConfig(models=(str(model),) * 3, out=out, trunk=3, own_blocks=True))
    return out


@pytest.mark.more
def test_members_that_see_images_side_by_side_are_a_hydra_of_one_pass(tmp_path, model, copies):
    """A resumed run gives the same bytes. The trunk contains all blocks, and the report equals an evaluation."""
    recipe = replace(RECIPE, epochs=None, steps=5, batch_size=20)
    asked = config(tmp_path / "out.st", copies, "mimo::repeat=2", save_every=1, recipe=recipe)
    with pytest.raises(KeyboardInterrupt):
        run_finetune(asked, InterruptedProgress(after=2))
    report = run_finetune(asked)
    run_finetune(config(tmp_path / "whole.st", copies, "mimo::repeat=2", recipe=recipe))
    header, row = open_model(str(tmp_path / "out.st")).header, evaluated(tmp_path / "out.st")
    before, after = tensors(copies), tensors(tmp_path / "out.st")

    assert report.resumed_from
    assert (tmp_path / "out.st").read_bytes() == (tmp_path / "whole.st").read_bytes()
    assert header.plan.trunk == 3
    assert Checkpoint.open(tmp_path / "out.st").specs == Checkpoint.open(copies).specs
    assert not any(torch.equal(before[n], after[n]) for n in after)
    assert not torch.equal(*after["head.weight"].chunk(3)[:2])
    assert row["nll"].value == pytest.approx(report.nll, abs=1e-5)
    # 2 epochs of 32 samples and a batch of 20, each image twice, three passes
    assert report.training_macs == 3 * 2 * (2 * 32 + 20) * row["macs"].value


def test_what_does_not_see_images_side_by_side_is_refused(tmp_path, model, copies):
    apart = tmp_path / "apart.st"
    run_fuse(FuseConfig(models=(str(model),) * 2, out=apart, trunk=2, own_blocks=True))
    for wrong in (model, apart):
        with pytest.raises(UsageError, match="is not a hydra whose members share every block") as refused:
            run_finetune(config(tmp_path / "out.st", wrong, "mimo"))
        assert "--trunk 3 --own-blocks" in str(refused.value.hint)
    with pytest.raises(UsageError, match="none of the trained layers can use the method"):
        run_finetune(
            config(tmp_path / "out.st", copies, "mimo", recipe=replace(RECIPE, train_parts=("head",)))
        )
    with pytest.raises(UsageError, match="exclude each other: members of that method train on labels only"):
        config(tmp_path / "out.st", copies, "mimo", teacher=("a.st",))


def test_a_member_of_a_packed_ensemble_is_a_narrow_model_from_random_weights(tmp_path):
    """The width is 2 / 3 of the named width. Training that narrow architecture directly gives equal tensors."""
    tiny = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=48,depth=2,num_heads=4,num_classes=7"
    report = run_finetune(config(tmp_path / "packed.st", tiny, "packed::members=3,alpha=2"))
    run_finetune(config(tmp_path / "narrow.st", tiny.replace("=48", "=32"), None))
    found, narrow = tensors(tmp_path / "packed.st"), tensors(tmp_path / "narrow.st")
    step = open_model(str(tmp_path / "packed.st")).header.made_by

    assert found.keys() == narrow.keys()
    assert all(torch.equal(found[n], narrow[n]) for n in found)
    assert found["blocks.0.mlp.fc1.weight"].shape == (128, 32)
    assert step.options["method"] == "packed::members=3,alpha=2"
    assert report.frozen_parameters == 0
    with pytest.raises(UsageError, match="2 x 44 / 3, which is not divisible by 4 heads") as refused:
        run_finetune(config(tmp_path / "x.st", tiny.replace("=48", "=44"), "packed"))
    assert "embed_dim=48" in str(refused.value.hint)
    with pytest.raises(UsageError, match="more than one tower"):
        run_finetune(config(tmp_path / "x.st", "arch:clip", "packed"))
    with pytest.raises(
        UsageError, match="has weights, but its members are narrow models that train from random weights"
    ):
        config(tmp_path / "x.st", "base.st", "packed")


def test_in_bf16_what_is_told_is_of_the_weights_as_written(tmp_path):
    model = base().cast(torch.bfloat16).save(tmp_path / "model.st")
    report = run_finetune(config(tmp_path / "out.st", model, "lora-ensemble"))
    assert {t.dtype for t in tensors(tmp_path / "out.st").values()} == {torch.bfloat16}
    assert evaluated(tmp_path / "out.st")["nll"].value == pytest.approx(report.nll, abs=1e-6)


def test_what_does_not_go_together_is_refused(tmp_path, model, monkeypatch):
    hydra = tmp_path / "hydra.st"
    run_fuse(FuseConfig(models=(str(model), str(model)), out=hydra))
    with pytest.raises(UsageError, match="is a hydra, but the method trains a single model"):
        run_finetune(config(tmp_path / "out.st", hydra, "lora-ensemble"))
    with pytest.raises(UsageError, match="none of the trained layers can use the method"):
        run_finetune(
            config(tmp_path / "out.st", model, "lora-ensemble", recipe=replace(RECIPE, train_parts=("head",)))
        )
    monkeypatch.setattr("hydractl.stages.finetune.run.launcher_uses_fsdp", lambda: True)
    with pytest.raises(UsageError, match="`--method` and `--use_fsdp` exclude each other"):
        run_finetune(config(tmp_path / "out.st", model, "lora-ensemble"))
    assert not (tmp_path / "out.st").exists()


def test_a_method_excludes_repulsion(tmp_path):
    with pytest.raises(UsageError, match="`--repulsion` and `--method` exclude each other"):
        config(tmp_path / "out.st", "base.st", "lora-ensemble", repulsion=0.1)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("lora", "`--method lora`: unknown"),
        ("lora-ensemble::rank=0", "`rank 0`: must be at least 1"),
        ("lora-ensemble::rank=x", "`x` is not a whole number"),
        ("lora-ensemble::alpha=nan", "`nan` is not finite"),
        ("lora-ensemble::rank=1,rank=2", "`rank` appears twice"),
        ("singular-values::rank=1", "has no option `rank`"),
        ("singular-values::spread", "expected option=value"),
        ("oba", "`oba` needs `keep=`"),
        ("oba::keep=1", "`keep 1`: must be above 0 and below 1"),
    ],
)
def test_methods_that_are_none(tmp_path, method, said):
    with pytest.raises(UsageError, match=said):
        config(tmp_path / "out.st", "base.st", method)
