"""What `--compare mc:...`, `laplace:...`, `swag:...`, `bayesvlm:...` and `vilu:...` make of models that are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import torch

from hydractl.data.inputs import Reading, encoded, open_items, reading_differences
from hydractl.data.items import Items
from hydractl.errors import DataError, UnsupportedModelError
from hydractl.families.opening import OpenModel, build_checked
from hydractl.families.probe import blank_inputs, probe_inputs
from hydractl.families.registry import architecture_differences
from hydractl.families.tower import Towers
from hydractl.fusion.building import hydra_from_state, load_any
from hydractl.fusion.classes import Classes, prompts_of
from hydractl.fusion.streaming import hollow
from hydractl.inputs import Inputs, inputs_like
from hydractl.manifest.header import Kind, Tokenization
from hydractl.manifest.report import Derived
from hydractl.manifest.scopes import ID_NAME
from hydractl.progress import Progress
from hydractl.rivals.bayesvlm import TEXT, VISION, Compared, Pairs, Watched
from hydractl.rivals.dropout import Thinned
from hydractl.rivals.laplace import GRID, LastLayer
from hydractl.rivals.reference import DATA, FEWEST, VAL, BayesVlm, Laplace, McDropout, Rival, Swag, Vilu
from hydractl.rivals.swag import ONE_TRAINING, Drawn, check_one_training
from hydractl.rivals.vilu import Judged, Lessons, contrast_of
from hydractl.stages.evaluate.cost import Loaded
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.refs import NamedModels
from hydractl.training.feeding.feed import ItemFeed
from hydractl.wording import counted, quoted


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
    for rival, own in _made_of(named):
        made, said = _derive(rival, row.models[own], opened[own], data, progress)
        models.append(made)
        first.append(own.start)
        told += [said] * len(opened[own])
    reads = tuple(row.preprocess[place] for place in first)
    return Asked(
        replace(row, models=tuple(models), preprocess=reads), [opened[place] for place in first], tuple(told)
    )


def check_made_of(rival: Rival, files: Sequence[OpenModel], classes: Classes | None) -> None:
    """Refuse what cannot be made of files, of which a model is asked about classes, as far as it can be told without data.

    Weights are read where their last layer is doubted or their towers are, and of one file.

    Raises:
        UnsupportedModelError: As `derive`.
    """
    first = files[0]
    if isinstance(rival, McDropout):
        Thinned(_unfilled(first), rival, name=first.reference)
    elif isinstance(rival, Vilu):
        contrast_of(_unfilled(first), name=first.reference)
    elif isinstance(rival, Swag):
        check_one_training([_unfilled(one) for one in files], [one.reference for one in files])
        _check_same_model(files)
    elif isinstance(rival, Laplace):
        LastLayer(load_any(first), rival, [probe_inputs(first.header)], name=first.reference)
    else:
        tokenization, _ = comparing(first, classes)
        watched = Watched(model := load_any(first), name=first.reference)
        for tower, reads in ((VISION, first.header.preprocess), (TEXT, tokenization)):
            watched.checked(tower, blank_inputs(reads, 1, device=model.device))


def _check_same_model(files: Sequence[OpenModel]) -> None:
    """Refuse checkpoints that compute or read items otherwise than the first, which answers with all of their weights.

    Raises:
        UnsupportedModelError: With what differs.
    """
    first = files[0].header
    for other in files[1:]:
        header = other.header
        differences = architecture_differences(header.architecture, first.architecture)
        if differences := (*differences, *reading_differences(header.preprocess, first.preprocess)):
            raise UnsupportedModelError(
                f"{other.reference}: differs from {files[0].reference}: {quoted(differences)}",
                hint=ONE_TRAINING,
            )


def check_made(named: NamedModels, opened: Sequence[OpenModel], classes: Classes | None) -> None:
    """Refuse what cannot be made of a row's models, before any row is asked; see `check_made_of`."""
    for rival, own in _made_of(named):
        if rival is not None:
            check_made_of(rival, opened[own], classes)


def _made_of(named: NamedModels) -> Iterator[tuple[Rival | None, slice]]:
    """Yield what is made of a row's models, and of which of them, by their places."""
    place = 0
    while place < len(named.rivals):
        rival = named.rivals[place]
        end = place + (rival.checkpoints if isinstance(rival, Swag) else 1)
        yield rival, slice(place, end)
        place = end


def _unfilled(opened: OpenModel) -> Towers:
    """Return a model without its weights."""
    state, header = hollow(opened.checkpoint.specs), opened.header
    if header.kind == Kind.HYDRA:
        return hydra_from_state(header, state, where=opened.reference)
    return build_checked(opened.family, header, state, where=opened.reference)


def comparing(opened: OpenModel, classes: Classes | None) -> tuple[Tokenization, Classes]:
    """Return how a model that compares images with texts reads these, and which classes it is asked about, for `bayesvlm:`.

    Raises:
        UnsupportedModelError: If it is none, or is asked in several ways.
    """
    prompting = opened.header.prompting
    if prompting is None or classes is None:
        raise UnsupportedModelError(
            f"{opened.reference}: `bayesvlm:` is of models that compare images with texts, which it is not",
            hint="`laplace:` doubts the last layer of a classifier",
        )
    if len(classes.templates) > 1:
        raise UnsupportedModelError(
            f"{opened.reference}: `bayesvlm:` asks for a class in one way, and here are {len(classes.templates)} templates",
            hint="give one `--template`",
        )
    return prompting.tokenization, classes


