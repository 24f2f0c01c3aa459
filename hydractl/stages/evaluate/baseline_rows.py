"""What `--compare KIND:MODEL` makes of models that are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import torch

from hydractl.data.datasets import Items
from hydractl.data.encode import Reading, encoded
from hydractl.families.load import OpenModel, build_checked
from hydractl.families.tower import Towers
from hydractl.fusion.build import hydra_from_state
from hydractl.fusion.prompts import Classes
from hydractl.fusion.streaming import hollow
from hydractl.manifest.header import Kind
from hydractl.manifest.report import Derived
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.progress import Progress
from hydractl.stages.evaluate.baselines.base import DATA, VAL, BaselineOptions
from hydractl.stages.evaluate.cost import RowModels
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.refs import NamedModels


class BaselineRow(NamedTuple):
    """A row as it answers.

    Attributes:
        row: What answers.
        opened: For each of its models the file that errors name.
        derived: What was made of each file; empty where each answers as it is.
    """

    row: RowModels
    opened: Sequence[OpenModel]
    derived: tuple[Derived | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaselineInputs:
    """What a baseline is made of.

    Attributes:
        models: As they run.
        files: Likewise, as they were opened.
        data: Of the run, with what baselines are fitted on.
        progress: Hears what is done.
    """

    models: Sequence[Towers]
    files: Sequence[OpenModel]
    data: EvalData
    progress: Progress

    @property
    def name(self) -> str:
        """What messages call the first model."""
        return self.files[0].reference

    def batches(self, items: Items, how: Reading) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """Yield inputs as the first model takes them, and which items they are; in each process all of them."""
        model, size = self.models[0], self.data.inputs[ID_NAME].batch_size
        like = torch.empty(0, device=model.device, dtype=model.dtype)
        every = encoded(items, how, batch_size=size, limit_bytes=0)
        label, total = f"{self.name} on {items.name}", -(-len(items) // size)
        for batch in self.progress.track(every, label=label, total=total):
            yield inputs_like(batch.inputs, like), batch.indices


class BaselineModule(Protocol):
    """What the module of a baseline has, for options of its own class."""

    def check(self, options: Any, files: Sequence[OpenModel], classes: Classes | None) -> None:  # noqa: ANN401 - see above
        """Refuse files that it cannot be made of, of which a model is asked about classes, as far as it can be told without data.

        Raises:
            UnsupportedModelError: If there are some.
        """
        ...

    def build(self, options: Any, inputs: BaselineInputs) -> tuple[Towers, dict[str, float]]:  # noqa: ANN401 - see above
        """Return what answers, and numbers that were fitted.

        Raises:
            UnsupportedModelError: If it cannot be made of the models.
        """
        ...


def derive(
    named: NamedModels, row: RowModels, opened: Sequence[OpenModel], data: EvalData, progress: Progress
) -> BaselineRow:
    """Return a row as it answers, and what was made of each model; nothing where each answers as it is.

    Raises:
        UnsupportedModelError: If it cannot be made of a model.
    """
    if not named.rivals:
        return BaselineRow(row, opened, ())
    models: list[Towers] = []
    derived: list[Derived | None] = []
    first: list[int] = []
    for options, places in _made_of(named):
        inputs = BaselineInputs(models=row.models[places], files=opened[places], data=data, progress=progress)
        model, described = (inputs.models[0], None) if options is None else _derive(options, inputs)
        models.append(model)
        first.append(places.start)
        derived += [described] * len(inputs.files)
    reads = tuple(row.preprocess[place] for place in first)
    return BaselineRow(
        replace(row, models=tuple(models), preprocess=reads),
        [opened[place] for place in first],
        tuple(derived),
    )


def check_made_of(options: BaselineOptions, files: Sequence[OpenModel], classes: Classes | None) -> None:
    """Refuse what cannot be made of files, of which a model is asked about classes, as far as it can be told without data.

    Raises:
        UnsupportedModelError: As `derive`.
    """
    _module_of(options).check(options, files, classes)


def check_made(named: NamedModels, opened: Sequence[OpenModel], classes: Classes | None) -> None:
    """Refuse what cannot be made of a row's models, before any row is asked; see `check_made_of`."""
    for options, places in _made_of(named):
        if options is not None:
            check_made_of(options, opened[places], classes)


def without_weights(opened: OpenModel) -> Towers:
    """Return a model without its weights."""
    state, header = hollow(opened.checkpoint.specs), opened.header
    if header.kind == Kind.HYDRA:
        return hydra_from_state(header, state, where=opened.reference)
    return build_checked(opened.family, header, state, where=opened.reference)


def _module_of(options: BaselineOptions) -> BaselineModule:
    return cast("BaselineModule", import_module(options.MODULE))


def _made_of(named: NamedModels) -> Iterator[tuple[BaselineOptions | None, slice]]:
    """Yield what is made of a row's models, and of which of them, by their places."""
    place = 0
    while place < len(named.rivals):
        options = named.rivals[place]
        end = place + (1 if options is None else options.checkpoints)
        yield options, slice(place, end)
        place = end


def _derive(options: BaselineOptions, inputs: BaselineInputs) -> tuple[Towers, Derived]:
    model, fitted = _module_of(options).build(options, inputs)
    settings = {
        name: setting
        for name, setting in asdict(options).items()
        if name not in {DATA, VAL} and setting is not None
    }
    sources = inputs.data.fitted_on
    return model, Derived(
        kind=options.KIND,
        options=settings | fitted,
        data=None if options.reads is None else sources[str(options.reads)].fingerprint,
        val=None if options.val is None else sources[str(options.val)].fingerprint,
    )
