"""Results of `search.py`: claims, frontier of speed and loss, tables and a figure.

Claims for `search.py --choices`, written before seeds 200 to 209 ran, for digits and texts, on paired
differences on held-out data ("significant" means: the 95 % interval over ten models excludes 0):

- `avg` (mean of accuracy and near-OOD AUROC by `msp`): lazy search is not significantly worse than exact
  search;
- Taylor is not significantly worse than exact search;
- AUROC by `energy+density`, near and far: the member chosen by this score is significantly better than the
  member chosen by `msp`, and than random heads.

The default of `--search` becomes `lazy` if the first claim holds for both tasks and neither interval is below
-2 points. The default of `--method` becomes `taylor` on the same condition for the second claim.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from intervals import half_interval

from hydractl.reporting.figures import pareto

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

FASTER, MEDIAN, WORST = 10.0, -0.001, -0.005
"""Claimed bounds: speed relative to naive (median), loss of the objective in the median, and in the worst
case. Chosen by hand; with doubled losses, coarser searches would also pass."""
COLUMNS = (
    "search",
    "faster than naive, median (least)",
    "evaluations",
    "final objective − exhaustive: median",
    "worst",
    "best",
    "halfway, mean",
    "held out, mean",
    "swaps made",
)
INTRODUCTION = (
    "Speed and quality of the lazy search for circuits, by `python benchmarks/search.py`. Searches remove half of the heads with the objective "
    "`avg`. The constants were chosen on digits 100 to 103, text 100 to 107, and seeds up to 79, the test seeds of earlier constants. Held out: "
    "difference from the exhaustive search's circuit on the test split and near OOD, with 95 % interval over models. Halfway: the objective after "
    "half of the removals. "
)
ALL_HEADS, RANDOM = "all heads", "random heads"
EXACT_CHOICE, LAZY_CHOICE, TAYLOR = "circuit, exact", "circuit, lazy", "taylor"
OOD_MSP, OOD_DENSITY = "ood by msp", "ood by energy+density"
SECONDS = "seconds"
NEAR, FAR, NEAR_DENSITY, FAR_DENSITY = "near, msp", "far, msp", "near, energy+density", "far, energy+density"
CHOICE_METRICS = {
    "accuracy": ("accuracy", ""),
    NEAR: ("auroc", "near"),
    FAR: ("auroc", "far"),
    NEAR_DENSITY: ("auroc@energy+density", "near"),
    FAR_DENSITY: ("auroc@energy+density", "far"),
}
"""For each column: metric of the report, and OOD sets of the mean (empty for a metric of the ID set)."""
AVG = "avg"
CLAIMS: tuple[tuple[str, str, str, bool], ...] = (
    (LAZY_CHOICE, EXACT_CHOICE, AVG, False),
    (TAYLOR, EXACT_CHOICE, AVG, False),
    (OOD_DENSITY, OOD_MSP, NEAR_DENSITY, True),
    (OOD_DENSITY, OOD_MSP, FAR_DENSITY, True),
    (OOD_DENSITY, RANDOM, NEAR_DENSITY, True),
    (OOD_DENSITY, RANDOM, FAR_DENSITY, True),
)
"""Claims on choices: first choice, second choice, column, and True for "better" or False for "no worse"."""
ChoiceNumbers: TypeAlias = "Mapping[str, Mapping[str, Mapping[str, dict[str, float]]]]"
"""Columns of each choice, by task, seed and choice."""
CHOICES_INTRODUCTION = (
    "Quality of members by the choice of heads, from `python benchmarks/search.py --choices`. Members keep half of the heads and are not fine-tuned. "
    "Accuracy and AUROC are in percent; seconds are processor time of `score` and `prune`. The claims were written before seeds 200 to 209 ran."
)
DEFAULT, EXACT = "default", "`--search exact`"


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a setting on a model, compared with the exhaustive search.

    Attributes:
        seed: Seed of the model.
        faster: Speed relative to naive.
        exhaustive: Speed of the exhaustive search relative to naive.
        work: Work of the search, as reported by `score`.
        evaluations: Number of evaluated candidates.
        swapped: Number of swaps.
        objective: Final objective.
        difference: Final objective minus the exhaustive one.
        halfway: The same after half of the removals.
        held_out: The same on held-out data.
        same_heads: Number of removed heads in common.
    """

    seed: int
    faster: float
    exhaustive: float
    work: float
    evaluations: float
    swapped: float
    objective: float
    difference: float
    halfway: float
    held_out: float
    same_heads: int


