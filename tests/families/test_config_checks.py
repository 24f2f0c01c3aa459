"""Options of architectures are only names and numbers, although constructors accept more."""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import suppress
from dataclasses import is_dataclass

import open_clip
import pytest
import timm
import torch
from timm.models import build_model_with_cfg
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from transformers import PreTrainedConfig

from hydractl.errors import InputError, UnsupportedModelError, UsageError
from hydractl.families import config_checks
from hydractl.families.config_checks import LARGEST, check_values
from hydractl.families.open_model import open_model
from hydractl.families.openclip.family import BESIDE, LOADS
from hydractl.families.registry import FAMILIES, describe_architecture, family_for_name
from hydractl.families.timm.models import _known_options as known_options
from hydractl.families.transformers.hf_models import _known_keys, _within, class_named, configured
from hydractl.heads.masks import full_mask
from hydractl.model_source import parse_arch
from support import trunks  # noqa: F401 - it registers what variants are made of
from support.variants import VARIANTS

FILE, MARK = "evil.pth", "evil"
WHOLE = {"timm-vit", "timm-eva", "timm-beit", "timm-relpos", "transformers-bert", "transformers-vit", "transformers-clip",
         "openclip", "openclip-timm"}  # fmt: skip
"""Families tested with all options, including options outside of the architecture. Other families are tested
with string options."""
TIMM = (Beit, Eva, VisionTransformer, VisionTransformerRelPos)
TEXTS = {
    "timm": """act_layer attn_layer attn_type embed_norm_layer global_pool norm_layer pos_embed rel_pos_type rope_grid_indexing
        rope_type weight_init""",
    "transformers": """activation attention_head_size attention_windows classifier_activation classifier_pooling cls_dropout
        conv_act conv_groups conv_kernel_size decoder_hidden_act embedding_size global_attn_every_n_layers global_rope_theta
        head_dim hidden_act hidden_activation hidden_size id2label label2id layer_types local_rope_theta norm_rel_ebd
        num_attention_heads num_hidden_layers num_labels out_features out_indices output_attentions partial_rotary_factor
        pooler_act pooler_hidden_act pooler_hidden_size pos_att_type position_buckets position_embedding_type
        rope_parameters rope_scaling rope_theta segmentation_indices share_att_key stage_names summary_activation summary_type
        text_config_dict vision_config_dict vocab_list""",
    "open_clip_torch": "block_type pool_type pos_embed_type proj_type timm_model_name timm_pool timm_proj",
}
"""Options that accept strings or have no type. In the libraries' code, all values are only compared or used
as dictionary keys."""
LIBRARY_OPTIONS = {
    "timm": {
        *inspect.signature(timm.create_model).parameters,
        *inspect.signature(build_model_with_cfg).parameters,
        *(
            "pruned",
            "features_only",
            "out_indices",
            "feature_cls",
            "pretrained_custom_load",
            "use_naflex",
            "no_such",
        ),
    },
    "transformers": {
        *inspect.signature(PreTrainedConfig).parameters,
        *PreTrainedConfig().__dict__,
        *(
            "attn_implementation",
            "_attn_implementation",
            "_attn_implementation_internal",
            "experts_implementation",
        ),
        *(
            "quantization_config",
            "auto_map",
            "transformers_weights",
            "gguf_file",
            "torch_dtype",
            "adapter_path",
            "use_kernels",
        ),
    },
    "open_clip_torch": {*inspect.signature(open_clip.create_model).parameters, "custom_text", "no_such"},
}
MANY = 100_000
NOT_TOLD = {"name", "model_name", "args", "kwargs", "self"}
watched: list[tuple[str, str]] = []
watching = False


def _watch(event, arguments):
    if watching and event in {
        "open",
        "import",
        "socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "exec",
        "compile",
    }:
        said = repr(arguments[:2])
        if event.startswith(("socket", "subprocess")) or MARK in said or arguments[0] == "kernels":
            watched.append((event, said))


@pytest.fixture(scope="module", autouse=True)
def _audit():
    sys.addaudithook(_watch)  # permanent: Python cannot remove an audit hook


