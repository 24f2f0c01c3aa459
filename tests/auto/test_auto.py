"""transformers and timm load members and hydras after `import hydractl`."""

from __future__ import annotations

import copy
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import ExifTags, Image

import hydractl
from hydractl.checkpoint import write_tensors
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError, OutputExists, UsageError
from hydractl.evaluation.options import NamedData
from hydractl.exporting import formats
from hydractl.exporting.formats import ExportModule
from hydractl.families.registry import family_of
from hydractl.output.publish import Folder, OutputLock
from hydractl.prediction.feature_ood import WithDefaultScore
from hydractl.provenance.output import Output
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from support.builders import Sample, base
from support.predictions import SavedPredictions
from support.text_folders import save_text_model
from support.variants import variant

IMAGES = base(variant("class-token"))
KEEP = ((0, 1), (2,), (0, 3))
FIT = "digits::split=train,classes=0-6,limit=60"


def test_the_library_gives_the_ensembles_probabilities(images):
    from transformers import AutoModelForImageClassification

    own, theirs = hydractl.load(images), AutoModelForImageClassification.from_pretrained(images)
    inputs = IMAGES.inputs(batch=3)
    with torch.inference_mode():
        expected, found = own(inputs), theirs(inputs)

    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.member_logits, expected.member_logits)
    said = own.predict(inputs)
    for name in ("entropy", "mutual_information"):
        assert torch.allclose(found[name], getattr(said, name), atol=1e-6)
    assert theirs.config.id2label[2] == "c"
    assert found.mutual_information.max() > 0


def test_pipelines_of_images(images, recwarn):
    from transformers import pipeline

    picture = Image.effect_noise((31, 20), 80)
    answers = pipeline("image-classification", model=str(images), top_k=7)(picture)

    expected = hydractl.load(images).predict([picture]).probabilities[0]
    assert {a["label"]: a["score"] for a in answers} == pytest.approx(
        dict(zip("abcdefg", expected.tolist(), strict=True)), abs=1e-6
    )


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_odd_images_get_one_answer(images, tmp_path):
    """Pipeline, Python and command agree on rotated images, palettes, and the first of several frames."""
    from transformers import pipeline

    noise = Image.merge("RGB", [Image.effect_noise((31, 20), 40 * i) for i in (1, 2, 3)])
    folder = tmp_path / "odd"
    folder.mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        noise.save(folder / f"{orientation}.jpg", exif=exif)
    for mode in ("1", "LA", "RGBA"):
        noise.convert(mode).save(folder / f"{mode}.png")
    noise.convert("CMYK").save(folder / "cmyk.jpg")
    palette = noise.quantize(64)
    palette.save(folder / "palette.png", transparency=bytes(range(64)))
    palette.save(folder / "moving.gif", save_all=True, append_images=[palette.rotate(180)])
    paths, out = sorted(map(str, folder.iterdir())), tmp_path / "said.jsonl"
    run_predict(
        PredictConfig(model=str(images), data=(f"{folder}/",), out=out, top_k=7, batch_size=4, device="cpu")
    )

    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["path"] for line in lines] == paths
    probabilities = hydractl.load(images).predict(paths).probabilities
    # The pipeline does not close the images.
    open_images = [Image.open(io.BytesIO(Path(path).read_bytes())) for path in paths]
    asked = pipeline("image-classification", model=str(images), top_k=7)(open_images)
    for line, row, answers in zip(lines, probabilities.tolist(), asked, strict=True):
        expected = pytest.approx(dict(zip("abcdefg", row, strict=True)), abs=1e-5)
        assert {top["label"]: top["probability"] for top in line["top"]} == expected
        assert {a["label"]: a["score"] for a in answers} == expected
    assert len({tuple(row) for row in probabilities[:8].tolist()}) == 8


def test_pipelines_of_texts(texts):
    from transformers import pipeline

    given = ["the cat sat", "a mat on the cat on a mat"]
    answers = pipeline("text-classification", model=str(texts), top_k=7)(given, batch_size=2)

    expected = hydractl.load(texts).predict(given).probabilities
    for answer, row in zip(answers, expected, strict=True):
        found = {a["label"]: a["score"] for a in answer}
        assert found == pytest.approx(dict(zip("abcdefg", row.tolist(), strict=True)), abs=1e-5)


