"""`finetune`: equal bytes after interruptions, frozen parts, metadata of outputs, errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.checkpoint import Checkpoint
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform
from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, CheckpointError, DataError, OutputError, OutputExists, UsageError
from hydractl.families.base import position_of
from hydractl.families.open_model import load_model, open_model
from hydractl.manifest.header import Kind
from hydractl.output.publish import OutputLock, claimed
from hydractl.provenance.output import Output
from hydractl.stages.finetune import run as stage
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import prepare, run_finetune
from hydractl.training.recipe import PARTS, Recipe
from support.builders import base
from support.pictures import digits_folder, unreadable
from support.progress_log import InterruptedProgress, ProgressLog
from support.variants import TIMM_VIT, TINY, Variant, variant

pytestmark = pytest.mark.usefixtures("one_thread")

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
TRAIN = "digits::split=train,classes=0-6,limit=60"
VAL = "digits::split=val,classes=0-6,limit=40"
RECIPE = Recipe(lr=(1e-3,), epochs=3, batch_size=16, augment=("shift",), dropout=0.1)
ROOT = Path(hydractl.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
# Biases of keys cancel in the softmax. AdamW would scale up the rounding errors in their gradients.
SGD = replace(RECIPE, optimizer="sgd", lr=(0.05,), weight_decay=0.0)


def config(out, model=ARCH, **changes):
    given = {"train": DataRef.parse(TRAIN), "val": DataRef.parse(VAL), "recipe": RECIPE, "device": "cpu"}
    return FinetuneConfig(model=str(model), out=out, **(given | changes))


def run_and_save(out, model=ARCH, **changes):
    run_finetune(config(out, model, **changes))
    return out


def tensors(path):
    return Checkpoint.open(path).tensors()


def header(path):
    found = Checkpoint.open(path).header
    assert found is not None
    return found


@pytest.fixture
def member(tmp_path):
    """A member with a layer without heads, whose q/k norms are unused."""
    variant = Variant("timm-vit", "qk-norm", TIMM_VIT["qk-norm"][0], TINY | {"qk_norm": True})
    return base(variant).pruned((0, 1), (), (2,)).save(tmp_path / "member.st")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Output of a run with default settings."""
    return run_and_save(tmp_path_factory.mktemp("plain") / "plain.st")


# invariants


def test_same_seed_same_bytes(tmp_path, plain):
    assert run_and_save(tmp_path / "again.st").read_bytes() == plain.read_bytes()


def test_images_that_cannot_be_read_are_left_out(tmp_path):
    root = digits_folder(tmp_path / "d", TRAIN)
    sets = {"train": DataRef.parse(str(root)), "val": DataRef.parse(str(root))}
    run_and_save(tmp_path / "a.st", **sets)
    unreadable(root / "0")

    with pytest.raises(DataError, match=r"000-none\.png: is not an image"):
        run_and_save(tmp_path / "b.st", **sets)
    run_finetune(config(tmp_path / "b.st", skip_bad=True, **sets), ear := ProgressLog())

    clean, found = (tensors(tmp_path / name) for name in ("a.st", "b.st"))
    assert all(torch.equal(found[name], clean[name]) for name in clean)
    assert header(tmp_path / "b.st").made_by.inputs == header(tmp_path / "a.st").made_by.inputs
    assert [line.partition(";")[0] for line in ear.warnings if "unreadable" in line] == [
        "d: skipped 3 of 63 images, which are unreadable"
    ] * 2


def test_another_seed_is_another_model(tmp_path, plain):
    first, second = tensors(plain), tensors(run_and_save(tmp_path / "other.st", seed=1))

    assert all(not torch.equal(first[n], second[n]) for n in first if n.endswith("weight"))


@pytest.mark.more
def test_the_seed_of_the_classifier_changes_the_classifier_only(tmp_path, plain):
    plain, found = tensors(plain), tensors(run_and_save(tmp_path / "head.st", head_seed=5))
    equal = tensors(run_and_save(tmp_path / "equal.st", head_seed=0))

    assert any(not torch.equal(found[n], plain[n]) for n in plain)
    assert all(torch.equal(equal[n], plain[n]) for n in plain)
    assert header(tmp_path / "head.st").made_by.options["head_seed"] == 5


