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

LogProbs = Mapping[DataRef, Tensor]
"""Members' log-probabilities (M, N, C) on each data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """A data set as models read it, with labels (N,) of the models' classes."""

    inputs: PreparedData
    labels: Tensor


class MergeEvaluator:
    """The data sets, opened once, and what members say of them."""

    def __init__(
        self,
        measuring: Measuring,
        members: Sequence[OpenModel],
        stored: float,
        team: ProcessGroup,
        progress: Progress,
    ) -> None:
        """Open the data.

        Args:
            measuring: Which, and how models run.
            members: At least one, all with the same classes.
            stored: The temperature where none is fitted.
            team: Who asks models together.
            progress: Hears what is measured.

        Raises:
            DataError: If a set cannot be used, has no labels, or not those of the members.
            UsageError: If nothing names the classes of a zero-shot model.
        """
        self.asked, self.stored, self.team, self.progress = measuring, stored, team, progress
        self.device = answering_device(measuring.device)
        first = members[0]
        check_reads(first.header.preprocess, model=first.reference)
        warn(first, progress)
        if not first.header.num_classes:
            raise UsageError(
                f"{first.reference}: tells no classes apart yet, so nothing can be measured",
                hint="name them as the data do: `--classes cat,dog`",
            )
        self.how = limited(first.header.preprocess, measuring.max_length, model=first.reference)
        self.sets: dict[DataRef, LabelledSet] = {}
        for option, ref in measuring.refs.items():
            if ref not in self.sets:
                self.sets[ref] = self._opened(ref, option, first)

    def _opened(self, ref: DataRef, option: str, first: OpenModel) -> LabelledSet:
        items = open_items(ref, self.how, workers=self.asked.num_workers, progress=self.progress)
        labels, _ = labels_of(first, items, None, self.progress, option=option)
        limit = CACHE_BYTES // len(self.asked.refs)
        return LabelledSet(
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
        datasets = [labelled_set.inputs.dataset for labelled_set in self.sets.values()]
        return tuple(
            InputFile(name=items.name, sha256=items.fingerprint(digests(items, self.team)))
            for items in datasets
        )

    def log_probs_of_members(self, members: Iterable[OpenModel]) -> LogProbs:
        """Return what members say one by one; memory holds one of them at a time."""
        log_probs_by_member = [self.log_probs_of(partial(load_model, m), m.reference) for m in members]
        return {
            ref: torch.cat([member_log_probs[ref] for member_log_probs in log_probs_by_member])
            for ref in self.sets
        }

    def log_probs_of(self, load: Callable[[], Predictor], name: str) -> LogProbs:
        """Return what a model says.

        Raises:
            InputError: If its logits are not finite, or it does not fit into the memory of the device.
        """
        with fits(name, self.device):
            model = load().to(self.device)
        return {
            ref: predict(
                model, labelled_set.inputs, self.how, name=name, team=self.team, progress=self.progress
            ).log_probs
            for ref, labelled_set in self.sets.items()
        }

    def temperature(self, log_probs: LogProbs, name: str) -> float:
        """Return the temperature of whoever said it: fitted, or the one that was given or stored."""
        ref = self.asked.heldout
        if ref is None:
            return self.stored
        scaling = Scaling.fit(
            Responses(log_probs[ref]), self.sets[ref].labels, row=name, progress=self.progress
        )
        return rounded(scaling.temperature or 1.0)

    def quality(self, log_probs_by_set: LogProbs, temperature: float) -> tuple[Quality, Tensor]:
        """Return how good the ensemble of those who said it is on `--data`, and which classes (N,) it predicts."""
        ref = self.asked.data
        if ref is None:
            raise ValueError("there is no data set to measure on")
        log_probs = ensemble_log_probs(scale_log_probs(log_probs_by_set[ref], temperature).double())
        per_sample = answers(log_probs.exp(), self.sets[ref].labels, log_probs=log_probs)
        quality = Quality(
            accuracy=float(per_sample["hits"].double().mean()),
            nll=float(per_sample["nll"].mean()),
            temperature=temperature,
        )
        return quality, log_probs.argmax(1)
