"""Generated data of the benchmarks: published numbers depend on every pixel and word.

An independent parser, which shares only words with the generator, checks the labels of reviews.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data

WORDS = {
    1: "decent pleasant solid fine likeable fair neat enjoyable charming clever",
    2: "superb brilliant excellent wonderful outstanding perfect stunning flawless",
    -1: "dull weak flat bland clumsy tired uneven slow thin shallow",
    -2: "awful terrible dreadful horrible unbearable atrocious miserable disastrous",
}
STRENGTH = {word: value for value, words in WORDS.items() for word in words.split()}
WEIGHT = {"": 1, "and": 1, "while": 1, "but": 2, "although": 0.5}
TURNED = re.compile(r"\b(?:not|hardly|never|anything but|far from)\b")
LINK = re.compile(r"(and|but|while|although) (?=the )")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")


def read(review):
    """Return the class implied by the words of a review."""
    assert review.endswith(".")
    parts = LINK.split(review.rstrip("."))
    values = []
    for link, clause in zip(["", *parts[1::2]], parts[::2], strict=True):
        (judged,) = (STRENGTH[word] for word in clause.split() if word in STRENGTH)
        values.append(WEIGHT[link] * (-judged if TURNED.search(clause) else judged))
    return int((sum(values) or values[-1]) > 0)


@pytest.mark.parametrize(
    ("review", "label"),
    [
        ("the plot was dull and the cast was superb.", 1),
        ("the plot was superb but the cast was awful.", 0),
        ("the plot was superb although the cast was awful.", 1),
        ("the plot was anything but superb while the cast is quite dull.", 0),
        ("overall, the plot was far from awful although the cast was never truly awful.", 1),
        ("the plot was superb and the cast was awful.", 0),
        ("the plot was dull but the cast was fine and the hero is dull.", 0),
    ],
)
def test_the_reader(review, label):
    assert read(review) == label


def test_reviews_have_the_labels_of_their_words_but_for_one_in_thirty(tmp_path):
    from film_reviews import SETS, SUBJECTS, tokens, vocabulary, write_reviews

    write_reviews(tmp_path)
    found = {name: open_data(f"{tmp_path}/{name}.jsonl", content=Content.TEXTS) for name in SETS}
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    for name, (domain, _, count) in SETS.items():
        texts, labels = found[name].texts, found[name].labels
        wrong = sum(read(text) != label for text, label in zip(texts, labels, strict=True))
        words = {word for text in texts for word in re.findall(r"[a-z]+|[.,]", text)}
        assert (len(texts), found[name].class_names) == (count, ("negative", "positive"))
        assert 0.4 * count / 30 < wrong < 1.6 * count / 30
        assert abs(sum(labels) / count - 0.5) < 0.04
        assert words - {word for thing in SUBJECTS[domain] for word in thing.split()} <= {*vocabulary()}
    assert found["train"].texts[1] == "the camera work is hardly quite weak and the ending turned out dull."
    for text in found["val"].texts[:100]:
        assert tokenizer.encode(text).tokens == ["[CLS]", *re.findall(r"[a-z]+|[.,]", text), "[SEP]"]
    for text in found["hotels"].texts[:100]:
        assert "[UNK]" not in tokenizer.encode(text).tokens
    assert (tokenizer.get_vocab_size(), len({*tokens()})) == (146, 146)


def test_every_pair_is_known_or_novel_and_images_are_pinned(tmp_path, monkeypatch):
    import shapes

    first, second = (shapes.SETS[name][0] for name in ("near-val", "near"))
    pairs = {f"{colour} {shape}" for colour in shapes.COLOURS for shape in shapes.SHAPES}
    assert {*shapes.KNOWN, *first, *second} == pairs
    assert len(shapes.KNOWN) + len(first) + len(second) == len(pairs) == 36
    for part in (first, second, *(shapes.KNOWN[i : i + 6] for i in range(0, 24, 6))):
        for words in zip(*(name.split() for name in part), strict=True):
            assert len({*words}) == 6
    sha = hashlib.sha256()
    for name in ("red circle", "blue star", "green cross", "yellow ring", "purple triangle", "orange square"):
        image = shapes.draw(name, seed="test-0")
        assert (image.mode, image.size) == ("RGB", (shapes.SIZE, shapes.SIZE))
        sha.update(image.tobytes())
    assert sha.hexdigest()[:16] == "afa66aaba200c2a2"

    few = {name: (classes, 2) for name, (classes, _) in shapes.SETS.items()}
    monkeypatch.setattr(shapes, "SETS", few)
    drawn = shapes.write_shapes(tmp_path / "drawn")
    sets = {name: open_data(str(drawn / name)) for name in few}
    digests = [images.item_digest(i) for images in sets.values() for i in range(len(images))]
    assert len({*digests}) == len(digests) == 2 * (3 * 24 + 12)
    assert {name: {*images.class_names} for name, images in sets.items()} == {
        name: {*classes} for name, (classes, _) in few.items()
    }
    test = sets["test"]
    at = test.labels.index(test.class_names.index("red cross"))
    assert test.image(at).tobytes() == shapes.draw("red cross", seed="test-0").tobytes()
