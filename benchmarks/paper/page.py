"""Makes docs/paper.md of what `measure.py` kept: what the paper's tables claim, and which claims hold here.

python benchmarks/paper/page.py            writes it
python benchmarks/paper/page.py --check    exits 1 if it is not what would be written
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from claims import CLAIMS, UNTESTED, judge

PAGE = HERE.parents[1] / "docs" / "paper.md"
RESULTS = HERE.parent / "results"
TASKS = {
    "digits": "images: a vision transformer of six blocks and 0.3 M parameters, from random weights, on digits 0 to 6 of scikit-learn's; near: 7 "
    "and 8, far: photographs and noise",
    "shapes": "images: the image tower of a small CLIP with a classifier, on coloured shapes; near: pairs that it never saw, far: photographs and noise",
    "clinc150": "texts: MiniLM (22 M parameters, pretrained) on intents of CLINC150; near: intents of the same domains, far: others and no intent",
}
COLUMNS = {
    "accuracy": "accuracy", "brier": "Brier", "nll": "NLL", "ece": "ECE", "adaptive_ece": "aECE", "auroc near": "AUROC near", "auroc far": "AUROC far",
    "fpr95 ood": "FPR95", "aupr ood": "AUPR", "mutual_information": "MI", "disagreement ood": "DI OOD", "macs": "MACs over single", "training_macs": "training over single",
}  # fmt: skip
SEVERITIES = ("1", "2", "3", "4", "5", "all")


def main() -> int:
    """Write the page, or say whether it is up to date."""
    text = "\n".join(_lines()) + "\n"
    if sys.argv[1:] == ["--check"]:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(
            "docs/paper.md is up to date"
            if same
            else "docs/paper.md is not what benchmarks/paper/page.py writes"
        )
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def kept() -> dict[str, dict[str, Any]]:
    """Return the results of every task that was measured."""
    paths = {task: RESULTS / f"paper-{task}.json" for task in TASKS}
    return {
        task: json.loads(path.read_text(encoding="utf-8")) for task, path in paths.items() if path.exists()
    }


def _lines() -> Iterator[str]:
    results = kept()
    yield "# The paper's tables, at this size"
    yield ""
    yield (
        "Written by `benchmarks/paper/page.py` from what `benchmarks/paper/measure.py` measured; nothing here is typed by hand but the paper's own "
        "numbers. Models are small and data few, so that a claim which does not hold here may hold there, and the other way round: the page says "
        "what the method does at the size that can be run again by anyone within hours on a CPU."
    )
    yield from ("", *(f"- **{task}**, {words}" for task, words in TASKS.items() if task in results))
    yield from _claims(results)
    yield from ("", "## Not put to the test", "")
    yield from (f"- Table {what}: {why}." for what, why in UNTESTED.items())
    single, hydra = vit_b(1, 12), vit_b(3, 8)
    ensemble = 3 * single
    yield ""
    yield (
        f"Multiply-accumulates are arithmetic: of ViT-B/16 at 224 pixels a single model has {single:.2f} G (paper, Table 7: 17.58), a hydra of three "
        f"members with 8 of 12 heads {hydra:.2f} (46.19), {hydra / single:.2f} times as many, and a deep ensemble of three {ensemble:.2f} (52.74)."
    )
    for task, result in results.items():
        yield from _rows(task, result)


def vit_b(members: int, kept: int) -> float:
    """Return billions of multiply-accumulates of ViT-B/16 at 224 pixels, M members with so many of 12 heads in every layer."""
    tokens, width, hidden, layers, classes = 197, 768, 3072, 12, 1000
    projections, products, mlp = 4 * tokens * width**2, 2 * tokens**2 * width, 2 * tokens * width * hidden
    layer = (projections + products) * kept / 12 + mlp
    return ((tokens - 1) * width**2 + members * (layers * layer + width * classes)) / 1e9


def _claims(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    yield from ("", "## Claims", "")
    yield (
        "Differences are paired by seed; ± is half of the 95 % interval by Student's t. *Holds* or *does not*: the whole interval is on one side; "
        "*open*: it includes zero, or the margin's end."
    )
    yield ""
    yield f"| table | claim | the paper | {' | '.join(results)} |"
    yield f"|---|---|---|{'---|' * len(results)}"
    counts: dict[str, dict[str, int]] = {task: {} for task in results}
    for claim in CLAIMS:
        cells = []
        for task, result in results.items():
            found = judge(claim, result["rows"])
            if found is not None:
                counts[task][found.verdict] = counts[task].get(found.verdict, 0) + 1
            cells.append(
                ""
                if found is None
                else f"{found.first:.3f}, {found.other:.3f}: {found.gap:+.3f} ± {found.half:.3f}, **{found.verdict}**"
            )
        yield f"| {claim.table} | {claim.words} | {claim.theirs} | {' | '.join(cells)} |"
    yield ""
    for task, own in counts.items():
        held, unclear, failed = (own.get(word, 0) for word in ("holds", "open", "does not"))
        yield f"- {task}: of {sum(own.values())} claims {held} hold, {unclear} are open, and {failed} fail."


def _rows(task: str, result: Mapping[str, Any]) -> Iterator[str]:
    seeds, rows = result["seeds"], result["rows"]
    yield from ("", f"## All rows: {task}", "")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    whole, tuned = result["epochs"]
    yield f"`{result['command']}`; {result['hardware']}; {versions}. Means over seeds {', '.join(map(str, seeds))}; the single model trains {whole} epochs, what is made of it {tuned} more (`mimo` sees each image four times as often)."
    yield from ("", f"| | {' | '.join(COLUMNS.values())} |", f"|---|{'---:|' * len(COLUMNS)}")
    for name in rows[0]:
        means = {c: statistics.fmean(seed[name].get(c, 0.0) for seed in rows) for c in COLUMNS}
        means |= {
            c: statistics.fmean(seed[name][c] / seed["single"][c] for seed in rows)
            for c in ("macs", "training_macs")
        }
        yield f"| {name} | {' | '.join(f'{value:.3f}' for value in means.values())} |"
    if any("under shift" in metric for metric in rows[0]["single"]):
        for metric, title in (("accuracy", "Accuracy (Table 13)"), ("brier", "Brier score (Table 14)")):
            yield from (
                "",
                f"| {title} by severity | {' | '.join(SEVERITIES)} |",
                f"|---|{'---:|' * len(SEVERITIES)}",
            )
            for name in rows[0]:
                found = [[seed[name].get(f"{metric} under shift {s}") for seed in rows] for s in SEVERITIES]
                if all(value is not None for own in found for value in own):
                    yield f"| {name} | {' | '.join(f'{statistics.fmean(own):.3f}' for own in found)} |"


if __name__ == "__main__":
    raise SystemExit(main())
