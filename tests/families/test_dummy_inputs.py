"""Probe inputs depend on the seed only, and differences are relative to the size of the logits."""

from __future__ import annotations

import torch

from hydractl.families.tower import largest_difference, probe_inputs
from support.builders import base


def test_inputs_are_a_function_of_the_seed():
    header = base().header
    assert torch.equal(probe_inputs(header), probe_inputs(header))
    assert not torch.equal(probe_inputs(header), probe_inputs(header, seed=1))
    assert probe_inputs(header, batch=5).shape == (5, 1, 8, 8)


def test_difference_in_units_of_the_largest_logit_but_at_least_one():
    assert largest_difference(torch.tensor([0.5]), torch.tensor([0.25])) == 0.25
    assert largest_difference(torch.tensor([110.0]), torch.tensor([100.0])) == torch.tensor(0.1).item()


def test_what_is_not_finite_is_infinitely_far():
    for bad in (float("nan"), float("inf")):
        assert largest_difference(torch.tensor([bad]), torch.tensor([0.0])) == float("inf")
        assert largest_difference(torch.tensor([0.0]), torch.tensor([bad])) == float("inf")
