"""Each stage writes the same results on a simulated GPU as on the processor.

Kernels, streams, memory and compilation need a real GPU.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_iter

from hydractl.checkpoint import write_tensors
from hydractl.cli.app import main
from hydractl.data.batches import Batch
from hydractl.families.registry import family_of
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.prediction.inference import responses
from hydractl.prediction.loaded_model import load
from hydractl.scoring.methods import METHODS
from support.gpu import count_synchronizations, simulated_gpu

pytestmark = pytest.mark.newer  # the simulated GPU needs a release after torch 2.5

DEVICES = {"cpu": contextlib.nullcontext, "cuda": simulated_gpu}
TRAIN, VAL = "digits::classes=0-6,split=train,limit=70", "digits::classes=0-6,split=val,limit=35"
OOD = "digits::classes=9,limit=20"
OOD_DATA = ("--ood", OOD)
TINY = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=7,proj_drop_rate=0.1"
EPOCHS = 2
TRAINS = ("--train", TRAIN, "--val", VAL, "--epochs", str(EPOCHS), "--lr", "1e-3", "--keep-last")
SCORED = {
    "circuit": (*OOD_DATA, "--remove", "3"),
    "circuit, lazily": (*OOD_DATA, "--remove", "3", "--search", "lazy"),
    "l0": ("--epochs", "1", "--training", "joint"),
    "dsp": ("--epochs", "1", "--keep-heads", "2"),
}
TUNED = {
    "whole": (),
    "bf16": ("--precision", "bf16"),
    "of few weights": ("--trunk", "1", "--reset-head", "--layer-decay", "0.9"),
    "in pieces": ("--accumulate", "2", "--gradient-checkpointing", "--clip", "1"),
    "averaged": ("--ema", "0.9"),
    "swa": ("--swa", "0.5"),
    "noisy": (
        "--mixup",
        "0.2",
        "--cutmix",
        "1",
        "--augment",
        "shift",
        "--drop-path",
        "0.2",
        "--label-smoothing",
        "0.1",
    ),
    "taught": ("--teacher", "hydra.st", "--optimizer", "sgd"),
    "lora-ensemble": ("--method", "lora-ensemble::rank=2"),
    "singular-values": ("--method", "singular-values"),
    "batch-ensemble": ("--method", "batch-ensemble::members=2"),
    "oba": ("--method", "oba::keep=0.8,batches=1"),
}
ALIKE = {"whole", "bf16", "of few weights", "swa", "singular-values", "batch-ensemble"}
"""Settings whose transfers between devices also occur with other settings."""
ROWS = {
    "MC": "mc:base.st::passes=2,rate=0.2",
    "Laplace": f"laplace:base.st::data={TRAIN}",
    "SWAG": "swag:m-0.st,t-0.st,t-1.st::samples=2",
    "apart": "m-0.st,m-1.st",
}


def run(*command, device=None):
    """Run a command on a device."""
    given = () if device is None else ("--device", device)
    with DEVICES[device or "cpu"]():
        assert main([*command, *given, "--json"]) == 0


def same(one, other, *, within=0.0):
    """Assert that two files have the same tensors."""
    found, expected = load_file(one), load_file(other)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=within, equal_nan=True)


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory):
    """Change to a folder with a trained model, two members, and a hydra."""
    with contextlib.chdir(tmp_path_factory.mktemp("models")):
        run("finetune", TINY, *TRAINS, "-o", "base.st", device="cpu")
        run("score", "base.st", "--method", "random", "-o", "s.json")
        run("prune", "base.st", "--scores", "s.json", "--remove", "4", "--members", "2", "--pool", "6", "-o", "m-{i}.st")  # fmt: skip
        run("fuse", "m-0.st", "m-1.st", "-o", "hydra.st")
        for i in range(2):
            run("finetune", "m-0.st", *TRAINS, "--seed", str(i), "-o", f"t-{i}.st", device="cpu")
        yield


@pytest.mark.parametrize("method", {**dict.fromkeys(METHODS, ()), **SCORED})
def test_scores_are_the_same(method):
    for device in DEVICES:
        given = ("--data", VAL, *SCORED.get(method, ()), "-o", f"{method}-{device}.json")
        run("score", "base.st", "--method", method.partition(",")[0], *given, device=device)

    one, other = (json.loads(Path(f"{method}-{device}.json").read_text()) for device in DEVICES)
    assert one == {**other, "config_digest": one["config_digest"]}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.more) if how in ALIKE else how for how in TUNED]
)
def test_a_member_is_tuned_the_same(how):
    name = "e-{i}" if how == "batch-ensemble" else "t"
    for device in DEVICES:
        run("finetune", "m-0.st", *TRAINS, *TUNED[how], "-o", f"{name}-{device}.st", "--force", device=device)

    same(*(f"{name}-{device}.st".format(i=0) for device in DEVICES), within=1e-6)


@pytest.mark.parametrize(
    "how", ["averaged", *(pytest.param(how, marks=pytest.mark.more) for how in ("whole", "swa"))]
)
def test_a_hydra_is_tuned_and_validated_as_a_whole_the_same(how, capsys):
    found = []
    for device in DEVICES:
        given = (*TUNED[how], "--optimizer", "sgd", "-o", f"h-{device}.st", "--force")
        run("finetune", "hydra.st", *TRAINS, *given, device=device)
        found.append(json.loads(capsys.readouterr().out))

    same(*(f"h-{device}.st" for device in DEVICES), within=1e-6)
    assert found[0]["nll"] == pytest.approx(found[1]["nll"], rel=1e-5)


@pytest.mark.more
def test_rows_of_a_report_are_the_same():
    rows = [word for name, row in ROWS.items() for word in ("--compare", f"{name}={row}")]
    for device in DEVICES:
        given = (
            "--data",
            VAL,
            "--near",
            OOD,
            "--corrupt",
            "fog:3",
            "--temperature",
            VAL,
            "--analyse",
            "all",
            "--scores",
            "s.json",
            "--no-latency",
            "--bootstrap",
            "9",
        )
        outputs = ("--save-predictions", f"p-{device}.safetensors", "-o", f"r-{device}.json")
        run("eval", "hydra.st", "--compare", "base=base.st", *rows, *given, *outputs, device=device)

    same(*(f"p-{device}.safetensors" for device in DEVICES), within=1e-5)


def test_predictions_are_the_same():
    for device in DEVICES:
        run("predict", "hydra.st", VAL, "-o", f"p-{device}.jsonl", device=device)

    one, other = (Path(f"p-{device}.jsonl").read_text().splitlines() for device in DEVICES)
    assert len(one) == len(other) == 35
    for found, expected in zip(map(json.loads, one), map(json.loads, other), strict=True):
        assert found.keys() == expected.keys()
        assert found["probability"] == pytest.approx(expected["probability"], abs=1e-5)


@pytest.mark.parametrize("features", [False, True])
def test_a_batch_is_answered_after_one_wait(features):
    """Logits, the check for finite values, and features are transferred together."""
    with simulated_gpu():
        model = load("hydra.st").to("cuda")
        images = torch.rand(6, 1, 8, 8)
        batches = [Batch(part, torch.arange(2)) for part in images.split(2)]
        if features:
            model = FeatureExtractor.of(model, family_of(model.header.architecture), name="hydra.st")
        with count_synchronizations() as found:
            answers = [*responses(model, batches, name="", data="")]
    assert found == {"wait in hydractl.runtime.wait_for": len(batches)}
    assert len(answers) == len(batches)
    assert all(not tensor.is_cuda for tensor in tree_iter(answers) if isinstance(tensor, torch.Tensor))


def test_training_waits_where_a_number_is_read():
    """Batches and stored tensors cause no wait. Each weight is copied to the device once."""
    with count_synchronizations() as found:
        run("finetune", "m-0.st", *TRAINS, "--batch-size", "35", "-o", "w.st", device="cuda")
    del found["copy in hydractl.training.trainer.__init__"]
    found.pop(
        "stack in accelerate.accelerator.backward", None
    )  # zero gradients, which C++ creates for the underlying tensor
    assert found == {
        "_local_scalar_dense in hydractl.training.loop._steps": EPOCHS,
        "copy in hydractl.training.loop.tally": EPOCHS,
        "wait in hydractl.runtime.wait_for": 1,
    }


def test_tensors_are_written_after_one_wait_in_so_many_bytes(monkeypatch):
    with simulated_gpu():
        tensors = {str(i): torch.rand(4, device="cuda") for i in range(7)}
        with count_synchronizations() as found, Path("written.st").open("wb") as file:
            write_tensors(file, tensors, header=None)
        assert found == {"wait in hydractl.runtime.wait_for": 1}
        monkeypatch.setattr("hydractl.checkpoint.COPIED_AT_ONCE", 32)
        with count_synchronizations() as found, Path("again.st").open("wb") as file:
            write_tensors(file, tensors, header=None)
        assert found == {"wait in hydractl.runtime.wait_for": 4}
        assert Path("written.st").read_bytes() == Path("again.st").read_bytes()
    same("written.st", "again.st")


def test_diverse_members_are_the_same():
    for device in DEVICES:
        run("prune", "base.st", "--scores", "s.json", "--strategy", "diverse", "--data", VAL, "--candidates", "5", "--remove", "4", "--members", "2", "--pool", "6", "-o", f"d-{{i}}-{device}.st", device=device)  # fmt: skip

    for i in range(2):
        same(*(f"d-{i}-{device}.st" for device in DEVICES))


def test_tensors_of_both_devices_are_refused():
    """The simulated device refuses operations that a GPU refuses."""
    with simulated_gpu():
        layer, x = torch.nn.Linear(3, 2).to("cuda"), torch.randn(4, 3)
        with pytest.raises(RuntimeError, match="same device"):
            layer(x)
        found = layer(x.cuda())
        assert found.is_cuda
        with pytest.raises(TypeError, match="numpy"):
            found.detach().numpy()
        assert not found.cpu().is_cuda


@pytest.mark.parametrize(
    ("times", "run"),
    [
        (1, lambda x: x[[0, 2]]),
        (1, lambda x: x[x > 1]),
        (1, lambda x: x + torch.tensor(1).type_as(x)),
        (1, lambda x: x.new_tensor([1, 2, 3])),
        (1, lambda x: torch.where(x > 1, torch.tensor(1), x)),
        (1, lambda x: bool(x.sum())),
        (1, lambda x: x[0].item()),
        (1, lambda x: x.tolist()),
        (1, lambda x: x.cpu()),
        (1, lambda x: x.nonzero()),
        (0, lambda x: torch.stack([x.unbind()[0], x.select(0, 2) + 1]) * torch.arange(2, device=x.device)),
        (0, lambda x: torch.where(x > 1, 1, x) + torch.tensor(1)),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_the_processor_and_the_device_wait_for_is_counted(times, run, inference):
    """Each wait or copy is counted; other operations are not."""
    with torch.inference_mode(inference), simulated_gpu():
        x = torch.arange(3).cuda()
        with count_synchronizations() as found:
            run(x)
    assert list(found.values()) == [1] * times
