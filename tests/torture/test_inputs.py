"""Every file that a command reads, changed: each ends in a documented exit code, within bounds, in one short error line."""

from __future__ import annotations

import json
import random
from pathlib import Path

from support.torture.mutations import Change, drawn
from support.torture.stages import STAGES

CORPUS = Path(__file__).with_name("corpus.jsonl")
READERS = {
    "base.st": ("prune-mask", "score"), "m-0.st": ("fuse",), "h.st": ("eval",), "s.json": ("prune", "plot"),
    "m-0.mask.json": ("prune-mask",), "w.safetensors": ("import",), "labels.txt": ("import",), "r.json": (), "y.safetensors": (),
}  # fmt: skip
"""Who reads what, besides `inspect`."""
TOGETHER = 20
"""How many changes one process tries."""


def test_changes(worker, whole, tally, share):
    draw = random.Random(f"inputs {share.number}")  # noqa: S311 - the same each time
    changes = [drawn(draw.choice(list(READERS)), draw) for _ in range(share.count(60, 1000))]
    tried(worker, whole, tally, [(change, line(change, draw)) for change in changes])
    tally.done()


def test_what_was_found_before(worker, whole, tally):
    found = [json.loads(text) for text in CORPUS.read_text().splitlines()]
    tried(worker, whole, tally, [(Change(**one["change"]), one["words"]) for one in found])
    tally.done()


def line(change, draw):
    """Return a command line that reads the file."""
    stage = draw.choice(["inspect", *READERS[change.file]])
    if stage != "inspect":
        return STAGES[stage].words
    return draw.choice(
        [("inspect", change.file), ("inspect", change.file, "--json"), ("inspect", change.file, "--tensors")]
    )


def tried(worker, whole, tally, tries):
    """Try each in a folder of its own, many in one process."""
    for first in range(0, len(tries), TOGETHER):
        some = tries[first : first + TOGETHER]
        places = [worker.place(changed(whole, change, words)) for change, words in some]
        ended = worker.one_after_the_other([(p, words) for p, (_, words) in zip(places, some, strict=True)])
        for place, (change, words), one in zip(places, some, ended, strict=True):
            tally.add(json.dumps({"change": change.data(), "words": words}), one.faults())
            worker.leave(place)


def changed(whole, change, words):
    """Return the files that a command line reads, one of them changed."""
    names = {name for stage in STAGES.values() if stage.words == tuple(words) for name in stage.reads} | {
        change.file
    }
    files = {name: whole.files[name] for name in names}
    return files | {change.file: change.of(files[change.file])}
