"""First tokens of words equal those of transformers: `word_ids` for lists, pipeline words for running texts."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import hydractl
from hydractl.cli.app import main
from hydractl.data.datasets import TextSet
from hydractl.data.words import Cutter, WordSet, by_word, tokens_of, words_in
from hydractl.errors import CheckpointError, DataError
from hydractl.manifest.header import Tokenization
from hydractl.manifest.tokenizers import with_leading_space
from hydractl.progress import reporting
from hydractl.tasks import TOKENS
from support.builders import base
from support.progress_log import ProgressLog
from support.text_folders import save_text_model
from support.variants import variant

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
NAMED = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
CORPUS = ["the hotel booked by anna costs really", "new york on friday, smith-jones", "a b c d 1 2 ( )"] * 4
WORDS = (
    "Anna", "anna's", "New", ",", ".", "(", "(x)", "12.50", "1", "Ünknown", "Ж", "🐈", "👩‍👩‍👧", "東京", "\u0001", "\u200b", "\ufe0f",
    "\x85", "a b", "[SEP]", "ﬁ", "café", "\n",
)  # fmt: skip
TEXTS = (
    "Anna Smith-Jones flew to New York on Friday, didn't she?",
    "the hotel (booked by anna) costs $12.50... really",
    "a , b ( c ) 1 Ж d",
    "Ünknown ﬁ words 🐈 in  two   blanks",
    "Ж 👩‍👩‍👧 東京に行く\nnew line\ttab [SEP] x",
    " begins and ends with blanks ",
    "x",
)


def wordpiece():
    made = Tokenizer(models.WordPiece(unk_token=SPECIAL[1]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(made, trainers.WordPieceTrainer(vocab_size=90, special_tokens=SPECIAL))


def unigram(pre_tokenizer):
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizer
    return trained(made, trainers.UnigramTrainer(vocab_size=70, special_tokens=SPECIAL, unk_token=SPECIAL[1]))


def byte_level(*, trim, prefix):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = trained(
        made, trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    made.post_processor = processors.RobertaProcessing(
        ("[SEP]", 3), ("[CLS]", 2), trim_offsets=trim, add_prefix_space=prefix
    )
    return made


def trained(made, trainer):
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


METASPACE = pre_tokenizers.Metaspace
KINDS = {
    "wordpiece": wordpiece(),
    **{
        f"byte-level-{trim}-{prefix}": byte_level(trim=trim, prefix=prefix)
        for trim in (True, False)
        for prefix in (True, False)
    },
    **{
        f"metaspace-{scheme}": unigram(METASPACE(prepend_scheme=scheme))
        for scheme in ("always", "first", "never")
    },
    "metaspace-whole": unigram(METASPACE(split=False)),
    "xlm-roberta": unigram(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), METASPACE()])),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def reading(made, *, max_length=512):
    return Tokenization(
        tokenizer=made.to_str(), max_length=max_length, pad_id=0, vocab_size=400, by_word=True
    )


def library_of(made):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **NAMED)


def word_set(lists, **options):
    spans = []
    for words in lists:
        begins = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
        spans.append(tuple((b, b + len(word)) for b, word in zip(begins, words, strict=True)))
    texts = tuple(" ".join(words) for words in lists)
    return WordSet(name="t", texts=texts, words=tuple(spans), pieces=tuple(spans), **options)


@every_kind
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
@settings(max_examples=10, deadline=None)
def test_lists_of_words_have_the_tokens_and_first_tokens_of_the_library(kind, words):
    encoding = library_of(KINDS[kind])(words, is_split_into_words=True)
    of_tokens = encoding.word_ids()
    expected = [of_tokens.index(i) for i in range(len(words)) if i in of_tokens]
    labels = {"labels": (tuple(range(len(words))),), "class_names": WORDS, "task": TOKENS}
    items = word_set([words], **labels)
    if not expected:
        with pytest.raises(DataError, match="no word has a token of the model"):
            by_word(items, reading(KINDS[kind]))
        return
    with reporting(progress_log := ProgressLog()):
        rows = by_word(items, reading(KINDS[kind]))
    tokens = tokens_of(rows, reading(KINDS[kind]))
    assert tokens.ids.tolist() == encoding["input_ids"]
    assert tokens.word_starts.tolist() == [expected]
    assert rows.labels == (tuple(i for i in range(len(words)) if i in of_tokens),)
    assert len(expected) == len(words) or any("without tokens" in line for line in progress_log.warnings)


@every_kind
def test_words_of_a_running_text_are_those_of_the_pipeline(kind):
    made = KINDS[kind]
    cutter, library = Cutter.of(reading(made)), library_of(made)
    pipeline = object.__new__(transformers.TokenClassificationPipeline)
    pipeline.tokenizer = library
    items = by_word(TextSet(name="t", texts=TEXTS), reading(made))
    starts = tokens_of(items, reading(made)).word_starts
    for text, row in zip(TEXTS, starts.tolist(), strict=True):
        words = words_in(text, cutter.tokenizer.encode(text), cutter)
        inputs = library(text, return_offsets_mapping=True, return_special_tokens_mask=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokens = pipeline.gather_pre_entities(
                text,
                inputs["input_ids"],
                [[1.0]] * len(inputs["input_ids"]),
                inputs["offset_mapping"],
                inputs["special_tokens_mask"],
                transformers.pipelines.token_classification.AggregationStrategy.FIRST,
            )
        expected = []
        for token in tokens:
            if expected and token["is_subword"]:
                expected[-1] = (expected[-1][0], token["end"], expected[-1][2])
            else:
                expected.append((token["start"], token["end"], token["index"]))
        assert [(*word.span, word.token) for word in words] == expected, text
        assert [start for start in row if start >= 0] == [index for *_, index in expected]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return a function that saves a token classifier with random weights and a kind of tokenizer."""

    def save(kind):
        folder = tmp_path_factory.mktemp(kind)
        names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
        config = transformers.BertConfig(
            vocab_size=400, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=64, initializer_range=1.0, id2label=dict(enumerate(names)),
        )  # fmt: skip
        torch.manual_seed(0)
        transformers.BertForTokenClassification(config).save_pretrained(folder)
        library = transformers.PreTrainedTokenizerFast(
            tokenizer_object=KINDS[kind], **NAMED, model_input_names=["input_ids", "attention_mask"],
            model_max_length=64,
        )  # fmt: skip
        library.save_pretrained(folder)
        return folder

    return save


