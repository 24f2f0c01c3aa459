"""Scoring jobs on tiny models of any variant, with labelled data and threads as processes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from hydractl.model_inputs import WORDS, batch_of, cut_batch
from hydractl.processes.distributed import ProcessGroup
from hydractl.scoring.job import Samples, ScoreJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from hydractl.families.tower import Model
    from hydractl.manifest.head_mask import Removal
    from hydractl.model_inputs import Inputs
    from hydractl.scoring.job import Ranking
    from support.builders import Sample

DOUBLE = torch.float64
CLASSES = 7


def prompts(sample: Sample) -> dict[str, torch.Tensor]:
    """Return the texts of a zero-shot model, a prompt for each class."""
    return {n: x for n, x in sample.inputs(batch=CLASSES, seed=5).items() if n != "pixel_values"}


def library_for(sample: Sample) -> nn.Module:
    """Return the library's model in float64. Zero-shot models use the prompts of `model_for`."""
    library = sample.library(DOUBLE)
    if sample.header.prompting:
        library.texts = prompts(sample)
    return library


def model_for(sample: Sample) -> Model:
    """Return hydractl's model in float64."""
    model = sample.model(DOUBLE)
    if sample.header.prompting:
        model.answer.ask(prompts(sample), templates=1)
    return model


def labelled(sample: Sample, count: int) -> tuple[Inputs, torch.Tensor]:
    """Return inputs and labels. Zero-shot models get images only."""
    inputs = sample.inputs(batch=count, seed=1, dtype=DOUBLE)
    return inputs["pixel_values"] if sample.header.prompting else inputs, labels_for(sample, inputs)


def labels_for(sample: Sample, inputs: Inputs) -> torch.Tensor:
    """Return labels of shape (B,), or (B, Q) for words with -100 for padding."""
    generator = torch.Generator().manual_seed(2)
    if not sample.header.architecture.task.by_word:
        return torch.randint(0, CLASSES, (batch_of(inputs),), generator=generator)
    words = inputs[WORDS]
    return torch.randint(0, CLASSES, words.shape, generator=generator).masked_fill(words < 0, -100)


def job_for(
    sample: Sample,
    data: tuple[Inputs, torch.Tensor] | None = None,
    *,
    batch: int = 4,
    count: int = 10,
    **changes: Any,
) -> ScoreJob:
    """Return a job on `count` labelled samples, or on the given inputs and labels."""
    inputs, labels = data or labelled(sample, count)
    batches = [Samples(x, y) for x, y in zip(cut_batch(inputs, batch), labels.split(batch), strict=True)]
    team = changes.get("team", ProcessGroup())
    return ScoreJob(
        model=model_for(sample),
        family=sample.family,
        architecture=sample.header.architecture,
        id_data=batches[team.rank :: team.world],
        **changes,
    )


def changed(sample: Sample, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Sample:
    """Return a sample with `change(name, tensor)` for each tensor."""
    return type(sample)(sample.header, {name: change(name, x) for name, x in sample.state.items()})


class InterruptedLog:
    """A log that raises KeyboardInterrupt after some removals."""

    def __init__(
        self, recorded: Sequence[Removal] = (), baseline: float | None = None, *, after: int = 10**9
    ):
        self.recorded, self.baseline, self.after = tuple(recorded), baseline, after
        self.seen: list[Removal] = list(recorded)

    def begin(self, baseline: float) -> None:
        self.baseline = baseline

    def record(self, removal: Removal) -> None:
        if len(self.seen) == self.after:
            raise KeyboardInterrupt
        self.seen.append(removal)


def together(world: int, score: Callable[[Any], Ranking]) -> list[Ranking]:
    """Run `score` in `world` threads, each with its own team. Return the results by rank."""
    meeting = threading.Barrier(world)
    table: list[Any] = [None] * world
    found: list[Any] = [None] * world

    def work(rank: int) -> None:
        try:
            found[rank] = score(_Thread(rank, world, table, meeting))
        except BaseException:
            # Otherwise the other threads would wait forever.
            meeting.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class _Thread:
    """Replacement for `ProcessGroup` with threads instead of processes."""

    leads = True

    def __init__(self, rank: int, world: int, table: list[Any], meeting: threading.Barrier) -> None:
        self.rank, self.world, self._table, self._meeting = rank, world, table, meeting

    def in_order(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self._table[self.rank] = list(own)
        self._meeting.wait(60)
        shares = list(self._table)
        self._meeting.wait(60)
        count = sum(map(len, shares))
        return [shares[i % self.world][i // self.world].cpu() for i in range(count)]

    def added(self, own: Any) -> list[torch.Tensor]:
        self._table[self.rank] = [[x.clone() for x in tensors] for tensors in own]
        self._meeting.wait(60)
        shares = list(self._table)
        self._meeting.wait(60)
        count = sum(map(len, shares))
        return ProcessGroup().added([shares[i % self.world][i // self.world] for i in range(count)])

    def told(self, text: str) -> str:
        return text
