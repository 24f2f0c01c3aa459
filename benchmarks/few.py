"""Compare feature-based OOD scores with MSP for 5, 10, 20 or 100 training samples per class.

The bar: no feature-based score is more than 4 points of AUROC below MSP of the same model, near or far, in
the mean of five draws. A score that `eval` refuses with a reason meets the bar. Each draw has other classes
and samples. Models are trained by `finetune`; all numbers are from one `eval` with `--train` (the few training
samples) and `--val` (equally many samples per class that no training uses, at most 20). Files in `--work` are
reused. The tables include all tasks with results.

    python benchmarks/few.py --task clinc150 --file CLINC150.jsonl --backbone MINILM/ --work few/ [--seed 31]
                             [--draws 5]
    python benchmarks/few.py --task digits --work few/ [--samples 5 10 20 100]

`clinc150`: `clinc150.py` draws 20 intents. Near OOD are 20 other intents of the same domains; far OOD are
intents of other domains and out-of-scope queries. Encoders:

- `frozen`: MiniLM unchanged, with a fitted classifier (`finetune --train-parts head`);
- `tuned`: the whole model, trained from `frozen`;
- `tuned-at-once` (optional): the whole model, with a random classifier.

`digits`: seven of scikit-learn's ten digits are drawn, with a few images each. Near OOD are the other three
digits, far OOD photographs and noise. Encoders are the demo's ViT of width 64:

- `tuned`: the whole model is trained on the few images, from random weights;
- `frozen`: trained on the training images of all ten digits, because encoders usually have seen more than
  their later data; then a classifier is fitted on the few images;
- `frozen-known`: the same, trained on the images of the seven digits only;
- `frozen-random` (optional): the same with random weights. Features carry little information about digits,
  and MSP carries none about unknown digits.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from clinc150 import PARTS, Part, Query, draw, ordered, read, write
from demo_tasks import DIGITS
from promise import run
from pydantic import BaseModel

import hydractl
from hydractl.data.datasets import ImageSet, of_kind
from hydractl.data.labels import required_labels
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError
from hydractl.manifest.report import Row
from hydractl.metrics.ood_scores import ENERGY_DENSITY, KNN, MAHALANOBIS, MSP, RELATIVE, VIM, number_name

RESULTS = Path(__file__).parent / "results"
SCORES = (ENERGY_DENSITY, RELATIVE, MAHALANOBIS, KNN, VIM)
AS_PUBLISHED = "alpha=0:normalize=false"
EARLIER = (f"{RELATIVE}:{AS_PUBLISHED}", f"{MAHALANOBIS}:{AS_PUBLISHED}", f"{KNN}:k=50")
"""Options for the earlier definitions of these scores, without shrinkage and normalization."""
KINDS = ("near", "far")
BAR = 4.0
"""Largest allowed loss of AUROC against MSP, in points. Chosen by hand; doubling accepts scores that are
clearly worse with few samples."""
DECIMALS = 5
HELD_OUT = 20
"""Largest number of validation samples per class. Chosen by hand; doubling stabilizes scores that `--val`
fits."""
KNOWN = 7
NEVER = ("--eval-every", "100000")


@dataclass(frozen=True, slots=True)
class Splits:
    """DATA references of a draw with a training size.

    Attributes:
        train: Training data.
        val: Held-out data for `--val`.
        test: Test data of known classes.
        near: Near-OOD sets by name.
        far: Far-OOD sets by name.
        seed: Seed of the draw.
    """

    train: str
    val: str
    test: str
    near: Mapping[str, str]
    far: Mapping[str, str]
    seed: int


@dataclass(frozen=True)
class Clinc150:
    """Task on intents with a sentence encoder."""

    file: Path
    backbone: Path
    encoders: ClassVar = ("tuned", "frozen", "tuned-at-once")
    usual: ClassVar = encoders[:2]
    tested: ClassVar = {"test": 20, "near": 20, "far": 5, "oos": 300}
    training: ClassVar = ("--pooling", "mean", "--batch-size", "32", "--precision", "bf16", *NEVER)
    whole: ClassVar = ("--train-parts", "norm,attention,mlp,readout,head", "--lr", "1e-4")

    @cached_property
    def queries(self) -> list[Query]:
        """All texts of the file."""
        return read(self.file)

    def splits(self, folder: Path, seed: int, samples: int) -> Splits:
        """Draw intents and texts, and write them."""
        sizes = {"train": samples, "val": min(samples, HELD_OUT), **self.tested}
        folder.mkdir(parents=True, exist_ok=True)
        parts = {name: Part(PARTS[name].split, size) for name, size in sizes.items()}
        paths = {name: str(folder / f"{name}.jsonl") for name in parts}
        for name, intents in draw(self.queries, seed, parts).items():
            write(Path(paths[name]), intents)
        return Splits(
            train=paths["train"],
            val=paths["val"],
            test=paths["test"],
            near={"left-out": paths["near"]},
            far={"domains": paths["far"], "oos": paths["oos"]},
            seed=seed,
        )

    def train(self, encoder: str, splits: Splits, folder: Path) -> Path:
        """Train a model for ten epochs, limited to 60 to 320 steps. Return its path."""
        count = Path(splits.train).read_text(encoding="utf-8").count("\n")
        steps = ("--steps", str(min(max(60, 10 * count // 32), 320)))
        if encoder == "tuned-at-once":
            return finetune(
                self.backbone, splits, folder / f"{encoder}.st", *self.training, *self.whole, *steps
            )
        head = ("--train-parts", "head", "--lr", "1e-2")
        frozen = finetune(self.backbone, splits, folder / "frozen.st", *self.training, *head, *steps)
        if encoder == "frozen":
            return frozen
        return finetune(frozen, splits, folder / "tuned.st", *self.training, *self.whole, *steps)


@dataclass(frozen=True)
class Digits:
    """Task on digits with the demo's ViT."""

    work: Path
    encoders: ClassVar = ("tuned", "frozen", "frozen-known", "frozen-random")
    usual: ClassVar = encoders[:3]

    def splits(self, folder: Path, seed: int, samples: int) -> Splits:
        """Draw digits and images, and write training and held-out images."""
        order = ordered("0123456789", str(seed))
        known, others = sorted(order[:KNOWN]), sorted(order[KNOWN:])
        for split, count in (("train", samples), ("val", min(samples, HELD_OUT))):
            write_images(folder / split, split, known, count, seed)
        return Splits(
            train=str(folder / "train"),
            val=str(folder / "val"),
            test=f"digits::classes={'+'.join(known)},split=test",
            near={
                f"{digit}-{split}": f"digits::classes={digit},split={split}"
                for digit in others
                for split in ("val", "test")
            },
            far={"photos": "photos::limit=300", "noise": f"noise::limit=300,seed={seed}"},
            seed=seed,
        )

    def train(self, encoder: str, splits: Splits, folder: Path) -> Path:
        """Train a model: 900 steps for the whole model, 200 for a classifier. Return its path."""
        path = folder / f"{encoder}.st"
        if encoder == "tuned":
            return finetune(DIGITS.architecture, splits, path, *DIGITS.training, "--steps", "900", *NEVER)
        head = ("--train-parts", "head", "--lr", "1e-2", "--batch-size", "64", "--steps", "200", *NEVER)
        return finetune(self._start(encoder, splits), splits, path, *head)

    def _start(self, encoder: str, splits: Splits) -> str | Path:
        """Return the encoder for a classifier. All draws share the encoder trained on ten digits."""
        if encoder == "frozen-random":
            return DIGITS.architecture
        chosen, count, name = "classes=0-9", 10, "all"
        if encoder == "frozen-known":
            chosen, count, name = splits.test.split("::")[1].split(",")[0], KNOWN, str(splits.seed)
        path = self.work / f"encoder-{name}.st"
        if not path.exists():
            model = DIGITS.architecture.replace(f"num_classes={KNOWN}", f"num_classes={count}")
            data = ("--train", f"digits::{chosen},split=train", "--val", f"digits::{chosen},split=val")
            epochs = ("--epochs", str(DIGITS.epochs), *NEVER)
            run(("finetune", model, *data, *DIGITS.training, *epochs, "-o", str(path)))
        return path


