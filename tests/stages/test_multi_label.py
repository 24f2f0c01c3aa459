"""Multi-label models in every stage: texts with BERT, images with timm."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from PIL import Image
from sklearn import metrics as sk
from torch.nn import functional as F  # noqa: N812 - the field's own name
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hydractl
import hydractl.auto.register
from hydractl.checkpoint import Checkpoint, write_checkpoint
from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError, HydraError, UsageError
from hydractl.evaluation.options import NamedData, NamedModels
from hydractl.families.open_model import open_model
from hydractl.hub.card import Facts, card_of
from hydractl.hub.layout import is_stock
from hydractl.manifest.terms import Temperature
from hydractl.metrics.per_sample import Responses
from hydractl.metrics.temperature import fit_label_temperatures
from hydractl.scoring.methods import METHODS
from hydractl.stages.evaluate.config import EvalConfig, SetOptions
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from hydractl.training.recipe import Recipe
from support.progress_log import ProgressLog
from support.text_folders import save_text_model
from support.variants import of_depth, variant

NAMES = ("cat", "mat", "sat")
"""Each of these words in a text is a label of the text."""
BERT, VIT = "transformers-bert-multi-label", "timm-vit-multi-label"


def rows(count, *, seed):
    random = np.random.default_rng(seed)
    for _ in range(count):
        words = [name for name in NAMES if random.random() < 0.5] + ["the", "a"]
        yield words, [name for name in NAMES if name in words]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with labelled texts, a trained base, and a hydra of two members."""
    place = tmp_path_factory.mktemp("labels")
    save_text_model(variant("transformers-bert-plain"), place / "encoder")
    for i, (name, count) in enumerate({"train": 96, "val": 48, "test": 40}.items()):
        lines = [{"text": " ".join(words), "labels": labels} for words, labels in rows(count, seed=i)]
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    train(place, str(place / "encoder"), "base.st", epochs=8)
    for m, keep in enumerate((2, 3)):
        run(
            "prune",
            place / "base.st",
            "--strategy",
            "random",
            "--seed",
            m,
            "--keep-heads",
            keep,
            "-o",
            place / f"{m}.st",
        )
    run_fuse(FuseConfig(models=(str(place / "0.st"), str(place / "1.st")), out=place / "hydra.st"))
    return place


def run(*argv):
    assert main([*map(str, argv), "--force", "-q"]) == 0


def train(place, model, out, *, data="train.jsonl", progress=None, epochs=1, teacher=(), **options):
    recipe = Recipe(epochs=epochs, lr=(3e-3,), batch_size=16, **options)
    config = FinetuneConfig(
        model=model,
        train=DataRef.parse(str(place / data)),
        val=DataRef.parse(str(place / data.replace("train", "val"))),
        out=place / out,
        recipe=recipe,
        teacher=teacher,
        device="cpu",
        force=True,
    )
    return run_finetune(config, progress or ProgressLog())


def evaluate(place, model, **options):
    config = EvalConfig(
        model=str(place / model),
        data=DataRef.parse(str(place / "test.jsonl")),
        latency=False,
        device="cpu",
        bootstrap=0,
        **options,
    )
    return run_eval(config, ProgressLog()).document


def labels_of(place):
    lines = [json.loads(line) for line in (place / "test.jsonl").read_text().splitlines()]
    return [line["text"] for line in lines], torch.tensor(
        [[n in line["labels"] for n in NAMES] for line in lines]
    )


def test_an_encoder_learns_labels_which_its_folder_says_as_transformers_does(place):
    header = open_model(str(place / "base.st")).header
    assert header.labels == NAMES
    assert header.architecture.problem_type == "multi_label_classification"

    hydractl.load(place / "base.st").save_pretrained(place / "folder", force=True)
    texts, applies = labels_of(place)
    library = AutoModelForSequenceClassification.from_pretrained(place / "folder").eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "folder")
    with torch.inference_mode():
        out = library(**tokenizer(texts, return_tensors="pt", padding=True), labels=applies.float())
    values = evaluate(place, "folder").rows[0].values
    assert is_stock(header)
    assert library.config.problem_type == "multi_label_classification"
    assert values["nll"].value == pytest.approx(out.loss.item(), abs=1e-6)
    assert values["accuracy"].value == pytest.approx(((out.logits > 0) == applies).double().mean().item())
    assert values["accuracy"].value > 0.9


