"""What the demo's tasks have in common: their rows, and the commands that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MEMBERS = range(3)
REPORT, PAGE = "report.json", "report.html"
SINGLE, ENSEMBLE, HYDRAS = (
    "Single",
    "Deep Ensemble x3",
    ("Hydra (merged trunk)", "Hydra (Taylor)", "Hydra (Circ)"),
)
FINE_TUNED_ALIKE = "fine-tuned alike"
TAYLOR = tuple(f"taylor-{i}" for i in MEMBERS)
CIRCUIT = tuple(f"circuit-{i}" for i in MEMBERS)
BEST = "circuit-best"
BASES = ("base", *(f"base-{i}" for i in MEMBERS[1:]))
START, BRANCHES = "start", tuple(f"branch-{i}" for i in MEMBERS)


@dataclass(frozen=True, slots=True)
class Part:
    """Some commands with one purpose."""

    title: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTask:
    """What the demo runs, told a folder and a seed, and which rows its table has.

    Attributes:
        plan: Returns every command in order: `eval` is the last but one, and `report` makes the page of what it measured.
        prepare: Makes what the commands need and do not make themselves, and says so; None where they need nothing.
        prepared_files: Names of what it makes in the folder.
        single: Name of the single model's row.
        ensembles: Names of the deep ensembles' rows.
        hydras: Names of the hydras' rows.
    """

    plan: Callable[[Path, int], tuple[Part, ...]]
    prepare: Callable[[Path, int, Callable[[str], None]], None] | None = None
    prepared_files: tuple[str, ...] = ()
    single: str = SINGLE
    ensembles: tuple[str, ...] = (ENSEMBLE,)
    hydras: tuple[str, ...] = HYDRAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A base that is trained from random weights, and everything that is made of it and set against it.

    Attributes:
        architecture: An `arch:` reference of the base.
        train: Labelled data.
        val: Labelled data, also what circuits are scored on.
        test: Labelled data.
        ood_val: Out-of-distribution data that guide the circuits.
        near: Near out-of-distribution data of the test, name=DATA.
        far: Far ones.
        training: Options of `finetune` for the bases.
        epochs: Of the bases; of what branches start from; and of each branch. The latter three and the start together are
            trained for no longer than a deep ensemble.
        trunk: Blocks of the branches that become their mean.
        fine_tuning: Options of `finetune` for members, and for bases alike.
        removed: Heads that a circuit removes.
        pool: Heads that a circuit's removals are sampled from; more than `removed`.
        kept_per_layer: Heads that Taylor scores keep in each layer.
    """

    architecture: str
    train: str
    val: str
    test: str
    ood_val: str
    near: tuple[str, ...]
    far: tuple[str, ...]
    training: tuple[str, ...]
    epochs: tuple[int, int, int]
    trunk: int
    fine_tuning: tuple[str, ...]
    removed: int
    pool: int
    kept_per_layer: int

    def plan(self, out: Path, seed: int) -> tuple[Part, ...]:
        """Return every command in order, from random weights to the table and its page."""
        return (
            Part("Train a base, and two more seeds for a deep ensemble", self._train(out, seed)),
            Part(
                "Train one model for most of what that took, and three copies of it apart for the rest",
                self._branch(out, seed),
            ),
            Part(
                "Score its heads: by Taylor expansion on three samples of the data, and by greedy circuit extraction",
                self._score(out, seed),
            ),
            Part(
                "Prune: three Taylor members, three samples of the circuit's removals, and the best circuit",
                self._prune(out, seed),
            ),
            Part("Fine-tune every member, and the bases alike", self._tune(out, seed)),
            Part(
                "Fuse: of the copies all but the last block becomes their mean; of pruned members, MLPs do",
                self._fuse(out),
            ),
            Part("Compare", (self._compare(out),)),
            page(out),
        )

    def _train(self, out: Path, seed: int) -> tuple[tuple[str, ...], ...]:
        return tuple(
            self._trained(out, name, self.architecture, self.epochs[0], seed + i)
            for i, name in enumerate(BASES)
        )

    def _branch(self, out: Path, seed: int) -> tuple[tuple[str, ...], ...]:
        _, common, branch_epochs = self.epochs
        start = str(out / f"{START}.st")
        return (
            self._trained(out, START, self.architecture, common, seed),
            *(self._trained(out, name, start, branch_epochs, seed + i) for i, name in enumerate(BRANCHES)),
        )

    def _trained(self, out: Path, name: str, start: str, epochs: int, seed: int) -> tuple[str, ...]:
        return (
            "finetune", start, "--data", self.train, "--val", self.val, *self.training, "--epochs", str(epochs),
            "--seed", str(seed), "-o", str(out / f"{name}.st"),
        )  # fmt: skip

    def _score(self, out: Path, seed: int) -> tuple[tuple[str, ...], ...]:
        base = str(out / "base.st")
        by_taylor = (
            ("score", base, "--method", "taylor", "--data", self.train, "--limit", "256", "--keep", str(self.kept_per_layer),
             "--seed", str(seed + i), "-o", str(out / f"{name}.json"))
            for i, name in enumerate(TAYLOR)
        )  # fmt: skip
        return (
            *by_taylor,
            ("score", base, "--data", self.val, "--ood", self.ood_val, "--remove", str(self.pool),
             "-o", str(out / "circuit.json")),
        )  # fmt: skip

    def _prune(self, out: Path, seed: int) -> tuple[tuple[str, ...], ...]:
        base = str(out / "base.st")
        circuit = ("--scores", str(out / "circuit.json"), "--remove", str(self.removed))
        return (
            ("prune", base, *(f"--scores={out / name}.json" for name in TAYLOR), "--keep", str(self.kept_per_layer), "--per-layer",
             "-o", str(out / "taylor-{i}.st")),
            ("prune", base, *circuit, "--members", str(len(MEMBERS)), "--pool", str(self.pool), "--seed", str(seed),
             "-o", str(out / "circuit-{i}.st")),
            ("prune", base, *circuit, "-o", str(out / f"{BEST}.st")),
        )  # fmt: skip

    def _tune(self, out: Path, seed: int) -> tuple[tuple[str, ...], ...]:
        return tuple(
            ("finetune", str(out / f"{name}.st"), "--data", self.train, "--val", self.val, *self.fine_tuning,
             "--seed", str(seed + i), "-o", str(out / f"{name}-tuned.st"))
            for i, name in enumerate([*TAYLOR, *CIRCUIT, BEST, *BASES])
        )  # fmt: skip

    def _fuse(self, out: Path) -> tuple[tuple[str, ...], ...]:
        return (
            (
                "fuse",
                *_checkpoints(out, BRANCHES),
                "--merge-trunk",
                str(self.trunk),
                "-o",
                str(out / "hydra.st"),
            ),
            *(
                ("fuse", *_checkpoints(out, names, tuned=True), "-o", str(out / f"hydra-{kind}.st"))
                for kind, names in (("taylor", TAYLOR), ("circuit", CIRCUIT))
            ),
        )

    def _compare(self, out: Path) -> tuple[str, ...]:
        compared = {
            f"{SINGLE} {FINE_TUNED_ALIKE}": _checkpoints(out, BASES[:1], tuned=True),
            ENSEMBLE: _checkpoints(out, BASES),
            f"{ENSEMBLE} {FINE_TUNED_ALIKE}": _checkpoints(out, BASES, tuned=True),
            "Taylor": _checkpoints(out, TAYLOR[:1], tuned=True),
            "CircAvg": _checkpoints(out, (BEST,), tuned=True),
            HYDRAS[0]: (str(out / "hydra.st"),),
            HYDRAS[1]: (str(out / "hydra-taylor.st"),),
            HYDRAS[2]: (str(out / "hydra-circuit.st"),),
        }
        return (
            "eval", str(out / "base.st"), "--name", SINGLE, "--data", self.test, *ood_options(self.near, self.far),
            *compare_options(compared), "--curves", "-o", str(out / REPORT),
        )  # fmt: skip


def page(out: Path) -> Part:
    """Return what makes a page of the table and the curves that `eval` kept."""
    return Part("Make a page of it", (("report", str(out / REPORT), "-o", str(out / PAGE)),))


def ood_options(near: Sequence[str], far: Sequence[str]) -> tuple[str, ...]:
    """Return the options of `eval` for out-of-distribution data, each name=DATA."""
    return tuple(
        flag
        for kind, sets in (("--near", near), ("--far", far))
        for named_data in sets
        for flag in (kind, named_data)
    )


def compare_options(rows: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the options of `eval` for more rows, each of one model or the members of an ensemble."""
    return tuple(f"--compare={name}={','.join(models)}" for name, models in rows.items())


def _checkpoints(out: Path, names: Sequence[str], *, tuned: bool = False) -> tuple[str, ...]:
    return tuple(str(out / f"{name}{'-tuned' if tuned else ''}.st") for name in names)
