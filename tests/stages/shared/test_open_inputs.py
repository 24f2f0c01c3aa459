"""The fingerprint of a data set does not depend on the number of processes."""

from __future__ import annotations

import hashlib

import pytest
import torch

from hydractl.data.decoding import SAMPLE_BYTES
from hydractl.data.open_dataset import open_items
from hydractl.manifest.header import Preprocess
from hydractl.prediction.open_inputs import digests
from hydractl.processes.distributed import ProcessGroup

GREY = Preprocess(input_size=(1, 8, 8), mean=(0.0,), std=(1.0,))
SIZE = hashlib.sha256().digest_size + SAMPLE_BYTES


class Share(ProcessGroup):
    """Process group of one rank, with simulated contributions of the other ranks."""

    def __init__(self, items, rank, world):
        self.items, self.rank, self.world = items, rank, world

    def in_order(self, own):
        def read(rank):
            return b"".join(map(self.items.item_digest, range(rank, len(self.items), self.world)))

        assert own[0].numpy().tobytes() == read(self.rank)
        return [torch.tensor(list(read(rank)), dtype=torch.uint8) for rank in range(self.world)]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shares_of_the_digests_make_the_fingerprint(world):
    items = open_items("digits::limit=5", GREY)

    for rank in range(world):
        found = list(digests(items, Share(items, rank, world)))
        assert [len(digest) for digest in found] == [SIZE] * 5
        assert (
            items.fingerprint(found)
            == items.fingerprint()
            == items.fingerprint(digests(items, ProcessGroup()))
        )
