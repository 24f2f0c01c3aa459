from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from hydractl.errors import DataError, UsageError
from hydractl.model_inputs import batch_of, cut_batch, map_inputs
from hydractl.scoring import head_profiles
from hydractl.scoring.cahp import score_cahp
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.scoring.methods import METHODS, settings_for
from hydractl.scoring.settings import CahpSettings
from support import naive_cahp
from support.builders import base
from support.variants import VARIANTS, variant

DOUBLE = torch.float64
VIT = variant("class-token")
BERT, CLIP = (
    next(v for v in VARIANTS if v.family == family) for family in ("transformers-bert", "transformers-clip")
)
CLASSES = 3
NONE = CahpSettings(embedding="none", signature_size=8)


def labels_for(count, classes=CLASSES):
    return torch.arange(count) % classes


def job_for(sample, *, count=24, batch=6, inputs=None, labels=None, **changes):
    inputs = sample.inputs(batch=count, seed=1, dtype=DOUBLE) if inputs is None else inputs
    labels = labels_for(batch_of(inputs)) if labels is None else labels
    changes.setdefault("free", "budget" not in changes)
    return ScoreJob(
        model=sample.model(DOUBLE),
        family=sample.family,
        architecture=sample.header.architecture,
        id_data=[Samples(x, y) for x, y in zip(cut_batch(inputs, batch), labels.split(batch), strict=True)],
        **changes,
    )


def numbers(ranking, heads=4):
    return [[h.layer * heads + h.head for h in cluster] for cluster in ranking.clusters]


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("one", [VIT, BERT], ids=str)
@pytest.mark.parametrize(("embedding", "seed"), [("tsne", 0), ("tsne", 1), ("none", 0)])
def test_equals_the_literal_transcription(one, embedding, seed):
    sample = base(one)
    inputs = sample.inputs(batch=24, seed=1, dtype=DOUBLE)

    ranking = score_cahp(
        job_for(sample, inputs=inputs, seed=seed, settings=CahpSettings(embedding=embedding))
    )

    expected = naive_cahp.cahp(
        sample.library(DOUBLE),
        inputs,
        labels_for(24),
        heads=4,
        batch=6,
        seed=seed,
        plane=embedding == "tsne",
    )
    (table,) = ranking.scores.values()
    assert [w for row in table for w in row] == pytest.approx(expected.salience.tolist(), abs=1e-9)
    assert ranking.results["k"] == expected.k
    assert numbers(ranking) == expected.clusters
    assert ranking.results["mss"] == pytest.approx(expected.curve, abs=1e-6)
    assert ranking.results["k_from"] == "kneed"
    assert ranking.results["form"] == "direct"


@pytest.mark.parametrize("one", [VIT, BERT], ids=str)
@pytest.mark.parametrize("representative", ["salience", "medoid"])
def test_every_head_is_in_one_group_and_groups_are_in_order(one, representative):
    sample = base(one)

    ranking = score_cahp(job_for(sample, settings=CahpSettings(representative=representative)))

    found = numbers(ranking)
    assert sorted(h for cluster in found for h in cluster) == list(range(12))
    assert [c[0] for c in found] == sorted(c[0] for c in found)
    assert len(found) == ranking.results["k"]
    (table,) = ranking.scores.values()
    flat = [w for row in table for w in row]
    assert min(flat) == 0.0
    assert max(flat) == 1.0
    if representative == "salience":
        assert all(flat[a] >= flat[b] for c in found for a, b in pairwise(c))


def test_representatives_are_of_the_same_groups():
    sample = base(VIT)

    by_salience, by_medoid = (
        numbers(score_cahp(job_for(sample, settings=CahpSettings(representative=name))))
        for name in ("salience", "medoid")
    )

    assert sorted(map(sorted, by_salience)) == sorted(map(sorted, by_medoid))
    assert by_salience != by_medoid


