"""Compare the strategies of `prune` for diverse members on digits.

For each seed, a small vision transformer is trained on digits 0 to 6. Its heads are scored by circuits
(objectives acc, ood and avg, with digit 9 as OOD validation data). Each strategy makes hydras of three
members with equally many heads, `--draws` times with different pruning seeds; the numbers of the draws are
averaged. All numbers are from the TEST split, which no choice uses; the OOD sets are digits 7 and 8, patches
of photographs, and noise. `diverse` chooses on the validation split. Prints means over seeds, and differences
to `sample`, paired by seed, with 95 % intervals (Student).

Strategies share only the trained base of a seed. Seeds are therefore independent, and draws within a seed are
not.

    python benchmarks/strategies.py [--seeds 5] [--draws 2] [--epochs 40] [--candidates 32] [--finetune 0]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from intervals import half_interval

from hydractl.data.reference import DataRef
from hydractl.evaluation.options import NamedData, NamedModels
from hydractl.heads.budget import HeadBudget
from hydractl.pruning.strategies import Diversity, Strategy
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import DiverseConfig, PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from hydractl.training.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=2,in_chans=1,embed_dim=48,depth=4,num_heads=6,num_classes=7"
TRAIN, VAL, TEST = (f"digits::classes=0-6,split={split}" for split in ("train", "val", "test"))
OOD_VAL = "digits::classes=9"
NEAR = tuple(NamedData.parse(text) for text in ("7=digits::classes=7", "8=digits::classes=8"))
FAR = tuple(NamedData.parse(text) for text in ("photos=photos::limit=300", "noise=noise::limit=300"))
MEMBERS, REMOVED, POOL = 3, 8, 16
OBJECTIVES = ("acc", "ood", "avg")
SINGLE, SAMPLE = "single", "sample"
DIVERSE = {f"diverse ({kind})": kind for kind in Diversity}
COLUMNS = ("accuracy", "nll", "ece", "OOD auroc", "ID MI", "OOD MI")

Numbers = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    seeds: int
    draws: int
    epochs: int
    candidates: int
    finetune: int


def main() -> None:
    """Run every seed, and print the table and the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of training seeds")
    parser.add_argument("--draws", type=int, default=2, help="pruning seeds per training seed")
    parser.add_argument("--epochs", type=int, default=40, help="epochs of training the base")
    parser.add_argument("--candidates", type=int, default=32, help="candidates of `prune --strategy diverse`")
    parser.add_argument(
        "--finetune", type=int, default=0, help="epochs of fine-tuning per member; 0: no fine-tuning"
    )
    options = Options(**vars(parser.parse_args()))
    found: list[Numbers] = []
    for seed in range(options.seeds):
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found.append(one_seed(Path(folder), seed, options))
        print(f"seed {seed}: {time.perf_counter() - begun:.0f} s", flush=True)
    print_means(found, options)
    if options.seeds > 1:
        print_differences(found, ("random", "objectives", *DIVERSE), to=SAMPLE)
        control = f"diverse ({Diversity.NONE})"
        print_differences(found, [name for name in DIVERSE if name != control], to=control)


def one_seed(folder: Path, seed: int, options: Options) -> Numbers:
    """Train a base, make all its hydras, and return the numbers of each row."""
    base = folder / "base.st"
    train(ARCH, base, seed=seed, epochs=options.epochs, lr=1e-3)
    scores = {name: folder / f"{name}.json" for name in OBJECTIVES}
    for name, path in scores.items():
        run_score(
            ScoreConfig(
                model=str(base), out=path, data=VAL, ood=None if name == "acc" else OOD_VAL,
                given={"objective": name}, budget=HeadBudget(remove=POOL),
            )
        )  # fmt: skip
    several = {"scores": tuple(scores.values()), "strategy": Strategy.OBJECTIVES}
    rows = [row("objectives", 0, hydra(base, folder, "objectives", several, seed, options))]
    for draw in range(options.draws):
        for name, given in drawn_strategies(scores["avg"], options).items():
            made = hydra(base, folder, f"{name} {draw}", given, 1000 * seed + draw, options)
            rows.append(row(name, draw, made))
    report = run_eval(
        EvalConfig(
            model=str(base), name=f"{SINGLE} 0", data=DataRef.parse(TEST), near=NEAR, far=FAR, compare=tuple(rows), latency=False,
            bootstrap=0,
        )
    )  # fmt: skip
    measured: dict[str, list[dict[str, float]]] = {}
    for found in report.document.rows:
        values = {name: found.values[name].value for name in ("accuracy", "nll", "ece")}
        values["ID MI"] = found.values["mutual_information"].value
        values |= {
            "OOD auroc": found.means["all"]["auroc"],
            "OOD MI": found.means["all"]["mutual_information"],
        }
        measured.setdefault(found.name.rsplit(" ", 1)[0], []).append(values)
    return {name: averaged(each) for name, each in measured.items()}


