"""How much faster `score --search lazy` finds a circuit than Algorithm 1 as it is written, and what that costs.

Half of the heads of two small models are removed for `avg`, accuracy and OOD detection: the demos' vision transformer on digits
and their BERT on reviews, trained here by the demos' own command for a few epochs, once (they are kept in a temporary folder).
The constants of the search were chosen on other models than are judged by default, which ones `search_results.py` says.

Naive is Algorithm 1: for each candidate a forward pass of the library's own model over all data, with the slice of the output
projection zeroed. It is timed on some removals, evenly spread, and of each on some candidates, *while* each search runs: the
search stops before that removal, naive runs, the search goes on. Its median seconds for one candidate times the number of
candidates of all removals are what naive takes: each search has its own figure, of the same minutes on the same machine.
Seconds are the process's own on the processor, so that others on the machine count for little.

What naive finds is what `exact` finds: the tests say so, for every objective and several families. So `exact` is the exhaustive
search whose final objective `lazy` is held against (found once for each model, and kept beside it). Held out are the same
circuits on the test split, and the mean over near OOD sets: data that no search saw.

Other settings, from nearly exact to fast, and the exhaustive search itself say what speed costs: those are on the frontier than
which no other is as fast in the median and as good at worst. What was measured is kept beside the models as long as the code of
the search stays the same, so a run that was cut off goes on.

The claim, for each task: the default setting is at least 10 times faster than naive (median over the seeds), its final objective
minus the exhaustive one's is at least -0.001 in the median and -0.005 at worst, and on held-out data the mean difference is not
below 0 by more than its 95 % interval.

With `--bf16` nothing is searched: the candidates of the first removal are valued in bfloat16 and in float32, the objective from
either's logits in float64, and the rank correlation of both is printed.

With `--choices` the whole choice is judged instead, by members that keep half of the heads and no search: `score`, `prune`, and
`eval` on the test split, near and far OOD, none of which any choice saw, without fine-tuning. Choices are in `CHOICES`; random
heads are the mean of five draws. Results are kept seed by seed in `choices.json`. `search_results.py` has the claims.

    python benchmarks/search.py [--task digits text] [--seeds 80 ... 89] [--settings N] [--kept] [--out FOLDER] [--bf16 | --choices]
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

from hydractl.cli.commands.run import write_tokenizer
from hydractl.data.batches import encoded
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
    spelt,
)
from selection import run

from support import naive  # the oracle lives with the tests
from support.variants import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hydractl.families.open_model import OpenModel

T = TypeVar("T")
STEPS, CANDIDATES = 4, 2
SEEDS = tuple(range(80, 90))
SETTINGS: tuple[dict[str, float], ...] = ({},)
"""Of `lazy`, the default first: what is claimed is claimed of that."""
TASKS = {"digits": 25, "text": 3}
"""How many epochs each base is trained for."""
CHOICES: dict[str, tuple[str, ...]] = {
    EXACT_CHOICE: ("--objective", "avg", "--search", "exact"),
    LAZY_CHOICE: ("--objective", "avg", "--search", "lazy"),
    TAYLOR: ("--method", "taylor", "--limit", "256"),
    OOD_MSP: ("--objective", "ood", "--search", "exact"),
    OOD_DENSITY: ("--objective", "ood", "--ood-score", "energy+density", "--search", "exact"),
    RANDOM: ("--method", "random"),
}
"""Options of `score`."""
DRAWS = 5
KEEP = ("--keep-fraction", "0.5")


@dataclass(frozen=True, slots=True)
class Task:
    """A trained model with the data that circuits are searched on, and data that no search sees."""

    name: str
    opened: OpenModel
    val: tuple[str, str]
    test: str
    near: tuple[str, ...]

    def job(self, data: tuple[str, str], **settings: object) -> ScoreJob:
        """Return a job on ID and OOD data."""
        id_data, ood_data = (self._batches(reference) for reference in data)
        return ScoreJob(
            model=load_model(self.opened),
            family=self.opened.family,
            architecture=self.opened.header.architecture,
            id_data=id_data,
            ood_data=replace(ood_data, labels=None),
            settings=CircuitSettings(**settings),  # type: ignore[arg-type]
            budget=self.heads // 2,
        )

    @property
    def heads(self) -> int:
        """How many there are."""
        return sum(t.layers * t.num_heads for t in self.opened.header.architecture.towers.values())

    def _batches(self, reference: str) -> RepeatedBatches:
        items = open_items(reference, self.opened.header.preprocess)
        labels = (
            torch.zeros(len(items), dtype=torch.long) if items.labels is None else torch.tensor(items.labels)
        )
        cached = encoded(items, self.opened.header.preprocess, batch_size=64)
        return RepeatedBatches(cached, labels, torch.empty(0))


class Between(Silent):
    """A progress that stops a search before some of its steps to time naive evaluations."""

    def __init__(self, task: Task, job: ScoreJob) -> None:
        architecture = task.opened.header.architecture
        self.library = LIBRARY[architecture.library](architecture.name, dict(architecture.config)).eval()
        self.library.load_state_dict(task.opened.checkpoint.tensors())
        (tower,) = architecture.towers.values()
        width = naive.output_weights(self.library)[0].shape[1]
        self.library.head_width = width // tower.num_heads
        inside, outside = list(job.id_data), list(job.ood_data)
        labels = torch.cat([one.labels for one in inside if one.labels is not None])
        self.data = ([one.inputs for one in inside], labels, [one.inputs for one in outside])
        self.places = list(naive.candidates(self.library, []))
        self.seconds: list[float] = []
        self.evaluate(0)
        self.seconds.clear()

    def evaluate(self, number: int) -> None:
        """Time one evaluation."""
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
    """What the exhaustive search removes, how many times faster than naive it was, and its circuit's objective on held-out data."""

    faster: float
    removals: tuple[Removal, ...]
    held_out: float


