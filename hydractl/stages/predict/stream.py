"""What a model says of a set, some batches at a time and in the order of the items; memory holds no more than these.

Several processes share the batches; the first of them has all answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch

from hydractl.data.batches import BATCHES, Batch, BatchShare
from hydractl.data.datasets import Items, TextSet
from hydractl.data.encode import Reading, encoded
from hydractl.data.words import Span, WordSet, by_word, whole_words
from hydractl.data.worker_pool import cores
from hydractl.families.tower import Towers
from hydractl.fusion.feature_ood import WithOodScores
from hydractl.fusion.inference import responses
from hydractl.manifest.header import Tokenization
from hydractl.metrics.per_sample import Responses, Scored, in_memory
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
    responses: Responses | Scored
    bad: dict[int, str]
    words: list[tuple[str, list[Span]]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPredictor:
    """A model that answers about a set some batches at a time.

    Attributes:
        model: On the device of this process, perhaps beside OOD scores of its features, which are seen as it answers.
        device: That.
        how: How it reads.
        name: What errors call it.
        batch_size: Samples in one forward pass.
        team: The processes that share the work.
        ticks: Moves on with each of this process's batches.
    """

    model: Towers | WithOodScores
    device: torch.device
    how: Reading
    name: str
    batch_size: int
    team: ProcessGroup
    ticks: Iterator[object]

    def answers(self, items: Items) -> Iterator[Answered]:
        """Yield what the model says of a set; every process is told of every item.

        The content of a batch does not depend on the number of processes.

        Raises:
            InputError: As `respond`.
            DataError: If an item cannot be read.
        """
        fills = self.device.type == "cpu" and torch.get_num_threads() >= cores()
        deal, size = BatchShare(self.team.rank, self.team.world, ahead=not fills), self.batch_size
        if isinstance(items, TextSet):
            step = window(size)
            for begin in range(0, len(items), step):
                part = items.subset(range(begin, min(begin + step, len(items))))
                how = self.how
                words = by_word(part, how) if isinstance(how, Tokenization) and how.by_word else None
                answered = self._together(
                    encoded(part if words is None else words, how, batch_size=size, deal=deal),
                    items,
                    begin,
                    offset=begin,
                )
                yield answered if words is None else _of_texts(answered, part, words)
            return
        stream = iter(encoded(items, self.how, batch_size=size, limit_bytes=0, deal=deal))
        for begin in range(0, len(items), size * BATCHES * self.team.world):
            yield self._together(islice(stream, BATCHES), items, begin)

    def _together(
        self, batches: Iterable[Batch[Inputs]], items: Items, begin: int, *, offset: int = 0
    ) -> Answered:
        """Return what all processes' batches give, which hold consecutive items from `begin` on."""
        places, bad = list[torch.Tensor](), list[torch.Tensor]()
        tensors: list[tuple[torch.Tensor, ...]] = []

        def noted() -> Iterator[Batch[Inputs]]:
            for batch in batches:
                bad.append(_packed({offset + i: why for i, why in batch.bad.items()}))
                yield batch

        for indices, *parts in self._responses(noted(), items.name):
            places.append(indices + offset - begin)
            tensors.append((*parts,))
            next(self.ticks, None)
        order = torch.cat(self.team.in_order(places)).argsort()
        log_probs, logsumexp, *scores = (
            torch.cat(self.team.in_order([batch[k] for batch in tensors]), 1)[:, order]
            for k in range(3 if isinstance(self.model, WithOodScores) else 2)
        )
        answers = Responses(log_probs, logsumexp)
        return Answered(
            items=items,
            places=range(begin, begin + len(order)),
            responses=self.model.scored(answers, *scores)
            if isinstance(self.model, WithOodScores)
            else answers,
            bad={
                int(i): why
                for part in self.team.in_order(bad)
                for i, why in json.loads(bytes(part.tolist())).items()
            },
        )

    def _responses(self, batches: Iterable[Batch[Inputs]], data: str) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield what this process's batches give, in one pass of the model each."""
        if isinstance(self.model, WithOodScores):
            return self.model.responses(batches, name=self.name, data=data)
        return responses(self.model, batches, name=self.name, data=data)


def _of_texts(answered: Answered, texts: TextSet, rows: WordSet) -> Answered:
    """Return what is said of texts, of what is said of the rows that they are read in."""
    begin = answered.places.start
    return replace(
        answered,
        places=range(begin, begin + len(texts)),
        responses=in_memory(answered.responses).mapped(rows.by_document),
        words=whole_words(texts, rows),
    )


def _packed(bad: dict[int, str]) -> torch.Tensor:
    return torch.tensor(list(json.dumps(bad).encode()), dtype=torch.uint8)