def row(strategy: str, draw: int, path: str) -> NamedModels:
    """Return the row of one hydra for `eval`."""
    return NamedModels(name=f"{strategy} {draw}", models=(path,))


def drawn_strategies(scores: Path, options: Options) -> dict[str, dict[str, object]]:
    """Return the settings of `prune` for each strategy with random draws."""
    drawn: dict[str, object] = {"scores": (scores,), "members": MEMBERS, "pool": POOL}
    found: dict[str, dict[str, object]] = {
        "random": {"strategy": Strategy.RANDOM, "members": MEMBERS},
        SAMPLE: {**drawn, "strategy": Strategy.SAMPLE},
    }
    for name, kind in DIVERSE.items():
        asked = DiverseConfig(data=VAL, ood=OOD_VAL, candidates=options.candidates, diversity=kind)
        found[name] = {**drawn, "strategy": Strategy.DIVERSE, "diverse": asked}
    return found


def hydra(
    base: Path, folder: Path, name: str, given: Mapping[str, object], seed: int, options: Options
) -> str:
    """Prune, fine-tune if requested, and fuse. Return the path of the hydra."""
    stem = name.replace(" ", "-")
    config = PruneConfig(
        model=str(base),
        out=folder / f"{stem}-{{i}}.st",
        budget=HeadBudget(remove=REMOVED),
        seed=seed,
        verify=False,
        **given,  # type: ignore[arg-type]
    )
    members = [member.path for member in run_prune(config).members]
    if options.finetune:
        tuned = [path.with_suffix(".tuned.st") for path in members]
        for i, (path, out) in enumerate(zip(members, tuned, strict=True)):
            train(str(path), out, seed=seed + i, epochs=options.finetune, lr=3e-4)
        members = tuned
    out = folder / f"{stem}.st"
    run_fuse(FuseConfig(models=tuple(map(str, members)), out=out, verify=False))
    return str(out)


def train(model: str, out: Path, *, seed: int, epochs: int, lr: float) -> None:
    """Train a model on digits 0 to 6."""
    recipe = Recipe(lr=(lr,), epochs=epochs, batch_size=64, augment=("shift",))
    data, val = DataRef.parse(TRAIN), DataRef.parse(VAL)
    run_finetune(FinetuneConfig(model=model, train=data, val=val, out=out, recipe=recipe, seed=seed))


def averaged(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each column."""
    return {name: statistics.fmean(values[name] for values in each) for name in COLUMNS}


def print_means(found: Sequence[Numbers], options: Options) -> None:
    """Print the means of each row over the seeds."""
    print(
        f"\n{options.seeds} seeds, {options.draws} draws each; {MEMBERS} members without {REMOVED} of 24 heads, pool {POOL}, "
        f"{options.candidates} candidates; fine-tuned for {options.finetune} epochs; TEST split, means over seeds\n"
    )
    print(f"{'':24}" + "".join(f"{name:>11}" for name in COLUMNS))
    for name in found[0]:
        values = averaged([numbers[name] for numbers in found])
        print(f"{name:24}" + "".join(f"{values[column]:11.4f}" for column in COLUMNS))


def print_differences(found: Sequence[Numbers], names: Sequence[str], *, to: str) -> None:
    """Print mean differences to the row `to`, paired by seed, with 95 % intervals."""
    print(
        f"\ndifferences to {to}, paired by seed, with 95 % intervals (t, {len(found) - 1} degrees of freedom)\n"
    )
    for name in names:
        cells = []
        for column in COLUMNS:
            apart = [numbers[name][column] - numbers[to][column] for numbers in found]
            cells.append(f"{column} {statistics.fmean(apart):+.4f} ± {half_interval(apart):.4f}")
        print(f"{name:24}" + "   ".join(cells))


if __name__ == "__main__":
    main()
