"""Results by class equal rows of scikit-learn's confusion matrix; with many classes the worst are selected."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix

from hydractl.manifest.terms import MOST_CLASSES, MOST_CONFUSIONS
from hydractl.metrics.curves import by_class


@given(st.integers(2, 130), st.integers(1, 400), st.integers(0, 99))
def test_it_is_the_confusion_matrix_of_the_worst_classes(classes, samples, seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=samples)
    predicted = np.where(draw.random(samples) < 0.4, draw.integers(classes, size=samples), labels)
    names = [f"class {i}" for i in range(classes)]
    matrix = confusion_matrix(labels, predicted, labels=range(classes))

    found = by_class(torch.tensor(predicted), torch.tensor(labels), names)

    there = [i for i in range(classes) if matrix[i].sum()]
    worst = sorted(sorted(there, key=lambda i: (matrix[i, i] / matrix[i].sum(), i))[:MOST_CLASSES])
    assert [c.index for c in found.classes] == worst
    assert [(c.name, c.count, c.hits) for c in found.classes] == [
        (names[i], matrix[i].sum(), matrix[i, i]) for i in worst
    ]
    assert found.total == len(there)
    wrong = {
        (names[i], names[j]): matrix[i, j] for i in there for j in range(classes) if i != j and matrix[i, j]
    }
    assert [c.count for c in found.confusions] == sorted(wrong.values(), reverse=True)[:MOST_CONFUSIONS]
    assert all(wrong[c.label, c.answer] == c.count for c in found.confusions)


def test_other_rows_show_the_classes_of_the_first():
    labels = torch.tensor([0, 0, 1, 1, 3])
    names = list("abcd")
    first = by_class(torch.tensor([0, 1, 1, 1, 0]), labels, names)
    other = by_class(torch.tensor([0, 0, 2, 0, 3]), labels, names, same_classes_as=first)

    assert [c.name for c in first.classes] == ["a", "b", "d"]
    assert [(c.name, c.count, c.hits) for c in other.classes] == [("a", 2, 2), ("b", 2, 0), ("d", 1, 1)]
