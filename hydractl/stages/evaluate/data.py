"""The data sets of `eval`, opened once for all rows, with labels that mean the models' classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydractl.data.batches import CACHE_BYTES, Deal
from hydractl.data.inputs import Reading, check_skips, open_items, open_readable, open_stream
from hydractl.data.items import LABELS_HINT, Items
from hydractl.data.labels import Classed, are_numerals, required_labels, some
from hydractl.data.matching import match_classes, nameless
from hydractl.data.reference import DataRef
from hydractl.data.sources.columns import LabelReader
from hydractl.data.sources.stream import BATCHES, Stream
from hydractl.errors import DataError
from hydractl.families.opening import OpenModel
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.scopes import ID_NAME
from hydractl.metrics.table import FIT, TEMPERATURE, VAL
from hydractl.parallel import Team
from hydractl.progress import Progress
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.doubts import check_apart, of_data, of_training
from hydractl.stages.evaluate.selection import check_count
from hydractl.stages.evaluate.streamed import StreamedData
from hydractl.stages.shared.classes import Classes
from hydractl.stages.shared.predictions import PreparedData
from hydractl.stages.shared.reading import digests, identified, warn


class FittedOn(NamedTuple):
    """Data that a row is made with, and where they are read its labels, (N,), the models' classes."""

    items: Items
    fingerprint: Fingerprint
    labels: Tensor | None


class Known(NamedTuple):
    """What is known of the data once all of them were read.

    Attributes:
        labels: Of the ID set, (N,), the models' classes.
        fingerprints: Of every set, those with labels besides the ID set's under the names of their options.
        doubts: What is to be known of them before numbers on them are believed, in a line each.
    """

    labels: Tensor
    fingerprints: dict[str, Fingerprint]
    doubts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalData:
    """The data, ready for any row.

    Attributes:
        inputs: The ID set and the OOD sets, and those of validation.
        heldout: The split that temperatures are fitted on, and its labels (N,), the models' classes; None if there is none.
        fit: Training data that scores of features are fitted on, likewise.
        classes: What zero-shot models tell apart.
        fitted_on: What rows are made with, by its reference.
        telling: Returns what is known of the data once all were read.
    """

    inputs: dict[str, PreparedData | StreamedData]
    heldout: tuple[PreparedData, Tensor] | None
    fit: tuple[PreparedData, Tensor] | None
    classes: Classes | None
    fitted_on: dict[str, FittedOn]
    telling: Callable[[], Known]

    @property
    def streamed(self) -> bool:
        """Whether a set is a stream, which must pass once before the data are known."""
        return any(isinstance(each, StreamedData) for each in self.inputs.values())

    @cached_property
    def known(self) -> Known:
        """What is known of the data; raises as `learn`."""
        return self.telling()

    def learn(self) -> None:
        """Take note of what is known of the data, all of which were read.

        Raises:
            DataError: If the labels of a stream do not fit the models, or validation data are what is tested on.
            CheckFailed: If samples are too few for any threshold.
        """
        _ = self.known

    def whole(self, name: str) -> PreparedData:
        """Return a set that is no stream."""
        found = self.inputs[name]
        if not isinstance(found, PreparedData):
            raise ValueError(f"{name} is a stream")  # noqa: TRY004 - a bug, which configurations refuse
        return found

    @classmethod
    def open(
        cls, config: EvalConfig, opened: Sequence[Sequence[OpenModel]], team: Team, progress: Progress
    ) -> EvalData:
        """Open all data sets and translate the labels.

        Raises:
            DataError: If a set cannot be used, one that needs labels has none, or they do not fit the models.
        """
        models = [m for row in opened for m in row]
        for model in {m.reference: m for m in models}.values():
            warn(model, progress)
        how = models[0].header.preprocess
        opening = _Opening(config, how, progress)
        sets = opening.sets()
        rivals = {str(ref): opening.items(ref) for ref in config.fitted_on}
        tested, judged = sets[ID_NAME], config.judged_on
        classes = config.naming.classes_of_all(models, data=tested.class_names)
        labelled = {
            n: found for n, found in sets.items() if n in {TEMPERATURE, FIT} and isinstance(found, Items)
        }
        labelled |= {called: rivals[ref] for ref, called in judged.items()}
        meaning = Meaning(models, classes, progress)
        if not isinstance(tested, Stream):
            meaning.learn(tested)
        else:
            meaning.begin(tested, labelled)
        known = {option: meaning.aligned(option, items) for option, items in labelled.items()}
        limit = CACHE_BYTES // len(sets) if len(models) > 1 else 0
        progress.step(f"Reading {len(sets)} data sets" if len(sets) > 1 else "Reading the data")
        inputs: dict[str, PreparedData] = {}
        streams: dict[str, StreamedData] = {}
        for name, found in sets.items():
            if isinstance(found, Stream):
                streams[name] = StreamedData(
                    stream=found,
                    name=name,
                    batch_size=config.batch_size,
                    limit_bytes=limit,
                    team=team,
                    progress=progress,
                    check=meaning.check if name == ID_NAME else None,
                )
            else:
                inputs[name] = PreparedData(
                    found,
                    batch_size=config.batch_size,
                    limit_bytes=limit,
                    name=name,
                    deal=Deal(team.rank, team.world, among=BATCHES),
                )
        read = {name: _read(each.dataset, team) for name, each in inputs.items()}
        held = {name: (inputs.pop(name), known[name]) for name in (TEMPERATURE, FIT) if name in known}
        seen = {ref: _read(found, team) for ref, found in rivals.items()}

        def told() -> Known:
            every = {
                name: (streams[name].as_fingerprint(), streams[name].known.content)
                if name in streams
                else read[name]
                for name in sets
            }
            passed = streams[ID_NAME].known if isinstance(tested, Stream) else tested
            labels = meaning.of(passed)
            prints = {name: print_ for name, (print_, _) in every.items()}
            contents = {name: content for name, (_, content) in every.items()}
            doubts = (
                *opening.doubts,
                *of_data(config, prints, contents),
                *of_training(config, contents[ID_NAME], {ref: content for ref, (_, content) in seen.items()}),
            )
            for doubt in doubts:
                progress.warn(doubt)
            check_apart(config, prints)
            check_count(config, len(labels))
            return Known(labels, prints, doubts)

        return cls(
            inputs={
                name: streams[name] if name in streams else inputs[name] for name in sets if name not in held
            },
            heldout=held.get(TEMPERATURE),
            fit=held.get(FIT),
            classes=classes,
            fitted_on={
                ref: FittedOn(rivals[ref], print_, known.get(judged.get(ref, "")))
                for ref, (print_, _) in seen.items()
            },
            telling=told,
        )


