"""Hints of modules beside the folders of the package, and of `cli/`, `manifest/` and `output/`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from support.hints.table import Row, chmod

PRUNE = "prune base.st --scores scores.json --remove 2"
FUSE = "fuse m-0.st m-1.st"
TUNE = "finetune base.st --train digits::classes=0-6,limit=8 --val digits::classes=0-6,limit=8,split=val --steps 1 -o o.st"
EVAL = "eval base.st --data digits::classes=0-6,limit=9,split=test --no-latency --bootstrap 0"


def lock_folder() -> None:
    """Make two safetensors files in one folder."""
    Path("two").mkdir()
    for name in ("first", "other"):
        shutil.copy("base.st", f"two/{name}.safetensors")


ROWS = (
    Row("give one of them", "inspect two", "inspect two/other.safetensors", prepare=lock_folder),
    Row(
        "`hydractl import {} --arch {} -o base.st` converts it to a base without running code in it",
        f"{PRUNE} -o o.st".replace("base.st", "w.pth"),
        "import w.pth --arch timm -o o.st",
    ),
    Row(
        "a MODEL is a .st file, a folder (`.` for this one), or a Hub id `org/name[@revision]`",
        "predict '' images",
        "predict base.st images",
    ),
    Row(
        "a MODEL is a .st file, a folder, or a Hub id `org/name[@revision]`{}",
        "predict unknown-model images",
        "predict base.st images",
    ),
    Row(
        "for example `'arch:vit_tiny_patch16_224::img_size=[96,128]'`, in quotes for the shell",
        "predict 'arch:vit_tiny_patch16_224::img_size=[96' images",
        "predict 'arch:vit_tiny_patch16_224::img_size=[16,16]' images/a/0.png",
    ),
    Row(
        "for example `arch:vit_tiny_patch16_224::num_classes=10`",
        "predict arch:vit_tiny_patch16_224::num_classes images",
        "predict arch:vit_tiny_patch16_224::num_classes=10 images/a/0.png",
    ),
    Row("expected `{}` or `{}`{}", "predict images texts", "predict base.st images"),
    Row(
        "give that folder: `{}`{}",
        "predict run texts.csv",
        "predict run/checkpoint-4 texts.csv",
        prepare=lambda: shutil.copytree("bert", "run/checkpoint-4"),
    ),
    Row(
        "merge it into its base first, in Python with peft: "
        "`AutoPeftModelForSequenceClassification.from_pretrained(FOLDER).merge_and_unload().save_pretrained(OTHER)`",
        "predict adapter texts.csv",
        "predict bert texts.csv",
        files={"adapter/adapter_config.json": "{}", "adapter/adapter_model.safetensors": b""},
    ),
    Row(
        "`hydractl inspect {}` shows what it contains",
        f"{PRUNE} -o o.st".replace("base.st", "copy.st"),
        "inspect copy.st",
        prepare=lambda: shutil.copy("scores.json", "copy.st"),
    ),
    Row(
        "copy or download it again; convert a `.pth` or `.bin` file with `hydractl import`",
        "predict cut.st images",
        "predict base.st images",
        prepare=lambda: Path("cut.st").write_bytes(Path("base.st").read_bytes()[:99]),
    ),
    Row("give it once", f"{PRUNE} --remove 1 -o o.st", f"{PRUNE} -o o.st"),
    Row(
        "add `-o report.json` or `--fail-if COND`, or leave out `-q`",
        f"{EVAL} -q",
        f"{EVAL} -q -o r.json",
    ),
    Row(
        "add `-o report.json`, or `--json`",
        f"{EVAL} --keep-examples 1",
        f"{EVAL} --keep-examples 1 --json",
    ),
    Row(
        "add `-o report.html`, or leave out `-q`",
        "report report.json -q",
        "report report.json -q -o page.html",
    ),
    Row(
        "leave out `--json`, or write the output to a file: `-o FILE`",
        "report report.json -o - --json",
        "report report.json -o -",
    ),
    Row("see `{} --help`", "fuse --zzzzzz", "fuse --help"),
    Row(
        "expected a {} file",
        "prune base.st --scores bad.json --remove 1 -o o.st",
        f"{PRUNE} -o o.st",
        files={"bad.json": "{"},
    ),
    Row(
        "see `hydractl schema {}`; {}",
        "prune base.st --scores bad.json --remove 1 -o o.st",
        "schema scores",
        prepare=lambda: Path("bad.json").write_text(
            json.dumps(json.loads(Path("scores.json").read_text()) | {"towers": 3})
        ),
    ),
    Row(
        "this command reads a {} file; see `hydractl schema {}`; {}",
        "prune base.st --scores m-0.mask.json --remove 1 -o o.st",
        f"{PRUNE} -o o.st",
    ),
    Row(
        "this argument takes a JSON file; a checkpoint is not one",
        "prune base.st --scores base.st --remove 1 -o o.st",
        f"{PRUNE} -o o.st",
    ),
    Row(
        "add `--force` to replace it, or choose another name with `{}`",
        f"{FUSE} -o hydra.st",
        f"{FUSE} -o hydra.st --force",
    ),
    Row("choose another name with `{}`", f"{FUSE} -o m-0.st", f"{FUSE} -o o.st"),
    Row(
        "give a file in it: `{} {}/NAME`",
        "score base.st --method random -o images",
        "score base.st --method random -o images/o.json",
    ),
    Row(
        "leave out the slash, or choose another name with `-o`",
        f"{FUSE} -o base.st/",
        f"{FUSE} -o o.st",
    ),
    Row(
        "for example `{}`",
        f"{TUNE} --method oba",
        f"{TUNE} --method oba::keep=0.5",
    ),
    Row(
        "there are {}",
        f"{TUNE} --method lora-ensemble::zzz=1",
        f"{TUNE} --method lora-ensemble::rank=1",
    ),
    Row(
        "write a number and a unit, such as 512MB or 2GiB; a number without a unit means bytes",
        "score base.st --data digits::classes=0-6,limit=9 --objective acc --remove 1 --max-memory much -o o.json",
        "score base.st --data digits::classes=0-6,limit=9 --objective acc --remove 1 --max-memory 512MB -o o.json",
    ),
    Row("use `--device auto` or `--device cpu`", f"{EVAL} --device cuda", f"{EVAL} --device cpu"),
    Row("use auto, cpu, cuda, cuda:N or mps", f"{EVAL} --device zzz", f"{EVAL} --device auto"),
    Row(
        "use one of {}",
        "python from hydractl.runtime import torch_dtype; torch_dtype('fp8')",
        f"{PRUNE} --dtype bf16 -o o.st",
    ),
    Row(
        "add `{}`, or leave {} out",
        f"{FUSE} --train digits::classes=0-6,limit=9 -o o.st",
        f"{FUSE} -o o.st",
    ),
    Row(
        "pass a tuple of the settings that a plugin adds to the command",
        test="tests/test_plugins.py::test_an_added_option_is_checked_alone_and_with_the_command",
    ),
    Row("for example `{}`", f"{FUSE} -o 'o-{{i}}.st'", f"{FUSE} -o o-0.st"),
    Row(
        "choose from {}",
        "python from pathlib import Path; from hydractl.stages.fuse.config import FuseConfig; FuseConfig(models=('a',), out=Path('o.st'), mlp='zzz')",
        f"{FUSE} --mlp keep -o o.st",
    ),
    Row(
        "a model for such labels: `hydractl finetune MODEL --train {}`",
        "eval bert --data labels.jsonl --no-latency --bootstrap 0",
        "finetune bert --train labels.jsonl --val labels.jsonl --steps 1 -o o.st",
    ),
    Row(
        'write lists, `["delay"]` for a single label and `[]` for none; for cells such as `late|broken` add `::label-separator=|` in quotes',
        "eval multi --data texts.jsonl --no-latency --bootstrap 0",
        "eval multi --data labels.jsonl --no-latency --bootstrap 0",
    ),
    Row(
        "write words and their labels: `{{}}`; for strings add `::text=COLUMN,label=COLUMN,label-separator=space`",
        "eval words --data texts.jsonl --no-latency --bootstrap 0",
        "eval words --data words.jsonl --no-latency --bootstrap 0",
    ),
    Row(
        "`chmod u+w {}`, or choose another name",
        f"{FUSE} -o mine.st --force",
        f"{FUSE} -o o.st",
        prepare=lambda: (shutil.copy("hydra.st", "mine.st"), chmod("mine.st", 0o444)),
    ),
)
