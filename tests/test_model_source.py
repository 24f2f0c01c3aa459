"""MODEL references: every form finds its files, and every error is raised before tensors are read."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import timm
import torch
from safetensors.torch import save_file

from hydractl.errors import CheckpointError, HubError, HydraError, UnsupportedModelError, UsageError
from hydractl.families.open_model import load_model, open_model
from hydractl.families.tower import largest_difference
from hydractl.model_source import HUB_ID, download, folder_files, locate, parse_arch
from support.builders import base
from support.hub import BROKEN, GATED, serve
from support.variants import PLAIN, TINY, variant

if TYPE_CHECKING:
    from pathlib import Path

ARCH = "vit_tiny_patch16_224::" + ",".join(f"{k}={v}" for k, v in TINY.items())


def timm_folder(folder: Path, sample=None, **config: object) -> Path:
    """Write a folder with timm's `save_for_hf`."""
    import timm.models

    sample = sample or base(PLAIN)
    timm.models.save_for_hf(sample.library(), str(folder), safe_serialization=True)
    if config:
        raw = json.loads((folder / "config.json").read_text())
        raw |= config
        (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v is not ...}))
    return folder


def check_is_base(reference: str, *, arch: str | None = None, sample=None) -> None:
    sample = sample or base(PLAIN)
    model_file = open_model(reference, arch=arch)
    with torch.inference_mode():
        found = load_model(model_file)(sample.inputs())
        assert largest_difference(found, sample.model()(sample.inputs())) <= 1e-6


# --- files and folders -----------------------------------------------------------------------------------------------


def test_a_checkpoint_of_ours(tmp_path):
    path = base(PLAIN).save(tmp_path / "base.st")
    check_is_base(str(path))
    assert open_model(str(path)).name == "base"


@pytest.mark.parametrize("name", ["class-token", "distilled", "map-pool", "registers"])
@pytest.mark.parametrize("prefix", ["", "local-dir:"])
def test_a_timm_folder(tmp_path, prefix, name):
    sample = base(variant(name))
    timm_folder(tmp_path / "m", sample)
    check_is_base(f"{prefix}{tmp_path / 'm'}", sample=sample)
    header = open_model(str(tmp_path / "m")).header
    assert header.preprocess.input_size == (1, 8, 8)
    assert header.architecture.num_classes == 7


def test_a_timm_folder_whose_model_args_are_null(tmp_path):
    """transformers writes such folders.

    Options other than the defaults are lost, and the error mentions them.
    """
    sample = base(PLAIN)
    timm_folder(tmp_path / "m", sample, model_args=None)
    with pytest.raises(UnsupportedModelError, match="patches of 16x16 pixels do not fit"):
        open_model(str(tmp_path / "m"))
    config = {"architecture": PLAIN.arch, "num_classes": 7, "model_args": None, "pretrained_cfg": {}}
    from hydractl.families.timm.models import TIMM_VIT

    described = TIMM_VIT.read_config(config, "m")
    assert (described.architecture.num_classes, described.preprocess.input_size) == (7, (3, 224, 224))


def test_a_timm_folder_that_says_the_number_of_classes_twice(tmp_path):
    timm_folder(tmp_path / "m", model_args=TINY | {"num_classes": 7}, num_classes=7)
    check_is_base(str(tmp_path / "m"))


