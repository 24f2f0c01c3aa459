"""How much faster `score --search` finds a circuit than Algorithm 1 as it is written, and what that costs.

Half of the heads of two small models are removed for `avg`, accuracy and OOD detection: the demos' vision transformer on digits
and their BERT on reviews, trained here by the demos' own command for a few epochs, once (they are kept in a temporary folder).

Naive is Algorithm 1: for each candidate a forward pass of the library's own model over all data, with the slice of the output
projection zeroed. It is timed on some removals, evenly spread, and of each on some candidates, *while* each search runs: the
search stops before that removal, naive runs, the search goes on. Its seconds for one candidate times the number of
candidates of all removals are what naive takes: each search has its own figure, of the same minutes on the same machine.
Figures are medians over the repetitions, in which the searches take turns.

What naive finds is what `exact` finds: the tests say so, for every objective and several families. So `exact` is the exhaustive
search whose final objective `lazy` is held against; the held-out columns are the same circuits on the test split and a near
OOD set that none of them saw.

A search reaches the target of a task if naive takes at least 10 times as long and the final objective is at most 0.003
below that of the exhaustive search. The claim is that `lazy` does, for each task and seed.

    python benchmarks/search.py [--task digits text] [--seeds 0] [--arch ARCH] [--samples N] [--repeats 1]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from hydractl.cli.commands.demo import digits as demo_digits
from hydractl.cli.commands.demo import text as demo_text
from hydractl.data.inputs import encoded, open_items
from hydractl.families.opening import load_model
from hydractl.manifest.heads import HeadId
from hydractl.progress import Silent
from hydractl.runtime import digest_text
from hydractl.scoring.circuit.method import SEARCHES, score_circuit
from hydractl.scoring.circuit.model import Circuit
from hydractl.scoring.circuit.settings import CircuitSettings
from hydractl.scoring.job import ScoreJob
from hydractl.stages.shared.reading import Again, open_reader

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import naive  # the oracle lives with the tests
from support.variants import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hydractl.families.opening import OpenModel
    from hydractl.scoring.job import Ranking

T = TypeVar("T")
FASTER, WORSE = 10.0, 0.003
STEPS, CANDIDATES = 4, 2
TASKS = {"digits": (demo_digits, demo_digits.DIGITS, 25), "text": (demo_text, demo_text.REVIEWS, 3)}


@dataclass(frozen=True, slots=True)
class Task:
    """A trained model with the data that circuits are searched on, and data that no search sees."""

    name: str
    opened: OpenModel
    val: tuple[str, str]
    test: tuple[str, str]
    samples: int | None

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

    def _batches(self, reference: str) -> Again:
        items = open_items(reference, self.opened.header.preprocess)
        indices = None if self.samples is None else torch.arange(min(self.samples, len(items)))
        labels = (
            torch.zeros(len(items), dtype=torch.long) if items.labels is None else torch.tensor(items.labels)
        )
        cached = encoded(items, self.opened.header.preprocess, batch_size=64, indices=indices)
        return Again(cached, labels, torch.empty(0))


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

    def track(self, items: Iterable[T], *, label: str, total: int) -> Iterator[T]:
        """See `Progress.track`."""
        del label
        stops = {round((i + 0.5) * total / STEPS) for i in range(STEPS)}
        for i, item in enumerate(items):
            if i in stops:
                for candidate in range(CANDIDATES):
                    self.evaluate(17 * i + 5 * candidate)
            yield item


@dataclass(frozen=True, slots=True)
class Run:
    """One search: its seconds, and those of naive at the same time."""

    ranking: Ranking
    seconds: float
    naive_s: float


def main() -> int:
    """Measure, print, and return 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the trained models")
    parser.add_argument("--arch", help="another `arch:` reference, for one task")
    parser.add_argument("--samples", type=int, help="samples of each validation set at most")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    if options.arch and len(options.task) > 1:
        parser.error("--arch goes with one --task")
    holds = True
    for name in options.task:
        for seed in options.seeds:
            path = trained(name, seed, options.arch)
            experiment = TASKS[name][1]
            near = experiment.near[0].partition("=")[2]
            task = Task(
                name=name,
                opened=open_reader(str(path)),
                val=(experiment.val, experiment.ood_val),
                test=(experiment.test, near),
                samples=options.samples,
            )
            holds &= measured(task, seed, options.repeats)
    print("holds" if holds else "FAILS")
    return 0 if holds else 1


