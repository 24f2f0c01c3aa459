"""Batches of several members."""

from __future__ import annotations

import torch

from hydractl.manifest.header import Tokenization
from hydractl.training.feeding import joined_inputs


def test_texts_are_filled_up_to_the_longest_member_s():
    preprocess = Tokenization(max_length=9, pad_id=7, vocab_size=9)
    parts = [
        {
            "input_ids": torch.ones(2, n, dtype=torch.long),
            "attention_mask": torch.ones(2, n, dtype=torch.long),
        }
        for n in (2, 3)
    ]

    found = joined_inputs(parts, preprocess)

    assert found["input_ids"].tolist() == [[1, 1, 7]] * 2 + [[1, 1, 1]] * 2
    assert found["attention_mask"].tolist() == [[1, 1, 0]] * 2 + [[1, 1, 1]] * 2