@pytest.mark.spread(cases=3)
@every_kind
def test_entities_of_a_running_text_are_those_of_the_pipeline(folder_of, kind):
    folder = folder_of(kind)
    ask = transformers.pipeline("token-classification", model=str(folder), aggregation_strategy="first")
    found = 0
    for text, entities in zip(TEXTS, hydractl.load(folder).predict(list(TEXTS)).entities, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = ask(text)
        assert [(e.label, e.start, e.end) for e in entities] == [
            (e["entity_group"], e["start"], e["end"]) for e in expected
        ], text
        found += len(entities)
    assert found > 20


@every_kind
def test_windows_have_the_words_of_the_whole_text(kind):
    preprocess, text = reading(KINDS[kind], max_length=40), " ".join(TEXTS * 3)
    whole = by_word(TextSet(name="t", texts=(text,)), reading(KINDS[kind], max_length=10_000))
    rows = by_word(TextSet(name="t", texts=(text,)), preprocess)
    assert len(rows) > 3
    words = [
        (begin + b, begin + e) for begin, row in zip(rows.offsets, rows.words, strict=True) for b, e in row
    ]
    assert words == list(whole.words[0])
    tokens = tokens_of(rows, preprocess)
    cutter = Cutter.of(reading(KINDS[kind], max_length=10_000))
    ids, starts = (
        cutter.tokenizer.encode(text).ids,
        tokens_of(whole, preprocess.model_copy(update={"max_length": 10_000})).word_starts[0],
    )
    first = [tokens.batch(torch.tensor([i]))["input_ids"][0] for i in range(len(rows))]
    found = [int(first[i][s]) for i, row in enumerate(tokens.word_starts.tolist()) for s in row if s >= 0]
    differences = sum(a != ids[s] for a, s in zip(found, starts.tolist(), strict=True))
    assert differences <= len(rows)  # a window may start within a token


@every_kind
def test_windows_of_lists_have_the_tokens_of_the_whole_list(kind):
    words = [*WORDS * 6]
    made, preprocess = KINDS[kind], reading(KINDS[kind], max_length=40)
    labels = {"labels": (tuple(range(len(words))),), "class_names": tuple(map(str, words)), "task": TOKENS}
    rows = by_word(word_set([words], **labels), preprocess)
    assert len(rows) > 3
    encoding = made.encode(words, is_pretokenized=True)
    tokens = tokens_of(rows, preprocess)
    for i, (of_row, starts) in enumerate(zip(rows.labels, tokens.word_starts.tolist(), strict=True)):
        ids = tokens.batch(torch.tensor([i]))["input_ids"][0].tolist()
        for label, start in zip(of_row, starts, strict=False):
            assert ids[start] == encoding.ids[encoding.word_ids.index(label)]
    answered = [label for row in rows.labels for label in row]
    assert answered == [i for i in range(len(words)) if i in encoding.word_ids]


def test_words_that_are_not_asked_about_are_read():
    made = KINDS["wordpiece"]
    items = word_set([["Anna", "flew", "New", "York"]])
    asked = WordSet(name="t", texts=items.texts, words=(items.words[0][::3],), pieces=items.pieces)
    rows = by_word(asked, reading(made))
    tokens = tokens_of(rows, reading(made))
    encoding = library_of(made)(["Anna", "flew", "New", "York"], is_split_into_words=True)
    assert tokens.ids.tolist() == encoding["input_ids"]
    assert tokens.word_starts.tolist() == [[encoding.word_ids().index(0), encoding.word_ids().index(3)]]


def test_a_labelled_text_without_tokens_is_left_out_and_an_unlabelled_one_stays():
    preprocess, lists = reading(KINDS["wordpiece"]), [["Anna"], ["\u0001", "\u200b"], ["flew"]]
    labels = {"labels": ((0,), (1, 0), (1,)), "class_names": ("O", "B-x"), "task": TOKENS}
    rows = by_word(word_set(lists, **labels), preprocess)
    assert (rows.texts, rows.labels) == (("Anna", "flew"), ((0,), (1,)))
    assert [rows.key(i) for i in range(2)] == [0, 2]
    assert by_word(word_set(lists), preprocess).words[1] == ()


def test_the_words_of_one_tokenizer_are_read_by_another():
    text = "Anna booked the hotel , really"
    rows = by_word(TextSet(name="t", texts=(text,)), reading(KINDS["wordpiece"]))
    tokens = tokens_of(rows, reading(KINDS["byte-level-True-True"]))
    offsets = KINDS["byte-level-True-True"].encode(text).offsets
    for (begin, end), start in zip(rows.words[0], tokens.word_starts[0].tolist(), strict=True):
        assert offsets[start][0] <= begin < offsets[start][1] <= end
    short = reading(KINDS["byte-level-True-True"], max_length=6)
    with pytest.raises(DataError, match="the model has no token for the word"):
        tokens_of(rows, short)


@pytest.mark.more
@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("kind", ["wordpiece", "metaspace-always"])
def test_each_of_ten_thousand_words_has_its_first_token(kind):
    text, preprocess = "anna booked the hotel " * 2500, reading(KINDS[kind])
    for items in (TextSet(name="t", texts=(text,)), word_set([text.split()])):
        rows = by_word(items, preprocess)
        tokens = tokens_of(rows, preprocess)
        assert sum(map(len, rows.words)) >= 10_000
        assert int((tokens.word_starts >= 0).sum()) == sum(map(len, rows.words))


def test_a_tokenizer_that_panics_is_refused():
    made = Tokenizer.from_str(KINDS["byte-level-True-False"].to_str())
    made.normalizer = normalizers.Replace(Regex(r"\A(?=[^ ])"), " ")
    for items in (TextSet(name="t", texts=("1 x",)), word_set([["1 x"]])):
        with pytest.raises(CheckpointError, match="the model's tokenizer fails on the data"):
            by_word(items, reading(made))


def test_a_tokenizer_without_its_unknown_token_is_refused():
    made = Tokenizer(models.WordLevel({"a": 0}, unk_token="none"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(CheckpointError, match="Missing"):
        by_word(word_set([["b"]]), reading(made))
    text = made.to_str().replace('"unk_token"', '"unk_id":7,"unk_token"')
    preprocess = reading(made).model_copy(update={"tokenizer": text})
    assert by_word(word_set([["a"]]), preprocess).words == (((0, 1),),)


def test_a_text_classifier_reads_lists_of_words_as_texts(tmp_path):
    sample = save_text_model(variant("transformers-bert-plain"), tmp_path / "texts")
    assert not sample.header.preprocess.by_word
    (tmp_path / "w.jsonl").write_text('{"tokens": ["the", "cat"]}\n{"tokens": ["on", "a", "mat"]}\n')
    (tmp_path / "t.jsonl").write_text('{"text": "the cat"}\n{"text": "on a mat"}\n')
    lines = []
    for name in ("w", "t"):
        out = tmp_path / f"{name}.out.jsonl"
        assert (
            main(["predict", str(tmp_path / "texts"), str(tmp_path / f"{name}.jsonl"), "-o", str(out), "-q"])
            == 0
        )
        lines.append(out.read_text())
    assert lines[0] == lines[1]


def test_a_header_whose_parts_disagree_about_words_is_refused():
    header = base(variant("transformers-bert-plain")).header
    fields = header.model_dump(by_alias=True)
    fields["preprocess"] |= {"by_word": True}
    with pytest.raises(ValueError, match="required if the model answers words"):
        type(header).model_validate(fields)


@pytest.mark.parametrize("sequence", [False, True])
def test_a_tokenizer_with_a_leading_blank_reads_lists_as_transformers_scripts(sequence):
    made = KINDS["byte-level-True-False"]
    expected = Tokenizer.from_str(made.to_str())
    expected.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if sequence:
        made = Tokenizer.from_str(made.to_str())
        pattern = pre_tokenizers.Split(Regex(r"'\w+| ?\w+| ?[^\s\w]+|\s+"), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    with_blank = Tokenizer.from_str(with_leading_space(made.to_str()))
    words = ["Anna", "booked", "(", "Ж", "12"]
    ids = with_blank.encode(words, is_pretokenized=True).ids
    assert ids == expected.encode(words, is_pretokenized=True).ids
    assert with_leading_space(KINDS["wordpiece"].to_str()) == KINDS["wordpiece"].to_str()
