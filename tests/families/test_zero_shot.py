"""Zero-shot logits, compared with float64."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from hydractl.families.tower import Contrast, unit

SCALE = 64.0  # the logarithm is nearly the same in all dtypes
LOW = [torch.bfloat16, torch.float16]


def asked(dtype, *, bias=None, classes=200, samples=300):
    """Return an output head with classes, and image embeddings (1, N, F)."""
    draw = torch.Generator().manual_seed(0)
    texts = unit(torch.randn(classes, 32, generator=draw) + 2).to(dtype)
    images = unit(torch.randn(1, samples, 32, generator=draw) + 2).to(dtype)
    scale = nn.Parameter(torch.tensor(math.log(SCALE), dtype=dtype))
    bias = None if bias is None else nn.Parameter(torch.tensor(bias, dtype=dtype))
    return Contrast(logit_scale=scale, logit_bias=bias, width=32, class_embeddings=texts), images


def exact(answer, images):
    """Return the logits in float64."""
    found = answer.logit_scale.double().exp() * images.double() @ answer.class_embeddings.double().T
    return found if answer.logit_bias is None else found + answer.logit_bias.double()


@torch.inference_mode()
@pytest.mark.parametrize("bias", [None, -8.0])
@pytest.mark.parametrize("dtype", [*LOW, torch.float32])
def test_logits_are_single_whatever_weights_are(dtype, bias):
    answer, images = asked(dtype, bias=bias)
    logits = answer({"vision": images})
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact(answer, images), rtol=0, atol=1e-4)
    top = logits.topk(2).values
    assert not bool((top[..., 0] == top[..., 1]).any())


@torch.inference_mode()
def test_logits_of_doubles_are_doubles():
    answer, images = asked(torch.float64)
    torch.testing.assert_close(answer({"vision": images}), exact(answer, images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("embedded", [torch.bfloat16, torch.float32])
def test_autocast_rounds_no_logit(embedded):
    """Under autocast, towers may return bf16 or float32."""
    answer, images = asked(torch.float32)
    images = images.to(embedded).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        logits = answer({"vision": images})
        assert torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(logits.double(), exact(answer, images), rtol=0, atol=1e-4)
    logits.sum().backward()
    assert images.grad is not None
    assert answer.logit_scale.grad is not None


@torch.no_grad()
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_are_one_graph(dtype, autocast):
    torch._dynamo.reset()
    answer, images = asked(dtype)
    count = CompileCounter()
    compiled = torch.compile(answer, backend=count, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        assert torch.equal(compiled({"vision": images}), answer({"vision": images}))
    assert count.frame_count == 1


def test_logits_have_shapes_where_there_are_no_numbers():
    answer, images = asked(torch.bfloat16)
    assert answer.to("meta")({"vision": images.to("meta")}).shape == (1, 300, 200)
