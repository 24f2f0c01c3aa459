"""What transformers' callers ask of a model when they load or save it: done, or refused; nothing silently does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from hydractl.auto.configuration import HydraConfig
from hydractl.errors import UsageError
from hydractl.hub.layout import CONFIG, labels_of
from hydractl.manifest.header import Header

NAMES = frozenset({"id2label", "label2id"})
"""Settings of a configuration that rename classes, which `relabelled` looks at."""
TAKEN = frozenset({*NAMES, "dtype", "return_dict", "transformers_version"})
"""Settings of a configuration that are done when they are asked for, or ask for nothing."""
ATTENTION = (None, "sdpa")


def check_settings(given: HydraConfig, folder: str, own: HydraConfig) -> None:
    """Refuse settings that a configuration has and the model's own has not, where they have no effect.

    Args:
        given: What a caller hands over, which may be the folder's with changes.
        folder: The model's.
        own: What the configuration is made of, where the folder has none.

    Raises:
        UsageError: Naming the setting.
    """
    stored = HydraConfig.from_pretrained(folder) if (Path(folder) / CONFIG).is_file() else own
    before, asked = stored.to_dict(), given.to_dict()
    if asked.get("problem_type") == "single_label_classification":  # which is what there is
        del asked["problem_type"]
    changed = (name for name, value in asked.items() if value != before.get(name) and name not in TAKEN)
    if name := next((name for name in changed if not name.startswith("_")), None):
        raise UsageError(
            f"`{name}={asked[name]!r}`: members and hydras have no such setting", hint="leave it out"
        )
    if given._attn_implementation not in ATTENTION:
        raise UsageError(
            f"`attn_implementation={given._attn_implementation!r}`: members and hydras run `sdpa`",
            hint="leave it out",
        )


def relabelled(header: Header, config: PreTrainedConfig) -> Header:
    """Return a header whose classes have the names that a configuration has.

    Raises:
        UsageError: If it names other than the model's classes, or those that a zero-shot model was asked.
    """
    own, found = labels_of(header), {int(i): str(name) for i, name in (config.id2label or {}).items()}
    if sorted(found) != list(range(len(own))):
        raise UsageError(
            f"`num_labels` or `id2label` has {len(found)} classes: the model has {len(own)}, numbered from 0",
            hint="`hydractl finetune --num-classes N` makes another classifier, of a base",
        )
    names = tuple(found[i] for i in range(len(own)))
    if names == own:
        return header
    if header.prompting is not None:
        raise UsageError(
            "`id2label`: a zero-shot model is asked by its classes' names",
            hint='`hydractl.load(..., classes=["cat", "dog"])` asks for others',
        )
    return header.model_copy(update={"labels": names})


def device_of(given: Any) -> torch.device | str:  # noqa: ANN401 - a device, or a map to one
    """Return the one device of a `device_map`; a number is a CUDA device's.

    Raises:
        UsageError: If it names several.
    """
    if isinstance(given, dict):
        if len({*map(str, given.values())}) != 1:
            raise UsageError(
                "`device_map` names several devices: members and hydras run on one",
                hint='name one: `device_map="cuda:0"`',
            )
        given = next(iter(given.values()))
    if given is None:
        return "cpu"
    return f"cuda:{given}" if isinstance(given, int) else given
