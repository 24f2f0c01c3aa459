"""Compare hydras with classical baselines, single models and ensembles on pretrained encoders from registries.

    python benchmarks/real.py intents-minilm --file CLINC150.jsonl --encoder MINILM/ --work real/
                              --seeds 41 42 43 44 45
    python benchmarks/real.py intents-smollm2 --file CLINC150.jsonl --encoder SMOLLM2/ --work real/ --seeds 41
                              [--frozen]
    python benchmarks/real.py fashion-dinov2 --idx fashion-mnist/ --encoder DINOV2/ --work real/ --seeds 41

hydractl's commands make every neural network (`real_tasks.py`), and `eval` measures each network on the same
data, with a temperature fitted on the validation data. scikit-learn fits the classical baselines
(`real_classical.py`), which hydractl's functions measure. Files in `--work` are reused, so an interrupted run
continues. The results in `results/real-TASK.{md,json}` are written after each seed, and cover the seeds of the
command line that are measured.

The claims (`CLAIMS`) were written before the first run of their seeds, 41 to 45 for `intents-minilm`. `promise.py`
had measured similar rows on the same test texts: a single model, an ensemble and hydras, with other training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from promise import (
    RESULTS,
    Numbers,
    differences,
    format_verdict,
    is_ahead,
    make_files,
    means_of,
    report,
    table,
    verdict,
)
from promise_plan import DEFAULT_SCORE, LOGIT_SCORES, LONGER, SINGLE, Plan
from real_classical import AURC, TFIDF, aurc, measure_all
from real_tasks import (
    ENSEMBLE,
    FROZEN,
    HYDRA,
    PAPER,
    PRUNED,
    REPORTS,
    SIZES,
    begin,
    draw_images,
    draw_texts,
    smaller_inputs,
)
from safetensors.torch import load_file

from hydractl.manifest.report import Report
from hydractl.metrics.ood_scores import MSP, number_name
from hydractl.metrics.per_sample import answers

SCORES = (*LOGIT_SCORES, DEFAULT_SCORE)
JUDGED = {
    "accuracy": True, "nll": False, "ece": False, "near": True, "far": True, "near by msp": True, "far by msp": True,
    "near accepted": False, AURC: False,
}  # fmt: skip
"""Columns, and whether higher is better. `near` and `far` are AUROC by the default score."""
COLUMNS = (*JUDGED, "compute", "training")
RIVALS = (ENSEMBLE, SINGLE)
SEEDS = 3
"""Number of seeds for a verdict on claims. Intervals of two seeds are so wide that no row is worse."""
BETTER, NOT_WORSE = "better than", "not worse than"
CLAIMS: dict[str, tuple[tuple[str, str, str, tuple[str, ...]], ...]] = {
    "intents-minilm": (
        (FROZEN, BETTER, TFIDF, ("accuracy", "nll", "near", "far", "near accepted")),
        (SINGLE, BETTER, FROZEN, ("nll", "near")),
        (HYDRA, NOT_WORSE, ENSEMBLE, tuple(JUDGED)),
        (HYDRA, BETTER, SINGLE, ("nll", "near", "near accepted")),
        (LONGER, NOT_WORSE, ENSEMBLE, tuple(JUDGED)),
        (PAPER, NOT_WORSE, ENSEMBLE, ("accuracy", "nll", "near", "far")),
        (PAPER, BETTER, SINGLE, ("near by msp",)),
        (PRUNED, NOT_WORSE, SINGLE, ("accuracy", "nll", "near", "far")),
    ),
}
"""Claims of a task: row, kind, rival, columns."""


def main() -> None:
    """Measure every seed, and write the results after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=tuple(SIZES))
    parser.add_argument("--work", type=Path, required=True, help="folder for data and models, reused")
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="seeds to measure")
    parser.add_argument("--encoder", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--file", type=Path, help="all queries of CLINC150, as JSON lines")
    parser.add_argument("--idx", type=Path, help="folder with the idx files of Fashion-MNIST")
    parser.add_argument("--frozen", action="store_true", help="train no encoder")
    options = parser.parse_args()
    if (options.idx if options.task == "fashion-dinov2" else options.file) is None:
        parser.error("intents need --file, images need --idx")
    torch.set_num_threads(1)
    found: dict[int, dict[str, Numbers]] = {}
    for name, rows in ({"frozen": (FROZEN,)} if options.frozen else REPORTS).items():
        for seed in options.seeds:
            plan = begun(options, seed)
            found.setdefault(seed, measure_classical(plan, texts=options.idx is None))
            found[seed] |= measure(plan, name, rows)
            write_results(options.task, found)


def begun(options: argparse.Namespace, seed: int) -> Plan:
    """Return the plan of a seed. Draws the data if missing."""
    folder = options.work / f"{options.task}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if options.task == "fashion-dinov2":
        drawn = draw_images(folder / "data", seed, options.idx)
        encoder = smaller_inputs(options.encoder, options.work / "encoder")
    else:
        drawn, encoder = draw_texts(folder / "data", seed, options.file), str(options.encoder)
    return begin(options.task, folder, seed, drawn=drawn, encoder=encoder)


def measure_classical(plan: Plan, *, texts: bool) -> dict[str, Numbers]:
    """Return the numbers of the classical rows by name. Reads them if their file exists."""
    path = Path(plan.path("classical.json"))
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_text(json.dumps(measure_all(plan.data, texts=texts)), encoding="utf-8")
        part.rename(path)
    rows: dict[str, Numbers] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def measure(plan: Plan, name: str, rows: Sequence[str]) -> dict[str, Numbers]:
    """Return the numbers of the rows of a report. Creates missing files."""
    plan.keep(rows)
    make_files(plan)
    predictions = plan.path(f"{name}-predictions.st")
    command = plan.report(
        f"{name}-report.json",
        "--no-latency",
        "--temperature",
        plan.data.val,
        "--save-predictions",
        predictions,
    )
    return measure_networks(plan, report(command), load_file(predictions))


def measure_networks(plan: Plan, made: Report, predictions: Mapping[str, torch.Tensor]) -> dict[str, Numbers]:
    """Return the numbers of the networks by name: from the report, and AURC (times 1000) from the predictions.

    Args:
        plan: Plan of the seed.
        made: Report of `eval`.
        predictions: Tensors of `eval --save-predictions`.
    """
    unit = made.rows[0].values["macs"].value
    reported = {row.name: row for row in made.rows}
    rows = {}
    for planned in plan.rows:
        row = reported[planned.name]
        numbers = {name: row.values[name].value for name in ("accuracy", "nll", "ece")}
        for kind, suffix, score in (
            (kind, suffix, score)
            for kind in ("near", "far")
            for suffix, score in (("", DEFAULT_SCORE), (" by msp", MSP))
        ):
            numbers[kind + suffix] = row.means[kind][number_name("auroc", score, SCORES)]
        numbers["near accepted"] = row.means["near"][number_name("accepted95", DEFAULT_SCORE, SCORES)]
        probabilities = predictions[f"log_probs/{row.name}/id"].double().exp().mean(0)
        values = answers(probabilities, predictions["labels/id"])
        numbers[AURC] = 1000 * aurc(values["confidence"], values["hits"])
        numbers |= {"compute": row.values["macs"].value / unit, "training": plan.training(planned)}
        rows[row.name] = numbers
    return rows


def write_results(task: str, found: Mapping[int, Mapping[str, Numbers]]) -> None:
    """Write tables, differences and claims. Rows with fewer seeds are in a second part, with these seeds only."""
    every = {name for rows in found.values() for name in rows}
    common = [name for name in next(iter(found.values())) if all(name in rows for rows in found.values())]
    complete = {seed: rows for seed, rows in found.items() if every == {*rows}}
    parts = [section(task, {seed: {name: rows[name] for name in common} for seed, rows in found.items()})]
    if len(complete) < len(found):
        parts.append(section(task, complete))
    command = f"python benchmarks/real.py {task} --seeds {' '.join(map(str, found))}"
    head = f"# Real encoders: {task}\n\nBy `{command}` (`--help` has the other options). `benchmarks/real.md` explains rows and columns.\n"
    RESULTS.mkdir(exist_ok=True)
    out = RESULTS / f"real-{task}"
    out.with_suffix(".md").write_text("\n".join((head, *parts)), encoding="utf-8")
    kept = {"seeds": [*found], "rows": [*found.values()]}
    out.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def section(task: str, found: Mapping[int, Mapping[str, Numbers]]) -> str:
    """Return the means of some seeds, claims, and differences paired by seed with 95 % intervals."""
    numbers = [*found.values()]
    tables = [differences(numbers, rival, JUDGED) for rival in RIVALS if rival in numbers[0]]
    title = f"## Seeds {', '.join(map(str, found))}\n\nMeans over seeds, and differences paired by seed with 95 % intervals.\n"
    return "\n".join((title, table(means_of(numbers), COLUMNS), *claims(task, numbers), *tables))


def claims(task: str, found: Sequence[Mapping[str, Numbers]]) -> Iterator[str]:
    """Yield the claims of a task with their verdicts, and an empty line. No claims with fewer than `SEEDS` seeds."""
    for row, kind, rival, columns in CLAIMS.get(task, ()) if len(found) >= SEEDS else ():
        for column in columns if {row, rival} <= found[0].keys() else ():
            sign = 1 if JUDGED[column] else -1
            gains = [sign * (seed[row][column] - seed[rival][column]) for seed in found]
            holds = is_ahead(gains) if kind == BETTER else not is_ahead([-gain for gain in gains])
            apart = [sign * gain for gain in gains]
            yield f"- `{row}` {kind} `{rival}` in {column}: {verdict(apart, more=JUDGED[column])}: {format_verdict(holds)}"
    yield ""


if __name__ == "__main__":
    main()
