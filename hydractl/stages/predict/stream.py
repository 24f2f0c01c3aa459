"""What a model says of a set, some batches at a time and in the order of the items; memory holds no more than these.

Several processes share the batches; the first of them has all answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from hydractl.data.batches import BATCHES, Batch, BatchShare
from hydractl.data.datasets import Items, TextSet
from hydractl.data.encode import encoded
from hydractl.data.words import Span, by_word, whole_words
from hydractl.data.worker_pool import cores
from hydractl.fusion.feature_ood import Predictor
from hydractl.fusion.inference import collected
from hydractl.manifest.header import Tokenization
from hydractl.metrics.per_sample import Responses, in_memory
from hydractl.model_inputs import Inputs
from hydractl.processes.distributed import ProcessGroup


def window(batch_size: int) -> int:
    """Return how many texts are sorted by length: of single ones none, so that each is answered as it comes."""
    return batch_size * (BATCHES if batch_size > 1 else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The responses to some items, at these places.

    Attributes:
        items: All items.
        places: Which of them.
        responses: What members say of these.
        bad: Why images cannot be read, by their places.
        words: Where words are answered, each text and the characters of its words.
    """

    items: Items
    places: range
    responses: Responses
    bad: dict[int, str]
    words: list[tuple[str, list[Span]]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPredictor:
    """A model that predicts a data set some batches at a time.

    Attributes:
        predictor: The model, on the device of this process.
        batch_size: Samples per forward pass.
        team: The processes, which share the batches.
        ticks: Moves on with each batch of this process.
    """

    predictor: Predictor
    batch_size: int
    team: ProcessGroup
    ticks: Iterator[object]

    def answers(self, items: Items) -> Iterator[Answered]:
        """Yield the predictions on a data set, in every process.

        The content of a batch does not depend on the number of processes.

        Raises:
            InputError: As `respond`.
            DataError: If an item cannot be read.
        """
        fills = self.predictor.model.device.type == "cpu" and torch.get_num_threads() >= cores()
        deal, size = BatchShare(self.team.rank, self.team.world, ahead=not fills), self.batch_size
        how = self.predictor.reads
        if isinstance(items, TextSet):
            step = window(size)
            for begin in range(0, len(items), step):
                part = items.subset(range(begin, min(begin + step, len(items))))
                words = by_word(part, how) if isinstance(how, Tokenization) and how.by_word else None
                rows = part if words is None else words
                responses, _ = self._collected(
                    encoded(rows, how, batch_size=size, deal=deal), items.name, range(len(rows))
                )
                yield Answered(
                    items=items,
                    places=range(begin, begin + len(part)),
                    responses=responses if words is None else responses.mapped(words.by_document),
                    bad={},
                    words=None if words is None else whole_words(part, words),
                )
            return
        stream = iter(encoded(items, how, batch_size=size, limit_bytes=0, deal=deal))
        step = size * BATCHES * self.team.world
        for begin in range(0, len(items), step):
            places = range(begin, min(begin + step, len(items)))
            responses, bad = self._collected(islice(stream, BATCHES), items.name, places)
            yield Answered(items=items, places=places, responses=responses, bad=bad)

    def _collected(
        self, batches: Iterable[Batch[Inputs]], data: str, places: range
    ) -> tuple[Responses, dict[int, str]]:
        """Return the predictions on the items at `places`, of all processes' batches, and the reasons why items are unreadable."""
        bad: dict[int, str] = {}

        def read() -> Iterator[Batch[Inputs]]:
            for batch in batches:
                bad.update(batch.bad)
                yield batch._replace(indices=batch.indices - places.start)
                next(self.ticks, None)

        outputs = self.team.iterate(self.predictor.responses(read(), data=data))
        responses = in_memory(collected(outputs, count=len(places), names=self.predictor.score_names))
        packed = torch.tensor(list(json.dumps(bad).encode()), dtype=torch.uint8)
        unreadable = [json.loads(bytes(part.tolist())) for part in self.team.in_order([packed])]
        return responses, {int(i): why for part in unreadable for i, why in part.items()}
