"""Shards: tar files in the layout of webdataset."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest
import torch
from PIL import Image

from hydractl.data.batches import batches
from hydractl.data.datasets import Content
from hydractl.data.decoding import FORMATS
from hydractl.data.open_dataset import open_data, with_workers
from hydractl.data.preprocess import eval_transform
from hydractl.data.sources.webdataset import expanded
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Preprocess

EVAL = eval_transform(Preprocess(input_size=(3, 8, 6), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)))


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\0IDAT"
"""First bytes of a PNG of 1 x 1 pixels."""


def write(path, members):
    """Write a tar file of members by name. Values are bytes, texts or JSON."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, value in members.items():
            text = value if isinstance(value, bytes | str) else json.dumps(value)
            data = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def encoded(picture):
    def encode(seed):
        data = io.BytesIO()
        picture(seed).save(data, "png")
        return data.getvalue()

    return encode


@pytest.fixture
def shards(tmp_path, encoded):
    """Two shards, with three and two samples."""
    root = tmp_path / "shards"
    for number, seeds in enumerate([(0, 1, 2), (3, 4)]):
        members = {"._a": b"junk", "./readme": "no sample"}
        for seed in seeds:
            members |= {
                f"x/{seed}.cls": str(seed % 2),
                f"x/{seed}.png": encoded(seed),
                f"x/{seed}.json": {"kind": f"k{seed}", "n": 1.5},
            }
        write(root / f"s-{number:02d}.tar", members)
    return root


@pytest.mark.parametrize("named", ["s-{00..01}.tar", "s-{00,01}.tar", ""])
def test_samples_come_in_the_order_of_shards_and_members(shards, picture, named):
    items = open_data(f"{shards}/{named}")

    assert [items.image(i).tobytes() for i in range(5)] == [picture(seed).tobytes() for seed in range(5)]
    assert items.labels == (0, 1, 0, 1, 0)
    assert (items.class_names, items.numbered) == (("0", "1"), True)
    assert items.item_digest(3) == open_data(f"{shards}/s-01.tar").item_digest(0)


def test_a_key_of_the_json_is_a_column(shards):
    items = open_data(f"{shards}/s-00.tar::label=kind,limit=2")

    assert items.class_names == ("k0", "k1", "k2")
    assert items.labels == (0, 2)
    with pytest.raises(DataError, match="has no column `kin`"):
        open_data(f"{shards}/s-00.tar::label=kin")


def test_labels_may_be_in_json_alone_and_lacking(tmp_path, encoded):
    write(
        tmp_path / "a.tar",
        {"1.jpg": encoded(1), "1.json": {"label": "cat"}, "2.jpg": encoded(2), "2.json": {"label": "ant"}},
    )
    write(tmp_path / "b.tar", {"1.jpg": encoded(1), "2.jpg": encoded(2), "2.json": {"label": "ant"}})

    assert open_data(str(tmp_path / "a.tar")).labels == (1, 0)
    assert open_data(str(tmp_path / "b.tar")).labels is None
    assert open_data(str(tmp_path / "a.tar"), labelled=False).labels is None


def test_texts(tmp_path):
    write(tmp_path / "a.tar", {"1.txt": "one", "1.cls": "good", "2.txt": "two", "2.cls": "bad"})
    items = open_data(str(tmp_path / "a.tar"), content=Content.TEXTS)

    assert (items.texts, items.class_names, items.labels) == (("one", "two"), ("bad", "good"), (1, 0))


def image_bytes(image, form):
    data = io.BytesIO()
    image.save(data, form)
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "form"),
    [*(("1.HEIC", form) for form in FORMATS), *((name, "PNG") for name in ("1", "1.v2.jpg", "./a/1.x"))],
)
def test_images_are_detected_by_content(tmp_path, picture, progress_log, name, form):
    """Members have an unknown suffix, no suffix, or a second dot in the name."""
    data = image_bytes(picture(1), form)
    label = f"{name.rpartition('/')[0]}/1.cls".lstrip("/")
    write(
        tmp_path / "a.tar",
        {name: data, label: "cat", "2.png": image_bytes(picture(2), "PNG"), "2.cls": "ant"},
    )

    items = open_data(str(tmp_path / "a.tar"))

    assert (len(items), items.class_names, items.labels) == (2, ("ant", "cat"), (1, 0))
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    assert items.image(0).convert("RGB").tobytes() == expected.tobytes()
    assert not progress_log.warnings


