"""Hugging Face transformers itself: its configurations and its models, made, filled and kept quiet."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.progress import counted

if TYPE_CHECKING:
    import torch

    from hydractl.manifest.header import Architecture


UNDECLARED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("deit", "dinov2", "dinov2_with_registers", "esm", "gte", "ijepa", "jina_embeddings_v3", "vit", "vit_msn"),
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
"""Options that a configuration or its model looks for though the configuration does not declare them, by `model_type`."""


def configured(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - untyped
    """Return the library's configuration of a `model_type`.

    Raises:
        UnsupportedModelError: If it does not take the options.
    """
    from transformers import AutoConfig

    plain = {k: v for k, v in options.items() if k not in {"transformers_version", "_name_or_path"}}
    try:
        with quiet():
            return AutoConfig.for_model(name, **plain)
    except Exception as error:  # whatever a configuration's validators raise, these options make no model
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedModelError(f"transformers cannot configure `{name}`: {reason}") from error


def checked(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - untyped
    """Return the configuration that a user's options make; the library itself keeps unknown ones without a word.

    Raises:
        UnsupportedModelError: If an option is unknown, or the configuration does not take its value.
    """
    config = configured(name, options)
    for part, given in (("", options), *((f"{t}.", options.get(f"{t}_config")) for t in ("text", "vision"))):
        own = getattr(config, f"{part[:-1]}_config") if part and isinstance(given, dict) else config
        known = {
            *type(own)().to_dict(),
            *own.attribute_map,
            "num_labels",
            *UNDECLARED.get(own.model_type, ()),
        }
        for key in given if isinstance(given, dict) else ():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise UnsupportedModelError(
                    f"`{name}` has no option `{part}{key}`",
                    hint=f"did you mean `{part}{near[0]}`?" if near else None,
                )
    return config


def blank(model_class: str, architecture: Architecture) -> Any:  # noqa: ANN401 - untyped
    """Return the library's model with parameters on the meta device and buffers as they are."""
    from transformers.initialization import no_init_weights

    from hydractl.families.dismantling import without_weights

    with without_weights(), no_init_weights():
        return _made(model_class, architecture)


def random_state(model_class: str, architecture: Architecture, seed: int) -> dict[str, torch.Tensor]:
    """Return random weights by the library's own rules, a function of the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(_made(model_class, architecture).state_dict())


def _made(model_class: str, architecture: Architecture) -> Any:  # noqa: ANN401 - untyped
    config = configured(class_named(model_class).config_class.model_type, architecture.config)
    try:
        with quiet():
            return class_named(model_class)(config)
    except Exception as error:  # as in `configured`, whatever a constructor raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedModelError(f"transformers cannot build `{architecture.name}`: {reason}") from error


def adopted_state(model_class: str, folder: Path, architecture: Architecture) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder under the names that they have in memory.

    Raises:
        CheckpointError: If some are missing, or of another shape than the configuration says.
    """
    config = configured(class_named(model_class).config_class.model_type, architecture.config)
    with quiet():
        library, report = class_named(model_class).from_pretrained(
            folder,
            config=config,
            dtype="auto",
            output_loading_info=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # or else its error does not say which
        )
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(
            f"{folder}: lacks {counted(len(missing), 'tensor')} of {model_class}, for example `{missing[0]}`",
            hint="is the classifier missing? hydractl needs a model that was trained to classify",
        )
    if other := sorted(report["mismatched_keys"]):
        name, found, expected = other[0]
        raise CheckpointError(
            f"{folder}: tensor `{name}` has shape {tuple(found)}, its config.json needs {tuple(expected)}",
            hint="is config.json of another model?",
        )
    return dict(library.state_dict())


def class_named(model_class: str) -> Any:  # noqa: ANN401 - untyped
    """Return a class of the library."""
    import transformers

    return getattr(transformers, model_class)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's progress bars and advice off the terminal; what matters comes back as errors of ours."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
