"""The Python code of the page on serving runs, and transformers' pipeline agrees with `predict`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydractl.manifest.guarantees import Threshold
from hydractl.output.publish import Folder
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import Sample, base

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A model with a threshold, a hydra's folder, and two images."""
    monkeypatch.chdir(tmp_path)
    stored = Threshold(score="msp", below=-0.1, risk=0.1, delta=0.05, count=60, accepted=60, errors=0)
    labels = tuple("abcdefg")
    sample = replace(base(), header=base().header.model_copy(update={"threshold": stored, "labels": labels}))
    sample.save(tmp_path / "selective.st")
    members = [_member(sample, i).save(tmp_path / f"m{i}.st") for i in range(2)]
    run_fuse(FuseConfig(models=tuple(map(str, members)), out=Folder(tmp_path / "hydra"), verify=False))
    for name, shade in (("a.jpg", 60), ("b.png", 190)):
        Image.fromarray(np.full((9, 12, 3), shade, np.uint8)).save(tmp_path / name)
    return tmp_path


def _member(sample: Sample, seed: int) -> Sample:
    plain = sample.header.model_copy(update={"threshold": None})
    return replace(sample, header=plain).pruned((0, 1), (2,), (seed,)).tuned(seed)


def test_the_page_runs_as_it_stands(work, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}

    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page

    assert len(blocks) == 3
    label, _ = capsys.readouterr().out.splitlines()[0].split()
    assert label in names["hydra"].labels
    hydra = names["hydractl"].load("hydra/").predict(["a.jpg"])
    assert names["answer"].member_logits.shape == (2, 1, 7)
    assert np.allclose(names["answer"].logits.detach().exp().numpy(), hydra.probabilities.numpy(), atol=1e-5)
    best = names["classify"]("a.jpg")[0]
    assert (best["label"], best["score"]) == (
        hydra.labels[0],
        pytest.approx(float(hydra.confidence[0]), abs=1e-5),
    )
