"""All readers of images agree with transformers on unusual files, and Pillow starts no program."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, ExifTags, Image, ImageFile, ImageOps
from transformers.image_utils import load_image

import hydractl
from hydractl.data.batches import batches, eval_batches
from hydractl.data.datasets import given_items
from hydractl.data.decoding import FORMATS, decode, upright
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.errors import DataError
from hydractl.exporting.comparison import undecoded
from hydractl.manifest.header import Preprocess
from hydractl.prediction.loaded_model import Encoder
from hydractl.training.feeding import Planned, open_source

HOW = Preprocess(input_size=(3, 8, 8), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 20 20
%%EndComments
{ } loop
%%EOF
"""


def turned(orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def damaged():
    """EXIF metadata that Pillow reads but cannot write."""
    exif = turned(6)
    exif[ExifTags.Base.Make] = "x" * 40
    return exif.tobytes()[:-30]


@pytest.fixture
def corpus(tmp_path, picture):
    """Unusual images below one folder."""
    root = tmp_path / "odd"
    root.mkdir()
    smooth = picture(0).resize((30, 20))
    for orientation in range(10):
        smooth.save(root / f"jpeg-{orientation}.jpg", exif=turned(orientation))
    for suffix in ("png", "webp", "tif", *(["avif"] if "AVIF" in FORMATS else [])):
        # Pillow detects the format from the content
        name = f"{suffix}-6.png" if suffix == "avif" else f"{suffix}-6.{suffix}"
        smooth.save(root / name, format=suffix.replace("tif", "tiff"), exif=turned(6))
    smooth.convert("CMYK").save(root / "cmyk-6.jpg", exif=turned(6))
    smooth.save(root / "damaged.jpg", exif=damaged())
    smooth.save(root / "two.jpg", "MPO", save_all=True, append_images=[smooth], exif=turned(8))
    palette = smooth.quantize(16)
    palette.save(root / "palette.png", transparency=bytes(range(0, 256, 16)))
    palette.save(root / "palette-one.png", transparency=3)
    palette.save(root / "moving.gif", save_all=True, append_images=[palette.rotate(90)], transparency=3)
    smooth.save(root / "moving.png", save_all=True, append_images=[smooth.rotate(90)])
    smooth.save(root / "moving.webp", save_all=True, append_images=[smooth.rotate(90)])
    for mode in ("1", "L", "LA", "RGBA"):
        smooth.convert(mode).save(root / f"{mode}.png")
    return sorted(root.iterdir())


def images(paths):
    return [Image.open(io.BytesIO(path.read_bytes())) for path in paths]


@pytest.mark.filterwarnings("ignore:Truncated File Read", "ignore:Palette images with Transparency")
def test_all_ways_to_an_input_are_those_of_transformers(corpus, tmp_path):
    transform, paths = eval_transform(HOW), [str(path) for path in corpus]
    loaded = [load_image(image) for image in images(corpus)]
    expected = torch.stack([transform(image) for image in loaded])
    (tmp_path / "list.csv").write_text("image,label\n" + "".join(f"odd/{path.name},a\n" for path in corpus))
    rows = [{"image": {"bytes": path.read_bytes(), "path": None}} for path in corpus]
    datasets.Dataset.from_list(rows, datasets.Features({"image": datasets.Image()})).to_parquet(
        tmp_path / "rows.parquet"
    )
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for i, path in enumerate(corpus):
            tar.add(path, f"{i:03d}.png")
    named = ["odd", "list.csv", "rows.parquet", "shard.tar"]
    sets = {name: open_data(str(tmp_path / name)) for name in named}
    sets["paths"] = given_items(paths, HOW)
    sets["images"] = given_items(images(corpus), HOW)
    every = torch.arange(len(corpus))

    for name, items in sets.items():
        (batch,) = eval_batches(items, HOW, batch_size=99)
        assert torch.equal(batch.inputs, expected), name
        (batch,) = batches(items, train_transform(HOW, ()), batch_size=99)
        assert torch.equal(batch.inputs, expected), name
        ((found,),) = open_source(items, HOW, augment=(), seed=0).steps([Planned(every, (every,))], epoch=0)
        assert torch.equal(found, expected), name
        pixels = [one.inputs[0].numpy() for one in undecoded(items, HOW)]
        assert torch.equal(torch.stack([transform(Image.fromarray(x)) for x in pixels]), expected), name
    assert torch.equal(Encoder(images=HOW, texts=None)(paths), expected)
    assert torch.equal(Encoder(images=HOW, texts=None)(loaded), expected)


@pytest.mark.filterwarnings("ignore:Truncated File Read", "ignore:Palette images with Transparency")
def test_the_exif_orientation_may_be_ignored(corpus, tmp_path):
    """torchvision's `ImageFolder` and timm ignore the orientation."""
    from torchvision.datasets.folder import pil_loader

    transform = eval_transform(HOW)
    ignored, applied = (open_data(f"{tmp_path}/odd{tail}") for tail in ("::exif=ignore", ""))

    (batch,) = eval_batches(ignored, HOW, batch_size=99)
    assert torch.equal(batch.inputs, torch.stack([transform(pil_loader(path)) for path in corpus]))
    assert ignored.fingerprint() != applied.fingerprint()
    digests = [[items.item_digest(i) for i in range(len(items))] for items in (ignored, applied)]
    # the sample digest, which detects shared samples of two sets, is the same
    assert digests[0] == digests[1]
    pixels = next(iter(undecoded(ignored.subset([paths_of(corpus).index("jpeg-6.jpg")]), HOW))).inputs
    assert pixels.shape == (1, 20, 30, 3)


def paths_of(corpus):
    return [path.name for path in corpus]


@pytest.mark.parametrize("orientation", range(10))
def test_an_upright_image_is_the_librarys(picture, orientation):
    data = io.BytesIO()
    picture(0).save(data, "PNG", exif=turned(orientation))
    image = Image.open(data)

    found = upright(image)

    assert np.array_equal(np.asarray(found), np.asarray(ImageOps.exif_transpose(image)))
    assert image.size == (9, 7)


def test_deep_images_are_refused_by_all(tmp_path):
    Image.new("I;16", (8, 8)).save(tmp_path / "deep.png")
    items = open_data(str(tmp_path))

    for ask in (
        lambda: list(eval_batches(items, HOW, batch_size=1)),
        lambda: list(undecoded(items, HOW)),
        lambda: Encoder(images=HOW, texts=None)([tmp_path / "deep.png"]),
    ):
        with pytest.raises(DataError, match=r"mode `I(;16)?` has more than 8 bits per channel"):
            ask()


@pytest.mark.parametrize("source", ["shard.tar", "rows.parquet", "bytes.parquet", "saved/", "list.csv"])
def test_an_image_in_any_storage_is_refused_before_it_is_decoded(tmp_path, monkeypatch, source):
    data = io.BytesIO()
    Image.new("RGB", (30, 20)).save(data, "PNG")
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        info = tarfile.TarInfo("1.HEIC")
        info.size = len(data.getvalue())
        tar.addfile(info, io.BytesIO(data.getvalue()))
    (tmp_path / "a.png").write_bytes(data.getvalue())
    (tmp_path / "list.csv").write_text("image\na.png\n")
    encoded_image = {"bytes": data.getvalue(), "path": None}
    rows = datasets.Dataset.from_list(
        [{"image": encoded_image}], datasets.Features({"image": datasets.Image()})
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.save_to_disk(tmp_path / "saved")
    datasets.Dataset.from_list([{"image": data.getvalue()}]).to_parquet(tmp_path / "bytes.parquet")

    assert open_data(f"{tmp_path}/{source}::max-item=1800", labelled=False).image(0).size == (30, 20)
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)  # the check reads the header only
    with pytest.raises(DataError, match="30 x 20 pixels with 3 channels, more than 1799 bytes") as refused:
        open_data(f"{tmp_path}/{source}::max-item=1799", labelled=False).image(0)
    assert refused.value.hint == "make the image smaller, or add `::max-item=1800` to the data"


def test_pillow_starts_no_program(tmp_path, monkeypatch, picture):
    """Pillow's reader of EPS, selected by content under any file name, runs Ghostscript."""
    log = tmp_path / "started"
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "gs"
    stub.write_text(f"#!/bin/sh\necho \"$@\" >> '{log}'\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # clear the cached result of an earlier search
    root = tmp_path / "pictures"
    root.mkdir()
    (root / "a.png").write_bytes(EPS)
    rows = [{"image": {"bytes": EPS, "path": None}, "label": 0}]
    datasets.Dataset.from_list(
        rows, datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    ).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "list.csv").write_text("image,label\npictures/a.png,x\n")
    asked = [open_data(str(tmp_path / name)) for name in ("pictures", "list.csv", "rows.parquet")]
    asked.append(given_items([root / "a.png"], HOW))

    for read in (*(items.image for items in asked), asked[0].item_digest):
        with pytest.raises(DataError, match="is not an image that can be decoded") as refused:
            read(0)
        assert refused.value.hint == (f"convert the image to a supported format: {', '.join(FORMATS)}")
    with pytest.raises(DataError, match="has an invalid label"):
        open_data(f"{tmp_path}/rows.parquet::label=image")
    assert not log.exists()

    with pytest.raises(subprocess.CalledProcessError):
        Image.open(io.BytesIO(EPS)).load()
    assert log.exists()  # proof that the stub records calls


def test_images_are_opened_in_one_place():
    package = Path(hydractl.__file__).parent

    assert [p.name for p in package.rglob("*.py") if "Image.open(" in p.read_text()] == ["decoding.py"]


def test_an_image_past_the_limit_of_pixels_is_told_the_limit(picture, monkeypatch):
    data = io.BytesIO()
    picture(0, size=(30, 20)).save(data, "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 250)

    with pytest.raises(DataError, match=r"a\.png: has more than 500 pixels, the limit of Pillow") as refused:
        decode(data.getvalue(), place="a.png")

    assert "`PIL.Image.MAX_IMAGE_PIXELS`" in refused.value.hint
