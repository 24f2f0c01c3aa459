"""Members and hydras as models of transformers: what `from_pretrained`, pipelines and trainers work with.

Axes: M members, B batch, C classes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from hydractl.auto.configuration import HydraConfig
from hydractl.fusion.loaded import LoadedHydra, LoadedModel, load
from hydractl.hub.layout import files_of
from hydractl.inputs import Inputs
from hydractl.jsonfile import parse
from hydractl.metrics.samples import ensemble_log_probs
from hydractl.metrics.scores import entropy, mutual_information
from hydractl.source import download

HUB = ("revision", "cache_dir", "token", "local_files_only", "force_download")
OF_NO_CONCERN = frozenset(
    {"_commit_hash", "_from_auto", "_from_pipeline", "adapter_kwargs", "code_revision", "low_cpu_mem_usage",
     "proxies", "resume_download", "trust_remote_code", "use_safetensors", "weights_only", "name_or_path"}
)  # fmt: skip
"""What the library hands to every model, and says nothing about this one."""


@dataclass
class HydraClassifierOutput(ModelOutput):
    """What a member or a hydra answers.

    Attributes:
        loss: The mean of the members' cross-entropies, if labels were given.
        logits: `log mean_m softmax(z_m)`, (B, C): their softmax is the ensemble's mean probability.
        member_logits: Each member's own z_m, (M, B, C), divided by the stored temperature.
        entropy: Of the mean probabilities, in nats, (B,).
        mutual_information: How much members disagree, in nats, (B,).
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    member_logits: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    mutual_information: torch.Tensor | None = None


class HydraModel(PreTrainedModel):  # type: ignore[no-untyped-call]  # transformers is untyped here
    """A checkpoint of hydractl as a model of transformers; `loaded` is what `hydractl.load` returns."""

    config_class = HydraConfig
    _supports_sdpa = True
    loaded: LoadedModel | LoadedHydra

    def __init__(self, config: HydraConfig, loaded: LoadedModel | LoadedHydra | None = None) -> None:
        """Wrap a loaded model.

        Raises:
            ValueError: If there is none: heads were chosen and members fused for their weights.
        """
        super().__init__(config)
        if loaded is None:
            raise ValueError(
                "a member or a hydra is what its weights are: `from_pretrained` makes one, `from_config` cannot"
            )
        self.loaded = loaded

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the library's has other names for the same
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *_: Any,  # noqa: ANN401 - as the library has it
        **told: Any,  # noqa: ANN401 - as above
    ) -> Self | tuple[Self, dict[str, list[str]]]:
        """Load a folder or a model of the Hub; see `hydractl.load`.

        Args:
            pretrained_model_name_or_path: Which.
            told: `dtype`, `device_map` (one device), `output_loading_info`, and what says where in the Hub or its cache.

        Raises:
            TypeError: If anything else is asked for.
        """
        told.pop("config", None)
        dtype, device = told.pop("dtype", None) or told.pop("torch_dtype", None), told.pop("device_map", None)
        informs = told.pop("output_loading_info", False)
        place = {name: told.pop(name) for name in HUB if told.get(name) is not None}
        strange = sorted(told.keys() - OF_NO_CONCERN - {*HUB, "torch_dtype"})
        if strange := [name for name in strange if told[name] is not None]:
            raise TypeError(f"hydractl's models do not take `{strange[0]}`")
        folder = _folder(pretrained_model_name_or_path, place)
        loaded = load(folder, dtype=None if dtype == "auto" else _dtype(dtype), device=_device(device))
        config = HydraConfig.from_dict(parse(files_of(loaded.header)["config.json"]) | _typed(loaded))
        config._name_or_path = str(pretrained_model_name_or_path)
        model = cls(config, loaded)
        model.train(mode=False)
        info: dict[str, list[str]] = {
            key: [] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
        }
        return (model, info) if informs else model

    def save_pretrained(  # type: ignore[override]  # as above
        self,
        save_directory: str | os.PathLike[str],
        *,
        push_to_hub: bool = False,
        **_: Any,  # noqa: ANN401 - as above
    ) -> None:
        """Write the folder that `-o folder/` writes, of the weights as they are now; a model in it is replaced.

        Raises:
            ValueError: If it is to be pushed, for which `model.loaded.push_to_hub` is.
        """
        if push_to_hub:
            raise ValueError('`model.loaded.push_to_hub("org/name")` pushes, with a card')
        self.loaded.save_pretrained(Path(save_directory), force=True)

    def _answer(self, inputs: Inputs, labels: torch.Tensor | None, return_dict: bool | None) -> Any:  # noqa: ANN401 - an output or a tuple
        members = self.loaded.member_logits(inputs)
        log_probs = members.log_softmax(-1)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(members.flatten(0, 1), labels.repeat(len(members)))
        found = HydraClassifierOutput(
            loss=loss,
            logits=ensemble_log_probs(log_probs),
            member_logits=members,
            entropy=entropy(log_probs),
            mutual_information=mutual_information(log_probs),
        )
        return found.to_tuple() if return_dict is False else found


class HydraForImageClassification(HydraModel):  # type: ignore[no-untyped-call]  # as above
    """A classifier of images."""

    main_input_name = "pixel_values"

    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,  # noqa: ANN401 - as above
    ) -> Any:  # noqa: ANN401 - an output or a tuple
        """Return the ensemble's log-probabilities and what members say, for images (B, channels, height, width)."""
        return self._answer(pixel_values, labels, return_dict)


class HydraForSequenceClassification(HydraModel):  # type: ignore[no-untyped-call]  # as above
    """A classifier of texts."""

    main_input_name = "input_ids"

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,  # noqa: ANN401 - as above
    ) -> Any:  # noqa: ANN401 - an output or a tuple
        """Return the ensemble's log-probabilities and what members say, for tokens (B, T)."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs = {name: value for name, value in given.items() if value is not None}
        return self._answer(inputs, labels, return_dict)


def _folder(name: str | os.PathLike[str], place: dict[str, Any]) -> str:
    """Return where a model's files are, downloaded if they are the Hub's."""
    if Path(name).exists():
        return str(name)
    return str(download(str(name), **place))


def _dtype(given: Any) -> Any:  # noqa: ANN401 - a dtype, or the name of one
    return getattr(torch, given) if isinstance(given, str) and hasattr(torch, given) else given


def _device(given: Any) -> Any:  # noqa: ANN401 - a device, or a map to one
    if isinstance(given, dict):
        if len({*map(str, given.values())}) != 1:
            raise TypeError("hydractl's models run on one device: `device_map` names several")
        return next(iter(given.values()))
    return "cpu" if given is None else given


def _typed(loaded: LoadedModel | LoadedHydra) -> dict[str, object]:
    return {"dtype": str(loaded.dtype).removeprefix("torch.")}
