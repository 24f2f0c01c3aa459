"""Folders with tensor names of a wrapper are loaded. Folders with additional tensors are refused."""

from __future__ import annotations

import json
import shlex

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from hydractl.cli.app import main
from hydractl.errors import CheckpointError
from hydractl.families.open_model import load_model, open_model
from hydractl.runtime import digest_files
from support.builders import base
from support.text_folders import save_text_model
from support.variants import variant

NAME, OPTIONS = (
    "vit_tiny_patch16_224",
    {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 4},
)


def of_timm(folder):
    cfg = {"mean": [0.5] * 3, "std": [0.5] * 3}
    config = {"architecture": NAME, "num_classes": 7, "model_args": OPTIONS, "pretrained_cfg": cfg}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(timm.create_model(NAME, num_classes=7, **OPTIONS).state_dict(), folder / "model.safetensors")


def of_transformers(name):
    return lambda folder: base(variant(name)).library().save_pretrained(folder)


FOLDERS = {
    "timm": of_timm,
    "bert": lambda folder: save_text_model(variant("transformers-bert-plain"), folder),
    "vit": of_transformers("transformers-vit-plain"),
}


@pytest.mark.spread(cases=5)
@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "student.", "vit.", "module._orig_mod.model."])
def test_what_a_wrapper_puts_before_names_goes(tmp_path, make, prefix):
    folder = tmp_path / "m"
    make(folder)
    plain = load_model(open_model(str(folder))).library_state()
    state = load_file(folder / "model.safetensors")
    save_file({prefix + name: t for name, t in state.items()}, folder / "model.safetensors")

    model_file = open_model(str(folder))
    found = load_model(model_file).library_state()

    assert model_file.checkpoint.digest == digest_files([folder / "model.safetensors"])
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS)
def test_of_what_has_more_the_hint_is_a_command_that_works(tmp_path, make):
    folder = tmp_path / "m"
    make(folder)
    state = load_file(folder / "model.safetensors")
    more = {f"student.{name}": t for name, t in state.items()} | {"loss.weight": torch.ones(1)}
    save_file(more, folder / "model.safetensors")

    with pytest.raises(CheckpointError, match="lacks") as caught:
        open_model(str(folder))

    command = (
        caught.value.hint.partition("`hydractl ")[2].rstrip("`").replace("base.st", str(tmp_path / "b.st"))
    )
    assert main([*shlex.split(command), "-q"]) == 0
    save_file(state, folder / "model.safetensors")
    plain, found = (load_model(open_model(str(p))).library_state() for p in (folder, tmp_path / "b.st"))
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())
