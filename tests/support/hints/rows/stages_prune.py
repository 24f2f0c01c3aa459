"""Hints of `hydractl/stages/prune/`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from support.hints.table import Row

CONFIG = "stages/prune/config.py"
DIVERSE, MASKS = (f"pruning/{name}.py" for name in ("diverse", "masks"))
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
        CONFIG,
        "`--keep 8`, or `--keep auto`",
        f"{SCORED} --keep few -o o.st",
        f"{SCORED} --keep auto -o o.st",
    ),
    Row(
        CONFIG,
        "`--keep auto` takes the number from the scores",
        f"{SCORED} --keep auto --remove 2 -o o.st",
        f"{SCORED} --keep auto -o o.st",
    ),
    Row(
        CONFIG,
        "`--keep-fraction 0.667` keeps two thirds, the default of `score`; `--keep auto` takes the number from the scores",
        f"{SCORED} -o o.st",
        f"{SCORED} --keep-fraction 0.667 -o o.st",
    ),
    Row(CONFIG, "add `--data DATA`", DIVERSE_CASE, f"{DIVERSE_CASE} {DIGITS}"),
    Row(
        CONFIG,
        "add `--pool P`, for example twice the number of removed heads",
        f"{SCORED} --remove 2 --members 2 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --members 2 --pool 4 -o o-{{i}}.st",
    ),
    Row(
        CONFIG,
        "add `--strategy diverse`, or leave it out",
        f"{SCORED} --remove 2 --pool 6 --members 2 {DIGITS} -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 --members 2 {DIGITS} -o o-{{i}}.st --strategy diverse --candidates 6",
    ),
    Row(
        CONFIG,
        "for example circuits with `--objective` acc, ood and avg",
        f"{SCORED} --remove 2 --strategy objectives -o o.st",
        f"score base.st {DIGITS} --objective acc --remove 2 -o acc.json",
    ),
    Row(
        CONFIG,
        "for one member per file use `--strategy objectives`",
        f"{SCORED} --scores sampled.json --remove 2 --strategy best -o o-{{i}}.st",
        f"{SCORED} --scores sampled.json --remove 2 --strategy objectives -o o-{{i}}.st",
    ),
    Row(
        CONFIG,
        "for several members from one file use `--strategy sample`, `diverse` or `clusters`",
        f"{SCORED} --remove 2 --members 2 --strategy best -o o-{{i}}.st",
        f"{SCORED} --remove 2 --members 2 --strategy sample --pool 6 -o o-{{i}}.st",
    ),
    Row(
        CONFIG,
        "give at least `--candidates {}`",
        f"{DIVERSE_CASE.replace('candidates 6', 'candidates 1')} {DIGITS}",
        f"{DIVERSE_CASE.replace('candidates 6', 'candidates NUMBER')} {DIGITS}",
    ),
    Row(
        CONFIG,
        "give one of `--keep N`, `--remove R`, `--keep-fraction F`",
        f"{SCORED} --keep auto --whole-groups -o o.st",
        f"{SCORED} --keep 3 -o o.st",
    ),
    Row(
        CONFIG,
        "it applies to `--strategy best`, `objectives` and `random`",
        f"{SCORED} --keep 3 --per-layer --members 2 --pool 6 --strategy sample -o o-{{i}}.st",
        f"{SCORED} --keep 3 --per-layer --strategy best -o o.st",
    ),
    Row(
        CONFIG,
        "it applies to `--strategy sample` and `diverse`",
        f"{SCORED} --keep 3 --pool 6 --strategy best -o o.st",
        f"{SCORED} --keep 3 --pool 6 --strategy sample -o o.st",
    ),
    Row(
        CONFIG,
        "leave it out, or score again with that budget to get other clusters",
        f"{CLUSTERED} --keep 3",
        CLUSTERED,
        before=(CLUSTERS,),
    ),
    Row(
        CONFIG,
        "leave out `--scores` to keep the heads of the mask, or `--mask` to choose heads by scores",
        f"{SCORED} --mask m-0.mask.json -o o.st",
        "prune base.st --mask m-0.mask.json -o o.st",
    ),
    Row(
        CONFIG,
        "leave out `--scores`, or use `--strategy best`",
        f"{SCORED} --remove 2 --strategy random -o o.st",
        f"{SCORED} --remove 2 --strategy best -o o.st",
    ),
    Row(
        CONFIG,
        "leave out `--strategy`, `--keep`, `--remove`, `--keep-fraction`, `--per-layer`, `--whole-groups`, `--members`, "
        "`--pool` and `--diverge-from`",
        "prune base.st --mask m-0.mask.json --keep 3 -o o.st",
        "prune base.st --mask m-0.mask.json -o o.st",
    ),
    Row(
        CONFIG,
        "leave out one of them",
        f"{SCORED} --scores sampled.json --remove 2 --pool 6 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 -o o.st",
    ),
    Row(
        CONFIG,
        "make scores with `hydractl score MODEL --data VAL -o scores.json`, or remove heads at random with `--strategy random`",
        "prune base.st --remove 2 -o o.st",
        "prune base.st --remove 2 --strategy random -o o.st",
    ),
    Row(
        DIVERSE,
        "it must be one of {}",
        f"{DIVERSE_CASE} {DIGITS}",
        f"{DIVERSE_CASE} {DIGITS}",
        prepare=partial(edit, "scores.json", options={"ood_score": "knn"}),
        mend=partial(edit, "scores.json", options={"ood_score": "msp"}),
    ),
    Row(
        DIVERSE,
        "leave it out, or use circuit scores with `--objective avg`",
        f"{DIVERSE_CASE} {DIGITS} --ood noise",
        f"{DIVERSE_CASE} {DIGITS}",
    ),
    Row(MASKS, "leave it out", f"{SCORED} --keep 3 --whole-groups -o o.st", f"{SCORED} --keep 3 -o o.st"),
    Row(
        MASKS,
        "a mask without the key `architecture` fits any model of that shape",
        "prune five.st --mask m-0.mask.json -o o.st",
        "prune base.st --mask m-0.mask.json -o o.st",
        prepare=partial(edit, "m-0.mask.json", architecture="vit_small_patch16_224"),
        mend=partial(edit, "m-0.mask.json", architecture=None),
    ),
    Row(
        MASKS,
        "score this model: `hydractl score {} --data VAL -o {}`",
        f"{SCORED} --keep 3 -o o.st",
        f"{SCORED} --keep 3 -o o.st",
        prepare=partial(edit, "scores.json", architecture="vit_small_patch16_224"),
        mend=partial(edit, "scores.json", architecture="vit_tiny_patch16_224"),
    ),
    Row(
        MASKS,
        "with 0 members differ in every layer, with {} in none",
        f"{SCORED} --remove 2 --pool 6 --members 2 --diverge-from 5 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 --members 2 --diverge-from 0 -o o-{{i}}.st",
    ),
    Row(
        "stages/prune/run.py",
        "prune its base",
        "prune m-0.st --scores scores.json --keep 1 -o o.st",
        f"{SCORED} --keep 1 -o o.st",
    ),
    Row(
        MASKS,
        "`--strategy clusters` needs scores by `--method cahp`",
        f"{SCORED} --strategy clusters --members 2 -o o-{{i}}.st",
        CLUSTERED,
        before=(CLUSTERS,),
    ),
    Row(
        MASKS,
        "give a larger `--pool`, fewer `{}` or an earlier `--diverge-from`",
        f"{SCORED} --remove 2 --pool 3 --members 9 -o o-{{i}}.st",
        f"{SCORED} --remove 2 --pool 6 --members 9 -o o-{{i}}.st",
    ),
    Row(
        MASKS,
        "give a larger pool, for example `--pool {}`",
        f"{SCORED} --remove 3 --pool 2 -o o.st",
        f"{SCORED} --remove 3 --pool 6 -o o.st",
    ),
    Row(
        MASKS,
        "give at most `--pool {}`",
        f"{SCORED} --remove 3 --pool 90 -o o.st",
        f"{SCORED} --remove 3 --pool 8 -o o.st",
    ),
    Row(
        MASKS,
        "use fewer `--members`, or an earlier layer in `--diverge-from`",
        "prune base.st --strategy random --remove 1 --members 20 -o o-{i}.st",
        "prune base.st --strategy random --remove 1 --members 2 -o o-{i}.st",
    ),
)
