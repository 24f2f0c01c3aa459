"""Repulsion: members of a hydra learn to differ on images that have no label.

Axes: M members, B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.data.preprocess import sample_seed
from hydractl.model_inputs import Inputs

_STREAM = -4
"""Offset that separates these seeds from those of dropout, mixing and epochs."""
CELLS = 4
"""Rows and columns of patches that are permuted."""
SMALLEST = 1e-6


@dataclass(frozen=True, slots=True)
class Repulsion:
    """A penalty on members that agree where no answer is right.

    The images of the batch, each with its patches in random order, get the loss

        weight * mean over images and members i of log sum_j exp(-||p_i - p_j||^2 / h),

    where p_i is the softmax of member i and h the median of the squared distances between two members. It is the kernel density
    of members in function space (D'Angelo and Fortuin 2021, equation 8), on inputs of unknown label (Mehrtens et al. 2022).

    Attributes:
        weight: Positive.
        seed: Seed of the permutations. These depend on step and row, not on the number of processes.
    """

    weight: float
    seed: int

    def __call__(
        self, model: Callable[[Inputs], torch.Tensor], inputs: Inputs, *, step: int, rows: range, total: int
    ) -> torch.Tensor:
        """Return the loss of a piece of a batch, a scalar.

        Args:
            model: From images to the members' logits (M, B, C).
            inputs: Images (B, channels, height, width).
            step: Number of the training step.
            rows: The piece's rows in the batch.
            total: Rows of the whole batch.
        """
        if not isinstance(inputs, torch.Tensor):
            raise TypeError("repulsion needs images")
        random = torch.Generator().manual_seed(sample_seed(_STREAM, self.seed, step))
        order = torch.rand(total, CELLS**2, generator=random)[rows.start : rows.stop].argsort(-1)
        probs = model(with_permuted_patches(inputs, order.to(inputs.device))).float().softmax(-1)
        return self.weight * agreement(probs)


def with_permuted_patches(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return images (B, channels, height, width) with patches in the given order (B, 16); pixels beyond whole patches stay."""
    height, width = (size // CELLS for size in images.shape[-2:])
    grid = images[..., : CELLS * height, : CELLS * width]
    patches = F.unfold(grid, (height, width), stride=(height, width))
    patches = patches.gather(-1, order.unsqueeze(1).expand_as(patches))
    permuted = images.clone()
    permuted[..., : CELLS * height, : CELLS * width] = F.fold(
        patches, grid.shape[-2:], (height, width), stride=(height, width)
    )
    return permuted


def agreement(probs: torch.Tensor) -> torch.Tensor:
    """Return the mean log kernel density of members' probabilities (M, B, C): log M if they are equal, lower if they differ."""
    squares = (probs.unsqueeze(1) - probs).square().sum(-1)
    pairs = ~torch.eye(len(probs), dtype=torch.bool, device=probs.device)
    bandwidth = squares.detach()[pairs].median().clamp_min(SMALLEST)
    return (-squares / bandwidth).exp().sum(1).log().mean()
