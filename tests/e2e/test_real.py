"""`benchmarks/real.py` on tiny data: all rows are made, and columns equal values computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hydractl.manifest.report import Report
from support.commands import check_plan

ROOT = Path(__file__).parents[2]
MODEL = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=8,depth=3,num_heads=2,num_classes=3"


@pytest.fixture(autouse=True)
def _modules(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the plan of the task on images for three digits, and the numbers of all rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import real
        from promise_plan import Data
        from real_tasks import REPORTS, Drawn, Sizes, begin

        known = "digits::classes=0-2"
        data = Data(
            train=f"{known},split=train,limit=48", val=f"{known},split=val", test=f"{known},split=test,limit=30",
            near={"3": "digits::classes=3,limit=20"}, far={"noise": "noise::limit=20,size=8", "photos": "photos::limit=20,size=8"},
            near_val="",
        )  # fmt: skip
        folder = tmp_path_factory.mktemp("real")
        sizes = Sizes(epochs=4, blocks=3, heads=2, lr=0.03, searched=12)

        def plan():
            return begin(
                "fashion-dinov2",
                folder,
                1,
                drawn=Drawn(data, "digits::classes=4"),
                encoder=MODEL,
                sizes=sizes,
            )

        rows = real.measure_classical(plan(), texts=False)
        return plan(), rows | {
            k: v for name, of in REPORTS.items() for k, v in real.measure(plan(), name, of).items()
        }


def test_every_row_has_every_column(measured):
    from real import COLUMNS
    from real_classical import LOGISTIC, NEAREST
    from real_tasks import REPORTS

    plan, rows = measured
    check_plan(plan, "--no-latency")
    assert {*rows} == {NEAREST, LOGISTIC}.union(*REPORTS.values())
    assert all({*COLUMNS} <= row.keys() for row in rows.values())


def test_columns_of_the_ensemble_equal_values_by_hand(measured):
    from real_tasks import ENSEMBLE

    plan, rows = measured
    predictions = load_file(plan.path("first-predictions.st"))
    probabilities = predictions[f"log_probs/{ENSEMBLE}/id"].double().exp().mean(0).numpy()
    labels = predictions["labels/id"].numpy()
    confidence, wrong = probabilities.max(1), probabilities.argmax(1) != labels
    order = np.argsort(-confidence, kind="stable")
    risks = [wrong[order[:k]].mean() for k in range(1, len(labels) + 1)]
    row = rows[ENSEMBLE]

    assert len({*confidence.tolist()}) == len(confidence)
    assert row["1000 aurc"] == pytest.approx(1000 * np.mean(risks), abs=1e-6)
    assert row["accuracy"] == pytest.approx(1 - wrong.mean())
    assert row["nll"] == pytest.approx(-np.log(probabilities[range(len(labels)), labels]).mean(), abs=1e-5)
    assert row["compute"] == pytest.approx(3)
    far = [predictions[f"log_probs/{ENSEMBLE}/{name}"].double().exp().mean(0) for name in ("noise", "photos")]
    pairs = [(confidence[:, None] > one.max(1).values.numpy()).mean() for one in far]
    assert row["far by msp"] == pytest.approx(np.mean(pairs), abs=1e-6)


def test_near_accepted_is_of_the_default_score_alone(measured):
    from real_tasks import HYDRA

    plan, rows = measured
    report = Report.read(Path(plan.path("hydra-report.json")))
    row = next(row for row in report.rows if row.name == HYDRA)

    assert rows[HYDRA]["near accepted"] == row.ood["3"]["accepted95@energy+density"].value
    assert rows[HYDRA]["far"] == pytest.approx(
        np.mean([row.ood[name]["auroc@energy+density"].value for name in ("noise", "photos")])
    )


def test_equally_confident_answers_share_their_errors():
    from real_classical import aurc

    confidence, hits = torch.tensor([0.8, 0.9, 0.6, 0.8]), torch.tensor([False, True, False, True])

    assert aurc(confidence, hits) == pytest.approx((0 + 0.5 / 2 + 1 / 3 + 2 / 4) / 4)


def test_nearest_neighbour_by_hand():
    from real_classical import measure, nearest

    answer = nearest(np.array([[0.0, 0.0], [1.0, 0.0]], np.float32), np.array([0, 1]))
    known = answer(np.array([[0.1, 0.0], [0.8, 0.0], [0.4, 0.0]], np.float32))
    outside = answer(np.array([[0.5, 2.0], [0.0, 0.15]], np.float32))
    row = measure(known, torch.tensor([0, 1, 1]), [outside], [outside])

    assert row["accuracy"] == pytest.approx(2 / 3)
    # distances: 0.1, 0.2 and 0.4 for known inputs, 2.06 and 0.15 for the others
    assert row["near"] == pytest.approx((3 + 1) / 6)
    assert row["near accepted"] == pytest.approx(1 / 2)
    assert row["nll"] == pytest.approx(
        np.mean([np.log1p(np.exp(-0.8)), np.log1p(np.exp(-0.6)), np.log1p(np.exp(0.2))])
    )


def test_words_of_a_class_answer_it(tmp_path):
    from promise_plan import Data
    from real_classical import TFIDF, measure_all

    def written(name, rows):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in rows))
        return str(path)

    known = [
        ("pay the bill now", "bank"),
        ("my bank bill", "bank"),
        ("boil the rice now", "cook"),
        ("my rice dish", "cook"),
    ]
    test = written(
        "test", [("the bill", "bank"), ("the dish", "cook"), ("rice bill rice", "cook"), ("a bank", "cook")]
    )
    near = {"near": written("near", [("weather", "sky"), ("rain", "sky")])}
    data = Data(
        train=written("train", known), val=written("val", known), test=test, near=near, far=near, near_val=""
    )
    row = measure_all(data, texts=True)[TFIDF]

    assert row["accuracy"] == 3 / 4
    assert row["near"] == row["far by msp"] == 1.0