Task: TypeAlias = Clinc150 | Digits


def write_images(folder: Path, split: str, digits: Iterable[str], count: int, seed: int) -> None:
    """Write images into a folder per digit. A smaller count writes the first images of a larger one."""
    images = of_kind(open_data(f"digits::split={split}"), ImageSet)
    for digit in digits:
        indices = (
            i
            for i, label in enumerate(required_labels(images, "digits"))
            if images.class_names[label] == digit
        )
        places = {str(images.places[i]): i for i in indices}
        (folder / digit).mkdir(parents=True, exist_ok=True)
        for place in ordered(places, f"{seed}/{split}")[:count]:
            images.image(places[place]).save(folder / digit / f"{place}.png")


def finetune(model: str | Path, splits: Splits, path: Path, *options: str) -> Path:
    """Return the path of a model. Trains the model if the file is missing."""
    if not path.exists():
        data = ("--train", splits.train, "--val", splits.val)
        run(("finetune", str(model), *data, *options, "--seed", str(splits.seed), "-o", str(path)))
    return path


class Measured(BaseModel):
    """Results of one model.

    Attributes:
        accuracy: Accuracy on the test data, in [0, 1].
        auroc: AUROC by score, for each OOD set, and for `near` and `far` (means over sets).
        refused: Reason for each refused score.
    """

    accuracy: float
    auroc: dict[str, dict[str, float]]
    refused: dict[str, str] = {}