def test_a_timm_folder_whose_pretrained_size_is_stale(tmp_path):
    """The size of the built model counts, because its position embedding fits no other size."""
    timm_folder(tmp_path / "m")
    raw = json.loads((tmp_path / "m" / "config.json").read_text())
    raw["pretrained_cfg"] |= {"input_size": [3, 224, 224], "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5]}
    (tmp_path / "m" / "config.json").write_text(json.dumps(raw))
    preprocess = open_model(str(tmp_path / "m")).header.preprocess
    assert preprocess.input_size == (1, 8, 8)
    assert preprocess.mean == pytest.approx((0.2,))


def test_label_names_travel(tmp_path):
    names = [f"digit {i}" for i in range(7)]
    timm_folder(tmp_path / "m", label_names=names)
    assert open_model(str(tmp_path / "m")).header.labels == tuple(names)
    timm_folder(tmp_path / "n", label_names=names[:3])
    with pytest.raises(UnsupportedModelError, match="has 3 label names for 7 classes"):
        open_model(str(tmp_path / "n"))


def test_a_folder_that_transformers_wrote_around_a_timm_model_is_refused_by_name(tmp_path):
    """The tensor names have a prefix and the options are null; timm cannot read these folders either."""
    import transformers

    options = {k: v for k, v in TINY.items() if k != "num_classes"}
    config = transformers.TimmWrapperConfig(architecture=PLAIN.arch, model_args=options, num_labels=7)
    transformers.TimmWrapperForImageClassification(config).save_pretrained(tmp_path / "m")
    with pytest.raises(UnsupportedModelError, match="models of type `timm_wrapper` are not supported"):
        open_model(str(tmp_path / "m"))


def test_a_folder_of_an_unknown_type_is_refused_by_name(tmp_path):
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=8,
        patch_size=4,
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "m")
    config.save_pretrained(tmp_path / "m")
    altered = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(altered | {"model_type": "rwkv"}))
    with pytest.raises(UnsupportedModelError, match="models of type `rwkv` are not supported") as caught:
        open_model(str(tmp_path / "m"))
    assert "timm-vit" in str(caught.value.hint)


def test_shards_with_an_index(tmp_path):
    sample = base(PLAIN)
    timm_folder(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    names = sorted(sample.state)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in files.items():
        save_file({n: sample.state[n] for n in own}, tmp_path / "m" / file)
    index = tmp_path / "m" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f for f, own in files.items() for n in own}}))
    check_is_base(str(tmp_path / "m"))
    check_is_base(str(index))
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(
        CheckpointError,
        match=r"refers to the shard `elsewhere\.safetensors`, which does not exist in its folder",
    ):
        open_model(str(tmp_path / "m"))
    index.write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(CheckpointError, match="weight_map is missing or is not a table"):
        open_model(str(tmp_path / "m"))


def test_a_folder_with_one_checkpoint_of_ours(tmp_path):
    (tmp_path / "m").mkdir()
    base(PLAIN).save(tmp_path / "m" / "base.st")
    check_is_base(str(tmp_path / "m"))


