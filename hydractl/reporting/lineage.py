"""The stages that led to a file, as a tree that says everything once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.manifest.header import Header, Step
    from hydractl.manifest.report import Origin

DIGEST_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A file and what it was made of.

    Attributes:
        name: Its own.
        sha256: Of its bytes; empty where it is not told.
        step: The command line that made it, without files; empty where nothing says one.
        is_repeated: Whether it is told above what it was made of.
        made_of: What the command read.
    """

    name: str
    sha256: str = ""
    step: str = ""
    is_repeated: bool = False
    made_of: tuple[Node, ...] = ()


def lineage(name: str, step: Step | None) -> Node:
    """Return the tree of a file; what several stages read is described where it comes first."""
    seen_digests: set[str] = set()

    def grow(name: str, sha256: str, step: Step | None) -> Node:
        is_repeated = step is not None and sha256 in seen_digests
        seen_digests.add(sha256)
        inputs = () if step is None or is_repeated else step.inputs
        return Node(
            name=name,
            sha256=sha256,
            step="" if step is None else command_line(step),
            is_repeated=is_repeated,
            made_of=tuple(grow(source.name, source.sha256, source.made_by) for source in inputs),
        )

    return grow(name, "", step)


def member_names(model: Header | Origin) -> tuple[str, ...]:
    """Return what the members of a hydra were called, or `member 0`, ... where its lineage does not say."""
    count, step = len(model.masks), model.made_by
    while step is not None and step.command != "fuse":  # trained since: a step's model is its first input
        step = step.inputs[0].made_by if step.inputs else None
    names = () if step is None else tuple(i.name for i in step.inputs[:count])  # data come after the members
    return names if len(names) == count else tuple(f"member {i}" for i in range(count))


def command_line(step: Step) -> str:
    """Return a step as one would type it, without files."""
    options = dict(step.options) | ({"seed": step.seed} if step.seed is not None else {})
    return f"{step.command} {pairs(options)}".rstrip()


def short(digest: str) -> str:
    """Return the beginning of a digest, enough to tell files apart."""
    return digest[: len("sha256:") + DIGEST_SHOWN]


def pairs(options: Mapping[str, object]) -> str:
    """Return options as `name=value`, sorted."""
    return " ".join(f"{name}={plain(value)}" for name, value in sorted(options.items()))


def plain(value: object) -> str:
    """Return an option's value as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(plain(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
