"""Train and evaluate every row of the hydra paper's tables at small scale, and store the numbers.

    python benchmarks/paper/measure.py digits --work paper/ [--seeds 11 12 13 14 15]
    python benchmarks/paper/measure.py clinc150 --file CLINC150.jsonl --backbone MINILM/ --work paper/
    python benchmarks/paper/measure.py shapes --work paper/
    python benchmarks/paper/measure.py zero-shot --work paper/

All models are made by hydractl commands and measured by `eval`. Files in `--work` are reused, so an
interrupted run continues. The numbers of a seed are stored when complete, in
`benchmarks/results/paper-TASK.json`; they replace older numbers of the seed and keep other seeds. `page.py`
writes benchmarks/paper.md from this file. No choice was made with these seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import zero_shot
from plan import CIRCUIT_OOD, ENSEMBLE, HYDRA, HYDRA_T, SINGLE, UNTUNED, WITHOUT, Making
from promise import make_files, report
from promise_plan import Plan
from promise_tasks import DIGITS, parse_task
from rows import QUALITY, SIZES, Numbers, diversity, ood_metrics, values

from hydractl.manifest.report import Row
from hydractl.runtime import versions

RESULTS = HERE.parent / "results"
RAW, SCALED, SHIFTED, CENTROIDS = "raw.json", "scaled.json", "shifted.json", "centroids.json"
EPOCHS = {"digits": (60, 12), "clinc150": (10, 5), "shapes": (20, 10), zero_shot.NAME: (zero_shot.EPOCHS, 0)}
"""Epochs of the single model, and of models fine-tuned from it, for each task. Chosen by hand for runs of
some hours on a CPU; doubling doubles the training time."""
WIDE = {"digits": DIGITS.replace("embed_dim=64", "embed_dim=72")}
"""Architecture of the packed ensemble. Eight heads and three members at 2 / 3 of the width need a multiple of
12, as the paper's 774 instead of 768."""
CENTROID_ROWS = (SINGLE, UNTUNED.format(CIRCUIT_OOD))
"""Rows for the comparison of head centroids."""
CORRUPTED = (SINGLE, ENSEMBLE, HYDRA, HYDRA_T)
LIBRARIES = ("hydractl", "torch", "timm", "transformers", "scikit-learn")
GIVEN = {"clinc150": " --file CLINC150.jsonl --backbone MINILM/"}
METRICS = (*QUALITY, *SIZES, "training_macs")


def main() -> None:
    """Create missing files, evaluate, and store the numbers of each seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options, begun = parse_task(parser, {zero_shot.NAME: zero_shot.begun})
    for seed in options.seeds:
        plan = begun(options.work, seed)
        if options.task == zero_shot.NAME:
            rows = zero_shot.measured(zero_shot.planned(plan))
        else:
            rows = measured(planned(plan, options.task))
        keep(options.task, seed, rows)
        print(f"{options.task}: measured seed {seed}", file=sys.stderr, flush=True)


def keep(task: str, seed: int, rows: dict[str, Numbers]) -> None:
    """Store the rows of a seed with hardware and versions.

    Raises:
        SystemExit: If the stored seeds were trained for other epochs.
    """
    path, epochs = RESULTS / f"paper-{task}.json", [*EPOCHS[task]]
    before: dict[str, Any] = {"epochs": epochs, "seeds": {}}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
    if before["epochs"] != epochs:
        raise SystemExit(f"{path}: has seeds with {before['epochs']} epochs: remove the file first")
    seeds = before["seeds"]
    seeds[str(seed)] = {
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "versions": versions(*LIBRARIES),
        "rows": rows,
    }
    kept = {
        "command": f"python benchmarks/paper/measure.py {task}{GIVEN.get(task, '')} --seeds {' '.join(sorted(seeds))}",
        "epochs": epochs,
        "seeds": dict(sorted(seeds.items())),
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def planned(plan: Plan, task: str) -> Plan:
    """Return a plan with every row of the tables."""
    whole, tuned = EPOCHS[task]
    plan.task = replace(plan.task, epochs=whole)
    if plan.task.apart is None:  # The classifier of an encoder is fitted first.
        plan.make("start.st", *plan.task.start)
    return Making(plan, tuned, WITHOUT.get(task, ()), WIDE.get(task)).all()


def measured(plan: Plan) -> dict[str, Numbers]:
    """Return the numbers of every row by name."""
    make_files(plan)
    found = {row.name: numbers(row, plan) for row in report(plan.report(RAW, "--no-latency")).rows}
    single = replace(plan, rows=plan.rows[:1])
    scaled = report(single.report(SCALED, "--no-latency", "--temperature", plan.data.val))
    found["temperature scaling"] = numbers(scaled.rows[0], plan)
    corrupted = replace(plan, rows=[row for row in plan.rows if row.name in CORRUPTED])
    for row in report(corrupted.report(SHIFTED, "--no-latency", "--corrupt", "all", ood=False)).rows:
        shift: Any = getattr(row, "shift", None)
        means = {} if shift is None else shift.means
        found[row.name] |= {
            f"{name} under shift {level}": value
            for level, own in means.items()
            for name, value in own.items()
        }
    looked_at = replace(plan, rows=[row for row in plan.rows if row.name in CENTROID_ROWS])
    for row in report(looked_at.report(CENTROIDS, "--no-latency", "--analyse", "centroids")).rows:
        found[row.name] |= distances(row, plan)
    return found


def distances(row: Row, plan: Plan) -> Numbers:
    """Return distances between head centroids of OOD and ID data, as means over heads and OOD test sets.

    Empty if the row has no analysis of centroids.
    """
    analyses: Any = getattr(row, "analyses", None)
    own = None if analyses is None else analyses.centroids
    if own is None:
        return {}
    sets = [*plan.data.near, *plan.data.far]
    each = {"euclidean": own.euclidean, "mahalanobis": own.mahalanobis}
    return {f"{name} ood": statistics.fmean(far[s] for s in sets) for name, far in each.items()}


def numbers(row: Row, plan: Plan) -> Numbers:
    """Return the metrics of a row: quality, size, diversity and OOD detection."""
    return values(row, METRICS) | diversity(row) | ood_metrics(row, plan)


if __name__ == "__main__":
    main()