def test_a_bare_file_needs_its_architecture(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(base(PLAIN).state, path)
    check_is_base(str(path), arch=ARCH)
    with pytest.raises(CheckpointError, match="does not name its architecture") as caught:
        open_model(str(path))
    assert "--arch NAME" in str(caught.value.hint)
    with pytest.raises(
        CheckpointError, match=r"tensor `head\.bias` has shape \(7,\), but its architecture needs \(8,\)"
    ):
        open_model(str(path), arch=ARCH.replace("num_classes=7", "num_classes=8"))
    with pytest.raises(
        CheckpointError, match=r"lacks 12 tensors of its architecture, for example `blocks\.3\."
    ):
        open_model(str(path), arch=ARCH.replace("depth=3", "depth=4"))
    with pytest.raises(CheckpointError, match="has 12 tensors that its architecture does not"):
        open_model(str(path), arch=ARCH.replace("depth=3", "depth=2"))


def test_a_file_that_describes_itself_takes_no_architecture(tmp_path):
    path = base(PLAIN).save(tmp_path / "base.st")
    with pytest.raises(
        UsageError, match=("already describes its architecture; `--arch` applies only to files that do not")
    ):
        open_model(str(path), arch=ARCH)


def test_an_architecture_with_random_weights_is_a_function_of_the_seed():
    one, two, other = (open_model(f"arch:{ARCH}", seed=s).checkpoint for s in (1, 1, 2))
    assert one.digest == two.digest != other.digest
    assert one.header == open_model(f"arch:{ARCH}").header


def test_the_weights_of_an_architecture_go_with_it():
    model_file = open_model(f"arch:{ARCH}")
    path = model_file.checkpoint.paths[0]
    assert path.exists()
    del model_file
    assert not path.exists()


@pytest.mark.parametrize("name", ["m.pth", "m.pth.tar", "m.pt", "m.bin", "m.ckpt", "m.pkl"])
def test_pickles_are_refused_by_name(tmp_path, name):
    torch.save({"a": torch.zeros(1)}, tmp_path / name)
    with pytest.raises(
        CheckpointError,
        match=("is a pickle, which can run code when it is loaded; hydractl reads only safetensors"),
    ) as caught:
        locate(str(tmp_path / name))
    assert f"hydractl import {tmp_path / name} --arch NAME" in caught.value.hint


def folder_with(*names: str):
    def make(folder: Path) -> None:
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(b"")

    return make


def test_a_bare_name_may_be_an_architecture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(CheckpointError, match="no such file or folder") as caught:
        locate("vit_tiny_patch16_224")
    assert "`arch:vit_tiny_patch16_224` for random weights of that architecture" in caught.value.hint


def test_a_path_that_is_nearly_right_is_corrected(tmp_path):
    (tmp_path / "base.st").touch()

    with pytest.raises(CheckpointError, match=r"bse\.st: no such file") as caught:
        locate(str(tmp_path / "bse.st"))
    assert caught.value.hint == f"did you mean `{tmp_path / 'base.st'}`?"


FOLDERS = {
    "missing": (lambda _: None, "m: no such file or folder"),
    "empty": (folder_with(), "m: the folder has no safetensors weights"),
    "config-only": (lambda p: (p.mkdir(), (p / "config.json").write_text("{}")), "no safetensors weights"),
    "pickled": (folder_with("pytorch_model.bin"), "m: has only pickled weights (`pytorch_model.bin`)"),
    "several": (
        folder_with("a.st", "b.safetensors"),
        "m: has 2 safetensors files and no index: a.st, b.safetensors",
    ),
    "bad-config": (
        lambda p: (p.mkdir(), (p / "config.json").write_text("{")),
        "config.json: cannot be read as JSON",
    ),
    "comma-config": (
        lambda p: (p.mkdir(), (p / "config.json").write_text('{"a": 1,}')),
        "cannot be read as JSON: there is a comma before the closing `}` at line 1 column",
    ),
    "list-config": (
        lambda p: (p.mkdir(), (p / "config.json").write_text("[]")),
        "config.json: is not a JSON object",
    ),
    "deep-config": (
        lambda p: (p.mkdir(), (p / "config.json").write_text("[" * 200_000)),
        "cannot be read as JSON",
    ),
}


@pytest.mark.parametrize(
    ("others", "command"),
    [
        (("pytorch_model.bin",), "hydractl import {}/pytorch_model.bin --arch NAME -o base.st"),
        (("config.json",), "hydractl import FILE --arch {} -o base.st"),
        (("last.pth.tar",), "hydractl import {}/last.pth.tar --arch NAME -o base.st"),
        (
            ("optimizer.bin", "pytorch_model.bin", "training_args.bin"),
            "hydractl import {}/pytorch_model.bin --arch NAME",
        ),
        (
            ("pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"),
            "hydractl import {}/pytorch_model.bin.index.json --arch NAME",
        ),
        (("config.json", "pytorch_model.bin"), "hydractl import {0}/pytorch_model.bin --arch {0} -o base.st"),
    ],
)
def test_a_folder_without_safetensors_says_how_to_import(tmp_path, others, command):
    for name in others:
        (tmp_path / name).write_text("{}")

    with pytest.raises(CheckpointError) as caught:
        locate(str(tmp_path))
    assert command.format(tmp_path) in caught.value.hint


@pytest.mark.parametrize(("make", "message"), FOLDERS.values(), ids=FOLDERS)
def test_folders_that_hold_no_model(tmp_path, make, message):
    make(tmp_path / "m")
    with pytest.raises(CheckpointError) as caught:
        open_model(str(tmp_path / "m"))
    assert message in str(caught.value)
    assert caught.value.exit_code == 3


BAD_CONFIGS = {
    "no-architecture": {"num_classes": 7},
    "unknown-architecture": {"architecture": "vit_enormous", "num_classes": 7},
    "number-architecture": {"architecture": 3, "num_classes": 7},
    "unknown-argument": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"wings": 2}},
    "list-arguments": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": [1]},
    "impossible-heads": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"num_heads": 0}},
    "impossible-patch": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"patch_size": 0}},
    "negative-size": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"embed_dim": -64}},
    "text-depth": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"depth": "two"}},
    "no-layers": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"depth": 0}},
    "bad-pool": {"architecture": PLAIN.arch, "num_classes": 7, "global_pool": "mean"},
    "no-pool": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"global_pool": ""}},
    "no-classes": {"architecture": PLAIN.arch, "num_classes": 0},
    "text-classes": {"architecture": PLAIN.arch, "num_classes": "seven"},
    "five-channels": {"architecture": PLAIN.arch, "num_classes": 7, "model_args": {"in_chans": 5}},
    "list-cfg": {"architecture": PLAIN.arch, "num_classes": 7, "pretrained_cfg": [1]},
    "bad-mean": {"architecture": PLAIN.arch, "num_classes": 7, "pretrained_cfg": {"mean": "dark"}},
    "bad-interpolation": {
        "architecture": PLAIN.arch,
        "num_classes": 7,
        "pretrained_cfg": {"interpolation": "guess"},
    },
    "zero-std": {"architecture": PLAIN.arch, "num_classes": 7, "pretrained_cfg": {"std": [0, 0, 0]}},
    "hierarchical": {"architecture": "swin_tiny_patch4_window7_224", "num_classes": 7},
}


