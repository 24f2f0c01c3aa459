"""Detection of text columns: pairs have well-known names, and models of pairs never ignore a second column."""

from __future__ import annotations

import json

import pytest

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError

PAIRS = [
    # GLUE, SNLI, PAWS, SICK
    *("sentence1+sentence2", "question1+question2", "premise+hypothesis", "question+sentence"),
    *(
        "sentence_A+sentence_B",
        "sentence_1+sentence_2",
        "text_a+text_b",
        "text1+text2",
        "Text_A+Text_B",
        "q1+q2",
    ),
    # MS MARCO, BEIR, BoolQ, SQuAD, FEVER, sentence-transformers, summaries, headlines
    *("query+passage", "query+document", "query+doc", "query+text", "query+answer", "query+positive"),
    *("question+context", "question+answer", "question+passage", "question+document", "claim+evidence"),
    *("anchor+positive", "prompt+response", "context+response", "document+summary", "headline+body"),
]


def write(tmp_path, *columns, **cells):
    row = {column: f"a {column}" for column in columns} | cells
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([json.dumps(row)] * 3))
    return path


@pytest.mark.parametrize("pairs", [None, True])
@pytest.mark.parametrize("names", PAIRS)
def test_usual_columns_are_pairs(tmp_path, progress_log, names, pairs):
    first, second = names.split("+")
    path = write(tmp_path, second, first, label="very good", id="b 7")
    items = open_data(f"{path}::label=label", content=Content.TEXTS, pairs=pairs)
    assert {*items.texts} == {(f"a {first}", f"a {second}")}
    assert items.class_names == ("very good",)
    assert any(f"`{first}`, `{second}`" in message for message in progress_log.steps)


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (("text", "title"), ["text+title"]),
        (("sentence", "b", "c"), ["sentence+b", "sentence+c"]),
    ],
)
def test_a_model_of_pairs_ignores_no_second_text(tmp_path, progress_log, columns, options):
    path = write(tmp_path, *columns, label="very good", id="7", url="http://x")
    with pytest.raises(DataError, match="may hold pairs") as caught:
        open_data(str(path), content=Content.TEXTS, pairs=True)
    for option in options:
        assert f"`{path}::text={option}`" in caught.value.hint
        pair = tuple(f"a {name}" for name in option.split("+"))
        assert open_data(f"{path}::text={option}", content=Content.TEXTS, pairs=True).texts == (pair,) * 3
    assert "id" not in caught.value.hint.split("::", 1)[1].replace("hydractl", "")
    progress_log.steps.clear()
    assert open_data(str(path), content=Content.TEXTS).texts[0] == f"a {columns[0]}"
    assert any(f"no other (`{columns[1]}`" in message for message in progress_log.steps)
    single = write(tmp_path, columns[0], label="very good", id="7")
    assert open_data(str(single), content=Content.TEXTS, pairs=True).texts[0] == f"a {columns[0]}"


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (("question", "context", "answer"), ["question+context", "question+answer"]),
        (("sentence_0", "sentence_1", "sentence_2"), ["sentence_0+sentence_1", "sentence_1+sentence_2"]),
    ],
)
def test_several_pairs_are_a_choice(tmp_path, columns, options):
    path = write(tmp_path, *columns)
    with pytest.raises(DataError, match="may hold pairs") as caught:
        open_data(str(path), content=Content.TEXTS)
    assert all(f"`{path}::text={option}`" in caught.value.hint for option in options)


def test_a_model_of_single_texts_prefers_single_texts(tmp_path, progress_log):
    path = write(tmp_path, "query", "document")
    assert open_data(str(path), content=Content.TEXTS, pairs=False).texts[0] == "a document"
    progress_log.warnings.clear()
    path = write(tmp_path, "question", "answer")
    assert open_data(str(path), content=Content.TEXTS, pairs=False).texts[0] == (
        "a question",
        "a answer",
    )
    assert any("trained on single texts" in message for message in progress_log.warnings)
