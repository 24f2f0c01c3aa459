from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, features

from hydractl.data.batches import eval_batches
from hydractl.data.decoding import FORMATS
from hydractl.data.open_dataset import open_data, open_items
from hydractl.data.reference import IMAGE_SUFFIXES
from hydractl.errors import DataError
from hydractl.manifest.header import Preprocess


def test_classes_are_sub_folders(folder, picture):
    images = open_data(str(folder))

    assert images.class_names == ("ant", "bee")
    assert images.labels == (0, 0, 0, 1, 1)
    assert images.name == "insects"
    for i in range(5):
        assert np.array_equal(np.asarray(images.image(i)), np.asarray(picture(i)))


def test_a_class_whose_name_is_not_utf_8_can_be_written_down(folder):
    (folder / "bee").rename(os.fsdecode(os.fsencode(folder) + b"/b\xff"))

    images = open_data(str(folder))

    assert images.class_names == ("ant", "b\\xff")
    assert images.image(4)


def test_loose_images_have_no_labels(folder):
    images = open_data(str(folder / "ant"))

    assert (len(images), images.labels, images.class_names) == (3, None, ())


@pytest.mark.parametrize("suffix", ["PNG", "jpg", "JPEG", "bmp", "webp", "tif", "TIFF", "ppm", "gif", "avif"])
def test_suffixes(tmp_path, picture, suffix):
    if suffix == "avif" and not features.check("avif"):
        pytest.skip("Pillow without AVIF")
    picture(0, size=(8, 8)).save(tmp_path / f"x.{suffix}")

    assert open_data(str(tmp_path)).image(0).size == (8, 8)


def test_split_picks_a_sub_folder(folder):
    images = open_data(f"{folder.parent}::split=insects")

    assert images.class_names == ("ant", "bee")
    assert images.name == f"{folder.parent.name}::split=insects"
    assert images.fingerprint() == open_data(str(folder)).fingerprint()


def test_classes_and_limit(folder):
    bees = open_data(f"{folder}::classes=bee")
    second = open_data(f"{folder}::classes=1")
    spread = open_data(f"{folder}::limit=2")

    assert (bees.class_names, bees.labels) == (("bee",), (0, 0))
    assert bees.fingerprint() == second.fingerprint()
    assert spread.labels == (0, 1)


def test_each_file_that_is_no_image_is_said(folder, progress_log):
    """Files added by operating systems are ignored. A FIFO is not opened."""
    (folder / "notes.txt").write_text("x")
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
        (folder / "ant" / name).write_bytes(b"x")
    (folder / "ant" / "page.eps").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    )
    os.mkfifo(folder / "bee" / "pipe")

    images = open_data(str(folder))

    assert len(images) == 5
    assert progress_log.warnings == [
        f"{folder}: skipped files that are not images (3): `notes.txt`, `ant/page.eps`, `bee/pipe`"
    ]


@pytest.mark.parametrize("name", ["a.jfif", "b.jpe", "c.pgm", "d.HEIC", "e", "f.apng", "g.txt"])
def test_images_are_detected_by_content(tmp_path, picture, name, progress_log):
    """File names have no influence."""
    form = {".jfif": "JPEG", ".jpe": "JPEG", ".pgm": "PPM"}.get(Path(name).suffix, "PNG")
    for folder in ("ant", "bee"):
        (tmp_path / folder).mkdir()
        picture(0, size=(8, 8)).save(tmp_path / folder / "0.png")
    picture(1, size=(8, 8)).save(tmp_path / "ant" / name, form)

    images = open_data(str(tmp_path))

    assert (len(images), images.labels) == (3, (0, 0, 1))
    assert [images.image(i).size for i in range(3)] == [(8, 8)] * 3
    assert not progress_log.warnings


