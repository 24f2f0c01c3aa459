"""Every family, every variant: a file that `export` writes answers as the hydra does, of any number of samples, texts of any length."""

from __future__ import annotations

import pytest
import torch

import hydractl
from hydractl.data import tokenize
from hydractl.families.probe import largest_difference, probe_inputs
from hydractl.inputs import PIXELS, TEXTS
from hydractl.manifest.header import Tokenization
from hydractl.stages.export import formats
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.shared.classes import Naming
from support.builders import base
from support.variants import VARIANTS

KEEPS = (((0, 2, 3), (), (1,)), ((1, 2), (), ()))
"""A layer in which no member has heads, and a last one in which one has none."""
CLASSES = ("a", "b", "c")
USUAL = ("timm-eva-rope-mixed", "transformers-modernbert-local-last")
"""What a run without `--all-variants` tries: each takes seconds. Rotary angles of each head; windows, masks and lengths."""
FIRST = {v.family: v for v in reversed(VARIANTS)}.values()


@pytest.fixture
def prompted(monkeypatch):
    """Let prompts be random tokens: variants have no tokenizer."""

    def prompts(header):
        def encode(texts, _):
            found = probe_inputs(header, batch=len(texts), seed=5)
            return {name: x for name, x in found.items() if name in TEXTS}

        monkeypatch.setattr(tokenize, "encode_texts", encode)

    return prompts


def asked_of(sample):
    """Yield what a user may ask: some samples, one, and texts that are shorter; the first token is never padding."""
    how = sample.header.preprocess
    for batch, seed in ((3, 7), (1, 8)):
        inputs = sample.inputs(batch=batch, seed=seed)
        if not isinstance(how, Tokenization):
            yield {PIXELS: inputs[PIXELS] if isinstance(inputs, dict) else inputs}
            continue
        yield inputs
        if how.padding == "longest":
            yield {name: x[:, :5].contiguous() for name, x in inputs.items()}


@pytest.mark.newer
@pytest.mark.parametrize(
    ("variant", "suffix"),
    [
        pytest.param(v, suffix, id=f"{v}-{suffix[1:]}", marks=() if usual else pytest.mark.more)
        for v in VARIANTS
        for suffix in (".pt2", ".onnx")
        if (usual := str(v) in USUAL and suffix == ".pt2") or (suffix == ".onnx") == (v in FIRST)
    ],
)
def test_exported_equals_the_hydra(tmp_path, prompted, variant, suffix):
    sample, out = base(variant), tmp_path / f"h{suffix}"
    names = None if sample.header.prompting is None else CLASSES
    prompted(sample.header)
    members = [str(sample.pruned(*keep).tuned(i).save(tmp_path / f"{i}.st")) for i, keep in enumerate(KEEPS)]
    run_fuse(FuseConfig(models=tuple(members), out=tmp_path / "h.st", verify=False))

    run_export(ExportConfig(model=str(tmp_path / "h.st"), out=out, naming=Naming(names=names or ())))

    run = (formats.run_onnx if suffix == ".onnx" else formats.run_pt2)(out.read_bytes())
    hydra = hydractl.load(tmp_path / "h.st", classes=names)
    for asked in asked_of(sample):
        with torch.inference_mode():
            expected = hydra.member_logits(asked.get(PIXELS, asked))
        assert largest_difference(run(asked)["member_logits"], expected) <= 1e-5
