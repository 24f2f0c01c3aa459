"""Models of `runtime.py` with random weights. Needs only torch, timm and the source tree of hydractl.

The single model, the deep ensemble and the members in turn use timm's modules and timm's forward pass
(members with sliced attention), so the comparison is with code that runs without hydractl.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.auto.register import WATCHED_MODULES

# Prevents registration of hydractl's models in timm, which would import more than torch and timm.
WATCHED_MODULES.clear()
import timm
import torch
from timm.models import vision_transformer
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.families.timm.modules import wrap
from hydractl.fusion.hydra import Hydra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    Mask = Sequence[tuple[int, ...]]

ARCH, LAYERS, HEADS, KEPT, MEMBERS = "vit_base_patch16_224", 12, 12, 8, 3
SINGLE, ENSEMBLE, IN_TURN = "single", f"deep ensemble x{MEMBERS}", "members in turn"
TIMM = timm.__version__
TRUNKS = {"hydra": 0, "hydra, trunk of 8": 8, "hydra, trunk of 10": 10}
OTHER = {"cpu": "stacked", "cuda": "in turn"}
"""Layout that `auto` does not choose on a device."""
NARROW = {"img_size": 16, "patch_size": 16, "embed_dim": HEADS, "num_classes": 10}
"""Options of a model with the same layers and heads and negligible computation."""


class Row(NamedTuple):
    """A model with its MACs per sample."""

    model: Callable[[torch.Tensor], object]
    macs: float


def build_rows(dtype: torch.dtype, device: str, *, narrow: bool = False) -> dict[str, Row]:
    """Build all models of the comparison from one set of random weights, hydras before the slowest rows.

    Args:
        dtype: Data type of the weights.
        device: Device of the weights.
        narrow: Build narrow models with stacked hydras, whose time is the launch time of kernels.

    Returns:
        Rows by name.
    """
    base = timm.create_model(ARCH, **(NARROW if narrow else {})).eval().to(device, dtype)
    layout, other = ("stacked", "in turn") if narrow else ("auto", OTHER[device])
    masks = random_masks(0)
    others = [copy.deepcopy(base) for _ in range(MEMBERS)]
    members = [timm_member(base, keep, {}) for keep in masks]
    one = macs(base, [[tuple(range(HEADS))] * LAYERS])
    rows = {SINGLE: Row(base, one)}
    for name, trunk in TRUNKS.items():
        apart = random_masks(trunk)
        rows[name] = Row(hydra_of(base, apart, layout), macs(base, apart))
    rows[f"hydra, {other}"] = Row(hydra_of(base, masks, other), macs(base, masks))
    rows[IN_TURN] = Row(
        lambda x: torch.stack([m(x).softmax(-1) for m in members]).mean(0),
        sum(macs(base, [keep]) for keep in masks),
    )
    rows[ENSEMBLE] = Row(lambda x: torch.stack([m(x).softmax(-1) for m in others]).mean(0), MEMBERS * one)
    return rows


def random_masks(trunk: int) -> list[Mask]:
    """Draw masks with 7 and 9 heads in alternating layers, uneven like a circuit's.

    Args:
        trunk: Number of leading layers with equal masks for all members.
    """
    masks: list[Mask] = []
    for member in range(MEMBERS):
        layers = []
        for layer in range(LAYERS):
            source = random.Random(f"{layer}" if layer < trunk else f"{layer}-{member}")  # noqa: S311 - reproducible
            kept = KEPT + (1 if layer % 2 else -1)
            layers.append(tuple(sorted(source.sample(range(HEADS), kept))))
        masks.append(tuple(layers))
    return masks


def timm_member(base: Any, keep: Mask, held: dict[object, Any]) -> Any:  # noqa: ANN401 - timm is untyped
    """Slice heads out of a copy of timm's model, so that timm's own forward pass runs the member.

    Args:
        base: Model whose tensors are shared.
        keep: Kept heads of each layer.
        held: Attention modules by (layer, kept heads), shared between members; new modules are added.
    """
    member = copy.deepcopy(base, {id(p): p for p in base.parameters()})
    for i, (block, kept) in enumerate(zip(member.blocks, keep, strict=True)):
        block.attn = held.setdefault((i, kept), sliced(block.attn, kept))
    return member


class Narrow(vision_transformer.Attention):  # type: ignore[misc,no-any-unimported]  # timm is untyped
    """Attention for timm before 1.0.23, whose forward pass requires heads as wide in total as the stream."""

    def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
        """Return timm's attention output in evaluation mode, without masks or norms. Shape (B, T, D)."""
        parted = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(*parted.unbind(0))
        y: torch.Tensor = self.proj(z.transpose(1, 2).flatten(-2))
        return y


def sliced(attention: Any, kept: tuple[int, ...]) -> Any:  # noqa: ANN401 - as above
    """Reduce timm's attention module to the kept heads, in place."""
    width, heads = attention.head_dim, attention.num_heads
    rows = torch.tensor([h * width + k for h in kept for k in range(width)])
    qkv = torch.cat([rows + i * heads * width for i in range(3)])
    for layer, name, index in (
        ("qkv", "weight", qkv),
        ("qkv", "bias", qkv),
        ("proj", "weight", (slice(None), rows)),
    ):
        module = getattr(attention, layer)
        setattr(module, name, torch.nn.Parameter(getattr(module, name).detach()[index].contiguous()))
    attention.num_heads = len(kept)
    if hasattr(attention, "attn_dim"):
        attention.attn_dim = len(rows)
    else:
        attention.__class__ = Narrow
    return attention


def hydra_of(base: nn.Module, masks: Sequence[Mask], layout: Any) -> Hydra:  # noqa: ANN401 - one of three words
    """Fuse pruned members without fine-tuning. Equal tensors are shared objects, as after `fuse`."""
    held: dict[object, Any] = {}
    hydra = Hydra([wrap(timm_member(base, keep, held), keep) for keep in masks]).eval()
    hydra.lay_out(layout)
    return hydra


def macs(base: Any, masks: Sequence[Mask]) -> float:  # noqa: ANN401 - as above
    """Return the MACs of one sample. Leading layers with equal masks count once, others per member."""
    width, tokens = base.embed_dim, base.patch_embed.num_patches + 1
    head = width // HEADS
    total, apart = base.patch_embed.num_patches * 3 * 16 * 16 * width, False
    for layer in range(LAYERS):
        apart = apart or len({keep[layer] for keep in masks}) > 1
        for keep in masks if apart else masks[:1]:
            total += len(keep[layer]) * head * tokens * (4 * width + 2 * tokens) + 8 * tokens * width * width
    return float(total)
