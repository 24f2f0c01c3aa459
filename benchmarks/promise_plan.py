"""Plan of `promise.py`: commands for all checkpoints, and the compared rows.

The cost of a checkpoint is measured in trainings of the single model: epochs relative to the single model's,
times compute relative to the single model's. A pass without gradients (of a teacher or a frozen trunk) costs
a third of a training pass. Dependencies shared by several checkpoints of a row count once. Scoring heads and
fusing are not counted.
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
"""Rows without `--all`. Tasks on texts have no repulsion."""
LOGIT_SCORES = ("msp", "entropy", "mi", "energy", "max-logit")
DEFAULT_SCORE = "energy+density"
MEMBERS = 3
FORWARD = 1 / 3
"""Cost of a forward pass relative to a training step: the backward pass costs twice the forward pass."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A planned file.

    Attributes:
        command: Command that writes the file.
        needs: Files that the command reads.
        cost: Cost of the command without its inputs, in trainings of the single model.
    """

    command: tuple[str, ...]
    needs: tuple[str, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a checkpoint, or the checkpoints of an ensemble."""

    name: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """DATA references. OOD sets for choosing are separate from OOD test sets.

    Attributes:
        train: Training data.
        val: Validation data.
        test: Test data.
        near: Near-OOD test sets by name.
        far: Far-OOD test sets by name.
        near_val: Near-OOD data for choosing; empty if nothing is chosen.
    """

    train: str
    val: str
    test: str
    near: Mapping[str, str]
    far: Mapping[str, str]
    near_val: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model with its training options and the origin of the members.

    Attributes:
        model: MODEL reference of the single model and the ensemble before training, or `start.st`.
        tuning: Options of every `finetune` except seed, learning rate and epochs.
        batch: Batch size for timing.
        whole: Further options of every `finetune` without its own `--train-parts`.
        lr: Peak learning rate.
        epochs: Epochs of the single model.
        blocks: Number of blocks.
        heads: Heads per block.
        start: Command for the common start of the members, without `-o`.
        start_cost: Cost of `start` in trainings of the single model.
        apart: Epochs of each member after the common start; None for the members of the ensemble.
        repels: Whether inputs are images, which `--repulsion` requires.
        bare: Encoder without a classifier, for ensembles with random classifiers; None to skip these rows.
        scored: Options of `score` for circuits, with twice as many removals as used.
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
        """Number of removed heads: a third of all."""
        return self.blocks * self.heads // 3

    @property
    def kept(self) -> float:
        """Share of kept heads."""
        return 1 - self.removed / (self.blocks * self.heads)

    def compute(self, own: int = 0, *, heads: float = 1.0) -> float:
        """Return the compute of all blocks relative to the single model.

        Attention is a third of a block and proportional to its heads.

        Args:
            own: Number of blocks that each member has separately.
            heads: Share of kept heads.
        """
        return (2 + heads) / 3 * (1 + own * (MEMBERS - 1) / self.blocks)


