"""Tiny command lines of all stages. Earlier stages write the inputs of later stages."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.torture.points import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from support.torture.tries import Worker

ARCH = (
    "vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=16,depth=2,num_heads=2,num_classes=7"
)
TRAIN, VAL = "digits::split=train,classes=0-6,limit=8", "digits::split=val,classes=0-6,limit=8"
STEPS = ("--steps", "2", "--batch-size", "4", "--save-every", "1", "--seed")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A command line with the files that it reads and writes."""

    words: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...]


STAGES = {
    "finetune": Stage(
        words=("finetune", f"arch:{ARCH}", "--train", TRAIN, "--val", VAL, *STEPS, "0", "-q", "-o", "base.st"),
        writes=("base.st",),
    ),
    "score": Stage(
        words=("score", "base.st", "--data", VAL, "--objective", "acc", "--remove", "3", "-q", "-o", "s.json"),
        reads=("base.st",),
        writes=("s.json",),
    ),
    "score-trained": Stage(
        words=("score", "base.st", "--data", TRAIN, "--method", "l0", "--training", "joint", "--epochs", "2",
               "--batch-size", "4", "--save-model", "t.st", "-q", "-o", "l0.json"),
        reads=("base.st",),
        writes=("l0.json", "t.st"),
    ),
    "prune": Stage(
        words=("prune", "base.st", "--scores", "s.json", "--remove", "1", "--members", "2", "--pool", "3", "-q",
               "-o", "m-{i}.st"),
        reads=("base.st", "s.json"),
        writes=("m-0.st", "m-0.mask.json", "m-1.st", "m-1.mask.json"),
    ),
    "prune-mask": Stage(
        words=("prune", "base.st", "--mask", "m-0.mask.json", "-q", "-o", "p.st"),
        reads=("base.st", "m-0.mask.json"),
        writes=("p.st", "p.mask.json"),
    ),
    "fuse": Stage(
        words=("fuse", "m-0.st", "m-1.st", "-q", "-o", "h.st"), reads=("m-0.st", "m-1.st"), writes=("h.st",)
    ),
    "eval": Stage(
        words=("eval", "h.st", "--data", VAL, "--no-latency", "--bootstrap", "0", "-q", "-o", "r.json",
               "--save-predictions", "y.safetensors"),
        reads=("h.st",),
        writes=("r.json", "y.safetensors"),
    ),
    "import": Stage(
        words=("import", "w.safetensors", "--arch", ARCH, "--labels", "labels.txt", "-q", "-o", "i.st"),
        reads=("w.safetensors", "labels.txt"),
        writes=("i.st",),
    ),
}  # fmt: skip
"""Stages by name. Each reads files of earlier stages."""


@dataclass(frozen=True)
class Whole:
    """Results of uninterrupted runs of all stages.

    Attributes:
        files: Content of all files read or written, by name.
        points: Calls of each stage that concern its folder.
        seconds: Duration of each stage.
    """

    files: Mapping[str, bytes]
    points: Mapping[str, tuple[str, ...]]
    seconds: Mapping[str, float]

    def read_by(self, name: str) -> dict[str, bytes]:
        """Return the input files of a stage."""
        return {file: self.files[file] for file in STAGES[name].reads}


def undisturbed(worker: Worker) -> Whole:
    """Run all stages once in order."""
    files = {
        "labels.txt": "".join(f"digit {i}\n" for i in range(7)).encode(),
        "labels.json": b'["a", "b", "c", "d", "e", "f", "g"]',
        "classes.txt": b"a\nb\n",
    }
    points, seconds = {}, {}
    place = worker.place(files)
    for name, stage in STAGES.items():
        ended = place.run(*stage.words)
        assert not [*ended.faults({0})], (name, ended)
        assert not ended.temporary
        points[name], seconds[name] = tuple(ended.points), ended.wall
        if name == "finetune":
            weights = ended.files["base.st"]
            assert weights is not None
            (place.work / "w.safetensors").write_bytes(bare(weights))
    found = {name: data for name, data in ended.files.items() if data}
    worker.leave(place)
    return Whole({**made(worker), **cut_off(worker, found, points), **found}, points, seconds)


def made(worker: Worker) -> dict[str, bytes]:
    """Return the other files for hostile inputs."""
    place = worker.place()
    ended = place.run(program="from support.torture.material import make; make()")
    assert ended.code == 0, ended.err
    worker.leave(place)
    return {name: data for name, data in ended.files.items() if data}


def cut_off(
    worker: Worker, files: Mapping[str, bytes], points: Mapping[str, Sequence[str]]
) -> dict[str, bytes]:
    """Return a journal and a saved state, from runs killed just before the rename of the output."""
    left = {}
    for name, kind in (("score", ".journal"), ("finetune", ".state/")):
        stage = STAGES[name]
        place = worker.place({file: files[file] for file in stage.reads})
        (out,) = stage.writes
        at = max(
            i
            for i, what in enumerate(points[name])
            if re.match(rf"os\.rename '(.*/)?\.{out}\.[0-9a-f]+\.hydra", what)
        )
        ended = place.run(*stage.words, plan=Plan(at=at, number=signal.SIGKILL))
        kept = {file: data for file, data in ended.files.items() if data and file.startswith(f"{out}{kind}")}
        assert kept, (name, ended)
        left |= kept
        worker.leave(place)
    return left


def bare(checkpoint: bytes) -> bytes:
    """Return a checkpoint without metadata."""
    from safetensors.torch import load, save

    return save(load(checkpoint))
