"""Hints of `hydractl/stages/predict/`, `fusion/` and `metrics/`."""

from __future__ import annotations

from support.hints.table import Row

TRAIN, VAL = "digits::classes=0-6,limit=56", "digits::classes=0-6,limit=56,split=val"
EVAL = "eval base.st --data digits::classes=0-6,limit=21,split=test --no-latency --bootstrap 0 -q"
PREDICT = "predict base.st images/a"
LAX = "--threshold-for 'risk<=0.99'"

ROWS = (
    Row(
        "give DATA: a folder, image files, a table, or `-`",
        "python from hydractl.stages.predict.config import PredictConfig; PredictConfig(model='base.st', data=())",
        PREDICT,
    ),
    Row("leave it out, or give `-` as DATA", f"{PREDICT} --null", PREDICT),
    Row(
        "leave one of them out, or choose from {}",
        f"{PREDICT} --train {TRAIN} --ood-score energy",
        f"{PREDICT} --train {TRAIN} --ood-score knn",
    ),
    Row("run the command once for each input", f"{PREDICT} -", PREDICT),
    Row(
        "to accept probabilities above {}, use `--threshold {}`",
        f"{PREDICT} --ood-score msp --threshold 0.5",
        f"{PREDICT} --ood-score msp --threshold -0.5",
    ),
    Row(
        "use `{}`, or store it first: `hydractl eval ... --train TRAIN --val VAL --save-model PATH`",
        f"{PREDICT} --train {TRAIN} --ood-score energy+density",
        f"{PREDICT} --train {TRAIN} --ood-score relative-mahalanobis",
    ),
    Row(
        "give labelled training data",
        f"{PREDICT} --train images/b --ood-score knn",
        f"{PREDICT} --train {TRAIN} --ood-score knn",
    ),
    Row(
        "give the same data with `--train`",
        f"{PREDICT} --threshold t.json --train {VAL} --ood-score knn",
        f"{PREDICT} --threshold t.json --train {TRAIN} --ood-score knn",
        before=(f"{EVAL} --train {TRAIN} --ood-score knn {LAX} -o t.json",),
    ),
    Row(
        "leave out `--train` and use that model",
        test="tests/stages/evaluate/test_stored_scores.py::test_scores_are_for_the_classes_that_are_stored",
    ),
    Row(
        "give them: `--classes cat,dog`",
        "predict clip images/a --template 'photo {label}'",
        "predict clip images/a --template 'photo {label}' --classes photo,drawing",
    ),
    Row(
        "leave it out, or add `--ood-score {}`",
        f"{PREDICT} --train {TRAIN}",
        f"{PREDICT} --train {TRAIN} --ood-score relative-mahalanobis",
    ),
    Row(
        "leave it out; `hydractl eval ... --train DATA --save-model PATH` stores a new one",
        f"predict knn.st images/a --train {TRAIN} --ood-score knn",
        "predict knn.st images/a --ood-score knn",
        before=(f"{EVAL} --ood-score knn --train {TRAIN} {LAX} --save-model knn.st",),
    ),
    Row(
        "use an OOD score of logits, such as `--ood-score energy`",
        "predict multi texts.csv --ood-score knn",
        "predict multi texts.csv --ood-score energy",
    ),
    Row(
        "store it: `hydractl eval {} --data TEST --ood-score {} --train TRAIN{}",
        f"{PREDICT} --ood-score knn",
        f"{EVAL} --ood-score knn --train {TRAIN} {LAX} --save-model o.st".replace("-q", ""),
    ),
    Row(
        "`hydractl eval ... --threshold-for 'risk<=0.01'`",
        f"{PREDICT} --threshold report.json",
        f"{EVAL} {LAX} -o t.json",
    ),
    Row(
        "add `--null`",
        "predict base.st -",
        "predict base.st - --null",
        stdin=b"images/a/0.png\0images/a/2.bmp\0",
    ),
    Row(
        '`--template "{}"`',
        "predict clip images/a --classes a,b --template photo",
        "predict clip images/a --classes a,b --template 'photo {label}'",
    ),
    Row(
        "give `--classes cat,dog`, or a file with one name per line",
        "python import hydractl; hydractl.load('clip', classes=['photo', ''])",
        "python import hydractl; hydractl.load('clip', classes=['photo', 'drawing'])",
    ),
    Row(
        "use names that differ in more than upper and lower case and in words that the tokenizer knows, or a shorter `--template` "
        "(the model reads {})",
        "predict clip images/a --classes cat,dog",
        "predict clip images/a --classes photo,drawing",
    ),
    Row(
        "give more data to `--train`, with several samples per class",
        f"{PREDICT} --ood-score mahalanobis --train digits::classes=0-6,limit=1",
        f"{PREDICT} --ood-score mahalanobis --train {TRAIN}",
    ),
    Row(
        "give more data to `--val`",
        f"fuse base.st --train {TRAIN} --val digits::classes=0-6,limit=1,split=val -o o.st",
        f"fuse base.st --train {TRAIN} --val {VAL} -o o.st",
    ),
    Row(
        "give at least {} samples to `--train`, or use `{}`, which needs fewer",
        f"{PREDICT} --ood-score vim --train digits::classes=0-6,limit=14",
        f"{PREDICT} --ood-score relative-mahalanobis --train digits::classes=0-6,limit=14",
    ),
    Row(
        "choose from {}",
        f"{PREDICT} --ood-score zzz",
        f"{PREDICT} --ood-score energy",
    ),
    Row(
        "it has {}",
        f"{PREDICT} --train {TRAIN} --ood-score knn:z=5",
        f"{PREDICT} --train {TRAIN} --ood-score knn:k=5",
    ),
    Row(
        "write `{}`",
        f"{PREDICT} --ood-score energy:k=5",
        f"{PREDICT} --ood-score energy",
    ),
)
