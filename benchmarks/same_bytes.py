"""Check that two source trees of hydractl have the same behaviour, byte for byte.

    python benchmarks/same_bytes.py OLD_TREE NEW_TREE [--only SUBSTRING]... [--expect SUBSTRING]...
                                    [--folder FOLDER] [--jobs N]

Runs the command lines of `same_bytes_cases.txt` (every stage on every family) in both trees, offline and on
one thread. Trees are checkouts, each with a folder `hydractl`. Compares exit codes, standard output, standard
error and all written files; times and folder names are ignored. Prints one line per command line with OLD's
exit code, followed by the differences. The exit code is 1 if there is an unexpected difference.

`--only`: run groups with this text in the name. `--expect`: text in `GROUP: COMMAND LINE` or in the
difference; matching differences are shown and not counted. `--folder`: work in this folder and keep it:
`inputs`, `old`, and `new-NAME` for each NEW_TREE of this name. Results are reused while the code of the tree
is unchanged. `--jobs 1`: run one tree after the other.

Models come from OLD's `tests/support/variants.py`, saved by their libraries; models missing in OLD are not
compared.
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
"""File with the digest of the code that wrote the other files of the folder."""
OF_TESTS = "tiny_trunk_"
"""Prefix of architectures that tests register in timm. Other processes do not know these architectures."""
SHOWN = 12
"""Number of lines shown per difference. Chosen by hand; doubling only lengthens the output."""
Seen = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command line.

    Attributes:
        group: Group of commands that run in the same folder.
        argv: Arguments without the program name.
        mode: One of `WAYS`, or `main` for a call of the main function.
        stdin: File for standard input, or empty.
        stdout: File for standard output, or empty.
    """

    group: str
    argv: tuple[str, ...]
    mode: str
    stdin: str = ""
    stdout: str = ""

    def __str__(self) -> str:
        way = "" if self.mode == "main" else f"{self.mode}: "
        streams = "".join(f" {sign} {file}" for sign, file in (("<", self.stdin), (">", self.stdout)) if file)
        return f"{self.group}: {way}{shlex.join(self.argv)}{streams}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run both trees and compare. Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="SUBSTRING",
        help="run only groups with this text; repeatable",
    )
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="SUBSTRING",
        help="expect differences with this text; repeatable",
    )
    parser.add_argument("--folder", type=Path, help="folder with results of earlier runs, reused")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="trees tested at the same time")
    options = parser.parse_args(argv)
    began = time.monotonic()
    sys.path.insert(0, str(options.old.resolve() / "tests"))
    from support.variants import VARIANTS

    # New processes do not know architectures that tests register in timm.
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
    """Write the input files of the command lines if they are missing or out of date. Return the folder."""
    stamp = digest_of(HERE / "same_bytes_inputs.py", table)
    if not is_of(folder, stamp):
        write_inputs(folder, variants)
        (folder / STAMP).write_text(stamp)
    return folder


def digest_of(*files: Path) -> str:
    """Return the SHA-256 of the concatenated files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_of(folder: Path, stamp: str) -> bool:
    """Return whether a folder has the given stamp. If not, the folder is emptied."""
    if (folder / STAMP).is_file() and (folder / STAMP).read_text() == stamp:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return False


def read_cases(text: str, models: Mapping[str, Sequence[str]]) -> Iterator[Case]:
    """Yield the command lines of the file. Groups for several models are repeated for each model."""
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
    """Return model names for `[each KIND]` (first variant of each family) and `[more KIND]` (the rest)."""
    found: dict[str, list[str]] = {"each edited": [name for name, *_ in EDITED]}
    families = set()
    for variant in variants:
        which = "more" if variant.family in families else "each"
        families.add(variant.family)
        found.setdefault(f"{which} {kind_of(variant)}", []).append(str(variant))
    return found


def kind_of(variant: Any) -> str:  # noqa: ANN401 - what tests call a variant
    """Return `image`, `text`, or `pair` for models with both towers."""
    towers = {key.partition(".")[0] for key in variant.options if "." in key}
    if len(towers) > 1:
        return "pair"
    return "image" if towers or variant.options.keys() & {"img_size", "image_size"} else "text"


def case(group: str, line: str, model: str) -> Case:
    """Parse one line."""
    words = shlex.split(Template(line).substitute(MODEL=model) if model else line)
    streams = {"<": "", ">": ""}
    while len(words) > 2 and words[-2] in streams:
        streams[words[-2]] = words[-1]
        words = words[:-2]
    way = words[0].removesuffix(":")
    mode, argv = (way, words[1:]) if way in WAYS else ("main", words)
    return Case(group=group, argv=tuple(argv), mode=mode, stdin=streams["<"], stdout=streams[">"])


def run_tree(tree: Path, cases: Sequence[Case], root: Path, inputs: Path) -> list[Seen]:
    """Run cases in a tree, each group in a folder below `root`, and return their results.

    Groups with stored results are not run again if the code and the cases are unchanged.
    """
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
    """Return the stored results of groups whose cases are unchanged."""
    lines = results.read_text().splitlines() if results.is_file() else []
    found = map(json.loads, lines)
    return {one["group"]: one["seen"] for one in found if groups.get(one["group"]) == one["cases"]}


def compare(cases: Sequence[Case], old: Sequence[Seen], new: Sequence[Seen], expected: Sequence[str]) -> bool:
    """Print the table. Return whether there is an unexpected difference."""
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
    """Yield a text for each difference between two results."""
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
