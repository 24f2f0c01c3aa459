"""What a model says of a set, some batches at a time and in the order of the items; memory holds no more than these.

Several processes share the batches; the first of them has all answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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


Answers = tuple[range, Responses, dict[int, str], list[tuple[str, list[Span]]] | None]
"""Places of items, predictions on them, the reason for each place that is unreadable, and the words of each text if words are answered."""


def answers(
    predictor: Predictor, items: Items, size: int, team: ProcessGroup, ticks: Iterator[object]
) -> Iterator[Answers]:
    """Yield the predictions on a data set, some batches at a time, in every process.

    The content of a batch does not depend on the number of processes.

    Args:
        predictor: The model, on the device of this process.
        items: The data.
        size: Samples per forward pass.
        team: The processes, which share the batches.
        ticks: Advances with each batch of this process.

    Raises:
        InputError: As `respond`.
        DataError: If an item cannot be read.
    """
    fills = predictor.model.device.type == "cpu" and torch.get_num_threads() >= cores()
    deal, how = BatchShare(team.rank, team.world, ahead=not fills), predictor.reads
    stream, step = None, window(size)
    if not isinstance(items, TextSet):
        stream = iter(encoded(items, how, batch_size=size, limit_bytes=0, deal=deal))
        step = size * BATCHES * team.world
    for begin in range(0, len(items), step):
        places = range(begin, min(begin + step, len(items)))
        first, rows, words = begin, items, None
        if isinstance(items, TextSet):
            first, rows = 0, (texts := items.subset(places))
            if isinstance(how, Tokenization) and how.by_word:
                rows = words = by_word(texts, how)
        count = len(places) if words is None else len(words)
        part = islice(stream, BATCHES) if stream else encoded(rows, how, batch_size=size, deal=deal)
        bad: dict[int, str] = {}
        outputs = team.iterate(predictor.responses(_ticked(part, first, bad, ticks), data=items.name))
        responses = in_memory(collected(outputs, count=count, names=predictor.score_names))
        packed = torch.tensor(list(json.dumps(bad).encode()), dtype=torch.uint8)
        for other in team.in_order([packed]):
            bad |= {int(place): why for place, why in json.loads(bytes(other.tolist())).items()}
        if words is None:
            yield places, responses, bad, None
        else:
            yield places, responses.mapped(words.by_document), bad, whole_words(texts, words)


def _ticked(
    batches: Iterable[Batch[Inputs]], first: int, bad: dict[int, str], ticks: Iterator[object]
) -> Iterator[Batch[Inputs]]:
    """Yield batches with indices counted from `first`, advance `ticks`, and add the reasons of unreadable items to `bad`."""
    for batch in batches:
        bad.update(batch.bad)
        yield batch._replace(indices=batch.indices - first)
        next(ticks, None)
