"""Comparison of architectures by options with effect on the outputs of trained weights.

The outputs of models are the reference.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from PIL import Image

from hydractl.data.preprocess import eval_transform, reading_differences
from hydractl.errors import HydraError
from hydractl.families.base import ModelDescription
from hydractl.families.open_model import resized
from hydractl.families.openclip import family as openclip
from hydractl.families.registry import architecture_differences
from hydractl.families.timm import models as timm
from hydractl.families.tower import largest_difference
from hydractl.families.transformers import hf_models as transformers
from hydractl.manifest.header import Preprocess
from support.builders import base
from support.variants import PLAIN, VARIANTS, Variant, variant

FIRST = tuple({v.family: v for v in reversed(VARIANTS)}.values())
TRAINING_ONLY = {
    "timm": dict(timm.TRAINING_ONLY),
    "transformers": dict.fromkeys(transformers.TRAINING_ONLY),
    "open_clip_torch": dict.fromkeys(openclip.TRAINING_ONLY),
}


def reconfigured(sample, path, value):
    """Return a sample with another option at a path of the configuration, and the same weights."""
    config = {**sample.header.architecture.config}
    *outer, last = path
    place = config
    for key in outer:
        place[key] = {**place[key]}
        place = place[key]
    place[last] = value
    architecture = sample.header.architecture.model_copy(update={"config": config})
    return replace(sample, header=sample.header.model_copy(update={"architecture": architecture}))


def options_of(config, known, path=()):
    """Yield paths and values of options; None for options that a configuration does not set."""
    for key in sorted(known - config.keys()):
        yield (*path, key), None
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith(("_config", "_cfg")):
            yield from options_of(value, known, (*path, key))
        else:
            yield (*path, key), value


def other(library, name, value):
    """Return another value for an option, or None if no value is known."""
    if (declared := TRAINING_ONLY[library].get(name)) is not None:
        return declared
    if name in TRAINING_ONLY[library] and value is None:
        return 0.25
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2 + 0.25
    return value + 1 if isinstance(value, int) and name in TRAINING_ONLY[library] else None


def same_answers(one, other):
    """Return whether two samples have equal logits. None if the weights do not fit the second architecture."""
    try:
        with torch.inference_mode():
            return largest_difference(*(sample.model()(one.inputs()) for sample in (one, other))) == 0
    except (
        HydraError,
        AssertionError,
        AttributeError,
        IndexError,
        KeyError,
        RuntimeError,
        TypeError,
        ValueError,
    ):
        return None


@pytest.mark.spread(families=["timm-vit", "transformers-bert", "transformers-vit", "transformers-clip"])
@pytest.mark.parametrize("each", FIRST, ids=str)
def test_options_of_training_alone_make_no_difference_and_no_other_answer(each):
    sample = base(each)
    library = sample.family.library
    known = {n for n in TRAINING_ONLY[library] if library != "transformers" and n != "init_values"}
    tried = 0
    for path, value in options_of(sample.header.architecture.config, known):
        if path[-1] not in TRAINING_ONLY[library] or (value == 0.0 and "layer_scale" in path[-1]):
            continue
        changed = reconfigured(sample, path, other(library, path[-1], value))
        same = same_answers(sample, changed)
        if same is not None:
            tried += 1
            assert same, path
            assert not architecture_differences(changed.header.architecture, sample.header.architecture), path
    assert tried


@pytest.mark.spread(families=["timm-vit", "transformers-bert", "openclip"])
@pytest.mark.parametrize("each", FIRST, ids=str)
def test_whatever_gives_another_answer_is_a_difference(each):
    sample = base(each)
    library = sample.family.library
    for path, value in options_of(sample.header.architecture.config, frozenset()):
        changed = reconfigured(sample, path, other(library, path[-1], value))
        if (
            changed.header.architecture == sample.header.architecture
            or same_answers(sample, changed) is not False
        ):
            continue
        found = architecture_differences(changed.header.architecture, sample.header.architecture)
        assert any(option.startswith(f"{path[0]}=") for option in found), path


def described(options, name=PLAIN.arch):
    return base(Variant(PLAIN.family, "", name, options)).header.architecture


@pytest.mark.parametrize(
    "options",
    [{"img_size": [8, 8]}, {"qkv_bias": True}, {"global_pool": "token"}, {"mlp_ratio": 4}, {"class_token": True}],
    ids=str,
)  # fmt: skip
def test_a_default_and_a_form_make_no_difference(options):
    assert not architecture_differences(described(PLAIN.options | options), described(PLAIN.options))


def test_a_tag_makes_no_difference():
    names = (PLAIN.arch, f"{PLAIN.arch}.augreg_in21k")
    assert not architecture_differences(*(described(PLAIN.options, name) for name in names))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"qk_norm": True, "drop_rate": 0.5, "img_size": [8, 8]}, ("qk_norm=True",)),
        ({"act_layer": "relu"}, ("act_layer=relu",)),
        ({"num_heads": 2}, ("towers=",)),
    ],
    ids=str,
)
def test_what_differs_is_named(options, named):
    found = architecture_differences(described(PLAIN.options | options), described(PLAIN.options))
    assert [f.startswith(n) for f, n in zip(found, named, strict=True)] == [True]


def test_what_a_user_says_of_the_problem_is_no_architecture():
    sample = base(variant("transformers-bert-plain"))
    for problem in ("multi_label_classification", "single_label_classification"):
        changed = reconfigured(sample, ("problem_type",), problem)
        architecture = changed.header.architecture
        assert not architecture_differences(architecture, sample.header.architecture)
        assert "problem_type" not in resized(architecture, 5, "transformers").config
        told = ModelDescription(architecture=architecture, preprocess=sample.header.preprocess)
        assert "problem_type" not in sample.family.write_config(told)["config.json"]


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"crop_mode": "squash", "crop_offset": "before"}, ()),  # no odd margin
        ({"crop_mode": "squash", "crop_pct": 0.99}, ()),  # same number of pixels
        ({"crop_mode": "squash", "crop_pct": 0.9}, ("crop_pct",)),
        ({"crop_mode": "center"}, ("crop_mode",)),
        ({"crop_mode": "squash", "mean": (0.5,)}, ("mean",)),
    ],
    ids=str,
)
def test_ways_to_read_an_image_that_make_the_same_input_are_one(changes, fields):
    squash = Preprocess(input_size=(1, 9, 8), mean=(0.2,), std=(0.3,), crop_mode="squash")
    other = Preprocess.model_validate(squash.model_dump() | changes)
    assert reading_differences(other, squash) == fields
    image = Image.effect_noise((31, 20), 90)
    same = torch.equal(eval_transform(other)(image), eval_transform(squash)(image))
    assert same == (not fields)


def test_every_option_that_sounds_like_training_was_looked_at():
    """If a release adds an option, find out the effect, then add the option to `TRAINING_ONLY`."""
    words = ("drop", "init", "jitter")
    listed = {*TRAINING_ONLY["timm"], *TRAINING_ONLY["transformers"]}
    answer = {"token_dropout"}  # ESM scales embeddings by this option
    for name in sorted({name for v in FIRST for name in options_names(v)}):
        assert not any(word in name for word in words) or name in listed | answer, name


def options_names(each):
    sample = base(each)
    if sample.family.library == "timm":
        return timm._known_options()
    if sample.family.library != "transformers":
        return {*inspect.signature(openclip.library().CLIP).parameters} - {
            "init_logit_scale",
            "init_logit_bias",
        }
    return {path[-1] for path, _ in options_of(sample.header.architecture.config, frozenset())}