def test_the_seed_of_the_classifier_draws_the_classifier_alone(tmp_path):
    rate = replace(SGD, lr=(1e-12,), weight_decay=0.0, dropout=None, augment=(), epochs=1)
    first = tensors(run_and_save(tmp_path / "a.st", recipe=rate))
    second = tensors(run_and_save(tmp_path / "b.st", recipe=rate, head_seed=3))
    whole = tensors(run_and_save(tmp_path / "c.st", recipe=rate, seed=3))

    assert torch.allclose(second["head.weight"], whole["head.weight"], atol=1e-9)
    assert not torch.allclose(second["head.weight"], first["head.weight"], atol=1e-3)
    assert all(torch.allclose(first[n], second[n], atol=1e-9) for n in first if not n.startswith("head."))


def test_a_seed_of_a_classifier_that_is_not_drawn_is_refused(tmp_path):
    model = base().save(tmp_path / "base.st")
    said = f"`--head-seed 1` has no effect: {model} already has a classifier"
    with pytest.raises(UsageError, match=re.escape(said)):
        run_finetune(config(tmp_path / "out.st", model, head_seed=1))


DEEP, SHALLOW, CLIP = ARCH, ARCH.replace("depth=2", "depth=1"), "transformers-vision-tower-clip"


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize(("model", "share", "named", "why"), [
    (CLIP, {"dropout": 0.5}, None, "the model has no dropout, except for attention weights"),
    (CLIP, {"dropout": 0.5}, "imagenet1k", "the model has no dropout, except for attention weights"),
    (CLIP, {"dropout": 0.1}, "imagenet1k", None),
    (CLIP, {"drop_path": 0.9, "dropout": 0.0}, None, None),
    (SHALLOW, {"drop_path": 0.9}, None, "the model has one block, and stochastic depth never skips the first"),
    (SHALLOW, {"drop_path": 0.1}, "vit-finetune", None),
    (SHALLOW, {"dropout": 0.5, "drop_path": 0.0}, None, None),
    (DEEP, {"dropout": 0.5, "drop_path": 0.9}, None, None),
])  # fmt: skip
def test_a_share_to_drop_that_nothing_takes_is_refused_unless_a_recipe_says_it(
    tmp_path, model, share, named, why
):
    """A rate with an effect changes the result; a rate from a recipe may have no effect."""
    if model == CLIP:
        model = base(variant(model)).save(tmp_path / "model.st")
    recipe = replace(SGD, steps=1, epochs=None, warmup=0, dropout=None)
    given = {"model": model, "recipe": replace(recipe, **share), "recipe_name": named}
    if why is None:
        found, plain = (
            tensors(run_and_save(tmp_path / "a.st", **given)),
            tensors(run_and_save(tmp_path / "b.st", model, recipe=recipe)),
        )
        assert all(torch.equal(found[n], plain[n]) for n in plain) == (named is not None)
        return
    (option,) = (f"`--{name.replace('_', '-')} {value}` has no effect" for name, value in share.items())
    with pytest.raises(UsageError, match=f"{option} on {re.escape(str(model))}: {why}") as caught:
        run_finetune(config(tmp_path / "a.st", **given))
    assert "leave `--" in caught.value.hint


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("part", PARTS)
def test_what_is_frozen_is_bit_identical(tmp_path, member, part):
    found = tensors(
        run_and_save(
            tmp_path / "out.st", member, recipe=replace(RECIPE, train_parts=(part,), weight_decay=0.1)
        )
    )

    family = open_model(str(member)).family
    before = tensors(member)
    for name, tensor in before.items():
        if position_of(family, name).part != part:
            assert torch.equal(found[name], tensor), name
    assert any(not torch.equal(found[n], t) for n, t in before.items())


