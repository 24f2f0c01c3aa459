"""Hints of the modules beside the folders of `hydractl/data/`, except `reference.py`."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from support.hints.table import Row

END = "--no-latency --bootstrap 0"
TUNE = "finetune base.st --train digits::classes=0-6,limit=14 --val digits::classes=0-6,limit=14,split=val --steps 1 --batch-size 8 -o o.st"
TUNE_TEXTS = "finetune bert --train texts --val texts --steps 1 --batch-size 4 -o o.st"
SMALL = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=1,num_heads=4,num_classes="
BERT = "arch:bert::hidden_size=32,num_hidden_layers=1,num_attention_heads=4,intermediate_size=48"


def _deepen() -> None:
    """Write an image of 16 bits per pixel."""
    from PIL import Image

    Image.new("I;16", (9, 9)).save("deep.png")


def _flatten() -> None:
    from PIL import Image

    Image.open("deep.png").point(lambda value: value / 256).convert("L").save("flat.png")


def _cut() -> None:
    Path("cut.png").write_bytes(Path("images/a/0.png").read_bytes()[:80])


ROWS = (
    Row(
        "use one sub-folder per class in a folder; a column `label` in a table, or give its name with `::label=COLUMN`; write one column per label as one column of lists: `{}` (docs/labels.md has a command)",
        f"eval vit --data images/a::classes=a {END}",
        f"eval vit --data images::classes=a {END}",
    ),
    Row(
        "leave it out",
        f"eval words --data words.jsonl::classes=O {END}",
        f"eval words --data words.jsonl {END}",
    ),
    Row(
        "convert the image to a supported format: {}",
        "predict base.st drawing.png --no-skip-bad",
        "predict base.st images/a/0.png",
        files={"drawing.png": "<svg></svg>"},
    ),
    Row(
        "make the image smaller, or raise `PIL.Image.MAX_IMAGE_PIXELS` (half the limit) in Python",
        "predict base.st large.ppm --no-skip-bad",
        "predict base.st large.ppm --no-skip-bad",
        files={"large.ppm": "P5 99999 99999 255\n"},
        mend=lambda: shutil.copy("images/a/6.ppm", "large.ppm"),
    ),
    Row(
        "replace the file with an undamaged copy",
        "predict base.st cut.png --no-skip-bad",
        "predict base.st cut.png --no-skip-bad",
        prepare=_cut,
        mend=lambda: shutil.copy("images/a/0.png", "cut.png"),
    ),
    Row(
        "add `--max-length {}`, or leave it out",
        "predict bert texts.csv --max-length 9999",
        "predict bert texts.csv --max-length 512",
    ),
    Row("leave it out", "predict base.st images --max-length 9", "predict base.st images"),
    Row(
        "leave it out, or add `--augment none`",
        f"{TUNE_TEXTS} --augment flip",
        f"{TUNE_TEXTS} --augment none",
    ),
    Row(
        "the model reads images: a `str` is the path of an image file",
        "python import hydractl; hydractl.load('base.st').predict(['a good film'])",
        "python import hydractl; hydractl.load('base.st').predict(['images/a/0.png'])",
    ),
    Row(
        "give data with several classes to `{}`",
        TUNE.replace("classes=0-6", "classes=0", 1),
        TUNE,
    ),
    Row(
        "leave `classes=` out",
        f"eval multi --data labels.jsonl::classes=a {END}",
        f"eval multi --data labels.jsonl {END}",
    ),
    Row(
        "rename one; names are compared without surrounding spaces and in Unicode normal form",
        f"eval bert --data same {END}",
        f"eval bert --data same {END}",
        files={"same/a/1.txt": "a cat", "same/a /1.txt": "a mat"},
        mend=lambda: Path("same/a ").rename("same/b"),
    ),
    Row(
        "write `classes-by={}` or `classes-by={}`",
        f"eval bert --data texts::classes-by=number {END}",
        f"eval bert --data texts::classes-by=position {END}",
    ),
    Row(
        "write {}-{}",
        f"eval base.st --data digits::classes=6-0,limit=9 {END}",
        f"eval base.st --data digits::classes=0-6,limit=9 {END}",
    ),
    Row(
        "count the labels from 0{}; for an `arch:` reference set the number of classes",
        f"eval base.st --data high.csv {END}",
        f"eval base.st --data high.csv {END}",
        files={"high.csv": "image,label\nimages/a/0.png,1\nimages/b/1.jpg,7\n"},
        mend=partial(Path("high.csv").write_text, "image,label\nimages/a/0.png,0\nimages/b/1.jpg,6\n"),
    ),
    Row(
        "leave it out, and rename the classes that differ: `::{}=OLD:NEW,...`",
        f"eval bert --data other::classes-by=position {END}",
        f"eval bert --data other::map=c:a {END}",
        files={"other/b/1.txt": "a cat", "other/c/1.txt": "a mat"},
    ),
    Row(
        "leave it out, and rename the data's classes to the model's: `::{}=OLD:NEW,...`",
        f"eval vit --data images::map=a:x,b:y,classes-by=position {END}",
        f"eval vit --data images {END}",
    ),
    Row(
        "rename them to the model's classes, for example `::{}={}`, or select classes with `::classes=`",
        f"eval bert --data other {END}",
        f"eval bert --data other::map=x:a,y:b {END}",
        files={"other/x/1.txt": "a cat", "other/y/1.txt": "a mat"},
    ),
    Row(
        "set `num_classes={}` in an `arch:` reference, or select {} of the data's classes with `::classes=`",
        f"eval {SMALL}2 --data digits::classes=0-2,limit=9 {END}",
        f"eval {SMALL}3 --data digits::classes=0-2,limit=9 {END}",
    ),
    Row(
        'put names that contain one of `" , : =` in double quotes, and double each quote in them: `\'data::map="a:b, c":d\'`',
        f"eval bert --data other::map=x:y:a,z:b {END}",
        f"eval bert --data 'other::map=\"x:y\":a,z:b' {END}",
        files={"other/x:y/1.txt": "a cat", "other/z/1.txt": "a mat"},
    ),
    Row(
        "write `{}=OLD:NEW`, or leave it out",
        f"eval bert --data 'texts::map= :b' {END}",
        f"eval bert --data 'texts::map=a:b,b:a' {END}",
    ),
    Row("leave `{}=` out", "predict bert texts::text=body", "predict bert texts"),
    Row("leave it out", "predict bert texts.csv::decode=fast", "predict bert texts.csv"),
    Row(
        "select the column with the images: `::image=COLUMN`",
        "predict base.st pictures.csv::text=image",
        "predict base.st pictures.csv::image=image",
    ),
    Row(
        "select the column with the texts: `::text=COLUMN`",
        "predict bert texts.csv::image=text",
        "predict bert texts.csv::text=text",
    ),
    Row(
        "convert the images to 8 bits first",
        "predict base.st deep.png --no-skip-bad",
        "predict base.st flat.png",
        prepare=_deepen,
        mend=_flatten,
    ),
    Row(
        "convert the images to RGB or grey first",
        "python from PIL import Image; import hydractl; hydractl.load('base.st').predict([Image.new('La', (9, 9))])",
        "python from PIL import Image; import hydractl; hydractl.load('base.st').predict([Image.new('L', (9, 9))])",
    ),
    Row(
        "add `--max-length {}` or more",
        "predict bert texts.csv --max-length 2",
        "predict bert texts.csv --max-length 5",
    ),
    Row(
        "give one in its `arch:` reference: `arch:NAME::...,tokenizer=PATH/tokenizer.json`",
        f"predict {BERT} texts.csv",
        f"predict {BERT},tokenizer=bert/tokenizer.json texts.csv",
    ),
    Row(
        "the tokenizer may be of another model; in an `arch:` reference set `vocab_size=` to that of the tokenizer",
        f"predict {BERT},vocab_size=9,tokenizer=bert/tokenizer.json texts.csv",
        f"predict {BERT},vocab_size=99,tokenizer=bert/tokenizer.json texts.csv",
    ),
    Row(
        "the tokenizer may be of another model",
        test="tests/data/test_tokenize.py::test_a_tokenizer_that_marks_more_parts_than_texts_have",
    ),
    Row(
        "write a text into that row, or select another column: `::text=COLUMN`",
        test="tests/data/test_tokenize.py::test_a_text_without_a_token",
    ),
    Row(
        "save a fast tokenizer (`tokenizer.json`) into the model's folder",
        test="tests/data/test_words.py::test_what_has_no_words_is_refused",
    ),
    Row(
        "select one column: `::text=COLUMN`",
        "predict words texts.csv::text=text+label",
        "predict words texts.csv::text=text",
    ),
    Row(
        "add `--num-workers 0`, or let the machine share more memory (`df {}`)",
        test="tests/data/test_worker_pool.py::test_memory_that_cannot_be_shared_is_said",
    ),
)
