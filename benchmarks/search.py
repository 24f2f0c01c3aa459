"""Measure the speed of `score --search lazy` relative to a literal Algorithm 1, and the loss of quality.

Half of the heads of two small models are removed with the objective `avg`: the demo's vision transformer on
digits and a BERT on generated reviews. Both are trained here once by the demo's command for a few epochs, and
stored in a temporary folder. The constants of the search were chosen on other models than the default seeds;
`search_results.py` lists them.

Naive is Algorithm 1: for each candidate, a forward pass of the library's own model over all data with a
zeroed slice of the output projection. A sample is timed *while* each search runs: the search pauses before
some removals, spread evenly, and the naive pass runs for some candidates. The naive time is the median
seconds of a candidate times the number of candidates of all removals. Each search is therefore compared with
a naive time from the same minutes on the same machine. Seconds are processor time of the process, so other
load on the machine has little effect.

Tests verify that the naive search and `exact` find the same circuits, for every objective and several
families. The reference for `lazy` is therefore the final objective of `exact` (computed once per model and
stored). Held-out numbers are for the same circuits on the test split, as a mean over near OOD sets; no search
uses these data.

Other settings, from nearly exact to fast, and the exhaustive search show the price of speed. A setting is on
the frontier if no other setting is as fast in the median and as good in the worst case. Results are stored
next to the models and reused while the code of the search is unchanged, so an interrupted run continues.

The claim, for each task: the default setting is at least 10 times faster than naive (median over the seeds);
the final objective minus the exhaustive one is at least -0.001 in the median and -0.005 in the worst case; on
held-out data the mean difference is not below 0 by more than its 95 % interval.

`--bf16` runs no search: the candidates of the first removal are evaluated in bfloat16 and in float32, with
the objective computed in float64, and the rank correlation is printed.

`--choices` compares choices of heads by members with half of the heads: `score`, `prune` without fine-tuning,
and `eval` on the test split with near and far OOD sets, which no choice uses. `CHOICES` lists the choices;
random heads are the mean of five draws. Results are stored per seed in `choices.json`. `search_results.py`
has the claims.

    python benchmarks/search.py [--task digits text] [--seeds 80 ... 89] [--settings N] [--kept]
                                [--out FOLDER] [--bf16 | --choices]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from scipy.stats import spearmanr

from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_items
from hydractl.families.open_model import load_model
from hydractl.manifest.head_mask import Removal
from hydractl.manifest.report import Report
from hydractl.prediction.open_inputs import open_reader
from hydractl.progress import Silent, reporting
from hydractl.scoring import circuit
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.search import score_circuit
from hydractl.scoring.job import Ranking, RepeatedBatches, ScoreJob
from hydractl.scoring.settings import CircuitSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demo_tasks import DIGITS, DemoTask, reviews
from film_reviews import write_reviews
from search_results import (
    ALL_HEADS,
    CHOICE_METRICS,
    DEFAULT,
    EXACT_CHOICE,
    LAZY_CHOICE,
    OOD_DENSITY,
    OOD_MSP,
    RANDOM,
    SECONDS,
    TAYLOR,
    ChoiceNumbers,
    Run,
    claims,
    publish,
    publish_choices,
    setting_text,
)
from selection import run

from support import naive  # the oracle lives with the tests
from support.variants import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hydractl.families.open_model import OpenModel

T = TypeVar("T")
STEPS, CANDIDATES = 4, 2
"""Number of removals with naive evaluations, and evaluations per removal. Chosen by hand. Doubling either
doubles the time of naive passes and makes their median more stable."""
SEEDS = tuple(range(80, 90))
SETTINGS: tuple[dict[str, float], ...] = ({},)
"""Settings of `lazy`. The first is the default, and the claim is about the default."""
TASKS = {"digits": 25, "text": 3}
"""Training epochs of the base for each task."""
CHOICES: dict[str, tuple[str, ...]] = {
    EXACT_CHOICE: ("--objective", "avg", "--search", "exact"),
    LAZY_CHOICE: ("--objective", "avg", "--search", "lazy"),
    TAYLOR: ("--method", "taylor", "--limit", "256"),
    OOD_MSP: ("--objective", "ood", "--search", "exact"),
    OOD_DENSITY: ("--objective", "ood", "--ood-score", "energy+density", "--search", "exact"),
    RANDOM: ("--method", "random"),
}
"""Options of `score` for each choice."""
DRAWS = 5
KEEP = ("--keep-fraction", "0.5")


@dataclass(frozen=True, slots=True)
class Task:
    """A trained model with data for the search and held-out data.

    Attributes:
        name: Name of the task.
        model_file: The model.
        val: ID and OOD data of the search.
        test: Held-out ID data.
        near: Held-out OOD data.
    """

    name: str
    model_file: OpenModel
    val: tuple[str, str]
    test: str
    near: tuple[str, ...]

    def job(self, data: tuple[str, str], **settings: object) -> ScoreJob:
        """Return a scoring job on ID and OOD data with the given settings and a budget of half of the heads."""
        id_data, ood_data = (self._batches(reference) for reference in data)
        return ScoreJob(
            model=load_model(self.model_file),
            family=self.model_file.family,
            architecture=self.model_file.header.architecture,
            id_data=id_data,
            ood_data=replace(ood_data, labels=None),
            settings=CircuitSettings(**settings),  # type: ignore[arg-type]
            budget=self.heads // 2,
        )

    @property
    def heads(self) -> int:
        """Number of heads of all towers."""
        return sum(t.layers * t.num_heads for t in self.model_file.header.architecture.towers.values())

    def _batches(self, reference: str) -> RepeatedBatches:
        items = open_items(reference, self.model_file.header.preprocess)
        labels = (
            torch.zeros(len(items), dtype=torch.long) if items.labels is None else torch.tensor(items.labels)
        )
        cached = eval_batches(items, self.model_file.header.preprocess, batch_size=64)
        return RepeatedBatches(cached, labels, torch.empty(0))


class NaiveTimer(Silent):
    """Progress that pauses a search before some steps and times naive evaluations.

    Attributes:
        library: The library's model, with the weights of the task.
        data: ID inputs, labels and OOD inputs.
        places: Layer and head of each candidate.
        seconds: Processor seconds of each naive evaluation.
    """

    def __init__(self, task: Task, job: ScoreJob) -> None:
        architecture = task.model_file.header.architecture
        self.library = LIBRARY[architecture.library](architecture.name, dict(architecture.config)).eval()
        self.library.load_state_dict(task.model_file.checkpoint.tensors())
        (tower,) = architecture.towers.values()
        width = naive.output_weights(self.library)[0].shape[1]
        self.library.head_width = width // tower.num_heads
        inside, outside = list(job.id_data), list(job.ood_data)
        labels = torch.cat([one.labels for one in inside if one.labels is not None])
        self.data = ([one.inputs for one in inside], labels, [one.inputs for one in outside])
        self.places = list(naive.candidates(self.library, []))
        self.seconds: list[float] = []
        # The first evaluation is slower, so a warm-up run is discarded.
        self.evaluate(0)
        self.seconds.clear()

    def evaluate(self, number: int) -> None:
        """Time one naive evaluation of a candidate."""
        begin = time.process_time()
        naive.without(self.library, *self.places[number % len(self.places)], "avg", self.data)
        self.seconds.append(time.process_time() - begin)

    def track(self, items: Iterable[T], *, label: str, total: int | None) -> Iterator[T]:
        """See `Progress.track`."""
        del label
        stops = {round((i + 0.5) * (total or 0) / STEPS) for i in range(STEPS)}
        for i, item in enumerate(items):
            if i in stops:
                for candidate in range(CANDIDATES):
                    self.evaluate(17 * i + 5 * candidate)
            yield item


class Exhaustive(NamedTuple):
    """Result of the exhaustive search.

    Attributes:
        faster: Speed relative to naive.
        removals: Removed heads in order.
        held_out: Objective of the last circuit on held-out data.
    """

    faster: float
    removals: tuple[Removal, ...]
    held_out: float


def main() -> int:
    """Measure and print. The exit code is 1 if the claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="seeds of the trained models")
    parser.add_argument(
        "--settings", type=int, default=len(SETTINGS), help="number of settings, starting with the default"
    )
    parser.add_argument("--out", type=Path, help="folder for search.md, search.json and search.png")
    parser.add_argument(
        "--kept",
        action="store_true",
        help="measure nothing; print tables of the settings already measured on all seeds",
    )
    parser.add_argument("--bf16", action="store_true", help="rank candidates in bfloat16 and float32 instead")
    parser.add_argument(
        "--choices", action="store_true", help="compare members by choice of heads on held-out data instead"
    )
    options = parser.parse_args()
    if options.choices:
        numbers: ChoiceNumbers = {
            name: {str(seed): chosen(name, seed) for seed in options.seeds} for name in options.task
        }
        publish_choices(numbers, options.out)
        return 0
    if options.bf16:
        print_ranks(options.task, options.seeds)
        return 0
    found: dict[str, dict[str, list[Run]]] = {name: {} for name in options.task}
    for setting in SETTINGS[: options.settings]:
        for name, searches in found.items():
            if options.kept and not all(path_of(name, seed, setting).exists() for seed in options.seeds):
                continue  # Some models have no result yet.
            runs = searches.setdefault(setting_text(setting), [])
            for seed in options.seeds:
                runs.append(measured(name, seed, setting))
                print(name, setting_text(setting), runs[-1], flush=True)
        if not options.kept:
            publish(found, options.out)
    if options.kept:
        publish(found, options.out)
    holds = all(all(claims(searches[DEFAULT]).values()) for searches in found.values())
    print("holds" if holds else "FAILS")
    return 0 if holds else 1


