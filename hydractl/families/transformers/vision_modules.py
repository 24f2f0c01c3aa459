"""The tower of transformers' image classifiers, out of the library's own modules."""

from __future__ import annotations

from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydractl.families.attention import Attention, HeadGroup, HeadParts
from hydractl.families.dismantling import part
from hydractl.families.tower import Block, Model, Stream, Tower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.transformers.models import Kept
    from hydractl.families.transformers.vision_layouts import Names


class LayerScale(nn.Module):
    """A factor for each feature."""

    def __init__(self, gamma: nn.Parameter) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, T, D) scaled."""
        return x * self.gamma


class VisionBlock(Block):
    """Norm, attention, scale, residual; norm, MLP, scale, residual."""

    def __init__(self, layer: Any, kept: tuple[int, ...], names: Names) -> None:  # noqa: ANN401 - transformers is untyped
        super().__init__()
        drop = getattr(layer, "dropout", nn.Identity())
        self.attn = Attention([head_group(getattr(layer, names.attention), kept, names, drop)])
        self.norm1, self.norm2 = (getattr(layer, name) for name in names.norms)
        self.scale1, self.scale2 = (_scale(layer, name) for name in names.scales or ("", ""))
        self.mlp: nn.Module = layer.mlp
        self.drop: nn.Module = drop
        self.drop_path: nn.Module = getattr(layer, "drop_path", nn.Identity())

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(self.norm1(stream.tokens), queries)

    def join(self, stream: Stream, y: torch.Tensor) -> Stream:
        """See `Block.join`."""
        x = stream.tokens + self.drop_path(self.scale1(y))
        return stream.with_tokens(x + self.drop_path(self.scale2(self.drop(self.mlp(self.norm2(x))))))


class VisionEmbed(nn.Module):
    """Patches, prefix tokens, positions; CLIP norms them."""

    def __init__(self, host: nn.Module, names: Names) -> None:
        super().__init__()
        self.host = host
        self.model = names.model

    def forward(self, images: torch.Tensor) -> Stream:
        """Return the stream of images (B, C, height, width)."""
        model: Any = getattr(self.host, self.model)
        tokens = model.embeddings(images)
        return Stream(model.pre_layrnorm(tokens) if hasattr(model, "pre_layrnorm") else tokens)


class Readout(nn.Module):
    """What stands after the blocks.

    Attributes:
        reads: See `Tower`.
        unread: Prefixes of the model's tensors that no classifier's answer depends on.
    """

    reads: slice | None = None
    unread: tuple[str, ...] = ()

    def __init__(self, host: nn.Module, names: Names) -> None:
        super().__init__()
        self.host = host
        self.model = names.model

    def pooled(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - transformers is untyped
        """Return what is classified of tokens (N, T, D)."""
        raise NotImplementedError

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return logits (N, C)."""
        host: Any = self.host
        logits: torch.Tensor = host.classifier(self.pooled(getattr(host, self.model), stream.tokens))
        return logits


