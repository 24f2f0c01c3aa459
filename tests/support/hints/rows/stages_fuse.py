"""Hints of `hydractl/stages/fuse/`."""

from __future__ import annotations

from support.hints.material import VIT
from support.hints.table import Row

FIT, CONFIG, QUALITY = "fusion/members.py", "stages/fuse/config.py", "prediction/merging.py"
FUSE = "fuse m-0.st m-1.st m-2.st -o o.st"
SPLIT = "prune base.st --scores scores.json --remove 1 --members 2 --pool 4 -q"
LATE_MEMBERS = "prune base.st --strategy random --remove 2 --members 2 --diverge-from 1 -q -o p-{i}.st"
LATE = "fuse p-0.st p-1.st -o o.st"
VAL = "digits::classes=0-6,limit=28,split=val"
TUNED = tuple(
    f"finetune m-0.st --data digits::classes=0-6,limit=16 --val {VAL} --steps 1 --batch-size 8 --lr 0.01 --seed {i} -q -o t-{i}.st"
    for i in range(2)
)
EQUAL = tuple(f"prune base.st --mask m-0.mask.json -q -o e-{i}.st" for i in range(2))

ROWS = (
    Row(
        FIT,
        "`--merge-trunk {}` merges everything except readout and classifier",
        "fuse t-0.st t-1.st -o o.st --merge-trunk 9",
        "fuse t-0.st t-1.st -o o.st --merge-trunk 2",
        before=TUNED,
    ),
    Row(
        FIT,
        "`--own-from {}` gives each member its own readout and head",
        f"{FUSE} --own-from 9",
        f"{FUSE} --own-from 2",
    ),
    Row(
        FIT,
        "`hydractl inspect` shows both",
        "fuse base.st other.st -o o.st",
        "inspect other.st",
        before=(f"import plain.safetensors --arch {VIT[5:]} --labels a,b,c,d,e,f,g -q -o other.st",),
    ),
    Row(
        FIT,
        "add `--temperature val/` to fit one, or `--temperature 1` to use none",
        "fuse cool.st m-1.st -o o.st",
        "fuse cool.st m-1.st -o o.st --temperature 1",
        before=(
            f"eval m-0.st --data {VAL} --temperature {VAL} --no-latency --bootstrap 0 -q --store cool.st",
        ),
    ),
    Row(
        FIT,
        "all members must have the same architecture",
        "fuse base.st bert -o o.st",
        FUSE,
    ),
    Row(
        FIT,
        "fine-tune all members on data with the same classes; `hydractl finetune` replaces the classifiers",
        "fuse base.st five.st -o o.st",
        f"finetune five.st --data digits::classes=0-6,limit=16 --val {VAL} --steps 1 --batch-size 8 -o o.st",
    ),
    Row(FIT, "fuse its members instead", "fuse hydra.st m-0.st -o o.st", FUSE),
    Row(
        FIT,
        "if all were trained from the same weights, add `--force-merge`; to fuse unrelated models, use `--mlp keep` "
        "without `--merge-trunk`",
        "fuse base.st strange.st -o o.st --merge-trunk 1",
        "fuse base.st strange.st -o o.st --merge-trunk 1 --force-merge",
        before=(
            f"finetune {VIT} --seed 5 --data digits::classes=0-6,limit=14 --val {VAL} --steps 1 --batch-size 8 -q -o strange.st",
        ),
    ),
    Row(
        FIT,
        "leave it out; tensors that differ between members are stored for each member anyway",
        "fuse z-0.st z-1.st -o o.st --own-from 1",
        "fuse z-0.st z-1.st -o o.st",
        before=("prune clip --strategy random --remove 1 --members 2 -q -o z-{i}.st",),
    ),
    Row(
        FIT,
        "prune with `--diverge-from {}`, so that members keep the same heads before that block{}",
        f"{FUSE} --merge-trunk 2",
        "prune base.st --scores scores.json --remove 2 --members 2 --pool 6 --diverge-from 1 -o p-{i}.st",
    ),
    Row(
        FIT,
        "prune with the same `--dtype` for all members",
        "fuse e-0.st half.st -o o.st",
        "prune base.st --mask m-0.mask.json --dtype fp32 -o o.st",
        before=(EQUAL[0], "prune base.st --mask m-0.mask.json --dtype bf16 -q -o half.st"),
    ),
    Row(
        CONFIG,
        "`--merge-trunk 8`, or `--merge-trunk auto --data val/`",
        f"{LATE} --merge-trunk all",
        f"{LATE} --merge-trunk auto --data {VAL}",
        before=(LATE_MEMBERS,),
    ),
    Row(
        CONFIG,
        "`hydractl fuse a.st b.st c.st -o hydra.st`",
        "python from pathlib import Path; from hydractl.stages.fuse.config import FuseConfig; FuseConfig(models=(), out=Path('o.st'))",
        FUSE,
    ),
    Row(
        CONFIG,
        "add `--data DATA` with labelled held-out data",
        f"{LATE} --merge-trunk auto",
        f"{LATE} --merge-trunk auto --data {VAL}",
        before=(LATE_MEMBERS,),
    ),
    Row(
        CONFIG,
        "add `--data DATA`, `--temperature DATA` or `--fit TRAIN --val VAL`, or leave it out",
        f"{FUSE} --batch-size 4",
        f"{FUSE} --batch-size 4 --data {VAL}",
    ),
    Row(
        CONFIG,
        "add `--merge-trunk L` or `--mlp merge`, or leave it out",
        f"{FUSE} --force-merge --mlp keep",
        FUSE,
    ),
    Row(
        CONFIG,
        "add `--own-from {}`, or a lower `--merge-trunk`",
        "fuse t-0.st t-1.st -o o.st --merge-trunk 2 --own-from 1",
        "fuse t-0.st t-1.st -o o.st --merge-trunk 2 --own-from 2",
        before=TUNED,
    ),
    Row(CONFIG, "leave it out", f"{FUSE} --force-merge --own-from 0", f"{FUSE} --own-from 0"),
    Row(
        QUALITY,
        "add `--max-loss {}`, or leave out `--mlp merge` so that members keep their own MLPs",
        f"fuse t-0.st t-1.st -o o.st --mlp merge --merge-trunk auto --data {VAL} --max-loss 0",
        f"fuse t-0.st t-1.st -o o.st --mlp merge --merge-trunk auto --data {VAL} --max-loss NUMBER",
        before=TUNED,
    ),
    Row(
        QUALITY,
        "give the class names of the data: `--classes cat,dog`",
        "fuse z-0.st z-1.st -o o.st --data pictures.jsonl",
        "fuse z-0.st z-1.st -o o.st --data images --classes a,b",
        before=("prune clip --strategy random --remove 1 --members 2 -q -o z-{i}.st",),
    ),
)
