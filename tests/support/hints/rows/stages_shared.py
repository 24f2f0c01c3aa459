"""Hints of options and files that several stages share, of `inspect` and of `report`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from support.hints.table import Row

PRUNE = "prune base.st --scores scores.json"
EVAL = "eval base.st --data digits::classes=0-6,limit=9,split=test --no-latency --bootstrap 0"
FUSE = "fuse m-0.st m-1.st"
SCORE = "score base.st --data digits::classes=0-6,limit=14 --objective acc"
TUNE = "finetune base.st --data digits::classes=0-6,limit=8 --val digits::classes=0-6,limit=8,split=val --steps 1 -o o.st"
TUNE_TEXTS = "finetune bert --data texts --val texts --steps 1 -o o.st"
ZERO = "predict clip images/a"


def write_scores(**changes: object) -> None:
    """Write scores with other content."""
    Path("bad.json").write_text(json.dumps(json.loads(Path("scores.json").read_text()) | changes))


ROWS = (
    Row(
        "put `{}` into the name, before its suffix: `-o 'member-{}.st'`",
        f"{PRUNE} --remove 2 --members 2 --pool 6 -o o.st",
        f"{PRUNE} --remove 2 --members 2 --pool 6 -o 'member-{{i}}.st'",
    ),
    Row(
        "give 0 to decode in threads of this process",
        f"{EVAL} --num-workers few",
        f"{EVAL} --num-workers 0",
    ),
    Row(
        "for example `224`, or `224x160` (height x width)",
        f"{TUNE} --img-size big",
        f"{TUNE} --img-size 8x8",
    ),
    Row(
        "give a number above 0 (1 changes nothing), or labelled held-out data to fit it on",
        f"{FUSE} --temperature 0 -o o.st",
        f"{FUSE} --temperature 1 -o o.st",
    ),
    Row(
        "give one of `--keep N`, `--remove R`, `--keep-fraction F`",
        f"{PRUNE} --keep 2 --remove 2 -o o.st",
        f"{PRUNE} --keep 2 -o o.st",
    ),
    Row(
        "`--keep-fraction 0.667` keeps two thirds; `--keep 0` removes all heads",
        f"{PRUNE} --keep-fraction 0 -o o.st",
        f"{PRUNE} --keep-fraction 0.667 -o o.st",
    ),
    Row("leave one of them out", f"{FUSE} -o o.st --force --if-changed", f"{FUSE} -o o.st --force"),
    Row(
        "use a file, or leave out `--if-changed`",
        f"{FUSE} -o - --if-changed",
        f"{FUSE} -o o.st --if-changed",
    ),
    Row("add `-o FILE`", f"{EVAL} --if-changed", f"{EVAL} --if-changed -o o.json"),
    Row(
        "use scores by cahp, l0, circuit or another greedy method, or give one of `--keep N`, `--remove R`, `--keep-fraction F`",
        "prune base.st --scores sampled.json --keep auto -o o.st",
        "prune base.st --scores sampled.json --keep 3 -o o.st",
    ),
    Row(
        "score again with `--remove {}` or more",
        "prune base.st --scores few.json --remove 3 -o o.st",
        f"{SCORE} --remove 3 -o o.json",
        before=(f"{SCORE} --remove 1 -q -o few.json",),
    ),
    Row(
        "score again with `--remove {}`, which ranks all heads",
        "prune base.st --scores few.json --keep 1 --per-layer -o o.st",
        f"{SCORE} --remove 8 -o o.json",
        before=(f"{SCORE} --remove 1 -q -o few.json",),
    ),
    Row(
        "{}; score the model again",
        "prune base.st --scores bad.json --keep auto -o o.st",
        f"{SCORE} --remove 1 -o o.json",
        prepare=lambda: write_scores(
            method="l0", objective=None, baseline=None, removals=None, results={"open": 99}
        ),
    ),
    Row("leave it out", f"{TUNE_TEXTS} --mean 0.5", TUNE_TEXTS),
    Row(
        "give one number for all channels, or one per channel",
        f"{TUNE} --mean 0.5,0.4",
        f"{TUNE} --mean 0.5",
    ),
    Row(
        "leave it out; for random weights and bare files of timm models use `NAME::img_size=N`",
        f"{TUNE} --img-size 16",
        TUNE,
    ),
    Row("give {}", f"{ZERO} --classes photo", f"{ZERO} --classes photo,drawing"),
    Row("rename one of them", f"{ZERO} --classes photo,photo", f"{ZERO} --classes photo,drawing"),
    Row(
        "give its classes in its order, or compare only models with the same classes",
        f"{EVAL} --compare other=clip --classes a,b",
        EVAL,
    ),
    Row(
        'for example `["cat", "dog"]`',
        f"{ZERO} --classes names.json",
        f"{ZERO} --classes photo,drawing",
        files={"names.json": '{"cat": 1}'},
    ),
    Row(
        "give one name per line, or a JSON list",
        f"{ZERO} --classes names.txt",
        f"{ZERO} --classes photo,drawing",
        files={"names.txt": "\n"},
    ),
    Row(
        "leave it out, or give it a name",
        f"{ZERO} --classes names.json",
        f"{ZERO} --classes photo,drawing",
        files={"names.json": '["cat", "", "dog"]'},
    ),
    Row(
        "give a report written by `hydractl eval -o report.json`",
        "python from hydractl.stages.report.config import ReportConfig; ReportConfig(files=())",
        f"{EVAL} -o o.json",
    ),
    Row(
        "give one report per data set",
        "report report.json --over sets",
        "report report.json second.json --over sets",
        before=(f"{EVAL.replace('test', 'val')} -q -o second.json",),
    ),
    Row(
        "name the row with `--name` of `eval`",
        "report report.json --tests second.json",
        "report report.json --tests third.json",
        before=(
            f"{EVAL.replace('test', 'val')} --name other -q -o second.json",
            f"{EVAL.replace('test', 'val')} -q -o third.json",
        ),
    ),
    Row(
        "add `-o report.html`",
        "report report.json --force",
        "report report.json --force -o page.html",
    ),
    Row(
        "give each report once",
        "report report.json copy.json",
        "report report.json",
        prepare=lambda: shutil.copy("report.json", "copy.json"),
    ),
    Row(
        "run `hydractl eval` again without `--no-curves`",
        "report bare.json --figures figures/",
        f"{EVAL} -o o.json",
        before=(f"{EVAL} --no-curves -q -o bare.json",),
    ),
    Row(
        "choose another name, move it to another place, or replace `--if-changed` by `--force`",
        "report report.json -o page.html --if-changed",
        "report report.json -o page.html --force",
        files={"page.html": "mine"},
    ),
    Row(
        "`--verify` compares more files with the lineage of the first",
        "inspect base.st m-0.st",
        "inspect m-0.st --verify base.st",
    ),
    Row(
        "give them: `{} --verify a.st scores.json`",
        "inspect base.st --verify",
        "inspect m-0.st --verify base.st scores.json",
    ),
    Row(
        "`hydractl prune {} --strategy random --keep-fraction 1 -o base.st` makes a file with random weights",
        "inspect arch:vit_tiny_patch16_224",
        "prune arch:vit_tiny_patch16_224::img_size=16,depth=1 --strategy random --keep-fraction 1 -o o.st",
    ),
    Row(
        "download a Hub model with `hf download ID --local-dir FOLDER` and inspect the folder",
        "inspect hf-hub:org/name",
        "inspect vit",
    ),
    Row(
        "files that hydractl writes have one: use `hydractl import` or `hydractl finetune`",
        "inspect vit --lineage",
        "inspect base.st --lineage",
    ),
    Row(
        "check whether the command that writes it failed",
        "inspect empty.st",
        "inspect base.st",
        files={"empty.st": b""},
    ),
    Row(
        "convert it to a base: `hydractl import WEIGHTS --arch NAME -o base.st`",
        "inspect w.model",
        "import w.model --arch timm -o o.st",
        prepare=lambda: shutil.copy("old.pth", "w.model"),
    ),
    Row(
        "for a Hub id: `hf download ID --local-dir FOLDER`, then inspect the folder",
        "inspect org/name",
        "inspect vit",
    ),
    Row("give a checkpoint, scores, a head mask or a report", "inspect texts.csv", "inspect scores.json"),
    Row(
        "known schemas: {}; {}",
        "inspect bad.json",
        "inspect scores.json",
        prepare=lambda: write_scores(schema="other/1"),
    ),
    Row("leave it out", "inspect scores.json --tensors", "inspect scores.json"),
)
