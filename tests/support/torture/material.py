"""Further inputs for hostile files: models saved by libraries, pickles, tables, images."""

from __future__ import annotations

import argparse
import json
import random
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.variants import Variant

TEXTS = (
    "the cat sat",
    "a mat",
    "the mat sat on the cat",
    "a cat",
    "on a mat",
    "the cat",
    "sat on",
    "cat mat",
)
SEVEN = dict(enumerate("abcdefg"))
PROCESSOR = {"image_mean": [0.5], "image_std": [0.5], "resample": 3, "size": {"height": 8, "width": 8}}
FORMATS = {
    "png": {},
    "jpg": {},
    "bmp": {},
    "gif": {},
    "webp": {"lossless": True},
    "tif": {"compression": "tiff_lzw"},
    "ppm": {},
}


def make() -> None:
    """Write all files into the current folder."""
    import torch

    torch.manual_seed(0)
    _models()
    _pickles()
    _tables()


def _models() -> None:
    import timm.models
    import transformers

    from support.builders import base
    from support.pairs import write_tokenizer
    from support.text_folders import save_tokenizer
    from support.variants import TINY, VARIANTS, variant

    plain = {str(v): v for v in VARIANTS}
    library = base(variant("class-token")).library()
    timm.models.save_for_hf(library, "timm", model_args=TINY, safe_serialization=True)
    _saved("vit", plain["transformers-vit-plain"], {"image_processor_type": "ViTImageProcessor"})
    for name, size in (("bert", "1GB"), ("shards", "30KB")):
        _saved(name, plain["transformers-bert-plain"], shards=size)
        save_tokenizer(Path(name))
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 12, "width": 12}}
    _saved(
        "clip",
        plain["transformers-siglip-plain"],
        {"image_processor_type": "SiglipImageProcessor", **colours},
    )
    words = {"pad_token": "<pad>", "eos_token": "<end>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(write_tokenizer(Path("clip/t.json"))), **words
    )
    Path("clip/t.json").unlink()
    tokenizer.save_pretrained("clip")


def _saved(
    name: str, variant: Variant, processor: dict[str, object] | None = None, shards: str = "1GB"
) -> None:
    from support.builders import base

    library = base(variant).library()
    library.config.id2label = SEVEN
    library.save_pretrained(name, max_shard_size=shards)
    if processor is not None:
        Path(name, "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **processor}))


def _pickles() -> None:
    import torch
    from safetensors.torch import load_file

    state = load_file("timm/model.safetensors")
    torch.save(state, "w.pth")
    torch.save(state, "old.pth", _use_new_zipfile_serialization=False)
    options = argparse.Namespace(lr=0.1, betas=(0.9, 0.999), name="x")
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"state_dict": wrapped, "state_dict_ema": state, "epoch": 3, "args": options}, "last.ckpt")
    weights = load_file("bert/model.safetensors")
    names = sorted(weights)
    Path("bins").mkdir()
    files = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, own in files.items():
        torch.save({name: weights[name] for name in own}, f"bins/{file}")
    place = {name: file for file, own in files.items() for name in own}
    Path("bins/pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))


def _tables() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    draw = random.Random(0)  # noqa: S311 - the same each time
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
    _written("texts", rows)
    pq.write_table(pa.Table.from_pylist(rows), "texts.parquet")
    pictures = []
    for number, (form, options) in enumerate(FORMATS.items()):
        path = Path("images", "ab"[number % 2], f"{number}.{form}")
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.frombytes("L", (9, 9), draw.randbytes(81))
        image.save(path, **options)
        pictures.append({"image": str(path), "label": number % 2})
    _written("pictures", pictures)
    encoded = [{**row, "image": {"bytes": Path(row["image"]).read_bytes(), "path": None}} for row in pictures]
    pq.write_table(pa.Table.from_pylist(encoded), "pictures.parquet")
    for number, (text, label) in enumerate(zip(TEXTS, cycle("ab"), strict=False)):
        path = Path("texts", label, f"{number}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _written(name: str, rows: list[dict[str, object]]) -> None:
    Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [",".join(map(str, row.values())) for row in (dict.fromkeys(rows[0]), *rows)]
    lines[0] = ",".join(rows[0])
    Path(f"{name}.csv").write_text("\n".join(lines) + "\n")