def test_suffixes_of_images_are_those_of_pillow():
    Image.init()
    registered = {suffix for suffix, form in Image.registered_extensions().items() if form in FORMATS}
    assert registered - {".pfm", ".mpo"} == {*IMAGE_SUFFIXES}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_is_refused_by_its_decoded_size_before_it_is_decoded(tmp_path, monkeypatch, workers):
    Image.new("RGB", (300, 200)).save(tmp_path / "a.png")
    preprocess = Preprocess(input_size=(3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    size = 300 * 200 * 3

    def read(limit):
        items = open_items(f"{tmp_path}::max-item={limit}", preprocess, labelled=False, workers=workers)
        return next(iter(eval_batches(items, preprocess, batch_size=1, limit_bytes=0))).inputs.shape

    assert read(size) == (1, 3, 8, 8)
    with pytest.raises(
        DataError, match=r"300 x 200 pixels with 3 channels, more than 179999 bytes"
    ) as caught:
        read(size - 1)
    assert caught.value.hint == f"make the image smaller, or add `::max-item={size}` to the data"
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)  # the check reads the header only
    with pytest.raises(DataError, match="more than 100 bytes"):
        open_data(f"{tmp_path}::max-item=100", labelled=False).image(0)


def test_fingerprint_knows_no_place(folder, tmp_path):
    before = open_data(str(folder)).fingerprint()
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "copy")
    os.utime(copy / "ant" / "0.png", (1, 1))

    assert before.startswith("sha256:")
    assert open_data(str(copy)).fingerprint() == before
    assert open_data(os.path.relpath(copy)).fingerprint() == before


@pytest.mark.parametrize("change", ["byte", "move", "remove"])
def test_fingerprint_knows_the_content(folder, change):
    before = open_data(str(folder)).fingerprint()
    file = folder / "ant" / "0.png"

    if change == "byte":
        file.write_bytes(file.read_bytes() + b"\0")
    elif change == "move":
        file.rename(folder / "bee" / "0.png")
    else:
        file.unlink()

    assert open_data(str(folder)).fingerprint() != before


def test_fingerprint_knows_the_selection(folder):
    texts = [
        str(folder),
        f"{folder}::limit=4",
        f"{folder}::classes=ant",
        f"{folder}::classes=bee",
        f"{folder}/ant",
    ]

    assert len({open_data(text).fingerprint() for text in texts}) == len(texts)


def test_missing_folder():
    with pytest.raises(DataError, match="digit: no such folder or file") as caught:
        open_data("digit")
    assert caught.value.hint == "did you mean `digits`?"

    with pytest.raises(DataError) as caught:
        open_data("/no/where")
    assert "a folder with one sub-folder a class" in caught.value.hint


def test_a_file_that_is_no_table(folder):
    with pytest.raises(DataError, match="is neither a folder nor a data file"):
        open_data(str(folder / "ant" / "0.png"))


def test_missing_split(folder):
    with pytest.raises(DataError, match="has no split `ants`; it has `ant`, `bee`") as caught:
        open_data(f"{folder}::split=ants")
    assert caught.value.hint == "did you mean `ant`?"

    with pytest.raises(DataError, match="it has no sub-folders"):
        open_data(f"{folder}/ant::split=train")


def test_empty_folder(tmp_path):
    with pytest.raises(DataError, match="has no image") as caught:
        open_data(str(tmp_path))
    assert ".webp" in caught.value.hint


def test_empty_class(folder):
    (folder / "cow").mkdir()

    with pytest.raises(DataError, match="class folder `cow` has no image") as caught:
        open_data(str(folder))
    assert caught.value.hint == f"add images to it, or move it out of `{folder}`"


def test_forgotten_split(folder, tmp_path):
    with pytest.raises(DataError, match="`insects` may be splits or classes") as caught:
        open_data(str(folder.parent))
    assert "add `::split=insects`" in caught.value.hint

    for split in ("train", "Val"):
        shutil.copytree(folder, tmp_path / "both" / split)
    with pytest.raises(DataError, match="`Val`, `train` may be splits or classes"):
        open_data(str(tmp_path / "both"))