def test_last_blocks_leave_the_first_alone(tmp_path, member):
    found, before = (
        tensors(run_and_save(tmp_path / "out.st", member, recipe=replace(RECIPE, last_blocks=1))),
        tensors(member),
    )

    changed = {n for n in before if not torch.equal(found[n], before[n])}
    assert {n.split(".")[1] for n in changed if n.startswith("blocks.")} == {"2"}
    assert "head.weight" in changed
    assert not changed & {"pos_embed", "cls_token", "patch_embed.proj.weight"}


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("recipe", [
    pytest.param(RECIPE, marks=pytest.mark.more),
    pytest.param(replace(RECIPE, optimizer="sgd", lr=(0.01,), keep_best=True), marks=pytest.mark.more),
    replace(RECIPE, lr=(1e-3, 3e-3), epochs=2, keep_best=True),
    replace(RECIPE, augment=("rrc", "randaugment"), epochs=None, steps=7, eval_every=2, early_stop=9),
    replace(RECIPE, epochs=2, eval_every=3, keep_best=True, layer_decay=0.7, ema=0.9, mixup=0.8, cutmix=1.0, drop_path=0.2),
], ids=["adamw", "sgd-best", "grid", "images", "tuning"])  # fmt: skip
def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path, recipe):
    whole = run_and_save(tmp_path / "whole.st", recipe=recipe).read_bytes()
    out = tmp_path / "out.st"
    cuts = 0
    while not out.exists():
        cuts += 1
        assert cuts < 20
        try:
            # The limit grows by one message, because a resumed run prints one more message before training.
            run_finetune(config(out, recipe=recipe, save_every=1), InterruptedProgress(2 if cuts == 1 else 3))
        except KeyboardInterrupt:
            assert (tmp_path / "out.st.state").is_dir()

    assert cuts > 1
    assert out.read_bytes() == whole
    assert not (tmp_path / "out.st.state").exists()


@pytest.mark.more
def test_how_often_the_state_is_saved_changes_nothing(tmp_path, plain):
    for number in (1, 5):
        assert run_and_save(tmp_path / f"{number}.st", save_every=number).read_bytes() == plain.read_bytes()


def test_a_killed_process_goes_on_to_the_same_bytes(tmp_path, python, plain):
    out, state = tmp_path / "out.st", tmp_path / "out.st.state" / "state.json"
    argv = [python(), "-m", "hydractl", "finetune", ARCH, "--train", TRAIN, "--val", VAL, "--lr", "1e-3",
            "--epochs", "3", "--batch-size", "16", "--augment", "shift", "--dropout", "0.1", "--device", "cpu",
            "--save-every", "1", "-o", str(out)]  # fmt: skip
    process = subprocess.Popen(argv, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    while process.poll() is None and not state.exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)

    assert process.wait() == -signal.SIGKILL
    assert not out.exists()
    report = run_finetune(config(out, wait=True))  # the killed process may hold its lock a moment longer
    assert 0 < report.resumed_from < 12
    assert out.read_bytes() == plain.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["out.st"]


def test_ctrl_c_after_the_first_line_can_be_gone_on_from(tmp_path, python):
    recipe = replace(RECIPE, epochs=40)
    whole = run_and_save(tmp_path / "whole.st", recipe=recipe).read_bytes()
    out = tmp_path / "out.st"
    argv = [python(), "-m", "hydractl", "finetune", ARCH, "--train", TRAIN, "--val", VAL, "--lr", "1e-3",
            "--epochs", "40", "--batch-size", "16", "--augment", "shift", "--dropout", "0.1", "--device", "cpu",
            "-o", str(out)]  # fmt: skip
    with subprocess.Popen(
        argv, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
        # A test runner in the background ignores SIGINT, and child processes inherit ignored signals.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads here
    ) as process:  # fmt: skip
        while "(epoch 1)" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().endswith(
            f"interrupted; the progress is saved in {out}.state; the same command resumes it\n"
        )

    assert process.returncode == 130
    assert (tmp_path / "out.st.state" / "state.json").is_file()
    report = run_finetune(config(out, recipe=recipe))
    assert 4 <= report.resumed_from < 160
    assert out.read_bytes() == whole


