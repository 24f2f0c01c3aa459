"""What `promise.py` makes and compares: checkpoints by the commands that make them, and rows of checkpoints.

The cost of a checkpoint is counted in trainings of the single model: passes over the training data, times what the model computes
over what the single one does. A pass that has no gradient (a teacher's, a trunk's that is not trained) is a third of one that has.
What several checkpoints of a row hang on counts once. Scoring heads and fusing are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SINGLE = "single"
LONGER = "single for 3 x as long"
ONE_TRUNK, OWN_BLOCK = "merged trunk of 3 K 0", "merged trunk of 3 K 1"
TAUGHT_HYDRA = "merged trunk of 3 tuned on with teachers K 1"
REPELLED_HYDRA = "merged trunk of 3 tuned on with repulsion K 1"
TAUGHT_REPELLED = "merged trunk of 3 tuned on with teachers and repulsion K 1"
TAUGHT = "single taught by the ensemble of 3"
RIVAL, SMALLER = "deep ensemble of 3", "deep ensemble of 2"
FIRST_ROWS = (SINGLE, LONGER, RIVAL, ONE_TRUNK, OWN_BLOCK, TAUGHT_HYDRA, REPELLED_HYDRA, TAUGHT_REPELLED)
"""The rows that are made unless all are asked for; of texts there is no repulsion."""
LOGIT_SCORES = ("msp", "entropy", "mi", "energy", "max-logit")
DEFAULT_SCORE = "energy+density"
MEMBERS = 3
FORWARD = 1 / 3


@dataclass(frozen=True, slots=True)
class Made:
    """A file: the command that makes it, the files that this reads, and what it costs beside theirs."""

    command: tuple[str, ...]
    needs: tuple[str, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class Row:
    """What answers together: one checkpoint, or those of an ensemble."""

    name: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """DATA references; OOD sets by name, those for choosing apart from those of the test."""

    train: str
    val: str
    test: str
    near: Mapping[str, str]
    far: Mapping[str, str]
    near_val: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is trained on what, and how members come about.

    Attributes:
        model: MODEL reference that the single model and the ensemble are trained from, or `start.st`.
        tuning: Options of every `finetune` but seed, rate and epochs.
        batch: Of how many inputs a batch is timed.
        whole: Options of every `finetune` that does not say itself what it trains.
        lr: Peak learning rate.
        epochs: Of the single model.
        blocks: How many the model has.
        heads: How many heads a block has.
        start: The command that makes what members start from, without `-o`, and what that costs.
        apart: Epochs that each member is trained from there; None if members are the ensemble's.
        repels: Whether inputs are images, on which members can be pushed apart.
        bare: An encoder without a classifier: ensembles whose members draw one each are made of it, too.
        scored: How `score` finds heads by circuits, twice as many as are removed.
    """

    model: str
    tuning: tuple[str, ...]
    lr: float
    epochs: int
    blocks: int
    heads: int
    start: tuple[str, ...]
    start_cost: float
    scored: tuple[str, ...]
    batch: int = 64
    whole: tuple[str, ...] = ()
    apart: int | None = None
    repels: bool = False
    bare: str | None = None

    @property
    def removed(self) -> int:
        """How many heads go: a third of all."""
        return self.blocks * self.heads // 3

    @property
    def kept(self) -> float:
        """The share of heads that stay."""
        return 1 - self.removed / (self.blocks * self.heads)

    def compute(self, own: int = 0, *, heads: float = 1.0) -> float:
        """Return the blocks' compute over the single's; attention is a third of a block, and falls with its heads.

        Args:
            own: How many blocks each member has of its own.
            heads: The share of heads that stay.
        """
        return (2 + heads) / 3 * (1 + own * (MEMBERS - 1) / self.blocks)


