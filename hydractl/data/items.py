"""What every data set offers, whatever its items are."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from hydractl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


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


class Labels(NamedTuple):
    """What is said of the classes of items; as in `Items`."""

    class_names: tuple[str, ...] = ()
    labels: tuple[int, ...] | None = None
    numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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

    content: ClassVar[Content]

    name: str
    class_names: tuple[str, ...] = ()
    labels: tuple[int, ...] | None = None
    numbered: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """Return how many items there are."""

    @abstractmethod
    def item_digest(self, index: int) -> bytes:
        """Return a SHA-256 of one item's content; every stage takes the digests before anything is computed.

        Raises:
            DataError: If the item cannot be read.
        """

    @abstractmethod
    def at(self, indices: Sequence[int]) -> Self:
        """Return the items at `indices`, which are in range, under labels that the caller mends."""

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

    def taken(self, indices: Sequence[int], *, name: str | None = None) -> Self:
        """Return the items at `indices`, all classes kept, under another name if one is given.

        Raises:
            ValueError: If an index is out of range.
        """
        if any(not 0 <= index < len(self) for index in indices):
            raise ValueError(f"an index is outside 0..{len(self) - 1}")
        labels = None if self.labels is None else tuple(self.labels[index] for index in indices)
        return replace(self.at(indices), labels=labels, name=name or self.name)

    def of_classes(self, classes: Sequence[int]) -> Self:
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
        kept = [i for i, label in enumerate(self.labels) if label in position]
        return replace(
            self.at(kept),
            class_names=tuple(self.class_names[label] for label in classes),
            labels=tuple(position[self.labels[i]] for i in kept),
        )


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
