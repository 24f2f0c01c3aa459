"""Exported zero-shot models: the graph has class embeddings in the given order, and no text tower."""

from __future__ import annotations

import json

import pytest
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.errors import UsageError
from hydractl.exporting import formats
from hydractl.exporting.formats import OUTPUTS
from hydractl.prediction.class_names import Naming
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.pairs import ARCHITECTURES, pair

NAMES, TEMPLATES = ("3", "1", "4", "0", "2"), ("a photo of a {label} .", "the big {label}")
NAMING = Naming(names=NAMES, templates=TEMPLATES)
KEEPS = (((0, 2, 3), ()), ((1,), (0, 3)))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Paths by name: for each architecture a base, a hydra with stored classes, and a hydra without.

    The first member has no heads in the last layer.
    """
    folder, found = tmp_path_factory.mktemp("models"), {}
    for kind in ARCHITECTURES:
        base = pair(kind, folder)
        found[f"{kind} base"] = base.save(folder / f"{kind}.st")
        members = [
            str(base.pruned(*keep).tuned(i).save(folder / f"{kind}{i}.st")) for i, keep in enumerate(KEEPS)
        ]
        for name, naming in (("hydra", Naming()), ("named", NAMING)):
            out = found[f"{kind} {name}"] = folder / f"{kind}-{name}.st"
            run_fuse(FuseConfig(models=tuple(members), out=out, verify=False, naming=naming))
    return found


def check_exported(path, out, names=NAMES, templates=TEMPLATES):
    """Assert that an exported file and its source model give equal outputs for the same classes."""
    given = {} if names is None else {"classes": names, "templates": templates}
    loaded = hydractl.load(path, **given)
    asked = torch.randn(3, *loaded.header.preprocess.input_size, generator=torch.Generator().manual_seed(8))
    found = (formats.run_onnx if out.suffix == ".onnx" else formats.run_pt2)(out.read_bytes())(
        {"pixel_values": asked}
    )
    expected = loaded.predict(asked)
    with torch.no_grad():
        members = loaded.member_logits(asked)
    assert found.keys() == {*OUTPUTS}
    assert torch.allclose(found["member_logits"], members, atol=1e-5)
    for name in ("probabilities", "entropy", "mutual_information"):
        assert torch.allclose(found[name], getattr(expected, name), atol=1e-5), name
    # Neighbouring classes have different logits, so a wrong order of classes would be noticed.
    assert members.diff(dim=-1).abs().amax((0, 1)).min() > 1e-3


@pytest.mark.more
def test_a_hydra_is_told_its_classes(models, tmp_path, capsys):
    path, out = models["siglip hydra"], tmp_path / "h.onnx"
    said = ["--classes", ",".join(NAMES), *(word for each in TEMPLATES for word in ("--template", each))]

    assert main(
        ["export", str(path), "-o", str(out), *said, "--data", "digits::classes=0-4,limit=10", "--json"]
    ) == 0  # fmt: skip

    report = json.loads(capsys.readouterr().out)
    assert [one[0] for one in report["inputs"]] == ["pixel_values"]
    assert (report["members"], report["classes"]) == (2, len(NAMES))
    assert report["differences"]["the data"] < 1e-5
    check_exported(path, out)
    about = formats.onnx_libraries()[1].InferenceSession(out).get_modelmeta().custom_metadata_map
    assert json.loads(about["hydractl.labels"]) == list(NAMES)
    made = json.loads(about["hydractl.made_by"])["options"]
    assert (made["classes"], made["templates"]) == (list(NAMES), list(TEMPLATES))


@pytest.mark.parametrize(
    ("model", "suffix", "naming"),
    [
        ("clip base", ".pt2", NAMING),
        *(
            pytest.param(f"{kind} {name}", suffix, naming, marks=pytest.mark.more)
            for kind in ARCHITECTURES
            for name, naming in (("base", NAMING), ("hydra", NAMING), ("named", None))
            for suffix in (".onnx", ".pt2")
        ),
    ],
)
def test_classes_are_named_or_stored(models, tmp_path, model, suffix, naming):
    out = tmp_path / f"m{suffix}"

    run_export(ExportConfig(model=str(models[model]), out=out, naming=naming or Naming()))

    if suffix == ".pt2":
        assert not any("text" in name for name in torch.export.load(out).state_dict)
    check_exported(models[model], out, *((None, None) if naming is None else (NAMES, TEMPLATES)))


def test_without_classes_a_model_is_refused(models, tmp_path):
    for model in ("clip base", "siglip hydra"):
        with pytest.raises(UsageError, match="has no class names yet") as found:
            run_export(ExportConfig(model=str(models[model]), out=tmp_path / "c.pt2"))
        assert "--classes cat,dog" in found.value.hint
    assert not list(tmp_path.iterdir())


def test_a_folder_does_not_give_other_names_to_stored_embeddings(models, tmp_path):
    """A model without stored classes has no embeddings to copy either."""
    out = tmp_path / "folder"
    out.mkdir()
    other = Naming(names=NAMES[::-1], templates=TEMPLATES)
    for model in ("clip named", "clip base"):
        with pytest.raises(UsageError, match="stores no embeddings of these classes"):
            run_export(ExportConfig(model=str(models[model]), naming=other, out=out))
    assert not [*out.iterdir()]

    run_export(ExportConfig(model=str(models["clip named"]), naming=NAMING, out=out))
    assert hydractl.load(out).labels == NAMES
