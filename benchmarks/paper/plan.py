"""Plan of one seed of `measure.py`: commands for the models in the tables of the hydra paper.

Members of circuits are sampled from a pool twice as large as the number of removals (paper, B.5: 48 of 100).
The ablation varies options: `--seed` of `prune` draws heads, `--order-seed` of `finetune` sets the order of
data and the augmentation, `--dropout-seed` sets dropout in training.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from promise_plan import Plan

SINGLE, ENSEMBLE = "single", "deep ensemble of 3"
MC_DROPOUT, MIMO, PACKED = "MC dropout", "mimo", "packed"
CIRCUIT, CIRCUIT_OOD, TAYLOR = "circuit", "circuit for OOD", "Taylor"
HYDRA, HYDRA_T = "hydra (circuits)", "hydra (Taylor)"
APART, FIVE = "hydra (circuits) not fused", "hydra (circuits) of 5"
UNTUNED = "{} not tuned"
LAPLACE = "last-layer Laplace"
VARIED = {
    "heads": "only heads vary",
    "order": "only order varies",
    "dropout": "only dropout varies",
    "none": "nothing varies",
}
WITHOUT = {"clinc150": (MIMO,), "shapes": (MC_DROPOUT,)}
"""Rows not available for a task: MIMO needs images, and a CLIP tower has no dropout layer."""
MEMBERS, MOST = 3, 5
DROPOUT = "0.1"
RIVALS = ("lora-ensemble", "singular-values")


@dataclass(slots=True)
class Making:
    """Adds the rows of the tables to a plan.

    Attributes:
        plan: The plan to extend.
        epochs: Epochs of models fine-tuned from the single model.
        without: Rows not available for this model or data.
        wide: Architecture of a packed ensemble, with a width divisible among its members. None if the single
            model is pretrained, because random weights would make the comparison unfair.
    """

    plan: Plan
    epochs: int
    without: Collection[str] = ()
    wide: str | None = None

    @property
    def drops(self) -> tuple[str, ...]:
        """Options for dropout; empty for a model without dropout layers (`finetune` refuses the option)."""
        return () if MC_DROPOUT in self.without else ("--dropout", DROPOUT)

    def all(self) -> Plan:
        """Add every row, the single model first."""
        plan, task = self.plan, self.plan.task
        singles = [plan.tune(f"single-{i}.st", task.model, epochs=task.epochs) for i in range(MEMBERS)]
        single = singles[0]
        plan.row(SINGLE, single)
        plan.row(ENSEMBLE, *singles)
        self._rivals(single)
        self._circuits(single)
        self._taylor(single)
        return plan

    def tuned(self, name: str, start: str, *options: str, seed: int = 0, rate: float = 1 / 3) -> str:
        """Plan fine-tuning from the single model, by default at a third of the learning rate."""
        task, data = self.plan.task, self.plan.data
        return self.plan.make(
            name, "finetune", start, "--train", data.train, "--val", data.val, *task.tuning, *task.whole,
            "--epochs", str(self.epochs), "--lr", f"{task.lr * rate:g}", "--seed", str(1000 * self.plan.seed + seed), *options,
            needs=(start,),
        )  # fmt: skip

    def _rivals(self, single: str) -> None:
        """Add the paper's rival methods that start from the single model."""
        plan = self.plan
        if MC_DROPOUT not in self.without:
            plan.row(MC_DROPOUT, f"mc:{plan.path(single)}::passes=10,rate={DROPOUT}")
        laplace, train = f"laplace:{plan.path(single)}::", f"data={plan.data.train}"
        plan.row(LAPLACE, laplace + train)
        plan.row(f"{LAPLACE} (prior by validation)", f"{laplace}val={plan.data.val},{train}")
        for method in RIVALS:
            # Few weights are trained, so the learning rate is ten times the usual rate, like in the papers.
            members = [
                self.tuned(f"{method}-{i}.st", single, "--method", method, seed=i, rate=1.0)
                for i in range(MEMBERS)
            ]
            plan.row(method, *members)
        together = "batch-{i}.st"
        self.tuned(together, single, "--method", f"batch-ensemble::members={MEMBERS}")
        plan.row("batch-ensemble", *(plan.path(together.format(i=i)) for i in range(MEMBERS)))
        if MIMO not in self.without:
            copies = plan.fuse(
                "copies.st", [single] * MEMBERS, "--trunk", str(plan.task.blocks), "--own-blocks"
            )
            plan.row(MIMO, self.tuned("mimo.st", copies, "--method", "mimo", rate=1.0))
        if self.wide is not None:
            method = f"packed::members={MEMBERS},alpha=2"
            members = [
                plan.tune(f"packed-{i}.st", self.wide, "--method", method, epochs=plan.task.epochs)
                for i in range(MEMBERS)
            ]
            plan.row(PACKED, *members)
        plan.row("oba", self.tuned("oba.st", single, "--method", "oba::keep=0.891"))

    def _circuits(self, single: str) -> None:
        plan, removed = self.plan, self.plan.task.removed
        scores = plan.make("circuit.json", "score", single, *plan.task.scored, needs=[single])
        plan.row(UNTUNED.format(CIRCUIT), self._cut("circuit-best.st", single, scores, "--strategy", "best"))
        plan.row(CIRCUIT, self.tuned("circuit-tuned.st", "circuit-best.st", *self.drops))
        far = plan.make(
            "circuit-ood.json", "score", single, *plan.task.scored, "--objective", "ood", needs=[single]
        )
        best = self._cut("circuit-ood-best.st", single, far, "--strategy", "best")
        plan.row(UNTUNED.format(CIRCUIT_OOD), best)
        cuts = [
            self._cut(f"cut-{i}.st", single, scores, "--strategy", "sample", "--pool", str(2 * removed), "--seed",
                      str(plan.seed + 100 * i)) for i in range(MOST)
        ]  # fmt: skip
        members = [self._member(f"member-{i}.st", cut, order=i, dropout=i) for i, cut in enumerate(cuts)]
        plan.row(HYDRA, plan.fuse("hydra.st", members[:MEMBERS]))
        plan.row(APART, *members[:MEMBERS])
        plan.row(FIVE, plan.fuse("hydra-5.st", members))
        first, others = members[0], range(1, MEMBERS)
        same_heads = {
            "order": [self._member(f"order-{i}.st", cuts[0], order=i, dropout=0) for i in others],
            "dropout": [self._member(f"dropout-{i}.st", cuts[0], order=0, dropout=i) for i in others],
            "none": [first, first],
            "heads": [self._member(f"heads-{i}.st", cuts[i], order=0, dropout=0) for i in others],
        }
        for name, more in same_heads.items():
            plan.row(VARIED[name], first, *more)

    def _taylor(self, single: str) -> None:
        plan, task = self.plan, self.plan.task
        each = task.heads - task.removed // task.blocks
        scores = plan.make(
            "taylor.json",
            "score",
            single,
            "--method",
            "taylor",
            "--data",
            plan.data.val,
            "--keep-heads",
            str(each),
            needs=[single],
        )
        plan.row(UNTUNED.format(TAYLOR), self._cut("taylor-best.st", single, scores, "--strategy", "best"))
        plan.row(TAYLOR, self.tuned("taylor-tuned.st", "taylor-best.st", *self.drops))
        cuts = [
            self._cut(f"taylor-cut-{i}.st", single, scores, "--strategy", "sample", "--pool", str(2 * task.removed), "--seed",
                      str(plan.seed + 100 * i)) for i in range(MEMBERS)
        ]  # fmt: skip
        members = [self._member(f"taylor-{i}.st", cut, order=i, dropout=i) for i, cut in enumerate(cuts)]
        plan.row(HYDRA_T, plan.fuse("taylor-hydra.st", members))

    def _cut(self, name: str, single: str, scores: str, *options: str) -> str:
        return self.plan.make(
            name, "prune", single, "--scores", scores, "--remove", str(self.plan.task.removed), *options, "--no-verify",
            needs=[single, scores],
        )  # fmt: skip

    def _member(self, name: str, cut: str, *, order: int, dropout: int) -> str:
        seeds = (
            "--order-seed",
            str(1000 * self.plan.seed + order),
            "--dropout-seed",
            str(1000 * self.plan.seed + dropout),
        )
        return self.tuned(name, cut, *self.drops, *seeds)
