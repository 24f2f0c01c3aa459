"""`fuse`: shared, merged and grouped tensors; refusals before tensors are read."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hydractl.checkpoint import Checkpoint, Span
from hydractl.errors import CheckFailed, CheckpointError, HydraError, OutputExists, UsageError
from hydractl.families.open_model import open_model
from hydractl.manifest.guarantees import Threshold
from hydractl.manifest.header import Fate, Kind, Preprocess
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import DTYPES, Sample, base, sha
from support.progress_log import ProgressLog
from support.variants import PLAIN, variant

KEEPS = (((0, 2, 3), (), (1,)), ((0, 2, 3), (1, 2), (0, 3)), ((0, 2, 3), (3,), ()))


def members(folder: Path, *, tuned: bool = False, samples=None) -> list[Path]:
    samples = samples or [base(PLAIN).pruned(*keep) for keep in KEEPS]
    if tuned:
        samples = [s.tuned(i) for i, s in enumerate(samples)]
    return [s.save(folder / f"{i}.st") for i, s in enumerate(samples)]


def fuse(paths, out, **changes):
    return run_fuse(FuseConfig(models=tuple(map(str, paths)), out=out, **changes))


# --- outputs ---------------------------------------------------------------------------------------


def test_fates_trunk_and_bytes(tmp_path):
    paths = members(tmp_path)

    report = fuse(paths, tmp_path / "hydra.st")

    header = open_model(str(tmp_path / "hydra.st")).header
    assert header.plan is not None
    grouped = sorted(n for n, fate in header.plan.fates.items() if fate == Fate.GROUPED)
    parts = ("proj.weight", "qkv.bias", "qkv.weight")
    assert grouped == [f"blocks.{layer}.attn.{part}" for layer in (1, 2) for part in parts]
    assert (header.kind, len(header.masks), header.plan.trunk, report.trunk) == (Kind.HYDRA, 3, 1, 1)
    assert report.tensors == {"shared": len(header.plan.fates) - 6, "merged": 0, "grouped": 6}
    assert sum(report.stored_bytes.values()) == Checkpoint.open(tmp_path / "hydra.st").size_bytes
    assert report.members_bytes == sum(Checkpoint.open(p).size_bytes for p in paths)
    assert report.gap is not None
    assert report.gap.logits <= 1e-5
    assert report.paths == (tmp_path / "hydra.st",)


def test_grouped_tensors_are_the_members_one_after_another(tmp_path):
    paths = members(tmp_path, tuned=True)
    fuse(paths, tmp_path / "hydra.st", mlp="keep")
    hydra, each = Checkpoint.open(tmp_path / "hydra.st"), [Checkpoint.open(p) for p in paths]
    for name, axis in {
        "blocks.1.attn.qkv.weight": 0, "blocks.1.attn.proj.weight": 1, "blocks.0.mlp.fc1.weight": 0,
        "norm.weight": 0, "pos_embed": 0, "head.bias": 0,
    }.items():  # fmt: skip
        assert torch.equal(hydra.tensor(name), torch.cat([c.tensor(name) for c in each], dim=axis))


def test_a_difference_in_the_sign_of_zero_is_a_difference_of_bits(tmp_path):
    one = base(PLAIN)
    samples = [replace(one, state=one.state | {"head.bias": torch.full((7,), v)}) for v in (0.0, -0.0)]
    report = fuse(members(tmp_path, samples=samples), tmp_path / "hydra.st", mlp="keep")
    assert report.tensors["grouped"] == 1


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("mlp", ["merge", "keep"])
def test_dtypes_stay(tmp_path, name, mlp):
    samples = [base(PLAIN).pruned(*k).tuned(i).cast(DTYPES[name]) for i, k in enumerate(KEEPS)]
    fuse(members(tmp_path, samples=samples), tmp_path / "hydra.st", mlp=mlp)
    hydra = Checkpoint.open(tmp_path / "hydra.st")
    assert {hydra.tensor(n).dtype for n in hydra.specs} == {DTYPES[name]}
    if mlp == "merge":
        fc1 = "blocks.0.mlp.fc1.weight"
        mean = torch.stack([s.state[fc1].double() for s in samples]).mean(0).to(DTYPES[name])
        assert torch.equal(hydra.tensor(fc1), mean)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("count", [3, 5])
def test_the_mean_of_merged_mlps_is_summed_in_float64_and_rounded_once(tmp_path, count, dtype):
    """Weights have magnitudes from 2 ** -20 to 2 ** 19, so a sum in float32 would lose digits."""
    one, name = base(PLAIN).pruned(*KEEPS[0]).cast(DTYPES[dtype]), "blocks.1.mlp.fc2.weight"
    generator = torch.Generator().manual_seed(count)
    shape = (count, *one.state[name].shape)
    each = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-20, 20, shape, generator=generator)
    each = each.to(DTYPES[dtype])
    samples = [replace(one, state=one.state | {name: own}) for own in each]
    mean, loses = (each.to(wide).mean(0).to(each.dtype) for wide in (torch.float64, torch.float32))

    fuse(members(tmp_path, samples=samples), tmp_path / "hydra.st", verify=False)

    assert not torch.equal(mean, loses)
    assert torch.equal(Checkpoint.open(tmp_path / "hydra.st").tensor(name), mean)


def test_twice_is_the_same_bytes_and_verification_changes_nothing_but_its_record(tmp_path):
    paths = members(tmp_path, tuned=True)
    for out in ("a", "b"):
        fuse(paths, tmp_path / out)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "a").read_bytes()
    fuse(paths, tmp_path / "c", verify=False)
    a, c = Checkpoint.open(tmp_path / "a"), Checkpoint.open(tmp_path / "c")
    assert all(list(a.spans[n].pieces()) == list(c.spans[n].pieces()) for n in a.specs)


def messages_of(folder, samples, **changes):
    progress_log = ProgressLog()
    paths = tuple(map(str, members(folder, samples=samples)))
    run_fuse(FuseConfig(models=paths, out=folder / "hydra.st", **changes), progress_log)
    return progress_log


def test_members_that_cannot_disagree_are_warned_about(tmp_path):
    one = base(PLAIN).pruned(*KEEPS[0])
    assert messages_of(tmp_path, [one, one]).warnings == [
        ("members are identical: the hydra predicts like one model")
    ]
    assert messages_of(tmp_path, [one, one], force=True, trunk=1, own_blocks=True).warnings == [
        "members are still identical: the hydra predicts like one model until `finetune` trains it"
    ]
    assert messages_of(tmp_path, [one], force=True).warnings == [
        "there is only one member: the hydra predicts like one model"
    ]


def test_owning_what_differs_anyway_is_warned_about(tmp_path):
    one = base(PLAIN)
    apart = [one.tuned(seed) for seed in (0, 1)]
    assert messages_of(tmp_path, apart, trunk=2, own_blocks=True, force_merge=True).warnings == [
        "`--own-blocks` has no effect: all tensors after the trunk differ between members anyway"
    ]
    equal = [replace(s, state=s.state | {"norm.bias": one.state["norm.bias"]}) for s in apart]
    assert messages_of(tmp_path, equal, trunk=2, own_blocks=True, force_merge=True, force=True).warnings == []


def test_a_block_that_is_not_there_is_nobody_s_own(tmp_path):
    with pytest.raises(UsageError, match=r"`--trunk 4`: must be in 0\.\.3"):
        fuse(members(tmp_path), tmp_path / "hydra.st", trunk=4, own_blocks=True)


def test_a_member_that_comes_twice_is_warned_about(tmp_path):
    one, other = (base(PLAIN).pruned(*keep) for keep in KEEPS[:2])

    (warning,) = messages_of(tmp_path, [one, other, one]).warnings

    assert re.fullmatch(
        r"\S*0\S* and \S*2\S* have the same weights, so their prediction counts twice", warning
    )


def test_many_members_that_come_again_are_one_warning(tmp_path):
    """Dropped thresholds of several members also cause a single warning."""
    bound = Threshold(score="msp", below=-0.5, risk=0.1, delta=0.05, count=10, accepted=5, errors=0)
    samples = [base(PLAIN).pruned(*keep) for keep in KEEPS[:2]] * 4
    samples = [replace(s, header=s.header.model_copy(update={"threshold": bound})) for s in samples]

    thresholds, twins = messages_of(tmp_path, samples).warnings

    paths = [str(tmp_path / f"{i}.st") for i in range(8)]
    assert thresholds == (
        f"`{paths[0]}`, `{paths[1]}`, `{paths[2]}`, ...: their thresholds are not kept, because the "
        "weights have changed"
    )
    assert twins == (
        "6 of 8 members have the same weights as an earlier one, so their prediction counts several "
        f"times: {paths[2]} has those of {paths[0]}, {paths[3]} has those of {paths[1]}, {paths[4]} has those of "
        f"{paths[0]}, ..."
    )


def test_averaging_the_only_difference_is_warned_about(tmp_path):
    one = base(PLAIN).pruned(*KEEPS[0])
    samples = [one, one.tuned(1, only=lambda name: ".mlp.fc" in name)]
    (warning,) = messages_of(tmp_path, samples).warnings
    assert "`--mlp keep`" in warning
    assert messages_of(tmp_path, samples, mlp="keep", force=True).warnings == []


def test_members_that_differ_are_no_warning(tmp_path):
    progress_log = messages_of(tmp_path, [base(PLAIN).pruned(*keep) for keep in KEEPS])
    assert (progress_log.warnings, progress_log.steps[0]) == ([], "Comparing 3 members")


def test_the_order_of_members_is_theirs(tmp_path):
    paths = members(tmp_path, tuned=True)
    fuse(paths, tmp_path / "a.st")
    fuse(paths[::-1], tmp_path / "b.st")
    inputs = base(PLAIN).inputs()
    with torch.inference_mode():
        a, b = load(tmp_path / "a.st")(inputs), load(tmp_path / "b.st")(inputs)
    assert torch.allclose(a.member_logits, b.member_logits.flip(0), atol=1e-6)
    assert torch.allclose(a.logits, b.logits, atol=1e-6)


def test_the_gap_of_merged_mlps_is_measured_and_no_failure(tmp_path):
    report = fuse(members(tmp_path, tuned=True), tmp_path / "hydra.st")
    assert report.gap is not None
    assert report.gap.logits > 1e-3
    assert report.gap.probabilities > 0


def test_lineage_holds_every_member_and_where_it_came_from(tmp_path):
    from hydractl.heads.budget import HeadBudget
    from hydractl.stages.prune.config import PruneConfig
    from hydractl.stages.prune.run import run_prune
    from support.builders import scores_file

    model = base(PLAIN).save(tmp_path / "base.st")
    scores = scores_file(tmp_path / "s.json", ((0.4, 0.3, 0.2, 0.1),) * 3)
    pruned = run_prune(PruneConfig(
        model=str(model), out=tmp_path / "m-{i}.st", scores=(scores,), budget=HeadBudget(remove=4), members=2, pool=9,
    ))  # fmt: skip
    fuse([m.path for m in pruned.members], tmp_path / "hydra.st")
    header = open_model(str(tmp_path / "hydra.st")).header
    step = header.made_by
    assert step is not None
    assert (step.command, [i.name for i in step.inputs]) == ("fuse", ["m-0.st", "m-1.st"])
    assert [i.sha256 for i in step.inputs] == [Checkpoint.open(m.path).digest for m in pruned.members]
    assert step.inputs[0].made_by is not None
    assert [i.name for i in step.inputs[0].made_by.inputs] == ["base.st", "s.json"]
    assert header.base == Checkpoint.open(model).digest


def test_a_base_is_a_member_of_its_own_kind(tmp_path):
    """A base and a pruned member have a common origin, so merging MLPs is allowed."""
    model = base(PLAIN).save(tmp_path / "base.st")
    digest = Checkpoint.open(model).digest
    pruned = base(PLAIN).pruned(*KEEPS[0])
    own = replace(pruned, header=pruned.header.model_copy(update={"base": digest})).save(tmp_path / "m.st")
    for order in ([model, own], [own, model], [model, model]):
        report = fuse(order, tmp_path / "hydra.st", force=True)
        assert report.tensors["merged"] == 0


def test_deep_ensembles_need_keep(tmp_path):
    paths = members(tmp_path, samples=[base(PLAIN), base(PLAIN, seed=1)])
    with pytest.raises(CheckpointError, match=r"1\.st: comes from another base than .*0\.st") as caught:
        fuse(paths, tmp_path / "hydra.st")
    assert "--mlp keep" in str(caught.value.hint)
    report = fuse(paths, tmp_path / "hydra.st", mlp="keep")
    assert (report.tensors["merged"], report.trunk) == (0, 0)


def test_to_a_pipe_and_from_one(tmp_path, capfdbinary, monkeypatch):
    paths = members(tmp_path)
    fuse(paths, Path("-"))
    piped = capfdbinary.readouterr().out
    fuse(paths, tmp_path / "hydra.st")
    assert piped == (tmp_path / "hydra.st").read_bytes()
    with paths[0].open("rb") as file:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file})())
        fuse(["-", *paths[1:]], tmp_path / "again.st")
    a, b = Checkpoint.open(tmp_path / "hydra.st"), Checkpoint.open(tmp_path / "again.st")
    assert all(list(a.spans[n].pieces()) == list(b.spans[n].pieces()) for n in a.specs)


# --- refusals --------------------------------------------------------------------------------------


def member_with_header(**update: object):
    """Return a second member with other header fields."""
    sample = base(PLAIN).pruned(*KEEPS[1])
    return replace(sample, header=sample.header.model_copy(update=update))


def with_state(**tensors: torch.Tensor) -> Sample:
    sample = base(PLAIN).pruned(*KEEPS[1])
    return replace(sample, state=sample.state | {n.replace("__", "."): t for n, t in tensors.items()})


def other_classes() -> Sample:
    from support.variants import Variant

    return base(Variant("timm-vit", "eight", PLAIN.arch, PLAIN.options | {"num_classes": 8})).pruned(
        *KEEPS[1]
    )


def without(name: str) -> Sample:
    sample = base(PLAIN).pruned(*KEEPS[1])
    return replace(sample, state={n: t for n, t in sample.state.items() if n != name})


LABELS = tuple("abcdefg")
REFUSED = {
    "other-architecture": (lambda: base(variant("distilled")).pruned(*KEEPS[1]), "1.st: is a deit_tiny_distilled_patch16_224"),
    "other-options": (lambda: base(variant("qk-norm")).pruned(*KEEPS[1]), "1.st: is a vit_tiny_patch16_224 with qk_norm=True"),
    "other-class-count": (other_classes, "1.st: has 8 classes, {0} has 7"),
    "other-labels": (lambda: member_with_header(labels=LABELS), "1.st: has other class labels, or another order of them, than {0}"),
    "other-preprocessing": (lambda: member_with_header(preprocess=Preprocess(input_size=(1, 8, 8), mean=(0.1,), std=(0.2,))), "1.st: has other preprocessing than {0}: other `mean`, `std`"),
    "other-base": (lambda: member_with_header(base=sha("another")), "1.st: comes from another base than {0}"),
    "other-dtype": (lambda: base(PLAIN).pruned(*KEEPS[1]).cast(torch.bfloat16), "1.st: tensor `blocks.0.attn.proj.bias` is BF16, in {0} it is F32"),
    "missing-tensor": (lambda: without("norm.bias"), "1.st: tensor `norm.bias` exists in only one of this member and {0}"),
    "heads-that-the-mask-denies": (lambda: with_state(blocks__1__attn__qkv__weight=torch.zeros(24, 32)), "1.st: tensor `blocks.1.attn.qkv.weight` has shape (24, 32)"),
    "another-shape": (lambda: with_state(norm__bias=torch.zeros(33)), "1.st: tensor `norm.bias` has shape (33,)"),
}  # fmt: skip


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "no-verify"])
@pytest.mark.parametrize(("second", "message"), REFUSED.values(), ids=REFUSED)
def test_members_that_do_not_belong_together(tmp_path, monkeypatch, second, message, verify):
    paths = members(tmp_path, samples=[base(PLAIN).pruned(*KEEPS[0]), second()])
    before = sorted(tmp_path.iterdir())
    for way in ("pieces", "read", "copy_to"):
        monkeypatch.setattr(Span, way, lambda *_: pytest.fail("a tensor was read"))
    with pytest.raises(CheckpointError) as caught:
        fuse(paths, tmp_path / "hydra.st", verify=verify)
    assert message.format(paths[0]) in str(caught.value)
    assert caught.value.exit_code == 3
    assert ("`hydractl finetune`" in (caught.value.hint or "")) == ("8 classes" in message)
    assert sorted(tmp_path.iterdir()) == before


def test_members_that_differ_in_training_alone_are_fused(tmp_path):
    """Dropout rates, explicit defaults, forms of the image size, tags and ineffective crops may differ."""
    first, second = (base(PLAIN).pruned(*keep) for keep in KEEPS[:2])
    architecture = first.header.architecture
    stated = architecture.config | {"drop_path_rate": 0.1, "img_size": [8, 8], "qkv_bias": True}
    changes = {
        "architecture": architecture.model_copy(
            update={"config": stated, "name": f"{architecture.name}.augreg_in21k"}
        ),
        "preprocess": first.header.preprocess.model_copy(update={"crop_pct": 0.99}),
    }
    others = replace(second, header=second.header.model_copy(update=changes))
    hydras = []
    for name, member in (("same", second), ("other", others)):
        (tmp_path / name).mkdir()
        fuse(members(tmp_path / name, samples=[first, member]), tmp_path / f"{name}.st", verify=True)
        hydras.append(open_model(str(tmp_path / f"{name}.st")).header)
    assert hydras[0].architecture == hydras[1].architecture == architecture
    assert hydras[0].preprocess == hydras[1].preprocess


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", ["blocks.3.attn.proj.weight", "blocks.77.norm1.weight"])
def test_a_tensor_of_a_block_that_is_not_there(tmp_path, name, verify):
    sample = with_state(**{name: torch.ones(32, 32)})

    with pytest.raises(CheckpointError, match=f"0.st: tensor `{name}` belongs to a block that .* has 3$"):
        fuse([sample.save(tmp_path / f"{i}.st") for i in range(2)], tmp_path / "hydra.st", verify=verify)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (lambda: without("norm.bias"), "lacks 1 tensor of its architecture, for example `norm.bias`"),
        (lambda: with_state(extra=torch.ones(2)), "has 1 tensor that its architecture does not, for example `extra`"),
        (lambda: with_state(norm__bias=torch.ones(33)), r"tensor `norm.bias` has shape (33,), but its architecture needs (32,)"),
        (lambda: with_state(norm__bias=torch.ones(32, dtype=torch.int64)), "tensor `norm.bias` has dtype I64"),
    ],
)  # fmt: skip
def test_members_that_are_alike_but_not_what_they_say(tmp_path, sample, message, verify):
    paths = [sample().save(tmp_path / f"{i}.st") for i in range(2)]

    with pytest.raises(CheckpointError, match=re.escape(f"0.st: {message}")):
        fuse(paths, tmp_path / "hydra.st", verify=verify)
    assert not (tmp_path / "hydra.st").exists()


def test_a_hydra_is_no_member(tmp_path):
    paths = members(tmp_path)
    fuse(paths, tmp_path / "hydra.st")
    with pytest.raises(CheckpointError, match=r"hydra\.st: is already a hydra"):
        fuse([tmp_path / "hydra.st", paths[0]], tmp_path / "twice.st")
    assert not (tmp_path / "twice.st").exists()


def truncated(folder: Path) -> None:
    os.truncate(folder / "1.st", (folder / "1.st").stat().st_size - 1)


PLACES = {
    "missing": (lambda f: (f / "1.st").unlink(), {}, "1.st: no such file or folder", 3),
    "truncated": (truncated, {}, "it may be truncated", 3),
    "empty": (lambda f: (f / "1.st").write_bytes(b""), {}, "0 bytes are too few for its header", 3),
    "exists": (lambda f: (f / "hydra.st").write_bytes(b"x"), {}, "hydra.st: already exists", 6),
    "input": (
        lambda f: (f / "hydra.st").symlink_to(f / "1.st"),
        {"force": True},
        "is an input of this command",
        6,
    ),
}


@pytest.mark.parametrize(("spoil", "changes", "message", "code"), PLACES.values(), ids=PLACES)
def test_places_that_cannot_be_used(tmp_path, spoil, changes, message, code):
    paths = members(tmp_path)
    spoil(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    with pytest.raises(HydraError) as caught:
        fuse(paths, tmp_path / "hydra.st", **changes)
    assert message in str(caught.value)
    assert caught.value.exit_code == code
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


@pytest.mark.parametrize("mlp", ["merge", "keep"])
def test_weights_so_large_that_outputs_overflow_fail_the_check(tmp_path, mlp):
    samples = [base(PLAIN).pruned(*k) for k in KEEPS]
    samples[1].state["head.weight"] = torch.full_like(samples[1].state["head.weight"], 3e38)
    paths = members(tmp_path, samples=samples)

    with pytest.raises(CheckFailed, match="nothing was written") as caught:
        fuse(paths, tmp_path / "hydra.st", mlp=mlp)
    assert caught.value.exit_code == 5
    assert not (tmp_path / "hydra.st").exists()
    fuse(paths, tmp_path / "hydra.st", mlp=mlp, verify=False)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("mlp", ["merge", "keep"])
@pytest.mark.parametrize(("place", "name"), [((1,), "head.bias"), ((0, 1), "blocks.0.mlp.fc1.weight")])
def test_weights_that_are_not_finite_are_refused(tmp_path, place, name, mlp, verify):
    """Shared and differing tensors are checked, one tensor in memory at a time."""
    samples = [base(PLAIN).pruned(*k) for k in KEEPS]
    for i in place:
        samples[i].state[name] = torch.full_like(samples[i].state[name], float("nan" if verify else "inf"))
    paths = members(tmp_path, samples=samples)
    numbers = samples[0].state[name].numel()

    with pytest.raises(CheckpointError, match="not finite") as caught:
        fuse(paths, tmp_path / "hydra.st", mlp=mlp, verify=verify)

    assert (
        caught.value.message
        == f"{paths[place[0]]}: tensor `{name}` holds {numbers} numbers of {numbers} that are not finite"
    )
    assert caught.value.exit_code == 3
    assert not (tmp_path / "hydra.st").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(tmp_path):
    with pytest.raises(HydraError, match="no space left") as caught:
        fuse(members(tmp_path), Path("/dev/full"))
    assert caught.value.exit_code == 3


def test_a_member_that_changes_while_it_is_read_leaves_nothing(tmp_path, monkeypatch):
    paths = members(tmp_path)

    def cut(*_args: object, **_kwargs: object):
        os.truncate(paths[0], 2000)

    monkeypatch.setattr("hydractl.stages.fuse.run.verify", cut)
    with pytest.raises(CheckpointError, match="ends early"):
        fuse(paths, tmp_path / "hydra.st")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.st", "1.st", "2.st"]


def test_a_hydra_whose_plan_was_edited_is_refused(tmp_path):
    fuse(members(tmp_path), tmp_path / "hydra.st")
    model_file = open_model(str(tmp_path / "hydra.st"))
    plan = model_file.header.plan
    assert plan is not None
    state = model_file.checkpoint.tensors()
    edits = {
        "not in the fuse plan": {"fates": {n: f for n, f in plan.fates.items() if n != "norm.bias"}},
        "members take": {"fates": plan.fates | {"blocks.0.attn.qkv.weight": Fate.GROUPED}},
        "blocks.1.attn.qkv": {"fates": plan.fates | {"blocks.1.attn.qkv.weight": Fate.SHARED}},
    }
    for message, update in edits.items():
        header = model_file.header.model_copy(update={"plan": plan.model_copy(update=update)})
        Sample(header, state).save(tmp_path / "edited.st")
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / "edited.st")


@pytest.mark.parametrize(
    ("models", "message"),
    [((), "nothing to fuse"), (("-", "-"), "only one member can come from standard input")],
)
def test_options_that_make_no_sense(models, message):
    with pytest.raises(UsageError, match=message):
        FuseConfig(models=models, out=Path("h.st"))


def test_an_existing_output_is_replaced_with_force(tmp_path):
    paths = members(tmp_path)
    fuse(paths, tmp_path / "hydra.st")
    with pytest.raises(OutputExists):
        fuse(paths[:2], tmp_path / "hydra.st")
    fuse(paths[:2], tmp_path / "hydra.st", force=True)
    assert len(open_model(str(tmp_path / "hydra.st")).header.masks) == 2
