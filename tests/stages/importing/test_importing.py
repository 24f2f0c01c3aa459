"""`import`: checkpoints of training scripts become bases with the same outputs; refusals run no code."""

from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckpointError, HydraError, OutputExists, UnsupportedModelError, UsageError
from hydractl.families.open_model import load_model, open_model
from hydractl.manifest.header import Kind
from hydractl.progress import Silent
from hydractl.runtime import digest_file
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.run import run_import
from support.progress_log import ProgressLog

OPTIONS = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 4}
NAME = "vit_tiny_patch16_224"
ARCH = f"{NAME}::{','.join(f'{k}={v}' for k, v in OPTIONS.items())}"
BERT = "bert::hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=48,vocab_size=61"


@pytest.fixture(scope="module")
def library():
    torch.manual_seed(0)
    return timm.create_model(NAME, num_classes=7, **OPTIONS).eval()


@pytest.fixture
def state(library):
    return dict(library.state_dict())


def import_weights(source, out, *, progress_log=None, arch=ARCH, num_classes=7, **changes):
    config = ImportConfig(sources=(str(source),), arch=arch, out=out, num_classes=num_classes, **changes)
    return run_import(config, progress_log or Silent())


def saved(folder, value, name="w.pth"):
    torch.save(value, folder / name)
    return folder / name


def under(prefix, state):
    return {prefix + k: v for k, v in state.items()}


def shifted(state):
    return {k: v + 1 for k, v in state.items()}


def check_equal(path, state):
    found = Checkpoint.open(path).tensors()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[k], v) for k, v in state.items())


# --- outputs ---------------------------------------------------------------------------------------


@torch.inference_mode()
def test_the_base_answers_exactly_as_the_library(tmp_path, library, state):
    path = saved(tmp_path, state)

    report = import_weights(path, tmp_path / "base.st", labels="a,b,c,d,e,f,g")

    model_file = open_model(str(tmp_path / "base.st"))
    images = torch.randn(3, 1, 8, 8)
    again = timm.create_model(NAME, num_classes=7, **OPTIONS).eval()
    again.load_state_dict(state)
    assert torch.allclose(load_model(model_file).member_logits(images)[0], again(images), atol=1e-6)
    check_equal(tmp_path / "base.st", again.state_dict())
    assert (model_file.header.kind, model_file.header.labels) == (Kind.BASE, tuple("abcdefg"))
    step = model_file.header.made_by
    assert (step.command, step.options["arch"], step.options["num_classes"]) == ("import", ARCH, 7)
    assert [(i.name, i.sha256) for i in step.inputs] == [("w.pth", digest_file(path))]
    assert (report.heads, report.num_classes, report.paths) == (8, 7, (tmp_path / "base.st",))


def test_equal_input_gives_equal_bytes(tmp_path, state):
    path = saved(tmp_path, state)
    import_weights(path, tmp_path / "a.st")
    import_weights(path, tmp_path / "b.st")

    assert (tmp_path / "a.st").read_bytes() == (tmp_path / "b.st").read_bytes()


WRAPPED = {
    "plain": lambda s: s,
    **{
        key: (lambda s, key=key: {"epoch": 3, key: s})
        for key in ("state_dict", "model", "model_state_dict", "module", "net")
    },
    "nested": lambda s: {"model": {"state_dict": s}},
    "beside tensors": lambda s: {"rng_state": torch.zeros(9, dtype=torch.uint8), "state_dict": s},
    "beside options": lambda s: {"args": argparse.Namespace(lr=0.1), "model": s},
    "beside an optimizer": lambda s: {"model": s, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}},
}
PREFIXES = ["module.", "_orig_mod.", "model.", "net.", "backbone.", "encoder.", "module._orig_mod.", "_orig_mod.module.", "model.module.", "model.backbone."]  # fmt: skip


@pytest.mark.spread(cases=7)
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_every_wrapper(tmp_path, state, wrap, prefix):
    import_weights(saved(tmp_path, wrap(under(prefix, state))), tmp_path / "base.st")

    check_equal(tmp_path / "base.st", state)


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_prefix(tmp_path, state, prefix):
    report = import_weights(saved(tmp_path, under(prefix, state)), tmp_path / "base.st")

    check_equal(tmp_path / "base.st", state)
    assert report.prefix == prefix.replace("_orig_mod.", "")


