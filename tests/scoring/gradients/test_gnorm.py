from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import DataError, UsageError
from hydractl.progress import SILENT
from hydractl.scoring.gradients import weight_gradients as gradients
from hydractl.scoring.gradients.gnorm import gradient_norms, score_gnorm
from hydractl.scoring.gradients.settings import GnormSettings
from hydractl.scoring.settings import BudgetMeaning
from support import naive
from support.builders import base
from support.jobs import Killed, changed, job_for, labelled, library_for, together
from support.variants import variant

WEIGHTS = {
    "timm-vit-class-token": [f"blocks.{i}.attn.qkv.weight" for i in range(3)],
    "timm-eva-qkv-apart": [f"blocks.{i}.attn.{p}_proj.weight" for i in range(3) for p in "qkv"],
    "transformers-bert-plain": [
        f"bert.encoder.layer.{i}.attention.self.{p}.weight" for i in range(3) for p in ("query", "key", "value")
    ],
    "transformers-clip-plain": [
        f"{t}_model.encoder.layers.{i}.self_attn.{p}_proj.weight"
        for t in ("text", "vision") for i in range(3) for p in "qkv"
    ],
}  # fmt: skip


def rows(tables):
    return torch.tensor([row for table in tables.values() for row in table], dtype=torch.float64)