def main() -> int:
    """Measure, print, and return 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the trained models")
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="so many, the default one first")
    parser.add_argument("--out", type=Path, help="write search.md, search.json and search.png there")
    parser.add_argument(
        "--kept",
        action="store_true",
        help="measure nothing: tables of the settings that were measured on all seeds",
    )
    parser.add_argument(
        "--bf16", action="store_true", help="compare candidates in bfloat16 and float32 instead"
    )
    parser.add_argument(
        "--choices", action="store_true", help="compare what is chosen, by members on held-out data, instead"
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
                continue  # not measured on all models yet
            runs = searches.setdefault(spelt(setting), [])
            for seed in options.seeds:
                runs.append(measured(name, seed, setting))
                print(name, spelt(setting), runs[-1], flush=True)
        if not options.kept:
            publish(found, options.out)
    if options.kept:
        publish(found, options.out)
    holds = all(all(claims(searches[DEFAULT]).values()) for searches in found.values())
    print("holds" if holds else "FAILS")
    return 0 if holds else 1


def open_task(name: str, seed: int) -> Task:
    """Return a task, whose model is trained if that has not been done."""
    experiment = experiment_of(name, seed)
    return Task(
        name=name,
        opened=open_reader(str(trained(name, seed))),
        val=(experiment.val, experiment.ood_val),
        test=experiment.test,
        near=tuple(each.partition("=")[2] for each in experiment.near),
    )


def experiment_of(name: str, seed: int) -> DemoTask:
    """Return the demo that a task is of."""
    return DIGITS if name == "digits" else reviews(folder_of(name, seed))


def folder_of(name: str, seed: int) -> Path:
    """Return where a model is kept."""
    return Path(tempfile.gettempdir()) / "hydractl-search" / f"{name}-{seed}"


def trained(name: str, seed: int) -> Path:
    """Train a demo's base for a few epochs, unless that has been done."""
    experiment, folder = experiment_of(name, seed), folder_of(name, seed)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "base.st"
    if not path.exists():
        if name == "text":
            write_tokenizer(folder, seed)
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
    """Return what the exhaustive search removes, found and timed once."""
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
    """Return where a run is kept, of the code of the search as it is."""
    files = sorted(Path(circuit.__path__[0]).glob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]
    return folder_of(name, seed) / f"{code} {spelt(setting)}.json"