def test_a_member_and_a_temperature(tmp_path):
    from transformers import AutoModelForImageClassification

    header = IMAGES.pruned(*KEEP).header.model_copy(update={"temperature": 2.0})
    member = Sample(header, IMAGES.pruned(*KEEP).state)
    with Output(OutputLock(force=False)).publish() as begin:
        write_tensors(begin(Folder(tmp_path / "m"), header), member.state, header=header)
    inputs = IMAGES.inputs(batch=3)
    with torch.inference_mode():
        found = AutoModelForImageClassification.from_pretrained(tmp_path / "m")(inputs)
        assert torch.allclose(found.logits.softmax(-1), (member.model()(inputs) / 2).softmax(-1), atol=1e-6)
    assert found.mutual_information.abs().max() < 1e-6


def test_gradients_flow_and_what_is_saved_is_what_is_read(images, tmp_path):
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(images)
    inputs, labels = IMAGES.inputs(batch=3), torch.tensor([0, 1, 2])
    before = model(inputs, labels=labels)
    each = torch.stack([torch.nn.functional.cross_entropy(z, labels) for z in before.member_logits])
    assert torch.allclose(before.loss, each.mean())
    before.loss.backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.numel()]  # A layer may have no heads.
    assert [name for name, p in trained if p.grad is None] == []
    with torch.no_grad():
        for _, tensor in trained:
            tensor -= 0.1 * tensor.grad  # noqa: PLW2901 - in place

    model.save_pretrained(tmp_path / "tuned")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "tuned")

    found = again(inputs, labels=labels)
    assert torch.equal(found.logits, model(inputs).logits)
    assert found.loss < before.loss
    assert torch.equal(hydractl.load(tmp_path / "tuned")(inputs).logits, found.logits)


def test_what_it_cannot_do_is_said(images):
    from transformers import AutoConfig, AutoModelForImageClassification

    with pytest.raises(TypeError, match="do not support the argument `quantization_config`"):
        AutoModelForImageClassification.from_pretrained(images, quantization_config={"bits": 4})
    with pytest.raises(ValueError, match="`from_config` is not supported"):
        AutoModelForImageClassification.from_config(AutoConfig.from_pretrained(images))
    found = AutoModelForImageClassification.from_pretrained(images, dtype=torch.bfloat16)
    assert {p.dtype for p in found.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_labels": 3}, "has 3 classes, but the model has 7"),
        ({"id2label": {"1": "a", "2": "b"}}, "has 2 classes, but the model has 7"),
        (
            {"output_attentions": True},
            "`output_attentions=True`: members and hydras do not have this setting",
        ),
        (
            {"problem_type": "regression"},
            "`problem_type='regression'`: members and hydras do not have this setting",
        ),
        ({"attn_implementation": "flash_attention_2"}, "`: members and hydras support only `sdpa`"),
        ({"dtype": "nonsense"}, "`dtype='nonsense'`: is not a floating-point dtype"),
        ({"dtype": "int8"}, "`dtype='int8'`: is not a floating-point dtype"),
        (
            {"device_map": {"a": "cpu", "b": "meta"}},
            ("`device_map` has several devices, but members and hydras run on one"),
        ),
        ({"device_map": {"": 97}}, "device `cuda:97` is not available"),
        ({"device_map": 97}, "device `cuda:97` is not available"),
    ],
)
def test_what_is_asked_for_in_vain_is_refused(images, asked, said):
    from transformers import AutoModelForImageClassification

    with pytest.raises(UsageError, match=re.escape(said)):
        AutoModelForImageClassification.from_pretrained(images, **asked)


def test_a_forward_pass_takes_no_more_than_it_reads(texts):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(texts)
    with pytest.raises(TypeError, match="position_ids"):
        model(torch.tensor([[2, 3]]), position_ids=torch.tensor([[0, 1]]))


def test_settings_that_change_nothing_are_taken(images):
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(
        images, num_labels=7, problem_type="single_label_classification", return_dict=False, dtype="float16"
    )
    assert model.dtype == torch.float16
    logits, members, *_ = model(IMAGES.inputs())
    assert (logits.shape, members.shape) == ((2, 7), (2, 2, 7))
    assert AutoModelForImageClassification.from_pretrained(images, config=model.config).dtype == torch.float16


