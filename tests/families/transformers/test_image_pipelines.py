"""`predict` gives the probabilities of `pipeline("image-classification")` for images of all modes and sizes."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.cli.app import main

SIDE = 24
MODELS = {
    "vit": ("ViT", "ViTImageProcessor"),
    "dinov2": ("Dinov2", "BitImageProcessor"),
    "siglip": ("Siglip", "SiglipImageProcessor"),
}
"""Class prefixes of models, and image processors. ViT's processor does not convert to RGB, the others do."""
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
NAMES = dict(enumerate("abcde"))


def png(width, height, depth, color, rows, chunks=()):
    """Write a PNG file byte by byte. Pillow writes neither low depths nor 16 bits with a `tRNS` chunk."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Write images of all modes in two sizes. Return the paths."""
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for size in ((9, 14), (57, 40)):
        noise = random.integers(0, 256, (3, 4, 3), np.uint8)
        smooth = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
        name = root / f"{size[0]}"
        palette, grey = smooth.quantize(8), smooth.convert("L").point(lambda value: value // 32 * 32)
        coarse = smooth.point(lambda value: value // 64 * 64)
        alpha = Image.linear_gradient("L").resize(size)
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
            smooth.convert(mode).save(f"{name}-{mode}.png")
        smooth.putalpha(alpha)
        smooth.save(f"{name}-alpha.png")
        smooth.convert("LA").save(f"{name}-LA-alpha.png")
        smooth.save(f"{name}-alpha.webp", lossless=True)
        smooth.convert("PA").save(f"{name}-PA.tif")
        palette.convert("CMYK").save(f"{name}-CMYK.jpg")
        palette.convert("LAB").save(f"{name}-LAB.tif")
        palette.save(f"{name}-P-trns.png", transparency=2)
        palette.save(f"{name}-P-alpha.png", transparency=bytes([0, 90, 255, 0, 3, 200, 255, 9]))
        palette.save(f"{name}-gif.gif", transparency=2)
        grey.save(f"{name}-L-trns.png", transparency=grey.getpixel((0, 0)))
        grey.convert("1").save(f"{name}-1-trns.png", transparency=1)
        coarse.save(f"{name}-RGB-trns.png", transparency=coarse.getpixel((0, 0)))
        rows = random.integers(0, 256, (size[1], -(-size[0] // 4)), np.uint8)
        two_bits = [row.tobytes() for row in rows]
        trns = (b"tRNS", struct.pack(">H", 0))
        (root / f"{size[0]}-L2-trns.png").write_bytes(png(*size, 2, 0, two_bits, [trns]))
        deep = [np.repeat(np.asarray(row, np.uint8), 2).tobytes() for row in np.asarray(coarse)]
        trns = (b"tRNS", np.repeat(np.array(coarse.getpixel((0, 0)), np.uint8), 2).tobytes())
        (root / f"{size[0]}-RGB16-trns.png").write_bytes(png(*size, 16, 2, deep, [trns]))
    return root


def model_folder(folder, kind, converts):
    """Write a tiny model with a random classifier, and an image processor that converts to RGB or not."""
    import transformers

    torch.manual_seed(0)
    name, processor = MODELS[kind]
    if kind == "siglip":
        tower = TINY | {"image_size": SIDE, "patch_size": 8}
        config = transformers.SiglipConfig(vision_config=tower, text_config=TINY, id2label=NAMES)
    else:
        config = getattr(transformers, f"{name}Config")(
            **TINY, image_size=SIDE, patch_size=8, id2label=NAMES, mlp_ratio=2
        )
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    model.save_pretrained(folder)
    settings = {"image_processor_type": processor, "size": {"height": SIDE, "width": SIDE}, "resample": 3}
    if kind == "dinov2":
        settings |= {"size": {"shortest_edge": 28}, "crop_size": {"height": SIDE, "width": SIDE}}
    if converts is not None:
        settings["do_convert_rgb"] = converts
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def probabilities(path):
    """Return the probabilities of classes, by file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["path"]: {top["label"]: top["probability"] for top in row["top"]} for row in rows}


@pytest.mark.spread(cases=2)
@pytest.mark.newer  # transparent colours are white since transformers 5.21
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize(
    ("kind", "converts"),
    [("vit", None), ("vit", True), ("dinov2", None), ("dinov2", False), ("siglip", None)],
)
def test_predict_gives_the_probabilities_of_the_pipeline(kind, converts, pictures, tmp_path):
    import transformers

    folder = tmp_path / "model"
    model_folder(folder, kind, converts)
    answers = tmp_path / "answers.jsonl"
    assert main(["predict", str(folder), f"{pictures}/", "--top-k", "5", "-o", str(answers), "-q"]) == 0
    predicted = probabilities(answers)
    paths = sorted(map(str, pictures.iterdir()))
    assert sorted(predicted) == paths

    open_images = [
        Image.open(io.BytesIO(Path(path).read_bytes())) for path in paths
    ]  # the pipeline leaves files open
    assert main(["export", str(folder), "-o", f"{tmp_path}/export/", "-q"]) == 0
    for source in (folder, tmp_path / "export"):
        ask = transformers.pipeline("image-classification", model=str(source), top_k=5)
        for path, answer in zip(paths, ask(open_images), strict=True):
            assert {a["label"]: a["score"] for a in answer} == pytest.approx(predicted[path], abs=1e-5), path
    for items in (paths, open_images):
        for path, row in zip(paths, hydractl.load(folder).predict(items).probabilities.tolist(), strict=True):
            assert row == pytest.approx([predicted[path][name] for name in "abcde"], abs=1e-5), path
