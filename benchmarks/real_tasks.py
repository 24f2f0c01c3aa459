"""Tasks of `real.py`: data, and the plan of all models, for pretrained encoders that package registries ship."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from clinc150 import PARTS, Part, draw, ordered, read, write
from PIL import Image
from promise_plan import FORWARD, LONGER, MEMBERS, SINGLE, Data, Plan, Task
from promise_tasks import PROBE_EPOCHS, PROBE_LR, limited, read_idx

TEXT_SIZES = {"train": 20, "val": 10, "test": 30, "near": 15, "far": 3, "oos": 200, "near-val": 5}
"""Texts per intent; `oos` is a single class. All parts but `val` and the OOD sets are as in `promise.py`."""
NEAR_CLASSES = 2
"""Number of classes of Fashion-MNIST for near OOD data. One more class is the near OOD data for circuits."""
IMAGE_SIZES = {
    "train": ("train", 1000), "val": ("train", 500), "test": ("t10k", 2000), "near": ("t10k", 400), "near-val": ("train", 100),
}  # fmt: skip
"""Split of Fashion-MNIST, and number of images."""
FAR_IMAGES = 200
EDGE = 56
"""Edge of the images for DINOv2 in pixels: twice the edge of Fashion-MNIST, and 16 patches. Chosen by hand;
twice the edge costs four times the compute."""
CLASSES = 10

FROZEN = "frozen encoder with fitted classifier"
ENSEMBLE = "ensemble of 3"
HYDRA = "hydra of 3 (tuned)"
PAPER = "the paper's hydra (pruned)"
PRUNED = "single circuit-pruned"
REPORTS = {
    "first": (SINGLE, FROZEN, LONGER, ENSEMBLE),
    "hydra": (SINGLE, HYDRA),
    "circuits": (SINGLE, PAPER, PRUNED),
}
"""Rows of neural networks by report. The compute of the first row is the unit. Circuits are last, because their
search needs most of the time."""


class Drawn(NamedTuple):
    """Data of a seed.

    Attributes:
        data: Data references.
        ood_val: Near-OOD validation data for circuits, of other classes than the test data.
    """

    data: Data
    ood_val: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a task, smaller in tests.

    Attributes:
        epochs: Epochs of the single model.
        blocks: Blocks of the encoder.
        heads: Heads per block.
        lr: Peak learning rate.
        searched: Known and unknown validation inputs for the circuit search, each.
    """

    epochs: int
    blocks: int
    heads: int
    lr: float = 1e-4
    searched: int = 20


SIZES = {
    "fashion-dinov2": Sizes(epochs=2, blocks=12, heads=6, lr=5e-5),
    "intents-minilm": Sizes(epochs=3, blocks=6, heads=12),
    "intents-smollm2": Sizes(epochs=2, blocks=30, heads=9, lr=5e-5),
}


def begin(
    task: str, folder: Path, seed: int, *, drawn: Drawn, encoder: str, sizes: Sizes | None = None
) -> Plan:
    """Return the plan of a seed with all rows of neural networks.

    Args:
        task: Name of the task.
        folder: Folder of the seed.
        seed: Seed of the data and of all trainings.
        drawn: Data references.
        encoder: MODEL reference of the encoder.
        sizes: Sizes of the task (default: `SIZES`).
    """
    sizes, (data, ood_val) = sizes or SIZES[task], drawn
    pooling = ("--pooling", "mean") if task.startswith("intents") else ()
    tuning = (*pooling, "--batch-size", "32", "--eval-every", "100000")
    start = ("finetune", encoder, "--train", data.train, "--val", data.val, *tuning, "--train-parts", "head",
             "--lr", f"{PROBE_LR:g}", "--epochs", str(PROBE_EPOCHS), "--seed", str(1000 * seed + 500))  # fmt: skip
    removed = sizes.blocks * sizes.heads // 3
    scored = ("--method", "circuit", "--data", limited(data.val, sizes.searched), "--ood", limited(ood_val, sizes.searched),
              "--remove", str(2 * removed))  # fmt: skip
    made = Task(
        model="start.st", tuning=tuning, whole=("--train-parts", "norm,attention,mlp,readout,head"), lr=sizes.lr, epochs=sizes.epochs,
        blocks=sizes.blocks, heads=sizes.heads, start=start, start_cost=FORWARD * PROBE_EPOCHS / sizes.epochs, scored=scored,
    )  # fmt: skip
    return fill(Plan(folder=folder, data=data, task=made, seed=seed))


