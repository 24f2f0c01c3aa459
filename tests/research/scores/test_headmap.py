from __future__ import annotations

import pytest
import torch

from hydractl.errors import DataError, UsageError
from hydractl.heads.masks import best_mask_per_layer, removal_order
from hydractl.manifest.head_mask import TowerShape
from hydractl.model_inputs import map_inputs
from hydractl.research.scores.headmap import lowest_loss_samples, score_headmap
from hydractl.research.scores.options import HeadmapSettings
from hydractl.scoring.job import Samples
from hydractl.scoring.settings import BudgetMeaning
from support import naive, slopes
from support.builders import base
from support.jobs import changed, job_for, labelled, library_for, together
from support.variants import VARIANTS, variant

KINDS = {
    "timm-vit-class-token", "timm-vit-map-pool", "timm-eva-rope-mixed", "transformers-bert-plain",
    "transformers-deberta-convolution", "transformers-clip-plain", "openclip-custom-text-normed",
}  # fmt: skip
SOME = [v for v in VARIANTS if str(v) in KINDS]


def located(library, inputs, labels, keep, samples):
    """Compute scores and located heads like the authors: full passes, heads zeroed in W_O, layer by layer."""
    chosen = slopes.losses(library, inputs, labels).sort(stable=True).indices[:samples]
    inputs, labels = map_inputs(lambda x: x[chosen], inputs), labels[chosen]
    scores, kept = [], []
    for layer, weight in enumerate(naive.output_weights(library)):
        before = slopes.losses(library, inputs, labels).mean().item()
        row = []
        for head in range(weight.shape[1] // 8):
            whole = weight.detach().clone()
            naive.remove(library, layer, head)
            row.append(slopes.losses(library, inputs, labels).mean().item() - before)
            with torch.no_grad():
                weight.copy_(whole)
        scores.append(row)
        kept.append(sorted(sorted(range(len(row)), key=lambda h, row=row: row[h])[len(row) - keep :]))
        for head in kept[-1]:
            naive.remove(library, layer, head)
    return scores, kept


def of_prune(scores, keep):
    """Return the heads that `prune --keep-heads n --per-layer` keeps, for the layers of all towers in order."""
    shape = {name: TowerShape(len(rows), len(rows[0])) for name, rows in scores.items()}
    masks = best_mask_per_layer(removal_order(scores), shape, keep=keep)
    return [list(kept) for mask in masks.values() for kept in mask.keep]


@pytest.mark.spread(cases=5)
@pytest.mark.parametrize("one", SOME, ids=str)
@pytest.mark.parametrize("keep", [1, 3])
def test_the_same_heads_as_by_full_passes(one, keep):
    sample = base(one)
    data = labelled(sample, 10)

    found = score_headmap(job_for(sample, data, keep=keep, settings=HeadmapSettings(samples=5)))

    scores, kept = located(library_for(sample), *data, keep, 5)
    rows = [row for table in found.scores.values() for row in table]
    assert torch.tensor(rows) == pytest.approx(torch.tensor(scores), rel=1e-5, abs=1e-7)
    assert of_prune(found.scores, keep) == kept


@pytest.mark.parametrize("keep", [0, 2, 4])
def test_prune_keeps_what_was_located_and_the_model_has_lost_it(keep):
    sample = base(variant("class-token"))
    job = job_for(sample, keep=keep)

    found = score_headmap(job)

    left = [list(block.attn.groups()[0].head_numbers) for block in job.model.tower("vision").layers()]
    rest = [[h for h in range(4) if h not in kept] for kept in of_prune(found.scores, keep)]
    assert left == rest


def test_one_tower_leaves_the_other_whole():
    sample = base(variant("transformers-clip-plain"))
    job = job_for(sample, keep=2, towers=("vision",))

    found = score_headmap(job)

    assert found.scores.keys() == {"vision"}
    assert all(len(block.attn.groups()[0].head_numbers) == 4 for block in job.model.tower("text").layers())


def test_the_easiest_samples_are_chosen_and_the_first_of_equal_ones():
    sample = base(variant("class-token"))
    inputs, labels = labelled(sample, 9)
    inputs, labels = torch.cat([inputs, inputs]), torch.cat([labels, labels])
    losses = slopes.losses(library_for(sample), inputs, labels)[:9]

    chosen = lowest_loss_samples(job_for(sample, (inputs, labels), batch=9), 5)

    order = sorted(range(9), key=lambda i: losses[i].item())
    first, second = sorted(order[:3]), sorted(order[:2])
    assert torch.equal(chosen[0].inputs, inputs[first])
    assert torch.equal(chosen[0].labels, labels[first])
    assert torch.equal(chosen[1].inputs, inputs[second])


def test_batches_without_a_chosen_sample_are_left_out_and_few_samples_are_all():
    sample = base(variant("class-token"))

    one, every = (
        lowest_loss_samples(job_for(sample, batch=3), 1),
        lowest_loss_samples(job_for(sample, batch=3), 64),
    )

    assert sum(x is not None for x in one) == 1
    assert [len(x.labels) for x in every] == [3, 3, 3, 1]


def test_batches_do_not_matter():
    sample, settings = base(variant("distilled")), HeadmapSettings(samples=6)

    one, many = (
        score_headmap(job_for(sample, batch=n, keep=2, settings=settings)).scores["vision"] for n in (10, 3)
    )

    assert torch.tensor(one) == pytest.approx(torch.tensor(many), rel=1e-6)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_number_of_processes_changes_no_bit(world):
    sample, settings = base(variant("class-token")), HeadmapSettings(samples=4)
    expected = score_headmap(job_for(sample, batch=3, keep=2, settings=settings))

    found = together(
        world,
        lambda team: score_headmap(job_for(sample, batch=3, keep=2, settings=settings, team=team)),
    )

    assert found == [expected] * world


def test_of_equal_heads_the_lower_go_first():
    sample = changed(base(variant("class-token")), lambda n, x: torch.zeros_like(x) if "head." in n else x)

    found = score_headmap(job_for(sample, keep=1))

    assert found.scores["vision"] == [[0.0] * 4] * 3
    assert of_prune(found.scores, 1) == [[3]] * 3


def test_a_head_whose_output_is_nothing_scores_nothing():
    def change(name, x):
        x = x.clone()
        if name == "blocks.1.attn.proj.weight":
            x[:, 8:16] = 0
        return x

    sample = changed(base(variant("class-token")), change)

    scores = score_headmap(job_for(sample, keep=2)).scores["vision"]

    assert scores[1][1] == pytest.approx(0.0, abs=1e-12)


def test_bad_input_is_refused():
    sample = base(variant("class-token"))
    broken = changed(sample, lambda n, x: x * float("nan") if n == "head.weight" else x)

    with pytest.raises(DataError, match="losses are not finite"):
        score_headmap(job_for(broken, keep=1))
    job = job_for(sample, keep=1)
    job.id_data[0] = Samples(job.id_data[0].inputs, None)
    with pytest.raises(DataError, match="needs labelled data"):
        score_headmap(job)
    with pytest.raises(UsageError, match="`--samples 0`: must be at least 1"):
        HeadmapSettings(samples=0)
    assert HeadmapSettings().budget_means == BudgetMeaning.KEEP
