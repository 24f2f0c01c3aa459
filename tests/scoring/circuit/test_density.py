"""Objectives with `energy+density` equal an independent computation, with new features for each candidate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import shrunk_covariance
from sklearn.metrics import roc_auc_score
from torch import nn

from hydractl.errors import DataError, UsageError
from hydractl.model_inputs import cut_batch
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.scoring.circuit import outcomes as density
from hydractl.scoring.circuit import tower as circuit_memory
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.search import score_circuit
from hydractl.scoring.settings import CircuitSettings
from support import naive
from support.builders import base
from support.circuits import data_for, job_for, lazy_constants, removed
from support.jobs import CLASSES, library_for, model_for, together
from support.variants import variant

KINDS = [
    "timm-vit-class-token",
    "timm-vit-distilled",
    "transformers-bert-plain",
    "transformers-clip-plain",
]
COUNT, OTHERS = 36, 20


def job(sample, data, *, objective="ood", lazy=None, **changes):
    settings = CircuitSettings(
        objective=objective,
        ood_score="energy+density",
        search="exact" if lazy is None else "lazy",
        **(lazy or {}),
    )
    plain = job_for(sample, data, settings=settings, **changes)
    return replace(plain, features=FeatureExtractor.of(plain.model, sample.family, name="base"))


def standard(values, held_out):
    return (values - values[held_out].mean()) / values[held_out].std()


def squares(x, center, covariance):
    return np.einsum("nd,de,ne->n", x - center, np.linalg.inv(covariance), x - center)


def scores(features, energies, labels, fit, *, energy):
    """Return the OOD scores of all samples, written like in the sources.

    The density is fitted on the labelled samples in `fit`. Scores are standardized on the other labelled
    samples.
    """
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    known = np.arange(len(labels))
    x, y = unit[known][fit], labels[fit]
    means = {c: x[y == c].mean(0) for c in np.unique(y)}
    alpha = np.sqrt(x.shape[1] / (x.shape[1] + len(x) - len(means)))
    within = np.cov((x - np.stack([means[c] for c in y])).T, bias=True)
    total = np.cov(x.T, bias=True)
    within, total = (shrunk_covariance(c, shrinkage=alpha) for c in (within, total))
    nearest = np.min([squares(unit, m, within) for m in means.values()], 0)
    relative = nearest - squares(unit, x.mean(0), total)
    held_out = np.concatenate([~fit, np.zeros(len(unit) - len(labels), bool)])
    return energy * standard(energies, held_out) + standard(relative, held_out)


def reference(features, logits, labels, *, on_itself=False, energy=True):
    """Return the AUROC of all samples.

    Each half of the labelled samples is scored by a fit on the other half.

    Variants that must differ fit each half on itself, or leave out the energy.
    """
    features, labels = features.float().double().numpy(), labels.numpy()
    energies = -torch.logsumexp(logits.double(), 1).numpy()
    second, seen = np.zeros(len(labels), bool), dict.fromkeys(range(CLASSES), 0)
    for i, label in enumerate(labels):
        second[i] = seen[label] % 2
        seen[label] += 1
    by_fit = {
        half: scores(features, energies, labels, second == half, energy=energy) for half in (False, True)
    }
    inside = np.where(second ^ on_itself, by_fit[False][: len(labels)], by_fit[True][: len(labels)])
    outside = (by_fit[False] + by_fit[True])[len(labels) :] / 2
    return roc_auc_score([0] * len(inside) + [1] * len(outside), np.concatenate([inside, outside]))


def of_library(library, data):
    """Return inputs and logits of the library's own classifier."""
    images, labels, others = data
    (last,) = (m for m in library.modules() if isinstance(m, nn.Linear) and m.out_features == CLASSES)
    read = []
    handle = last.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    with torch.inference_mode():
        logits = torch.cat([library(x) for part in (images, others) for x in cut_batch(part, 16)])
    handle.remove()
    return torch.cat(read), logits, labels


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("name", ["timm-vit-class-token", "transformers-bert-plain"])
def test_same_removals_as_algorithm_1_with_a_fit_for_each_candidate(name):
    sample = base(variant(name))
    data = data_for(sample, count=COUNT, others=OTHERS)

    ranking = score_circuit(job(sample, data, budget=3))

    library, gone = library_for(sample), []
    assert ranking.baseline == pytest.approx(reference(*of_library(library, data)), abs=1e-9)
    for removal in ranking.removals:
        values = {}
        for layer, head in naive.candidates(library, gone):
            weight = naive.output_weights(library)[layer]
            kept = weight.detach().clone()
            naive.remove(library, layer, head)
            values[layer, head] = reference(*of_library(library, data))
            with torch.no_grad():
                weight.copy_(kept)
        best = max(values, key=values.get)
        assert (removal.layer, removal.head) == best
        assert removal.objective == pytest.approx(values[best], abs=1e-9)
        naive.remove(library, *best)
        gone.append(best)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("name", KINDS)
