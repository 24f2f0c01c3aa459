"""Members and hydras as models of transformers: what `from_pretrained`, pipelines and trainers work with.

Axes: M members, B batch, C classes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput
from typing_extensions import override

from hydractl.auto.arguments import check_settings, device_of, relabelled
from hydractl.auto.config import HydraConfig, floating
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.registry import family_of
from hydractl.families.tower import Model
from hydractl.fusion.default_score import WithDefaultScore
from hydractl.fusion.loaded_model import LoadedHydra, LoadedModel, load
from hydractl.fusion.plan import split_members
from hydractl.hub.layout import files_of
from hydractl.metrics.ood_scores import entropy, mutual_information
from hydractl.metrics.per_sample import opinions
from hydractl.model_inputs import Inputs
from hydractl.model_source import download
from hydractl.strict_json import parse

HUB = ("revision", "cache_dir", "token", "local_files_only", "force_download")
OF_NO_CONCERN = frozenset(
    {"_commit_hash", "_from_auto", "_from_pipeline", "adapter_kwargs", "code_revision", "low_cpu_mem_usage",
     "proxies", "resume_download", "trust_remote_code", "use_safetensors", "weights_only", "name_or_path"}
)  # fmt: skip
"""What the library hands to every model, and says nothing about this one."""
NOT_SAVED = frozenset(
    {"safe_serialization", "save_function", "save_original_format", "save_peft_format", "token"}
)
"""What it hands over likewise when a model is saved."""


@dataclass
class HydraClassifierOutput(ModelOutput):
    """What a member or a hydra answers.

    Attributes:
        loss: The mean of the members' cross-entropies, if labels were given.
        logits: `log mean_m softmax(z_m)`, (B, C): their softmax is the ensemble's mean probability.
        member_logits: Each member's own z_m, (M, B, C), divided by the stored temperature, in the dtype of the weights; all
            else is in float32 at least.
        entropy: Of the mean probabilities, in nats, (B,).
        mutual_information: How much members disagree, in nats, (B,).
        ood_score: How strange an input is, (B,): `energy+density` where the model stores it, else `msp`.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    member_logits: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    mutual_information: torch.Tensor | None = None
    ood_score: torch.Tensor | None = None


