"""What a report keeps of single answers: how often each class is right, and inputs that are worth a look."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import StrictModel
from hydractl.manifest.terms import MOST_CLASSES, MOST_CONFUSIONS, MOST_EXAMPLES

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