@pytest.mark.parametrize("config", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_configs_that_make_no_model_are_refused_in_words(tmp_path, config):
    (tmp_path / "m").mkdir()
    save_file(base(PLAIN).state, tmp_path / "m" / "model.safetensors")
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(HydraError) as caught:
        open_model(str(tmp_path / "m"))
    assert caught.value.exit_code == 3
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", {})),
        ("a::n=1,f=0.5,b=true,s=avg,x=null", ("a", {"n": 1, "f": 0.5, "b": True, "s": "avg", "x": None})),
        ("a::", ("a", {})),
        ("a::s=b=c", ("a", {"s": "b=c"})),
        ("a::s=[8,12],n=4", ("a", {"s": [8, 12], "n": 4})),
        ("a::n=4,s=[[1,2],[3]]", ("a", {"n": 4, "s": [[1, 2], [3]]})),
        ('a::t={"x":[1,2],"y":3},n=4', ("a", {"t": {"x": [1, 2], "y": 3}, "n": 4})),
        ("a::p=b[c/d,n=4", ("a", {"p": "b[c/d", "n": 4})),
    ],
)
def test_arch_options(text, expected):
    assert parse_arch(text) == expected


@pytest.mark.parametrize("text", ["a::n", "a::=1", "a::n=1,x"])
def test_arch_options_that_are_not_key_value(text):
    with pytest.raises(UsageError, match="expected key=value"):
        locate(f"arch:{text}")


@pytest.mark.parametrize("option", ["s=[8,n=4", "s=[[8],12", 's={"x":1'])
def test_arch_options_end_with_their_bracket(option):
    with pytest.raises(
        UsageError, match=re.escape(f"`{option}` in `arch:a::{option}`: a bracket is not closed")
    ):
        locate(f"arch:a::{option}")


def test_images_that_are_not_square_can_be_typed():
    model_file = open_model("arch:vit_tiny_patch16_224::img_size=[8,12],patch_size=4,depth=1")

    assert model_file.header.preprocess.input_size == (3, 8, 12)
    library = timm.create_model("vit_tiny_patch16_224", img_size=(8, 12), patch_size=4, depth=1)
    shapes = {name: tuple(tensor.shape) for name, tensor in library.state_dict().items()}
    assert {name: spec.shape for name, spec in model_file.checkpoint.specs.items()} == shapes


def test_arch_options_are_given_once():
    with pytest.raises(UsageError, match=r"^`arch:a::n=1,m=2,n=1`: the option `n` appears twice$"):
        locate("arch:a::n=1,m=2,n=1")


@pytest.mark.parametrize("reference", ["arch:", "arch:nope", "arch:resnet50::num_classes=7"])
def test_arch_references_that_name_no_model(reference):
    with pytest.raises(UnsupportedModelError) as caught:
        open_model(reference)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("options", "hint"), [("depth=x", "check `depth=x`"), ("dpth=2", "did you mean `depth`?")]
)
def test_arch_options_that_make_no_model(options, hint):
    with pytest.raises(UsageError) as caught:
        open_model(f"arch:vit_tiny_patch16_224::{options}")
    assert caught.value.hint == hint