@pytest.mark.more
def test_two_processes_do_what_one_does(tmp_path, member, python):
    out = tmp_path / "two.st"
    recipe = replace(
        SGD,
        steps=6,
        epochs=None,
        batch_size=15,
        clip=1.0,
        accumulate=2,
        mixup=0.8,
        cutmix=1.0,
        ema=0.9,
        drop_path=0.2,
    )
    argv = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hydractl",
            "finetune", str(member), "--train", TRAIN, "--val", VAL, "--optimizer", "sgd",
            "--lr", "0.05", "--steps", "6", "--batch-size", "15",
            "--augment", "shift", "--dropout", "0.1", "--clip", "1.0", "--accumulate", "2", "--device", "cpu",
            "--mixup", "0.8", "--cutmix", "1", "--ema", "0.9", "--drop-path", "0.2", "-q", "-o", str(out)]  # fmt: skip
    done = subprocess.run(
        argv, env=ENVIRONMENT | {"PYTHON_EXEC": str(python())}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"

    one, two = run_and_save(tmp_path / "one.st", member, recipe=recipe), out
    before = tensors(member)
    for name, tensor in tensors(one).items():
        assert torch.allclose(tensors(two)[name], tensor, atol=1e-5), name
    assert max((tensors(one)[n] - t).abs().max() for n, t in before.items() if t.numel()) > 1e-3
    steps = header(one).made_by, header(two).made_by
    assert steps[0].options == steps[1].options
    assert steps[0].results["validation_accuracy"] == steps[1].results["validation_accuracy"]
    assert steps[0].results["validation_nll"] == pytest.approx(steps[1].results["validation_nll"], abs=1e-5)


def test_pieces_change_nothing(tmp_path):
    one, three = (
        tensors(run_and_save(tmp_path / f"{n}.st", recipe=replace(SGD, accumulate=n))) for n in (1, 3)
    )

    assert all(torch.allclose(one[n], three[n], atol=1e-5) for n in one)


def test_smoothed_labels_pull_that_much_less(tmp_path):
    """A classifier of zeros predicts equal probabilities, so the first step shrinks by the factor 1 - s."""
    recipe = replace(SGD, reset_head=True, train_parts=("head",), steps=1, epochs=None, warmup=0)
    model = base().save(tmp_path / "model.st")
    plain, smoothed = (
        tensors(run_and_save(tmp_path / f"{s}.st", model, recipe=replace(recipe, label_smoothing=s)))
        for s in (0.0, 0.25)
    )

    assert plain["head.bias"].abs().max() > 1e-3
    assert torch.allclose(smoothed["head.bias"], 0.75 * plain["head.bias"])


def test_mixing_pairs_changes_no_class_s_share_of_a_batch(tmp_path):
    """From a classifier of zeros, the first step changes the bias as without mixup, but not the weight."""
    recipe = replace(SGD, reset_head=True, train_parts=("head",), steps=1, epochs=None, warmup=0)
    model = base().save(tmp_path / "model.st")
    plain, mixed = (
        tensors(run_and_save(tmp_path / f"{a}.st", model, recipe=replace(recipe, mixup=a)))
        for a in (None, 1.0)
    )

    assert torch.allclose(mixed["head.bias"], plain["head.bias"], atol=1e-6)
    assert not torch.allclose(mixed["head.weight"], plain["head.weight"], atol=1e-4)


def test_each_block_moves_so_much_less_than_the_one_after_it(tmp_path, member):
    recipe = replace(SGD, momentum=0.0, steps=1, epochs=None, warmup=0, dropout=0.0)
    plain, scaled = (
        tensors(run_and_save(tmp_path / f"{f}.st", member, recipe=replace(recipe, layer_decay=f)))
        for f in (None, 0.5)
    )
    before = tensors(member)

    powers = {"patch_embed.proj.weight": 4, "blocks.0.mlp.fc1.weight": 3, "blocks.2.attn.proj.weight": 1, "norm.weight": 1,
              "head.weight": 0}  # fmt: skip
    for name, power in powers.items():
        moved, less = plain[name] - before[name], scaled[name] - before[name]
        assert moved.abs().max() > 1e-5
        assert torch.allclose(less, moved * 0.5**power, atol=1e-6), name


def test_reported_metrics_are_those_of_the_file(tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        model = base().cast(dtype).save(tmp_path / "model.st")
        report = run_finetune(config(tmp_path / "out.st", model, force=True))

        model_file = open_model(str(tmp_path / "out.st"))
        images = open_data(VAL)
        inputs = torch.stack(
            [eval_transform(model_file.header.preprocess)(images.image(i)) for i in range(40)]
        )
        with torch.inference_mode():
            log_probs = load_model(model_file, dtype=torch.float32)(inputs).log_softmax(1)
        labels = torch.tensor(images.labels)
        assert report.accuracy == pytest.approx(
            (log_probs.argmax(1) == labels).float().mean().item(), abs=1e-6
        )
        assert report.nll == pytest.approx(-log_probs.gather(1, labels[:, None]).mean().item(), abs=1e-5)
        assert header(tmp_path / "out.st").made_by.results["validation_nll"] == report.nll


def test_training_lowers_the_loss(tmp_path):
    recipe = Recipe(lr=(3e-3,), epochs=25, batch_size=16)
    report = run_finetune(config(tmp_path / "out.st", recipe=recipe))

    assert report.nll < 1.2
    assert report.accuracy > 0.6


# outputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_stay(tmp_path, dtype):
    model = base().cast(dtype).save(tmp_path / "model.st")
    out = run_and_save(tmp_path / "out.st", model)

    assert Checkpoint.open(out).specs == Checkpoint.open(model).specs
    assert not torch.equal(tensors(out)["head.weight"], tensors(model)["head.weight"])


def test_a_member_stays_that_member(tmp_path, member):
    out = run_and_save(tmp_path / "out.st", member)

    before, after = header(member), header(out)
    assert (after.kind, after.masks, after.base) == (Kind.MEMBER, before.masks, before.base)
    assert after.made_by.command == "finetune"
    assert after.made_by.inputs[0].sha256 == Checkpoint.open(member).digest


def test_a_base_names_what_it_came_from(tmp_path, plain):
    model = base().save(tmp_path / "model.st")
    first = run_and_save(tmp_path / "first.st", model)
    second = run_and_save(tmp_path / "second.st", first)

    assert header(first).base == header(second).base == Checkpoint.open(model).digest
    assert header(plain).base is None


def test_class_names_come_from_the_data(plain):
    assert header(plain).labels == tuple("0123456")


def test_class_names_of_the_model_stay(tmp_path):
    sample = base()
    named = replace(sample, header=sample.header.model_copy(update={"labels": tuple("6543210")}))
    out = run_and_save(tmp_path / "out.st", named.save(tmp_path / "model.st"))

    assert header(out).labels == tuple("6543210")


def test_lineage_has_options_inputs_and_results(tmp_path):
    step = header(run_and_save(tmp_path / "out.st", recipe=replace(RECIPE, lr=(1e-5, 1e-2)))).made_by

    assert step.options["lr"] == (1e-5, 1e-2)
    assert step.options["augment"] == ("shift",)
    assert step.seed == 0
    assert [i.name for i in step.inputs[1:]] == [str(DataRef.parse(TRAIN)), str(DataRef.parse(VAL))]
    assert step.results["lr"] == 1e-2
    assert step.results["steps"] == 12
    assert step.results["validation_count"] == 40
    assert str(tmp_path) not in step.model_dump_json()


def test_a_reset_head_starts_at_zero(tmp_path):
    recipe = replace(RECIPE, reset_head=True, steps=1, epochs=None, warmup=0, lr=(1e-9,), weight_decay=0.0)
    found = tensors(run_and_save(tmp_path / "out.st", base().save(tmp_path / "model.st"), recipe=recipe))

    assert found["head.weight"].abs().max() < 1e-8


def test_counts_of_parameters_add_up(tmp_path, member):
    report = run_finetune(config(tmp_path / "out.st", member, recipe=replace(RECIPE, train_parts=("head",))))

    held = tensors(member)
    assert report.trained_parameters == held["head.weight"].numel() + held["head.bias"].numel()
    assert report.trained_parameters + report.frozen_parameters == sum(t.numel() for t in held.values())


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("variant", ["map-pool", "distilled", "swiglu", "layer-scale"])
def test_other_architectures_train(tmp_path, variant):
    name, options = TIMM_VIT[variant]
    model = base(Variant("timm-vit", variant, name, TINY | options)).save(tmp_path / "model.st")
    out = run_and_save(tmp_path / "out.st", model, recipe=replace(RECIPE, steps=2, epochs=None, warmup=0))

    before, after = tensors(model), tensors(out)
    still = {n for n in before if before[n].is_floating_point() and torch.equal(before[n], after[n])}
    assert not still


# validation


@pytest.mark.parametrize(("val", "said"), [
    (VAL, None),
    (TRAIN, "`--val` and `--train` have the same samples"),
    ("digits::classes=0-6,limit=60,split=train", "`--val` and `--train` have the same samples"),
    ("digits::split=train,classes=2,limit=9", "9 of 9 samples of `--val` are also in `--train`"),
])  # fmt: skip
def test_validation_on_what_is_learnt_is_warned_about(tmp_path, val, said, progress_log):
    everything = DataRef.parse("digits::split=train,classes=0-6")
    data = DataRef.parse(TRAIN) if "60" in val else everything

    prepare(
        config(tmp_path / "out.st", train=data, val=DataRef.parse(val)), Output(OutputLock(force=False))
    ).inputs()

    lost = (
        "validation accuracy and NLL will be too good, and the learning rate and weights are selected on data that the "
        "model was trained on"
    )
    assert progress_log.warnings == ([] if said is None else [f"{said}: {lost}"])


# interruptions


class FileLosingProgress(ProgressLog):
    """A `Progress` that renames a file after the given number of messages."""

    def __init__(self, path, after):
        super().__init__()
        self.path, self.after = path, after

    def step(self, message):
        super().step(message)
        if len(self.steps) == self.after:
            self.path.rename(self.path.with_suffix(".away"))


@pytest.fixture
def pictures(tmp_path):
    """Folders of images for training and validation."""
    random = np.random.default_rng(0)
    for part, label, i in product(("train", "val"), "ab", range(6)):
        file = tmp_path / part / label / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (12, 12), dtype=np.uint8)).save(file)
    return tmp_path


