"""Folder of small files for the commands of the hint table."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from itertools import cycle
from pathlib import Path

from safetensors.numpy import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from support.hints.table import run
from support.text_folders import save_tokenizer
from support.torture import material

VIT = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"


def link_material(source: Path, target: Path) -> None:
    """Copy a folder with hard links. Safe because commands never write into existing files."""
    shutil.copytree(source, target, copy_function=os.link)


def make_material(folder: Path) -> None:
    """Write the files of the rows into a folder.

    base.st, five.st: ViT of 2 layers with 4 heads, 7 classes 0 to 6, or 5 classes. plain.safetensors: weights
    of base.st. scores.json: head importance by circuits of base.st. sampled.json: the same by the method
    `random`. m-0.st, m-1.st, m-2.st: members of base.st with masks m-0.mask.json and so on. hydra.st: these
    members as a hydra. report.json, other.json: evaluations of base.st and hydra.st on the same digits. bert:
    folder of a text classifier with the classes a and b. multi: the same for several labels. words: a folder
    that tags words with B-x, I-x, O. timm, vit, clip (zero-shot SigLIP), shards: other folders of libraries.
    w.pth (plain), last.ckpt (with an EMA and arguments): weights of timm. images/a, images/b: grey images of
    9x9 pixels, 3 or 4 per class. texts/a, texts/b: 4 text files each. texts.csv, texts.jsonl, texts.parquet:
    columns text, label (0 and 1). pictures.csv, pictures.jsonl, pictures.parquet: columns image, label.
    labels.jsonl: texts with lists of the labels a, b. words.conll, words.jsonl (columns tokens, ner_tags):
    sentences with tags.
    """
    with contextlib.chdir(folder):
        material.make()
        _write_text_models()
        _write_text_data()
        for line in COMMANDS:
            assert run(line).code == 0, f"{line}: {run(line).message}"
        save_file(load_file("base.st"), "plain.safetensors")


DIGITS = "digits::classes=0-6,limit=14"
COMMANDS = (
    f"finetune {VIT} --train {DIGITS} --val {DIGITS},split=val --steps 1 --batch-size 8 -q -o base.st",
    f"finetune {VIT.replace('classes=7', 'classes=5')} --train digits::classes=0-4,limit=10 --val digits::classes=0-4,limit=10,split=val --steps 1 --batch-size 8 -q -o five.st",
    f"score base.st --data {DIGITS} --objective acc --remove 8 -q -o scores.json",
    "score base.st --method random -q -o sampled.json",
    "prune base.st --scores scores.json --remove 2 --members 3 --pool 6 -q -o m-{i}.st",
    "fuse m-0.st m-1.st m-2.st -q -o hydra.st",
    f"eval base.st --data {DIGITS},split=test --bootstrap 0 --no-latency -q -o report.json",
    f"eval hydra.st --data {DIGITS},split=test --bootstrap 0 --no-latency -q -o other.json",
)


def _write_text_models() -> None:
    """Write BERT folders for single-label, multi-label and word classification."""
    from support.variants import variant

    for name, problem, labels in (
        ("bert", "single_label_classification", ("a", "b")),
        ("multi", "multi_label_classification", ("a", "b")),
        ("words", None, ("B-x", "I-x", "O")),
    ):
        options = {**variant("transformers-bert-plain").options, "num_labels": len(labels)}
        config = BertConfig(**options, problem_type=problem, id2label=dict(enumerate(labels)))
        shutil.rmtree(name, ignore_errors=True)
        (BertForSequenceClassification if problem else BertForTokenClassification)(config).save_pretrained(
            name
        )
        save_tokenizer(Path(name))


def _write_text_data() -> None:
    labels = cycle((["a"], ["b"], ["a", "b"], []))
    Path("labels.jsonl").write_text(
        "".join(
            json.dumps({"text": text, "labels": names}) + "\n"
            for text, names in zip(material.TEXTS, labels, strict=False)
        )
    )
    sentences = [
        (text.split(), ["B-x" if word == "cat" else "O" for word in text.split()]) for text in material.TEXTS
    ]
    Path("words.jsonl").write_text(
        "".join(json.dumps({"tokens": words, "ner_tags": tags}) + "\n" for words, tags in sentences)
    )
    Path("words.conll").write_text(
        "".join(
            "".join(f"{word} {tag}\n" for word, tag in zip(*sentence, strict=True)) + "\n"
            for sentence in sentences
        )
    )