Found: TypeAlias = "Mapping[str, Mapping[str, Sequence[Run]]]"
"""Runs of all models, by task and setting (as typed on the command line)."""


class Point(NamedTuple):
    """Median speed of a search relative to naive, and its final objective minus the exhaustive one."""

    faster: float
    median: float
    worst: float


def claims(runs: Sequence[Run]) -> dict[str, bool]:
    """Return each claim on the default setting, and whether it holds."""
    differences = [run.difference for run in runs]
    held = [run.held_out for run in runs]
    mean, half = statistics.mean(held), half_interval(held)
    fast = statistics.median(run.faster for run in runs)
    return {
        f"median speed at least {FASTER:g} times naive": fast >= FASTER,
        f"median of the final objective minus exhaustive at least {MEDIAN}": statistics.median(differences)
        >= MEDIAN,
        f"worst case of the final objective minus exhaustive at least {WORST}": min(differences) >= WORST,
        "held-out mean difference not below 0 by more than the interval": mean + half >= 0,
    }


def publish_choices(numbers: ChoiceNumbers, folder: Path | None) -> None:
    """Print the tables of choices with verdicts. If a folder is given, also write the tables and all numbers."""
    lines = [
        "# Effect of the choice of heads on held-out data",
        "",
        CHOICES_INTRODUCTION,
    ]
    for task, seeds in numbers.items():
        rows = {
            seed: {
                choice: each | {AVG: (each["accuracy"] + each[NEAR]) / 2} for choice, each in choices.items()
            }
            for seed, choices in seeds.items()
        }
        columns = (AVG, *CHOICE_METRICS, SECONDS)
        lines += ["", f"## {task}: {len(rows)} models, seeds {', '.join(rows)}", ""]
        lines += [f"| heads by | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        for choice in next(iter(rows.values())):
            means = {c: statistics.mean(row[choice][c] for row in rows.values()) for c in columns}
            cells = [f"{means[c]:.1f}" if c == SECONDS else f"{100 * means[c]:.1f}" for c in columns]
            lines.append(f"| {choice} | {' | '.join(cells)} |")
        lines += [
            "",
            "| difference | in | mean | better on | claimed | holds |",
            "|---|---|---:|---:|---|---|",
        ]
        for one, other, column, better in CLAIMS:
            apart = [100 * (row[one][column] - row[other][column]) for row in rows.values()]
            mean, half = statistics.mean(apart), half_interval(apart)
            holds = mean - half > 0 if better else mean + half >= 0
            cells = [
                f"{one} − {other}",
                column,
                f"{mean:+.1f} ± {half:.1f}",
                f"{sum(each > 0 for each in apart)} of {len(apart)}",
                "better" if better else "no worse",
                "yes" if holds else "**no**",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(f"\n{text}\n")
    if folder is not None:
        (folder / "choices.md").write_text(text + "\n")
        (folder / "choices.json").write_text(json.dumps(numbers, indent=1) + "\n")


def setting_text(setting: Mapping[str, float]) -> str:
    """Return a setting as typed on the command line."""
    return " ".join(f"--{name} {value:g}" for name, value in setting.items()) or DEFAULT


def points(found: Mapping[str, Sequence[Run]]) -> dict[str, Point]:
    """Return the point of each search including the exhaustive one, slowest first."""
    placed = {EXACT: Point(statistics.median(run.exhaustive for run in next(iter(found.values()))), 0.0, 0.0)}
    for name, runs in found.items():
        apart = [run.difference for run in runs]
        placed[name] = Point(
            statistics.median(run.faster for run in runs), statistics.median(apart), min(apart)
        )
    return dict(sorted(placed.items(), key=lambda item: item[1].faster))


def frontier(placed: Mapping[str, Point]) -> list[str]:
    """Return the searches that no other search dominates in median speed and worst loss."""
    best = pareto([(-point.faster, point.worst) for point in placed.values()], up=True)
    return [name for name, point in placed.items() if (-point.faster, point.worst) in best]


def table(name: str, found: Mapping[str, Sequence[Run]]) -> str:
    """Return the results of one task in Markdown."""
    default, placed = found[DEFAULT], points(found)
    lines = [
        f"## {name}: {len(default)} models, seeds {', '.join(str(run.seed) for run in default)}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    lines += [row(search, point, found.get(search, default)) for search, point in placed.items()]
    lines += ["", f"Frontier of median speed and worst loss: {', '.join(frontier(placed))}."]
    lines += ["", "Final objective minus exhaustive with the default setting, per model, ascending: "]
    lines[-1] += ", ".join(f"{each:+.4f}" for each in sorted(run.difference for run in default)) + "."
    lines += ["", *(f"- {claim}: {'yes' if true else '**no**'}" for claim, true in claims(default).items())]
    return "\n".join(lines)


def row(search: str, point: Point, runs: Sequence[Run]) -> str:
    """Return a search's row of the table. The exhaustive search only has a speed."""
    if search == EXACT:
        speed = f"{point.faster:.1f} ({min(run.exhaustive for run in runs):.1f})"
        return f"| {EXACT} | {speed} " + "| " * (len(COLUMNS) - 2) + "|"
    held = [run.held_out for run in runs]
    mean, half = statistics.mean(held), half_interval(held)
    cells = (
        search,
        f"{point.faster:.1f} ({min(run.faster for run in runs):.1f})",
        f"{statistics.mean(run.evaluations for run in runs):.0f}",
        f"{point.median:+.4f}",
        f"{point.worst:+.4f}",
        f"{max(run.difference for run in runs):+.4f}",
        f"{statistics.mean(run.halfway for run in runs):+.4f}",
        f"{mean:+.4f} ± {half:.4f}",
        f"{statistics.mean(run.swapped for run in runs):.1f}",
    )
    return f"| {' | '.join(cells)} |"


def publish(found: Found, folder: Path | None) -> None:
    """Print the tables. If a folder is given, also write the tables, all numbers and the figure.

    Raises:
        SystemExit: If the default setting of a task is not measured on all seeds.
    """
    if lacking := [name for name, each in found.items() if DEFAULT not in each]:
        raise SystemExit(f"{', '.join(lacking)}: the default setting is not measured on all given seeds")
    threads = f"{torch.get_num_threads()} thread(s), torch {torch.__version__}, {platform.machine()}"
    tables = [table(name, runs) for name, runs in found.items()]
    text = "\n\n".join(
        [
            "# Circuits by lazy search, against Algorithm 1",
            INTRODUCTION + threads + ".",
            *tables,
            "![Final objective minus exhaustive, over speed relative to naive](search.png)",
        ]
    )
    print(f"\n{text}\n")
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "search.md").write_text(text + "\n")
    numbers = {
        name: {setting: [asdict(run) for run in runs] for setting, runs in each.items()}
        for name, each in found.items()
    }
    (folder / "search.json").write_text(json.dumps(numbers, indent=1) + "\n")
    draw(found, folder / "search.png")


def draw(found: Found, path: Path) -> None:
    """Plot loss over speed for each search and task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(found) + 2, 4.2), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False).flat
    colors = {
        name: f"C{i}" for i, name in enumerate(dict.fromkeys(n for each in found.values() for n in each))
    }
    legend: dict[str, Artist] = {}
    for axes, (name, each) in zip(panels, found.items(), strict=True):
        cloud(axes, each, colors)
        axes.set(title=name, xlabel="times faster than naive, median")
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    panels[0].set_ylabel("final objective − exhaustive")
    figure.legend(legend.values(), legend, loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=100)


def cloud(axes: Axes, found: Mapping[str, Sequence[Run]], colors: Mapping[str, str]) -> None:
    """Plot the differences of all models, with median and worst per search, and the frontier of the worst."""
    placed = points(found)
    for name, runs in found.items():
        (faster, median, worst), color = placed[name], colors[name]
        axes.plot([faster] * len(runs), [run.difference for run in runs], ".", color=color, alpha=0.4)
        axes.plot([faster], [median], "o", color=color, label=f"{name}: median")
        axes.plot([faster], [worst], "v", color=color)
    axes.plot([placed[EXACT].faster], [0], "k*", markersize=9, label="exact")
    best = [placed[name] for name in frontier(placed)]
    axes.plot([p.faster for p in best], [p.worst for p in best], "k-", linewidth=0.8, label="worst: frontier")
    axes.axvline(FASTER, color="grey", linestyle=":", linewidth=1, label="claimed of the default")
    axes.axhline(WORST, color="grey", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    ticks = [t for t in (2, 3, 5, 7, 10, 15, 20, 30, 40) if t <= 1.3 * max(p.faster for p in placed.values())]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
