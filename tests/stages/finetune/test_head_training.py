"""`finetune --train-parts head`: stored features give the same results as running the encoder in every epoch."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.checkpoint import Checkpoint
from hydractl.data.batches import epoch_order
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform
from hydractl.data.reference import DataRef
from hydractl.errors import OutputError, UsageError
from hydractl.families.tower import Tower
from hydractl.output import scratch
from hydractl.stages.finetune import run as stage
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training.recipe import Recipe, recipe_of
from support.builders import base
from support.progress_log import InterruptedProgress, ProgressLog
from support.ranks import environment, launcher
from support.reviews import MAX_LENGTH, WORDS, reviews, tokenizer
from support.variants import variant

pytestmark = pytest.mark.usefixtures("one_thread")

TRAIN = "digits::split=train,classes=0-6,limit=60"
VAL = "digits::split=val,classes=0-6,limit=40"
RECIPE = Recipe(lr=(1e-2,), epochs=3, batch_size=16, train_parts=("head",))
TEXT = (
    f"hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=48,vocab_size={len(WORDS)},"
    f"max_position_embeddings={MAX_LENGTH + 2},num_labels=2,pad_token_id=0,tokenizer="
)
OWN = ("head", "own")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """References of models by name, and two files of reviews under "texts"."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer().save(str(folder / "tokenizer.json"))
    made = {
        name: str(base(variant(f"timm-{name}")).save(folder / f"{name}.st"))
        for name in ("vit-class-token", "vit-distilled", "vit-average-pool")
    }
    for name in ("bert", "roberta", "eurobert"):
        made[name] = f"arch:{name}::{TEXT}{folder / 'tokenizer.json'}"
    made["eurobert"] += ",classifier_pooling=late,num_key_value_heads=4,head_dim=8"
    samples = [base().pruned((0,), (1, 2), ()).tuned(i) for i in range(2)]
    paths = tuple(str(s.save(folder / f"{i}.st")) for i, s in enumerate(samples))
    for name, files, options in (
        ("members", paths, {"mlp": "keep"}),
        ("own-heads", paths[:1] * 3, {"trunk": 2, "own_blocks": True}),
        ("one-head", paths[:1] * 2, {}),
    ):
        run_fuse(FuseConfig(models=files, out=folder / f"{name}.st", verify=False, **options))
        made[name] = str(folder / f"{name}.st")
    made["texts"] = [str(reviews(folder / f"{i}.jsonl", count, seed=i)) for i, count in enumerate((48, 24))]
    return made


def config(models, name, out, **changes):
    data = models["texts"] if models[name].startswith("arch:") else (TRAIN, VAL)
    given = {
        "train": DataRef.parse(data[0]),
        "val": DataRef.parse(data[1]),
        "recipe": RECIPE,
        "device": "cpu",
    }
    return FinetuneConfig(model=models[name], out=out, **(given | changes))


def run_and_load(models, name, out, **changes):
    """Return the tensors of the output, and the report of the run."""
    report = run_finetune(config(models, name, out, **changes))
    return Checkpoint.open(out).tensors(), report


def disable_stored_features(monkeypatch):
    """Disable stored features: the encoder then runs in each step, in evaluation mode."""
    monkeypatch.setattr(stage, "keep_features", lambda *_: None)


CASES = {
    "vit-class-token": {},
    "vit-distilled": {"recipe": replace(RECIPE, ema=0.9, accumulate=3, clip=1.0)},
    "vit-average-pool": {"recipe": replace(RECIPE, lr=(1e-2, 1e-1), keep_best=True, label_smoothing=0.1)},
    "bert": {},
    "roberta": {"max_length": 9},
    "eurobert": {},
    "members": {"batches": "own"},
    "own-heads": {"recipe": replace(RECIPE, train_parts=OWN), "head_seed": 3},
    "one-head": {},
}


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("name", CASES)
def test_the_classifier_trains_as_if_its_encoder_ran_in_each_step(models, tmp_path, monkeypatch, name):
    changes = dict(CASES[name])
    if "head_seed" in changes:
        changes["recipe"] = replace(changes["recipe"], reset_head=True)
    once, kept = run_and_load(models, name, tmp_path / "once.st", **changes)
    disable_stored_features(monkeypatch)
    each, plain = run_and_load(models, name, tmp_path / "each.st", **changes)

    assert all(torch.allclose(once[n], each[n], atol=1e-5) for n in each)
    assert (kept.accuracy, kept.lr, kept.step) == (plain.accuracy, plain.lr, plain.step)
    assert kept.nll == pytest.approx(plain.nll, abs=1e-5)
    assert kept.trained_parameters == plain.trained_parameters


