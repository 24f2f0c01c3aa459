"""`--fit`: training data that an OOD score of features is fitted on before it is told; and where there is none, that of the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydractl.data.batches import Deal
from hydractl.data.inputs import open_items
from hydractl.data.items import Items
from hydractl.data.labels import required_labels
from hydractl.data.matching import match_classes
from hydractl.errors import InputError
from hydractl.families.opening import OpenModel
from hydractl.families.tower import Towers
from hydractl.fusion.detecting import Detecting, Scores
from hydractl.manifest.report import Report
from hydractl.metrics.scores import FITTED, KNN
from hydractl.metrics.table import FIT
from hydractl.parallel import Team
from hydractl.progress import Progress
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.rows import Teller
from hydractl.stages.shared.fitting import FitOn, fitted_beside
from hydractl.stages.shared.predictions import PreparedData
from hydractl.stages.shared.reading import digests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """The data.

    Attributes:
        items: Those.
        labels: Shape (N,), the model's classes.
        sha256: What tells them from others.
        neighbours: Which nearest sample `knn` looks at; None for another score.
    """

    items: Items
    labels: Tensor
    sha256: str
    neighbours: int | None

    @classmethod
    def of(
        cls, config: PredictConfig, opened: OpenModel, teller: Teller, team: Team, progress: Progress
    ) -> Self | None:
        """Open the data; None where nothing is fitted.

        Raises:
            DataError: If it cannot be used, or has no labels.
            InputError: If the threshold of a report is on a score that was fitted otherwise.
        """
        if config.fit is None:
            return None
        classes, header = teller.classes, opened.header
        items = open_items(config.fit, header.preprocess, workers=config.num_workers, progress=progress)
        own = required_labels(items, "--fit", hint="name labelled training data")
        matched = match_classes(
            items,
            classes.names if classes else header.labels,
            num_classes=len(teller.names),
            by_text=classes is not None,
            called=f"`--fit {items.name}`",
            progress=progress,
        )
        found = cls(
            items=items,
            labels=torch.tensor([matched[label] for label in own]),
            sha256=items.fingerprint(digests(items, team)),
            neighbours=config.neighbours if teller.score == KNN else None,
        )
        if teller.report is not None:
            found.check(teller.report, where=str(config.threshold))
        return found

    def check(self, report: Report, *, where: str) -> None:
        """Refuse a report whose scores were fitted otherwise: its threshold is not for these.

        Raises:
            InputError: If it is.
        """
        if FIT not in report.data:
            raise InputError(
                f"{where}: its threshold is for a score that its model holds as it was fitted",
                hint="leave `--fit` out, and name that model",
            )
        if report.data[FIT].sha256 != self.sha256:
            raise InputError(
                f"{where}: its threshold is for a score that was fitted on `{report.data[FIT].reference}`, and `--fit "
                f"{self.items.name}` holds other samples",
                hint="name the same data with `--fit`",
            )
        if self.neighbours is not None and report.options.get("knn_k") != self.neighbours:
            raise InputError(
                f"{where}: its threshold is for the neighbour {report.options.get('knn_k')}, not {self.neighbours}",
                hint=f"add `--knn-k {report.options.get('knn_k')}`",
            )

    def options(self) -> dict[str, object]:
        """Return everything of it that shapes a line."""
        return {"fit": self.sha256, "knn_k": self.neighbours}


def held(opened: OpenModel, teller: Teller, fit: Fit | None) -> Scores | None:
    """Return the score that is told as the checkpoint holds it; None where it is none of features, or fitted now.

    Raises:
        CheckpointError: If what the checkpoint holds is broken.
    """
    if teller.score not in FITTED or fit is not None:
        return None
    return Scores.stored(opened.checkpoint, opened.header, scores=[teller.score], name=opened.reference)


def beside(
    config: PredictConfig,
    opened: OpenModel,
    model: Towers,
    told: tuple[str, Fit],
    team: Team,
    progress: Progress,
) -> Detecting:
    """Return a model beside a score that is fitted for it now.

    Raises:
        DataError: If the score cannot be fitted on such data.
    """
    score, fit = told
    inputs = PreparedData(
        fit.items,
        batch_size=config.batch_size,
        limit_bytes=0,
        name=FIT,
        deal=Deal(team.rank, team.world),
    )
    on = FitOn(inputs, fit.labels, config.neighbours)
    return fitted_beside(model, opened, [score], on, team, progress)
