from __future__ import annotations

import pytest

from support.hints.material import link_material, make_material


@pytest.fixture(scope="session", name="material")
def _material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    make_material(folder)
    return folder


@pytest.fixture(name="folder")
def _folder(material, tmp_path, monkeypatch):
    """The material as the current folder."""
    link_material(material, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
