"""DeBERTa-v2 and v3: relative positions as keys and queries, and the convolution of the largest model."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.families.base import position_of
from hydractl.families.registry import FAMILIES, family_for_name
from hydractl.families.tower import largest_difference
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.scoring.settings import TaylorSettings
from hydractl.scoring.weight_importance import score_taylor
from support.builders import base, perturbed
from support.variants import VARIANTS, Variant

DEBERTA = FAMILIES["transformers-deberta"]
OURS = {v.name: v for v in VARIANTS if v.family == DEBERTA.name}
DOUBLE = torch.float64


def library_of(variant, *, seed=3):
    """Return the library's model and hydractl's, with the same random weights."""
    sample = base(variant)
    state = perturbed(sample.state, seed=seed)
    library = sample.library(DOUBLE)
    library.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in state.items()})
    architecture = sample.header.architecture
    return library, DEBERTA.build(architecture, sample.header.masks[0], dict(library.state_dict()))


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("tokens", [1, 2, 9, 17, 40])
@torch.inference_mode()
def test_distances_beyond_the_furthest_are_those_of_the_library(tokens):
    """Position buckets are exact for near tokens, logarithmic for far tokens, and equal beyond a maximum."""
    for name in ("v3", "own-projections", "words-to-positions", "positions-to-words"):
        library, model = library_of(OURS[name])
        texts = {
            "input_ids": torch.randint(1, 61, (2, tokens), generator=torch.Generator().manual_seed(tokens)),
            "attention_mask": torch.ones(2, tokens, dtype=torch.long),
        }
        assert largest_difference(model(texts), library(texts)) <= 1e-10


@pytest.mark.parametrize("name", ["v3", "own-projections", "absolute"])
@torch.inference_mode()
def test_heads_taken_out_in_memory_are_those_taken_out_of_the_file(name):
    """Position projections lose the rows of removed heads."""
    sample = base(OURS[name])
    inputs = sample.inputs(dtype=DOUBLE)
    model = sample.model(DOUBLE)
    for block, kept in zip(model.tower().layers(), ((0, 3), (), (1, 2, 3)), strict=True):
        (group,) = block.attn.groups()
        block.attn.members[0] = group.select(kept)
    expected = sample.pruned((0, 3), (), (1, 2, 3)).model(DOUBLE)(inputs)
    assert largest_difference(model(inputs), expected) <= 1e-12


def test_a_convolution_in_the_only_layer_reads_neighbours():
    variant = Variant(
        DEBERTA.name, "one-layer", "deberta-v2", OURS["convolution"].options | {"num_hidden_layers": 1}
    )
    sample = base(variant)
    assert sample.model().tower().read_tokens is None
    with torch.inference_mode():
        inputs = sample.inputs(dtype=DOUBLE)
        assert largest_difference(sample.model(DOUBLE)(inputs), sample.library(DOUBLE)(inputs)) <= 1e-10


def test_the_convolution_and_the_relative_positions_are_outside_the_blocks():
    names = [n for n in base(OURS["convolution"]).state if ".conv." in n or ".rel_embeddings." in n]
    assert len(names) == 5
    assert {(position_of(DEBERTA, n).part, position_of(DEBERTA, n).layer) for n in names} == {("embed", None)}


@pytest.mark.parametrize("name", ["v3", "own-projections", "absolute"])
def test_taylor_scores_count_the_projections_of_positions(name):
    """Taylor importance is the mean over all projections, including those of positions."""
    sample = base(OURS[name])
    texts = sample.inputs(batch=6, seed=1)
    labels = torch.randint(0, 7, (6,), generator=torch.Generator().manual_seed(2))
    job = ScoreJob(
        model=sample.model(DOUBLE),
        family=sample.family,
        architecture=sample.header.architecture,
        id_data=[Samples(texts, labels)],
        settings=TaylorSettings(scope="global"),
    )
    found = score_taylor(job).scores["text"]

    library = sample.library(DOUBLE)
    F.cross_entropy(library(texts), labels).backward()
    for layer, scores in enumerate(found):
        own = library.deberta.encoder.layer[layer].attention.self
        weights = [p for n, p in own.named_parameters() if n.endswith("_proj.weight")]
        assert len(weights) == (5 if name == "own-projections" else 3)
        per_head = [(p.detach() * p.grad).abs().unflatten(0, (4, 8)).mean(dim=(1, 2)) for p in weights]
        assert scores == pytest.approx(torch.stack(per_head).mean(0).tolist(), rel=1e-9)


def test_both_generations_are_one_type():
    assert family_for_name("deberta-v2") is DEBERTA
    assert not DEBERTA.claims("deberta")
