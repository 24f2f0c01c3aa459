"""`--if-changed`: an up-to-date output is not made again, and every relevant change is detected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version
from PIL import Image
from transformers import ViTConfig, ViTModel

from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.exporting.formats import TRACES
from hydractl.provenance import output
from hydractl.provenance.command_config import InputRef
from hydractl.settings import Role
from hydractl.training.resume import StateFolder
from support.analysed import RESEARCH

ARCH = (
    "vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
)
DIGITS = "digits::classes=0-6,limit=14"
COMMANDS = {
    "import": f"import plain.safetensors --arch {ARCH} --labels names.txt -o imported.st",
    "finetune": f"finetune base.st --train images --val {DIGITS} --steps 1 --teacher m-0.st -o tuned.st",
    "finetune a folder": f"finetune arch:{ARCH} --train {DIGITS} --val {DIGITS} --steps 1 -o tuned/",
    "finetune an encoder": f"finetune encoder --train {DIGITS} --val {DIGITS} --steps 1 -o encoder.st",
    "score": "score base.st --method taylor --data images --limit 8 -o taylor.json",
    "score without data": "score base.st --method random -o random.json",
    "score and weights": "score base.st --method dsp --training joint --epochs 1 --data images --save-model trained.st -o dsp.json",
    "prune": "prune base.st --scores scores.json --keep-heads 2 --members 3 --pool 7 -o p-{i}.st",
    "prune by several": "prune base.st --scores scores.json --scores random.json --keep-heads 2 -o q-{i}.st",
    "prune by mask": "prune base.st --mask m-0.mask.json -o masked.st",
    "prune at random": "prune base.st --strategy random --keep-heads 2 -o r.st",
    "prune by diversity": f"prune base.st --scores scores.json --keep-heads 3 --strategy diverse --pool 3 --candidates 2 --data {DIGITS} "
    "--members 2 -o d-{i}.st",
    "fuse": f"fuse m-0.st m-1.st m-1.st --val {DIGITS} --temperature {DIGITS} -o fused.st",
    "eval": f"eval hydra.st --data {DIGITS} --near images --far noise::limit=8,size=8 --compare both=m-0.st,m-1.st --temperature "
    f"{DIGITS} --no-latency --bootstrap 0 --fail-if nll>99 -o report.json --save-predictions said.st --save-model stored.st",
    "eval of rivals": f"eval base.st --data {DIGITS} --compare laplace:base.st::val=images,data={DIGITS} --compare both=laplace:m-0.st"
    f"::prior=1,data=images,laplace:base.st::val={DIGITS},data=images --no-latency --bootstrap 0 -o rivals.json",
    "predict": "predict hydra.st images digits::limit=3 images/0/0.png -o said.csv --if-changed",
    "predict a table": "predict hydra.st images --top-k 2 -o said.parquet --if-changed",
    "export": f"export hydra.st --data {DIGITS} --ood noise::limit=8,size=8 --save-report effect.json -o hydra.pt2 --if-changed",
}  # fmt: skip
if not RESEARCH:
    del COMMANDS["eval of rivals"], COMMANDS["score and weights"]
if Version(torch.__version__) < Version(TRACES):
    del COMMANDS["export"]


@pytest.fixture(scope="module")
def once(made, tmp_path_factory):
    """Return a folder with the outputs of every command."""
    folder = tmp_path_factory.mktemp("once") / "work"
    shutil.copytree(made, folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, **sizes)
    ViTModel(config).save_pretrained(folder / "encoder")
    (folder / "names.txt").write_text("\n".join("abcdefg"))
    for label in range(7):
        (folder / f"images/{label}").mkdir(parents=True)
        for i in range(2):
            pixels = np.random.default_rng(label * 2 + i).integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"images/{label}/{i}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert [main([*line.split(), "-q"]) for line in COMMANDS.values()] == [0] * len(COMMANDS)
    return folder


@pytest.fixture
def folder(once, tmp_path, monkeypatch):
    shutil.copytree(once, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def again(call):
    """Run a command with `--if-changed` and more options."""
    return lambda name, *more: call(*COMMANDS[name].split(), *more, "--if-changed")


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_ino, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_there_is_up_to_date(folder, again, name):
    before = files(folder)

    seen = again(name)

    assert (seen.code, seen.err) == (0, "")
    assert "up to date" in seen.out
    assert files(folder) == before


def test_the_three_forms_of_a_result(folder, again):
    assert again("prune at random", "-q").out == "r.st\nr.mask.json\n"
    found = json.loads(again("prune at random", "--json").out)
    assert found == {"paths": ["r.st", "r.mask.json"], "up_to_date": True}
    assert json.loads(again("eval", "--json").out) == json.loads(Path("report.json").read_text())


def changed_image(folder: Path) -> None:
    shutil.copy(folder / "images/0/0.png", folder / "images/6/1.png")


def other_weights(folder: Path) -> None:
    base = Checkpoint.open(folder / "base.st")
    tensors = base.tensors() | {"head.bias": base.tensor("head.bias") + 1}
    with (folder / "base.st").open("wb") as file:
        write_tensors(file, tensors, header=base.header)


def other_scores(folder: Path) -> None:
    text = (folder / "scores.json").read_text()
    (folder / "scores.json").write_text(text.replace('"limit": 100', '"limit": 99'))


CHANGES = {
    "an option": ("prune at random", lambda _: None, ["--seed", "1"], "other options: without `--seed 1`"),
    "a value": ("score", lambda _: None, ["--batch-size", "4"], "other options: without `--batch-size 4`"),
    "an image": ("score", changed_image, [], "`images` has changed"),
    "weights": ("prune at random", other_weights, [], "`base.st` has changed"),
    "scores": ("prune", other_scores, [], "`scores.json` has changed"),
    "one that is named twice": (
        "fuse",
        lambda folder: shutil.copy(folder / "m-2.st", folder / "m-1.st"),
        [],
        "`m-1.st` has changed",
    ),
    "a list of names": (
        "import",
        lambda folder: (folder / "names.txt").write_text("\n".join("abcdefh")),
        [],
        "other options",
    ),
    "one of several outputs": (
        "prune",
        lambda folder: (folder / "p-1.st").unlink(),
        [],
        "p-1.st is missing or empty",
    ),
    "a mask beside it": (
        "prune at random",
        lambda folder: shutil.copy(folder / "m-0.mask.json", folder / "r.mask.json"),
        [],
        "its files have changed since they were written",
    ),
    "an image that is predicted": ("predict", changed_image, [], "`images` has changed"),
    "what an image is called": (
        "predict a table",
        lambda folder: (folder / "images/0/0.png").rename(folder / "images/0/00.png"),
        [],
        "`images` has changed",
    ),
    "where images lie": ("predict a table", lambda _: None, ["./images"], "other options"),
    "has no class names yet, and an exported model takes images only": (
        "export",
        lambda folder: shutil.copy(folder / "fused.st", folder / "hydra.st"),
        [],
        "`hydra.st` has changed",
    ),
    "how it is exported": ("export", lambda _: None, ["--tolerance", "0.01"], "other options"),
    "how much is told": ("predict", lambda _: None, ["--top-k", "1"], "other options: without `--top-k 1`"),
    "a file of the folder": (
        "finetune a folder",
        lambda folder: (folder / "tuned/config.json").unlink(),
        [],
        "its files have changed since they were written",
    ),
}
if RESEARCH:
    CHANGES["what chooses a prior"] = ("eval of rivals", changed_image, [], "`images` has changed")


LIKE_OTHERS = {
    "a value",
    "an image that is predicted",
    "where images lie",
    "how it is exported",
    "how much is told",
}
"""Changes covered by default by a similar change of another command."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.more if name in LIKE_OTHERS else ())
        for name, (command, *_) in CHANGES.items()
        if command in COMMANDS
    ],
)
def test_what_has_changed_is_made_again(folder, again, name):
    command, change, more, why = CHANGES[name]
    change(folder)

    seen = again(command, *more)

    assert seen.code == 0
    assert f"Not up to date: {why}" in seen.err.replace("it was made with ", "").replace("its files are ", "")
    assert "up to date" in again(command, *more).out


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (
            ("a.st", "--keep-heads", "2"),
            ("a.st", "--keep-heads", "3"),
            ": `--keep-heads 2`, now `--keep-heads 3`",
        ),
        (("a.st", "--keep-heads", "2"), ("a.st",), ": `--keep-heads 2`, now left out"),
        (("a.st",), ("b.st", "--no-verify"), ": `a.st`, now `b.st`, `--no-verify`"),
        (("--fast", "--lr", "-1"), ("--lr", "-1"), ": `--fast`, now left out"),
        (("a.st",), ("a.st",), ""),
        (None, ("a.st",), ""),
    ],
)
def test_options_that_differ_are_named(before, now, text):
    assert output._other_options(before, now) == text