def test_classes_that_are_renamed_are_saved_so(images, tmp_path):
    from transformers import AutoModelForImageClassification

    names = {i: f"n{i}" for i in range(7)}
    model = AutoModelForImageClassification.from_pretrained(images, id2label=names)
    assert (model.config.id2label, model.loaded.labels) == (names, tuple(names.values()))
    model.config.id2label = {i: f"k{i}" for i in range(7)}
    model.save_pretrained(tmp_path / "renamed")

    assert hydractl.load(tmp_path / "renamed").labels == tuple(f"k{i}" for i in range(7))
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "renamed")
    assert (again.config.id2label, again.config.label2id["k3"]) == (model.config.id2label, 3)
    model.config.id2label = {0: "one"}
    with pytest.raises(UsageError, match="has 1 classes, but the model has 7"):
        model.save_pretrained(tmp_path / "renamed")


@pytest.mark.parametrize("kind", ["hydra", "hydra with a trunk", "member"])
def test_a_state_dict_of_either_names_is_saved_and_loaded(images, tmp_path, kind):
    from transformers import AutoModelForImageClassification

    if kind == "member":
        member = IMAGES.pruned(*KEEP)
        with Output(OutputLock(force=False)).publish() as begin:
            write_tensors(begin(Folder(tmp_path / "m"), member.header), member.state, header=member.header)
        images = tmp_path / "m"
    if kind == "hydra with a trunk":
        models = [str(IMAGES.pruned(*KEEP[:2], (i,)).save(tmp_path / f"{i}.st")) for i in range(2)]
        run_fuse(FuseConfig(models=tuple(models), out=Folder(tmp_path / "fused")))
        images = tmp_path / "fused"
    model = AutoModelForImageClassification.from_pretrained(images)
    before = hydractl.load(images).tensors()
    halved = {key: tensor / 2 for key, tensor in model.state_dict().items()}
    expected = {name: tensor / 2 for name, tensor in before.items()}

    for given, name in ((halved, "own"), (expected, "stored")):
        model.save_pretrained(tmp_path / name, state_dict=given)
        found = hydractl.load(tmp_path / name).tensors()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.loaded.tensors().items())

    if kind != "member":
        model.loaded.lay_out("stacked")
    assert not any(model.load_state_dict(expected))
    inputs = IMAGES.inputs()
    with torch.inference_mode():
        assert torch.allclose(
            model(inputs).member_logits, hydractl.load(tmp_path / "own").member_logits(inputs), atol=1e-6
        )


def test_ood_scores_beside_the_weights_stay_as_they_are(images, tmp_path):
    from hydractl.auto.models import HydraForImageClassification

    data = {"data": DataRef.parse("digits::split=val,classes=0-6,limit=30"), "train": DataRef.parse(FIT)}
    near = (NamedData.parse("others=digits::classes=7-8,limit=30"),)
    told = {"near": near, "ood_score": ("mahalanobis",), "latency": False, "bootstrap": 0, "device": "cpu"}
    run_eval(EvalConfig(model=str(images), save_model=tmp_path / "stored.st", **data, **told))
    model = HydraForImageClassification.from_pretrained(tmp_path / "stored.st")
    stored = model.loaded.tensors()
    (first, *_) = beside = model.loaded.scores.tensors()

    assert not any(model.load_state_dict(stored))
    found = model.load_state_dict(stored | {first: stored[first] + 1}, strict=False)
    assert found.unexpected_keys == [first]
    model.save_pretrained(tmp_path / "again", state_dict=model.state_dict())
    again = hydractl.load(tmp_path / "again").tensors()
    assert again.keys() == stored.keys() > beside.keys()
    assert all(torch.equal(again[name], stored[name]) for name in stored)


