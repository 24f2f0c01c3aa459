"""The demo for zero-shot models: a small CLIP of transformers that names coloured shapes, pruned and fused without training.

Shapes and colours are all known, but twelve of their pairs never occur in training: one half of those guides the circuits, the
other is the near out-of-distribution data of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hydractl.cli.commands.demo.plan import (
    ENSEMBLE,
    REPORT,
    SINGLE,
    DemoTask,
    Part,
    compare_options,
    ood_options,
    page,
)

TRAIN, VAL, TEST = (f"shapes::split={split}" for split in ("train", "val", "test"))
OOD_VAL = "shapes::classes=0-5,domain=novel"
NEAR = ("pairs=shapes::classes=6-11,domain=novel",)
FAR = ("photos=photos::limit=360,size=24", "noise=noise::limit=360,size=24")
CAPTIONS = (
    "A photo of a {label}.",
    "a {label}",
    "there is a {label} here",
    "an image of one {label}",
    "the {label} lies among other marks",
)
PROMPTS = CAPTIONS[:3]
MEMBERS = range(3)
REMOVED, POOL, KEPT_BY_LAYER, SAMPLED = "8", "16", "5", "240"
BASES = ("clip", *(f"clip-{i}" for i in MEMBERS[1:]))
HYDRAS = ("Hydra (Taylor)", "Hydra (Circ)")


def prepare(out: Path, seed: int, say: Callable[[str], None]) -> None:
    """Train the bases from nothing, on one thread: three ordinary folders of transformers in `out`.

    Args:
        out: A folder that is there.
        seed: Of the first; the others take the next.
        say: Hears what is being done.
    """
    from hydractl.data.datasets import ImageSet
    from hydractl.data.encode import of_kind
    from hydractl.data.open_dataset import open_data
    from hydractl.runtime import one_thread
    from hydractl.training.clip_pretraining import PairConfig, train_pair

    images = of_kind(open_data(TRAIN), ImageSet)
    with one_thread():
        for i, name in enumerate(BASES):
            say(f"Training {name}, a small CLIP, on {len(images)} images of shapes and their captions")
            loss = train_pair(images, out / name, PairConfig(templates=CAPTIONS, seed=seed + i))
            say(f"{name}: a loss of {loss:.2f} in the last epoch")


def plan(out: Path, seed: int) -> tuple[Part, ...]:
    """Return every command of the demo in order; `prepare` has made the models."""
    taylor = [f"taylor-{i}" for i in MEMBERS]
    circuit = [f"circuit-{i}" for i in MEMBERS]

    def path(name: str) -> str:
        return str(out / name)

    base, circuit_scores, best = path("clip"), path("circuit.json"), ("--remove", REMOVED)
    prompts = tuple(flag for template in PROMPTS for flag in ("--template", template))
    compared = {
        ENSEMBLE: [*map(path, BASES)],
        "Taylor": [path("taylor-0.st")],
        "CircAvg": [path("circuit-best.st")],
        HYDRAS[0]: [path("hydra-taylor.st")],
        HYDRAS[1]: [path("hydra-circuit.st")],
    }
    return (
        Part(
            "Score the heads of both towers: by Taylor expansion on three samples of the data, and by greedy circuit extraction",
            (
                *(
                    ("score", base, "--method", "taylor", "--data", TRAIN, "--limit", SAMPLED, "--keep", KEPT_BY_LAYER, *prompts,
                     "--seed", str(seed + i), "-o", path(f"{name}.json"))
                    for i, name in enumerate(taylor)
                ),
                ("score", base, "--data", VAL, "--ood", OOD_VAL, "--remove", POOL, *prompts, "-o", circuit_scores),
            ),
        ),
        Part(
            "Prune: three Taylor members, three samples of the circuit's removals, and the best circuit",
            (
                ("prune", base, *(f"--scores={path(name)}.json" for name in taylor), "--keep", KEPT_BY_LAYER, "--per-layer",
                 "-o", path("taylor-{i}.st")),
                ("prune", base, "--scores", circuit_scores, *best, "--members", str(len(MEMBERS)), "--pool", POOL,
                 "--seed", str(seed), "-o", path("circuit-{i}.st")),
                ("prune", base, "--scores", circuit_scores, *best, "-o", path("circuit-best.st")),
            ),
        ),
        Part(
            "Fuse, and name the classes: the text towers run for the last time",
            tuple(
                ("fuse", *(path(f"{name}.st") for name in names), "--classes", class_names(), *prompts, "-o", path(f"hydra-{kind}.st"))
                for kind, names in (("taylor", taylor), ("circuit", circuit))
            ),
        ),
        Part(
            "Compare",
            (
                ("eval", base, "--name", SINGLE, "--data", TEST, *ood_options(NEAR, FAR), *prompts,
                 *compare_options(compared), "--curves", "-o", path(REPORT)),
            ),
        ),
        page(out),
    )  # fmt: skip


def class_names() -> str:
    """Return the names of the known shapes as `--classes` takes them."""
    from hydractl.data.toys.shapes import DOMAINS, KNOWN_DOMAIN

    return ",".join(DOMAINS[KNOWN_DOMAIN])


TASK = DemoTask(plan=plan, prepare=prepare, prepared_files=BASES, hydras=HYDRAS)
