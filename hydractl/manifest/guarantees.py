"""Results by class and examples of reports, and thresholds and prediction sets of checkpoints."""

from __future__ import annotations

import math
from operator import not_
from typing import Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import Fingerprint, StrictModel, is_none
from hydractl.manifest.head_mask import MAX_DIMENSION
from hydractl.manifest.terms import MOST_CLASSES, MOST_CONFUSIONS, MOST_EXAMPLES, Guarantee, SetMethod
from hydractl.messages import counted
from hydractl.plugins import load

MOST_LETTERS = 400
"""Maximum length of an example's text; the middle of longer texts is removed. Chosen by hand; doubling the
limit doubles the largest texts on pages."""
MOST_PICTURE = 20_000
"""Maximum number of base64 characters of an example's thumbnail, about 15 kB of JPEG. Chosen by hand for
images of 96 x 96 pixels; doubling the limit doubles the largest examples of a report."""

Count = Annotated[int, Field(ge=0)]


class ClassHits(StrictModel):
    """Number of samples and of correct answers for one class.

    Attributes:
        index: Index of the class in the logits.
        name: Name of the class.
        count: Number of samples.
        hits: Number of correct answers; in the sizes of prediction sets the number of sets with the class.
    """

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
    """Number of samples with the same label and the same wrong answer."""

    label: str
    answer: str
    count: int = Field(ge=1)


class ByClass(StrictModel):
    """Results of one row on the ID set, by class.

    Attributes:
        total: Number of classes in the ID set.
        classes: All classes in the order of the logits. With more than `MOST_CLASSES`, only the classes with
            the lowest accuracy of the report's first row.
        confusions: The most frequent confusions.
    """

    total: int = Field(ge=1)
    classes: tuple[ClassHits, ...] = Field(min_length=1, max_length=MOST_CLASSES)
    confusions: tuple[Confusion, ...] = Field(max_length=MOST_CONFUSIONS)


class Example(StrictModel):
    """An input of the ID set with the answer of the report's first row.

    Attributes:
        name: File name with the name of its folder, or the row number.
        label: Name of the true class.
        answer: Name of the predicted class.
        confidence: Probability of the predicted class.
        disagreement: Mutual information between members and answer, in nats. `None` for one member.
        votes: Predicted class of each member.
        text: The text. `None` for images.
        picture: Thumbnail, a JPEG file in base64. `None` for texts.
        accepted: Whether the answer passes the threshold of `eval`. `None` without a threshold.
    """

    name: str
    label: str
    answer: str
    confidence: float = Field(ge=0, le=1)
    disagreement: float | None = None
    votes: tuple[str, ...]
    text: str | None = Field(default=None, max_length=MOST_LETTERS)
    picture: str | None = Field(default=None, pattern="^[A-Za-z0-9+/]+={0,2}$", max_length=MOST_PICTURE)
    accepted: bool | None = Field(default=None, exclude_if=is_none)


class Examples(StrictModel):
    """Inputs with answers of the first row. They are the user's data, so model cards leave them out.

    Attributes:
        answers: Up to five inputs at equal distances in the data; one of them is replaced by the first wrong
            answer that is held back, if there is one. Empty in reports of earlier versions.
        disagreements: Inputs with the highest disagreement between members, in descending order.
        mistakes: Inputs with wrong answers, in descending order of confidence.
    """

    answers: tuple[Example, ...] = Field(default=(), max_length=5, exclude_if=not_)
    disagreements: tuple[Example, ...] = Field(max_length=MOST_EXAMPLES)
    mistakes: tuple[Example, ...] = Field(max_length=MOST_EXAMPLES)


OpenShare = Annotated[float, Field(gt=0, lt=1)]
"""A fraction in (0, 1), without the ends."""
Share = Annotated[float, Field(ge=0, le=1)]


class PredictionSets(StrictModel):
    """Prediction sets: the set of an input contains all classes with a nonconformity of at most a threshold.

    Attributes:
        method: Nonconformity, computed from the members' mean probabilities after temperature scaling.
        coverage: Minimum probability for the class of an input to be in the set.
        thresholds: One threshold for all classes, or one per class. In the second case the coverage holds for
            each class.
        penalty: Amount that RAPS adds for each rank above `rank`. `None` for other methods.
        rank: Last rank without a RAPS penalty. `None` for other methods.
        count: Number of calibration samples.
        data: Calibration data set.
    """

    method: SetMethod = Field(strict=False)
    coverage: OpenShare
    thresholds: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=1)
    penalty: float | None = Field(default=None, ge=0, exclude_if=is_none)
    rank: int | None = Field(default=None, ge=1, exclude_if=is_none)
    count: int = Field(ge=1)
    data: Fingerprint

    @property
    def summary(self) -> str:
        """Method, calibration size and guarantee of the sets, as a clause."""
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
            max(self.thresholds) > 1 + 1e-5 + (self.penalty or 0) * MAX_DIMENSION
            # upper bound of the nonconformity: a sum of probabilities, a margin for rounding, and the penalties
            # of all ranks
        ):
            raise ValueError("thresholds: exceed the largest nonconformity")
        return self


