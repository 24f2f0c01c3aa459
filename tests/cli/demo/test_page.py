"""The final output of a demo: sentences about the report, and example predictions."""

from __future__ import annotations

import json

from hydractl.cli.quality import answers, quality, sentence
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import Number
from support.reports import seeded


def test_what_is_worse_is_said_and_by_how_much():
    compared = Compared.of({"r": seeded(0)})
    name = compared.names[1]
    numbers = {
        "Acc": Number(value=-0.0301, low=-0.04, high=-0.02), "NLL": Number(value=-0.02, low=-0.03, high=-0.01),
        "ECE": Number(value=0.01, low=-0.01, high=0.02), "near": Number(value=0.1), "far": Number(value=0.1, low=0.1, high=0.1),
    }  # fmt: skip
    differences = {q: numbers[head.split()[0]] for head, q in quality(compared).items()}
    object.__setattr__(compared, "differences", {name: differences})

    assert sentence(compared, name).startswith(
        f"hydra against {name}: better in NLL (by 0.020) and far (by 0.100), worse in Acc (by 0.030), level in ECE and near, at "
    )


def test_an_answer_is_given_where_the_hydra_accepts(tmp_path):
    data = "digits::classes=0-6,split=test,limit=3"
    lines = [
        {"data": data, "row": i, "label": "2", "probability": 0.5, "votes": ["2", "4"], **accepted}
        for i, accepted in enumerate(({"accepted": True}, {"accepted": False}, {"accepted": None}))
    ]
    lines.append({**lines[1], "data": "noise::limit=1", "row": 0})
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    rows = [*answers(path)]

    assert [row[-1] for row in rows] == ["2", "abstains", "no threshold", "abstains"]
    assert [(row[0], row[2]) for row in rows] == [
        ("digits 0", "2 4"), ("digits 1", "2 4"), ("digits 2", "2 4"), ("noise 0", "2 4"),
    ]  # fmt: skip
    assert rows[3][1] == "none"
    assert {row[1] for row in rows[:3]} <= {*map(str, range(7))}
