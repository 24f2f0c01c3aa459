"""Members and hydras as models of transformers, for `from_pretrained`, pipelines and trainers.

Axes: M members, B batch, T tokens, C classes. For classification of tokens, shapes (B,) and (B, C) become (B,
T) and (B, T, C). Every argument of transformers either works or raises; none is ignored silently.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput
from typing_extensions import override

from hydractl.auto.config import HydraConfig, floating
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.registry import family_of
from hydractl.families.tower import Model
from hydractl.families.transformers.hf_models import labels_as_config
from hydractl.families.transformers.models import class_names_or_default
from hydractl.fusion.plan import split_members
from hydractl.hub.layout import CONFIG, files_of, labels_of
from hydractl.manifest.header import Header
from hydractl.metrics.conformal import class_sets
from hydractl.metrics.ood_scores import SCORES, entropy, mutual_information
from hydractl.metrics.per_sample import item_losses, of_inputs, opinions
from hydractl.model_inputs import Inputs
from hydractl.model_source import download
from hydractl.prediction.feature_ood import WithDefaultScore
from hydractl.prediction.loaded_model import LoadedHydra, LoadedModel, load
from hydractl.prediction.predictions import Bounds
from hydractl.strict_json import parse
from hydractl.tasks import SINGLE_LABEL

NAMES = frozenset({"id2label", "label2id"})
"""Configuration settings that rename classes. `relabelled` checks them."""
ACCEPTED_SETTINGS = frozenset({*NAMES, "dtype", "return_dict", "transformers_version"})
"""Configuration settings that work elsewhere or have no effect."""
ATTENTION = (None, "sdpa")


def check_settings(config: HydraConfig, folder: str, model_config: HydraConfig) -> None:
    """Raise for configuration settings that differ from the model's and have no effect.

    Args:
        config: Configuration of the caller, for example a modified configuration of the folder.
        folder: Folder of the model.
        model_config: Replaces the folder's configuration if the folder has none.

    Raises:
        UsageError: If a setting has no effect. The message names the setting.
    """
    stored = HydraConfig.from_pretrained(folder) if (Path(folder) / CONFIG).is_file() else model_config
    before, settings = stored.to_dict(), config.to_dict()
    if settings.get("problem_type") == SINGLE_LABEL.problem_type and not before.get(
        "problem_type"
    ):  # The default problem type changes nothing.
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

    The generated names of a configuration without class names do not replace names in the header.

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
    if names in {
        model_labels,
        class_names_or_default((), len(names)),
    }:  # A configuration without names has placeholders.
        return header
    if header.prompting is not None:
        raise UsageError(
            "`id2label`: a zero-shot model uses the names of its classes as prompts",
            hint='`hydractl.load(..., classes=["cat", "dog"])` sets other classes',
        )
    return header.model_copy(update={"labels": names})


def device_of(device_map: Any) -> torch.device | str:  # noqa: ANN401 - a device, or a map to one
    """Return the single device of a `device_map`, `cpu` for None.

    An integer is the index of a CUDA device. Other values, for example `auto` or a device, are returned
    unchanged.

    Raises:
        UsageError: If the map has several devices.
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


HUB = ("revision", "cache_dir", "token", "local_files_only", "force_download")
IGNORED_ARGUMENTS = frozenset(
    {"_commit_hash", "_from_auto", "_from_pipeline", "adapter_kwargs", "code_revision", "low_cpu_mem_usage",
     "proxies", "resume_download", "trust_remote_code", "use_safetensors", "weights_only", "name_or_path"}
)  # fmt: skip
"""Arguments that the library passes to every model and that have no effect here."""
NOT_SAVED = frozenset(
    {"safe_serialization", "save_function", "save_original_format", "save_peft_format", "token"}
)
"""Arguments that the library passes to `save_pretrained` of every model and that have no effect here."""


@dataclass
class HydraClassifierOutput(ModelOutput):
    """Output of a member or a hydra.

    Attributes:
        loss: Mean of the members' cross-entropies, if labels are given.
        logits: `log mean_m softmax(z_m)`, (B, C). Their softmax is the mean probability of the ensemble. For
            Q labels, the log odds of the mean probabilities, (B, Q).
        member_logits: Logits z_m of each member, (M, B, C), divided by the stored temperature, in the dtype
            of the weights; (M, B, Q, 2) for Q labels. All other fields have at least float32.
        entropy: Entropy of the mean probabilities, in nats, (B,).
        mutual_information: Disagreement of the members, in nats, (B,).
        ood_score: OOD score, (B,), higher for inputs unlike the training data: `energy+density` if stored in
            the model, otherwise `msp`.
        sets: Whether each class is in the prediction set of each input, (B, C), boolean. None in training
            mode, or if the model has no prediction sets.
        is_known: Whether the stored test takes each input as known, (B,), boolean. None without this test, and as
            for `accepted`.
        accepted: Whether the stored tests accept each input, (B,), boolean. A non-finite OOD score is
            not accepted. None in training mode, without a stored threshold, for tokens, and for a threshold
            on another feature-based score than `ood_score`.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    member_logits: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    mutual_information: torch.Tensor | None = None
    ood_score: torch.Tensor | None = None
    sets: torch.Tensor | None = None
    accepted: torch.Tensor | None = None
    is_known: torch.Tensor | None = None


class Stated(NamedTuple):
    """A stand-in for a member with the weights of a state dict."""

    state: Mapping[str, torch.Tensor]

    def library_state(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors under the library's names."""
        return self.state