def test_every_skipped_member_is_listed(tmp_path, encoded, progress_log):
    """Hidden members and files added by operating systems are ignored, like in folders."""
    write(
        tmp_path / "set" / "a.tar",
        {
            "1.png": encoded(1), "1.seg.png": encoded(2), "1.wnid": "n01", "1.cls": "0", "1.json": {"label": 1},
            "README.md": "x", "page.eps": "%!PS-Adobe-3.0 EPSF-3.0", "empty.json": {}, ".hidden.png": encoded(3),
            "__MACOSX/1.png": encoded(3), "x/Thumbs.db": "x", ".git/9.png": encoded(3), "../2.png": encoded(4),
            "../2.cls": "1", "3.HEIC": encoded(5), "3.cls": "1",
        },
    )  # fmt: skip
    with tarfile.open(tmp_path / "set" / "a.tar", "a") as tar:
        for name, kind in (("4.png", tarfile.LNKTYPE), ("5.png", tarfile.SYMTYPE), ("f/", tarfile.DIRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "1.png"
            tar.addfile(info)
    skipped = ["1.seg.png", "1.wnid", "README.md", "page.eps", "empty.json", "4.png", "5.png"]
    names = ", ".join(f"`a.tar/{name}`" for name in skipped)
    members = f"skipped members without an image, text or label (7): {names}"

    items = open_data(f"{tmp_path}/set/a.tar")

    assert len(items) == 3
    assert progress_log.warnings == [f"{tmp_path}/set/a.tar: {members}"]
    progress_log.warnings.clear()
    (tmp_path / "set" / "0.png").write_bytes(encoded(1))
    (tmp_path / "set" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "set" / "val").mkdir()
    assert len(open_data(f"{tmp_path}/set/")) == 3
    beside = f"{tmp_path}/set/: skipped entries beside the shards (2): `0.png`, `val`"
    assert progress_log.warnings == [beside, f"{tmp_path}/set/: {members}"]


def test_workers_read_shards_themselves(shards):
    items = open_data(f"{shards}/")
    alone, apart = (
        list(batches(with_workers(items, count), EVAL, batch_size=2, indices=[4, 0, 3])) for count in (0, 2)
    )

    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(alone, apart, strict=True))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.png": b"x", "1.cls": "1", "2.png": b"x"}, r"`/2` has no `label`, but others have one"),
        ({"1.png": b"x", "1.cls": "1", "2.cls": "2"}, "has no image, unlike earlier samples"),
        ({"1.cls": "1", "2.cls": "2", "2.png": b"x"}, "has an image, unlike earlier samples"),
        ({"1.png": b"x", "1.jpg": b"x"}, "has two files for `image`"),
        ({"1.a.png": PNG, "1.b.png": PNG}, "has two files for `image`"),
        ({"1.png": b"x", "1.cls": b"\xff"}, "is not UTF-8 text"),
        ({"1.png": b"x", "1.json": "[1]"}, "is not a JSON object"),
        ({"1.png": b"x", "1.json": "{"}, "is not JSON"),
        ({"1.png": b"x", "1.cls": "9" * (1 << 24) + "9"}, "is larger than"),
        ({"readme": b"x"}, "has no rows"),
    ],
)
def test_bad_samples(tmp_path, members, message):
    write(tmp_path / "a.tar", members)
    with pytest.raises(DataError, match=message):
        open_data(str(tmp_path / "a.tar"))


def test_bad_shards(shards):
    whole = (shards / "s-00.tar").read_bytes()
    items = open_data(f"{shards}/s-00.tar")
    (shards / "s-00.tar").write_bytes(whole[:3000])
    with pytest.raises(DataError, match=r"s-00\.tar: ends before byte"):
        items.image(2)
    (shards / "s-00.tar").write_bytes(b"junk" * 999)
    with pytest.raises(DataError, match=r"s-00\.tar: cannot be read as a tar file"):
        open_data(f"{shards}/")
    with pytest.raises(DataError, match=r"s-02\.tar: no such file"):
        open_data(f"{shards}/s-{{01..02}}.tar")


def header(name, size, kind=tarfile.REGTYPE):
    """Return a tar header with a size, either a number or the twelve bytes of the field."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def large(number):
    return b"\x80" + number.to_bytes(11, "big")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (header("9.png", 4096), r"`9\.png` has 4096 bytes in its header"),
        (header("readme", 10**9), r"`readme` has 1000000000 bytes in its header"),
        (header("9.png", large(2**60)), r"`9\.png` has 1152921504606846976 bytes in its header"),
        (header("readme", b"\xff" * 10 + b"\xfa\0"), r"`readme` has -1536 bytes in its header"),
        (header("././@LongLink", large(2**60), tarfile.GNUTYPE_LONGNAME), "cannot be read as a tar file"),
        (header("././@LongLink", large(2**80), tarfile.GNUTYPE_LONGNAME), "cannot be read as a tar file"),
        (header("pax", large(2**60), tarfile.XHDTYPE), "cannot be read as a tar file"),
        (header("9.png", 0, tarfile.GNUTYPE_SPARSE), r"`9\.png` is stored as a sparse file"),
    ],
)
def test_false_sizes(tmp_path, encoded, block, message):
    write(tmp_path / "a.tar", {"1.png": encoded(1)})
    whole = (tmp_path / "a.tar").read_bytes()[:1024]
    (tmp_path / "a.tar").write_bytes(whole + block + b"\0" * 2048)

    with pytest.raises(DataError, match=message):
        open_data(str(tmp_path / "a.tar"))


def test_braces():
    assert expanded("a{8..10}b{x,y}.tar") == [f"a{n}b{c}.tar" for n in ("8", "9", "10") for c in "xy"]
    assert expanded("{008..010}") == ["008", "009", "010"]
    for pattern in ("{2..1}.tar", "{0..99999999}.tar", "{0..999}{0..999}.tar"):
        with pytest.raises(UsageError, match="shards"):
            expanded(pattern)


def test_memory_holds_no_image(tmp_path, encoded):
    data = encoded(0)
    write(tmp_path / "a.tar", {f"{i}.png": data for i in range(50)})
    items = open_data(str(tmp_path / "a.tar"))

    assert items.store.source(7).size == len(data)
    assert hashlib.sha256(data).digest() == items.item_digest(7)[:32]
