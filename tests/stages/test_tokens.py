"""Token classifiers in every stage: a word has the logits of its first token, as in transformers."""

from __future__ import annotations

import json
import subprocess
import warnings

import numpy as np
import pytest
import torch
import transformers
from seqeval.metrics import f1_score
from transformers import AutoModelForTokenClassification, AutoTokenizer

import hydractl
import hydractl.auto.register
from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError
from hydractl.evaluation.options import NamedData, NamedModels
from hydractl.families.open_model import open_model
from hydractl.hub.layout import is_stock
from hydractl.manifest.terms import Temperature
from hydractl.metrics.ood_scores import SCORES
from hydractl.scoring.methods import METHODS
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training.recipe import Recipe
from support.progress_log import ProgressLog
from support.text_folders import edit_config, save_text_model
from support.variants import variant

NAMES = ("B-act", "B-animal", "B-thing", "I-act", "I-thing", "O")
WORDS = ("the", "cat", "sat", "on", "a", "mat")
TEXTS = (
    "the cat sat on a mat",
    "a mat a mat the cat",
    "cat, mat: unknown words",
    "the the the",
    "on",
    "",
    "the cat on a mat " * 12,
)


def tags_of(words):
    """Return the tag of each word: "cat" is an animal, "sat on" an act, "a mat" a thing."""
    acts = {"sat": "B-act", "on": "I-act"}
    tags = [acts.get(word, "O") for word in words]
    for i, word in enumerate(words):
        if word == "cat":
            tags[i] = "B-animal"
        elif word == "mat" and i and words[i - 1] == "a":
            tags[i - 1 : i + 1] = ["B-thing", "I-thing"]
    return tags


def rows(count, *, seed, least=1, most=9):
    random = np.random.default_rng(seed)
    for _ in range(count):
        words = [str(word) for word in random.choice(WORDS, size=random.integers(least, most))]
        yield {"tokens": words, "ner_tags": tags_of(words)}


def write(path, lines):
    path.write_text("\n".join(map(json.dumps, lines)))


def run(*argv):
    assert main([*map(str, argv), "--force", "-q"]) == 0


def train(place, model, out, *, data="train.jsonl", epochs=1, teacher=(), progress=None, **options):
    config = FinetuneConfig(
        model=str(model),
        train=DataRef.parse(str(place / data)),
        val=DataRef.parse(str(place / "val.jsonl")),
        out=place / out,
        recipe=Recipe(epochs=epochs, lr=(3e-3,), batch_size=16, **options),
        teacher=teacher,
        device="cpu",
        force=True,
    )
    return run_finetune(config, progress or ProgressLog())


