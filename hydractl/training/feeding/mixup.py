"""Images mixed with each other, and their labels: mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), as timm's `Mixup`.

One draw befalls a whole batch: row i is mixed with row B - 1 - i. Axes: B batch, P rows of a piece, R rows that are read,
C channels, H height, W width, L classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.data.encode import Reading
from hydractl.data.preprocess import sample_seed
from hydractl.errors import UsageError
from hydractl.manifest.header import Tokenization
from hydractl.training.recipe import Recipe

TWO_SHARES = 2
SWITCH_PROBABILITY = 0.5
"""Probability of CutMix if both are enabled."""
_STREAM = -3
"""Offset that separates these seeds from those of steps, augmentation, epochs and samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What befalls one batch.

    Attributes:
        weight: What a row's own label counts; its partner's counts the rest.
        classes: How many there are.
        box: Rows and columns of pixels that are the partner's; None where the images are blended.
    """

    weight: float
    classes: int
    box: tuple[slice, slice] | None = None

    def images(self, images: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
        """Return mixed images (P, C, H, W)."""
        if self.box is None:
            return images * self.weight + partners * (1 - self.weight)
        mixed = images.clone()
        mixed[..., *self.box] = partners[..., *self.box]
        return mixed

    def targets(self, labels: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
        """Return the share of each class (P, L), float32, of labels (P,), or (P, Q, 2) of (P, Q); a row sums to 1."""
        first, second = (F.one_hot(labels, self.classes).float() for labels in (labels, partners))
        return first * self.weight + second * (1 - self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How batches are mixed.

    Attributes:
        mixup: Both parameters of the Beta distribution that weights are drawn of; None for no blending.
        cutmix: Those of 1 less a box's share of the image; None for no boxes. One of the two is given.
        size: Height and width of images.
        classes: How many there are.
    """

    mixup: float | None
    cutmix: float | None
    size: tuple[int, int]
    classes: int

    @classmethod
    def of(cls, recipe: Recipe, how: Reading, *, classes: int) -> Mixing | None:
        """Return how the recipe mixes what a model reads so, None if it mixes nothing.

        Raises:
            UsageError: If it would mix texts.
        """
        requested = {name: value for name in ("mixup", "cutmix") if (value := getattr(recipe, name))}
        if not requested:
            return None
        if isinstance(how, Tokenization):
            name, value = next(iter(requested.items()))
            none = " ".join(f"--{name} 0" for name in requested)
            raise UsageError(
                f"`--{name} {value:g}` is for images, but the model reads texts: tokens cannot be mixed",
                hint=f"leave it out, or add `{none}`; for texts use `--label-smoothing` and `--dropout`",
            )
        _, height, width = how.input_size
        return cls(mixup=recipe.mixup, cutmix=recipe.cutmix, size=(height, width), classes=classes)

    def at(self, step: int, *, seed: int) -> Mix:
        """Return what befalls the batch of a step, counted from 0; it hangs on the two numbers alone."""
        draws = np.random.default_rng(sample_seed(_STREAM, seed, step))
        either = [(cuts, a) for cuts, a in ((False, self.mixup), (True, self.cutmix)) if a is not None]
        cuts, alpha = either[len(either) == TWO_SHARES and draws.random() < SWITCH_PROBABILITY]
        weight = float(draws.beta(alpha, alpha))
        if not cuts:
            return Mix(weight=weight, classes=self.classes)
        ratio = sqrt(1 - weight)
        rows, columns = (_span(draws, side, int(side * ratio)) for side in self.size)
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mix(weight=1 - area / prod(self.size), classes=self.classes, box=(rows, columns))


def rows_read(total: int, cut: Iterable[tuple[int, int, float]]) -> torch.Tensor:
    """Return which rows (R,) of a batch of `total`, rising, pieces need that go from one row to another: theirs and partners."""
    rows = torch.cat([torch.arange(first, last) for first, last, _ in cut])
    with_partners: torch.Tensor = torch.cat([rows, total - 1 - rows]).unique()
    return with_partners


def _span(draws: np.random.Generator, side: int, length: int) -> slice:
    """Return what an image's side of so many pixels leaves of a length around a pixel of it."""
    centre = int(draws.integers(side))
    return slice(max(centre - length // 2, 0), min(centre + (length + 1) // 2, side))
