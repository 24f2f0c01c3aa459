"""Each output format preserves all values of a line, for any class names and file names."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hydractl.manifest.document import Fingerprint
from hydractl.manifest.guarantees import PredictionSets
from hydractl.manifest.terms import SetMethod
from hydractl.metrics.per_sample import Responses
from hydractl.prediction.predictions import Bounds, Predictions
from hydractl.prediction.writers import OPTIONAL, WRITERS, columns, lines_of
from hydractl.tasks import SINGLE_LABEL

NAMES = ("=1+1", 'a,"b"', "two\nlines", "zwölf")
PATHS = ("a,b.png", "@x\r\n.png", '"q".png', " .png", "")
MEMBERS, TOP_K = 3, 2
RULE = PredictionSets(
    method=SetMethod.LAC,
    coverage=0.5,
    thresholds=(0.7,),
    count=9,
    data=Fingerprint(reference="held-out", sha256=f"sha256:{'0' * 64}"),
)


def in_single(value):
    return float(np.float32(value)) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def sample_predictions():
    """Predictions for five inputs, of which two are accepted, one is unsure and two are unknown; members disagree."""
    logits = torch.randn(MEMBERS, len(PATHS), len(NAMES), generator=torch.Generator().manual_seed(4)) * 2
    responses = Responses(logits.log_softmax(-1), logits.logsumexp(-1))
    ordered = Predictions.of(responses, NAMES).scores["entropy"].sort().values.tolist()
    bounds = Bounds(known_max=("entropy", ordered[3]), sure_bound=("entropy", ordered[2]))
    return Predictions.of(responses, NAMES, bounds, RULE)


@pytest.fixture(scope="module")
def lines(sample_predictions):
    """Output lines, with an unreadable image as the third."""
    told = [
        {"path": path} | line
        for path, line in zip(
            PATHS,
            lines_of(sample_predictions, NAMES, SINGLE_LABEL, top_k=TOP_K, score="entropy", decides=True),
            strict=True,
        )
    ]
    return [*told[:2], {"path": "bad.png", "error": "no, not\nan image"}, *told[2:]]


def test_a_line_is_of_its_input(sample_predictions, lines):
    whole = [line for line in lines if "error" not in line]
    assert [line["accepted"] for line in whole] == (
        sample_predictions.scores["entropy"] < sample_predictions.scores["entropy"].sort().values[2]
    ).tolist()
    assert sum(line["accepted"] for line in whole) == 2
    assert len({len(line["set"]) for line in whole}) > 1
    assert len({tuple(line["votes"]) for line in whole if len({*line["votes"]}) > 1}) > 1
    for i, line in enumerate(whole):
        best = sample_predictions.probabilities[i].argsort(descending=True)
        assert [one["label"] for one in line["top"]] == [NAMES[c] for c in best[:TOP_K]]
        assert line["set"] == [
            name for name, p in zip(NAMES, sample_predictions.probabilities[i], strict=True) if p >= 0.3
        ]
        assert line["votes"] == [NAMES[c] for c in sample_predictions.member_probabilities[:, i].argmax(-1)]


def test_every_form_holds_the_same(lines):
    kinds = columns(["path"], top_k=TOP_K, members=MEMBERS, optional=OPTIONAL)
    files = {}
    for form, writer in WRITERS.items():
        files[form] = io.BytesIO()
        writing = writer(files[form], kinds)
        writing.write(lines[:4])  # two blocks
        writing.write(lines[4:])
        writing.close()
    table = [
        {
            "path": line["path"],
            **{f"label{end}": line["top"][k]["label"] for k, end in enumerate(("", "_2")) if "top" in line},
            **{f"probability{end}": line["top"][k]["probability"] for k, end in enumerate(("", "_2")) if "top" in line},
            **{f"vote_{m + 1}": vote for m, vote in enumerate(line.get("votes", ()))},
            **{name: line[name] for name in ("entropy", "mutual_information", "ood_score", "accepted", "reason", "error") if name in line},
            **({"set": json.dumps(line["set"], ensure_ascii=False, separators=(",", ":"))} if "set" in line else {}),
        }
        for line in lines
    ]  # fmt: skip
    order = [
        "path", "label", "probability", "label_2", "probability_2", "entropy", "mutual_information", "vote_1", "vote_2",
        "vote_3", "ood_score", "accepted", "reason", "set", "error",
    ]  # fmt: skip

    assert [json.loads(line) for line in files[".jsonl"].getvalue().splitlines()] == lines
    text = files[".csv"].getvalue().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert (
        list(rows[0]) == pq.read_schema(io.BytesIO(files[".parquet"].getvalue())).names == order == [*kinds]
    )
    written = {True: "true", False: "false"}
    assert rows == [
        {name: written[v] if isinstance(v := row.get(name, ""), bool) else str(v) for name in order}
        for row in table
    ]
    found = pq.read_table(io.BytesIO(files[".parquet"].getvalue())).to_pylist()
    assert found == [{name: in_single(row.get(name)) for name in order} for row in table]


def test_a_score_that_is_not_finite_passes_no_test():
    scores = {"entropy": torch.tensor([-torch.inf, torch.inf, torch.nan, 0.0])}
    for known_max in (1.0, torch.inf):
        bounds = Bounds(known_max=("entropy", known_max), sure_bound=("entropy", 1.0))
        assert [decision.tolist() for decision in bounds.decide(scores)] == [[False, False, False, True]] * 2
