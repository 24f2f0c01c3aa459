"""A small decoder, trained on queries of CLINC150, passes through all stages of the example pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from hydractl.cli.app import main
from hydractl.data.datasets import Content, TextSet, of_kind
from hydractl.data.open_dataset import open_data
from hydractl.manifest.head_mask import HeadMask
from hydractl.manifest.report import Report

SPECIAL = ["[PAD]", "[UNK]"]
SETTINGS = {
    "train": "intents::split=train", "val": "intents::split=val", "test": "intents::split=test", "near": "intents::domain=near",
    "far": "intents::domain=far", "epochs": 20, "tuning": 2,
}  # fmt: skip


def tokenizer(path: Path) -> int:
    """Write a tokenizer for the words of the training texts, and return the vocabulary size."""
    made = Tokenizer(models.WordLevel(unk_token=SPECIAL[1]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = of_kind(open_data(SETTINGS["train"], content=Content.TEXTS), TextSet).texts
    made.train_from_iterator((text for text in texts), trainers.WordLevelTrainer(special_tokens=SPECIAL))
    made.save(str(path))
    return made.get_vocab_size()


@pytest.mark.more
def test_a_decoder_of_intents_goes_through_the_pipeline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = tokenizer(Path("tokenizer.json"))
    assert main(["run", "--example", "decoder"]) == 0
    Path("x.toml").write_text(capsys.readouterr().out)
    model = (
        "arch:llama::hidden_size=64,num_hidden_layers=3,num_attention_heads=8,num_key_value_heads=4,intermediate_size=128,"
        "num_labels=20,max_position_embeddings=64,initializer_range=0.1,pad_token_id=0,"
        f"vocab_size={words},tokenizer=tokenizer.json"
    )
    sets = [f"--set={name}={value}" for name, value in {**SETTINGS, "model": model}.items()]

    assert main(["run", "x.toml", *sets, "--from", "start"]) == 0

    rows = {
        row.name: {n: x.value for n, x in row.values.items()} for row in Report.read(Path("report.json")).rows
    }
    hydra, single, apart = rows["hydra"], rows["Single"], rows["Members apart"]
    assert single["accuracy"] > 0.4  # of 20 classes
    assert hydra["accuracy"] > single["accuracy"] - 0.05
    assert hydra["nll"] < single["nll"] + 0.05
    assert hydra["accuracy"] == pytest.approx(apart["accuracy"], abs=0.05)
    assert hydra["parameters"] < apart["parameters"] < 3 * single["parameters"]
    for i in range(3):
        mask = HeadMask.read(Path(f"pruned-{i}.mask.json")).towers["text"]
        assert mask.num_kept == 18
        assert all({*heads} == {head ^ 1 for head in heads} for heads in mask.keep)
