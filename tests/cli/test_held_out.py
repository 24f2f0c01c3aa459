"""`eval` counts the test samples used to make a model, for every command that selects anything."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest

from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.manifest.document import unpack_digests
from hydractl.manifest.head_mask import HeadImportance, HeadMask
from support.reviews import BAD, FILMS, GOOD, arch

POOL = [f"the {thing} was {adverb}{word} {end}" for thing in FILMS for adverb in ("", "very ") for word in (*GOOD, *BAD)
        for end in ("play", "played", "playing")]  # fmt: skip
BARE = ("--no-latency", "--bootstrap", "0", "--device", "cpu")
DIVERSE = "prune base.st --scores s.json --remove 2 --pool 4 --members 2 --strategy diverse"
TEST = 60
"""Number of test samples, including duplicates."""


def label_of(text):
    return "good" if any(word in text for word in GOOD) else "bad"


def write(path, texts):
    """Write texts in JSON lines, or in CSV with other line ends and spaces."""
    if path.suffix == ".csv":
        path.write_text("label,text\r\n" + "".join(f"{label_of(t)},  {t} \r\n" for t in texts))
    else:
        path.write_text("\n".join(json.dumps({"text": t, "label": label_of(t)}) for t in texts))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Models made on overlapping sets of texts from one pool, and a test set from the same pool."""
    from hydractl.cli.app import main

    folder, rng = tmp_path_factory.mktemp("held-out"), np.random.default_rng(0)
    names = ("train", "val", "scored", "drawn", "merged", "fit", "std", "kept")
    sets = {name: [POOL[i] for i in rng.permutation(len(POOL))[:30]] for name in names}
    for name, texts in sets.items():
        write(folder / f"{name}.jsonl", texts)
    tested = [POOL[i] for i in rng.permutation(len(POOL))[: TEST - 5]]
    write(folder / "test.csv", [*tested, *tested[:5]])
    fresh = [f"{text} the {word}" for text in POOL for word in ("phone", "battery")]
    write(folder / "fresh.jsonl", fresh)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in (
            f"finetune {arch(folder)} --train train.jsonl --val val.jsonl --lr 1e-3,2e-3 --epochs 1 --device cpu -o base.st",
            "score base.st --data scored.jsonl --method taylor --limit 12 --device cpu -o s.json",
            "prune base.st --scores s.json --remove 2 -o pruned.st",
            f"{DIVERSE} --data drawn.jsonl --candidates 4 --device cpu -o m-{{i}}.st",
            "prune base.st --mask m-0.mask.json -o masked.st",
            "fuse m-0.st m-1.st --temperature merged.jsonl --train fit.jsonl --val std.jsonl -o hydra.st",
            "finetune base.st --train train.jsonl --val val.jsonl --epochs 1 --device cpu -o tuned.st",
            f"eval hydra.st --data kept.jsonl --threshold-for 'risk<=0.9' --save-model stored.st {' '.join(BARE)}",
        ):
            assert main([*shlex.split(line), "-q"]) == 0, line
    return folder, sets, [*tested, *tested[:5]]


def counts(place, model, *words, call):
    """Return the counts in warnings of `eval` about test samples, by the use of the samples."""
    folder, *_ = place
    seen = call("eval", str(folder / model), "--data", str(folder / "test.csv"), *BARE, *words)
    assert seen.code in {0, 5}, seen.err
    pattern = rf"warning: \S+: (.*?) (\d+) of {TEST} samples of `--data`(.*)"
    return {verb: (int(count), end) for verb, count, end in re.findall(pattern, seen.err)}


def overlap(place, *names, limit=None):
    """Return the number of test samples in the given sets, by brute force."""
    _, sets, tested = place
    return sum(any(text == other for name in names for other in sets[name][:limit]) for text in tested)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("base.st", {"finetune": ("train", "val")}),
        ("m-0.st", {"finetune": ("train", "val"), "prune": ("drawn",)}),
        ("masked.st", {"finetune": ("train", "val"), "an earlier command used": ("drawn",)}),
        ("hydra.st", {"finetune": ("train", "val"), "prune": ("drawn",), "fuse": ("merged", "fit", "std")}),
        ("stored.st", {"finetune": ("train", "val"), "fuse": ("merged", "fit", "std"), "its threshold was fitted on": ("kept",)}),
    ],
)  # fmt: skip
def test_the_share_is_the_overlap_by_brute_force(place, call, model, expected):
    seen = counts(place, model, call=call)

    for command, names in expected.items():
        verb = f"`hydractl {command}` used" if " " not in command else command
        if model == "masked.st" and command == "an earlier command used":
            continue  # The scores record these samples; see below.
        assert seen[verb][0] == overlap(place, *names) > 0


