"""What `--compare mc:...` and `laplace:...` make of models that are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import torch

from hydractl.data.inputs import encoded
from hydractl.families.opening import OpenModel
from hydractl.families.tower import Towers
from hydractl.inputs import Inputs, inputs_like
from hydractl.manifest.report import Derived
from hydractl.progress import Progress, counted
from hydractl.rivals.dropout import Thinned
from hydractl.rivals.laplace import LastLayer
from hydractl.rivals.reference import McDropout, Rival
from hydractl.stages.evaluate.cost import Loaded
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.refs import ID_NAME, NamedModels


def derive(
    named: NamedModels, row: Loaded, opened: Sequence[OpenModel], data: EvalData, progress: Progress
) -> tuple[Loaded, tuple[Derived | None, ...]]:
    """Return a row as it answers, and what was made of each model; nothing where each answers as it is.

    Raises:
        UnsupportedModelError: If it cannot be made of a model.
    """
    if not named.rivals:
        return row, ()
    made = [
        _derive(rival, model, one, data, progress)
        for rival, model, one in zip(named.rivals, row.models, opened, strict=True)
    ]
    models, told = zip(*made, strict=True)
    return replace(row, models=models), told


def _derive(
    rival: Rival | None, model: Towers, opened: OpenModel, data: EvalData, progress: Progress
) -> tuple[Towers, Derived | None]:
    if rival is None:
        return model, None
    if isinstance(rival, McDropout):
        return Thinned(model, rival, name=opened.reference), _told(rival)
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
