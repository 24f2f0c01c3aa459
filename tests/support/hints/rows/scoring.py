"""Hints of `hydractl/scoring/` and `hydractl/stages/score/`."""

from __future__ import annotations

from pathlib import Path

from support.hints.table import Row

DIGITS = "digits::classes=0-6,limit=14"
SCORE = f"score base.st --data {DIGITS} -o o.json"
CIRCUIT = f"{SCORE} --method circuit --remove 1"
FAR = "--ood noise"
GATES = f"{SCORE} --method l0 --epochs 1 --batch-size 8"


def _journal() -> None:
    Path("o.json.journal").write_text('{"schema": "hydractl.journal/1"}\nnot JSON\n')


ROWS = (
    Row(
        "add `--towers {}`",
        "score clip --data pictures.jsonl --classes a,b --method cahp -o o.json",
        "score clip --data pictures.jsonl --classes a,b --method cahp -o o.json --towers vision",
    ),
    Row(
        "use data with all of the model's classes",
        "score base.st --data digits::classes=0,limit=9 --method cahp -o o.json",
        f"{SCORE} --method cahp",
    ),
    Row(
        "leave it out",
        f"{SCORE} --method cahp --embedding none --perplexity 5",
        f"{SCORE} --method cahp --embedding none",
    ),
    Row(
        "give more data to `--data`, or use an OOD score of logits, such as `--ood-score energy`",
        f"score base.st --data digits::classes=0-6,limit=3 {FAR} -o o.json --objective avg --remove 1 --ood-score energy+density",
        f"score base.st --data digits::classes=0-6,limit=3 {FAR} -o o.json --objective avg --remove 1 --ood-score energy",
    ),
    Row(
        "use an OOD score of logits, such as `--ood-score energy`",
        "score multi --data labels.jsonl --ood texts.jsonl -o o.json --remove 1 --ood-score energy+density --objective avg",
        "score multi --data labels.jsonl --ood texts.jsonl -o o.json --remove 1 --ood-score energy --objective avg",
    ),
    Row(
        "write `0.5*acc+0.5*ood` in a sum",
        f"{CIRCUIT} {FAR} --objective avg+acc",
        f"{CIRCUIT} {FAR} --objective 0.5*acc+0.5*ood",
    ),
    Row(
        "--objective: {}, or a sum such as `0.5*acc+0.5*auroc` or `acc-0.1*nll`",
        f"{CIRCUIT} --objective 3",
        f"{CIRCUIT} --objective acc-0.1*nll",
    ),
    Row(
        "choose from {}",
        "python from hydractl.scoring.methods import settings_for; settings_for('circuit', {'ood_score': 'mi', 'objective': 'avg'})",
        f"{CIRCUIT} {FAR} --ood-score energy",
    ),
    Row(
        "leave it out, or use an objective with OOD data, such as `avg`",
        f"{CIRCUIT} --objective acc --ood-score energy",
        f"{CIRCUIT} {FAR} --objective avg --ood-score energy",
    ),
    Row(
        "use a smaller `--batch-size`{}",
        f"{CIRCUIT} --objective acc --max-memory 1KB",
        f"{CIRCUIT} --objective acc --batch-size 1 --max-memory 100MB",
    ),
    Row(
        "lower `--gate-lr`{}",
        f"{GATES} --training joint --weights-lr 1e30",
        f"{GATES} --training joint --weights-lr 1e-4",
        research=True,
    ),
    Row(
        "it applies to {}",
        f"{SCORE} --method taylor --search lazy",
        f"{SCORE} --method circuit --objective acc --search lazy --remove 1",
    ),
    Row(
        "methods: {}",
        "python from hydractl.scoring.methods import settings_for; settings_for('zzz', {})",
        f"{SCORE} --method taylor",
    ),
    Row(
        "add `--ood DATA`, or `--objective acc`",
        f"{CIRCUIT} --objective avg",
        f"{CIRCUIT} --objective acc",
    ),
    Row(
        "add `--training joint`",
        f"{GATES} --save-model t.st",
        f"{GATES} --save-model t.st --training joint",
        research=True,
    ),
    Row(
        "it applies to `--method l0` and `--method dsp`",
        f"{SCORE} --method taylor --save-model t.st",
        f"{SCORE} --method l0 --epochs 1 --batch-size 8 --training joint --save-model t.st",
        research=True,
    ),
    Row("leave it out", f"{CIRCUIT} --objective acc {FAR}", f"{CIRCUIT} --objective acc"),
    Row(
        "leave it out; it applies to `--method circuit`",
        f"{SCORE} --method taylor --max-memory 1GB",
        f"{SCORE} --method taylor",
    ),
    Row(
        "add `--force` to discard it and start again",
        f"{CIRCUIT} --objective acc",
        f"{CIRCUIT} --objective acc --force",
        prepare=_journal,
    ),
    Row(
        "it has {}",
        f"{SCORE} --method taylor --towers text",
        f"{SCORE} --method taylor --towers vision",
    ),
    Row(
        "score its base",
        f"{SCORE} --method taylor".replace("base", "m-0"),
        f"{SCORE} --method taylor",
    ),
    Row(
        "use another method, such as `--method taylor`",
        "score multi --data labels.jsonl --method cahp -o o.json",
        "score multi --data labels.jsonl --method taylor -o o.json",
    ),
    Row(
        "add `--training pipelined`",
        "score clip --data pictures.jsonl --classes a,b --method l0 --epochs 1 --batch-size 4 --training joint -o o.json",
        "score clip --data pictures.jsonl --classes a,b --method l0 --epochs 1 --batch-size 4 --training pipelined -o o.json",
        research=True,
    ),
    Row(
        "name another file",
        f"{GATES} --training joint --save-model -",
        f"{GATES} --training joint --save-model t.st",
        research=True,
    ),
)
