"""`import` reads the model's options saved by a training script, and refuses contradicting arguments."""

from __future__ import annotations

import argparse
import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.utils import CheckpointSaver, ModelEmaV3

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckpointError, HydraError, UsageError
from hydractl.families.open_model import load_model, open_model
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.run import run_import
from hydractl.stages.options import Images
from support.progress_log import ProgressLog

NAME = "vit_tiny_patch16_224"
KWARGS = {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4}
BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 61,
    "num_labels": 7,
}  # fmt: skip


def namespace(**changes):
    """Return parsed options of timm's `train.py`: all options of the model, and a few unrelated ones."""
    return argparse.Namespace(
        **{
            "data_dir": "data", "model": NAME, "pretrained": False, "num_classes": 7, "gp": None, "img_size": 8, "input_size": None,
            "in_chans": None, "crop_pct": None, "mean": [0.25], "std": [0.5], "interpolation": "", "model_kwargs": dict(KWARGS),
            "opt": "adamw", "opt_betas": None, "lr": 0.05, "drop": 0.0, "drop_path": None, "train_interpolation": "random",
            "scale": [0.08, 1.0], "experiment": "", "distributed": False, "device": "cpu", "prefetcher": True,
        }
        | changes
    )  # fmt: skip


@pytest.fixture(scope="module")
def library():
    torch.manual_seed(0)
    return timm.create_model(NAME, num_classes=7, **KWARGS).eval()


def saved_by_timm(folder, library, args):
    """Save a checkpoint with timm's own saver and a moving average; return the path."""
    optimizer = torch.optim.SGD(library.parameters(), lr=0.1)
    ema = ModelEmaV3(library)
    saver = CheckpointSaver(
        library, optimizer, args=args, model_ema=ema, checkpoint_dir=str(folder), recovery_dir=str(folder)
    )
    saver.save_checkpoint(0, metric=np.float64(0.5))
    return folder / "model_best.pth.tar"


def import_weights(source, out, *, progress_log=None, **changes):
    run_import(ImportConfig(sources=(str(source),), out=out, **changes), progress_log or ProgressLog())
    return Checkpoint.open(out).header


def saved(folder, value):
    torch.save(value, folder / "w.pth")
    return folder / "w.pth"


@torch.inference_mode()
def test_a_run_of_timm_needs_no_architecture(tmp_path, library):
    progress_log = ProgressLog()
    header = import_weights(
        saved_by_timm(tmp_path, library, namespace()), tmp_path / "b.st", progress_log=progress_log
    )

    images = torch.randn(3, 3, 8, 8)
    model = load_model(open_model(str(tmp_path / "b.st")))
    assert torch.allclose(model.member_logits(images)[0], library(images), atol=1e-6)
    data = timm.data.resolve_data_config(vars(namespace()), model=library)
    preprocess = header.preprocess
    assert (preprocess.input_size, preprocess.mean, preprocess.std) == (
        data["input_size"],
        data["mean"],
        data["std"],
    )
    assert (preprocess.interpolation, preprocess.crop_pct) == (data["interpolation"], data["crop_pct"])
    assert header.architecture.config == KWARGS | {"num_classes": 7}
    line = next(step for step in progress_log.steps if " says: " in step)
    for part in (NAME, "num_heads=4", "num_classes=7", "mean=[0.25]", "std=[0.5]"):
        assert part in line
    assert "crop_pct" not in line
    assert any(
        "assumed: crop_pct=0.9, interpolation=bicubic (" in warning for warning in progress_log.warnings
    )
    assert header.assumed


@pytest.mark.parametrize("typed", [{}, {"images": Images(mean=(0.25,), std=(0.5,))}])
def test_plain_weights_have_the_crop_of_timms_saver(tmp_path, library, typed):
    """The crop is timm's published one for the architecture, as in timm's scripts for any image size."""
    arch = f"{NAME}::" + ",".join(f"{k}={v}" for k, v in KWARGS.items())
    progress_log = ProgressLog()
    plain = import_weights(
        saved(tmp_path, library.state_dict()),
        tmp_path / "a.st",
        progress_log=progress_log,
        arch=arch,
        num_classes=7,
        **typed,
    )
    whole = import_weights(saved_by_timm(tmp_path, library, namespace()), tmp_path / "b.st")
    assert plain.preprocess.crop_pct == whole.preprocess.crop_pct == 0.9
    assert plain.assumed != bool(typed)
    assert any("assumed: crop_pct=0.9" in warning for warning in progress_log.warnings)


