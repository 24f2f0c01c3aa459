"""What `--compare mc:...`, `laplace:...` and `swag:...` make of models that are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import torch

from hydractl.data.inputs import encoded
from hydractl.families.opening import OpenModel
from hydractl.families.tower import Towers
from hydractl.inputs import Inputs, inputs_like
from hydractl.manifest.report import Derived
from hydractl.progress import Progress, counted
from hydractl.rivals.dropout import Thinned
from hydractl.rivals.laplace import LastLayer
from hydractl.rivals.reference import McDropout, Rival, Swag
from hydractl.rivals.swag import Drawn
from hydractl.stages.evaluate.cost import Loaded
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.refs import ID_NAME, NamedModels


class Asked(NamedTuple):
    """A row as it answers.

    Attributes:
        row: What answers.
        opened: For each of its models the file that errors name.
        told: What was made of each file; empty where each answers as it is.
    """

    row: Loaded
    opened: Sequence[OpenModel]
    told: tuple[Derived | None, ...]


def derive(
    named: NamedModels, row: Loaded, opened: Sequence[OpenModel], data: EvalData, progress: Progress
) -> Asked:
    """Return a row as it answers, and what was made of each model; nothing where each answers as it is.

    Raises:
        UnsupportedModelError: If it cannot be made of a model.
    """
    if not named.rivals:
        return Asked(row, opened, ())
    models: list[Towers] = []
    told: list[Derived | None] = []
    first: list[int] = []
    while len(told) < len(opened):
        place = len(told)
        rival = named.rivals[place]
        end = place + (rival.checkpoints if isinstance(rival, Swag) else 1)
        made, said = _derive(rival, row.models[place:end], opened[place:end], data, progress)
        models.append(made)
        first.append(place)
        told += [said] * (end - place)
    reads = tuple(row.preprocess[place] for place in first)
    return Asked(
        replace(row, models=tuple(models), preprocess=reads), [opened[place] for place in first], tuple(told)
    )


def _derive(
    rival: Rival | None,
    models: Sequence[Towers],
    files: Sequence[OpenModel],
    data: EvalData,
    progress: Progress,
) -> tuple[Towers, Derived | None]:
    model, opened = models[0], files[0]
    if rival is None:
        return model, None
    if isinstance(rival, McDropout):
        return Thinned(model, rival, name=opened.reference), _told(rival)
    if isinstance(rival, Swag):
        progress.step(
            f"Drawing {counted(rival.samples, 'model')} around {counted(len(models), 'checkpoint')}"
        )
        return Drawn(models, rival, names=[one.reference for one in files]), _told(rival)
    items, fingerprint = data.fitted_on[str(rival.data)]
    progress.step(f"Fitting the last layer of {opened.reference} on {counted(len(items), 'sample')}")
    like = torch.empty(0, device=model.device, dtype=model.dtype)
    size = data.inputs[ID_NAME].batch_size
    every = encoded(items, opened.header.preprocess, batch_size=size, limit_bytes=0)  # each process has all
    total = -(-len(items) // size)

    def batches() -> Iterator[Inputs]:
        label = f"{opened.reference} on {items.name}"
        for batch in progress.track(every, label=label, total=total):
            yield inputs_like(batch.inputs, like)

    fitted = LastLayer(model, rival, batches(), name=opened.reference)
    told = _told(rival)
    options = told.options | {"prior": fitted.prior}
    return fitted, told.model_copy(update={"options": options, "data": fingerprint})


def _told(rival: Rival) -> Derived:
    options = {name: value for name, value in asdict(rival).items() if name != "data" and value is not None}
    return Derived(kind=rival.KIND, options=options)