@dataclass(slots=True)
class Plan:
    """Files to make, in an order that works, and the rows of the table.

    Attributes:
        folder: Where they lie.
        seed: Of this repetition; every training has one of its own.
    """

    folder: Path
    data: Data
    task: Task
    seed: int
    files: dict[str, Made] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def keep(self, names: Sequence[str]) -> None:
        """Drop all rows but these, and the files that only others need."""
        self.rows = [row for name in names for row in self.rows if row.name == name]
        needed = self.needed(model for row in self.rows for model in row.models)
        self.files = {name: made for name, made in self.files.items() if name in needed}

    def needed(self, names: Iterable[str]) -> set[str]:
        """Return these files and all that they are made of."""
        found: set[str] = set()
        left = [*names]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.files[name].needs
        return found

    def path(self, name: str) -> str:
        """Return where a file lies."""
        return str(self.folder / name)

    def row(self, name: str, *models: str) -> None:
        """Add a row."""
        self.rows.append(Row(name, models))

    def make(self, name: str, *command: str, needs: Sequence[str] = (), cost: float = 0.0) -> str:
        """Plan one file and return its name; words of the command that are names of files stand for their paths."""
        words = tuple(self.path(word) if word in self.files else word for word in command)
        self.files[name] = Made((*words, "-o", self.path(name)), tuple(needs), cost)
        return name

    def tune(
        self,
        name: str,
        start: str,
        *options: str,
        epochs: int,
        compute: float = 1.0,
        teachers: Sequence[str] = (),
    ) -> str:
        """Plan a training; its seed follows from its place in the plan, so that no two have the same."""
        task, data = self.task, self.data
        usual = () if "--train" in options else task.whole
        taught = ("--teacher", ",".join(map(self.path, teachers))) if teachers else ()
        return self.make(
            name, "finetune", start, "--data", data.train, "--val", data.val, *task.tuning, *usual, "--epochs", str(epochs),
            "--seed", str(1000 * self.seed + len(self.files)), *(() if "--lr" in options else ("--lr", f"{task.lr:g}")), *options,
            *taught,
            needs=(*((start,) if start in self.files else ()), *teachers),
            cost=(compute + FORWARD * len(teachers)) * epochs / task.epochs,
        )  # fmt: skip

    def fuse(self, name: str, members: Sequence[str], *options: str) -> str:
        """Plan a hydra."""
        return self.make(name, "fuse", *members, "--no-verify", *options, needs=members)

    def training(self, row: Row) -> float:
        """Return what all that a row hangs on costs, in trainings of the single model."""
        return math.fsum(
            self.files[name].cost for name in self.needed(row.models)
        )  # whatever the order of a set

    def report(self, name: str, *options: str, ood: bool = True) -> tuple[str, ...]:
        """Return the command that measures all rows; a model that is no file of the plan is a reference of its own."""
        first, *others = self.rows
        data = self.data
        sets = (
            (("--near", data.near), ("--near", {"choosing": data.near_val}), ("--far", data.far))
            if ood
            else ()
        )
        named = (
            word for flag, refs in sets for label, ref in refs.items() for word in (flag, f"{label}={ref}")
        )
        compared = (
            f"--compare={row.name}={','.join(self.path(m) if m in self.files else m for m in row.models)}"
            for row in others
        )
        return (
            "eval", self.path(first.models[0]), "--name", first.name, "--data", data.test, *named, *compared,
            *(("--ood-score", ",".join((*LOGIT_SCORES, DEFAULT_SCORE)), "--fit", data.train, "--val", data.val) if ood else ()),
            "--bootstrap", "0", *options, "-o", self.path(name),
        )  # fmt: skip


def fill(plan: Plan) -> Plan:
    """Plan every row of the table; the seed of a training is its place, so that rows added later stand last."""
    plan.make("start.st", *plan.task.start, cost=plan.task.start_cost)
    ensemble = _rivals(plan)
    _merged(plan, ensemble)
    _own_tuned_on(plan)
    _without_heads(plan, ensemble[0])
    _papers(plan, ensemble[0])
    _trained_as_one(plan)
    _taught(plan, ensemble[:MEMBERS])
    if plan.task.repels:
        _repelled(plan, ensemble[:MEMBERS])
    return plan


def _rivals(plan: Plan) -> list[str]:
    """Add the single model, what is made of longer training and of teachers, and deep ensembles."""
    task = plan.task
    ensemble = [plan.tune(f"single-{i}.st", task.model, epochs=task.epochs) for i in range(5)]
    plan.row(SINGLE, ensemble[0])
    plan.row(LONGER, plan.tune("longer.st", task.model, epochs=3 * task.epochs))
    plan.row(TAUGHT, plan.tune("taught.st", task.model, epochs=task.epochs, teachers=ensemble[:MEMBERS]))
    for count in (2, 3, 5):
        plan.row(f"deep ensemble of {count}", *ensemble[:count])
    if task.bare is not None:
        drawn = [plan.tune(f"drawn-{i}.st", task.bare, epochs=task.epochs) for i in range(MEMBERS)]
        plan.row(f"{SINGLE} with a drawn classifier", drawn[0])
        plan.row(f"{RIVAL} with drawn classifiers", *drawn)
    return ensemble


def _member(plan: Plan, name: str, start: str, heads: float = 1.0) -> str:
    """Plan a member: trained apart from the others, from what all of them start from."""
    task = plan.task
    return plan.tune(name, start, epochs=task.apart or task.epochs, compute=task.compute(heads=heads))


def _merged(plan: Plan, ensemble: Sequence[str]) -> None:
    """Add members whose first blocks are averaged; where the ensemble starts as members do, they are its."""
    task = plan.task
    members = (
        ensemble if task.apart is None else [_member(plan, f"member-{i}.st", "start.st") for i in range(5)]
    )
    for count, owned in ((3, (0, 1, 2, 3)), (5, (0, 1))):
        for own in owned:
            hydra = plan.fuse(
                f"merged{count}-{own}.st", members[:count], "--merge-trunk", str(task.blocks - own)
            )
            plan.row(f"merged trunk of {count} K {own}", hydra)