@dataclass(slots=True)
class Plan:
    """Files in an executable order, and rows of the table.

    Attributes:
        folder: Folder of the files.
        data: Data references.
        task: Model and training options.
        seed: Seed of this repetition. Every training derives its own seed.
        files: Planned files by name.
        rows: Rows of the table.
    """

    folder: Path
    data: Data
    task: Task
    seed: int
    files: dict[str, PlannedFile] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def keep(self, names: Sequence[str]) -> None:
        """Keep only the named rows and the required files."""
        self.rows = [row for name in names for row in self.rows if row.name == name]
        needed = self.needed(model for row in self.rows for model in row.models)
        self.files = {name: made for name, made in self.files.items() if name in needed}

    def needed(self, names: Iterable[str]) -> set[str]:
        """Return the names of these files and of all their dependencies."""
        found: set[str] = set()
        left = [*names]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.files[name].needs
        return found

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.folder / name)

    def row(self, name: str, *models: str) -> None:
        """Add a row."""
        self.rows.append(Row(name, models))

    def make(self, name: str, *command: str, needs: Sequence[str] = (), cost: float = 0.0) -> str:
        """Plan a file and return its name.

        Args:
            name: Name of the file.
            command: Words of the command; names of planned files are replaced by their paths.
            needs: Files that the command reads.
            cost: Cost in trainings of the single model.
        """
        words = tuple(self.path(word) if word in self.files else word for word in command)
        self.files[name] = PlannedFile((*words, "-o", self.path(name)), tuple(needs), cost)
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
        """Plan a training. The seed is derived from the number of planned files: all seeds differ.

        Args:
            name: Name of the file.
            start: Model before training.
            options: Further options of `finetune`.
            epochs: Number of epochs.
            compute: Compute of a pass relative to the single model.
            teachers: Files of the teachers.
        """
        task, data = self.task, self.data
        usual = () if "--train-parts" in options else task.whole
        taught = ("--teacher", ",".join(map(self.path, teachers))) if teachers else ()
        return self.make(
            name, "finetune", start, "--train", data.train, "--val", data.val, *task.tuning, *usual, "--epochs", str(epochs),
            "--seed", str(1000 * self.seed + len(self.files)), *(() if "--lr" in options else ("--lr", f"{task.lr:g}")), *options,
            *taught,
            needs=(*((start,) if start in self.files else ()), *teachers),
            cost=(compute + FORWARD * len(teachers)) * epochs / task.epochs,
        )  # fmt: skip

    def fuse(self, name: str, members: Sequence[str], *options: str) -> str:
        """Plan a hydra."""
        return self.make(name, "fuse", *members, "--no-verify", *options, needs=members)

    def papers_members(self, single: str, scores: str) -> list[str]:
        """Plan the members of the paper's hydra: heads sampled from the circuit's removals, and fine-tuning.

        Args:
            single: File of the trained model.
            scores: File of its circuit.
        """
        task = self.task
        members = []
        for i in range(MEMBERS):
            cut = self.make(
                f"papers-cut-{i}.st", "prune", single, "--scores", scores, "--remove", str(task.removed), "--strategy", "sample",
                "--pool", str(2 * task.removed), "--seed", str(self.seed + 100 * i), "--no-verify", needs=[single, scores],
            )  # fmt: skip
            rate, epochs = ("--lr", f"{task.lr / 3:g}"), max(1, 2 * task.epochs // 3)
            members.append(
                self.tune(f"papers-{i}.st", cut, *rate, epochs=epochs, compute=task.compute(heads=task.kept))
            )
        return members

    def training(self, row: Row) -> float:
        """Return the cost of a row with all its dependencies, in trainings of the single model."""
        return math.fsum(
            self.files[name].cost for name in self.needed(row.models)
        )  # `fsum` is exact, so the result does not depend on the order of the set.

    def report(self, name: str, *options: str, ood: bool = True) -> tuple[str, ...]:
        """Return the `eval` command for all rows. Models that are not planned files are used as references."""
        first, *others = self.rows
        data = self.data
        choosing = {"choosing": data.near_val} if data.near_val else {}
        sets = (("--near", data.near), ("--near", choosing), ("--far", data.far)) if ood else ()
        named = (
            word for flag, refs in sets for label, ref in refs.items() for word in (flag, f"{label}={ref}")
        )
        compared = (
            f"--compare={row.name}={','.join(self.path(m) if m in self.files else m for m in row.models)}"
            for row in others
        )
        return (
            "eval", self.path(first.models[0]), "--name", first.name, "--data", data.test, *named, *compared,
            *(("--ood-score", ",".join((*LOGIT_SCORES, DEFAULT_SCORE)), "--train", data.train, "--val", data.val) if ood else ()),
            "--bootstrap", "0", *options, "-o", self.path(name),
        )  # fmt: skip


def fill(plan: Plan) -> Plan:
    """Plan every row of the table.

    The seed of a training is its position, so new rows must be added at the end.
    """
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
    """Add the single model, longer training, distillation, and deep ensembles. Return the ensemble's files."""
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
    """Plan the separate training of a member after the common start."""
    task = plan.task
    return plan.tune(name, start, epochs=task.apart or task.epochs, compute=task.compute(heads=heads))


def _merged(plan: Plan, ensemble: Sequence[str]) -> None:
    """Add hydras with averaged first blocks. Members are the ensemble's if both have the same start."""
    task = plan.task
    members = (
        ensemble if task.apart is None else [_member(plan, f"member-{i}.st", "start.st") for i in range(5)]
    )
    for count, owned in ((3, (0, 1, 2, 3)), (5, (0, 1))):
        for own in owned:
            hydra = plan.fuse(f"merged{count}-{own}.st", members[:count], "--trunk", str(task.blocks - own))
            plan.row(f"merged trunk of {count} K {own}", hydra)


def _own_tuned_on(plan: Plan) -> None:
    """Add merged trunks with own blocks trained for a third of the epochs at a third of the learning rate."""
    task, epochs = plan.task, max(1, plan.task.epochs // 3)
    for own in (1, 2):
        trained = own * MEMBERS / task.blocks
        tuned = plan.tune(
            f"own-{own}.st", f"merged3-{own}.st", "--train-parts", "own", "--lr", f"{task.lr / 3:g}",
            epochs=epochs, compute=(1 - own / task.blocks) * FORWARD + trained,
        )  # fmt: skip
        plan.row(f"merged trunk of 3 and own blocks tuned on K {own}", tuned)


def _without_heads(plan: Plan, single: str) -> None:
    """Add members without a third of the heads, removed in all members alike before their separate training."""
    task = plan.task
    scored = single if task.apart is None else "start.st"
    each = str(round(task.kept * task.heads))
    taylor = ("--method", "taylor", "--data", plan.data.train, "--limit", "256", "--keep-heads", each)
    for kind, options in {"random": (), "Taylor": taylor, "circuits": task.scored}.items():
        needs = ["start.st"]
        choice: tuple[str, ...] = ("--strategy", "random", "--seed", str(plan.seed))
        if options:
            needs.append(plan.make(f"{kind}.json", "score", scored, *options, needs=[scored]))
            choice = ("--scores", needs[-1])
        count = ("--keep-heads", each, "--per-layer") if kind == "Taylor" else ("--remove", str(task.removed))
        cut = plan.make(f"{kind}.st", "prune", "start.st", *choice, *count, "--no-verify", needs=needs)
        members = [_member(plan, f"{kind}-{i}.st", cut, task.kept) for i in range(MEMBERS)]
        for own in (0, 1, 2):
            hydra = plan.fuse(f"{kind}-merged-{own}.st", members, "--trunk", str(task.blocks - own))
            plan.row(f"a third of the heads gone ({kind}) K {own}", hydra)


def _papers(plan: Plan, single: str) -> None:
    """Add the paper's hydra: members sampled from the circuit's removals, fine-tuned, with merged MLPs."""
    task = plan.task
    scores = "circuits.json"  # Circuits of the single model, except if members have another start.
    if task.apart is not None:
        scores = plan.make("papers.json", "score", single, *task.scored, needs=[single])
    members = plan.papers_members(single, scores)
    plan.row("the paper's hydra", plan.fuse("papers-hydra.st", members))


def _trained_as_one(plan: Plan) -> None:
    """Add a hydra trained as one model from the start, at the training cost of the ensemble."""
    task, own = plan.task, 1
    begin = "start.st"
    parted: tuple[str, ...] = ()
    if task.apart is not None:  # Members without removed heads only differ by their classifiers.
        begin = plan.make(
            "begin.st", "prune", task.model, "--keep-fraction", "1", "--strategy", "random", "--no-verify"
        )
        parted = ("--reset-head", "--head-seed", str(1000 * plan.seed))
    whole = plan.fuse("whole.st", [begin] * MEMBERS, "--trunk", str(task.blocks - own), "--own-blocks")
    compute = task.compute(own)
    epochs = round(MEMBERS * task.epochs / compute)
    plan.row(f"trained as one K {own}", plan.tune("one.st", whole, *parted, epochs=epochs, compute=compute))


def _taught(plan: Plan, teachers: Sequence[str]) -> None:
    """Add hydras distilled from the ensemble, one model per member: trained from the start, and merged."""
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
    """Add merged hydras trained with repulsion, with their own former members or the ensemble as teachers."""
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
