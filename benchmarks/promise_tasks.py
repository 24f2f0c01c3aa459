"""Tasks of `promise.py`: training data, OOD data, and training options."""

from __future__ import annotations

import argparse
import gzip
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from PIL import Image
from promise_plan import FORWARD, Data, Plan, Task
from shapes import write_shapes
from small_clip import CAPTIONS, PairConfig, train_pair

from hydractl.data.datasets import ImageSet, of_kind
from hydractl.data.open_dataset import open_data
from hydractl.runtime import one_thread

HERE = Path(__file__).parent

DIGITS = "arch:vit_tiny_patch16_224::img_size=8,patch_size=2,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=7"
DIGITS_LR, DIGITS_EPOCHS, COMMON, APART = 1e-3, 80, 180, 20
"""Learning rate, and epochs of the single model, of the common start, and of each member. 180 + 3 x 20 epochs
equal the cost of an ensemble of 3 x 80."""
FASHION = DIGITS.replace("img_size=8,patch_size=2", "img_size=28,patch_size=7")
FASHION_EPOCHS, FASHION_COMMON, FASHION_APART = 27, 60, 7
FASHION_PARTS = {
    "train": ("train", range(7), 0, 3000),
    "val": ("train", range(7), 3000, 500),
    "test": ("t10k", range(7), 0, 1000),
    "near": ("t10k", (8, 9), 0, 300),
    "near-val": ("train", (7,), 0, 200),
}
"""Parts of Fashion-MNIST: split of the files, classes, number of skipped images, and number of images."""
IDX_FILES = tuple(
    f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
ENCODER_LR, ENCODER_EPOCHS = 1e-4, 10
SCORED = 200
"""Texts per kind for the circuit search. Chosen by hand, because all texts would need more time than all
trainings; doubling doubles the time of the search."""
PROBE_LR, PROBE_EPOCHS = 1e-2, 10
"""Learning rate and epochs of the classifier on the frozen encoder. Fitting the classifier first preserves
the features (Kumar et al. 2022) and keeps the members in one basin of the loss. With random classifiers at
the encoder's learning rate, features move towards different classifiers, and averages of members become
poor."""
SHAPES, SHAPES_LABELLED = "shapes-data", 720
SHAPES_LR, SHAPES_EPOCHS = 3e-4, 20
SHAPES_CLIP = PairConfig(templates=CAPTIONS, layers=6, seed=1)
"""Pretraining of one CLIP for all seeds. The CLIP has seen every image with a caption, and is fine-tuned on
few labels."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder of six blocks with training options. All models start from a classifier fitted to it.

    Attributes:
        model: MODEL reference.
        heads: Heads per block.
        lr: Peak learning rate after the classifier is fitted.
        epochs: Epochs after the classifier is fitted.
        tuning: Options of every training.
        whole: Further options of all trainings except the classifier's.
        batch: Batch size for timing.
        repels: Whether `--repulsion` is possible.
    """

    model: str
    heads: int
    lr: float
    epochs: int
    tuning: tuple[str, ...]
    whole: tuple[str, ...] = ()
    batch: int = 64
    repels: bool = False

    def task(self, data: Data, seed: int) -> Task:
        """Return the task for this encoder."""
        probe = ("finetune", self.model, "--train", data.train, "--val", data.val, *self.tuning, "--train-parts", "head",
                 "--lr", f"{PROBE_LR:g}", "--epochs", str(PROBE_EPOCHS), "--seed", str(1000 * seed + 500))  # fmt: skip
        scored = ("--data", limited(data.val), "--ood", limited(data.near_val),
                  "--search", "lazy", "--remove", str(2 * (6 * self.heads // 3)))  # fmt: skip
        return Task(
            model="start.st", tuning=self.tuning, whole=self.whole, batch=self.batch, lr=self.lr, epochs=self.epochs, blocks=6, heads=self.heads,
            start=probe, start_cost=FORWARD * PROBE_EPOCHS / self.epochs, scored=scored, bare=self.model, repels=self.repels,
        )  # fmt: skip


def limited(data: str, count: int = SCORED) -> str:
    """Limit a DATA reference without `limit` to a number of items."""
    return f"{data}{',' if '::' in data else '::'}limit={count}"


def digits(folder: Path, seed: int) -> Plan:
    """Return the plan for a small vision transformer from random weights on scikit-learn's digits 0 to 6."""
    train, val, test = (f"digits::classes=0-6,split={split}" for split in ("train", "val", "test"))
    data = Data(
        train=train,
        val=val,
        test=test,
        near={"7-and-8": "digits::classes=7-8"},
        far={"photos": "photos::limit=300", "noise": f"noise::limit=300,seed={seed}"},
        near_val="digits::classes=9",
    )
    tuning = ("--batch-size", "64", "--augment", "shift", "--eval-every", "100000")
    common = ("finetune", DIGITS, "--train", train, "--val", val, *tuning, "--lr", f"{DIGITS_LR:g}", "--epochs", str(COMMON),
              "--seed", str(1000 * seed + 500))  # fmt: skip
    task = Task(
        model=DIGITS, tuning=tuning, lr=DIGITS_LR, epochs=DIGITS_EPOCHS, blocks=6, heads=8,
        start=common, start_cost=COMMON / DIGITS_EPOCHS, apart=APART, repels=True,
        scored=("--data", val, "--ood", data.near_val, "--search", "lazy", "--remove", "32"),
    )  # fmt: skip
    return Plan(folder=folder, data=data, task=task, seed=seed)


def fashion(folder: Path, seed: int, *, idx: Path) -> Plan:
    """Return the plan for a small vision transformer from random weights on seven classes of Fashion-MNIST.

    Args:
        folder: Folder of this seed.
        seed: Seed of the trainings.
        idx: Folder of the four idx files, plain or gzipped.
    """
    drawn = folder.parent / "fashion-data"
    if not drawn.exists():
        write_fashion(idx, drawn)
    data = Data(
        train=str(drawn / "train"),
        val=str(drawn / "val"),
        test=str(drawn / "test"),
        near={"bags-and-boots": str(drawn / "near")},
        far={"photos": "photos::limit=300,size=28", "noise": f"noise::limit=300,size=28,seed={seed}"},
        near_val=str(drawn / "near-val"),
    )
    tuning = ("--batch-size", "64", "--augment", "shift", "--eval-every", "100000")
    start = ("finetune", FASHION, "--train", data.train, "--val", data.val, *tuning, "--lr", f"{DIGITS_LR:g}",
             "--epochs", str(FASHION_COMMON), "--seed", str(1000 * seed + 500))  # fmt: skip
    task = Task(
        model=FASHION, tuning=tuning, lr=DIGITS_LR, epochs=FASHION_EPOCHS, blocks=6, heads=8,
        start=start, start_cost=FASHION_COMMON / FASHION_EPOCHS, apart=FASHION_APART, repels=True,
        scored=("--data", data.val, "--ood", data.near_val, "--search", "lazy", "--remove", "32"),
    )  # fmt: skip
    return Plan(folder=folder, data=data, task=task, seed=seed)


def write_fashion(idx: Path, out: Path) -> None:
    """Write the parts of Fashion-MNIST as folders per class. Classes 7 to 9 become `unknown`."""
    part = out.with_name(f"{out.name}.part")
    for name, (split, classes, skipped, count) in FASHION_PARTS.items():
        pictures, labels = (
            read_idx(idx / f"{split}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
        )
        indices = np.flatnonzero(np.isin(labels, classes))[skipped : skipped + count]
        for index in indices:
            folder = part / name / (str(labels[index]) if len(classes) > 2 else "unknown")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pictures[index]).save(folder / f"{index}.png")
    part.rename(out)


def _has_idx(folder: Path) -> bool:
    """Return whether a folder contains the four idx files."""
    return all((folder / name).exists() or (folder / f"{name}.gz").exists() for name in IDX_FILES)


def read_idx(path: Path) -> np.ndarray:
    """Read the array of an idx file.

    Format: a magic number with the number of axes in its last byte, the sizes as big-endian 32-bit integers,
    then bytes.
    """
    packed = path.with_name(f"{path.name}.gz")
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    axes = content[3]
    sizes = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(sizes)


def clinc150(folder: Path, seed: int, *, file: Path, backbone: Path) -> Plan:
    """Return the plan for a draw of intents with a sentence encoder. Draws the texts if missing.

    Args:
        folder: Folder of this seed.
        seed: Seed of the draw and of the trainings.
        file: The full CLINC150 in the format of `clinc150.py`.
        backbone: Folder of the encoder.
    """
    drawn = folder / "data"
    if not (drawn / "oos.jsonl").exists():
        program = [
            sys.executable,
            str(HERE / "clinc150.py"),
            str(file),
            "--seed",
            str(seed),
            "-o",
            str(drawn),
        ]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    part = {path.stem: str(path) for path in drawn.glob("*.jsonl")}
    data = Data(
        train=part["train"],
        val=part["val"],
        test=part["test"],
        near={"left-out": part["near"]},
        far={"domains": part["far"], "oos": part["oos"]},
        near_val=part["near-val"],
    )
    tuning = ("--pooling", "mean", "--batch-size", "32", "--precision", "bf16", "--eval-every", "100000")
    whole = ("--train-parts", "norm,attention,mlp,readout,head")
    encoder = Encoder(
        str(backbone), heads=12, tuning=tuning, whole=whole, lr=ENCODER_LR, epochs=ENCODER_EPOCHS, batch=4
    )
    task = encoder.task(data, seed)
    return Plan(folder=folder, data=data, task=task, seed=seed)


def shapes(folder: Path, seed: int) -> Plan:
    """Return the plan for the image tower of a small CLIP with a classifier. Trains the CLIP if missing."""
    drawn = write_shapes(folder.parent / SHAPES)
    backbone = folder.parent / "shapes-clip"
    make_clip(backbone, SHAPES_CLIP, drawn / "train", part=folder / "clip")
    data = Data(
        train=f"{drawn / 'train'}::limit={SHAPES_LABELLED}",
        val=str(drawn / "val"),
        test=str(drawn / "test"),
        near={"pairs": str(drawn / "near")},
        far={"photos": "photos::limit=360,size=24", "noise": f"noise::limit=360,size=24,seed={seed}"},
        near_val=str(drawn / "near-val"),
    )
    tuning = ("--batch-size", "48", "--eval-every", "100000")
    encoder = Encoder(str(backbone), heads=6, tuning=tuning, lr=SHAPES_LR, epochs=SHAPES_EPOCHS, repels=True)
    task = encoder.task(data, seed)
    return Plan(folder=folder, data=data, task=task, seed=seed)


def make_clip(out: Path, config: PairConfig, images: Path, *, part: Path) -> None:
    """Train a small CLIP on shapes and captions if the folder is missing.

    Args:
        out: Folder of the model.
        config: Options of the training.
        images: Folder with the images of each class.
        part: Temporary folder, renamed when the model is complete.
    """
    if not out.exists():
        with one_thread():
            train_pair(of_kind(open_data(str(images)), ImageSet), part, config)
        part.rename(out)


def parse_task(
    parser: argparse.ArgumentParser, others: Mapping[str, Callable[[Path, int], Plan]] = MappingProxyType({})
) -> tuple[argparse.Namespace, Callable[[Path, int], Plan]]:
    """Parse the command line of a program with tasks, seeds and a folder.

    Args:
        parser: Parser with the program's own options.
        others: Further tasks of the program, by name.

    Returns:
        Parsed options, and a function from folder and seed to the empty plan of the chosen task.
    """
    parser.add_argument("task", choices=("digits", "fashion", "clinc150", "shapes", *others))
    parser.add_argument(
        "--idx",
        type=Path,
        help="folder with the idx files of Fashion-MNIST, for example from Debian's package dataset-fashion-mnist",
    )
    parser.add_argument("--file", type=Path, help="all queries of CLINC150, as JSON lines")
    parser.add_argument("--backbone", type=Path, help="folder of a sentence encoder")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for checkpoints and reports, reused if present"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15], help="seeds to measure")
    options = parser.parse_args()
    if options.task == "clinc150" and not (options.file and options.backbone):
        parser.error("clinc150 needs --file and --backbone")
    if options.task == "fashion" and not (options.idx and _has_idx(options.idx)):
        parser.error(
            f"fashion needs --idx FOLDER with {', '.join(IDX_FILES)}, plain or .gz (Debian's package dataset-fashion-mnist)"
            + (f"; files are missing in {options.idx}" if options.idx else "")
        )
    torch.set_num_threads(1)
    text = partial(clinc150, file=options.file, backbone=options.backbone)
    tasks: dict[str, Callable[[Path, int], Plan]] = {
        "digits": digits,
        "fashion": partial(fashion, idx=options.idx),
        "clinc150": text,
        "shapes": shapes,
        **others,
    }

    def begun(work: Path, seed: int) -> Plan:
        folder = work / f"{options.task}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        return tasks[options.task](folder, seed)

    return options, begun
