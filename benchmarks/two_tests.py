"""Choose the default scores of the two tests of `accepted`: `known` and `sure`.

The rule, written before the first result. Rows are the tasks, encoders and training sizes of `few.py`; a number
of a row is the mean over draws.

- `known`: `energy+density` stays, unless another score accepts at least 3 points fewer near inputs at 95 % known
  in the mean over rows, accepts fewer in at least three quarters of the rows of each task, and accepts at most 1
  point more far inputs in the mean. Of several such scores, the score with the fewest near inputs.
- `sure`: `msp` stays, unless another score accepts at least 2 points more known inputs at risk 5 % in the mean over
  rows, and accepts more in at least three quarters of the rows of each task. Of several such scores, the score
  with the most known inputs.

    python benchmarks/two_tests.py --task digits --work two-tests/ [--draws 3] [--encoders tuned]
    python benchmarks/two_tests.py --task clinc150 --file CLINC150.jsonl --backbone MINILM/ --work two-tests/

Both tests use the test data of `few.py`: 95 % of these inputs are accepted by `known`, and the threshold of `sure`
is fitted on them (`errors-among-accepted`, confidence 95 %). Files in `--work` are reused. The tables include all
tasks with results.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from few import KINDS, RESULTS, Clinc150, Digits, Splits, Task

import hydractl
from hydractl.data.datasets import ImageSet, Item, TextSet, content_of, of_kind
from hydractl.data.labels import required_labels
from hydractl.data.open_dataset import open_data
from hydractl.metrics.ood_scores import ENERGY, ENERGY_DENSITY, KNN, MSP, RELATIVE, number_name
from hydractl.metrics.selective import errors_among_accepted

SCORES = (ENERGY_DENSITY, RELATIVE, KNN, ENERGY, MSP)
RISK, DELTA = 0.05, 0.05
SAMPLES = (20, 100)
NEAR_GAIN, FAR_LOSS, COVERAGE_GAIN, ROWS = 3.0, 1.0, 2.0, 0.75
SURE = "sure"

Numbers = dict[str, dict[str, float]]
"""Percentages of accepted inputs by `near`, `far` or `sure`, and by score."""


def measure(model: Path, splits: Splits, stored: Path) -> Numbers:
    """Return the accepted near and far inputs at 95 % known, and the accepted known inputs at the risk."""
    near, far = ([f"{name}={data}" for name, data in sets.items()] for sets in (splits.near, splits.far))
    data: dict[str, Any] = {
        "data": splits.test, "near": near, "far": far, "fit": splits.train, "val": splits.val, "store": stored,
    }  # fmt: skip
    settings: dict[str, Any] = {"ood_score": SCORES, "metrics": ["accepted95"], "bootstrap": 0, "force": True}
    row = hydractl.evaluate(
        hydractl.EvalConfig(model=str(model), latency=False, **data, **settings)
    ).document.rows[0]
    names = {score: number_name("accepted95", score, SCORES) for score in SCORES}
    numbers = {kind: {score: 100 * row.means[kind][name] for score, name in names.items()} for kind in KINDS}
    return numbers | {SURE: coverages(stored, splits.test)}


def coverages(model: Path, data: str) -> dict[str, float]:
    """Return the percentage of accepted known inputs at the risk, by score."""
    loaded = hydractl.load(model)
    known = open_data(data, content=content_of(loaded.header.preprocess))
    items: Sequence[Item] = (
        [known.image(i) for i in range(len(known))]
        if isinstance(known, ImageSet)
        else of_kind(known, TextSet).texts
    )
    predictions: Any = loaded.predict(items)
    names = [known.class_names[label] for label in required_labels(known, data)]
    hits = torch.tensor([a == b for a, b in zip(predictions.labels, names, strict=True)])
    return {
        score: 100
        * errors_among_accepted(predictions.scores[score], hits, risk=RISK, delta=DELTA).accepted
        / len(hits)
        for score in SCORES
    }


def rows_of(task: Task, encoders: Sequence[str], work: Path, draws: int) -> dict[str, list[Numbers]]:
    """Measure all draws of each row; files that exist are not trained again."""
    rows: dict[str, list[Numbers]] = {}
    for samples in SAMPLES:
        for seed in range(31, 31 + draws):
            folder = work / f"{type(task).__name__.lower()}-{samples}-{seed}"
            splits = task.splits(folder, seed, samples)
            for encoder in encoders:
                model = task.train(encoder, splits, folder)
                numbers = measure(model, splits, folder / f"{encoder}-stored.st")
                rows.setdefault(f"{encoder}, {samples} per class", []).append(numbers)
    return rows


def mean(draws: Sequence[Numbers], kind: str, score: str) -> float:
    """Return the mean over draws."""
    return statistics.fmean(numbers[kind][score] for numbers in draws)


def chosen(tasks: dict[str, dict[str, list[Numbers]]], kind: str, default: str) -> str:
    """Return the score that the rule of this module's docstring chooses for a test.

    Args:
        tasks: Draws by row, by task.
        kind: `near` for the test `known`, `sure` for the test `sure`.
        default: Score that stays if no score is clearly better.
    """
    sign = 1 if kind == SURE else -1

    def gains(score: str, kind: str, sign: int) -> list[list[float]]:
        return [
            [sign * (mean(draws, kind, score) - mean(draws, kind, default)) for draws in rows.values()]
            for rows in tasks.values()
        ]

    def overall(by_task: list[list[float]]) -> float:
        return statistics.fmean(gain for gains in by_task for gain in gains)

    def is_better(score: str) -> bool:
        by_task = gains(score, kind, sign)
        often = all(sum(gain > 0 for gain in of_rows) >= ROWS * len(of_rows) for of_rows in by_task)
        far = kind == SURE or overall(gains(score, "far", -1)) >= -FAR_LOSS
        return often and far and overall(by_task) >= (COVERAGE_GAIN if kind == SURE else NEAR_GAIN)

    better = [score for score in SCORES if score != default and is_better(score)]
    return max(better, key=lambda score: overall(gains(score, kind, sign)), default=default)


def page(tasks: dict[str, dict[str, list[Numbers]]]) -> Iterator[str]:
    """Yield the lines of the result page."""
    yield "# Default scores of the tests `known` and `sure`\n"
    yield "`python benchmarks/two_tests.py`; the rule is in its docstring. Means over draws, in %. Rows of `few.py` that"
    yield "are not listed were not measured.\n"
    titles = {
        "near": "Near inputs accepted at 95 % known (lower is better)",
        "far": "Far inputs accepted at 95 % known (lower is better)",
    }
    for kind, title in (titles | {SURE: "Known inputs accepted at risk 5 % (higher is better)"}).items():
        yield f"{title}:\n"
        yield f"| task | model | draws | {' | '.join(f'`{score}`' for score in SCORES)} |"
        yield f"|---|---|{'---:|' * (len(SCORES) + 1)}"
        for task, rows in tasks.items():
            for row, draws in rows.items():
                cells = " | ".join(f"{mean(draws, kind, score):.1f}" for score in SCORES)
                yield f"| {task} | {row} | {len(draws)} | {cells} |"
        yield ""
    yield f"By the rule, `known` uses `{chosen(tasks, 'near', ENERGY_DENSITY)}` and `sure` uses `{chosen(tasks, SURE, MSP)}`."


def main() -> None:
    """Run a task and write the results."""
    parser = argparse.ArgumentParser(description="Choose the default scores of the two tests.")
    parser.add_argument("--task", choices=("digits", "clinc150"), required=True, help="task of few.py")
    parser.add_argument("--file", type=Path, help="CLINC150 as JSON lines")
    parser.add_argument("--backbone", type=Path, help="folder of MiniLM")
    parser.add_argument("--work", type=Path, required=True, help="folder for data and models")
    parser.add_argument("--draws", type=int, default=3, help="number of draws")
    parser.add_argument("--encoders", nargs="+", help="encoders of few.py (default: its usual ones)")
    options = parser.parse_args()
    task = Digits(options.work) if options.task == "digits" else Clinc150(options.file, options.backbone)
    options.work.mkdir(parents=True, exist_ok=True)
    rows = rows_of(task, options.encoders or task.usual, options.work, options.draws)
    (RESULTS / f"two-tests-{options.task}.json").write_text(json.dumps(rows, indent=1) + "\n")
    files = sorted(RESULTS.glob("two-tests-*.json"))
    tasks = {file.stem.removeprefix("two-tests-"): json.loads(file.read_text()) for file in files}
    (RESULTS / "two-tests.md").write_text("\n".join(page(tasks)) + "\n")


if __name__ == "__main__":
    main()
