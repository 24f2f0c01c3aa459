"""Hints of what `hydractl/research/` adds to `eval`."""

from __future__ import annotations

from pathlib import Path

from support.hints.table import Row

DIGITS = "digits::classes=0-6,limit=14"
TEST = "digits::classes=0-6,limit=21,split=test"
EVAL = f"eval base.st --data {TEST} --no-latency --bootstrap 0"
NEAR = "--near noise::limit=9"
TRAIN = "digits::classes=0-6,limit=56"
HYDRA = EVAL.replace("base.st", "hydra.st")


def photograph_frost() -> None:
    """Write an image that is large enough for crops."""
    from PIL import Image

    Path("frost").mkdir()
    Image.new("RGB", (99, 99)).save("frost/1.png")


ROWS = (
    Row(
        "`--scores circuit=scores.json`",
        f"{EVAL} --analyse heads --scores circuit=",
        f"{EVAL} --analyse heads --scores circuit=scores.json",
    ),
    Row(
        "add `--analyse {}`",
        f"{EVAL} --scores scores.json",
        f"{EVAL} --scores scores.json --analyse heads",
    ),
    Row("add `{}`", f"{EVAL} --analyse heads", f"{EVAL} --analyse heads --scores scores.json"),
    Row(
        "give each file its own name: `--scores NAME=FILE`",
        f"{EVAL} --analyse heads --scores scores.json --scores scores.json",
        f"{EVAL} --analyse heads --scores a=scores.json --scores b=sampled.json",
    ),
    Row(
        "add it: `--compare base=BASE`",
        f"{HYDRA} --analyse heads --scores scores.json",
        f"{HYDRA} --analyse heads --scores scores.json --compare base=base.st",
    ),
    Row(
        "measure a hydra, or several models as a row: `--compare 'NAME=a.st,b.st'`",
        f"{EVAL} --analyse members",
        f"{EVAL} --analyse members --compare both=m-0.st,m-1.st",
    ),
    Row(
        "score the base of the pruned models",
        "eval timm --data pictures.jsonl --no-latency --bootstrap 0 --analyse heads --scores scores.json",
        f"{EVAL} --analyse heads --scores scores.json",
    ),
    Row(
        "add the base of the pruned models: `--compare base=BASE`",
        f"{EVAL.replace('base.st', 'm-0.st')} --analyse proposition --corrupt gaussian-noise:1 -o o.json",
        f"{EVAL.replace('base.st', 'm-0.st')} --analyse proposition --corrupt gaussian-noise:1 -o o.json --compare base=base.st",
    ),
    Row(
        "add them: `--compare 'apart=m0.st,m1.st,m2.st'`",
        f"{EVAL.replace('base.st', 'hydra.st')} --analyse mlps -o o.json",
        f"{EVAL.replace('base.st', 'merged.st')} --analyse mlps --compare apart=t-0.st,t-1.st -o o.json",
        before=(
            f"finetune m-0.st --train {DIGITS} --val {DIGITS},split=val --steps 1 --batch-size 8 -q -o t-0.st",
            f"finetune m-1.st --train {DIGITS} --val {DIGITS},split=val --steps 1 --batch-size 8 -q -o t-1.st",
            "fuse t-0.st t-1.st --mlp merge -q -o merged.st",
        ),
    ),
    Row(
        "for example `{}`",
        f"{EVAL} --compare x=mc:",
        f"{EVAL} --compare x=mc:base.st::rate=0.1",
    ),
    Row(
        "add it as another row: `--compare NAME={}`",
        EVAL.replace("base.st", "mc:base.st"),
        f"{EVAL} --compare dropout=mc:base.st::rate=0.1",
    ),
    Row(
        "add it as a separate row",
        f"{EVAL} --compare x=vilu:base.st::data=digits,m-0.st",
        f"{EVAL} --compare x=m-0.st",
    ),
    Row(
        "leave that row out, or measure it in a separate report with a logit-based score",
        f"{EVAL} {NEAR} --train {TRAIN} --ood-score knn --compare x=mc:base.st::rate=0.1",
        f"{EVAL} {NEAR} --ood-score energy --compare x=mc:base.st::rate=0.1",
    ),
    Row("choose `{}`, or from {}", f"{EVAL} --corrupt zzzzzz", f"{EVAL} --corrupt contrast"),
    Row(
        "for example `--corrupt {} --corrupt {}={}`",
        f"{EVAL} --corrupt fog:1=frost",
        f"{EVAL} --corrupt all:1 --corrupt frost:1=frost",
        prepare=photograph_frost,
    ),
    Row("for example `{}:3` or `{}:1-5`", f"{EVAL} --corrupt fog:9", f"{EVAL} --corrupt fog:3"),
    Row(
        "give the folder of ImageNet-C's frost1.png to frost6.jpg, or omit `=DIR` to use drawn ice",
        f"{EVAL} --corrupt frost:1=texts",
        f"{EVAL} --corrupt frost:1",
    ),
    Row(
        "one folder serves all severities",
        f"{EVAL} --corrupt frost:1=frost --corrupt frost:2=images/b",
        f"{EVAL} --corrupt frost:1-2=frost",
        prepare=photograph_frost,
    ),
    Row(
        "repeat the option: `--corrupt {}`",
        f"{EVAL} --corrupt fog:1,contrast:1",
        f"{EVAL} --corrupt fog:1 --corrupt contrast:1",
    ),
    Row(
        "add one to `--metrics`, such as accuracy",
        f"{EVAL} --corrupt fog:1 --metrics parameters",
        f"{EVAL} --corrupt fog:1 --metrics parameters,accuracy",
    ),
    Row(
        "add `--corrupt NAME`",
        f"{EVAL} --fail-if 'acc[zzz]<0'",
        f"{EVAL} --fail-if 'acc[fog:1]<0' --corrupt fog:1",
    ),
    Row(
        "there are {}, and each with `:1` to `:5`",
        f"{EVAL} --corrupt fog --fail-if 'acc[zzz]<0.1'",
        f"{EVAL} --corrupt fog --fail-if 'acc[fog:1]<0'",
    ),
    Row(
        "give larger photographs, or omit `=DIR` to use drawn ice",
        test="tests/research/corruptions/test_eval.py::test_frost_adds_the_photographs_of_a_folder",
    ),
    Row(
        "leave it out",
        test="tests/stages/test_tokens.py::test_what_is_defined_for_other_labels_is_refused",
    ),
)