CONTRADICTIONS = {
    "heads": ({"arch": f"{NAME}::num_heads=2"}, "the training script saved `num_heads=4`"),
    "another architecture": ({"arch": "vit_small_patch16_224"}, f"the training script saved `{NAME}`"),
    "mean": ({"images": Images(mean=(0.5,))}, r"the training script saved `mean=\[0.25\]`"),
    "std": ({"images": Images(std=(0.1, 0.2, 0.3))}, r"the training script saved `std=\[0.5\]`"),
}


@pytest.mark.parametrize(("typed", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_what_contradicts_the_file_is_refused(tmp_path, library, typed, message):
    path = saved_by_timm(tmp_path, library, namespace())
    with pytest.raises(UsageError, match=message):
        import_weights(path, tmp_path / "b.st", **typed)
    assert not (tmp_path / "b.st").exists()


def test_what_agrees_with_the_file_is_taken(tmp_path, library):
    path = saved_by_timm(tmp_path, library, namespace(model=f"{NAME}.augreg_in21k"))
    typed = f"{NAME}::num_heads=4,img_size=[8,8],dynamic_img_size=true"
    images = Images(mean=(0.25, 0.25, 0.25))
    header = import_weights(path, tmp_path / "b.st", arch=typed, images=images, labels="a,b,c,d,e,f,g")
    assert header.labels == tuple("abcdefg")
    assert header.architecture.config["dynamic_img_size"] is True


def test_heads_that_are_the_default_are_contradicted_too(tmp_path):
    """`num_heads` is missing from the saved options, because the run used timm's default: 3 heads of 64."""
    model = timm.create_model(NAME, num_classes=7, img_size=16, depth=1)
    args = namespace(model_kwargs={"img_size": 16, "depth": 1}, img_size=16)
    path = saved_by_timm(tmp_path, model, args)
    with pytest.raises(UsageError, match="the training script saved `3 heads of 64`"):
        import_weights(path, tmp_path / "b.st", arch=f"{NAME}::num_heads=6")
    assert import_weights(path, tmp_path / "b.st").architecture.towers["vision"].num_heads == 3


class Pool(enum.Enum):
    AVG = "avg"


class Node:
    """Node of an OmegaConf configuration: a value, or a dictionary of nodes."""

    def __init__(self, value, kind=Any):
        self._metadata, self._parent = {"ref_type": kind}, None
        if isinstance(value, dict):
            self._content = {key: Node(item) for key, item in value.items()}
        else:
            self._val = value


HOLDERS = {
    "OmegaConf": lambda s: {"state_dict": s, "hyper_parameters": Node({"arch": NAME, "num_classes": 7, **KWARGS})},
    "OmegaConf, nested": lambda s: {"state_dict": s, "config": Node({"model": {"arch": NAME, "num_classes": 7, **KWARGS}})},
    "a namespace": lambda s: {"model": s, "args": argparse.Namespace(model=NAME, nb_classes=7, **KWARGS)},
    "a dictionary": lambda s: {"state_dict": s, "config": {"arch": NAME, "num_classes": 7, "model_args": KWARGS}},
    "Lightning": lambda s: {
        "state_dict": {f"model.{k}": v for k, v in s.items()},
        "pytorch-lightning_version": "2.5.0",
        "hyper_parameters": {"model_name": NAME, "num_classes": np.int64(7), "lr": np.float64(0.1), "root": Path("/d"), **KWARGS},
    },
    "Lightning, nested": lambda s: {"state_dict": s, "hyper_parameters": {"args": argparse.Namespace(model=NAME, num_classes=7, **KWARGS)}},
    "Lightning, a model": lambda s: {"state_dict": s, "hyper_parameters": {"model": {"name": "x", "arch": NAME, "num_classes": 7, **KWARGS}}},
    "at the top": lambda s: {"state_dict": s, "arch": NAME, "num_classes": 7, "model_kwargs": KWARGS},
    "an enumeration": lambda s: {"state_dict": s, "args": argparse.Namespace(model=NAME, num_classes=7, seed=Pool.AVG, **KWARGS)},
}  # fmt: skip


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("wrap", HOLDERS.values(), ids=HOLDERS)
def test_every_place_for_options(tmp_path, library, wrap):
    path = saved(tmp_path, wrap(dict(library.state_dict())))
    header = import_weights(path, tmp_path / "b.st")
    assert header.architecture.name == NAME
    assert header.architecture.config == KWARGS | {"num_classes": 7}
    with pytest.raises(UsageError, match="the training script saved `num_heads=4`"):
        import_weights(path, tmp_path / "c.st", arch=f"{NAME}::num_heads=2")


def test_sizes_that_are_typed_go_before_those_among_other_options(tmp_path, library):
    """`embed_dim` of a script may describe another part, so arguments and tensor shapes decide."""
    path = saved(tmp_path, {"state_dict": library.state_dict(), "args": {"arch": NAME, "embed_dim": 128}})
    typed = ",".join(f"{k}={v}" for k, v in KWARGS.items())
    assert import_weights(path, tmp_path / "b.st", arch=f"{NAME}::{typed}", num_classes=7).num_classes == 7


def test_texts(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**BERT))
    value = {"state_dict": model.state_dict(), "training_args": {"model_type": "bert", **BERT}}
    header = import_weights(saved(tmp_path, value), tmp_path / "b.st")
    assert BERT.items() - {("num_labels", 7)} <= header.architecture.config.items()
    assert header.num_classes == 7
    with pytest.raises(UsageError, match="the training script saved `num_attention_heads=4`"):
        import_weights(saved(tmp_path, value), tmp_path / "c.st", arch="bert::num_attention_heads=8")


def test_the_name_of_a_run_of_open_clip(tmp_path, library):
    name = "2026_01_01-00_00_00-model_ViT-B-32-lr_0.0005-b_64-j_4-p_amp"
    path = saved(tmp_path, {"epoch": 1, "name": name, "state_dict": library.state_dict()})
    with pytest.raises(CheckpointError, match="does not fit openclip:ViT-B-32"):
        import_weights(path, tmp_path / "b.st")


NOTHING = {
    "nothing": {},
    "a class": {"arch": "visiontransformer"},
    "a repository": {"args": argparse.Namespace(model="google/vit-base-patch16-224")},
    "odd things": {"args": ["a"], "arch": 3, "config": "x", "name": None, "hyper_parameters": {}},
}


def test_options_of_other_kinds_are_passed_over(tmp_path, library):
    """In MAE `global_pool` is a flag; other scripts give ImageNet's mean by name."""
    args = {
        "arch": NAME,
        "global_pool": True,
        "mean": "imagenet",
        "depth": "auto",
        "num_heads": None,
        "nb_classes": 7,
    }
    path = saved(tmp_path, {"model": library.state_dict(), "args": argparse.Namespace(**args)})
    typed = ",".join(f"{k}={v}" for k, v in KWARGS.items())
    assert import_weights(path, tmp_path / "b.st", arch=f"{NAME}::{typed}").architecture.config == KWARGS | {
        "num_classes": 7
    }


def test_a_file_names_no_tokenizer(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**BERT))
    args = {"model_type": "bert", "model_kwargs": BERT | {"tokenizer": str(tmp_path / "none.json")}}
    header = import_weights(
        saved(tmp_path, {"state_dict": model.state_dict(), "args": args}), tmp_path / "b.st"
    )
    assert header.preprocess.tokenizer is None


