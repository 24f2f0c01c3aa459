"""`-o folder/`: the same checkpoint, with configuration files for libraries."""

from __future__ import annotations

import torch

from hydractl.checkpoint import Checkpoint

TRAIN = "digits::classes=0-6,split=train,limit=32"
TUNE = ["finetune", "m-0.st", "--train", TRAIN, "--val", TRAIN, "--lr", "1e-3", "--epochs", "1", "--force"]
COMMANDS = {
    "prune": ["prune", "base.st", "--strategy", "random", "--keep-heads", "2"],
    "finetune": TUNE,
    "fuse": ["fuse", "m-0.st", "m-1.st"],
    "import": ["import", "weights.pth", "--arch", "vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4", "--num-classes", "7"],
}  # fmt: skip


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_stage_writes_the_same_checkpoint_into_a_folder(work, call):
    torch.save(Checkpoint.open(work / "base.st").tensors(), work / "weights.pth")
    for name, argv in COMMANDS.items():
        assert call(*argv, "-o", f"{name}.st").code == 0, name
        seen = call(*argv, "-o", f"{name}/", "-q")

        assert (seen.code, seen.out) == (0, f"{name}\n"), seen.err
        assert (work / name / "model.safetensors").read_bytes() == (work / f"{name}.st").read_bytes()
        assert "config.json" in names(work / name)
    assert names(work / "fuse") == [
        "config.json", "head-mask-0.json", "head-mask-1.json", "model.safetensors", "preprocessor_config.json",
    ]  # fmt: skip
    assert not [name for name in names(work) if name.startswith(".")]


def test_several_members_are_several_folders(work, call):
    argv = [
        "prune",
        "base.st",
        "--scores",
        "scores.json",
        "--keep-heads",
        "2",
        "--members",
        "2",
        "--pool",
        "7",
    ]
    assert call(*argv, "-o", "p-{i}/", "-q").out == "p-0\np-1\n"
    assert call("fuse", "p-0", "p-1/", "-o", "from-folders.st").code == 0
    assert call("prune", "base.st", "--mask", "p-1/head-mask.json", "-o", "again/", "-q").code == 0
    again, first = (Checkpoint.open(work / name / "model.safetensors") for name in ("again", "p-1"))
    assert (again.header.masks, again.specs) == (first.header.masks, first.specs)


def test_a_folder_that_holds_a_model_is_not_overwritten_without_force(work, call):
    assert call("fuse", "m-0.st", "m-1.st", "m-2.st", "-o", "h/", "-q").code == 0
    (work / "h" / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in (work / "h").iterdir()}

    refused = call("fuse", "m-0.st", "m-1.st", "-o", "h")

    assert (refused.code, "already contains a model (" in refused.err) == (6, True)
    assert {path: path.read_bytes() for path in (work / "h").iterdir()} == before
    assert call("fuse", "m-0.st", "m-1.st", "-o", "h", "--force", "-q").code == 0
    assert names(work / "h") == [
        "config.json", "head-mask-0.json", "head-mask-1.json", "model.safetensors", "notes.txt",
        "preprocessor_config.json",
    ]  # fmt: skip


def test_a_folder_that_is_read_is_not_written(work, call):
    assert call("prune", "base.st", "--strategy", "random", "--keep-heads", "2", "-o", "m/", "-q").code == 0
    before = {path: path.read_bytes() for path in (work / "m").iterdir()}

    seen = call("fuse", "m/", "m-0.st", "-o", "m/", "--force")

    assert (seen.code, "is an input of this command" in seen.err) == (6, True)
    assert {path: path.read_bytes() for path in (work / "m").iterdir()} == before


def test_a_file_of_that_name_is_said(work, call):
    seen = call("fuse", "m-0.st", "m-1.st", "-o", "base.st/", "--force")
    assert (seen.code, "is a file, not a folder" in seen.err) == (3, True)
