"""Hints of what `hydractl/research/` adds to `eval`."""

from __future__ import annotations

from support.hints.table import Row

OPTIONS, CONTEXT = "research/analyses/options.py", "research/analyses/context.py"
DIGITS = "digits::classes=0-6,limit=14"
TEST = "digits::classes=0-6,limit=21,split=test"
EVAL = f"eval base.st --data {TEST} --no-latency --bootstrap 0"
NEAR = "--near noise::limit=9"
TRAIN = "digits::classes=0-6,limit=56"
HYDRA = EVAL.replace("base.st", "hydra.st")

ROWS = (
    Row(
        OPTIONS,
        "`--scores circuit=scores.json`",
        f"{EVAL} --analyse heads --scores circuit=",
        f"{EVAL} --analyse heads --scores circuit=scores.json",
    ),
    Row(
        OPTIONS,
        "add `--analyse {}`",
        f"{EVAL} --scores scores.json",
        f"{EVAL} --scores scores.json --analyse heads",
    ),
    Row(OPTIONS, "add `{}`", f"{EVAL} --analyse heads", f"{EVAL} --analyse heads --scores scores.json"),
    Row(
        OPTIONS,
        "give each file its own name: `--scores NAME=FILE`",
        f"{EVAL} --analyse heads --scores scores.json --scores scores.json",
        f"{EVAL} --analyse heads --scores a=scores.json --scores b=sampled.json",
    ),
    Row(
        CONTEXT,
        "add it: `--compare base=BASE`",
        f"{HYDRA} --analyse heads --scores scores.json",
        f"{HYDRA} --analyse heads --scores scores.json --compare base=base.st",
    ),
    Row(
        CONTEXT,
        "measure a hydra, or several models as a row: `--compare 'NAME=a.st,b.st'`",
        f"{EVAL} --analyse members",
        f"{EVAL} --analyse members --compare both=m-0.st,m-1.st",
    ),
    Row(
        CONTEXT,
        "score the base of the pruned models",
        "eval timm --data pictures.jsonl --no-latency --bootstrap 0 --analyse heads --scores scores.json",
        f"{EVAL} --analyse heads --scores scores.json",
    ),
    Row(
        CONTEXT,
        "add the base of the pruned models: `--compare base=BASE`",
        f"{EVAL.replace('base.st', 'm-0.st')} --analyse proposition --corrupt gaussian-noise:1 -o o.json",
        f"{EVAL.replace('base.st', 'm-0.st')} --analyse proposition --corrupt gaussian-noise:1 -o o.json --compare base=base.st",
    ),
    Row(
        CONTEXT,
        "add them: `--compare 'apart=m0.st,m1.st,m2.st'`",
        f"{EVAL.replace('base.st', 'hydra.st')} --analyse mlps -o o.json",
        f"{EVAL.replace('base.st', 'merged.st')} --analyse mlps --compare apart=t-0.st,t-1.st -o o.json",
        before=(
            f"finetune m-0.st --data {DIGITS} --val {DIGITS},split=val --steps 1 --batch-size 8 -q -o t-0.st",
            f"finetune m-1.st --data {DIGITS} --val {DIGITS},split=val --steps 1 --batch-size 8 -q -o t-1.st",
            "fuse t-0.st t-1.st --mlp merge -q -o merged.st",
        ),
    ),
    Row(
        "research/baselines/options.py",
        "for example `{}`",
        f"{EVAL} --compare x=mc:",
        f"{EVAL} --compare x=mc:base.st::rate=0.1",
    ),
    Row(
        "research/evaluation.py",
        "add it as another row: `--compare NAME={}`",
        EVAL.replace("base.st", "mc:base.st"),
        f"{EVAL} --compare dropout=mc:base.st::rate=0.1",
    ),
    Row(
        "research/baselines/options.py",
        "add it as a separate row",
        f"{EVAL} --compare x=vilu:base.st::data=digits,m-0.st",
        f"{EVAL} --compare x=m-0.st",
    ),
    Row(
        "research/evaluation.py",
        "leave that row out, or measure it in a separate report with a logit-based score",
        f"{EVAL} {NEAR} --fit {TRAIN} --ood-score knn --compare x=mc:base.st::rate=0.1",
        f"{EVAL} {NEAR} --ood-score energy --compare x=mc:base.st::rate=0.1",
    ),
)
