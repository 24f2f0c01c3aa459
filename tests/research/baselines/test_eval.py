"""`--compare mc:...` and `--compare laplace:...`: syntax, cost and records in reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UnsupportedModelError, UsageError
from hydractl.evaluation.options import NamedData, NamedModels
from hydractl.manifest.report import Report
from hydractl.provenance.command_config import config_digest
from hydractl.research.baselines.options import LaplaceOptions, McDropoutOptions, SwagOptions, parse_baseline
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog

ID = DataRef.parse("digits::split=test,classes=0-6,limit=120")
TRAIN = "digits::split=train,classes=0-6,limit=90"
MC, LAST = "mc:{}::passes=3,rate=0.2,seed=5", "laplace:{}::prior=4,data=" + TRAIN


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return base().save(tmp_path_factory.mktemp("models") / "base.st")


def config(model, *compare, **changes):
    rows = tuple(NamedModels.parse(text.replace("{}", str(model))) for text in compare)
    given = {
        "model": str(model),
        "data": ID,
        "compare": rows,
        "latency": False,
        "bootstrap": 0,
        "device": "cpu",
    }
    return EvalConfig(**(given | changes))


@pytest.fixture(scope="module")
def found(model, tmp_path_factory):
    """Measure a base with baselines as rows, and return report and predictions."""
    folder = tmp_path_factory.mktemp("report")
    document = run_eval(
        config(
            model, f"MC={MC}", LAST, f"both={MC},{LAST}", "plain={}",
            near=(NamedData.parse("sevens=digits::classes=7"),), out=folder / "report.json",
            save_predictions=folder / "said.safetensors",
        )
    ).document  # fmt: skip
    return document, SavedPredictions.load(folder / "said.safetensors").log_probs


def test_a_rival_is_a_row_with_its_cost(found):
    document, said = found
    own, mc, last, both, _ = document.rows

    assert [row.name for row in document.rows] == ["base", "MC", "base laplace", "both", "plain"]
    assert [row.members for row in document.rows] == [1, 3, 1, 4, 1]
    assert {row.values["parameters"].value for row in (own, mc, last)} == {own.values["parameters"].value}
    for name in ("macs", "macs_textbook"):
        assert mc.values[name].value == 3 * own.values[name].value
    assert own.values["macs"].value < last.values["macs"].value < 1.1 * own.values["macs"].value
    assert both.values["macs"].value == mc.values["macs"].value + last.values["macs"].value
    assert mc.values["mutual_information"].value > 0
    for name in ("id", "sevens"):
        assert (said["both"][name][:3] == said["MC"][name]).all()
        assert (said["both"][name][3:] == said["base laplace"][name]).all()
        assert (said["plain"][name] == said["base"][name]).all()
        assert (said["base laplace"][name].amax(-1) <= said["base"][name].amax(-1) + 1e-6).all()


def test_a_report_says_what_was_made_of_a_model(found):
    document, _ = found
    own, mc, last, both, _ = document.rows

    assert own.derived == ()
    assert mc.derived[0].model_dump() == {"kind": "mc", "options": {"passes": 3, "rate": 0.2, "seed": 5}}
    assert last.derived[0].options == {"hessian": "kron", "predictive": "probit", "prior": 4.0, "seed": 0}
    assert (last.derived[0].data.reference, last.derived[0].data.count) == (str(DataRef.parse(TRAIN)), 90)
    assert both.derived == (*mc.derived, *last.derived)
    assert document.row_of(own.models[0].sha256) == own
    others = document.model_copy(update={"rows": document.rows[1:]})
    assert others.row_of(own.models[0].sha256).name == "plain"
    assert Report.from_json(document.to_json(), place="it") == document


@pytest.mark.more
def test_draws_around_checkpoints_are_a_row_of_all_of_them(model, tmp_path):
    for seed in (1, 2):
        base().tuned(seed).save(tmp_path / f"{seed}.st")
    around = f"SWAG=swag:{{}},{tmp_path}/1.st,{tmp_path}/2.st::samples=3,rank=2,seed=4"
    document = run_eval(
        config(model, around, f"both=swag:{{}},{tmp_path}/1.st::samples=2,{MC},{{}}")
    ).document
    own, drawn, both = document.rows

    assert (drawn.members, both.members) == (3, 6)
    for name in ("parameters", "macs", "macs_textbook"):
        assert drawn.values[name].value == 3 * own.values[name].value
    told = {"samples": 3, "rank": 2, "scale": 0.5, "seed": 4, "checkpoints": 3}
    assert [one.options for one in drawn.derived] == [told] * 3
    assert [one.reference for one in drawn.models] == ["base.st", "1.st", "2.st"]
    assert [one and one.kind for one in both.derived] == ["swag", "swag", "mc", None]
    assert drawn.values["mutual_information"].value > 0


def test_equal_rivals_say_the_same_whatever_the_batches(model, found):
    again = run_eval(config(model, f"MC={MC}", batch_size=7)).document.rows[1]

    for name, value in again.values.items():
        assert value.value == pytest.approx(found[0].rows[1].values[name].value, abs=1e-5)


def test_being_tested_on_what_a_row_is_made_with_is_told(model):
    document = run_eval(config(model, f"laplace:{model}::data={ID}"), ear := ProgressLog()).document

    said = f"120 of 120 samples of `--data` are also in `{ID}`, which a row was fitted on"
    assert document.warnings == (said,)
    assert said in ear.warnings


def test_held_out_data_choose_a_prior(model, found):
    """The report records data and prior; the same prior as an option gives the same row."""
    held = "digits::split=val,classes=0-6,limit=60"
    chosen = run_eval(
        config(model, f"laplace:{{}}::val={held},data={TRAIN}"), ear := ProgressLog()
    ).document.rows[1]
    (made,) = chosen.derived

    assert (made.val.reference, made.val.count, made.data.count) == (str(DataRef.parse(held)), 60, 90)
    assert f"prior precision {made.options['prior']:.4g}, with the lowest NLL on 60 samples" in "".join(
        ear.steps
    )
    given = f"laplace:{{}}::prior={made.options['prior']!r},data={TRAIN}"
    assert run_eval(config(model, given)).document.rows[1].values == chosen.values
    assert "val" not in found[0].rows[2].derived[0].model_dump()


def test_a_prior_that_is_chosen_where_the_layer_was_fitted_is_told(model):
    text = f"laplace:{{}}::val={TRAIN},data={TRAIN}"
    ear = ProgressLog()
    document = run_eval(config(model, text), ear).document

    own = DataRef.parse(TRAIN)
    assert f"`val={own}` and `data={own}` have the same samples" in document.warnings[0]


@pytest.mark.parametrize(
    ("val", "said"),
    [
        ("noise::size=8,limit=4", "`laplace: val=noise::limit=4,size=8`"),
        ("digits::classes=7+8,split=val", "`laplace: val=digits::classes=7+8,split=val`"),
    ],
)
def test_a_prior_is_chosen_by_labels_of_the_models_classes(model, val, said):
    with pytest.raises(DataError) as caught:
        run_eval(config(model, f"laplace:{{}}::val={val},data={TRAIN}"))

    assert said in f"{caught.value} `{caught.value.hint}`"


def test_what_is_asked_hangs_on_the_rival(model):
    texts = (
        "mc:{}::rate=0.2",
        "mc:{}::rate=0.3",
        "mc:{}::rate=0.2,passes=3",
        "{}",
        LAST,
        "laplace:{}::data=digits",
        "laplace:{}::val=digits,data=digits",
        "swag:{},{}",
        "swag:{},{}::seed=1",
        "swag:{},{},{}",
        "{},{}",
    )
    asked = [config_digest(config(model, f"x={text}")) for text in texts]

    assert len({*asked}) == len(texts)
    assert config_digest(config(model, "y={}")) != config_digest(config(model, "x={}"))
    assert [str(one.ref) for one in config(model, LAST).further_inputs] == [str(DataRef.parse(TRAIN))]
    both = config(model, "laplace:{}::val=noise,data=digits").further_inputs
    assert [str(one.ref) for one in both] == ["digits", "noise"]


@pytest.mark.parametrize(
    ("text", "model", "rival"),
    [
        ("mc:a.st", "a.st", McDropoutOptions()),
        ("swag:a.st,b/c.st", "a.st,b/c.st", SwagOptions()),
        (
            "swag:a.st,b.st,c.st::rank=2,scale=1",
            "a.st,b.st,c.st",
            SwagOptions(rank=2, scale=1.0, checkpoints=3),
        ),
        ("mc:org/name@main::rate=0.1,passes=4", "org/name@main", McDropoutOptions(rate=0.1, passes=4)),
        ("laplace:a.st::data=val/", "a.st", LaplaceOptions(data=DataRef.parse("val/"))),
        (
            "laplace:a.st::hessian=full,predictive=samples,data=digits::split=train,classes=0-6",
            "a.st",
            LaplaceOptions(
                data=DataRef.parse("digits::split=train,classes=0-6"), hessian="full", predictive="samples"
            ),
        ),
        *(
            (
                f"laplace:a.st::{both}",
                "a.st",
                LaplaceOptions(
                    data=DataRef.parse("digits::split=train,limit=9"),
                    val=DataRef.parse("b/::classes=0,limit=3"),
                    hessian="full",
                ),
            )
            for both in (
                "data=digits::split=train,limit=9,hessian=full,val=b/::classes=0,limit=3",
                "val=b/::classes=0,limit=3,hessian=full,data=digits::split=train,limit=9",
                "val=b/::classes=0,limit=3,data=digits::split=train,limit=9,hessian=full",
                "hessian=full,val=b/::classes=0,limit=3,data=digits::split=train,limit=9",
                "hessian=full,data=digits::split=train,limit=9,val=b/::classes=0,limit=3",
            )
        ),
    ],
)
def test_what_rivals_are_written_like(text, model, rival):
    assert parse_baseline(text) == (model, rival)


@pytest.mark.parametrize(
    ("text", "data", "seed"),
    [
        ("data=noise,seed=3", "noise", 3),
        ("data=noise::limit=5,seed=3", "noise::limit=5,seed=3", 0),
        ("seed=2,data=noise::limit=5,seed=3", "noise::limit=5,seed=3", 2),
        ("data=train/::limit=5,seed=3", "train/::limit=5", 3),
        (
            "data=preset:sst2::split=train,seed=3",
            "hf:nyu-mll/glue::config=sst2,label=label,split=train[3000:],text=sentence",
            3,
        ),
        ("data=a,b/,seed=3", "a,b/", 3),
    ],
)
def test_a_key_that_data_read_is_theirs(text, data, seed):
    _, rival = parse_baseline(f"laplace:a.st::{text}")
    assert (str(rival.data), rival.seed) == (data, seed)


def test_renamed_classes_of_data_part_no_models():
    row = NamedModels.parse('x=vilu:b.st::data=d/::map=a:b,"c, d":e,classes-by=position,epochs=3')
    assert row.models == ("b.st",)
    assert row.rivals[0].data.map == (("a", "b"), ("c, d", "e"))
    assert (row.rivals[0].data.classes_by, row.rivals[0].epochs) == ("position", 3)


def test_commas_part_models_but_not_options():
    row = NamedModels.parse(
        "all=mc:a.st::rate=0.1,passes=2,laplace:b.st::prior=1,data=digits::split=train,limit=5,c.st"
    )

    assert row.models == ("a.st", "b.st", "c.st")
    assert [rival and rival.KIND for rival in row.rivals] == ["mc", "laplace", None]
    assert str(row.rivals[1].data) == "digits::limit=5,split=train"
    assert (NamedModels.parse("mc:runs/a.st::rate=0.1").name, NamedModels.parse("a.st").is_derived) == (
        "a mc",
        False,
    )


def test_commas_part_checkpoints_until_there_are_options():
    row = NamedModels.parse("all=a.st,swag:b.st,c.st::samples=3,rank=2,d.st,swag:e.st,f.st,mc:g.st")

    assert row.models == ("a.st", "b.st", "c.st", "d.st", "e.st", "f.st", "g.st")
    assert [rival and rival.KIND for rival in row.rivals] == [
        None,
        "swag",
        "swag",
        None,
        "swag",
        "swag",
        "mc",
    ]
    assert NamedModels.parse("swag:a.st,b.st").name == "a swag"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("swag:a.st", "needs more than one checkpoint"),
        ("swag:a.st,,b.st", "the model is missing"),
        ("swag:a.st,arch:vit", "random weights"),
        ("swag:a.st,b.st::rank=1", "must be at least 2"),
        ("swag:a.st,b.st::scale=0", "must be above 0"),
        ("swag:a.st,b.st::checkpoints=3", "has no option `checkpoints`"),
        ("mc:", "the model is missing"),
        ("mc:arch:vit_tiny_patch16_224::rate=0.1", "random weights"),
        ("mc:a.st::rate=1", "`rate 1`: must be"),
        ("mc:a.st::rate=0", "must be above 0"),
        ("mc:a.st::seed=18446744073709551616", "between 0 and 9223372036854775807"),
        ("mc:a.st::rate=-1", "must be above 0"),
        ("mc:a.st::rate=much", "not a number"),
        ("mc:a.st::passes=0", "between 1 and 256"),
        ("mc:a.st::passes=2.5", "`2.5` is not a whole number"),
        ("mc:a.st::pases=2", "has no option `pases`"),
        ("mc:a.st::rate", "expected option=value"),
        ("mc:a.st::rate=", "expected option=value"),
        ("mc:a.st::rate=0.1,rate=0.2", "appears twice"),
        ("laplace:a.st", "needs `data=`"),
        ("laplace:a.st::data=", "expected option=value"),
        ("laplace:a.st::hessian=diag,data=val/", "`hessian diag`: unknown"),
        ("laplace:a.st::samples=3,data=val/", "no effect without `predictive=samples`"),
        ("laplace:a.st::prior=0,data=val/", "must be above 0"),
        ("laplace:a.st::prior=1,val=val/,data=train/", "the prior precision is either given or selected"),
        ("laplace:a.st::val=,data=train/", "expected option=value"),
        ("laplace:a.st::val=a/,val=b/,data=train/", "`val` appears twice"),
        ("laplace:a.st::val=val/", "needs `data=`"),
        ("vilu:a.st::data=train/,val=val/", "has no option `val`"),
        ("laplace:a.st::data=digits::colour=red", "unknown key `colour`"),
    ],
)
def test_malformed_rivals_are_refused_with_what_to_type(text, said):
    with pytest.raises(UsageError, match=said) as caught:
        NamedModels.parse(f"x={text}")

    assert f"`{text}`" in str(caught.value)


def test_the_first_row_answers_as_it_is():
    with pytest.raises(UsageError, match="MODEL must be a model, not a baseline") as caught:
        config("mc:a.st")

    assert "--compare" in caught.value.hint


def test_scores_of_features_are_not_of_rivals():
    with pytest.raises(
        UsageError, match="`--ood-score knn`: feature-based scores are not available for the baseline `MC`"
    ):
        config("a.st", "MC=mc:b.st", ood_score=("msp", "knn"), train=ID, near=(NamedData.parse("noise"),))


@pytest.mark.parametrize("late", ["mc:{}::passes=2", "vilu:{}::epochs=1,data=" + TRAIN])
def test_a_rival_that_cannot_be_made_is_refused_before_a_row_is_measured(model, late):
    """The same holds for a hydra, without reading its weights."""
    run_fuse(FuseConfig(models=(str(model), str(model)), out=model.parent / "h.st", verify=False, force=True))

    for path in (model, model.parent / "h.st"):
        ear = ProgressLog()
        with pytest.raises(UnsupportedModelError, match=r"(base|h)\.st: "):
            run_eval(config(model, MC, f"late={late.replace('{}', str(path))}"), ear)
        assert not [step for step in ear.steps if step.startswith("Evaluating")]


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize(
    ("late", "said"),
    [
        (f"laplace:h.st::data={TRAIN}", r"h\.st: .* several models"),
        (f"both=base.st,laplace:h.st::prior=1,data={TRAIN}", r"h\.st: .* several models"),
        ("swag:base.st,less.st::samples=2", r"less\.st: differs from .*base\.st in the shape"),
        ("swag:less.st,other.st::samples=2", r"other\.st: keeps other heads than .*less\.st in layer 0"),
        ("swag:base.st,relu.st::samples=2", r"relu\.st: differs from .*base\.st: `act_layer=relu`"),
        ("both=swag:base.st,base.st::samples=2,swag:base.st,less.st", r"less\.st: differs"),
    ],
)
def test_what_files_cannot_be_made_into_is_said_before_a_row_is_measured(
    model, tmp_path, monkeypatch, late, said
):
    run_fuse(FuseConfig(models=(str(model), str(model)), out=tmp_path / "h.st", verify=False))
    whole = base()
    whole.save(tmp_path / "base.st")
    architecture = whole.header.architecture
    changed = architecture.model_copy(update={"config": architecture.config | {"act_layer": "relu"}})
    replace(whole, header=whole.header.model_copy(update={"architecture": changed})).save(
        tmp_path / "relu.st"
    )
    for name, heads in (("less", (0, 2)), ("other", (1, 2))):
        base().pruned(heads, (0,), (1,)).save(tmp_path / f"{name}.st")
    monkeypatch.chdir(tmp_path)
    ear = ProgressLog()
    with pytest.raises(UnsupportedModelError, match=said):
        run_eval(config(model, MC, late), ear)
    assert not [step for step in ear.steps if step.startswith("Evaluating")]