def test_both_forms_find_the_same(monkeypatch):
    sample = base(BERT)
    settings = CahpSettings(embedding="none")
    direct = score_cahp(job_for(sample, settings=settings))
    monkeypatch.setattr(head_profiles, "DIRECT_BYTES", 0)

    gram = score_cahp(job_for(sample, settings=settings))

    assert (direct.results["form"], gram.results["form"]) == ("direct", "gram")
    assert gram.results["k"] == direct.results["k"]
    assert gram.results["mss"] == pytest.approx(direct.results["mss"], abs=1e-9)
    assert gram.clusters == direct.clusters
    assert gram.scores == direct.scores


@pytest.mark.parametrize("left", [1, 2, 7, 11, 12])
def test_a_budget_fixes_the_number(left):
    sample = base(VIT)

    ranking = score_cahp(job_for(sample, budget=12 - left, settings=NONE))

    assert len(ranking.clusters) == ranking.results["k"] == left
    assert ranking.results["k_from"] == "budget"
    assert "mss" not in ranking.results


@pytest.mark.parametrize("settings", [CahpSettings(), NONE])
def test_a_run_is_a_function_of_its_seed(settings):
    sample = base(VIT)

    assert score_cahp(job_for(sample, settings=settings, seed=3)) == score_cahp(
        job_for(sample, settings=settings, seed=3)
    )


@pytest.mark.parametrize("budget", [None, 6])
def test_a_seed_may_have_more_than_32_bits(budget):
    budgets = {} if budget is None else {"budget": budget}
    job = job_for(base(VIT), seed=2**63 - 2, **budgets)
    assert score_cahp(job) == score_cahp(replace(job, seed=2**32 - 2))


def test_batches_change_only_the_salience():
    sample = base(BERT)
    settings = CahpSettings(embedding="none", signature_size=8, representative="medoid")

    whole, parts = (
        score_cahp(job_for(sample, batch=batch, settings=settings, budget=6)) for batch in (24, 5)
    )

    assert whole.clusters == parts.clusters
    assert whole.scores != parts.scores


def test_permuting_the_heads_of_a_layer_permutes_the_answer():
    sample = base(VIT)
    order = [2, 0, 3, 1]
    settings = CahpSettings(embedding="none", signature_size=8, representative="medoid")
    job, other = (job_for(sample, settings=settings, budget=8) for _ in range(2))
    attention = other.model.tower("vision").layers()[1].attn
    permuted = attention.groups()[0].select(order)
    permuted.head_numbers = (0, 1, 2, 3)
    attention.members[0] = permuted

    found, moved = score_cahp(job), score_cahp(other)

    places = [*range(4), *(4 + h for h in order), *range(8, 12)]
    flat, moved_flat = (torch.tensor(r.scores["vision"]).flatten() for r in (found, moved))
    assert moved_flat.tolist() == pytest.approx(flat[places].tolist())
    assert {frozenset(places[h] for h in c) for c in numbers(moved)} == set(map(frozenset, numbers(found)))


def test_few_heads_lower_the_perplexity(progress_log):
    sample = base(VIT)

    ranking = score_cahp(job_for(sample, settings=CahpSettings(perplexity=50)))

    assert ranking.results["perplexity"] == pytest.approx(11 / 3)
    assert progress_log.warnings == ["12 heads are too few for a perplexity of 50; using 3.67"]


@pytest.mark.parametrize("hangs", [True, False])
def test_groups_that_hang_on_rounding_are_told_of(hangs, monkeypatch, progress_log):
    monkeypatch.setattr("hydractl.scoring.cahp.depends_on_rounding", lambda *_, **__: hangs)

    score_cahp(job_for(base(VIT), settings=NONE))

    said = "heads lie between groups: distances that differ by 0.2%"
    assert [warning.startswith(said) for warning in progress_log.warnings] == [True] * hangs


def test_single_samples_are_told_of(progress_log):
    sample = base(VIT)

    score_cahp(job_for(sample, count=5, labels=torch.tensor([0, 0, 1, 1, 4]), settings=NONE, budget=4))

    assert progress_log.warnings == [
        (
            "1 of 3 classes have a single sample, so their variance is set to 1e-6 and the distances between heads are "
            "too large"
        )
    ]


