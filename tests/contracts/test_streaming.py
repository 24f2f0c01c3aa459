"""All families: a model with blocks filled from files during a forward pass gives the same outputs."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.open_model import load_model, open_model
from hydractl.fusion.build import member_logits
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.variants import VARIANTS

KEEPS = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)))
DISTINCT = ("rope-mixed-dynamic", "both-and-positions", "v3", "metaclip", "custom-text-rope")


@pytest.mark.spread(alike=True, every=16)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_run_step_by_step_it_says_what_it_says(tmp_path, variant):
    model_file = open_model(str(base(variant).pruned(*KEEPS[0]).save(tmp_path / "m.st")))
    inputs = base(variant).inputs()

    found = member_logits(model_file, inputs)

    with torch.inference_mode():
        assert torch.equal(found[0], load_model(model_file)(inputs))


@pytest.mark.parametrize("name", DISTINCT)
def test_so_does_a_hydra(tmp_path, name):
    sample = base(next(v for v in VARIANTS if str(v).endswith(name)))
    paths = [str(sample.pruned(*keep).tuned(i).save(tmp_path / f"{i}.st")) for i, keep in enumerate(KEEPS)]

    report = run_fuse(FuseConfig(models=tuple(paths), out=tmp_path / "hydra.st", mlp="keep"))

    assert report.gap is not None
    assert report.gap.logits <= 1e-5
