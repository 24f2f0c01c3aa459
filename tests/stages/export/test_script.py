"""The script next to an exported model answers as `predict` does, in a process without hydractl."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image, UnidentifiedImageError

from hydractl.cli.app import main
from hydractl.data.decoding import upright
from hydractl.data.preprocess import eval_transform
from hydractl.exporting.formats import script
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.guarantees import PredictionSets, Threshold
from hydractl.manifest.header import Header, Preprocess
from hydractl.manifest.terms import SetMethod
from hydractl.metrics.conformal import class_sets
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from support.builders import base
from support.pairs import pair
from support.progress_log import ProgressLog
from support.text_folders import save_text_model
from support.variants import PLAIN, VARIANTS, of_depth

ONE = of_depth(PLAIN, 1)
BERT = of_depth(next(v for v in VARIANTS if v.family == "transformers-bert"), 1)
ESM = next(v for v in VARIANTS if str(v).startswith("transformers-esm-rotary"))
TEXTS = ["the cat sat", "on a mat " * 200, "a", "cat"]
ORIENTATION = 0x0112


def threshold(below: float | None, *, score: str = "msp") -> Threshold:
    accepted = 0 if below is None else 30
    return Threshold(score=score, below=below, risk=0.1, delta=0.05, count=60, accepted=accepted, errors=0)


def image_model(path: Path, how: dict[str, object] | None = None, **header: object) -> Path:
    sample = base(ONE)
    update = {"mean": (0.4,), "std": (0.3,), "crop_pct": 0.9} | (how or {})
    preprocess = sample.header.preprocess.model_copy(update=update)
    header = {"preprocess": preprocess, "labels": tuple("abcdefg")} | header
    return replace(sample, header=sample.header.model_copy(update=header)).save(path)


def open_image(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes()))


def write_images(folder: Path) -> list[str]:
    """Write images of several sizes, modes and formats, one with an EXIF rotation; return their names."""
    numbers = np.random.default_rng(0)
    names = []
    for i, (mode, size, name) in enumerate(
        [("L", (8, 8), "a.png"), ("RGB", (31, 12), "b c.png"), ("RGBA", (9, 30), "c.png"), ("RGB", (40, 17), "d.jpg")]
    ):  # fmt: skip
        pixels = numbers.integers(0, 256, (*reversed(size), len(mode)), np.uint8)
        image = Image.fromarray(pixels.squeeze(-1) if mode == "L" else pixels, mode)
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        image.save(folder / name, **({"exif": exif} if i == 3 else {}))
        names.append(name)
    palette = open_image(folder / "b c.png").convert("P")
    palette.save(folder / "e.gif", transparency=palette.getpixel((0, 0)))
    return [*names, "e.gif"]


@pytest.fixture
def answers(python):
    """Return a function to run a script in isolated mode (`python -I`) and parse the output."""

    def run(script_path: Path, *inputs: str, stdin: str = "") -> list[dict[str, object]]:
        # A warm interpreter has libraries that the script must not import.
        assert not re.search(r"^\s*(import|from) (hydractl|timm)", script_path.read_text(), re.MULTILINE)
        done = subprocess.run(
            [python(), "-I", script_path, *inputs],
            cwd=script_path.parent, input=stdin, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def predictions(model: Path, *inputs: str) -> list[dict[str, object]]:
    out = model.with_name("predictions.jsonl")
    assert main(["predict", str(model), *inputs, "-o", str(out), "--force", "-q"]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def check_lines(
    actual: list[dict[str, object]], expected: list[dict[str, object]], *, tolerance: float = 1e-4
) -> None:
    assert len(actual) == len(expected) > 1
    for one, other in zip(actual, expected, strict=True):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=tolerance)
        assert one["ood_score"] == pytest.approx(other["ood_score"], abs=tolerance)
        assert one.get("accepted", "none") == other.get("accepted", "none")
        assert one.get("set", "none") == other.get("set", "none")
    assert len({line["probability"] for line in expected}) > 1


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    ("suffix", "pixels"),
    [
        (".onnx", False),
        (".pt2", False),
        pytest.param(".onnx", True, marks=pytest.mark.more),
        pytest.param(".pt2", True, marks=pytest.mark.more),
    ],
)
def test_images_are_answered_as_predict_answers_them(tmp_path, monkeypatch, suffix, pixels, answers):
    monkeypatch.chdir(tmp_path)
    names = write_images(tmp_path)
    first = predictions(image_model(tmp_path / "first.st"), *names)
    scores = np.sort([line["ood_score"] for line in first])
    widest = np.diff(scores).argmax()  # a gap: resizing may change scores slightly
    below = float(scores[widest : widest + 2].mean())
    sets = sets_of(SetMethod.LAC)
    model = image_model(tmp_path / "m.st", threshold=threshold(below), prediction_sets=sets)
    out = tmp_path / f"m{suffix}"

    report = run_export(ExportConfig(model=str(model), out=out, with_preprocess=pixels))

    assert report.paths == (out, tmp_path / f"m{suffix}.py")
    actual = answers(report.paths[1], *names)
    check_lines(actual, predictions(model, *names), tolerance=5e-3 if pixels else 1e-4)
    assert [line["path"] for line in actual] == names
    assert {line["accepted"] for line in actual} == {True, False}
    assert any(line["set"] for line in actual)
    assert answers(report.paths[1], stdin="\n".join(names)) == actual


@pytest.mark.more
def test_a_zero_shot_model_knows_the_classes_that_it_was_exported_with(tmp_path, monkeypatch, answers):
    monkeypatch.chdir(tmp_path)
    names = write_images(tmp_path)
    model = pair("clip", tmp_path).save(tmp_path / "clip.st")
    naming = ["--classes", "3,1,4", "--template", "a photo of a {label} ."]

    assert main(["export", str(model), *naming, "-o", "clip.onnx", "-q"]) == 0

    actual = answers(tmp_path / "clip.onnx.py", *names)
    check_lines(actual, predictions(model, *names, *naming))
    assert {line["label"] for line in actual} <= {"3", "1", "4"}


@pytest.mark.parametrize("suffix", [".onnx", pytest.param(".pt2", marks=pytest.mark.more)])
def test_texts_are_answered_as_predict_answers_them(tmp_path, monkeypatch, suffix, answers):
    monkeypatch.chdir(tmp_path)
    save_text_model(BERT, tmp_path / "bert")
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(TEXTS) + "\n")

    run_export(ExportConfig(model="bert/", out=tmp_path / f"m{suffix}"))

    actual = answers(tmp_path / f"m{suffix}.py", *TEXTS)
    check_lines(actual, predictions(tmp_path / "bert", "texts.csv"))
    assert [line["text"] for line in actual] == TEXTS


@pytest.mark.more
def test_a_tokenizer_in_python_is_the_model_s_own(tmp_path, monkeypatch, answers):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "esm").mkdir()
    base(ESM).library().save_pretrained(tmp_path / "esm")
    proteins = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
    (tmp_path / "esm/vocab.txt").write_text(
        "\n".join(proteins.split()[: base(ESM).header.preprocess.vocab_size])
    )
    (tmp_path / "esm/tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    texts = ["LAGV", "L A G G S", "VVVV" * 30]
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(texts) + "\n")

    run_export(ExportConfig(model="esm/", out=tmp_path / "m.onnx"))

    assert "EsmTokenizer" in (tmp_path / "m.onnx.py").read_text()
    check_lines(answers(tmp_path / "m.onnx.py", *texts), predictions(tmp_path / "esm", "texts.csv"))


@pytest.mark.more
def test_tokens_are_numbers_where_a_model_has_no_tokenizer(tmp_path, answers):
    sample = base(BERT)
    run_export(ExportConfig(model=str(sample.save(tmp_path / "b.st")), out=tmp_path / "b.pt2"))

    actual = answers(tmp_path / "b.pt2.py", "2 4 5 3", "2 9 3")

    with torch.no_grad():
        ids = torch.tensor([[2, 4, 5, 3]])
        logits = sample.model()({"input_ids": ids, "attention_mask": ids.sign(), "token_type_ids": 0 * ids})
    assert actual[0]["probability"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)
    assert actual[0] != actual[1]


def functions_of(header: Header, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the namespace of a script, executed with a fake model."""
    sets = header.prediction_sets
    metadata = {"hydractl.labels": json.dumps(header.labels)}
    metadata |= {} if sets is None else {"hydractl.prediction_sets": sets.model_dump_json()}
    session = SimpleNamespace(get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=metadata))
    fake = SimpleNamespace(InferenceSession=lambda _: session)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    namespace = {"__file__": "x.onnx.py", "__name__": "x"}
    exec(compile(script(header, name="x.onnx", onnx=True), "x.onnx.py", "exec"), namespace)  # noqa: S102 - what is tested
    return namespace


