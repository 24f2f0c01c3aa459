"""Sentences that follow the numbers of a report."""

from __future__ import annotations

import pytest

from hydractl.cli.commands.demo.findings import findings
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.report import Report, Row, Value


def report(accuracies, aurocs, *, low=None, high=None, macs=None):
    names = ("one", "ensemble", "hydra")
    return Report(
        rows=tuple(
            Row(
                name=name,
                models=(Fingerprint(reference="m.st", sha256=f"sha256:{'0' * 64}"),),
                members=1,
                values={"accuracy": Value(value=a, low=low, high=high, count=50)}
                | ({"macs": Value(value=macs[name])} if macs else {}),
                means={"all": {"auroc": r}},
            )
            for name, a, r in zip(names, accuracies, aurocs, strict=True)
        ),
        data={},
        definitions={"accuracy": "x", "macs": "x"},
        options={},
        versions={},
    )


def said(*args, **options):
    return findings(report(*args, **options), against=("one", "ensemble"), hydras=("hydra",))


@pytest.mark.parametrize(("hydra", "word"), [(0.91, "above"), (0.89, "below"), (0.9001, "level with")])
def test_a_hydra_is_set_against_both(hydra, word):
    sentence = said((0.9, 0.9, hydra), (0.5, 0.6, 0.7))[1]

    assert sentence.count(f"accuracy {hydra:.3f} is {word} 0.900") == 2
    assert "against one" in sentence
    assert "mean OOD AUROC 0.700 is above 0.600" in sentence


def test_a_hydra_says_what_it_costs():
    counted = said((0.9, 0.9, 0.9), (0.5, 0.5, 0.5), macs={"one": 30.0, "ensemble": 90.0, "hydra": 50.0})[1]

    assert counted.startswith("hydra, at 1.67 times the MACs of one: against one, accuracy")
    assert "MACs" not in said((0.9, 0.9, 0.9), (0.5, 0.5, 0.5))[1]


def test_the_best_rows_are_named_also_when_they_tie():
    first = said((0.9, 0.95, 0.95), (0.8, 0.7, 0.6))[0]

    assert first == "Best accuracy: ensemble and hydra (0.950); best mean OOD AUROC: one (0.800)."


def test_how_sure_an_accuracy_is():
    assert "n = 50 samples" in said((0.9, 0.9, 0.9), (0.5, 0.5, 0.5), low=0.87, high=0.93)[-1]
    assert "± 0.030 at" in said((0.9, 0.9, 0.9), (0.5, 0.5, 0.5), low=0.87, high=0.93)[-1]
    assert said((0.9, 0.9, 0.9), (0.5, 0.5, 0.5))[-1] == "The test set has n = 50 samples."
