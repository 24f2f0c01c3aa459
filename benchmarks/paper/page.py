"""Write benchmarks/paper.md from the results of `measure.py`: the claims of the paper's tables, and their verdicts.

python benchmarks/paper/page.py            write the page
python benchmarks/paper/page.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import zero_shot
from claims import CLAIMS, METRIC_NAMES, UNTESTED, Claim, Found, Seeds, is_about, judge
from plan import MIMO, WITHOUT

from hydractl.messages import counted

PAGE = HERE.parent / "paper.md"
RESULTS = HERE.parent / "results"
TASKS = {
    "digits": "images: a vision transformer with six blocks and 0.3 M parameters, trained from random weights on the digits 0 to 6 of scikit-learn; "
    "near OOD: 7 and 8; far OOD: photographs and noise",
    "shapes": "images: the image tower of a small CLIP with a classifier, on coloured shapes; near OOD: unseen pairs of shape and colour; far OOD: photographs "
    "and noise",
    "clinc150": "texts: MiniLM (22 M parameters, pretrained) on intents of CLINC150; near OOD: intents of the same domains; far OOD: other domains and "
    "queries without an intent",
    zero_shot.NAME: "images and texts: a CLIP with three blocks per tower, trained from random weights on coloured shapes; ID sets: all 24 classes and four "
    "quarters; near OOD: unseen pairs of shape and colour; far OOD: photographs and noise; OOD sets are compared with the set of all classes",
}
COLUMNS = {
    "accuracy": "accuracy", "brier": "Brier", "nll": "NLL", "ece": "ECE", "adaptive_ece": "aECE", "auroc near": "AUROC near", "auroc far": "AUROC far",
    "fpr95 ood": "FPR95", "aupr ood": "AUPR", "mutual_information": "MI", "disagreement ood": "DI OOD", "macs": "MACs over single", "training_macs": "training over single",
}  # fmt: skip
DISTANCES = ("euclidean ood", "mahalanobis ood")
SEVERITIES = ("1", "2", "3", "4", "5", "all")


def main() -> int:
    """Write the page, or check whether the page is up to date."""
    text = "\n".join(_lines()) + "\n"
    if sys.argv[1:] == ["--check"]:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(
            "benchmarks/paper.md is up to date"
            if same
            else "benchmarks/paper.md is out of date: run benchmarks/paper/page.py"
        )
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


@dataclass(frozen=True, slots=True)
class Result:
    """Stored results of a task.

    Attributes:
        command: Command of the measurement.
        epochs: Epochs of the single model, and of models fine-tuned from it.
        seeds: Seeds as text.
        rows: For each seed, the numbers of each row by name.
        place: Distinct hardware and versions of the seeds, one line each.
    """

    command: str
    epochs: tuple[int, int]
    seeds: tuple[str, ...]
    rows: Seeds
    place: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read a results file of `measure.py`."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        seeds: dict[str, dict[str, Any]] = raw["seeds"]
        whole, tuned = raw["epochs"]
        place = (
            f"{seed['hardware']}; {', '.join(f'{name} {version}' for name, version in seed['versions'].items())}"
            for seed in seeds.values()
        )
        return cls(
            command=raw["command"],
            epochs=(whole, tuned),
            seeds=tuple(seeds),
            rows=[seed["rows"] for seed in seeds.values()],
            place=tuple(dict.fromkeys(place)),
        )


def read_results() -> dict[str, Result]:
    """Return the results of every measured task."""
    paths = {task: RESULTS / f"paper-{task}.json" for task in TASKS}
    return {task: Result.read(path) for task, path in paths.items() if path.exists()}


def _lines() -> Iterator[str]:
    results = read_results()
    yield "# The paper's tables at small scale"
    yield ""
    yield (
        "This page tests claims of the Hydra Ensembles paper with small models and data sets, measured by `python benchmarks/paper/measure.py TASK --work DIR`. "
        "A run takes hours on a CPU. A claim that fails at this scale may hold at the paper's scale, and vice versa. "
        "`benchmarks/paper/page.py` writes the page from the stored results; only the paper's numbers were entered by hand."
    )
    yield from ("", *(f"- **{task}**, {words}" for task, words in TASKS.items() if task in results))
    yield from _claims(results)
    yield from ("", "## Not tested", "")
    yield from (f"- Table {what}: {why}." for what, why in UNTESTED.items())
    unmeasured = [claim for claim in CLAIMS if not _judged(claim, results)]
    yield from (f"- Table {claim.table}: {claim.words}: not measured." for claim in unmeasured)
    single, hydra = vit_b(1, 12), vit_b(3, 8)
    ensemble = 3 * single
    yield ""
    yield (
        f"Multiply-accumulates (MACs) follow from the architecture. ViT-B/16 at 224 pixels needs {single:.2f} G (paper, Table 7: 17.58). A hydra of three "
        f"members with 8 of 12 heads needs {hydra:.2f} G (46.19), {hydra / single:.2f} times the single model, and a deep ensemble of three {ensemble:.2f} G (52.74)."
    )
    yield ""
    yield (
        "Columns of the tables below: aECE is the adaptive ECE, MI the mutual information on ID data, DI OOD the disagreement of members on OOD data. "
        "AUROC, FPR95 and AUPR use the maximum softmax probability; FPR95 and AUPR are means over near and far OOD sets."
    )
    for task, result in results.items():
        yield from _rows(task, result)


def vit_b(members: int, kept: int) -> float:
    """Return giga MACs of a ViT-B/16 hydra at 224 pixels, with `read_results` of 12 heads in every layer."""
    tokens, width, hidden, layers, classes = 197, 768, 3072, 12, 1000
    projections, products, mlp = 4 * tokens * width**2, 2 * tokens**2 * width, 2 * tokens * width * hidden
    layer = (projections + products) * kept / 12 + mlp
    return ((tokens - 1) * width**2 + members * (layers * layer + width * classes)) / 1e9


def _claims(results: Mapping[str, Result]) -> Iterator[str]:
    yield from ("", "## Claims", "")
    yield (
        "Each cell has the means of both models, the difference (first minus second, paired by seed) with half of the 95 % interval (Student's t), and a "
        "verdict. **holds**, **fails**: the whole interval supports or contradicts the claim. **open**: the interval includes zero, or the end of the margin."
    )
    yield ""
    yield f"| table | claim | the paper | {' | '.join(results)} |"
    yield f"|---|---|---|{'---|' * len(results)}"
    counts: dict[str, dict[str, int]] = {task: {} for task in results}
    for claim in CLAIMS:
        judged = _judged(claim, results)
        if not judged:
            continue
        for task, found in judged.items():
            counts[task][found.verdict] = counts[task].get(found.verdict, 0) + 1
        cells = [_cell(judged[task]) if task in judged else "" for task in results]
        yield f"| {claim.table} | {claim.words} | {claim.paper_numbers} | {' | '.join(cells)} |"
    yield ""
    for task, own in counts.items():
        held, unclear, failed = (own.get(word, 0) for word in ("holds", "open", "fails"))
        seeds = counted(len(results[task].seeds), "seed")
        yield f"- {task}, {seeds}, {sum(own.values())} claims: holds {held}, open {unclear}, fails {failed}."


def _cell(found: Found) -> str:
    return f"{found.first:.3f}, {found.other:.3f}: {found.gap:+.3f} ± {found.half:.3f}, **{found.verdict}**"


def _judged(claim: Claim, results: Mapping[str, Result]) -> dict[str, Found]:
    """Return the result of a claim for each task with the measured rows."""
    each = {task: judge(claim, result.rows) for task, result in results.items() if is_about(claim, task)}
    return {task: found for task, found in each.items() if found is not None}


def _tuning(task: str, epochs: int) -> str:
    if not epochs:
        return "nothing is fine-tuned"
    mimo = "" if MIMO in WITHOUT.get(task, ()) else f" (`{MIMO}` sees each image four times per epoch)"
    return f"fine-tuning takes {epochs} more{mimo}"


def _rows(task: str, result: Result) -> Iterator[str]:
    rows, (whole, tuned) = result.rows, result.epochs
    yield from ("", f"## All rows: {task}", "")
    yield f"`{result.command}`; {'; and '.join(result.place)}. Means over seeds {', '.join(result.seeds)}. Training takes {whole} epochs; {_tuning(task, tuned)}."
    columns = {c: head for c, head in COLUMNS.items() if all(c in seed["single"] for seed in rows)}
    yield from ("", f"| | {' | '.join(columns.values())} |", f"|---|{'---:|' * len(columns)}")
    for name in dict.fromkeys(name for seed in rows for name in seed):
        having = [seed for seed in rows if name in seed]
        means = {c: statistics.fmean(seed[name][c] for seed in having) for c in columns}
        means |= {
            c: statistics.fmean(seed[name][c] / seed["single"][c] for seed in having)
            for c in ("macs", "training_macs")
            if c in columns
        }
        yield f"| {name}{_part(name, result)} | {' | '.join(f'{value:.3f}' for value in means.values())} |"
    if task == zero_shot.NAME:
        sets = [*zero_shot.SETS]
        for metric in ("accuracy", "nll", "ece"):
            yield from _parted(rows, f"{COLUMNS[metric]} (Tables 24, 27) by ID set", sets, f"{metric} {{}}")
    for metric, table in (("accuracy", 13), ("brier", 14)):
        yield from _parted(
            rows, f"{COLUMNS[metric]} (Table {table}) by severity", SEVERITIES, f"{metric} under shift {{}}"
        )
    distances = {metric: METRIC_NAMES[metric] for metric in DISTANCES}
    yield from _parted(rows, "heads of the last layer (Table 5)", distances, "{}")


def _part(name: str, result: Result) -> str:
    """Return a note with the seeds of a row if the row is missing for other seeds, else an empty string."""
    having = [seed for seed, rows in zip(result.seeds, result.rows, strict=True) if name in rows]
    word = "seed" if len(having) == 1 else "seeds"
    return "" if len(having) == len(result.seeds) else f" (only {word} {', '.join(having)})"


def _parted(
    rows: Sequence[Mapping[str, Mapping[str, float]]],
    title: str,
    parts: Sequence[str] | Mapping[str, str],
    key: str,
) -> Iterator[str]:
    """Yield a table of related columns for the rows that have all columns. Yields nothing if no row has them.

    Args:
        rows: Rows of each seed.
        title: Heading of the first column.
        parts: Columns, optionally mapped to their headings.
        key: Format of the stored metric name, filled with the column.
    """
    there = [
        name
        for name in rows[0]
        if all(key.format(part) in seed.get(name, {}) for seed in rows for part in parts)
    ]
    if there:
        heads = parts.values() if isinstance(parts, Mapping) else parts
        yield from ("", f"| {title} | {' | '.join(heads)} |", f"|---|{'---:|' * len(parts)}")
    for name in there:
        means = [statistics.fmean(seed[name][key.format(part)] for seed in rows) for part in parts]
        yield f"| {name} | {' | '.join(f'{value:.3f}' for value in means)} |"


if __name__ == "__main__":
    raise SystemExit(main())
