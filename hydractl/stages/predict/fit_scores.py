"""`--fit`: training data that an OOD score of features is fitted on before it is told; and where there is none, that of the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydractl.data.batches import BatchShare
from hydractl.data.datasets import Items
from hydractl.data.encode import open_items
from hydractl.data.labels import match_classes, required_labels
from hydractl.data.reference import DataRef
from hydractl.errors import InputError
from hydractl.families.load import OpenModel
from hydractl.families.tower import Towers
from hydractl.fusion.feature_ood import Scores, WithOodScores
from hydractl.fusion.features import FeatureExtractor
from hydractl.manifest.report import Report
from hydractl.metrics.ood_scores import is_fitted
from hydractl.metrics.registry import FIT
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.rows import RowFormatter
from hydractl.stages.shared.fit_ood_scores import FitOn, fitted_beside
from hydractl.stages.shared.open_inputs import digests
from hydractl.stages.shared.predictions import PreparedData


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitData:
    """The data of `--fit`.

    Attributes:
        items: Those.
        labels: Shape (N,), the model's classes.
        sha256: What tells them from others.
    """

    items: Items
    labels: Tensor
    sha256: str

    def check(self, report: Report, *, where: str) -> None:
        """Refuse a report whose scores were fitted otherwise: its threshold is not for these.

        Raises:
            InputError: If it is.
        """
        if FIT not in report.data:
            raise InputError(
                f"{where}: its threshold is for the fitted OOD score that its model stores",
                hint="leave out `--fit` and use that model",
            )
        if report.data[FIT].sha256 != self.sha256:
            raise InputError(
                f"{where}: its threshold is for an OOD score that was fitted on "
                f"`{report.data[FIT].reference}`, but `--fit {self.items.name}` has other samples",
                hint="give the same data with `--fit`",
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureScore:
    """An OOD score of features: as the checkpoint stores it, or to be fitted on training data.

    Attributes:
        config: Of the run.
        opened: The model.
        name: Of the score.
        source: What it is made of.
    """

    config: PredictConfig
    opened: OpenModel
    name: str
    source: Scores | FitData

    @classmethod
    def open(
        cls,
        config: PredictConfig,
        opened: OpenModel,
        rows: RowFormatter,
        team: ProcessGroup,
        progress: Progress,
    ) -> Self | None:
        """Open the training data, or read what the checkpoint stores; None where the score in lines is none of features.

        Raises:
            DataError: If training data cannot be used, or have no labels.
            InputError: If the threshold of a report is on a score that was fitted otherwise.
            CheckpointError: If what the checkpoint holds is broken.
        """
        source: Scores | FitData
        if config.fit is not None:
            source = _open_fit(config, config.fit, rows, team, progress)
        elif is_fitted(rows.score):
            source = Scores.stored(
                opened.checkpoint, opened.header, scores=[rows.score], name=opened.reference
            )
        else:
            return None
        return cls(config=config, opened=opened, name=rows.score, source=source)

    def of(self, model: Towers, team: ProcessGroup, progress: Progress) -> WithOodScores:
        """Return a model beside the score, which is fitted now if it is not stored.

        Raises:
            DataError: If the score cannot be fitted on such data.
        """
        source, opened, config = self.source, self.opened, self.config
        extractor = FeatureExtractor.of(model, opened.family, name=opened.reference)
        if isinstance(source, Scores):
            return source.of(extractor, name=opened.reference)
        inputs = PreparedData(
            source.items,
            batch_size=config.batch_size,
            limit_bytes=0,
            name=FIT,
            deal=BatchShare(team.rank, team.world),
        )
        training = FitOn(inputs, source.labels, opened.header.preprocess)
        return fitted_beside(extractor, [self.name], training, team, progress, name=opened.reference)


def _open_fit(
    config: PredictConfig, ref: DataRef, rows: RowFormatter, team: ProcessGroup, progress: Progress
) -> FitData:
    classes, header = rows.classes, rows.opened.header
    items = open_items(ref, header.preprocess, workers=config.num_workers, progress=progress)
    labels = required_labels(items, "--fit", hint="give labelled training data")
    matched = match_classes(
        items,
        classes.names if classes else header.labels,
        num_classes=len(rows.names),
        by_text=classes is not None,
        called=f"`--fit {items.name}`",
        progress=progress,
    )
    fit = FitData(
        items=items,
        labels=torch.tensor([matched[label] for label in labels]),
        sha256=items.fingerprint(digests(items, team)),
    )
    if rows.report is not None:
        fit.check(rows.report, where=str(config.threshold))
    return fit
