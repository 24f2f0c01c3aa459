"""Training of a hydra by transformers' Trainer."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import hydractl
from support.builders import base
from support.variants import variant

pytestmark = pytest.mark.newer  # Trainer needs a newer accelerate than the declared minimum of transformers.

KINDS = {
    "images": (AutoModelForImageClassification, base(variant("class-token"))),
    "texts": (AutoModelForSequenceClassification, base(variant("transformers-bert-plain"))),
}
either = pytest.mark.parametrize("kind", KINDS)


def samples(kind, count=12):
    """Return inputs and labels in a dictionary per sample."""
    inputs = KINDS[kind][1].inputs(batch=count)
    named = {"pixel_values": inputs} if isinstance(inputs, torch.Tensor) else inputs
    return [{name: x[i] for name, x in named.items()} | {"labels": i % 7} for i in range(count)]


def trainer(kind, folder, out, *, compute_metrics=None, **told):
    """Return a Trainer for the hydra in a folder."""
    usual = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "learning_rate": 0.01,
    }
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "max_grad_norm": 1e9}
    told = (
        usual
        | quiet
        | {"save_strategy": "no", "lr_scheduler_type": "constant", "dataloader_pin_memory": False}
        | told
    )
    data = samples(kind)
    return Trainer(
        model=KINDS[kind][0].from_pretrained(folder),
        args=TrainingArguments(str(out), **told),
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=compute_metrics,
    )


def same(found, expected):
    """Return whether two models have equal tensors."""
    own, theirs = found.tensors(), expected.tensors()
    return own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)


@either
def test_the_best_checkpoint_is_loaded_at_the_end(request, tmp_path, kind, caplog):
    steps = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "learning_rate": 0.5}
    found = trainer(kind, request.getfixturevalue(kind), tmp_path, **steps, **best)
    found.train()

    losses = [entry["eval_loss"] for entry in found.state.log_history if "eval_loss" in entry]
    assert min(losses) < losses[-1]
    assert found.evaluate()["eval_loss"] == pytest.approx(min(losses))
    assert same(found.model.loaded, hydractl.load(found.state.best_model_checkpoint))
    assert not [record for record in caplog.records if "keys in the checkpoint" in record.message]


@either
def test_training_that_is_resumed_is_training_that_went_on(request, tmp_path, kind):
    folder = request.getfixturevalue(kind)
    whole = trainer(kind, folder, tmp_path / "whole")
    whole.train()
    half = trainer(kind, folder, tmp_path / "half", max_steps=2, save_strategy="steps", save_steps=2)
    half.train()

    rest = trainer(kind, folder, tmp_path / "half")
    rest.train(resume_from_checkpoint=True)

    assert not same(half.model.loaded, whole.model.loaded)
    assert same(rest.model.loaded, whole.model.loaded)


def test_gradients_that_are_accumulated_are_those_of_the_whole_batch(images, tmp_path):
    seen = []
    for size, times in ((8, 1), (2, 4)):
        found = trainer(
            "images",
            images,
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=times,
            max_steps=1,
        )
        found.train()
        seen.append({name: found.state.log_history[0][name] for name in ("loss", "grad_norm")})
    assert seen[1] == pytest.approx(seen[0], rel=1e-4)


@either
def test_what_is_predicted_are_the_logits_of_all_samples(request, tmp_path, kind):
    def measure(said):
        return {"accuracy": float((said.predictions.argmax(-1) == said.label_ids).mean())}

    found = trainer(kind, request.getfixturevalue(kind), tmp_path, compute_metrics=measure)
    data = samples(kind)
    predicted = found.predict(data)

    batch = {name: torch.stack([one[name] for one in data]) for name in data[0] if name != "labels"}
    with torch.inference_mode():
        logits = found.model.eval()(**batch).logits
    assert torch.allclose(torch.from_numpy(predicted.predictions), logits, atol=1e-5)
    expected = (logits.argmax(-1) == torch.tensor([one["labels"] for one in data])).double().mean()
    assert predicted.metrics["test_accuracy"] == pytest.approx(float(expected))
