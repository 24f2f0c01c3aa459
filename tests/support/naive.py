"""Literal, slow implementations of the methods on the libraries' own models, as references."""

from __future__ import annotations

from functools import partial
from itertools import count, takewhile
from typing import TYPE_CHECKING

import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.families.head_slicing import TensorRole
from hydractl.families.registry import FAMILIES
from hydractl.model_inputs import cut_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from hydractl.model_inputs import Inputs

    Data = tuple[Inputs | list[Inputs], torch.Tensor, Inputs | list[Inputs]]
    """ID inputs, their labels, OOD inputs; lists are batches already."""


WIDTH = 8
"""Width of a head in every variant. Models with another width have an attribute `head_width`."""


def output_weights(library: nn.Module) -> list[torch.Tensor]:
    """Return W_O of each layer, tower by tower, found by the parameter names of the families.

    Raises:
        ValueError: If no family has these names.
    """
    tensors = dict(library.named_parameters())
    known: list[list[torch.Tensor]] = []
    for family in FAMILIES.values():
        found = []
        for layout in family.towers.values():
            name = layout.block + next(h.name for h in layout.heads if h.role == TensorRole.OUTPUT)
            names = takewhile(tensors.__contains__, (name.format(layer=i) for i in count()))
            found += [tensors[n] for n in names]
        known.append(found)
    most = max(known, key=len)  # Another family may match a single tower of two.
    if not most:
        raise ValueError("no family knows this model")
    return most


def _width(library: nn.Module) -> int:
    return int(getattr(library, "head_width", WIDTH))


def _columns(library: nn.Module, head: int) -> slice:
    return slice(head * _width(library), (head + 1) * _width(library))


def candidates(library: nn.Module, gone: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (layer, head) of the remaining heads."""
    for layer, weight in enumerate(output_weights(library)):
        for head in range(weight.shape[1] // _width(library)):
            if (layer, head) not in gone:
                yield layer, head


def objective(library: nn.Module, name: str, data: Data, *, batch: int = 64) -> float:
    """Evaluate an objective with full forward passes.

    Args:
        library: The library's model.
        name: Name of the objective, optionally followed by `/` and an OOD score.
        data: ID inputs, labels and OOD inputs.
        batch: Batch size for inputs without batches.
    """
    images, labels, others = data
    with torch.inference_mode():
        inside, outside = (
            torch.cat(
                [library(x) for x in (part if isinstance(part, list) else cut_batch(part, batch))]
            ).double()
            for part in (images, others)
        )
    name, _, score = name.partition("/")
    score_of = OOD_SCORES[score or "msp"]
    if inside.ndim > 2:  # Words are classified separately; the score of a text is the mean over its words.
        score_of = partial(_mean_of_words, score_of)
        inside, outside = (_blanked(z, part) for z, part in ((inside, images), (outside, others)))
        words, labels = inside[labels >= 0], labels[labels >= 0]
    else:
        words = inside
    metrics = {
        "acc": lambda: (words.argmax(-1) == labels).double().mean().item(),
        "ood": lambda: _ranking(score_of(inside), score_of(outside))[0],
        "fpr95": lambda: -_ranking(score_of(inside), score_of(outside))[1],
        "nll": lambda: -F.cross_entropy(words, labels).item(),
        "ece": lambda: -_ece(words.softmax(-1), labels),
    }
    sums = {"avg": {"acc": 0.5, "ood": 0.5}, "acc-0.1*nll": {"acc": 1, "nll": 0.1}}
    return sum(weight * metrics[term]() for term, weight in sums.get(name, {name: 1}).items())


def _blanked(logits: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Set logits of padding words to NaN. Shape (N, Q, C)."""
    return logits.masked_fill((inputs["word_starts"] < 0).unsqueeze(-1), float("nan"))


def _mean_of_words(score_of: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
    return torch.stack([score_of(row[~row[:, 0].isnan()]).mean() for row in logits])


OOD_SCORES = {
    "msp": lambda z: -z.softmax(-1).max(-1).values,
    "energy": lambda z: -z.exp().sum(-1).log(),
    "entropy": lambda z: torch.distributions.Categorical(logits=z).entropy(),
    "max-logit": lambda z: -z.max(-1).values,
}


def _ranking(inside: torch.Tensor, outside: torch.Tensor) -> tuple[float, float]:
    """Return AUROC and FPR95 from scikit-learn's ROC curve."""
    truth = [0] * len(inside) + [1] * len(outside)
    scores = torch.cat([inside, outside]).numpy()
    false, caught, _ = roc_curve(truth, scores, drop_intermediate=False)
    return float(roc_auc_score(truth, scores)), float(false[caught >= 0.95][0])


def _ece(probs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the expected calibration error with 15 equal bins, bin by bin."""
    confidence, predicted = probs.max(-1)
    gaps = []
    for b in range(15):
        low, high = torch.linspace(0, 1, 16)[b : b + 2]
        own = (confidence.float() >= low) & (confidence.float() < high)
        gaps.append((confidence[own] - (predicted[own] == labels[own]).double()).sum().abs().item())
    return sum(gaps) / len(labels)


def without(
    library: nn.Module,
    layer: int,
    head: int,
    name: str,
    data: Data,
    **options: int,
) -> float:
    """Return the objective with the head's slice of W_O set to zero. The weights are restored."""
    weight, columns = output_weights(library)[layer], _columns(library, head)
    with torch.no_grad():
        kept = weight[:, columns].clone()
        weight[:, columns] = 0
        value = objective(library, name, data, **options)
        weight[:, columns] = kept
    return value


def remove(library: nn.Module, layer: int, head: int) -> None:
    """Set the head's slice of W_O to zero permanently."""
    with torch.no_grad():
        output_weights(library)[layer][:, _columns(library, head)] = 0


def greedy(library: nn.Module, name: str, data: Data, budget: int) -> list[tuple[int, int, float]]:
    """Run Algorithm 1 (Hydra Ensembles): fully evaluate every candidate and remove the first best one.

    Returns:
        Layer, head and objective of each removal.
    """
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
    """Return head importance of a layer by appendix D.1.1, with loops over all weights."""
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
