"""What `eval` needs to know of any baseline. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from hydractl.data.reference import DataRef
from hydractl.settings import CheckedSettings

DATA, VAL = "data", "val"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineOptions(CheckedSettings):
    """Options of what is made of models and answers in their place: a subclass is a frozen dataclass of declared settings.

    Attributes:
        KIND: What `--compare` calls it.
        EXAMPLE: What hints show.
        MODULE: Its `BaselineModule`.
        SEVERAL: Whether it is made of several models.
        LABELLED: Whether labels of `reads` are read.
        TRAINS: Whether multiply-accumulates of its training are counted.
        REFUSED_AS_MEMBER: Why it cannot be a member of a row of several models; empty if it can.
        OWN_CONFIDENCE: Whether it says how confident it is, beside its probabilities.
    """

    KIND: ClassVar[str]
    EXAMPLE: ClassVar[str]
    MODULE: ClassVar[str]
    SEVERAL: ClassVar[bool] = False
    LABELLED: ClassVar[bool] = False
    TRAINS: ClassVar[bool] = False
    REFUSED_AS_MEMBER: ClassVar[str] = ""
    OWN_CONFIDENCE: ClassVar[bool] = False

    @property
    def checkpoints(self) -> int:
        """Of how many models it is made."""
        return 1

    @property
    def val(self) -> DataRef | None:
        """Held-out data that choose an option."""
        return None

    @property
    def reads(self) -> DataRef | None:
        """What it is fitted on, as the model reads it."""
        return None

    def made_of(self, checkpoints: int) -> Self:
        """Return the options of what is made of so many models; of one, where `SEVERAL` does not hold."""
        del checkpoints
        return self
