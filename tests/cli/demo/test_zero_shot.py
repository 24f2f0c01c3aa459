from __future__ import annotations

from itertools import pairwise

import pytest

from hydractl.cli.commands.demo import zero_shot as steps
from hydractl.data.open_dataset import open_data
from hydractl.stages.shared.zero_shot_classes import Naming
from hydractl.training import clip_pretraining
from support.commands import check_order, check_typed


@pytest.fixture
def trained(monkeypatch):
    """Keep what would be trained."""
    kept = []

    def train(images, out, config):
        kept.append((len(images), out, config))
        return 1.25

    monkeypatch.setattr(clip_pretraining, "train_pair", train)
    return kept


def commands(out, seed=0):
    return [command for part in steps.plan(out, seed) for command in part.commands]


def test_three_models_differ_in_their_seed_alone(trained, tmp_path):
    said = []
    steps.prepare(tmp_path, 5, said.append)

    assert [out.name for _, out, _ in trained] == ["clip", "clip-1", "clip-2"]
    assert [config.seed for _, _, config in trained] == [5, 6, 7]
    assert len(said) == 6
    assert "1.25" in said[1]


def test_every_command_is_one_that_a_user_could_type(tmp_path):
    check_typed(commands(tmp_path))
    assert [c[0] for c in commands(tmp_path)] == [
        *["score"] * 4,
        *["prune"] * 3,
        *["fuse"] * 2,
        "eval",
        "report",
    ]


def test_what_a_command_reads_was_made_before_it(tmp_path):
    written = {str(tmp_path / name) for name in ("clip", "clip-1", "clip-2")}
    check_order(commands(tmp_path), tmp_path, written)


def test_seeds_follow_the_demos(tmp_path):
    given = [b for command in commands(tmp_path, seed=4) for a, b in pairwise(command) if a == "--seed"]

    assert given == ["4", "5", "6", "4"]


def test_classes_are_those_of_the_data_and_prompts_were_captions(tmp_path):
    fuse = next(command for command in commands(tmp_path) if command[0] == "fuse")
    named = Naming.parse(fuse[fuse.index("--classes") + 1], None).names

    assert named == open_data(steps.TEST).class_names == open_data(steps.TRAIN).class_names
    assert set(steps.PROMPTS) <= set(steps.CAPTIONS)


def test_no_data_has_two_uses():
    guide, near = (open_data(ref) for ref in (steps.OOD_VAL, steps.NEAR[0].partition("=")[2]))
    known = open_data(steps.TEST).class_names

    assert not {*guide.class_names} & {*near.class_names}
    assert not {*guide.class_names, *near.class_names} & {*known}
    assert all(len(open_data(far.partition("=")[2])) == 360 for far in steps.FAR)
