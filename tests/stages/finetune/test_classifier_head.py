"""Classifiers in `finetune`: kept, replaced or added to fit the classes of the data."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UnsupportedModelError, UsageError
from hydractl.families.open_model import load_model, open_model
from hydractl.manifest.header import Kind
from hydractl.output.publish import OutputLock
from hydractl.progress import reporting
from hydractl.provenance.output import Output
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import prepare, run_finetune
from hydractl.training.recipe import Recipe
from support.builders import base
from support.progress_log import ProgressLog
from support.text_folders import save_text_model
from support.variants import variant

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4"
RECIPE = Recipe(lr=(1e-3,), steps=2, warmup=0, batch_size=16)
BERT = variant("transformers-bert-plain")
KEPT = replace(RECIPE, reset_head=False)
ANIMALS = ("bird", "cat", "dog")


def digits(classes, split="train"):
    return DataRef.parse(f"digits::split={split},classes={classes},limit=40")


def config(out, model, classes="0-2", **changes):
    given = {"train": digits(classes), "val": digits(classes, "val"), "recipe": RECIPE, "device": "cpu"}
    return FinetuneConfig(model=str(model), out=out, **(given | changes))


def prepared(given):
    with reporting(progress_log := ProgressLog()):
        return prepare(given, Output(OutputLock(force=False))), progress_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder in the layout of sentence-transformers: mean pooling, no classifier; texts of three classes."""
    place = tmp_path_factory.mktemp("backbone")
    sample = save_text_model(BERT, place / "m")
    sample.library().base_model.save_pretrained(place / "m")
    for name, where in (("train", "on a mat"), ("val", "in a hat")):
        texts = [{"text": f"the {animal} sat {where}", "label": animal} for animal in ANIMALS * 4]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    return place


def texts_config(out, folder, **changes):
    data, val = (DataRef.parse(str(folder / f"{name}.jsonl")) for name in ("train", "val"))
    return config(out, folder / "m", **({"train": data, "val": val} | changes))


# classifiers that are kept or replaced


def test_a_classifier_that_fits_stays(tmp_path):
    sample = base()
    for labels in ((), tuple("6543210")):
        header = sample.header.model_copy(update={"labels": labels})
        model = replace(sample, header=header).save(tmp_path / "model.st")
        work, progress_log = prepared(config(tmp_path / "out.st", model, "0-6"))
        assert torch.equal(work.model_file.checkpoint.tensor("head.weight"), sample.state["head.weight"])
        assert not [line for line in progress_log.steps if "classifier" in line]
        assert work.header.labels == (labels or tuple("0123456"))


@pytest.mark.parametrize("pruned", [False, True])
def test_another_number_of_classes_is_another_classifier(tmp_path, pruned):
    sample = base().pruned((0, 1), (), (2,)) if pruned else base()
    model = sample.save(tmp_path / "model.st")
    work, progress_log = prepared(config(tmp_path / "out.st", model))

    header = work.header
    assert (header.num_classes, header.labels, header.masks) == (3, ("0", "1", "2"), sample.header.masks)
    assert "A new classifier for 3 classes (0, 1, 2), the model had 7 classes" in progress_log.steps
    found = work.build().states[0]
    assert found["head.weight"].shape == (3, 32)
    fresh = sample.family.initialise(header.architecture, 0)
    assert all(
        torch.equal(found[n], fresh[n] if n.startswith("head.") else t) for n, t in sample.state.items()
    )
    assert work.model_file.as_input().sha256 == Checkpoint.open(model).digest


