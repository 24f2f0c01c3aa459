from __future__ import annotations

import pytest

from hydractl.evaluation import cost
from hydractl.families import registry
from hydractl.pruning import members as pruning
from hydractl.training import frozen_encoder
from support.hints.material import link_material, make_material


@pytest.fixture(scope="session", name="material")
def _material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    make_material(folder)
    return folder


@pytest.fixture(name="folder")
def _folder(material, tmp_path, monkeypatch):
    """Link the material into the current folder."""
    link_material(material, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture(autouse=True)
def _no_counting(monkeypatch):
    """Skip counting multiply-accumulates, to save a fifth of the time. No hint depends on the count."""
    for module in (cost, frozen_encoder, pruning):
        monkeypatch.setattr(module, "macs_of", lambda *_: 1)


@pytest.fixture(scope="session", name="specs")
def _specs():
    return {}


@pytest.fixture(autouse=True)
def _one_building(monkeypatch, specs):
    """Build each architecture once for its tensor shapes, because the rows share a few models."""
    build = registry.expected_specs

    def expected_specs(family, header):
        mask = repr(sorted(header.masks[0].items()))
        key = family.name, header.architecture.model_dump_json(), mask, len(header.labels)
        if key not in specs:
            specs[key] = build(family, header)
        return dict(specs[key])

    monkeypatch.setattr(registry, "expected_specs", expected_specs)
