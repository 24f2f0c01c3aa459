from __future__ import annotations

import itertools

import pytest
import torch

from hydractl.checkpoint import DTYPE_NAMES, TORCH_NAMES, TensorSpec
from hydractl.families.finite import count_not_finite

FLOATING = [getattr(torch, name) for key, name in TORCH_NAMES.items() if TensorSpec(key, ()).is_floating]
LENGTHS = (1, 2, 7, 31, 32, 33, 64, 1000, 4097, 70_000)
"""Numbers of entries below, at and above the lengths of vector registers, and above a thread's share."""


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Return every bit pattern of an 8-bit or 16-bit dtype; of wider dtypes all patterns of the first 16 bits.

    The patterns contain both zeros, denormals, the largest numbers, all infinities and NaNs.
    """
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int64)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    low = (0, (1 << 8 * dtype.itemsize - 16) - 1) if dtype.itemsize > 2 else (0,)
    return torch.cat(
        [(patterns * (1 << 8 * dtype.itemsize - 16) + end).to(integer).view(dtype) for end in low]
    )


def expected(tensor: torch.Tensor) -> int:
    return int((~tensor.double().isfinite()).sum())


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda dtype: DTYPE_NAMES[str(dtype).removeprefix("torch.")])
class TestCountNotFinite:
    def test_each_number_alone_is_judged_like_isfinite(self, dtype):
        every = numbers(dtype)
        finite = every.double().isfinite()
        borders = finite.diff().nonzero().flatten()
        sample = torch.cat([torch.arange(0, len(every), 1009), borders, borders + 1]).unique().tolist()

        assert [count_not_finite(every[i]) for i in sample] == (~finite[sample]).int().tolist()
        assert count_not_finite(every[finite]) == 0
        assert count_not_finite(every) == expected(every) > 0

    def test_one_number_at_any_place_is_found(self, dtype):
        every = numbers(dtype).double()
        finite = every[every.isfinite()]
        values = [*every[~every.isfinite()].unique().tolist()[:3], finite.max().item(), finite.min().item()]
        for length, value in itertools.product(LENGTHS, values):
            for place in {0, length // 3, length // 2, length - 1}:
                tensor = torch.linspace(-2, 2, length).to(dtype)
                tensor[place] = value
                assert count_not_finite(tensor) == expected(tensor), (length, place, value)

    def test_layout_and_shape_change_nothing(self, dtype):
        table = torch.linspace(-2, 2, 35 * 66).to(dtype).view(35, 66)
        table[4, 7] = float("nan")

        assert count_not_finite(table[:, ::2]) == 0
        assert count_not_finite(table.T[8:]) == 0
        assert count_not_finite(table[:, 1::2]) == 1
        assert count_not_finite(table.T) == 1
        assert count_not_finite(table[4:5, 7:8].expand(3, 2)) == 6
        assert count_not_finite(table[:0]) == 0
        assert count_not_finite(table[4, 7]) == 1

    def test_the_largest_numbers_do_not_add_up_to_infinity(self, dtype):
        largest = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=torch.float64).to(
            dtype
        )

        assert [count_not_finite(x.repeat(70_000)) for x in largest] == [0, 0]
