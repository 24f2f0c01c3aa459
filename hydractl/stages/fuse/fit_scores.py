"""The default OOD score of a hydra, fitted before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from hydractl.data.batches import BatchShare
from hydractl.data.encode import check_reads, limited, open_items
from hydractl.data.reference import DataRef
from hydractl.families.load import OpenModel
from hydractl.fusion.build import hydra_from_state
from hydractl.fusion.features import FeatureExtractor
from hydractl.manifest.document import Fingerprint, pack
from hydractl.manifest.header import FittedScores, SampledFile
from hydractl.metrics.ood_scores import ENERGY_DENSITY, VERSION
from hydractl.metrics.registry import FIT, VAL
from hydractl.processes.distributed import ProcessGroup, answering_device
from hydractl.progress import Progress
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.result import UNKNOWN_DIGEST, Outcome, make_header
from hydractl.stages.shared.fit_ood_scores import FitOn, fitted_beside, overlap_of_val
from hydractl.stages.shared.open_inputs import digests, identified, labels_of
from hydractl.stages.shared.predictions import PreparedData, fits

HYDRA = "the hydra"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreFitter:
    """Training data, and held-out data of the same classes, that `energy+density` is fitted on.

    Attributes:
        config: What is fused, and how models run.
        members: What it is made of.
        training: The data of `--fit`.
        labels: Theirs, (N,), the members' classes.
        held_out: The data of `--val`.
        fingerprints: Of the two.
        samples: Digests of their samples, as `pack` writes them.
        team: Who fits together.
        progress: Hears what begins, and what is doubtful.
    """

    config: FuseConfig
    members: Sequence[OpenModel]
    training: PreparedData
    labels: Tensor
    held_out: PreparedData
    fingerprints: tuple[Fingerprint, Fingerprint]
    samples: tuple[str, str]
    team: ProcessGroup
    progress: Progress

    @classmethod
    def open(
        cls,
        config: FuseConfig,
        members: Sequence[OpenModel],
        refs: tuple[DataRef, DataRef],
        team: ProcessGroup,
        progress: Progress,
    ) -> Self:
        """Open the data of `--fit` and of `--val`.

        Raises:
            DataError: If a set cannot be used, or `--fit` has no labels, or not those of the members.
        """
        measuring, first = config.measuring, members[0]
        check_reads(first.header.preprocess, model=first.reference)
        how = limited(first.header.preprocess, measuring.max_length, model=first.reference)
        opened = [open_items(ref, how, workers=measuring.num_workers, progress=progress) for ref in refs]
        labels, _ = labels_of(first, opened[0], None, progress, option=f"--{FIT}")
        prepared = [
            PreparedData(
                items,
                batch_size=measuring.batch_size,
                limit_bytes=0,
                name=name,
                deal=BatchShare(team.rank, team.world),
            )
            for name, items in zip((FIT, VAL), opened, strict=True)
        ]
        (fit_digest, fit_content), (val_digest, val_content) = (
            identified(items, digests(items, team)) for items in opened
        )
        if doubt := overlap_of_val(val_content, fit_content):
            progress.warn(doubt)
        return cls(
            config=config,
            members=members,
            training=prepared[0],
            labels=labels,
            held_out=prepared[1],
            fingerprints=(
                Fingerprint(reference=opened[0].name, sha256=fit_digest, count=len(opened[0])),
                Fingerprint(reference=opened[1].name, sha256=val_digest, count=len(opened[1])),
            ),
            samples=(pack(fit_content), pack(val_content)),
            team=team,
            progress=progress,
        )

    def add(self, outcome: Outcome) -> Outcome:
        """Return what is written, with the score of the hydra at its temperature.

        Raises:
            DataError: If the score cannot be fitted on such data.
            InputError: If the hydra does not fit into the memory of the device.
        """
        self.progress.step(f"Fitting the OOD score {ENERGY_DENSITY}")
        device = answering_device(self.config.measuring.device)
        header = make_header(self.config, self.members, outcome, digest=UNKNOWN_DIGEST)
        how = limited(header.preprocess, self.config.measuring.max_length, model=HYDRA)
        with fits(HYDRA, device):
            tensors = {name: outcome.fusion.tensor(name) for name in outcome.fusion.specs}
            hydra = hydra_from_state(header, tensors, where=HYDRA).to(device)
        hydra.set_temperature(outcome.temperature)
        scores = fitted_beside(
            FeatureExtractor.of(hydra, self.members[0].family, name=HYDRA),
            (ENERGY_DENSITY,),
            FitOn(self.training, self.labels, how, self.held_out),
            self.team,
            self.progress,
            name=HYDRA,
        ).scores
        fitted = FittedScores(
            scores=(ENERGY_DENSITY,),
            data=self.fingerprints[0],
            temperature=scores.temperature,
            version=VERSION,
        )
        inputs = tuple(
            SampledFile(name=f.reference, sha256=f.sha256, samples=samples)
            for f, samples in zip(self.fingerprints, self.samples, strict=True)
        )
        return replace(outcome, scores=scores, fitted=fitted, sources=(*outcome.sources, *inputs))
