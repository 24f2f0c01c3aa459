"""Tokenizers beside a model: found or missed, and texts padded and cut where the library pads and cuts them."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hydractl.data.tokenize import encode_texts
from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.opening import load_model, open_model
from hydractl.families.probe import largest_difference
from hydractl.families.registry import FAMILIES
from hydractl.manifest.header import Tokenization
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.run import run_import
from support.builders import base
from support.text_folders import WORDS, save_text_model, save_tokenizer
from support.variants import VARIANTS, variant

TEXTS = [v for v in VARIANTS if set(FAMILIES[v.family].towers) == {"text"} and "pooling" not in v.options]
PAIRS = [v for v in VARIANTS if v.family in {"transformers-clip", "transformers-siglip"}]
ONE_EACH = list({v.family: v for v in reversed(TEXTS)}.values())
REFUSED_LEFT = {"transformers-deberta", "transformers-modernbert", "transformers-ultrabert"}
SENTENCES = ["the cat sat", "on the mat the cat sat on a mat on a cat", "mat"]


@pytest.mark.parametrize("variant", [*ONE_EACH, *PAIRS], ids=str)
@pytest.mark.parametrize(
    "left", [(), ("tokenizer_config.json", "special_tokens_map.json")], ids=["nothing", "settings"]
)
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, variant, left):
    """The library makes one up, to which every word is unknown."""
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
            ImportConfig(source=str(tmp_path / "w.pth"), arch=str(tmp_path / "m"), out=tmp_path / "o.st")
        )
    assert not (tmp_path / "o.st").exists()


def test_a_vocabulary_is_enough(tmp_path):
    bert = variant("transformers-bert-plain")
    base(bert).library().save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))

    how = open_model(str(tmp_path)).header.preprocess
    assert encode_texts(["the cat"], how)["input_ids"].tolist() == [[2, 4, 5, 3]]


def test_half_a_vocabulary_is_not(tmp_path):
    """A byte-pair encoding needs its merges."""
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


@pytest.mark.parametrize("variant", [v for v in TEXTS if v.family not in REFUSED_LEFT], ids=str)
@torch.inference_mode()
def test_texts_padded_on_the_left_are_answered_as_the_library_answers_them(tmp_path, variant):
    save_text_model(variant, tmp_path)
    sided(tmp_path, padding_side="left", truncation_side="left")
    library = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    opened = open_model(str(tmp_path))
    how = opened.header.preprocess.model_copy(update={"max_length": 9})
    assert (how.padding_side, how.truncation_side) == ("left", "left")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    found = encode_texts(SENTENCES, how)
    expected = tokenizer(SENTENCES, padding=True, truncation=True, max_length=9, return_tensors="pt")
    kept = expected["attention_mask"].bool()
    assert torch.equal(found["attention_mask"], expected["attention_mask"])
    assert torch.equal(found["input_ids"][kept], expected["input_ids"][kept])
    assert not found["attention_mask"][:, 0].all()
    assert largest_difference(load_model(opened)(found), library(**found).logits) <= 1e-5


@pytest.mark.parametrize("variant", [v for v in ONE_EACH if v.family in REFUSED_LEFT], ids=str)
def test_where_a_padded_token_comes_out_otherwise_left_is_refused(tmp_path, variant):
    save_text_model(variant, tmp_path)
    sided(tmp_path, padding_side="left")

    with pytest.raises(UnsupportedModelError, match=f"pads texts on the left.*{variant.family}") as caught:
        open_model(str(tmp_path))
    assert '"padding_side": "right"' in caught.value.hint


def test_sides_travel_and_the_usual_ones_are_not_written(tmp_path):
    how = Tokenization(max_length=4, pad_id=0, vocab_size=9)
    left = how.model_copy(update={"padding_side": "left", "truncation_side": "left"})

    assert not {"padding_side", "truncation_side"} & json.loads(how.model_dump_json()).keys()
    assert Tokenization.model_validate_json(left.model_dump_json()) == left


@torch.inference_mode()
def test_a_mask_that_is_missing_is_all_ones():
    for one in (*ONE_EACH, variant("transformers-clip-plain")):
        sample = base(one)
        inputs = dict(sample.inputs())
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        bare = {k: v for k, v in inputs.items() if k != "attention_mask"}
        assert torch.equal(sample.model()(inputs), sample.model()(bare)), variant


def sided(folder, **sides):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | sides))
