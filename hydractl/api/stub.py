"""Write `stages.pyi`, the functions' signatures for type checkers and editors; `--check` compares instead."""

from __future__ import annotations

import sys
from pathlib import Path

from hydractl.api.stage import StageFunction, keyword_of, type_of
from hydractl.api.stages import STAGES

FILE = Path(__file__).with_name("stages.pyi")
HEAD = '''"""The stages as functions. Made by `python -m hydractl.api.stub`; not written by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from hydractl.api.stage import StageFunction
from hydractl.progress import Progress
{imports}

STAGES: tuple[StageFunction, ...]
'''


def stub() -> str:
    """Return what the file holds."""
    imports = sorted("from {} import {}".format(*stage.report.split(":")) for stage in STAGES)
    return HEAD.format(imports="\n".join(imports)) + "".join(map(_function, STAGES))


def _function(stage: StageFunction) -> str:
    first = [o for o in stage.options if o.setting.positional]
    keyword_only = [o for o in stage.options if not o.setting.positional]
    lines = [
        f"    {keyword_of(o)}: {type_of(o)}{'' if o.default is ... else ' = ...'},"
        for o in (*first, *keyword_only)
    ]
    lines.insert(len(first), "    *,")
    docstring = "\n".join(f"    {line}".rstrip() for line in stage.doc.rstrip().splitlines())
    return (
        f"\ndef {stage.name}(\n"
        + "\n".join(lines)
        + "\n    progress: Callable[[str], object] | Progress | None = ...,\n"
        + f') -> {stage.report.partition(":")[2]}:\n    r"""{docstring.strip()}\n    """\n'
    )


def main(argv: list[str]) -> int:
    """Write or check the file; returns the exit code."""
    text = stub()
    if argv == ["--check"]:
        up_to_date = FILE.is_file() and FILE.read_text(encoding="utf-8") == text
        if not up_to_date:
            sys.stderr.write(f"{FILE} is not what the options say: `python -m hydractl.api.stub`\n")
        return 0 if up_to_date else 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