def check_pairs(rival: BayesVlm, images: Items) -> None:
    """Refuse pairs of which none can be told from others.

    Raises:
        DataError: If there is but one.
    """
    if len(images) < FEWEST:
        raise DataError(
            f"{rival.data}: one pair cannot be told from others", hint="name data with thousands of pairs"
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
    items, fingerprint, labels = data.fitted_on[str(rival.reads)]
    batches = _Batches(model, opened.reference, data.inputs[ID_NAME].batch_size, progress)
    fitted: Towers
    if isinstance(rival, BayesVlm):
        made = fitted = _compared(rival, model, opened, data, batches)
        found = {"prior_image": made.priors[0], "prior_text": made.priors[1]}
    elif isinstance(rival, Vilu):
        judged = fitted = _judged(rival, model, opened, (items, labels), progress)
        found = {"accuracy": judged.accuracy}
    else:
        last = fitted = _doubting(rival, model, opened, data, batches)
        found = {"prior": last.prior}
    told = _told(rival)
    chosen_by = (
        data.fitted_on[str(rival.val)].fingerprint if isinstance(rival, Laplace) and rival.val else None
    )
    update = {"options": told.options | found, "data": fingerprint, "val": chosen_by}
    return fitted, told.model_copy(update=update)


class _Batches(NamedTuple):
    """How a model is asked of data that it is fitted on, by each process of all of them."""

    model: Towers
    name: str
    size: int
    progress: Progress

    def of(self, items: Items, how: Reading) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """Yield inputs, and which items they are."""
        like = torch.empty(0, device=self.model.device, dtype=self.model.dtype)
        every = encoded(items, how, batch_size=self.size, limit_bytes=0)
        label, total = f"{self.name} on {items.name}", -(-len(items) // self.size)
        for batch in self.progress.track(every, label=label, total=total):
            yield inputs_like(batch.inputs, like), batch.indices


def _doubting(
    rival: Laplace, model: Towers, opened: OpenModel, data: EvalData, batches: _Batches
) -> LastLayer:
    name, reads, progress = opened.reference, opened.header.preprocess, batches.progress
    items = data.fitted_on[str(rival.reads)].items
    progress.step(f"Fitting the last layer of {name} on {counted(len(items), 'sample')}")
    each = (inputs for inputs, _ in batches.of(items, reads))
    if rival.val is None:
        return LastLayer(model, rival, each, name=name)
    held, _, labels = data.fitted_on[str(rival.val)]
    if labels is None:
        raise ValueError("the labels are read where the data are opened")
    labelled = ((inputs, labels[places]) for inputs, places in batches.of(held, reads))
    made = LastLayer(model, rival, each, held=labelled, name=name)
    count = counted(len(held), "sample")
    progress.step(f"{name}: prior precision {made.prior:.4g}, of the lowest NLL on {count}")
    lowest, *_, highest = GRID
    if made.prior in {lowest, highest}:
        doubt = "little" if made.prior == highest else "much"
        progress.warn(
            f"{name}: the prior precision ended at {made.prior:g}, a bound of the search ({lowest:g} to {highest:g}): {count} "
            f"want the last layer doubted as {doubt} as can be"
        )
    return made


def _compared(
    rival: BayesVlm, model: Towers, opened: OpenModel, data: EvalData, batches: _Batches
) -> Compared:
    tokenization, classes = comparing(opened, data.classes)
    images = data.fitted_on[str(rival.reads)].items
    captions = open_items(rival.captions, tokenization, labelled=False, progress=batches.progress)
    check_pairs(rival, images)
    left = len(images) % min(rival.contrast, len(images))
    if left:
        batches.progress.warn(
            f"{rival.data}: the last {counted(left, 'pair')} left out, as {rival.contrast} are told apart at once"
        )
    batches.progress.step(f"Fitting the projections of {opened.reference} on {counted(len(images), 'pair')}")
    pairs = Pairs(
        batches.of(images, opened.header.preprocess),
        batches.of(captions, tokenization),
        len(images),
    )
    return Compared(model, rival, pairs, prompts_of(opened, classes), name=opened.reference)


def _judged(
    rival: Vilu,
    model: Towers,
    opened: OpenModel,
    data: tuple[Items, torch.Tensor | None],
    progress: Progress,
) -> Judged:
    contrast_of(model, name=opened.reference)
    items, labels = data
    if labels is None:
        raise ValueError("the labels are read where the data are opened")
    feed = ItemFeed.open(
        items,
        labels.tolist(),
        opened.header.preprocess,
        augment=rival.augments,
        batch_size=rival.batch,
        seed=rival.seed,
    )
    progress.step(f"Learning on {counted(len(items), 'sample')} when {opened.reference} is right")
    made = Judged(model, rival, Lessons(feed, progress), name=opened.reference)
    if made.accuracy in {0.0, 1.0}:
        always = "right" if made.accuracy else "wrong"
        progress.warn(
            f"{rival.data}: {opened.reference} is always {always} there, which does not teach to tell right from wrong"
        )
    return made


def _told(rival: Rival) -> Derived:
    options = {
        name: value for name, value in asdict(rival).items() if name not in {DATA, VAL} and value is not None
    }
    return Derived(kind=rival.KIND, options=options)
