"""Checkpointed or compiled blocks give the same gradients."""

from __future__ import annotations

import pytest
import torch

from hydractl import runtime
from hydractl.errors import UsageError
from hydractl.families.tower import probe_inputs
from hydractl.model_inputs import map_inputs
from hydractl.training import trainer
from hydractl.training.dropout import set_dropout
from support.builders import base
from support.variants import TIMM_VIT, TINY, Variant, variant

CPU = torch.device("cpu")
SHALLOW = Variant("timm-vit", "shallow", TIMM_VIT["class-token"][0], TINY | {"depth": 1})
ROWS = 6


def step(name, prepare=(), *, autocast=False):
    """Return the gradients of a batch in two pieces, and the bytes saved for the backward pass."""
    sample = base(variant(name) if isinstance(name, str) else name)
    model = sample.model()
    noise = set_dropout(model, 0.2, path=0.3)
    for change in prepare:
        change(model)
    model.train()
    inputs = probe_inputs(sample.header)
    inputs = map_inputs(lambda x: torch.cat([x] * ROWS)[:ROWS], inputs)
    held = {}

    def note(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    for rows in (range(3), range(3, ROWS)):
        piece = map_inputs(lambda x, rows=rows: x[rows.start : rows.stop], inputs)
        with noise.at(seed=0, step=0, rows=rows, total=ROWS, device=CPU):
            with (
                torch.autocast("cpu", torch.bfloat16, enabled=autocast),
                torch.autograd.graph.saved_tensors_hooks(note, lambda x: x),
            ):
                loss = model(piece).float().square().mean()
            loss.backward()
    weights = sum(p.nbytes for p in model.parameters())
    return {n: p.grad for n, p in model.named_parameters()}, sum(held.values()) - weights


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[n], other[n]) if one[n] is not None else other[n] is None for n in one
    )


@pytest.mark.parametrize(
    ("name", "autocast"), [("class-token", False), ("class-token", True), ("local-last", False)]
)
def test_blocks_that_run_again_give_the_same_gradients_and_hold_less(name, autocast):
    plain, held = step(name, autocast=autocast)
    again, less = step(name, [trainer.recompute_blocks], autocast=autocast)

    assert same(again, plain)
    assert less < held / 2


@pytest.mark.parametrize(
    ("training", "recorded", "times"), [(True, True, 2), (False, True, 1), (True, False, 1)]
)
def test_blocks_run_again_only_where_a_step_is_taken(training, recorded, times):
    model, calls = base().model(), []
    blocks = model.tower().layers()
    for block in blocks:
        block.norm1.register_forward_pre_hook(lambda *_: calls.append(1))
    trainer.recompute_blocks(model)

    with torch.set_grad_enabled(recorded):
        outputs = model.train(training)(probe_inputs(base().header))
        if recorded:
            outputs.sum().backward()

    assert len(calls) == times * len(blocks)


@pytest.mark.newer
def test_a_compiled_step_gives_the_same_gradients(monkeypatch):
    monkeypatch.setattr(runtime, "BACKEND", "eager")
    plain, _ = step(SHALLOW)

    compiled, _ = step(SHALLOW, [lambda model: trainer.compile_step(model, name="it")])

    assert same(compiled, plain)


def test_a_step_that_is_no_single_graph_is_refused(monkeypatch):
    monkeypatch.setattr(runtime, "BACKEND", "eager")
    model = base().model()
    forward = model.forward

    def broken(x):
        torch._dynamo.graph_break()
        return forward(x)

    vars(model)["forward"] = broken
    trainer.compile_step(model, name="it")

    with pytest.raises(UsageError, match="`--compile`: it cannot be compiled here"):
        model.train()(probe_inputs(base().header))
