from __future__ import annotations

import pytest
import torch

from hydractl.errors import DataError, UsageError
from hydractl.model_inputs import map_inputs
from hydractl.research.scores import michel
from hydractl.research.scores.michel import gate_importance, score_michel
from hydractl.research.scores.options import MichelSettings
from hydractl.scoring.job import Samples
from hydractl.scoring.settings import BudgetMeaning
from support import naive, slopes
from support.builders import base
from support.jobs import InterruptedLog, changed, job_for, labelled, library_for, together
from support.variants import VARIANTS, variant

FORMS = ("sample", "batch")
RAW = MichelSettings(normalize="none")
KINDS = {
    "timm-vit-class-token", "timm-vit-map-pool", "timm-eva-rope-mixed", "transformers-bert-plain",
    "transformers-deberta-own-projections", "transformers-modernbert-local-last", "transformers-clip-plain",
    "transformers-siglip-plain", "openclip-scaled", "openclip-custom-text-normed",
}  # fmt: skip
SOME = [v for v in VARIANTS if str(v) in KINDS]


def rows(tables):
    """Return tables as a tensor (layers of all towers, H)."""
    return torch.tensor([row for table in tables.values() for row in table], dtype=torch.float64)


def in_turns(sample, order):
    """Return the sample with permuted heads in the middle layer."""

    def change(name, x):
        if ".1.attn." not in name:
            return x
        if name.endswith("qkv.weight"):
            return x.unflatten(0, (3, 4, 8))[:, order].flatten(0, 2)
        if name.endswith("qkv.bias"):
            return x.unflatten(0, (3, 4, 8))[:, order].flatten()
        if name.endswith("proj.weight"):
            return x.unflatten(1, (4, 8))[:, order].flatten(1, 2)
        return x

    return changed(sample, change)


def test_the_variants_are_there():
    assert {str(v) for v in SOME} == KINDS


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("one", SOME, ids=str)
def test_scores_are_the_derivatives_by_gates(one):
    sample = base(one)
    data = labelled(sample, 6)

    by_sample, by_batch = (gate_importance(job_for(sample, data), form) for form in FORMS)

    each = slopes.gradients(library_for(sample), *data)
    batches = torch.stack([part.mean(dim=0) for part in each.split(4)])
    close = 1e-6 if "modernbert" in str(one) else 1e-8
    assert rows(by_sample.tables) == pytest.approx(each.abs().mean(dim=0), abs=close)
    assert rows(by_batch.tables) == pytest.approx(batches.abs().mean(dim=0), abs=close)
    loss = slopes.losses(library_for(sample), *data).mean().item()
    assert by_sample.loss == pytest.approx(loss, rel=1e-12)
    assert by_batch.loss == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("towers", [("text",), ("vision",)])
def test_one_tower_has_the_scores_that_both_have(towers):
    sample = base(variant("transformers-clip-plain"))

    both = gate_importance(job_for(sample), "sample")
    one = gate_importance(job_for(sample, towers=towers), "sample")

    assert one.tables.keys() == set(towers)
    assert rows(one.tables) == pytest.approx(rows({"": both.tables[towers[0]]}), rel=1e-12)


