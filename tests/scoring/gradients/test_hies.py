from __future__ import annotations

import pytest
import torch

from hydractl.errors import UsageError
from hydractl.progress import SILENT
from hydractl.scoring.gradients.hies import attention_entropy, score_hies
from hydractl.scoring.gradients.michel import score_michel
from hydractl.scoring.gradients.settings import HiesSettings, MichelSettings
from hydractl.scoring.methods import METHODS
from hydractl.scoring.settings import BudgetMeaning
from support.builders import base
from support.heard import Heard
from support.jobs import changed, job_for, together
from support.variants import VARIANTS, variant

KINDS = [
    v
    for v in VARIANTS
    if str(v) in {"timm-vit-class-token", "transformers-bert-plain", "transformers-clip-plain"}
]


def rows(tables):
    return torch.tensor([row for table in tables.values() for row in table], dtype=torch.float64)


def stretched(x):
    return (x - x.min()) / (x.max() - x.min())


@pytest.mark.parametrize("one", KINDS, ids=str)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_scores_are_the_weighted_mean_of_importance_and_focus(one, alpha):
    sample = base(one)

    found = rows(score_hies(job_for(sample, settings=HiesSettings(alpha=alpha)), SILENT).scores)

    his = stretched(
        rows(score_michel(job_for(sample, settings=MichelSettings(normalize="none")), SILENT).scores)
    )
    entropy = stretched(rows(attention_entropy(job_for(sample))))
    assert found == pytest.approx(alpha * his + (1 - alpha) * (1 - entropy), rel=1e-12)
    assert ((found >= 0) & (found <= 1)).all()


def test_a_head_that_looks_everywhere_alike_is_the_least_focused():
    def change(name, x):
        if name in {"blocks.1.attn.qkv.weight", "blocks.1.attn.qkv.bias"}:
            x = x.clone()
            x[16:24] = 0
        return x

    sample = changed(base(variant("class-token")), change)

    found = rows(score_hies(job_for(sample, settings=HiesSettings(alpha=0.0)), SILENT).scores)

    assert found.flatten().argmin() == 6
    assert found[1, 2] == 0.0


def test_a_model_that_answers_all_alike_is_ordered_by_entropy():
    sample = changed(base(variant("class-token")), lambda n, x: torch.zeros_like(x) if "head." in n else x)

    half, none = (
        rows(score_hies(job_for(sample, settings=HiesSettings(alpha=a)), SILENT).scores) for a in (0.5, 0.0)
    )

    assert half == pytest.approx(none / 2)


@pytest.mark.parametrize("world", [2, 5])
def test_the_number_of_processes_changes_no_bit(world):
    sample = base(variant("class-token"))
    expected = score_hies(job_for(sample), SILENT)

    assert together(world, lambda team: score_hies(job_for(sample, team=team), SILENT)) == [expected] * world


@pytest.mark.parametrize(
    ("given", "warned"), [({}, True), ({"alpha": 0.0}, False), ({"normalize": "tower"}, False)]
)
def test_importance_of_two_towers_is_warned_of(given, warned):
    heard = Heard()

    score_hies(job_for(base(KINDS[-1]), settings=HiesSettings(**given)), heard)

    assert bool(heard.warnings) == warned


def test_settings():
    assert (METHODS["hies"].default_limit, HiesSettings().budget_means) == (32, BudgetMeaning.NOTHING)
    for alpha in (-0.1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="must be between 0 and 1"):
            HiesSettings(alpha=alpha)
    with pytest.raises(UsageError, match="`--normalize x`: unknown"):
        HiesSettings(normalize="x")
