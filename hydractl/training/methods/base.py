"""What `finetune` needs to know of any `--method`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hydractl.settings import CheckedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMethod(CheckedSettings):
    """Options of a way to train: a subclass is a frozen dataclass of declared settings.

    Attributes:
        KIND: What `--method` calls it.
        EXAMPLE: What hints show.
        ADAPTER: Path of a function of the options and the number of members that returns the `Adapter`; None if weights train as
            without a method.
        TAKES_TEACHERS: Whether its models can learn from teachers.
        ONE_NETWORK: Whether members are outputs of one network: a forward pass of it counts once.
    """

    KIND: ClassVar[str]
    EXAMPLE: ClassVar[str]
    ADAPTER: ClassVar[str | None] = None
    TAKES_TEACHERS: ClassVar[bool] = True
    ONE_NETWORK: ClassVar[bool] = False

    @property
    def models(self) -> int:
        """How many models a run makes."""
        return 1

    def check_model(self, model: str) -> None:
        """Refuse a model by its reference alone.

        Raises:
            UsageError: If it cannot be trained so.
        """

    def reference(self, model: str) -> str:
        """Return the reference of the model that trains in the place of MODEL.

        Raises:
            UsageError: If none can be made of it.
        """
        return model