def test_standard_input(tmp_path):
    path = base(PLAIN).save(tmp_path / "base.st")
    code = (
        "from hydractl.families.open_model import open_model; o = open_model('-')\n"
        "print(o.checkpoint.digest, o.header.kind, o.name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=path.read_bytes(), capture_output=True, check=True
    )
    assert done.stdout.decode().split()[:2] == [open_model(str(path)).checkpoint.digest, "base"]


# --- the Hub -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "is_id"),
    [
        ("org/name", True), ("org/name@v1", True), ("org/na.me-2@refs/pr/1", True), ("org", False),
        ("a/b/c", False), ("./org/name", False), ("../name", False), ("org/name@", False), ("/org/name", False),
    ],
)  # fmt: skip
def test_what_reads_as_a_hub_id(reference, is_id):
    assert bool(HUB_ID.match(reference)) == is_id


ASK = """
import json, sys
from hydractl.errors import HydraError
from hydractl.model_source import locate
found = []
for reference in sys.argv[1:]:
    try:
        at = locate(reference)
        found.append({"weights": [p.name for p in at.weights], "folder": str(at.path), "config": at.config})
    except HydraError as error:
        found.append({"code": error.exit_code, "message": error.message, "hint": error.hint})
print(json.dumps(found))
"""


def ask(environment, *references, folder=None):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASK, *references],
        env=environment, capture_output=True, text=True, check=True, cwd=folder,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = timm_folder(tmp_path_factory.mktemp("hub") / "m")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with serve() as hub:
        hub.add_folder("org/vit", folder)
        hub.files["org/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"a pickle"}
        hub.files["org/ours"] = {"member.st": base(PLAIN).save(folder / "x.st").read_bytes()}
        yield hub


def test_hub_ids_are_fetched_once_and_without_pickles(hub, tmp_path):
    env = hub.environment(tmp_path)
    bare, prefixed, revision, ours = ask(env, "org/vit", "hf-hub:org/vit", "org/vit@v1", "org/ours")
    for found in (bare, prefixed, revision):
        assert found["weights"] == ["model.safetensors"]
        assert found["config"]["architecture"] == PLAIN.arch
    assert ours["weights"] == ["member.st"]
    assert not any("pytorch_model.bin" in path for path in hub.asked)
    check_is_base(bare["folder"])

    offline = ask(env | {"HF_HUB_OFFLINE": "1"}, "org/vit")
    assert offline[0]["folder"] == bare["folder"]


def test_a_local_folder_of_that_name_comes_first(hub, tmp_path):
    (tmp_path / "org" / "vit").mkdir(parents=True)
    hub.asked.clear()
    (found,) = ask(hub.environment(tmp_path), "org/vit", folder=tmp_path)
    assert found["code"] == 3
    assert "the folder has no safetensors weights" in found["message"]
    assert hub.asked == []


def test_what_the_hub_refuses_is_exit_4(hub, tmp_path):
    references = ["org/none", GATED, "org/vit@nope", BROKEN, "hf-hub:not an id", "hf-hub:a/b/c/d"]
    found = ask(hub.environment(tmp_path), *references)
    assert [f.get("code") for f in found] == [4] * len(references)
    none, gated, revision, broken, *invalid = found
    assert "the Hub has no such model, or you have no access to it" in none["message"]
    assert "hf auth login" in gated["hint"]
    assert "has no revision `nope`" in revision["message"]
    assert "cannot be reached: " in broken["message"]
    assert "418" in broken["message"]
    assert all("reading from the Hub failed: " in f["message"] for f in invalid)


def test_a_pickled_model_on_the_hub_is_exit_3(hub, tmp_path):
    (found,) = ask(hub.environment(tmp_path), "org/pickled")
    assert found["code"] == 3


def test_no_network_and_no_cache_is_exit_4(tmp_path):
    with serve() as gone:
        env = gone.environment(tmp_path)
    offline = ask(env | {"HF_HUB_OFFLINE": "1"}, "org/vit")
    unreachable = ask(env, "org/vit")
    for (found,) in (offline, unreachable):
        assert found["code"] == 4
        assert "is not in the local cache and the Hub cannot be reached" in found["message"]
        assert "HF_HUB_OFFLINE" in found["hint"]


UNMAPPED = {
    # Errors of other services.
    "InferenceEndpointError", "DeviceCodeError", "OIDCError", "SandboxError",
    "SandboxCommandError", "CLIError", "ConfirmationError", "CLIExtensionInstallError",
    # Errors of writing, file formats and checks that a snapshot download does not use.
    "SafetensorsParsingError", "NotASafetensorsRepoError", "DDUFError", "DDUFCorruptedFileError", "DDUFExportError",
    "DDUFInvalidEntryNameError", "FileDuplicationError", "StrictDataclassError", "StrictDataclassDefinitionError",
    "StrictDataclassFieldValidationError", "StrictDataclassClassValidationError",
}  # fmt: skip


def hub_errors():
    from huggingface_hub import errors

    return [
        c
        for _, c in inspect.getmembers(errors, inspect.isclass)
        if issubclass(c, Exception) and c.__module__ == errors.__name__
    ]


@pytest.mark.parametrize("kind", hub_errors(), ids=lambda k: k.__name__)
def test_every_error_of_the_hub_client_becomes_ours(monkeypatch, kind):
    """Errors that a snapshot download does not raise are listed, and the list must be complete and current."""
    error = kind.__new__(kind)
    error.args = ("the reason",)
    if isinstance(error, OSError):
        error.strerror = "the reason"

    def fail(*_args: object, **_kwargs: object):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    expected = kind if kind.__name__ in UNMAPPED else HubError
    with pytest.raises(expected) as caught:
        download("org/name@v1")
    if expected is HubError:
        assert str(caught.value).startswith("org/name@v1: ")


@pytest.mark.parametrize("error", [
    json.JSONDecodeError("Expecting value", "<html>", 0),  # The login page of a network.
    TypeError("must be a mapping, not list"), KeyError("rfilename"), AttributeError("x"),
    ValueError("Invalid filename '../../evil.json': cannot contain a '..' path segment"),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_an_answer_that_no_hub_gives_is_exit_4(monkeypatch, error):
    def fail(*_args: object, **_kwargs: object):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)

    with pytest.raises(HubError, match=r"^org/name: the response of the Hub is not valid: ") as caught:
        download("org/name")
    assert "login" in str(caught.value.hint)


def test_the_list_of_unmapped_errors_is_not_stale():
    assert {k.__name__ for k in hub_errors()} >= UNMAPPED


def test_the_http_library_of_the_hub_client_is_the_one_whose_errors_are_caught():
    import httpx2
    from huggingface_hub import errors

    assert issubclass(errors.HfHubHTTPError, httpx2.HTTPError)


def test_locating_does_not_load_torch(tmp_path):
    path = base(PLAIN).save(tmp_path / "a.st")
    code = "import sys; from hydractl.model_source import locate; locate(sys.argv[1]); assert not {'torch', 'huggingface_hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=dict(os.environ))


def test_shards_of_a_variant(tmp_path):
    """transformers writes such files with `save_pretrained(variant="fp16")`."""
    sample = base(variant("transformers-vit-plain"))
    for name, kind in (("m", None), ("v", "fp16")):
        sample.library().save_pretrained(tmp_path / name, max_shard_size="10KB", variant=kind)
    folder = tmp_path / "v"
    index = folder / "model.safetensors.index.fp16.json"
    assert index.is_file()

    plain, found = (open_model(str(tmp_path / name)).checkpoint.tensors() for name in "mv")
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())
    assert locate(str(index)).weights == locate(str(folder)).weights

    (folder / "model.safetensors.index.bf16.json").write_bytes(index.read_bytes())
    with pytest.raises(CheckpointError, match="has 2 indexes of shards"):
        locate(str(folder))


def test_a_file_of_a_folder_is_listed_once(tmp_path):
    """The name of the index matches two patterns."""
    for name in ("model.safetensors.index.json", "x.index.config.json", "config.json"):
        (tmp_path / name).write_text("{}")

    assert sorted(path.name for path in folder_files(tmp_path)) == sorted(
        path.name for path in tmp_path.iterdir()
    )
