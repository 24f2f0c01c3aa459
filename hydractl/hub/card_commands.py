"""How a model was made, as its card tells it: of the steps in its header."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from hydractl.hub.readme import code, plain
from hydractl.manifest.document import OptionValue
from hydractl.manifest.header import Header, Step, steps_to

NUMBERED = ("finetune", "prune")
"""Commands that replace `{i}` in output names by a number."""


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
        settings_text = "; ".join(f"{name} {code(_written(value))}" for name, value in settings.items())
        lines.append(
            f"{number}. {code(f'hydractl {step.command}')} of {inputs or 'nothing'}"
            + (f": {settings_text}" if settings_text else "")
        )
    versions = ", ".join(f"{name} {version}" for name, version in steps[-1].versions.items())
    lines += ["", f"Versions: {versions}. `hydractl inspect {reference}` shows the digests of all inputs."]
    return "\n".join(lines)


def _commands(header: Header, steps: Sequence[Step]) -> Iterator[str]:
    """Yield the lines of a block of commands to paste, none where a step does not say what was typed.

    Steps of one command, which wrote several files, have the same words and inputs of the same digests.
    """
    groups: dict[tuple[object, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.argv, *(source.sha256 for source in step.inputs), step.command), []).append(
            step
        )
    outputs = [_output(header, group, steps) for group in groups.values()]
    if any(step.argv is None for step in steps) or None in outputs:
        return
    yield "```sh"
    for group, out in zip(groups.values(), outputs, strict=True):
        yield shlex.join(("hydractl", group[0].command, *map(plain, group[0].argv or ()), "-o", out or ""))
    yield from ("```", "")
    digests: dict[str, set[str]] = {}
    for source in (source for step in steps for source in step.inputs):
        digests.setdefault(source.name, set()).add(source.sha256)
    if ambiguous := [code(name) for name, sources_of_name in digests.items() if len(sources_of_name) > 1]:
        yield (
            f"Several files have the name {', '.join(ambiguous)}: give each a different name first, in "
            "the order of the steps below."
        )
    yield from ("File names without their folders. All settings, including defaults:", "")


def _output(header: Header, group: Sequence[Step], steps: Sequence[Step]) -> str | None:
    """Return what `-o` names of a command that wrote the files of some steps, None where one name cannot say them."""
    numbers: dict[str, int] = {}
    for step in group:
        read = (source.name for reader in steps for source in reader.inputs if source.made_by == step)
        for name in dict.fromkeys(map(plain, read)):
            member = step.options.get("member", len(numbers))
            numbers.setdefault(name, member if isinstance(member, int) else 0)
    if not numbers:
        return f"{header.kind.value}.st"
    several = len(numbers) > 1 or any(numbers.values()) or "--members" in (group[0].argv or ())
    first = next(iter(numbers))
    if not several:
        return first
    runs = re.finditer(r"\d+", first) if group[0].command in NUMBERED else ()
    forms = [f"{first[: run.start()]}{{i}}{first[run.end() :]}" for run in runs]
    fitting = (
        form
        for form in reversed(forms)
        if all(form.replace("{i}", str(number)) == name for name, number in numbers.items())
    )
    return next(fitting, None if len(numbers) > 1 else first)


def _written(value: OptionValue) -> str:
    return (",".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
