"""Sets of texts, alone or in pairs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias

from typing_extensions import override

from hydractl.data.items import Content, Items

if TYPE_CHECKING:
    from collections.abc import Sequence

Text: TypeAlias = "str | tuple[str, str]"
"""One text, or two that belong together, as a premise and a hypothesis do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextSet(Items):
    """Texts in memory; where they were read from does not count for their digests."""

    content = Content.TEXTS

    texts: tuple[Text, ...]

    @override
    def __len__(self) -> int:
        return len(self.texts)

    @override
    def item_digest(self, index: int) -> bytes:
        return hashlib.sha256(json.dumps(self.texts[index]).encode()).digest()

    @override
    def at(self, indices: Sequence[int]) -> Self:
        return replace(self, texts=tuple(self.texts[index] for index in indices))
