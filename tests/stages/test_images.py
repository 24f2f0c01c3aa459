"""Models without image preprocessing: commands that read images warn about the assumed values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.output.publish import OutputLock
from hydractl.progress import reporting
from hydractl.provenance.output import Output
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import prepare, run_finetune
from hydractl.stages.options import Images, parse_size
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from hydractl.training.recipe import Recipe
from support.builders import base, mask_file
from support.progress_log import ProgressLog
from support.variants import variant

SAID = "its image preprocessing is assumed"
DATA = "digits::classes=0-6,limit=12"


class Told(ProgressLog):
    @property
    def told(self):
        return sum(SAID in line for line in self.warnings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("vit") / "m"
    base(variant("transformers-vit-plain")).library().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def member(folder, tmp_path_factory):
    """A member of the model, and the messages of `prune`."""
    place, progress_log = tmp_path_factory.mktemp("member"), Told()
    sample = base(variant("transformers-vit-plain"))
    mask = mask_file(place / "mask.json", sample.header, (0, 1), (), (2,))
    run_prune(PruneConfig(model=str(folder), masks=(mask,), out=place / "m.st"), progress_log)
    return place / "m.st", progress_log


def tuning(out, model, **changes):
    recipe = Recipe(steps=1, warmup=0, batch_size=8)
    data = DataRef.parse(DATA)
    return FinetuneConfig(
        model=str(model), train=data, val=data, out=out, recipe=recipe, device="cpu", **changes
    )


def test_pruning_and_scoring_without_data_read_no_image(tmp_path, folder, member):
    progress_log = Told()
    run_score(ScoreConfig(model=str(folder), method="random", out=tmp_path / "s.json"), progress_log)
    assert (progress_log.warnings, member[1].warnings) == ([], [])
    assert Checkpoint.open(member[0]).header.assumed


def test_whoever_reads_images_is_told(folder, member):
    for model in (folder, member[0]):
        progress_log = Told()
        run_eval(EvalConfig(model=str(model), data=DataRef.parse(DATA), device="cpu"), progress_log)
        assert progress_log.told == 1


def test_what_was_trained_with_is_assumed_no_more(tmp_path, folder, member):
    for model in (folder, member[0]):
        progress_log = Told()
        run_finetune(tuning(tmp_path / "out.st", model, force=True), progress_log)
        assert progress_log.told == 1
        assert not Checkpoint.open(tmp_path / "out.st").header.assumed


def test_what_is_said_of_images_holds(tmp_path, folder):
    images = Images(mean=(0.25,), std=(0.125,))
    with reporting(progress_log := Told()):
        work = prepare(tuning(tmp_path / "out.st", folder, images=images), Output(OutputLock(force=False)))
    assert (work.preprocess.mean, work.preprocess.std, work.header.assumed, progress_log.told) == (
        (0.25,),
        (0.125,),
        False,
        0,
    )

    with pytest.raises(UsageError, match=r"`--img-size`: .* does not accept images of 12x16 pixels"):
        prepare(
            tuning(tmp_path / "out.st", folder, images=Images(img_size=(12, 16))),
            Output(OutputLock(force=False)),
        )
    dino = base(variant("transformers-dinov2-plain")).save(tmp_path / "dino.st")
    found = prepare(
        tuning(tmp_path / "out.st", dino, images=Images(img_size=(12, 16))), Output(OutputLock(force=False))
    )
    assert found.preprocess.input_size == (1, 12, 16)


def test_texts_have_no_means(tmp_path):
    bert = base(variant("transformers-bert-plain")).save(tmp_path / "bert.st")
    for images, option in ((Images(mean=(0.5,)), "--mean"), (Images(img_size=(8, 8)), "--img-size")):
        with pytest.raises(UsageError, match=f"`{option}` is for images"):
            prepare(
                replace(tuning(tmp_path / "out.st", bert), images=images), Output(OutputLock(force=False))
            )


@pytest.mark.parametrize("text", ["", "0", "8x", "8x0", "8x8x8", "eight"])
def test_a_size_is_one_number_or_two(text):
    with pytest.raises(UsageError, match="is not an image size"):
        parse_size(text)
    assert (parse_size("12"), parse_size("12x16")) == ((12, 12), (12, 16))
