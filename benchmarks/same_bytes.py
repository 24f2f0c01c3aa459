"""Do two trees of hydractl do the same, to the last byte?

    python benchmarks/same_bytes.py OLD_TREE NEW_TREE [--only SUBSTRING]... [--expect SUBSTRING]... [--folder FOLDER] [--jobs N]

Runs the command lines of `same_bytes_cases.txt`, every stage on every family, in both trees (checkouts, each with a folder
`hydractl`), offline and on one thread, and compares exit codes, standard output and error, and every file written. Times and
the places of folders are left out. Prints a line a command line with OLD's exit code, what differs below it, and exits 1 if
anything does that is not expected.

`--only`: run the groups whose name holds the text. `--expect`: what is meant to differ, any text out of `GROUP: COMMAND LINE`
or of the difference; it is shown and not counted. `--folder`: work there, and leave it to look at: `inputs`, `old`, and
`new-NAME` for each NEW_TREE of that name. What OLD did there is remembered, and not run again while its code is the same.
`--jobs 1`: one tree after the other.

Models are those of OLD's `tests/support/variants.py`, as their libraries write them: what OLD lacks is not compared.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from same_bytes_inputs import EDITED, write_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HERE = Path(__file__).parent
WAYS = ("process", "terminal", "module")
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
        streams = "".join(f" {sign} {file}" for sign, file in (("<", self.stdin), (">", self.stdout)) if file)
        return f"{self.folder}: {way}{shlex.join(self.argv)}{streams}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run both trees and compare; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument("--only", action="append", default=[], metavar="SUBSTRING", help="groups")
    parser.add_argument("--expect", action="append", default=[], metavar="SUBSTRING", help="differences")
    parser.add_argument("--folder", type=Path, help="remembers what OLD does")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="trees at a time")
    options = parser.parse_args(argv)
    began = time.monotonic()
    sys.path.insert(0, str(options.old.resolve() / "tests"))
    from support.variants import VARIANTS

    cases = [
        case
        for case in read_cases((HERE / "same_bytes_cases.txt").read_text(), models_of(VARIANTS))
        if not options.only or any(text in case.folder for text in options.only)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        root = (options.folder or Path(scratch)).resolve()
        prepare(root, options.old, VARIANTS)
        with ThreadPoolExecutor(options.jobs) as pool:
            old = pool.submit(remember, options.old, cases, root)
            new = pool.submit(run_tree, options.new, cases, root, f"new-{options.new.resolve().name}")
            differs = compare(cases, old.result(), new.result(), options.expect)
    print(f"{time.monotonic() - began:.0f} s")
    return int(differs)


def prepare(root: Path, old: Path, variants: Sequence[Any]) -> None:
    """Write what command lines read, unless it is there, and forget what another tree did."""
    digest = hashlib.sha256()
    ours = (HERE / "same_bytes_inputs.py", HERE / "same_bytes_worker.py", old / "tests/support/variants.py")
    for path in (*ours, *sorted((old / "hydractl").rglob("*.py"))):
        digest.update(path.read_bytes())
    stamp = root / "stamp"
    if stamp.is_file() and stamp.read_text() == digest.hexdigest():
        return
    for name in ("inputs", "old"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "inputs").mkdir(parents=True)
    write_inputs(root / "inputs", variants)
    stamp.write_text(digest.hexdigest())


def remember(tree: Path, cases: Sequence[Case], root: Path) -> list[Seen]:
    """Run the groups that are not remembered; return what came of all."""
    memory = root / "old" / "memory.json"
    known: dict[str, Any] = json.loads(memory.read_text()) if memory.is_file() else {}
    groups = {name: list(lines) for name, lines in itertools.groupby(cases, key=lambda case: case.folder)}
    texts = {name: [str(case) for case in lines] for name, lines in groups.items()}
    unknown = [name for name in groups if known.get(name, {}).get("lines") != texts[name]]
    found = iter(run_tree(tree, [case for name in unknown for case in groups[name]], root, "old"))
    for name in unknown:
        known[name] = {"lines": texts[name], "seen": list(itertools.islice(found, len(texts[name])))}
    memory.write_text(json.dumps(known))
    return [seen for name in groups for seen in known[name]["seen"]]


def read_cases(text: str, models: Mapping[str, Sequence[str]]) -> Iterator[Case]:
    """Return every command line of the file, groups that are for several models written out."""
    words: dict[str, str] = {}
    group, lines = "", list[str]()
    for line in (*filter(None, (line.partition("#")[0].strip() for line in text.splitlines())), "[end]"):
        if line.startswith("["):
            for model in models.get(group, [""]):
                folder = f"{group.partition(' ')[2]} {model}" if model else group
                yield from (case(folder, command, model) for command in lines)
            group, lines = line.strip("[]"), []
        elif line.split()[1:2] == ["="]:
            words[line.split()[0]] = Template(line.partition("=")[2].strip()).safe_substitute(words)
        else:
            lines.append(Template(line).safe_substitute(words))


def models_of(variants: Sequence[Any]) -> dict[str, list[str]]:
    """Return the names of the models that `[each KIND]` and `[more KIND]` stand for."""
    found: dict[str, list[str]] = {"each edited": [name for name, *_ in EDITED]}
    families = set()
    for variant in variants:
        which = "more" if variant.family in families else "each"
        families.add(variant.family)
        found.setdefault(f"{which} {kind_of(variant)}", []).append(str(variant))
    return found


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


def run_tree(tree: Path, cases: Sequence[Case], root: Path, name: str) -> list[Seen]:
    """Run cases in a tree, in folders beneath `root / name`, and return what came of each."""
    place = root / name
    for folder in ("tmp", *{case.folder for case in cases}):
        shutil.rmtree(place / folder, ignore_errors=True)
    (place / "tmp").mkdir(parents=True)
    plan, results = place / "plan.json", place / "results.json"
    plan.write_text(json.dumps([asdict(case) for case in cases]))
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH"}}
    environment = kept | {
        "PYTHONPATH": str(tree.resolve()), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(place / "tmp"),
        "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "TERM": "xterm", "TYPER_USE_RICH": "0", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    places = map(str, (HERE / "same_bytes_worker.py", plan, results, place, root / "inputs"))
    subprocess.run([sys.executable, "-P", *places], env=environment, check=True)
    found: list[Seen] = json.loads(results.read_text())
    return found


def compare(cases: Sequence[Case], old: Sequence[Seen], new: Sequence[Seen], expected: Sequence[str]) -> bool:
    """Print the table; return whether anything differs that is not meant to."""
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
    return counts["DIFFERS"] > 0


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