def test_every_candidate_is_valued_as_the_member_would_be(name):
    sample = base(variant(name))
    images, labels, others = data = data_for(sample, count=COUNT, others=OTHERS)

    with torch.inference_mode():
        values = Circuit(job(sample, data)).candidate_values()

    expected = {}
    for head in values:
        model = model_for(sample)
        extractor = FeatureExtractor.of(model, sample.family, name="member")
        attention = model.tower(head.tower).layers()[head.layer].attn
        others_of_layer = [h for h in range(attention.groups()[0].heads) if h != head.head]
        attention.members[0] = attention.groups()[0].select(others_of_layer)
        with torch.inference_mode():
            answers = [extractor.outputs(part) for part in (images, others)]
        logits, features = (torch.cat(parts, 1)[0] for parts in zip(*answers, strict=True))
        expected[head] = reference(features, logits, labels)
    assert list(values.values()) == pytest.approx(list(expected.values()), abs=1e-9)
    # the candidates must have different values
    assert len({round(value, 6) for value in expected.values()}) > 3


@pytest.mark.parametrize("twin", [{"on_itself": True}, {"energy": False}], ids=str)
def test_a_twin_that_fits_or_adds_otherwise_is_told_apart(twin):
    sample = base(variant("class-token"))
    data = data_for(sample, count=COUNT, others=OTHERS)

    with torch.inference_mode():
        value = Circuit(job(sample, data)).value()

    assert abs(value - reference(*of_library(library_for(sample), data), **twin)) > 0.005


def test_accuracy_and_density_add_up():
    sample = base(variant("class-token"))
    data = data_for(sample, count=COUNT, others=OTHERS)

    with torch.inference_mode():
        avg, ood = (Circuit(job(sample, data, objective=objective)).value() for objective in ("avg", "ood"))

    accuracy = naive.objective(library_for(sample), "acc", data)
    assert avg == pytest.approx((accuracy + ood) / 2, abs=1e-12)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("name", "lazy"),
    [
        pytest.param(
            name, lazy, marks=() if i == 0 or bool(i % 2) == (lazy is None) else pytest.mark.more,
            id=f"{name}-{'exact' if lazy is None else 'lazy'}",
        )
        for i, name in enumerate(KINDS)
        for lazy in (None, {})
    ],
)  # fmt: skip
def test_how_many_features_are_held_at_once_changes_nothing(monkeypatch, name, lazy):
    sample = base(variant(name))
    data = data_for(sample, count=COUNT, others=OTHERS)
    expected = score_circuit(job(sample, data, lazy=lazy, budget=4))
    held = []
    monkeypatch.setattr(
        circuit_memory.MemoryBudget, "candidates_held", lambda _, size: held.append(size) or 2
    )

    found = score_circuit(job(sample, data, lazy=lazy, budget=4))

    assert found == expected
    assert held


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("name", KINDS)
def test_a_lazy_search_that_values_every_head_is_exact(name):
    sample = base(variant(name))
    data = data_for(sample, count=COUNT, others=OTHERS)
    expected = score_circuit(job(sample, data, budget=4))
    with lazy_constants(doubt=0, swaps=0):
        found = score_circuit(job(sample, data, lazy={}, budget=4))

    assert removed(found) == removed(expected)
    assert [r.objective for r in found.removals] == [r.objective for r in expected.removals]


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("lazy", [None, {}], ids=["exact", "lazy"])
def test_several_processes_find_the_same_bits(lazy):
    sample = base(variant("class-token"))
    data = data_for(sample, count=COUNT, others=OTHERS)
    alone = score_circuit(job(sample, data, lazy=lazy, budget=4))

    def share(team):
        whole = job(sample, data, lazy=lazy, budget=4)
        parts = {role: getattr(whole, role)[team.rank :: team.world] for role in ("id_data", "ood_data")}
        return score_circuit(replace(whole, **parts, team=team))

    assert together(2, share) == [alone, alone]


def test_features_that_are_all_the_same_tell_nothing_apart():
    sample = base(variant("class-token"))
    images, labels, others = data_for(sample, count=COUNT, others=OTHERS)
    same = (torch.zeros_like(images), labels, torch.zeros_like(others))

    with torch.inference_mode():
        values = Circuit(job(sample, same)).candidate_values()

    assert set(values.values()) == {0.5}


def test_halves_have_every_other_sample_of_each_class():
    labels = torch.tensor([2, 0, 2, 2, 0, 5, 2, 0])

    assert density.second_half_mask(labels).tolist() == [False, False, True, False, True, False, True, False]


def test_a_limit_with_no_room_for_one_candidate_is_refused():
    sample = base(variant("class-token"))
    data = data_for(sample, count=COUNT, others=OTHERS)

    with pytest.raises(UsageError, match="the features of all samples without one head need") as caught:
        Circuit(job(sample, data, max_memory=1000))

    assert "--max-memory" in caught.value.hint


@pytest.mark.parametrize("labels", [[], [0, 1, 2, 0, 1, 2, 0, 1, 2]])
def test_too_few_samples_to_fit_halves_are_refused(labels):
    with pytest.raises(DataError, match="no class has 4 samples") as caught:
        density.check_halves(torch.tensor(labels, dtype=torch.long))

    assert "--data" in caught.value.hint