def test_wrappers_of_torch(tmp_path, library, state):
    parallel = torch.nn.DataParallel(copy.deepcopy(library))
    compiled = torch.compile(library)
    averaged = torch.optim.swa_utils.AveragedModel(library)
    for i, model in enumerate((parallel, compiled, averaged)):
        import_weights(saved(tmp_path, model.state_dict()), tmp_path / f"{i}.st")
        check_equal(tmp_path / f"{i}.st", state)


def test_what_a_lightning_module_has_besides_is_left_out_and_said(tmp_path, state):
    checkpoint = {
        "epoch": 1,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": under("model.", state) | {"loss.weight": torch.ones(7)},
        "optimizer_states": [],
        "hyper_parameters": {"lr": 0.1},
    }
    progress_log = ProgressLog()

    report = import_weights(
        saved(tmp_path, checkpoint, "last.ckpt"), tmp_path / "base.st", progress_log=progress_log
    )

    check_equal(tmp_path / "base.st", state)
    assert report.left_out == ("loss.weight",)
    assert any(
        "ignored 1 tensor outside `model.`, for example `loss.weight`" in text
        for text in progress_log.warnings
    )


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("key", ["state_dict_ema", "model_ema", "ema_state_dict"])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"module": s}, lambda s: under("module.", s)])
def test_moving_averages(tmp_path, state, key, wrap):
    path = saved(tmp_path, {"state_dict": state, key: wrap(shifted(state))})
    progress_log = ProgressLog()

    import_weights(path, tmp_path / "plain.st", progress_log=progress_log)
    import_weights(path, tmp_path / "ema.st", ema=True, progress_log=progress_log)

    check_equal(tmp_path / "plain.st", state)
    check_equal(tmp_path / "ema.st", shifted(state))
    assumed = (
        f"{path}: does not say how images are read; assumed: crop_pct=0.9, interpolation=bicubic, mean=[0.5], "
        "std=[0.5] (`--mean` and `--std` set these)"
    )
    assert progress_log.warnings == [
        assumed,
        f"{path}: also has an exponential moving average of the weights (`{key}`); add `--ema` to import it",
        assumed,
    ]


