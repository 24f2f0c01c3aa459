from __future__ import annotations

import pytest
import torch
import torch_pruning
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import DataError, UsageError
from hydractl.scoring import gradients
from hydractl.scoring.settings import BudgetMeaning, TaylorSettings
from hydractl.scoring.weight_importance import score_taylor
from support import naive
from support.builders import base
from support.jobs import changed, job_for, labelled, library_for, together
from support.variants import variant

ALL = TaylorSettings(scope="global")
MOLCHANOV = TaylorSettings(scope="global", variant="molchanov")


def rows(tables):
    return torch.tensor([row for table in tables.values() for row in table], dtype=torch.float64)


def scored(sample, data=None, **changes):
    return score_taylor(job_for(sample, data, **changes)).scores


def test_global_scores_are_the_papers_formula():
    sample = base(variant("class-token"))

    found = scored(sample, settings=ALL)["vision"]

    library = sample.library(torch.float64)
    for layer, row in enumerate(found):
        assert row == pytest.approx(naive.taylor_layer(library, layer, *labelled(sample, 10)), rel=1e-10)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("keep", [0, 1, 3, 4])
def test_each_layer_is_scored_without_the_heads_that_went_before(keep):
    sample = base(variant("class-token"))

    found = scored(sample, keep=keep)["vision"]

    heads = 4
    kept = [tuple(range(heads))] * len(found)
    for layer, row in enumerate(found):
        library = sample.masked(*kept).library(torch.float64)
        assert row == pytest.approx(naive.taylor_layer(library, layer, *labelled(sample, 10)), rel=1e-9)
        kept[layer] = tuple(sorted(sorted(range(heads), key=lambda h, row=row: (row[h], h))[heads - keep :]))


def test_a_layer_that_keeps_more_than_it_has_keeps_all():
    sample = base(variant("class-token"))

    assert scored(sample, keep=7) == scored(sample, keep=4)


@pytest.mark.parametrize(
    "kind", ["timm-vit-class-token", "transformers-bert-plain", "transformers-vit-plain"]
)
def test_scores_are_those_of_torch_pruning_on_q_k_and_v(kind):
    sample = base(variant(kind))
    inputs, labels = labelled(sample, 10)

    found = rows(scored(sample, settings=ALL))

    library = library_for(sample)
    F.cross_entropy(library(inputs), labels).backward()
    importance = torch_pruning.importance.GroupTaylorImportance(group_reduction="sum", normalizer=None)
    names = ("attn.qkv", "attention.self.query", "attention.self.key", "attention.self.value",
             "q_proj", "k_proj", "v_proj", "attention.query", "attention.key", "attention.value")  # fmt: skip
    layers = [module for name, module in library.named_modules() if name.endswith(names)]
    each = torch.cat([importance(alone(module)) for module in layers])  # (layers 3 H K): Σ|w dw| of each row
    sums = each.unflatten(0, (3, 3, 4, 8)).sum(dim=(1, 3))
    assert found == pytest.approx(sums.double() / (3 * 8 * 32), rel=1e-5)  # Torch-Pruning computes in float32


def alone(module):
    """Return Torch-Pruning's group of the output channels of a single layer, without coupled layers."""
    graph = torch_pruning.dependency
    node = graph.Node(module, torch_pruning.ops.OPTYPE.LINEAR, "layer")
    prune = torch_pruning.prune_linear_out_channels
    group = graph.Group()
    channels = list(range(module.out_features))
    group.add_dep(graph.Dependency(prune, prune, node, node), channels)
    group[0].root_idxs = channels
    return group