def test_a_file_that_was_away_for_a_moment_costs_nothing(pictures):
    recipe = replace(RECIPE, augment=("rrc",), epochs=8, batch_size=4)
    given = {"train": DataRef.parse(f"{pictures}/train/"), "val": DataRef.parse(f"{pictures}/val/")}
    given |= {"model": ARCH.replace("num_classes=7", "num_classes=2"), "recipe": recipe}
    whole = run_and_save(pictures / "whole.st", **given).read_bytes()
    out, lost = pictures / "out.st", pictures / "train/b/3.png"

    with pytest.raises(DataError, match=r"3\.png") as caught:
        run_finetune(config(out, save_every=1, **given), FileLosingProgress(lost, after=4))
    assert caught.value.hint.endswith(
        f"the progress is saved in {out}.state; the same command resumes it, with unchanged inputs"
    )
    lost.with_suffix(".away").rename(lost)

    assert run_finetune(config(out, **given)).resumed_from > 0
    assert out.read_bytes() == whole


# state of another run


def cut(out, **changes):
    with pytest.raises(KeyboardInterrupt):
        run_finetune(config(out, save_every=1, **changes), InterruptedProgress(2))


OTHERS = (
    {"seed": 1},
    {"recipe": replace(RECIPE, lr=(2e-3,))},
    {"train": DataRef.parse(TRAIN.replace("60", "59"))},
    {"val": DataRef.parse(VAL.replace("40", "39"))},
)