def test_what_is_implied_may_be_typed(folder, again, call):
    assert "up to date" in again("prune", "--strategy", "sample").out
    assert "up to date" in again("prune by several", "--strategy", "objectives").out


def test_another_version_makes_again(folder, again, monkeypatch):
    monkeypatch.setattr(output, "versions", lambda *names: dict.fromkeys(names, "0.0"))

    assert "was made with hydractl" in again("score without data").err


def test_inputs_that_changed_places_are_others(folder, call):
    for name, source in (("x", "m-0.st"), ("y", "m-1.st")):
        (folder / name).mkdir()
        shutil.copy(source, folder / name / "m.st")
    assert call("fuse", "x/m.st", "y/m.st", "-o", "xy.st").code == 0

    assert "up to date" in call("fuse", "x/m.st", "y/m.st", "-o", "xy.st", "--if-changed").out
    seen = call("fuse", "y/m.st", "x/m.st", "-o", "xy.st", "--if-changed")

    assert "Not up to date: `m.st`" in seen.err


@pytest.mark.parametrize(
    ("there", "text"),
    [
        ("notes", "does not record how it was made"),
        ("m-0.st", "by `hydractl prune`"),
        ("scores.json", "by `hydractl score`"),
    ],
)
def test_what_the_command_did_not_make_is_never_replaced(folder, again, there, text):
    (folder / "notes").write_text("mine")
    shutil.copy(there, "fused.st")
    before = Path("fused.st").read_bytes()

    seen = again("fuse")

    assert seen.code == 6
    assert text in seen.err
    assert "--force" in seen.err
    assert Path("fused.st").read_bytes() == before