def test_other_names_are_other_classes(tmp_path):
    sample = base()
    header = sample.header.model_copy(update={"labels": tuple("abcdefg")})
    place, held = tmp_path / "images", tmp_path / "held"
    for i in range(14):
        folder = (place, held)[i // 7] / f"kind {i % 7}"
        folder.mkdir(parents=True)
        open_data("digits").image(i).save(folder / "0.png")
    data, val = (DataRef.parse(str(path)) for path in (place, held))
    given = config(
        tmp_path / "out.st", replace(sample, header=header).save(tmp_path / "m.st"), train=data, val=val
    )
    work, progress_log = prepared(given)

    assert work.header.labels == tuple(f"kind {i}" for i in range(7))
    assert not torch.equal(work.model_file.checkpoint.tensor("head.weight"), sample.state["head.weight"])
    assert not progress_log.warnings

    with pytest.raises(DataError) as caught:
        prepared(replace(given, recipe=KEPT))
    assert "has 7 classes (kind 0, kind 1, kind 2, kind 3, kind 4, ...), but" in caught.value.message
    assert caught.value.message.startswith(f"`--keep-head`: `--train {place.name}` has")
    assert caught.value.message.endswith("m.st has 7 classes (a, b, c, d, e, ...)")
    assert caught.value.hint.startswith("leave `--keep-head` out")


def test_the_number_may_be_insisted_on(tmp_path):
    model = base().save(tmp_path / "model.st")
    work, _ = prepared(config(tmp_path / "out.st", model, num_classes=9))
    names = ("0", "1", "2", *(f"unnamed class {i}" for i in range(3, 9)))
    assert (work.header.num_classes, work.header.labels, {*work.train_labels.tolist()}) == (
        9,
        names,
        {0, 1, 2},
    )
    assert (work.header.labels, (*work.val_labels.tolist(),)) == (
        work.model_file.header.labels,
        work.val.labels,
    )

    work, _ = prepared(config(tmp_path / "out.st", model, num_classes=7))
    assert torch.equal(work.model_file.checkpoint.tensor("head.weight"), base().state["head.weight"])
    with pytest.raises(DataError, match="has 3 classes, but `--num-classes 2` is smaller"):
        prepared(config(tmp_path / "out.st", model, num_classes=2))


def test_classes_beyond_the_datas_have_no_names_and_leave_room(tmp_path, folder):
    """Another subset of the classes does not change the index of any class."""
    out = tmp_path / "base.st"
    work, progress_log = prepared(texts_config(out, folder, num_classes=5))
    names = (*ANIMALS, "unnamed class 3", "unnamed class 4")
    assert work.header.labels == names
    reason = f"{folder / 'm'}: is a BertModel, which is not a classifier"
    assert f"A new classifier for 5 classes (bird, cat, dog, 2 unnamed); {reason}" in progress_log.steps
    assert not progress_log.warnings
    run_finetune(texts_config(out, folder, num_classes=5))
    head = open_model(str(out)).checkpoint.tensor("classifier.weight")

    def again(classes, **changes):
        data = DataRef.parse(f"{folder / 'train.jsonl'}::classes={classes}")
        given = {"train": data, "val": data, **changes}
        return prepared(replace(texts_config(tmp_path / "b.st", folder), model=str(out), **given))[0]

    for same in (again("0-2"), again("1-2", num_classes=5), again("1-2", recipe=KEPT)):
        assert (same.header.labels, same.header.num_classes) == (names, 5)
        assert torch.equal(same.model_file.checkpoint.tensor("classifier.weight"), head)
        assert [names[label] for label in same.train_labels.tolist()] == [
            same.train.class_names[label] for label in same.train.labels
        ]
    assert again("1-2").header.labels == ("cat", "dog")


def test_a_kept_classifier_is_the_one_that_was_there(tmp_path):
    model = base().save(tmp_path / "model.st")
    work, _ = prepared(config(tmp_path / "out.st", model, recipe=KEPT))
    assert (work.header.num_classes, work.header.labels[1:4]) == (7, ("1", "2", "unnamed class 3"))
    with pytest.raises(UsageError, match=r"has 7 classes, not 3"):
        prepared(config(tmp_path / "out.st", model, recipe=KEPT, num_classes=3))
    with pytest.raises(DataError, match=r"has 8 classes \(0, .*\), but .* has 7 classes$") as caught:
        prepared(config(tmp_path / "out.st", model, "0-7", recipe=KEPT))
    assert caught.value.hint.startswith("leave `--keep-head` out")
    with pytest.raises(UsageError, match="`--head-seed` and `--keep-head` exclude each other"):
        config(tmp_path / "out.st", model, recipe=KEPT, head_seed=3)


@pytest.mark.parametrize(
    ("labels", "options", "kept"),
    [
        (tuple(f"LABEL_{i}" for i in range(7)), "", True),
        (tuple("abcdefg"), "", False),
        (tuple("abcdefg"), ",classes-by=position", True),
        (("x", *"bcdefg"), ",map=0:x", False),
    ],
)
def test_a_kept_classifier_takes_classes_in_order_where_it_has_no_names_or_the_user_insists(
    tmp_path, labels, options, kept
):
    sample = base()
    header = sample.header.model_copy(update={"labels": labels})
    model = replace(sample, header=header).save(tmp_path / "model.st")
    names = "" if "map" in options else ",map=" + ",".join(f"{i}:animal {c}" for i, c in enumerate("gfedcba"))
    data, val = (
        DataRef.parse(f"digits::classes=0-6,limit=40,split={split}{names}{options}")
        for split in ("train", "val")
    )
    given = replace(config(tmp_path / "out.st", model, recipe=KEPT), train=data, val=val)
    if not kept:
        with pytest.raises(DataError, match="`--keep-head`: ") as caught:
            prepared(given)
        assert "`::map=OLD:NEW,...`" in caught.value.hint
        return
    work, _ = prepared(given)
    assert (work.header.labels, (*work.train_labels.tolist(),)) == (labels, work.train.labels)


def test_some_names_alike_do_not_keep_a_classifier_that_is_to_be_replaced(tmp_path):
    sample = base()
    header = sample.header.model_copy(update={"labels": ("x", *"123456")})
    model = replace(sample, header=header).save(tmp_path / "model.st")
    work, progress_log = prepared(config(tmp_path / "out.st", model, "0-6"))
    assert (work.header.labels, progress_log.warnings) == (tuple("0123456"), [])


def test_validation_has_no_classes_of_its_own(tmp_path, folder):
    model = base().save(tmp_path / "model.st")
    for classes in ("0-3", "3-5"):  # "3-5" has as many classes as `--train`
        with pytest.raises(DataError, match=r"^`--val digits.*: has classes") as caught:
            prepared(config(tmp_path / "out.st", model, val=digits(classes, "val")))
        assert "that `--train digits" in caught.value.message
        assert caught.value.message.endswith("`3`" if classes == "0-3" else "`3`, `4`, `5`")
    with pytest.raises(DataError, match=r"does not have: `0`, `1`$"):
        prepared(config(tmp_path / "out.st", model, "4-6", val=digits("0-1", "val")))
    work, _ = prepared(config(tmp_path / "out.st", model, val=digits("1-2", "val")))
    assert {*work.val_labels.tolist()} == {1, 2}

    val = tmp_path / "val.jsonl"
    val.write_text("".join(json.dumps({"text": "a", "label": name}) + "\n" for name in ("Bird", "owl")))
    with pytest.raises(DataError, match=r"^`--val val\.jsonl`: .* does not have: `owl`$"):
        prepared(replace(texts_config(tmp_path / "out.st", folder), val=DataRef.parse(str(val))))


def test_a_warning_says_whose_classes_it_means(tmp_path):
    sample = base()
    header = sample.header.model_copy(update={"labels": tuple("abcdefg")})
    model = replace(sample, header=header).save(tmp_path / "model.st")
    warned = prepared(config(tmp_path / "out.st", model, "0-6"))[1].warnings
    assert [line.split()[0] for line in warned] == ["`--train`:", "`--val`:"]


def test_a_reset_classifier_is_zero_or_drawn_from_its_seed(tmp_path):
    model = base().save(tmp_path / "model.st")
    for seed, told in (
        (None, "A classifier of zeros in"),
        (1, "A new classifier for 7 classes (0, 1, 2, 3, 4, ...), in"),
    ):
        given = config(
            tmp_path / "out.st", model, "0-6", recipe=replace(RECIPE, reset_head=True), head_seed=seed
        )
        assert f"{told} place of the model's own" in prepared(given)[1].steps
    reset = replace(RECIPE, reset_head=True)
    for classes, number in (("0-6", 7), ("0-2", 3)):
        zero, drawn, other = (
            prepared(config(tmp_path / "out.st", model, classes, recipe=reset, head_seed=seed))[0].build()
            for seed in (None, 1, 2)
        )
        heads = [m.states[0]["head.weight"] for m in (zero, drawn, other)]
        assert heads[0].shape == (number, 32)
        assert not heads[0].any()
        assert heads[1].any()
        assert not torch.equal(heads[1], heads[2])


def test_random_weights_take_the_number_from_the_data(tmp_path):
    asked = prepared(config(tmp_path / "out.st", f"{ARCH},num_classes=3", seed=5))[0]
    told = prepared(config(tmp_path / "out.st", ARCH, seed=5))[0]

    assert told.header == asked.header
    assert all(
        torch.equal(told.model_file.checkpoint.tensor(n), asked.model_file.checkpoint.tensor(n))
        for n in asked.names
    )
    more = prepared(config(tmp_path / "out.st", f"{ARCH},num_classes=9"))[0]
    assert more.header.num_classes == 9
    assert more.header.labels[1:4] == ("1", "2", "unnamed class 3")
    with pytest.raises(UsageError, match=r"`--num-classes 4` and .*num_classes=9` differ") as caught:
        prepared(config(tmp_path / "out.st", f"{ARCH},num_classes=9", num_classes=4))
    assert caught.value.hint == "leave `--num-classes` or `num_classes=9` out"
    with pytest.raises(DataError, match=r"has 3 classes, but `arch:.*num_classes=2` has 2") as caught:
        prepared(config(tmp_path / "out.st", f"{ARCH},num_classes=2"))
    assert caught.value.hint.startswith("leave `num_classes=2` out, write `num_classes=3`")


def test_a_new_classifier_must_train(tmp_path):
    model = base().save(tmp_path / "model.st")
    with pytest.raises(UsageError, match="gets a new classifier, which `--train-parts norm` does not train"):
        prepared(config(tmp_path / "out.st", model, recipe=replace(RECIPE, train_parts=("norm",))))


# models without a classifier


def test_a_classifier_that_is_lost_is_named_before_another_is_drawn(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "setfit")
    (tmp_path / "setfit" / "m" / "model_head.pkl").write_bytes(b"")
    _, progress_log = prepared(texts_config(tmp_path / "out.st", tmp_path / "setfit"))
    assert any(
        "model_head.pkl`, a pickle, which is never loaded, so it would be lost" in step
        for step in progress_log.steps
    )


def test_a_backbone_gets_a_classifier(tmp_path, folder):
    work, progress_log = prepared(texts_config(tmp_path / "out.st", folder, head_seed=4))

    reason = f"{folder / 'm'}: is a BertModel, which is not a classifier"
    assert f"A new classifier for 3 classes (bird, cat, dog); {reason}" in progress_log.steps
    assert work.header.labels == ANIMALS
    found = work.build().states[0]
    fresh = work.model_file.family.initialise(work.header.architecture, 4)
    for name, tensor in found.items():
        assert torch.equal(
            tensor, fresh[name] if name.startswith("classifier.") else base(BERT).state[name]
        ), name


def test_the_other_stages_say_what_to_type(folder):
    with pytest.raises(UnsupportedModelError, match="is a BertModel, which is not a classifier") as caught:
        open_model(str(folder / "m"))
    assert f"`hydractl finetune {folder / 'm'} --train" in caught.value.hint


def test_a_backbone_has_nothing_to_keep(tmp_path, folder):
    with pytest.raises(UsageError, match=r"`--keep-head`: .* is a BertModel, which is not a classifier"):
        prepared(texts_config(tmp_path / "out.st", folder, recipe=replace(RECIPE, reset_head=False)))


def test_pooling_is_what_was_asked_for_or_the_folder_says(tmp_path, folder):
    says = folder / "m" / "1_Pooling" / "config.json"
    says.parent.mkdir()
    modes = {
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "word_embedding_dimension": 32,
    }
    try:
        says.write_text(json.dumps(modes))
        work, progress_log = prepared(texts_config(tmp_path / "out.st", folder))
        own, _ = prepared(texts_config(tmp_path / "out.st", folder, pooling="own"))
        says.write_text(json.dumps(modes | {"pooling_mode_cls_token": True}))
        with pytest.raises(UnsupportedModelError, match="pools its tokens by `cls`, `mean`"):
            prepared(texts_config(tmp_path / "out.st", folder))
    finally:
        says.unlink()
        says.parent.rmdir()
    mean, _ = prepared(texts_config(tmp_path / "out.st", folder, pooling="mean"))

    assert any("1_Pooling/config.json" in line for line in progress_log.steps)
    assert work.header == mean.header
    assert (mean.header.architecture.pooling, own.header.architecture.pooling) == ("mean", None)
    assert "bert.pooler.dense.weight" in own.model_file.checkpoint.specs
    assert "bert.pooler.dense.weight" not in mean.model_file.checkpoint.specs


def test_from_a_backbone_to_a_member_and_another_pooling(tmp_path, folder):
    out = tmp_path / "base.st"
    run_finetune(texts_config(out, folder, pooling="mean"))
    model_file = open_model(str(out))
    assert (model_file.header.kind, model_file.header.architecture.pooling, model_file.header.labels) == (
        Kind.BASE,
        "mean",
        ANIMALS,
    )
    assert load_model(model_file)(base(BERT).inputs()).shape == (2, 3)

    again, progress_log = prepared(replace(texts_config(tmp_path / "b.st", folder), model=str(out)))
    assert torch.equal(
        again.model_file.checkpoint.tensor("classifier.weight"),
        model_file.checkpoint.tensor("classifier.weight"),
    )
    back, progress_log = prepared(
        replace(texts_config(tmp_path / "b.st", folder), model=str(out), pooling="own")
    )
    assert back.header.architecture.pooling is None
    assert "bert.pooler.dense.weight" in back.model_file.checkpoint.specs
    assert any(
        line.startswith("A new classifier for 3 classes (bird, cat, dog)") for line in progress_log.steps
    )


def test_images_have_no_pooling_to_choose(tmp_path):
    with pytest.raises(UsageError, match=re.escape("`--pooling mean` is for texts, but")):
        prepared(config(tmp_path / "out.st", base().save(tmp_path / "m.st"), pooling="mean"))
