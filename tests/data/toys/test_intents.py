"""Built-in intents follow the rule of their generating script, and include the attribution."""

from __future__ import annotations

import importlib.util
import json
import lzma
import os
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError

ROOT = Path(__file__).parents[3]
COUNTS = {
    "split=train": (400, 20), "split=val": (400, 20), "split=test": (600, 20), "domain=near-val": (400, 20),
    "domain=near": (600, 20), "domain=far-val": (300, 30), "domain=far": (600, 60), "domain=oos": (600, 0),
}  # fmt: skip
WHOLE = os.environ.get("CLINC150", "")


@pytest.fixture(scope="module")
def rule():
    """Script that generates the file."""
    spec = importlib.util.spec_from_file_location("clinc150", ROOT / "benchmarks" / "clinc150.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def stored():
    return json.loads(lzma.decompress(files("hydractl.data").joinpath("intents.json.xz").read_bytes()))


def texts(ref):
    return open_data(f"intents::{ref}", content=Content.TEXTS)


@pytest.mark.parametrize("part", COUNTS)
def test_parts(part):
    found = texts(part)
    count, classes = COUNTS[part]

    assert (len(found), len(found.class_names)) == (count, classes)
    assert len(set(found.texts)) == count
    if classes:
        each = [found.labels.count(i) for i in range(classes)]
        assert set(each) == {count // classes}
    else:
        assert found.labels is None


def test_nothing_is_in_two_parts():
    parts = {part: texts(part) for part in COUNTS}
    known = {part.class_names for name, part in parts.items() if name.startswith("split")}
    names = [*known, *(part.class_names for name, part in parts.items() if name.startswith("domain"))]

    assert len(known) == 1
    assert sum(map(len, names)) == len({name for part in names for name in part}) == 150
    assert sum(len(part) for part in parts.values()) == len(
        {t for part in parts.values() for t in part.texts}
    )


def test_a_text_has_its_intent():
    found = texts("split=test,classes=distance+maybe")

    by_label = {
        name: [t for t, l in zip(found.texts, found.labels, strict=True) if l == i]
        for i, name in enumerate(found.class_names)
    }
    assert sum("far" in text or "long" in text for text in by_label["distance"]) > 10
    assert not any("far" in text for text in by_label["maybe"])


def test_the_classes_follow_from_names_and_the_seed(rule, stored):
    expected = rule.classes(stored["domains"], stored["seed"])

    assert {name: tuple(part) for name, part in stored["parts"].items()} == expected
    assert rule.classes(stored["domains"], 1) != expected
    home = {d for d, names in stored["domains"].items() if {*names} & {*expected["test"]}}
    assert len(home) == 4
    assert {d for d, names in stored["domains"].items() if {*names} & {*expected["near"]}} == home
    assert not any({*stored["domains"][d]} & {*expected["far"], *expected["far-val"]} for d in home)


@pytest.mark.skipif(not WHOLE, reason="CLINC150 names no copy of the whole file")
def test_the_file_is_what_the_rule_makes_of_the_whole(rule, stored):
    assert rule.shipped(rule.read(Path(WHOLE))) == json.loads(json.dumps(stored))


def test_it_goes_with_its_attribution(rule, stored):
    notice = " ".join((ROOT / "NOTICE").read_text(encoding="utf-8").split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert {key: stored[key] for key in rule.ATTRIBUTION} == rule.ATTRIBUTION
    for words in ("Stefan Larson", "creativecommons.org/licenses/by/3.0", "CLINC150"):
        assert words in str(rule.ATTRIBUTION)
        assert words in notice
    assert "NOTICE" in project["project"]["license-files"]
    assert "NOTICE" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("domain=fra", "`intents` has no domain `fra`; it has near-val, near, far-val, far, oos"),
        ("split=dev", "`intents` has no split `dev`"),
        ("split=test,domain=near", "`intents` of near has no split `test`"),
        ("domain=oos,classes=distance", "has no labels"),
    ],
)
def test_refusals(ref, message):
    with pytest.raises(DataError, match=message):
        texts(ref)
