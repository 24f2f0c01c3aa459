"""Slow, literal transcriptions of the methods, on the library's own models: what ours must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F  # noqa: N812 - the field's own name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn


def candidates(library: nn.Module, gone: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the heads of a timm model that are still there."""
    for layer, block in enumerate(library.blocks):
        for head in range(block.attn.num_heads):
            if (layer, head) not in gone:
                yield layer, head


def objective(
    library: nn.Module, name: str, data: tuple[torch.Tensor, torch.Tensor, torch.Tensor], *, batch: int = 16
) -> float:
    """Evaluate acc, ood or avg of a model with full forward passes."""
    images, labels, others = data
    with torch.inference_mode():
        inside, outside = (
            torch.cat([library(x) for x in part.split(batch)]).double().softmax(-1)
            for part in (images, others)
        )
    accuracy = (inside.argmax(-1) == labels).double().mean().item()
    truth = [0] * len(inside) + [1] * len(outside)
    auroc = roc_auc_score(truth, torch.cat([-inside.max(-1).values, -outside.max(-1).values]).numpy())
    return {"acc": accuracy, "ood": auroc, "avg": (accuracy + auroc) / 2}[name]


def without(
    library: nn.Module,
    layer: int,
    head: int,
    name: str,
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    **options: int,
) -> float:
    """Zero a head's slice of W_O, evaluate, restore."""
    attention = library.blocks[layer].attn
    columns = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    with torch.no_grad():
        kept = attention.proj.weight[:, columns].clone()
        attention.proj.weight[:, columns] = 0
        value = objective(library, name, data, **options)
        attention.proj.weight[:, columns] = kept
    return value


def remove(library: nn.Module, layer: int, head: int) -> None:
    """Zero a head's slice of W_O for good."""
    attention = library.blocks[layer].attn
    with torch.no_grad():
        attention.proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0


def greedy(
    library: nn.Module, name: str, data: tuple[torch.Tensor, torch.Tensor, torch.Tensor], budget: int
) -> list[tuple[int, int, float]]:
    """Run Algorithm 1 (Hydra Ensembles): every candidate by a full evaluation, the first best goes."""
    removed: list[tuple[int, int, float]] = []
    for _ in range(budget):
        best: tuple[float, int, int] | None = None
        for layer, head in candidates(library, [r[:2] for r in removed]):
            value = without(library, layer, head, name, data)
            if best is None or value > best[0]:
                best = (value, layer, head)
        value, layer, head = best
        remove(library, layer, head)
        removed.append((layer, head, value))
    return removed


def taylor_layer(library: nn.Module, layer: int, images: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Score one layer's heads as appendix D.1.1 writes it, one weight at a time over rows and columns."""
    library.zero_grad()
    F.cross_entropy(library(images), labels).backward()
    attention = library.blocks[layer].attn
    weight, gradient = attention.qkv.weight.detach(), attention.qkv.weight.grad
    heads, width, dim = attention.num_heads, attention.head_dim, weight.shape[1]
    scores = []
    for head in range(heads):
        parts = []
        for matrix in range(3):
            begin = matrix * heads * width + head * width
            total = sum(
                abs(weight[row, column] * gradient[row, column]).item()
                for row in range(begin, begin + width)
                for column in range(dim)
            )
            parts.append(total / (width * dim))
        scores.append(sum(parts) / 3)
    return scores
