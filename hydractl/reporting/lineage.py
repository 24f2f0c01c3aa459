"""Tree of the stages that led to a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.manifest.header import Header, Step
    from hydractl.manifest.report import Origin

DIGEST_SHOWN = 12
"""Number of hexadecimal digits of a digest in texts: 48 bits, so equal beginnings of different files are
improbable. Chosen by hand; twice the number makes lines longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A file and its inputs.

    Attributes:
        name: Name of the file.
        sha256: Digest of the file; empty if unknown.
        step: Command line that wrote the file, without file names; empty if unknown.
        is_repeated: Whether the inputs of this file are described earlier in the tree.
        made_of: Inputs of the command.
    """

    name: str
    sha256: str = ""
    step: str = ""
    is_repeated: bool = False
    made_of: tuple[Node, ...] = ()


def lineage(name: str, step: Step | None) -> Node:
    """Return the lineage tree of a file. Repeated files have inputs only at their first place."""
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
    """Return the names of a hydra's members, or `member 0`, ... if the lineage does not record names."""
    count, step = len(model.masks), model.made_by
    # the hydra was trained after the fusion: the model of a step is its first input
    while step is not None and step.command != "fuse":
        step = step.inputs[0].made_by if step.inputs else None
    # data sets come after the members
    names = () if step is None else tuple(i.name for i in step.inputs[:count])
    return names if len(names) == count else tuple(f"member {i}" for i in range(count))


def command_line(step: Step) -> str:
    """Return a step as a command line, without file names."""
    options = dict(step.options) | ({"seed": step.seed} if step.seed is not None else {})
    return f"{step.command} {pairs(options)}".rstrip()


def short(digest: str) -> str:
    """Return the first `DIGEST_SHOWN` digits of a digest, with its prefix."""
    return digest[: len("sha256:") + DIGEST_SHOWN]


def pairs(options: Mapping[str, object]) -> str:
    """Return options as `name=value`, sorted by name."""
    return " ".join(f"{name}={plain(value)}" for name, value in sorted(options.items()))


def plain(value: object) -> str:
    """Return an option's value as typed on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(plain(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
