"""Hugging Face transformers itself: its configurations and its models, made, filled and kept quiet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hydractl.errors import CheckpointError, UnsupportedModelError, reason_of
from hydractl.families.config_checks import OptionsError, building, check_options, check_values
from hydractl.messages import counted
from hydractl.strict_json import MAX_BYTES
from hydractl.tensor_spec import common_dtype

if TYPE_CHECKING:
    import torch

    from hydractl.manifest.header import Architecture


UNDECLARED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("deit", "dinov2", "dinov2_with_registers", "esm", "gte", "ijepa", "jina_embeddings_v3", "qwen2", "vit", "vit_msn"),
            ("head_dim",),
        ),
        "beit": ("head_dim", "segmentation_indices"),
        **dict.fromkeys(("altclip", "chinese_clip", "clip", "clipseg", "metaclip_2"), ("text_config_dict", "vision_config_dict")),
        "deberta-v2": (
            "attention_head_size", "cls_dropout", "conv_act", "conv_groups", "conv_kernel_size", "embedding_size",
            "norm_rel_ebd", "position_buckets", "share_att_key",
        ),
        "modernbert": (
            "global_attn_every_n_layers", "global_rope_theta", "head_dim", "local_rope_theta", "rope_scaling",
        ),
        "roformer": ("summary_activation", "summary_type"),
        "ultrabert": ("attention_windows", "rope_theta"),
    }
)  # fmt: skip
"""Undeclared options that a configuration or its model reads, by `model_type`."""


TOWERS = ("text_config", "vision_config")
LABELS = ("id2label", "label2id")
NOT_ARCHITECTURE = (
    *LABELS,
    "transformers_version",
    "_name_or_path",
    "architectures",
    "dtype",
    "problem_type",
)
"""Other fields of a configuration."""
TRAINING_ONLY = (
    "attention_dropout", "attention_probs_dropout_prob", "auxiliary_loss_weight", "classifier_dropout",
    "classifier_dropout_prob", "cls_dropout", "decoder_attention_dropout", "deterministic_flash_attn", "drop_path_rate",
    "dropout", "embedding_dropout", "hidden_dropout_prob", "initializer_cutoff_factor", "initializer_factor",
    "initializer_range", "layer_scale_init_value", "layerscale_value", "logit_scale_init_value", "mlp_dropout",
    "output_attentions", "output_hidden_states", "pooler_dropout", "qa_dropout", "return_dict", "semantic_loss_ignore_index",
    "seq_classif_dropout", "sparse_pred_ignore_index", "summary_last_dropout", "use_cache",
)  # fmt: skip
"""Options that change no output of trained weights: dropout rates, initialization, and additional outputs."""
OLD_ROPE = ("partial_rotary_factor", "rope_scaling", "rope_theta")
"""Former options that are now part of `rope_parameters`."""


def configured(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - untyped
    """Return the library's configuration of a `model_type`, told what its architecture may be told and nothing else.

    Files of all ages say more, none of which a model is made of: the library would keep it, and look there for the code of its
    attention, the place of weights and their quantisation.

    Raises:
        OptionsError: If it does not take the options.
    """
    from transformers import AutoConfig

    allowed = _allowed(_config_class(name), _with_real_angles(options))
    for key in allowed.keys() - set(LABELS):
        check_values(name, key, allowed[key])
    try:
        with quiet():
            return AutoConfig.for_model(name, **allowed)
    except Exception as error:  # whatever a configuration's validators raise, these options make no model
        raise OptionsError(f"transformers cannot configure `{name}`: {reason_of(error)}") from error


def _with_real_angles(options: Mapping[str, object]) -> dict[str, object]:
    """Return options with the base of rotary angles as the real number that it is: as whole numbers go, it may be large."""
    return {
        key: float(value)
        if key == "rope_theta" and isinstance(value, int)
        else _with_real_angles(value)
        if isinstance(value, dict)
        else value
        for key, value in options.items()
    }


def checked(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - untyped
    """Return the configuration that a user's options make.

    Raises:
        OptionsError: If an option is unknown, or the configuration does not take its value.
    """
    config_class = _config_class(name)
    within = _within(config_class)
    check_options(name, {k: v for k, v in options.items() if k not in within}, _known_keys(config_class))
    for key, kind in within.items():
        if isinstance(tower_options := options.get(key), dict):
            check_options(name, tower_options, _known_keys(kind), prefix=f"{key.partition('_')[0]}.")
    return configured(name, options)


def evaluation_config(model_class: str, options: Mapping[str, object]) -> Mapping[str, object]:
    """Return what of the options of the library's class changes the answers of trained weights, defaults filled in."""
    unread = {*NOT_ARCHITECTURE, *TRAINING_ONLY, "text_config_dict", "vision_config_dict"}

    def filtered(config: Mapping[str, Any]) -> dict[str, object]:
        return {
            key: filtered(value) if key in TOWERS and isinstance(value, dict) else value
            for key, value in config.items()
            if key not in unread
        }

    config = configured(class_named(model_class).config_class.model_type, options)
    return {"model_class": model_class, **filtered(config.to_dict())}


