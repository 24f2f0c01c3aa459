"""timm's `Eva`: EVA, EVA-02, DINOv3, the perception encoder and other vision transformers with rotary embeddings.

Covered: q, k and v fused or apart, no key bias, q/k norms, output gates, rotary embeddings that heads share or learn each for itself,
layer scale, pre- and post-norm blocks, any image size that the model is built for. Not covered, and refused by name:
sub-LN attention, queries that share keys, patches dropped in training.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

from hydractl.families.base import HeadTensor, Role, TowerLayout, projections_apart
from hydractl.families.timm.models import SUB_LN, Kind, create, family_of_kind, no_classifier

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from hydractl.families.timm.models import Kept
    from hydractl.families.tower import Model
    from hydractl.manifest import Architecture


def _claims(name: str) -> bool:
    from timm.models import is_model, is_model_in_modules

    return bool(is_model(name) and is_model_in_modules(name, "eva"))


def refusal(library: Any) -> str | None:  # noqa: ANN401 - timm is untyped
    """Return why heads cannot be cut out of a timm model, or None if they can."""
    from timm.models.eva import Eva

    if type(library) is not Eva:
        return f"class {type(library).__name__}: not timm's Eva"
    if library.patch_drop is not None:
        return "it drops patches in training, and their angles with them, for each sample on its own"
    for block in library.blocks:
        if reason := _refusal_of(block):
            return reason
    return no_classifier(library) or _misfit(library)


def _refusal_of(block: Any) -> str | None:  # noqa: ANN401 - as above
    from timm.layers import AttentionRope
    from timm.models.eva import EvaAttention, EvaBlock, EvaBlockPostNorm
    from torch import nn

    attention = block.attn
    if type(block) not in {EvaBlock, EvaBlockPostNorm}:
        return f"{type(block).__name__}: an unknown block"
    if type(attention) not in {EvaAttention, AttentionRope}:
        return f"{type(attention).__name__}: an unknown attention"
    if not isinstance(attention.norm, nn.Identity):
        return SUB_LN
    if getattr(attention, "num_kv_heads", attention.num_heads) != attention.num_heads:
        return "grouped-query attention: several query heads share one key and value head"
    return None


def _misfit(library: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why the library's own forward pass would fail, where its constructor does not notice."""
    from hydractl.families.timm.eva_modules import angles

    attention = library.blocks[0].attn
    if attention.num_heads * attention.head_dim != library.embed_dim:
        return f"its width {library.embed_dim} is no multiple of its {attention.num_heads} heads"
    if library.rope is not None and angles(library).shape[-1] != 2 * attention.head_dim:
        return f"its rotary embedding does not fit heads of width {attention.head_dim}"
    return None


def _wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - as above
    from hydractl.families.timm.eva_modules import wrap

    return wrap(library, kept)


def _adopt(folder: Path, architecture: Architecture) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder that has the names of those who trained the model, under timm's names."""
    from timm.models.eva import checkpoint_filter_fn

    from hydractl.checkpoint import Checkpoint
    from hydractl.source import locate

    files = locate(str(folder)).weights
    stored = Checkpoint.open(files[0], shards=files).tensors()
    library = create(architecture.name, architecture.config)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it leaves out
            found: dict[str, torch.Tensor] = checkpoint_filter_fn(dict(stored), library)
    except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError):
        return dict(stored)  # none of timm's sources; the names that do not fit are reported as they are
    return {name: tensor.contiguous() for name, tensor in found.items()}


TIMM_EVA = family_of_kind(
    Kind(
        name="timm-eva",
        covers="`Eva`: EVA, EVA-02, DINOv3, perception encoder, ViTs with rotary embeddings",
        refuses="sub-LN: one norm over all heads; grouped queries: heads share keys; patches dropped in training",
        layout=TowerLayout(
            block="blocks.{layer}.",
            heads=(
                HeadTensor(name="attn.qkv.weight", axis=0, copies=3, role=Role.INPUT),
                HeadTensor(name="attn.qkv.bias", axis=0, copies=3, role=Role.BIAS),
                *projections_apart("attn.{part}_proj", "qkv"),
                HeadTensor(name="attn.q_bias", axis=0, copies=1, role=Role.BIAS),
                HeadTensor(name="attn.v_bias", axis=0, copies=1, role=Role.BIAS),
                HeadTensor(name="attn.gate.weight", axis=0, copies=1, role=Role.GATE),
                HeadTensor(name="attn.gate.bias", axis=0, copies=1, role=Role.BIAS),
                HeadTensor(name="attn.proj.weight", axis=1, copies=1, role=Role.OUTPUT),
            ),
            attention=("attn.",),
            mlp=("mlp.",),
            readout=("norm.", "fc_norm.", "attn_pool."),
            head=("head.",),
        ),
        claims=_claims,
        refusal=refusal,
        wrap=_wrap,
        adopt=_adopt,
        on_disk=(  # OpenCLIP's, the perception encoder's and Sapiens' own names
            (r"^visual\.(?:trunk\.)?", ""),
            (r"^transformer\.resblocks\.", "blocks."),
            (r"^ln_post\.", "norm."),
            (r"\.ffn\.", ".mlp."),
        ),
    )
)