def test_predictions_that_somebody_has_changed_are_theirs(folder, again):
    """After `--force`, the output is recognized again."""
    Path("said.csv").write_text(Path("said.csv").read_text().replace("0.png", "o.png"))
    edited = Path("said.csv").read_bytes()

    seen = again("predict")

    assert (seen.code, Path("said.csv").read_bytes()) == (6, edited)
    assert "has changed since it was written" in seen.err
    assert (
        "choose another name with `-o`, move it to another place, or replace `--if-changed` by `--force"
        in seen.err
    )
    changed_image(folder)
    assert main([*COMMANDS["predict"].replace("--if-changed", "--force").split(), "-q"]) == 0
    assert "up to date" in again("predict").out
    Path("said.csv").unlink()
    Path("said.csv.lineage.json").write_text("mine")
    seen = again("predict")
    assert (seen.code, Path("said.csv.lineage.json").read_text()) == (6, "mine")
    assert "said.csv.lineage.json: the record of how" in seen.err


@pytest.mark.parametrize(
    "name",
    ["predict", *(pytest.param(name, marks=pytest.mark.more) for name in COMMANDS if name == "export")],
)
def test_what_was_made_without_being_asked_to_say_so_is_moved_away_once(folder, call, again, name):
    plain = COMMANDS[name].removesuffix(" --if-changed")
    out = Path(plain.split()[-1])
    for path in folder.glob("*.lineage.json"):
        path.unlink()
    assert call(*plain.split(), "--force").code == 0
    before = files(folder)

    seen = again(name)

    assert (seen.code, files(folder)) == (6, before)
    assert f"no {out}.lineage.json that records how it was made" in seen.err
    assert "--force" not in seen.err
    for path in (out, Path(f"{out}.py"), Path("effect.json")):
        path.rename(folder / f"moved-{path}") if path.exists() else None
    assert again(name).code == 0
    assert "up to date" in again(name).out