def sets_of(method: SetMethod, *, by_class: bool = False) -> PredictionSets:
    """Return prediction sets for seven classes with invented thresholds."""
    options = {"penalty": 0.07, "rank": 2} if method is SetMethod.RAPS else {}
    thresholds = tuple(np.linspace(0.5, 0.9, 7)) if by_class else (0.8,)
    data = Fingerprint(reference="digits", sha256=f"sha256:{'0' * 64}")
    return PredictionSets(method=method, coverage=0.8, thresholds=thresholds, count=60, data=data, **options)


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("method", SetMethod)
def test_prediction_sets_are_those_of_predict(monkeypatch, method, by_class):
    rule = sets_of(method, by_class=by_class)
    header = base(ONE).header.model_copy(update={"labels": tuple("abcdefg"), "prediction_sets": rule})
    found = functions_of(header, monkeypatch)["prediction_set"]
    probabilities = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).mul(2).softmax(-1)
    probabilities[0] = torch.tensor([0.4, 0.2, 0.2, 0.2, 0, 0, 0])  # ties
    expected = class_sets(probabilities, rule)
    assert len({*expected.sum(1).tolist()}) > 1
    for p, row in zip(probabilities.numpy(), expected.tolist(), strict=True):
        assert found(p) == [name for name, inside in zip("abcdefg", row, strict=True) if inside]