def measure(model: Path, splits: Splits) -> Measured:
    """Evaluate a model with all scores that `eval` accepts."""
    scores, refused = [MSP, *SCORES, *EARLIER], dict[str, str]()
    row = None
    while row is None:
        try:
            row = evaluate(model, splits, scores)
        except DataError as error:
            score = next((s for s in scores if f"`{s}`" in str(error)), None)
            if score is None:
                raise
            scores.remove(score)
            refused[score] = str(error)
    names = {score: number_name("auroc", score, scores) for score in scores}
    auroc = {
        name: {score: round(numbers[metric].value, DECIMALS) for score, metric in names.items()}
        for name, numbers in row.ood.items()
    }
    for kind in KINDS:
        auroc[kind] = {score: round(row.means[kind][metric], DECIMALS) for score, metric in names.items()}
    return Measured(accuracy=row.values["accuracy"].value, auroc=auroc, refused=refused)


def evaluate(model: Path, splits: Splits, scores: Sequence[str]) -> Row:
    """Return the row of `eval` for the given scores."""
    near, far = ([f"{name}={data}" for name, data in sets.items()] for sets in (splits.near, splits.far))
    data: dict[str, Any] = {
        "data": splits.test, "near": near, "far": far, "fit": splits.train, "val": splits.val,
    }  # fmt: skip
    settings: dict[str, Any] = {"ood_score": scores, "metrics": ["accuracy", "auroc"], "bootstrap": 0}
    config = hydractl.EvalConfig(model=str(model), latency=False, **data, **settings)
    return hydractl.evaluate(config).document.rows[0]


class Cell(NamedTuple):
    """Results of all draws for one task, encoder and training size."""

    task: str
    encoder: str
    samples: int
    draws: Sequence[Measured]

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"{self.task} {self.encoder} {self.samples}"

    def differences(self, score: str, kind: str) -> list[float]:
        """Return a score's AUROC minus MSP's in points, for each draw that does not refuse the score."""
        aurocs = [drawn.auroc[kind] for drawn in self.draws if score not in drawn.refused]
        return [100 * (auroc[score] - auroc[MSP]) for auroc in aurocs]

    def to_text(self, score: str, kind: str) -> str:
        """Format the mean difference with its standard error, or `refused`."""
        points = self.differences(score, kind)
        if not points:
            return "refused"
        return f"{statistics.fmean(points):+.1f}" + (f" ± {standard_error(points):.1f}" if points[1:] else "")


