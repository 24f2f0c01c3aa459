"""OpenCLIP models in files and by name: weights, logits and tokens equal open_clip's."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import open_clip
import pytest
import torch
from open_clip.model import set_model_preprocess_cfg
from open_clip.push_to_hf_hub import save_for_hf
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from hydractl.data.preprocess import eval_transform
from hydractl.data.tokenize import encode_texts
from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.base import position_of
from hydractl.families.open_model import load_model, open_model
from hydractl.families.openclip.family import clip_tokenizer, describe, refusal, registered, timm_name
from hydractl.families.registry import family_for_config
from hydractl.families.tower import largest_difference, settle_classes
from hydractl.heads.masks import full_mask
from hydractl.manifest.header import Header, Kind
from hydractl.model_source import locate
from support.builders import Sample, base, perturbed
from support.text_folders import save_tokenizer
from support.variants import TINY_OPEN_CLIP, VARIANTS, Variant

if TYPE_CHECKING:
    from pathlib import Path

OURS = [v for v in VARIANTS if v.family.startswith("openclip")]
PLAIN, CUSTOM = OURS[0], next(v for v in OURS if v.family == "openclip-custom-text")
READABLE = Variant(
    "openclip", "readable", PLAIN.arch, TINY_OPEN_CLIP | {"text.vocab_size": 49408, "text.context_length": 77}
)
TINY = "openclip:ViT-B-32::" + ",".join(f"{k}={v}" for k, v in TINY_OPEN_CLIP.items())
every_variant = pytest.mark.parametrize("variant", OURS, ids=str)
MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)


class NoTokenizer:
    """A tokenizer that saves no files, like open_clip's own tokenizer."""

    def save_pretrained(self, folder):
        pass


def save(sample: Sample, folder: Path, **preprocess: object) -> Path:
    """Write a folder like open_clip's `save_for_hf`."""
    library = sample.library()
    set_model_preprocess_cfg(library, {"mean": MEAN, "std": STD} | preprocess)
    config = dict(sample.header.architecture.config)
    save_for_hf(library, NoTokenizer(), config, str(folder), safe_serialization=True)
    return folder


def edit(folder: Path, **changes: object) -> None:
    """Change `model_cfg`: `text__layers` is in `text_cfg`, `embed_dim` at the top. `...` removes an option."""
    path = folder / "open_clip_config.json"
    raw = json.loads(path.read_text())
    for key, value in changes.items():
        tower, _, name = key.rpartition("__")
        place = raw["model_cfg"][f"{tower}_cfg"] if tower else raw["model_cfg"]
        place[name] = value
        if value is ...:
            del place[name]
    path.write_text(json.dumps(raw))


def check_is(sample: Sample, reference: object) -> Header:
    model_file = open_model(str(reference))
    inputs = sample.inputs()
    with torch.inference_mode():
        assert largest_difference(load_model(model_file)(inputs), sample.library()(inputs)) <= 1e-5
    return model_file.header


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.spread(cases=3)
@every_variant
def test_a_saved_folder_is_the_model(tmp_path, variant):
    sample = base(variant)
    header = check_is(sample, save(sample, tmp_path / "m"))
    assert header.architecture.family == variant.family
    assert header.architecture.towers == sample.header.architecture.towers
    assert header.architecture.config == sample.header.architecture.config
    assert (header.preprocess.input_size, header.preprocess.mean, header.preprocess.std) == (
        (3, 12, 12), MEAN, STD,
    )  # fmt: skip


def test_local_dir_means_the_same(tmp_path):
    check_is(base(PLAIN), f"local-dir:{save(base(PLAIN), tmp_path / 'm')}")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "open_clip_pytorch_model.safetensors", "other.safetensors"]
)
def test_weights_of_other_names_are_found(tmp_path, name):
    folder = save(base(PLAIN), tmp_path / "m")
    (folder / "open_clip_model.safetensors").rename(folder / name)
    check_is(base(PLAIN), folder)


def test_other_weights_beside_do_not_matter(tmp_path):
    folder = save(base(PLAIN), tmp_path / "m")
    save_file({"x": torch.zeros(1)}, folder / "other.safetensors")
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    check_is(base(PLAIN), folder)


