"""`import`: any prefix of tensor names is removed, and a trained classifier of another name is never lost."""

from __future__ import annotations

import pytest
import timm
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckpointError, UsageError
from hydractl.importing.tensor_names import TrainedHeadError
from hydractl.progress import Silent
from hydractl.stages.importing.config import ImportConfig, parse_rename
from hydractl.stages.importing.run import run_import
from support.progress_log import ProgressLog

OPTIONS = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 4}
NAME = "vit_tiny_patch16_224"
ARCH = f"{NAME}::{','.join(f'{k}={v}' for k, v in OPTIONS.items())}"


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    return dict(timm.create_model(NAME, num_classes=7, **OPTIONS).state_dict())


def import_weights(folder, value, *, progress_log=None, num_classes=7, rename=(), **changes):
    torch.save(value, folder / "w.pth")
    config = ImportConfig(
        sources=(str(folder / "w.pth"),),
        arch=ARCH,
        out=folder / "b.st",
        num_classes=num_classes,
        rename=tuple(pair for text in rename for pair in parse_rename(text)),
        **changes,
    )
    run_import(config, progress_log or Silent())
    return Checkpoint.open(folder / "b.st").tensors()


def check_equal(found, state):
    assert found.keys() == state.keys()
    assert all(torch.equal(found[k], v) for k, v in state.items())


def under(prefix, state):
    return {prefix + k: v for k, v in state.items()}


def headless(state):
    return {k: v for k, v in state.items() if not k.startswith("head.")}


def with_head(state, name, prefix=""):
    return under(prefix, headless(state)) | {
        f"{name}.weight": state["head.weight"],
        f"{name}.bias": state["head.bias"],
    }


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("prefix", ["student.", "vit.", "teacher.backbone.", "a.b.c.d.e.", "_orig_mod.vit."])
@pytest.mark.parametrize("beside", [False, True])
def test_any_prefix_goes(tmp_path, state, prefix, beside):
    more = {"loss.weight": torch.ones(3)} if beside else {}
    check_equal(import_weights(tmp_path, under(prefix, state) | more), state)


def test_weights_that_are_there_twice(tmp_path, state):
    other = {k: v + 1 for k, v in state.items()}
    both = under("student.", state) | under("teacher.", other)
    with pytest.raises(
        CheckpointError, match=r"several sets of weights that fit, under `student\.`, `teacher\.`"
    ) as caught:
        import_weights(tmp_path, both)
    assert caught.value.hint == "`--weights-key teacher` imports those"
    check_equal(import_weights(tmp_path, both, weights_key="teacher"), other)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s}, lambda s: under("module.", s)])
def test_a_student_and_a_teacher(tmp_path, state, wrap):
    other = {k: v + 1 for k, v in state.items()}
    saved = {"student": wrap(state), "teacher": wrap(other), "epoch": 3}
    with pytest.raises(CheckpointError, match="has no state dict") as caught:
        import_weights(tmp_path, saved)
    assert caught.value.hint == (
        "there are tensors under `student`, `teacher`: add `--weights-key teacher` to import those"
    )
    check_equal(import_weights(tmp_path, saved, weights_key="teacher"), other)
    check_equal(import_weights(tmp_path, {"run": saved}, weights_key="run.teacher", force=True), other)


def test_a_key_that_is_not_there(tmp_path, state):
    with pytest.raises(
        UsageError, match=r"`--weights-key teachr`: .* has no weights under this key; its keys are `s`"
    ):
        import_weights(tmp_path, {"s": state}, weights_key="teachr")
    with pytest.raises(UsageError, match="`--ema` and `--weights-key` exclude each other"):
        import_weights(tmp_path, {"s": state}, weights_key="s", ema=True)


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize(
    ("name", "prefix"), [("fc", ""), ("classifier", "backbone."), ("model.fc", "model."), ("odd.name", "")]
)
@pytest.mark.parametrize("num_classes", [7, None])
def test_a_trained_classifier_under_another_name_is_never_lost(tmp_path, state, name, prefix, num_classes):
    saved = with_head(state, name, prefix)
    kind = TrainedHeadError if num_classes or name != "odd.name" else CheckpointError
    with pytest.raises(kind) as caught:
        import_weights(tmp_path, saved, num_classes=num_classes)
    assert not (tmp_path / "b.st").exists()
    if kind is TrainedHeadError:
        assert caught.value.hint.startswith(f"`--rename {name}={prefix}head` imports it")
    check_equal(import_weights(tmp_path, saved, rename=[f"{name}={prefix}head"]), state)
    fresh = import_weights(tmp_path, saved, head_seed=1, force=True)
    assert not torch.equal(fresh["head.weight"], state["head.weight"])


def test_a_classifier_of_other_classes_is_not_lost_either(tmp_path, state):
    with pytest.raises(TrainedHeadError, match=r"`fc\.weight` \(7, 32\) looks like a trained classifier"):
        import_weights(tmp_path, with_head(state, "fc"), num_classes=3)


def test_other_parts_are_left_out_with_a_line(tmp_path, state):
    progress_log = ProgressLog()
    saved = headless(state) | {"decoder.weight": torch.ones(61, 32), "decoder.bias": torch.ones(61)}
    import_weights(tmp_path, saved, progress_log=progress_log)
    assert any("ignored 2 tensors" in line for line in progress_log.warnings)


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ("fcc=head", "has no tensor with a name that begins with `fcc.`"),
        ("head=norm", "already has `norm.bias`"),
        ("head", "expected OLD=NEW"),
        ("=head", "expected OLD=NEW"),
    ],
)
def test_renames_that_cannot_be(tmp_path, state, rename, message):
    with pytest.raises(UsageError, match=message):
        import_weights(tmp_path, state, rename=[rename])