def measured(name: str, seed: int, setting: dict[str, float]) -> Run:
    """Return what `timed` gives, found once for each state of the search's code: what was cut off goes on."""
    path = path_of(name, seed, setting)
    if not path.exists():
        task = open_task(name, seed)
        run = timed(task, seed, setting, exhaustive(task, seed))
        path.write_text(json.dumps(asdict(run)))
    return Run(**json.loads(path.read_text()))


def against_naive(task: Task, job: ScoreJob) -> tuple[Ranking, float]:
    """Run one search, stopping for naive evaluations; return what it found, and how many times faster it was."""
    progress = Between(task, job)
    begin = time.process_time()
    with reporting(progress):
        ranking = score_circuit(job)
    seconds = time.process_time() - begin - sum(progress.seconds)
    candidates = sum(range(task.heads, task.heads - task.heads // 2, -1))
    return ranking, statistics.median(progress.seconds) * candidates / seconds


def timed(task: Task, seed: int, setting: dict[str, float], exact: Exhaustive) -> Run:
    """Run one lazy search, and hold it against the exhaustive one."""
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
    """Return the objective of the last circuit on data that no search saw, the mean over near OOD sets."""
    values = []
    for near in task.near:
        model = Circuit(task.job((task.test, near)))
        with torch.inference_mode():
            model.change([r.id for r in removals])
            values.append(model.value())
    return statistics.mean(values)


def chosen(name: str, seed: int) -> dict[str, dict[str, float]]:
    """Return the numbers of each choice of one model on held-out data, measured once."""
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
                equally = ("--per-layer", "--keep", heads_per_layer(base) // 2) if choice == TAYLOR else KEEP
                run("prune", base, "--scores", member.with_suffix(".json"), *equally, "--no-verify",
                    "-o", member, "--force")  # fmt: skip
            seconds[choice] = time.process_time() - begin
        path.write_text(json.dumps(evaluated(task, folder, members, seconds)))
        print(name, seed, path.read_text(), flush=True)
    numbers: dict[str, dict[str, float]] = json.loads(path.read_text())
    return numbers


def data_of(task: DemoTask, options: Sequence[str]) -> tuple[str, ...]:
    """Return the data that a choice is made on."""
    return ("--data", task.train) if "taylor" in options else ("--data", task.val, "--ood", task.ood_val)


def heads_per_layer(base: Path) -> int:
    """Return how many heads each layer of a base has."""
    (tower,) = open_reader(str(base)).header.architecture.towers.values()
    return tower.num_heads


def evaluated(
    task: DemoTask, folder: Path, members: dict[str, list[Path]], seconds: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Return the numbers of each choice, means over its draws."""
    flat = [
        (f"{number}.{i}", p) for number, of_one in enumerate(members.values()) for i, p in enumerate(of_one)
    ]
    sets = [x for kind in ("near", "far") for each in getattr(task, kind) for x in (f"--{kind}", each)]
    report = folder / "choices.report.json"
    run("eval", flat[0][1], "--name", flat[0][0], *(x for n, p in flat[1:] for x in ("--compare", f"{n}={p}")),
        "--data", task.test, *sets, "--fit", task.train, "--val", task.val, "--ood-score", "msp,energy+density",
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
    """Print how alike candidates' values in bfloat16 and in float32 are."""
    for name in names:
        for seed in seeds:
            print(
                name,
                seed,
                "rank correlation {:.4f}, {} of the best 8 in common".format(*ranks(name, seed)),
            )


def ranks(name: str, seed: int) -> tuple[float, int]:
    """Return Spearman's correlation of candidates' values in bfloat16 and float32, and how many of the best 8 are the same."""
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
