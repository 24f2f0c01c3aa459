from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("pipeline.sh")
WHOLE = {
    "a.st", "b.st", "base.st", "c.st", "hydra.json", "hydra.st", "m-0.mask.json", "m-0.st", "m-1.mask.json", "m-1.st",
    "predictions.safetensors", "report.json", "taylor.json",
}  # fmt: skip


@pytest.mark.more
def test_the_same_pipeline_twice_gives_the_same_bytes(shell):
    one, other = (shell(SCRIPT, name, server) for server, name in enumerate(("one", "other")))

    assert {p.name for p in one.iterdir()} == WHOLE
    assert {p.name: p.read_bytes() for p in one.iterdir()} == {
        p.name: p.read_bytes() for p in other.iterdir()
    }
