"""Single answers in reports, and guarantees of checkpoints and reports: thresholds of accepted inputs, and sets of classes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import Fingerprint, StrictModel
from hydractl.manifest.head_mask import WIDEST
from hydractl.manifest.terms import MOST_CLASSES, MOST_CONFUSIONS, MOST_EXAMPLES, Guarantee, SetMethod
from hydractl.messages import counted
from hydractl.plugins import load

MOST_LETTERS = 400
"""Of an example's text, which loses its middle where it is longer."""
MOST_PICTURE = 20_000
"""Letters of an example's picture in base64."""

Count = Annotated[int, Field(ge=0)]


class ClassHits(StrictModel):
    """How many samples of a class there are, and how many of them are answered right."""

    index: Count
    name: str
    count: int = Field(ge=1)
    hits: Count

    @model_validator(mode="after")
    def _check_hits(self) -> Self:
        if self.hits > self.count:
            raise ValueError("hits: are more than the samples")
        return self


class Confusion(StrictModel):
    """How many samples with a label get the same wrong answer."""

    label: str
    answer: str
    count: int = Field(ge=1)


class ByClass(StrictModel):
    """A row's answers on the ID set, class by class.

    Attributes:
        total: How many classes the ID set has.
        classes: These in order, or of many the ones on which the report's first row has the lowest accuracy.
        confusions: The most frequent ones.
    """

    total: int = Field(ge=1)
    classes: tuple[ClassHits, ...] = Field(min_length=1, max_length=MOST_CLASSES)
    confusions: tuple[Confusion, ...] = Field(max_length=MOST_CONFUSIONS)


class Example(StrictModel):
    """An input of the ID set, and what the report's first row says of it.

    Attributes:
        name: Its file with the folder that it lies in, or its row.
        label: What it is.
        answer: The predicted class.
        confidence: In that.
        disagreement: The members' mutual information, in nats; None for one member.
        votes: Each member's own answer.
        text: The text, where it is one.
        picture: A small JPEG file in base64, where it is an image.
    """

    name: str
    label: str
    answer: str
    confidence: float = Field(ge=0, le=1)
    disagreement: float | None = None
    votes: tuple[str, ...]
    text: str | None = Field(default=None, max_length=MOST_LETTERS)
    picture: str | None = Field(default=None, pattern="^[A-Za-z0-9+/]+={0,2}$", max_length=MOST_PICTURE)


class Examples(StrictModel):
    """Inputs that show where the first row fails: they are the user's data, and no model card has them.

    Attributes:
        disagreements: Those that members disagree most on, the most first.
        mistakes: Those with a wrong answer, the most confident first.
    """

    disagreements: tuple[Example, ...] = Field(max_length=MOST_EXAMPLES)
    mistakes: tuple[Example, ...] = Field(max_length=MOST_EXAMPLES)


OpenShare = Annotated[float, Field(gt=0, lt=1)]
"""A fraction strictly between 0 and 1."""
Share = Annotated[float, Field(ge=0, le=1)]


class PredictionSets(StrictModel):
    """Which classes are in the set of an input: those whose nonconformity does not exceed a threshold.

    Attributes:
        method: The nonconformity, a function of the members' mean probabilities after temperature scaling.
        coverage: The set contains the class of an input with at least this probability.
        thresholds: A common one, or one for each class, for which the coverage then holds.
        penalty: Of RAPS: added for each rank above `rank`.
        rank: Of RAPS: classes up to this rank have no penalty.
        count: How many samples they were fitted on.
        data: What these are.
    """

    method: SetMethod = Field(strict=False)
    coverage: OpenShare
    thresholds: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=1)
    penalty: float | None = Field(default=None, ge=0, exclude_if=lambda value: value is None)
    rank: int | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)
    count: int = Field(ge=1)
    data: Fingerprint

    @property
    def summary(self) -> str:
        """Which sets they are, and what they promise."""
        inputs = "inputs of each class" if len(self.thresholds) > 1 else "inputs"
        return (
            f"sets by {self.method.upper()}, fitted on {counted(self.count, 'sample')}: on average over draws of these, at least "
            f"{100 * self.coverage:g} % of {inputs} have their class in the set"
        )

    @model_validator(mode="after")
    def _check_penalty(self) -> Self:
        if (self.penalty is None, self.rank is None) != (self.method is not SetMethod.RAPS,) * 2:
            raise ValueError(f"penalty, rank: required by `{SetMethod.RAPS}`, else excluded")
        if (
            max(self.thresholds) > 1 + 1e-5 + (self.penalty or 0) * WIDEST
        ):  # a sum of probabilities, rounding, penalties of ranks
            raise ValueError("thresholds: exceed the largest nonconformity")
        return self


