"""Exported models answer like the source model; files with other answers are not written."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.errors import CheckFailed, UnsupportedModelError, UsageError
from hydractl.exporting import formats
from hydractl.exporting.comparison import pictures, prepared, trials
from hydractl.exporting.formats import FILTERS, OUTPUTS, Pixels
from hydractl.fusion.hydra import HydraOutput
from hydractl.manifest.header import Preprocess
from hydractl.manifest.report import Report
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.fuse.config import FuseConfig, Measuring
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.variants import PLAIN, VARIANTS, Variant

TWO = Variant("timm-vit", "two-layers", PLAIN.arch, PLAIN.options | {"depth": 2})
_BERT = next(v for v in VARIANTS if v.family == "transformers-bert")
BERT = Variant(_BERT.family, "two-layers", _BERT.arch, _BERT.options | {"num_hidden_layers": 2})
DATA = "digits::split=test,classes=0-6,limit=20"


def fused(folder, *samples, **options):
    paths = [str(sample.save(folder / f"{i}.st")) for i, sample in enumerate(samples)]
    run_fuse(FuseConfig(models=tuple(paths), out=folder / "hydra.st", **options))
    return folder / "hydra.st"


@pytest.fixture(scope="module")
def hydra(tmp_path_factory):
    """A hydra with a temperature, and with a mean unequal to the standard deviation.

    No member has heads in the first layer; the second member has no heads in the last layer.
    """
    sample = base(TWO)
    preprocess = sample.header.preprocess.model_copy(update={"mean": (0.4,), "std": (0.3,)})
    sample = replace(sample, header=sample.header.model_copy(update={"preprocess": preprocess}))
    members = sample.pruned([], [0, 1]), sample.pruned([], []).tuned(1)
    return fused(tmp_path_factory.mktemp("hydra"), *members, measuring=Measuring(temperature=2.0))


@pytest.fixture(scope="module")
def exported(hydra):
    """Report of an int8 export, and the bytes of the intermediate fp32 file."""
    config = ExportConfig(
        model=str(hydra), out=hydra.with_name("hydra.onnx"), data=DATA, ood="noise::limit=20", quantize="int8",
        save_report=hydra.with_name("report.json"),
    )  # fmt: skip
    made, write = [], formats.onnx_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "onnx_bytes", lambda *args, **by: made.append(write(*args, **by)) or made[-1])
        return run_export(config), made[0]


def answers_of(path, asked):
    loaded = hydractl.load(path)
    with torch.no_grad():
        said = loaded(asked)
        return (said.logits, said.member_logits) if isinstance(said, HydraOutput) else (said, said[None])


def near(found, path, asked, tolerance=1e-5):
    logits, members = answers_of(path, asked)
    assert found.keys() == {*OUTPUTS}
    for name, expected in {
        "logits": logits, "member_logits": members, "probabilities": members.softmax(-1).mean(0),
    }.items():  # fmt: skip
        assert torch.allclose(torch.as_tensor(found[name]), expected, atol=tolerance), name
    if isinstance(asked, torch.Tensor):
        loaded = hydractl.load(path).predict(asked)
        for name in ("entropy", "mutual_information"):
            assert torch.allclose(torch.as_tensor(found[name]), getattr(loaded, name), atol=tolerance), name
        assert torch.allclose(torch.as_tensor(found["ood_score"]), loaded.scores["msp"], atol=tolerance)


@pytest.mark.more
def test_any_number_of_samples_goes_into_onnx(hydra, exported):
    run = formats.run_onnx(exported[1])

    for batch in (1, 3):
        asked = base(TWO).inputs(batch=batch, seed=7)
        near(run({"pixel_values": asked}), hydra, asked)
    assert exported[0].inputs == (("pixel_values", "float32", "(batch, 1, 8, 8)"),)


def test_gelu_is_one_operator(exported):
    nodes = formats.onnx_libraries()[0].load_from_string(exported[1]).graph.node

    assert {"Gelu", "Erf"} & {node.op_type for node in nodes} == {"Gelu"}


def test_whole_numbers_of_8_bits_answer_nearly_the_same_and_their_effect_is_told(hydra, exported):
    quantized, _ = exported
    document = Report.model_validate_json((hydra.with_name("report.json")).read_text())

    assert [row.name for row in document.rows] == ["model", "onnx", "int8"]
    assert {"accuracy", "ece"} <= document.rows[2].values.keys()
    assert "auroc" in document.rows[2].ood["ood"]
    assert quantized.measured == document
    assert quantized.differences["random inputs"] < 1e-5
    assert quantized.differences["the data"] < 1e-5
    assert 1e-5 < quantized.differences["the data, quantized"] < 0.1
    content = (hydra.with_name("hydra.onnx")).read_bytes()
    assert b"MatMulInteger" in content or b"DynamicQuantizeLinear" in content
    run, asked = formats.run_onnx(content), base(TWO).inputs(batch=3, seed=7)
    near(run({"pixel_values": asked}), hydra, asked, tolerance=0.2)


def test_a_file_says_what_its_user_must_know_and_nothing_of_this_machine(hydra, exported):
    import onnxruntime

    path = hydra.with_name("hydra.onnx")
    said = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map

    assert (
        Preprocess.model_validate_json(said["hydractl.preprocess"]) == hydractl.load(hydra).header.preprocess
    )
    assert json.loads(said["hydractl.members"]) == 2
    assert json.loads(said["hydractl.temperature"]) == 2.0
    assert json.loads(said["hydractl.made_by"])["inputs"][0]["name"] == "hydra.st"
    content = path.read_bytes()
    for place in (
        str(Path(hydractl.__file__).parent),
        str(Path(torch.__file__).parents[1]),
        str(path.parent),
    ):
        assert place.encode() not in content


def test_a_program_of_texts_takes_any_number_of_any_length(tmp_path):
    sample = base(BERT).pruned([0, 1], [])
    path = sample.save(tmp_path / "m.st")

    report = run_export(ExportConfig(model=str(path), out=tmp_path / "m.pt2"))

    assert report.inputs[0] == ("input_ids", "int64", "(batch, length)")
    assert report.differences["random inputs"] < 1e-6
    run = formats.run_pt2((tmp_path / "m.pt2").read_bytes())
    for batch, length in ((1, 5), (4, 24), (3, 1)):
        asked = {k: x[:, :length] for k, x in sample.inputs(batch=batch, seed=9).items()}
        asked["attention_mask"][:, 0] = 1
        near(run(asked), path, asked)
    extra = {"hydractl.kind": ""}
    torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    assert json.loads(extra["hydractl.kind"]) == "member"


def test_no_text_that_is_asked_is_nothing_but_padding():
    asked = list(trials(base(BERT).header, with_pixels=False, seed=0))

    assert len({one["input_ids"].shape[1] for one in asked}) == 2
    assert all(one["attention_mask"].any(1).all() for one in asked)


@pytest.mark.more
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_pixels_of_any_size_go_in(hydra, tmp_path, suffix):
    out = tmp_path / f"pixels{suffix}"
    config = ExportConfig(model=str(hydra), out=out, with_preprocess=True)

    report = run_export(config)
    run_export(replace(config, out=tmp_path / f"again{suffix}"))

    assert report.inputs == (("images", "uint8", "(batch, height, width, 1)"),)
    run = (formats.run_onnx if suffix == ".onnx" else formats.run_pt2)(out.read_bytes())
    preprocess = hydractl.load(hydra).header.preprocess
    for size in ((1.0, 1.0), (2.5, 3.5)):
        pixels = pictures(preprocess, size=size, batch=3, seed=3)
        near(run({"images": pixels}), hydra, prepared(preprocess, pixels))
    if suffix == ".onnx":
        assert out.read_bytes() == (tmp_path / f"again{suffix}").read_bytes()


@pytest.mark.more
def test_a_merged_trunk_is_in_the_graph(tmp_path):
    one, other = (base().pruned([0, 1], [], [0]).tuned(seed) for seed in (1, 2))
    path = fused(tmp_path, one, other, trunk=2)

    run_export(ExportConfig(model=str(path), out=tmp_path / "h.onnx"))

    asked = base().inputs(batch=3, seed=7)
    near(formats.run_onnx((tmp_path / "h.onnx").read_bytes())({"pixel_values": asked}), path, asked)


@pytest.mark.more
def test_texts_go_into_onnx(tmp_path):
    sample = base(BERT)
    path = fused(tmp_path, sample.pruned([0], []), sample.pruned([1, 2], [0, 1]).tuned(1))

    run_export(ExportConfig(model=str(path), out=tmp_path / "h.onnx"))

    run = formats.run_onnx((tmp_path / "h.onnx").read_bytes())
    for batch, length in ((1, 5), (4, 24)):
        asked = {k: x[:, :length].contiguous() for k, x in sample.inputs(batch=batch, seed=9).items()}
        near(run(asked), path, asked)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_pixels_are_prepared_as_eval_prepares_them(interpolation, mode):
    for size, offset, kept in (
        ((3, 32, 32), "nearest", 0.9),
        ((1, 28, 20), "before", 1.0),
        ((3, 28, 28), "torchvision", 1.0),
    ):
        channels = size[0]
        preprocess = Preprocess(
            input_size=size, mean=(0.5, 0.4, 0.3)[:channels], std=(0.2, 0.3, 0.25)[:channels], crop_pct=kept,
            interpolation=interpolation, crop_mode=mode, crop_offset="nearest" if offset == "nearest" else "before",
            resize_backend="torchvision" if offset == "torchvision" else "pillow",
        )  # fmt: skip
        for scale in ((1.0, 1.0), (0.6, 0.8), (1.7, 2.3), (5.03, 7.7)):
            pixels = pictures(preprocess, size=scale, batch=2, seed=1)
            actual, expected = Pixels(preprocess)(pixels), prepared(preprocess, pixels)
            # torchvision scales its int16 weights by the largest of all pixels, the graph by the largest
            # within the crop
            if mode == "center" and preprocess.resizes_tensors:
                steps = (actual - expected).abs() * torch.tensor(preprocess.std)[:, None, None] * 255
                assert steps.max() < 2.01, scale
                assert (steps > 0.5).float().mean() < 0.05, scale
            else:
                assert torch.equal(actual, expected), scale


def test_what_a_hydra_answers_can_be_written_down():
    spec = torch.utils._pytree.tree_structure(HydraOutput(torch.zeros(1), torch.zeros(1)))

    assert torch.utils._pytree.treespec_loads(torch.utils._pytree.treespec_dumps(spec)) == spec


def test_one_that_answers_otherwise_is_not_written(hydra, tmp_path, monkeypatch):
    def otherwise(content):
        def run(inputs):
            found = {name: torch.zeros(1) for name in OUTPUTS}
            return found | {"entropy": torch.full((1,), np.nan)}

        return run

    monkeypatch.setattr(formats, "traced", lambda *_, **__: None)
    monkeypatch.setattr(formats, "pt2", lambda *_: b"")
    monkeypatch.setattr(formats, "run_pt2", otherwise)

    with pytest.raises(CheckFailed, match=r"more than the tolerance 0\.0001; nothing was written"):
        run_export(ExportConfig(model=str(hydra), out=tmp_path / "h.pt2"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"out": Path("h.txt")}, "must have the suffix .onnx or .pt2"),
        ({"out": Path("-")}, "must have the suffix .onnx or .pt2"),
        (
            {"out": Path("h.pt2"), "quantize": "int8", "data": DATA},
            "`--quantize` has no effect with `-o h.pt2`: quantization needs .onnx",
        ),
        ({"quantize": "int8"}, "`--quantize` needs `--data`"),
        ({"ood": "noise"}, "`--ood` needs `--data`"),
        ({"data": DATA, "save_report": Path("h.onnx")}, "a JSON document must have the suffix .json"),
    ],
)
def test_what_cannot_be_is_refused(options, text):
    with pytest.raises(UsageError, match=re.escape(text)):
        ExportConfig(**{"model": "h.st", "out": Path("h.onnx"), **options})


def test_texts_have_no_pixels(tmp_path):
    path = base(BERT).save(tmp_path / "b.st")
    with pytest.raises(UsageError, match="`--with-preprocess` is for images"):
        run_export(ExportConfig(model=str(path), out=tmp_path / "b.pt2", with_preprocess=True))


def test_without_its_libraries_onnx_is_refused_by_name(hydra, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxscript", None)

    assert main(["export", str(hydra), "-o", str(tmp_path / "h.onnx")]) == UnsupportedModelError.exit_code
    assert "pip install 'hydractl[onnx]'" in capsys.readouterr().err


def test_releases_of_torch_that_cannot_are_refused_by_name(hydra, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", "2.7.1+cu126")

    assert main(["export", str(hydra), "-o", str(tmp_path / "h.pt2")]) == 3
    said = capsys.readouterr().err
    assert "export needs torch 2.8 or later, but 2.7.1+cu126 is installed" in said
    assert "pip install --upgrade 'torch>=2.8'" in said
    assert not [*tmp_path.iterdir()]


def test_what_is_there_is_kept(hydra, tmp_path, capsys):
    out = Path(shutil.copy(hydra, tmp_path / "h.pt2"))

    assert main(["export", str(hydra), "-o", str(out)]) == 6
    assert out.read_bytes() == hydra.read_bytes()
