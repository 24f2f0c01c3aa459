"""Classical baselines on pixels, on the data of `promise.py`: the nearest neighbour and logistic regression.

    python benchmarks/classical.py digits --seeds 41 42 43 44 45 46 47 48 49 50
    python benchmarks/classical.py fashion --idx FOLDER --work promise/ --seeds 51 52 53 54 55

Pixels are grey values in [0, 1]. The nearest neighbour answers with the class of the closest training image
(Euclidean); probabilities are a softmax over the negative squared distances to the closest image of each class.
Logistic regression has the L2 penalty with the lowest NLL on the validation data. Both have a temperature fitted
on the validation data, as the rows of `promise.py` have. OOD scores are the distance to the closest training image,
and the negative maximum softmax. Seeds change the noise only. The table has means over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from promise_plan import Data
from promise_tasks import digits, fashion
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from hydractl.data.datasets import ImageSet, of_kind
from hydractl.data.labels import required_labels
from hydractl.data.open_dataset import open_data
from hydractl.metrics.classification import ece
from hydractl.metrics.temperature import fit_temperature

PENALTIES = tuple(10.0**power for power in range(-3, 4))
"""Values of scikit-learn's `C`, the inverse of the penalty."""
COLUMNS = ("accuracy", "NLL", "ECE", "near", "far")

Predictions = tuple[np.ndarray, np.ndarray]
"""Scores of classes (N, C) for a softmax, and OOD scores (N,)."""
Method = Callable[[np.ndarray], Predictions]


def pixels(reference: str) -> np.ndarray:
    """Return the grey pixels of a data set, shape (N, D), in [0, 1]."""
    images = of_kind(open_data(reference), ImageSet)
    return np.stack([np.asarray(images.image(i).convert("L")).ravel() for i in range(len(images))]) / 255


def labels(reference: str) -> np.ndarray:
    """Return the class indices of a data set, shape (N,)."""
    return np.asarray(required_labels(open_data(reference), reference))


def neighbour(train: np.ndarray, classes: np.ndarray, inputs: np.ndarray) -> Predictions:
    """Return negative squared distances to the closest image of each class, and the smallest distance."""
    distances = cdist(inputs, train)
    by_class = np.stack([distances[:, classes == label].min(1) for label in np.unique(classes)], axis=1)
    return -(by_class**2), by_class.min(1)


def regression(data: Data) -> Method:
    """Fit logistic regression with the lowest NLL on the validation data.

    The method returns logits and the negative maximum softmax.
    """
    inputs, val, truth = pixels(data.train), pixels(data.val), labels(data.val)
    models = [LogisticRegression(C=c, max_iter=2000).fit(inputs, labels(data.train)) for c in PENALTIES]
    rows = np.arange(len(val))
    best = min(models, key=lambda model: -model.predict_log_proba(val)[rows, truth].mean())
    return lambda images: (best.decision_function(images), -best.predict_proba(images).max(1))


def measured(seeds: Sequence[Data]) -> Mapping[str, Mapping[str, float]]:
    """Return the columns of each baseline, in % except NLL and ECE: means over the data of all seeds."""
    data = seeds[0]
    methods: dict[str, Method] = {
        "1-NN on pixels": partial(neighbour, pixels(data.train), labels(data.train)),
        "logistic regression on pixels": regression(data),
    }
    truth, rows = torch.from_numpy(labels(data.test)), {}
    for name, predict in methods.items():
        held_out = torch.from_numpy(predict(pixels(data.val))[0])
        temperature = fit_temperature(held_out[None], torch.from_numpy(labels(data.val))).temperature
        scores, inside = predict(pixels(data.test))
        log_probs = (torch.from_numpy(scores) / temperature).log_softmax(-1)
        confidence, answers = log_probs.exp().max(-1)
        hits = answers == truth

        @cache
        def area(reference: str, predict: Method = predict, inside: np.ndarray = inside) -> float:
            outside = predict(pixels(reference))[1]
            known = [0] * len(inside) + [1] * len(outside)
            return float(roc_auc_score(known, np.concatenate([inside, outside])))

        rows[name] = {
            "accuracy": 100 * hits.double().mean().item(),
            "NLL": -log_probs.gather(1, truth[:, None]).mean().item(),
            "ECE": ece(confidence, hits).item(),
            "near": 100 * statistics.mean(area(ref) for one in seeds for ref in one.near.values()),
            "far": 100 * statistics.mean(area(ref) for one in seeds for ref in one.far.values()),
        }
    return rows


def main() -> None:
    """Measure all seeds and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("digits", "fashion"))
    parser.add_argument("--idx", type=Path, help="folder with the idx files of Fashion-MNIST")
    parser.add_argument(
        "--work", type=Path, default=Path("promise"), help="folder for images of Fashion-MNIST"
    )
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="seeds of the noise")
    options = parser.parse_args()
    if options.task == "fashion" and options.idx is None:
        parser.error("fashion needs --idx FOLDER (Debian's package dataset-fashion-mnist)")
    warnings.simplefilter("error")  # Logistic regression warns if it does not converge.
    seeds = []
    for seed in options.seeds:
        folder = options.work / f"{options.task}-{seed}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        plan = digits(folder, seed) if options.task == "digits" else fashion(folder, seed, idx=options.idx)
        seeds.append(plan.data)
    print(f"| {options.task} | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}")
    for name, row in measured(seeds).items():
        cells = [f"{row[c]:.3f}".lstrip("0") if c in {"NLL", "ECE"} else f"{row[c]:.1f}" for c in COLUMNS]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
