"""`finetune --repulsion`: members disagree more on images with permuted patches; refused models and options."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.families.open_model import open_model
from hydractl.families.tower import blank_inputs
from hydractl.fusion.build import load_any
from hydractl.manifest.header import Tokenization
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training.losses import agreement, with_permuted_patches
from hydractl.training.plan import check_members
from hydractl.training.recipe import Recipe
from support.builders import base

TRAIN = "digits::split=train,classes=0-6,limit=24"
VAL = "digits::split=val,classes=0-6,limit=20"
SGD = Recipe(lr=(0.02,), optimizer="sgd", weight_decay=0.0, steps=6, batch_size=8)


def config(out, model, **changes):
    given = {"train": DataRef.parse(TRAIN), "val": DataRef.parse(VAL), "recipe": SGD, "device": "cpu"}
    return FinetuneConfig(model=str(model), out=out, **(given | changes))


@pytest.fixture(scope="module")
def hydra(tmp_path_factory):
    made = tmp_path_factory.mktemp("repulsion")
    for i in range(3):
        base().tuned(i).save(made / f"{i}.st")
    models = tuple(str(made / f"{i}.st") for i in range(3))
    run_fuse(FuseConfig(models=models, out=made / "hydra.st", mlp="keep", verify=False))
    return made / "hydra.st"


def agreement_of(path):
    """Return the agreement of the members on images with permuted patches."""
    random = torch.Generator().manual_seed(0)
    model_file = open_model(str(path))
    images = torch.randn(blank_inputs(model_file.header.preprocess, 16, device="cpu").shape, generator=random)
    order = torch.rand(16, 16, generator=random).argsort(-1)
    with torch.no_grad():
        logits = load_any(model_file).member_logits(with_permuted_patches(images, order))
    return agreement(logits.softmax(-1)).item()


@pytest.mark.more
def test_members_agree_less_where_no_answer_is_right(hydra, tmp_path):
    plain = run_finetune(config(tmp_path / "plain.st", hydra))
    pushed = run_finetune(config(tmp_path / "pushed.st", hydra, repulsion=3.0))

    assert agreement_of(tmp_path / "pushed.st") < agreement_of(tmp_path / "plain.st") - 0.01
    assert pushed.training_macs == 2 * plain.training_macs
    assert "'repulsion': 3.0" in str(Checkpoint.open(tmp_path / "pushed.st").header)


@pytest.mark.more
def test_the_same_seed_gives_the_same_bytes(hydra, tmp_path):
    for name in ("a.st", "b.st"):
        run_finetune(config(tmp_path / name, hydra, repulsion=0.5))

    assert (tmp_path / "a.st").read_bytes() == (tmp_path / "b.st").read_bytes()


def test_repulsion_needs_a_hydra_of_images(hydra, tmp_path):
    with pytest.raises(
        UsageError, match="is a base, but only members of a hydra can be pushed apart"
    ) as caught:
        run_finetune(config(tmp_path / "never.st", hydra.parent / "0.st", repulsion=0.1))
    assert "`hydractl fuse`" in caught.value.hint

    texts = Tokenization(max_length=8, pad_id=0, vocab_size=9)
    with pytest.raises(UsageError, match="reads texts, but only patches of images can be permuted"):
        check_members(open_model(str(hydra)), texts, own_batches=False, repulsion=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batches": "own"}, "--batches"),
        ({"repulsion": 0.0}, "must be above 0"),
    ],
)
def test_what_does_not_go_with_it(hydra, tmp_path, changes, said):
    with pytest.raises(UsageError, match=said):
        config(tmp_path / "never.st", hydra, **({"repulsion": 0.1} | changes))


@pytest.mark.more
def test_a_frozen_encoder_runs_in_each_step(hydra, tmp_path):
    """Stored features would be those of images in the original order of patches."""
    given = {"recipe": replace(SGD, train_parts=("head",))}
    plain = run_finetune(config(tmp_path / "plain.st", hydra, **given))
    pushed = run_finetune(config(tmp_path / "pushed.st", hydra, repulsion=3.0, **given))

    assert pushed.training_macs > 2 * plain.training_macs
    assert agreement_of(tmp_path / "pushed.st") < agreement_of(tmp_path / "plain.st")