@pytest.mark.newer
def test_one_ood_score_wherever_the_model_runs(block, tmp_path, request):
    """Python, pipelines and exported models have the score of `eval`, at another temperature than fitted."""
    from transformers import AutoModelForImageClassification, pipeline

    data, fit, val, near = (
        f"digits::{rest}"
        for rest in ("split=test,classes=0-6,limit=12", "split=train,classes=0-6,limit=60", "split=val,classes=0-6,limit=30", "classes=8,limit=5")
    )  # fmt: skip
    given = {"near": (NamedData.parse(f"others={near}"),), "latency": False, "bootstrap": 0, "device": "cpu"}
    config = EvalConfig(
        model=str(block), data=DataRef.parse(data), train=DataRef.parse(fit), val=DataRef.parse(val), temperature=2.0,
        save_model=Folder(tmp_path / "stored"), save_predictions=tmp_path / "p.st", **given,
    )  # fmt: skip
    run_eval(config)
    (saved,) = SavedPredictions.load(tmp_path / "p.st").said.values()
    expected = saved["id"].scores["energy+density"].float()
    items, own = open_data(DataRef.parse(data)), hydractl.load(tmp_path / "stored")
    pictures = [items.image(i) for i in range(len(items))]
    inputs = own.encode(pictures)
    theirs = AutoModelForImageClassification.from_pretrained(tmp_path / "stored")
    exports = {"torch.export": (".pt2", formats.run_pt2)}
    if request.config.getoption(
        "all_variants"
    ):  # tests/stages/export compares both formats with a simpler score.
        exports["ONNX"] = (".onnx", formats.run_onnx)
    for suffix, _ in exports.values():
        run_export(ExportConfig(model=str(tmp_path / "stored"), out=tmp_path / f"m{suffix}"))
    asked = {"pixel_values": inputs}
    with torch.inference_mode():
        found = {
            "predict": own.predict(pictures).scores["energy+density"],
            "Auto class": theirs(inputs).ood_score,
            "copy": copy.deepcopy(theirs)(inputs).ood_score,
            "pipeline": pipeline("image-classification", model=str(tmp_path / "stored")).model(inputs).ood_score,
            **{
                name: runner((tmp_path / f"m{suffix}").read_bytes())(asked)["ood_score"]
                for name, (suffix, runner) in exports.items()
            },
        }  # fmt: skip

    assert own.temperature == 2
    assert len(expected.unique()) == len(expected)
    for name, scores in found.items():
        assert torch.allclose(scores, expected, rtol=1e-4, atol=1e-4), name


def test_classes_that_a_zero_shot_model_is_asked_by_are_not_renamed():
    from hydractl.auto.config import HydraConfig
    from hydractl.auto.models import relabelled

    header = base(variant("transformers-clip-plain")).header
    asked = header.prompting.model_copy(update={"templates": ("a {label}",)})
    header = header.model_copy(update={"labels": ("cat", "dog"), "prompting": asked})
    assert relabelled(header, HydraConfig(id2label={0: "cat", 1: "dog"})) == header
    with pytest.raises(
        UsageError, match=("`id2label`: a zero-shot model uses the names of its classes as prompts")
    ):
        relabelled(header, HydraConfig(id2label={0: "hen", 1: "dog"}))


