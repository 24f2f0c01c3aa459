"""The default OOD score of a hydra, fitted before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from hydractl.data.encode import check_reads, limited, open_items
from hydractl.data.reference import DataRef
from hydractl.families.load import OpenModel
from hydractl.fusion.build import hydra_from_state
from hydractl.fusion.feature_ood import Predictor
from hydractl.manifest.document import Fingerprint, pack
from hydractl.manifest.header import FittedScores, SampledFile
from hydractl.metrics.ood_scores import ENERGY_DENSITY, VERSION
from hydractl.metrics.registry import FIT, VAL
from hydractl.processes.distributed import ProcessGroup, answering_device
from hydractl.progress import Progress
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.result import UNKNOWN_DIGEST, Outcome, make_header
from hydractl.stages.shared.open_inputs import digests, identified, labels_of
from hydractl.stages.shared.predictions import FitOn, fit_on, fits, inputs_of, overlap_of_val

HYDRA = "the hydra"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreFitter:
    """Training data, and held-out data of the same classes, that `energy+density` is fitted on.

    Attributes:
        config: Configuration of the fusion.
        members: The members.
        on: The data of `--fit` and `--val`.
        sources: Lineage entries of the two.
        team: The processes.
        progress: Receives steps and warnings.
    """

    config: FuseConfig
    members: Sequence[OpenModel]
    on: FitOn
    sources: tuple[SampledFile, SampledFile]
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
        training, held_out = (
            inputs_of(items, name=name, batch_size=measuring.batch_size, team=team)
            for name, items in zip((FIT, VAL), opened, strict=True)
        )
        (fit_digest, fit_content), (val_digest, val_content) = (
            identified(items, digests(items, team)) for items in opened
        )
        if doubt := overlap_of_val(val_content, fit_content):
            progress.warn(doubt)
        return cls(
            config=config,
            members=members,
            on=FitOn(training, labels, held_out),
            sources=(
                SampledFile(name=opened[0].name, sha256=fit_digest, samples=pack(fit_content)),
                SampledFile(name=opened[1].name, sha256=val_digest, samples=pack(val_content)),
            ),
            team=team,
            progress=progress,
        )

    def add(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the score of the hydra at its temperature.

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
        predictor = Predictor(model=hydra, name=HYDRA, reads=how)
        family = self.members[0].family
        scores = fit_on(predictor, family, (ENERGY_DENSITY,), self.on, self.team, self.progress)
        source = self.sources[0]
        fitted = FittedScores(
            scores=(ENERGY_DENSITY,),
            data=Fingerprint(reference=source.name, sha256=source.sha256, count=len(self.on.inputs)),
            temperature=scores.temperature,
            version=VERSION,
        )
        return replace(outcome, scores=scores, fitted=fitted, sources=(*outcome.sources, *self.sources))
