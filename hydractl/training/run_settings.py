"""What an unfinished run depends on, setting by setting, so that a refusal names what differs in this run."""

from __future__ import annotations

from collections.abc import Mapping

from hydractl.runtime import digest_text

LONGEST, MOST = 60, 3
"""Maximum length of a value in a message, and maximum number of settings in it."""


def texts_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as short texts: of a long value its digest, of None nothing."""
    texts = {name: _text(value) for name, value in settings.items() if value is not None}
    return {name: text if len(text) <= LONGEST else digest_text(text)[:19] for name, text in texts.items()}


def stored_texts(value: object) -> dict[str, str]:
    """Return the settings that a file holds; none where an older version wrote it."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return which settings differ, from which value to which; None where nothing is known of the run before."""
    if not before:
        return None
    names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    texts = [
        f"`{name}` was {before.get(name, 'not set')}, is now {after.get(name, 'not set')}" for name in names
    ]
    remainder = [f"{len(texts) - MOST} more"] if len(texts) > MOST else []
    return "; ".join((*texts[:MOST], *remainder)) or None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
