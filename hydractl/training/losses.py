"""Terms of the loss besides the labels: distillation of teachers, and repulsion between members of a hydra.

A model learns from models, or a hydra from an ensemble, member by member. Repulsion makes members differ on images without
labels.

Axes: M members of the student, K teachers, B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.data.preprocess import sample_seed
from hydractl.metrics.per_sample import mean_over_questions
from hydractl.model_inputs import Inputs, words_asked

Teacher = Callable[[Inputs], torch.Tensor]
"""Function from inputs to logits (M, B, C) of M members; M = 1 for a base or a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationLoss:
    """What teachers make of a batch's losses: (1 - w) of the loss on labels and w T² KL(p || softmax(z / T)).

    p is the teacher's softmax(t / T), of a hydra the mean over its members (Hinton et al. 2015, section 2).

    Attributes:
        teachers: One for each member of a hydra, in order; any number for another model, which learns their mean.
        temperature: T, positive.
        weight: w, in (0, 1].
        by_member: Whether the student is a hydra.
        split: Whether the only teacher is a hydra whose members teach one member each.
    """

    teachers: tuple[Teacher, ...]
    temperature: float
    weight: float
    by_member: bool
    split: bool = False

    def __call__(self, losses: torch.Tensor, outputs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return one loss a sample, (B,).

        Args:
            losses: On the labels, (B,).
            outputs: The student's logits for these inputs, (B, C), or (M, B, C) where it is a hydra.
            inputs: The batch as the student sees it.
        """
        student = outputs if self.by_member else outputs.unsqueeze(0)
        log_probs = (student.float() / self.temperature).log_softmax(-1)
        divergence = F.kl_div(log_probs, self.targets(inputs), reduction="none").sum(-1).mean(0)
        if divergence.ndim > losses.ndim:
            divergence = mean_over_questions(divergence, words_asked(inputs))
        return (1 - self.weight) * losses + self.weight * self.temperature**2 * divergence

    @torch.no_grad()
    def targets(self, inputs: Inputs) -> torch.Tensor:
        """Return what each member is to say, (M, B, C); a student that is no hydra is one."""
        teacher_probs = [
            (teacher(inputs).float() / self.temperature).softmax(-1) for teacher in self.teachers
        ]
        if self.split:
            return teacher_probs[0]
        mean_probs = torch.stack([probs.mean(0) for probs in teacher_probs])
        return mean_probs if self.by_member else mean_probs.mean(0, keepdim=True)


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
        order = torch.rand(
            total, CELLS**2, generator=torch.Generator().manual_seed(sample_seed(_STREAM, self.seed, step))
        )[rows.start : rows.stop].argsort(-1)
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
