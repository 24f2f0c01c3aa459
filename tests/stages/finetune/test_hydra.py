"""`finetune` of a hydra: a shared trunk and M members train together."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.open_model import open_model, with_classifier
from hydractl.fusion.plan import split_members
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.header import Fate, Kind
from hydractl.prediction.loaded_model import load
from hydractl.progress import SILENT
from hydractl.pruning.strategies import Strategy
from hydractl.reporting.lineage import member_names
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.training.recipe import Recipe
from support.builders import base
from support.progress_log import InterruptedProgress, ProgressLog
from support.variants import variant

TRAIN = "digits::split=train,classes=0-6,limit=24"
VAL = "digits::split=val,classes=0-6,limit=20"
RECIPE = Recipe(lr=(1e-3,), epochs=2, batch_size=8, augment=("shift",), dropout=0.1)
SGD = replace(RECIPE, optimizer="sgd", lr=(0.05,), weight_decay=0.0, dropout=0.0, steps=3, epochs=None)


def tuned(out, model, progress=SILENT, **changes):
    given = {"train": DataRef.parse(TRAIN), "val": DataRef.parse(VAL), "recipe": RECIPE, "device": "cpu"}
    return run_finetune(FinetuneConfig(model=str(model), out=out, **(given | changes)), progress)


def tuned_members(out, model, **changes):
    tuned(out, model, **changes)
    return members(out)


def header(path):
    return Checkpoint.open(path).header


def members(path):
    model_file = open_model(str(path))
    return split_members(model_file.family, model_file.header, model_file.checkpoint.tensors())


@pytest.fixture(scope="module")
def hydra(tmp_path_factory):
    """Three equal members with own tensors in the last block; block 1 has no heads."""
    folder = tmp_path_factory.mktemp("hydra")
    one = base().pruned((0, 1), (), (0, 1, 3)).save(folder / "one.st")
    out = folder / "hydra.st"
    run_fuse(FuseConfig(models=(str(one),) * 3, out=out, trunk=2, own_blocks=True, verify=False))
    return out


@pytest.fixture(scope="module")
def report(hydra):
    return tuned(hydra.with_name("whole.st"), hydra)


@pytest.fixture(scope="module")
def whole(report):
    return report.path


def test_what_comes_out_is_the_hydra_that_went_in_with_other_weights(hydra, whole):
    before, after = header(hydra), header(whole)
    left, right = Checkpoint.open(hydra).tensors(), Checkpoint.open(whole).tensors()

    assert (after.kind, after.masks, after.plan, after.base) == (
        Kind.HYDRA,
        before.masks,
        before.plan,
        before.base,
    )
    assert {n: t.shape for n, t in left.items()} == {n: t.shape for n, t in right.items()}
    assert after.made_by.inputs[0].name == "hydra.st"
    assert member_names(after) == member_names(before) == ("one.st",) * 3
    fates = after.plan.fates
    moved = {n for n, t in right.items() if t.numel() and not torch.equal(t, left[n])}
    assert {fates[n] for n in moved} == {Fate.SHARED, Fate.GROUPED}
    assert "cls_token" in moved


def test_members_that_begin_equal_part_by_their_dropout(whole):
    each = members(whole)

    assert not torch.equal(each[0]["head.weight"], each[1]["head.weight"])
    assert not torch.equal(each[1]["blocks.2.attn.qkv.weight"], each[2]["blocks.2.attn.qkv.weight"])
    assert each[0]["blocks.0.mlp.fc1.weight"] is each[2]["blocks.0.mlp.fc1.weight"]


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(("changes", "warned"), [
    ({"dropout": 0.0}, True),
    ({"dropout": 0.1, "reset_head": True}, False),
    ({"dropout": 0.1, "train_parts": ("embed",)}, True),
])  # fmt: skip
def test_members_that_nothing_tells_apart_are_warned_about(tmp_path, hydra, changes, warned):
    progress_log, recipe = ProgressLog(), replace(RECIPE, epochs=None, steps=1, **changes)
    tuned(tmp_path / "out.st", hydra, progress_log, recipe=recipe)

    each = members(tmp_path / "out.st")
    assert torch.equal(each[0]["head.weight"], each[1]["head.weight"]) == warned
    assert [message.partition(",")[0] for message in progress_log.warnings] == (
        ["equal members stay equal without dropout: add `--dropout 0.1`"] if warned else []
    )


def test_what_tells_equal_members_apart_is_something_that_their_model_takes(tmp_path):
    """CLIP's vision tower has stochastic depth, but no dropout."""
    one, out = (
        base(variant("transformers-vision-tower-clip")).save(tmp_path / "one.st"),
        tmp_path / "hydra.st",
    )
    run_fuse(FuseConfig(models=(str(one),) * 2, out=out, trunk=2, own_blocks=True, verify=False))
    said = []
    for path in (None, 0.4):
        progress_log, recipe = (
            ProgressLog(),
            replace(RECIPE, epochs=None, steps=1, dropout=None, drop_path=path),
        )
        tuned(tmp_path / f"{path}.st", out, progress_log, recipe=recipe)
        said.append(progress_log.warnings)

    assert ["add `--drop-path 0.1`, or" in message for message in said[0]] == [True]
    assert said[1] == []


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(("seeds", "train", "warned"), [
    ((3, 3, 3), ("head",), True), ((3, 4, 5), ("head",), False), ((3, 4, 3), ("head",), True), ((3, 4, 5), ("embed",), True),
])  # fmt: skip
def test_members_part_by_teachers_of_their_own(tmp_path, hydra, seeds, train, warned):
    progress_log, teachers = ProgressLog(), [str(base(seed=s).save(tmp_path / f"{s}.st")) for s in seeds]
    recipe = replace(RECIPE, epochs=None, steps=1, dropout=0.0, train_parts=train)
    tuned(tmp_path / "out.st", hydra, progress_log, recipe=recipe, teacher=tuple(teachers))

    each = [member["head.weight"] for member in members(tmp_path / "out.st")]
    assert any(torch.equal(a, b) for a, b in combinations(each, 2)) == warned
    assert any("stay equal" in message for message in progress_log.warnings) == warned


