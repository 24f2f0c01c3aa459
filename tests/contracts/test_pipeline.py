"""Text classifiers: transformers' pipeline on a folder from hydractl answers as `predict`, text by text."""

from __future__ import annotations

import json

import pytest
import transformers

import hydractl.auto.register  # noqa: F401 - lets transformers know members and hydras
from hydractl.families.open_model import open_model
from hydractl.hub.layout import is_stock
from hydractl.output.publish import Folder
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import Sample
from support.text_folders import save_text_model
from support.variants import VARIANTS

TEXTS = (
    "the cat sat",
    "",
    "mat",
    "Ünknown ﬁ\u200b words 🐈",
    "the cat on a mat " * 40,
    "sat on\n\tthe  mat",
    "[SEP] cat",
)
"""Empty, short and long texts, unknown words and letters, and a special token."""
READ = [v for v in VARIANTS if v.family.startswith("transformers") and "vocab_size" in v.options]
FIRST = [
    *{v.family: v for v in reversed(READ)}.values(),
    *(v for v in READ if v.name in {"one-logit", "multi-label"}),
]


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", FIRST, ids=str)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_pipeline_says_what_predict_says(tmp_path, variant, side):
    sample = save_text_model(variant, tmp_path / "library")
    settings = tmp_path / "library" / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"padding_side": side, "model_max_length": 20})
    )
    sample = Sample(open_model(str(tmp_path / "library")).header, sample.state)
    members = [
        str(sample.pruned((0, 1), (2,), (0, i + 1)).tuned(i).save(tmp_path / f"{i}.st")) for i in range(2)
    ]
    run_fuse(FuseConfig(models=tuple(members), out=Folder(tmp_path / "hydra"), verify=False))

    folders = ["hydra", *["library"] * is_stock(sample.header)]
    for folder in folders:
        ask = transformers.pipeline("text-classification", model=str(tmp_path / folder), top_k=None)
        expected = load(tmp_path / folder).predict(list(TEXTS), batch_size=4)
        for text, row in zip(TEXTS, expected.probabilities.tolist(), strict=True):
            (answer,) = ask([text], truncation=True)
            scores = {int(one["label"].removeprefix("LABEL_")): one["score"] for one in answer}
            of_logits = dict(enumerate(row[-len(scores) :]))  # a single logit belongs to the second class
            assert scores == pytest.approx(of_logits, abs=1e-5), (folder, text)
            assert len(scores) == (len(row) if folder == "hydra" else variant.options.get("num_labels"))
