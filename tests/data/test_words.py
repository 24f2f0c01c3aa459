"""Words for token classification: their spans, first tokens, and windows of long texts."""

from __future__ import annotations

import json
import shlex
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hydractl.data.batches import eval_batches
from hydractl.data.datasets import Content, TextSet
from hydractl.data.labels import check_training_labels, model_labels, required_labels
from hydractl.data.open_dataset import open_data, open_items
from hydractl.data.tokenize import offset_tokenizer
from hydractl.data.words import WordSet, by_word, tokens_of, whole_words
from hydractl.errors import DataError, UnsupportedModelError
from hydractl.manifest.head_mask import TowerHeads
from hydractl.manifest.header import Architecture, Tokenization
from hydractl.tasks import TOKENS

TEXTS = (
    "Anna Smith-Jones flew to New York on Friday, didn't she?",
    "the hotel (booked by anna) costs $12.50... really",
    "Ünknown ﬁ words 🐈 in  two   blanks",
    "x",
    "friday",
    "",
)
CORPUS = [*TEXTS, "hotels in new york were booked on fridays by anna smith and others"] * 3
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
NAMED = {"pad_token": "[PAD]", "unk_token": "[UNK]"}


@cache
def wordpiece():
    made = Tokenizer(models.WordPiece(unk_token=SPECIAL[1]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(CORPUS[3:6], trainers.WordPieceTrainer(vocab_size=90, special_tokens=SPECIAL))
    return made


@cache
def byte_level():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return made


@cache
def unigram():
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token=SPECIAL[1])
    )
    return made


def reading(made, *, max_length=64, **options):
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return Tokenization(
        tokenizer=made.to_str(), max_length=max_length, pad_id=0, vocab_size=400, by_word=True, **options
    )


KINDS = {"wordpiece": wordpiece, "byte-level": byte_level, "unigram": unigram}
every_kind = pytest.mark.parametrize("kind", KINDS)


def architecture(names):
    return Architecture(
        library="transformers", name="bert", family="transformers-bert", config={}, num_classes=names,
        towers={"text": TowerHeads(layers=1, num_heads=1, head_dim=1)}, problem_type="token_classification",
    )  # fmt: skip


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


ROWS = (
    {"tokens": ["Anna", "Smith", "flew"], "ner_tags": ["B-PER", "I-PER", "O"]},
    {"tokens": ["to", "New", "York", "."], "ner_tags": ["O", "B-LOC", "I-LOC", "O"]},
)
NAMES = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


@every_kind
@given(
    st.lists(
        st.sampled_from(["Anna", "flew", "didn't", "x", "hotels-in-new-york", "12.50"]),
        min_size=1,
        max_size=60,
    ),
    st.integers(5, 30),
)
@settings(max_examples=30, deadline=None)
def test_of_a_long_text_each_word_is_answered_once(kind, words, max_length):
    """Windows have at most `max_length` tokens, and contain the answered words with context."""
    preprocess = reading(KINDS[kind](), max_length=max_length)
    begins = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    spans = tuple((begin, begin + len(word)) for begin, word in zip(begins, words, strict=True))
    tags = tuple(range(len(words)))
    text = WordSet(
        name="t", texts=(" ".join(words), "x"), words=(spans, ((0, 1),)), labels=(tags, (0,)), task=TOKENS,
        class_names=tuple(map(str, tags)),
    )  # fmt: skip
    rows = by_word(text, preprocess)
    assert whole_words(text, rows) == [(text.texts[0], list(spans)), ("x", [(0, 1)])]
    assert [tag for row in rows.labels[:-1] for tag in row] == list(tags)
    assert all(rows.words)
    tokens = tokens_of(rows, preprocess)
    tokenizer = offset_tokenizer(preprocess)
    longest = max(len(tokenizer.encode(word).ids) for word in words)
    lists = [[text[b:e] for b, e in row] for text, row in zip(rows.texts, rows.pieces, strict=True)]
    lengths = [len(tokenizer.encode(row, is_pretokenized=True).ids) for row in lists]
    assert max(lengths) <= max(max_length, longest)
    assert (tokens.word_starts >= 0).sum(1).tolist() == [len(row) for row in rows.words]
    values = torch.full((1, *tokens.word_starts.shape), float("nan"))
    for row, of_row in zip(values[0], rows.labels, strict=True):
        row[: len(of_row)] = torch.tensor(of_row, dtype=torch.float32)
    assert rows.by_document(values)[0, 0, : len(words)].tolist() == list(tags)
    assert rows.fingerprint() == text.fingerprint()
    assert rows.total == 2
    if len(rows) == 2:
        assert rows.documents == ()


