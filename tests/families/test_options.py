"""What an architecture may be told, by files and references alike: names and numbers, whatever a library's constructor would take."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress

import open_clip
import pytest
import timm
import torch
from timm.models import build_model_with_cfg
from transformers import PreTrainedConfig

from hydractl.errors import InputError, UnsupportedModelError
from hydractl.families import options
from hydractl.families.options import LARGEST, check_values
from hydractl.families.registry import FAMILIES, family_for_name
from hydractl.families.transformers.library import _known, class_named, configured
from hydractl.heads.masks import full_mask
from support import trunks  # noqa: F401 - it registers what variants are made of
from support.variants import VARIANTS

FILE, MARK = "evil.pth", "evil"
FAMILIES_TRIED = ("timm-vit", "timm-eva", "timm-beit", "timm-relpos", "transformers-bert", "transformers-vit", "transformers-clip",
                  "openclip", "openclip-timm")  # fmt: skip
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
    sys.addaudithook(_watch)  # for good: Python has no way to take one away


@pytest.fixture
def touched(tmp_path, monkeypatch):
    """Return what is opened, imported, run or asked of the network that a hostile option names; a pickle lies in reach."""
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


def parts_of(family, architecture):
    """Return the place of each configuration within one, and the options that its constructor or its library has."""
    config = architecture.config
    own = {*config, *LIBRARY_OPTIONS[family.library]}
    if family.library == "timm":
        return {(): own | {*inspect.signature(type(timm.create_model(architecture.name))).parameters}}
    if family.library == "transformers":
        known = _known(class_named(family.covers.split("`")[1]).config_class)
        return {
            (): own | known,
            **{(k,): {*config[k], "attn_implementation"} for k in config if k.endswith("_config")},
        }
    towers = {"vision_cfg": open_clip.CLIPVisionCfg, "text_cfg": open_clip.CLIPTextCfg}
    return {(): own, **{(k,): {*inspect.signature(kind).parameters, "no_such"} for k, kind in towers.items()}}


@pytest.mark.parametrize("name", FAMILIES_TRIED)
def test_no_option_opens_or_fetches_anything(name, touched):
    """A file's name is a plain name, so that the constructor itself is asked; an id of the Hub is refused before."""
    family, architecture = described(name)
    mask, tried, built = full_mask(architecture.towers), 0, 0
    for place, known in parts_of(family, architecture).items():
        for option in sorted(known - NOT_TOLD):
            for value in (FILE, f"org/{MARK}"):
                config = {k: dict(v) if isinstance(v, dict) else v for k, v in architecture.config.items()}
                (config[place[0]] if place else config)[option] = value
                tried += 1
                with suppress(InputError):
                    family.build(architecture.model_copy(update={"config": config}), mask, None)
                    built += 1
    assert not touched
    assert tried > 50
    assert built < tried


@pytest.mark.parametrize(
    "value",
    [f"./{FILE}", f"C:\\{FILE}", f"https://{MARK}.test/a.pth", f"hf-hub:org/{MARK}", "a\nb", "é", {"a": [f"org/{MARK}"]}, {"a/b": 1}],
)  # fmt: skip
def test_more_than_a_name_is_refused(value):
    with pytest.raises(
        UnsupportedModelError, match=r"option `act_layer` is .*an architecture is told names and numbers"
    ):
        check_values("vit", "act_layer", value)


def test_a_number_that_no_model_has_is_refused():
    check_values("vit", "depth", [LARGEST, -LARGEST, 1e30, True, None, "gelu_tanh", {"eps": 1e-6}])
    with pytest.raises(UnsupportedModelError, match="option `depth` is beyond 1048576"):
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
    monkeypatch.setattr(options, "MOST_MODULES", 500)
    family, architecture = described(name)
    config = {**architecture.config}
    config |= {place: {**config[place], option: MANY}} if place else {option: MANY}
    with pytest.raises(UnsupportedModelError, match="it has more than 500 modules"):
        family.build(architecture.model_copy(update={"config": config}), full_mask(architecture.towers), None)


def test_what_a_configuration_says_besides_reaches_no_library():
    """Files of all ages say more than makes a model: it is left out, and so is never looked for."""
    config = configured(
        "clip",
        {"_attn_implementation": f"org/{MARK}", "vision_config_dict": {"attn_implementation": f"org/{MARK}"}},
    )
    assert MARK not in repr(config.__dict__) + repr(config.vision_config.__dict__)
