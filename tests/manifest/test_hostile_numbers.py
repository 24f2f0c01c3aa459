"""Every number of a header has the range of its option, and every name is from a closed set."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import pytest
import torch

from hydractl.errors import CheckpointError, InputError, ManifestError
from hydractl.families.open_model import open_model
from hydractl.manifest.guarantees import PredictionSets
from hydractl.manifest.header import FittedScores, FusePlan, Header, Kind
from hydractl.manifest.terms import Temperature
from hydractl.metrics.feature_scores import FittedScore
from hydractl.metrics.ood_scores import ENERGY_DENSITY, KNN, VERSION
from hydractl.prediction.inference import respond
from hydractl.prediction.run_models import Scaling
from support.builders import base, sha
from support.reports import THRESHOLD
from support.variants import variant

SAMPLE = base(variant("transformers-bert-multi-label"))
DATA = {"reference": "data", "sha256": sha("data"), "count": 3}
SECTIONS = {
    "temperature": 2.0,
    "label_temperatures": (2.0,) * 7,
    "label_thresholds": (0.5,) * 7,
    "threshold": THRESHOLD,
    "prediction_sets": PredictionSets.model_validate_json(
        json.dumps({"method": "raps", "coverage": 0.9, "thresholds": [0.9], "penalty": 0.1, "rank": 5, "count": 9, "data": DATA})
    ),
    "fitted": FittedScores.model_validate_json(
        json.dumps({"scores": [ENERGY_DENSITY, KNN], "data": DATA, "temperature": 2.0, "version": VERSION})
    ),
    "kind": Kind.HYDRA,
    "masks": SAMPLE.header.masks * 2,
    "plan": FusePlan(fates={}, trunk=1, mlp="keep", merge_trunk=1, own_from=1),
}  # fmt: skip
RAW = json.loads(SAMPLE.header.model_copy(update=SECTIONS).to_metadata())
READ_BY_OTHERS = {"config", "preprocess", "masks"}
"""Settings of a library or of inputs, covered by other tests, and masks, which are checked with their
architecture."""
UNBOUNDED = {"below", "count", "penalty", "rank"}
"""Numbers without an upper bound: scores without limit, sample counts, and options without limit."""


class Place(NamedTuple):
    path: tuple[str | int, ...]
    value: object

    def text(self, value):
        """Return the JSON text of the header with another value at this path."""
        changed = json.loads(json.dumps(RAW))
        node = changed
        for key in self.path[:-1]:
            node = node[key]
        node[self.path[-1]] = value
        return json.dumps(changed)


def places(node, path=()):
    if isinstance(node, dict | list):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node[:1]):
            if key not in READ_BY_OTHERS:
                yield from places(inner, (*path, key))
    elif not isinstance(node, bool):
        yield Place(path, node)


def refuses(text):
    try:
        Header.from_json(text, place="header")
    except ManifestError:
        return True
    return False


NUMBERS = [place for place in places(RAW) if isinstance(place.value, int | float)]
assert not refuses(json.dumps(RAW))


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: ".".join(map(str, place.path)))
def test_no_number_is_out_of_range(place):
    hostile = [math.nan, math.inf, -math.inf, "1", True, None, [], -1e308, -(10**30)]
    name = "".join(key for key in place.path if isinstance(key, str))
    if place.path[-1] not in UNBOUNDED:
        hostile += [1e308, 10**30]
    if place.path[-2:] == ("data", "count") or place.path[-1] == "own_from":
        hostile.remove(None)
    if isinstance(place.value, float) and not name.endswith(("penalty", "below", "setsthresholds")):
        hostile += [0.0]
    if "temperature" in name:
        hostile += [5e-324, 9e-4, 1001.0]
    accepted = [value for value in hostile if not refuses(place.text(value))]
    assert accepted == []


@pytest.mark.parametrize("value", ["unknown", "knn:k=0", "msp:k=3", "MSP", "", "\x7f"])
@pytest.mark.parametrize("path", [("threshold", "score"), ("fitted", "scores", 0)])
def test_scores_are_of_a_closed_set(path, value):
    with pytest.raises(ManifestError, match="OOD score that this release knows"):
        Header.from_json(Place(path, "").text(value), place="header")


def test_a_threshold_needs_the_fitted_score():
    with pytest.raises(ManifestError, match="does not have `vim`"):
        Header.from_json(Place(("threshold", "score"), "").text("vim"), place="header")


@pytest.mark.parametrize("section", ["threshold", "fitted"])
def test_a_newer_version_is_refused_with_the_command_to_upgrade(section, tmp_path):
    text = Place((section, "version"), 1).text(VERSION + 1)
    with pytest.raises(ManifestError, match="its newest version is") as refused:
        Header.from_json(text, place="header")
    assert "--upgrade" in refused.value.hint
    header = SAMPLE.header.model_copy(update=SECTIONS)
    newer = header.model_copy(update={section: getattr(header, section).model_copy(update={"version": 9})})
    path = SAMPLE.__class__(newer, SAMPLE.state).save(tmp_path / "newer.st")
    with pytest.raises(CheckpointError, match="its newest version is") as refused:
        open_model(str(path))
    assert "--upgrade" in refused.value.hint


def test_a_newer_schema_is_refused_with_the_command_to_upgrade():
    with pytest.raises(ManifestError, match=r"expected `hydractl.checkpoint/1`") as refused:
        Header.from_json(json.dumps(RAW | {"schema": "hydractl.checkpoint/2"}), place="header")
    assert "--upgrade" in refused.value.hint


def standards(**changes):
    numbers = {"energy_mean": -9.0, "energy_deviation": 1.0, "density_mean": 30.0, "density_deviation": 3.0}
    tensors = {name: torch.tensor(x, dtype=torch.float64) for name, x in (numbers | changes).items()}
    shapes = {"mean": (4,), "white": (4, 2), "points": (3, 2), "weights": (2,)}
    return tensors | {name: torch.ones(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"energy_deviation": 5e-324},
        {"density_deviation": 0.0},
        {"density_deviation": -1.0},
        {"energy_mean": 1e308},
        {"energy_mean": 1e30},
        {"density_deviation": 1e-9},
    ],
)
def test_stored_statistics_are_those_of_float32_numbers(changes):
    FittedScore(ENERGY_DENSITY, standards()).check()
    with pytest.raises(ValueError, match=r"standard deviations|finite"):
        FittedScore(ENERGY_DENSITY, standards(**changes)).check()


def test_temperatures_do_not_multiply_to_one_that_no_file_may_store():
    scaling = Scaling(temperature=Temperature(500.0))
    assert scaling.on_top_of([Temperature(2.0)]).common == 1000
    with pytest.raises(InputError, match="multiply to 1500"):
        scaling.on_top_of([Temperature(3.0)])


@pytest.mark.parametrize("logits", [[3e38, -3e38], [3e38, 3e38], [math.nan, 0.0], [math.inf, 0.0]])
def test_answers_that_are_not_finite_are_errors(logits):
    """Includes finite logits whose difference, or whose sum over members, is infinite."""

    class Constant:
        device, dtype = torch.device("cpu"), torch.float32

        def outputs(self, inputs):
            return (torch.tensor(logits).expand(2, len(inputs), 2),)

    with pytest.raises(InputError, match="not finite"):
        respond(Constant(), torch.zeros(3, 1, 4, 4), name="model", data="data")
