"""finetune on a stream: resumed to the same bytes, and refused where it cannot be what was asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hydractl.checkpoint import Checkpoint
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, HydraError, UsageError
from hydractl.settings import declared
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.shared.up_to_date import check_up_to_date
from hydractl.training.recipe import Recipe
from support.heard import Cut, Heard
from support.lake import TEXTS, Lake, image, of_images, of_texts, serve, stored, text
from support.text_folders import save_text_model
from support.variants import variant

pytestmark = pytest.mark.usefixtures("one_thread")

BERT = variant("transformers-bert-plain")
ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=2"
STREAM = "hf:org/name::streaming=true"
RECIPE = Recipe(lr=(1e-3,), epochs=3, batch_size=16, augment=("shift",), dropout=0.1)


@pytest.fixture(autouse=True)
def served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def validated(lake):
        stored(Lake(20, lake.row, lake.features), "val.parquet")
        return serve(monkeypatch, lake)

    return validated


def reference(text):
    return declared(FinetuneConfig)["data"].parse(text)


def config(out, model=ARCH, data=f"{STREAM},buffer=20", **changes):
    given = {"data": reference(data), "val": DataRef.parse("val.parquet"), "recipe": RECIPE, "device": "cpu"}
    return FinetuneConfig(model=str(model), out=Path(out), **(given | changes))


def test_rows_are_counted_and_the_lineage_is_that_of_a_file(served):
    lake = served(of_images(75))
    report = run_finetune(config("out.st"), heard := Heard())
    step = Checkpoint.open(Path("out.st")).header.made_by

    assert report.total_steps == 3 * 5
    assert lake.read == 4 * [*range(75)]  # to count them, and once an epoch
    assert "Counting the rows of hf:org/name::buffer=20,streaming=true" in heard.steps
    assert step.inputs[1].name == "hf:org/name::buffer=20,streaming=true"
    assert step.inputs[1].sha256 == open_data(stored(lake, "rows.parquet")).fingerprint()
    whole = Path("out.st").read_bytes()
    run_finetune(config("again.st"))
    assert Path("again.st").read_bytes() == whole
    for change in ({"data": f"{STREAM},buffer=21"}, {"seed": 1}):
        run_finetune(config("other.st", force=True, **change))
        assert Path("other.st").read_bytes() != whole


@pytest.mark.parametrize("made", [of_images, of_texts], ids=["images", "texts"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(served, made, tmp_path):
    served(made(75 if made is of_images else 40))
    model, recipe = ARCH, replace(RECIPE, eval_every=2)
    if made is of_texts:
        model, recipe = "bert", replace(RECIPE, augment=(), lr=(1e-3, 1e-2), eval_every=3, keep_best=True)
        save_text_model(BERT, tmp_path / "bert")
    run_finetune(config("whole.st", model, recipe=recipe))
    out, cuts = Path("out.st"), 0
    while not out.exists():
        cuts += 1
        assert cuts < 30
        try:
            run_finetune(config("out.st", model, recipe=recipe, save_every=1), Cut(4 if cuts == 1 else 5))
        except KeyboardInterrupt:
            assert Path("out.st.state").is_dir()

    assert cuts > 2
    assert out.read_bytes() == Path("whole.st").read_bytes()
    assert not Path("out.st.state").exists()


def test_what_was_begun_on_other_rows_is_not_gone_on_with(served):
    lake = served(of_images(75))
    with pytest.raises(KeyboardInterrupt):
        run_finetune(config("out.st", save_every=1), Cut(4))
    assert Path("out.st.state").is_dir()
    lake.row = lambda i: image(i + (i == 70))
    with pytest.raises(HydraError, match="an unfinished run with other options, inputs or"):
        run_finetune(config("out.st"))
    assert not Path("out.st").exists()


def test_rows_that_change_while_it_trains_end_it(served):
    lake = served(of_images(75))

    def watch():
        if len(lake.read) == 75 + 40:
            lake.row = lambda i: image(i + (i == 50))

    lake.watch = watch
    with pytest.raises(DataError, match="row 50 has changed since the stream was first read"):
        run_finetune(config("out.st"))
    assert not Path("out.st").exists()
    assert not Path("out.st.state").exists()


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (
            lambda: config("o.st", data=STREAM),
            "a stream needs a buffer size for shuffling",
            "add `buffer=10000`, or `limit=N`",
        ),
        (
            lambda: reference(f"{STREAM},limit=5,buffer=3"),
            "`: `buffer` applies only to streams",
            "leave it out",
        ),
        (
            lambda: reference("hf:org/name::buffer=3"),
            "`: `buffer` applies only to streams",
            "add `streaming=true`",
        ),
        (lambda: reference(f"{STREAM},buffer=0"), "must be at least 1", ""),
        (lambda: reference(f"{STREAM},buffer=3,classes=0"), "has no known length", "`limit=N`"),
        (lambda: declared(FinetuneConfig)["val"].parse(STREAM), "has no known length", "`limit=N`"),
        (lambda: declared(EvalConfig)["data"].parse(f"{STREAM},buffer=3"), "has no effect", "leave it out"),
        (
            lambda: PredictConfig(model="m.st", data=(f"{STREAM},buffer=3",), out=Path("o.jsonl")),
            "has no effect",
            "leave it out",
        ),
        (
            lambda: config("o.st", "m.st", batches="own"),
            "`--batches own`: the stream",
            "leave one of them out",
        ),
        (lambda: check_up_to_date(config("o.st", if_changed=True)), "a stream cannot be compared", ""),
    ],
)
def test_what_cannot_be_is_refused_before_a_row_is_read(make, message, hint):
    with pytest.raises(UsageError, match=message) as caught:
        make()
    assert hint in (caught.value.hint or "")


def test_labels_that_will_not_do_are_told_before_anything_trains(served):
    served(Lake(75, lambda i: text(i) | {"label": -1}, TEXTS))
    stored(of_texts(20), "val.parquet")
    save_text_model(BERT, Path("bert"))
    with pytest.raises(DataError, match="has no labels, but `--data` needs them"):
        run_finetune(config("out.st", "bert", recipe=replace(RECIPE, augment=())))
    assert not Path("out.st").exists()