class HydraModel(PreTrainedModel):  # type: ignore[no-untyped-call]  # transformers is untyped here
    """A checkpoint of hydractl as a model of transformers. `loaded` is the result of `hydractl.load`."""

    config_class = HydraConfig
    _supports_sdpa = True
    loaded: LoadedModel | LoadedHydra

    def __init__(self, config: HydraConfig, loaded: LoadedModel | LoadedHydra | None = None) -> None:
        """Wrap a loaded model.

        Raises:
            ValueError: If `loaded` is None. Members and hydras exist only with their weights.
        """
        super().__init__(config)
        if loaded is None:
            raise ValueError(
                "`from_config` is not supported: load a member or a hydra with `from_pretrained`"
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
            pretrained_model_name_or_path: Folder or Hub id.
            kwargs: `dtype`, `device_map` (one device), `config`, `output_loading_info`, and arguments for the
                Hub and its cache. `id2label` works only with Auto classes, which move it to `config`.
                Arguments in `IGNORED_ARGUMENTS` have no effect.

        Returns:
            The model in evaluation mode. With `output_loading_info`, also a dict of empty lists.

        Raises:
            TypeError: If any other argument is given.
            UsageError: If an argument does not fit the model: other classes, an invalid dtype, several
                devices.
        """
        user_config = kwargs.pop("config", None)
        dtype, device = (
            kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None),
            kwargs.pop("device_map", None),
        )
        informs = kwargs.pop("output_loading_info", False)
        place = {key: kwargs.pop(key) for key in HUB if kwargs.get(key) is not None}
        strange = sorted(kwargs.keys() - IGNORED_ARGUMENTS - {*HUB, "torch_dtype"})
        if strange := [name for name in strange if kwargs[name] is not None]:
            raise TypeError(f"models of hydractl do not support the argument `{strange[0]}`")
        kind, device = floating(dtype or getattr(user_config, "dtype", None)), device_of(device)
        name = str(pretrained_model_name_or_path)
        folder = name if Path(name).exists() else str(download(name, **place))
        loaded = load(folder, dtype=kind, device=device)
        config = HydraConfig.from_dict(
            parse(files_of(loaded.header)["config.json"])
            | ({} if loaded.header.prompting else labels_as_config(labels_of(loaded.header)))
            | {"dtype": str(loaded.dtype).removeprefix("torch.")}
        )
        config._name_or_path = name
        if user_config is not None:
            check_settings(user_config, folder, config)
            loaded.header = relabelled(loaded.header, user_config)
            config.id2label = dict(enumerate(labels_of(loaded.header)))
            config.label2id = {name: i for i, name in config.id2label.items()}
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
        """Write the present weights to a folder, as `-o folder/` does. A model in the folder is replaced.

        Args:
            save_directory: The folder.
            is_main_process: Whether this process writes.
            state_dict: Weights to write instead of the model's own, for example gathered from several
                processes.
            push_to_hub: Not supported.
            kwargs: Arguments in `NOT_SAVED`, which are ignored. Others must be None.

        Raises:
            UsageError: If the tensors are not those of the model, or the number of renamed classes differs.
            TypeError: If any other argument is given, for example `max_shard_size`.
            ValueError: If `push_to_hub` is set; use `model.loaded.push_to_hub` instead.
        """
        if push_to_hub:
            raise ValueError('`model.loaded.push_to_hub("org/name")` pushes the model with a card')
        if strange := sorted(name for name in kwargs.keys() - NOT_SAVED if kwargs[name] is not None):
            raise TypeError(
                f"models of hydractl do not support the argument `{strange[0]}` in `save_pretrained`"
            )
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
        """Load a state dict with the names of this module or of a checkpoint written by `save_pretrained`.

        Raises:
            CheckpointError: If a tensor belongs to a hydra with other heads.
            RuntimeError: As in torch, if names (with `strict`) or shapes do not fit.
        """
        return super().load_state_dict(self._by_own_names(state_dict), strict, assign)

    def _by_own_names(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rename the tensors of a checkpoint to the names of this module.

        Other names are unchanged. OOD scores equal to the stored scores are dropped.

        Raises:
            CheckpointError: If the tensors belong to a hydra with other heads.
        """
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
                f"the state dict: {error}", hint="it belongs to a hydra with other heads"
            ) from error
        tensors = {name: tensor for name, tensor in state.items() if name not in library}
        # Trainers do not change stored OOD scores, so equal tensors can be dropped.
        if self.loaded.scores is not None:
            for name, tensor in self.loaded.scores.tensors().items():
                if name in tensors and torch.equal(tensors[name].cpu(), tensor.cpu()):
                    del tensors[name]
        return tensors | {key: parts[m][name] for key, (m, name) in self._places.items() if name in parts[m]}

    def _stated(self, state: Mapping[str, torch.Tensor]) -> tuple[Stated, ...]:
        """Return stand-ins for the members, with the weights of a state dict."""
        tensors = self._by_own_names(state)
        if odd := sorted(tensors.keys() ^ self._places.keys()):
            problem = "lacks the tensor" if odd[0] in self._places else "has the unexpected tensor"
            raise UsageError(
                f"`state_dict`: {problem} `{odd[0]}`",
                hint="it must contain every tensor of `model.state_dict()`, gathered from all processes",
            )
        parts: list[dict[str, torch.Tensor]] = [{} for _ in self.loaded.parts]
        for key, (m, name) in self._places.items():
            parts[m][name] = tensors[key]
        return tuple(Stated(parts[0] | part) for part in parts)  # Shared tensors belong to the first part.

    def _answer(self, inputs: Inputs, labels: torch.Tensor | None, return_dict: bool | None) -> Any:  # noqa: ANN401 - an output or a tuple
        logits, ood_score = self.with_score(inputs)
        member_opinions, several = opinions(logits), self.loaded.header.architecture.task.by_label
        loss = None
        if labels is not None:
            # transformers passes floating-point labels for models with several labels.
            loss = item_losses(logits.to(member_opinions.members.dtype), labels.long()).mean()
        model_output = HydraClassifierOutput(
            loss=loss,
            logits=member_opinions.logits(multi_label=several),
            member_logits=logits,
            entropy=of_inputs(entropy(member_opinions.members), multi_label=several),
            mutual_information=of_inputs(mutual_information(member_opinions.members), multi_label=several),
            ood_score=ood_score,
            sets=None
            if (rule := self.loaded.header.prediction_sets) is None or self.training
            else class_sets(member_opinions.ensemble.exp(), rule),
            **self._decisions(logits, ood_score),
        )
        named = self.config.return_dict if return_dict is None else return_dict
        return model_output if named else model_output.to_tuple()

    def _decisions(self, logits: torch.Tensor, ood_score: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Return `accepted` and `is_known` (B,) by the stored tests; see `HydraClassifierOutput`."""
        header = self.loaded.header
        bounds, task = Bounds.of(header.known_test, header.threshold), header.architecture.task
        names = {bound[0] for bound in bounds if bound}
        if names - {*SCORES, self.with_score.score} or task.by_word or self.training:
            return {}
        scores = {
            name: of_inputs(SCORES[name].of(logits.float()), multi_label=task.by_label)
            if name in SCORES
            else ood_score
            for name in names
        }
        accepted, is_known = bounds.decide(scores)
        return {"accepted": accepted, "is_known": is_known}


class HydraForImageClassification(HydraModel):  # type: ignore[no-untyped-call]  # as above
    """Image classifier."""

    main_input_name = "pixel_values"

    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
    ) -> Any:  # noqa: ANN401 - an output or a tuple
        """Return the output for images (B, channels, height, width): a `HydraClassifierOutput` or a tuple.

        Args:
            pixel_values: Preprocessed images.
            labels: Class indices (B,), or (B, Q) for Q labels; None for no loss.
            return_dict: As in `HydraForSequenceClassification.forward`.
        """
        return self._answer(pixel_values, labels, return_dict)


class HydraForSequenceClassification(HydraModel):  # type: ignore[no-untyped-call]  # as above
    """Text classifier."""

    main_input_name = "input_ids"

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
    ) -> Any:  # noqa: ANN401 - an output or a tuple
        """Return the output for tokens (B, T): a `HydraClassifierOutput` or a tuple.

        Args:
            input_ids: Token indices, (B, T).
            attention_mask: 1 for tokens, 0 for padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            labels: Class indices (B,); (B, Q) for Q labels, (B, T) for classes of tokens. The output has a
                loss only if labels are given.
            return_dict: Whether to return a `HydraClassifierOutput` instead of a tuple. None for the setting
                of the configuration.
        """
        by_name = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self._answer(
            {name: value for name, value in by_name.items() if value is not None}, labels, return_dict
        )


class HydraForTokenClassification(HydraForSequenceClassification):  # type: ignore[no-untyped-call]  # as above
    """Token classifier."""


def _places(model: HydraModel) -> dict[str, tuple[int, str]]:
    """Return the part and the library's name of each tensor in a model's state dict."""
    named = {
        id(tensor): (m, name)
        # Reversed, so that shared tensors belong to the first part.
        for m, part in reversed([*enumerate(model.loaded.parts)])
        for name, tensor in part.library_state().items()
    }
    return {
        key: named[id(tensor)]
        for key, tensor in model.state_dict(keep_vars=True).items()
        if id(tensor) in named
    }
