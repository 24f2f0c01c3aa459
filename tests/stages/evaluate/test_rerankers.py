"""Rerankers: one logit per pair of query and passage, ranking metrics per query."""

from __future__ import annotations

import json

import pytest
import transformers
from sklearn import metrics as sk

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.evaluation.options import Condition
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support.progress_log import ProgressLog
from support.text_folders import save_text_model
from support.variants import variant

QUERIES = ("the cat", "a mat", "sat on the mat")
PASSAGES = ("the cat sat", "mat mat mat", "on a cat", "the mat", "sat", "a cat on the mat", "cat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("reranker")
    save_text_model(variant("transformers-bert-one-logit"), place / "model")
    pairs = [
        {"query": query, "passage": passage, "label": int(i in (0, 2 + q))}
        for q, query in enumerate(QUERIES)
        for i, passage in enumerate(PASSAGES)
    ]
    (place / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (place / "texts.jsonl").write_text(
        "\n".join(json.dumps({"text": p["passage"], "label": p["label"]}) for p in pairs)
    )
    return place


def evaluate(folder, data="pairs.jsonl", **options):
    config = EvalConfig(
        model=str(folder / "model"),
        data=DataRef.parse(str(folder / data)),
        latency=False,
        device="cpu",
        **options,
    )
    return run_eval(config, ProgressLog()).document


def test_the_order_is_that_of_the_pipelines_scores(folder):
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    ask = transformers.pipeline("text-classification", model=str(folder / "model"))
    scores = [ask({"text": p["query"], "text_pair": p["passage"]})["score"] for p in pairs]
    by_query = [
        (
            [p["label"] for p in pairs if p["query"] == q],
            [s for p, s in zip(pairs, scores, strict=True) if p["query"] == q],
        )
        for q in QUERIES
    ]

    document = evaluate(folder, bootstrap=50)
    values = document.rows[0].values

    gains = [sk.ndcg_score([labels], [guess], k=10) for labels, guess in by_query]
    assert values["ndcg"].value == pytest.approx(sum(gains) / len(gains))
    precisions = [sk.average_precision_score(labels, guess) for labels, guess in by_query]
    assert values["map"].value == pytest.approx(sum(precisions) / len(precisions))
    assert values["ndcg"].count == len(QUERIES)
    assert "passages of a query" in document.definitions["ndcg"]
    assert values["accuracy"].count == len(pairs)
    assert values["mrr"].low <= values["mrr"].value <= values["mrr"].high


def test_texts_alone_have_no_queries(folder):
    document = evaluate(folder, "texts.jsonl", bootstrap=0)

    assert "ndcg" not in document.rows[0].values
    assert "ndcg" not in document.definitions


@pytest.mark.parametrize("options", [{"metrics": ("mrr",)}, {"fail_if": (Condition.parse("ndcg<0.5"),)}])
def test_what_needs_queries_is_refused_without(folder, options):
    with pytest.raises(UsageError, match="cannot be measured: it needs rerankers") as caught:
        evaluate(folder, "texts.jsonl", **options)
    assert '"passage"' in caught.value.hint