def test_a_record_holds_the_samples_that_were_drawn_and_no_others(place):
    """With `--limit 12`, 12 samples.

    Masks and their members record the samples of scores and of `diverse`.
    """
    folder, *_ = place
    scores = HeadImportance.read(folder / "s.json")
    mask = HeadMask.read(folder / "m-0.mask.json")

    (scored,) = scores.samples.values()
    assert len(unpack_digests(scored)) == 12
    assert {len(unpack_digests(text)) for text in mask.samples.values()} == {12, 30}
    masked = Checkpoint.open(folder / "masked.st").header.samples
    assert mask.samples.items() <= masked.items()
    assert {len(unpack_digests(text)) for text in masked.values()} == {12, 30}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--threshold-for", "risk<=0.5"), "`--threshold-for`"),
        (("--sets", "0.8"), "`--sets`"),
        (("--threshold-for", "risk<=0.5", "--sets", "0.8"), "`--threshold-for` and `--sets`"),
    ],
)
def test_a_guarantee_on_such_samples_does_not_hold(place, call, words, option):
    seen = counts(place, "base.st", *words, call=call)

    assert seen["`hydractl finetune` used"] == (
        overlap(place, "train", "val"),
        f", so results on new data may be worse; the guarantee of {option} does not hold",
    )


def test_the_warning_is_in_the_report_and_in_json(place, call, tmp_path):
    folder, *_ = place
    seen = call("eval", str(folder / "base.st"), "--data", str(folder / "test.csv"), *BARE, "--json", "-o", str(tmp_path / "r.json"))  # fmt: skip

    for document in (json.loads(seen.out), json.loads((tmp_path / "r.json").read_text())):
        assert f"{overlap(place, 'train', 'val')} of {TEST} samples of `--data`" in json.dumps(document)


def test_there_is_no_false_alarm(place, call):
    """For disjoint samples, and for files of earlier releases (without recorded samples) on other sets."""
    folder, *_ = place
    for model in ("hydra.st", "stored.st"):
        seen = call(
            "eval",
            str(folder / model),
            "--data",
            str(folder / "fresh.jsonl"),
            *BARE,
            "--threshold-for",
            "risk<=0.5",
        )
        assert "samples of `--data`" not in seen.err
    checkpoint = Checkpoint.open(folder / "base.st")
    old = checkpoint.header.model_copy(update={"samples": {}})
    with (folder / "old.st").open("wb") as file:
        write_tensors(file, checkpoint.tensors(), header=old)
    assert counts(place, "old.st", call=call) == {}
    same = call("eval", str(folder / "old.st"), "--data", str(folder / "val.jsonl"), *BARE)
    assert "`hydractl finetune` used 30 of 30 samples of `--data`" in same.err


def test_make_refuses_such_samples_and_its_hints_can_be_typed(place, call, monkeypatch):
    folder, *_ = place
    monkeypatch.chdir(folder)
    words = ("make", "base.st", "tuned.st", "--test", "fresh.jsonl", "--risk", "0.9", "-q", "-o", "made/")

    seen = call(*words, "--val", "test.csv")

    used = overlap(place, "train", "val")
    assert seen.code == 3
    found = re.search(
        rf"(\d+) of {TEST} samples of `--val test.csv` were used to train or select the models", seen.err
    )
    assert int(found[1]) == used
    assert not (folder / "made").exists()
    assert "`--val test.csv::part=1/2`" in seen.err
    options = shlex.split(re.search(r"by `(--val .*? --test .*?)`", seen.err)[1])
    again = call(*words[:3], *words[5:], *options)
    assert again.code == 0, again.err
    assert Checkpoint.open(folder / "made/model.st").header.threshold is not None


def test_make_refuses_validation_samples_that_are_training_samples(place, call, monkeypatch):
    """The samples are known from `--train`, because the models have no record."""
    folder, sets, _ = place
    monkeypatch.chdir(folder)
    checkpoint = Checkpoint.open(folder / "base.st")
    for name in ("a.st", "b.st"):
        with (folder / name).open("wb") as file:
            write_tensors(
                file, checkpoint.tensors(), header=checkpoint.header.model_copy(update={"samples": {}})
            )
    twice = len({*sets["fit"]} & {*sets["std"]})

    seen = call(
        "make",
        "a.st",
        "b.st",
        "--train",
        "fit.jsonl",
        "--val",
        "std.jsonl",
        "--test",
        "fresh.jsonl",
        "-q",
        "-o",
        "none/",
    )

    assert seen.code == 3
    assert f"{twice} of 30 samples of `--val std.jsonl` were used" in seen.err
