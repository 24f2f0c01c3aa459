"""What is exported: a model that answers by name with all that its user asks of it.

Axes: M members, B batch, C classes, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from hydractl.families.tower import Model
from hydractl.fusion.feature_ood import WithDefaultScore
from hydractl.metrics.ood_scores import entropy, mutual_information
from hydractl.metrics.per_sample import of_inputs, opinions
from hydractl.model_inputs import PIXELS

IMAGES = "images"
"""What uint8 pixels (B, height, width, channels) are called; prepared ones are `pixel_values`."""
OUTPUTS = ("probabilities", "logits", "member_logits", "entropy", "mutual_information", "ood_score")


class ExportModule(nn.Module):
    """A model, asked by name."""

    def __init__(self, with_score: WithDefaultScore, pixels: nn.Module | None = None) -> None:
        """Take a model over.

        Args:
            with_score: The model with its default OOD score, in evaluation mode. A zero-shot one knows its classes.
            pixels: What makes its inputs of uint8 pixels; None where they come prepared.
        """
        super().__init__()
        self.model = with_score.model
        self.with_score = with_score
        self.pixels = pixels
        self.eval()

    def forward(self, inputs: dict[str, torch.Tensor], exact: bool = False) -> dict[str, torch.Tensor]:
        """Return what `OUTPUTS` names: (B, C), (B, C), (M, B, C), (B,), (B,) and (B,); of Q labels (B, Q), (B, Q) and (M, B, Q, 2).

        Of a classifier of tokens they have an axis T after B, padding and special tokens included.

        `logits` are what the model itself answers with, entropy and mutual information are in nats, and the OOD score is the model's
        default; `exact` in float64, as `predict`.
        """
        if self.pixels is not None:
            inputs = {PIXELS: self.pixels(inputs[IMAGES])}
        model_inputs = inputs[PIXELS] if inputs.keys() == {PIXELS} else inputs
        member_logits, ood_score = self.with_score(model_inputs, exact=exact)
        member_opinions = opinions(member_logits)
        log_probs, mean = member_opinions
        several = self.model.answer.multi_label
        logits = member_opinions.logits(multi_label=several)
        if isinstance(self.model, Model):
            logits = member_logits[0, ..., 1] if several else member_logits[0]
        outputs_in_order = (
            mean.exp()[..., 1] if several else mean.exp(),
            logits,
            member_logits,
            of_inputs(entropy(log_probs), multi_label=several),
            of_inputs(mutual_information(log_probs), multi_label=several),
            ood_score,
        )
        return dict(zip(OUTPUTS, outputs_in_order, strict=True))

    def answer(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the same, without gradients, with the OOD score as `predict` computes it."""
        with torch.inference_mode():
            outputs: dict[str, torch.Tensor] = self(dict(inputs), exact=True)
        return outputs
