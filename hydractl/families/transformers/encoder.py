"""Names of the parts of transformers' encoders, as data. Special behaviour is code in `modules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hydractl.families.head_slicing import HeadTensor, TensorRole, TowerLayout, projections_apart
from hydractl.manifest.head_mask import TowerHeads

TABLE = "relative_position_bias_table"
POOLER = "pooler"
"""Name of the module that selects the first token or averages patches."""


def heads_of(config: Any) -> TowerHeads:  # noqa: ANN401 - transformers is untyped
    """Return the layers, query heads, key heads and head width of a configuration."""
    key_heads = getattr(config, "num_key_value_heads", None)
    return TowerHeads(
        layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        key_heads=None if key_heads == config.num_attention_heads else key_heads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderNames:
    """Names of the parts of an encoder, a stack of pre-norm or post-norm blocks.

    Names are dotted paths. Names of block parts are relative to the block.

    Attributes:
        model: The module with the encoder.
        layers: The list of blocks, relative to `model`.
        embed: Modules before the blocks, applied in order, relative to `model`. Missing modules are skipped.
        rotary: The module of rotary embeddings, relative to `model`; empty without rotary embeddings.
        beside: Further modules of the embedding, relative to `model`.
        unread: Modules without effect on the outputs, relative to `model`. They count as embedding.
        final: Modules after the blocks, applied in order, relative to `model`.
        projection: Modules after `final`, applied in order, outside of `model`.
        head: The classifier, outside of `model`.
        qkv: Projections of queries, keys and values, or one fused projection.
        head_norms: Norms of queries and keys per head; empty without norms.
        further: Other projections with a head axis: (attribute of the head group, name in the library).
        output: Output projection of the attention.
        bias: Bias of relative positions, with a column per head; empty without a bias.
        shared_bias: Bias of relative positions shared by all layers, relative to `model`; empty without a
            shared bias.
        post_norm: Whether norms follow the residuals. Otherwise norms precede attention and MLP.
        norms: Norms of attention and MLP.
        mlp: Modules of the MLP, applied in order.
        scales: Layer scales after attention and MLP, or None.
        drops: Dropout after output projection and MLP, or None.
        drop_path: Whether blocks apply `drop_path` before both residuals.
        attention_dropout: Configuration option with the dropout probability of attention weights.
        outside: Parts of blocks stored elsewhere in the library: (attribute of the block, path in `model`).
    """

    model: str
    layers: str
    embed: tuple[str, ...] = ("embeddings",)
    rotary: str = ""
    beside: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    projection: tuple[str, ...] = ()
    head: tuple[str, ...] = ("classifier",)
    qkv: tuple[str, ...]
    head_norms: tuple[str, ...] = ()
    further: tuple[tuple[str, str], ...] = ()
    output: str
    bias: str = ""
    shared_bias: str = ""
    post_norm: bool = False
    norms: tuple[str, str]
    mlp: tuple[str, ...] = ("mlp",)
    scales: tuple[str, str] | None = None
    drops: tuple[str, str] | None = None
    drop_path: bool = False
    attention_dropout: str = "attention_probs_dropout_prob"
    outside: tuple[tuple[str, str], ...] = ()

    @property
    def blocks(self) -> str:
        """Path of the list of blocks."""
        return f"{self.model}.{self.layers}"

    @property
    def before(self) -> tuple[str, ...]:
        """Prefixes of the embedding's tensors."""
        return tuple(
            f"{self.model}.{name}."
            for name in (*self.embed, self.rotary, self.shared_bias, *self.beside, *self.unread)
            if name
        )

    @property
    def after(self) -> tuple[str, ...]:
        """Prefixes of the layers between blocks and classifier."""
        return tuple(
            f"{name}." for name in (*(f"{self.model}.{name}" for name in self.final), *self.projection)
        )

    @property
    def classifier(self) -> tuple[str, ...]:
        """Prefixes of the classifier."""
        return tuple(f"{name}." for name in self.head)

    def layout(self) -> TowerLayout:
        """Return the layout of the tower."""
        along = (*self.qkv, *(theirs for _, theirs in self.further))
        table = HeadTensor(
            name=f"{self.bias}.{TABLE}", axis=1, copies=1, role=TensorRole.BIAS, one_entry=True
        )
        return TowerLayout(
            block=f"{self.blocks}.{{layer}}.",
            heads=(
                *projections_apart(
                    "{part}", along, copies=3 if len(self.qkv) == 1 else 1, shared=self.qkv[1:]
                ),
                *((table,) if self.bias else ()),
                HeadTensor(name=f"{self.output}.weight", axis=1, copies=1, role=TensorRole.OUTPUT),
            ),
            attention=tuple(f"{name}." for name in (*along, self.output, self.bias) if name),
            mlp=tuple(f"{name}." for name in self.mlp),
            embed=self.before,
            readout=self.after,
            last_norm=() if self.post_norm else self.after[:1],
            head=self.classifier,
            pooler=tuple(
                f"{name}."
                for name in (*self.projection, f"{self.model}.{POOLER}" if POOLER in self.final else "")
                if name
            ),
        )

    def tensors(self) -> Mapping[str, str]:
        """Return the library's prefix, with `{layer}`, for each prefix of a tensor name in a `Block`."""
        group, block = "attn.members.0.", f"{self.blocks}.{{layer}}."
        inputs = zip(("qkv",) if len(self.qkv) == 1 else "qkv", self.qkv, strict=True)
        modules = {
            **{f"{group}{ours}.": theirs for ours, theirs in (*inputs, *self.further)},
            **{f"{group}{x}_norm.": theirs for x, theirs in zip("qk", self.head_norms, strict=False)},
            f"{group}proj.": self.output,
            **{f"norm{i}.": name for i, name in enumerate(self.norms, 1)},
            **(
                {f"mlp.{i}.": name for i, name in enumerate(self.mlp)}
                if self.mlp[1:]
                else {"mlp.": self.mlp[0]}
            ),
        }
        return {
            **{ours: f"{block}{theirs}." for ours, theirs in modules.items()},
            **{f"scale{i}.gamma": block + name for i, name in enumerate(self.scales or (), 1)},
            f"{group}bias.table": f"{block}{self.bias}.{TABLE}",
            **{f"{ours}.host.": f"{self.model}.{theirs}." for ours, theirs in self.outside},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoderNames(EncoderNames):
    """Names of the parts of a text encoder or decoder.

    Attributes:
        extra_inputs: Inputs of the embedding besides the tokens.
        pooling: `own`: the modules after the encoder select the first token. `first`: they receive the first
            token. `last`: the last token that is neither masked nor the padding token. `mean`: the mean over
            tokens. `none`: a label for every token. `option`: the option `classifier_pooling` decides: `cls`
            or `bos` (first token), `mean`, or `late` (mean of the logits of all tokens).
        on_mean: Modules of a classifier with mean pooling, applied in order: dropout and linear layer.
        on_tokens: Modules of the library's token classifier, applied in order.
        causal: Whether a token attends only to itself and earlier tokens, at most `sliding_window` back in
            layers with a window.
        code: Key of special behaviour in `modules.CODE`; empty for none.
    """

    extra_inputs: tuple[str, ...] = ()
    causal: bool = False
    pooling: Literal["own", "first", "last", "option", "mean", "none"] = "own"
    on_mean: tuple[str, ...] = ("dropout", "classifier")
    on_tokens: tuple[str, ...] = ("dropout", "classifier")
    code: Literal[
        "", "shared bias", "disentangled", "rotated in single precision", "scaled before", "pairs"
    ] = ""

    def averaged(self) -> TextEncoderNames:
        """Return the names of the encoder with mean pooling instead of the pooler."""
        return self._without_pooler("mean", self.on_mean)

    def by_token(self) -> TextEncoderNames:
        """Return the names of the encoder with a classifier of tokens."""
        return self._without_pooler("none", self.on_tokens)

    def _without_pooler(self, pooling: Literal["mean", "none"], after: tuple[str, ...]) -> TextEncoderNames:
        final = tuple(name for name in self.final if name != POOLER)
        return replace(self, final=final, projection=after[:-1], head=after[-1:], pooling=pooling)

    @property
    def spared(self) -> tuple[str, ...]:
        """Paths of the modules that a classifier with mean pooling does not need."""
        *drop, _ = self.on_mean
        pooler = tuple(f"{self.model}.{name}" for name in self.final if name == POOLER)
        beside = tuple(name for name in self.projection if name not in drop)
        within = tuple(f"{name}.dense" for name in self.head if name not in self.on_mean)
        return (*pooler, *beside, *within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A tower of a model that compares embeddings of images and texts.

    Attributes:
        encoder: Names of the parts. The modules after the blocks produce the embedding.
        pick: Token for the embedding: the first, the last (including padding), the end of the text, or all
            tokens.
        causal: Whether a token attends only to itself and earlier tokens.
        extra_inputs: Inputs of the text embedding besides the tokens.
    """

    encoder: EncoderNames
    pick: Literal["first", "last", "end", "all"]
    causal: bool = False
    extra_inputs: tuple[str, ...] = ()