def open_task(name: str, seed: int) -> Task:
    """Return a task. Trains a missing model."""
    experiment = experiment_of(name, seed)
    return Task(
        name=name,
        model_file=open_reader(str(trained(name, seed))),
        val=(experiment.val, experiment.ood_val),
        test=experiment.test,
        near=tuple(each.partition("=")[2] for each in experiment.near),
    )


def experiment_of(name: str, seed: int) -> DemoTask:
    """Return the demo of a task."""
    return DIGITS if name == "digits" else reviews(folder_of(name, seed))


def folder_of(name: str, seed: int) -> Path:
    """Return the folder of a task and seed."""
    return Path(tempfile.gettempdir()) / "hydractl-search" / f"{name}-{seed}"


def trained(name: str, seed: int) -> Path:
    """Train a demo's base for a few epochs if it is missing. Return its path."""
    experiment, folder = experiment_of(name, seed), folder_of(name, seed)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "base.st"
    if not path.exists():
        if name == "text":
            write_reviews(folder)
        print(f"training {path} for {TASKS[name]} epochs")
        data = ("--data", experiment.train, "--val", experiment.val)
        options = (*experiment.training, "--epochs", str(TASKS[name]), "--seed", str(seed), "-q")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "hydractl",
                "finetune",
                experiment.architecture,
                *data,
                *options,
                "-o",
                str(path),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return path


