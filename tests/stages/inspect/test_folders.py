"""`inspect` of folders of transformers, timm and open_clip, with tensor names unlike the names in memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.families.base import name_in_memory
from hydractl.families.open_model import open_model
from hydractl.families.registry import FAMILIES
from hydractl.prediction.class_names import Classes, Naming, with_classes
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.run import run_inspect
from support.builders import base
from support.pairs import pair
from support.text_folders import WORDS, edit_config, save_text_model
from support.variants import VARIANTS, variant

FIRST = list({v.family: v for v in VARIANTS if v.family.startswith("transformers")}.values())
RENAMED = [v for v in VARIANTS if v.family.startswith("transformers") and FAMILIES[v.family].on_disk]
SPLIT = ("transformers-dinov2-swiglu", "transformers-gte", "transformers-nomic-bert", "transformers-jina-v3")
"""Models whose fused tensors the library also splits: queries, keys and values, or a gated MLP."""


def saved(variant, folder):
    """Save a variant's base with its library and with hydractl; return both paths and the base."""
    sample = base(variant)
    sample.library().save_pretrained(folder / "theirs")
    return folder / "theirs", sample.save(folder / "ours.st"), sample


def inspect_file(path):
    return run_inspect(InspectConfig(files=(str(path),)))


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", dict.fromkeys([*FIRST, *RENAMED]), ids=str)
def test_a_folder_of_transformers_has_the_parts_of_its_model(tmp_path, variant):
    theirs, ours, _ = saved(variant, tmp_path)

    found, expected = inspect_file(theirs), inspect_file(ours)

    assert {n: a.parameters for n, a in found.parts.items()} == {
        n: a.parameters for n, a in expected.parts.items()
    }
    assert "attention" in found.parts
    # The folder has no file about preprocessing or a tokenizer.
    assert "other commands cannot use it: " in found.hint or found.hint.startswith(
        "it has no image preprocessing"
    )
    assert "has no tokenizer" in found.hint or found.model.heads_total


@pytest.mark.parametrize("name", ["transformers-bert-plain", "transformers-deberta-v3"])
def test_a_folder_is_told_of_as_the_base_made_of_it(tmp_path, name):
    save_text_model(variant(name), tmp_path / "theirs")
    model_file = open_model(str(tmp_path / "theirs"))
    with (tmp_path / "ours.st").open("wb") as file:
        write_tensors(file, model_file.checkpoint.tensors(), header=model_file.header)

    found, expected = inspect_file(tmp_path / "theirs"), inspect_file(tmp_path / "ours.st")

    assert found.hint is None
    assert found.model == replace(expected.model, name=found.model.name, masks=())
    assert (found.model.num_classes, found.model.heads_total, found.model.tokenizer_size) == (
        7,
        12,
        len(WORDS),
    )


def test_a_zero_shot_model_tells_how_classes_are_asked_about(tmp_path):
    model_file = open_model(str(pair("clip", tmp_path).save(tmp_path / "bare.st")))
    named = with_classes(model_file, Classes(names=("1", "2"), templates=("a {label}",)))
    run_fuse(
        FuseConfig(
            models=(str(tmp_path / "bare.st"),),
            out=tmp_path / "h.st",
            naming=Naming(names=named.header.labels),
        )
    )

    assert (
        inspect_file(tmp_path / "bare.st").model.num_classes,
        inspect_file(tmp_path / "h.st").model.num_classes,
    ) == (0, 2)
    assert inspect_file(tmp_path / "h.st").model.prompting.templates == ("A photo of a {label}.",)
    assert inspect_file(tmp_path / "h.st").model.tokenizer_size == 22


@pytest.mark.parametrize("trained", ["BertModel", "BertForMaskedLM"])
def test_a_folder_without_a_classifier_says_what_gives_it_one(tmp_path, trained):
    save_text_model(variant("transformers-bert-plain"), tmp_path / "m")
    edit_config(tmp_path / "m", architectures=[trained])
    weights = tmp_path / "m" / "model.safetensors"
    save_file({k: v for k, v in load_file(weights).items() if not k.startswith("classifier.")}, weights)

    found = inspect_file(tmp_path / "m")
    assert found.hint == (
        f"is a {trained}, which is not a classifier; `hydractl finetune {tmp_path / 'm'} --train TRAIN "
        "--val VAL -o base.st` gives it a classifier for your classes"
    )
    assert (found.model.num_classes, found.model.heads_total) == (None, 12)


def test_one_tower_of_two_says_what_gives_it_a_classifier(tmp_path):
    sample = base(variant("transformers-clip-plain"))
    sample.library().save_pretrained(tmp_path / "m")
    edit_config(tmp_path / "m", architectures=["CLIPVisionModel"])

    assert inspect_file(tmp_path / "m").hint.startswith(
        "is a CLIPVisionModel, which is not a classifier; `hydractl finetune"
    )


@pytest.mark.spread(cases=7)
@pytest.mark.parametrize("variant", [v for v in RENAMED if not str(v).startswith(SPLIT)], ids=str)
def test_names_on_disk_become_those_in_memory(tmp_path, variant):
    theirs, _, sample = saved(variant, tmp_path)
    on_disk = Checkpoint.open(theirs / "model.safetensors").specs

    assert on_disk.keys() != sample.state.keys()
    assert {name_in_memory(sample.family, name) for name in on_disk} == sample.state.keys()


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_names_in_memory_stay_as_they_are(variant):
    """Folders written by a newer library already have the names in memory."""
    sample = base(variant)

    assert [name_in_memory(sample.family, name) for name in sample.state] == list(sample.state)


@pytest.mark.parametrize("family", ["timm-vit", "timm-eva"])
def test_a_folder_of_timm_has_the_parts_of_its_model(tmp_path, family):
    from timm.models import save_for_hf

    variant = next(v for v in VARIANTS if v.family == family)
    sample = base(variant)
    options = {k: v for k, v in variant.options.items() if k != "num_classes"}
    save_for_hf(sample.library(), tmp_path / "theirs", model_args=options, safe_serialization=True)

    assert inspect_file(tmp_path / "theirs").parts == inspect_file(sample.save(tmp_path / "ours.st")).parts


@pytest.mark.parametrize(
    ("on_disk", "in_memory"),
    [
        ("visual.blocks.0.attn.proj.weight", "blocks.0.attn.proj.weight"),
        ("visual.trunk.blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc1.weight"),
        ("visual.transformer.resblocks.3.mlp.c_fc.weight", "blocks.3.mlp.c_fc.weight"),
        ("blocks.1.ffn.w12.weight", "blocks.1.mlp.w12.weight"),
        ("visual.ln_post.weight", "norm.weight"),
    ],
)
def test_names_of_those_who_trained_what_timm_reads(on_disk, in_memory):
    assert name_in_memory(FAMILIES["timm-eva"], on_disk) == in_memory


@pytest.mark.parametrize("family", ["openclip", "openclip-custom-text"])
def test_a_folder_of_openclip_has_the_parts_of_its_model(tmp_path, family):
    sample = base(next(v for v in VARIANTS if v.family == family))
    folder = tmp_path / "theirs"
    folder.mkdir()
    config = {k: v for k, v in sample.header.architecture.config.items() if k != "preprocess"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file({k: v.contiguous() for k, v in sample.state.items()}, folder / "open_clip_model.safetensors")

    assert inspect_file(folder).parts.keys() >= {"embed", "attention", "mlp"}
    assert inspect_file(folder).parts == inspect_file(sample.save(tmp_path / "ours.st")).parts