def test_what_texts_are_called_counts_and_labels_do_not(tmp_path):
    def digests(name: str) -> frozenset[str]:
        return InputRef(Role.DATA, DataRef.parse(str(tmp_path / name)), labelled=False).digests()

    for i, text in enumerate("ab"):
        (tmp_path / f"texts/{i}").mkdir(parents=True)
        (tmp_path / f"texts/{i}/x.txt").write_text(text)
    (tmp_path / "t.csv").write_text("text,label\nhello,0\nbye,1\n")
    before = [digests("texts"), digests("t.csv"), digests("t.csv::label=label")]
    (tmp_path / "t.csv").write_text("text,label\nhello,1\nbye,0\n")
    assert [digests("t.csv"), digests("t.csv::label=label")] == before[1:]
    (tmp_path / "texts/0/x.txt").rename(tmp_path / "texts/0/y.txt")
    assert digests("texts") != before[0]


def test_images_that_cannot_be_read_do_not_matter_where_they_are_told_of(folder, call):
    (folder / "images/0/bad.png").write_bytes(b"no image")
    line = ["predict", "hydra.st", "images", "--skip-bad", "-o", "bad.csv", "--if-changed"]

    assert call(*line).code == 0
    assert "up to date" in call(*line).out
    shutil.copy(folder / "images/0/0.png", folder / "images/0/bad.png")
    assert "Not up to date: `images` has changed" in call(*line).err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("predict hydra.st images", "exclude each other"),
        ("predict hydra.st - -o x.csv", "exclude each other"),
        (f"eval hydra.st --data {DIGITS}", "`--if-changed` needs an output to compare with"),
        ("prune base.st --strategy random --keep-heads 2 -o -", "exclude each other"),
        ("prune - --strategy random --keep-heads 2 -o r.st", "exclude each other"),
        ("prune base.st --strategy random --keep-heads 2 -o r.st --force", "exclude each other"),
    ],
)
def test_what_cannot_be_compared_is_refused(folder, call, line, text):
    seen = call(*line.split(), "--if-changed")

    assert seen.code == 2
    assert text in seen.err


def test_a_report_whose_check_failed_fails_again(folder, call):
    line = [
        "eval",
        "hydra.st",
        "--data",
        DIGITS,
        "--no-latency",
        "--bootstrap",
        "0",
        "--fail-if",
        "nll>0",
        "-o",
        "x.json",
    ]

    first, second = (call(*line, "--if-changed") for _ in range(2))

    assert (first.code, second.code) == (5, 5)
    assert "up to date" in second.out
    assert "failed: nll>0" in second.out


def test_a_model_that_is_gone_is_said_by_the_command(folder, again):
    Path("base.st").unlink()

    seen = again("prune at random")

    assert seen.code == 3
    assert "base.st: no such file" in seen.err


def test_the_state_of_another_run_is_dropped(folder, call, monkeypatch):
    line = f"finetune base.st --train {DIGITS} --val {DIGITS} --save-every 1 -o new.st --if-changed".split()
    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "clear", lambda _: None)
        assert call(*line, "--steps", "2").code == 0
    Path("new.st").unlink()

    seen = call(*line, "--steps", "1")

    assert seen.code == 0
    assert (
        "options, inputs or versions have changed: the state of an unfinished run in new.st.state" in seen.err
    )
