"""A fast part of the architectures benchmark: one architecture of each kind per library."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from support.variants import PLAIN, VARIANTS

FOLDER = Path(__file__).parents[2] / "benchmarks"
SUPPORTED = {
    "timm": (
        "vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "deit_tiny_distilled_patch16_224", "vit_base_patch16_rpn_224",
        "vit_xsmall_patch16_clip_224", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3",
        "vit_small_patch16_rope_mixed_224", "vit_pe_core_tiny_patch16_384",
        "vit_base_patch16_sapiens2", "beitv2_base_patch16_224", "vit_relpos_medium_patch16_cls_224",
        "vit_srelpos_small_patch16_224",
    ),
    "transformers": (
        "bert/BertForSequenceClassification", "esm/EsmForSequenceClassification",
        "jina_embeddings_v3/JinaEmbeddingsV3ForSequenceClassification", "deberta-v2/DebertaV2ForSequenceClassification/type_vocab_size=2",
        "vit/ViTForImageClassification/qkv_bias=False", "dinov2/Dinov2ForImageClassification", "clip/CLIPModel",
        "siglip/SiglipForImageClassification/vision.vision_use_head=False", "metaclip_2/MetaClip2Model",
        "chinese_clip/ChineseCLIPModel", "altclip/AltCLIPModel", "ijepa/IJepaForImageClassification",
        "vit_msn/ViTMSNForImageClassification", "beit/BeitForImageClassification/use_relative_position_bias=True",
        "data2vec-vision/Data2VecVisionForImageClassification",
        "eurobert/EuroBertForSequenceClassification/num_key_value_heads=2",
        "llama/LlamaForSequenceClassification", "qwen2/Qwen2ForSequenceClassification/num_key_value_heads=1",
    ),
    "openclip": (
        "ViT-B-32-quickgelu", "ViT-S-16-alt", "ViT-H-14-CLIPA", "ViT-L-14-worldwide", "ViT-B-16-SigLIP2", "PE-Core-S-16-384",
        "vit_medium_patch16_gap_256", "EVA02-E-14-plus", "ViTamin-S",
    ),
}  # fmt: skip
TINY_STANDS_FOR = {
    "vit_small_patch16_rope_mixed_224", "vit_pe_core_tiny_patch16_384", "ViT-B-16-SigLIP2", "PE-Core-S-16-384",
    "EVA02-E-14-plus",
}  # fmt: skip
"""Expensive architectures; `support.variants` and `support.trunks` have small models of the same kinds."""
MET = {v.arch for v in VARIANTS} - {PLAIN.arch, "bert"}
"""Architectures of small variants, covered by all contracts. One of each library is also examined here."""
REFUSED = {
    "timm": {
        "beit3_base_patch16_224": (
            "sub-LN attention: a norm over all heads, whose statistics change when a head is removed"
        ),
        "vit_base_patch16_xp_224": "ParallelScalingBlock: attention and MLP share one matrix",
        "vit_small_patch16_18x2_224": "ParallelThingsBlock: a block holds several attentions in parallel",
        "vit_dwee_patch16_reg1_gap_256": "DiffAttention: each value head has two query and two key heads",
        "cait_xxs24_224": "class Cait: its talking heads mix the heads",
        "eva02_base_patch16_clip_224": (
            "sub-LN attention: a norm over all heads, whose statistics change when a head is removed"
        ),
        "vit_large_patch16_sapiens2": "grouped-query attention: several query heads share one key and value head",
        "resnet18": "class ResNet: not a plain vision transformer",
    },
    "transformers": {
        "albert/AlbertForSequenceClassification": "models of type `albert` are not supported: its layers share one set",
        "deberta/DebertaForSequenceClassification": "models of type `deberta` are not supported: its queries, keys and",
        "esmc/EsmcForSequenceClassification": "models of type `esmc` are not supported: its queries and keys are normalized",
        "gemma2/Gemma2ForSequenceClassification": "models of type `gemma2` are not supported: its attention scores",
        "qwen3_moe/Qwen3MoeForSequenceClassification": "models of type `qwen3_moe` are not supported: its MLPs are",
        "gpt2/GPT2ForSequenceClassification": "models of type `gpt2` are not supported",
        "siglip2/Siglip2Model": "models of type `siglip2` are not supported",
        "bert/BertForSequenceClassification/is_decoder=True": "it is a decoder",
        "mpnet/MPNetForSequenceClassification/relative_attention_num_buckets=16": "it has fewer than the 32 relative",
        "deberta-v2/DebertaV2ForSequenceClassification/attention_head_size=16": "its `attention_head_size` is not its width",
        "dinov2/Dinov2ForImageClassification/image_size=[8, 12]": "the library resizes only square position embeddings",
        "siglip/SiglipModel/vision.vision_use_head=False": "its image tower has no pooling (vision_use_head)",
        "siglip/SiglipModel/text.projection_size=24": (
            "its embeddings have 32 dimensions for images, but 24 for texts"
        ),
    },
    "openclip": {
        "RN50": "its image tower is a ResNet (ModifiedResNet), which has no heads",
        "coca_ViT-B-32": "a CoCa model, which writes captions",
        "convnext_base": "its image tower is timm's `convnext_base`: class ConvNeXt: not a plain vision transformer",
        "EVA02-L-14": "its image tower is timm's `eva02_large_patch14_clip_224`: sub-LN attention",
        "roberta-ViT-B-32": "its text tower is transformers' `roberta-base`",
    },
}
PARTS = ("check", "timm", "transformers", "openclip", "variants")
MODULES = ("architectures", *(f"architectures_{part}" for part in PARTS))


def _marks(name):
    if "vision_use_head" in name:
        return pytest.mark.newer
    return pytest.mark.more if name in TINY_STANDS_FOR or name.split("/")[0] in MET else ()


def named(table):
    return [
        pytest.param(library, name, id=f"{library}-{name}", marks=_marks(name))
        for library in table
        for name in table[library]
    ]


@pytest.fixture(scope="module")
def architectures():
    """Return the benchmark module as imported by a script, with its folder first on the path."""
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    path = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("architectures")
    sys.path[:] = path
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


@pytest.fixture(scope="module")
def found(architectures):
    """Return a function that examines a case by name."""
    cases = {
        library: {c.name: c for c in architectures.cases(library, everything=True)}
        for library in architectures.LIBRARIES
    }
    return lambda library, name: architectures.examine(cases[library][name])


@pytest.mark.spread(cases=6)
@pytest.mark.parametrize(("library", "name"), named(SUPPORTED))
def test_supported(found, library, name):
    finding = found(library, name)
    assert (finding.verdict, finding.reason) == ("supported", "")


@pytest.mark.spread(cases=10)
@pytest.mark.parametrize(("library", "name"), named(REFUSED))
def test_refused_with_the_reason(found, library, name):
    finding = found(library, name)
    assert finding.verdict == "refused"
    assert finding.reason.startswith(REFUSED[library][name])


def test_every_architecture_of_the_issue_is_swept(architectures):
    names = {case.name for case in architectures.cases("timm")}
    assert {*SUPPORTED["timm"], "beit3_base_patch16_224", "vitamin_small_224"} <= names
    assert names < {case.name for case in architectures.cases("timm", everything=True)}


@pytest.mark.newer
def test_every_class_of_transformers_families_is_swept_in_several_configurations(architectures):
    """Classes missing here would not be checked."""
    from hydractl.families.registry import FAMILIES

    cases = architectures.cases("transformers")
    covered = " ".join(f.covers for f in FAMILIES.values() if f.library == "transformers").split("`")[1::2]
    assert len(covered) >= 19
    for model_class in covered:
        assert sum(case.group == model_class for case in cases) >= 3, model_class


def test_names_are_unique(architectures):
    for library in architectures.LIBRARIES:
        names = [case.name for case in architectures.cases(library, everything=True)]
        assert len(names) == len({*names})


def test_json_and_exit_code(architectures, capsys):
    assert architectures.main(["--library", "timm", "--match", "vit_base_patch16_xp_224", "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["of"], finding["verdict"]) == ("timm", "refused")
    assert architectures.main(["--match", "nothing-is-called-so"]) == 1


def test_a_line_a_group_reasons_with_counts_and_totals(architectures, capsys):
    assert architectures.main(["--library", "transformers", "--match", "gpt*"]) == 0
    out = capsys.readouterr().out
    assert "models of type `…` are not supported" in out
    assert "supported 0 refused" in out


def test_a_failure_is_seen(architectures, monkeypatch, capsys):
    """A perturbed comparison fails."""
    monkeypatch.setattr(sys.modules["architectures_check"], "largest_difference", lambda *_: 0.5)
    assert architectures.main(["--library", "openclip", "--match", "ViT-B-32"]) == 1
    assert "supported 0 refused 0 failed 1" in capsys.readouterr().out