class _Opening:
    """Opens the data, and notes in `doubts` what is left out of them."""

    def __init__(self, config: EvalConfig, how: Reading, progress: Progress) -> None:
        self.config, self.how, self.progress = config, how, progress
        self.doubts: list[str] = []

    def items(self, ref: DataRef) -> Items:
        """Return a set, with `--skip-bad` without the images that cannot be read."""
        workers, progress = self.config.num_workers, self.progress
        if not self.config.skip_bad:
            return open_items(ref, self.how, workers=workers, progress=progress)
        items, doubt = open_readable(ref, self.how, workers=workers, progress=progress)
        self.doubts += [doubt] if doubt else []
        return items

    def sets(self) -> dict[str, Items | Stream]:
        """Return every set: of a stream whose length nobody knows no more than is read at a time."""
        config = self.config
        refs = {ID_NAME: config.data} | {d.name: d.ref for d in config.ood + config.ood_val}
        others = {TEMPERATURE: config.heldout, FIT: config.fit, VAL: config.val}
        sets: dict[str, Items | Stream] = {}
        for name, ref in (refs | others).items():
            if ref is not None and ref.endless and name not in {TEMPERATURE, FIT}:
                check_skips(ref, skip_bad=config.skip_bad)
                sets[name] = open_stream(ref, self.how, workers=config.num_workers, progress=self.progress)
            elif ref is not None:
                sets[name] = self.items(ref)
        return sets


def _read(items: Items, team: Team) -> tuple[Fingerprint, np.ndarray]:
    """Return what tells a set from others, and what tells its items, as `DIGEST`."""
    sha256, content = identified(items, digests(items, team))
    return Fingerprint(reference=items.name, sha256=sha256, count=len(items)), content


UNLABELLED = "unlabelled data can be an OOD set: `--near NAME=DATA`"
_WITHOUT_LABELS = {
    TEMPERATURE: "name a labelled split, or a number to divide all logits by",
    FIT: "name labelled training data",
}


