"""A fast part of the coverage benchmark: one architecture of each kind that timm has."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
SUPPORTED = (
    "vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "deit_tiny_distilled_patch16_224", "vit_small_patch14_reg4_dinov2",
    "vit_base_patch16_rpn_224", "vit_xsmall_patch16_clip_224", "aimv2_large_patch14_224", "eva02_tiny_patch14_224",
    "vit_small_patch16_dinov3", "vit_small_patch16_rope_mixed_224", "vit_pe_core_tiny_patch16_384",
    "vit_base_patch16_sapiens2",
)  # fmt: skip
REFUSED = {
    "beit3_base_patch16_224": "sub-LN attention: a norm over all heads together",
    "vit_base_patch16_xp_224": "ParallelScalingBlock: attention and MLP share one matrix",
    "vit_small_patch16_18x2_224": "ParallelThingsBlock: a block holds several attentions in parallel",
    "vit_dwee_patch16_reg1_gap_256": "DiffAttention: each value head has two query and two key heads",
    "vit_relpos_small_patch16_224": "class VisionTransformerRelPos: its relative position bias",
    "beit_base_patch16_224": "class Beit: its relative position bias",
    "cait_xxs24_224": "class Cait: its talking heads mix the heads",
    "eva02_base_patch16_clip_224": "sub-LN attention: a norm over all heads together",
    "vit_large_patch16_sapiens2": "grouped-query attention: several query heads share one key and value head",
    "resnet18": "class ResNet: not a plain vision transformer",
}


@pytest.fixture(scope="module")
def coverage():
    spec = importlib.util.spec_from_file_location("hydractl_coverage_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("name", SUPPORTED)
def test_supported(coverage, name):
    found = coverage.examine(name)
    assert (found.verdict, found.reason) == ("supported", "")


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_refused_with_the_reason(coverage, name, reason):
    found = coverage.examine(name)
    assert found.verdict == "refused"
    assert found.reason.startswith(reason)


def test_every_architecture_of_the_issue_is_swept(coverage):
    names = coverage.architectures(everything=False)
    assert {*SUPPORTED, "beit3_base_patch16_224", "vitamin_small_224"} <= {*names}
    assert set(names) < set(coverage.architectures(everything=True))


def test_json_and_exit_code(coverage, capsys):
    assert coverage.main(["--match", "vit_base_patch16_xp_224", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "refused"
    assert coverage.main(["--match", "nothing-is-called-so"]) == 1


def test_a_failure_is_seen(coverage, monkeypatch, capsys):
    """The benchmark can fail: a perturbed comparison does not pass."""
    monkeypatch.setattr(coverage, "largest_difference", lambda *_: 0.5)
    assert coverage.main(["--match", "vit_tiny_patch16_224"]) == 1
    assert "supported 0 refused 0 failed 1" in capsys.readouterr().out
