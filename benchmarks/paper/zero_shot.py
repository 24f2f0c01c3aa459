"""Rows of the hydra paper's zero-shot tables (3, 24 to 28): a small CLIP on coloured shapes, not tuned.

Each seed has a CLIP trained from random weights. As in the paper, a sixth of the heads is removed ("-6
heads" removes the next possible number of 36 heads, a fifth). The heads are chosen once on all 24 classes.
The ID sets are all classes and their four quarters. OOD data are compared with the first set, as the paper
does with ImageNet-1k. Temperatures are fitted on the first set and used for all sets. The captions for
BayesVLM are from images of the CLIP's training data.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from plan import CIRCUIT, HYDRA, SINGLE, TAYLOR
from promise import make_files, report
from promise_plan import Data, Plan, Task
from promise_tasks import SHAPES, make_clip
from rows import QUALITY, SIZES, Numbers, diversity, ood_metrics, values
from shapes import KNOWN, write_shapes
from small_clip import CAPTIONS, PairConfig

from hydractl.data.datasets import ImageSet, of_kind
from hydractl.data.labels import required_labels
from hydractl.data.open_dataset import open_data
from hydractl.manifest.report import Row as Measured

NAME = "zero-shot"
SCALED, BAYES, VILU = "temperature scaling", "BayesVLM", "ViLU"
HYDRA_SCALED, FEWER, VISION = (
    f"{HYDRA} with temperature",
    f"{HYDRA} with more heads gone",
    f"{HYDRA} of vision alone",
)
CLIP, PAIRS, TEMPLATE = "clip", "pairs", CAPTIONS[0]
WHOLE = "all"
SETS = {WHOLE: KNOWN} | {f"quarter-{i + 1}": KNOWN[6 * i : 6 * i + 6] for i in range(4)}
"""Classes of each set."""
LAYERS, HEADS, MEMBERS, EPOCHS = 3, 6, 3, PairConfig(templates=CAPTIONS).epochs
REMOVED = 2 * LAYERS * HEADS // 6
CAPTIONED = 960
VILU_TRAINING = "epochs=300,batch=64"
"""Training options of ViLU. 300 epochs as in the paper for ImageNet-1k, with smaller batches for the 2,400 to
9,600 images. One network is trained per set of classes. Doubling the epochs doubles the training time."""
HYDRAS = {HYDRA: ("circuit", REMOVED), FEWER: ("circuit", REMOVED + 1), VISION: ("vision", REMOVED // 2)}
"""Scores file for drawing members, and number of removed heads per member."""


def begun(folder: Path, seed: int) -> Plan:
    """Return the plan of one seed. Trains its CLIP and writes captioned images if missing."""
    drawn = write_shapes(folder.parent / SHAPES)
    _train(folder, drawn / "train", seed)
    data = Data(
        train=str(drawn / "train"),
        val=str(drawn / "val"),
        test=str(drawn / "test"),
        near={"pairs": str(drawn / "near")},
        far={"photos": "photos::limit=360,size=24", "noise": f"noise::limit=360,size=24,seed={seed}"},
        near_val=str(drawn / "near-val"),
    )
    clip = str((folder / CLIP).resolve())
    task = Task(
        model=clip, tuning=("--template", TEMPLATE), lr=0.0, epochs=EPOCHS, blocks=LAYERS, heads=HEADS, start=(), start_cost=0.0,
        scored=("--data", data.val, "--ood", data.near_val, "--search", "exact"),
    )  # fmt: skip
    return Plan(folder=folder, data=data, task=task, seed=seed)


def planned(plan: Plan) -> Plan:
    """Add the rows that are the same for all sets of classes, and the files made once."""
    clip, asked = plan.task.model, plan.task.tuning
    plan.row(SINGLE, clip)
    pairs = plan.path(f"{PAIRS}/{PAIRS}.jsonl")
    plan.row(BAYES, f"bayesvlm:{clip}::data={pairs}::text=caption")
    taylor = plan.make(
        "taylor.json", "score", clip, "--method", "taylor", "--data", plan.data.train, "--limit", "240", "--keep-heads", "5",
        "--seed", str(plan.seed), *asked,
    )  # fmt: skip
    plan.row(
        TAYLOR,
        plan.make(
            "taylor.st", "prune", clip, "--scores", taylor, "--keep-heads", "5", "--per-layer", needs=[taylor]
        ),
    )
    for name, towers in {"circuit": (), "vision": ("--towers", "vision")}.items():
        most = 2 * max(removed for scores, removed in HYDRAS.values() if scores == name)
        plan.make(f"{name}.json", "score", clip, *plan.task.scored, "--remove", str(most), *towers, *asked)
    cut = ("prune", clip, "--scores", "circuit.json", "--remove", str(REMOVED), "--strategy", "best")
    plan.row(CIRCUIT, plan.make("circuit.st", *cut, needs=["circuit.json"]))
    return plan


def measured(plan: Plan) -> dict[str, Numbers]:
    """Create and evaluate all rows.

    Returns:
        Numbers of every row by name: metrics of each set of classes, their means, and OOD metrics of the
            first set.
    """
    temperatures: dict[str, str] = {}
    found: dict[str, Numbers] = {}
    for name in SETS:
        part = of_set(plan, name)
        make_files(part)
        rows = {
            row.name: row
            for row in report(part.report(f"raw-{name}.json", *_options(part), ood=name == WHOLE)).rows
        }
        for scaled, of in ((SCALED, SINGLE), (HYDRA_SCALED, HYDRA)):
            rows[scaled] = _scaled(part, of, name, temperatures)
        for row, measures in rows.items():
            own = found.setdefault(row, {})
            own |= {f"{metric} {name}": value for metric, value in values(measures, QUALITY).items()}
            if name == WHOLE:
                own |= ood_metrics(measures, part) | diversity(measures) | values(measures, SIZES)
    for own in found.values():
        own |= {metric: statistics.fmean(own[f"{metric} {name}"] for name in SETS) for metric in QUALITY}
    return found


def _of(data: str, name: str) -> str:
    """Return a data reference to the images of one set of classes."""
    return f"{data}::classes={'+'.join(SETS[name])}"


def of_set(plan: Plan, name: str) -> Plan:
    """Return the plan with the test data of a set of classes, and hydras limited to these classes."""
    part = replace(
        plan,
        data=replace(plan.data, test=_of(plan.data.test, name)),
        files=dict(plan.files),
        rows=list(plan.rows),
    )
    part.row(
        VILU,
        f"vilu:{part.task.model}::{VILU_TRAINING},augment=none,seed={part.seed},data={_of(plan.data.train, name)}",
    )
    classes = ",".join(SETS[name])
    for row, (scores, removed) in HYDRAS.items():
        members = [
            part.make(
                f"{scores}-{removed}-{i}.st", "prune", part.task.model, "--scores", f"{scores}.json", "--remove", str(removed),
                "--strategy", "sample", "--pool", str(2 * removed), "--seed", str(part.seed + 100 * i), needs=[f"{scores}.json"],
            )
            for i in range(MEMBERS)
        ]  # fmt: skip
        asked = ("--classes", classes, *part.task.tuning)
        part.row(row, part.fuse(f"{scores}-{removed}-hydra-{name}.st", members, *asked))
    return part


def _options(plan: Plan) -> Iterator[str]:
    yield from ("--no-latency", *plan.task.tuning)


def _scaled(part: Plan, of: str, name: str, temperatures: dict[str, str]) -> Measured:
    """Return a row with the temperature that is best for validation data of all classes."""
    single = replace(part, rows=[row for row in part.rows if row.name == of])
    given = temperatures.get(of, _of(part.data.val, name))
    kind = "single" if of == SINGLE else "hydra"
    (row,) = report(
        single.report(
            f"scaled-{kind}-{name}.json", *_options(part), "--temperature", given, ood=name == WHOLE
        )
    ).rows
    temperatures.setdefault(of, repr(row.values["temperature"].value))
    return row


def _train(folder: Path, train: Path, seed: int) -> None:
    make_clip(folder / CLIP, PairConfig(templates=CAPTIONS, seed=seed), train, part=folder / f"{CLIP}.part")
    pairs = folder / PAIRS
    if not (pairs / f"{PAIRS}.jsonl").exists():
        pairs.mkdir(exist_ok=True)
        images = of_kind(open_data(str(train)), ImageSet)
        lines, labels = [], required_labels(images, str(train))
        for i in range(0, len(images), len(images) // CAPTIONED):
            images.image(i).save(pairs / f"{i}.png")
            caption = TEMPLATE.format(label=images.class_names[labels[i]])
            lines.append(json.dumps({"image": f"{i}.png", "caption": caption}) + "\n")
        (pairs / f"{PAIRS}.jsonl").write_text("".join(lines), encoding="utf-8")