@pytest.fixture
def nested(folder, picture):
    """Images at every depth, with names that sort before and after `/`, and a folder added by macOS."""
    for i, name in enumerate(
        ["bee/a/x.png", "bee/a/b/x.png", "bee/a-b/x.png", "cow/deep/down/x.jpg", "ant/9/x.png"]
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture(i, size=(8, 8)).save(folder / name)
    (folder / "bee" / "a" / "notes.md").write_text("x")
    shutil.copytree(folder / "bee", folder / "__MACOSX" / "bee")
    return folder


def test_images_below_a_class_are_those_of_torchvision(nested, progress_log):
    from torchvision.datasets import ImageFolder

    images = open_data(str(nested))

    shutil.rmtree(nested / "__MACOSX")  # torchvision reads this folder as a class
    theirs = ImageFolder(str(nested))
    assert [(images.key(i), images.labels[i]) for i in range(len(images))] == theirs.samples
    assert list(images.class_names) == theirs.classes
    assert progress_log.warnings == [f"{nested}: skipped files that are not images (1): `bee/a/notes.md`"]


def test_a_folder_holds_the_same_images_with_and_without_labels(nested):
    (nested / "bee" / "back").symlink_to(nested / "bee")
    (nested / "bee" / "up").symlink_to(nested)  # a link to the parent would add the images of other classes

    labelled, unlabelled = (open_data(str(nested), labelled=each) for each in (True, False))

    keys = [[images.key(i) for i in range(len(images))] for images in (labelled, unlabelled)]
    assert len(keys[0]) == 10
    assert keys[0] == keys[1]


def test_a_digest_is_of_the_content_alone(folder, tmp_path):
    """An image has the same digest under any name, in a folder and in a table."""
    (tmp_path / "ant").mkdir()
    shutil.copy(folder / "ant" / "1.png", tmp_path / "ant" / "renamed.png")
    (tmp_path / "rows.csv").write_text("image,label\nant/renamed.png,ant\n")

    digests = [open_data(ref).item_digest(0) for ref in (str(tmp_path / "ant"), str(tmp_path / "rows.csv"))]

    assert digests == [open_data(str(folder)).item_digest(1)] * 2


def test_images_beside_classes(folder, picture):
    picture(0).save(folder / "loose.png")

    with pytest.raises(DataError, match=r"contains both images \(`loose.png`\) and sub-folders \(`ant`\)"):
        open_data(str(folder))


def test_unknown_class(folder):
    with pytest.raises(DataError, match="have no class `wasp`; their 2 classes are `ant`, `bee`"):
        open_data(f"{folder}::classes=wasp")


def test_classes_need_labels(folder):
    with pytest.raises(DataError, match="ant: has no labels, so `classes=` has nothing to select"):
        open_data(f"{folder}/ant::classes=ant")


@pytest.mark.parametrize("damage", ["text", "truncated", "empty"])
def test_corrupt_image_is_named(folder, damage):
    file = folder / "ant" / "1.png"
    file.write_bytes({"text": b"not an image", "truncated": file.read_bytes()[:-60], "empty": b""}[damage])
    images = open_data(str(folder))

    with pytest.raises(DataError, match=r"ant/1\.png: is not an image that can be decoded"):
        images.image(1)


def test_an_image_without_pixels_is_named(folder):
    """`Image.verify` of Pillow raises unusual exceptions if a PNG has no pixel data."""
    file = folder / "ant" / "1.png"
    data = file.read_bytes()
    file.write_bytes(data[:33] + data[-12:])  # header chunk and end chunk

    with pytest.raises(DataError, match=r"ant/1\.png: is not an image that can be decoded"):
        open_data(str(folder)).item_digest(1)


def test_image_removed_meanwhile(folder):
    images = open_data(str(folder))
    (folder / "ant" / "1.png").unlink()

    with pytest.raises(DataError, match=r"ant/1\.png: cannot be read: No such file"):
        images.image(1)


def test_a_file_that_only_says_it_is_an_image_is_found_by_the_digest(folder):
    (folder / "bee" / "0.png").write_text("not one")

    with pytest.raises(DataError, match=r"bee/0\.png: is not an image that can be decoded"):
        open_data(f"{folder}::classes=bee").fingerprint()
    assert open_data(f"{folder}::classes=ant").fingerprint()