def standard_error(numbers: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(numbers) / math.sqrt(len(numbers))


def table(cells: Sequence[Cell], scores: Sequence[str]) -> str:
    """Return a Markdown table of MSP and the differences of other scores in points, and reasons of refusals."""
    heads = ["task", "encoder", "per class", "accuracy", *(f"`{MSP}` {kind}" for kind in KINDS)]
    heads += [f"`{score}` {kind}" for score in scores for kind in KINDS]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for cell in cells:
        base = [100 * statistics.fmean(drawn.auroc[kind][MSP] for drawn in cell.draws) for kind in KINDS]
        accuracy = 100 * statistics.fmean(drawn.accuracy for drawn in cell.draws)
        numbers = [f"{number:.1f}" for number in (accuracy, *base)]
        numbers += [cell.to_text(score, kind) for score in scores for kind in KINDS]
        lines.append(f"| {cell.task} | {cell.encoder} | {cell.samples} | {' | '.join(numbers)} |")
    reasons = {
        f"| {cell.title} | {reason} |": None
        for cell in cells
        for drawn in cell.draws
        for score, reason in drawn.refused.items()
        if score in scores
    }
    return (
        "\n".join([*lines, *(["", "| refused | reason |", "|---|---|", *reasons] if reasons else [])]) + "\n"
    )


def verdicts(cells: Sequence[Cell], scores: Sequence[str]) -> str:
    """Return for each score its worst difference to MSP, and whether the score meets the bar."""
    lines = []
    for score in scores:
        worst, place = min(
            (statistics.fmean(points), f"{cell.title}, {kind}")
            for cell in cells
            for kind in KINDS
            if (points := cell.differences(score, kind))
        )
        verdict = "meets" if worst >= -BAR else "MISSES"
        lines.append(f"- `{score}`: {verdict} the bar of {BAR:g} points; worst {worst:+.1f} ({place})")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return both tables for all tasks with results."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("few-*.json"))]
    cells = [
        Cell(file["task"], row["encoder"], row["samples"], [Measured(**drawn) for drawn in row["draws"]])
        for file in files
        for row in file["rows"]
    ]
    counts = "; ".join(f"{file['task']}, draws {', '.join(map(str, file['seeds']))}" for file in files)
    parts = [
        "# Feature-based OOD scores with few samples\n",
        (
            f"AUROC of MSP in %, and differences of other scores from MSP in points ± standard error, by `python benchmarks/few.py --task TASK --work few/`. "
            f"Means over draws: {counts}. The bar: no score is more than {BAR:g} points below MSP in any row.\n"
        ),
    ]
    for scores in (SCORES, EARLIER):
        parts += ["## Earlier definitions of the scores\n"] if scores == EARLIER else []
        parts += [table(cells, scores), verdicts(cells, scores)]
    return "\n".join(parts)


def main() -> None:
    """Train and evaluate missing models, write the numbers, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("clinc150", "digits"), required=True)
    parser.add_argument("--file", type=Path, help="all queries of CLINC150, as JSON lines")
    parser.add_argument("--backbone", type=Path, help="folder of a sentence encoder")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for models and numbers, reused if present"
    )
    parser.add_argument("--seed", type=int, default=31, help="seed of the first draw; later draws count up")
    parser.add_argument("--draws", type=int, default=5, help="number of draws")
    parser.add_argument(
        "--samples", type=int, nargs="+", default=[5, 10, 20, 100], help="training samples per class"
    )
    parser.add_argument("--encoders", nargs="+", help="encoders to measure (default: without optional ones)")
    options = parser.parse_args()
    task: Task = Digits(options.work)
    if options.task == "clinc150":
        if not (options.file and options.backbone):
            parser.error("clinc150 needs --file and --backbone")
        task = Clinc150(options.file, options.backbone)
    torch.set_num_threads(1)
    encoders = options.encoders or task.usual
    if unknown := {*encoders} - {*task.encoders}:
        parser.error(f"{options.task} has no encoder {min(unknown)}; it has {', '.join(task.encoders)}")
    seeds = range(options.seed, options.seed + options.draws)
    drawn = {
        (encoder, samples, seed): numbers(
            task, encoder, options.work / f"{options.task}-{seed}" / str(samples), seed, samples
        )
        for seed in seeds
        for samples in options.samples
        for encoder in encoders
    }
    rows = [
        {
            "encoder": encoder,
            "samples": samples,
            "draws": [drawn[encoder, samples, seed].model_dump() for seed in seeds],
        }
        for encoder in encoders
        for samples in options.samples
    ]
    RESULTS.mkdir(exist_ok=True)
    kept = {"task": options.task, "seeds": [*seeds], "rows": rows}
    (RESULTS / f"few-{options.task}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    text = page()
    print(text)
    (RESULTS / "few.md").write_text(text, encoding="utf-8")


def numbers(task: Task, encoder: str, folder: Path, seed: int, samples: int) -> Measured:
    """Return the results of one model. Trains and evaluates the model if the results are missing."""
    path = folder / f"{encoder}.json"
    if not path.exists():
        splits = task.splits(folder, seed, samples)
        text = measure(task.train(encoder, splits, folder), splits).model_dump_json(indent=1)
        part = path.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
        print(f"{path}: measured", file=sys.stderr, flush=True)
    return Measured.model_validate_json(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
