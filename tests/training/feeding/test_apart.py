"""Batches of several members side by side."""

from __future__ import annotations

import pytest
import torch

from hydractl.manifest.header import Tokenization
from hydractl.training.feeding.apart import joined_inputs


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_filled_up_to_the_longest_member_s(side):
    how = Tokenization(max_length=9, pad_id=7, vocab_size=9, padding_side=side)
    parts = [
        {
            "input_ids": torch.ones(2, n, dtype=torch.long),
            "attention_mask": torch.ones(2, n, dtype=torch.long),
        }
        for n in (2, 3)
    ]

    found = joined_inputs(parts, how)

    short = [7, 1, 1] if side == "left" else [1, 1, 7]
    assert found["input_ids"].tolist() == [short] * 2 + [[1, 1, 1]] * 2
    assert found["attention_mask"].tolist() == [[int(i == 1) for i in short]] * 2 + [[1, 1, 1]] * 2