@pytest.mark.spread(cases=12)
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("offset", ["nearest", "before", "torchvision"])
@pytest.mark.parametrize("size", [(3, 32, 32), (1, 28, 20), (3, 21, 32), (1, 15, 15)])
def test_images_are_read_to_the_bit_as_timm_and_transformers_read_them(
    tmp_path, monkeypatch, mode, offset, size
):
    folder = tmp_path
    names = write_images(folder)
    for filter_name, kept in (("bicubic", 0.9), ("nearest", 1.0), ("lanczos", 0.875), ("bilinear", 0.9)):
        channels = size[0]
        preprocess = Preprocess(
            input_size=size, mean=(0.5, 0.4, 0.3)[:channels], std=(0.2, 0.3, 0.25)[:channels], crop_pct=kept,
            interpolation=filter_name, crop_mode=mode, crop_offset="before" if offset == "torchvision" else offset,
            resize_backend="torchvision" if offset == "torchvision" else "pillow",
            transparency="white" if offset == "torchvision" else "drop",
        )  # fmt: skip
        header = base(ONE).header.model_copy(update={"preprocess": preprocess})
        read = functions_of(header, monkeypatch)["read"]
        for name in names:
            expected = eval_transform(preprocess)(upright(open_image(folder / name)))
            assert np.array_equal(read(folder / name)["pixel_values"][0], expected.numpy()), (
                name,
                filter_name,
            )


def test_only_image_formats_are_opened(tmp_path, monkeypatch):
    """Pillow starts Ghostscript for an EPS of any name, and a small file may decode to gigabytes."""
    read = functions_of(base(ONE).header, monkeypatch)["read"]
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n")
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", None)
    with pytest.raises(UnidentifiedImageError):
        read(tmp_path / "a.png")
    Image.new("RGBA", (8193, 8192)).save(tmp_path / "b.png")
    with pytest.raises(SystemExit, match="has 8193 x 8192 pixels, more than 268435456 bytes"):
        read(tmp_path / "b.png")