def test_tensors_that_do_not_fit_are_said(images, tmp_path):
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(images)
    stored = model.loaded.tensors()
    lacking = {name: tensor for name, tensor in stored.items() if name != "norm.bias"}
    found = model.load_state_dict(lacking | {"strange": torch.zeros(1)}, strict=False)
    assert [key.rpartition("norm")[2] for key in found.missing_keys] == [".bias", ".bias"]
    assert found.unexpected_keys == ["strange"]
    with pytest.raises(RuntimeError, match="strange"):
        model.load_state_dict(stored | {"strange": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=re.escape("attn.qkv.weight")):
        model.load_state_dict(stored | {"blocks.0.attn.qkv.weight": torch.zeros(5, 32)})
    for given, name in ((lacking, "norm.bias"), (stored | {"strange": torch.zeros(1)}, "strange")):
        with pytest.raises(UsageError, match=f"state_dict.*{name}"):
            model.save_pretrained(tmp_path / "new", state_dict=given)
    with pytest.raises(TypeError, match="do not support the argument `max_shard_size`"):
        model.save_pretrained(tmp_path / "new", max_shard_size="1GB")
    model.save_pretrained(tmp_path / "new", is_main_process=False)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_whoever_asks_hears_the_same_in_as_many_digits_as_members_disagree_by(images, dtype):
    from transformers import AutoModelForImageClassification

    from hydractl.auto.timm_model import TimmHydra

    own = hydractl.load(images, dtype=dtype)
    theirs = AutoModelForImageClassification.from_pretrained(images, dtype=dtype)
    beside = TimmHydra(own, {})
    inputs, labels = IMAGES.inputs(batch=3), torch.tensor([0, 1, 2])
    with torch.inference_mode():
        said, found = own(inputs), theirs(inputs, labels=labels)
        with_score = WithDefaultScore(own, None, family_of(own.header.architecture), name="own")
        exported = ExportModule(with_score)({"pixel_values": inputs})

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert said.member_logits.dtype == found.member_logits.dtype == exported["member_logits"].dtype == dtype
    assert said.logits.dtype == found.logits.dtype == found.mutual_information.dtype == wide
    with torch.inference_mode():
        for logits in (found.logits, beside(inputs), exported["logits"]):
            assert torch.equal(logits, said.logits)
    for name in ("entropy", "mutual_information", "ood_score"):
        assert torch.equal(found[name], exported[name])
    probs = said.member_logits.double().softmax(-1)
    each, mean = (torch.distributions.Categorical(probs=p).entropy() for p in (probs, probs.mean(0)))
    assert torch.allclose(found.mutual_information.double(), mean - each.mean(0), atol=1e-6, rtol=0)
    assert torch.allclose(found.entropy.double(), mean, atol=1e-6, rtol=0)
    assert torch.allclose(exported["probabilities"].double(), probs.mean(0), atol=1e-6, rtol=0)
    loss = torch.nn.functional.cross_entropy(said.member_logits.double().flatten(0, 1), labels.repeat(2))
    assert torch.allclose(found.loss.double(), loss, atol=1e-6)


def test_a_copy_through_a_pickle_answers_alike(texts, tmp_path):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(texts)
    inputs = base(variant("transformers-bert-plain")).inputs()
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)  # noqa: TID251 - of our own
    with torch.inference_mode():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.newer
def test_timm(images):
    import timm

    inputs = IMAGES.inputs(batch=3)
    model = timm.create_model(f"local-dir:{images}", pretrained=True)
    with torch.inference_mode():
        assert torch.equal(model(inputs), hydractl.load(images)(inputs).logits)
    assert timm.data.resolve_model_data_config(model)["input_size"] in ((1, 8, 8), [1, 8, 8])
    with pytest.raises(RuntimeError, match="pretrained=True"):
        timm.create_model(f"local-dir:{images}")


def test_the_object_saves_the_same_folder(images, tmp_path):
    model = hydractl.load(images)
    model.save_pretrained(tmp_path / "copy")

    assert {p.name: p.read_bytes() for p in images.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()
    }
    with pytest.raises(OutputExists, match=r"already contains a model \("):
        model.save_pretrained(tmp_path / "copy")
    model.save_pretrained(tmp_path / "copy", force=True)


ORDER = """
import sys
{first}
import hydractl
heavy = [name for name in ("torch", "pydantic", "numpy", "importlib.util") if name in sys.modules]
{then}
print(heavy, getattr(globals().get("found"), "__name__", ""))
"""
FIND = "from transformers import AutoConfig; found = type(AutoConfig.from_pretrained({folder!r}))"


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("pass", "pass", "[]"),
        pytest.param("pass", FIND, "[] HydraConfig", marks=pytest.mark.more),
        pytest.param("from transformers import AutoConfig", FIND, "HydraConfig", marks=pytest.mark.more),
    ],
)
def test_importing_costs_nothing_and_the_order_does_not_matter(images, first, then, said):
    script = ORDER.format(first=first, then=then.format(folder=str(images)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(said)


@torch.inference_mode()
def test_a_single_logit_is_two_classes_and_is_written_as_one_again(tmp_path):
    from transformers import AutoModelForSequenceClassification

    from hydractl.auto.models import HydraForSequenceClassification

    save_text_model(variant("transformers-bert-one-logit"), tmp_path / "stock")
    library = AutoModelForSequenceClassification.from_pretrained(tmp_path / "stock").eval()

    model = HydraForSequenceClassification.from_pretrained(tmp_path / "stock")
    model.save_pretrained(tmp_path / "again")

    inputs = model.loaded.encode(["the cat sat"])
    torch.testing.assert_close(model(**inputs).logits.softmax(-1)[:, 1:], library(**inputs).logits.sigmoid())
    assert model.config.num_labels == 2
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "again")
    assert again.config.num_labels == 1
    torch.testing.assert_close(again.eval()(**inputs).logits, library(**inputs).logits)