def test_a_model_that_teaches_itself_is_told(tmp_path, hydra):
    progress_log, recipe = ProgressLog(), replace(RECIPE, epochs=None, steps=1)
    tuned(tmp_path / "out.st", hydra, progress_log, recipe=recipe, teacher=(str(hydra),))
    assert ["is its own teacher" in message for message in progress_log.warnings] == [True]


def test_a_temperature_is_not_kept_and_that_is_said(tmp_path):
    one, progress_log = base(), ProgressLog()
    stored = replace(one, header=one.header.model_copy(update={"temperature": 1.7})).save(tmp_path / "one.st")
    tuned(tmp_path / "out.st", stored, progress_log, recipe=replace(RECIPE, epochs=None, steps=1))
    mask = PruneConfig(
        model=str(stored),
        out=tmp_path / "m.st",
        strategy=Strategy.RANDOM,
        budget=HeadBudget(remove=2),
        verify=False,
    )
    run_prune(mask, progress_log)

    said = f"{stored}: its temperature 1.7 is not kept, because the weights have changed"
    assert progress_log.warnings == [said, said]
    assert [header(tmp_path / f"{name}.st").temperature for name in ("out", "m")] == [1.0, 1.0]


def test_members_that_share_everything_have_nothing_of_their_own(tmp_path):
    one = str(base().save(tmp_path / "one.st"))
    run_fuse(FuseConfig(models=(one, one), out=tmp_path / "same.st", verify=False))

    with pytest.raises(UsageError, match=r"same\.st share all weights") as caught:
        tuned(tmp_path / "out.st", tmp_path / "same.st", recipe=replace(RECIPE, train_parts=("own",)))
    assert "fuse with `--trunk N --own-blocks`" in caught.value.hint


def test_reported_metrics_are_the_ensemble_s(report, whole):
    from hydractl.data.open_dataset import open_data
    from hydractl.data.preprocess import eval_transform

    images = open_data(VAL)
    transform = eval_transform(header(whole).preprocess)
    inputs, labels = torch.stack([transform(images.image(i)) for i in range(20)]), torch.tensor(images.labels)
    with torch.inference_mode():
        probs = load(whole)(inputs).member_logits.softmax(-1).mean(0)
    assert report.kind == Kind.HYDRA
    assert report.accuracy == pytest.approx((probs.argmax(1) == labels).float().mean().item(), abs=1e-6)
    assert report.nll == pytest.approx(-probs[torch.arange(20), labels].log().mean().item(), abs=1e-5)


