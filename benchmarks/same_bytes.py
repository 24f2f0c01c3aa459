"""Do two trees of hydractl do the same, to the last byte?

    python benchmarks/same_bytes.py OLD_TREE NEW_TREE [--only SUBSTRING] [--expect SUBSTRING]... [--jobs N] [--keep FOLDER]

Runs the command lines of `same_bytes_cases.txt`, every stage on every family, in both trees (checkouts, each with a folder
`hydractl`), offline and on one thread, and compares exit codes, standard output and error, and every file written. Times and
the names of folders are left out. Prints a line a command line, what differs below it, and exits 1 if anything does.

`--only` runs the groups whose name holds the text; it may be given several times. `--expect` takes a text of a line
(`GROUP: COMMAND LINE`, or `WHAT` below it) that is meant to differ; it is shown and not counted. `--jobs 2`, the default, runs both
trees at a time. `--keep` leaves the folders of both runs, `old` and `new`, in a folder, to look at.

Models are those of the OLD tree's `tests/support/variants.py`, written by their libraries: what OLD lacks is not compared.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from same_bytes_inputs import write_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
WAYS = ("process", "terminal", "module")
KINDS = {"text": "text", "vision": "image"}
SHOWN = 12
"""Lines of a difference."""
Seen = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command line.

    Attributes:
        folder: Of its group, where it runs.
        argv: Without the program.
        how: One of `WAYS`, or `main`.
        stdin: A file, or empty.
        stdout: A file, or empty.
    """

    folder: str
    argv: tuple[str, ...]
    how: str
    stdin: str = ""
    stdout: str = ""

    def __str__(self) -> str:
        way = "" if self.how == "main" else f"{self.how}: "
        return f"{self.folder}: {way}{shlex.join(self.argv)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run both trees and compare; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument("--only", action="append", default=[], metavar="SUBSTRING", help="groups")
    parser.add_argument("--expect", action="append", default=[], metavar="SUBSTRING", help="differences")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="trees at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(options.old.resolve() / "tests"))
    from support.variants import VARIANTS

    cases = [
        case
        for case in read_cases((HERE / "same_bytes_cases.txt").read_text(), VARIANTS)
        if not options.only or any(text in case.folder for text in options.only)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        root = (options.keep or Path(scratch)).resolve()
        inputs = root / "inputs"
        inputs.mkdir(parents=True)
        write_inputs(inputs, VARIANTS)
        trees = {"old": options.old, "new": options.new}
        with ThreadPoolExecutor(options.jobs) as pool:
            old, new = pool.map(lambda name: run_tree(trees[name], cases, root / name, inputs), trees)
    return compare(cases, old, new, options.expect)


def read_cases(text: str, variants: Sequence[Any]) -> Iterator[Case]:
    """Return every command line of the file, groups for all models written out."""
    words: dict[str, str] = {}
    group, models = "", [""]
    first = {variant.family: str(variant) for variant in reversed(variants)}
    lines: list[str] = []
    for line in (*filter(None, (line.partition("#")[0].strip() for line in text.splitlines())), "[end]"):
        if line.startswith("["):
            yield from (case(model or group, command, model) for model in models for command in lines)
            group, lines = line.strip("[]"), []
            which, _, kind = group.partition(" ")
            models = (
                [
                    str(v)
                    for v in variants
                    if kind_of(v) == kind and (str(v) in first.values()) == (which == "each")
                ]
                if which in {"each", "more"}
                else [""]
            )
        elif line.split()[1:2] == ["="]:
            words[line.split()[0]] = Template(line.partition("=")[2].strip()).safe_substitute(words)
        else:
            lines.append(Template(line).safe_substitute(words))


def kind_of(variant: Any) -> str:  # noqa: ANN401 - what tests call a variant
    """Return whether a model reads images, texts, or compares both."""
    towers = {key.partition(".")[0] for key in variant.options if "." in key}
    if len(towers) > 1:
        return "pair"
    return "image" if towers or variant.options.keys() & {"img_size", "image_size"} else "text"


def case(folder: str, line: str, model: str) -> Case:
    """Read one line."""
    words = shlex.split(Template(line).substitute(MODEL=model) if model else line)
    streams = {"<": "", ">": ""}
    while len(words) > 2 and words[-2] in streams:
        streams[words[-2]] = words[-1]
        words = words[:-2]
    way = words[0].removesuffix(":")
    how, argv = (way, words[1:]) if way in WAYS else ("main", words)
    return Case(folder=folder, argv=tuple(argv), how=how, stdin=streams["<"], stdout=streams[">"])


def run_tree(tree: Path, cases: Sequence[Case], root: Path, inputs: Path) -> list[Seen]:
    """Run all cases in a tree, in folders beneath `root`, and return what came of each."""
    (root / "tmp").mkdir(parents=True)
    plan, results = root / "plan.json", root / "results.json"
    plan.write_text(json.dumps([asdict(case) for case in cases]))
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH"}}
    environment = kept | {
        "PYTHONPATH": str(tree.resolve()), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(root / "tmp"),
        "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "TERM": "xterm", "TYPER_USE_RICH": "0", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    places = map(str, (HERE / "same_bytes_worker.py", plan, results, root, inputs))
    subprocess.run([sys.executable, "-P", *places], env=environment, check=True)
    found: list[Seen] = json.loads(results.read_text())
    return found


def compare(cases: Sequence[Case], old: Sequence[Seen], new: Sequence[Seen], expected: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    counts: Counter[str] = Counter()
    for one, before, after in zip(cases, old, new, strict=True):
        found = list(differences(before, after))
        meant = [what for what in found if any(text in f"{one}\n{what}" for text in expected)]
        verdict = "same" if not found else "expected" if len(meant) == len(found) else "DIFFERS"
        counts[verdict] += 1
        print(f"{verdict:8} {before['code']:>3} {one}")
        for what in found:
            print("\n".join(f"             {line}" for line in what.splitlines()))
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("same", "expected", "DIFFERS")))
    return int(counts["DIFFERS"] > 0)


def differences(old: Seen, new: Seen) -> Iterator[str]:
    """Return what differs, each as a text."""
    if old["code"] != new["code"]:
        yield f"exit code: {old['code']} became {new['code']}"
    for stream in ("stdout", "stderr"):
        before, after = (seen[stream].splitlines() for seen in (old, new))
        changed = [
            line
            for line in difflib.unified_diff(before, after, n=0, lineterm="")
            if not line.startswith(("---", "+++", "@@"))
        ]
        if changed or old[stream] != new[stream]:
            more = len(changed) - SHOWN
            shown = [*changed[:SHOWN], *([f"... and {more} more lines"] if more > 0 else [])]
            yield "\n".join([f"{stream}:", *shown])
    for name in sorted(old["files"].keys() | new["files"].keys()):
        digests = [seen["files"].get(name, "as it was") for seen in (old, new)]
        if digests[0] != digests[1]:
            yield f"file: {name}: {digests[0]} became {digests[1]}"


if __name__ == "__main__":
    sys.exit(main())
