"""Checks before each forward pass, and calls saved in a forward pass: neither may change results."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from hydractl.families.attention import QuietDropout
from hydractl.families.stream import CopiedWeights, StackedLinear, StackedNorm, apply_module, readers
from support.builders import base
from support.variants import VARIANTS


def parts():
    return nn.ModuleList(
        [nn.Linear(3, 2), nn.LayerNorm(3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False)]
    ).eval()


def step(modules):
    sum(p.sum() for p in modules.parameters()).backward()
    torch.optim.SGD(modules.parameters(), lr=0.1).step()


CHANGES = {
    "written to": lambda m: m[0].bias.detach().add_(1),
    "written to a buffer": lambda m: m[2].running_mean.add_(1),
    "another parameter": lambda m: setattr(m[1], "weight", nn.Parameter(m[1].weight.detach().clone())),
    "another buffer": lambda m: m[2]._buffers.update(running_var=m[2].running_var.clone()),
    "gone": lambda m: m[0].register_parameter("bias", None),
    "deleted": lambda m: delattr(m[0], "bias"),
    "deleted at the end": lambda m: delattr(m[3], "weight"),
    "come": lambda m: m[3].register_parameter("bias", nn.Parameter(torch.zeros(2))),
    "added at the end": lambda m: m[3].register_parameter("more", nn.Parameter(torch.zeros(2))),
    "a step": step,
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_happens_to_a_tensor_is_noticed(change):
    modules = parts()
    sources = CopiedWeights(modules)
    assert not sources.changed
    CHANGES[change](modules)
    assert sources.changed
    assert not CopiedWeights(modules).changed


def test_another_part_is_noticed():
    modules = parts()
    sources = CopiedWeights([modules[0]], within=[modules])
    before = modules[1]
    modules[1] = copy.deepcopy(before)
    assert sources.changed
    modules[1] = before
    assert not sources.changed
    modules[3].train()
    assert sources.changed


def test_what_only_reads_changes_nothing():
    modules = parts()
    sources = CopiedWeights(modules)
    modules[2](modules[1](torch.randn(4, 3))).sum().backward()
    modules.train().eval().requires_grad_(requires_grad=False).float().state_dict()
    assert not sources.changed


def test_tensors_of_inference_mode_are_told_apart_though_writes_are_not_counted():
    with torch.inference_mode():
        modules = parts()
        sources = CopiedWeights(modules)
        assert not sources.changed
        modules[0].weight = nn.Parameter(modules[0].weight.clone())
        assert sources.changed


def test_an_identity_is_not_called_and_all_else_is():
    x, doubled = torch.randn(2, 3), nn.Identity()
    assert apply_module(doubled, x) is x
    doubled = type("Doubled", (nn.Identity,), {"forward": lambda _, x: 2 * x})()
    assert torch.equal(apply_module(doubled, x), 2 * x)


def test_contexts_in_turn_may_lie_within_one_another():
    part = base().model().tower().layers()[0].attn
    with part.in_turn():
        with part.in_turn():
            pass
        assert part.apart
    assert not part.apart


def test_quiet_dropout_drops_in_training_and_is_heard_where_somebody_listens():
    loud, quiet = nn.Dropout(0.5), QuietDropout(0.5)
    x, seen = torch.ones(64), []
    for dropped in (loud, quiet):
        torch.manual_seed(0)
        seen.append(dropped.train()(x))
    assert torch.equal(*seen)
    assert 0 < int((seen[0] == 0).sum()) < 64
    assert quiet.eval()(x) is x
    for listen in (quiet.register_forward_hook, quiet.register_forward_pre_hook):
        progress_log = []
        hook = listen(lambda *_, progress_log=progress_log: progress_log.append(1))
        quiet(x)
        hook.remove()
        quiet(x)
        assert progress_log == [1]


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_all_dropout_of_a_model_is_quiet_and_stays_so(variant):
    model = base(variant).model()
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own
        assert not [m for m in one.modules() if type(m) is nn.Dropout]
        assert one.dtype == next(p.dtype for p in one.parameters() if p.is_floating_point())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (6, 5, 4), (6, 2, 3, 4)])
def test_stacked_layers_are_the_members_own(bias, shape):
    layers = [nn.Linear(4, 3, bias=bias).double() for _ in range(3)]
    norms = [nn.LayerNorm(4, bias=bias).double() for _ in range(3)]
    x = torch.randn(*shape, dtype=torch.float64)
    with torch.no_grad():
        for norm in norms:
            norm.weight.normal_()
    for members, kind in ((layers, StackedLinear), (norms, StackedNorm)):
        tensors = [
            torch.stack([m.weight for m in members]),
            torch.stack([m.bias for m in members]) if bias else None,
        ]
        one = StackedLinear(*tensors) if kind is StackedLinear else StackedNorm(norms[0], *tensors)
        expected = torch.cat([m(part) for m, part in zip(members, x.split(2), strict=True)])
        torch.testing.assert_close(one(x), expected, atol=1e-12, rtol=0)


class Mlp(nn.Module):
    """Two layers; in most variants other operators also read the inputs of the first."""

    def __init__(self, preprocess):
        super().__init__()
        self.preprocess = preprocess
        self.first, self.other, self.last = (linear(4, 4) for _ in range(3))

    def forward(self, x):
        if self.preprocess == "alone":
            return self.last(self.first(x).relu())
        if self.preprocess == "gated":
            return self.last(self.first(x).sigmoid() * self.other(x))
        if self.preprocess == "around":
            return x + self.last(self.first(x))
        if self.preprocess == "before":
            return self.last(self.first(2 * x))
        if self.preprocess == "joined":
            return torch.cat([self.last(self.first(x)), x], -1)
        if self.preprocess == "twice":
            return self.last(self.first(x) * self.first(x))
        return self.last(self.first(x)) * x.mean()


def linear(*size, bias=True):
    weight = torch.randn(3, *size, dtype=torch.float64)
    return StackedLinear(weight, torch.randn(3, size[0], dtype=torch.float64) if bias else None)


def norms(*, bias=True):
    own = torch.randn(3, 4, dtype=torch.float64)
    return StackedNorm(nn.LayerNorm(4).double(), own, torch.randn_like(own) if bias else None)


@pytest.mark.parametrize(
    ("preprocess", "count"),
    [("alone", 1), ("gated", 2), ("around", 0), ("before", 0), ("joined", 0), ("twice", 0), ("besides", 0)],
)
@torch.no_grad()
def test_layers_that_alone_read_the_inputs_are_found(preprocess, count):
    mlp = Mlp(preprocess)
    assert readers(mlp, norms()) == [mlp.first, mlp.other][:count]
    assert not [part for part in mlp.modules() if part._forward_pre_hooks]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shift", [True, False])
@torch.no_grad()
def test_a_layer_that_absorbs_norms_says_of_what_is_normed_the_same(bias, shift):
    norm, layer, x = norms(bias=shift), linear(2, 4, bias=bias), torch.randn(6, 5, 4, dtype=torch.float64)
    expected = layer(norm(x))
    layer.absorb(norm)
    torch.testing.assert_close(layer(norm.norm(x)), expected, atol=1e-12, rtol=0)


@torch.no_grad()
def test_a_layer_absorbs_in_float32_what_has_fewer_digits():
    norm, layer = norms().bfloat16(), linear(2, 4).bfloat16()
    layer._hold(layer.weight, layer.bias)
    norm.affine = tuple(x.bfloat16() for x in norm.affine)
    scale, shift = (x.double() for x in norm.affine)
    weight, bias = layer.weight.double(), layer.bias.double()
    layer.absorb(norm)
    assert layer.weight.dtype == layer.bias.dtype == torch.bfloat16
    assert torch.equal(layer.weight, (weight * scale).float().bfloat16())
    torch.testing.assert_close(
        layer.bias.double(), bias + (weight @ shift.mT).squeeze(-1), atol=0.03, rtol=0.004
    )
