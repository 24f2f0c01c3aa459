"""`--corrupt`: the ID set as corruptions leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hydractl.data.corruptions.names import Corruption
from hydractl.data.corruptions.strengths import frost_scale
from hydractl.data.inputs import Reading, with_corruption
from hydractl.errors import DataError
from hydractl.manifest.header import Tokenization
from hydractl.manifest.scopes import ID_NAME
from hydractl.metrics.measures import Shifted, measure
from hydractl.metrics.metric import Needs
from hydractl.metrics.resampling import Measured, Resampling
from hydractl.metrics.samples import Kept
from hydractl.metrics.table import needing
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.shared.predictions import PreparedData, Scaling


def check_photographs(corruptions: Iterable[Corruption], how: Reading) -> None:
    """Refuse photographs that are too small for crops of what the model reads.

    Raises:
        DataError: If one is, or cannot be read.
    """
    photographs = next((each.photographs for each in corruptions if each.photographs), None)
    if photographs is None or isinstance(how, Tokenization):
        return
    from hydractl.data.corruptions.images import photograph  # noqa: PLC0415 - scipy, which few need

    _, height, width = how.input_size
    scale = frost_scale(min(height, width))
    for i, file in enumerate(photographs.files):
        found = photograph(photographs, i, scale).shape
        if found[0] <= height or found[1] <= width:
            raise DataError(
                f"{file}: {found[1]} x {found[0]} pixels, scaled by {scale:g}, are too few for crops of {width} x {height}",
                hint="name larger pictures, or leave them out, for drawn ice",
            )


def under_corruptions(
    config: EvalConfig,
    corruptions: Iterable[Corruption],
    data: EvalData,
    said: Callable[[PreparedData], Kept | None],
    scaling: Scaling,
) -> Shifted | None:
    """Return what a row's numbers on labelled data become under each corruption; None without one, or in processes that do not lead.

    Memory holds what is said of one corruption, and of each metric a number a resample.

    Args:
        config: Of the run; its resamples are those of the clean ID set, so that a drawn sample is drawn under every corruption.
        corruptions: Which.
        data: Whose ID set is corrupted.
        said: Has all processes run the row on a data set.
        scaling: Of the row's logits.
    """
    cells: dict[tuple[str, str], dict[str, Measured]] = {}
    for corruption in corruptions:
        clean = data.whole(ID_NAME)
        items = with_corruption(clean.dataset, corruption)
        found = said(clean.of(items, name=f"{corruption.name} {corruption.severity}"))
        if found is None:
            continue
        cells[corruption.name, str(corruption.severity)] = measure(
            scaling(found),
            data.known.labels,
            {},
            metrics=needing(config.chosen, Needs.LABELS),
            scores=(),
            resampling=Resampling(resamples=config.bootstrap, seed=config.seed),
        ).found
    return Shifted(cells=cells) if cells else None
