"""Hints of the remaining modules of `hydractl/stages/`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from hydractl.manifest.header import Sidecar
from hydractl.strict_json import MAX_BYTES
from support.hints.rows.families import edit_header, rewrite
from support.hints.rows.machine import DIGITS, EVAL, PUSH, TUNE
from support.hints.rows.stages_prune import edit
from support.hints.table import Row

EXPORT = "export base.st -o o.pt2"
FUSE = "fuse m-0.st m-1.st -o o.st"
PRUNE = "prune base.st --scores scores.json --remove 2 -o o.st"
GROUPED = "arch:qwen3::hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,intermediate_size=48,vocab_size=61,pad_token_id=0,tokenizer=bert/tokenizer.json"


def _infinite(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"head.bias": state["head.bias"] / 0}


def _other_heads(header: dict[str, Any]) -> None:
    header["masks"][0]["vision"]["keep"] = [[0], [0]]


def _drop_fate(header: dict[str, Any]) -> None:
    header["plan"]["fates"].pop("norm.weight")


def _write_beside(path: str) -> None:
    Sidecar.path_of(Path(path)).write_text("mine")


def _large_journal() -> None:
    """Write a journal of more than the maximum size."""
    path = Path("o.json.journal")
    path.write_text('{"schema": "hydractl.journal/1"}\n')
    os.truncate(path, MAX_BYTES + 1)


def _drop_layer(path: str) -> None:
    document = json.loads(Path(path).read_text())
    tower = document["towers"]["vision"]
    edit(path, towers={"vision": tower | {"keep": tower["keep"][:1]}})


ROWS = (
    Row("`hydractl data list` lists the names", "data show", "data list"),
    Row(
        "`hydractl data {} {}` shows one data set",
        "data list cifar10",
        "data show cifar10",
    ),
    Row(
        "measure it on other data, or leave out the condition",
        test="tests/stages/test_prediction_sets.py::test_a_check_may_be_of_their_coverage_on_other_data",
    ),
    Row(
        "leave out the name: the sets of `{}` have their own",
        test="tests/stages/evaluate/test_refs.py::test_the_sets_of_a_preset_have_their_names",
    ),
    Row(
        "add `--data DATA`",
        "export base.st -o o.onnx --quantize int8",
        f"export base.st -o o.onnx --quantize int8 --data {DIGITS}",
    ),
    Row(
        "`pip install 'hydractl[onnx]'`, or write a `.pt2`",
        test="tests/stages/export/test_export.py::test_without_its_libraries_onnx_is_refused_by_name",
    ),
    Row(
        "pip install --upgrade 'torch>={}' torchvision",
        test="tests/stages/export/test_export.py::test_releases_of_torch_that_cannot_are_refused_by_name",
    ),
    Row(
        "leave it out",
        "export bert -o o.pt2 --with-preprocess",
        "export bert -o o.pt2",
    ),
    Row(
        "leave out `--with-preprocess`",
        f"{EXPORT} --with-preprocess",
        EXPORT,
        prepare=partial(
            edit_header, "base.st", lambda header: header["preprocess"].update(interpolation="nearest")
        ),
    ),
    Row(
        'name them: `--classes cat,dog --template "A photo of a {}."`',
        "export clip -o o.pt2",
        "export clip -o o.pt2 --classes a,b",
    ),
    Row(
        "lower `--lr`, or add `--clip 1.0`",
        f"{TUNE} --lr 1e38 --optimizer sgd -o o.st",
        f"{TUNE} --lr 1e-4 -o o.st",
    ),
    Row(
        "{}; prune the base again",
        FUSE,
        "prune base.st --mask m-0.mask.json -o n-0.st",
        prepare=partial(edit_header, "m-0.st", _other_heads),
    ),
    Row(
        "{}; fuse the members again",
        "inspect hydra.st",
        "fuse m-0.st m-1.st m-2.st --force -o hydra.st",
        prepare=partial(edit_header, "hydra.st", _drop_fate),
    ),
    Row(
        "leave it out, or add `--threshold X` or `--threshold none`",
        "predict t.st images --ood-score energy",
        "predict t.st images --ood-score energy --threshold none",
        before=(f"{EVAL} --threshold-for 'risk<=0.99' --ood-score entropy --save-model t.st -q -o t.json",),
    ),
    Row(
        "use fewer samples, `--data DATA::limit={}`, or fewer `--candidates`",
        test="tests/stages/prune/test_diverse.py::test_probabilities_that_would_not_fit_are_refused_with_a_number_that_fits",
    ),
    Row(
        "for example `{} {}`",
        "prune grouped.st --strategy random --keep-heads 3 --whole-groups -o o.st",
        "prune grouped.st --strategy random --keep-heads 4 --whole-groups -o o.st",
        before=(f"finetune {GROUPED} --train texts.jsonl --val texts.jsonl --steps 1 -q -o grouped.st",),
    ),
    Row(
        "score all with the same `--towers`",
        "prune clip --scores v.json --scores t.json --remove 1 --strategy objectives -o o-{i}.st",
        "score clip --method random --towers vision --force -o t.json",
        before=(
            "score clip --method random --towers vision -q -o v.json",
            "score clip --method random --towers text -q -o t.json",
        ),
    ),
    Row(
        "the mask may be for another model",
        "prune base.st --mask m-0.mask.json -o o.st",
        "prune base.st --mask m-1.mask.json -o o.st",
        prepare=partial(_drop_layer, "m-0.mask.json"),
    ),
    Row(
        "the scores may be for another model",
        "prune base.st --scores t.json --remove 1 -o o.st",
        PRUNE,
        before=("score clip --method random --towers text -q -o t.json",),
    ),
    Row(
        "leave `--dtype` out to keep the stored numbers",
        f"{PRUNE} --dtype bf16",
        PRUNE,
        prepare=partial(
            rewrite, "base.st", lambda state: state | {"head.bias": state["head.bias"] * 0 + 3.4e38}
        ),
    ),
    Row(
        "give a text, or leave the option out",
        f"{PUSH} --commit-message ''",
        PUSH,
    ),
    Row(
        "train it with `finetune` first",
        "push arch:vit_tiny_patch16_224 my-team/my-hydra --dry-run",
        f"{TUNE} -o o.st",
    ),
    Row(
        "the training may have diverged; use an earlier checkpoint",
        PRUNE,
        "prune five.st --strategy random --keep-heads 3 -o o.st",
        prepare=partial(rewrite, "base.st", _infinite),
    ),
    Row(
        "score again with `--remove {}`; {}",
        "prune base.st --scores s.json --keep-heads auto -o o.st",
        "prune base.st --scores s.json --remove 1 -o o.st",
        before=(f"score base.st --data {DIGITS} --objective acc --remove 1 -q -o s.json",),
    ),
    Row(
        "choose another name with `-o`, move it to another place, or replace `--if-changed` by `--force`",
        f"{FUSE.replace('o.st', 'm-2.st')} --if-changed",
        f"{FUSE.replace('o.st', 'm-2.st')} --force",
    ),
    Row(
        "move it to another place and run the same command again, or choose another name with `-o`",
        "export base.st --if-changed -o r.pt2",
        "export base.st --if-changed -o other.pt2",
        files={"r.pt2": "mine"},
    ),
    Row(
        "move it to another place, or choose another name with `-o`",
        "predict base.st images/a/0.png --if-changed -o r.jsonl",
        "predict base.st images/a/0.png --if-changed -o other.jsonl",
        prepare=partial(_write_beside, "r.jsonl"),
    ),
    Row(
        "move it to another place, or choose another name with `-o`",
        f"score base.st --data {DIGITS} --objective acc --remove 1 -o o.json",
        f"score base.st --data {DIGITS} --objective acc --remove 1 -o new.json",
        files={"o.json.journal": "mine"},
    ),
    Row(
        "{}, or write the outputs there",
        test="tests/stages/evaluate/test_spool.py::test_a_disk_without_room_is_refused_before_it_is_full",
    ),
    Row(
        "move it to another place",
        f"score base.st --data {DIGITS} --objective acc --remove 1 -o o.json",
        f"score base.st --data {DIGITS} --objective acc --remove 1 -o o.json",
        prepare=_large_journal,
        mend=lambda: Path("o.json.journal").rename("old.journal"),
    ),
    Row(
        "very large weights may overflow; `--no-verify` skips the check",
        test="tests/stages/fuse/test_fuse.py::test_weights_so_large_that_outputs_overflow_fail_the_check",
    ),
    Row(
        "very large weights may overflow; `--no-verify` skips the check",
        test="tests/stages/prune/test_prune.py::test_what_is_wrong_is_said_and_nothing_is_left_behind",
    ),
    Row(
        "{}{}, with unchanged inputs",
        test="tests/stages/finetune/test_finetune.py::test_a_file_that_was_away_for_a_moment_costs_nothing",
    ),
    Row(
        "{}; ",
        test="tests/stages/finetune/test_finetune.py::test_a_file_that_was_away_for_a_moment_costs_nothing",
    ),
    Row(
        "store both together: `hydractl eval ... --save-model PATH`",
        test="tests/stages/test_threshold.py::test_predict_takes_a_threshold_from_a_report_or_a_number",
    ),
)
