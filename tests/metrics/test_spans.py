"""Spans equal those of seqeval, and metrics of words equal metrics of samples."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy
import torch
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import roc_auc_score, roc_curve

from hydractl.manifest.terms import Temperature
from hydractl.metrics.classification import ece
from hydractl.metrics.compute import (
    Measurement,
    RowNumbers,
    entity_scale,
    means,
    measure,
    measure_all,
    ood_score,
    sample_values,
)
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import Responses, ensemble_log_probs, item_losses
from hydractl.metrics.registry import METRICS, needing
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.spans import span_counts, span_f1, span_labels, span_precision, spans_of
from hydractl.metrics.temperature import fit_temperature, scaled_nll
from hydractl.tasks import TOKENS

LABELS = ("PER", "LOC-X", "ORG")
LONGEST = 12
LABELLED = needing(METRICS, MetricNeeds.LABELS)


def tag_names(prefixes):
    return ("O", *(f"{prefix}-{label}" for prefix in prefixes for label in LABELS))


def sequences(names, *, count, seed):
    """Return true tag sequences of 0 to `LONGEST` words, and predicted ones with about 80 % equal tags."""
    random = np.random.default_rng(seed)
    true = [
        np.where(random.random(n) < 0.4, 0, random.integers(len(names), size=n))
        for n in random.integers(LONGEST + 1, size=count)
    ]
    predicted = [
        np.where(random.random(len(row)) < 0.8, row, random.integers(len(names), size=len(row)))
        for row in true
    ]
    return true, predicted


def padded(rows):
    tags = torch.full((len(rows), LONGEST), -1)
    for to, row in zip(tags, rows, strict=True):
        to[: len(row)] = torch.from_numpy(row)
    return tags


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("prefixes", ["BI", "I", "BIES", "IE"])
def test_spans_are_those_of_seqeval(prefixes):
    names = tag_names(prefixes)
    true, predicted = sequences(names, count=5_000, seed=len(prefixes))
    spans = [spans_of(padded(rows), names) for rows in (true, predicted)]
    labels, found = span_labels(names), [[] for _ in true]
    for row, first, last, label in zip(*(x.tolist() for x in spans[0]), strict=True):
        found[row].append((labels[label], first, last))
    as_names = [[[names[tag] for tag in row] for row in rows] for rows in (true, predicted)]
    assert found == [get_entities(row) for row in as_names[0]]

    counts = span_counts(spans[1], spans[0], rows=len(true), words=LONGEST)
    hits, told, there = (counts[f"span_{name}"] for name in ("hits", "predicted", "true"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [f(*as_names) for f in (precision_score, recall_score, f1_score)]
    numbers = [span_precision(hits, told), span_precision(hits, there), span_f1(hits, told, there)]
    assert [float(x) for x in numbers] == pytest.approx(expected, abs=1e-12)
    assert 0.2 < expected[2] < 0.9


def test_tags_without_a_prefix_are_labels():
    spans = spans_of(torch.tensor([[1, 1, 0, 1, 2]]), ("O", "VERB", "NOUN"))
    assert [x.tolist() for x in spans] == [[0, 0, 0], [0, 3, 4], [1, 3, 4], [0, 0, 1]]
    assert span_labels(("O", "VERB", "NOUN")) == ("VERB", "NOUN")


def ragged(*, members=3, rows=40, classes=7, seed=0):
    """Return predictions (M, N, Q, C) with NaN for padding words, labels (N, Q), and logits."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LONGEST + 1, (rows,), generator=generator)
    absent = torch.arange(LONGEST) >= lengths[:, None]
    labels = torch.randint(classes, (rows, LONGEST), generator=generator).masked_fill(absent, -100)
    logits = 2 * torch.randn(members, rows, LONGEST, classes, generator=generator)
    logits += 3 * torch.nn.functional.one_hot(labels.clamp(min=0), classes)
    logits = logits.masked_fill(absent[..., None], torch.nan)
    return Responses(logits.log_softmax(-1), logits.logsumexp(-1)), labels, logits


