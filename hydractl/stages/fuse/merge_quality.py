"""What merging did: a hydra beside its members' ensemble on labelled data; and the temperature that is fitted there.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hydractl.data.batches import CACHE_BYTES, BatchShare
from hydractl.data.encode import check_reads, limited, open_items
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.families.load import OpenModel, load_model
from hydractl.manifest.header import InputFile
from hydractl.metrics.per_sample import Responses, answers, ensemble_log_probs
from hydractl.metrics.temperature import rounded, scale_log_probs
from hydractl.processes.distributed import ProcessGroup, answering_device
from hydractl.progress import Progress
from hydractl.stages.fuse.config import Measuring
from hydractl.stages.fuse.result import Quality
from hydractl.stages.shared.open_inputs import digests, labels_of, warn
from hydractl.stages.shared.predictions import Predictor, PreparedData, Scaling, fits, predict

Said = Mapping[DataRef, Tensor]
"""Members' log-probabilities (M, N, C) on each data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A data set as models read it, with labels (N,) of the models' classes."""

    inputs: PreparedData
    labels: Tensor


class Judge:
    """The data sets, opened once, and what members say of them."""

    def __init__(
        self,
        asked: Measuring,
        members: Sequence[OpenModel],
        stored: float,
        team: ProcessGroup,
        progress: Progress,
    ) -> None:
        """Open the data.

        Args:
            asked: Which, and how models run.
            members: At least one, all with the same classes.
            stored: The temperature where none is fitted.
            team: Who asks models together.
            progress: Hears what is measured.

        Raises:
            DataError: If a set cannot be used, has no labels, or not those of the members.
            UsageError: If nothing names the classes of a zero-shot model.
        """
        self.asked, self.stored, self.team, self.progress = asked, stored, team, progress
        self.device = answering_device(asked.device)
        first = members[0]
        check_reads(first.header.preprocess, model=first.reference)
        warn(first, progress)
        if not first.header.num_classes:
            raise UsageError(
                f"{first.reference}: tells no classes apart yet, so nothing can be measured",
                hint="name them as the data do: `--classes cat,dog`",
            )
        self.how = limited(first.header.preprocess, asked.max_length, model=first.reference)
        self.sets: dict[DataRef, Labelled] = {}
        for option, ref in asked.refs.items():
            if ref not in self.sets:
                self.sets[ref] = self._opened(ref, option, first)

    def _opened(self, ref: DataRef, option: str, first: OpenModel) -> Labelled:
        items = open_items(ref, self.how, workers=self.asked.num_workers, progress=self.progress)
        labels, _ = labels_of(first, items, None, self.progress, option=option)
        limit = CACHE_BYTES // len(self.asked.refs)
        return Labelled(
            inputs=PreparedData(
                items,
                batch_size=self.asked.batch_size,
                limit_bytes=limit,
                deal=BatchShare(self.team.rank, self.team.world),
            ),
            labels=labels,
        )

    @property
    def sources(self) -> tuple[InputFile, ...]:
        """The data sets as lineage has them."""
        found = [own.inputs.dataset for own in self.sets.values()]
        return tuple(
            InputFile(name=items.name, sha256=items.fingerprint(digests(items, self.team))) for items in found
        )

    def said_apart(self, members: Iterable[OpenModel]) -> Said:
        """Return what members say one by one; memory holds one of them at a time."""
        each = [self.said(partial(load_model, m), m.reference) for m in members]
        return {ref: torch.cat([said[ref] for said in each]) for ref in self.sets}

    def said(self, load: Callable[[], Predictor], name: str) -> Said:
        """Return what a model says.

        Raises:
            InputError: If its logits are not finite, or it does not fit into the memory of the device.
        """
        with fits(name, self.device):
            model = load().to(self.device)
        return {
            ref: predict(
                model, own.inputs, self.how, name=name, team=self.team, progress=self.progress
            ).log_probs
            for ref, own in self.sets.items()
        }

    def temperature(self, said: Said, name: str) -> float:
        """Return the temperature of whoever said it: fitted, or the one that was given or stored."""
        ref = self.asked.heldout
        if ref is None:
            return self.stored
        scaling = Scaling.fit(Responses(said[ref]), self.sets[ref].labels, row=name, progress=self.progress)
        return rounded(scaling.temperature or 1.0)

    def quality(self, said: Said, temperature: float) -> tuple[Quality, Tensor]:
        """Return how good the ensemble of those who said it is on `--data`, and which classes (N,) it predicts."""
        ref = self.asked.data
        if ref is None:
            raise ValueError("there is no data set to measure on")
        log_probs = ensemble_log_probs(scale_log_probs(said[ref], temperature).double())
        found = answers(log_probs.exp(), self.sets[ref].labels, log_probs=log_probs)
        quality = Quality(
            accuracy=float(found["hits"].double().mean()),
            nll=float(found["nll"].mean()),
            temperature=temperature,
        )
        return quality, log_probs.argmax(1)
