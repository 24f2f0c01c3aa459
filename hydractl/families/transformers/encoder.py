"""An encoder of transformers as a row of data: what the library calls its parts. What is code is in `encoder_modules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hydractl.families.head_slicing import HeadTensor, TensorRole, TowerLayout, projections_apart
from hydractl.manifest.head_mask import TowerHeads

TABLE = "relative_position_bias_table"
POOLER = "pooler"
"""Attribute names of the module that selects the first token or averages patches."""


def heads_of(config: Any) -> TowerHeads:  # noqa: ANN401 - transformers is untyped
    """Return how many heads a configuration has, and how wide they are."""
    key_heads = getattr(config, "num_key_value_heads", None)
    return TowerHeads(
        layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        key_heads=None if key_heads == config.num_attention_heads else key_heads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderNames:
    """A stack of pre-norm or post-norm blocks; names are dotted paths, those of blocks' parts relative to a block.

    Attributes:
        model: What holds the encoder.
        layers: The list of blocks, relative to `model`.
        embed: Modules before the blocks, run in turn, relative to `model`; one that a model lacks is left out.
        rotary: What makes the angles of rotary embeddings, relative to `model`; empty where there are none.
        beside: What else belongs to the embedding, relative to `model`.
        unread: What no answer depends on, relative to `model`; counted to the embedding.
        final: What stands after the blocks, run in turn, relative to `model`.
        projection: What follows that, run in turn, outside of `model`.
        head: The classifier, outside of `model`.
        qkv: Projections of queries, keys and values; or the one that makes all three.
        head_norms: Norms of a head's query and key, if there are any.
        further: Other projections along the heads: what the group of heads calls them, and the library.
        output: The attention's output projection.
        bias: The attention's bias of relative positions, a column a head; empty where there is none.
        shared_bias: The one that all layers share, relative to `model`.
        post_norm: Whether norms follow the residuals; else they stand before what the residuals go around.
        norms: The attention's norm and the MLP's.
        mlp: Modules of the MLP, run in turn.
        scales: The layer scales after the two, if there are any.
        drops: Dropout after the output projection and after the MLP, if there is any.
        drop_path: Whether blocks have a `drop_path`, run on both before the residual.
        attention_dropout: The option that tells the probability of dropout of attention weights.
        outside: Parts of blocks that the library keeps elsewhere: what a block calls them, and their path in `model`.
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
        """The path of the list of blocks."""
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
        """Prefixes of what lies between blocks and classifier."""
        return tuple(
            f"{name}." for name in (*(f"{self.model}.{name}" for name in self.final), *self.projection)
        )

    @property
    def classifier(self) -> tuple[str, ...]:
        """Prefixes of the classifier."""
        return tuple(f"{name}." for name in self.head)

    def layout(self) -> TowerLayout:
        """Return where heads and MLPs lie."""
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
        """Return the library's prefix, with `{layer}`, for each prefix of a tensor within a block of ours."""
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
    """An encoder of texts.

    Attributes:
        extra_inputs: What the embedding takes beside the tokens.
        pooling: What follows the encoder picks the first token by itself (`own`), or gets it alone (`first`), or gets what
            the option `classifier_pooling` says (`option`): `cls` or `bos` the first token, `mean` the mean of all, `late`
            each token, of whose logits the mean is the answer. The `last` is found by the mask, as the last that is not the
            configuration's padding token. With `none` every token is answered.
        on_mean: What a classifier of the mean of all tokens runs in turn: dropout and the linear layer.
        on_tokens: What the library's class that classifies every token runs in turn.
        causal: Whether a token looks only at itself and those before it, no further back than `sliding_window` in layers that
            have one.
        code: What of it is code, in `text_modules`; empty for nothing.
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
        """Return the encoder whose classifier reads the mean of all tokens, whatever else would pool them left out."""
        return self._without_pooler("mean", self.on_mean)

    def by_token(self) -> TextEncoderNames:
        """Return the encoder whose classifier reads every token."""
        return self._without_pooler("none", self.on_tokens)

    def _without_pooler(self, pooling: Literal["mean", "none"], after: tuple[str, ...]) -> TextEncoderNames:
        final = tuple(name for name in self.final if name != POOLER)
        return replace(self, final=final, projection=after[:-1], head=after[-1:], pooling=pooling)

    @property
    def spared(self) -> tuple[str, ...]:
        """Paths of the modules that a classifier of the mean does without."""
        *drop, _ = self.on_mean
        pooler = tuple(f"{self.model}.{name}" for name in self.final if name == POOLER)
        beside = tuple(name for name in self.projection if name not in drop)
        within = tuple(f"{name}.dense" for name in self.head if name not in self.on_mean)
        return (*pooler, *beside, *within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A tower of a model that compares embeddings of images with those of texts.

    Attributes:
        encoder: What its parts are called. What stands after its blocks is run in turn and makes the embedding.
        pick: Of which tokens: the first, the last (padding or not), the one that ends a text, or all.
        causal: Whether a token looks only at itself and those before it.
        extra_inputs: What the embedding of texts takes beside the tokens.
    """

    encoder: EncoderNames
    pick: Literal["first", "last", "end", "all"]
    causal: bool = False
    extra_inputs: tuple[str, ...] = ()