def test_a_state_of_another_run_is_refused(tmp_path):
    out = tmp_path / "out.st"
    cut(out)

    for changes in OTHERS:
        with pytest.raises(OutputExists, match="other options") as caught:
            run_finetune(config(out, **changes))
        assert "--force" in caught.value.hint


@pytest.mark.more
@pytest.mark.parametrize(
    "changes", [OTHERS[0], *(pytest.param(other, marks=pytest.mark.more) for other in OTHERS[1:])]
)
def test_a_state_of_another_run_plays_no_part_where_it_is_replaced(tmp_path, changes):
    out = tmp_path / "out.st"
    cut(out)

    forced = run_and_save(out, force=True, **changes).read_bytes()
    assert forced == run_and_save(tmp_path / "fresh.st", **changes).read_bytes()
    assert not config(out).state.exists()


@pytest.mark.more
def test_force_starts_anew_and_says_so(tmp_path):
    out, progress_log = tmp_path / "out.st", ProgressLog()
    cut(out)

    assert run_finetune(config(out, force=True), progress_log).resumed_from is None
    assert progress_log.warnings == [
        (f"`--force` starts again: the state of an unfinished run in {out}.state is discarded")
    ]
    with pytest.raises(KeyboardInterrupt) as caught:
        run_finetune(config(out, force=True), InterruptedProgress(2))
    assert caught.value.__notes__ == [
        (
            f"the progress is saved in {out}.state; move {out} to another place, then the same command "
            "without `--force` resumes it"
        )
    ]


