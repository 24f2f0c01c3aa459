"""Inputs that show where a row fails: those that its members disagree most on, and its most confident mistakes.

Axes: M members, N samples.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from hydractl.data.datasets import ImageSet, Items, TextSet, of_kind
from hydractl.data.preprocess import to_channels
from hydractl.errors import shortened
from hydractl.manifest.guarantees import MOST_LETTERS, Example, Examples
from hydractl.metrics.compute import scored
from hydractl.metrics.per_sample import StoredPredictions, at_once

DISAGREEMENT = "mi"
SIDE = 96
"""Of a thumbnail, at most; a smaller image keeps its size."""
QUALITY = 90


def examples_of(
    items: Items,
    predictions: StoredPredictions,
    answers: Mapping[str, Tensor],
    labels: Tensor,
    names: Sequence[str],
    *,
    most: int,
) -> Examples:
    """Return the inputs that show where a row fails.

    Args:
        items: The ID set.
        predictions: What the row says of it.
        answers: As `per_sample.answers`.
        labels: Shape (N,), int64, the models' classes.
        names: Of these.
        most: How many of each kind at most.
    """
    votes = torch.cat([part.log_probs.argmax(-1) for part in predictions.split(at_once(predictions))], 1)
    disagreement = scored(predictions, DISAGREEMENT) if len(votes) > 1 else None

    def example(place: int) -> Example:
        key = items.key(place)
        return Example(
            name="/".join(Path(key).parts[-2:]) if isinstance(key, str) else f"row {key}",
            label=names[int(labels[place])],
            answer=names[int(answers["predicted"][place])],
            confidence=float(answers["confidence"][place]),
            disagreement=None if disagreement is None else float(disagreement[place]),
            votes=tuple(names[vote] for vote in votes[:, place].tolist()),
            text=_text(items, place) if isinstance(items, TextSet) else None,
            picture=None if isinstance(items, TextSet) else _thumbnail(of_kind(items, ImageSet).image(place)),
        )

    return Examples(
        disagreements=()
        if disagreement is None
        else tuple(map(example, _highest(disagreement, disagreement > 0, most))),
        mistakes=tuple(map(example, _highest(answers["confidence"], ~answers["hits"].bool(), most))),
    )


def _highest(values: Tensor, among: Tensor, most: int) -> list[int]:
    """Return the places of the highest of some values (N,), of equal ones the first."""
    order: list[int] = (
        values.masked_fill(~among, -torch.inf).sort(descending=True, stable=True).indices.tolist()
    )
    return order[: min(most, int(among.sum()))]


def _text(texts: TextSet, place: int) -> str:
    text = texts.texts[place]
    return shortened(text if isinstance(text, str) else " / ".join(text), MOST_LETTERS)


def _thumbnail(image: Image.Image) -> str:
    small = to_channels(image, 3).copy()
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, subsampling=0)
    return base64.b64encode(file.getvalue()).decode()