@pytest.mark.more
def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path, hydra, whole):
    out = tmp_path / "out.st"
    given = FinetuneConfig(
        model=str(hydra), out=out, train=DataRef.parse(TRAIN), val=DataRef.parse(VAL), recipe=RECIPE, device="cpu",
        save_every=1,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run_finetune(given, InterruptedProgress(2))

    assert not out.exists()
    assert run_finetune(given).resumed_from > 0
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("batches", ["shared", "own"])
def test_apart_from_the_first_block_a_member_trains_as_it_would_alone(tmp_path, batches):
    """Without shared tensors, SGD on the mean of M losses equals SGD on one member at the rate lr / M.

    With `batches="own"`, each member has the batches of its own `--seed`, for any number of pieces per batch.
    """
    samples = [base().pruned((0,), (1, 2), ()).tuned(1), base().pruned((0, 3), (), (1,)).tuned(2)]
    paths = tuple(str(s.save(tmp_path / f"{i}.st")) for i, s in enumerate(samples))
    run_fuse(FuseConfig(models=paths, out=tmp_path / "hydra.st", mlp="keep", verify=False))

    recipe = replace(SGD, accumulate=2) if batches == "own" else SGD
    tuned(tmp_path / "together.st", tmp_path / "hydra.st", recipe=recipe, batches=batches)

    for i, found in enumerate(members(tmp_path / "together.st")):
        order = i if batches == "own" else 0
        tuned(tmp_path / f"alone{i}.st", paths[i], recipe=replace(SGD, lr=(0.025,)), seed=order)
        expected = Checkpoint.open(tmp_path / f"alone{i}.st").tensors()
        assert all(torch.allclose(found[n], t, atol=1e-5) for n, t in expected.items())
        assert not torch.allclose(found["head.weight"], samples[i].state["head.weight"], atol=1e-3)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    ("train", "parts"), [(("own",), {"blocks.2", "norm", "head"}), (("own", "head"), {"head"})]
)
def test_own_leaves_what_members_share_as_it_is(tmp_path, hydra, train, parts):
    tuned(tmp_path / "out.st", hydra, recipe=replace(RECIPE, train_parts=train, epochs=None, steps=2))

    before, after = Checkpoint.open(hydra).tensors(), Checkpoint.open(tmp_path / "out.st").tensors()
    moved = {n for n, t in after.items() if not torch.equal(t, before[n])}
    assert {n[:8] if n.startswith("blocks") else n.split(".")[0] for n in moved} == parts


def test_pieces_change_nothing_on_batches_and_with_dropout_of_their_own(tmp_path):
    one = str(base().save(tmp_path / "one.st"))
    run_fuse(FuseConfig(models=(one, one), out=tmp_path / "hydra.st", trunk=0, own_blocks=True, verify=False))
    recipe = replace(SGD, dropout=0.1)
    whole, pieces = (
        tuned_members(
            tmp_path / f"{n}.st", tmp_path / "hydra.st", recipe=replace(recipe, accumulate=n), batches="own"
        )
        for n in (1, 2)
    )

    assert all(torch.allclose(a[n], b[n], atol=1e-5) for a, b in zip(whole, pieces, strict=True) for n in a)
    assert not torch.allclose(whole[0]["head.weight"], whole[1]["head.weight"], atol=1e-4)


def test_members_get_classifiers_of_their_own(tmp_path, hydra):
    """Member m has the classifier that seed + m draws for a single model; members differ without dropout."""
    data = DataRef.parse("digits::split=train,classes=0-4,limit=24")
    val = DataRef.parse("digits::split=val,classes=0-4,limit=20")
    recipe, progress_log = replace(RECIPE, dropout=0.0, epochs=None, steps=1, lr=(1e-9,)), ProgressLog()
    tuned(tmp_path / "out.st", hydra, progress_log, train=data, val=val, recipe=recipe, head_seed=5)

    after, before = header(tmp_path / "out.st"), header(hydra)
    assert after.architecture.num_classes == 5
    assert after.labels == tuple("01234")
    assert after.plan == before.plan
    assert progress_log.warnings == []
    one = open_model(str(hydra.with_name("one.st")))
    for i, found in enumerate(members(tmp_path / "out.st")):
        alone = with_classifier(one, 5, head_seed=5 + i).checkpoint
        assert torch.allclose(found["head.weight"], alone.tensor("head.weight"), atol=1e-6)
        assert torch.allclose(
            found["blocks.0.mlp.fc1.weight"], alone.tensor("blocks.0.mlp.fc1.weight"), atol=1e-6
        )