def trained(name: str, seed: int, arch: str | None) -> Path:
    """Train a demo's base for a few epochs, unless that has been done."""
    module, _, epochs = TASKS[name]
    folder = Path(tempfile.gettempdir()) / "hydractl-search" / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    command = list(module.plan(folder, seed)[0].commands[0])
    command[command.index("--epochs") + 1] = str(epochs)
    if arch:
        command[1] = arch
        command[-1] = str(folder / f"{digest_text(arch).removeprefix('sha256:')[:12]}.st")
    path = Path(command[-1])
    if not path.exists():
        module.prepare(folder, seed, lambda _: None)
        print(f"training {path} for {epochs} epochs")
        subprocess.run(
            [sys.executable, "-m", "hydractl", *command, "-q"], check=True, stdout=subprocess.DEVNULL
        )
    return path


def measured(task: Task, seed: int, repeats: int) -> bool:
    """Run every search, print a table, and return whether `lazy` reaches the target."""
    runs: dict[str, list[Run]] = {search: [] for search in SEARCHES}
    for _ in range(repeats):
        for search, found in runs.items():
            found.append(timed(task, search))
    exhaustive = runs["exact"][0].ranking
    count = sum(range(task.heads, task.heads - task.heads // 2, -1))
    print(
        f"\n{task.name}, seed {seed}: {task.heads // 2} of {task.heads} heads removed, {count} candidates, "
        f"{torch.get_num_threads()} threads, {repeats} repetitions; naive timed on {STEPS * CANDIDATES} evaluations in each run"
    )
    print(
        "search    valued    work   seconds   naive s   faster   objective   difference   held out   same heads"
    )
    faster: dict[str, float] = {}
    apart: dict[str, float] = {}
    for search, found in runs.items():
        ranking = found[0].ranking
        faster[search] = statistics.median(run.naive_s * count / run.seconds for run in found)
        last = final(ranking)
        apart[search] = last - final(exhaustive)
        same = len(heads_of(ranking) & heads_of(exhaustive))
        results = {"evaluations": count, "work": 1.0, **ranking.results}
        print(
            f"{search:8} {results['evaluations']:7g} {results['work']:7.1%} "
            f"{statistics.median(run.seconds for run in found):9.2f} "
            f"{statistics.median(run.naive_s * count for run in found):9.1f} {faster[search]:7.1f}x {last:11.4f} {apart[search]:+12.4f} "
            f"{held_out(task, ranking):10.4f} {same:7d}/{task.heads // 2}"
        )
    reached = faster["lazy"] >= FASTER and apart["lazy"] >= -WORSE
    verdict = "reached" if reached else "NOT reached"
    print(
        f"  lazy: {FASTER:g} times faster than naive and at most {WORSE} below the exhaustive search: {verdict}"
    )
    return reached


def timed(task: Task, search: str) -> Run:
    """Run one search."""
    job = task.job(task.val, search=search)
    progress = Between(task, job)
    begin = time.process_time()
    ranking = score_circuit(job, progress)
    seconds = time.process_time() - begin - sum(progress.seconds)
    return Run(ranking, seconds, statistics.mean(progress.seconds))


def held_out(task: Task, ranking: Ranking) -> float:
    """Return the objective of a search's last circuit on data that no search saw."""
    circuit = Circuit(replace(task, samples=None).job(task.test))
    with torch.inference_mode():
        for r in ranking.removals or ():
            circuit.remove(HeadId(r.tower, r.layer, r.head))
        return circuit.value()


def final(ranking: Ranking) -> float:
    """Return the objective after the last removal."""
    return (ranking.removals or ())[-1].objective


def heads_of(ranking: Ranking) -> set[tuple[str, int, int]]:
    """Return the heads that went."""
    return {(r.tower, r.layer, r.head) for r in ranking.removals or ()}


if __name__ == "__main__":
    sys.exit(main())
