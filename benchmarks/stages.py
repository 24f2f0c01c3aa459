"""Compare every stage on two devices: time, and the largest difference between the outputs.

The inputs of each stage are the outputs of the first device, so that differences do not accumulate. A
difference is |a - b| / max(1, |a|); the table shows the maximum over all numbers of both files: tensors, head
masks and head importance. Differences in other entries, for example the kept heads, are counted.

    python benchmarks/stages.py [--devices cpu cuda] [--task images] [--arch vit_tiny_patch16_224]
                                [--limit 320] [--only finetune fuse ...]

With one device the table has times only. The exit code is 1 if a stage fails. There are 252 validation images
and 107 OOD images, so a higher `--limit` only adds training images. The tasks on texts use the word
categories of `tokens.py`, assigned by a rule: the set of categories in a query (`labels`), or the category of
each word (`words`). Their model is a BERT in the size of MiniLM.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from film_reviews import write_tokenizer
from safetensors.torch import load_file
from tokens import tagged

from hydractl.cli.app import main as command
from hydractl.data.reference import DataRef
from hydractl.data.toys import open_intents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IMAGES = "digits::classes={classes},split={split},limit={{n}}"
BERT = (
    "bert::hidden_size=384,num_hidden_layers=6,num_attention_heads=12,intermediate_size=1536,vocab_size=146,"
    "tokenizer=tokenizer.json"
)
QUERIES = (BERT, "train.jsonl::limit={n}", "val.jsonl::limit={n}", "intents::domain=oos,limit={n}")
ACCEPT = "--threshold-for risk<=0.9"
TASKS: Mapping[str, tuple[str, str, str, str, str]] = {
    "images": (
        "vit_tiny_patch16_224::num_classes=7",
        IMAGES.format(classes="0-6", split="train"),
        IMAGES.format(classes="0-6", split="val"),
        IMAGES.format(classes="7-9", split="val"),
        f"--sets 0.9 {ACCEPT}",
    ),
    "labels": (*QUERIES, f"--label-thresholds {ACCEPT}"),
    "words": (*QUERIES, ACCEPT),
}
"""For each task: architecture, training data, validation data, OOD data, and further options of `eval
--save-model`."""
TUNE = "--train {train} --val {val} --epochs 2 --batch-size 32 --keep-last --seed 1"
THERE = "--device {device} -o {out}"
STAGES: Mapping[str, tuple[str, str]] = {
    "finetune": (f"finetune {{model}} {TUNE} {THERE}", "base.st"),
    "finetune --precision bf16": (f"finetune {{model}} {TUNE} --precision bf16 {THERE}", "bf16.st"),
    "finetune --compile": (f"finetune {{model}} {TUNE} --compile {THERE}", "compiled.st"),
    "finetune --ema --accumulate": (f"finetune {{model}} {TUNE} --ema 0.9 --accumulate 2 --clip 1 {THERE}", "ema.st"),
    "score taylor": (f"score {{base}} --method taylor --data {{val}} --remove 4 {THERE}", "taylor.json"),
    "score circuit, lazily": (f"score {{base}} --data {{val}} --ood {{ood}} --remove 4 --search lazy {THERE}", "circuit.json"),
    "prune": ("prune {base} --scores {taylor} --remove 4 --members 2 --pool 6 -o {out}", "m-{i}.st"),
    "prune --strategy diverse": (f"prune {{base}} --scores {{taylor}} --strategy diverse --data {{val}} --candidates 4 --remove 4 --members 2 --pool 6 {THERE}", "d-{i}.st"),
    "fuse": (f"fuse {{m-0}} {{m-1}} --val {{val}} {THERE}", "hydra.st"),
    "finetune a hydra": (f"finetune {{hydra}} {TUNE} {THERE}", "tuned.st"),
    "eval": (f"eval {{hydra}} --compare base={{base}} --data {{val}} --near {{ood}} --temperature {{val}} --no-latency {THERE}", "report.json"),
    "eval --save-model": ("eval {hydra} --data {val} --temperature {train} --no-latency --save-model {out} {finds} --device {device} -o {report}", "stored.st"),
    "predict": (f"predict {{stored}} {{val}} {THERE}", "p.jsonl"),
    "predict --dtype bf16": (f"predict {{stored}} {{val}} --dtype bf16 {THERE}", "p16.jsonl"),
}  # fmt: skip
"""Command and output of each stage; `{name}` is an earlier output of the first device."""


def main() -> int:
    """Run the stages on each device in turn and print a table. The exit code is 1 if a command fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--devices", nargs="+", default=["cpu", "cuda"], help="devices; outputs are compared with the first"
    )
    parser.add_argument("--task", choices=TASKS, default="images")
    parser.add_argument("--arch", help="architecture without the prefix `arch:`")
    parser.add_argument("--limit", type=int, default=320, help="largest number of samples per set")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES), help="stages to run")
    options = parser.parse_args()
    names = [
        torch.cuda.get_device_name(d) if d.startswith("cuda") else f"{d}, {torch.get_num_threads()} threads"
        for d in options.devices
    ]
    print(
        f"{options.task}, at most {options.limit}; {options.arch or TASKS[options.task][0]}; torch {torch.__version__}; {'; '.join(names)}"
    )
    print(
        f"{'':30s}" + "".join(f"{device:>10s}" for device in options.devices) + "  largest difference",
        flush=True,
    )
    failed = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for place in range(len(options.devices)):
            Path(str(place)).mkdir()
        if options.task != "images":
            write_tables(words=options.task == "words")
        for name in options.only:
            words, out = STAGES[name]
            cells, said = [], ""
            for place, device in enumerate(options.devices):
                seconds, error = run(filled(words, {"device": device, "out": f"{place}/{out}"}, options))
                cells.append("failed" if error else f"{seconds:.2f} s")
                said = said or error
            if not said and len(options.devices) > 1:
                said = difference(out)
            failed += "failed" in cells
            print(f"{name:30s}" + "".join(f"{cell:>10s}" for cell in cells) + f"  {said}", flush=True)
    return 1 if failed else 0


