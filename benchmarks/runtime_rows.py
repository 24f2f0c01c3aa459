"""The models that `runtime.py` compares, of random weights: torch, timm and hydractl's sources are all that they need.

The single model, the deep ensemble and the members in turn are timm's own modules and timm's own forward pass (members with
sliced attention), so the comparison is with what a user would run without hydractl.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.auto.register import HEARD

HEARD.clear()  # timm is not told of hydractl's models, which would take more than torch and timm
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
"""The layout that `auto` is not, on a device."""
NARROW = {"img_size": 16, "patch_size": 16, "embed_dim": HEADS, "num_classes": 10}
"""Of the same layers and heads, which have next to nothing to compute."""


class Row(NamedTuple):
    """What is timed, and its multiply-accumulates for one sample."""

    model: Callable[[torch.Tensor], object]
    macs: float


def build_rows(dtype: torch.dtype, device: str, *, narrow: bool = False) -> dict[str, Row]:
    """Build every model that is compared, from one set of random weights: what is asked of a hydra first, the dearest last.

    Narrow, their time is that of the calls, and hydras are stacked, as they are where calls are what counts.
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
    """Draw masks of 8 heads a layer on average, uneven like a circuit's, that agree in the first layers."""
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
    """Slice a copy of timm's model in place of hydractl, so that timm's own forward pass runs it.

    It shares its tensors with the base, and its attentions with those of the same heads among `held`, to which it adds its own.
    """
    member = copy.deepcopy(base, {id(p): p for p in base.parameters()})
    for i, (block, kept) in enumerate(zip(member.blocks, keep, strict=True)):
        block.attn = held.setdefault((i, kept), sliced(block.attn, kept))
    return member


class Narrow(vision_transformer.Attention):  # type: ignore[misc,no-any-unimported]  # timm is untyped
    """Attention of timm before 1.0.23, whose own forward pass takes its heads to be as wide together as the stream."""

    def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
        """Return what timm's does (B, T, D) of x (B, T, D), in evaluation, without masks or norms."""
        parted = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(*parted.unbind(0))
        y: torch.Tensor = self.proj(z.transpose(1, 2).flatten(-2))
        return y


def sliced(attention: Any, kept: tuple[int, ...]) -> Any:  # noqa: ANN401 - as above
    """Return timm's attention with some of its heads."""
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
    """Fuse members that were pruned but not fine-tuned; equal tensors are the same objects, as `fuse` makes them."""
    held: dict[object, Any] = {}
    hydra = Hydra([wrap(timm_member(base, keep, held), keep) for keep in masks]).eval()
    hydra.lay_out(layout)
    return hydra


def macs(base: Any, masks: Sequence[Mask]) -> float:  # noqa: ANN401 - as above
    """Return the multiply-accumulates of one sample: layers that all members share once, MLPs and norms for each."""
    width, tokens = base.embed_dim, base.patch_embed.num_patches + 1
    head = width // HEADS
    total, apart = base.patch_embed.num_patches * 3 * 16 * 16 * width, False
    for layer in range(LAYERS):
        apart = apart or len({keep[layer] for keep in masks}) > 1
        for keep in masks if apart else masks[:1]:
            total += len(keep[layer]) * head * tokens * (4 * width + 2 * tokens) + 8 * tokens * width * width
    return float(total)
