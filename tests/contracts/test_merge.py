"""A hydra with a merged trunk equals its members with averaged trunks, and runs the trunk once."""

from __future__ import annotations

import re

import pytest
import torch

from hydractl.families.open_model import open_model
from hydractl.families.tower import Block, largest_difference
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.variants import VARIANTS

LAYER = re.compile(r"\.?(?:blocks|layer|layers|resblocks)\.(\d+)\.")
APART = {
    "timm-vit-class-token": r"norm\.|head\.",
    "transformers-bert-plain": r"bert\.pooler\.|classifier\.",
    "transformers-mpnet-plain": r"classifier\.",
    "transformers-beit-shared-relative": r"beit\.(layernorm|pooler)|classifier\.",
    "transformers-clip-plain": r"(vision|text)_model\.(post|final)_layer_?norm|(visual|text)_projection|logit_scale",
}
"""Patterns of tensor names after the blocks, by variant."""
FAMILIES = [v for v in VARIANTS if str(v) in APART]
OWN = (((0, 3), (1,), ()), ((1, 2), (), (0, 1, 3)), ((0,), (2, 3), (1,)))
"""Heads of each member in its own blocks."""


def tuned(variant, merge_trunk):
    """Return fine-tuned members of one base, with different heads from block `merge_trunk` on."""
    keeps = [((0, 2, 3), (1, 2), (3,))[:merge_trunk] + own[merge_trunk:] for own in OWN]
    return [base(variant).pruned(*keep).tuned(i) for i, keep in enumerate(keeps)]


def merged_by_hand(variant, samples, merge_trunk):
    """Replace all tensors before block `merge_trunk` by their mean in float64; return the means by name."""

    def is_trunk(name):
        layer = LAYER.search(name)
        return int(layer[1]) < merge_trunk if layer else not re.match(APART[str(variant)], name)

    mean = {
        name: torch.stack([s.state[name].double() for s in samples]).mean(0).to(tensor.dtype)
        for name, tensor in samples[0].state.items()
        if tensor.is_floating_point() and is_trunk(name)
    }
    for sample in samples:
        sample.state.update(mean)
    return mean


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize("merge_trunk", [1, 3])
@pytest.mark.parametrize("variant", FAMILIES, ids=str)
def test_a_merged_hydra_is_its_members_with_the_mean_trunk(tmp_path, monkeypatch, variant, merge_trunk):
    samples = tuned(variant, merge_trunk)
    paths = tuple(str(s.save(tmp_path / f"{i}.st")) for i, s in enumerate(samples))

    report = run_fuse(FuseConfig(models=paths, out=tmp_path / "hydra.st", trunk=merge_trunk, verify=False))

    mean = merged_by_hand(variant, samples, merge_trunk)
    model_file = open_model(str(tmp_path / "hydra.st"))
    towers = len(model_file.header.architecture.towers)
    assert {n for n, fate in model_file.header.plan.fates.items() if fate == "merged"} == mean.keys()
    assert all(torch.equal(model_file.checkpoint.tensor(name), found) for name, found in mean.items())
    assert (model_file.header.plan.merge_trunk, model_file.header.plan.mlp) == (merge_trunk, "keep")
    assert (report.trunk, model_file.header.plan.trunk) == (merge_trunk * towers, merge_trunk * towers)
    inputs = samples[0].inputs(batch=2)
    with torch.inference_mode():
        expected = torch.cat([s.model().member_logits(inputs) for s in samples])
        ran = []
        monkeypatch.setattr(Block, "forward", counting(ran, Block.forward))
        found = load(tmp_path / "hydra.st").member_logits(inputs)
    assert largest_difference(found, expected) <= 1e-5
    assert ran == ([2] * merge_trunk + [6] * (3 - merge_trunk)) * towers


def counting(ran, run):
    """Return a wrapper of `Block.forward` with a record of batch sizes in `ran`."""

    def counted(block, stream, queries=None):
        ran.append(stream.tokens.shape[0])
        return run(block, stream, queries)

    return counted