def fill(plan: Plan) -> Plan:
    """Plan the rows.

    The hydra is fused from the models of the ensemble, as by `make --hydra tuned` with one learning rate.
    Circuits maximize the mean of accuracy and AUROC, as in the paper. The circuit-pruned model is the first
    member of the paper's hydra.
    """
    task, data = plan.task, plan.data
    plan.make("start.st", *task.start, cost=task.start_cost)
    tuned = [plan.tune(f"tuned-{i}.st", task.model, epochs=task.epochs) for i in range(MEMBERS)]
    plan.row(SINGLE, tuned[0])
    plan.row(FROZEN, "start.st")
    plan.row(LONGER, plan.tune("longer.st", task.model, epochs=3 * task.epochs))
    plan.row(ENSEMBLE, *tuned)
    merged = ("--val", data.val, "--max-nll-increase", "0.01", "--temperature", data.val)
    plan.row(HYDRA, plan.fuse("hydra.st", tuned, *merged))
    plan.make("circuits.json", "score", tuned[0], *task.scored, needs=[tuned[0]])
    members = plan.papers_members(tuned[0], "circuits.json")
    plan.row(PAPER, plan.fuse("papers-hydra.st", members))
    plan.row(PRUNED, members[0])
    return plan


def draw_texts(folder: Path, seed: int, file: Path) -> Drawn:
    """Draw 20 known intents of CLINC150, 20 other intents of the same domains, and texts of other domains.

    Circuits use texts of 20 further intents of the same domains.
    """
    sizes = TEXT_SIZES
    paths = {name: folder / f"{name}.jsonl" for name in sizes}
    if not all(path.exists() for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        parts = {name: Part(PARTS[name].split, size) for name, size in sizes.items()}
        for name, intents in draw(read(file), seed, parts).items():
            write(paths[name], intents)
    part = {name: str(path) for name, path in paths.items()}
    data = Data(
        train=part["train"], val=part["val"], test=part["test"], near={"left-out": part["near"]},
        far={"domains": part["far"], "oos": part["oos"]}, near_val="",
    )  # fmt: skip
    return Drawn(data, part["near-val"])


def draw_images(folder: Path, seed: int, idx: Path) -> Drawn:
    """Draw seven known classes of Fashion-MNIST, and images of each part.

    Args:
        folder: Folder for the images, drawn if missing.
        seed: Seed of the draw.
        idx: Folder of the four idx files, plain or gzipped.
    """
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        names = ordered(map(str, range(CLASSES)), str(seed))
        classes = dict.fromkeys(IMAGE_SIZES, names[NEAR_CLASSES + 1 :])
        classes |= {"near": names[:NEAR_CLASSES], "near-val": [names[NEAR_CLASSES]]}
        order = np.random.default_rng(seed)
        used: dict[str, set[int]] = {"train": set(), "t10k": set()}
        for name, (split, count) in IMAGE_SIZES.items():
            pixels, labels = (
                read_idx(idx / f"{split}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
            )
            chosen = np.isin(labels, [int(label) for label in classes[name]])
            free = np.setdiff1d(np.flatnonzero(chosen), [*used[split]])
            for index in order.permutation(free)[:count]:
                used[split].add(int(index))
                target = part / name / ("unknown" if name in {"near", "near-val"} else str(labels[index]))
                target.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[index]).save(target / f"{index}.png")
        part.rename(folder)
    train, val, test, near, near_val = (str(folder / name) for name in IMAGE_SIZES)
    far = {
        "digits": f"digits::limit={FAR_IMAGES}",
        "photos": f"photos::limit={FAR_IMAGES},size=28",
        "noise": f"noise::limit={FAR_IMAGES},size=28,seed={seed}",
    }
    return Drawn(
        Data(train=train, val=val, test=test, near={"held-out": near}, far=far, near_val=""), near_val
    )


def smaller_inputs(encoder: Path, out: Path) -> str:
    """Return a copy of an image encoder's folder for inputs with an edge of `EDGE` pixels."""
    if not out.exists():
        part = out.with_name(f"{out.name}.part")
        shutil.copytree(encoder, part, copy_function=os.link, dirs_exist_ok=True)
        config = part / "preprocessor_config.json"
        content = json.loads(config.read_text(encoding="utf-8"))
        size = {"size": {"shortest_edge": EDGE}, "crop_size": {"height": EDGE, "width": EDGE}}
        config.unlink()  # The file is a hard link.
        config.write_text(json.dumps(content | size), encoding="utf-8")
        part.rename(out)
    return str(out)
