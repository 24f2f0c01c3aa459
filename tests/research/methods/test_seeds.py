"""`finetune --order-seed` and `--dropout-seed` replace `--seed` for one source of randomness each."""

from __future__ import annotations

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.research.methods.options import TrainingOptions
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.training.recipe import Recipe

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
RECIPE = Recipe(lr=(1e-3,), epochs=1, batch_size=16, augment=("shift",), dropout=0.1)


@pytest.fixture
def tuned(tmp_path):
    def run(name, *, seed=0, head_seed=None, **seeds):
        run_finetune(
            FinetuneConfig(
                model=ARCH,
                train=DataRef.parse("digits::split=train,classes=0-6,limit=60"),
                val=DataRef.parse("digits::split=val,classes=0-6,limit=40"),
                recipe=RECIPE,
                device="cpu",
                out=tmp_path / name,
                seed=seed,
                head_seed=head_seed,
                extensions=(TrainingOptions(**seeds),) if seeds else (),
            )
        )
        return Checkpoint.open(tmp_path / name)

    return run


def test_each_seed_alone_changes_the_model(tuned):
    plain = tuned("plain.st").tensors()

    for name in ("order_seed", "dropout_seed", "head_seed"):
        changed = tuned(f"{name}.st", **{name: 5})
        assert any(not torch.equal(tensor, plain[n]) for n, tensor in changed.tensors().items()), name
        assert changed.header.made_by.options[name] == 5


def test_seeds_equal_to_the_seed_change_nothing(tuned):
    plain = tuned("plain.st", seed=3).tensors()
    equal = tuned("equal.st", seed=3, order_seed=3, dropout_seed=3, head_seed=3).tensors()

    assert all(torch.equal(equal[n], plain[n]) for n in plain)


def test_the_three_seeds_replace_the_seed_for_all_but_random_weights(tuned):
    seeds = {"order_seed": 5, "dropout_seed": 5, "head_seed": 5}
    first, second = tuned("a.st", seed=0, **seeds).tensors(), tuned("b.st", seed=5).tensors()

    # the seed also draws the weights of the blocks
    assert any(not torch.equal(first[n], second[n]) for n in first)
