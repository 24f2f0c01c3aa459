"""`finetune` with batch norm in the stem: validation uses the statistics of the written file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import support.trunks  # noqa: F401 - registers architectures
from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.training.recipe import Recipe
from support.progress_log import InterruptedProgress, ProgressLog

ARCH = "arch:tiny_batch_norm::img_size=8,num_classes=10"
RECIPE = Recipe(optimizer="sgd", lr=(0.1,), steps=12, batch_size=6, eval_every=2)


def tuned(out, progress=None, recipe=RECIPE, **changes):
    config = FinetuneConfig(
        model=changes.pop("model", ARCH),
        train=DataRef.parse("digits::split=train,limit=12"),
        val=DataRef.parse("digits::split=val,limit=12"),
        recipe=recipe,
        device="cpu",
        out=out,
        **changes,
    )
    return run_finetune(config, progress or ProgressLog())


def tensors(path):
    return Checkpoint.open(path).tensors()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out, progress_log = tmp_path_factory.mktemp("whole") / "out.st", ProgressLog()
    return out, tuned(out, progress_log), progress_log


def test_what_is_written_validates_as_progress_said(whole):
    _, report, progress_log = whole

    assert f"validation accuracy {report.accuracy:.4f}, nll {report.nll:.4f}" in progress_log.steps[-1]


def test_random_weights_are_warned_of_and_a_checkpoint_is_not(whole, tmp_path):
    progress_log = ProgressLog()
    tuned(tmp_path / "again.st", progress_log, model=str(whole[0]))

    assert [message.partition(" and ")[0] for message in whole[2].warnings] == [
        f"{ARCH} keeps the initial means of 0"
    ]
    assert progress_log.warnings == []


def test_the_weights_of_its_norms_train(whole):
    found = tensors(whole[0])

    assert any((t != 1).any() for n, t in found.items() if n.endswith("backbone.1.weight"))
    assert all(
        (t == 0).all() for n, t in found.items() if n.endswith(("running_mean", "num_batches_tracked"))
    )


@pytest.mark.more
def test_an_interrupted_run_goes_on_to_the_same_bytes(whole, tmp_path):
    out, progress_log = tmp_path / "out.st", ProgressLog()
    with pytest.raises(KeyboardInterrupt):
        tuned(out, InterruptedProgress(1), save_every=1)

    assert tuned(out, progress_log, save_every=1).resumed_from == 2
    assert progress_log.steps[-1] == whole[2].steps[-1]
    assert out.read_bytes() == whole[0].read_bytes()


def test_pieces_change_nothing(whole, tmp_path):
    pieces = tmp_path / "pieces.st"
    tuned(pieces, recipe=replace(RECIPE, accumulate=3))

    one, three = tensors(whole[0]), tensors(pieces)
    assert all(torch.allclose(one[n], three[n], atol=1e-5) for n in one)