def test_training_says_the_loss_and_accuracy_of_labels(place):
    report = train(place, str(place / "base.st"), "again.st")
    document = evaluate(place, "again.st", temperature=None)
    assert 0.9 < report.accuracy <= 1
    assert 0 < report.nll < 1
    assert document.definitions["f1_micro"]


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("model", ["base.st", "hydra.st"])
def test_a_frozen_encoder_trains_its_classifier_as_with_features_computed_anew(place, model):
    """The frozen encoder runs once, and the reported NLL is close to the NLL of `eval`."""
    progress_log = ProgressLog()
    report = train(
        place, str(place / model), "head.st", train_parts=("head",), reset_head=True, progress=progress_log
    )
    assert any("frozen encoder" in step for step in progress_log.steps)
    assert open_model(str(place / "head.st")).header.architecture.task.by_label
    assert report.nll == pytest.approx(evaluate(place, "head.st").rows[0].values["nll"].value, abs=0.3)


@pytest.mark.more
def test_a_hydra_learns_from_teachers_label_by_label(place):
    student = str(place / "hydra.st")
    before = hydractl.load(student).predict(["the cat"]).probabilities
    train(place, student, "taught.st", teacher=(str(place / "base.st"),) * 2)
    assert not torch.equal(hydractl.load(place / "taught.st").predict(["the cat"]).probabilities, before)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((name, ()) for name in METHODS if name not in {"circuit", "cahp", "magnitude", "random"}),
        ("circuit", ("--objective", "avg", "--ood", "letters::limit=20")),
        ("circuit", ("--objective", "acc-ece", "--max-memory", "1MB", "--search", "exact")),
    ],
)
def test_heads_are_scored_on_labels(place, method, options):
    out = place / "scores.json"
    run("score", place / "base.st", "--method", method, "--data", place / "val.jsonl", *options, "-o", out)
    scores = json.loads(out.read_text())["towers"]["text"]["scores"]
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) > 1


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    ("objective", "metric", "sign"), [("nll", "nll", -1), ("acc", "accuracy", 1), ("ece", "ece", -1)]
)
def test_a_circuit_is_valued_as_eval_values_the_member(place, objective, metric, sign):
    data, scores = place / "test.jsonl", place / "scores.json"
    run("score", place / "base.st", "--objective", objective, "--data", data, "--remove", 1, "-o", scores)
    run("prune", place / "base.st", "--scores", scores, "--remove", 1, "-o", place / "less.st")
    removal = json.loads(scores.read_text())["removals"][0]
    expected = sign * evaluate(place, "less.st").rows[0].values[metric].value
    assert removal["objective"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.more
def test_diverse_members_differ_in_labels(place):
    run("score", place / "base.st", "--method", "magnitude", "-o", place / "magnitude.json")
    run(
        *(
            "prune",
            place / "base.st",
            "--strategy",
            "diverse",
            "--scores",
            place / "magnitude.json",
            "--keep-heads",
            2,
        ),
        *(
            "--members",
            2,
            "--pool",
            8,
            "--candidates",
            6,
            "--data",
            place / "val.jsonl",
            "-o",
            place / "d{i}.st",
        ),
    )
    report = evaluate(place, "d0.st", compare=(NamedModels.parse(f"both={place}/d0.st,{place}/d1.st"),))
    assert report.rows[1].values["mutual_information"].value > 0


def test_methods_that_compare_classes_are_refused(place, capsys):
    argv = [
        "score",
        place / "base.st",
        "--method",
        "cahp",
        "--data",
        place / "val.jsonl",
        "-o",
        place / "x.json",
    ]
    assert main([*map(str, argv)]) == UsageError.exit_code
    assert "compares classes of inputs, but" in capsys.readouterr().err


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("model", ["base.st", "0.st", "hydra.st"])
def test_predict_says_what_the_pipeline_says_one_text_at_a_time(place, model, suffix):
    hydractl.load(place / model).save_pretrained(place / "folder", force=True)
    ask = transformers.pipeline("text-classification", model=str(place / "folder"), top_k=None)
    out = place / f"p{suffix}"
    run_predict(
        PredictConfig(
            model=str(place / model), data=(str(place / "test.jsonl"),), out=out, device="cpu", force=True
        )
    )
    lines = read(out)
    assert ask.model.config.problem_type == "multi_label_classification"
    assert len(lines) == 40
    for text, line in zip(labels_of(place)[0][:8], lines, strict=False):
        (answer,) = ask([text])
        expected = {each["label"]: each["score"] for each in answer}
        assert probabilities_of(line) == pytest.approx(expected, abs=1e-6)
        assert [*probabilities_of(line)] == sorted(expected, key=lambda name: -expected[name])
        labels = line["labels"] if isinstance(line["labels"], list) else json.loads(line["labels"])
        assert labels == [name for name in NAMES if expected[name] > 0.5]


def read(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    import pandas as pd

    return (pd.read_csv if path.suffix == ".csv" else pd.read_parquet)(path).to_dict("records")


def probabilities_of(line):
    """Return the probabilities of a line by label, in decreasing order, for JSON and tables."""
    if "top" in line:
        return {each["label"]: each["probability"] for each in line["top"]}
    ends = ("", "_2", "_3")
    return {line[f"label{end}"]: line[f"probability{end}"] for end in ends}


def test_the_disagreement_is_that_of_each_label(place):
    predictions = hydractl.load(place / "hydra.st").predict(["the cat", "a mat sat"])
    members = predictions.member_probabilities.double()
    entropy = lambda p: torch.distributions.Bernoulli(p).entropy()
    expected = entropy(members.mean(0)) - entropy(members).mean(0)
    torch.testing.assert_close(predictions.label_information.double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(predictions.mutual_information.double(), expected.mean(1), atol=1e-6, rtol=0)
    torch.testing.assert_close(predictions.votes, members > 0.5)


@pytest.fixture(scope="module")
def small(place):
    """Folder with a base of one block and a hydra of two members, because export takes seconds per block."""
    save_text_model(of_depth(variant(BERT), 1), place / "small")
    for m, keep in enumerate((2, 3)):
        chosen = ("--strategy", "random", "--seed", m, "--keep-heads", keep)
        run("prune", place / "small", *chosen, "-o", place / f"small-{m}.st")
    members = (place / f"small-{m}.st" for m in range(2))
    run(
        "fuse",
        *members,
        "--temperature",
        f"{place / 'val.jsonl'}::classes-by=position",
        "-o",
        place / "small.st",
    )
    return place


@pytest.mark.more
@pytest.mark.newer  # export needs torch 2.8
@pytest.mark.parametrize("model", [pytest.param("small", marks=pytest.mark.more), "small.st"])
def test_exported_it_says_the_same(small, model):
    place = small
    run_export(ExportConfig(model=str(place / model), out=place / "m.onnx", force=True))
    session = onnxruntime.InferenceSession(place / "m.onnx")
    loaded = hydractl.load(place / model)
    texts = ["the cat", "a mat sat"]
    inputs = {name: x.numpy() for name, x in loaded.encode(texts).items()}
    names = [output.name for output in session.get_outputs()]
    answers = dict(
        zip(names, session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()}), strict=True)
    )
    expected = loaded.predict(texts)
    np.testing.assert_allclose(answers["probabilities"], expected.probabilities, atol=1e-6)
    np.testing.assert_allclose(1 / (1 + np.exp(-answers["logits"])), expected.probabilities, atol=1e-6)
    np.testing.assert_allclose(answers["ood_score"], expected.scores["msp"], atol=1e-6)
    np.testing.assert_allclose(answers["mutual_information"], expected.mutual_information, atol=1e-6)
    assert (
        json.loads(session.get_modelmeta().custom_metadata_map["hydractl.problem_type"])
        == "multi_label_classification"
    )
    told = json.loads(session.get_modelmeta().custom_metadata_map["hydractl.label_temperatures"])
    assert told == [*loaded.header.label_temperatures]
    assert len(told) == (loaded.header.num_classes if model == "small.st" else 0)


def test_the_auto_class_has_the_loss_of_the_library(place):
    hydractl.load(place / "hydra.st").save_pretrained(place / "folder", force=True)
    model = AutoModelForSequenceClassification.from_pretrained(place / "folder")
    texts, applies = labels_of(place)
    out = model(**model.loaded.encode(texts), labels=applies.float())
    members = F.binary_cross_entropy_with_logits(
        out.member_logits[..., 1], applies.expand(2, -1, -1).to(out.member_logits.dtype)
    )
    torch.testing.assert_close(out.loss, members)
    torch.testing.assert_close(out.logits.sigmoid(), out.member_logits[..., 1].sigmoid().mean(0))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Folder with images whose upper and left half may be bright, and a trained timm model."""
    place = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for name, count in {"train": 64, "val": 32, "test": 32}.items():
        lines = []
        for i in range(count):
            upper, left = random.random(2) < 0.5
            pixels = random.integers(0, 60, (8, 8))
            pixels[:4] += 90 * upper
            pixels[:, :4] += 90 * left
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{name}{i}.png")
            lines.append(
                {"image": f"{name}{i}.png", "label": [*["upper"] * int(upper), *["left"] * int(left)]}
            )
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = "img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4"
    train(place, f"arch:vit_tiny_patch16_224::{options}", "base.st", epochs=20, mixup=0.1)
    return place


def test_images_are_tagged_and_the_folder_keeps_the_problem(images):
    values = evaluate(images, "base.st").rows[0].values
    assert values["accuracy"].value > 0.9
    hydractl.load(images / "base.st").save_pretrained(images / "folder", force=True)
    config = json.loads((images / "folder" / "config.json").read_text())
    assert (config["num_classes"], config["problem_type"]) == (2, "multi_label_classification")
    (images / "folder" / "model.safetensors").rename(images / "weights.safetensors")
    from safetensors.torch import load_file, save_file

    (images / "plain").mkdir()
    save_file(load_file(images / "weights.safetensors"), images / "plain" / "model.safetensors")
    (images / "plain" / "config.json").write_text(json.dumps(config))
    again = evaluate(images, "plain").rows[0].values
    assert {name: again[name].value for name in ("nll", "label_auroc")} == {
        name: values[name].value for name in ("nll", "label_auroc")
    }


def test_images_of_a_hydra_answer_as_their_timm_and_transformers_classes(images):
    import timm

    for m in range(2):
        run(
            "prune",
            images / "base.st",
            "--strategy",
            "random",
            "--seed",
            m,
            "--keep-heads",
            2,
            "-o",
            images / f"{m}.st",
        )
    run_fuse(
        FuseConfig(models=(str(images / "0.st"), str(images / "1.st")), out=images / "hydra.st", force=True)
    )
    loaded = hydractl.load(images / "hydra.st")
    loaded.save_pretrained(images / "hydra", force=True)
    picture = Image.open(images / "test0.png")
    expected = loaded.predict([picture]).probabilities[0]
    ask = transformers.pipeline("image-classification", model=str(images / "hydra"), top_k=None)
    said = {each["label"]: each["score"] for each in ask(picture)}
    assert said == pytest.approx(dict(zip(loaded.labels, expected.tolist(), strict=True)), abs=1e-6)
    model = timm.create_model(f"local-dir:{images / 'hydra'}", pretrained=True)
    torch.testing.assert_close(model(loaded.encode([picture]))[0].sigmoid(), expected)


@pytest.mark.more
@pytest.mark.newer  # export needs torch 2.8
def test_thresholds_of_labels_are_stored_and_predict_applies_them(place, capsys, python):
    run(
        *(
            "eval",
            place / "base.st",
            "--data",
            place / "val.jsonl",
            "--label-thresholds",
            "--temperature",
            place / "train.jsonl",
        ),
        *("--no-latency", "--save-model", place / "stored.st", "-o", place / "v.json"),
    )
    thresholds = open_model(str(place / "stored.st")).header.label_thresholds
    assert list(thresholds) == json.loads((place / "v.json").read_text())["rows"][0]["label_thresholds"]
    assert {*thresholds} != {0.5}
    texts, applies = labels_of(place)
    loaded = hydractl.load(place / "stored.st")
    predictions = loaded.predict(texts)
    decided = predictions.probabilities.double() > torch.tensor(thresholds, dtype=torch.float64)
    assert predictions.labels == tuple(
        tuple(n for n, is_in in zip(NAMES, row, strict=True) if is_in) for row in decided.tolist()
    )
    values = evaluate(place, "stored.st").rows[0].values
    assert values["f1_macro"].value == pytest.approx(sk.f1_score(applies, decided, average="macro"))

    run("export", place / "stored.st", "-o", place / "stored.onnx")
    metadata = onnxruntime.InferenceSession(place / "stored.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(metadata["hydractl.label_thresholds"]) == list(thresholds)
    said = subprocess.run(
        [python(), place / "stored.onnx.py", *texts[:6]], capture_output=True, text=True, check=True
    ).stdout
    assert [tuple(json.loads(line)["labels"]) for line in said.splitlines()] == [*predictions.labels[:6]]

    progress_log = ProgressLog()
    again = EvalConfig(
        model=str(place / "stored.st"), data=DataRef.parse(str(place / "val.jsonl")), latency=False, device="cpu", bootstrap=0
    )  # fmt: skip
    run_eval(again, progress_log)
    count = len((place / "val.jsonl").read_text().splitlines())
    caveat = f"choice of label thresholds was fitted on {count} of {count} samples of `--data`: F1 will be too high"
    assert any(caveat in warning for warning in progress_log.warnings)
    run(
        "finetune",
        place / "stored.st",
        "--train",
        place / "train.jsonl",
        "--val",
        place / "val.jsonl",
        "--steps",
        1,
        "-o",
        place / "on.st",
    )
    assert open_model(str(place / "on.st")).header.label_thresholds == ()


@pytest.fixture(scope="module")
def row_with_temperatures(place):
    """Report row of a hydra with one temperature per label, stored in `warm.st`."""
    run(
        *("eval", place / "hydra.st", "--data", place / "test.jsonl", "--temperature", place / "val.jsonl"),
        *("--no-latency", "--bootstrap", 0, "--save-model", place / "warm.st", "-o", place / "warm.json"),
    )
    return json.loads((place / "warm.json").read_text())["rows"][0]


def raw_logits(place, file, model="hydra.st"):
    """Return the log-odds (M, N, Q) of a model without temperature, and the boolean labels (N, Q)."""
    rows = [json.loads(line) for line in (place / file).read_text().splitlines()]
    loaded = hydractl.load(place / model)
    with torch.inference_mode():
        logits = loaded.member_logits(loaded.encode([row["text"] for row in rows])).double()
    return logits[..., 1] - logits[..., 0], torch.tensor(
        [[n in row["labels"] for n in NAMES] for row in rows]
    )


def test_each_label_has_a_temperature_that_a_copy_stores_and_every_way_to_ask_applies(
    place, row_with_temperatures
):
    header = open_model(str(place / "warm.st")).header
    held, held_applies = raw_logits(place, "val.jsonl")
    member_logits = F.pad(held.unsqueeze(-1), (1, 0))
    expected = fit_label_temperatures(Responses(member_logits), held_applies.long(), header.temperature)
    assert header.label_temperatures == pytest.approx(expected, rel=1e-4)
    assert row_with_temperatures["label_temperatures"] == pytest.approx(expected, rel=1e-4)
    assert len({*header.label_temperatures, header.temperature}) == 4

    raw, applies = raw_logits(place, "test.jsonl")
    each = torch.tensor(header.label_temperatures, dtype=torch.float64)
    probabilities = (raw / each).sigmoid().mean(0)
    nll = F.binary_cross_entropy(probabilities, applies.double()).item()
    assert row_with_temperatures["values"]["nll"]["value"] == pytest.approx(nll, abs=1e-6)
    again = evaluate(place, "warm.st").rows[0]
    assert again.values["nll"].value == pytest.approx(nll, abs=1e-6)
    assert again.label_temperatures == header.label_temperatures

    texts, _ = labels_of(place)
    loaded = hydractl.load(place / "warm.st")
    predictions = loaded.predict(texts)
    torch.testing.assert_close(predictions.probabilities.double(), probabilities, atol=1e-6, rtol=0)
    loaded.save_pretrained(place / "folder", force=True)
    assert not is_stock(header)
    library = AutoModelForSequenceClassification.from_pretrained(place / "folder")
    torch.testing.assert_close(
        library(**loaded.encode(texts)).logits.sigmoid().double(), probabilities, atol=1e-6, rtol=0
    )
    half = loaded.to(torch.bfloat16)
    assert half.member_logits(loaded.encode(texts)).dtype == torch.bfloat16
    torch.testing.assert_close(half.predict(texts).probabilities.double(), probabilities, atol=0.05, rtol=0)


@pytest.mark.more
def test_temperatures_of_labels_come_on_top_of_others_and_drop_what_does_not_hold(
    place, row_with_temperatures, capsys
):
    given = evaluate(place, "warm.st", temperature=2.0, save_model=place / "hot.st")
    each, common = (
        (h.label_temperatures, h.temperature)
        for h in (open_model(str(place / f"{name}.st")).header for name in ("warm", "hot"))
    )
    assert each[0] == pytest.approx([t / 2 for t in common[0]], rel=1e-5)
    assert each[1] * 2 == pytest.approx(common[1], rel=1e-5)
    assert given.rows[0].stored_temperatures == (each[1],)

    common = ("--data", place / "val.jsonl", "--no-latency")
    run(
        "eval",
        place / "warm.st",
        *common,
        "--temperature",
        place / "val.jsonl",
        "--save-model",
        place / "same.st",
    )
    before, after = (open_model(str(place / f"{name}.st")).header.scale for name in ("warm", "same"))
    assert after.numbers == pytest.approx(before.numbers, rel=1e-3)  # refitted on the same data
    bounds = ("--label-thresholds", "--threshold-for", "risk<=0.9", "-o", place / "bounds.json")
    run("eval", place / "warm.st", *common, *bounds, "--save-model", place / "bounds.st")
    argv = ["predict", place / "warm.st", place / "test.jsonl", "--threshold", place / "bounds.json"]
    assert main([*map(str, argv)]) == 3
    assert "its threshold is for label thresholds that" in capsys.readouterr().err
    assert open_model(str(place / "bounds.st")).header.label_temperatures == tuple(each[0])
    fit = ("--temperature", place / "test.jsonl")
    argv = ["eval", place / "bounds.st", *common, *fit, "--save-model", place / "other.st", "--force"]
    assert main([*map(str, argv)]) == 0
    assert "label thresholds are not kept, as they are not valid for another temp" in capsys.readouterr().err
    report = ("-o", place / "accepts.json")
    run("eval", place / "warm.st", *common, *fit, "--threshold-for", "risk<=0.9", *report)
    argv = ["predict", place / "warm.st", place / "test.jsonl", "--threshold", place / "accepts.json"]
    assert main([*map(str, argv)]) == 3
    assert "its threshold is for the temperature" in capsys.readouterr().err


def test_fuse_fits_temperatures_of_labels_and_keeps_those_that_all_members_store(
    place, row_with_temperatures, capsys
):
    merge = ("--trunk", 1, "--val", place / "test.jsonl", "--temperature", place / "val.jsonl")
    train(place, str(place / "0.st"), "tuned.st")
    run("fuse", place / "0.st", place / "tuned.st", *merge, "-o", place / "merged.st")
    header = open_model(str(place / "merged.st")).header
    assert len({*header.label_temperatures, header.temperature}) == 4
    measured = header.made_by.results["validation_nll"]
    assert evaluate(place, "merged.st").rows[0].values["nll"].value == pytest.approx(measured, abs=1e-6)

    for m in range(2):
        options = (
            "--temperature",
            place / "val.jsonl",
            "--no-latency",
            "--save-model",
            place / f"warm-{m}.st",
        )
        run("eval", place / f"{m}.st", "--data", place / "test.jsonl", *options)
    argv = ["fuse", place / "warm-0.st", place / "warm-1.st", "-o", place / "odd.st"]
    assert main([*map(str, argv)]) == 3
    assert "; the members of a hydra share one temperature" in " ".join(capsys.readouterr().err.split())
    run("fuse", place / "warm-0.st", place / "warm-0.st", "-o", place / "twice.st")
    kept, stored = (open_model(str(place / f"{name}.st")).header for name in ("twice", "warm-0"))
    assert kept.scale == stored.scale != Temperature()


def test_models_are_told_apart_by_temperatures_of_labels_alone(place, row_with_temperatures, capsys):
    """The files differ in label temperatures only; their common temperature is 1."""
    for name, each in {"plain": (), "same": (1.0,) * 3, "other": (1.0, 2.0, 1.0)}.items():
        for m in range(2):
            checkpoint = Checkpoint.open(place / f"{m}.st")
            header = checkpoint.header.model_copy(
                update={"label_temperatures": each, "label_thresholds": (0.4,) * 3}
            )
            with (place / f"{name}-{m}.st").open("wb") as file:
                write_checkpoint(file, checkpoint.specs, lambda n, c=checkpoint: [c.spans[n]], header=header)
    argv = ["fuse", place / "same-0.st", place / "other-1.st", "-o", place / "odd.st"]
    assert main([*map(str, argv)]) == 3
    assert "stores the temperature 1, of labels 1 to 2, " in " ".join(capsys.readouterr().err.split())
    base = open_model(str(place / "base.st")).header
    assert is_stock(base)
    assert not is_stock(base.model_copy(update={"label_temperatures": (1.0, 2.0, 1.0)}))

    data = ("--data", place / "val.jsonl", "--no-latency", "--force")
    argv = ["eval", place / "plain-0.st", *data, "--temperature", 1, "--save-model", place / "kept.st"]
    assert main([*map(str, argv)]) == 0
    assert "not kept" not in capsys.readouterr().err
    run("eval", place / "plain-0.st", *data, "--threshold-for", "risk<=0.9", "-o", place / "accepts.json")
    report = json.loads((place / "accepts.json").read_text())
    report["rows"][0]["models"][0]["sha256"] = Checkpoint.open(place / "other-0.st").digest
    (place / "accepts.json").write_text(json.dumps(report))
    argv = ["predict", place / "other-0.st", place / "test.jsonl", "--threshold", place / "accepts.json"]
    assert main([*map(str, argv)]) == 3
    assert "for the temperature 1, but" in " ".join(capsys.readouterr().err.split())
    progress_log = ProgressLog()
    train(place, str(place / "other-0.st"), "colder.st", progress=progress_log)
    assert any(
        "its temperature 1, of labels 1 to 2 is not kept" in warning for warning in progress_log.warnings
    )


@pytest.mark.more
def test_temperatures_of_labels_are_shown(place, row_with_temperatures, capsys):
    header = open_model(str(place / "warm.st")).header
    each, card = (
        header.label_temperatures,
        card_of(Facts(name="a/b", revision="main", header=header, specs={})),
    )
    shown = f"of labels {min(each):g} to {max(each):g}"
    assert main(["inspect", str(place / "warm.st")]) == 0
    assert shown in capsys.readouterr().out
    assert main(["inspect", str(place / "warm.st"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["label_temperatures"] == [*each]
    assert shown in card.decode()
    assert main(["eval", str(place / "warm.st"), "--data", str(place / "test.jsonl"), "--no-latency"]) == 0
    table = capsys.readouterr().out
    assert "label temperatures" in table
    assert ", ".join(f"{t:.3g}" for t in each) in table
    train(place, str(place / "warm.st"), "colder.st", progress=(progress_log := ProgressLog()))
    assert any(f"{shown} is not kept" in warning for warning in progress_log.warnings)
    assert open_model(str(place / "colder.st")).header.scale == Temperature()


@pytest.mark.more
def test_the_example_pipeline_runs_on_such_data(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--example", "multi-label"]) == 0
    (tmp_path / "x.toml").write_text(capsys.readouterr().out)
    params = {name: place / f"{name}.jsonl" for name in ("train", "val", "test")}
    params |= {"model": place / "encoder", "members": 2, "together": 60, "lr": 3e-3}
    pairs = [word for name, value in params.items() for word in ("--set", f"{name}={value}")]
    assert main(["run", "x.toml", *pairs]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["name"] for row in report["rows"]] == ["hydra", "Single", "Members apart"]
    assert all(row["values"]["f1_macro"]["value"] > 0.8 for row in report["rows"])
    assert all(row["values"]["average_precision"]["value"] > 0.9 for row in report["rows"])
    assert len(open_model("hydra.st").header.label_thresholds) == len(NAMES)


def test_an_answer_is_wrong_if_one_label_is(place):
    run(
        *(
            "eval",
            place / "base.st",
            "--data",
            place / "test.jsonl",
            "--threshold-for",
            "risk<=0.5",
            "--no-latency",
        ),
        *("--guarantee", "accepted-and-wrong", "--save-model", place / "selective.st"),
    )
    stored = open_model(str(place / "selective.st")).header.threshold
    texts, applies = labels_of(place)
    predictions = hydractl.load(place / "selective.st").predict(texts)
    wrong = (predictions.classes != applies).any(1)
    assert int(predictions.accepted.sum()) == stored.accepted
    assert int(wrong[predictions.accepted].sum()) == stored.errors


def test_models_with_one_label_have_no_thresholds_of_labels(tmp_path):
    save_text_model(variant("transformers-bert-plain"), tmp_path / "one")
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"text": "a cat", "label": i}) for i in range(7)))
    config = EvalConfig(
        model=str(tmp_path / "one"), data=DataRef.parse(str(tmp_path / "t.jsonl")), latency=False, device="cpu", label_thresholds=True
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"`--label-thresholds`: .* answers one label"):
        run_eval(config, ProgressLog())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train": "train.jsonl", "ood_score": ("relative-mahalanobis",)},
            "`--train`: needs models that answer one label",
        ),
        (
            {"ood_score": ("knn",), "near": NamedData.parse_all("n=letters")},
            "`--ood-score knn`: needs models that answer one label",
        ),
        ({"keep_examples": 3}, "`--keep-examples`: needs models that answer one label"),
        ({"set_options": SetOptions(sets=0.5)}, "`--sets`: needs models that answer one label"),
        (
            {"compare": "mc:base.st"},
            "`--compare KIND:MODEL`: needs models that answer one label",
        ),
        ({"metrics": ("mrr",)}, "`mrr` cannot be measured"),
    ],
    ids=str,
)
def test_what_is_defined_for_one_label_is_refused(place, monkeypatch, options, message):
    monkeypatch.chdir(place)
    if "compare" in options:
        pytest.importorskip("hydractl.research")
        options = {"compare": (NamedModels.parse(options["compare"]),)}
    if "fit" in options:
        options = options | {"train": DataRef.parse("train.jsonl"), "near": NamedData.parse_all("n=letters")}
    with pytest.raises(UsageError, match=message):
        evaluate(place, "base.st", **options)


def test_models_of_both_kinds_are_never_mixed(place):
    one = place / "one.jsonl"
    one.write_text("\n".join(json.dumps({"text": f"the {n}", "label": n}) for n in NAMES * 4))
    progress_log = ProgressLog()
    config = FinetuneConfig(
        model=str(place / "base.st"), train=DataRef.parse(str(one)), val=DataRef.parse(str(one)), out=place / "one.st",
        recipe=Recipe(epochs=1), device="cpu",
    )  # fmt: skip
    run_finetune(config, progress_log)
    assert any(
        "A new classifier for 3 classes (cat, mat, sat), the model's has other" in step
        for step in progress_log.steps
    )
    assert not open_model(str(place / "one.st")).header.architecture.task.by_label
    with pytest.raises(
        CheckpointError,
        match=r"one\.st: is a bert with problem_type=None, .*base\.st with problem_type=multi_label",
    ):
        run_fuse(FuseConfig(models=(str(place / "base.st"), str(place / "one.st")), out=place / "mixed.st"))
    with pytest.raises(HydraError, match="answers one label for each item, but the student a list of labels"):
        train(place, str(place / "base.st"), "t.st", teacher=(str(place / "one.st"),))
    with pytest.raises(HydraError, match="must answer the same kind of labels"):
        evaluate(place, "base.st", compare=(NamedModels.parse(str(place / "one.st")),))
    with pytest.raises(HydraError, match="`--data` needs a list of labels for each item"):
        run_eval(
            EvalConfig(
                model=str(place / "base.st"), data=DataRef.parse(str(one)), latency=False, device="cpu"
            )
        )
    with pytest.raises(HydraError, match=r"`--keep-head`: `--train one\.jsonl` has one label for each item"):
        run_finetune(
            FinetuneConfig(
                model=str(place / "base.st"),
                train=DataRef.parse(str(one)),
                val=DataRef.parse(str(one)),
                out=place / "k.st",
                recipe=Recipe(epochs=1, reset_head=False),
                device="cpu",
            )
        )
