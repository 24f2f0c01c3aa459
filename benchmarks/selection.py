"""Compare all methods for choosing heads at 75, 50 and 25 % of the heads, with and without fine-tuning.

Counterpart of the paper's Figures 5 and 6 (appendix B.3), with the base of the digits demo. For each seed, a
base is trained like in `hydractl demo`. Each method scores the base on the same data: circuits on the
validation split and digit 9, gradients on 256 training images, trained methods on the training split. The
best mask of each budget is pruned, evaluated on the test split with four OOD sets, fine-tuned as in the demo,
and evaluated again. Random choices are the mean of several draws. Seconds are the time of `score` for one
budget, on one thread. Writes a table, all numbers and a figure.

    python benchmarks/selection.py [--seeds 0 1 2] [--epochs 20] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from demo_tasks import DIGITS

from hydractl.cli.app import main as hydractl
from hydractl.manifest.head_mask import HeadImportance, HeadMask
from hydractl.manifest.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEPT = (0.75, 0.5, 0.25)
HUES = {
    "circuit": "Blues", "taylor": "Oranges", "michel": "Reds", "headmap": "RdPu",
    "cahp": "Greens", "l0": "Purples", "dsp": "Purples", "magnitude": "Greys", "random": "Greys",
}  # fmt: skip
"""Colormap of the lines in the figure, by method."""
DRAWS = 5
"""Random draws of heads. Chosen by hand; doubling lowers the noise of the random row by a factor of 1.4 and
doubles its time."""
METRICS = {"Acc": "accuracy", "NLL": "nll", "ECE": "ece", "AUROC": "auroc"}
PERCENT = ("Acc", "AUROC")
DENSE = "all heads"
CALIBRATION = ("--data", DIGITS.train, "--limit", "256")
VALIDATION = ("--data", DIGITS.val)
OOD = ("--ood", DIGITS.ood_val)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A method for scoring heads.

    Attributes:
        name: Name in tables.
        options: Options of `score`.
        once: Whether a single run, for the smallest budget, serves all budgets.
        free: Whether head importance is the same for every budget.
        per_layer: Whether each layer keeps the same number of heads, as defined by the method.
        draws: Number of seeds in the average.
    """

    name: str
    options: tuple[str, ...]
    once: bool = False
    free: bool = False
    per_layer: bool = False
    draws: int = 1


def circuit(name: str, objective: str, *more: str) -> Choice:
    """Return a circuit search with an objective. Objectives other than acc, nll and ece use the OOD data."""
    needs = () if objective in {"acc", "nll", "ece"} else OOD
    options = (
        "--method",
        "circuit",
        "--objective",
        objective,
        *VALIDATION,
        *needs,
        *(more or ("--search", "exact")),
    )
    return Choice(name=name, options=options, once=True)


CHOICES = (
    circuit("CircAcc", "acc"),
    circuit("CircOOD", "ood"),
    circuit("CircAvg", "avg"),
    circuit("CircAvg lazy", "avg", "--search", "lazy"),
    circuit("Circ nll", "nll"),
    circuit("Circ ece", "ece"),
    Choice(name="Taylor", options=("--method", "taylor", *CALIBRATION), per_layer=True),
    Choice(name="Taylor global", options=("--method", "taylor", "--scope", "global", *CALIBRATION), once=True, free=True),
    Choice(name="Michel", options=("--method", "michel", *CALIBRATION), once=True, free=True),
    Choice(name="Michel batch", options=("--method", "michel", "--form", "batch", *CALIBRATION), once=True, free=True),
    Choice(name="Michel 10 % a step", options=("--method", "michel", "--recompute", "5", *CALIBRATION), once=True),
    Choice(name="HeadMap", options=("--method", "headmap", "--data", DIGITS.train), per_layer=True),
    Choice(name="CAHP", options=("--method", "cahp", "--data", DIGITS.train)),
    Choice(name="CAHP medoid", options=("--method", "cahp", "--representative", "medoid", "--data", DIGITS.train)),
    Choice(name="L0", options=("--method", "l0", "--data", DIGITS.train), once=True, free=True),
    Choice(name="DSP", options=("--method", "dsp", "--data", DIGITS.train)),
    Choice(name="DSP STE", options=("--method", "dsp", "--estimator", "ste", "--data", DIGITS.train)),
    Choice(name="Magnitude", options=("--method", "magnitude"), once=True, free=True),
    Choice(name="Random", options=("--method", "random"), once=True, free=True, draws=DRAWS),
)  # fmt: skip


