"""Tables of facts that are only in the library's source."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module

import pytest
import transformers

from hydractl.errors import UnsupportedModelError
from hydractl.families.registry import FAMILIES, family_for_name
from hydractl.families.transformers.hf_models import UNDECLARED, class_named, quiet

CONFIGS = {
    class_named(name).config_class
    for family in FAMILIES.values()
    if family.library == "transformers"
    for name in family.covers.split("`")[1::2]
    if hasattr(transformers, name)
}


def looked_for(config):
    """Return the options that the sources of a configuration and its model read by name."""
    own = sys.modules[config.__module__]
    model = import_module(config.__module__.replace("configuration_", "modeling_"))
    return {
        *re.findall(r'getattr\((?:self\.)?config, "(\w+)"', inspect.getsource(model)),
        *re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(own)),
    }


@pytest.mark.newer
@pytest.mark.parametrize("config", sorted(CONFIGS, key=str), ids=lambda config: config.model_type)
def test_undeclared_options_are_those_that_the_library_looks_for(config):
    """Fails if a newer release of the library reads another option, which hydractl would refuse."""
    declared = {*config().to_dict(), *config.attribute_map, "num_labels"}
    assert {*UNDECLARED.get(config.model_type, ())} == looked_for(config) - declared


@pytest.mark.newer
def test_no_list_is_of_a_model_that_is_not_read():
    assert UNDECLARED.keys() <= {config.model_type for config in CONFIGS}


@pytest.mark.parametrize(
    ("name", "option", "said", "hint"),
    [
        ("bert", {"hidden_siz": 8}, "`bert` has no option `hidden_siz`", "did you mean `hidden_size`?"),
        ("deberta-v2", {"conv_size": 3}, "`deberta-v2` has no option `conv_size`", "did you mean `conv_kernel_size`?"),
        ("clip", {"vision.wings": 2}, "`clip` has no option `vision.wings`", None),
    ],
)  # fmt: skip
def test_an_option_that_there_is_not(name, option, said, hint):
    """The library itself accepts any option."""
    with pytest.raises(UnsupportedModelError) as caught:
        family_for_name(name).describe(name, option)
    assert (str(caught.value), caught.value.hint) == (said, hint)


def test_a_class_that_the_release_lacks_is_said():
    with pytest.raises(UnsupportedModelError, match=r"transformers [\d.]+ has no `BortForDecades`") as caught:
        class_named("BortForDecades")
    assert caught.value.hint == "pip install --upgrade transformers"


@pytest.mark.parametrize("off", [True, False])
def test_bars_of_the_hub_are_as_they_were_after_the_library_was_kept_quiet(off):
    """transformers switches the Hub's progress bars on together with its own."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    before = are_progress_bars_disabled()
    try:
        (disable_progress_bars if off else enable_progress_bars)()
        with quiet():
            assert are_progress_bars_disabled()
        assert are_progress_bars_disabled() is off
    finally:
        (disable_progress_bars if before else enable_progress_bars)()