def test_it_is_logistic_regression_on_the_features_of_the_base(models, tmp_path):
    """Batches, order, features and gradients are computed by hand."""
    recipe = replace(
        RECIPE, optimizer="sgd", lr=(0.1,), momentum=0.0, weight_decay=0.0, warmup=0, schedule="constant"
    )
    found, _ = run_and_load(models, "vit-class-token", tmp_path / "out.st", recipe=recipe, seed=4)

    sample, images = base(variant("timm-vit-class-token")), open_data(TRAIN)
    inputs = torch.stack([eval_transform(sample.header.preprocess)(images.image(i)) for i in range(60)])
    library, labels = sample.library(), torch.tensor(images.labels)
    with torch.no_grad():
        features = library.forward_head(library.forward_features(inputs), pre_logits=True)
    weight, bias = (sample.state[f"head.{n}"].clone() for n in ("weight", "bias"))
    for epoch in range(3):
        for batch in epoch_order(60, seed=4, epoch=epoch).split(16):
            error = (features[batch] @ weight.T + bias).softmax(1) - F.one_hot(labels[batch], 7)
            weight -= 0.1 * error.T @ features[batch] / len(batch)
            bias -= 0.1 * error.mean(0)
    assert not torch.allclose(weight, sample.state["head.weight"], atol=1e-2)
    assert torch.allclose(found["head.weight"], weight, atol=1e-5)
    assert torch.allclose(found["head.bias"], bias, atol=1e-5)


def record_batch_sizes(monkeypatch):
    """Record the batch size of each following forward pass of a tower in the returned list."""
    counted = []
    forward = Tower.forward
    monkeypatch.setattr(
        Tower, "forward", lambda self, inputs: (counted.append(len(inputs)), forward(self, inputs))[1]
    )
    return counted


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("epochs", [1, 5])
def test_the_encoder_sees_each_sample_once(models, tmp_path, monkeypatch, epochs):
    counted = record_batch_sizes(monkeypatch)
    progress_log = ProgressLog()
    recipe = replace(RECIPE, epochs=epochs)
    report = run_finetune(config(models, "vit-class-token", tmp_path / "out.st", recipe=recipe), progress_log)

    encoded = [count for count in counted if count > 1]  # batches of 1 are blank inputs, run to measure sizes
    assert encoded == [60, 40]
    assert progress_log.steps[1] == "Running the frozen encoder once and storing its features"
    whole = replace(RECIPE, epochs=epochs, train_parts=("readout", "head"))
    full = run_and_load(models, "vit-class-token", tmp_path / "full.st", recipe=whole)[1].training_macs
    assert report.training_macs == full // (3 * epochs) + 3 * epochs * 60 * 32 * 7


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("change", ["augment", "mixup", "teacher"])
def test_an_encoder_that_must_run_in_each_step_is_in_evaluation_mode(models, tmp_path, monkeypatch, change):
    """Dropout rates of the architecture have no effect on a frozen encoder."""
    rates = {
        "drop_rate": 0.5,
        "proj_drop_rate": 0.5,
        "attn_drop_rate": 0.5,
        "pos_drop_rate": 0.5,
        "drop_path_rate": 0.5,
    }
    sample = base()
    config_with_rates = sample.header.architecture.config | rates
    dropping = sample.header.model_copy(
        update={"architecture": sample.header.architecture.model_copy(update={"config": config_with_rates})}
    )
    changes = {
        "augment": {"recipe": replace(RECIPE, augment=("shift",))},
        "mixup": {"recipe": replace(RECIPE, mixup=0.8)},
        "teacher": {"teacher": (str(base(seed=1).save(tmp_path / "teacher.st")),)},
    }[change]
    counted, found = record_batch_sizes(monkeypatch), []
    for name, one in (("plain", sample), ("dropping", replace(sample, header=dropping))):
        models = models | {name: str(one.save(tmp_path / f"{name}.st"))}
        found.append(run_and_load(models, name, tmp_path / "out.st", force=True, **changes)[0])

    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])
    assert not torch.equal(found[0]["head.weight"], sample.state["head.weight"])
    assert len([count for count in counted if count > 1]) > 2 * 12