class SetNumbers(StrictModel):
    """What sets are like on the ID set.

    Attributes:
        rule: Which sets.
        is_fitted_here: Whether they were fitted on these samples, so that their coverage holds by construction.
        count: How many samples there are.
        covered: How many of these have their class in the set.
        empty: How many sets have no class.
        single: How many have one.
        mean_size: Mean number of classes in a set.
        interval: 95 % interval of the coverage (Clopper and Pearson).
        classes: Samples with their class in the set by class, in the order of the model; of many classes those with the lowest coverage.
    """

    rule: PredictionSets
    is_fitted_here: bool
    count: int = Field(ge=1)
    covered: Count
    empty: Count
    single: Count
    mean_size: float = Field(ge=0)
    interval: tuple[Share, Share]
    classes: tuple[ClassHits, ...] = Field(min_length=1, max_length=MOST_CLASSES)

    @property
    def summary(self) -> str:
        """What they are like, in a sentence."""
        worst = min(self.classes, key=lambda hits: hits.hits / hits.count)
        low, high = (100 * bound for bound in self.interval)
        samples = counted(self.count, "sample")
        return (
            f"sets of {self.mean_size:.2f} classes on average contain the class of {100 * self.covered / self.count:.1f} % of {samples} "
            f"({'on which they were fitted' if self.is_fitted_here else f'95 % interval {low:.1f} to {high:.1f}'}), of class {worst.name} "
            f"the fewest, {worst.hits} of {worst.count}; {100 * self.empty / self.count:.1f} % are empty, "
            f"{100 * self.single / self.count:.1f} % have one class"
        )

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if max(self.covered, self.empty + self.single) > self.count:
            raise ValueError("covered, empty + single: must not exceed count")
        return self


CHECK_SCORE, IS_FITTED = "hydractl.metrics.ood_scores:check_stored", "hydractl.metrics.ood_scores:is_fitted"
"""Paths of functions that check a stored score by the table of scores, which is in a higher layer."""


class Threshold(StrictModel):
    """Inputs are accepted whose OOD score is below a bound, and what that promises of inputs drawn as its samples were.

    Attributes:
        score: The name of the OOD score.
        below: The bound; None where no bound keeps the risk, so that nobody knows which inputs to accept.
        risk: At most this share is wrong, as `guarantee` counts it.
        guarantee: What is bounded; files of before say nothing of it.
        delta: The chance, over the draw of the samples, that it is not; None where it is bounded on average.
        count: How many samples it was found on.
        accepted: How many of them it accepts.
        errors: How many of these the model answers wrongly.
        version: Of what scores that are fitted mean, `ood_scores.VERSION`.
    """

    score: str
    below: float | None = None
    risk: OpenShare
    guarantee: Guarantee = Field(
        default=Guarantee.ERRORS_AMONG_ACCEPTED,
        exclude_if=lambda value: value is Guarantee.ERRORS_AMONG_ACCEPTED,
    )
    delta: OpenShare | None = Field(default=None, exclude_if=lambda value: value is None)
    count: int = Field(ge=1)
    accepted: int = Field(ge=0)
    errors: int = Field(ge=0)
    version: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)

    @property
    def coverage(self) -> float:
        """The share of the samples that it accepts."""
        return self.accepted / self.count

    @property
    def summary(self) -> str:
        """What it accepts and promises; where there is none, which was looked for."""
        promise = self.guarantee.promise(self.risk, self.delta)
        samples = counted(self.count, "sample")
        if self.below is None:
            return f"no threshold on {self.score} satisfies this guarantee with {samples}: {promise}"
        return (
            f"accepts inputs whose {self.score} is below {self.below:.6g} ({100 * self.coverage:.1f} % of {samples}, {self.errors} "
            f"wrong): {promise}"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        load(CHECK_SCORE)(self.score, self.version, self.below)
        if not self.errors <= self.accepted <= self.count:
            raise ValueError("must satisfy errors <= accepted <= count")
        if (self.below is None) != (self.accepted == 0):
            raise ValueError("below: required if and only if samples are accepted")
        if (self.delta is None) != (self.guarantee is Guarantee.ACCEPTED_AND_WRONG):
            raise ValueError(f"delta: required by `{Guarantee.ERRORS_AMONG_ACCEPTED}`, else excluded")
        return self
