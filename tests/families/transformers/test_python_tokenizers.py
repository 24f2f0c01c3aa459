"""Tokenizers in Python only: tokens equal transformers' at every stage, and others are refused."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hydractl
from hydractl.data.tokenize import encode_texts, require_tokenizer
from hydractl.errors import InputError, UnsupportedModelError
from hydractl.families.open_model import open_model
from hydractl.hub.layout import files_of
from hydractl.manifest.header import Tokenization
from hydractl.manifest.tokenizers import SETTINGS
from support.builders import base
from support.variants import variant

PROTEINS = ("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC", "<mask>")
MERGES = "t h 9\nth e</w> 8\nc a 7\nca t</w> 6\n"
PIECES = "the 4\ncat 5\nc@@ 6\na@@ 7\nt 8\nth@@ 9\ns 10\n"
WORDS = {
    "EsmTokenizer": ("transformers-esm-rotary", {"vocab.txt": "\n".join(PROTEINS)}),
    "BertweetTokenizer": ("transformers-roberta-plain", {"vocab.txt": PIECES, "bpe.codes": MERGES}),
    "PhobertTokenizer": ("transformers-roberta-plain", {"vocab.txt": PIECES, "bpe.codes": MERGES}),
}
ADDED = {"id": 30, "content": "cat", "special": False}
TEXTS = ["MKT LAG", "the cat", "", "LAGVSERTIDPKQNFYMHWC" * 3, "<eos> the </s> cats", ("the", "MKTQ cat")]


def encoded(value):
    return b64encode(json.dumps(value).encode()).decode()


def save_model(name, folder, **settings):
    model, files = WORDS[name]
    base(variant(model)).library().save_pretrained(folder)
    for file, content in files.items():
        (folder / file).write_text(content)
    settings = {"tokenizer_class": name, "name_or_path": "/home/somebody", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def check_tokens(preprocess, folder, *, max_length):
    """Compare with the library for single texts. Truncation is on the side in the tokenizer's settings."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        parts = [text] if isinstance(text, str) else text
        found = encode_texts([text], preprocess.model_copy(update={"max_length": max_length}))
        expected = tokenizer(*parts, truncation=True, max_length=max_length, return_tensors="pt")
        assert torch.equal(found["input_ids"], expected["input_ids"])
    assert preprocess.pad_id == tokenizer.pad_token_id


@pytest.mark.parametrize("name", WORDS)
@torch.inference_mode()
def test_texts_are_answered_as_the_library_answers_them(tmp_path, name):
    save_model(name, tmp_path / "m", truncation_side="left")
    library = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")

    model = hydractl.load(tmp_path / "m")
    check_tokens(model.header.preprocess, tmp_path / "m", max_length=7)
    probabilities = model.predict(TEXTS[:4]).probabilities
    for i, text in enumerate(TEXTS[:4]):
        expected = library(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
        assert torch.allclose(probabilities[i].float(), expected, atol=1e-5)


@pytest.mark.parametrize("name", WORDS)
def test_a_checkpoint_and_the_folder_made_of_it_hold_the_tokenizer(tmp_path, name):
    save_model(name, tmp_path / "m")
    header = open_model(str(tmp_path / "m")).header
    stored = type(header).model_validate_json(header.model_dump_json(by_alias=True))
    (tmp_path / "again").mkdir()
    for file, content in files_of(stored).items():
        (tmp_path / "again" / file).write_bytes(content)

    assert "/home" not in "".join(content.decode() for content in files_of(stored).values())
    for folder in ("m", "again"):
        check_tokens(stored.preprocess, tmp_path / folder, max_length=9)


def test_siglip_is_read_with_sentencepiece_also_beside_a_tokenizer_json(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    base(variant("transformers-siglip-plain")).library().save_pretrained(tmp_path)
    (tmp_path / "texts").write_text("a photo of a cat\nthe big dog\na drawing of three numbers\n" * 9)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts"), model_prefix=str(tmp_path / "spiece"), vocab_size=24, pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [ADDED]}))

    preprocess = open_model(str(tmp_path)).header.prompting.tokenization

    texts = ["A photo of a Cat!", "a cat", "the dog", ""]
    expected = AutoTokenizer.from_pretrained(tmp_path)(
        texts, padding="max_length", return_tensors="pt", max_length=20
    )
    assert torch.equal(encode_texts(texts, preprocess)["input_ids"], expected["input_ids"])


def test_without_sentencepiece_the_package_is_named(tmp_path, monkeypatch):
    import importlib.util

    base(variant("transformers-siglip-plain")).library().save_pretrained(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "hydractl.families.transformers.text.find_spec",
        lambda name: None if name == "sentencepiece" else find(name),
    )

    with pytest.raises(UnsupportedModelError, match="sentencepiece, which is not installed") as caught:
        open_model(str(tmp_path))
    assert "hydractl[sentencepiece]" in caught.value.hint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer_class": "CanineTokenizer"}, "is a CanineTokenizer, .* cannot be stored in a checkpoint"),
        (
            {"tokenizer_class": "BertweetTokenizer", "normalization": True},
            ("its tokenizer normalizes emoji with a package that is not installed"),
        ),
        ({"sp_model_kwargs": {"model_file": "other.model"}}, "`sp_model_kwargs` is set"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused_when_it_is_opened(tmp_path, monkeypatch, settings, message):
    monkeypatch.setitem(__import__("sys").modules, "emoji", None)
    save_model("BertweetTokenizer", tmp_path, **settings)

    with pytest.raises(UnsupportedModelError, match=message) as caught:
        open_model(str(tmp_path))
    assert caught.value.hint


def test_a_tokenizer_that_splits_special_tokens_is_refused(tmp_path):
    from support.text_folders import save_text_model

    save_text_model(variant("transformers-bert-plain"), tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split_special_tokens": True}))

    with pytest.raises(UnsupportedModelError, match="split_special_tokens"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"tokenizer_class": "AutoTokenizer", "files": {}}, "is a `AutoTokenizer`, not one of"),
        ({"tokenizer_class": "EsmTokenizer", "files": {"../vocab.txt": ""}}, r"`\.\./vocab.txt`, which is not a file"),
        ({"tokenizer_class": "EsmTokenizer", "files": {SETTINGS: encoded({"sp_model_kwargs": {"a": 1}})}}, "`sp_model_kwargs`"),
        ({"tokenizer_class": "EsmTokenizer", "files": {SETTINGS: encoded([])}}, "cannot be read|not a class"),
        ({"tokenizer_class": "EsmTokenizer", "files": {"vocab.txt": "&"}}, "not a class of transformers and its"),
        ({"tokenizer_class": "EsmTokenizer", "files": []}, "not a class of transformers and its files"),
        ({"tokenizer_class": "EsmTokenizer", "files": {}}, "cannot be read"),
        (
            {"tokenizer_class": "PhobertTokenizer", "files": {"vocab.txt": b64encode(b"x").decode(), "bpe.codes": ""}},
            "cannot be read",
        ),
    ],
)  # fmt: skip
def test_a_header_with_another_tokenizer_is_one_error(stored, message):
    preprocess = Tokenization(
        tokenizer=json.dumps(stored, separators=(",", ":")), max_length=9, pad_id=0, vocab_size=30
    )

    with pytest.raises(InputError, match=message):
        require_tokenizer(preprocess, model="m.st")
