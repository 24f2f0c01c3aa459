"""Hints of `hydractl/stages/evaluate/`."""

from __future__ import annotations

import shutil

from support.hints.material import VIT
from support.hints.table import Row

TEST = "digits::classes=0-6,limit=21,split=test"
EVAL = f"eval base.st --data {TEST} --no-latency --bootstrap 0"
KEEP = "--keep-known 0.5"
NEAR = "--near noise::limit=9"
TRAIN, VAL = "digits::classes=0-6,limit=56", "digits::classes=0-6,limit=56,split=val"
MULTI = "eval multi --data labels.jsonl --no-latency --bootstrap 0"

ROWS = (
    Row(
        "use more samples or a lower coverage, or leave out `--sets-by-class`",
        f"{EVAL} --sets 0.9 --sets-by-class",
        f"{EVAL} --sets 0.9",
    ),
    Row(
        "use more samples, or leave out `{}`",
        f"eval base.st --data digits::limit=1,classes=0-6 {KEEP} --threshold-for 'risk<=0.99' --no-latency --bootstrap 0",
        f"eval base.st --data digits::limit=1,classes=0-6 {KEEP} --no-latency --bootstrap 0",
    ),
    Row(
        "give more held-out samples as `--data`",
        f"{EVAL} --keep-known 0.99",
        f"{EVAL} --keep-known 0.99".replace("limit=21", "limit=120"),
    ),
    Row("write 95 % as 0.95", f"{EVAL} --keep-known 95", f"{EVAL} --keep-known 0.95"),
    Row("use more samples, or a lower coverage", f"{EVAL} --sets 0.99", f"{EVAL} --sets 0.9"),
    Row(
        "validate on another split, or on other OOD data",
        f"{EVAL} {NEAR} --ood-val other=noise::limit=9 --val {VAL} --ood-score msp,energy",
        f"{EVAL} {NEAR} --ood-val photos::limit=9 --val {VAL} --ood-score msp,energy",
    ),
    Row(
        "add `--val VAL`, or choose a score that needs none: `--ood-score {}`",
        f"{EVAL} {NEAR} --train {TRAIN} --ood-score energy+density",
        f"{EVAL} {NEAR} --train {TRAIN} --ood-score energy+density --val {VAL}",
    ),
    Row(
        "add `{} 'risk<=0.01'`, `--sets 0.9`, `--temperature DATA`, or `--train TRAIN --val VAL`",
        f"{EVAL} --save-model o.st",
        f"{EVAL} --save-model o.st --sets 0.9",
    ),
    Row("leave it out, or add `--train TRAIN`", f"{EVAL} --val {VAL}", EVAL),
    Row(
        "leave it out, or add `{}` to `--ood-score`",
        f"{EVAL} {NEAR} --train {TRAIN} --ood-score energy",
        f"{EVAL} {NEAR} --ood-score energy",
    ),
    Row(
        "name several: `--ood-score msp,energy,knn`",
        f"{EVAL} {NEAR} --ood-val photos::limit=9 --val {VAL} --ood-score energy",
        f"{EVAL} {NEAR} --ood-val photos::limit=9 --val {VAL} --ood-score energy,msp",
    ),
    Row(
        "see `--metrics`",
        f"{EVAL} {NEAR} --metrics accuracy --ood-score energy",
        f"{EVAL} {NEAR} --metrics accuracy,auroc --ood-score energy",
    ),
    Row(
        "`hydractl finetune` records it in the models that it trains; leave it out for other models",
        "eval vit --data pictures.jsonl --no-latency --bootstrap 0 --metrics training_macs",
        f"{EVAL} --metrics training_macs",
    ),
    Row(
        "select the classes of `--data` with `::classes=`, or use the same names",
        f"eval {VIT} --data images::classes-by=position --temperature val --no-latency --bootstrap 0",
        f"eval {VIT} --data images::classes-by=position --temperature images::classes-by=position --no-latency --bootstrap 0",
        prepare=lambda: shutil.copytree("images/a", "val/c"),
    ),
    Row(
        "unlabelled data can be an OOD set: `--near NAME=DATA`",
        EVAL.replace(TEST, "images/a"),
        f"{EVAL} --near images/a",
    ),
    Row(
        "add `--near NAME=DATA`",
        f"{EVAL} --metrics auroc --fail-if 'auroc[zzz]<0.1'",
        f"{EVAL} --near zzz=noise::limit=9 --fail-if 'auroc[zzz]<0.1'",
    ),
    Row(
        "add `--ood-score {}`",
        f"{EVAL} {NEAR} --fail-if 'auroc@energy[noise]<0.1'",
        f"{EVAL} {NEAR} --ood-score msp,energy --fail-if 'auroc@energy[noise]<0.1'",
    ),
    Row(
        "for example `--fail-if 'ece>0.02'` or `--fail-if 'auroc[near]<0.9'` or `--fail-if 'acc[fog:3]<80%'`",
        f"{EVAL} --fail-if accuracy",
        f"{EVAL} --fail-if 'accuracy<0'",
    ),
    Row(
        "for example `{} 'risk<=0.01'`; quote it, because the shell interprets `<`",
        f"{EVAL} --threshold-for risk",
        f"{EVAL} --threshold-for 'risk<=0.99'",
    ),
    Row("leave out `@{}`", f"{EVAL} {NEAR} --fail-if 'acc@energy<0'", f"{EVAL} --fail-if 'acc<0'"),
    Row("leave out the `%`", f"{EVAL} --fail-if 'nll<1%'", f"{EVAL} --fail-if 'nll<0.01'"),
    Row(
        "see `--metrics`, `--near`, `--far`",
        f"{EVAL} --fail-if 'auroc<0.1'",
        f"{EVAL} --near a=noise::limit=9 --fail-if 'auroc[a]<0.1'",
    ),
    Row(
        "there are {}",
        f"{EVAL} --near aaaa=noise::limit=9 --fail-if 'auroc[zzz]<0.1'",
        f"{EVAL} --near aaaa=noise::limit=9 --fail-if 'auroc[aaaa]<0.1'",
    ),
    Row(
        "write 1 % as 0.01: `{} 'risk<={}'`",
        f"{EVAL} --threshold-for 'risk<=99'",
        f"{EVAL} --threshold-for 'risk<=0.99'",
    ),
    Row("write 95 % as 0.95 or 95%", f"{EVAL} --fail-if 'acc<95'", f"{EVAL} --fail-if 'acc<0%'"),
    Row(
        "write `{}[{}]`; available: {}",
        f"{EVAL} {NEAR} --fail-if 'auroc<0.1'",
        f"{EVAL} {NEAR} --fail-if 'auroc[noise]<0'",
    ),
    Row(
        "write `{}{}{}`",
        f"{EVAL} {NEAR} --fail-if 'parameters[noise]<1'",
        f"{EVAL} {NEAR} --fail-if 'parameters<1'",
    ),
    Row(
        "`eval MODEL --data HELDOUT --sets 0.9 --save-model SETS.st` stores them in a copy",
        f"{EVAL} --metrics set_size",
        f"{EVAL} --sets 0.9 --save-model sets.st",
    ),
    Row("for any model use {}", f"{EVAL} --metrics f1_micro", f"{EVAL} --metrics accuracy"),
    Row("leave it out", f"{MULTI} --sets 0.9", MULTI),
    Row(
        "leave it out; for a threshold of the OOD score add `--threshold-for 'risk<=0.05'`",
        f"{EVAL} --label-thresholds",
        f"{EVAL} --threshold-for 'risk<=0.99'",
    ),
    Row(
        "write pairs as {}, where 1 is a relevant passage",
        f"{EVAL} --metrics ndcg",
        f"{EVAL} --metrics accuracy",
    ),
    Row(
        "choose another: use `--name NAME` for MODEL and `NAME=...` for other rows",
        f"{EVAL} --name 'a:b'",
        f"{EVAL} --name ab",
    ),
    Row(
        "for example `'Deep ensemble=a.st,b.st,c.st'`",
        f"{EVAL} --compare both=m-0.st,",
        f"{EVAL} --compare both=m-0.st,m-1.st",
    ),
    Row(
        "give each its own name: `{} NAME=...`",
        f"{EVAL} --compare base=m-0.st",
        f"{EVAL} --compare other=m-0.st",
    ),
    Row(
        "use `--name NAME` for MODEL and `NAME=...` for other rows",
        EVAL.replace("base.st", "/"),
        EVAL,
    ),
    Row("{} are reserved names in a report", f"{EVAL} --near id=noise", f"{EVAL} {NEAR}"),
    Row(
        "add `--train DATA`, the labelled data that the model was trained on",
        f"{EVAL} {NEAR} --ood-score knn",
        f"{EVAL} {NEAR} --ood-score knn --train {TRAIN}",
    ),
    Row(
        "use more samples (at least {}){}, allow more risk, or try another `--ood-score`",
        f"{EVAL} --threshold-for 'risk<=0.01'",
        f"{EVAL} --threshold-for 'risk<=0.99'",
    ),
    Row(
        "fuse the members with `--classes` and `--template` first",
        "eval clip --data images --classes a,b --threshold-for 'risk<=0.99' --save-model o.st --no-latency --bootstrap 0",
        "fuse z-0.st z-1.st --classes a,b -o o.st",
        before=("prune clip --strategy random --remove 1 --members 2 -q -o z-{i}.st",),
    ),
    Row("write 90 % as 0.9", f"{EVAL} --sets 90", f"{EVAL} --sets 0.9"),
)
