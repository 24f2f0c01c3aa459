"""Learning from teachers: distillation of models into a model, or of an ensemble into a hydra, member by member.

Axes: M members of the student, K teachers, B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

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
