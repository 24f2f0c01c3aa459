"""The README of a repository that people have written into: what a push makes anew of it, and what stays.

What hydractl writes stands between two comments, and in keys of the metadata that tell what was measured. All else is
somebody's: text before and after the comments, other keys, and a licence or a base model that a push does not name itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydractl.errors import HubError, harmless, shortened

BEGIN = (
    "<!-- hydractl:begin: every push replaces the text from here to hydractl:end and keeps all other text -->"
)
END = "<!-- hydractl:end -->"
TAGS = ("hydractl", "base", "member", "hydra", "ensemble", "uncertainty")
"""Tags that hydractl may add."""
OURS = ("library_name", "metrics", "model-index", "model_name", "pipeline_tag")
"""Metadata keys that describe this model; values of an earlier push are dropped."""
_LONGEST = 300
"""Maximum number of characters of foreign text in a message."""
_FRONT = re.compile(r"\A\s*---[ \t]*\r?\n(?:(.*?)\r?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_MARK = re.compile(r"^<!-- hydractl:(begin|end)\b[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readme:
    """A README in its parts.

    Attributes:
        front: The metadata as they are written, YAML.
        metadata: What they say.
        before: Text before hydractl's part.
        after: Text after it.
    """

    front: str = ""
    metadata: Mapping[str, Any]
    before: str = ""
    after: str = ""

    @classmethod
    def read(cls, content: bytes | None) -> Readme:
        """Take a README apart; None where there is none.

        Raises:
            HubError: If it is not UTF-8, its metadata are no YAML, or one of the comments is gone.
        """
        try:
            text = (content or b"").decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise _unreadable(f"is not UTF-8 text: {error.reason} at byte {error.start}") from error
        front_matter = _FRONT.match(text)
        front = (front_matter[1] or "") if front_matter else ""
        body = text[front_matter.end() :] if front_matter else text
        marks = list(_MARK.finditer(body))
        if not marks:
            return cls(front=front, metadata=_parsed(front), before=body)
        if [mark[1] for mark in marks] != ["begin", "end"]:
            raise _unreadable(
                "does not have each of the comments `hydractl:begin` and `hydractl:end` once and in this order"
            )
        begin, end = marks
        return cls(
            front=front, metadata=_parsed(front), before=body[: begin.start()], after=body[end.end() :]
        )

    def text_field(self, key: str) -> str | None:
        """Return what the metadata say under a key, if that is a text."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) and value else None

    def with_part(self, name: str, metadata: Mapping[str, Any], text: str) -> str:
        """Return the README with another part of ours, under metadata that are theirs but for what ours say.

        Args:
            name: Of the model, as results call it.
            metadata: Ours.
            text: Ours too.
        """
        front, before = self._front(name, metadata), self.before.strip("\r\n")
        after = self.after.strip("\r\n")
        parts = (f"---\n{front}\n---", before, f"{BEGIN}\n\n{text}\n\n{END}", after)
        return "\n\n".join(filter(None, parts)) + "\n"

    def _front(self, name: str, ours: Mapping[str, Any]) -> str:
        """Return the metadata as they are to be written: to the letter as they were if they say the same."""
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - loads when it is wanted

        merged = {key: value for key, value in self.metadata.items() if key not in OURS or key in ours}
        merged |= {**ours, "tags": _tags(ours["tags"], self.metadata.get("tags"))}
        if index := [
            *ours.get("model-index", []),
            *_results_of_others(name, self.metadata.get("model-index")),
        ]:
            merged["model-index"] = index
        text = str(yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)).strip()
        return self.front if yaml.safe_load(text) == self.metadata else text


def _tags(ours: list[str], theirs: object) -> list[str]:
    others = [tag for tag in theirs if tag not in TAGS] if isinstance(theirs, list) else []
    return [*ours, *(tag for tag in others if tag not in ours)]


def _results_of_others(name: str, theirs: object) -> list[Any]:
    listed = theirs if isinstance(theirs, list) else []
    return [
        model_result
        for model_result in listed
        if isinstance(model_result, dict) and model_result.get("name") != name
    ]


def _parsed(front: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - as above

    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(front)):
            raise _unreadable("has metadata with YAML aliases (`*name`), which are not supported")
        metadata = yaml.safe_load(front)
    except (yaml.YAMLError, ValueError) as error:
        raise _unreadable(f"has metadata that are not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(metadata, dict | None):
        raise _unreadable("has metadata that are not a mapping")
    return metadata or {}


def _unreadable(why: str) -> HubError:
    return HubError(
        f"the README.md of the repository {why}",
        hint="nothing was pushed; correct the file on the Hub and push again, or push to another repository",
    )


def code(text: str) -> str:
    """Return somebody else's text as code, in which nothing is markup, nor ends a cell of a table."""
    return f"`{plain(shortened(text, _LONGEST)).replace('|', '¦')}`"


def plain(text: str) -> str:
    """Return somebody else's text as one line that ends no code."""
    return re.sub(r"\s+", " ", harmless(text)).replace("`", "'")
