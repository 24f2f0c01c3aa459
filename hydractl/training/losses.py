"""Loss terms in addition to the labels: distillation from teachers, and repulsion between members of a hydra.

A model learns from other models; a hydra can learn from an ensemble, member by member. Repulsion makes
members differ on images without labels.

Axes: M members of the student, K teachers, B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.data.preprocess import sample_seed
from hydractl.metrics.per_sample import mean_over_questions
from hydractl.model_inputs import Inputs, word_mask

Teacher = Callable[[Inputs], torch.Tensor]
"""Function from inputs to logits (M, B, C) of M members; M = 1 for a base or a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationLoss:
    """Loss of a student with teachers: (1 - w) * label loss + w T² KL(p || softmax(z / T)).

    z are the logits of the student. p is softmax(t / T) for the logits t of the teacher, averaged over the
    members of a teacher with members (Hinton et al. 2015, section 2).

    Attributes:
        teachers: If the student is a hydra, a teacher per member, in order, or a single hydra (`split`). Any
            number for other students, which learn the mean of the teachers.
        temperature: T, positive.
        weight: w, in (0, 1].
        by_member: Whether the student is a hydra.
        split: Whether the only teacher is a hydra whose members each teach a member of the student.
    """

    teachers: tuple[Teacher, ...]
    temperature: float
    weight: float
    by_member: bool
    split: bool = False

    def __call__(self, losses: torch.Tensor, outputs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return the loss of each sample, shape (B,).

        Args:
            losses: Label loss of each sample, shape (B,).
            outputs: Logits of the student for these inputs, shape (B, C), or (M, B, C) for a hydra.
            inputs: The batch, with the preprocessing of the student.
        """
        student = outputs if self.by_member else outputs.unsqueeze(0)
        log_probs = (student.float() / self.temperature).log_softmax(-1)
        divergence = F.kl_div(log_probs, self.targets(inputs), reduction="none").sum(-1).mean(0)
        if divergence.ndim > losses.ndim:
            divergence = mean_over_questions(divergence, word_mask(inputs))
        return (1 - self.weight) * losses + self.weight * self.temperature**2 * divergence

    @torch.no_grad()
    def targets(self, inputs: Inputs) -> torch.Tensor:
        """Return the target probabilities of each member, shape (M, B, C).

        M is 1 if the student is not a hydra.
        """
        teacher_probs = [
            (teacher(inputs).float() / self.temperature).softmax(-1) for teacher in self.teachers
        ]
        if self.split:
            return teacher_probs[0]
        mean_probs = torch.stack([probs.mean(0) for probs in teacher_probs])
        return mean_probs if self.by_member else mean_probs.mean(0, keepdim=True)


_STREAM = -4
"""First part of the seeds of this module. It separates them from the seeds of dropout, mixing and epochs."""
PATCH_GRID_SIDE = 4
"""Rows and columns of the grid of patches that are permuted. Chosen by hand; 8 would permute 64 smaller
patches and leave less of each object intact."""
SMALLEST = 1e-6
"""Lower bound of the bandwidth h: equal members would otherwise give 0 / 0. Chosen by hand; doubling it
changes the loss only if the median squared distance between members is below 2e-6."""


@dataclass(frozen=True, slots=True)
class Repulsion:
    """Penalty on members that agree on inputs without a correct answer.

    The patches of each image of the batch are permuted at random. The loss of these images is

        weight * mean over images and members i of log sum_j exp(-||p_i - p_j||^2 / h),

    with p_i the softmax of member i, and h the median of the squared distances between two members. The sum
    over j is a kernel density of the members in function space (D'Angelo and Fortuin 2021), on inputs of
    unknown label (Mehrtens et al. 2022).

    Attributes:
        weight: Positive factor of the loss.
        seed: Seed of the permutations, which depend on seed, step and row of the batch, not on the number of
            processes.
    """

    weight: float
    seed: int

    def __call__(
        self, model: Callable[[Inputs], torch.Tensor], inputs: Inputs, *, step: int, rows: range, total: int
    ) -> torch.Tensor:
        """Return the penalty for one piece of a batch, a scalar.

        Args:
            model: Function from images to the logits of the members, shape (M, B, C).
            inputs: Images, shape (B, channels, height, width).
            step: Number of the training step, from 0.
            rows: Rows of the batch that the piece contains.
            total: Number of rows of the whole batch.

        Raises:
            TypeError: If the inputs are not images.
        """
        if not isinstance(inputs, torch.Tensor):
            raise TypeError("repulsion needs images")
        # Draw for all rows of the batch, then select the rows of this piece: the permutations must not depend
        # on the number of processes.
        order = torch.rand(
            total,
            PATCH_GRID_SIDE**2,
            generator=torch.Generator().manual_seed(sample_seed(_STREAM, self.seed, step)),
        )[rows.start : rows.stop].argsort(-1)
        probs = model(with_permuted_patches(inputs, order.to(inputs.device))).float().softmax(-1)
        return self.weight * agreement(probs)


def with_permuted_patches(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return a copy of the images with the patches of each image in a given order.

    Args:
        images: Shape (B, channels, height, width). Pixels outside the grid of whole patches stay unchanged.
        order: Permutation of the 16 patches of each image, shape (B, 16), int64.
    """
    height, width = (size // PATCH_GRID_SIDE for size in images.shape[-2:])
    grid = images[..., : PATCH_GRID_SIDE * height, : PATCH_GRID_SIDE * width]
    patches = F.unfold(grid, (height, width), stride=(height, width))
    patches = patches.gather(-1, order.unsqueeze(1).expand_as(patches))
    permuted = images.clone()
    permuted[..., : PATCH_GRID_SIDE * height, : PATCH_GRID_SIDE * width] = F.fold(
        patches, grid.shape[-2:], (height, width), stride=(height, width)
    )
    return permuted


def agreement(probs: torch.Tensor) -> torch.Tensor:
    """Return the mean log kernel density of the members' probabilities.

    The value is log M if members are equal, and lower if they differ.

    Args:
        probs: Probabilities of each member, shape (M, B, C).

    Returns:
        Scalar. The bandwidth is detached: the gradient could otherwise lower the loss by changing the
            bandwidth.
    """
    squares = (probs.unsqueeze(1) - probs).square().sum(-1)
    pairs = ~torch.eye(len(probs), dtype=torch.bool, device=probs.device)
    bandwidth = squares.detach()[pairs].median().clamp_min(SMALLEST)
    return (-squares / bandwidth).exp().sum(1).log().mean()
