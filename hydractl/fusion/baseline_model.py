"""Models that baselines of `eval` derive from a model."""

from __future__ import annotations

import torch
from typing_extensions import override

from hydractl.families.tower import OutputHead, Towers
from hydractl.model_inputs import Inputs


class BaselineModel(Towers):
    """A model derived from the towers of another one.

    Attributes:
        passes: Forward passes per prediction.
        training_macs: Multiply-accumulates of its training.
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
    """A derived model that also estimates the probability of being correct.

    Attributes:
        confidence: Confidence on the last batch, (B,).
    """

    confidence: torch.Tensor

    @override
    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return each member's logits (M, B, C), and the score `msp` of the inputs, minus the confidence, (1, B, 1)."""
        logits = self.member_logits(inputs)
        return logits, -self.confidence[None, :, None]
