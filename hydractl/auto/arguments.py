"""What transformers' callers ask of a model when they load or save it: done, or refused; nothing silently does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from hydractl.auto.config import HydraConfig
from hydractl.errors import UsageError
from hydractl.hub.layout import CONFIG, labels_of
from hydractl.manifest.header import Header

NAMES = frozenset({"id2label", "label2id"})
"""Settings of a configuration that rename classes, which `relabelled` looks at."""
ACCEPTED_SETTINGS = frozenset({*NAMES, "dtype", "return_dict", "transformers_version"})
"""Settings of a configuration that are done when they are asked for, or ask for nothing."""
ATTENTION = (None, "sdpa")


def check_settings(config: HydraConfig, folder: str, model_config: HydraConfig) -> None:
    """Refuse settings that a configuration has and the model's own has not, where they have no effect.

    Args:
        config: What a caller hands over, which may be the folder's with changes.
        folder: The model's.
        model_config: What the configuration is made of, where the folder has none.

    Raises:
        UsageError: Naming the setting.
    """
    stored = HydraConfig.from_pretrained(folder) if (Path(folder) / CONFIG).is_file() else model_config
    before, settings = stored.to_dict(), config.to_dict()
    if settings.get("problem_type") == "single_label_classification":  # which is what there is
        del settings["problem_type"]
    changed = (
        name
        for name, value in settings.items()
        if value != before.get(name) and name not in ACCEPTED_SETTINGS
    )
    if name := next((name for name in changed if not name.startswith("_")), None):
        raise UsageError(
            f"`{name}={settings[name]!r}`: members and hydras have no such setting", hint="leave it out"
        )
    if config._attn_implementation not in ATTENTION:
        raise UsageError(
            f"`attn_implementation={config._attn_implementation!r}`: members and hydras run `sdpa`",
            hint="leave it out",
        )


def relabelled(header: Header, config: PreTrainedConfig) -> Header:
    """Return a header whose classes have the names that a configuration has.

    Raises:
        UsageError: If it names other than the model's classes, or those that a zero-shot model was asked.
    """
    model_labels, config_labels = (
        labels_of(header),
        {int(i): str(name) for i, name in (config.id2label or {}).items()},
    )
    if sorted(config_labels) != list(range(len(model_labels))):
        raise UsageError(
            f"`num_labels` or `id2label` has {len(config_labels)} classes: the model has {len(model_labels)}, numbered from 0",
            hint="`hydractl finetune --num-classes N` makes another classifier, of a base",
        )
    names = tuple(config_labels[i] for i in range(len(model_labels)))
    if names == model_labels:
        return header
    if header.prompting is not None:
        raise UsageError(
            "`id2label`: a zero-shot model is asked by its classes' names",
            hint='`hydractl.load(..., classes=["cat", "dog"])` asks for others',
        )
    return header.model_copy(update={"labels": names})


def device_of(device_map: Any) -> torch.device | str:  # noqa: ANN401 - a device, or a map to one
    """Return the one device of a `device_map`; a number is a CUDA device's.

    Raises:
        UsageError: If it names several.
    """
    if isinstance(device_map, dict):
        if len({*map(str, device_map.values())}) != 1:
            raise UsageError(
                "`device_map` names several devices: members and hydras run on one",
                hint='name one: `device_map="cuda:0"`',
            )
        device_map = next(iter(device_map.values()))
    if device_map is None:
        return "cpu"
    return f"cuda:{device_map}" if isinstance(device_map, int) else device_map
