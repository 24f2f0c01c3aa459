"""Origin and license of a model in its card."""

from __future__ import annotations

import pytest
import yaml

from hydractl.hub.card import Facts, card_of
from hydractl.manifest.header import InputFile, Kind, Step
from support.builders import base, sha
from support.reports import seeded

TUNED = Step(command="finetune", options={})
PRUNED = Step(
    command="prune", options={}, inputs=(InputFile(name="tuned.st", sha256=sha("tuned"), made_by=TUNED),)
)
RELATIONS = {
    "a base that was read": (Kind.BASE, Step(command="import", options={}), None),
    "a base that was trained": (Kind.BASE, TUNED, "finetune"),
    "a member of one that was trained": (Kind.MEMBER, PRUNED, "finetune"),
    "a member": (Kind.MEMBER, Step(command="prune", options={}), None),
    "a hydra": (Kind.HYDRA, PRUNED, "merge"),
}


def told(kind, step, **more):
    header = base().header.model_copy(update={"kind": kind, "made_by": step})
    card = card_of(Facts(name="org/name", revision="main", header=header, specs={}, **more)).decode()
    return yaml.safe_load(card.split("---\n")[1]), card


@pytest.mark.parametrize(("kind", "step", "relation"), RELATIONS.values(), ids=RELATIONS)
def test_how_it_is_related_to_its_base(kind, step, relation):
    found, card = told(kind, step, base_model="timm/vit")

    assert found["base_model"] == "timm/vit"
    assert found.get("base_model_relation") == relation
    assert "| base model | [timm/vit](https://huggingface.co/timm/vit) |" in card
    assert "base_model_relation" not in told(kind, step)[0]


def test_a_licence_is_said_or_missed():
    found, card = told(Kind.MEMBER, PRUNED, license="cc-by-4.0")
    nobody, without = told(Kind.MEMBER, PRUNED)

    assert (found["license"], "license" in nobody) == ("cc-by-4.0", False)
    assert "`cc-by-4.0`, the licence of the base model." in card
    assert (
        "Not stated. The licence of the base model also applies to models that are made from it." not in card
    )
    assert (
        "Not stated. The licence of the base model also applies to models that are made from it." in without
    )


@pytest.mark.parametrize(
    ("stored", "fair"), [({0: (1.5,)}, False), ({0: (1.5,), 1: (2.0,)}, True), ({}, True)]
)
def test_results_of_rows_with_and_without_a_temperature_are_no_fair_comparison(stored, fair):
    report = seeded(0, names=("hydra", "base"))
    rows = tuple(
        row.model_copy(update={"stored_temperatures": stored.get(i, ())}) for i, row in enumerate(report.rows)
    )
    _, card = told(Kind.MEMBER, PRUNED, report=report.model_copy(update={"rows": rows}), row=rows[0])

    assert (
        (
            "Some of these models store a temperature and others do not, so their NLL, Brier score and "
            "ECE are not comparable."
        )
        not in card
    ) == fair


def test_a_model_whose_order_of_passages_was_measured_ranks_texts():
    report = seeded(0, names=("hydra", "base"))
    row = report.rows[0]
    ranked = row.model_copy(update={"values": row.values | {"mrr": row.values["accuracy"]}})

    tags = [told(Kind.HYDRA, PRUNED, report=report, row=each)[0]["pipeline_tag"] for each in (row, ranked)]

    assert tags == ["image-classification", "text-ranking"]
