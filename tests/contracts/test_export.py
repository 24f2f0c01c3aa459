"""All variants: exported files answer as the model, for any batch size and text length."""

from __future__ import annotations

import pytest
import torch

import hydractl
from hydractl.data import tokenize
from hydractl.exporting import formats
from hydractl.families.tower import largest_difference, probe_inputs
from hydractl.manifest.header import Tokenization
from hydractl.model_inputs import PIXELS, TEXTS
from hydractl.prediction.class_names import Naming
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.stored_scores import COUNT, store_scores
from support.variants import OF_CLASSES, VARIANTS

KEEPS = (((0, 2, 3), (), (1,)), ((1, 2), (), ()))
"""In layer 1 no member has heads; in the last layer the second member has none."""
CLASSES = ("a", "b", "c")
USUAL = (("transformers-mpnet-plain", "base", ".onnx"),)
"""Cases without `--all-variants`, because an export takes seconds.

MPNet has texts of any length, and an attention bias with other strides in the graph than in torch.
"""
FIRST = {v.family: v for v in reversed(VARIANTS)}.values()


@pytest.fixture
def prompted(monkeypatch):
    """Replace prompts by random tokens, because variants have no tokenizer."""

    def prompts(header):
        def encode(texts, _):
            found = probe_inputs(header, batch=len(texts), seed=5)
            return {name: x for name, x in found.items() if name in TEXTS}

        monkeypatch.setattr(tokenize, "encode_texts", encode)

    return prompts


def sample_inputs(sample):
    """Yield inputs: several samples, one sample, and short texts. The first token is never padding."""
    preprocess = sample.header.preprocess
    for batch, seed in ((3, 7), (1, 8)):
        inputs = sample.inputs(batch=batch, seed=seed)
        if not isinstance(preprocess, Tokenization):
            yield {PIXELS: inputs[PIXELS] if isinstance(inputs, dict) else inputs}
            continue
        yield inputs
        if preprocess.padding == "longest":
            yield {name: x[:, :5].contiguous() for name, x in inputs.items()}


def saved(sample, kind, folder):
    """Save a base, a member or a hydra of two members, and return the path.

    Hydras store a feature-based OOD score unless the model is multi-label.
    """
    if kind != "hydra":
        return (sample if kind == "base" else sample.pruned(*KEEPS[0])).save(folder / "m.st")
    members = [str(sample.pruned(*keep).tuned(i).save(folder / f"{i}.st")) for i, keep in enumerate(KEEPS)]
    naming = Naming(names=CLASSES if sample.header.prompting else ())
    run_fuse(FuseConfig(models=tuple(members), out=folder / "m.st", verify=False, naming=naming))
    if sample.header.architecture.task.by_label:
        return folder / "m.st"
    fit, val = (sample.inputs(batch=COUNT, seed=seed) for seed in (1, 2))
    store_scores(folder / "m.st", *(x["pixel_values"] if naming.names else x for x in (fit, val)))
    return folder / "m.st"


@pytest.mark.newer
@pytest.mark.parametrize(
    ("variant", "kind", "suffix"),
    [
        pytest.param(v, kind, suffix, id=f"{v}-{kind}-{suffix[1:]}", marks=() if usual else pytest.mark.more)
        for v in VARIANTS
        for kind in ("base", "member", "hydra")
        for suffix in (".pt2", ".onnx")
        if (usual := (str(v), kind, suffix) in USUAL)
        or (kind == "hydra" and (suffix == ".onnx") == (v in FIRST))
        or (kind != "hydra" and suffix == ".onnx" and v in FIRST)
    ],
)
def test_exported_equals_the_model(tmp_path, prompted, variant, kind, suffix):
    sample, out = base(variant), tmp_path / f"m{suffix}"
    names = None if sample.header.prompting is None else CLASSES
    prompted(sample.header)
    path = saved(sample, kind, tmp_path)

    run_export(ExportConfig(model=str(path), out=out, naming=Naming(names=names or ())))

    run = (formats.run_onnx if suffix == ".onnx" else formats.run_pt2)(out.read_bytes())
    model = hydractl.load(path, classes=names)
    for asked in sample_inputs(sample):
        with torch.inference_mode():
            expected = model.member_logits(asked.get(PIXELS, asked))
            scores = model.predict(asked.get(PIXELS, asked)).scores
        answers = run(asked)
        assert largest_difference(answers["member_logits"], expected) <= 1e-5
        assert ("energy+density" in scores) == (kind == "hydra" and variant in OF_CLASSES)
        assert largest_difference(answers["ood_score"], scores.get("energy+density", scores["msp"])) <= 1e-4
