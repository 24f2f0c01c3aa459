"""Terms of Proposition 1 against the full Hessian of the library's model, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 - the field's own name
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl.errors import InputError
from hydractl.families.open_model import open_model
from hydractl.research.analyses.gradients import ExpansionTerms, diagonal_probes, steps
from support.builders import base
from support.variants import Variant

SMALL = Variant(
    "timm-vit", "small", "vit_tiny_patch16_224",
    {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3},
)  # fmt: skip
DOUBLE = torch.float64


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return open_model(str(base(SMALL).save(tmp_path_factory.mktemp("small") / "base.st")))


def moved(model_file, member):
    """Return the model in float64, and the step to a member's weights."""
    model = base(SMALL).model(DOUBLE)
    return model, steps(model_file, model, member.header.masks[0], member.state, name="member")


def removed(state):
    """Return masks of the weights of head 0 of the first layer, for timm's tensors."""
    places = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in state.items()}
    for kind in ("weight", "bias"):
        places[f"blocks.0.attn.qkv.{kind}"].unflatten(0, (3, 2, 4))[:, 0] = True
    places["blocks.0.attn.proj.weight"][:, :4] = True
    return places


def test_slope_curvature_and_probes_are_those_of_the_whole_hessian(model_file):
    sample = base(SMALL)
    model, moves = moved(model_file, sample.pruned((1,), (0, 1)))
    terms = ExpansionTerms(model=model, moves=moves, seed=5)
    inputs, labels = sample.inputs(batch=6, dtype=DOUBLE), torch.tensor([0, 1, 2, 2, 1, 0])
    for weight, _ in moves:
        weight.requires_grad = True
    library = sample.library(DOUBLE)
    state = {name: tensor.detach() for name, tensor in library.state_dict().items()}
    places = removed(state)
    here = torch.cat([state[name][places[name]] for name in state])

    def loss(values):
        parts = iter(values.split([int(p.sum()) for p in places.values()]))
        own = {n: t.masked_scatter(places[n], next(parts)) for n, t in state.items()}
        return F.cross_entropy(functional_call(library, own, (inputs,)), labels, reduction="sum")

    with sdpa_kernel(SDPBackend.MATH):
        found = terms.term_sums(inputs, labels)
        slope = torch.autograd.functional.jacobian(loss, here)
        hessian = torch.autograd.functional.hessian(loss, here)

    assert terms.moved == len(here) == 3 * 4 * 9 + 8 * 4
    expected = [loss(here), loss(torch.zeros_like(here)), -slope @ here, here @ hessian @ here]
    for signs in terms.probes:
        placed = dict(zip([id(w) for w, _ in moves], signs, strict=True))
        names = {name: placed.get(id(weight)) for name, weight in model.library_state().items()}
        v = torch.cat([names[name][places[name]].to(DOUBLE) for name in state if names[name] is not None])
        assert v.abs().eq(1).all()
        expected.append(v @ hessian @ v)
    torch.testing.assert_close(found, torch.stack(expected).double())


def test_a_trained_member_moves_all_that_training_changed(model_file):
    member = base(SMALL).pruned((0, 1), (1,)).tuned(3)
    model, moves = moved(model_file, member)
    by_id = {id(weight): move for weight, move in moves}
    for name, weight in model.library_state().items():
        move = by_id[id(weight)]
        if name not in {"blocks.1.attn.qkv.weight", "blocks.1.attn.qkv.bias", "blocks.1.attn.proj.weight"}:
            torch.testing.assert_close(weight + move, member.state[name].to(DOUBLE))
    gone = by_id[id(model.library_state()["blocks.1.attn.proj.weight"])][:, :4]
    torch.testing.assert_close(gone, -base(SMALL).state["blocks.1.attn.proj.weight"][:, :4].to(DOUBLE))


def test_signs_are_of_weights_that_move_and_repeat():
    moves = [torch.tensor([0.0, 0.5, -1.0]), torch.zeros(2, 2)]
    signs = diagonal_probes(moves, seed=1)
    every = torch.stack([each[0] for each in signs])
    assert every[:, 0].eq(0).all()
    assert every[:, 1:].abs().eq(1).all()
    assert {-1, 1} == {*every[:, 1].tolist()}
    assert not any(each[1].any() for each in signs)
    again = diagonal_probes(moves, seed=1)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(signs, again, strict=True))


def test_another_classifier_is_no_step(model_file):
    other = base(SMALL)
    state = dict(other.state) | {"head.weight": torch.zeros(4, 8)}
    with pytest.raises(InputError, match=r"`head\.weight` has another shape"):
        steps(model_file, other.model(), other.header.masks[0], state, name="member")
