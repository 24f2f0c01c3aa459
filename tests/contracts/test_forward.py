"""All variants: embed, blocks and readout together equal the library's forward pass."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.registry import FAMILIES
from hydractl.families.stream import Stream
from hydractl.families.tower import largest_difference
from support.builders import base, over_classes
from support.variants import PLAIN, VARIANTS

READS = {
    "timm-vit-distilled": 2, "timm-vit-distilled-dynamic": 2, "transformers-siglip-plain-text": 1,
    "openclip-plain-vision": 1, "openclip-scaled-text": 1, "openclip-custom-text-plain-vision": 1,
    "openclip-custom-text-normed-text": 1, "timm-beit-class-token": 1, "timm-relpos-networks-class-token": 1,
    "openclip-timm-relative-positions-vision": 1, "openclip-timm-custom-text-class-token-vision": 1,
} | {
    f"timm-vit-{name}": 1
    for name in (
        "class-token", "registers", "embedded-registers", "layer-scale", "swiglu", "pre-norm", "qk-norm", "no-qkv-bias",
        "no-projection-bias", "mlp-norm", "no-position", "dynamic-size", "hybrid", "one-logit", "multi-label",
    )
} | {
    f"timm-eva-{name}": 1
    for name in (
        "no-rope-token-pool", "post-norm", "post-norm-rope", "dinov3-token", "rope", "rope-with-positions",
        "rope-mixed", "rope-mixed-dynamic", "rope-apart", "rope-multimodal",
    )
} | {
    str(v): 1
    for v in VARIANTS
    if set(FAMILIES[v.family].towers) == {"text"} and v.name not in {"mean-pool", "late", "tokens"} and "decoder" not in v.family
} | {
    "transformers-deit-plain": 1, "transformers-deit-distilled": 2, "transformers-beit-class-token": 1,
    "transformers-data2vec-vision-class-token": 1,
} | {str(v): 1 for v in VARIANTS if v.family == "transformers-vit"} | {
    f"{v}-vision": 1 for v in VARIANTS if "clip" in v.family and v.family.startswith("transformers")
} | {
    "transformers-chinese-clip-plain-text": 1, "transformers-altclip-plain-text": 1,
}  # fmt: skip
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


@pytest.mark.newer
def test_every_family_has_variants():
    assert {v.family for v in VARIANTS} == set(FAMILIES)


@every_variant
@pytest.mark.parametrize(("dtype", "tolerance"), [
    pytest.param(torch.float32, 1e-5, id="fp32", marks=pytest.mark.spread(alike=True)),
    pytest.param(torch.float64, 1e-10, id="fp64"),
])  # fmt: skip
@torch.inference_mode()
def test_equals_the_library(variant, dtype, tolerance):
    sample = base(variant)
    inputs = sample.inputs(batch=3, dtype=dtype)

    found = sample.model(dtype)(inputs)

    multi_label = sample.header.architecture.task.by_label
    expected = over_classes(sample.library(dtype)(inputs), multi_label=multi_label)
    tokens = [] if not sample.header.architecture.task.by_word else [inputs["word_starts"].shape[1]]
    assert found.shape == (3, *tokens, sample.header.architecture.num_classes or 3, *[2] * multi_label)
    assert largest_difference(found, expected) <= tolerance


@pytest.mark.spread(alike=True)
@every_variant
@torch.inference_mode()
def test_the_five_steps_in_turn_are_the_forward_pass(variant):
    """`heads`, `project` and `join` are applied to all tokens, as in scoring."""
    sample = base(variant)
    model = sample.model(torch.float64)
    inputs = sample.inputs(dtype=torch.float64)

    outputs = {}
    for name, asked in model.routed(inputs).items():
        tower = model.tower(name)
        stream = tower.embed(asked)
        for block in tower.layers():
            z = block.heads(stream)
            assert z.shape[-2:] == (4, 8)
            stream = block.join(stream, block.project(z))
        outputs[name] = tower.readout(stream).unsqueeze(0)

    assert largest_difference(model.answer(outputs).squeeze(0), model(inputs)) <= 1e-10


@pytest.mark.spread(alike=True)
@every_variant
@torch.inference_mode()
def test_resuming_from_any_layer_is_the_forward_pass(variant):
    sample = base(variant)
    model = sample.model()
    for name, asked in model.routed(sample.inputs()).items():
        tower = model.tower(name)
        stream, expected = tower.embed(asked), tower(asked)
        for layer, block in enumerate(tower.layers()):
            assert torch.equal(tower.resume(stream, layer), expected)
            stream = block(stream, tower.queries(layer))
        assert torch.equal(tower.finish(stream), expected)


@pytest.mark.spread(alike=True)
@every_variant
@torch.inference_mode()
def test_blocks_say_whether_they_join_each_token_by_itself(variant):
    """Compiled searches fold samples and tokens into one axis if `tokenwise` is true."""
    model = base(variant).model(torch.float64)
    for name, asked in model.routed(base(variant).inputs(dtype=torch.float64)).items():
        stream = model.tower(name).embed(asked)
        for block in model.tower(name).layers():
            y = block.project(block.heads(stream))
            tokens = stream.tokens
            stream = block.join(stream, y)

            assert block.tokenwise == (not isinstance(getattr(block, "conv", None), torch.nn.Module))
            if block.tokenwise:
                one_row = Stream(tokens.reshape(1, -1, tokens.shape[-1]))
                found = block.join(one_row, y.reshape(one_row.tokens.shape)).tokens
                assert largest_difference(found.view(tokens.shape), stream.tokens) <= 1e-12


@pytest.mark.spread(alike=True)
@every_variant
@torch.inference_mode()
def test_projection_is_the_sum_of_the_heads_terms(variant):
    model = base(variant).model(torch.float64)
    for name, asked in model.routed(base(variant).inputs(dtype=torch.float64)).items():
        tower = model.tower(name)
        block = tower.layers()[1]
        z = block.heads(tower.embed(asked))
        (group,) = block.attn.groups()

        terms = sum(group.head_term(z, head) for head in range(group.heads))

        bias = 0 if group.proj.bias is None else group.proj.bias
        assert largest_difference(terms + bias, block.project(z)) <= 1e-12


@pytest.mark.spread(every=2)
@every_variant
@torch.inference_mode()
def test_last_block_computes_only_the_tokens_that_are_read(variant, monkeypatch):
    model = base(variant).model()
    for name, asked in model.routed(base(variant).inputs()).items():
        tower, seen = model.tower(name), []
        for block in tower.layers():
            join = block.join
            monkeypatch.setattr(
                block,
                "join",
                lambda stream, y, join=join, seen=seen: seen.append(y.shape[1]) or join(stream, y),
            )

        tower(asked)

        tokens = seen[0]
        assert seen == [tokens, tokens, READS.get(f"{variant}", READS.get(f"{variant}-{name}", tokens))]
        assert tokens > 2


@pytest.mark.spread(alike=True)
@every_variant
def test_state_dict_names_are_the_library_s(variant):
    sample = base(variant)
    model = sample.model()
    found = model.library_state()
    assert set(found) == set(sample.library().state_dict())
    assert all(torch.equal(found[name], tensor) for name, tensor in sample.state.items())


def test_an_empty_batch_stays_empty():
    sample = base(PLAIN)
    with torch.inference_mode():
        assert sample.model()(sample.inputs()[:0]).shape == (0, 7)


@pytest.mark.spread(alike=True)
@every_variant
def test_gradients_reach_every_parameter(variant):
    """No part is detached or missing in `parameters`, so models can be fine-tuned."""
    model = base(variant).model()
    names = dict(model.named_parameters())
    model(base(variant).inputs()).logsumexp(dim=1).sum().backward()
    assert {n for n, p in names.items() if p.grad is None} == set()