def test_shards_are_read(tmp_path):
    folder = save(base(PLAIN), tmp_path / "m")
    state = load_file(folder / "open_clip_model.safetensors")
    (folder / "open_clip_model.safetensors").unlink()
    names = sorted(state)
    table = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(table.values()):
        save_file({n: state[n] for n in names if table[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    check_is(base(PLAIN), folder)


def test_a_model_in_two_layouts_is_read_as_transformers_own(tmp_path):
    """LAION's folders on the Hub have both layouts. With transformers', users do not need open_clip."""
    clip = base(next(v for v in VARIANTS if v.family == "transformers-clip"))
    folder = save(base(PLAIN), tmp_path / "m")
    clip.library().save_pretrained(folder)
    located = locate(str(folder))
    assert located.config["model_type"] == "clip"
    assert [path.name for path in located.weights] == ["model.safetensors"]
    (folder / "model.safetensors").unlink()
    check_is(base(PLAIN), folder)


def test_a_text_tower_named_as_of_old_is_read(tmp_path):
    """open_clip also loads a `CustomTextCLIP` without the prefix `text.` in tensor names."""
    sample = base(CUSTOM)
    folder = save(sample, tmp_path / "m")
    path = folder / "open_clip_model.safetensors"
    save_file({k.removeprefix("text."): v for k, v in load_file(path).items()}, path)
    model_file = open_model(str(folder))
    assert model_file.checkpoint.tensors().keys() == sample.state.keys()
    check_is(sample, folder)


def test_a_configuration_of_the_registry_has_its_name(tmp_path):
    described = describe("openclip:ViT-S-32", {})
    folder = tmp_path / "m"
    folder.mkdir()
    raw = {"model_cfg": open_clip.get_model_config("ViT-S-32"), "preprocess_cfg": {}}
    from hydractl.families.openclip.family import read_config

    assert read_config(raw, folder) == described
    assert described.architecture.name == "openclip:ViT-S-32"


@torch.inference_mode()
def test_zero_shot_logits_are_open_clip_s(tmp_path):
    """Compare with open_clip's loading, tokenizer, preprocessing and mean over templates."""
    folder = save(base(READABLE), tmp_path / "m")
    names, templates = ["cat", "hot dog", "São Paulo's café"], ("a photo of a {}.", "{}, 3 of them!")
    library, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    library.eval()
    classes = open_clip.build_zero_shot_classifier(
        library, open_clip.get_tokenizer(f"local-dir:{folder}"), names, [t.format for t in templates]
    )
    picture = Image.fromarray((torch.rand(20, 30, 3) * 255).byte().numpy())
    image = torch.nn.functional.normalize(library.encode_image(transform(picture)[None]), dim=-1)
    expected = library.logit_scale.exp() * image @ classes

    model_file = open_model(str(folder))
    model = load_model(model_file)
    texts = [t.format(name) for name in names for t in templates]
    settle_classes(model, encode_texts(texts, model_file.header.prompting.tokenization), templates=2)
    found = model(eval_transform(model_file.header.preprocess)(picture)[None])

    assert largest_difference(found, expected) <= 1e-5


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_images_are_prepared_as_by_open_clip(tmp_path, mode, interpolation):
    folder = save(base(PLAIN), tmp_path / "m", resize_mode=mode, interpolation=interpolation)
    size = (12, 12)
    cfg = PreprocessCfg(size=size, mean=MEAN, std=STD, interpolation=interpolation, resize_mode=mode)
    for width, height in ((40, 30), (9, 31), (12, 12)):
        pixels = torch.rand(height, width, 3, generator=torch.Generator().manual_seed(width)) * 255
        picture = Image.fromarray(pixels.byte().numpy())
        found = eval_transform(open_model(str(folder)).header.preprocess)(picture)
        assert largest_difference(found, image_transform_v2(cfg, is_train=False)(picture)) <= 1e-6


# --- names -----------------------------------------------------------------------------------------------------------


def test_the_paper_s_model_has_the_paper_s_heads():
    """ViT-B-32 (laion2b_s34b_b79k): 12 layers with 12 heads, and 12 layers with 8 heads."""
    towers = describe("openclip:ViT-B-32", {}).architecture.towers
    assert {k: (t.layers, t.num_heads, t.head_dim) for k, t in towers.items()} == {
        "vision": (12, 12, 64),
        "text": (12, 8, 64),
    }


def test_each_model_of_the_registry_is_described_or_refused_with_a_reason():
    supported = []
    for name in open_clip.list_models():
        reason = refusal(registered(f"openclip:{name}", {}))
        supported += [name] if reason is None else []
        assert reason is None or len(reason) > 20
    own = [name for name in supported if not timm_name(open_clip.get_model_config(name))]
    # support for the other architectures depends on timm's model
    assert (len(own), len(supported)) == (45, 45 + 76)
    assert {"ViT-B-32", "ViT-L-14", "ViT-H-14", "ViT-bigG-14", "ViT-B-16-quickgelu"} <= {*supported}
    for name in own[::6]:
        described = describe(f"openclip:{name}", {})
        assert describe(described.architecture.name, described.architecture.config) == described


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize(
    ("name", "family", "heads"),
    [
        ("vit_medium_patch16_gap_256", "openclip-timm", (12, 8, 64)),
        ("vit_relpos_medium_patch16_cls_224", "openclip-timm", (12, 8, 64)),
        ("ViT-B-16-SigLIP2", "openclip-timm-custom-text", (12, 12, 64)),
        ("PE-Core-T-16-384", "openclip-timm-custom-text", (12, 3, 64)),
        ("EVA02-E-14", "openclip-timm-custom-text", (64, 16, 112)),
        ("ViTamin-S", "openclip-timm-custom-text", (14, 6, 64)),
        (
            "ViTamin-XL-384",
            "openclip-timm-custom-text",
            (32, 16, 72),
        ),  # built for 384 pixels, configured with 256
        ("MobileCLIP-B", "openclip-timm-custom-text", (12, 12, 64)),
    ],
)
def test_an_image_tower_of_timm_s_is_read_with_timm_s_families(name, family, heads):
    described = describe(f"openclip:{name}", {})
    architecture = described.architecture
    tower = architecture.towers["vision"]
    assert (architecture.family, architecture.name) == (family, f"openclip:{name}")
    assert (tower.layers, tower.num_heads, tower.head_dim) == heads
    assert described.preprocess.input_size[1] == open_clip.get_model_config(name)["vision_cfg"]["image_size"]
    assert describe(architecture.name, architecture.config) == described
    folder_config = {"model_cfg": dict(architecture.config)}
    assert family_for_config(folder_config, place="m").name == family


@pytest.mark.parametrize("variant", [PLAIN, CUSTOM], ids=str)
def test_a_name_with_options_opens_with_random_weights(variant):
    options = "" if variant is PLAIN else ",custom_text=true"
    one, other, third = (open_model(f"arch:{TINY}{options}", seed=seed) for seed in (1, 1, 2))
    assert one.header.architecture.family == one.family.name == variant.family
    states = [model_file.checkpoint.tensors() for model_file in (one, other, third)]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert any(not torch.equal(states[0][k], states[2][k]) for k in states[0])


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("coca_ViT-B-32", {}, "a CoCa model, which writes captions"),
        ("convnext_base", {}, "its image tower is timm's `convnext_base`: class ConvNeXt: not a plain vision tra"),
        ("EVA02-B-16", {}, "its image tower is timm's `eva02_base_patch16_clip_224`: sub-LN attention: a norm over"),
        ("ViT-B-16-SigLIP", {"vision.image_size": 96}, "it accepts images of (224, 224), not of (96, 96)"),
        ("ViT-B-16-SigLIP", {"vision.timm_model_name": "no_such"}, "open_clip cannot build `openclip:ViT-B-16-SigLIP`"),
        ("RN50", {}, "its image tower is a ResNet"),
        ("xlm-roberta-base-ViT-B-32", {}, "its text tower is transformers' `xlm-roberta-base`"),
        ("ViT-B-32", {"text.embed_cls": True}, "its text tower has a class token"),
        ("ViT-B-32", {"text.tokenizer_mode": "clips"}, "tokenizer mode `clips`"),
        ("ViT-B-32", {"text.proj_type": "none", "embed_dim": 32}, "its text tower does not project"),
        ("ViT-B-32", {"nonscalar_logit_scale": True}, "its temperature is not a scalar"),
        ("ViT-B-32", {"vision.attentional_pool": "parallel"}, "attentional pooling of kind `parallel`"),
        ("ViT-B-32", {"vision.pool_type": "none"}, "its image tower does not pool"),
        ("ViT-B-32", {"text.pool_type": "none"}, "its text tower does not pool"),
        ("ViT-B-32", {"vision.scale_heads": True}, "scale_heads of the vision tower: each head has a scale parameter"),
        ("ViT-B-32", {"text.scaled_cosine_attn": True}, "scaled_cosine_attn of the text tower: cosine"),
        ("ViT-B-32", {"text.scale_attn_inner": True}, "scale_attn_inner of the text tower: a norm over all"),
        ("ViT-B-32", {"vision.width": 200}, "open_clip cannot build `openclip:ViT-B-32`: embed_dim must be"),
        ("ViT-B-32", {"vision.layers": 0}, "open_clip cannot build `openclip:ViT-B-32`"),
        ("ViT-B-32", {"depth": 3}, "`openclip:ViT-B-32` has no option `depth`"),
        ("ViT-B-32", {"visoin.layers": 3}, "`openclip:ViT-B-32` has no option `visoin.layers`"),
        ("ViT-B-32", {"visoin_cfg": {"layers": 3}}, "`openclip:ViT-B-32` has no option `visoin_cfg`"),
        ("ViT-B-32", {"text.context_length": 0}, "its text preprocessing is not supported: max_length"),
        ("ViT-B-32", {"text.tokenizer_kwargs": 3}, "its tokenizer_kwargs are not an object"),
        ("ViT-B-32", {"text.tokenizer_kwargs": {"clean": "no"}}, "texts cleaned by `no` are not supported"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(name, options, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        describe(f"openclip:{name}", options)
    assert reason in str(caught.value)
    assert caught.value.exit_code == 3


def test_an_unknown_name_has_a_suggestion():
    with pytest.raises(UnsupportedModelError, match="open_clip has no model `ViT-B32`") as caught:
        open_model("arch:openclip:ViT-B32")
    assert "`openclip:ViT-B-32`" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"model_cfg": []}, CheckpointError, "model_cfg and preprocess_cfg of open_clip_config.json must be objects"),
        ({"model_cfg": {"embed_dim": 3}}, CheckpointError, "model_cfg.vision_cfg of open_clip_config.json is not"),
        ({"preprocess_cfg": {"resize_mode": "longest"}}, UnsupportedModelError, "resize_mode `longest`"),
        ({"preprocess_cfg": {"mean": [0.5]}}, UnsupportedModelError, "mean and std must have 3 numbers each"),
        ({"preprocess_cfg": {"mean": 0.5}}, UnsupportedModelError, "has invalid mean or std"),
        ({"preprocess_cfg": {"interpolation": ["x"]}}, UnsupportedModelError, "interpolation"),
        ({"preprocess_cfg": 7}, CheckpointError, "must be objects"),
    ],
)  # fmt: skip
def test_a_malformed_configuration_is_refused(tmp_path, changes, error, reason):
    folder = save(base(PLAIN), tmp_path / "m")
    path = folder / "open_clip_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(error) as caught:
        open_model(str(folder))
    assert reason in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_folder_whose_weights_are_another_model_s(tmp_path):
    folder = save(base(PLAIN), tmp_path / "m")
    edit(folder, text__layers=2)
    with pytest.raises(CheckpointError, match="has 12 tensors that its architecture does not"):
        open_model(str(folder))
    edit(folder, text__layers=3, custom_text=True, init_logit_bias=-10)
    with pytest.raises(CheckpointError, match="lacks 1 tensor of its architecture, for example `logit_bias`"):
        open_model(str(folder))


# --- models ----------------------------------------------------------------------------------------------------------


@every_variant
def test_every_tensor_has_a_place(variant):
    sample = base(variant)
    pruned = sample.pruned((), (), ())
    for name, tensor in sample.state.items():
        place = position_of(sample.family, name)
        vision = name.startswith(("visual.", "logit_"))
        assert place.tower == ("vision" if vision else "text")
        assert (place.layer is not None) == (".resblocks." in name or ".blocks." in name)
        assert (place.heads is not None) == (tensor.shape != pruned.state[name].shape)
        if place.layer is None:
            late = (
                "ln_post", "ln_final", "text_projection", "visual.proj", "attn_pool.",
                "visual.head.", "trunk.head.", "trunk.norm.", "trunk.fc_norm.",
            )  # fmt: skip
            part = (
                "head"
                if name.startswith("logit_")
                else "readout"
                if any(x in name for x in late)
                else "embed"
            )
            assert place.part == part


def test_a_fixed_position_embedding_stays_fixed():
    variant = Variant(
        "openclip", "fixed", PLAIN.arch, TINY_OPEN_CLIP | {"vision.pos_embed_type": "sin_cos_2d"}
    )
    sample = base(variant)
    model = sample.model()
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == {
        "towers.vision.embed.host.visual.positional_embedding"
    }
    with torch.inference_mode():
        assert largest_difference(model(sample.inputs()), sample.library()(sample.inputs())) <= 1e-5


def test_patches_are_dropped_in_training_only():
    sample = base(Variant("openclip", "dropout", PLAIN.arch, TINY_OPEN_CLIP | {"vision.patch_dropout": 0.5}))
    model, images = sample.model(), sample.inputs()["pixel_values"]
    tower = model.tower("vision")
    assert tower.embed(images).tokens.shape[1] == 10
    assert tower.train().embed(images).tokens.shape[1] == 1 + int(9 * 0.5)


# --- texts -----------------------------------------------------------------------------------------------------------

TEXTS = (
    "A photo of a cat.", "a photo of a dog", "", "   ", "tabs\tand\nnew  lines ",
    "It's the dog's bowl; they're, we've, I'm, he'll, I'd, don't!", "DON'T SHOUT'S",
    "3.14 is pi, 12345 and 2nd", "$5.00 @ 50% #tag e-mail hot-dog and/or", "snake_case CamelCase", "(a) [b] {c} !!!???...",
    "crème brûlée, naïve café, Ångström, São Paulo", "cafe\u0301", "“curly” ‘quotes’ and — dashes…", "ﬁne oﬃce",
    "AT&amp;T &lt;b&gt; &quot;q&quot; it&#39;s &amp;lt;", "日本語 текст العربية", "emoji 😀🎉 ok", "½ ² Ⅷ ①", "İstanbul STRASSE ẞ",
    "soft\u00adhyphen zero\u200bwidth nbsp\u00a0here", "bell\x07 del\x7f", "<end_of_text> inside",
    "golf ball " * 60, "x" * 300, "é" * 100,
)  # fmt: skip
OTHER = ("ＦＵＬＬ width", "&eacute;", "ΟΔΟΣ", "l’humanitÃ©")
"""Texts with other tokens than open_clip's: full-width letters, entities without ASCII, a final Greek sigma,
mojibake."""


def ids_of(text: str, texts, length: int = 77) -> torch.Tensor:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=0)
    return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(list(texts))])