def norms(library, kind, inputs, labels):
    """Return S of every head (layers, 4), in full: a head's eight rows of each of q, k and v."""
    library.zero_grad()
    F.cross_entropy(library(inputs), labels).backward()
    tensors = dict(library.named_parameters())
    stacked = torch.cat([tensors[name].grad for name in WEIGHTS[kind]])
    found = []
    for layer in range(len(stacked) // 96):
        row = []
        for head in range(4):
            product = 1.0
            for matrix in range(3):
                begin = layer * 96 + matrix * 32 + head * 8
                product *= sum(x.item() ** 2 for x in stacked[begin : begin + 8].flatten()) ** 0.5
            row.append(product)
        found.append(row)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_scores_are_products_of_three_norms(kind):
    sample = base(variant(kind))
    data = labelled(sample, 6)

    found = gradient_norms(job_for(sample, data))

    library = library_for(sample)
    assert rows(found.tables) == pytest.approx(norms(library, kind, *data), rel=1e-7)
    assert found.loss == pytest.approx(F.cross_entropy(library(data[0]), data[1]).item(), rel=1e-12)


@pytest.mark.parametrize(
    "kind", ["timm-vit-class-token", "transformers-bert-plain", "transformers-clip-plain"]
)
def test_heads_go_one_by_one_and_scores_are_computed_anew(kind):
    sample = base(variant(kind))
    data = labelled(sample, 6)

    found = score_gnorm(job_for(sample, data, budget=5), SILENT)

    library, names, gone = library_for(sample), list(sample.header.architecture.towers), []
    for removal in found.removals:
        table = norms(library, kind, *data)
        table[tuple(zip(*gone, strict=True)) if gone else ([], [])] = float("inf")
        lowest = divmod(table.argmin().item(), 4)
        assert (names.index(removal.tower) * 3 + removal.layer, removal.head) == lowest
        gone.append(lowest)
        naive.remove(library, *lowest)
        with torch.no_grad():
            expected = -F.cross_entropy(library(data[0]), data[1]).item()
        assert removal.objective == pytest.approx(expected, rel=1e-10)
    with torch.no_grad():
        whole = F.cross_entropy(library_for(sample)(data[0]), data[1]).item()
    assert found.baseline == pytest.approx(-whole, rel=1e-10)
    assert [found.scores[r.tower][r.layer][r.head] for r in found.removals] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_more_than_three_projections_keep_the_cube():
    sample = base(variant("transformers-deberta-own-projections"))
    prefix = "deberta.encoder.layer.1.attention.self."
    job, (texts, labels) = job_for(sample), labelled(sample, 10)

    found = gradient_norms(job).tables["text"][1][2]

    library = library_for(sample)
    F.cross_entropy(library(texts), labels).backward()
    tensors = dict(library.named_parameters())
    parts = [
        tensors[f"{prefix}{p}_proj.weight"].grad[16:24].norm().item()
        for p in ("query", "key", "value", "pos_key", "pos_query")
    ]
    assert found == pytest.approx(torch.tensor(parts, dtype=torch.float64).prod().item() ** 0.6, rel=1e-9)


@pytest.mark.parametrize("factor", [0.5, 3.0])
@pytest.mark.parametrize("kind", ["timm-vit-class-token", "transformers-deberta-own-projections"])
def test_scores_scale_with_the_cube_of_the_loss(monkeypatch, kind, factor):
    sample = base(variant(kind))
    plain = rows(gradient_norms(job_for(sample)).tables)
    losses_of = gradients.losses_of
    monkeypatch.setattr(gradients, "losses_of", lambda *a: factor * losses_of(*a))

    scaled = rows(gradient_norms(job_for(sample)).tables)

    assert scaled == pytest.approx(factor**3 * plain, rel=1e-9)


def test_batches_do_not_matter():
    one, many = (rows(gradient_norms(job_for(base(variant("distilled")), batch=n)).tables) for n in (10, 3))

    assert one == pytest.approx(many, rel=1e-9)


def test_of_equal_heads_the_first_goes_and_every_head_can():
    sample = changed(base(variant("class-token")), lambda n, x: torch.zeros_like(x) if "head." in n else x)

    found = score_gnorm(job_for(sample, budget=12), SILENT)

    assert [(r.layer, r.head) for r in found.removals] == [
        (layer, head) for layer in range(3) for head in range(4)
    ]


def test_no_budget_removes_nothing():
    found = score_gnorm(job_for(base(variant("class-token")), budget=0), SILENT)

    assert found.removals == ()
    assert rows(found.scores).count_nonzero() == 0
    assert found.baseline < 0


@pytest.mark.parametrize("after", [0, 1, 4, 5])
def test_going_on_after_an_interruption_changes_nothing(after):
    sample = base(variant("class-token"))
    whole = score_gnorm(job_for(sample, budget=6), SILENT)
    first = Killed(after=after)
    with pytest.raises(KeyboardInterrupt):
        score_gnorm(job_for(sample, budget=6, log=first), SILENT)

    second = Killed(first.seen, first.baseline)
    resumed = score_gnorm(job_for(sample, budget=6, log=second), SILENT)

    assert resumed == whole
    assert tuple(second.seen) == whole.removals


@pytest.mark.parametrize("world", [2, 5])
def test_the_number_of_processes_changes_no_bit(world):
    sample = base(variant("class-token"))
    expected = score_gnorm(job_for(sample, budget=4), SILENT)

    found = together(world, lambda team: score_gnorm(job_for(sample, budget=4, team=team), SILENT))

    assert found == [expected] * world


def test_normalised_by_layer_each_layer_loses_in_its_turn():
    sample = base(variant("class-token"))
    louder = changed(sample, lambda n, x: 100 * x if n == "blocks.2.attn.proj.weight" else x)

    plain, by_layer = (
        score_gnorm(job_for(louder, budget=6, settings=GnormSettings(normalize=how)), SILENT)
        for how in ("none", "layer")
    )

    assert {r.layer for r in plain.removals} == {0, 1}
    assert {r.layer for r in by_layer.removals} == {0, 1, 2}


def test_non_finite_gradients_are_refused():
    broken = changed(base(variant("class-token")), lambda n, x: x * float("nan") if n == "head.weight" else x)

    with pytest.raises(DataError, match="not finite"):
        score_gnorm(job_for(broken, budget=1), SILENT)


def test_settings():
    settings = GnormSettings()

    assert (settings.budget_means, settings.objective) == (BudgetMeaning.REMOVALS, "-nll")
    with pytest.raises(UsageError, match="`--normalize row`: unknown"):
        GnormSettings(normalize="row")