@pytest.fixture
def touched(tmp_path, monkeypatch):
    """Record the files, imports, processes and network accesses caused by a hostile option.

    A pickle is in the current folder.
    """
    global watching  # noqa: PLW0603 - an audit hook has no other place to look
    torch.save({"a": torch.ones(1)}, tmp_path / FILE)
    monkeypatch.chdir(tmp_path)
    watched.clear()
    watching = True
    yield watched
    watching = False


def described(family):
    variant = next(v for v in VARIANTS if v.family == family)
    return FAMILIES[variant.family], family_for_name(variant.arch).describe(
        variant.arch, variant.options
    ).architecture


def hints(kind):
    """Return the type annotations of the options of a constructor or configuration."""
    if issubclass(kind, PreTrainedConfig) or is_dataclass(kind):
        return {
            n: h for base in reversed(kind.__mro__) for n, h in getattr(base, "__annotations__", {}).items()
        }
    told = {n: p.annotation for n, p in inspect.signature(kind).parameters.items()}
    return {n: h for n, h in told.items() if h is not inspect.Parameter.empty}


def texts(kind, names):
    """Return the options that accept strings, or have no type."""
    said = hints(kind)
    return {n for n in names if re.search("str|Literal|Any", str(said.get(n, "str")))}


def kinds_of(library):
    """Return the classes that define the options of a library's architectures, with the allowed options."""
    if library == "timm":
        return [(kind, known_options() & inspect.signature(kind).parameters.keys()) for kind in TIMM]
    if library == "transformers":
        named = {
            c for f in FAMILIES.values() if f.library == library for c in re.findall(r"`(\w+)`", f.covers)
        }
        own = {class_named(name).config_class for name in named}
        return [
            (kind, _known_keys(kind))
            for kind in own | {part for kind in own for part in _within(kind).values()}
        ]
    towers = (open_clip.CLIPVisionCfg, open_clip.CLIPTextCfg)
    return [(kind, inspect.signature(kind).parameters.keys() - LOADS - BESIDE) for kind in towers]


@pytest.mark.newer
@pytest.mark.parametrize("library", TEXTS)
def test_every_option_that_may_be_a_text_was_looked_at(library):
    """If a release adds an option, find out how the library uses the value, then extend `TEXTS`."""
    assert {name for kind, known in kinds_of(library) for name in texts(kind, known)} == {
        *TEXTS[library].split()
    }


def parts_of(family, architecture):
    """Return the options to test, by path of the configuration."""
    config, whole = architecture.config, family.name in WHOLE
    if family.library == "timm":
        kind = type(timm.create_model(architecture.name))
        return {(): {*config, *LIBRARY_OPTIONS["timm"], *inspect.signature(kind).parameters}}
    if family.library == "transformers":
        kind = class_named(family.covers.split("`")[1]).config_class
        kinds = {(): kind, **{(k,): part for k, part in _within(kind).items() if k in config}}
        if not whole:
            return {place: texts(kind, _known_keys(kind)) for place, kind in kinds.items()}
        own = {(k,): {*config[k], "attn_implementation"} for k in config if k.endswith("_config")}
        return {(): {*config, *LIBRARY_OPTIONS["transformers"], *_known_keys(kind)}, **own}
    towers = {"vision_cfg": open_clip.CLIPVisionCfg, "text_cfg": open_clip.CLIPTextCfg}
    tried = {(k,): {*inspect.signature(kind).parameters, "no_such"} for k, kind in towers.items()}
    if not whole:
        return {place: texts(towers[place[0]], names) for place, names in tried.items()}
    return {(): {*config, *LIBRARY_OPTIONS[family.library]}, **tried}


