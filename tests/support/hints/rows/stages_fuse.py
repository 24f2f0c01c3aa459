"""Hints of `hydractl/stages/fuse/`."""

from __future__ import annotations

from support.hints.material import VIT
from support.hints.table import Row

FUSE = "fuse m-0.st m-1.st m-2.st -o o.st"
LATE_MEMBERS = "prune base.st --strategy random --remove 2 --members 2 --trunk 1 -q -o p-{i}.st"
LATE = "fuse p-0.st p-1.st -o o.st"
VAL = "digits::classes=0-6,limit=28,split=val"
TUNED = tuple(
    f"finetune m-0.st --train digits::classes=0-6,limit=16 --val {VAL} --steps 1 --batch-size 8 --lr 0.01 --seed {i} -q -o t-{i}.st"
    for i in range(2)
)
EQUAL = tuple(f"prune base.st --mask m-0.mask.json -q -o e-{i}.st" for i in range(2))

ROWS = (
    Row(
        "`--trunk {}` merges everything except readout and classifier",
        "fuse t-0.st t-1.st -o o.st --trunk 9",
        "fuse t-0.st t-1.st -o o.st --trunk 2",
        before=TUNED,
    ),
    Row(
        "`hydractl inspect` shows both",
        "fuse base.st other.st -o o.st",
        "inspect other.st",
        before=(f"import plain.safetensors --arch {VIT[5:]} --labels a,b,c,d,e,f,g -q -o other.st",),
    ),
    Row(
        "add `--temperature val/` to fit one, or `--temperature 1` to use none",
        "fuse cool.st m-1.st -o o.st",
        "fuse cool.st m-1.st -o o.st --temperature 1",
        before=(
            f"eval m-0.st --data {VAL} --temperature {VAL} --no-latency --bootstrap 0 -q --save-model cool.st",
        ),
    ),
    Row(
        "all members must have the same architecture",
        "fuse base.st bert -o o.st",
        FUSE,
    ),
    Row(
        "fine-tune all members on data with the same classes; `hydractl finetune` replaces the classifiers",
        "fuse base.st five.st -o o.st",
        f"finetune five.st --train digits::classes=0-6,limit=16 --val {VAL} --steps 1 --batch-size 8 -o o.st",
    ),
    Row("fuse its members instead", "fuse hydra.st m-0.st -o o.st", FUSE),
    Row(
        "if all were trained from the same weights, add `--force-merge`; to fuse unrelated models, use `--mlp keep` "
        "without `--trunk`",
        "fuse base.st strange.st -o o.st --trunk 1",
        "fuse base.st strange.st -o o.st --trunk 1 --force-merge",
        before=(
            f"finetune {VIT} --seed 5 --train digits::classes=0-6,limit=14 --val {VAL} --steps 1 --batch-size 8 -q -o strange.st",
        ),
    ),
    Row(
        "leave it out; tensors that differ between members are stored for each member anyway",
        "fuse z-0.st z-1.st -o o.st --trunk 1 --own-blocks",
        "fuse z-0.st z-1.st -o o.st",
        before=("prune clip --strategy random --remove 1 --members 2 -q -o z-{i}.st",),
    ),
    Row(
        "prune with `--trunk {}`, so that members keep the same heads before that block{}",
        f"{FUSE} --trunk 2",
        "prune base.st --scores scores.json --remove 2 --members 2 --pool 6 --trunk 1 -o p-{i}.st",
    ),
    Row(
        "prune with the same `--dtype` for all members",
        "fuse e-0.st half.st -o o.st",
        "prune base.st --mask m-0.mask.json --dtype fp32 -o o.st",
        before=(EQUAL[0], "prune base.st --mask m-0.mask.json --dtype bf16 -q -o half.st"),
    ),
    Row(
        "`--trunk 8`, or `--trunk auto --val val/`",
        f"{LATE} --trunk all",
        f"{LATE} --trunk auto --val {VAL}",
        before=(LATE_MEMBERS,),
    ),
    Row(
        "`hydractl fuse a.st b.st c.st -o hydra.st`",
        "python from pathlib import Path; from hydractl.stages.fuse.config import FuseConfig; FuseConfig(models=(), out=Path('o.st'))",
        FUSE,
    ),
    Row(
        "add `--val DATA` with labelled held-out data",
        f"{LATE} --trunk auto",
        f"{LATE} --trunk auto --val {VAL}",
        before=(LATE_MEMBERS,),
    ),
    Row(
        "add `--val DATA` or `--temperature DATA`, or leave it out",
        f"{FUSE} --batch-size 4",
        f"{FUSE} --batch-size 4 --val {VAL}",
    ),
    Row(
        "add `--trunk N` or `--mlp merge`, or leave it out",
        f"{FUSE} --force-merge --mlp keep",
        FUSE,
    ),
    Row("add `--trunk N`", f"{FUSE} --own-blocks", f"{FUSE} --own-blocks --trunk 0"),
    Row(
        "leave it out, or add `--val DATA` and leave `--trunk` and `--mlp` out",
        f"{FUSE} --max-nll-increase 0.1",
        f"{FUSE} --max-nll-increase 0.1 --val {VAL}",
    ),
    Row(
        "add `--max-nll-increase {}`, or leave out `--mlp merge` so that members keep their own MLPs",
        f"fuse t-0.st t-1.st -o o.st --mlp merge --trunk auto --val {VAL} --max-nll-increase 0",
        f"fuse t-0.st t-1.st -o o.st --mlp merge --trunk auto --val {VAL} --max-nll-increase NUMBER",
        before=TUNED,
    ),
    Row(
        "give the class names of the data: `--classes cat,dog`",
        "fuse z-0.st z-1.st -o o.st --val pictures.jsonl",
        "fuse z-0.st z-1.st -o o.st --val images --classes a,b",
        before=("prune clip --strategy random --remove 1 --members 2 -q -o z-{i}.st",),
    ),
)