def test_one_class_is_refused():
    with pytest.raises(DataError, match="the data has 1 class, but at least two are needed"):
        score_cahp(job_for(base(VIT), labels=torch.zeros(24, dtype=torch.long)))


def test_no_data_and_no_labels_are_refused():
    job = job_for(base(VIT))
    unlabelled = [Samples(x, None) for x, _ in job.id_data]

    for data, message in (([], "the data has 0 classes"), (unlabelled, "needs labelled data")):
        with pytest.raises(DataError, match=message):
            score_cahp(replace(job, id_data=data))


def test_heads_that_attend_alike_are_refused():
    sample = base(VIT)
    inputs = torch.zeros_like(sample.inputs(batch=12, dtype=DOUBLE))

    with pytest.raises(
        DataError, match="all heads have the same attention on these data, so they cannot be grouped"
    ):
        score_cahp(job_for(sample, inputs=inputs))


def test_attention_that_is_not_finite_is_refused():
    sample = base(VIT)
    state = {n: t * float("nan") if n.endswith("qkv.weight") else t for n, t in sample.state.items()}

    with pytest.raises(DataError, match="not finite"):
        score_cahp(job_for(type(sample)(sample.header, state)))


def test_too_few_heads_are_refused():
    job = job_for(base(VIT))
    tower = job.architecture.towers["vision"].model_copy(update={"layers": 1, "num_heads": 2})
    fewer = job.architecture.model_copy(update={"towers": {"vision": tower}})

    with pytest.raises(DataError, match="needs at least 3 heads, but the model has 2"):
        score_cahp(replace(job, architecture=fewer))


def test_of_two_towers_that_see_the_samples_one_is_asked_for():
    job = zero_shot()
    job.model.answer.fixed = frozenset()

    with pytest.raises(UsageError, match="separate classes, but 2 towers are scored"):
        score_cahp(job)


def zero_shot(**changes):
    sample = base(CLIP)
    both = sample.inputs(batch=12, seed=1, dtype=DOUBLE)
    job = job_for(sample, inputs=both["pixel_values"], **changes)
    prompts = map_inputs(lambda x: x[:CLASSES], {n: x for n, x in both.items() if n != "pixel_values"})
    job.model.answer.ask(prompts, templates=1)
    return job


@pytest.mark.parametrize("towers", [(), ("text",)])
def test_a_tower_that_does_not_see_the_samples_is_refused(towers):
    with pytest.raises(UsageError, match="the inputs of `text` are the same for every sample") as caught:
        score_cahp(zero_shot(towers=towers))

    assert caught.value.hint == "add `--towers vision`"


def test_the_vision_tower_of_a_zero_shot_model_is_scored():
    ranking = score_cahp(zero_shot(towers=("vision",), settings=NONE, budget=4))

    assert list(ranking.scores) == ["vision"]
    assert {h.tower for c in ranking.clusters for h in c} == {"vision"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"degree": 0}, "`--degree 0`: must be between 1 and 15"),
        ({"representative": "mean"}, "`--representative mean`: unknown"),
        ({"embedding": "umap"}, "`--embedding umap`: unknown"),
        ({"perplexity": 0.0}, "`--perplexity 0`: must be above 0 and finite"),
        ({"perplexity": float("nan")}, "`--perplexity nan`"),
        ({"signature_size": 1}, "`--signature-size 1`: must be between 2 and 256"),
        ({"salience_share": 1.5}, "`--salience-share 1.5`: must be between 0 and 1"),
    ],
)
def test_bad_settings_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        settings_for("cahp", given)


def test_defaults_are_the_sources():
    assert METHODS["cahp"].settings().options() == {
        "degree": 6, "representative": "salience", "embedding": "tsne", "perplexity": 10.0, "signature_size": 32,
        "salience_share": 0.25,
    }  # fmt: skip
