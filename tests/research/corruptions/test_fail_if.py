"""Conditions of `--fail-if` under corruption."""

from __future__ import annotations

import pytest

from hydractl.errors import UsageError
from hydractl.evaluation.options import Condition
from hydractl.manifest.report import Row
from hydractl.metrics.registry import METRICS
from hydractl.research.corruptions.schema import Shift
from hydractl.research.evaluation import ResearchEval

SCOPES = ("birds", "noise", "near", "far", "all")
ROW = Row(
    name="m",
    models=(),
    members=3,
    values={},
    shift=Shift(
        values={"fog": {"3": {"ece": 0.2}, "5": {"ece": 0.3}}, "jpeg": {"3": {"ece": 0.1}}},
        means={"3": {"ece": 0.15}, "5": {"ece": 0.3}, "all": {"ece": 0.2}},
    ),
)
UNDER = ("shift", "shift:3", "shift:5", "fog", "fog:3", "fog:5", "jpeg", "jpeg:3")


@pytest.mark.parametrize(
    ("text", "under", "hint"),
    [
        ("ece[frog]>0.1", UNDER, "did you mean `fog`?"),
        ("ece[shfit]>0.1", UNDER, "did you mean `shift`?"),
        ("ece[contrats]>0.1", UNDER, "did you mean `contrast`?"),
        ("ece[sleet]>0.1", UNDER, "there are shift, fog, jpeg, and each with `:1` to `:5`"),
        ("ece[snow:2]>0.1", UNDER, "add `--corrupt snow:2`"),
        ("ece[shift:1]>0.1", UNDER, "add `--corrupt all:1`"),
        ("ece[fog:6]>0.1", UNDER, "did you mean `fog:5`?"),
        ("ece[fog]>0.1", (), "add `--corrupt fog`"),
        ("ece[frog]>0.1", (), "did you mean `fog`?"),
        ("ece[sleet]>0.1", (), "add `--corrupt NAME`"),
    ],
)
def test_what_is_not_measured_under_corruption_is_refused(text, under, hint):
    condition = Condition.parse(text)
    with pytest.raises(UsageError, match="ece is not measured under `") as caught:
        condition.check_measured(
            tuple(METRICS), SCOPES, under=under, hint=ResearchEval().scope_hint(condition.scope, under)
        )

    assert caught.value.hint == hint


def test_an_ood_set_may_be_called_as_a_corruption_is():
    for text in ("ece[fog]>0.1", "auroc[fog]>0.1"):
        Condition.parse(text).check_measured(tuple(METRICS), (*SCOPES, "fog"), under=UNDER)


@pytest.mark.parametrize(
    ("text", "failed", "found"),
    [
        ("ece[shift]>0.19", True, 0.2),
        ("ece[shift:3]>0.16", False, 0.15),
        ("ece[fog]>0.24", True, 0.25),
        ("ece[fog:5]>=0.3", True, 0.3),
        ("ece[jpeg]>0.1", False, 0.1),
    ],
)
def test_a_condition_under_corruption(text, failed, found):
    condition = Condition.parse(text)
    condition.check_measured(tuple(METRICS), SCOPES, under=UNDER)

    check = condition.check(ROW)

    assert (check.condition, check.failed) == (text, failed)
    assert check.found == pytest.approx(found)
