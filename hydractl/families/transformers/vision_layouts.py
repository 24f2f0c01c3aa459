"""Where transformers' image classifiers keep what a block is made of."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.families.base import HeadTensor, Role, TowerLayout, projections_apart

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the library calls the parts of its models, which are all pre-norm and have q, k and v apart.

    Attributes:
        model: The attribute that holds all but the classifier.
        layers: The blocks' prefix, relative to `model`'s.
        attention: A block's attention; its projections of queries, keys and values are `q_proj`, `k_proj`, `v_proj`.
        output: The attention's output projection.
        norms: The norms before the attention and before the MLP.
        scales: The layer scales after the two, if there are any.
        final: The norm after the blocks.
        classifiers: What follows it.
        on_disk: See `Family`.
    """

    model: str
    layers: str = "layers"
    attention: str = "attention"
    output: str = "o_proj"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    scales: tuple[str, str] | None = None
    final: tuple[str, ...] = ("layernorm",)
    classifiers: tuple[str, ...] = ("classifier",)
    on_disk: tuple[tuple[str, str], ...] = ()

    @property
    def block(self) -> str:
        """The prefix of a block's tensors, with `{layer}`."""
        return f"{self.model}.{self.layers}.{{layer}}."

    @property
    def readout(self) -> tuple[str, ...]:
        """Prefixes of what lies between blocks and classifier."""
        return tuple(f"{self.model}.{name}." for name in self.final)

    @property
    def head(self) -> tuple[str, ...]:
        """Prefixes of the classifier."""
        return tuple(f"{name}." for name in self.classifiers)

    def layout(self) -> TowerLayout:
        """Return where heads and MLPs lie."""
        return TowerLayout(
            block=self.block,
            heads=(
                *projections_apart(f"{self.attention}.{{part}}_proj", "qkv"),
                HeadTensor(name=f"{self.attention}.{self.output}.weight", axis=1, copies=1, role=Role.OUTPUT),
            ),
            attention=(f"{self.attention}.",),
            mlp=("mlp.",),
            readout=self.readout,
            head=self.head,
        )

    def tensors(self) -> Mapping[str, str]:
        """Return the library's prefix, with `{layer}`, for each prefix of a tensor within a block of ours."""
        named = {f"attn.members.0.{x}.": f"{self.attention}.{x}_proj." for x in "qkv"} | {
            "attn.members.0.proj.": f"{self.attention}.{self.output}.",
            "mlp.": "mlp.",
        }
        for i, name in enumerate(self.norms, 1):
            named[f"norm{i}."] = f"{name}."
        for i, name in enumerate(self.scales or (), 1):
            named[f"scale{i}.gamma"] = name
        return {ours: self.block + theirs for ours, theirs in named.items()}


_ATTENTION_ON_DISK = (
    (r"\.attention\.attention\.(q|k|v)(?:uery|ey|alue)\.", r".attention.\1_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
)
_BLOCK_ON_DISK = (
    (r"\.encoder\.layer\.", ".layers."),
    *_ATTENTION_ON_DISK,
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)
_SCALED = ("layer_scale1.lambda1", "layer_scale2.lambda1")
NAMES: Mapping[str, Names] = MappingProxyType(
    {
        "vit": Names(model="vit", on_disk=_BLOCK_ON_DISK),
        "deit": Names(
            model="deit",
            classifiers=("classifier", "cls_classifier", "distillation_classifier"),
            on_disk=_BLOCK_ON_DISK,
        ),
        "beit": Names(
            model="beit",
            scales=("lambda_1", "lambda_2"),
            final=("layernorm", "pooler"),
            on_disk=_BLOCK_ON_DISK,
        ),
        **{
            name: Names(
                model=name,
                layers="encoder.layer",
                norms=("norm1", "norm2"),
                scales=_SCALED,
                on_disk=_ATTENTION_ON_DISK,
            )
            for name in ("dinov2", "dinov2_with_registers")
        },
        "tower": Names(
            model="vision_model",
            layers="encoder.layers",
            attention="self_attn",
            output="out_proj",
            norms=("layer_norm1", "layer_norm2"),
            final=("post_layernorm", "head"),
        ),
    }
)
"""For each family; `tower` is the vision tower of a CLIP or SigLIP."""