def test_forms_of_files(tmp_path, state):
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    saved(tmp_path, state, "model_best.pth.tar")
    saved(tmp_path, state, "pytorch_model.bin")
    save_file(under("module.", state), tmp_path / "w.safetensors")
    packed = tmp_path / "packed.pth"
    with (
        zipfile.ZipFile(tmp_path / "pytorch_model.bin") as old,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
    for i, name in enumerate(
        ("old.pth", "model_best.pth.tar", "pytorch_model.bin", "w.safetensors", "packed.pth")
    ):
        import_weights(tmp_path / name, tmp_path / f"{i}.st")
        check_equal(tmp_path / f"{i}.st", state)


def test_shards(tmp_path, state):
    names = sorted(state)
    halves = {"a.bin": names[:9], "b.bin": names[9:]}
    for file, part in halves.items():
        saved(tmp_path, {k: state[k] for k in part}, file)
    table = {k: file for file, part in halves.items() for k in part}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))

    import_weights(tmp_path / "pytorch_model.bin.index.json", tmp_path / "base.st")

    check_equal(tmp_path / "base.st", state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_stay(tmp_path, state, dtype):
    state = {k: v.to(dtype) for k, v in state.items()}

    import_weights(saved(tmp_path, state), tmp_path / "base.st")

    check_equal(tmp_path / "base.st", state)


def test_views_and_shared_memory(tmp_path, state):
    state["head.weight"] = torch.randn(32, 7).t()

    import_weights(saved(tmp_path, state), tmp_path / "base.st")

    check_equal(tmp_path / "base.st", state)


def test_a_folder_says_architecture_labels_and_preprocessing(tmp_path, state):
    folder = tmp_path / "m"
    folder.mkdir()
    config = {
        "architecture": NAME,
        "num_classes": 7,
        "model_args": OPTIONS,
        "label_names": list("abcdefg"),
        "pretrained_cfg": {"mean": [0.25], "std": [0.5]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    path = saved(folder, state, "weights.pth")

    import_weights(path, tmp_path / "base.st", arch=str(folder), num_classes=None)

    header = open_model(str(tmp_path / "base.st")).header
    assert header.labels == tuple("abcdefg")
    assert (header.preprocess.mean, header.preprocess.std) == ((0.25,), (0.5,))
    check_equal(tmp_path / "base.st", state)
    with pytest.raises(UsageError, match="has its own tokenizer"):
        import_weights(path, tmp_path / "b.st", arch=str(folder), tokenizer=folder)
    with pytest.raises(CheckpointError, match="has 7 classes, not 5") as caught:
        import_weights(path, tmp_path / "b.st", arch=str(folder), num_classes=5)
    assert "`--head-seed 0` for a new classifier" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [("l.txt", "\ufeffa\nb\nc\nd\ne\nf\ng\n\n"), ("l.json", '\ufeff["a","b","c","d","e","f","g"]\n')],
)
def test_labels_from_files_say_how_many_classes(tmp_path, state, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")

    import_weights(
        saved(tmp_path, state), tmp_path / "base.st", num_classes=None, labels=str(tmp_path / name)
    )

    assert open_model(str(tmp_path / "base.st")).header.labels == tuple("abcdefg")


@pytest.mark.parametrize("labels", ["a,a,b", "a,b, a", "caf\u00e9,b,cafe\u0301"])
def test_two_classes_of_one_name_are_refused(tmp_path, state, labels):
    with pytest.raises(UsageError, match=r"`--labels .*`: the class `.*` appears twice"):
        import_weights(saved(tmp_path, state), tmp_path / "base.st", num_classes=None, labels=labels)
    assert not (tmp_path / "base.st").exists()


# --- original repositories -------------------------------------------------------------------------


def clip_names(state):
    swaps = (
        ("patch_embed.proj", "conv1"), ("blocks.", "transformer.resblocks."), ("norm_pre", "ln_pre"), ("attn.qkv.", "attn.in_proj_"),
        ("attn.proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("norm1", "ln_1"), ("norm2", "ln_2"),
    )  # fmt: skip
    found = {"logit_scale": torch.ones(())}
    for name, tensor in state.items():
        if name == "head.bias":
            continue
        if name == "cls_token":
            found["visual.class_embedding"] = tensor[0, 0]
        elif name == "pos_embed":
            found["visual.positional_embedding"] = tensor[0]
        elif name == "head.weight":
            found["visual.proj"] = tensor.t()
        else:
            new = name.replace("norm.", "ln_post.") if name.startswith("norm.") else name
            for old, theirs in swaps:
                new = new.replace(old, theirs)
            found[f"visual.{new}"] = tensor
    return found


def original(name, rename, **options):
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=7, **(OPTIONS | options))
    with torch.no_grad():
        model.head.bias.zero_()
    state = dict(model.state_dict())
    return f"{name}::{','.join(f'{k}={v}' for k, v in (OPTIONS | options).items())}", state, rename(state)


ORIGINALS = {
    "CLIP": lambda: original("vit_base_patch16_clip_224", clip_names),
    "DINOv2": lambda: original("vit_small_patch14_dinov2", lambda s: s | {"mask_token": torch.zeros(1, 32)}),
    "DeiT III": lambda: original(
        "deit3_small_patch16_224", lambda s: {k.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): v for k, v in s.items()}
    ),
}  # fmt: skip


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("make", ORIGINALS.values(), ids=ORIGINALS)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_timm_translates_original_repositories(tmp_path, make, prefix):
    arch, state, theirs = make()
    progress_log = ProgressLog()

    report = import_weights(
        saved(tmp_path, {"model": under(prefix, theirs)}),
        tmp_path / "base.st",
        arch=arch,
        progress_log=progress_log,
    )

    check_equal(tmp_path / "base.st", state)
    assert report.converted == "timm"
    assert "which timm itself converted" in progress_log.warnings[-1]


@pytest.fixture(scope="module")
def bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=61,
        num_labels=7,
    )
    return dict(BertForSequenceClassification(config).state_dict())


def old_names(state):
    swaps = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    found = {"bert.embeddings.position_ids": torch.arange(512)[None]}
    for name, tensor in state.items():
        for new, old in swaps:
            name = name.replace(new, old)  # noqa: PLW2901
        found[name] = tensor
    return found


@pytest.mark.parametrize(("rename", "converted"), [(dict, None), (old_names, "transformers")])
def test_texts(tmp_path, bert, rename, converted):
    progress_log = ProgressLog()

    report = import_weights(
        saved(tmp_path, rename(bert), "pytorch_model.bin"),
        tmp_path / "base.st",
        arch=BERT,
        progress_log=progress_log,
    )

    check_equal(tmp_path / "base.st", bert)
    assert report.converted == converted
    assert "has no tokenizer" in progress_log.warnings[-1]


def test_layers_are_never_dropped_by_a_conversion(tmp_path, bert):
    with pytest.raises(CheckpointError, match=r"does not fit bert: .* has besides 23 tensors"):
        import_weights(
            saved(tmp_path, old_names(bert)), tmp_path / "b.st", arch=BERT.replace("layers=2", "layers=1")
        )


def test_a_tokenizer_comes_along(tmp_path, bert):
    from tokenizers import Tokenizer, models

    words = models.WordLevel({"[UNK]": 0, "cat": 1}, "[UNK]")
    Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    path = saved(tmp_path, bert)

    import_weights(path, tmp_path / "base.st", arch=BERT, tokenizer=tmp_path / "tokenizer.json")

    assert '"cat":1' in open_model(str(tmp_path / "base.st")).header.preprocess.tokenizer


# --- refusals --------------------------------------------------------------------------------------


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("form", ["archive", "old", "bare", "beside weights"])
def test_a_pickle_never_runs(tmp_path, state, form):
    path, evil = tmp_path / "w.pth", Evil(tmp_path / "pwned")
    if form == "bare":
        path.write_bytes(pickle.dumps(evil))
    else:
        value = {"state_dict": state, "extra": evil} if form == "beside weights" else evil
        torch.save(value, path, _use_new_zipfile_serialization=form != "old")

    with pytest.raises(CheckpointError, match="cannot be read without running code") as caught:
        import_weights(path, tmp_path / "base.st")

    assert "no code in it was run" in caught.value.message
    assert "torch.save(model.state_dict()" in caught.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.pth"]
    if form in {"archive", "beside weights"}:
        assert ".mkdir`" in caught.value.message


def script(folder):
    torch.jit.script(torch.nn.Linear(2, 2)).save(folder / "w.pth")


def garbled(folder):
    saved(folder, {"a": torch.zeros(99)})
    (folder / "w.pth").write_bytes((folder / "w.pth").read_bytes()[:-200])


FILES = {
    "missing": (lambda _: None, "no such file"),
    "folder": (lambda f: (f / "w.pth").mkdir(), "is a folder"),
    "empty": (lambda f: (f / "w.pth").touch(), "is empty"),
    "text": (lambda f: (f / "w.pth").write_text("hello there"), "is not a file of torch weights, or is truncated"),
    "cut": (garbled, "is not a readable archive, or is truncated"),
    "another archive": (lambda f: zipfile.ZipFile(f / "w.pth", "w").writestr("a", "b"), "is not a file of torch weights"),
    "a module": (lambda f: saved(f, torch.nn.Linear(2, 2)), r"cannot be read without running code \(`torch.nn.modules.linear.Linear`\)"),
    "a tensor": (lambda f: saved(f, torch.zeros(2)), "holds a Tensor, not a state dict"),
    "no tensors": (lambda f: saved(f, {"epoch": 3, "lr": 0.1}), "has no state dict; its keys are `epoch`, `lr`"),
    "an empty state dict": (lambda f: saved(f, {"model": {}}), "has no state dict; `model` holds none"),
    "sparse": (lambda f: saved(f, {"a": torch.eye(2).to_sparse()}), "tensor `a` is not a dense tensor"),
    "complex": (lambda f: saved(f, {"a": torch.zeros(2, dtype=torch.complex64)}), "is not a dense tensor"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), FILES.values(), ids=FILES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_that_hold_no_weights(tmp_path, make, message):
    make(tmp_path)

    with pytest.raises(CheckpointError, match=message) as caught:
        import_weights(tmp_path / "w.pth", tmp_path / "base.st")

    assert caught.value.hint
    assert not [p for p in tmp_path.iterdir() if p.name != "w.pth"]


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
def test_the_hint_for_a_folder_names_its_weights(tmp_path, name):
    (tmp_path / "config.json").touch()
    (tmp_path / name).touch()

    with pytest.raises(CheckpointError, match="is a folder") as caught:
        import_weights(tmp_path, tmp_path / "base.st")

    assert f"`hydractl import {tmp_path / name}`" in caught.value.hint


def without(state, *names):
    return {k: v for k, v in state.items() if k not in names}


@torch.inference_mode()
def test_a_single_logit_is_the_log_odds_of_the_second_class(tmp_path, library, state):
    one = state | {"head.weight": state["head.weight"][:1], "head.bias": state["head.bias"][:1]}
    path, images = saved(tmp_path, one), torch.randn(3, 1, 8, 8)
    log_odds = library(images)[:, :1]

    import_weights(path, tmp_path / "base.st", num_classes=1, labels="cat,dog")

    model_file = open_model(str(tmp_path / "base.st"))
    assert model_file.header.class_names == ("cat", "dog")
    torch.testing.assert_close(load_model(model_file)(images).softmax(-1)[:, 1:], log_odds.sigmoid())
    with pytest.raises(CheckpointError, match="has 1 class, not 2") as caught:
        import_weights(path, tmp_path / "other.st", num_classes=None, labels="cat,dog")
    assert caught.value.hint.startswith("add `--num-classes 1`")


MISFITS = {
    "classes": (lambda s: s, {"num_classes": 5}, r"has 7 classes, not 5", "--num-classes 7"),
    "default classes": (lambda s: s, {"num_classes": None}, r"has 7 classes, not 1000", "--num-classes 7"),
    "no classifier": (lambda s: without(s, "head.weight", "head.bias"), {"num_classes": None}, r"lacks 2 tensors \(`head.bias`, `head.weight`\)", "if it has no classifier, `--num-classes N` adds a random one, which `finetune` must train"),
    "missing": (lambda s: without(s, "cls_token"), {}, r"lacks 1 tensor \(`cls_token`\)", "another architecture"),
    "surplus": (lambda s: s | {"a": torch.ones(1), "b": torch.ones(1)}, {}, r"has besides 2 tensors \(`a`, `b`\)", "another architecture"),
    "architecture": (lambda s: s, {"arch": "vit_small_patch16_224::img_size=8,patch_size=4,in_chans=1"}, r"lacks 120 tensors \(`blocks.10.attn.proj.bias`, .*, \.\.\.\)", "another architecture"),
    "width": (lambda s: s, {"arch": ARCH.replace("=32", "=64")}, r"\d+ tensors have a shape that does not fit", "another architecture"),
    "image size": (lambda s: s, {"arch": ARCH.replace("size=8", "size=16")}, r"1 tensor has a shape that does not fit .*`pos_embed`", "img_size"),
    "behind a prefix": (lambda s: under("backbone.", without(s, "cls_token")), {}, r"lacks 3\d tensors", "another architecture"),
    "data parallel": (lambda s: under("module.", without(s, "cls_token")), {}, r"lacks 1 tensor \(`cls_token`\)", "another architecture"),
    "integers": (lambda s: s | {"norm.weight": torch.ones(32, dtype=torch.int8)}, {}, "tensor `norm.weight` is I8", "quantized"),
}  # fmt: skip


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize(("change", "options", "message", "hint"), MISFITS.values(), ids=MISFITS)
def test_weights_that_do_not_fit(tmp_path, state, change, options, message, hint):
    with pytest.raises(CheckpointError, match=message) as caught:
        import_weights(saved(tmp_path, change(state)), tmp_path / "base.st", **options)

    assert hint in caught.value.hint
    assert not (tmp_path / "base.st").exists()


USAGE = {
    "no exponential moving average": (
        {"ema": True},
        "has no exponential moving average of weights; its keys are `cls_token`",
    ),
    "two numbers of classes": ({"arch": f"{ARCH},num_classes=5"}, "`--num-classes 7` and `num_classes=5`"),
    "no classes": ({"num_classes": 0}, "`--num-classes 0`: must be at least 1"),
    "labels": ({"labels": "a,b"}, "2 names for 7 classes"),
    "empty label": ({"labels": "a,,b"}, "`--labels a,,b`: a class has no name"),
    "tokenizer": ({"tokenizer": Path("t.json")}, "`--tokenizer` is for texts"),
    "stream": (
        {"source": "-"},
        "`import` cannot read a stream: it reads tensors by their position in a file",
    ),
}


@pytest.mark.parametrize(("options", "message"), USAGE.values(), ids=USAGE)
def test_usage(tmp_path, state, options, message):
    path = saved(tmp_path, state)

    with pytest.raises(UsageError, match=message):
        import_weights(options.pop("source", path), tmp_path / "base.st", **options)

    assert not (tmp_path / "base.st").exists()


def test_as_many_labels_as_classes_are_asked_for(tmp_path, state):
    """With `--labels`, the hint names the number of labels. `--num-classes` would contradict the labels."""
    path = saved(tmp_path, state)
    with pytest.raises(CheckpointError, match="has 7 classes, not 3") as caught:
        import_weights(path, tmp_path / "base.st", num_classes=None, labels="a,b,c")
    assert caught.value.hint == "give 7 labels: `--labels` needs one name per class"

    with pytest.raises(UsageError, match="3 names for 7 classes") as caught:
        import_weights(path, tmp_path / "base.st", num_classes=7, labels="a,b,c")
    assert caught.value.hint == "give 7 labels, one per class"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path, state, value):
    state["blocks.1.mlp.fc1.weight"] = state["blocks.1.mlp.fc1.weight"].clone()
    state["blocks.1.mlp.fc1.weight"][0, :2] = value
    with pytest.raises(
        CheckpointError, match=r"tensor `blocks\.1\.mlp\.fc1\.weight` holds 2 numbers of "
    ) as caught:
        import_weights(saved(tmp_path, state), tmp_path / "base.st")
    assert caught.value.hint.startswith("the training may have diverged; use an earlier checkpoint")
    assert not (tmp_path / "base.st").exists()


def test_a_name_that_a_folder_has_too(tmp_path, monkeypatch, state):
    """The hint explains how to write the architecture and the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    hint = (
        "`bert` is both an architecture and a local folder: write `bert::` for the architecture, "
        "`./bert` for the folder"
    )
    with pytest.raises(UsageError) as caught:
        import_weights(
            saved(tmp_path, state), tmp_path / "base.st", arch="bert", tokenizer=tmp_path, num_classes=None
        )
    assert caught.value.hint == hint
    with pytest.raises(CheckpointError, match=r"bert: has no config\.json") as caught:
        import_weights(saved(tmp_path, state), tmp_path / "base.st", arch="bert", num_classes=None)
    assert caught.value.hint.endswith(hint)

    (tmp_path / "bert" / "config.json").write_text("{}")
    for arch, message, hint in (
        ("bert/config.json", "is a file, not the name of an architecture", "give its folder: `bert`"),
        ("./nothing/here", "timm has no architecture", ""),
    ):
        with pytest.raises(UnsupportedModelError, match=message) as caught:
            import_weights(saved(tmp_path, state), tmp_path / "base.st", arch=arch)
        assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("arch", "message", "hint"),
    [
        (f"{NAME}::imgsize=8", f"`{NAME}` has no option `imgsize`", "did you mean `img_size`?"),
        (f"{NAME}::nothing_like_it=8", f"`{NAME}` has no option `nothing_like_it`", None),
        ("eva02_tiny_patch14_224::imgsize=8", "has no option `imgsize`", "did you mean `img_size`?"),
        (
            "openclip:ViT-B-32::vision.layer=2",
            "has no option `vision.layer`",
            "did you mean `vision.layers`?",
        ),
        (f"{NAME}::depth=x", "timm cannot build", "check `depth=x`"),
    ],
)
def test_an_option_that_there_is_not_is_said_in_words(tmp_path, state, arch, message, hint):
    with pytest.raises(UsageError, match=message) as caught:
        import_weights(saved(tmp_path, state), tmp_path / "base.st", arch=arch, num_classes=None)
    assert caught.value.hint == hint


def test_ours_is_ours_already(tmp_path, state):
    import_weights(saved(tmp_path, state), tmp_path / "base.st")

    with pytest.raises(UsageError, match="is already a checkpoint of hydractl"):
        import_weights(tmp_path / "base.st", tmp_path / "again.st")


@pytest.mark.parametrize("arch", ["vit_none", "resnet18"])
def test_an_architecture_that_is_not_there(tmp_path, state, arch):
    with pytest.raises(UnsupportedModelError):
        import_weights(saved(tmp_path, state), tmp_path / "base.st", arch=arch)


@pytest.mark.parametrize("labels", ["none.txt", "x.json"])
def test_labels_that_cannot_be_read(tmp_path, monkeypatch, state, labels):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text("{")

    with pytest.raises(HydraError, match=labels):
        import_weights(saved(tmp_path, state), tmp_path / "base.st", labels=labels)


def test_outputs_are_kept(tmp_path, state):
    path = saved(tmp_path, state)
    (tmp_path / "base.st").write_bytes(b"mine")

    with pytest.raises(OutputExists):
        import_weights(path, tmp_path / "base.st")
    (tmp_path / "link.st").symlink_to(path)
    with pytest.raises(OutputExists, match="is an input"):
        import_weights(path, tmp_path / "link.st", force=True)
    assert (tmp_path / "base.st").read_bytes() == b"mine"
    import_weights(path, tmp_path / "base.st", force=True)
    check_equal(tmp_path / "base.st", state)
