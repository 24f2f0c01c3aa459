"""Columns with lists of labels: names, class indices, and a 0 or 1 for each class."""

from __future__ import annotations

import json

import pytest

from hydractl.data.datasets import Content
from hydractl.data.labels import check_training_labels, model_labels, required_labels
from hydractl.data.open_dataset import open_data
from hydractl.data.sources.columns import read_labels
from hydractl.errors import DataError
from hydractl.manifest.head_mask import TowerHeads
from hydractl.manifest.header import Architecture
from hydractl.progress import reporting
from hydractl.tasks import MULTI_LABEL
from support.progress_log import ProgressLog

NAMES, SETS = ("broken", "late"), ((0,), (), (0, 1))


def read(cells, names=None, separator=None):
    return read_labels(cells, names=names, place="t: column `labels`", separator=separator)


def write(path, cells):
    texts = [f"text {i}" for i in range(len(cells))]
    if path.suffix == ".csv":
        rows = (
            f'{text},"{json.dumps(cell).replace(chr(34), 2 * chr(34))}"'
            for text, cell in zip(texts, cells, strict=True)
        )
        path.write_text("\n".join(["text,labels", *rows]))
    elif path.suffix == ".jsonl":
        rows = ({"text": text, "labels": cell} for text, cell in zip(texts, cells, strict=True))
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": texts, "labels": cells}), path)
    return open_data(str(path), content=Content.TEXTS)


def architecture(number, *, multi_label=True):
    return Architecture(
        library="transformers",
        name="n",
        family="f",
        config={},
        towers={"text": TowerHeads(layers=1, num_heads=1, head_dim=1)},
        num_classes=number,
        problem_type="multi_label_classification" if multi_label else None,
    )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("cells", "names", "sets"),
    [
        ([["broken"], [], ["late", "broken"]], NAMES, SETS),
        ([["broken", "broken"], [], [" late", "broken"]], NAMES, SETS),
        ([[10], [], [2, 10]], ("2", "10"), ((1,), (), (0, 1))),
        ([[1, 0, 0], [0, 0, 0], [1, 0, 1]], ("0", "1", "2"), ((0,), (), (0, 2))),
        ([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], ("0", "1"), SETS),
        ([[0, 1], [0], [1]], ("0", "1"), ((0, 1), (0,), (1,))),  # different lengths mean class indices
    ],
)
def test_lists_are_label_sets(tmp_path, suffix, cells, names, sets):
    items = write(tmp_path / f"t{suffix}", cells)
    assert (items.class_names, items.task, items.labels) == (names, MULTI_LABEL, sets)
    assert items.numbered == names[0].isdigit()


def test_names_of_classes_may_be_declared():
    declared = read([[2], [0, 1], []], names=("a", "b", "c"))
    assert (declared.class_names, declared.labels) == (("a", "b", "c"), ((2,), (0, 1), ()))
    assert read([[True, False], [True, True]]).labels == ((0,), (0, 1))


