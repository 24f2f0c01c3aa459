"""Measure temperatures fitted on few validation samples: NLL with the prior, by the NLL alone, and without.

Trains a dozen models from underfitted to overfitted, single models and hydras: vision transformers on
scikit-learn's digits and on drawn shapes, and with `--file` and `--backbone` a sentence encoder on intents of
CLINC150. Every model predicts all samples that no training has seen, once. A resample shuffles these samples:
temperatures are fitted on the first 50, 100, 200 and 400; the NLL is measured on the remaining samples (at
least 200, the same for all four sizes). The set of models was fixed before any temperature was fitted.

A model's number is the mean over its resamples; intervals are for the mean over models (Student's t). Models
of one task share samples, so the intervals do not cover other tasks. Writes a table and all numbers.

    python benchmarks/calibration.py [--file CLINC150.jsonl --backbone MINILM/] [--resamples 200] [--work DIR]
                                     [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from clinc150 import OOS, ordered, read
from intervals import half_interval
from selection import run
from shapes import write_shapes
from torch import Tensor

from hydractl.checkpoint import Checkpoint
from hydractl.metrics.temperature import fit_temperature, scaled_nll

SIZES = (50, 100, 200, 400)
TEST_LEAST = 200
"""Smallest number of test samples of a resample. Chosen by hand. Doubling lowers the noise of the test NLL by
a factor of 1.4, and excludes the larger sizes for tasks with few samples."""
FITS = {"with the prior": 0.5, "the NLL alone": math.inf}
"""Prior standard deviation of ln T for each fit; infinity means no prior."""
INTENTS, EACH = 40, {"train": 20, "val": 20, "test": 30}
"""Number of intents of CLINC150, and texts per intent of each split."""
MEMBERS = 3

VIT = "arch:vit_tiny_patch16_224::"
DIGITS = f"{VIT}img_size=8,patch_size=2,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=10"
TINY_DIGITS = f"{VIT}img_size=8,patch_size=2,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=10"
SHAPES = f"{VIT}img_size=24,patch_size=4,embed_dim=64,depth=4,num_heads=8,num_classes=24"


@dataclass(frozen=True, slots=True)
class Training:
    """Options of one `finetune` run.

    Attributes:
        samples: Number of training samples; None for all.
        epochs: Passes over the samples.
        options: Further options.
    """

    samples: int | None
    epochs: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A single model or a hydra of the table.

    Attributes:
        name: Name in tables.
        model: MODEL reference before training.
        training: Training of the single model, or of the common starting model of the members.
        apart: Training of each member after that; None for a single model.
        trunk: Number of leading blocks that are averaged over the members.
    """

    name: str
    model: str
    training: Training
    apart: Training | None = None
    trunk: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Data references and models of one task.

    Attributes:
        name: Name in tables.
        train: Training data.
        unseen: Data that no training uses.
        models: Models of the task.
    """

    name: str
    train: str
    unseen: tuple[str, ...]
    models: tuple[Model, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """Predictions of a model on all unseen samples.

    Attributes:
        log_probs: Log-probabilities, shape (M, N, C).
        labels: Class indices, shape (N,).
    """

    log_probs: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Results:
    """Results of a model over all resamples.

    Attributes:
        unseen: Number of unseen samples.
        nll: NLL on all unseen samples, without a temperature.
        accuracy: Accuracy on all unseen samples, in [0, 1].
        temperature: Temperature with the lowest NLL on all unseen samples.
        differences: For each size and fit, the test NLL minus the NLL without a temperature, one number per
            resample.
    """

    unseen: int
    nll: float
    accuracy: float
    temperature: float
    differences: Mapping[int, Mapping[str, Sequence[float]]]


def rate(lr: str, batch: int, *more: str) -> tuple[str, ...]:
    """Return `finetune` options for learning rate and batch size."""
    return ("--lr", lr, "--batch-size", str(batch), *more)


def tasks(folder: Path, file: Path | None, backbone: Path | None) -> Iterator[Task]:
    """Yield the tasks. CLINC150 is included if both its file and an encoder are given."""
    usual, shifted = rate("1e-3", 64), rate("1e-3", 64, "--augment", "shift")
    yield Task(
        "digits",
        "digits::split=train",
        ("digits::split=val", "digits::split=test"),
        (
            Model("underfitted", TINY_DIGITS, Training(None, 10, usual)),
            Model("well fitted", DIGITS, Training(None, 40, shifted)),
            Model("overfitted", DIGITS, Training(150, 200, usual)),
            Model("label smoothing", DIGITS, Training(None, 40, (*shifted, "--label-smoothing", "0.2"))),
            Model("hydra", DIGITS, Training(None, 40, shifted), Training(None, 10, shifted), trunk=4),
        ),
    )
    shapes = write_shapes(folder / "shapes")
    yield Task(
        "shapes",
        str(shapes / "train"),
        (str(shapes / "val"), str(shapes / "test")),
        (
            Model("underfitted", SHAPES, Training(1000, 5, usual)),
            Model("overfitted", SHAPES, Training(600, 60, usual)),
            Model("hydra, overfitted", SHAPES, Training(600, 30, usual), Training(600, 30, usual)),
        ),
    )
    if file is not None and backbone is not None:
        parts = draw(file, folder / "clinc150")
        text = ("--pooling", "mean")
        probe = Training(None, 10, rate("1e-2", 32, *text, "--train-parts", "head"))
        few, tuning = rate("1e-2", 32, *text, "--train-parts", "head"), rate("1e-4", 32, *text)
        model = str(backbone)
        yield Task(
            "CLINC150",
            parts["train"],
            (parts["val"], parts["test"]),
            (
                Model("classifier alone", model, probe),
                Model("classifier alone, few samples", model, Training(100, 60, few)),
                Model("tuned", model, Training(None, 3, tuning)),
                Model("hydra", model, probe, Training(400, 3, tuning), trunk=5),
            ),
        )


def draw(file: Path, folder: Path) -> dict[str, str]:
    """Write texts of a part of the intents, one file per split.

    Intents and texts are taken in the order of their hashes, so the draw is reproducible.

    Returns:
        Path of each split.
    """
    queries = read(file)
    intents = sorted(ordered({q.label for q in queries if q.domain != OOS}, "calibration")[:INTENTS])
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for split, each in EACH.items():
        lines = []
        for intent in intents:
            texts = [q.text for q in queries if (q.split, q.label) == (split, intent)]
            lines += [
                json.dumps({"text": t, "label": intent})
                for t in ordered(texts, f"calibration/{split}")[:each]
            ]
        path = folder / f"{split}.jsonl"
        path.write_text("\n".join(ordered(lines, split)) + "\n", encoding="utf-8")
        paths[split] = str(path)
    return paths


def make(task: Task, model: Model, folder: Path, seed: int) -> Path:
    """Train a model and return the path of its checkpoint."""

    def train(start: object, training: Training, name: str, own_seed: int) -> Path:
        path, limit = folder / f"{name}.st", training.samples
        data = (
            task.train if limit is None else f"{task.train}{',' if '::' in task.train else '::'}limit={limit}"
        )
        # Training data replace the validation data, because the unseen samples must not select a checkpoint.
        run("finetune", start, "--train", data, "--val", data, "--epochs", training.epochs, "--eval-every", 10**6,
            *training.options, "--seed", own_seed, "--if-changed", "-o", path)  # fmt: skip
        return path

    start = train(model.model, model.training, "start", 100 * seed)
    if model.apart is None:
        return start
    members = [train(start, model.apart, f"member-{i}", 100 * seed + 1 + i) for i in range(MEMBERS)]
    merged = ("--trunk", model.trunk) if model.trunk else ()
    run("fuse", *members, *merged, "--no-verify", "--if-changed", "-o", folder / "hydra.st")
    return folder / "hydra.st"


def answers(task: Task, model: Model, folder: Path, seed: int) -> Answers:
    """Return the predictions of a model on all unseen samples. Existing prediction files are reused."""
    paths = [folder / f"predictions-{i}.st" for i in range(len(task.unseen))]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = make(task, model, folder, seed)
        for data, path in zip(task.unseen, paths, strict=True):
            run("eval", checkpoint, "--name", "model", "--data", data, "--metrics", "nll", "--bootstrap", 0, "--no-latency",
                "--save-predictions", path, "--force")  # fmt: skip
    parts = []
    for path in paths:
        saved = Checkpoint.open(path)
        parts.append((saved.tensor("log_probs/model/id"), saved.tensor("labels/id")))
    return Answers(torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts]))


def measure(found: Answers, *, seed: int, resamples: int) -> Results:
    """Fit temperatures on resamples and measure the NLL on the remaining samples."""
    log_probs, labels = found.log_probs, found.labels
    sizes = [size for size in SIZES if size <= len(labels) - TEST_LEAST]
    differences: dict[int, dict[str, list[float]]] = {size: {name: [] for name in FITS} for size in sizes}
    source = torch.Generator().manual_seed(seed)
    for _ in range(resamples):
        order = torch.randperm(len(labels), generator=source)
        test = order[max(sizes) :]
        unscaled = scaled_nll(log_probs[:, test], labels[test], 1.0)
        for size in sizes:
            chosen = order[:size]
            for name, deviation in FITS.items():
                fitted = fit_temperature(log_probs[:, chosen], labels[chosen], deviation=deviation)
                nll = scaled_nll(log_probs[:, test], labels[test], fitted.temperature)
                differences[size][name].append(nll - unscaled)
    hits = log_probs.double().exp().mean(0).argmax(1) == labels
    return Results(
        unseen=len(labels),
        nll=scaled_nll(log_probs, labels, 1.0),
        accuracy=float(hits.double().mean()),
        temperature=fit_temperature(log_probs, labels, deviation=math.inf).temperature,
        differences=differences,
    )


Row = dict[str, float]


def summary(models: Mapping[str, Results]) -> dict[int, dict[str, Row]]:
    """Summarize the differences over all models, for each size and fit. Sizes without any model are omitted."""
    rows: dict[int, dict[str, Row]] = {}
    for size in SIZES:
        measured = [model.differences[size] for model in models.values() if size in model.differences]
        for name in FITS if measured else ():
            means = [statistics.mean(differences[name]) for differences in measured]
            rows.setdefault(size, {})[name] = {
                "models": len(means),
                "mean": statistics.mean(means),
                "half interval": half_interval(means),
                "models made worse": sum(mean > 0 for mean in means),
                "worst model": max(means),
                "worst resample": max(max(differences[name]) for differences in measured),
            }
    return rows


def written(models: Mapping[str, Results], *, resamples: int, command: str) -> str:
    """Return the tables in Markdown."""
    rows = summary(models)
    lines = [
        "# Temperatures fitted on few samples",
        "",
        f"Effect of a fitted temperature on the test NLL, made by {command} on {platform.machine()}, one thread, torch {torch.__version__}.",
        "",
        f"Numbers are the test NLL with a temperature minus the NLL without, for {len(models)} models with {resamples} resamples each.",
        "Means over models have a 95 % interval. A model is made worse if the mean over resamples is above 0.",
        "",
        "| validation samples | fit | mean | models made worse | worst model | worst resample |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for size, fits in rows.items():
        for name, row in fits.items():
            lines.append(
                f"| {size} | {name} | {row['mean']:+.4f} ± {row['half interval']:.4f} | {row['models made worse']} of {row['models']} "
                f"| {row['worst model']:+.4f} | {row['worst resample']:+.4f} |"
            )
    lines += ["", verdict(rows)]
    lines += [
        f"{name}: {model.unseen} unseen samples are too few for {size} validation samples."
        for name, model in models.items()
        for size in SIZES
        if size not in model.differences
    ]
    lines += ["", "## Models", ""]
    columns = " | ".join(str(size) for size in SIZES)
    prior = next(iter(FITS))
    lines += [
        "Accuracy, NLL and best T (the temperature with the lowest NLL) use all unseen samples.",
        f"The last columns are the mean difference {prior}, by number of validation samples.",
        "",
        f"| model | unseen | accuracy | NLL | best T | {columns} |",
        f"|---|{'---:|' * (4 + len(SIZES))}",
    ]
    for name, model in models.items():
        cells = [
            f"{statistics.mean(model.differences[size][prior]):+.4f}" if size in model.differences else ""
            for size in SIZES
        ]
        numbers = f"{model.unseen} | {100 * model.accuracy:.1f} | {model.nll:.3f} | {model.temperature:.2f}"
        lines.append(f"| {name} | {numbers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(rows: Mapping[int, Mapping[str, Row]]) -> str:
    """Return the sizes where a temperature raises the mean NLL significantly (whole 95 % interval above 0)."""
    lines = []
    for name in FITS:
        above = [size for size, fits in rows.items() if fits[name]["mean"] > fits[name]["half interval"]]
        place = f"at {', '.join(map(str, above))} samples" if above else "never"
        lines.append(f"Mean NLL significantly higher than without a temperature, {name}: {place}.")
    return "  \n".join(lines)


def main() -> int:
    """Train and evaluate the models, and print and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, help="all queries of CLINC150, as JSON lines")
    parser.add_argument("--backbone", type=Path, help="folder of a sentence encoder")
    parser.add_argument("--resamples", type=int, default=200, help="resamples per model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder for checkpoints and predictions, reused if present")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    if (options.file is None) != (options.backbone is None):
        parser.error("CLINC150 needs --file and --backbone")
    torch.set_num_threads(1)
    models: dict[str, Results] = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        for task in tasks(work, options.file, options.backbone):
            for model in task.models:
                seed, name = 100 * options.seed + len(models), f"{task.name}: {model.name}"
                found = answers(task, model, work / str(seed), seed)
                models[name] = measure(found, seed=seed, resamples=options.resamples)
                print(f"{name}: NLL {models[name].nll:.3f}", file=sys.stderr)
    command = ["python", "benchmarks/calibration.py"]
    command += ["--file", "CLINC150.jsonl", "--backbone", "MINILM/"] if options.file else []
    command += ["--resamples", str(options.resamples), "--seed", str(options.seed)]
    text = written(models, resamples=options.resamples, command=f"`{shlex.join(command)}`")
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "calibration.md").write_text(text + "\n", encoding="utf-8")
    document = {
        "summary": summary(models),
        "models": {
            name: {
                "unseen": model.unseen, "accuracy": model.accuracy, "nll": model.nll, "temperature": model.temperature,
                "differences": {
                    size: {fit: {"mean": statistics.mean(d), "worst": max(d), "deviation": statistics.stdev(d)} for fit, d in fits.items()}
                    for size, fits in model.differences.items()
                },
            }
            for name, model in models.items()
        },
    }  # fmt: skip
    (options.out / "calibration.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
