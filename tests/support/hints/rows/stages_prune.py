"""Hints of `hydractl/stages/prune/`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from support.hints.table import Row

SCORED = "prune base.st --scores scores.json"
DIVERSE_CASE = "prune base.st --scores scores.json --remove 2 --pool 6 --members 2 --candidates 6 --strategy diverse -o d-{i}.st"
DIGITS = "--data digits::classes=0-6,limit=14,split=val"
CLUSTERS = f"score base.st --method cahp {DIGITS} -q -o cahp.json"
CLUSTERED = "prune base.st --scores cahp.json --strategy clusters --members 2 -o o-{i}.st"


def edit(path: str, **changes: object) -> None:
    """Change keys of a JSON file; the file is written anew."""
    document = json.loads(Path(path).read_text()) | changes
    Path(path).unlink()
    Path(path).write_text(json.dumps(document))


ROWS = (
    Row(
        "`--keep-heads 8`, or `--keep-heads auto`",
        f"{SCORED} --keep-heads few -o o.st",
        f"{SCORED} --keep-heads auto -o o.st",
    ),
    Row(
        "`--keep-heads auto` takes the number from the scores",
        f"{SCORED} --keep-heads auto --remove 2 -o o.st",
        f"{SCORED} --keep-heads auto -o o.st",
    ),
    Row(
        "`--keep-fraction 0.667` keeps two thirds, the default of `score`; `--keep-heads auto` takes the number from the scores",
        f"{SCORED} -o o.st",
        f"{SCORED} --keep-fraction 0.667 -o o.st",
    ),
    Row("add `--data DATA`", DIVERSE_CASE, f"{DIVERSE_CASE} {DIGITS}"),
    Row(
        "add `--pool P`, for example twice the number of removed heads",
        f"{SCORED} --remove 2 --members 2 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --members 2 --pool 4 -o o-{{i}}.st",
    ),
    Row(
        "add `--strategy diverse`, or leave it out",
        f"{SCORED} --remove 2 --pool 6 --members 2 {DIGITS} -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 --members 2 {DIGITS} -o o-{{i}}.st --strategy diverse --candidates 6",
    ),
    Row(
        "for example circuits with `--objective` acc, ood and avg",
        f"{SCORED} --remove 2 --strategy objectives -o o.st",
        f"score base.st {DIGITS} --objective acc --remove 2 -o acc.json",
    ),
    Row(
        "for one member per file use `--strategy objectives`",
        f"{SCORED} --scores sampled.json --remove 2 --strategy best -o o-{{i}}.st",
        f"{SCORED} --scores sampled.json --remove 2 --strategy objectives -o o-{{i}}.st",
    ),
    Row(
        "for several members from one file use `--strategy sample`, `diverse` or `clusters`",
        f"{SCORED} --remove 2 --members 2 --strategy best -o o-{{i}}.st",
        f"{SCORED} --remove 2 --members 2 --strategy sample --pool 6 -o o-{{i}}.st",
    ),
    Row(
        "give at least `--candidates {}`",
        f"{DIVERSE_CASE.replace('candidates 6', 'candidates 1')} {DIGITS}",
        f"{DIVERSE_CASE.replace('candidates 6', 'candidates NUMBER')} {DIGITS}",
    ),
    Row(
        "give one of `--keep-heads N`, `--remove R`, `--keep-fraction F`",
        f"{SCORED} --keep-heads auto --whole-groups -o o.st",
        f"{SCORED} --keep-heads 3 -o o.st",
    ),
    Row(
        "it applies to `--strategy best`, `objectives` and `random`",
        f"{SCORED} --keep-heads 3 --per-layer --members 2 --pool 6 --strategy sample -o o-{{i}}.st",
        f"{SCORED} --keep-heads 3 --per-layer --strategy best -o o.st",
    ),
    Row(
        "it applies to `--strategy sample` and `diverse`",
        f"{SCORED} --keep-heads 3 --pool 6 --strategy best -o o.st",
        f"{SCORED} --keep-heads 3 --pool 6 --strategy sample -o o.st",
    ),
    Row(
        "leave it out, or score again with that budget to get other clusters",
        f"{CLUSTERED} --keep-heads 3",
        CLUSTERED,
        before=(CLUSTERS,),
    ),
    Row(
        "leave out `--scores` to keep the heads of the mask, or `--mask` to choose heads by scores",
        f"{SCORED} --mask m-0.mask.json -o o.st",
        "prune base.st --mask m-0.mask.json -o o.st",
    ),
    Row(
        "leave out `--scores`, or use `--strategy best`",
        f"{SCORED} --remove 2 --strategy random -o o.st",
        f"{SCORED} --remove 2 --strategy best -o o.st",
    ),
    Row(
        "leave out `--strategy`, `--keep-heads`, `--remove`, `--keep-fraction`, `--per-layer`, `--whole-groups`, `--members`, "
        "`--pool` and `--trunk`",
        "prune base.st --mask m-0.mask.json --keep-heads 3 -o o.st",
        "prune base.st --mask m-0.mask.json -o o.st",
    ),
    Row(
        "leave out one of them",
        f"{SCORED} --scores sampled.json --remove 2 --pool 6 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 -o o.st",
    ),
    Row(
        "make scores with `hydractl score MODEL --data VAL -o scores.json`, or remove heads at random with `--strategy random`",
        "prune base.st --remove 2 -o o.st",
        "prune base.st --remove 2 --strategy random -o o.st",
    ),
    Row(
        "it must be one of {}",
        f"{DIVERSE_CASE} {DIGITS}",
        f"{DIVERSE_CASE} {DIGITS}",
        prepare=partial(edit, "scores.json", options={"ood_score": "knn"}),
        mend=partial(edit, "scores.json", options={"ood_score": "msp"}),
    ),
    Row(
        "leave it out, or use circuit scores with `--objective avg`",
        f"{DIVERSE_CASE} {DIGITS} --ood noise",
        f"{DIVERSE_CASE} {DIGITS}",
    ),
    Row(
        "leave it out", f"{SCORED} --keep-heads 3 --whole-groups -o o.st", f"{SCORED} --keep-heads 3 -o o.st"
    ),
    Row(
        "a mask without the key `architecture` fits any model of that shape",
        "prune five.st --mask m-0.mask.json -o o.st",
        "prune base.st --mask m-0.mask.json -o o.st",
        prepare=partial(edit, "m-0.mask.json", architecture="vit_small_patch16_224"),
        mend=partial(edit, "m-0.mask.json", architecture=None),
    ),
    Row(
        "score this model: `hydractl score {} --data VAL -o {}`",
        f"{SCORED} --keep-heads 3 -o o.st",
        f"{SCORED} --keep-heads 3 -o o.st",
        prepare=partial(edit, "scores.json", architecture="vit_small_patch16_224"),
        mend=partial(edit, "scores.json", architecture="vit_tiny_patch16_224"),
    ),
    Row(
        "with 0 members differ in every layer, with {} in none",
        f"{SCORED} --remove 2 --pool 6 --members 2 --trunk 5 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 --members 2 --trunk 0 -o o-{{i}}.st",
    ),
    Row(
        "prune its base",
        "prune m-0.st --scores scores.json --keep-heads 1 -o o.st",
        f"{SCORED} --keep-heads 1 -o o.st",
    ),
    Row(
        "`--strategy clusters` needs scores by `--method cahp`",
        f"{SCORED} --strategy clusters --members 2 -o o-{{i}}.st",
        CLUSTERED,
        before=(CLUSTERS,),
    ),
    Row(
        "give a larger `--pool`, fewer `{}` or a smaller `--trunk`",
        f"{SCORED} --remove 2 --pool 3 --members 9 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 --members 9 -o o-{{i}}.st",
    ),
    Row(
        "give a larger pool, for example `--pool {}`",
        f"{SCORED} --remove 3 --pool 2 -o o.st",
        f"{SCORED} --remove 3 --pool 6 -o o.st",
    ),
    Row(
        "give at most `--pool {}`",
        f"{SCORED} --remove 3 --pool 90 -o o.st",
        f"{SCORED} --remove 3 --pool 8 -o o.st",
    ),
    Row(
        "use fewer `--members`, or a smaller `--trunk`",
        "prune base.st --strategy random --remove 1 --members 20 -o o-{i}.st",
        "prune base.st --strategy random --remove 1 --members 2 -o o-{i}.st",
    ),
)
