"""Optimal Brain Apoptosis: importance equals that of the full Hessian."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from hydractl.research.methods.adapters import importances, masks_of


def test_importances_are_those_of_the_whole_hessian():
    """w_i sum_j H_ij w_j over the weights of both layers, summed over losses, with autograd's Hessian."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)).double()
    x, y = torch.randn(2, 5, 3).double(), torch.randint(2, (2, 5))
    weights = {name: p for name, p in model.named_parameters() if name.endswith("weight")}
    sizes = [weight.numel() for weight in weights.values()]

    def loss(flat, i):
        parts = zip(weights, flat.split(sizes), strict=True)
        own = {name: part.view(weights[name].shape) for name, part in parts}
        return nn.functional.cross_entropy(functional_call(model, own, (x[i],)), y[i])

    flat = torch.cat([weight.detach().flatten() for weight in weights.values()])
    hessian = sum(torch.autograd.functional.hessian(lambda w, i=i: loss(w, i), flat) for i in range(2))
    found = importances(
        weights, [lambda i=i: nn.functional.cross_entropy(model(x[i]), y[i]) for i in range(2)]
    )

    torch.testing.assert_close(torch.cat([f.flatten() for f in found.values()]), flat * (hessian @ flat))


def test_a_score_is_of_its_layer_and_of_the_size_among_all():
    weights = {"a": torch.tensor([[4.0, 0.1], [1.0, 0.2]]), "b": torch.tensor([[0.1, 0.4]])}
    found = {"a": torch.tensor([[0.0, -8.0], [4.0, 1.0]]), "b": torch.tensor([[0.02, -0.01]])}
    # a: 0 + 1, 1 + .025, .5 + .25, .125 + .05; b: 1 + .025, .5 + .1
    kept = masks_of(weights, found, 0.5)

    assert kept["a"].tolist() == [[True, True], [False, False]]
    assert kept["b"].tolist() == [[True, False]]
    assert masks_of(weights, {n: torch.zeros_like(w) for n, w in weights.items()}, 0.2)["a"].tolist() == [
        [True, False],
        [False, False],
    ]