def write_tables(*, words: bool) -> None:
    """Write a tokenizer and tables of queries, labelled with word categories or their sets."""
    write_tokenizer(Path("tokenizer.json"))
    for split in ("train", "val"):
        with Path(f"{split}.jsonl").open("w") as file:
            for text in open_intents(DataRef.parse(f"intents::split={split}")).texts:
                row = tagged(str(text))
                kinds = sorted({tag[2:] for tag in row["ner_tags"] if tag != "O"})
                print(json.dumps(row if words else {"text": text, "labels": kinds}), file=file)


def filled(words: str, place: Mapping[str, str], options: argparse.Namespace) -> list[str]:
    """Return the words of a command with placeholders replaced by paths, data and device.

    Args:
        words: Command from `STAGES`.
        place: Device and output path.
        options: Parsed command line.

    Returns:
        Arguments of the command. A missing earlier output becomes `not-written.st`, so that the command
        fails.
    """
    earlier = {Path(file).stem: file for file in map(str, Path("0").glob("*"))}
    arch, *data, finds = TASKS[options.task]
    values = defaultdict(
        lambda: "not-written.st", earlier, **place, model=f"arch:{options.arch or arch}", finds=""
    )
    values["report"] = str(Path(place["out"]).with_suffix(".json"))
    values |= zip(("train", "val", "ood"), (ref.format(n=options.limit) for ref in data), strict=True)
    return [
        w
        for word in words.split()
        for w in (finds.split() if word == "{finds}" else [word.format_map(values)])
    ]


def run(words: list[str]) -> tuple[float, str]:
    """Run a command.

    Returns:
        Seconds, and the last 200 characters of standard error if the command fails, else an empty string.
    """
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        code = command(words)
        seconds = time.perf_counter() - start
    return seconds, "" if code == 0 else f"exit {code}: {' '.join(said.getvalue().split())[-200:]}"


def difference(out: str) -> str:
    """Return the difference between the outputs of the two devices as text."""
    files = sorted(Path("0").glob(out.replace("{i}", "*")))
    largest, other = 0.0, 0
    for file in files:
        one, two = (dict(leaves(Path(str(place)) / file.name)) for place in (0, 1))
        other += len(one.keys() ^ two.keys())
        for key in one.keys() & two.keys():
            a, b = one[key], two[key]
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                apart = (a - b).abs() / a.abs().clamp(min=1)
                largest = max(largest, float(apart.nan_to_num().max()) if apart.numel() else 0.0)
            else:
                other += a != b
    return f"{largest:.1e}" + (f", and {other} entries that are no numbers" if other else "")


def leaves(file: Path) -> Iterator[tuple[str, object]]:
    """Yield name and value of each entry of a safetensors, JSON or JSON Lines file; numbers as tensors."""
    if file.suffix == ".st":
        for name, tensor in load_file(file).items():
            yield name, tensor.double()
    else:
        lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        for i, line in enumerate(lines):
            yield from _within(f"{i}", json.loads(line))


def _within(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _within(f"{path}/{key}", part)
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _within(f"{path}/{i}", part)
    else:
        yield path, torch.tensor(value, dtype=torch.float64) if isinstance(value, int | float) else value


if __name__ == "__main__":
    sys.exit(main())
