"""Heads of keys and values that several query heads share. Importing it loads no pydantic."""

from __future__ import annotations

from collections.abc import Iterable


def shared_keys(heads: Iterable[int], sharing: int) -> list[int]:
    """Return the numbers of the key heads of query heads, increasing, where `sharing` query heads share each."""
    return sorted({head // sharing for head in heads})