def test_a_folder_of_the_user_s_own_is_never_taken_for_a_state(tmp_path):
    out = tmp_path / "out.st"
    (tmp_path / "out.st.state").mkdir()
    (tmp_path / "out.st.state" / "notes.txt").write_text("mine")

    with pytest.raises(
        OutputExists, match=r"out\.st\.state: the state of the run goes here, but it contains `notes\.txt`"
    ):
        run_finetune(config(out, force=True))

    assert sorted(p.name for p in tmp_path.rglob("*")) == ["notes.txt", "out.st.state"]


def test_two_do_not_train_one_output(tmp_path):
    with (
        claimed(tmp_path / "out.st", force=False),
        pytest.raises(OutputExists, match="is writing it now") as caught,
    ):
        run_finetune(config(tmp_path / "out.st"))
    assert "--wait" in caught.value.hint


def test_going_on_is_reported(tmp_path):
    out = tmp_path / "out.st"
    cut(out)

    assert run_finetune(config(out)).resumed_from == 8
    assert run_finetune(config(out, force=True)).resumed_from is None


# errors


def unlabelled(tmp_path):
    return config(tmp_path / "out.st", train=DataRef.parse("noise::limit=5"))


def fewer_classes(tmp_path):
    return config(tmp_path / "out.st", train=DataRef.parse("digits::split=train"))


def unlabelled_folder(tmp_path):
    folder = tmp_path.parent / f"{tmp_path.name}-data" / "c0"
    folder.mkdir(parents=True)
    open_data(TRAIN).image(0).save(folder / "0.png")
    return config(tmp_path / "out.st", train=DataRef.parse(str(folder)))


def not_an_image(tmp_path):
    reference = unlabelled_folder(tmp_path).train
    (Path(reference.source) / "1.png").write_text("x")
    other = Path(reference.source).with_name("c1")
    other.mkdir()
    (other / "0.png").write_bytes((Path(reference.source) / "0.png").read_bytes())
    data = DataRef.parse(str(other.parent))
    return config(tmp_path / "out.st", train=data, val=data)


def saves_of_a_stream(tmp_path):
    return config(Path("-"), save_every=1)


def an_architecture_twice(tmp_path):
    return config(tmp_path / "out.st", arch="vit_tiny_patch16_224")


def no_data(tmp_path):
    return config(tmp_path / "out.st", val=DataRef.parse(str(tmp_path / "nowhere")))


def too_many_blocks(tmp_path):
    return config(tmp_path / "out.st", recipe=replace(RECIPE, last_blocks=3))


def nothing_trains(tmp_path):
    return config(tmp_path / "out.st", recipe=replace(RECIPE, train_parts=("mlp",), last_blocks=0))


def unknown_augmentation(tmp_path):
    return config(tmp_path / "out.st", recipe=replace(RECIPE, augment=("blur",)))


def no_folder(tmp_path):
    return config(tmp_path / "nowhere" / "out.st")


def no_model(tmp_path):
    return config(tmp_path / "out.st", tmp_path / "gone.st")


def only_warmup(tmp_path):
    return config(tmp_path / "out.st", recipe=replace(RECIPE, warmup=500))


def divergent(tmp_path):
    return config(tmp_path / "out.st", recipe=replace(RECIPE, lr=(1e18,), optimizer="sgd"), save_every=1)