def main() -> int:
    """Run the benchmark, print the tables, and write them with a figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the bases")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of fine-tuning; 0: no fine-tuning")
    parser.add_argument(
        "--only", nargs="+", default=[c.name for c in CHOICES], metavar="NAME",
        help="measure these methods only; keep the other rows of existing results",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # The matrices of the demo are too small for more threads.
    chosen = [choice for choice in CHOICES if choice.name in options.only]
    runs = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(Bench(Path(folder), seed=seed, epochs=options.epochs).measure(chosen))
    rows = averaged(runs)
    command = f"`python {shlex.join(sys.argv)}`"
    if len(chosen) < len(CHOICES) and (earlier := options.out / "selection.json").exists():
        rows = merged(rows, earlier)
        command = (
            f"`python benchmarks/selection.py` with the same options, and once more in part by {command}"
        )
    text = written(rows, seeds=options.seeds, command=command)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "selection.md").write_text(
        text + "\n\n![Quality by heads kept](selection.png)\n", encoding="utf-8"
    )
    (options.out / "selection.json").write_text(
        json.dumps(rows, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    draw(rows, options.out / "selection.png")
    return 0


Rows = dict[str, dict[str, dict[str, float]]]
"""Metrics and `seconds` of each choice, by stage and budget (`without 50 %`), then by choice."""


class Bench:
    """A base model of a seed and all models pruned from the base.

    Args:
        folder: Folder for all files.
        seed: Seed of the trainings.
        epochs: Epochs of fine-tuning; 0 to skip it.
    """

    def __init__(self, folder: Path, *, seed: int, epochs: int) -> None:
        self.folder, self.seed, self.epochs = folder, seed, epochs
        self.base = folder / "base.st"
        self.seconds: dict[str, float] = {}
        run("finetune", DIGITS.architecture, "--train", DIGITS.train, "--val", DIGITS.val, *DIGITS.training,
            "--seed", seed, "-o", self.base)  # fmt: skip
        self.heads = HeadMask.model_validate(self._full()).towers

    def _full(self) -> dict[str, object]:
        run("score", self.base, "--method", "random", "-o", self.folder / "shape.json")
        towers = HeadImportance.read(self.folder / "shape.json").towers
        return {
            "towers": {
                name: {
                    "num_heads": len(t.scores[0]),
                    "keep": tuple(tuple(range(len(row))) for row in t.scores),
                }
                for name, t in towers.items()
            }
        }

    def measure(self, choices: Sequence[Choice]) -> Rows:
        """Score, prune, evaluate, fine-tune, and evaluate again."""
        members = {(c.name, kept): self.members(c, kept) for kept in KEPT for c in choices}
        found: Rows = {}
        for kept in KEPT:
            ours = {c.name: members[c.name, kept] for c in choices}
            found[f"without {kept:.0%}"] = self.evaluate({DENSE: [self.base]} | ours, f"without-{kept}")
            if self.epochs:
                tuned = {name: [self.tuned(path) for path in paths] for name, paths in ours.items()}
                found[f"with {kept:.0%}"] = self.evaluate(
                    {DENSE: [self.tuned(self.base)]} | tuned, f"with-{kept}"
                )
        return found

    def members(self, choice: Choice, kept: float) -> list[Path]:
        """Return the pruned models of a budget, one per draw."""
        total = sum(t.num_heads * len(t.keep) for t in self.heads.values())
        layers = sum(len(t.keep) for t in self.heads.values())
        paths = []
        for draw in range(choice.draws):
            name = f"{CHOICES.index(choice)}-{draw}"
            scores = self.folder / (f"{name}.json" if choice.once else f"{name}-{kept}.json")
            if not scores.exists():
                budget = ("--keep-fraction", min(KEPT) if choice.once else kept)
                begun = time.perf_counter()
                run(
                    "score",
                    self.base,
                    *choice.options,
                    *(() if choice.free else budget),
                    "--seed",
                    self.seed + draw,
                    "-o",
                    scores,
                )
                self.seconds[str(scores)] = time.perf_counter() - begun
                print(f"  {choice.name}: scored in {self.seconds[str(scores)]:.1f} s", file=sys.stderr)
            path = self.folder / f"{name}-{kept}.st"
            amount: tuple[object, ...] = ("--keep-fraction", kept)
            if choice.per_layer:
                amount = ("--keep-heads", round(total * kept / layers), "--per-layer")
            if (
                choice.options[1] == "cahp"
            ):  # CAHP keeps one head per cluster and at least one per layer; its importance alone would not.
                amount = ("--keep-heads", "auto")
            run("prune", self.base, "--scores", scores, *amount, "--no-verify", "-o", path)
            self.seconds[str(path)] = self.seconds[str(scores)]
            paths.append(path)
        return paths

    def tuned(self, path: Path) -> Path:
        """Return a member after the demo's fine-tuning. Reuses an existing file."""
        out = path.with_name(f"{path.stem}-tuned.st")
        if not out.exists():
            options = [*DIGITS.fine_tuning]
            options[options.index("--epochs") + 1] = str(self.epochs)
            run(
                "finetune",
                path,
                "--train",
                DIGITS.train,
                "--val",
                DIGITS.val,
                *options,
                "--seed",
                self.seed,
                "-o",
                out,
            )
        return out

    def evaluate(self, models: Mapping[str, Sequence[Path]], name: str) -> dict[str, dict[str, float]]:
        """Return the metrics of each choice, averaged over its draws."""
        flat = {f"{label} {i}": path for label, paths in models.items() for i, path in enumerate(paths)}
        (first, path), *others = flat.items()
        report = self.folder / f"{name}.report.json"
        sets = [
            w
            for kind, refs in (("near", DIGITS.near), ("far", DIGITS.far))
            for ref in refs
            for w in (f"--{kind}", ref)
        ]
        run("eval", path, "--name", first, *(w for n, p in others for w in ("--compare", f"{n}={p}")),
            "--data", DIGITS.test, *sets, "--no-latency", "--bootstrap", 0,
            "--metrics", ",".join(METRICS.values()), "-o", report)  # fmt: skip
        found = {row.name: row for row in Report.read(report).rows}
        return {
            label: {
                column: statistics.mean(
                    found[f"{label} {i}"].means["all"][metric] if metric == "auroc" else found[f"{label} {i}"].values[metric].value
                    for i in range(len(paths))
                )
                for column, metric in METRICS.items()
            }
            | {"seconds": statistics.mean(self.seconds.get(str(p).replace("-tuned", ""), 0.0) for p in paths)}
            for label, paths in models.items()
        }  # fmt: skip


