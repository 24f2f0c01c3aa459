"""Which inputs a model answers, and what it keeps of training data to tell strange ones."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import Fingerprint, StrictModel

Share = Annotated[float, Field(gt=0, lt=1)]


class Threshold(StrictModel):
    """Inputs are accepted whose OOD score is below a bound, and what is known of the answers to them.

    With probability 1 - `delta` over the draw of the samples that it was found on, at most `risk` of the answers to accepted
    inputs, drawn as these samples were, are wrong.

    Attributes:
        score: The name of the OOD score.
        below: The bound.
        risk: As above.
        delta: As above.
        count: How many samples it was found on.
        accepted: How many of them it accepts.
        errors: How many of these the model answers wrongly.
        version: Of what scores that are fitted mean, `ood_scores.VERSION`.
    """

    score: str
    below: float
    risk: Share
    delta: Share
    count: int = Field(ge=1)
    accepted: int = Field(ge=1)
    errors: int = Field(ge=0)
    version: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)

    @property
    def coverage(self) -> float:
        """The share of the samples that it accepts."""
        return self.accepted / self.count

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.errors <= self.accepted <= self.count:
            raise ValueError("errors, accepted, count: each is at most the next")
        return self


class FittedScores(StrictModel):
    """OOD scores of features that a checkpoint holds as they were fitted, in tensors beside the weights.

    Attributes:
        scores: Their names.
        data: What they were fitted on.
        temperature: What the model's logits were divided by then.
        version: Of what they mean, `ood_scores.VERSION`.
    """

    scores: tuple[str, ...] = Field(min_length=1)
    data: Fingerprint
    temperature: float = Field(default=1.0, gt=0)
    version: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check_names_once(self) -> Self:
        if len({*self.scores}) < len(self.scores):
            raise ValueError("scores: names one twice")
        return self
