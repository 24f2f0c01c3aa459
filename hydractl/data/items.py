"""What every data set offers, whatever its items are."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from hydractl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


LABELS_HINT = (
    "a folder has one sub-folder a class; a table a column `label`, or one that you name: `::label=COLUMN`"
)


class Content(StrEnum):
    """What the items are; the value is how messages call them."""

    IMAGES = "images"
    TEXTS = "texts"

    @property
    def one(self) -> str:
        """One of them."""
        return self.value.removesuffix("s")


class Items(ABC):
    """Images or texts in a fixed order, with or without labels.

    Safe to read from several threads.

    Attributes:
        content: What the items are.
        name: What reports call the set; holds no absolute path.
        class_names: One name a class, in the order that labels count; empty without labels.
        labels: For each item an index into `class_names`, or None.
        numbered: Whether classes have no names: a table's labels are whole numbers, which are a model's class indices. A
            folder's sub-folder `7` has a name, and so has a class that a data set calls so.
    """

    __slots__ = ()

    content: ClassVar[Content]
    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None
    numbered: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """Return how many items there are."""

    @abstractmethod
    def item_digest(self, index: int) -> bytes:
        """Return a SHA-256 of one item's content.

        Raises:
            DataError: If the item cannot be read.
        """

    @abstractmethod
    def selected(
        self,
        indices: tuple[int, ...],
        *,
        class_names: tuple[str, ...],
        labels: tuple[int, ...] | None,
        name: str,
    ) -> Items:
        """Return the items at `indices`, which are in range, under other labels and another name."""

    def fingerprint(self, digests: Iterable[bytes] | None = None) -> str:
        """Return `sha256:...` of the selected items, their labels and the class names, in order.

        The same content gives the same fingerprint wherever it lies.

        Args:
            digests: `item_digest` of every item, in order; None reads them all.
        """
        sha = hashlib.sha256(json.dumps([len(self), self.class_names, self.labels]).encode())
        for digest in map(self.item_digest, range(len(self))) if digests is None else digests:
            sha.update(digest)
        return f"sha256:{sha.hexdigest()}"

    def taken(self, indices: Sequence[int], *, name: str | None = None) -> Items:
        """Return the items at `indices`, all classes kept, under another name if one is given.

        Raises:
            ValueError: If an index is out of range.
        """
        if any(not 0 <= index < len(self) for index in indices):
            raise ValueError(f"an index is outside 0..{len(self) - 1}")
        labels = None if self.labels is None else tuple(self.labels[index] for index in indices)
        return self.selected(
            tuple(indices), class_names=self.class_names, labels=labels, name=name or self.name
        )

    def of_classes(self, classes: Sequence[int]) -> Items:
        """Return the items of some classes, labels counted from 0 in the order of `classes`.

        Raises:
            DataError: If the set has no labels.
        """
        if self.labels is None:
            raise DataError(
                f"{self.name}: has no labels, so `classes=` cannot choose among them",
                hint=LABELS_HINT,
            )
        position = {label: place for place, label in enumerate(classes)}
        kept = tuple((i, position[label]) for i, label in enumerate(self.labels) if label in position)
        return self.selected(
            tuple(i for i, _ in kept),
            class_names=tuple(self.class_names[label] for label in classes),
            labels=tuple(label for _, label in kept),
            name=self.name,
        )
