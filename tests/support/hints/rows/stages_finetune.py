"""Hints of `finetune`: its stage, and its part of `hydractl/training/`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from support.hints.material import VIT
from support.hints.table import Row

OPTIONS = "--steps 1 --batch-size 8 -o o.st"
SPLITS = "--train digits::classes=0-6,limit=16 --val digits::classes=0-6,limit=14,split=val"
FIVE = "--train digits::classes=0-4,limit=16 --val digits::classes=0-4,limit=14,split=val"
TUNE = f"finetune base.st {SPLITS} {OPTIONS}"
HYDRA = f"finetune hydra.st {SPLITS} {OPTIONS}"
RANDOM = f"finetune {VIT} {SPLITS} {OPTIONS}"
SHALLOW = RANDOM.replace("depth=2", "depth=1")
TEXTS = f"finetune bert --train texts --val texts {OPTIONS}"
LABELS = "--train labels.jsonl --val labels.jsonl"


def _copy_hydra() -> None:
    shutil.copy("hydra.st", "copy.st")


def _headless() -> None:
    """Save the text encoder without a classifier."""
    from transformers import AutoModel

    shutil.copytree("bert", "headless")
    Path("headless/model.safetensors").unlink()
    AutoModel.from_pretrained("bert").save_pretrained("headless")


def _rename_classes() -> None:
    """Make a second text model with its classes in another order."""
    shutil.copytree("bert", "teacher")
    path = Path("teacher/config.json")
    path.write_text(path.read_text().replace('"0": "a"', '"0": "z"').replace('"1": "b"', '"1": "a"'))


def _shorten_teacher() -> None:
    """Make a second text model whose tokenizer reads 16 tokens."""
    shutil.copytree("bert", "teacher")
    path = Path("teacher/tokenizer_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 16}))


ROWS = (
    Row(
        "add `--num-classes {}`, or select some of the classes with `::classes=`",
        f"{TUNE} --num-classes 3",
        f"{TUNE} --num-classes 7",
    ),
    Row(
        "add `--train DATA` with the training data",
        f"finetune base.st {FIVE.replace('digits::classes=0-4,limit=16', 'mlp', 1)} {OPTIONS}",
        f"finetune base.st {FIVE} {OPTIONS} --train-parts mlp,head",
    ),
    Row(
        "add `head` to `--train-parts`",
        f"finetune base.st {FIVE} {OPTIONS} --train-parts mlp",
        f"finetune base.st {FIVE} {OPTIONS} --train-parts mlp,head",
    ),
    Row(
        "leave `--head-seed` out, or add `--reset-head` for a new classifier",
        f"{TUNE} --head-seed 1",
        f"{TUNE} --head-seed 1 --reset-head",
    ),
    Row(
        "leave `--keep-head` or `--num-classes` out",
        f"{TUNE} --num-classes 9 --keep-head",
        f"{TUNE} --keep-head",
    ),
    Row(
        "leave `--keep-head` out",
        f"finetune headless --train texts --val texts {OPTIONS} --keep-head",
        f"finetune headless --train texts --val texts {OPTIONS}",
        prepare=_headless,
    ),
    Row(
        "leave `--keep-head` out for a new classifier",
        f"finetune bert {LABELS} {OPTIONS} --keep-head",
        f"finetune bert {LABELS} {OPTIONS}",
    ),
    Row(
        "leave `--keep-head` out for a new classifier, rename the data's classes to the model's with `::map=OLD:NEW,...`, "
        "or select some of them with `::classes=`",
        f"finetune five.st {SPLITS} {OPTIONS} --keep-head",
        f"finetune five.st {SPLITS} {OPTIONS}",
    ),
    Row(
        "leave `--num-classes` or `{}={}` out",
        f"{RANDOM} --num-classes 8",
        RANDOM,
    ),
    Row(
        "leave `{}={}` out, write `{}={}`, or select some of the classes with `::classes=`",
        RANDOM.replace("num_classes=7", "num_classes=3"),
        RANDOM,
    ),
    Row(
        "leave `--pooling` out",
        f"finetune words --train words.jsonl --val words.jsonl {OPTIONS} --pooling mean",
        f"finetune words --train words.jsonl --val words.jsonl {OPTIONS}",
    ),
    Row(
        "leave it out; an image model uses the pooling of its family",
        f"{TUNE} --pooling mean",
        TUNE,
    ),
    Row("leave one of them out", f"{TEXTS} --keep-head --pooling mean", f"{TEXTS} --pooling mean"),
    Row(
        "leave out `own`, or fuse with `--own-blocks`",
        f"finetune hydra.st {FIVE} {OPTIONS} --train-parts own",
        f"finetune hydra.st {FIVE} {OPTIONS}",
    ),
    Row(
        "leave `--arch` out",
        f"{RANDOM} --arch vit_tiny_patch16_224",
        RANDOM,
    ),
    Row(
        "leave one of them out",
        f"{TUNE} --method mimo --teacher base.st",
        f"{TUNE} --method lora-ensemble",
        research=True,
    ),
    Row(
        "leave one of them out; a compiled step already saves memory",
        f"{TUNE} --compile --gradient-checkpointing",
        f"{TUNE} --gradient-checkpointing",
    ),
    Row("leave out `{}` from the name", f"{TUNE[:-4]}o-{{i}}.st", TUNE),
    Row(
        "name a file with `-o`, or leave `--save-every` out",
        f"{TUNE[:-4]}- --save-every 1",
        f"{TUNE} --save-every 1",
    ),
    Row(
        "leave `--method` out",
        f"finetune multi {LABELS} {OPTIONS} --method lora-ensemble",
        f"finetune multi {LABELS} {OPTIONS}",
        research=True,
    ),
    Row("leave `{}` out", f"{SHALLOW} --drop-path 0.1", SHALLOW),
    Row("leave it out", f"{TUNE} --batches own", TUNE),
    Row(
        "choose from {}",
        "python from hydractl.training.recipe import Recipe; Recipe(steps=1, train_parts=())",
        f"{TUNE} --train-parts mlp",
    ),
    Row("leave it out, or `hydractl fuse` members first", f"{TUNE} --repulsion 0.1", TUNE),
    Row(
        "leave it out, or fuse with `--trunk 0 --own-blocks`",
        f"finetune copy.st {SPLITS} {OPTIONS} --batches own",
        f"finetune own.st {SPLITS} {OPTIONS} --batches own",
        before=(
            "prune base.st --strategy random --remove 1 --members 2 --trunk 1 -q -o p-{i}.st",
            "fuse p-0.st p-1.st -q -o copy.st",
            "fuse p-0.st p-1.st --trunk 0 --own-blocks -q -o own.st",
        ),
    ),
    Row("leave out `own`, or choose from {}", f"{TUNE} --train-parts own", f"{TUNE} --train-parts mlp"),
    Row(
        "prune and fuse zero-shot models without training",
        f"finetune zero.st --train pictures.jsonl --val pictures.jsonl {OPTIONS}",
        "prune clip --strategy random --remove 1 -o o.st",
        before=("prune clip --strategy random --remove 1 -q -o zero.st",),
    ),
    Row("recipes for texts: {}", f"{TEXTS} --recipe vit-finetune", f"{TEXTS} --recipe bert-finetune"),
    Row(
        "use the same names, or select the classes of `--train` with `::classes=`",
        f"finetune base.st --train images --val val {OPTIONS}",
        f"finetune base.st --train images --val images {OPTIONS}",
        prepare=lambda: shutil.copytree("images/a", "val/c", dirs_exist_ok=True),
    ),
    Row(
        "fuse with `--trunk N --own-blocks` to give each member its own readout, head and blocks after the first N",
        f"finetune same.st {SPLITS} {OPTIONS} --train-parts own",
        "fuse base.st base.st --trunk 1 --own-blocks -o own.st",
        before=("fuse base.st base.st -q -o same.st",),
    ),
    Row(
        "leave one of them out",
        test="tests/stages/finetune/test_many.py::test_what_parts_cannot_do_is_refused",
    ),
    Row(
        "leave out `--use_fsdp`",
        test="tests/research/methods/test_finetune.py::test_what_does_not_go_together_is_refused",
        research=True,
    ),
    Row(
        "`hydractl inspect` shows both",
        f"{TEXTS} --keep-head --teacher teacher",
        "inspect teacher",
        prepare=_rename_classes,
    ),
    Row(
        "`hydractl inspect` shows both; a teacher must read the same inputs as the student",
        f"{TUNE} --teacher base.st --mean 0.9",
        f"{TUNE} --teacher base.st",
    ),
    Row(
        "give a hydra with as many members, or one teacher per member, in order: `--teacher a.st,b.st,c.st`",
        f"finetune two.st {SPLITS} {OPTIONS} --teacher hydra.st",
        f"finetune two.st {SPLITS} {OPTIONS} --teacher m-0.st,m-1.st",
        before=("fuse m-0.st m-1.st -q -o two.st",),
    ),
    Row(
        "give a trained model",
        f"{TUNE} --teacher arch:vit_tiny_patch16_224",
        f"{TUNE} --teacher m-0.st",
    ),
    Row(
        "give one teacher per member, in order: `--teacher a.st,b.st,c.st`, or one hydra with as many members",
        f"{HYDRA} --teacher m-0.st,m-1.st",
        f"{HYDRA} --teacher m-0.st,m-1.st,m-2.st",
    ),
    Row(
        "use a teacher that was trained on such labels",
        f"finetune multi {LABELS} {OPTIONS} --teacher bert",
        f"finetune multi {LABELS} {OPTIONS} --teacher multi",
    ),
    Row(
        "use a teacher that was trained on the same classes",
        f"{TUNE} --teacher five.st",
        f"{TUNE} --teacher base.st",
    ),
    Row(
        "add `--max-length {}`",
        f"{TEXTS} --teacher teacher",
        f"{TEXTS} --teacher teacher --max-length 16",
        prepare=_shorten_teacher,
    ),
)
