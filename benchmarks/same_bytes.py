"""Do two trees of hydractl do the same, to the last byte?

    python benchmarks/same_bytes.py OLD_TREE NEW_TREE [--only SUBSTRING]... [--expect SUBSTRING]... [--folder FOLDER] [--jobs N]

Runs the command lines of `same_bytes_cases.txt`, every stage on every family, in both trees (checkouts, each with a folder
`hydractl`), offline and on one thread, and compares exit codes, standard output and error, and every file written. Times and
the places of folders are left out. Prints a line a command line with OLD's exit code, what differs below it, and exits 1 if
anything does that is not expected.

`--only`: run the groups whose name holds the text. `--expect`: what is meant to differ, any text out of `GROUP: COMMAND LINE`
or of the difference; it is shown and not counted. `--folder`: work there, and leave it to look at: `inputs`, `old`, and
`new-NAME` for each NEW_TREE of that name. What a tree did there is remembered, and not run again while its code is the same.
`--jobs 1`: one tree after the other.

Models are those of OLD's `tests/support/variants.py`, as their libraries write them: what OLD lacks is not compared.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
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
STAMP = "stamp"
"""The file that says of which code the other files of a folder are."""
OF_TESTS = "tiny_trunk_"
"""What names of architectures begin with that tests add to timm, and no other process knows."""
SHOWN = 12
"""Lines of a difference."""
Seen = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command line.

    Attributes:
        group: What it is run with, in one folder.
        argv: Without the program.
        how: One of `WAYS`, or `main`.
        stdin: A file, or empty.
        stdout: A file, or empty.
    """

    group: str
    argv: tuple[str, ...]
    how: str
    stdin: str = ""
    stdout: str = ""

    def __str__(self) -> str:
        way = "" if self.how == "main" else f"{self.how}: "
        streams = "".join(f" {sign} {file}" for sign, file in (("<", self.stdin), (">", self.stdout)) if file)
        return f"{self.group}: {way}{shlex.join(self.argv)}{streams}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run both trees and compare; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument("--only", action="append", default=[], metavar="SUBSTRING", help="groups")
    parser.add_argument("--expect", action="append", default=[], metavar="SUBSTRING", help="differences")
    parser.add_argument("--folder", type=Path, help="remembers what was done")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="trees at a time")
    options = parser.parse_args(argv)
    began = time.monotonic()
    sys.path.insert(0, str(options.old.resolve() / "tests"))
    from support.variants import VARIANTS

    # a process of its own does not know the architectures that tests add to timm
    variants = [v for v in VARIANTS if OF_TESTS not in repr(v.options)]
    cases = [
        case
        for case in read_cases((HERE / "same_bytes_cases.txt").read_text(), models_of(variants))
        if not options.only or any(text in case.group for text in options.only)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        root = (options.folder or Path(scratch)).resolve()
        inputs = prepare(root / "inputs", options.old / "tests/support/variants.py", variants)
        trees = {root / "old": options.old, root / f"new-{options.new.resolve().name}": options.new}
        with ThreadPoolExecutor(options.jobs) as pool:
            before, after = pool.map(lambda folder: run_tree(trees[folder], cases, folder, inputs), trees)
    differs = compare(cases, before, after, options.expect)
    print(f"{time.monotonic() - began:.0f} s")
    return int(differs)


def prepare(folder: Path, table: Path, variants: Sequence[Any]) -> Path:
    """Write what command lines read, unless it is there as it would be now; return the folder."""
    stamp = digest_of(HERE / "same_bytes_inputs.py", table)
    if not is_of(folder, stamp):
        write_inputs(folder, variants)
        (folder / STAMP).write_text(stamp)
    return folder


def digest_of(*files: Path) -> str:
    """Return a digest of all files together."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_of(folder: Path, stamp: str) -> bool:
    """Return whether a folder bears a stamp; one that does not is emptied."""
    if (folder / STAMP).is_file() and (folder / STAMP).read_text() == stamp:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return False


def read_cases(text: str, models: Mapping[str, Sequence[str]]) -> Iterator[Case]:
    """Return every command line of the file, groups that are for several models written out."""
    words: dict[str, str] = {}
    group, lines = "", list[str]()
    for line in (*filter(None, (line.partition("#")[0].strip() for line in text.splitlines())), "[end]"):
        if line.startswith("["):
            for model in models.get(group, [""]):
                name = f"{group.partition(' ')[2]} {model}" if model else group
                yield from (case(name, command, model) for command in lines)
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


def case(group: str, line: str, model: str) -> Case:
    """Read one line."""
    words = shlex.split(Template(line).substitute(MODEL=model) if model else line)
    streams = {"<": "", ">": ""}
    while len(words) > 2 and words[-2] in streams:
        streams[words[-2]] = words[-1]
        words = words[:-2]
    way = words[0].removesuffix(":")
    how, argv = (way, words[1:]) if way in WAYS else ("main", words)
    return Case(group=group, argv=tuple(argv), how=how, stdin=streams["<"], stdout=streams[">"])


def run_tree(tree: Path, cases: Sequence[Case], root: Path, inputs: Path) -> list[Seen]:
    """Run cases in a tree, in folders beneath `root`, and return what came of each; what is remembered is not run again."""
    code = sorted((tree / "hydractl").rglob("*.py"))
    stamp = digest_of(HERE / "same_bytes_worker.py", inputs / STAMP, *code)
    if not is_of(root, stamp):
        (root / STAMP).write_text(stamp)
    groups: dict[str, list[Any]] = {}
    for one in cases:
        groups.setdefault(one.group, []).append(json.loads(json.dumps(asdict(one))))
    plan, results = root / "plan.json", root / "results.jsonl"
    known = remembered(results, groups)
    todo = {name: lines for name, lines in groups.items() if name not in known}
    for folder in ("tmp", *todo):
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / "tmp").mkdir()
    plan.write_text(json.dumps(todo))
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH"}}
    environment = kept | {
        "PYTHONPATH": str(tree.resolve()), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(root / "tmp"),
        "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "TERM": "xterm", "TYPER_USE_RICH": "0", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    if todo:
        places = map(str, (HERE / "same_bytes_worker.py", plan, results, root, inputs))
        subprocess.run([sys.executable, "-P", *places], env=environment, check=True)
    known = remembered(results, groups)
    return [seen for name in groups for seen in known[name]]


def remembered(results: Path, groups: Mapping[str, Sequence[Any]]) -> dict[str, list[Seen]]:
    """Return what came of those groups whose cases were run as they are now."""
    lines = results.read_text().splitlines() if results.is_file() else []
    found = map(json.loads, lines)
    return {one["group"]: one["seen"] for one in found if groups.get(one["group"]) == one["cases"]}


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
