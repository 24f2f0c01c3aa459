"""`--fit`: training data for the feature-based OOD score of `predict`."""

from __future__ import annotations

from hydractl.data.encode import open_items
from hydractl.errors import InputError
from hydractl.metrics.registry import FIT
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.rows import RowFormatter
from hydractl.stages.shared.fit_ood_scores import FitOn, inputs_of
from hydractl.stages.shared.open_inputs import digests, labels_of


def training_data(
    config: PredictConfig, rows: RowFormatter, team: ProcessGroup, progress: Progress
) -> FitOn | None:
    """Open the data of `--fit`, None if it is not given.

    Raises:
        DataError: If the data cannot be used, or have no labels.
        InputError: If `--threshold` is a report whose score was fitted on other data.
    """
    if config.fit is None:
        return None
    items = open_items(
        config.fit, rows.opened.header.preprocess, workers=config.num_workers, progress=progress
    )
    labels, _ = labels_of(
        rows.opened, items, rows.classes, progress, option="--fit", hint="give labelled training data"
    )
    if rows.report is not None:
        sha256, fitted = items.fingerprint(digests(items, team)), rows.report.data.get(FIT)
        if fitted is None:
            raise InputError(
                f"{config.threshold}: its threshold is for the fitted OOD score that its model stores",
                hint="leave out `--fit` and use that model",
            )
        if fitted.sha256 != sha256:
            raise InputError(
                f"{config.threshold}: its threshold is for an OOD score that was fitted on "
                f"`{fitted.reference}`, but `--fit {items.name}` has other samples",
                hint="give the same data with `--fit`",
            )
    return FitOn(inputs_of(items, name=FIT, batch_size=config.batch_size, team=team), labels)