class Meaning:
    """Which class of the models is which class of the data.

    A class name means the same in all sets, even where the ID set's classes are taken in order.
    """

    def __init__(self, models: Sequence[OpenModel], asked: Classes | None, progress: Progress) -> None:
        """Take note of the models' classes; `asked` are those that zero-shot ones tell apart."""
        self._models = models
        self._names = asked.names if asked else next((m.header.labels for m in models if m.header.labels), ())
        self._count = len(self._names) if asked else models[0].header.num_classes
        self._by_text = asked is not None
        self._progress = progress
        self._classes: tuple[int, ...] | None = None
        self._known: dict[str, int] = {}

    def learn(self, tested: Classed) -> tuple[int, ...]:
        """Return for each class of the ID set the models', which is settled once.

        Raises:
            DataError: If it has no labels, or they do not fit the models.
        """
        if self._classes is None:
            if not isinstance(tested, Stream):
                required_labels(tested, "--data", hint=UNLABELLED)
            self._classes = self._matched(tested, by_text=self._by_text)
            self._known = dict(zip(tested.class_names, self._classes, strict=True))
        return self._classes

    def begin(self, tested: Stream, labelled: Mapping[str, Items]) -> None:
        """Settle what a stream says of its classes beforehand.

        Raises:
            DataError: If it has no labels, or its classes do not fit the models or are needed before they are known.
        """
        if tested.column is None:
            required_labels(tested, "--data", hint=UNLABELLED)
        if tested.class_names:
            self.learn(tested)
            return
        late = f"{tested.name}: which classes there are is known at the end of the stream"
        if labelled:
            option = next(iter(labelled))
            called = f"--{option}" if option in _WITHOUT_LABELS else option
            raise DataError(
                f"{late}, and `{called}` needs them before",
                hint="add `limit=N` to `--data`: the first N rows are read before anything is computed",
            )
        if not self._count:
            raise DataError(
                f"{late}, and the model is asked about them", hint="name them: `--classes cat,dog`, or a file"
            )

    def check(self, reader: LabelReader) -> None:
        """Refuse what has come of the labels of a stream, if nothing that follows can mend it.

        Raises:
            DataError: If they are withheld, or more than the models' classes.
        """
        if reader.withheld:
            raise DataError(
                f"{reader.where}: every label is withheld, and `--data` needs them", hint=UNLABELLED
            )
        if len(reader.texts) > self._count:
            raise DataError(
                f"{reader.where}: has more classes than the {self._count} of the model: {some(reader.texts)}",
                hint="name the classes as the model does",
            )

    def of(self, tested: Classed) -> Tensor:
        """Return the labels (N,) of the ID set, the models' classes; raises as `learn`."""
        labels = required_labels(tested, "--data", hint=UNLABELLED)
        classes = self.learn(tested)
        return torch.tensor([classes[label] for label in labels])

    def aligned(self, option: str, items: Items) -> Tensor:
        """Return the labels (N,) of another set, likewise; the ID set's classes are settled.

        Args:
            option: What names it.
            items: The set.

        Raises:
            DataError: As `learn`.
        """
        is_option = option in _WITHOUT_LABELS
        needs = f"--{option}" if is_option else option
        called = f"{needs} {items.name}" if is_option else option  # what a row is made with is named by it
        own = required_labels(items, needs, hint=_WITHOUT_LABELS.get(option, LABELS_HINT))
        if all(name in self._known for name in items.class_names):
            return torch.tensor([self._known[items.class_names[label]] for label in own])
        strange = [name for name in items.class_names if name not in self._known]
        if not self._names and not (
            items.by_position or (are_numerals(strange) and all(int(name) < self._count for name in strange))
        ):
            raise DataError(
                f"`{called}`: its class `{strange[0]}` is not in `--data`, and the model's classes have no names",
                hint="choose the classes of `--data` with `::classes=`, or name them alike",
            )
        try:
            # in order such classes could be others than those of the same place in the ID set
            found = self._matched(items, by_text=self._by_text or nameless(self._names))
        except DataError as error:
            raise DataError(f"`{called}`: {error.message}", hint=error.hint) from error
        return torch.tensor([found[label] for label in own])

    def _matched(self, items: Classed, *, by_text: bool) -> tuple[int, ...]:
        return match_classes(
            items, self._names, num_classes=self._count, by_text=by_text, progress=self._progress
        )