class SetNumbers(StrictModel):
    """Size and coverage of prediction sets on the ID set.

    Attributes:
        rule: The prediction sets.
        is_fitted_here: Whether the sets were fitted on the same samples. The coverage then holds by
            construction.
        count: Number of samples.
        covered: Number of samples with their class in the set.
        empty: Number of sets without classes.
        single: Number of sets with one class.
        mean_size: Mean number of classes in a set.
        interval: 95 % interval of the coverage (Clopper and Pearson).
        classes: Number of covered samples of each class, in the order of the logits. With more than
            `MOST_CLASSES`, only the classes with the lowest coverage.
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
        """Size and coverage of the sets, as a clause."""
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
"""Paths of functions that validate a stored OOD score. They are loaded by name, because the table of scores
is in a higher layer than this module."""


class KnownTest(StrictModel):
    """A bound on an OOD score that accepts a share of the inputs from the distribution of the calibration samples.

    Attributes:
        score: Name of the OOD score.
        below: The bound; inputs with a lower score are known. `None` if the samples are too few for the share;
            all inputs are then known.
        share: Minimum share of known inputs that are accepted, on average over draws of the samples.
        count: Number of calibration samples.
        accepted: Number of accepted calibration samples.
        version: As in `Threshold`.
    """

    score: str
    below: float | None = None
    share: OpenShare
    count: int = Field(ge=1)
    accepted: Count
    version: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)

    @property
    def bound(self) -> float:
        """The bound; infinite if all inputs are known."""
        return math.inf if self.below is None else self.below

    @property
    def summary(self) -> str:
        """Bound and guarantee, as a clause."""
        samples = counted(self.count, "sample")
        if self.below is None:
            return f"takes every input as known: {samples} are too few to keep {100 * self.share:g} % of known inputs"
        return (
            f"takes inputs as known if their {self.score} is below {self.below:.6g} ({self.accepted} of {samples}): on average over draws "
            f"of these, at least {100 * self.share:g} % of known inputs are kept"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        load(CHECK_SCORE)(self.score, self.version, self.below)
        if self.accepted > self.count or (self.below is None and self.accepted < self.count):
            raise ValueError("must satisfy accepted <= count, and accepted = count without a bound")
        return self


class Threshold(StrictModel):
    """A bound on an OOD score. Inputs with a lower score are accepted.

    The guarantee holds for inputs from the distribution of the calibration samples.

    Attributes:
        score: Name of the OOD score.
        below: The bound. `None` if no bound satisfies the guarantee; the threshold then gives no decisions.
        risk: Maximum error rate, as defined by `guarantee`.
        guarantee: Definition of the error rate. Files of earlier versions lack the field and mean
            `errors-among-accepted`.
        delta: Probability, over the draw of the calibration samples, that the guarantee fails. `None` for a
            guarantee on average.
        count: Number of calibration samples.
        accepted: Number of accepted calibration samples.
        errors: Number of wrong answers among the accepted samples.
        version: Version of the definitions of feature-based scores, `ood_scores.VERSION`.
    """

    score: str
    below: float | None = None
    risk: OpenShare
    guarantee: Guarantee = Field(
        default=Guarantee.ERRORS_AMONG_ACCEPTED,
        exclude_if=lambda value: value is Guarantee.ERRORS_AMONG_ACCEPTED,
    )
    delta: OpenShare | None = Field(default=None, exclude_if=is_none)
    count: int = Field(ge=1)
    accepted: int = Field(ge=0)
    errors: int = Field(ge=0)
    version: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)

    @property
    def coverage(self) -> float:
        """Fraction of accepted calibration samples."""
        return self.accepted / self.count

    @property
    def summary(self) -> str:
        """Bound and guarantee, as a clause; without a bound, the guarantee that no threshold satisfies."""
        promise = self.guarantee.clause(self.risk, self.delta)
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