def exhaustive(task: Task, seed: int) -> Exhaustive:
    """Return the result of the exhaustive search. Runs once per model; later calls read the stored result."""
    path = folder_of(task.name, seed) / "exact.json"
    if not path.exists():
        ranking, faster = against_naive(task, task.job(task.val, search="exact"))
        found = {
            "faster": faster,
            "removals": [removal.model_dump() for removal in ranking.removals or ()],
            "held_out": held_out(task, ranking.removals or ()),
        }
        path.write_text(json.dumps(found))
    known = json.loads(path.read_text())
    removals = tuple(Removal.model_validate(each) for each in known["removals"])
    return Exhaustive(known["faster"], removals, known["held_out"])


def path_of(name: str, seed: int, setting: dict[str, float]) -> Path:
    """Return the path of a stored result. The name contains a hash of the search's code."""
    files = sorted(Path(circuit.__path__[0]).glob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]
    return folder_of(name, seed) / f"{code} {setting_text(setting)}.json"


def measured(name: str, seed: int, setting: dict[str, float]) -> Run:
    """Return the result of `timed`, stored for each state of the search's code."""
    path = path_of(name, seed, setting)
    if not path.exists():
        task = open_task(name, seed)
        run = timed(task, seed, setting, exhaustive(task, seed))
        path.write_text(json.dumps(asdict(run)))
    return Run(**json.loads(path.read_text()))


