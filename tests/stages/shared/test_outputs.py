"""No command overwrites an input, even with `--force`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from hydractl.cli.app import main
from support.builders import base
from support.pairs import pair
from support.reviews import arch, reviews
from support.text_folders import save_text_model
from support.variants import variant

BERT = variant("transformers-bert-plain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("work")
    save_text_model(BERT, made / "bert")
    pair("clip", made).save(made / "clip.st")
    base().save(made / "vit.st")
    for name in ("train.jsonl", "val.jsonl", "ood.csv"):
        reviews(made / name, 12, seed=1)
    (made / "ood.csv").write_text("text\nthe film\nthe plot\n")
    (made / "reference.txt").write_text(arch(made))
    (made / "names.txt").write_text("cat\ndog\n")
    for label in ("0", "1"):
        (made / "images" / label).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), 40 * i).save(made / "images" / label / f"{i}.png")
    return made


TUNE = [
    "finetune",
    "{text}",
    "--train",
    "{f}/train.jsonl",
    "--val",
    "{f}/val.jsonl",
    "--lr",
    "1e-3",
    "--epochs",
    "1",
]
SCORE = ["score", "{text}", "--data", "{f}/val.jsonl", "--ood", "{f}/ood.csv"]
CASES = {
    "training data": [*TUNE, "-o", "{f}/train.jsonl"],
    "validation data": [*TUNE, "-o", "{f}/val.jsonl"],
    "a tokenizer": [*TUNE, "-o", "{f}/tokenizer.json"],
    "scored data": [*SCORE, "-o", "{f}/val.jsonl"],
    "far data": [*SCORE, "-o", "{f}/ood.csv"],
    "an image of a folder": ["score", "{f}/vit.st", "--data", "{f}/images", "--objective", "acc", "-o", "{f}/images/0/1.png"],
    "a configuration": ["score", "{f}/bert", "--data", "{f}/val.jsonl", "--objective", "acc", "-o", "{f}/bert/config.json"],
    "a folder's tokenizer": ["score", "{f}/bert", "--data", "{f}/val.jsonl", "--objective", "acc", "-o", "{f}/bert/tokenizer.json"],
    "weights": ["score", "{f}/bert", "--data", "{f}/val.jsonl", "--objective", "acc", "-o", "{f}/bert/model.safetensors"],
    "a list of names": ["fuse", "{f}/clip.st", "--classes", "{f}/names.txt", "-o", "{f}/names.txt"],
    "a report over data": ["eval", "{f}/vit.st", "--data", "{f}/images", "-o", "{f}/images/1/0.png"],
    "predictions over far data": ["eval", "{f}/bert", "--data", "{f}/val.jsonl", "--far", "{f}/ood.csv", "--save-predictions", "{f}/ood.csv"],
    "a configuration that import reads": ["import", "{f}/bert/model.safetensors", "--arch", "{f}/bert", "-o", "{f}/bert/config.json"],
    "the labels of import": ["import", "{f}/bert/model.safetensors", "--arch", "{f}/bert", "--labels", "{f}/names.txt", "-o", "{f}/names.txt"],
    "a pruned folder": ["prune", "{f}/bert", "--method", "random", "--remove", "1", "-o", "{f}/bert/config.json"],
}  # fmt: skip


@pytest.mark.parametrize("argv", CASES.values(), ids=CASES)
def test_an_input_is_never_written_over(folder, argv, capsys, tmp_path):
    filled = [word.format(f=folder, text=(folder / "reference.txt").read_text()) for word in argv]
    if filled[0] == "prune":
        filled[2:4] = ["--scores", str(scores(folder))]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    suffix = ".json" if filled[0] in {"score", "eval"} and filled[-2] == "-o" else ".st"
    if Path(filled[-1]).suffix not in {suffix, ".safetensors" if suffix == ".st" else suffix}:
        assert main([*filled, "--force"]) == 2
        assert re.search(rf"must have the suffix .*\{suffix}\b", capsys.readouterr().err)
        link = tmp_path / f"link{suffix}"  # same input under another name
        link.symlink_to(filled[-1])
        filled[-1] = str(link)

    assert main([*filled, "--force"]) == 6, capsys.readouterr().err

    assert f"{filled[-1]}: is an input of this command" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_other_files_beside_a_model_may_be(folder):
    """A folder of weights may get additional files, unlike a folder of data."""
    out = folder / "bert" / "scores-of-mine.json"
    argv = ["score", str(folder / "bert"), "--method", "magnitude", "-o", str(out), "-q"]
    assert main(argv) == 0
    assert main([*argv, "--force"]) == 0
    out.unlink()


def scores(folder):
    path = folder / "scores.json"
    if not path.exists():
        assert main(["score", str(folder / "bert"), "--method", "magnitude", "-o", str(path), "-q"]) == 0
    assert json.loads(path.read_text())["method"] == "magnitude"
    return path