def test_neighbours_of_a_word_are_read_with_it():
    preprocess = reading(wordpiece(), max_length=18)
    text = WordSet(name="t", texts=("x " * 100,), words=(tuple((2 * i, 2 * i + 1) for i in range(100)),))
    rows = by_word(text, preprocess)
    for row, spans in zip(rows.texts[1:-1], rows.words[1:-1], strict=True):
        assert spans[0][0] >= 2
        assert len(row) - spans[-1][1] >= 2
        assert row.count("x") == 16
    assert len(rows) == 8


def test_a_word_that_is_longer_than_a_window_costs_no_other_its_neighbours():
    preprocess = reading(wordpiece(), max_length=18)
    words = ["x"] * 20 + ["x,x" * 30] + ["x"] * 20
    begins = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    spans = tuple((begin, begin + len(word)) for begin, word in zip(begins, words, strict=True))
    rows = by_word(WordSet(name="t", texts=(" ".join(words),), words=(spans,)), preprocess)
    assert [len(row) for row in rows.words] == [14, 6, 1, 14, 6]
    assert tokens_of(rows, preprocess).lengths.max() == 18
    assert (tokens_of(rows, preprocess).word_starts >= 0).sum() == 41


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_hold_the_words_of_their_rows(tmp_path, side):
    length = {"padding": "max_length", "padding_side": side}
    preprocess = reading(wordpiece(), max_length=24, **(length if side == "left" else {}))
    items = open_items(str(write(tmp_path / "t.jsonl", ROWS)), preprocess)
    for batch_size in (1, 2):
        for batch in eval_batches(items, preprocess, batch_size=batch_size):
            assert batch.inputs["word_starts"].shape[1] == 4
            for ids, starts, i in zip(
                batch.inputs["input_ids"], batch.inputs["word_starts"], batch.indices.tolist(), strict=True
            ):
                first = [offset_tokenizer(preprocess).encode(word).ids[1] for word in ROWS[i]["tokens"]]
                assert ids[starts[starts >= 0]].tolist() == first
                assert starts[len(first) :].tolist() == [-1] * (4 - len(first))


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "csv"])
def test_tables_hold_a_label_for_each_word(tmp_path, suffix):
    import pandas as pd

    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        pd.DataFrame([{k: json.dumps(v) for k, v in row.items()} for row in ROWS]).to_csv(path, index=False)
    elif suffix == "parquet":
        pd.DataFrame(ROWS).to_parquet(path)
    else:
        path.write_text(json.dumps(ROWS) if suffix == "json" else "\n".join(map(json.dumps, ROWS)))
    items = open_items(str(path), reading(wordpiece()))
    assert (items.class_names, items.task) == (NAMES, TOKENS)
    assert items.texts == ("Anna Smith flew", "to New York .")
    assert items.labels == ((1, 3, 4), (4, 0, 2, 4))
    assert [items.texts[1][b:e] for b, e in items.words[1]] == ROWS[1]["tokens"]
    labels = model_labels(items, (4, 3, 2, 1, 0), "--data", architecture=architecture(5))
    assert labels.tolist() == [[3, 1, 0, -100], [0, 4, 2, 0]]


SPLIT = [
    ("tokens", "tags", " ", "label-separator=space"),
    ("words", "ner_tags", ",", "label-separator=,"),
    ("sentence", "word_labels", ",", "text=sentence,label=word_labels,label-separator=comma"),
]


@pytest.mark.parametrize(("text", "label", "separator", "option"), SPLIT)
def test_a_separator_makes_labels_of_words(tmp_path, text, label, separator, option):
    import pandas as pd

    path = tmp_path / "t.csv"
    joined = [(" ".join(row["tokens"]), separator.join(row["ner_tags"])) for row in ROWS]
    pd.DataFrame(joined, columns=[text, label]).to_csv(path, index=False)
    items = open_items(f"{path}::{option}", reading(wordpiece()))
    assert items.labels == ((1, 3, 4), (4, 0, 2, 4))
    assert [items.texts[1][b:e] for b, e in items.words[1]] == ROWS[1]["tokens"]


@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_words_that_pandas_writes(tmp_path, form):
    import pandas as pd

    path = tmp_path / "t.csv"
    words = ["it's", "a", '"quote"', "[", "O'Neil", "1"] * 30
    tags = ["O", "B-PER", "O", "I-PER", "O", "O"] * 30
    pd.DataFrame({"tokens": [form(words)] * 2, "ner_tags": [form(tags)] * 2}).to_csv(path, index=False)
    items = open_data(str(path), content=Content.TEXTS)
    assert [items.texts[1][b:e] for b, e in items.words[1]] == words
    assert [items.class_names[i] for i in items.labels[1]] == tags