def against_naive(task: Task, job: ScoreJob) -> tuple[Ranking, float]:
    """Run a search with naive evaluations in between.

    Returns:
        The ranking, and the speed of the search relative to naive.
    """
    progress = NaiveTimer(task, job)
    begin = time.process_time()
    with reporting(progress):
        ranking = score_circuit(job)
    seconds = time.process_time() - begin - sum(progress.seconds)
    candidates = sum(range(task.heads, task.heads - task.heads // 2, -1))
    return ranking, statistics.median(progress.seconds) * candidates / seconds


def timed(task: Task, seed: int, setting: dict[str, float], exact: Exhaustive) -> Run:
    """Run a lazy search and compare the result with the exhaustive search."""
    ranking, faster = against_naive(task, task.job(task.val, search="lazy", **setting))
    removals, best = ranking.removals or (), exact.removals
    half = len(removals) // 2 - 1
    return Run(
        seed=seed,
        faster=faster,
        exhaustive=exact.faster,
        work=float(str(ranking.results["work"])),
        evaluations=float(str(ranking.results["evaluations"])),
        swapped=float(str(ranking.results.get("swapped", 0))),
        objective=removals[-1].objective,
        difference=removals[-1].objective - best[-1].objective,
        halfway=removals[half].objective - best[half].objective,
        held_out=held_out(task, removals) - exact.held_out,
        same_heads=len({r.id for r in removals} & {r.id for r in best}),
    )


def held_out(task: Task, removals: Sequence[Removal]) -> float:
    """Return the objective of the last circuit on held-out data, as the mean over near OOD sets."""
    values = []
    for near in task.near:
        model = Circuit(task.job((task.test, near)))
        with torch.inference_mode():
            model.change([r.id for r in removals])
            values.append(model.value())
    return statistics.mean(values)


def chosen(name: str, seed: int) -> dict[str, dict[str, float]]:
    """Return the metrics of each choice for one model on held-out data. Computed once and stored."""
    folder = folder_of(name, seed)
    path = folder / "choices.json"
    if not path.exists():
        base, task = trained(name, seed), experiment_of(name, seed)
        members, seconds = {ALL_HEADS: [base]}, {ALL_HEADS: 0.0}
        for number, (choice, options) in enumerate(CHOICES.items()):
            begin, random = time.process_time(), choice == RANDOM
            members[choice] = [
                folder / f"choice-{number}-{draw}.st" for draw in range(DRAWS if random else 1)
            ]
            for draw, member in enumerate(members[choice]):
                needs = () if random else data_of(task, options)
                run("score", base, *options, *needs, *(("--seed", draw) if random else KEEP),
                    "-o", member.with_suffix(".json"), "--force")  # fmt: skip
                equally = (
                    ("--per-layer", "--keep-heads", heads_per_layer(base) // 2) if choice == TAYLOR else KEEP
                )
                run("prune", base, "--scores", member.with_suffix(".json"), *equally, "--no-verify",
                    "-o", member, "--force")  # fmt: skip
            seconds[choice] = time.process_time() - begin
        path.write_text(json.dumps(evaluated(task, folder, members, seconds)))
        print(name, seed, path.read_text(), flush=True)
    numbers: dict[str, dict[str, float]] = json.loads(path.read_text())
    return numbers


def data_of(task: DemoTask, options: Sequence[str]) -> tuple[str, ...]:
    """Return the data options of a choice."""
    return ("--data", task.train) if "taylor" in options else ("--data", task.val, "--ood", task.ood_val)


def heads_per_layer(base: Path) -> int:
    """Return the number of heads in each layer of a base."""
    (tower,) = open_reader(str(base)).header.architecture.towers.values()
    return tower.num_heads


def evaluated(
    task: DemoTask, folder: Path, members: dict[str, list[Path]], seconds: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Evaluate the members of all choices in one report.

    Returns:
        Metrics of each choice, averaged over draws.
    """
    flat = [
        (f"{number}.{i}", p) for number, of_one in enumerate(members.values()) for i, p in enumerate(of_one)
    ]
    sets = [x for kind in ("near", "far") for each in getattr(task, kind) for x in (f"--{kind}", each)]
    report = folder / "choices.report.json"
    run("eval", flat[0][1], "--name", flat[0][0], *(x for n, p in flat[1:] for x in ("--compare", f"{n}={p}")),
        "--data", task.test, *sets, "--train", task.train, "--val", task.val, "--ood-score", "msp,energy+density",
        "--metrics", "accuracy,auroc", "--no-latency", "--bootstrap", 0, "-o", report, "--force")  # fmt: skip
    rows = {row.name: row for row in Report.read(report).rows}

    def number(name: str, metric: str, scope: str) -> float:
        row = rows[name]
        return row.means[scope][metric] if scope else row.values[metric].value

    return {
        choice: {
            column: statistics.mean(number(f"{place}.{i}", *metric) for i in range(len(paths)))
            for column, metric in CHOICE_METRICS.items()
        }
        | {SECONDS: seconds[choice] / len(paths)}
        for place, (choice, paths) in enumerate(members.items())
    }


def print_ranks(names: Sequence[str], seeds: Sequence[int]) -> None:
    """Print the agreement of candidates between bfloat16 and float32 for each task and seed."""
    for name in names:
        for seed in seeds:
            print(
                name,
                seed,
                "rank correlation {:.4f}, {} of the best 8 in common".format(*ranks(name, seed)),
            )


def ranks(name: str, seed: int) -> tuple[float, int]:
    """Return Spearman's correlation between bfloat16 and float32 objectives, and the overlap of the best 8."""
    task = open_task(name, seed)
    values = []
    for dtype in (torch.float32, torch.bfloat16):
        job = task.job(task.val)
        with torch.inference_mode():
            found = Circuit(replace(job, model=job.model.to(dtype))).candidate_values()
        values.append(list(found.values()))
    best = [set(sorted(range(len(each)), key=lambda i: -each[i])[:8]) for each in values]
    return float(spearmanr(*values).statistic), len(best[0] & best[1])


if __name__ == "__main__":
    sys.exit(main())