def test_ids_are_open_clip_s():
    found = ids_of(clip_tokenizer(), TEXTS)
    expected = open_clip.tokenize(list(TEXTS))
    assert [t for t, a, b in zip(TEXTS, found, expected, strict=True) if not torch.equal(a, b)] == []
    assert found[-1, -1] == found[-2, -1] == 49407  # truncated texts keep the end token


def test_what_differs_from_open_clip_is_known():
    """If a text becomes equal, move the text from `OTHER` to `TEXTS`."""
    found, expected = ids_of(clip_tokenizer(), OTHER), open_clip.tokenize(list(OTHER))
    assert not any(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("clean", ["canonicalize", "whitespace"])
def test_other_ways_of_cleaning(clean):
    texts = [t for t in TEXTS if "<" not in t]
    expected = open_clip.SimpleTokenizer(clean=clean)(texts)
    assert torch.equal(ids_of(clip_tokenizer(clean), texts), expected)


@pytest.mark.parametrize("length", [5, 20, 77])
def test_texts_travel_inside_the_checkpoint(tmp_path, length):
    options = READABLE.options | {"text.context_length": length, "text.layers": 1}
    described = describe(READABLE.arch, options)
    preprocess = described.prompting.tokenization
    assert (preprocess.names, preprocess.padding, preprocess.pad_id, preprocess.max_length) == (
        ("attention_mask",),
        "max_length",
        0,
        length,
    )
    texts = [t for t in TEXTS if t.strip()]
    assert torch.equal(
        encode_texts(texts, preprocess)["input_ids"], open_clip.tokenize(texts, context_length=length)
    )


def test_a_model_with_other_tokens_has_no_tokenizer_yet(tmp_path):
    assert base(PLAIN).header.prompting.tokenization.tokenizer is None
    save_tokenizer(tmp_path)
    described = describe(PLAIN.arch, PLAIN.options | {"tokenizer": str(tmp_path / "tokenizer.json")})
    found = encode_texts(["the cat sat"], described.prompting.tokenization)["input_ids"]
    assert found[0, :6].tolist() == [2, 4, 5, 6, 3, 0]


@pytest.mark.parametrize("strip", [False, True])
def test_a_folder_s_own_tokenizer_is_used_where_the_configuration_names_one(tmp_path, strip):
    """Like CLIPA's BERT tokenizer, in which open_clip replaces `[SEP]` by 0."""
    folder = save(base(PLAIN), tmp_path / "m")
    save_tokenizer(folder)
    edit(
        folder, text__hf_tokenizer_name="bert-base-uncased", text__tokenizer_kwargs={"strip_sep_token": strip}
    )
    texts = ["the cat sat", " on  a\nmat", "the " * 40]
    expected = open_clip.get_tokenizer(f"local-dir:{folder}")(texts)
    preprocess = open_model(str(folder)).header.prompting.tokenization
    assert torch.equal(encode_texts(texts, preprocess)["input_ids"], expected)
    assert (3 in expected) != strip


def test_a_folder_without_the_tokenizer_that_it_names(tmp_path):
    folder = save(base(PLAIN), tmp_path / "m")
    edit(folder, text__hf_tokenizer_name="bert-base-uncased")
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        open_model(str(folder))


# --- without the library ---------------------------------------------------------------------------------------------


def test_without_open_clip_the_extra_is_named(tmp_path, monkeypatch):
    folder, path = save(base(PLAIN), tmp_path / "m"), base(PLAIN).save(tmp_path / "base.st")
    monkeypatch.setitem(sys.modules, "open_clip", None)
    for reference in (str(folder), "arch:openclip:ViT-B-32", str(path)):
        with pytest.raises(UnsupportedModelError, match="OpenCLIP models need open_clip") as caught:
            load_model(open_model(reference))
        assert caught.value.exit_code == 3
        assert caught.value.hint == "`pip install 'hydractl[openclip]'`"


def test_the_family_s_description_loads_no_library():
    script = (
        "import sys, hydractl.families.registry;"
        "sys.exit(sorted({'torch', 'open_clip', 'transformers', 'timm'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_header_alone_needs_no_library(tmp_path, monkeypatch):
    path = base(PLAIN).save(tmp_path / "base.st")
    monkeypatch.setitem(sys.modules, "open_clip", None)
    header = open_model(str(path)).header
    assert (header.kind, header.masks) == (Kind.BASE, (full_mask(header.architecture.towers),))


def test_noise_reaches_every_tensor_of_a_variant():
    """The parity tests would prove nothing for weights initialized with 0 or 1."""
    state = base(OURS[-1]).state
    other = perturbed(state, seed=1)
    assert all(not torch.equal(state[k], other[k]) for k in state)
