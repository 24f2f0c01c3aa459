"""`NAME=DATA` and `NAME=MODEL[,MODEL...]`."""

from __future__ import annotations

import pytest

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.evaluation.options import NamedData, NamedModels, model_name
from hydractl.families.open_model import open_model
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import METRICS, TEMPERATURE, choose_metrics, needing
from hydractl.settings import configured, options_of
from hydractl.stages.evaluate.config import EvalConfig
from support.builders import base


@pytest.mark.parametrize(
    ("text", "name", "ref"),
    [
        ("birds=data/birds", "birds", "data/birds"),
        ("data/birds", "birds", "data/birds"),
        ("digits::classes=7-8", "digits", "digits::classes=7-8"),
        ("eights=digits::classes=8", "eights", "digits::classes=8"),
        ("noise", "noise", "noise"),
        ("Tiny ImageNet=hf:org/tiny", "Tiny ImageNet", "hf:org/tiny"),
        ("hf:org/tiny@main::split=test", "tiny", "hf:org/tiny@main::split=test"),
        ("lists/a.b.jsonl::image=x", "a.b", "lists/a.b.jsonl::image=x"),
        ("dir/a=b", "a=b", None),
    ],
)
def test_what_names_data(text, name, ref):
    if ref is None:
        with pytest.raises(
            UsageError,
            match=r"` is not a valid name: it begins or ends with a space, or contains one of `= , : / \[ \]`",
        ):
            NamedData.parse(text)
        return
    found = NamedData.parse(text)

    assert (found.name, str(found.ref)) == (name, ref)


def test_the_sets_of_a_preset_have_their_names():
    assert [one.name for one in NamedData.parse_all("preset:sst2/near::limit=9")] == ["yelp", "amazon"]
    assert [str(one.ref) for one in NamedData.parse_all("preset:sst2/near::limit=9")] == [
        "hf:fancyzhx/yelp_polarity::label=label,limit=9,split=test,text=text",
        "hf:fancyzhx/amazon_polarity::label=label,limit=9,split=test,text=content",
    ]
    assert [one.name for one in NamedData.parse_all("preset:yelp")] == ["yelp"]
    assert [one.name for one in NamedData.parse_all("places=preset:sst2/yelp")] == ["places"]
    assert NamedData.parse("preset:sst2/yelp").name == "yelp"
    with pytest.raises(UsageError, match="one name stands for 2 data sets"):
        NamedData.parse_all("reviews=preset:sst2/near")
    with pytest.raises(UsageError, match="stands for 2 data sets, but only one is expected"):
        NamedData.parse("preset:sst2/near")


def test_a_command_line_s_presets_are_spread():
    typed = dict.fromkeys(o.name for o in options_of(EvalConfig))
    far = ["noise", "preset:sst2/far"]
    made = configured(EvalConfig, typed | {"model": "a.st", "data": "preset:sst2", "far": far})

    assert made.data == DataRef.parse("preset:sst2::split=test")
    assert [one.name for one in made.far] == ["noise", "20-newsgroups", "trec", "mnli", "rte", "wmt16"]


@pytest.mark.parametrize(
    ("text", "name", "models"),
    [
        ("a.st", "a", ("a.st",)),
        ("runs/a.b.safetensors", "a.b", ("runs/a.b.safetensors",)),
        ("Deep ensemble=a.st,b.st", "Deep ensemble", ("a.st", "b.st")),
        ("org/name", "name", ("org/name",)),
        ("x=-", "x", ("-",)),
        ("-", "stdin", ("-",)),
        ("arch:vit::a=1,b=2,c.st", "vit", ("arch:vit::a=1,b=2", "c.st")),
        ("arch:vit::a=[[1,2],[3,4]],b=2,c.st", "vit", ("arch:vit::a=[[1,2],[3,4]],b=2", "c.st")),
        ("arch:vit::a=[1,2],c[.st,d.st", "vit", ("arch:vit::a=[1,2]", "c[.st", "d.st")),
        ("two=arch:vit::a=1,b=2,arch:deit::a=1", "two", ("arch:vit::a=1,b=2", "arch:deit::a=1")),
    ],
)
def test_what_names_models(text, name, models):
    found = NamedModels.parse(text)

    assert (found.name, found.models) == (name, models)


@pytest.mark.parametrize("text", ["=a.st", " x=a.st", "x =a.st", "a[b]=a.st", "x=", "x=a.st,,b.st", ""])
def test_malformed_rows_are_refused(text):
    with pytest.raises(UsageError, match=r"is not a valid name|a name is empty|empty model reference"):
        NamedModels.parse(text)


@pytest.mark.parametrize("name", ["id", "near", "far", "all", "temperature", "fit", "val", "Near", "FAR"])
def test_names_that_mean_something_are_refused(name):
    with pytest.raises(UsageError, match=f"cannot be called `{name}`"):
        NamedData.parse(f"{name}=noise")
    with pytest.raises(UsageError, match=f"cannot be called `{name}`"):
        NamedData.parse(f"some/{name}/")


def test_a_folder_at_the_end_of_a_path_names_the_model():
    assert model_name("models/base/") == "base"


@pytest.mark.parametrize("ood", [True, False])
@pytest.mark.parametrize("latency", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_everything_measurable_is_measured(ood, latency, scaled):
    found = choose_metrics(None, ood=ood, latency=latency, scaled=scaled)

    missing = {
        *(() if ood else needing(METRICS, MetricNeeds.OOD)),
        *(() if latency else needing(METRICS, MetricNeeds.TIME)),
        *(() if scaled else (TEMPERATURE,)),
    }
    assert set(METRICS) - set(found) == missing


@pytest.mark.parametrize("wanted", [("ece",), ("temperature",), ("temperature", "ece")])
def test_a_temperature_is_always_told(wanted):
    found = choose_metrics(wanted, ood=False, latency=False, scaled=True)

    assert set(found) == {*wanted, TEMPERATURE}


def test_chosen_metrics_come_in_the_order_of_reports():
    assert choose_metrics(("macs", "ece", "accuracy"), ood=False, latency=False) == (
        "accuracy",
        "ece",
        "macs",
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ec", "unknown metric `ec`"),
        ("auroc", "without an OOD data set"),
        ("latency_ms", "with `--no-latency`"),
    ],
)
def test_what_cannot_be_measured_is_refused(name, message):
    with pytest.raises(UsageError, match=message):
        choose_metrics((name,), ood=False, latency=False)


@pytest.mark.parametrize("reference", [".", "./", "inner/..", "$PWD/inner/.."])
def test_a_folder_without_a_name_goes_by_where_it_leads(tmp_path, monkeypatch, reference):
    (folder := tmp_path / "base").mkdir()
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder)
    reference = reference.replace("$PWD", str(folder))

    assert NamedModels.parse(reference) == NamedModels(name="base", models=(reference,), typed=reference)
    base().save(folder / "model.safetensors")
    model_file = open_model(reference)
    assert (model_file.name, model_file.as_input().name) == ("base", "base")
