"""How a model was made, as its card tells it: of the steps in its header."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from hydractl.hub.readme import code, plain
from hydractl.manifest.document import Option
from hydractl.manifest.header import Header, Step, steps_to


def making(header: Header, reference: str) -> str:
    """Return how a model was made, as a section of its card: commands to paste, and every step with its inputs and settings.

    Args:
        header: Of the model; nothing is returned where it does not say what made it.
        reference: What hydractl calls the model.
    """
    steps = steps_to(header.made_by)
    if not steps:
        return ""
    lines = ["## How it was made", "", *_commands(header, steps)]
    for number, step in enumerate(steps, start=1):
        inputs = ", ".join(code(source.name) for source in step.inputs)
        settings = dict(step.options) | ({} if step.seed is None else {"seed": step.seed})
        told = "; ".join(f"{name} {code(_written(value))}" for name, value in settings.items())
        lines.append(
            f"{number}. `hydractl {step.command}` of {inputs or 'nothing'}" + (f": {told}" if told else "")
        )
    versions = ", ".join(f"{name} {version}" for name, version in steps[-1].versions.items())
    lines += ["", f"Versions: {versions}. `hydractl inspect {reference}` shows digests of all inputs."]
    return "\n".join(lines)


def _commands(header: Header, steps: Sequence[Step]) -> Iterator[str]:
    """Yield the lines of a block of commands to paste, none where a step does not say what was typed."""
    names: dict[tuple[str, ...], list[str]] = {}
    for step in steps:
        if step.typed is None:
            return
        line = ("hydractl", step.command, *map(plain, step.typed))
        read = (one for other in steps for one in other.inputs if one.made_by == step)
        names.setdefault(line, []).extend(plain(one.name) for one in read)
    yield "```sh"
    for line, found in names.items():
        out = found[0] if found else f"{header.kind.value}.st"
        if len({*found}) > 1:
            out = min(re.sub(r"\d+", "{i}", name) for name in found)
        yield shlex.join((*line, "-o", out))
    yield from (
        "```",
        "",
        "Paths are left out: files are named as they were. All settings, with defaults:",
        "",
    )


def _written(value: Option) -> str:
    return (",".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