@pytest.mark.parametrize("more", NOTHING.values(), ids=NOTHING)
def test_files_that_do_not_say_it(tmp_path, library, more):
    path = saved(tmp_path, {"state_dict": library.state_dict(), **more})
    with pytest.raises(CheckpointError, match="does not name its architecture") as caught:
        import_weights(path, tmp_path / "b.st")
    assert caught.value.hint.startswith("add `--arch NAME`")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        import_weights(path, tmp_path / "b.st")
    assert f"add `--arch {tmp_path}`" in caught.value.hint


HOSTILE = {
    "a path": {"model_kwargs": {"checkpoint_path": "/etc/passwd"}},
    "an address": {"model_kwargs": {"pretrained_cfg": {"url": "http://x"}}},
    "an option": {"model_kwargs": {"img_size": "8,checkpoint_path=/x"}},
    "large": {"model_kwargs": {"depth": 10**9}},
    "an interpolation": {"interpolation": "random"},
    "means": {"mean": [1.0, 2.0]},
    "not finite": {"std": [0.0]},
}


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_what_a_file_says_passes_the_gate_of_all_options(tmp_path, library, changes):
    with pytest.raises(HydraError):
        import_weights(saved_by_timm(tmp_path, library, namespace(**changes)), tmp_path / "b.st")
    assert not (tmp_path / "b.st").exists()