class ClassToken(Readout):
    """The class token, normed."""

    reads = slice(0, 1)

    def pooled(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
        """Return (N, D)."""
        found: torch.Tensor = model.layernorm(tokens[:, 0])
        return found


class TwoTokens(Readout):
    """Class and distillation token, with a classifier each; their mean is the answer."""

    reads = slice(0, 2)

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return logits (N, C)."""
        host: Any = self.host
        by_class, by_teacher = getattr(host, self.model).layernorm(stream.tokens[:, :2]).unbind(dim=1)
        logits: torch.Tensor = (host.cls_classifier(by_class) + host.distillation_classifier(by_teacher)) / 2
        return logits


class Pooler(Readout):
    """The library's own pooler: the mean of the patches, normed, or the normed class token."""

    unread = ("embeddings.mask_token",)

    def __init__(self, host: Any, names: Names) -> None:  # noqa: ANN401 - as above
        super().__init__(host, names)
        if not host.config.use_mean_pooling:
            self.reads = slice(0, 1)

    def pooled(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
        """Return (N, D)."""
        found: torch.Tensor = model.pooler(model.layernorm(tokens))
        return found


class ClassTokenAndMean(Readout):
    """The class token beside the mean of the patches, normed; registers count for nothing."""

    unread = ("embeddings.mask_token",)

    def __init__(self, host: Any, names: Names) -> None:  # noqa: ANN401 - as above
        super().__init__(host, names)
        self.prefix = 1 + getattr(host.config, "num_register_tokens", 0)

    def pooled(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
        """Return (N, 2 D)."""
        normed = model.layernorm(tokens)
        return torch.cat((normed[:, 0], normed[:, self.prefix :].mean(dim=1)), dim=1)


class NormedMean(Readout):
    """The mean of all tokens, normed: SigLIP's, which has patches only and leaves its own pooling out."""

    unread = ("head.",)

    def pooled(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
        """Return (N, D)."""
        found: torch.Tensor = model.post_layernorm(tokens).mean(dim=1)
        return found


class PatchMean(Readout):
    """The mean of the patches: CLIP's, which leaves its norm out."""

    unread = ("post_layernorm.",)

    def pooled(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
        """Return (N, D)."""
        del model
        return tokens[:, 1:].mean(dim=1)


READOUTS: Mapping[str, type[Readout]] = MappingProxyType(
    {
        "ViTForImageClassification": ClassToken,
        "DeiTForImageClassification": ClassToken,
        "DeiTForImageClassificationWithTeacher": TwoTokens,
        "BeitForImageClassification": Pooler,
        "Dinov2ForImageClassification": ClassTokenAndMean,
        "Dinov2WithRegistersForImageClassification": ClassTokenAndMean,
        "SiglipForImageClassification": NormedMean,
        "CLIPForImageClassification": PatchMean,
    }
)


def wrap_vision(library: Any, kept: Kept, names: Names) -> Model:  # noqa: ANN401 - transformers is untyped
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    kind = READOUTS[type(library).__name__]
    _set_aside(library, tuple(f"{names.model}.{name}" for name in kind.unread))
    after = tuple(name.removesuffix(".") for name in (*names.readout, *names.head))
    blocks = f"{names.model}.{names.layers}."
    readout = kind(part(library, lambda n: n.startswith(after)), names)
    return Model(
        {
            "vision": Tower(
                embed=VisionEmbed(part(library, lambda n: not n.startswith((blocks, *after))), names),
                blocks=[
                    VisionBlock(layer, heads, names)
                    for layer, heads in zip(attrgetter(blocks.removesuffix("."))(library), kept, strict=True)
                ],
                readout=readout,
                reads=readout.reads,
                names=names.tensors(),
            )
        }
    )


def head_group(attention: Any, kept: tuple[int, ...], names: Names, drop: nn.Module) -> HeadGroup:  # noqa: ANN401
    """Return the kept heads of an attention whose tensors are already cut; `drop` follows it."""
    dropout = attention.attention_dropout if hasattr(attention, "attention_dropout") else attention.dropout
    return HeadGroup(
        HeadParts(
            kept=kept,
            head_dim=attention.head_dim,
            scale=attention.head_dim**-0.5,
            q=attention.q_proj,
            k=attention.k_proj,
            v=attention.v_proj,
            proj=getattr(attention, names.output),
            proj_drop=drop,
            dropout=dropout,
        )
    )


def _scale(layer: Any, name: str) -> nn.Module:  # noqa: ANN401 - as above
    gamma = attrgetter(name)(layer) if name else None
    return LayerScale(gamma) if isinstance(gamma, nn.Parameter) else nn.Identity()


def _set_aside(library: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Keep parameters that nothing depends on as buffers: they have no gradient, and training must not move them."""
    for path, module in library.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if f"{path}.{name}".startswith(prefixes):
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())
