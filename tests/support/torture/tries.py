"""Run command lines in new folders and check the conditions for every result."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import hydractl
from support.torture.points import CANARY
from support.torture.worker import CPU_S, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


ROOT = Path(hydractl.__file__).parents[1]
TOKEN = "hf_tortureTORTUREtortureTORTUREtort"  # noqa: S105 - nobody's
DOCUMENTED = {0, 2, 3, 4, 5, 6}
LONG = 500
"""Largest allowed length of a line on standard error. Chosen by hand; doubling accepts longer messages."""
BESIDE = 12
"""Number of parallel commands that mostly wait. Chosen by hand; doubling uses more memory."""
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(kw_only=True)
class Result:
    """Result of a command.

    Attributes:
        code: Exit code.
        cpu: Processor seconds.
        wall: Seconds on the clock.
        grown: Peak memory beyond the worker's, in bytes.
        out: Standard output.
        err: Standard error.
        record: Lines written by `Points`.
        files: Files of the folder; None for links and other entries.
        temporary: Names of files left in TMPDIR.
    """

    code: int
    cpu: float
    wall: float
    grown: int
    out: str
    err: str
    record: list[str]
    files: dict[str, bytes | None]
    temporary: list[str]

    @property
    def points(self) -> list[str]:
        """Calls that concern the folders, in order."""
        return [line.removeprefix("point ") for line in self.record if line.startswith("point ")]

    @property
    def met(self) -> bool:
        """Whether the planned event occurred."""
        return any(line.startswith("met ") for line in self.record)

    def faults(self, codes: set[int] = DOCUMENTED) -> Iterator[str]:
        """Yield violations of the conditions for every command line.

        Args:
            codes: Allowed exit codes.
        """
        if self.code not in codes:
            yield f"exit {self.code}: {self.err[-200:]!r}"
        elif (
            self.code in DOCUMENTED - {0}
            and len(re.findall(r"^error: ", self.err, re.MULTILINE)) != 1
            and "Usage: " not in self.err  # Commands without arguments print help.
        ):
            yield f"exit {self.code} without one error line: {self.err[:200]!r}"
        if "Traceback" in self.err or "panicked" in self.err:
            yield f"traceback: {self.err[-300:]!r}"
        if long := [line for line in self.err.splitlines() if len(line) > LONG]:
            yield f"a line of {len(long[0])} characters: {long[0][:100]!r}"
        if CONTROLS.search(self.err):
            yield f"control characters: {self.err[:200]!r}"
        if self.cpu > CPU_S:
            yield f"took {self.cpu:.0f} s"
        if self.grown > MEMORY:
            yield f"took {self.grown >> 20} MiB"
        yield from (line for line in self.record if line.startswith("offence "))
        told = [self.out, self.err, *(name for name, x in self.files.items() if x and TOKEN.encode() in x)]
        if any(TOKEN in text for text in told) or any(x and TOKEN.encode() in x for x in self.files.values()):
            yield "the token is told"


@dataclass
class Place:
    """Folder of a command: current folder `work`, temporary folder `tmp`, and output files."""

    folder: Path
    worker: Worker

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def run(self, *words: object, **asked: Any) -> Result:
        """Run a command line in this folder."""
        return self.side_by_side([words], **asked)[0]

    def side_by_side(self, lines: Sequence[Sequence[object]], **asked: Any) -> list[Result]:
        """Run command lines in this folder at the same time. Their output and records are mixed."""
        for name in ("out", "err", "record"):
            (self.folder / name).unlink(missing_ok=True)
        request = {"folder": str(self.folder), "environment": {}, **asked}
        found = self.worker.ask([{**request, "words": [str(word) for word in line]} for line in lines])
        return [self.ended(**one) for one in found]

    def ended(self, **limits: Any) -> Result:
        """Return the result of a command in this folder."""
        out, err, record = (self._said(name) for name in ("out", "err", "record"))
        return Result(
            **limits, out=out, err=err, record=record.splitlines(), files=contents(self.work),
            temporary=sorted(p.name for p in (self.folder / "tmp").iterdir()),
        )  # fmt: skip

    def _said(self, name: str) -> str:
        path = self.folder / name
        return path.read_bytes()[: 1 << 22].decode(errors="backslashreplace") if path.exists() else ""


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the content of all files below a folder by name; None for entries that are not regular files."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = (
            path.read_bytes() if path.is_file() and not path.is_symlink() else None
        )
    return found


@dataclass
class Worker:
    """The process that forks command lines."""

    process: subprocess.Popen[str]
    folder: Path
    count: int = field(default=0, init=False)

    @classmethod
    def start(cls, python: str | os.PathLike[str], folder: Path, **environment: str) -> Self:
        """Start the worker with an interpreter, in a separate folder."""
        settings = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "PYTEST_"))}
        settings |= {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
            "HF_HOME": str(folder / "hub"),
            "HF_TOKEN": TOKEN,
            **environment,
        }
        process = subprocess.Popen(
            [python, "-c", "from support.torture.worker import main; main()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings, text=True, cwd=folder,
        )  # fmt: skip
        return cls(process, folder)

    def ask(self, tries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run command lines at the same time."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(tries, default=asdict) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that tries has ended"
        found: list[dict[str, Any]] = json.loads(answer)
        return found

    def one_after_the_other(
        self, tries: Sequence[tuple[Place, Sequence[object]]], **asked: Any
    ) -> list[Result]:
        """Run command lines in a single process, each in a separate place.

        Commands without a result (the process ended or used too much memory) run again in separate processes.
        """
        several = [{"folder": str(place.folder), "words": [str(w) for w in words]} for place, words in tries]
        quiet = {"at": -1, "number": 0}
        request = {
            "folder": several[0]["folder"],
            "environment": {},
            "plan": quiet,
            "several": several,
            **asked,
        }
        (end,) = self.ask([request])
        found = []
        for place, words in tries:
            path = place.folder / "ended"
            if end["grown"] > MEMORY or not path.exists():
                found.append(place.run(*words, **asked))
            else:
                found.append(place.ended(wall=0.0, grown=0, **json.loads(path.read_text())))
        return found

    def together(self, tries: Sequence[tuple[Place, Sequence[object]]], **asked: Any) -> list[Result]:
        """Run command lines in parallel, each in a separate place."""
        found: list[Result] = []
        for first in range(0, len(tries), BESIDE):
            some = tries[first : first + BESIDE]
            request = {"environment": {}, **asked}
            lines = [
                {**request, "folder": str(place.folder), "words": [str(w) for w in words]}
                for place, words in some
            ]
            found += [place.ended(**end) for (place, _), end in zip(some, self.ask(lines), strict=True)]
        return found

    def place(self, files: Path | Mapping[str, bytes] | None = None) -> Place:
        """Create a new folder with a copy of files."""
        self.count += 1
        place = Place(self.folder / f"try-{self.count}", self)
        (place.folder / "tmp").mkdir(parents=True)
        if isinstance(files, Path):
            shutil.copytree(files, place.work, symlinks=True)
        else:
            place.work.mkdir()
            for name, data in (files or {}).items():
                (place.work / name).parent.mkdir(parents=True, exist_ok=True)
                (place.work / name).write_bytes(data)
        (place.work / CANARY).write_bytes(b"")
        return place

    def leave(self, place: Place) -> None:
        """Remove the folder of a place."""
        shutil.rmtree(place.folder, ignore_errors=True)

    def end(self) -> None:
        """End the worker process."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)