@pytest.mark.parametrize("kind", ["timm-vit-class-token", "transformers-clip-plain"])
@pytest.mark.parametrize("batch", [3, 10])
def test_molchanov_squares_the_sum_of_each_batch(kind, batch):
    sample = base(variant(kind))
    inputs, labels = labelled(sample, 10)

    found = rows(scored(sample, batch=batch, settings=MOLCHANOV))

    library = library_for(sample)
    names = ("attn.qkv.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight")
    squares = []
    for x, y in zip(inputs.split(batch), labels.split(batch), strict=True):
        library.zero_grad()
        F.cross_entropy(library(x), y).backward()
        each = [(p * p.grad).sum(dim=1) for n, p in library.named_parameters() if n.endswith(names)]
        order = [torch.cat(each[i : i + 3]) for i in range(0, len(each), 3)] if len(each) > 3 else each
        squares.append(torch.stack(order).detach().unflatten(1, (3, 4, 8)).sum(dim=(1, 3)) ** 2)
    assert found == pytest.approx(torch.stack(squares).mean(dim=0), rel=1e-9)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("settings", [ALL, TaylorSettings(), MOLCHANOV])
@pytest.mark.parametrize("world", [2, 5])
def test_the_number_of_processes_changes_no_bit(settings, world):
    sample = base(variant("class-token"))
    expected = score_taylor(job_for(sample, settings=settings, keep=2))

    found = together(world, lambda team: score_taylor(job_for(sample, settings=settings, keep=2, team=team)))

    assert found == [expected] * world


def test_batches_do_not_matter():
    one, many = (rows(scored(base(variant("distilled")), batch=n, settings=ALL)) for n in (10, 3))

    assert one == pytest.approx(many, rel=1e-10)


@pytest.mark.parametrize(("settings", "power"), [(ALL, 1), (TaylorSettings(), 1), (MOLCHANOV, 2)])
def test_scores_scale_with_the_loss(monkeypatch, settings, power):
    sample = base(variant("class-token"))
    plain = rows(scored(sample, keep=2, settings=settings))
    losses_of = gradients.losses_of
    monkeypatch.setattr(gradients, "losses_of", lambda *a: 3 * losses_of(*a))

    tripled = rows(scored(sample, keep=2, settings=settings))

    assert tripled == pytest.approx(3**power * plain, rel=1e-9)


@pytest.mark.parametrize("settings", [ALL, TaylorSettings(), MOLCHANOV])
def test_of_equal_heads_the_lower_go_first(settings):
    sample = changed(base(variant("class-token")), lambda n, x: torch.zeros_like(x) if "head." in n else x)
    job = job_for(sample, keep=1, settings=settings)

    found = score_taylor(job)

    assert rows(found.scores).count_nonzero() == 0
    if settings.scope == "layer":
        assert [b.attn.groups()[0].head_numbers for b in job.model.tower().layers()] == [(3,)] * 3


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_scores_are_normalised_at_the_end(scope):
    sample = base(variant("class-token"))
    plain, layer, tower = (
        rows(scored(sample, keep=2, settings=TaylorSettings(scope=scope, normalize=preprocess)))
        for preprocess in ("none", "layer", "tower")
    )

    assert layer == pytest.approx(plain / plain.norm(dim=1, keepdim=True), rel=1e-12)
    assert tower == pytest.approx(plain / plain.square().mean().sqrt(), rel=1e-12)


@pytest.mark.parametrize(("settings", "warned"), [(ALL, True), (TaylorSettings(), False), (MOLCHANOV, True)])
def test_towers_that_cannot_be_compared_are_warned_of(settings, warned, progress_log):
    score_taylor(job_for(base(variant("transformers-clip-plain")), settings=settings))

    assert bool(progress_log.warnings) == warned


@pytest.mark.parametrize("settings", [ALL, MOLCHANOV])
def test_non_finite_gradients_are_refused(settings):
    sample = changed(base(variant("class-token")), lambda n, x: x * float("nan") if n == "head.weight" else x)

    with pytest.raises(DataError, match="not finite"):
        scored(sample, settings=settings)


def test_settings():
    assert (TaylorSettings().budget_means, ALL.budget_means) == (BudgetMeaning.KEEP, BudgetMeaning.NOTHING)
    for given in ({"scope": "x"}, {"variant": "x"}, {"normalize": "x"}):
        with pytest.raises(UsageError, match="unknown"):
            TaylorSettings(**given)