@pytest.mark.parametrize(
    ("cells", "names", "message"),
    [
        ([["a"], "b"], None, "row 1 and others differ"),
        ([["a"], None], None, "row 1 and others differ"),
        (["a", ["b"]], None, "row 0 and others differ"),
        ([[0.5, 1]], None, "row 0 has an invalid label: 0.5"),
        ([["a"], [None]], None, "row 1 has an invalid label: None"),
        ([[-1]], None, "row 0 has label -1"),
        ([[3]], ("a", "b"), r"row 0 has label 3, which is no class number in 0..1"),
        ([["a"]], ("a", "b"), "row 0 has label a, which is no class number"),
        ([[], []], None, "every list of labels is empty"),
        ([[0, 1], [1, 0]], None, "every list is a 0 and a 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(cells, names, message):
    with pytest.raises(DataError, match=message):
        read(cells, names=names)


def test_labels_are_chosen_and_every_item_stays(tmp_path):
    write(tmp_path / "t.jsonl", [["late"], ["broken"], [], ["late", "broken", "lost"]])
    chosen = open_data(f"{tmp_path}/t.jsonl::classes=late+lost,map=late:delayed", content=Content.TEXTS)
    assert (chosen.class_names, chosen.labels) == (("delayed", "lost"), ((0,), (), (), (0, 1)))
    assert chosen.subset([3, 0]).labels == ((0, 1), (0,))
    assert model_labels(chosen, (1, 0), "--data", architecture=architecture(2)).tolist()[3] == [1, 1]
    with pytest.raises(DataError, match="selects 2 of the 3 labels of the model"):
        model_labels(chosen, (1, 0), "--data", architecture=architecture(3))
    reordered = open_data(f"{tmp_path}/t.jsonl::classes-by=alphabet", content=Content.TEXTS)
    assert len(model_labels(reordered, (0, 1, 2), "--data", architecture=architecture(4))) == 4


def test_the_fingerprint_is_of_the_labels_too(tmp_path):
    cells = [["late"], ["broken"]]
    found = {
        write(tmp_path / f"{i}.jsonl", c).fingerprint() for i, c in enumerate((cells, cells[::-1], [*"ab"]))
    }
    assert len(found) == 3


def test_labels_are_a_number_for_each_of_the_models(tmp_path):
    items = write(tmp_path / "t.jsonl", [["broken"], [], ["late", "broken"]])
    labels = model_labels(items, (2, 0), "--data", architecture=architecture(3))
    assert labels.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 1]]


def test_one_kind_of_labels_is_never_taken_for_the_other(tmp_path):
    several = write(tmp_path / "s.jsonl", [["broken"], ["late"]])
    one = write(tmp_path / "o.jsonl", ["broken", "late"])
    with pytest.raises(
        DataError, match="has a list of labels for each item, but `--data` needs one label for each item"
    ):
        required_labels(several, "--data")
    with pytest.raises(DataError, match="`--data` needs a list of labels for each item"):
        model_labels(one, (0, 1), "--data", architecture=architecture(2))
    assert model_labels(one, (1, 0), "--data", architecture=architecture(2, multi_label=False)).tolist() == [
        1,
        0,
    ]


@pytest.mark.parametrize("cells", [[["a"], ["a"]], [["a", "b"], ["b", "a"]], [["a"], []]])
def test_training_needs_two_labels_that_differ(tmp_path, cells):
    with pytest.raises(DataError, match="all have the same labels, but training needs at least two classes"):
        check_training_labels(write(tmp_path / "t.jsonl", cells), "--data")
    check_training_labels(write(tmp_path / "u.jsonl", [["a"], ["b"]]), "--data")


WORDS = ["bad", "it's", 'a "b"', "New York", ",", "]", "café"]


def written_by(writer, rows, tmp_path):
    """Write rows of lists to CSV with a library, and return the path."""
    import numpy as np
    import pandas as pd

    path = tmp_path / f"{writer}.csv"
    forms = {
        "json": json.dumps,
        "pandas": list,
        "tuples": tuple,
        "numpy": lambda row: np.array(row, dtype=object),
        "numpy strings": lambda row: [np.str_(x) if isinstance(x, str) else np.int64(x) for x in row],
    }
    frame = pd.DataFrame(
        {"text": [f"t{i}" for i in range(len(rows))], "labels": [forms[writer](row) for row in rows]}
    )
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("writer", ["json", "pandas", "tuples", "numpy", "numpy strings"])
def test_lists_that_programs_write_are_lists(tmp_path, writer):
    import numpy as np

    random = np.random.default_rng(0)
    sets = [[w for w in WORDS if random.random() < 0.4] for _ in range(40)]
    items = open_data(str(written_by(writer, sets, tmp_path)), content=Content.TEXTS)
    assert items.task is MULTI_LABEL
    assert [{items.class_names[i] for i in row} for row in items.labels] == [{*row} for row in sets]
    hot = [[int(w in row) for w in WORDS] for row in sets]
    items = open_data(str(written_by(writer, hot, tmp_path)), content=Content.TEXTS)
    assert [[int(i in row) for i in range(len(WORDS))] for row in items.labels] == hot


@pytest.mark.parametrize(
    "cell",
    [
        "[bad, long]",
        "['bad' 'long', 'late']",
        "['bad''long']",
        "['bad' ... 'long']",
        "{bad,long}",
        "array(['bad'], dtype=object)",
        "['bad', None]",
    ],
)
def test_lists_of_unknown_form_are_refused(cell):
    for cells in ([cell, "bad"], [["bad"], cell], [cell]):
        with pytest.raises(DataError, match=r"has an invalid label|row 1 and others differ"):
            read(cells)


@pytest.mark.parametrize("name", ["[UNK]", "(not rated)", "Korea, North", "f(x)"])
def test_names_in_brackets_are_names(name):
    assert read([name, "b"]).class_names == tuple(sorted([name, "b"]))


@pytest.mark.parametrize(
    ("separator", "option"),
    [("|", "|"), (";", ";"), (",", ","), (", ", "comma"), (" ", "space"), ("\t", "tab")],
)
def test_a_separator_makes_lists(tmp_path, separator, option):
    import pandas as pd

    path = tmp_path / "t.csv"
    cells = [separator.join(["late", "broken"]), "late", "", "broken"]
    pd.DataFrame({"text": ["a b c"] * 4, "label": cells}).to_csv(path, index=False)
    items = open_data(f"{path}::label-separator={option},map=late:slow", content=Content.TEXTS)
    assert (items.class_names, items.task) == (("broken", "slow"), MULTI_LABEL)
    assert items.labels == ((0, 1), (1,), (), (0,))


@pytest.mark.parametrize(
    ("names", "separator"),
    [
        (["bad", "long", "bad|long"], "|"),
        (["Comedy|Drama", "Action|Comedy"], "|"),
        (["1;2", "2"], ";"),
        (["bad, long", "long", "bad"], "comma"),
    ],
)
def test_names_that_look_like_several_labels_are_refused(names, separator):
    with pytest.raises(DataError, match="look like several labels in one cell") as caught:
        read(names)
    assert f"`::label-separator={separator}`" in caught.value.hint
    assert read(names, separator="none").class_names == tuple(sorted(names))


@pytest.mark.parametrize(
    "names",
    [
        ["Korea, North", "Korea, South"],
        ["sports|football", "sports|tennis", "sports"],
        ["a/b", "b"],
        ["1", "2"],
    ],
)
def test_names_with_separators_are_names(names):
    assert {*read(names).class_names} == {*names}


@pytest.mark.parametrize("name", ["alarm|other", "alarm;other"])
def test_a_name_that_may_be_several_labels_gives_a_warning_until_the_separator_is_named(name):
    def warnings_of(names, separator=None):
        with reporting(progress_log := ProgressLog()):
            read(names, separator=separator)
        return progress_log.warnings

    (warning,) = warnings_of(["alarm", name])
    assert f"reads `{name}` as one name" in warning
    assert f"`::label-separator={name[5]}`" in warning
    assert "`::label-separator=none`" in warning
    assert not warnings_of(["alarm", name], separator="none")
    assert not warnings_of(["alarm", "Korea, North"])