@pytest.mark.more
def test_an_interrupted_run_goes_on_to_the_same_bytes(models, tmp_path):
    recipe = replace(RECIPE, lr=(1e-2, 1e-1), keep_best=True)
    whole, out = tmp_path / "whole.st", tmp_path / "out.st"
    run_and_load(models, "roberta", whole, recipe=recipe)
    cuts = 0
    while not out.exists():
        cuts += 1
        assert cuts < 20
        try:
            run_finetune(
                config(models, "roberta", out, recipe=recipe, save_every=1),
                InterruptedProgress(3 if cuts == 1 else 4),
            )
        except KeyboardInterrupt:
            assert (tmp_path / "out.st.state").is_dir()

    assert cuts > 1
    assert out.read_bytes() == whole.read_bytes()


def test_features_that_lie_in_a_file_give_the_same_bytes(models, tmp_path, monkeypatch):
    run_and_load(models, "own-heads", tmp_path / "memory.st")
    monkeypatch.setattr(scratch, "HELD_BYTES", 0)
    run_and_load(models, "own-heads", tmp_path / "file.st")
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(OutputError, match="the features of 60 samples need") as caught:
        run_and_load(models, "own-heads", tmp_path / "none.st")

    assert (tmp_path / "memory.st").read_bytes() == (tmp_path / "file.st").read_bytes()
    assert "TMPDIR" in caught.value.hint
    assert not (tmp_path / "none.st").exists()


@pytest.mark.more
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.more)])
def test_the_bytes_are_the_same_for_any_number_of_processes(models, tmp_path, python, world):
    """Batches of one piece leave processes without work."""
    for name, accumulate in (("vit-distilled", 3), ("own-heads", 1)):
        words = (
            f"finetune {models[name]} --train {TRAIN} --val {VAL} --train-parts head --lr 1e-2,1e-1 --keep-best --epochs 2 "
            f"--batch-size 16 --accumulate {accumulate} --device cpu -q"
        ).split()
        for processes in (1, world):
            argv = [*launcher(processes, python()), "-m", "hydractl", *words, "-o", f"{name}-{processes}.st"]
            done = subprocess.run(
                argv, cwd=tmp_path, env=environment(PYTHON_EXEC=str(python())), check=False, capture_output=True, text=True
            )  # fmt: skip
            assert done.returncode == 0, done.stderr

        assert (tmp_path / f"{name}-1.st").read_bytes() == (tmp_path / f"{name}-{world}.st").read_bytes()


def test_reported_metrics_are_those_of_rounded_weights(models, tmp_path):
    models = models | {"halved": str(base().cast(torch.bfloat16).save(tmp_path / "halved.st"))}
    _, report = run_and_load(models, "halved", tmp_path / "out.st")
    rewritten = replace(base(), state=Checkpoint.open(tmp_path / "out.st").tensors())
    images = open_data(VAL)
    inputs = torch.stack([eval_transform(rewritten.header.preprocess)(images.image(i)) for i in range(40)])
    with torch.inference_mode():
        log_probs = rewritten.model()(inputs).log_softmax(1)

    nll = F.nll_loss(log_probs, torch.tensor(images.labels)).item()
    assert report.nll == pytest.approx(nll, abs=1e-6)


@pytest.mark.parametrize("option", ["dropout", "drop_path"])
def test_a_share_to_drop_has_no_effect_on_an_encoder_that_does_not_train(option):
    name = option.replace("_", "-")
    with pytest.raises(UsageError, match=f"`--{name}` has no effect with `--train-parts head`"):
        recipe_of(None, {option: 0.1, "train_parts": ("head",)})
    assert option not in Recipe(**{option: 0.1, "train_parts": ("head",)}).options()


def test_equal_members_whose_encoder_drops_nothing_stay_equal_and_that_is_said(models, tmp_path):
    progress_log = ProgressLog()
    run_finetune(
        config(models, "own-heads", tmp_path / "out.st", recipe=replace(RECIPE, dropout=0.5)), progress_log
    )

    (message,) = [line for line in progress_log.warnings if "stay equal" in line]
    assert "add `--reset-head" in message