@pytest.mark.parametrize("kind", ["timm-vit-class-token", "transformers-clip-plain"])
def test_the_mean_of_absolute_values_is_no_less_than_that_of_the_mean(kind):
    sample = base(variant(kind))

    one, many, single = (
        rows(gate_importance(job_for(sample, count=8, batch=batch), form).tables)
        for form, batch in (("sample", 4), ("batch", 4), ("batch", 1))
    )

    assert (one >= many - 1e-15).all()
    assert (one > many).any()
    assert one == pytest.approx(single, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_heads_in_another_order_have_their_scores_in_that_order(form):
    sample, order = base(variant("class-token")), [2, 0, 3, 1]

    plain, turned = (
        score_michel(job_for(s, settings=MichelSettings(form=form))).scores["vision"]
        for s in (sample, in_turns(sample, order))
    )

    assert turned[1] == pytest.approx([plain[1][head] for head in order], rel=1e-9)
    assert turned[0] == pytest.approx(plain[0], rel=1e-9)


def test_a_loss_of_three_times_the_size_has_three_times_the_scores(monkeypatch):
    sample = base(variant("class-token"))
    plain = rows(gate_importance(job_for(sample), "sample").tables)
    losses_of = michel.losses_of
    monkeypatch.setattr(michel, "losses_of", lambda *a: 3 * losses_of(*a))

    tripled = rows(gate_importance(job_for(sample), "sample").tables)

    assert tripled == pytest.approx(3 * plain, rel=1e-12)


def test_scores_are_normalised_by_layer_and_lie_between_0_and_1():
    sample = base(variant("class-token"))
    raw = rows(score_michel(job_for(sample, settings=RAW)).scores)

    found = rows(score_michel(job_for(sample)).scores)

    expected = raw / (raw.norm(dim=1, keepdim=True) + 1e-20)
    assert found == pytest.approx((expected - expected.min()) / (expected.max() - expected.min()), rel=1e-12)
    assert (found.min().item(), found.max().item()) == (0.0, 1.0)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_answers_all_alike_has_scores_of_zero(form):
    sample = changed(base(variant("class-token")), lambda n, x: torch.zeros_like(x) if "head." in n else x)

    for recompute in (0, 2):
        settings = MichelSettings(form=form, recompute=recompute)
        found = score_michel(job_for(sample, settings=settings, budget=5))
        if not recompute:
            assert rows(found.scores).count_nonzero() == 0
            continue
        gone = [(r.layer, r.head) for r in found.removals]
        assert gone == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


@pytest.mark.parametrize("kind", ["transformers-bert-plain", "transformers-modernbert-plain"])
@pytest.mark.parametrize("form", FORMS)
def test_padding_further_changes_nothing(kind, form):
    sample = base(variant(kind))
    texts, labels = labelled(sample, 6)
    texts = map_inputs(lambda x: x[:, :12], texts)
    fill = {"input_ids": sample.header.preprocess.pad_id}
    longer = {n: torch.nn.functional.pad(x, (0, 5), value=fill.get(n, 0)) for n, x in texts.items()}

    short, long = (gate_importance(job_for(sample, (x, labels)), form) for x in (texts, longer))

    assert rows(long.tables) == pytest.approx(rows(short.tables), rel=1e-8, abs=1e-12)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    ("kind", "form", "recompute"),
    [
        ("timm-vit-class-token", "sample", 1),
        ("timm-vit-class-token", "batch", 2),
        ("transformers-clip-plain", "sample", 3),
    ],
)
def test_pruning_in_steps_is_scoring_anew_without_what_is_gone(kind, form, recompute):
    sample = base(variant(kind))
    data = labelled(sample, 8)
    settings = MichelSettings(form=form, recompute=recompute)

    found = score_michel(job_for(sample, data, settings=settings, budget=7))

    library, gone, objectives = library_for(sample), [], []
    while len(gone) < 7:
        each = slopes.gradients(library, *data)
        raw = torch.stack([x.mean(dim=0) for x in each.split(1 if form == "sample" else 4)]).abs().mean(dim=0)
        score = raw / (raw.norm(dim=1, keepdim=True) + 1e-20)
        left = [(l, h) for l in range(len(raw)) for h in range(4) if (l, h) not in gone]
        step = sorted(left, key=lambda head: (round(score[head].item(), 9), head))[:recompute][
            : 7 - len(gone)
        ]
        for head in step:
            naive.remove(library, *head)
        gone += step
        objectives += [-slopes.losses(library, *data).mean().item()] * len(step)
    names = list(sample.header.architecture.towers)
    assert [(names.index(r.tower) * 3 + r.layer, r.head) for r in found.removals] == gone
    assert [r.objective for r in found.removals] == pytest.approx(objectives, rel=1e-10)
    assert found.baseline == pytest.approx(
        -slopes.losses(library_for(sample), *data).mean().item(), rel=1e-10
    )
    steps = [found.scores[r.tower][r.layer][r.head] for r in found.removals]
    assert steps == [float(i) for i in range(7)]
    assert (rows(found.scores) == 7.0).sum() == rows(found.scores).numel() - 7


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("after", range(8))
def test_going_on_after_an_interruption_changes_nothing(after):
    sample, settings = base(variant("class-token")), MichelSettings(recompute=3)
    whole = score_michel(job_for(sample, settings=settings, budget=8))
    first = InterruptedLog(after=after)
    with pytest.raises(KeyboardInterrupt):
        score_michel(job_for(sample, settings=settings, budget=8, log=first))
    assert len(first.seen) == after

    second = InterruptedLog(first.seen, first.baseline)
    resumed = score_michel(job_for(sample, settings=settings, budget=8, log=second))

    assert resumed == whole
    assert tuple(second.seen) == whole.removals


def test_every_head_can_go():
    job = job_for(base(variant("class-token")), settings=MichelSettings(recompute=5), budget=12)

    ranking = score_michel(job)

    assert len({(r.layer, r.head) for r in ranking.removals}) == 12


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("settings", [RAW, MichelSettings(form="batch"), MichelSettings(recompute=2)])
@pytest.mark.parametrize("world", [2, 5])
def test_the_number_of_processes_changes_no_bit(settings, world):
    sample = base(variant("class-token"))
    expected = score_michel(job_for(sample, settings=settings, budget=4))

    found = together(
        world, lambda team: score_michel(job_for(sample, settings=settings, budget=4, team=team))
    )

    assert found == [expected] * world


@pytest.mark.parametrize(
    ("normalize", "towers", "warned"),
    [("none", (), True), ("none", ("vision",), False), ("layer", (), False), ("tower", (), False)],
)
def test_towers_that_cannot_be_compared_are_named_with_both_ways_out(normalize, towers, warned, progress_log):
    sample = base(variant("transformers-clip-plain"))

    score_michel(job_for(sample, towers=towers, settings=MichelSettings(normalize=normalize)))

    assert bool(progress_log.warnings) == warned
    if warned:
        assert "text and vision" in progress_log.warnings[0]
        assert "`--normalize tower`" in progress_log.warnings[0]
        assert "`--towers vision`" in progress_log.warnings[0]


@pytest.mark.parametrize("form", FORMS)
def test_bad_data_is_refused(form):
    sample = base(variant("class-token"))
    broken = changed(sample, lambda n, x: x * float("nan") if n == "head.weight" else x)

    with pytest.raises(DataError, match="not finite"):
        gate_importance(job_for(broken), form)
    job = job_for(sample)
    job.id_data[0] = Samples(job.id_data[0].inputs, None)
    with pytest.raises(DataError, match="needs labelled data"):
        gate_importance(job, form)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"form": "token"}, "`--form token`: unknown"),
        ({"normalize": "all"}, "`--normalize all`: unknown"),
        ({"recompute": -1}, "`--recompute -1`: must be at least 0"),
    ],
)
def test_bad_settings_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        MichelSettings(**given)


def test_a_budget_counts_where_scores_are_computed_anew():
    once, anew = MichelSettings(), MichelSettings(recompute=1)

    assert (once.budget_means, once.objective) == (BudgetMeaning.NOTHING, None)
    assert (anew.budget_means, anew.objective) == (BudgetMeaning.REMOVALS, "-nll")
