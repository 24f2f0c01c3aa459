"""Texts on the command line: the whole method on a tiny BERT, and rejected inputs."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.cli.app import main
from hydractl.families.open_model import open_model
from hydractl.fusion.build import load_any
from support.predictions import SavedPredictions
from support.reviews import GADGETS, arch, gibberish, reviews

BARE = (
    "arch:bert::hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=48,vocab_size=22,"
    "num_labels=2"
)
IMAGES = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=1,num_heads=4,num_classes=2"


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory):
    """A folder with data and a trained base."""
    folder = tmp_path_factory.mktemp("texts")
    for name, count, seed in (("train", 160, 0), ("val", 40, 1), ("test", 40, 2)):
        reviews(folder / f"{name}.jsonl", count, seed=seed)
    reviews(folder / "gadgets.jsonl", 40, seed=3, things=GADGETS)
    gibberish(folder / "gibberish.jsonl", 40, seed=4)
    code = main(
        [
            "finetune", arch(folder), "--train", f"{folder}/train.jsonl", "--val", f"{folder}/val.jsonl", "--lr", "3e-3",
            "--epochs", "6", "--batch-size", "16", "-q", "-o", f"{folder}/base.st",
        ]
    )  # fmt: skip
    assert code == 0
    return folder


@pytest.fixture
def here(base_folder, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(base_folder, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.more
def test_the_whole_method(call, here, monkeypatch):
    def run(*argv):
        seen = call(*argv)
        assert seen.code == 0, seen.err
        return seen

    run("score", "base.st", "--data", "val.jsonl", "--ood", "gadgets.jsonl", "--remove", 4, "-o", "s.json")
    run("score", "base.st", "--data", "val.jsonl", "--method", "taylor", "--keep-heads", 2, "-o", "t.json")
    run(
        "prune", "base.st", "--scores", "s.json", "--remove", 2, "--members", 3, "--pool", 4, "-o", "m-{i}.st"
    )
    for i in range(3):
        run(
            "finetune", f"m-{i}.st", "--train", "train.jsonl", "--val", "val.jsonl", "--recipe", "sst2", "--lr", "1e-3",
            "--epochs", 1, "--max-length", 12, "--seed", i, "-o", f"f-{i}.st",
        )  # fmt: skip
    run("fuse", *(f"f-{i}.st" for i in range(3)), "-o", "hydra.st")
    (here / "tokenizer.json").unlink()  # The checkpoint contains the tokenizer.
    seen = run(
        "eval", "hydra.st", "--data", "test.jsonl", "--near", "gadgets=gadgets.jsonl", "--far", "noise=gibberish.jsonl",
        "--compare", "Single=base.st", "--no-latency", "--max-length", 16, "--save-predictions", "p.st", "-o", "r.json",
    )  # fmt: skip

    report = json.loads((here / "r.json").read_text())
    assert report["rows"][0]["values"]["accuracy"]["value"] > 0.9
    assert report["rows"][0]["members"] == 3
    assert set(report["rows"][0]["ood"]) == {"gadgets", "noise"}
    assert report["options"]["max_length"] == 16
    assert report["data"]["id"]["reference"] == "test.jsonl"
    assert "gadgets (near OOD: gadgets.jsonl, 40 samples)" in seen.out
    step = Checkpoint.open(here / "f-1.st").header.made_by
    assert (step.options["max_length"], step.options["schedule"], step.options["clip"]) == (12, "linear", 1.0)
    assert json.loads((here / "s.json").read_text())["options"].keys() == {
        "removals", "batch_size", "search",
    }  # fmt: skip
    predictions = SavedPredictions.load(here / "p.st")
    assert torch.equal(predictions.labels["id"], torch.tensor(labels_of(here / "test.jsonl")))


def labels_of(path):
    return [int(json.loads(line)["label"] == "positive") for line in path.read_text().splitlines()]


def predicted(call, here, name, *options):
    seen = call("eval", "base.st", "--data", "test.jsonl", "--no-latency", "--bootstrap", 0, "--force",
                "--save-predictions", name, *options)  # fmt: skip
    assert seen.code == 0, seen.err
    return SavedPredictions.load(here / name).log_probs["base"]["id"]


def test_predictions_come_in_the_datas_order_whatever_the_batches(call, here):
    model = load_any(open_model("base.st"))
    one = predicted(call, here, "one.st", "--batch-size", 1)

    for batch_size in (3, 64):
        found = predicted(call, here, "many.st", "--batch-size", batch_size)
        torch.testing.assert_close(found, one, atol=1e-5, rtol=1e-5)
        assert torch.equal(found, predicted(call, here, "again.st", "--batch-size", batch_size))
    # Compute a text by hand.
    from hydractl.data.tokenize import encode_texts

    preprocess = open_model("base.st").header.preprocess
    text = json.loads((here / "test.jsonl").read_text().splitlines()[7])["text"]
    expected = model.member_logits(encode_texts([text], preprocess)).log_softmax(-1)
    torch.testing.assert_close(one[:, 7:8], expected, atol=1e-5, rtol=1e-5)


def test_the_datas_order_changes_no_prediction(call, here):
    one = predicted(call, here, "one.st")
    lines = (here / "test.jsonl").read_text().splitlines(keepends=True)
    (here / "test.jsonl").write_text("".join(lines[::-1]))

    torch.testing.assert_close(predicted(call, here, "two.st").flip(1), one, atol=1e-5, rtol=1e-5)


def test_a_run_goes_on_where_it_was_and_gives_the_same_bytes(call, here, monkeypatch):
    from hydractl.training.trainer import TrainingRun

    argv = ("finetune", "base.st", "--train", "train.jsonl", "--val", "val.jsonl", "--steps", 12, "--save-every", 5,
            "--dropout", 0.1, "-o")  # fmt: skip
    assert call(*argv, "whole.st").code == 0
    step, taken = TrainingRun.step, []

    def stop(self, pieces):
        if len(taken) == 7:
            raise KeyboardInterrupt
        taken.append(0)
        step(self, pieces)

    monkeypatch.setattr(TrainingRun, "step", stop)
    assert call(*argv, "parts.st").code == 130
    monkeypatch.setattr(TrainingRun, "step", step)
    seen = call(*argv, "parts.st")

    assert "Resuming at step 7" in seen.err
    assert (here / "whole.st").read_bytes() == (here / "parts.st").read_bytes()


def test_pieces_of_a_batch_change_nothing(call, here):
    # SGD, because Adam turns rounding errors into steps if a gradient is zero. No attention dropout, because
    # attention draws dropout per piece of a batch.
    model = f"{arch(here)},attention_probs_dropout_prob=0.0"
    argv = ("finetune", model, "--train", "train.jsonl", "--val", "val.jsonl", "--optimizer", "sgd", "--lr", 0.1,
            "--steps", 4, "--dropout", 0.1)  # fmt: skip
    assert call(*argv, "-o", "one.st").code == call(*argv, "--accumulate", 3, "-o", "three.st").code == 0

    one, three = (Checkpoint.open(here / name).tensors() for name in ("one.st", "three.st"))
    for name, tensor in one.items():
        torch.testing.assert_close(three[name], tensor, atol=1e-5, rtol=1e-4)


def test_inspect_tells_the_tokenizer_but_does_not_dump_it(call, here):
    seen, told = call("inspect", "base.st"), call("inspect", "base.st", "--json")

    assert "at most 24 tokens per text" in " ".join(seen.out.split())
    assert "token_type_ids" in seen.out
    preprocess = json.loads(told.out)["model"]["preprocess"]
    assert preprocess["tokenizer"].startswith("sha256:")
    assert "post_processor" not in seen.out + told.out


def test_no_path_gets_into_a_checkpoint(here):
    text = (here / "base.st").read_bytes()

    assert b"/tokenizer.json" not in text
    assert b"tokenizer=tokenizer.json" in text


@pytest.mark.parametrize(
    ("argv", "code", "message", "hint"),
    [
        (("eval", "base.st", "--data", "test.jsonl::text=words"), 3, "has no column `words` for `text=`", "`text`, `label`"),
        (("eval", "base.st", "--data", "empty.jsonl"), 3, "empty.jsonl: has no rows", ""),
        (("eval", "base.st", "--data", "other.jsonl"), 3, "none of its columns (`words`)", "::text=FIRST+SECOND"),
        (("eval", "base.st", "--data", "digits"), 3, "`digits` are images, but the model reads texts", "hf:org/name"),
        (("eval", "base.st", "--data", "test.jsonl", "--far", "noise=noise"), 3, "`noise` are images", "folder of .txt"),
        (("eval", BARE, "--data", "test.jsonl"), 3, "is a text model without a tokenizer", "tokenizer=PATH"),
        (("score", BARE, "--data", "test.jsonl", "--objective", "acc", "-o", "x"), 3, "without a tokenizer", "PATH"),
        (("finetune", BARE, "--train", "test.jsonl", "--val", "test.jsonl", "-o", "x"), 3, "without a tokenizer", "PATH"),
        (("eval", IMAGES, "--data", "test.jsonl"), 3, "has one of the names `image`", "column `text` seems to contain texts"),
        (("eval", "base.st", "--data", "test.jsonl", "--compare", f"i={IMAGES}"), 3, "reads images, base.st reads texts", ""),
        (("eval", IMAGES, "--data", "digits", "--max-length", 4), 2, "`--max-length` is for texts", "leave it out"),
        (("eval", "base.st", "--data", "test.jsonl", "--max-length", 99), 2, "at most 24 tokens", "--max-length 24"),
        (("eval", "base.st", "--data", "test.jsonl", "--max-length", 2), 2, "leave no room for a text", "--max-length 5"),
        (("score", "base.st", "--method", "random", "--max-length", 8, "-o", "x"), 2, "it reads no data", ""),
        (("finetune", "base.st", "--train", "test.jsonl", "--val", "test.jsonl", "--augment", "flip", "-o", "x"), 2,
         "is for images, but the model reads texts", "leave it out"),
        (("finetune", "base.st", "--train", "test.jsonl", "--val", "test.jsonl", "--recipe", "vit-finetune", "-o", "x"), 2,
         "`--recipe vit-finetune` is for images, but base.st reads texts", "recipes for texts: sst2, sst2-base"),
        (("finetune", "base.st", "--train", "test.jsonl", "--val", "test.jsonl", "--recipe", "vit-finetune", "--augment",
          "none", "-o", "x"), 2, "`--recipe vit-finetune` is for images, but base.st reads texts", "bert-finetune"),
        (("finetune", "base.st", "--train", "test.jsonl", "--val", "test.jsonl", "--recipe", "cifar100", "--augment", "flip",
          "-o", "x"), 2, "`--augment flip` is for images, but the model reads texts", "leave it out"),
        (("finetune", "base.st", "--train", "gibberish.jsonl", "--val", "test.jsonl", "-o", "x"), 3, "has no labels", ""),
    ],
)  # fmt: skip
def test_what_is_refused(call, here, argv, code, message, hint):
    (here / "empty.jsonl").write_text("")
    (here / "other.jsonl").write_text('{"words": "a"}\n')
    before = sorted(p.name for p in here.iterdir())

    seen = call(*argv)

    assert (seen.code, seen.out) == (code, "")
    assert message in seen.err
    assert hint in seen.err
    assert sorted(p.name for p in here.iterdir()) == before