def run(*arguments: object) -> None:
    """Run a hydractl command without output.

    Raises:
        SystemExit: If the command fails; the message contains its output.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = hydractl([*map(str, arguments), "-q"])
    if code:
        raise SystemExit(f"hydractl {shlex.join(map(str, arguments))}\n{said.getvalue()}")


def averaged(runs: Sequence[Rows]) -> Rows:
    """Return means over seeds. With several seeds, add standard deviations as `± COLUMN`."""
    result: Rows = {}
    for stage, choices in runs[0].items():
        for name, columns in choices.items():
            row = result.setdefault(stage, {}).setdefault(name, {})
            for column in columns:
                values = [run[stage][name][column] for run in runs]
                row[column] = statistics.mean(values)
                if len(values) > 1:
                    row[f"± {column}"] = statistics.stdev(values)
    return result


def merged(rows: Rows, path: Path) -> Rows:
    """Insert new rows into the rows of an earlier run.

    Args:
        rows: New rows.
        path: Results of the earlier run.

    Raises:
        SystemExit: If the bases of the earlier run differ.
    """
    whole: Rows = json.loads(path.read_text(encoding="utf-8"))
    for stage, choices in rows.items():
        if any(choices[DENSE][column] != whole[stage][DENSE][column] for column in METRICS):
            raise SystemExit(f"{path}: results of other bases; choose another folder with `--out`")
        whole[stage] |= choices
    names = [DENSE, *(choice.name for choice in CHOICES)]
    return {stage: {name: whole[stage][name] for name in names if name in whole[stage]} for stage in rows}


def written(rows: Rows, *, seeds: Sequence[int], command: str) -> str:
    """Return the tables in Markdown."""
    lines = [
        "# Methods for choosing heads",
        "",
        f"Quality of a pruned model by method for choosing heads, made by {command} on {platform.machine()}, one thread, torch {torch.__version__}.",
        "",
        f"Means over {len(seeds)} base{'s' if len(seeds) > 1 else ''} (seeds {', '.join(map(str, seeds))})"
        + ("; ± is the standard deviation over the bases." if len(seeds) > 1 else "."),
        "The model is a small vision transformer (0.3 M parameters, 48 heads) with 257 test images. AUROC is the mean over two near and two far OOD sets.",
        "CAHP keeps one head per cluster and at least one per layer. Taylor and HeadMap keep equally many heads in each layer.",
    ]
    for stage, choices in rows.items():
        kind, budget = stage.split(" ", 1)
        lines += ["", f"## {budget} of the heads kept, {kind} fine-tuning", ""]
        lines += [f"| choice | {' | '.join(METRICS)} | seconds |", f"|---|{'---:|' * (len(METRICS) + 1)}"]
        for name, row in choices.items():
            cells = [cell(row, column) for column in METRICS]
            lines.append(
                f"| {name} | {' | '.join(cells)} | {row['seconds']:.1f} |"
                if name != DENSE
                else f"| {name} | {' | '.join(cells)} | |"
            )
    return "\n".join(lines)


def cell(row: Mapping[str, float], column: str) -> str:
    """Format a number of the table, with its standard deviation if known."""
    scale, digits = (100, 1) if column in PERCENT else (1, 3)
    spread = f" ± {scale * row[f'± {column}']:.{digits}f}" if f"± {column}" in row else ""
    return f"{scale * row[column]:.{digits}f}{spread}"


def draw(rows: Rows, path: Path) -> None:
    """Plot each metric over the share of kept heads, with and without fine-tuning."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    kinds = list(dict.fromkeys(stage.split(" ")[0] for stage in rows))
    names = [name for name in rows[f"{kinds[0]} {KEPT[0]:.0%}"] if name != DENSE]
    looks = {choice.name: look for choice, look in zip(CHOICES, looks_of(CHOICES), strict=True)}
    figure, axes = plt.subplots(
        len(METRICS),
        len(kinds),
        figsize=(5.2 * len(kinds) + 2, 3.1 * len(METRICS)),
        squeeze=False,
        sharex=True,
    )
    for r, column in enumerate(METRICS):
        for c, kind in enumerate(kinds):
            axis = axes[r][c]
            scale = 100 if column in PERCENT else 1
            axis.axhline(
                scale * rows[f"{kind} {KEPT[0]:.0%}"][DENSE][column],
                color="black",
                linestyle=":",
                label=DENSE,
            )
            for name in names:
                values = [scale * rows[f"{kind} {kept:.0%}"][name][column] for kept in KEPT]
                axis.plot([100 * kept for kept in KEPT], values, label=name, **looks[name])
            axis.set_ylabel(f"{column}, %" if column in PERCENT else column)
            axis.grid(alpha=0.3)
            if r == 0:
                axis.set_title(f"{kind} fine-tuning")
            if r == len(METRICS) - 1:
                axis.set_xlabel("heads kept, %")
                axis.set_xticks([100 * kept for kept in KEPT])
    axes[0][0].invert_xaxis()  # The axes are shared: one call inverts every axis.
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 1 - 1.9 / (5.2 * len(kinds) + 2), 1))
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110)
    # 64 colours need a fifth of the bytes.
    Image.open(picture).convert("RGB").quantize(64).save(path, optimize=True)


def looks_of(choices: Sequence[Choice]) -> list[dict[str, object]]:
    """Return the style of each line. Related methods share a colormap and have different markers."""
    from matplotlib import pyplot as plt

    hues = [HUES[choice.options[1]] for choice in choices]
    looks = []
    for i, hue in enumerate(hues):
        place, count = hues[:i].count(hue), hues.count(hue)
        looks.append(
            {
                "color": plt.get_cmap(hue)(0.8 - 0.4 * place / max(1, count - 1)),
                "marker": "osv^D*"[place],
                "linestyle": "--" if hue == "Greys" else "-",
                "markersize": 4,
                "linewidth": 1.2,
            }
        )
    return looks


if __name__ == "__main__":
    sys.exit(main())
