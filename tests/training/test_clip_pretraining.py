"""Training of a small CLIP from random weights: a folder of transformers, deterministic for a seed."""

from __future__ import annotations

import pytest
import torch

from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_data, open_items
from hydractl.data.tokenize import encode_texts
from hydractl.errors import UsageError
from hydractl.families.open_model import load_model, open_model
from hydractl.prediction.class_names import Naming, set_classes
from hydractl.training.clip_pretraining import PairConfig, train_pair, word_tokenizer

DATA = "shapes::split=val,classes=red star+blue circle,limit=48"
TEMPLATES = ("A photo of a {label}.", "the {label}")
SMALL = {"templates": TEMPLATES, "width": 24, "layers": 2, "heads": 3, "patch": 6, "batch_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("pair") / "clip"
    with torch.random.fork_rng():
        train_pair(open_data(DATA), out, PairConfig(epochs=12, lr=3e-3, **SMALL))
    return out


def test_a_folder_is_the_librarys_own(folder):
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    processor = AutoImageProcessor.from_pretrained(folder)
    images, model_file = open_data(DATA), open_model(str(folder))
    texts = ["a photo of a RED star.", "the blue circle"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    found = {
        "pixel_values": processor([images.image(0), images.image(40)], return_tensors="pt")["pixel_values"]
    }
    with torch.inference_mode():
        theirs = model(**found, input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        ours = load_model(model_file)(found | encode_texts(texts, model_file.header.prompting.tokenization))

    torch.testing.assert_close(ours, theirs.logits_per_image)
    assert torch.equal(
        encode_texts(texts, model_file.header.prompting.tokenization)["input_ids"], inputs["input_ids"]
    )
    preprocess = model_file.header.preprocess
    batch = next(iter(eval_batches(open_items(DATA, preprocess), preprocess, batch_size=1)))
    torch.testing.assert_close(batch.inputs, found["pixel_values"][:1], atol=1e-5, rtol=0)


def test_it_learns_which_caption_belongs_to_an_image(folder):
    model_file = open_model(str(folder))
    model, preprocess = load_model(model_file), model_file.header.preprocess
    items = open_items(DATA, preprocess)
    set_classes(model, model_file, Naming().classes(model_file, data=items.class_names))
    with torch.inference_mode():
        logits = torch.cat([model(batch.inputs) for batch in eval_batches(items, preprocess, batch_size=16)])

    assert (logits.argmax(-1) == torch.tensor(items.labels)).float().mean() > 0.9


def test_a_seed_decides_everything_and_nothing_outside_is_drawn_from(tmp_path):
    images, before = open_data(DATA), torch.random.get_rng_state()
    losses = [
        train_pair(images, tmp_path / name, PairConfig(epochs=1, seed=seed, **SMALL))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]

    found = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert found[0] == found[1] != found[2]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_tokenizer_knows_its_words_whatever_their_case():
    made = word_tokenizer(["A red star.", "the ring"])

    assert made.convert_ids_to_tokens(made("a RED Ring, green")["input_ids"]) == [
        "<begin>", "a", "red", "ring", "<unknown>", "<unknown>", "<end>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "multiple of `heads`"),
        ({"patch": 7}, "and `size` a multiple of `patch"),
        ({"epochs": 0}, "must be positive"),
        ({"lr": float("nan")}, "must be positive"),
        ({"templates": ()}, "must not be empty"),
        ({"templates": ("a {label}", "b")}, "must contain {label}"),
    ],
)
def test_settings_that_make_no_model_are_refused(changes, message):
    with pytest.raises(UsageError) as error:
        PairConfig(**({"templates": TEMPLATES} | changes))
    assert message in str(error.value)


def test_images_without_labels_have_no_captions(tmp_path):
    with pytest.raises(UsageError, match="captions"):
        train_pair(open_data("photos::limit=4"), tmp_path / "clip", PairConfig(templates=TEMPLATES))
    assert not [*tmp_path.iterdir()]
