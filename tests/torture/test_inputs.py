"""Changed input files: each command ends with a documented exit code, within limits, and a short error."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from support.torture.mutations import Change, drawn
from support.torture.readers import UNITS, read_by

CORPUS = Path(__file__).with_name("corpus.jsonl")
KINDS = sorted({unit.kind for unit in UNITS.values()})
TOGETHER = 20
"""Changes per process. Chosen by hand; doubling halves the number of process starts, and more tries share a
process."""


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize("kind", KINDS)
def test_changes(worker, whole, tally, kind, share):
    draw = random.Random(f"inputs {kind} {share.number}")  # noqa: S311 - the same each time
    units = [name for name, unit in UNITS.items() if unit.kind == kind]
    tries = []
    for _ in range(share.count(6, 350)):
        unit = draw.choice(units)
        files = sorted(
            name for name in whole.files if name == unit or name.startswith(unit.rstrip("/") + "/")
        )
        tries.append((drawn(draw.choice(files), draw), draw.choice(UNITS[unit].lines)))
    tried(worker, whole, tally, tries)
    tally.done()


def test_what_is_not_changed_is_read(worker, whole, tally, share):
    """Unchanged files must work, or failures with changed files prove nothing."""
    lines = sorted({line for unit in UNITS.values() for line in unit.lines})
    draw = random.Random(f"unchanged {share.number}")  # noqa: S311 - the same each time
    for words in share.of(lines, draw, few=4):
        place = worker.place(read(whole, words))
        tally.add(" ".join(words), place.run(*words).faults({0}))
        worker.leave(place)
    tally.done()


def test_what_was_found_before(worker, whole, tally):
    found = [json.loads(text) for text in CORPUS.read_text().splitlines()]
    tried(worker, whole, tally, [(Change(**one["change"]), one["words"]) for one in found])
    tally.done()


def tried(worker, whole, tally, tries):
    """Run each try in a separate folder, many tries per process."""
    for first in range(0, len(tries), TOGETHER):
        some = tries[first : first + TOGETHER]
        places = [worker.place(changed(whole, change, words)) for change, words in some]
        ended = worker.one_after_the_other([(p, words) for p, (_, words) in zip(places, some, strict=True)])
        for place, (change, words), one in zip(places, some, ended, strict=True):
            said = json.dumps({"change": change.data(), "words": words})
            tally.add(said, faults_of(one, change), kind=kind_of(change.file))
            worker.leave(place)


def faults_of(ended, change):
    """Return the faults, except opening a file that a changed table of images names."""
    named = change.file.startswith("pictures.") and change.what == "canary"
    return [fault for fault in ended.faults() if not (named and fault.strip().startswith("offence open"))]


def kind_of(file):
    """Return the kind of a file for the table of tries."""
    return UNITS[max((name for name in UNITS if file.startswith(name)), key=len)].kind


def changed(whole, change, words):
    """Return the files that a command line reads, after a change."""
    files = read(whole, words, change.file)
    return files | {change.file: change.of(files[change.file])}


def read(whole, words, *files):
    """Return the files that a command line reads, and all files in the folders of `files`."""
    beside = [name for unit in UNITS.values() if tuple(words) in unit.lines for name in unit.beside]
    folders = (*beside, *(f"{file.partition('/')[0]}/" for file in files if "/" in file))
    names = {
        *files,
        *read_by(words, whole.files),
        *(name for name in whole.files if name.startswith(folders)),
    }
    return {name: whole.files[name] for name in names}
