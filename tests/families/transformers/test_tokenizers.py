"""Tokenizers in folders: present or missing, and padding and truncation on the library's side."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hydractl.data.batches import TokenBatches
from hydractl.data.tokenize import encode_texts, tokenize
from hydractl.errors import CheckpointError
from hydractl.families.open_model import load_model, open_model
from hydractl.families.registry import FAMILIES
from hydractl.families.tower import largest_difference
from hydractl.hub.layout import files_of
from hydractl.manifest.header import Tokenization
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.run import run_import
from support.builders import base, over_classes
from support.text_folders import WORDS, save_text_model, save_tokenizer
from support.variants import VARIANTS, variant

TEXTS = [
    v
    for v in VARIANTS
    if set(FAMILIES[v.family].towers) == {"text"} and "pooling" not in v.options and v.name != "tokens"
]
PAIRS = [v for v in VARIANTS if v.family in {"transformers-clip", "transformers-siglip"}]
ONE_EACH = list({v.family: v for v in reversed(TEXTS)}.values())
SENTENCES = [
    "the cat sat",
    "on the mat the cat sat on a mat on a cat",
    "mat",
    ("the cat", "sat on a mat"),
    ("the cat sat on the mat", "on a mat on a cat sat a cat"),
    ("a", "mat"),
]


@pytest.mark.parametrize("variant", [*ONE_EACH, *PAIRS], ids=str)
@pytest.mark.parametrize(
    "left", [(), ("tokenizer_config.json", "special_tokens_map.json")], ids=["nothing", "settings"]
)
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, variant, left):
    """The library would build a tokenizer without any words."""
    save_tokenizer(tmp_path / "t")
    base(variant).library().save_pretrained(tmp_path / "m")
    for name in left:
        if (tmp_path / "t" / name).is_file():
            (tmp_path / "m" / name).write_bytes((tmp_path / "t" / name).read_bytes())

    with pytest.raises(CheckpointError, match="m: has no tokenizer") as caught:
        open_model(str(tmp_path / "m"))
    assert "`tokenizer.json`" in caught.value.hint
    assert caught.value.exit_code == 3


def test_import_refuses_it_too_and_leaves_nothing(tmp_path):
    sample = base(variant("transformers-bert-plain"))
    sample.library().save_pretrained(tmp_path / "m")
    torch.save(sample.state, tmp_path / "w.pth")

    with pytest.raises(CheckpointError, match="has no tokenizer"):
        run_import(
            ImportConfig(sources=(str(tmp_path / "w.pth"),), arch=str(tmp_path / "m"), out=tmp_path / "o.st")
        )
    assert not (tmp_path / "o.st").exists()


def test_a_vocabulary_is_enough(tmp_path):
    bert = variant("transformers-bert-plain")
    base(bert).library().save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))

    preprocess = open_model(str(tmp_path)).header.preprocess
    assert encode_texts(["the cat"], preprocess)["input_ids"].tolist() == [[2, 4, 5, 3]]


def test_half_a_vocabulary_is_not(tmp_path):
    """Byte-pair encoding needs a file of merges."""
    base(variant("transformers-roberta-plain")).library().save_pretrained(tmp_path)
    vocabulary = {word: i for i, word in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>", "a"))}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))

    with pytest.raises(CheckpointError, match=r"its tokenizer cannot be read|has no tokenizer"):
        open_model(str(tmp_path))


def test_a_tokenizer_that_panics_is_one_error(tmp_path, capfd):
    save_text_model(variant("transformers-bert-plain"), tmp_path)
    file = tmp_path / "tokenizer.json"
    document = json.loads(file.read_text())
    file.write_text(
        json.dumps(document | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}})
    )
    capfd.readouterr()

    with pytest.raises(CheckpointError, match="its tokenizer cannot be read: Precompiled"):
        open_model(str(tmp_path))

    assert capfd.readouterr().err == ""


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", TEXTS, ids=str)
@torch.inference_mode()
def test_batches_are_answered_as_the_library_answers_one_text_at_a_time(tmp_path, variant):
    """For each padding side of the tokenizer, with and without token types."""
    save_text_model(variant, tmp_path)
    library = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    has_types = getattr(library.config, "type_vocab_size", 0) > 1
    for names in (("attention_mask",), ("attention_mask", "token_type_ids"))[: 1 + has_types]:
        change_tokenizer(
            tmp_path, padding_side="left", truncation_side="left", model_input_names=["input_ids", *names]
        )
        model_file, tokenizer = open_model(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
        preprocess = model_file.header.preprocess.model_copy(update={"max_length": 9})
        assert (preprocess.padding_side, preprocess.truncation_side, preprocess.names) == (
            "right",
            "left",
            names,
        )
        written = json.loads(files_of(model_file.header)["tokenizer_config.json"])
        assert (written["padding_side"], written["model_input_names"]) == ("right", ["input_ids", *names])
        limits = {"truncation": True, "max_length": 9, "return_tensors": "pt"}
        expected = torch.cat(
            [
                library(**tokenizer(*([text] if isinstance(text, str) else text), **limits)).logits
                for text in SENTENCES
            ]
        )
        expected = over_classes(expected, multi_label=model_file.header.architecture.task.by_label)
        model, tokens = load_model(model_file), tokenize(SENTENCES, preprocess)
        for batch_size in (1, 4, 64):
            for batch in TokenBatches.of(tokens, indices=range(len(tokens)), batch_size=batch_size):
                assert largest_difference(model(batch.inputs), expected[batch.indices]) <= 1e-5


@pytest.mark.parametrize("listed", [True, False])
def test_texts_of_one_length_are_padded_where_the_tokenizer_pads(tmp_path, listed):
    """At a fixed length, outputs do not depend on the batch. Only such tokenizers may return no mask."""
    save_text_model(variant("transformers-siglip-plain"), tmp_path)
    names = ["input_ids", *(["attention_mask"] if listed else [])]
    change_tokenizer(tmp_path, padding_side="left", model_input_names=names)

    preprocess = open_model(str(tmp_path)).header.prompting.tokenization

    found = encode_texts(["the cat", "mat"], preprocess)
    expected = AutoTokenizer.from_pretrained(tmp_path)(
        ["the cat", "mat"], padding="max_length", max_length=preprocess.max_length, return_tensors="pt"
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_sides_travel_and_the_usual_ones_are_not_written(tmp_path):
    preprocess = Tokenization(max_length=4, pad_id=0, vocab_size=9, padding="max_length")
    left = preprocess.model_copy(update={"padding_side": "left", "truncation_side": "left"})

    assert not {"padding_side", "truncation_side"} & json.loads(preprocess.model_dump_json()).keys()
    assert Tokenization.model_validate_json(left.model_dump_json()) == left


def test_a_stored_left_side_is_read_as_right_where_batches_have_any_length():
    stored = '{"max_length": 4, "pad_id": 0, "vocab_size": 9, "padding": "longest", "padding_side": "left"}'

    assert Tokenization.model_validate_json(stored).padding_side == "right"


@torch.inference_mode()
def test_a_mask_that_is_missing_is_all_ones():
    for one in (*ONE_EACH, variant("transformers-clip-plain")):
        sample = base(one)
        inputs = dict(sample.inputs())
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        bare = {k: v for k, v in inputs.items() if k != "attention_mask"}
        assert torch.equal(sample.model()(inputs), sample.model()(bare)), variant


def change_tokenizer(folder, **changes):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