@pytest.mark.spread(cases=14)
@pytest.mark.parametrize("name", {v.family: v for v in VARIANTS})  # families of the installed libraries
def test_no_option_opens_or_fetches_anything(name, touched):
    """A file name is a plain name and reaches the constructor. An id of the Hub is refused earlier."""
    family, architecture = described(name)
    mask, tried, built = full_mask(architecture.towers), 0, 0
    for place, known in parts_of(family, architecture).items():
        for option in sorted(known - NOT_TOLD):
            for value in (FILE, f"org/{MARK}")[: 1 + (name in WHOLE)]:
                config = {k: dict(v) if isinstance(v, dict) else v for k, v in architecture.config.items()}
                (config[place[0]] if place else config)[option] = value
                tried += 1
                with suppress(InputError):
                    family.build(architecture.model_copy(update={"config": config}), mask, None)
                    built += 1
    assert not touched
    assert tried > (50 if name in WHOLE else 4)
    assert built < tried


@pytest.mark.parametrize(
    "value",
    [f"./{FILE}", f"C:\\{FILE}", f"https://{MARK}.test/a.pth", f"hf-hub:org/{MARK}", "a\nb", "é", {"a": [f"org/{MARK}"]}, {"a/b": 1}],
)  # fmt: skip
def test_more_than_a_name_is_refused(value):
    with pytest.raises(
        UnsupportedModelError,
        match=r"option `act_layer` is .*options of an architecture may be names and numbers",
    ):
        check_values("vit", "act_layer", value)


def test_a_number_that_no_model_has_is_refused():
    check_values("vit", "depth", [LARGEST, -LARGEST, 1e30, True, None, "gelu_tanh", {"eps": 1e-6}])
    with pytest.raises(UnsupportedModelError, match="option `depth` is above 1048576"):
        check_values("vit", "depth", {"a": [10**4000]})


@pytest.mark.parametrize(
    ("name", "place", "option"),
    [
        ("timm-vit", None, "depth"),
        ("transformers-bert", None, "num_hidden_layers"),
        ("openclip", "text_cfg", "layers"),
    ],
)
def test_layers_without_end_are_not_made(name, place, option, monkeypatch):
    monkeypatch.setattr(config_checks, "MOST_MODULES", 500)
    family, architecture = described(name)
    config = {**architecture.config}
    config |= {place: {**config[place], option: MANY}} if place else {option: MANY}
    with pytest.raises(UnsupportedModelError, match="it has more than 500 modules"):
        family.build(architecture.model_copy(update={"config": config}), full_mask(architecture.towers), None)


def test_what_a_configuration_says_besides_reaches_no_library():
    """Other fields of a configuration are dropped, so no library reads them."""
    config = configured(
        "clip",
        {"_attn_implementation": f"org/{MARK}", "vision_config_dict": {"attn_implementation": f"org/{MARK}"}},
    )
    assert MARK not in repr(config.__dict__) + repr(config.vision_config.__dict__)


@pytest.mark.parametrize(
    "reference",
    [
        "vit_tiny_patch16_224::img_size=8",
        "beit_base_patch16_224::depth=2,img_size=8",
        "vit_tiny_patch16_224::depth=2,img_size=32,patch_size=64",
        "vit::image_size=8",
        "clip::vision.image_size=8",
        "CLIPForImageClassification::vision.patch_size=300",
        "openclip:ViT-B-32::vision.image_size=8",
    ],
)
def test_images_without_a_patch_are_refused(reference):
    with pytest.raises(UsageError, match=r"patches of \d+x\d+ pixels do not fit into images of \d+x\d+$"):
        describe_architecture(*parse_arch(reference))


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("bert::hidden_size=32,num_attention_heads=5", "cannot have 5 heads"),
        (
            "bert::hidden_size=32,num_attention_heads=4,type_vocab_size=0",
            "token_type_embeddings.weight` would be empty, with shape (0, 32)",
        ),
        ("vit::hidden_act=nope", "transformers cannot build `vit`: there is no 'nope'"),
        (
            "vit_tiny_patch16_224::act_layer=nope",
            "timm cannot build `vit_tiny_patch16_224`: there is no 'nope'",
        ),
    ],
)
def test_what_was_typed_is_blamed_for_weights_that_cannot_be_made(reference, reason):
    with pytest.raises(UsageError) as caught:
        open_model(f"arch:{reference}")
    assert reason in caught.value.message
