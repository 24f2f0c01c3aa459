from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.errors import UsageError
from hydractl.settings import bytes_of


@given(st.integers(1, 1 << 40))
def test_a_number_is_bytes(count):
    assert bytes_of("--x", str(count)) == bytes_of("--x", f"{count} B") == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2 << 30), ("512MB", 512_000_000), ("1.5 kib", 1536), ("3TB", 3 * 10**12), ("0.5MiB", 1 << 19)],
)
def test_units(text, count):
    assert bytes_of("--x", text) == count


@pytest.mark.parametrize("text", ["", "GiB", "2 G", "1e3", "0", "-1", "99999999TB", "2GiB!"])
def test_bad_sizes(text):
    with pytest.raises(UsageError, match="is not a size") as caught:
        bytes_of("--x", text)

    assert "512MB" in caught.value.hint
