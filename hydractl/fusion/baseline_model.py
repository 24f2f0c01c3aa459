"""What a baseline makes of a model to answer in its place."""

from __future__ import annotations

import torch

from hydractl.families.tower import OutputHead, Towers
from hydractl.model_inputs import Inputs


class BaselineModel(Towers):
    """A model's own towers, which answer otherwise.

    Attributes:
        passes: How often they run for an answer.
        training_macs: Multiply-accumulates of what was trained to make it.
    """

    passes = 1
    training_macs = 0

    def __init__(self, model: Towers) -> None:
        towers = {name: model.tower(name) for name in model.towers}
        super().__init__(towers, [answer for answer in model.answers if isinstance(answer, OutputHead)])
        self.temperature = model.temperature
        self.eval()

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return each member's logits (M, B, C)."""
        return self.member_logits(inputs)


class WithConfidence(BaselineModel):
    """One that says how likely it is right, beside its logits.

    Attributes:
        confidence: Of its last batch, (B,).
    """

    confidence: torch.Tensor