def _own_tuned_on(plan: Plan) -> None:
    """Add merged trunks whose own blocks are trained on for a third as long, at a third of the rate."""
    task, epochs = plan.task, max(1, plan.task.epochs // 3)
    for own in (1, 2):
        trained = own * MEMBERS / task.blocks
        tuned = plan.tune(
            f"own-{own}.st", f"merged3-{own}.st", "--train", "own", "--lr", f"{task.lr / 3:g}",
            epochs=epochs, compute=(1 - own / task.blocks) * FORWARD + trained,
        )  # fmt: skip
        plan.row(f"merged trunk of 3 and own blocks tuned on K {own}", tuned)


def _without_heads(plan: Plan, single: str) -> None:
    """Add members that lack the same third of the heads in all blocks, cut out before they are trained apart."""
    task = plan.task
    scored = single if task.apart is None else "start.st"
    each = str(round(task.kept * task.heads))
    taylor = ("--method", "taylor", "--data", plan.data.train, "--limit", "256", "--keep", each)
    for kind, options in {"random": (), "Taylor": taylor, "circuits": task.scored}.items():
        needs = ["start.st"]
        how: tuple[str, ...] = ("--strategy", "random", "--seed", str(plan.seed))
        if options:
            needs.append(plan.make(f"{kind}.json", "score", scored, *options, needs=[scored]))
            how = ("--scores", needs[-1])
        count = ("--keep", each, "--per-layer") if kind == "Taylor" else ("--remove", str(task.removed))
        cut = plan.make(f"{kind}.st", "prune", "start.st", *how, *count, "--no-verify", needs=needs)
        members = [_member(plan, f"{kind}-{i}.st", cut, task.kept) for i in range(MEMBERS)]
        for own in (0, 1, 2):
            hydra = plan.fuse(f"{kind}-merged-{own}.st", members, "--merge-trunk", str(task.blocks - own))
            plan.row(f"a third of the heads gone ({kind}) K {own}", hydra)


def _papers(plan: Plan, single: str) -> None:
    """Add the paper's hydra: members sampled from the circuit's removals, each fine-tuned, MLPs merged."""
    task = plan.task
    scores = "circuits.json"  # of the single model, unless members start from something else
    if task.apart is not None:
        scores = plan.make("papers.json", "score", single, *task.scored, needs=[single])
    members = []
    for i in range(MEMBERS):
        cut = plan.make(
            f"papers-cut-{i}.st", "prune", single, "--scores", scores, "--remove", str(task.removed), "--strategy", "sample",
            "--pool", str(2 * task.removed), "--seed", str(plan.seed + 100 * i), "--no-verify", needs=[single, scores],
        )  # fmt: skip
        rate, epochs = ("--lr", f"{task.lr / 3:g}"), 2 * task.epochs // 3
        members.append(
            plan.tune(f"papers-{i}.st", cut, *rate, epochs=epochs, compute=task.compute(heads=task.kept))
        )
    plan.row("the paper's hydra", plan.fuse("papers-hydra.st", members))


def _trained_as_one(plan: Plan) -> None:
    """Add a hydra that is one model from the beginning, trained for as long as the ensemble is."""
    task, own = plan.task, 1
    begin = "start.st"
    parted: tuple[str, ...] = ()
    if task.apart is not None:  # nothing but another classifier makes members differ that drop nothing
        begin = plan.make(
            "begin.st", "prune", task.model, "--keep-fraction", "1", "--strategy", "random", "--no-verify"
        )
        parted = ("--reset-head", "--head-seed", str(1000 * plan.seed))
    whole = plan.fuse("whole.st", [begin] * MEMBERS, "--own-from", str(task.blocks - own))
    compute = task.compute(own)
    epochs = round(MEMBERS * task.epochs / compute)
    plan.row(f"trained as one K {own}", plan.tune("one.st", whole, *parted, epochs=epochs, compute=compute))


def _taught(plan: Plan, teachers: Sequence[str]) -> None:
    """Add hydras whose members learn from a model of the ensemble each: one from the beginning, and a merged one tuned on."""
    task, own = plan.task, 1
    compute = task.compute(own)
    begun = plan.tune("one-taught.st", "whole.st", epochs=task.epochs, compute=compute, teachers=teachers)
    plan.row(f"trained as one with teachers K {own}", begun)
    tuned = plan.tune(
        "merged-taught.st", f"merged3-{own}.st", "--lr", f"{task.lr / 3:g}",
        epochs=max(1, task.epochs // 3), compute=compute, teachers=teachers,
    )  # fmt: skip
    plan.row(f"merged trunk of 3 tuned on with teachers K {own}", tuned)


def _repelled(plan: Plan, ensemble: Sequence[str]) -> None:
    """Add merged hydras, tuned on while members are pushed apart: taught by the models that they were, and by the ensemble."""
    task, own = plan.task, 1
    members = ensemble if task.apart is None else [f"member-{i}.st" for i in range(MEMBERS)]
    rows = {
        "merged-repelled.st": (REPELLED_HYDRA, members),
        "taught-repelled.st": (TAUGHT_REPELLED, ensemble),
    }
    for file, (name, teachers) in rows.items():
        tuned = plan.tune(
            file, f"merged3-{own}.st", "--lr", f"{task.lr / 3:g}", "--repulsion", "0.1",
            epochs=max(1, task.epochs // 3), compute=2 * task.compute(own), teachers=teachers,
        )  # fmt: skip
        plan.row(name, tuned)