def test_what_is_measured_of_words_is_what_is_measured_of_as_many_samples():
    told, labels, _ = ragged()
    there = labels >= 0
    plain = Responses(told.log_probs[:, there], told.logsumexp[:, there])
    options = {"metrics": tuple(METRICS), "scores": (), "resampling": Resampling(resamples=0)}
    found, expected = (
        measure(responses, of, {}, **options).id_set
        for responses, of in ((told, labels), (plain, labels[there]))
    )
    assert found.keys() == expected.keys() >= {*LABELLED}
    for name in found:
        assert found[name].value == pytest.approx(expected[name].value, abs=1e-12), name
    temperature = fit_temperature(told, labels).temperature
    assert temperature == pytest.approx(fit_temperature(plain, labels[there]).temperature, abs=1e-6)
    assert scaled_nll(told, labels, 1.7) == pytest.approx(scaled_nll(plain, labels[there], 1.7), abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_a_text_scores_the_mean_of_its_words(name):
    told, labels, logits = ragged()
    expected = [
        float(SCORES[name].of(logits[:, i, row >= 0].double()).mean()) for i, row in enumerate(labels)
    ]
    assert ood_score(told, name).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["accuracy", "nll", "brier"])
def test_intervals_draw_texts_with_all_their_words(name):
    told, labels, _ = ragged()
    resampling = Resampling(resamples=50)
    found = measure(told, labels, {}, metrics=(name,), scores=(), resampling=resampling).id_set[name]
    per_word = sample_values(told, labels)
    values = per_word[{"accuracy": "hits", "nll": "nll", "brier": "error"}[name]].view(labels.shape).numpy()
    draws = torch.cat([rows for (rows,) in resampling.draws(len(labels), labels=LONGEST)]).numpy()
    expected = [np.concatenate([values[i][~np.isnan(values[i])] for i in rows]).mean() for rows in draws]
    assert found.low.tolist() == pytest.approx(expected, abs=1e-12)


def test_padding_further_changes_no_interval():
    told, labels, _ = ragged()
    wider = Responses(
        *(torch.nn.functional.pad(x, (*(0, 0) * (x.ndim - 3), 0, 5), value=torch.nan) for x in told.tensors())
    )
    options = {"metrics": LABELLED, "scores": (), "resampling": Resampling(resamples=30)}
    one, other = (
        measure(responses, of, {}, **options).id_set
        for responses, of in ((told, labels), (wider, torch.nn.functional.pad(labels, (0, 5), value=-100)))
    )
    for name in LABELLED:
        assert torch.allclose(one[name].low, other[name].low, atol=1e-12), name
        assert torch.allclose(one[name].high, other[name].high, atol=1e-12), name


def header_of(names, *, temperature=1.0):
    return SimpleNamespace(
        architecture=SimpleNamespace(task=TOKENS), class_names=names, entity_temperature=temperature
    )


def measured(told, labels, names, *, foreign=None, scores=(), resamples=0, temperature=1.0):
    header = header_of(names, temperature=temperature)
    selection = Measurement(tuple(METRICS), scores, Resampling(resamples=resamples))
    return measure_all(told, labels, foreign or {}, header, selection)


def test_a_span_is_as_sure_as_its_least_sure_word():
    names = tag_names("BI")
    told, labels, _ = ragged(classes=len(names))
    values = measured(told, labels, names, resamples=20).id_set
    probs = ensemble_log_probs(told.log_probs.double()).exp()
    confidence, hits = [], []
    for i, row in enumerate(labels):
        there = int((row >= 0).sum())
        tags = [[names[tag] for tag in of[:there].tolist()] for of in (probs[i].argmax(-1), row)]
        true = {*get_entities(tags[1])}
        for span in get_entities(tags[0]):
            confidence.append(float(probs[i, span[1] : span[2] + 1].amax(-1).min()))
            hits.append(span in true)
    expected = float(ece(torch.tensor(confidence, dtype=torch.float64), torch.tensor(hits)))
    assert values["span_ece"].value == pytest.approx(expected, abs=1e-12)
    assert {"span_f1", "span_precision", "span_recall"} < values.keys()
    assert all(values[name].low is not None for name in needing(values, MetricNeeds.TASK))
    shown = values["span_ece"].to_value()
    assert shown.low <= shown.value <= shown.high


def entities(predictions, labels, names, *, temperature=1.0):
    """Yield the minimum probability of each span that seqeval predicts, and whether the span is correct."""
    log_probs = (predictions.log_probs.double() / temperature).log_softmax(-1)
    probs = log_probs.exp().mean(0)
    for i, row in enumerate(labels):
        there = int((row >= 0).sum())
        predicted, true = (
            get_entities([names[tag] for tag in tags[:there].tolist()]) for tags in (probs[i].argmax(-1), row)
        )
        for span in predicted:
            yield float(probs[i, span[1] : span[2] + 1].amax(-1).min()), span in true