def test_class_names_of_the_hub_and_words_that_are_not_asked_about(tmp_path):
    import datasets

    features = datasets.Features({
        "tokens": datasets.Sequence(datasets.Value("string")),
        "pos_tags": datasets.Sequence(datasets.Value("string")),
        "ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER", "I-PER"])),
    })  # fmt: skip
    rows = [{"tokens": ["Anna", "Smith", "flew"], "pos_tags": ["N", "N", "V"], "ner_tags": [1, -100, 0]}]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "saved")
    items = open_items(f"{tmp_path}/saved", reading(wordpiece()))
    assert (items.class_names, items.labels) == (("O", "B-PER", "I-PER"), ((1, 0),))
    assert [items.texts[0][b:e] for b, e in items.words[0]] == ["Anna", "flew"]
    assert open_items(f"{tmp_path}/saved::label=pos_tags", reading(wordpiece())).labels == ((0, 0, 1),)


@pytest.mark.parametrize("suffix", ["conll", "bio", "iob", "iob2"])
def test_files_of_a_word_a_line(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    path.write_text(
        "-DOCSTART- -X- O O\n\nAnna NN X B-PER\nSmith NN X I-PER\nflew VB X O\n\n\n"
        "-DOCSTART- -X- O O\n\nto\tTO\tX\tO\r\nNew NN Y B-LOC\nYork NN Y I-LOC\n. . X O"
    )
    items = open_items(str(path), reading(wordpiece()))
    assert (items.texts, items.class_names) == (("Anna Smith flew", "to New York ."), NAMES)
    assert items.labels == ((1, 3, 4), (4, 0, 2, 4))
    assert open_items(f"{path}::label=column 2", reading(wordpiece())).class_names == (".", "NN", "TO", "VB")
    path.write_text("-DOCSTART- O\nAnna O\n-DOCSTART- O\n10\u00a0000 O\na\u2028b  O \n \n\x85 O")
    assert open_items(str(path), reading(wordpiece())).texts == ("Anna", "10\u00a0000 a\u2028b")
    path.write_text("Anna B-PER\n\nflew\n")
    with pytest.raises(DataError, match="line 3 has 1 columns, but the first word has 2"):
        open_items(str(path), reading(wordpiece()))


COMMENTED = [
    ("# id 12\nAnna NN B-PER\nflew VB O\n\n# id 13\nRome NN O\n", ["Anna flew", "Rome"]),
    (
        "# sent_id = 12\n# text = Anna flew\nAnna B-PER\nflew O\n\n\n# newpar\n#\nRome O\n",
        ["Anna flew", "Rome"],
    ),
    ("# sent_id = 12\nAnna _ _ B-PER\nflew _ _ O\n\n# sent_id = 13\nRome _ _ O\n", ["Anna flew", "Rome"]),
    ("# id 1f-2\tdomain=en\nAnna _ _ B-PER\nflew _ _ O\n", ["Anna flew"]),
    ("#\ttext\nAnna\tB-PER\nflew\tO\n\n#\tRome is big\nRome\tO", ["Anna flew", "Rome"]),
    ("-DOCSTART- -X- O\n\n# id 1\n-DOCSTART-\tO\nAnna NN B-PER\nflew VB O", ["Anna flew"]),
    ("#begin document (a/b); part 000\nAnna B-PER\nflew O\n\n#end document 1\n", ["Anna flew"]),
    ("# O\n1 B-PER\n\n#\tO\n2\tO\n\nsee O\n# O\n", ["# 1", "# 2", "see #"]),
    ("#rome B-PER\n# # O\n\n#anna B-X\nflew O\n".replace("# # O", "# O"), ["#rome #", "#anna flew"]),
    ("#rome B-PER\n#anna O\n", ["#rome #anna"]),
    ("# #\n5 O\n\na # \n", ["# 5", "a"]),
    ("#\n#rome\nAnna\n\n# a comment\n#\n", ["# #rome Anna", "#"]),
]


@pytest.mark.parametrize(("text", "texts"), COMMENTED)
def test_comments_are_no_words_and_hash_signs_are(tmp_path, text, texts):
    path = tmp_path / "t.conll"
    path.write_text(text)
    items = open_items(str(path), reading(wordpiece()))
    assert list(items.texts) == texts
    assert {*items.class_names} <= {"B-PER", "B-X", "O", "#"}


@pytest.mark.parametrize("columns", [2, 3, 4, 5, 10])
def test_the_hint_about_word_numbers_names_columns_that_are_there(tmp_path, columns):
    path = tmp_path / "t.conll"
    lines = ("1 vam", "2 os", "", "1 a")
    path.write_text(
        "".join(" ".join([line, *"XYZVWTSR"[: columns - 2]]) * bool(line) + "\n" for line in lines)
    )
    with pytest.raises(DataError, match="numbers the words of each text") as caught:
        open_items(str(path), reading(wordpiece()))
    reference = shlex.split(caught.value.hint.split("`")[1])[0]
    assert open_items(reference, reading(wordpiece())).texts == ("vam os", "a")


def test_columns_of_word_numbers_are_no_words(tmp_path):
    path = tmp_path / "t.conll"
    path.write_text("# sent_id = 1\n1-2\tvamos\t_\t_\n1\tvam\tvam\tVERB\n2\tos\tos\tPRON\n\n1\ta\ta\tX\n")
    with pytest.raises(DataError, match="numbers the words of each text") as caught:
        open_items(str(path), reading(wordpiece()))
    assert caught.value.hint == f"select the columns: `'{path}::text=column 2,label=tags'`"
    path.write_text(path.read_text().replace("\t", " ").replace("_ _", "_ X"))
    items = open_items(f"{path}::text=column 2,label=column 3", reading(wordpiece()))
    assert items.texts == ("vamos vam os", "a")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a"], "tags": ["O", "O"]}, r"row 1 has 2 labels for 1 words"),
        ({"tokens": ["a"], "tags": "O"}, "row 1 is not a list of labels: 'O'"),
        ({"tokens": "a", "tags": ["O"]}, "row 1 is not a list of words: 'a'"),
        ({"tokens": ["a", 1], "tags": ["O", "O"]}, "row 1 has a word that is no string: 1"),
        ({"tokens": [""], "tags": ["O"]}, "row 1 has a word that is empty"),
        ({"tokens": ["a"], "tags": [0.5]}, "row 1 has an invalid label: 0.5"),
        ({"tokens": ["a"], "tags": [-1]}, "row 1 has label -1, which is no class number"),
        ({"tokens": [], "tags": []}, "text 1 has no word to answer"),
        ({"tokens": ["a"], "tags": [-100]}, "text 1 has no word to answer"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, row, message):
    path = write(tmp_path / "t.jsonl", [{"tokens": ["a"], "tags": ["O"]}, row])
    with pytest.raises(DataError, match=message):
        open_items(str(path), reading(wordpiece()))


def test_labels_that_are_withheld_and_those_of_another_kind(tmp_path):
    preprocess = reading(wordpiece())
    withheld = write(tmp_path / "w.jsonl", [{"tokens": ["a"], "tags": [-1]}])
    assert open_items(str(withheld), preprocess).labels is None
    tagged = open_items(str(write(tmp_path / "t.jsonl", ROWS)), preprocess)
    with pytest.raises(
        DataError, match="has a label for each word, but `--data` needs one label for each item"
    ):
        required_labels(tagged, "--data")
    one = open_items(str(write(tmp_path / "o.jsonl", [{"text": "a b", "label": "x"}])), preprocess)
    assert [one.texts[0][b:e] for b, e in one.words[0]] == ["a", "b"]
    with pytest.raises(
        DataError, match="has one label for each item, but `--data` needs a label for each word"
    ):
        model_labels(one, (0,), "--data", architecture=architecture(1))
    same = open_items(
        str(write(tmp_path / "s.jsonl", [{"tokens": ["a", "b"], "tags": ["O", "O"]}] * 2)), preprocess
    )
    with pytest.raises(DataError, match="every label is `O`"):
        check_training_labels(same, "--data")
    with pytest.raises(DataError, match="`classes=` cannot leave any out"):
        open_items(f"{tmp_path}/t.jsonl::classes=O", preprocess)
    renamed = open_items(f"{tmp_path}/t.jsonl::map=B-PER:B-person", preprocess)
    assert renamed.class_names[1] == "B-person"
    assert len(open_items(f"{tmp_path}/t.jsonl::limit=1", preprocess)) == 1


def test_who_reads_whole_texts_reads_lists_of_words_joined(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"tokens": ["New", "York"]}])
    whole = reading(wordpiece()).model_copy(update={"by_word": False})
    items = open_items(str(path), whole, labelled=False)
    assert (items.texts, items.labels) == (("New York",), None)
    both = write(tmp_path / "b.jsonl", [{"text": "new-york", "tokens": ["New", "York"], "label": "x"}])
    assert open_items(str(both), whole).texts == ("new-york",)


def test_what_has_no_words_is_refused(tmp_path, monkeypatch):
    preprocess = reading(wordpiece())
    pairs = write(tmp_path / "p.jsonl", [{"premise": "a", "hypothesis": "b"}])
    with pytest.raises(
        DataError, match="has pairs of texts, but the model answers the words of single texts"
    ):
        open_items(str(pairs), preprocess)
    monkeypatch.setattr("hydractl.data.tokenize.is_python_tokenizer", lambda _: True)
    monkeypatch.setattr("hydractl.data.tokenize.require_tokenizer", lambda *_, **__: None)
    with pytest.raises(UnsupportedModelError, match="in Python only and does not tell where in a text"):
        by_word(TextSet(name="t", texts=("a",)), preprocess)
