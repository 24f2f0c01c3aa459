"""Weights in files whose names are not UTF-8 or contain control characters.

`torch.load(mmap=True)` fails for names that are not UTF-8.
"""

from __future__ import annotations

import os

import pytest
import torch

from hydractl.importing.weights import read_weights


@pytest.mark.parametrize("name", [b"w\xff.pth", b"w\x7f.pth"])
def test_weights_of_odd_names_are_read(name, tmp_path):
    plain, odd = tmp_path / "plain.pth", tmp_path / os.fsdecode(name)
    torch.save({"weight": torch.arange(3.0)}, plain)
    odd.write_bytes(plain.read_bytes())

    weights = read_weights((odd,), ema=False)

    assert torch.equal(weights.tensors["weight"], torch.arange(3.0))
