from __future__ import annotations

import pytest

from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import DataError


def test_text_and_reference_are_the_same():
    text = "digits::limit=20,split=val"

    assert open_data(text).fingerprint() == open_data(DataRef.parse(text)).fingerprint()


def test_fingerprint_is_pinned():
    # reports store fingerprints: after a change, old reports seem to be based on other data
    digest = "d9b31ea833969298965db00f9ce18122ac691f35a4d0e9f57f959f4bf2078ca6"

    assert open_data("digits::split=test").fingerprint() == f"sha256:{digest}"


def test_limit_keeps_every_class_of_sorted_data():
    assert set(open_data("digits::limit=200").labels) == set(range(10))


def test_limit_is_an_upper_bound():
    assert len(open_data("digits::split=test,limit=9999")) == len(open_data("digits::split=test"))


def test_a_folder_with_a_built_in_name_keeps_it(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    folder.rename("noise")

    assert open_data("./noise::classes=ant").name == "noise::classes=ant"


def test_subset_of_a_subset():
    digits = open_data("digits")
    inner = digits.subset((5, 9, 2)).subset((2, 0))

    assert inner.labels == (digits.labels[2], digits.labels[5])
    assert inner.image(0).tobytes() == digits.image(2).tobytes()
    assert inner.fingerprint() == digits.subset((2, 5)).fingerprint()
    assert inner.fingerprint() != digits.subset((5, 2)).fingerprint()


def test_subset_refuses_what_is_not_there():
    with pytest.raises(ValueError, match=r"outside 0\.\.1796"):
        open_data("digits").subset((1797,))
    with pytest.raises(DataError, match="photos: has no labels, so `classes=` has nothing to select"):
        open_data("photos").select_classes((0,))


def test_nothing_left(tmp_path, picture):
    import datasets

    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "never"]))
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"image": [picture(0)], "label": [0]}, features=features).to_parquet(
        str(tmp_path / "t.parquet")
    )
    datasets.enable_progress_bars()

    with pytest.raises(DataError, match=r"t\.parquet::classes=never: selects no image"):
        open_data(f"{tmp_path / 't.parquet'}::classes=never")


def test_parts_are_disjoint_and_have_all_items():
    """Parts of sorted data contain items from the whole range, have similar sizes, and do not change."""
    whole = open_data("digits::split=val,classes=0-6")
    parts = [open_data(f"digits::split=val,classes=0-6,part={k}/3") for k in (1, 2, 3)]
    numbers = [{id_of(part, i) for i in range(len(part))} for part in parts]

    assert sum(map(len, numbers)) == len(whole) == len(set.union(*numbers))
    assert all(abs(len(part) - len(whole) / 3) < 4 * (len(whole) * 2 / 9) ** 0.5 for part in parts)
    assert [*parts[0].places] == sorted(parts[0].places) != [*whole.places][:: len(parts)]
    assert [*open_data("digits::split=val,classes=0-6,part=1/3").places] == [*parts[0].places]
    limited = open_data("digits::split=val,classes=0-6,limit=10")
    halves = [open_data(f"digits::split=val,classes=0-6,limit=10,part={k}/2") for k in (1, 2)]
    assert sorted(place for half in halves for place in half.places) == [*limited.places]


def id_of(items, i):
    return items.places[i]
