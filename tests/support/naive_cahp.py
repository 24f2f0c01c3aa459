"""Literal implementation of CAHP (arXiv 2606.19150, steps 1 to 6) on the libraries' models, for comparison.

Supports a single tower and right padding. Loops over samples, class pairs and points. t-SNE, FasterPAM and
Kneedle come from libraries.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import kmedoids
import numpy as np
import torch
from kneed import KneeLocator
from sklearn.manifold import TSNE
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.model_inputs import batch_of, cut_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from hydractl.model_inputs import Inputs


class Answer(NamedTuple):
    """Results of CAHP. Heads are numbered layer by layer."""

    profiles: np.ndarray
    salience: np.ndarray
    curve: list[float]
    k: int
    clusters: list[list[int]]


def attentions(library: nn.Module, inputs: Inputs) -> list[np.ndarray]:
    """Return the attention weights of each layer, shape (B, H, T, T)."""
    if hasattr(library, "blocks"):
        seen: list[np.ndarray] = []
        hooks = []
        for block in library.blocks:
            block.attn.fused_attn = False
            keep = lambda _m, _i, out: seen.append(out.detach().numpy())
            hooks.append(block.attn.attn_drop.register_forward_hook(keep))
        with torch.no_grad():
            library(inputs)
        for hook in hooks:
            hook.remove()
        return seen
    library.set_attn_implementation("eager")
    with torch.no_grad():
        found = library.bert(**inputs, output_attentions=True).attentions
    return [x.numpy() for x in found]


def bilinear(length: int, size: int) -> np.ndarray:
    """Return a matrix (size, length) for bilinear resizing, without aligned corners or antialiasing."""
    matrix = np.zeros((size, length))
    for i in range(size):
        at = max(0.0, (i + 0.5) * length / size - 0.5)
        low = min(int(at), length - 1)
        high = min(low + 1, length - 1)
        matrix[i, low] += 1 - (at - low)
        matrix[i, high] += at - low
    return matrix


def signature(weights: np.ndarray, size: int) -> np.ndarray:
    """Resize an attention map of shape (L, L) to a vector of length size²."""
    resize = bilinear(len(weights), size)
    return (resize @ weights @ resize.T).reshape(-1)


def signatures(library: nn.Module, inputs: Inputs, size: int) -> np.ndarray:
    """Return the signatures of all heads without padding, shape (B, N, size²)."""
    maps = attentions(library, inputs)
    rows = []
    for b in range(batch_of(inputs)):
        length = maps[0].shape[-1]
        if not isinstance(inputs, torch.Tensor):
            length = int(inputs["attention_mask"][b].sum())
        rows.append([signature(head[:length, :length], size) for layer in maps for head in layer[b]])
    return np.array(rows)


def profiles(signed: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the Jeffries-Matusita profiles, shape (N, D P)."""
    classes = sorted(set(labels.tolist()))
    found = []
    for head in range(signed.shape[1]):
        profile: list[float] = []
        for i, one in enumerate(classes):
            for other in classes[i + 1 :]:
                a, b = signed[labels == one, head], signed[labels == other, head]
                for mean1, mean2, var1, var2 in zip(a.mean(0), b.mean(0), _var(a), _var(b), strict=True):
                    bhattacharyya = 0.25 * (mean1 - mean2) ** 2 / (var1 + var2)
                    bhattacharyya += 0.5 * math.log((var1 + var2) / (2 * math.sqrt(var1 * var2)))
                    profile.append(2 * (1 - math.exp(-bhattacharyya)))
        found.append(profile)
    return np.array(found)


def _var(x: np.ndarray) -> np.ndarray:
    return np.full(x.shape[1], 1e-6) if len(x) < 2 else np.maximum(x.var(axis=0, ddof=1), 1e-6)


def salience(library: nn.Module, data: list[tuple[Inputs, torch.Tensor]], heads: int) -> np.ndarray:
    """Return the salience of all heads, scaled to [0, 1], shape (N,)."""
    totals = []
    for inputs, labels in data[: max(1, math.floor(0.25 * len(data)))]:
        gates: list[torch.Tensor] = []
        hooks = list(_gated(library, heads, gates))
        F.cross_entropy(library(inputs), labels).backward()
        for hook in hooks:
            hook.remove()
        totals.append(np.concatenate([np.abs(gate.grad.numpy()) for gate in gates]))
    mean = sum(totals) / len(totals)
    return (mean - mean.min()) / (mean.max() - mean.min())


def _gated(library: nn.Module, heads: int, gates: list[torch.Tensor]) -> Iterator[Any]:
    model: Any = library
    layers = model.blocks if hasattr(library, "blocks") else model.bert.encoder.layer
    for layer in layers:
        projection = layer.attn.proj if hasattr(library, "blocks") else layer.attention.output.dense
        gate = torch.ones(heads, dtype=torch.float64, requires_grad=True)
        gates.append(gate)

        def times(_module: Any, args: tuple[torch.Tensor], gate: torch.Tensor = gate) -> torch.Tensor:
            return args[0] * gate.repeat_interleave(args[0].shape[-1] // heads)

        yield projection.register_forward_pre_hook(times)


def silhouette(points: np.ndarray, labels: list[int], medoids: list[int]) -> float:
    """Return the medoid silhouette with the mean distance to all other medoids."""
    values = []
    for point, label in zip(points, labels, strict=True):
        a = np.linalg.norm(point - points[medoids[label]])
        if a == 0:
            continue
        b = np.mean([np.linalg.norm(point - points[m]) for c, m in enumerate(medoids) if c != label])
        values.append((b - a) / max(a, b))
    return float(np.mean(values)) if values else 1.0


def cahp(
    library: nn.Module,
    inputs: Inputs,
    labels: torch.Tensor,
    *,
    heads: int,
    batch: int,
    seed: int = 0,
    plane: bool = True,
) -> Answer:
    """Run steps 1 to 6 with the settings of the paper and salience as the criterion for representatives.

    Args:
        library: The library's model.
        inputs: Model inputs.
        labels: Class indices, shape (B,).
        heads: Heads per layer.
        batch: Batch size for salience.
        seed: Seed of t-SNE and FasterPAM.
        plane: Whether profiles are projected to the plane (step 3).
    """
    batches = list(zip(cut_batch(inputs, batch), labels.split(batch), strict=True))
    signed = np.concatenate([signatures(library, x, 32) for x, _ in batches])
    x = profiles(signed, labels.numpy())
    y = x
    if plane:
        y = TSNE(n_components=2, max_iter=1000, perplexity=10, random_state=seed).fit_transform(x)
        y = y.astype(np.float64)
    distances = np.array([[np.linalg.norm(p - q) for q in y] for p in y])
    ks = list(range(2, len(x)))
    # Integers below 2^53 make sums exact in any order.
    whole = np.round(distances / distances.max() * 2.0**40)
    runs = [kmedoids.fasterpam(whole, k, random_state=seed) for k in ks]
    curve = [silhouette(y, [int(c) for c in r.labels], [int(m) for m in r.medoids]) for r in runs]
    k = int(
        KneeLocator(
            ks,
            curve,
            curve="concave",
            direction="increasing",
            interp_method="polynomial",
            polynomial_degree=6,
        ).knee
    )
    w = salience(library, batches, heads)
    found = runs[k - 2].labels
    clusters = [
        sorted((i for i in range(len(x)) if found[i] == c), key=lambda i: (-w[i], i)) for c in range(k)
    ]
    return Answer(x, w, curve, k, sorted(clusters))