@pytest.mark.parametrize(("seed", "temperature"), [(0, 1.0), (1, 0.4), (2, 3.0)])
def test_the_temperature_of_entities_is_that_of_their_log_odds(seed, temperature):
    """The entity temperature is the posterior mode by another minimizer, and divides log odds in reports."""
    names = tag_names("BI")
    told, labels, _ = ragged(classes=len(names), seed=seed)
    found = entity_scale(told, labels, temperature, header_of(names), Temperature(1.7, of_entities=9.0))
    shares, hits = map(np.array, zip(*entities(told, labels, names, temperature=temperature), strict=True))

    def cost(ln):
        right = scipy.special.expit(np.where(hits, 1, -1) * scipy.special.logit(shares) / np.exp(ln))
        return ln**2 / 0.5 - np.log(right).sum()

    expected = np.exp(scipy.optimize.minimize_scalar(cost, bounds=(-3, 3), method="bounded").x)
    assert 10 < hits.sum() < len(hits) - 10
    assert abs(np.log(expected)) > 0.05
    assert found == Temperature(temperature, of_entities=pytest.approx(expected, rel=1e-4))

    value = measured(told, labels, names, temperature=2.5).id_set["span_ece"].value
    shares, _ = map(np.array, zip(*entities(told, labels, names), strict=True))
    confidence = torch.tensor(scipy.special.expit(scipy.special.logit(shares) / 2.5))
    hits = torch.tensor([hit for _, hit in entities(told, labels, names)])
    assert value == pytest.approx(float(ece(confidence, hits)), abs=1e-8)
    assert value != measured(told, labels, names).id_set["span_ece"].value


def test_without_a_predicted_span_entities_have_the_temperature_of_before():
    told = Responses(torch.tensor([[0.9, 0.1]]).log().expand(1, 4, 3, 2))
    labels = torch.ones(4, 3, dtype=torch.int64)
    stored = Temperature(1.7, of_entities=2.0)
    found = entity_scale(told, labels, 1.3, header_of(("O", "B-x")), stored)
    assert found == Temperature(1.3, of_entities=2.0)


def test_entities_that_are_certain_have_a_temperature():
    told = Responses(torch.tensor([[0.0, -800.0], [-800.0, 0.0]]).expand(1, 4, 2, 2))
    labels = torch.tensor([[0, 1], [0, 1], [0, 0], [0, 1]])
    found = entity_scale(told, labels, 1.0, header_of(("O", "B-x")), Temperature())
    assert 1 < found.of_entities <= 20


def test_without_a_predicted_span_there_is_nothing_to_calibrate():
    told = Responses(torch.tensor([[0.9, 0.1]]).log().expand(1, 4, 3, 2))
    values = measured(told, torch.ones(4, 3, dtype=torch.int64), ("O", "B-x")).id_set
    assert "span_ece" not in values
    assert (values["span_f1"].value, values["span_recall"].value) == (0, 0)


def span_scores(predictions, labels, names, score):
    """Return the maximum score over the words of each of seqeval's predicted spans, for each text."""
    tags = ensemble_log_probs(predictions.log_probs.double()).argmax(-1)
    found = []
    for i, row in enumerate(labels):
        there = int((row >= 0).sum())
        logits = predictions.logits()[:, i, :there].double()
        by_word = SCORES[score].of(logits)
        spans = get_entities([names[tag] for tag in tags[i, :there].tolist()])
        found.append([float(by_word[first : last + 1].max()) for _, first, last in spans])
    return found


def rates(inside, outside):
    """Return AUROC and FPR95 by scikit-learn."""
    kinds, scores = np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]
    curve = roc_curve(kinds, scores, drop_intermediate=False)
    flagged = next(false for false, true, _ in zip(*curve, strict=True) if true >= 0.95)
    return roc_auc_score(kinds, scores), flagged


