"""Folders with an image hydra and a text hydra."""

from __future__ import annotations

import pytest

from hydractl.output.publish import Folder
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import Sample, base
from support.text_folders import save_tokenizer
from support.variants import of_depth, variant

KEEP = (((0, 1), (2,), (0, 3)), ((0, 1), (1, 2), ()))


def fused(sample, folder, blocks=3):
    """Return the folder of a hydra of two different members."""
    for i, keep in enumerate(KEEP):
        sample.pruned(*keep[:blocks]).tuned(i).save(folder / f"m-{i}.st")
    models = tuple(str(folder / f"m-{i}.st") for i in range(2))
    run_fuse(FuseConfig(models=models, out=Folder(folder / "hydra"), mlp="keep"))
    return folder / "hydra"


def named(variant):
    """Return an image base with class names."""
    plain = base(variant)
    return Sample(plain.header.model_copy(update={"labels": tuple("abcdefg")}), plain.state)


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return fused(named(variant("class-token")), tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def block(tmp_path_factory):
    """An image hydra with a single block, for quick export."""
    return fused(named(of_depth(variant("class-token"), 1)), tmp_path_factory.mktemp("block"), blocks=1)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    plain, folder = base(variant("transformers-bert-plain")), tmp_path_factory.mktemp("texts")
    save_tokenizer(folder)
    text = (folder / "tokenizer.json").read_text()
    preprocess = plain.header.preprocess.model_copy(update={"tokenizer": text, "max_length": 16})
    header = plain.header.model_copy(update={"preprocess": preprocess, "labels": tuple("abcdefg")})
    return fused(Sample(header, plain.state), folder)