def test_a_classifier_that_members_share_is_not_their_own(tmp_path):
    paths = [str(base().pruned((i,), (), ()).save(tmp_path / f"{i}.st")) for i in (0, 1)]
    run_fuse(FuseConfig(models=tuple(paths), out=tmp_path / "hydra.st", verify=False))

    with pytest.raises(UsageError, match="share their classifier, so a new one would not be trained"):
        tuned(
            tmp_path / "out.st",
            tmp_path / "hydra.st",
            recipe=replace(RECIPE, train_parts=("own",), reset_head=True),
        )


def test_batches_of_their_own_want_no_trunk_and_no_teachers(tmp_path, hydra):
    with pytest.raises(UsageError, match="share 2 blocks, which run once") as caught:
        tuned(tmp_path / "out.st", hydra, batches="own")
    assert "`--trunk 0 --own-blocks`" in caught.value.hint
    with pytest.raises(UsageError, match="only members of a hydra can have their own batches"):
        tuned(tmp_path / "out.st", base().save(tmp_path / "base.st"), batches="own")
    with pytest.raises(UsageError, match="`--batches own` and `--teacher` exclude each other"):
        tuned(tmp_path / "out.st", hydra, batches="own", teacher=("a.st",))


def test_own_is_for_hydras(tmp_path):
    model = base().save(tmp_path / "base.st")

    with pytest.raises(UsageError, match="only members of a hydra") as caught:
        tuned(tmp_path / "out.st", model, recipe=replace(RECIPE, train_parts=("own",)))
    assert "leave out `own`" in caught.value.hint


def test_a_hydra_whose_plan_was_edited_is_refused(tmp_path, hydra):
    from hydractl.checkpoint import write_tensors

    checkpoint = Checkpoint.open(hydra)
    plan = checkpoint.header.plan
    fates = {n: f for n, f in plan.fates.items() if n != "norm.bias"}
    edited = checkpoint.header.model_copy(update={"plan": plan.model_copy(update={"fates": fates})})
    with (tmp_path / "edited.st").open("wb") as file:
        write_tensors(file, checkpoint.tensors(), header=edited)

    with pytest.raises(
        CheckpointError, match="norm\\.bias exists in only one of the fuse plan and the architecture"
    ):
        tuned(tmp_path / "out.st", tmp_path / "edited.st")


@pytest.mark.more
def test_bf16_and_a_classifier_of_zeros(tmp_path, hydra):
    report = tuned(
        tmp_path / "out.st", hydra, recipe=replace(RECIPE, precision="bf16", reset_head=True, epochs=1)
    )

    each = members(tmp_path / "out.st")
    assert report.nll < 2.5
    assert not torch.equal(each[0]["head.weight"], each[1]["head.weight"])


def test_layer_decay_reaches_what_members_share_and_what_is_their_own(tmp_path, hydra):
    recipe = replace(SGD, momentum=0.0, steps=1, warmup=0)
    for decay in (None, 0.5):
        tuned(tmp_path / f"{decay}.st", hydra, recipe=replace(recipe, layer_decay=decay))

    before, plain, scaled = (members(path) for path in (hydra, tmp_path / "None.st", tmp_path / "0.5.st"))
    powers = {
        "patch_embed.proj.weight": 4,
        "blocks.0.mlp.fc1.weight": 3,
        "blocks.2.attn.proj.weight": 1,
        "head.bias": 0,
    }
    for member, left, right in zip(before, plain, scaled, strict=True):
        for name, power in powers.items():
            moved = left[name] - member[name]
            assert moved.abs().max() > 1e-6
            assert torch.allclose(right[name] - member[name], moved * 0.5**power, atol=1e-6), name


def test_a_hydra_of_mixed_images_and_dropped_paths_keeps_its_mean(tmp_path, hydra, whole):
    recipe = replace(RECIPE, mixup=0.8, drop_path=0.4, ema=0.5)
    out = tmp_path / "out.st"
    report = tuned(out, hydra, recipe=recipe)

    assert report.accuracy == tuned(tmp_path / "again.st", out, recipe=replace(recipe, lr=(1e-12,))).accuracy
    one, other, _ = members(out)
    assert not torch.equal(one["blocks.2.attn.proj.weight"], other["blocks.2.attn.proj.weight"])
    assert torch.equal(one["blocks.0.mlp.fc1.weight"], other["blocks.0.mlp.fc1.weight"])
    assert not torch.equal(one["head.weight"], members(whole)[0]["head.weight"])
