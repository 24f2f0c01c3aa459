from __future__ import annotations

import math

import pytest
import torch

from hydractl.errors import DataError
from hydractl.model_inputs import map_inputs
from hydractl.scoring.gradients.hies import attention_entropy, relative_entropy
from support.builders import base
from support.jobs import changed, job_for, labelled, library_for
from support.variants import variant


def literal(weights, lengths):
    """Return what the definition says, one number at a time, of weights (B, H, T, T) whose first tokens are real."""
    found = torch.zeros(weights.shape[1], dtype=torch.float64)
    for sample, length in zip(weights.tolist(), lengths, strict=True):
        for head, rows in enumerate(sample):
            total = 0.0
            for row in rows[:length]:
                total -= sum(a * math.log(a) for a in row[:length] if a > 0)
            found[head] += total / length / math.log(length) if length > 1 else 0.0
    return found / len(lengths)


def random_weights(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)


def test_uniform_attention_is_1_and_pointed_attention_0():
    uniform = torch.full((2, 3, 5, 5), 0.2)
    pointed = torch.eye(5).expand(2, 3, -1, -1)

    assert relative_entropy(uniform, None) == pytest.approx(torch.ones(2, 3).numpy())
    assert relative_entropy(pointed, None).count_nonzero() == 0


def test_a_single_token_is_0():
    assert relative_entropy(torch.ones(1, 2, 1, 1), None).tolist() == [[0.0, 0.0]]
    padded = torch.zeros(1, 2, 3, 3)
    padded[..., 0] = 1
    assert relative_entropy(padded, torch.tensor([[1, 0, 0]]).bool()).tolist() == [[0.0, 0.0]]


def test_it_lies_between_0_and_1_and_does_not_mind_the_order_of_tokens():
    weights, order = random_weights(3, 2, 6, 6), [4, 0, 5, 2, 1, 3]

    found = relative_entropy(weights, None)

    assert ((found >= 0) & (found <= 1)).all()
    assert relative_entropy(weights[:, :, order][..., order], None) == pytest.approx(found.numpy(), rel=1e-12)


def test_what_padding_asks_does_not_count_even_if_it_is_no_number():
    weights = torch.full((1, 2, 5, 5), float("nan"), dtype=torch.float64)
    weights[..., :3, :] = 0
    weights[..., :3, :3] = random_weights(1, 2, 3, 3)

    found = relative_entropy(weights, torch.tensor([[1, 1, 1, 0, 0]]).bool())

    assert found == pytest.approx(relative_entropy(weights[..., :3, :3], None).numpy(), rel=1e-12)


@pytest.mark.parametrize("kind", ["transformers-vit-plain", "transformers-bert-plain"])
def test_entropies_are_those_of_the_librarys_own_attention(kind):
    sample = base(variant(kind))
    inputs, labels = labelled(sample, 6)

    found = attention_entropy(job_for(sample, (inputs, labels)))

    library = library_for(sample)
    library.config._attn_implementation = "eager"
    named = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
    with torch.no_grad():
        attentions = type(library).forward(library, **named, output_attentions=True).attentions
    lengths = (
        named["attention_mask"].sum(1).tolist()
        if "attention_mask" in named
        else [attentions[0].shape[-1]] * 6
    )
    expected = torch.stack([literal(a, lengths) for a in attentions])
    (table,) = found.values()
    assert torch.tensor(table, dtype=torch.float64) == pytest.approx(expected.numpy(), rel=1e-7)


def test_padding_further_changes_nothing():
    sample = base(variant("transformers-modernbert-plain"))
    texts, labels = labelled(sample, 6)
    texts = map_inputs(lambda x: x[:, :12], texts)
    fill = {"input_ids": sample.header.preprocess.pad_id}
    longer = {n: torch.nn.functional.pad(x, (0, 5), value=fill.get(n, 0)) for n, x in texts.items()}

    short, long = (attention_entropy(job_for(sample, (x, labels)))["text"] for x in (texts, longer))

    assert torch.tensor(long) == pytest.approx(torch.tensor(short), rel=1e-5)


def test_the_prompts_count_once_however_many_batches_there_are():
    sample = base(variant("transformers-clip-plain"))

    one, many = (attention_entropy(job_for(sample, batch=n)) for n in (10, 3))

    for name in ("text", "vision"):
        assert torch.tensor(one[name]) == pytest.approx(torch.tensor(many[name]), rel=1e-5)
        assert all(0 < x < 1 for row in one[name] for x in row)


def test_what_is_not_finite_is_refused():
    broken = changed(
        base(variant("class-token")), lambda n, x: x * float("nan") if "1.attn.qkv.weight" in n else x
    )

    with pytest.raises(DataError, match="attention weights are not finite"):
        attention_entropy(job_for(broken))