@pytest.mark.parametrize("score", ["msp", "mi", "energy"])
def test_spans_of_other_texts_are_told_by_their_highest_words(score):
    names = tag_names("BI")
    told, labels, _ = ragged(classes=len(names))
    other, other_labels, _ = ragged(classes=len(names), rows=60, seed=1)
    inside = span_scores(told, labels, names, score)
    outside = span_scores(other, other_labels, names, score)

    found = measured(told, labels, names, foreign={"o": other}, scores=(score,)).ood_sets["o"]

    expected = rates(*(np.concatenate(texts) for texts in (inside, outside)))
    assert (found["span_auroc"].value, found["span_fpr95"].value) == pytest.approx(expected, abs=1e-9)
    assert found["span_auroc"].value != found["auroc"].value


def test_texts_are_resampled_with_all_their_spans():
    names = tag_names("BI")
    told, labels, _ = ragged(classes=len(names))
    other, other_labels, _ = ragged(classes=len(names), rows=60, seed=1)
    resampling = Resampling(resamples=20)
    found = measured(
        told, labels, names, foreign={"o": other}, scores=("msp",), resamples=resampling.resamples
    ).ood_sets["o"]

    texts = [span_scores(*said, names, "msp") for said in ((told, labels), (other, other_labels))]
    assert len({len(spans) for spans in texts[0]}) > 3
    drawn = [
        rates(*(np.concatenate([side[i] for i in index]) for side, index in zip(texts, indices, strict=True)))
        for chunk in resampling.draws(len(labels), len(other_labels), name="o")
        for indices in zip(*(x.tolist() for x in chunk), strict=True)
    ]
    for name, expected in zip(("span_auroc", "span_fpr95"), zip(*drawn, strict=True), strict=True):
        assert found[name].low.tolist() == pytest.approx(expected, abs=1e-9)
        assert found[name].high is found[name].low
        assert found[name].count == len(labels) + len(other_labels)


@pytest.mark.parametrize("side", ["tested", "foreign"])
def test_where_a_resample_has_no_span_there_is_no_interval(side):
    """One of six texts has a span, so a third of all resamples have no span."""
    words = torch.tensor([[0.9, 0.1]]).expand(6, 3, 2).clone()
    words[0, 0] = torch.tensor([0.2, 0.8])
    rare, common = (Responses(x.log().unsqueeze(0)) for x in (words, words.flip(2)))
    tested, other = (rare, common) if side == "tested" else (common, rare)
    labels = torch.zeros(6, 3, dtype=torch.int64)
    resampling = Resampling(resamples=50)
    sets = measured(
        tested, labels, ("O", "B-x"), foreign={"o": other}, scores=("msp",), resamples=resampling.resamples
    ).ood_sets["o"]
    for name in ("span_auroc", "span_fpr95"):
        assert 0 <= sets[name].value <= 1
        assert sets[name].low is sets[name].high is None
    assert sets["auroc"].low is not None


def test_without_a_span_none_are_told_apart():
    told, labels, _ = ragged(classes=2)
    none = Responses(torch.tensor([[0.9, 0.1]]).log().expand(1, 4, 3, 2))
    sets = measured(told, labels, ("O", "B-x"), foreign={"a": none, "b": told}, scores=("msp", "mi")).ood_sets
    assert not {name for name in sets["a"] if name.startswith("span")}
    assert {"span_auroc", "span_auroc@mi", "span_fpr95"} <= sets["b"].keys()
    assert sets["b"]["span_auroc"].value == 0.5
    row = replace(RowNumbers(id_set={}, ood_sets=sets), groups={"all": ("b", "a")})
    shared = means(row.ood, row.groups)["all"]  # metrics present in both sets
    assert "auroc" in shared
    assert not {name for name in shared if name.startswith("span")}
    assert row.mean_intervals == {}


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_a_batch_is_the_mean_over_its_words_as_pytorch_has_it(smoothing):
    _, labels, logits = ragged()
    logits = logits.nan_to_num().requires_grad_()
    found = item_losses(logits, labels, label_smoothing=smoothing).mean(1)
    expected = torch.stack(
        [
            torch.nn.functional.cross_entropy(z.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
            for z in logits
        ]
    )
    assert torch.allclose(found, expected, atol=1e-6)
    found.sum().backward()
    assert not logits.grad[:, labels < 0].any()


def test_a_batch_without_a_word_costs_nothing():
    logits = torch.randn(2, 3, 4, requires_grad=True)
    loss = item_losses(logits, torch.full((2, 3), -100)).mean()
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()