@pytest.mark.more
def test_labels_with_equal_names_stay_apart(tmp_path, answers, monkeypatch):
    sample = base(next(v for v in VARIANTS if v.name == "multi-label" and v.family == PLAIN.family))
    labels = ("a", "b", "b", *map(str, range(sample.header.num_classes - 3)))
    model = replace(sample, header=sample.header.model_copy(update={"labels": labels})).save(
        tmp_path / "m.st"
    )
    names = write_images(tmp_path)

    run_export(ExportConfig(model=str(model), out=tmp_path / "m.pt2"))

    for line in answers(tmp_path / "m.pt2.py", *names):
        assert [entry["label"] for entry in line["probabilities"]] == [*labels]
        applies = [entry["label"] for entry in line["probabilities"] if entry["probability"] > 0.5]
        assert line["labels"] == applies


def test_no_name_of_a_file_is_code(tmp_path, monkeypatch):
    name = 'a\'"""\n);raise SystemExit(3)#.onnx'
    source = script(base(ONE).header, name=name, onnx=True).decode()

    assert f"MODEL = Path(__file__).with_name({name!r})\n" in source
    compile(source, "x", "exec")


@pytest.mark.more
@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    ("options", "stored", "reason"),
    [
        ({"quantize": "int8", "data": "digits::classes=0-6,limit=9"}, threshold(-0.2), "it does not hold for the quantized model"),
        ({}, threshold(0.5, score="entropy"), "it is for `entropy`, but the exported model computes `msp`"),
    ],
)  # fmt: skip
def test_a_threshold_that_does_not_hold_is_left_out(tmp_path, options, stored, reason):
    model, progress_log = image_model(tmp_path / "m.st", threshold=stored, labels=()), ProgressLog()

    out = tmp_path / ("m.onnx" if options else "m.pt2")  # int8 needs ONNX; otherwise .pt2 is faster
    run_export(ExportConfig(model=str(model), out=out, **options), progress_log)

    assert [text for text in progress_log.warnings if reason in text]
    assert "accepted" not in out.with_name(f"{out.name}.py").read_text()


@pytest.mark.more
def test_where_no_threshold_keeps_the_risk_nothing_is_accepted_or_refused(tmp_path, monkeypatch, answers):
    monkeypatch.chdir(tmp_path)
    names = write_images(tmp_path)
    model = image_model(tmp_path / "m.st", threshold=threshold(None))

    run_export(ExportConfig(model=str(model), out=tmp_path / "m.pt2"))

    actual = answers(tmp_path / "m.pt2.py", *names)
    assert {line["accepted"] for line in actual} == {None}
    check_lines(actual, predictions(model, *names))


@pytest.mark.more
def test_a_script_that_is_there_is_not_replaced_unasked(tmp_path, capsys):
    model, out, beside = image_model(tmp_path / "m.st"), tmp_path / "m.pt2", tmp_path / "m.pt2.py"
    beside.write_text("mine\n")
    line = ["export", str(model), "-o", str(out), "-q"]

    assert main(line) == 6
    assert f"{beside}: already exists" in capsys.readouterr().err
    assert (beside.read_text(), out.exists()) == ("mine\n", False)
    assert main([*line, "--force"]) == 0
    assert "def answer(" in beside.read_text()


@pytest.mark.more
def test_a_script_that_is_gone_is_made_again(tmp_path, capsys):
    model, out, beside = image_model(tmp_path / "m.st"), tmp_path / "m.pt2", tmp_path / "m.pt2.py"
    line = ["export", str(model), "-o", str(out), "--if-changed"]
    assert main(line) == 0
    before = beside.read_bytes()

    assert main(line) == 0
    assert "up to date" in capsys.readouterr().out
    beside.unlink()
    assert main(line) == 0

    assert beside.read_bytes() == before