def _config_class(name: str) -> Any:  # noqa: ANN401 - untyped
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name]


def _allowed(config_class: Any, options: Mapping[str, object]) -> dict[str, object]:  # noqa: ANN401 - untyped
    """Return what of options an architecture is told, those of configurations within it too."""
    within, known_keys = _within(config_class), _known_keys(config_class)
    allowed = {key: value for key, value in options.items() if key in known_keys}
    for key in within.keys() & allowed.keys():
        if isinstance(tower_options := allowed[key], dict):
            allowed[key] = {k: v for k, v in _allowed(within[key], tower_options).items() if k not in LABELS}
    return allowed


@cache
def _known_keys(config_class: Any) -> frozenset[str]:  # noqa: ANN401 - untyped
    """Return what an architecture may be told: what its configuration declares, or is known to look for."""
    with quiet():
        declared = config_class().to_dict().keys()
    undeclared = UNDECLARED.get(config_class.model_type, ())
    names = {*declared, *config_class.attribute_map, *undeclared, "num_labels"}
    old = OLD_ROPE if "rope_parameters" in names else ()
    return frozenset({*names, *old} - {*NOT_ARCHITECTURE, "model_type"} | {*LABELS})


@cache
def _within(config_class: Any) -> Mapping[str, Any]:  # noqa: ANN401 - untyped
    """Return the classes of a pair's two configurations, by the options that hold them."""
    parts: Mapping[str, Any] = config_class.sub_configs
    return {f"{key}{form}": parts[key] for key in TOWERS if key in parts for form in ("", "_dict")}


def blank(model_class: str, architecture: Architecture, spared: Sequence[str] = ()) -> Any:  # noqa: ANN401 - untyped
    """Return the library's model with parameters on the meta device and buffers as they are.

    Args:
        model_class: The library's.
        architecture: What to make.
        spared: Paths of modules that it does without.
    """
    from transformers.initialization import no_init_weights

    from hydractl.families.surgery import without_weights

    with without_weights(), no_init_weights():
        return _without(_build_library_model(model_class, architecture), spared)


def random_state(
    model_class: str, architecture: Architecture, seed: int, spared: Sequence[str] = ()
) -> dict[str, torch.Tensor]:
    """Return random weights by the library's own rules, a function of the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(_without(_build_library_model(model_class, architecture), spared).state_dict())


def _without(library: Any, spared: Sequence[str]) -> Any:  # noqa: ANN401 - as above
    """Return a model in which nothing stands for some modules."""
    from torch import nn

    for path in spared:
        holder, _, name = path.rpartition(".")
        parts = library.get_submodule(holder)._modules
        if name in parts:
            parts[name] = nn.Identity()
    return library


def _build_library_model(model_class: str, architecture: Architecture) -> Any:  # noqa: ANN401 - untyped
    config = configured(class_named(model_class).config_class.model_type, architecture.config)
    with building("transformers", architecture.name), quiet():
        return class_named(model_class)(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What of a folder's tensors may be otherwise than the model's.

    Attributes:
        spared: See `blank`.
        replaceable: Whether a tensor may be missing, which is left out then, or of another shape.
        in_block: Whether a tensor belongs to a block: weights there that the model has no place for are an error.
        bare: See `Row`.
        exact: See `Family`.
    """

    spared: Sequence[str]
    replaceable: Callable[[str], bool]
    in_block: Callable[[str], bool]
    bare: tuple[tuple[str, str], ...]
    exact: frozenset[str]


