"""Sample digests are equal for equal samples in any file format, and select the part of a sample."""

from __future__ import annotations

import csv
import io
import json
import tarfile

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from hydractl.data.datasets import Content, samples_in
from hydractl.data.decoding import MOST_COMPARED_PIXELS
from hydractl.data.open_dataset import open_data
from hydractl.data.words import by_word
from hydractl.manifest.document import MOST_CHARACTERS, merge_samples, pack_digests, unpack_digests
from support.reviews import tokenization

TEXTS = [f"text {i}, with a comma" for i in range(30)] + [
    "a\nline",
    "cafe\u0301",
    'a "quote"',
    "text 3, with a comma",
]
LABELS = ["good" if i % 3 else "bad" for i in range(len(TEXTS))]


def samples(reference, content=Content.TEXTS):
    items = open_data(str(reference), content=content)
    return samples_in(map(items.item_digest, range(len(items))))


def as_files(place, texts, labels):
    """Yield the same texts in each format."""
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    (place / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (place / "t.json").write_text(json.dumps(rows))
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        with (place / f"t{suffix}").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["label", "text"], delimiter=delimiter, lineterminator="\r\n")
            writer.writeheader()
            writer.writerows(rows)
    pd.DataFrame(rows).to_parquet(place / "t.parquet")
    for i, row in enumerate(rows):
        (place / "folder" / row["label"]).mkdir(parents=True, exist_ok=True)
        (place / "folder" / row["label"] / f"{i}.txt").write_text(row["text"] + "\n")
    return [place / name for name in ("t.jsonl", "t.json", "t.csv", "t.tsv", "t.parquet", "folder")]


