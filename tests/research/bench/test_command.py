"""`hydractl bench`: every rival becomes a row of one table, and the plan resumes without repeated work."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydractl.cli.app import command_tree
from hydractl.cli.pipeline import parsed
from hydractl.families.open_model import open_model
from hydractl.manifest.report import Report
from hydractl.prediction.class_names import Classes, with_classes
from hydractl.research.bench.config import CostModel, WorkEstimate
from hydractl.research.bench.rows import PLANS, SharedSettings
from hydractl.research.methods.options import METHODS
from support.builders import Sample
from support.pairs import pair, save_clip
from support.reviews import arch, reviews, tokenization

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
DIGITS = "digits::classes=0-6"
DATA = (
    "--train",
    f"{DIGITS},limit=14",
    "--val",
    f"{DIGITS},split=val,limit=7",
    "--test",
    f"{DIGITS},split=test,limit=14",
)
SMALL = (*DATA, "--far", "noise::limit=8,size=8", "--members", "2", "--steps", "1", "-o", "bench")
TOWER = {
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
TERMS = SharedSettings(
    out=Path("left"), model="m.st", blocks=2, heads=8, data="d", val="v", test="t", members=2, training={}, start=None, from_start={},
    pairs=None, naming={},
)  # fmt: skip
STARTED = (*SMALL, "--start", ARCH, "--start-epochs", "1", "--start-lr", "1e-3")


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """Return a folder after a run with all rivals."""
    from hydractl.cli.app import main

    folder = tmp_path_factory.mktemp("bench") / "work"
    shutil.copytree(made, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["bench", "base.st", *STARTED, "-q"]) == 0
    return folder


@pytest.fixture
def folder(whole, monkeypatch):
    monkeypatch.chdir(whole)
    return whole


def test_every_rival_is_a_row_with_its_cost(folder):
    report = Report.read(folder / "bench/report.json")

    assert report.rows[0].name == "base"
    assert {row.name for row in report.rows[1:]} >= {
        "Temperature scaling", "MC dropout", "Laplace", "Trained on", "Hydra of 2", "Pruned hydra of 2", "LoRA ensemble of 2",
        "Singular value ensemble of 2", "BatchEnsemble of 2", "MIMO of 2", "OBA", "Deep ensemble of 2",
    }  # fmt: skip
    assert all("macs" in row.values and row.difference for row in report.rows[1:])
    assert (folder / "bench/report.html").read_text().count("Deep ensemble of 2")


@pytest.mark.more
def test_the_same_command_makes_nothing_twice(folder, call):
    before = {
        path: path.stat().st_mtime_ns for path in (folder / "bench").iterdir() if path.suffix != ".toml"
    }

    seen = call("bench", "base.st", *STARTED)

    assert seen.code == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert seen.out.count("up to date") >= len(PLANS)


def test_the_plan_is_a_pipeline_of_these_very_commands(folder, call):
    seen = call("bench", "base.st", *STARTED, "--dry-run", "-q")
    again = call("run", "bench/bench.toml", "--dry-run", "-q")

    assert (seen.code, seen.out) == (0, again.out)
    stages = tomllib.loads((folder / "bench/bench.toml").read_text())["stage"]
    assert [stage["name"] for stage in stages[-2:]] == ["table", "page"]
    names = [stage["name"] for stage in stages]
    assert names.index("longer") < names.index("copies") < names.index("alone")  # cheapest first


def test_another_plan_is_not_written_over_one_that_is_there(folder, call):
    before = (folder / "bench/bench.toml").read_text()

    seen = call("bench", "base.st", *STARTED[:-2], "--rivals", "mc")

    assert seen.code == 6
    assert "is a different plan, made with other options or another release" in seen.err
    assert (folder / "bench/bench.toml").read_text() == before


def test_how_long_it_takes_is_said_first(folder, call):
    seen = call("bench", "base.st", *SMALL, "--rivals", "mc,longer", "--dry-run")

    assert seen.code == 0
    assert "per training step" in seen.err
    assert "longer.st" in seen.out


def test_your_own_hydra_is_the_first_row(folder, call):
    line = (
        "bench",
        "base.st",
        *SMALL[:-1],
        "other",
        "--hydra-model",
        "hydra.st",
        "--compare",
        "Apart=m-0.st,m-1.st",
        "--compare",
        "Drawn=swag:m-0.st,m-1.st::samples=3,mc:base.st::rate=0.2",
        "--rivals",
        "mc",
    )

    seen = call(*line, "--dry-run", "-q")

    table = next(text for text in seen.out.splitlines() if text.startswith("hydractl eval"))
    assert table.startswith("hydractl eval hydra.st ")
    mine = "--compare Apart=m-0.st,m-1.st --compare Drawn=swag:m-0.st,m-1.st::samples=3,mc:base.st::rate=0.2"
    assert f"{mine} --compare base=base.st --compare 'MC dropout=mc:base.st" in table
    assert not (folder / "other").exists()


@pytest.mark.parametrize("name", METHODS)
def test_each_method_of_training_has_a_rival(name):
    assert any(name in plan for plan in PLANS)


@pytest.mark.more
def test_a_packed_ensemble_is_made_if_it_is_named(folder, call):
    seen = call(
        "bench",
        "base.st",
        *STARTED[: len(SMALL) - 1],
        "packed",
        *STARTED[len(SMALL) :],
        "--rivals",
        "packed",
        "-q",
    )

    assert seen.code == 0, seen.err
    assert [row.name for row in Report.read(folder / "packed/report.json").rows] == [
        "base",
        "Packed ensemble of 2",
    ]


def test_time_is_of_trainings_and_of_answers():
    answers = {"test": 5, "train": 40, "val": 2, "pairs": 70}
    work, pace = (
        WorkEstimate(training=100, from_start=300, answers=answers, blocks=2, heads=8),
        CostModel(step=0.1, begin=2),
    )

    assert pace.of(work, PLANS["mc"], 3) == pytest.approx(10 * 0.5)
    assert pace.of(work, PLANS["laplace"], 3) == pytest.approx(0.5 + 4 + 0.2)
    assert pace.of(work, PLANS["temperature"], 3) == pytest.approx(0.5 + 0.5 + 0.2)
    assert pace.of(work, PLANS["vilu"], 3) == pytest.approx(0.5 + 4)
    assert pace.of(work, PLANS["bayesvlm"], 3) == pytest.approx(0.5 + 7)
    assert pace.of(work, PLANS["hydra"], 3) == pytest.approx(3 * (100 * 0.1 + 2) + 3 * 0.5)
    assert pace.of(work, PLANS["deep-ensemble"], 3) == pytest.approx(3 * (300 * 0.1 + 2) + 3 * 0.5)


TEXTS = (
    "--train",
    "train.jsonl",
    "--val",
    "val.jsonl",
    "--test",
    "test.jsonl",
    "--members",
    "2",
    "--steps",
    "1",
)
CANNOT = {
    "base": {("deep-ensemble",): "without `--start` there is nothing to train it from"},
    "tower": {
        ("mc",): "tower.st: has no dropout layers, so every pass of `mc:` would give the same result",
        ("vilu",): "needs a single model that compares images with texts, but this model is not one",
        ("bayesvlm",): "`bayesvlm:` needs a model that compares images with texts",
    },
    "one": {("pruned-hydra",): "2 different masks are required, but removing 1 of the 1 pool heads"},
    "twofold": {("laplace",): "needs a single linear last layer, but its logits have other inputs"},
    "bert": {("mimo",): "bert.st reads texts, but the method needs images"},
    "clip": {
        ("mc",): "has no dropout layer",
        ("laplace",): "it has no linear layer that computes the logits",
        ("temperature",): "clip.st stores other classes, or none",
        ("bayesvlm",): "without `--pairs` there is nothing to fit it on",
        ("longer", "hydra", "lora-ensemble", "mimo"): "clip.st: is a zero-shot model without classes to train on",
    },
}  # fmt: skip
"""For each model, the rivals that it does not support, with the reason."""


@pytest.fixture(scope="module")
def others(whole):
    """Return a folder with a model of each kind, and texts."""
    vit = ARCH.replace("num_heads=4", "num_heads=1")
    made = {
        "one": vit,
        "twofold": "arch:deit_tiny_distilled_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7",
        "tower": "arch:CLIPForImageClassification::num_labels=7,"
        + ",".join(f"vision.{key}={value}" for key, value in TOWER.items()),
    }
    for name, reference in made.items():
        model_file = open_model(reference)  # keeps the temporary file alive
        shutil.copy(model_file.checkpoint.paths[0], whole / f"{name}.st")
    pair("clip", whole).save(whole / "clip.st")
    bert = open_model(arch(whole))
    header = bert.header.model_copy(update={"preprocess": tokenization()})
    Sample(header, bert.checkpoint.tensors()).save(whole / "bert.st")
    for name, seed in (("train", 0), ("val", 1), ("test", 2)):
        reviews(whole / f"{name}.jsonl", 8, seed=seed)
    return whole


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("model", CANNOT)
def test_what_a_model_cannot_have_is_left_out_of_all_and_said_in_a_line(others, folder, call, model):
    """The remaining stages of the plan can all run."""
    data = TEXTS if model == "bert" else SMALL[:-2]

    seen = call("bench", f"{model}.st", *data, "-o", "left", "--rivals", "all", "--dry-run", "-q")

    assert seen.code == 0, seen.err
    told = [line for line in seen.err.splitlines() if line.startswith("warning: skipping")]
    for names, why in CANNOT[model].items():
        (line,) = [line for line in told if why in line]
        assert all(name in line.partition(":")[2].partition(":")[0] for name in names)
        for name in names:
            rows = PLANS[name].rows(TERMS)
            assert not any(row in seen.out for row in rows)
    assert not (folder / "left").exists()


def test_the_folder_of_a_pair_is_no_backbone_of_classifiers(folder, call):
    """`finetune` would train its image tower, but rivals must be derived from the measured model."""
    save_clip(folder / "pair")

    seen = call("bench", "pair", *DATA, "-o", "left", "--rivals", "longer", "-q")

    assert (seen.code, seen.out) == (2, "")
    assert "`--rivals longer`: pair: is a zero-shot model without classes to train on" in seen.err


@pytest.mark.parametrize(("model", "name"), [(m, names[0]) for m, own in CANNOT.items() for names in own])
def test_a_rival_that_is_named_and_cannot_be_made_is_refused_at_once(others, folder, call, model, name):
    data = TEXTS if model == "bert" else SMALL[:-2]
    why = next(why for names, why in CANNOT[model].items() if names[0] == name)

    seen = call("bench", f"{model}.st", *data, "-o", "left", "--rivals", f"{name}", "-q")

    assert (seen.code, seen.out) == (2, "")
    assert f"`--rivals {name}`: " in seen.err
    assert why in seen.err
    assert not (folder / "left").exists()


def test_a_model_of_images_and_texts_has_what_judges_its_answers(others, folder, call):
    seen = call("bench", "clip.st", *SMALL[:-2], "-o", "judged", "--rivals", "vilu", "-q")

    assert seen.code == 0, seen.err
    own, vilu = Report.read(folder / "judged/report.json").rows
    assert (own.name, vilu.name, vilu.derived[0].kind) == ("clip", "ViLU", "vilu")
    assert vilu.difference.values["accuracy"].value == 0


@pytest.fixture(scope="module")
def pairs(others):
    """Write eight images with captions into the folder of `others`."""
    rows = []
    for i in range(8):
        values = np.random.Generator(np.random.PCG64(i)).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(values).save(others / f"{i}.png")
        rows.append(json.dumps({"image": f"{i}.png", "caption": f"a {i}"}))
    (others / "pairs.jsonl").write_text("\n".join(rows))
    (others / "names.txt").write_text("\n".join("0123456"))
    return "pairs.jsonl::text=caption"


CLASSES = ("--classes", "names.txt", "--template", "the big {label} .")


@pytest.mark.more
def test_a_model_of_images_and_texts_is_asked_about_the_classes_that_are_named(pairs, folder, call):
    """The table equals that of `eval` with the same options."""
    line = ("clip.st", *SMALL[:-2], "-o", "asked", *CLASSES, "--rivals", "bayesvlm,vilu", "--pairs", pairs)

    seen = call("bench", *line, "-q")

    assert seen.code == 0, seen.err
    found = Report.read(folder / "asked/report.json")
    assert {row.name for row in found.rows} == {"clip", "BayesVLM", "ViLU"}
    assert found.options["classes"] == tuple("0123456")
    assert found.options["templates"] == ("the big {label} .",)
    by_name = {row.name: row for row in found.rows}
    assert by_name["BayesVLM"].derived[0].data.count == 8
    seen = call(
        "eval", "clip.st", "--data", *SMALL[5:8], *CLASSES, "--no-latency", "--compare", f"B=bayesvlm:clip.st::data={pairs}",
        "-o", "own.json", "-q", "--force",
    )  # fmt: skip
    assert seen.code == 0, seen.err
    own, bayes = Report.read(folder / "own.json").rows
    for name in ("accuracy", "nll", "ece"):
        assert by_name["clip"].values[name] == own.values[name]
        assert by_name["BayesVLM"].values[name] == bayes.values[name]
    assert by_name["BayesVLM"].ood == bayes.ood


def test_a_temperature_is_of_the_classes_that_a_checkpoint_stores(pairs, folder, call):
    named = Classes(names=tuple("0123456"), templates=("the big {label} .",))
    stored = with_classes(open_model("clip.st"), named)
    Sample(stored.header, stored.checkpoint.tensors()).save(folder / "named.st")
    line = ("bench", "named.st", *SMALL[:-2], "--rivals", "temperature", "-q")

    same = call(*line, "-o", "same", *CLASSES)
    other = call(*line, "-o", "left", *CLASSES[:3], "a {label}")

    assert same.code == 0, same.err
    report = Report.read(folder / "same/report.json")
    assert [row.name for row in report.rows] == ["named", "Temperature scaling"]
    assert (other.code, "named.st stores other classes, or none" in other.err) == (2, True)


def test_what_trains_from_the_beginning_must_read_what_the_data_are(others, folder, call):
    seen = call("bench", "base.st", *SMALL[:-1], "left", "--start", "bert.st", "--rivals", "deep-ensemble")

    assert seen.code == 2
    assert "`--rivals deep-ensemble`: " in seen.err
    assert "texts" in seen.err


def test_a_packed_ensemble_is_of_an_architecture(folder, call):
    seen = call("bench", "base.st", *SMALL[:-1], "left", "--start", "base.st", "--rivals", "packed")

    assert seen.code == 2
    assert "base.st has weights" in seen.err


def test_time_is_told_of_a_model_that_does_not_train(others, folder, call):
    seen = call("bench", "clip.st", *SMALL[:-2], "-o", "left", "--dry-run")

    assert seen.code == 0, seen.err
    assert "Timing 10 batches of clip.st" in seen.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("hydra.st", *SMALL), 2, "hydra.st: is a hydra, but rivals are made from an unpruned model"),
        (("base.st", *SMALL, "--rivals", "mc,packt"), 2, "unknown rival `packt`"),
        (("base.st", *SMALL, "--rivals", "mc,mc"), 2, "repeats a rival"),
        (("base.st", *SMALL, "--start-epochs", "3"), 2, "`--start-epochs` has no effect without `--start`"),
        (("base.st", *SMALL[:-1], "a,b"), 2, (
            "the folder name must not contain a comma or a brace, because "
            "commands use lists of its files"
        )),
        (("base.st", *SMALL, "--compare", "noise=m-0.st"), 2, "`noise` appears twice"),
        (("none.st", *SMALL), 3, "none.st"),
        (("base.st", *SMALL, "--classes", "a,b"), 2, "base.st: already has classes; `--classes` and `--template` apply only to"),
        (("clip.st", *SMALL, "--rivals", "bayesvlm"), 2, "`--rivals bayesvlm`: without `--pairs` there is nothing to fit it on"),
        (("base.st", *SMALL, "--rivals", "bayesvlm"), 2, "base.st: `bayesvlm:` needs a model that compares images with texts"),
        (("clip.st", *SMALL, "--rivals", "bayesvlm", "--pairs", "p.jsonl"), 2, "needs the column with the captions"),
        (("clip.st", *SMALL, "--rivals", "bayesvlm", "--pairs", "p.jsonl::text=t"), 3, "p.jsonl"),
        (("clip.st", *SMALL, "--rivals", "bayesvlm", "--pairs", "pairs.jsonl::text=t"), 2, "no column `t`"),
        (("clip.st", *SMALL, "--rivals", "bayesvlm", "--pairs", "pairs.jsonl::text=caption,limit=1"), 2, "at least two pairs are needed"),
        (("clip.st", *SMALL, "--rivals", "vilu", "--pairs", "p.jsonl::text=t"), 2, "has no effect: no selected rival uses pairs"),
        (
            ("clip.st", *SMALL, "--rivals", "bayesvlm", "--pairs", "pairs.jsonl::text=caption", "--template", "a {label}", "--template", "{label}"),
            2, "`bayesvlm:` needs one template, but there are 2",
        ),
        (("base.st", *SMALL, "--layer-decay", "0.5", "--rivals", "nothing"), 2, "unknown rival"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(pairs, folder, call, words, code, said):
    seen = call("bench", *words)

    assert (seen.code, said in seen.err.replace("\n", " ")) == (code, True), seen.err


def test_a_stage_that_would_be_refused_is_refused_before_anything_runs(folder, call):
    """Options of training apply to every rival, and all stages are parsed before the first stage runs."""
    seen = call(
        "bench", "base.st", *SMALL[:-1], "new", "--rivals", "mc,longer", "--steps", "1", "--epochs", "2"
    )

    assert seen.code in {2, 3}
    assert not (folder / "new").exists()


def test_a_plan_is_read_without_a_file(tmp_path):
    assert parsed(tmp_path / "no.toml", '[[stage]]\nname = "a"\ncommand = "doctor"\n', {}, command_tree())
