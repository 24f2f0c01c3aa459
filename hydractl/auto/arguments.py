"""Arguments of transformers for loading and saving a model. Each is honoured or refused; none is ignored silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from hydractl.auto.config import HydraConfig
from hydractl.errors import UsageError
from hydractl.families.transformers.models import named
from hydractl.hub.layout import CONFIG, labels_of
from hydractl.manifest.header import Header
from hydractl.tasks import SINGLE_LABEL

NAMES = frozenset({"id2label", "label2id"})
"""Settings of a configuration that rename classes, which `relabelled` checks."""
ACCEPTED_SETTINGS = frozenset({*NAMES, "dtype", "return_dict", "transformers_version"})
"""Settings of a configuration that are honoured elsewhere or have no effect."""
ATTENTION = (None, "sdpa")


def check_settings(config: HydraConfig, folder: str, model_config: HydraConfig) -> None:
    """Refuse settings of a configuration that the model's own configuration lacks and that have no effect.

    Args:
        config: Configuration from the caller, possibly a modified one of the folder.
        folder: Folder of the model.
        model_config: Source of the configuration if the folder has none.

    Raises:
        UsageError: If a setting has no effect; the message names it.
    """
    stored = HydraConfig.from_pretrained(folder) if (Path(folder) / CONFIG).is_file() else model_config
    before, settings = stored.to_dict(), config.to_dict()
    if settings.get("problem_type") == SINGLE_LABEL.problem_type and not before.get(
        "problem_type"
    ):  # which is what there is
        del settings["problem_type"]
    changed = (
        name
        for name, value in settings.items()
        if value != before.get(name) and name not in ACCEPTED_SETTINGS
    )
    if name := next((name for name in changed if not name.startswith("_")), None):
        raise UsageError(
            f"`{name}={settings[name]!r}`: members and hydras do not have this setting", hint="leave it out"
        )
    if config._attn_implementation not in ATTENTION:
        raise UsageError(
            f"`attn_implementation={config._attn_implementation!r}`: members and hydras support only `sdpa`",
            hint="leave it out",
        )


def relabelled(header: Header, config: PreTrainedConfig) -> Header:
    """Return a header with the class names of a configuration.

    Raises:
        UsageError: If the number of classes differs from the model's, or the model is zero-shot.
    """
    model_labels, config_labels = (
        labels_of(header),
        {int(i): str(name) for i, name in (config.id2label or {}).items()},
    )
    if sorted(config_labels) != list(range(len(model_labels))):
        raise UsageError(
            f"`num_labels` or `id2label` has {len(config_labels)} classes, but the model has "
            f"{len(model_labels)}, numbered from 0",
            hint="`hydractl finetune --num-classes N` replaces the classifier of a base",
        )
    names = tuple(config_labels[i] for i in range(len(model_labels)))
    if names in {model_labels, named((), len(names))}:  # placeholders of a configuration without names
        return header
    if header.prompting is not None:
        raise UsageError(
            "`id2label`: a zero-shot model uses the names of its classes as prompts",
            hint='`hydractl.load(..., classes=["cat", "dog"])` sets other classes',
        )
    return header.model_copy(update={"labels": names})


def device_of(device_map: Any) -> torch.device | str:  # noqa: ANN401 - a device, or a map to one
    """Return the single device of a `device_map`; an integer is the index of a CUDA device.

    Raises:
        UsageError: If it has several devices.
    """
    if isinstance(device_map, dict):
        if len({*map(str, device_map.values())}) != 1:
            raise UsageError(
                "`device_map` has several devices, but members and hydras run on one",
                hint='use one: `device_map="cuda:0"`',
            )
        device_map = next(iter(device_map.values()))
    if device_map is None:
        return "cpu"
    return f"cuda:{device_map}" if isinstance(device_map, int) else device_map