def adopted_state(
    model_class: str, where: str, architecture: Architecture, state: Mapping[str, torch.Tensor], how: Adoption
) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder under the names that they have in memory.

    Args:
        model_class: The library's, which need not be the one that the folder is of: the encoder is what must be the same.
        where: What messages call the folder.
        architecture: What the tensors should become.
        state: The tensors, as they are stored.
        how: What may be otherwise.

    Raises:
        CheckpointError: If others are missing, or of another shape than the configuration says, or blocks hold more, or
            the library cannot convert them.
    """
    config = configured(class_named(model_class).config_class.model_type, architecture.config)
    try:
        with quiet():
            library, report = class_named(model_class).from_pretrained(
                None,
                config=config,
                state_dict=dict(state),
                dtype=common_dtype(tensor for name, tensor in state.items() if name not in how.exact),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # or else its error does not say which
                **({"key_mapping": dict(how.bare)} if how.bare else {}),
            )
    except Exception as error:  # the library raises whatever its converters do
        raise CheckpointError(f"{where}: transformers cannot read its weights: {reason_of(error)}") from error
    if missing := sorted(name for name in report["missing_keys"] if not how.replaceable(name)):
        raise CheckpointError(
            f"{where}: lacks {counted(len(missing), 'tensor')} of {model_class}, for example `{missing[0]}`",
            hint="config.json may belong to another model",
        )
    if unexpected := sorted(name for name in report["unexpected_keys"] if how.in_block(name)):
        raise CheckpointError(
            f"{where}: has {counted(len(unexpected), 'tensor')} in its blocks that {model_class} "
            f"does not have, for example `{unexpected[0]}`",
            hint="merge adapters into the weights first (`merge_and_unload()`), or check the architecture",
        )
    resized = {name: shapes for name, *shapes in sorted(report["mismatched_keys"])}
    if mismatched := [name for name in resized if not (how.replaceable(name) and name in state)]:
        stored, expected = map(tuple, resized[mismatched[0]])
        raise CheckpointError(
            f"{where}: tensor `{mismatched[0]}` has shape {stored}, but its config.json needs {expected}",
            hint="config.json may belong to another model",
        )
    loaded = _without(library, how.spared).state_dict()
    loaded_state = {name: tensor for name, tensor in loaded.items() if name not in report["missing_keys"]}
    unchanged = {*resized, *how.exact} & state.keys() & loaded.keys()
    return {**loaded_state, **{name: state[name] for name in sorted(unchanged)}}


def check_small(folder: Path, patterns: Iterable[str]) -> None:
    """Refuse files that the library is to read whole and that are longer than any of their kind.

    Raises:
        CheckpointError: Naming the first.
    """
    for path in (match for pattern in patterns for match in sorted(folder.glob(pattern))):
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: has more than {MAX_BYTES} bytes")


def classes_of(config: Mapping[str, object], default: str) -> list[str]:
    """Return the classes that a `config.json` is of, or `default` where it says none."""
    trained = config.get("architectures")
    return [str(name) for name in trained] if isinstance(trained, list) and trained else [default]


def class_named(model_class: str) -> Any:  # noqa: ANN401 - untyped
    """Return a class of the library.

    Raises:
        UnsupportedModelError: If its release has none of that name.
    """
    import transformers

    library_class = getattr(transformers, model_class, None)
    if library_class is None:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no `{model_class}`",
            hint="pip install --upgrade transformers",
        )
    return library_class


def labels_as_config(names: Sequence[str]) -> dict[str, object]:
    """Return names of classes as the library's configurations have them."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's progress bars and advice off the terminal; what matters comes back as errors of ours."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    level, bars, hubs = (
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        not are_progress_bars_disabled(),
    )
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if not hubs:  # which the library's go with
            disable_progress_bars()