class Stated(NamedTuple):
    """A member that stands in for one whose weights are not its own, but those of a state dict."""

    state: Mapping[str, torch.Tensor]

    def library_state(self) -> Mapping[str, torch.Tensor]:
        """Return them under the library's names."""
        return self.state


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
        family = family_of(loaded.header.architecture)
        self.with_score = WithDefaultScore(loaded, loaded.scores, family, name=loaded.reference)
        self._places = _places(self)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the library's has other names for the same
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        **kwargs: Any,  # noqa: ANN401 - as the library has it
    ) -> Self | tuple[Self, dict[str, list[str]]]:
        """Load a folder or a model of the Hub; see `hydractl.load`.

        Args:
            pretrained_model_name_or_path: Which.
            kwargs: `dtype`, `device_map` (one device), `id2label`, `output_loading_info`, and what says where in the Hub or its
                cache.

        Raises:
            TypeError: If anything else is asked for.
            UsageError: If the model cannot be as it is asked for: of other classes, a dtype that is none, several devices.
        """
        user_config = kwargs.pop("config", None)
        dtype, device = (
            kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None),
            kwargs.pop("device_map", None),
        )
        informs = kwargs.pop("output_loading_info", False)
        place = {key: kwargs.pop(key) for key in HUB if kwargs.get(key) is not None}
        strange = sorted(kwargs.keys() - OF_NO_CONCERN - {*HUB, "torch_dtype"})
        if strange := [name for name in strange if kwargs[name] is not None]:
            raise TypeError(f"hydractl's models do not take `{strange[0]}`")
        kind, device = floating(dtype or getattr(user_config, "dtype", None)), device_of(device)
        name = str(pretrained_model_name_or_path)
        folder = name if Path(name).exists() else str(download(name, **place))
        loaded = load(folder, dtype=kind, device=device)
        config = HydraConfig.from_dict(
            parse(files_of(loaded.header)["config.json"])
            | {"dtype": str(loaded.dtype).removeprefix("torch.")}
        )
        config._name_or_path = name
        if user_config is not None:
            check_settings(user_config, folder, config)
            loaded.header = relabelled(loaded.header, user_config)
            config.id2label, config.label2id = user_config.id2label, user_config.label2id
            config.return_dict = user_config.return_dict
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
        is_main_process: bool = True,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> None:
        """Write the folder that `-o folder/` writes, of the weights as they are now; a model in it is replaced.

        Args:
            save_directory: The folder.
            is_main_process: Whether this process is the one that writes.
            state_dict: The weights in place of those that the model holds, of which a process may have but its part.
            push_to_hub: Whether it is pushed.
            kwargs: What has no effect on members and hydras.

        Raises:
            UsageError: If tensors are not those of the model, or classes were renamed to others than it has.
            TypeError: If anything else is asked for.
            ValueError: If it is to be pushed, for which `model.loaded.push_to_hub` is.
        """
        if push_to_hub:
            raise ValueError('`model.loaded.push_to_hub("org/name")` pushes, with a card')
        if strange := sorted(name for name in kwargs.keys() - NOT_SAVED if kwargs[name] is not None):
            raise TypeError(f"hydractl's models are not saved with `{strange[0]}`")
        if not is_main_process:
            return
        written = copy.copy(self.loaded)
        written.header = relabelled(written.header, self.config)
        if state_dict is not None:
            written.parts = cast("tuple[Model, ...]", self._stated(state_dict))
        written.save_pretrained(Path(save_directory), force=True)

    @override
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take over a state dict of this module, or one by the names that a checkpoint has, as `save_pretrained` writes it.

        Raises:
            CheckpointError: If a tensor is not of a hydra with these heads.
            RuntimeError: As any module: if names do not fit, where `strict`, or shapes.
        """
        return super().load_state_dict(self._by_own_names(state_dict), strict, assign)

    def _by_own_names(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state dict by this module's names, of one that may have a checkpoint's; names of neither stay."""
        header, library = self.loaded.header, {name for _, name in self._places.values()}
        theirs = {name: tensor for name, tensor in state.items() if name in library}
        if not theirs:
            return state
        try:
            parts = (
                [theirs]
                if header.plan is None
                else split_members(family_of(header.architecture), header, theirs)
            )
        except ValueError as error:
            raise CheckpointError(
                f"the state dict: {error}", hint="it is one of a hydra with other heads"
            ) from error
        tensors = {name: tensor for name, tensor in state.items() if name not in library}
        if self.loaded.scores is not None:  # weights have no part in them, so they are what they were
            for name, tensor in self.loaded.scores.tensors().items():
                if name in tensors and torch.equal(tensors[name].cpu(), tensor.cpu()):
                    del tensors[name]
        return tensors | {key: parts[m][name] for key, (m, name) in self._places.items() if name in parts[m]}

    def _stated(self, state: Mapping[str, torch.Tensor]) -> tuple[Stated, ...]:
        """Return stand-ins for the parts, with the weights of a state dict."""
        tensors = self._by_own_names(state)
        if odd := sorted(tensors.keys() ^ self._places.keys()):
            lacks = "has none" if odd[0] in self._places else "has one that the model has not"
            raise UsageError(
                f"`state_dict`: {lacks}, `{odd[0]}`",
                hint="it must hold every tensor of `model.state_dict()`, gathered from all processes",
            )
        parts: list[dict[str, torch.Tensor]] = [{} for _ in self.loaded.parts]
        for key, (m, name) in self._places.items():
            parts[m][name] = tensors[key]
        return tuple(Stated(parts[0] | part) for part in parts)  # what all share is the first's

    def _answer(self, inputs: Inputs, labels: torch.Tensor | None, return_dict: bool | None) -> Any:  # noqa: ANN401 - an output or a tuple
        logits, ood_score = self.with_score(inputs)
        member_opinions = opinions(logits)
        loss = None
        if labels is not None:
            loss = F.nll_loss(member_opinions.members.flatten(0, 1), labels.repeat(len(logits)))
        model_output = HydraClassifierOutput(
            loss=loss,
            logits=member_opinions.ensemble,
            member_logits=logits,
            entropy=entropy(member_opinions.members),
            mutual_information=mutual_information(member_opinions.members),
            ood_score=ood_score,
        )
        named = self.config.return_dict if return_dict is None else return_dict
        return model_output if named else model_output.to_tuple()


class HydraForImageClassification(HydraModel):  # type: ignore[no-untyped-call]  # as above
    """A classifier of images."""

    main_input_name = "pixel_values"

    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
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
    ) -> Any:  # noqa: ANN401 - an output or a tuple
        """Return the ensemble's log-probabilities and what members say, for tokens (B, T)."""
        by_name = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self._answer(
            {name: value for name, value in by_name.items() if value is not None}, labels, return_dict
        )


def _places(model: HydraModel) -> dict[str, tuple[int, str]]:
    """Return of which part, and what there by the library's name, each tensor of a model's state dict is."""
    named = {
        id(tensor): (m, name)
        for m, part in reversed([*enumerate(model.loaded.parts)])  # what all share is the first's
        for name, tensor in part.library_state().items()
    }
    return {
        key: named[id(tensor)]
        for key, tensor in model.state_dict(keep_vars=True).items()
        if id(tensor) in named
    }
