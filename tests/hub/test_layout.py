"""A model's folder, read by the libraries and by hydractl."""

from __future__ import annotations

import json

import pytest
import torch

from hydractl.checkpoint import write_tensors
from hydractl.families.open_model import open_model
from hydractl.families.tower import largest_difference
from hydractl.hub.layout import files_of, is_stock
from hydractl.manifest.head_mask import HeadMask
from hydractl.manifest.header import Kind, Preprocess, Tokenization
from hydractl.output.publish import Folder, OutputLock
from hydractl.prediction.loaded_model import load
from hydractl.provenance.output import Output
from support.builders import Sample, base
from support.pairs import pair
from support.text_folders import save_tokenizer
from support.variants import VARIANTS, variant

FEW = {
    "timm-vit-class-token", "timm-eva-dinov3", "transformers-bert-plain", "transformers-roberta-plain", "transformers-vit-plain",
    "transformers-clip-plain", "openclip-plain",
}  # fmt: skip
every_variant = pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=[] if str(v) in FEW else pytest.mark.more) for v in VARIANTS],
    ids=str,
)


def written(sample, folder):
    with Output(OutputLock(force=False)).publish() as begin:
        write_tensors(begin(Folder(folder), sample.header), sample.state, header=sample.header)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return json.dumps(
        json.loads((folder / "tokenizer.json").read_text()), separators=(",", ":"), ensure_ascii=False
    )


def tokenized(sample, tokenizer):
    """Return the base with a tokenizer, if it reads texts."""
    header = sample.header
    if isinstance(header.preprocess, Tokenization):
        preprocess = header.preprocess.model_copy(update={"tokenizer": tokenizer})
        header = header.model_copy(update={"preprocess": preprocess})
    elif header.prompting is not None and header.architecture.library == "transformers":
        preprocess = header.prompting.tokenization.model_copy(update={"tokenizer": tokenizer})
        header = header.model_copy(
            update={"prompting": header.prompting.model_copy(update={"tokenization": preprocess})}
        )
    return Sample(header, sample.state)


def of_library(folder, library):
    """Load a folder with the library's own loader."""
    if library == "timm":
        import timm

        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    if library == "openclip":
        import open_clip

        return open_clip.create_model(f"local-dir:{folder}").eval()
    import transformers

    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name).from_pretrained(folder).eval()


def answer_of(model, inputs):
    if hasattr(model, "get_logits"):
        return model.get_logits(inputs["pixel_values"], inputs["input_ids"])[0]
    found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    if isinstance(found, torch.Tensor):
        return found
    return found.logits if "logits" in found else found.logits_per_image


@every_variant
@torch.inference_mode()
def test_a_whole_base_is_a_folder_of_its_library(variant, tmp_path):
    sample = base(variant)
    if not is_stock(sample.header):
        pytest.skip("the library has no such model")
    folder = written(sample, tmp_path / "base")
    inputs = sample.inputs()

    found = answer_of(of_library(folder, sample.header.architecture.library), inputs)

    assert largest_difference(found, sample.model()(inputs)) <= 1e-5


@every_variant
def test_what_the_folder_says_is_what_the_header_says(variant, tmp_path, tokenizer):
    """Without hydractl's header, the folder is read like any folder of the library."""
    sample = tokenized(base(variant), tokenizer)
    if not is_stock(sample.header):
        pytest.skip("the library has no such model")
    for name, content in files_of(sample.header).items():
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "model.safetensors").open("wb") as file:
        write_tensors(file, sample.state, header=None)

    found = open_model(str(tmp_path)).header

    own = sample.header.architecture
    config = {"config": own.config, "name": own.name}  # The library may add defaults to the configuration.
    found = found.model_copy(update={"architecture": found.architecture.model_copy(update=config)})
    preprocess = sample.header.preprocess
    if isinstance(preprocess, Preprocess):  # Libraries round odd margins of the crop in different directions.
        offset = {"crop_offset": preprocess.crop_offset}
        found = found.model_copy(update={"preprocess": found.preprocess.model_copy(update=offset)})
    assert found == sample.header


def test_timm_and_transformers_read_names_of_classes(tmp_path):
    from transformers import AutoModelForImageClassification

    names = tuple("abcdefg")
    for found in (variant("class-token"), variant("transformers-vit-plain")):
        sample = base(found)
        named = Sample(sample.header.model_copy(update={"labels": names}), sample.state)
        folder = written(named, tmp_path / str(found))
        config = AutoModelForImageClassification.from_pretrained(folder).config
        assert tuple(config.id2label[i] for i in range(7)) == names
        assert open_model(str(folder)).header.labels == names


def kinds(folder):
    """Save and return a base of digits, a member, a hydra of two and a base with a temperature."""
    sample = base(variant("class-token"))
    member = sample.pruned((0, 1), (), (2,))
    warm = Sample(sample.header.model_copy(update={"temperature": 2.0}), sample.state)
    return sample, member, warm


def test_what_the_library_would_get_wrong_is_of_our_own_type(tmp_path):
    sample, member, warm = kinds(tmp_path)
    for odd in (member, warm):
        config = json.loads(files_of(odd.header)["config.json"])
        assert (config["model_type"], config["architecture"]) == ("hydractl", "hydractl")
    assert config["hydractl"]["temperature"] == 2
    assert "model_type" not in json.loads(files_of(sample.header)["config.json"])


def test_a_pruned_model_says_what_is_pruned(tmp_path):
    _, member, _ = kinds(tmp_path)
    files = files_of(member.header)

    said = json.loads(files["config.json"])["hydractl"]["masks"]

    assert said == [{"vision": {"num_heads": 4, "keep": [[0, 1], [], [2]]}}]
    assert HeadMask.from_json(files["head-mask.json"].decode(), place="mask").towers == member.header.masks[0]


def test_a_tokenizer_stands_once_in_a_folder(tmp_path, tokenizer):
    sample = tokenized(base(variant("transformers-bert-plain")), tokenizer)
    files = files_of(sample.pruned((0,), (1,), (2,)).header)

    assert files["tokenizer.json"].decode() == tokenizer
    assert b"WordLevel" not in files["config.json"]


@torch.inference_mode()
def test_a_zero_shot_base_answers_from_its_folder(tmp_path):
    sample = pair("clip", tmp_path)
    folder = written(sample, tmp_path / "clip")
    inputs = sample.inputs()

    assert torch.equal(load(folder)(inputs), sample.model()(inputs))
    assert open_model(str(folder)).header.kind is Kind.BASE