@pytest.mark.parametrize(("make", "error", "said"), [
    (unlabelled, DataError, "has no labels"),
    (fewer_classes, DataError, "10 classes, but `arch:.*` has 7"),
    (unlabelled_folder, DataError, "c0: has no labels, but `--train` needs them"),
    (not_an_image, DataError, r"c0/1\.png: is not an image"),
    (saves_of_a_stream, UsageError, "`--save-every` has no effect with `-o -`"),
    (an_architecture_twice, UsageError, "`--arch` has no effect with `arch:"),
    (no_data, DataError, "nowhere"),
    (too_many_blocks, UsageError, "has 2 blocks"),
    (nothing_trains, UsageError, "nothing would train"),
    (unknown_augmentation, UsageError, "unknown augmentation `blur`"),
    (no_folder, OutputError, "does not exist"),
    (no_model, CheckpointError, "gone.st"),
    (only_warmup, UsageError, "takes all of the 12 steps"),
    (divergent, CheckFailed, "diverged"),
])  # fmt: skip
def test_bad_input_is_answered_and_leaves_nothing(tmp_path, make, error, said):
    with pytest.raises(error, match=said):
        run_finetune(make(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_a_fresh_model_of_another_number_of_classes_says_what_to_type(tmp_path):
    with pytest.raises(DataError) as caught:
        run_finetune(config(tmp_path / "out.st", train=DataRef.parse("digits")))

    assert "`num_classes=10`" in caught.value.hint
    assert "`::classes=`" in caught.value.hint


def test_outputs_are_not_replaced_unasked(tmp_path):
    model = base().save(tmp_path / "model.st")
    out = tmp_path / "out.st"
    out.write_text("mine")

    with pytest.raises(OutputExists, match="already exists"):
        run_finetune(config(out, model))
    with pytest.raises(OutputExists, match="is an input"):
        run_finetune(config(model, model, force=True))
    assert out.read_text() == "mine"


def test_rounded_weights_without_finite_outputs_are_not_written(tmp_path, monkeypatch):
    """The metrics of the training are those of weights in float32, which the file does not contain."""
    model = base().cast(torch.float16).save(tmp_path / "model.st")
    measured = stage.output_metrics
    monkeypatch.setattr(
        stage,
        "output_metrics",
        lambda work, engine, tensors, _: measured(work, engine, tensors, lambda _: None),
    )

    with pytest.raises(CheckFailed, match="the outputs are not finite after the trained weights are rounded"):
        run_finetune(config(tmp_path / "out.st", model))
    assert not (tmp_path / "out.st").exists()


@pytest.mark.parametrize(
    ("dtype", "more", "said"),
    [
        (torch.float16, 1e6, "is not finite as F16: .* too large"),
        (torch.float32, torch.nan, "is not finite after training"),
    ],
)
def test_weights_that_do_not_fit_their_dtype_are_not_written(tmp_path, monkeypatch, dtype, more, said):
    model = base().cast(dtype).save(tmp_path / "model.st")
    real = stage.train

    def broken(*args, **options):
        trained = real(*args, **options)
        return replace(trained, weights={n: w + more for n, w in trained.weights.items()})

    monkeypatch.setattr(stage, "train", broken)

    with pytest.raises(CheckFailed, match=said) as caught:
        run_finetune(config(tmp_path / "out.st", model))
    assert "`--lr`" in caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["model.st"]


@pytest.mark.parametrize("teaches", [False, True])
def test_weights_that_are_not_finite_are_named_and_no_rate_is_blamed(tmp_path, teaches):
    sample = base()
    sample.save(tmp_path / "whole.st")
    state = sample.state | {"norm.bias": sample.state["norm.bias"] + torch.inf}
    broken = type(sample)(sample.header, state).save(tmp_path / "broken.st")
    changes = {"model": tmp_path / "whole.st", "teacher": (str(broken),)} if teaches else {"model": broken}

    with pytest.raises(CheckpointError, match=r"broken\.st: tensor `norm\.bias` holds 32 numbers of 32"):
        run_finetune(config(tmp_path / "out.st", **changes))
    assert {p.name for p in tmp_path.iterdir()} == {"whole.st", "broken.st"}


def test_a_classifier_that_is_replaced_need_not_be_finite(tmp_path):
    sample = base()
    state = sample.state | {"head.bias": sample.state["head.bias"] * torch.nan}
    broken = type(sample)(sample.header, state).save(tmp_path / "broken.st")

    with pytest.raises(CheckpointError, match=r"`head\.bias`"):
        run_finetune(config(tmp_path / "out.st", broken))
    reset = replace(RECIPE, reset_head=True)
    assert tensors(run_and_save(tmp_path / "out.st", broken, recipe=reset))["head.bias"].isfinite().all()