@pytest.fixture
def places(tmp_path):
    """Two folders with the same texts, in different order and with different labels."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return [
        *as_files(tmp_path / "a", TEXTS, LABELS),
        *as_files(tmp_path / "b", [text.replace("e\u0301", "\u00e9") for text in TEXTS[::-1]], LABELS),
    ]


def test_equal_texts_are_equal_samples_in_any_format_and_order(places):
    first, *others = (sorted(samples(place)) for place in places)

    assert len({*first}) == len({*TEXTS}) == len(TEXTS) - 1
    assert all(other == first for other in others)


@pytest.mark.parametrize("parts", [2, 3])
def test_a_sample_is_in_the_same_part_of_any_file_order_and_subset(places, parts):
    part_of = {}
    for place in places:
        for options in ("", "limit=20", "classes=good"):
            whole = samples(f"{place}::{options}" if options else place)
            drawn = [
                samples(f"{place}::{options}{',' * bool(options)}part={k}/{parts}")
                for k in range(1, parts + 1)
            ]
            assert sorted(np.concatenate(drawn)) == sorted(whole)
            for number, part in enumerate(drawn):
                assert {part_of.setdefault(sample, number) for sample in part} <= {number}
    assert {*part_of.values()} == {*range(parts)}


def test_halves_of_a_half_are_quarters(places):
    quarters = [samples(f"{places[0]}::part={k}/4") for k in (1, 2)]

    assert sorted(np.concatenate(quarters)) == sorted(samples(f"{places[0]}::part=1/2"))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1"])
def test_equal_pixels_are_equal_samples_in_any_lossless_file(tmp_path, mode):
    random = np.random.default_rng(0)
    channels = 4 if mode == "RGBA" else 3  # TIFF does not support transparent palettes
    pixels = [random.integers(0, 256, (9, 7, channels), np.uint8) for _ in range(4)]
    pictures = [Image.fromarray(array).convert(mode) for array in pixels]
    for i, picture in enumerate(pictures):
        for name, form in (("png", "PNG"), ("copy", "PNG"), ("tif", "TIFF"), ("webp", "WEBP")):
            path = tmp_path / name / f"{10 - i if name == 'copy' else i}.{form.lower()}"
            path.parent.mkdir(exist_ok=True)
            saved = picture if form != "WEBP" else picture.convert("RGBA")
            saved.save(path, form, **({"lossless": True, "exact": True} if form == "WEBP" else {}))
    rows = {"image": [{"bytes": path.read_bytes()} for path in sorted((tmp_path / "tif").iterdir())]}
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "t.parquet"))
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for path in sorted((tmp_path / "png").iterdir()):
            tar.add(path, path.name)
    places = [tmp_path / name for name in ("png", "copy", "tif", "webp", "t.parquet", "t.tar")]

    first, *others = (sorted(samples(place, Content.IMAGES)) for place in places)

    assert len({*first}) == 4
    assert all(other == first for other in others)


def test_large_and_deep_images_are_identified_by_their_files(tmp_path):
    """Images with 16 bits are not converted to 8 bits, because different images could then be equal."""
    side = int(MOST_COMPARED_PIXELS**0.5) + 1
    deep = [Image.fromarray(np.full((4, 4), value, np.uint16)) for value in (1000, 50000)]
    for i, picture in enumerate([Image.new("L", (side, side), 3), Image.new("L", (side, side), 4), *deep]):
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir(exist_ok=True)
            picture.save(tmp_path / folder / f"{i if folder == 'a' else 9 - i}.png")

    first, second = (sorted(samples(tmp_path / folder, Content.IMAGES)) for folder in ("a", "b"))

    assert first == second
    assert len({*first}) == 4


def test_words_are_samples_by_their_text_whatever_their_tags_and_windows(tmp_path):
    rows = [["the", "film", "was", "good"] * (1 + 9 * (i % 2)) + ["very"] * i for i in range(6)]
    tags = {"all": lambda i: i % 2, "some": lambda i: -100 if i % 3 else 1}
    for name, tag in tags.items():
        lines = [{"tokens": words, "ner_tags": [tag(i) for i in range(len(words))]} for words in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "t.conll").write_text("\n\n".join("\n".join(f"{w} O" for w in words) for words in rows[::-1]))
    (tmp_path / "t.txt.csv").write_text("text\n" + "\n".join(" ".join(words) for words in rows))

    first, *others = (
        sorted(samples(tmp_path / name)) for name in ("all.jsonl", "some.jsonl", "t.conll", "t.txt.csv")
    )
    windows = by_word(
        open_data(str(tmp_path / "all.jsonl"), content=Content.TEXTS),
        tokenization(max_length=12, by_word=True),
    )

    assert len({*first}) == 6
    assert all(other == first for other in others)
    assert len(windows) > 6
    assert sorted(samples_in([windows.item_digest(i) for i in windows.firsts])) == first


def test_a_record_holds_each_sample_once_and_the_union_of_records_all_of_them():
    first, second = np.array([5, 1, 5, 2**63], "<u8"), np.array([1, 7], "<u8")

    assert unpack_digests(pack_digests(first)).tolist() == [1, 5, 2**63]
    assert merge_samples({"a": pack_digests(first), "b": pack_digests(second)}, {"a": pack_digests(second)}) == {
        "a": pack_digests(np.array([1, 5, 7, 2**63], "<u8")), "b": pack_digests(second),
    }  # fmt: skip
    assert merge_samples() == {}


def test_a_record_stays_below_what_a_header_can_hold(monkeypatch):
    monkeypatch.setattr("hydractl.manifest.document.MOST_CHARACTERS", 40)
    small, large = (pack_digests(np.arange(count, dtype="<u8")) for count in (2, 5))

    assert merge_samples({"a": large}, {"b": small}) == {"b": small}
    assert MOST_CHARACTERS < 100_000_000


def test_bytes_of_images_in_memory_and_in_files_are_one_sample(tmp_path):
    digits = open_data("digits::limit=5")
    for i in range(5):
        buffer = io.BytesIO()
        digits.image(i).save(buffer, "PNG")
        (tmp_path / f"{i}.png").write_bytes(buffer.getvalue())

    assert samples("digits::limit=5", Content.IMAGES).tolist() == samples(tmp_path, Content.IMAGES).tolist()
