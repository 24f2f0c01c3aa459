"""`hydractl import`: printed results, and the common behaviour of all commands."""

from __future__ import annotations

import json
import os

import pytest
import torch

from hydractl.checkpoint import Checkpoint

ARCH = "vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4"

ASSUMED = (
    "warning: w.pth: does not say how images are read; assumed: crop_pct=0.9, interpolation=bicubic, mean=[0.5], std=[0.5] "
    "(`--mean` and `--std` set these)\n"
)


@pytest.fixture
def weights(work):
    state = {f"module.{k}": v for k, v in Checkpoint.open(work / "base.st").tensors().items()}
    torch.save({"epoch": 1, "state_dict": state, "state_dict_ema": state}, work / "w.pth")
    return ("import", "w.pth", "--arch", ARCH, "--num-classes", "7", "-o", "new.st")


def test_results_and_what_to_know(call, work, weights):
    seen = call(*weights)

    assert seen.code == 0
    assert seen.out.splitlines()[0].split() == ["architecture", "classes", "heads", "parameters", "bytes"]
    assert "Found under `state_dict` and with the prefix `module.`\nWrote new.st\n" in seen.out
    assert (
        "warning: w.pth: also has an exponential moving average of the weights (`state_dict_ema`); add "
        "`--ema` to import it"
    ) in seen.err
    assert call("inspect", "new.st").out.startswith("new.st: base\n")
    assert call(*weights[:-1], "ema.st", "--ema").err == (
        "Reading w.pth\n"
        f"{ASSUMED}"
        "By `--arch`, a block has 4 heads of width 8; weights do not tell their number\n"
        "Writing ema.st\n"
    )


def test_json_and_quiet(call, work, weights):
    seen = call(*weights, "--json", "--ema")
    found = json.loads(seen.out)

    assert (seen.code, seen.err) == (0, ASSUMED)
    assert found["warnings"] == [ASSUMED.removeprefix("warning: ").strip()]
    assert (found["architecture"], found["num_classes"], found["wrapper"]) == (
        "vit_tiny_patch16_224",
        7,
        "state_dict_ema",
    )
    assert call(*weights, "-q", "--ema", "--force").out == "new.st\n"


def test_an_output_that_exists_is_kept(call, work, weights):
    (work / "new.st").write_bytes(b"mine")

    assert call(*weights).code == 6
    assert (work / "new.st").read_bytes() == b"mine"
    assert call(*weights, "--force").code == 0


def test_other_ranks_say_nothing(call, work, weights, monkeypatch):
    monkeypatch.setenv("RANK", "1")

    assert (call(*weights).out, call(*weights, "--force").err) == ("", "")


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("pwned",))


BAD = {
    "missing": (("import", "none.pth", "--arch", ARCH), 3, "none.pth: no such file"),
    "a stream": (("import", "-", "--arch", ARCH), 2, "`import` cannot read a stream: it reads tensors by their position in a file"),
    "code": (("import", "evil.pth", "--arch", ARCH), 3, "evil.pth: cannot be read without running code"),
    "classes": (("import", "w.pth", "--arch", ARCH), 3, "hint: add `--num-classes 7`"),
    "unknown": (("import", "w.pth", "--arch", "vit_tinny"), 3, "timm has no architecture `vit_tinny`"),
    "misspelt": (("import", "w.pth", "--arch", "vit_tiny_patch16_24"), 3, "hint: did you mean `vit_tiny_patch16_224`?"),
    "other library": (("import", "w.pth", "--arch", "bret"), 3, "hint: did you mean `bert`?"),
    "ours": (("import", "base.st", "--arch", ARCH), 2, "is already a checkpoint of hydractl"),
    "no architecture": (("import", "w.pth", "--arch", "."), 3, "has no config.json"),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "code", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_one_message_and_leaves_nothing(call, work, weights, argv, code, text):
    torch.save(Evil(), work / "evil.pth")
    before = set(work.iterdir())

    seen = call(*argv, "-o", "n.st")

    assert (seen.code, seen.out) == (code, "")
    assert text in seen.err
    assert seen.err.count("error: ") == 1
    assert set(work.iterdir()) == before


def test_the_hint_for_a_pickle_is_a_command_that_works(call, work, weights):
    seen = call("inspect", "w.pth")
    assert seen.code == 3
    seen = call("prune", "w.pth", "--mask", "m-0.mask.json", "-o", "n.st")
    assert "hint: `hydractl import w.pth --arch NAME -o base.st`" in seen.err


def test_several_files_become_a_base_each(call, work, weights):
    state = Checkpoint.open(work / "base.st").tensors()
    for folder in ("r0", "r1"):
        (work / folder).mkdir()
        torch.save(state, work / folder / "model_best.pth.tar")
    torch.save(state, work / "last.vit16.ckpt")
    files = ["last.vit16.ckpt", "r0/model_best.pth.tar"]
    options = ["--arch", ARCH, "--num-classes", "7"]

    seen = call("import", *files, *options, "-o", "{name}.st", "-q")
    assert (seen.code, seen.out) == (0, "last.vit16.st\nmodel_best.st\n")
    alone = call("import", files[1], *options, "-o", "one.st", "-q")
    assert alone.out == "one.st\n"
    assert (work / "one.st").read_bytes() == (work / "model_best.st").read_bytes()

    found = json.loads(call("import", *files, *options, "-o", "b-{i}.st", "--json").out)
    assert [one["path"] for one in found["imports"]] == ["b-0.st", "b-1.st"]
    seen = call("import", *files, *options, "-o", "b-{i}.st", "--if-changed", "-q")
    assert (seen.code, seen.out) == (0, "b-0.st\nb-1.st\n")
    assert call("import", *files, *options, "-o", "b-{i}.st").code == 6

    seen = call("import", "r0/model_best.pth.tar", "r1/model_best.pth.tar", *options, "-o", "{name}.st")
    assert seen.code == 2
    assert "hint: put `{name}` or `{i}` into the name" in seen.err
    seen = call("import", *files, *options, "-o", "one.st", "--force")
    assert (seen.code, "2 files need 2 different output names" in seen.err) == (2, True)


def test_of_several_files_none_is_written_where_an_output_is_there(call, work, weights):
    (work / "c-1.st").write_bytes(b"mine")
    options = ["--arch", ARCH, "--num-classes", "7", "-o", "c-{i}.st"]
    assert call("import", "w.pth", "w.pth", *options).code == 6
    assert not (work / "c-0.st").exists()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("score m.st --method taylor --data digits -o s-{i}.json", "{i}"),
        ("fuse a.st b.st -o h-{i}.st", "{i}"),
        ("eval a.st --data digits -o {name}.json", "{name}"),
        ("prune m.st --strategy random --keep-heads 2 -o {name}.st", "{name}"),
        ("finetune m.st --train digits --val digits -o {name}.st", "{name}"),
        ("predict m.st a.png -o p-{i}.csv", "{i}"),
        ("export m.st -o m-{i}.onnx", "{i}"),
    ],
)
def test_a_placeholder_that_stands_for_nothing_is_wrong_usage(call, work, line, part):
    before = set(work.iterdir())
    seen = call(*line.split())
    assert (seen.code, f"must not contain `{part}`" in seen.err) == (2, True)
    assert set(work.iterdir()) == before


def test_a_number_of_one_model_is_wrong_usage(call, work):
    seen = call(*["finetune", "base.st", "--train", "digits", "--val", "digits", "-o", "m-{i}.st"])
    assert (seen.code, "`{i}` numbers several models" in seen.err) == (2, True)
