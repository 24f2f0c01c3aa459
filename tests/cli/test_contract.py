"""Common behaviour of all commands with outputs: `--json`, `-q`, `-o -`, `--force`, exit codes."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
import torch

from hydractl.errors import InputError
from hydractl.output.publish import check_output, claimed
from hydractl.runtime import enough_memory
from hydractl.scoring.journal import JournalFile, ScoreJournal
from hydractl.training.resume import Snapshot, StateFolder

COMMANDS = {
    "prune": ("prune", "base.st", "--scores", "scores.json", "--keep-heads", "2", "-o", "new.st"),
    "prune by mask": ("prune", "base.st", "--mask", "m-0.mask.json", "--no-verify", "-o", "new.st"),
    "score": ("score", "base.st", "--method", "magnitude", "-o", "new.json"),
    "finetune": (
        "finetune", "base.st", "--train", "digits::split=train,classes=0-6,limit=14", "--val", "digits::split=val,classes=0-6,limit=14", "--steps", "1", "--device", "cpu",
        "-o", "new.st",
    ),
    "eval": (
        "eval", "base.st", "--data", "digits::split=test,classes=0-6,limit=14", "--no-latency", "--bootstrap", "0",
        "--device", "cpu", "-o", "new.json",
    ),
    "predict": (
        "predict", "hydra.st", "digits::split=test,classes=0-6,limit=3", "--device", "cpu", "-o", "new.jsonl",
    ),
    "fuse": ("fuse", "m-0.st", "m-1.st", "-o", "new.st"),
    "inspect": ("inspect", "hydra.st"),
    "inspect scores": ("inspect", "scores.json"),
    "inspect mask": ("inspect", "m-0.mask.json"),
    "schema": ("schema", "report"),
    "data": ("data", "list"),
}  # fmt: skip
WRITING = {name: argv for name, argv in COMMANDS.items() if "-o" in argv}
ALONE = {
    **WRITING,
    "import": (
        "import", "plain.safetensors",
        "--arch", "vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7",
        "-o", "new.st",
    ),
}  # fmt: skip
everything = pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
writing = pytest.mark.parametrize("argv", WRITING.values(), ids=WRITING)
alone = pytest.mark.parametrize("argv", ALONE.values(), ids=ALONE)


@everything
def test_json_is_one_document_and_nothing_else(call, work, argv):
    seen = call(*argv, "--json")

    assert (seen.code, seen.err) == (0, "")
    assert isinstance(json.loads(seen.out), dict)
    assert seen.out.endswith("}\n")


@everything
def test_results_go_to_standard_output(call, work, argv):
    seen = call(*argv)

    assert seen.code == 0
    assert seen.out
    assert "\x1b" not in seen.out + seen.err


@everything
def test_other_ranks_say_nothing(call, work, monkeypatch, argv):
    monkeypatch.setenv("RANK", "1")

    seen = call(*argv)

    assert (seen.code, seen.out, seen.err) == (0, "", "")


@writing
def test_quiet_prints_the_paths(call, work, argv):
    before = set(work.iterdir())

    seen = call(*argv, "-q")

    written = {path.relative_to(work) for path in set(work.iterdir()) - before}
    assert (seen.code, seen.err) == (0, "")
    assert sorted(seen.out.splitlines()) == sorted(map(str, written))


@writing
def test_an_output_that_exists_is_kept(call, work, argv):
    (work / argv[-1]).write_bytes(b"mine")

    seen = call(*argv)

    assert seen.code == 6
    assert seen.err == (
        f"error: {argv[-1]}: already exists\n\nhint: add `--force` to replace it, or choose another name with `-o`\n"
    )
    assert (work / argv[-1]).read_bytes() == b"mine"
    assert call(*argv, "--force").code == 0
    assert (work / argv[-1]).read_bytes() != b"mine"


@writing
def test_an_input_is_never_overwritten(call, work, argv):
    source = next(word for word in argv if word.endswith(".st"))
    before = (work / source).read_bytes()

    link = work / f"link{Path(argv[-1]).suffix}"  # The suffix must fit the content.
    link.symlink_to(source)

    seen = call(*argv[:-1], link, "--force")

    assert seen.code == 6
    assert (work / source).read_bytes() == before


@writing
@pytest.mark.parametrize(
    ("place", "text"), [("none", "folder `none` does not exist"), (".", "is a folder, not a file")]
)
def test_an_output_that_cannot_be_written_is_refused_first(call, work, argv, place, text):
    if place == "." and argv[-1].endswith(".st"):  # A folder is a valid output for a model.
        place, text = "scores.json/", "is a file, not a folder"
    if place == "none":
        place = f"none/{argv[-1]}"
    before = set(work.iterdir())

    seen = call(*argv[:-1], place)

    assert seen.code == 3
    assert text in seen.err
    assert set(work.iterdir()) == before


@alone
def test_one_command_makes_an_output_at_a_time(call, work, argv):
    before = set(work.iterdir())

    with claimed(work / argv[-1], force=False):
        seen = call(*argv, "--force")

    assert (seen.code, set(work.iterdir())) == (6, before)
    assert f"{argv[-1]}: process {os.getpid()} on " in seen.err


@alone
def test_what_came_meanwhile_is_kept(call, work, argv, monkeypatch):
    def and_then_somebody_writes_it(path, **told):
        check_output(path, **told)
        path.write_bytes(b"mine")

    monkeypatch.setattr("hydractl.provenance.output.check_output", and_then_somebody_writes_it)
    seen = call(*argv)

    assert (seen.code, (work / argv[-1]).read_bytes()) == (6, b"mine")
    assert f"{argv[-1]}: already exists with other content; nothing was written" in seen.err


BAD = {
    "missing": (("inspect", "none.st"), "none.st: no such file"),
    "missing model": (("prune", "none.st", "--mask", "m-0.mask.json", "-o", "n.st"), "none.st: no such file"),
    "missing scores": (("prune", "base.st", "--scores", "none.json", "--keep-heads", "2", "-o", "n.st"), "none.json: no such file"),
    "truncated": (("fuse", "cut.st", "-o", "n.st"), "cut.st: is not a valid safetensors file"),
    "other classes": (("fuse", "base.st", "five.st", "-o", "n.st"), "five.st: has 5 classes, base.st has 7"),
    "a hydra": (("fuse", "hydra.st", "-o", "n.st"), "hydra.st: is already a hydra"),
    "a mask as scores": (("prune", "base.st", "--scores", "m-0.mask.json", "--keep-heads", "2", "-o", "n.st"), "expected `hydractl.scores/1`"),
    "a head out of range": (("prune", "base.st", "--mask", "range.json", "-o", "n.st"), "keep[0] has head 9, but there are 4 heads (0..3)"),
    "an unknown key": (("inspect", "key.json"), "extra is not a known key"),
    "not JSON": (("inspect", "broken.json"), "broken.json: is not JSON"),
    "markup in a name": (("inspect", "[red]x[/x].st"), "[red]x[/x].st: no such file"),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_one_message_and_leaves_nothing(call, work, argv, text):
    (work / "cut.st").write_bytes((work / "base.st").read_bytes()[:-100])
    mask = json.loads((work / "m-0.mask.json").read_text())
    (work / "key.json").write_text(json.dumps(mask | {"extra": 1}))
    mask["towers"]["vision"]["keep"][0] = [0, 9]
    (work / "range.json").write_text(json.dumps(mask))
    (work / "broken.json").write_text('{"schema": ')
    before = set(work.iterdir())

    seen = call(*argv)

    assert (seen.code, seen.out) == (3, "")
    assert seen.err.startswith("error: ")
    assert text in seen.err
    assert seen.err.count("error: ") == 1
    assert set(work.iterdir()) == before


@pytest.mark.parametrize("name", ["[red]x.st", "[b]y[i].st", "x[1].st", "a b.st"])
def test_names_are_printed_literally(call, work, name):
    (work / "base.st").rename(name)

    assert call("inspect", name).out.startswith(f"{name}: base\n")
    seen = call("prune", name, "--mask", "m-0.mask.json", "-o", f"new-{name}")
    assert seen.code == 0
    assert f"Wrote new-{name}\n" in seen.out
    assert f"Writing new-{name}\n" in seen.err


LEFT = {
    "score": (
        ("score", "base.st", "--data", "digits::classes=0-6,limit=14", "--objective", "acc", "--device", "cpu", "-o", "new.json"),
        lambda path: ScoreJournal(JournalFile(fingerprint=f"sha256:{0:064}", settings={}), path).begin(0.5),
        "journal",
    ),
    "finetune": (
        COMMANDS["finetune"],
        lambda path: StateFolder(path, f"sha256:{0:064}").save(Snapshot()),
        "state",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "leave", "suffix"), LEFT.values(), ids=LEFT)
def test_what_an_unfinished_run_of_other_options_left_is_answered_alike(call, work, argv, leave, suffix):
    path = Path(f"{argv[-1]}.{suffix}")
    leave(path)
    before = sorted(work.rglob("*"))
    seen = call(*argv)

    assert (seen.code, seen.out, sorted(work.rglob("*"))) == (6, "", before)
    assert f"error: {path}: belongs to an unfinished run with other options, inputs or versions\n" in seen.err
    assert seen.err.endswith(
        "hint: run that command again to finish it, add `--force` to discard it and start again, or choose another name with `-o`\n"
    )
    assert call(*argv, "--force").code == 0
    assert not path.exists()


MEMORY = {
    "score": "try a smaller `--batch-size` or `--device cpu`",
    "finetune": "try a smaller `--batch-size`, a larger `--accumulate`, `--gradient-checkpointing` or `--device cpu`",
    "prune": "try a smaller `--batch-size` or `--device cpu`",
    "fuse": "try a smaller `--batch-size` or `--device cpu`",
}
HUNGRY = {
    **COMMANDS,
    "score": ("score", "base.st", "--method", "taylor", "--data", "digits::classes=0-6,limit=3", "--device", "cpu", "-o", "new.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMORY)
def test_a_device_without_memory_is_a_sentence_that_names_the_options_of_the_command(
    call, work, monkeypatch, name
):
    """The Python function raises the same message."""

    def exhausted(*_args: object, **_kwargs: object):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")

    monkeypatch.setattr(torch.nn.functional, "linear", exhausted)
    before = sorted(path.name for path in work.iterdir())
    seen = call(*HUNGRY[name])

    assert seen.code == 3
    assert (
        "error: the device has too little memory: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        in seen.err
    )
    assert seen.err.endswith(f"hint: {MEMORY[name]}\n")
    assert sorted(path.name for path in work.iterdir()) == before


def test_memory_of_the_machine_is_no_memory_of_a_device(monkeypatch):
    with (
        pytest.raises(InputError, match="this machine has too little memory: MemoryError") as caught,
        enough_memory(["batch_size", "device"]),
    ):
        raise MemoryError
    assert caught.value.hint == "try a smaller `--batch-size`"
    with pytest.raises(ValueError, match="other"), enough_memory(["batch_size"]):
        raise ValueError("other")


@pytest.mark.parametrize(("error", "limited", "said"), [
    (ImportError("libtorch_cpu.so: failed to map segment"), True, True), (MemoryError(), True, True),
    (RuntimeError("std::bad_alloc"), True, True), (RuntimeError("a bug"), True, False), (RuntimeError("a bug"), False, False),
    (ImportError("libtorch_cpu.so: failed to map segment"), False, False), (ModuleNotFoundError("no module"), True, False), (ValueError("x"), True, False),
])  # fmt: skip
def test_libraries_that_do_not_fit_into_the_limit_of_a_process(call, work, monkeypatch, error, limited, said):
    def fails(*_args: object, **_kwargs: object):
        raise error

    limit = 2**31 if limited else resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    if str(error) == "std::bad_alloc":
        monkeypatch.setattr("hydractl.runtime._reserved", lambda _: None)
    monkeypatch.setattr("hydractl.cli.app.command_tree", fails)
    if not said:
        with pytest.raises(type(error)):
            call("inspect", "base.st")
        return
    seen = call("inspect", "base.st")
    assert seen.code == 3
    assert (
        "error: the libraries need more virtual memory than the limit of this process, 2.0 GiB: " in seen.err
    )
    assert seen.err.endswith("hint: raise the limit before the command: `ulimit -v unlimited`\n")