def evaluate(place, model, *, data="test.jsonl", **options):
    config = EvalConfig(
        model=str(place / model),
        data=DataRef.parse(str(place / data)),
        latency=False,
        device="cpu",
        **{"bootstrap": 0, **options},
    )
    return run_eval(config, ProgressLog()).document


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with tagged texts, a base, its copy for transformers, two members and a hydra."""
    place = tmp_path_factory.mktemp("tokens")
    save_text_model(variant("transformers-bert-plain"), place / "encoder")
    for i, (name, count) in enumerate({"train": 320, "val": 60, "test": 50}.items()):
        write(place / f"{name}.jsonl", rows(count, seed=i))
    write(place / "long.jsonl", rows(6, seed=7, least=60, most=90))
    train(place, place / "encoder", "base.st", epochs=6)
    hydractl.load(place / "base.st").save_pretrained(place / "folder")
    for m, keep in enumerate((2, 3)):
        seed = ("--strategy", "random", "--seed", m, "--keep-heads", keep)
        run("prune", place / "base.st", *seed, "-o", place / f"{m}.st")
        train(place, place / f"{m}.st", f"tuned-{m}.st")
    members = tuple(str(place / f"tuned-{m}.st") for m in range(2))
    run_fuse(FuseConfig(models=members, mlp="keep", out=place / "hydra.st"))
    return place


def test_rows(place):
    return [json.loads(line) for line in (place / "test.jsonl").read_text().splitlines()]


# pytest would collect the function as a test.
test_rows.__test__ = False


@torch.inference_mode()
def library_logits(folder, words):
    """Return the logits (Q, C) of the first token of each word, computed by transformers."""
    library = AutoModelForTokenClassification.from_pretrained(folder).eval()
    encoding = AutoTokenizer.from_pretrained(folder)(words, is_split_into_words=True, return_tensors="pt")
    of_words = encoding.word_ids()
    logits = library(**{name: x for name, x in encoding.items() if name != "token_type_ids"}).logits[0]
    return logits[[of_words.index(i) for i in range(len(words))]]


def test_an_encoder_learns_tags_and_its_folder_is_the_library_s(place):
    header = open_model(str(place / "base.st")).header
    assert header.labels == NAMES
    assert header.architecture.task.by_word
    assert header.preprocess.by_word
    assert is_stock(header)
    config = json.loads((place / "folder" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert open_model(str(place / "folder")).header.architecture == header.architecture

    lines = test_rows(place)
    logits = [library_logits(place / "folder", line["tokens"]) for line in lines]
    labels = torch.tensor([NAMES.index(tag) for line in lines for tag in line["ner_tags"]])
    predicted = [[NAMES[i] for i in z.argmax(-1).tolist()] for z in logits]
    values = evaluate(place, "base.st").rows[0].values
    loss = torch.nn.functional.cross_entropy(torch.cat(logits), labels)
    assert values["nll"].value == pytest.approx(loss.item(), abs=1e-6)
    assert values["accuracy"].value == (torch.cat(logits).argmax(-1) == labels).double().mean().item()
    assert values["span_f1"].value == pytest.approx(f1_score([line["ner_tags"] for line in lines], predicted))
    assert values["span_f1"].value > 0.6
    assert "f1_micro" not in values


def test_training_says_the_loss_and_accuracy_of_words(place):
    progress = ProgressLog()
    report = train(place, place / "base.st", "again.st", progress=progress)
    config = EvalConfig(
        model=str(place / "again.st"), data=DataRef.parse(str(place / "val.jsonl")), latency=False, device="cpu",
        bootstrap=0,
    )  # fmt: skip
    values = run_eval(config, ProgressLog()).document.rows[0].values
    assert report.accuracy == pytest.approx(values["accuracy"].value, abs=1e-6)
    assert report.nll == pytest.approx(values["nll"].value, abs=1e-5)
    assert report.span_f1 == pytest.approx(values["span_f1"].value, abs=1e-6)
    assert f"validation span F1 {report.span_f1:.4f}, accuracy" in progress.steps[-1]


def test_a_batch_in_pieces_is_the_batch(place):
    """Pieces are weighted by their number of words."""
    save_text_model(variant("transformers-bert-plain"), place / "sure")
    # Recipes do not set dropout of attention weights, which draws different masks for pieces of a batch.
    edit_config(place / "sure", attention_probs_dropout_prob=0.0)
    for accumulate in (1, 4):
        recipe = {"accumulate": accumulate, "dropout": 0.0, "optimizer": "sgd"}
        train(place, place / "sure", f"a{accumulate}.st", **recipe)
    whole, pieces = (open_model(str(place / f"a{n}.st")).checkpoint.tensors() for n in (1, 4))
    before = open_model(str(place / "sure")).checkpoint.tensors()
    whole = {name: tensor for name, tensor in whole.items() if name in before and "classifier" not in name}
    assert max(float((whole[n] - before[n]).abs().max()) for n in whole) > 1e-3
    assert max(float((whole[n] - pieces[n]).abs().max()) for n in whole) < 2e-6


def test_a_hydra_says_what_its_members_say(place):
    texts = list(TEXTS[:5])
    hydra = hydractl.load(place / "hydra.st").predict(texts)
    members = [hydractl.load(place / f"tuned-{m}.st").predict(texts) for m in range(2)]
    there = hydra.classes >= 0
    assert there.sum(1).tolist() == [6, 6, 6, 3, 1]
    for m, member in enumerate(members):
        found, expected = (x[there] for x in (hydra.member_probabilities[m], member.probabilities))
        assert torch.allclose(found, expected, atol=1e-6)
    mean = torch.stack([member.probabilities for member in members]).mean(0)
    assert torch.allclose(hydra.probabilities[there], mean[there], atol=1e-6)
    assert hydra.probabilities[~there].isnan().all()
    assert hydra.mutual_information.max() > 1e-4


@pytest.mark.parametrize("folder", ["folder", "hydra"])
def test_predict_says_what_the_pipeline_says(place, folder):
    """Entities have the same characters; the probability of an entity is the lowest of its words."""
    if folder == "hydra":
        hydractl.load(place / "hydra.st").save_pretrained(place / "hydra", force=True)
    model = hydractl.load(place / folder)
    ask, ask_words = (
        transformers.pipeline(
            "token-classification", model=str(place / folder), aggregation_strategy=strategy
        )
        for strategy in ("first", "none")
    )
    found = 0
    for text in TEXTS[:5]:
        with warnings.catch_warnings():  # transformers warns about tokenizers without subword marks
            warnings.simplefilter("ignore")
            expected = ask(text)
        predictions = model.predict([text])
        (entities,) = predictions.entities
        assert [-e.probability for e in entities] == [*predictions.entity_scores["msp"][0]]
        assert [e.mutual_information for e in entities] == [*predictions.entity_scores["mi"][0]]
        assert len({*entities}) == len(entities)
        assert [(e.label, e.start, e.end) for e in entities] == [
            (e["entity_group"], e["start"], e["end"]) for e in expected
        ], text
        words = ask_words(text)
        for entity in entities:
            assert entity.text == text[entity.start : entity.end]
            within = [w["score"] for w in words if entity.start <= w["start"] < entity.end]
            assert entity.probability == pytest.approx(min(map(float, within)), abs=1e-5)
        found += len(entities)
    assert found >= 3


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("score", SCORES)
def test_the_ood_score_of_an_entity_is_the_highest_of_its_words_each_an_input_of_its_own(place, score):
    words = []
    for model in map(hydractl.load, (place / "base.st", place / "hydra.st")):
        for text in TEXTS[:5]:
            predictions = model.predict([text])
            logits = model.member_logits(model.encode([text]))[:, 0, 1:-1]  # each token is a word: (M, Q, C)
            of_words, begins = SCORES[score].of(logits.double()), []
            for word in predictions.words[0]:
                begins.append(text.index(word, begins[-1] + 1 if begins else 0))
            of_entities = zip(predictions.entities[0], predictions.entity_scores[score][0], strict=True)
            for entity, found in of_entities:
                places = zip(of_words, begins, strict=True)
                within = [x.item() for x, begin in places if entity.start <= begin < entity.end]
                assert found == pytest.approx(max(within), abs=1e-5)
                words.append(len(within))
    assert min(words) == 1
    assert max(words) == 2


def test_entities_have_a_temperature_of_their_own(place, tmp_path, capsys):
    test, val = place / "test.jsonl", place / "val.jsonl"
    common = ("--data", test, "--no-latency", "--bootstrap", 0)
    run(
        "eval",
        place / "hydra.st",
        *common,
        "--temperature",
        val,
        "--save-model",
        tmp_path / "warm.st",
        "-o",
        tmp_path / "r.json",
    )
    row = json.loads((tmp_path / "r.json").read_text())["rows"][0]
    header = open_model(str(tmp_path / "warm.st")).header
    assert header.entity_temperature != 1
    assert row["entity_temperature"] == pytest.approx(header.entity_temperature, rel=1e-5)
    again = evaluate(place, tmp_path / "warm.st").rows[0]
    assert again.values["span_ece"].value == pytest.approx(row["values"]["span_ece"]["value"], abs=1e-6)
    assert again.entity_temperature == header.entity_temperature

    run(
        "eval",
        place / "hydra.st",
        *common,
        "--temperature",
        header.temperature,
        "--save-model",
        tmp_path / "words.st",
        "-o",
        tmp_path / "w.json",
    )
    words = open_model(str(tmp_path / "words.st")).header
    assert words.scale == Temperature(header.temperature)
    plain, warm = (hydractl.load(tmp_path / f"{name}.st").predict(list(TEXTS)) for name in ("words", "warm"))
    pairs = [
        pair for texts in zip(plain.entities, warm.entities, strict=True) for pair in zip(*texts, strict=True)
    ]
    assert len(pairs) > 5
    for before, entity in pairs:
        odds = before.probability / (1 - before.probability)
        expected = 1 / (1 + odds ** (-1 / header.entity_temperature))
        assert entity.probability == pytest.approx(expected, rel=1e-4)
        assert entity._replace(probability=0) == before._replace(probability=0)
    run("predict", tmp_path / "warm.st", test, "-o", tmp_path / "p.jsonl")
    texts = [" ".join(json.loads(line)["tokens"]) for line in test.read_text().splitlines()]
    lines = map(json.loads, (tmp_path / "p.jsonl").read_text().splitlines())
    expected = hydractl.load(tmp_path / "warm.st").predict(texts).entities
    for line, found in zip(lines, expected, strict=True):
        assert [e["probability"] for e in line["entities"]] == pytest.approx(
            [e.probability for e in found], abs=1e-5
        )

    assert main(["inspect", str(tmp_path / "warm.st")]) == 0
    assert f"{header.temperature:g}, of entities {header.entity_temperature:g}" in capsys.readouterr().out
    run(
        "eval",
        tmp_path / "warm.st",
        *common,
        "--temperature",
        2,
        "--save-model",
        tmp_path / "hot.st",
        "-o",
        tmp_path / "h.json",
    )
    assert main(["eval", str(tmp_path / "warm.st"), *map(str, common)]) == 0
    lines = capsys.readouterr().out.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.endswith("temperature of entities"))
    assert lines[heading + 2].split() == ["warm", f"{header.entity_temperature:.3g}"]
    hot = open_model(str(tmp_path / "hot.st")).header.scale
    assert hot == Temperature(pytest.approx(2 * header.temperature, rel=1e-5))
    run("fuse", place / "tuned-0.st", place / "tuned-1.st", "--temperature", val, "-o", tmp_path / "fused.st")
    assert open_model(str(tmp_path / "fused.st")).header.entity_temperature == pytest.approx(
        header.entity_temperature, rel=1e-2
    )
    write(tmp_path / "none.jsonl", [{"tokens": ["the"] * 4, "ner_tags": ["O"] * 4}] * 8)
    none = ("--temperature", tmp_path / "none.jsonl", "--save-model", tmp_path / "none.st")
    run("eval", tmp_path / "warm.st", *common, *none, "-o", tmp_path / "n.json")
    kept = open_model(str(tmp_path / "none.st")).header
    assert kept.entity_temperature == header.entity_temperature  # no span to fit another temperature
    assert kept.temperature != header.temperature
    run(
        "eval",
        tmp_path / "warm.st",
        *common,
        "--temperature",
        1,
        "--save-model",
        tmp_path / "one.st",
        "-o",
        tmp_path / "o.json",
    )
    assert open_model(str(tmp_path / "one.st")).header.scale == Temperature(header.temperature)
    train(place, tmp_path / "warm.st", "cold.st")
    assert open_model(str(place / "cold.st")).header.scale == Temperature()


def test_lines_tell_entities_by_their_characters(place, tmp_path):
    texts = tmp_path / "t.jsonl"
    write(texts, [{"text": text} for text in TEXTS])
    for suffix in ("jsonl", "csv", "parquet"):
        run("predict", place / "hydra.st", texts, "-o", tmp_path / f"p.{suffix}")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    expected = hydractl.load(place / "hydra.st").predict(list(TEXTS))
    assert [line["row"] for line in lines] == [*range(len(TEXTS))]
    scores = expected.entity_scores["msp"]
    for line, text, entities, of_entities in zip(lines, TEXTS, expected.entities, scores, strict=True):
        assert [(e["label"], e["start"], e["end"]) for e in line["entities"]] == [
            (e.label, e.start, e.end) for e in entities
        ]
        assert all(e["text"] == text[e["start"] : e["end"]] for e in line["entities"])
        assert [e["ood_score"] for e in line["entities"]] == [*of_entities]
    assert lines[5] == {
        "row": 5, "entities": [], "entropy": None, "mutual_information": None, "ood_score": None,
    }  # fmt: skip
    assert json.loads((tmp_path / "p.csv").read_text().splitlines()[1].split('"[')[0].split(",")[0]) == 0
    import pandas as pd

    table = pd.read_parquet(tmp_path / "p.parquet")
    assert [*map(json.loads, table["entities"])] == [line["entities"] for line in lines]


def test_a_long_text_is_read_in_windows_and_is_one_text(place, tmp_path):
    words = [json.loads(line)["tokens"] for line in (place / "long.jsonl").read_text().splitlines()]
    run("predict", place / "base.st", place / "long.jsonl", "--max-length", "20", "-o", tmp_path / "p.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(lines) == len(words) == 6
    for line, of_text in zip(lines, words, strict=True):
        text = " ".join(of_text)
        assert all(text[e["start"] : e["end"]] == e["text"] for e in line["entities"])
        assert line["entities"][-1]["start"] > 100
    short = evaluate(place, "base.st", data="long.jsonl", max_length=20)
    whole = evaluate(place, "base.st", data="long.jsonl")
    assert (short.data["id"].count, whole.data["id"].count) == (6, 6)
    assert short.data["id"].sha256 == whole.data["id"].sha256
    gap = short.rows[0].values["accuracy"].value - whole.rows[0].values["accuracy"].value
    assert abs(gap) < 0.05
    again = evaluate(
        place,
        "base.st",
        data="long.jsonl",
        max_length=20,
        temperature=DataRef.parse(str(place / "val.jsonl")),
    )
    assert again.rows[0].values["accuracy"].value == short.rows[0].values["accuracy"].value


def test_a_threshold_accepts_texts_and_an_error_in_one_word_is_an_error(place, tmp_path):
    report = evaluate(
        place,
        "hydra.st",
        data="val.jsonl",
        threshold_for=0.3,
        save_model=tmp_path / "s.st",
        ood_score=("entropy",),
    )
    threshold = report.rows[0].threshold
    predictions = hydractl.load(place / "hydra.st").predict(
        [" ".join(json.loads(line)["tokens"]) for line in (place / "val.jsonl").read_text().splitlines()]
    )
    tags = [json.loads(line)["ner_tags"] for line in (place / "val.jsonl").read_text().splitlines()]
    accepted = predictions.scores["entropy"] < threshold.below
    wrong = torch.tensor([list(a) != b for a, b in zip(predictions.labels, tags, strict=True)])
    assert (threshold.count, threshold.accepted) == (len(tags), int(accepted.sum()))
    assert threshold.errors == int((wrong & accepted).sum())
    curve = report.rows[0].curves.threshold
    assert (threshold.coverage, threshold.errors / threshold.accepted) in zip(curve.x, curve.y, strict=True)
    again = hydractl.load(tmp_path / "s.st").predict(["the cat sat"])
    assert again.accepted.tolist() == [bool(again.scores["entropy"][0] < threshold.below)]


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("method", [name for name in METHODS if name not in {"cahp", "magnitude", "random"}])
def test_heads_are_scored_by_words(place, tmp_path, method):
    ood = ("--ood", place / "long.jsonl") if method == "circuit" else ()
    run(
        "score",
        place / "base.st",
        "--method",
        method,
        "--data",
        f"{place}/val.jsonl::limit=24",
        *ood,
        "-o",
        tmp_path / "s.json",
    )
    table = json.loads((tmp_path / "s.json").read_text())["towers"]["text"]["scores"]
    assert len({score for row in table for score in row}) > 3


@pytest.mark.more
def test_diverse_members_are_chosen_by_words(place, tmp_path):
    run(
        "score",
        place / "base.st",
        "--method",
        "taylor",
        "--data",
        place / "val.jsonl",
        "-o",
        tmp_path / "s.json",
    )
    run(
        "prune", place / "base.st", "--scores", tmp_path / "s.json", "--members", 2, "--pool", 8, "--keep-fraction", 0.75,
        "--strategy", "diverse", "--candidates", 5, "--data", place / "val.jsonl", "--max-length", 20,
        "-o", tmp_path / "m-{i}.st",
    )  # fmt: skip
    masks = [open_model(str(tmp_path / f"m-{i}.st")).header.masks[0]["text"].keep for i in range(2)]
    assert masks[0] != masks[1]


@pytest.mark.more
def test_a_teacher_teaches_words(place):
    plain = train(place, place / "0.st", "p.st")
    taught = train(place, place / "0.st", "t.st", teacher=(str(place / "base.st"),))
    own = train(place, place / "base.st", "o.st", teacher=(str(place / "base.st"),), dropout=0.0)
    assert taught.nll != plain.nll
    assert own.accuracy > 0.8
    write(place / "six.jsonl", [{"text": f"the {word}", "label": word} for word in WORDS[:6] * 4])
    run(
        "finetune",
        place / "encoder",
        "--train",
        place / "six.jsonl",
        "--val",
        place / "six.jsonl",
        "-o",
        place / "six.st",
        "--epochs",
        1,
    )
    with pytest.raises(
        CheckpointError, match="answers one label for each item, but the student a label for each word"
    ):
        train(place, place / "0.st", "x.st", teacher=(str(place / "six.st"),))


@torch.inference_mode()
def test_the_auto_class_answers_tokens_with_the_library_s_loss(place):
    hydractl.load(place / "hydra.st").save_pretrained(place / "hydra", force=True)
    model = AutoModelForTokenClassification.from_pretrained(place / "hydra")
    assert type(model).__name__ == "HydraForTokenClassification"
    words = ["the", "cat", "sat"]
    encoding = AutoTokenizer.from_pretrained(place / "hydra")(
        words, is_split_into_words=True, return_tensors="pt"
    )
    labels = torch.tensor([[-100 if i is None else i for i in encoding.word_ids()]])
    out = model(**{n: x for n, x in encoding.items() if n != "token_type_ids"}, labels=labels)
    assert out.logits.shape == (1, 5, len(NAMES))
    assert out.entropy.shape == out.mutual_information.shape == out.ood_score.shape == (1, 5)
    expected = [
        torch.nn.functional.cross_entropy(z.flatten(0, 1), labels.flatten()) for z in out.member_logits
    ]
    assert float(out.loss) == pytest.approx(float(torch.stack(expected).mean()), abs=1e-6)
    found = hydractl.load(place / "hydra").predict(["the cat sat"]).probabilities[0]
    assert torch.allclose(out.logits.softmax(-1)[0, 1:4], found, atol=1e-6)


@pytest.mark.more
@pytest.mark.newer  # export needs torch 2.8
@pytest.mark.parametrize("model", ["base.st", pytest.param("hydra.st", marks=pytest.mark.more)])
def test_an_exported_model_answers_tokens(place, tmp_path, python, model):
    data = {"data": DataRef.parse(str(place / "val.jsonl")), "report": tmp_path / "r.json"}
    report = run_export(
        ExportConfig(model=str(place / model), out=tmp_path / "m.onnx", **data), ProgressLog()
    )
    rows = report.measured.rows
    assert rows[0].values["span_f1"].value == rows[1].values["span_f1"].value > 0
    assert max(report.differences.values()) < 1e-4
    said = subprocess.run(
        [python(), tmp_path / "m.onnx.py", "the cat sat"], capture_output=True, text=True, check=True
    )
    (line,) = map(json.loads, said.stdout.splitlines())
    found = hydractl.load(place / model).predict(["the cat sat"])
    assert [token["token"] for token in line["tokens"]] == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert tuple(token["label"] for token in line["tokens"][1:4]) == found.labels[0]
    assert [t["probability"] for t in line["tokens"][1:4]] == pytest.approx(
        found.probabilities[0].amax(-1).tolist(), abs=1e-4
    )


def test_padding_and_batches_change_nothing(place):
    model = hydractl.load(place / "hydra.st")
    together = model.predict(list(TEXTS[:5]), batch_size=5)
    for i, text in enumerate(TEXTS[:5]):
        alone = model.predict([text])
        words = len(alone.words[0])
        assert torch.allclose(alone.probabilities[0], together.probabilities[i, :words], atol=1e-6)
        assert alone.scores["msp"][0] == pytest.approx(float(together.scores["msp"][i]), abs=1e-6)


@pytest.mark.more
def test_ranks_of_texts_and_pages(place, tmp_path):
    report = evaluate(
        place, "hydra.st", near=NamedData.parse_all(f"long={place / 'long.jsonl'}"), far=NamedData.parse_all("letters=letters::limit=30"),
        compare=(NamedModels.parse(f"base={place / 'base.st'}"),), bootstrap=20, curves=True, out=tmp_path / "r.json",
    )  # fmt: skip
    assert {"auroc", "fpr95"} <= report.rows[0].ood["letters"].keys()
    assert {"span_auroc", "span_fpr95"} <= report.rows[0].ood["long"].keys() & report.definitions.keys()
    assert report.rows[0].values["span_f1"].low is not None
    assert report.rows[0].difference is None
    assert report.rows[1].difference.values["span_f1"].low is not None
    assert report.rows[0].by_class is not None
    run("report", tmp_path / "r.json", "-o", tmp_path / "r.html")
    assert "span F1" in (tmp_path / "r.html").read_text()


def test_what_was_chosen_and_is_not_there_is_said(place, tmp_path):
    write(tmp_path / "plain.jsonl", [{"text": "the the"}])
    report = evaluate(
        place, "base.st", far=NamedData.parse_all(f"plain={tmp_path / 'plain.jsonl'}"), metrics=("span_auroc", "auroc")
    )  # fmt: skip
    assert report.rows[0].ood["plain"].keys() == {"auroc"}
    assert "`span_auroc` is not measured: no row has it on these data" in report.warnings
    assert "span_auroc" not in report.definitions


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("eval", "base.st", "--data", "val.jsonl", "--sets", "0.9"), "`--sets`: needs models that answer one label"),
        (("eval", "base.st", "--data", "val.jsonl", "--label-thresholds"), "answers a label for each word"),
        (("eval", "base.st", "--data", "val.jsonl", "--metrics", "f1_micro"), "answer a list of labels"),
        (("eval", "texts", "--data", "one.jsonl::classes-by=position", "--metrics", "span_f1"), "answer a label for each word"),
        (("eval", "texts", "--data", "one.jsonl::classes-by=position", "--far", "x=one.jsonl", "--fail-if", "span_auroc[x]<1"), "answer a label for each word"),
        (("eval", "base.st", "--data", "one.jsonl"), "needs a label for each word"),
        (("eval", "base.st", "--data", "val.jsonl", "--compare", "x=texts"), "must answer the same kind of labels"),
        (("score", "base.st", "--method", "cahp", "--data", "val.jsonl", "-o", "s.json"), "compares classes of inputs"),
        (("finetune", "base.st", "--train", "val.jsonl", "--val", "val.jsonl", "--pooling", "mean", "-o", "x.st"), "pools nothing"),
        (("finetune", "base.st", "--train", "one.jsonl", "--val", "one.jsonl", "--keep-head", "-o", "x.st"), "answers a label for each word"),
        (("predict", "base.st", "val.jsonl", "--ood-score", "knn", "--train", "val.jsonl", "-o", "p.jsonl"), "compares features of classes"),
        (("fuse", "tuned-0.st", "tuned-1.st", "--train", "val.jsonl", "--val", "val.jsonl", "-o", "x.st"), "compare classes of inputs"),
    ],
)  # fmt: skip
def test_what_is_defined_for_other_labels_is_refused(place, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(place)
    write(place / "one.jsonl", [{"text": f"the {word}", "label": word} for word in WORDS[:2] * 6])
    if not (place / "texts").exists():
        save_text_model(variant("transformers-bert-plain"), place / "texts")
    assert main([*argv, "--force"] if argv[0] != "eval" else [*argv]) in {2, 3}
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_classifier_of_words_becomes_one_of_texts_and_back(place):
    write(place / "one.jsonl", [{"text": f"the {word}", "label": word} for word in WORDS[:2] * 6])
    config = FinetuneConfig(
        model=str(place / "base.st"), train=DataRef.parse(str(place / "one.jsonl")), out=place / "one.st",
        val=DataRef.parse(str(place / "one.jsonl")), recipe=Recipe(epochs=1), device="cpu", force=True,
    )  # fmt: skip
    run_finetune(config, ProgressLog())
    header = open_model(str(place / "one.st")).header
    assert (header.architecture.problem_type, header.preprocess.by_word) == (None, False)
    train(place, place / "one.st", "back.st")
    assert open_model(str(place / "back.st")).header.architecture.task.by_word


def test_tensors_are_not_texts(place):
    model = hydractl.load(place / "base.st")
    with pytest.raises(TypeError, match="give texts"):
        model.predict(model.encode(["the cat"]))
    assert model(model.encode(["the cat"])).shape == (1, 4, len(NAMES))
