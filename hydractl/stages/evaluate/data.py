"""The data sets of `eval`, opened once for all rows, with labels that mean the models' classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from torch import Tensor

from hydractl.data.batches import CACHE_BYTES, BatchShare
from hydractl.data.datasets import LABELS_HINT, Classed, Items
from hydractl.data.encode import Reading, check_skips, open_items, open_readable, open_stream
from hydractl.data.labels import are_numerals, check_labels, first_names, model_labels, required_labels
from hydractl.data.matching import match_classes, nameless
from hydractl.data.reference import DataRef
from hydractl.data.sources.column_roles import LabelReader
from hydractl.data.sources.stream import BATCHES, ItemStream
from hydractl.data.words import WordSet
from hydractl.errors import DataError
from hydractl.families.load import OpenModel
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.registry import FIT, TEMPERATURE, VAL
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.evaluate.caveats import check_apart, check_enough, of_data
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.open_models import queries_of
from hydractl.stages.evaluate.streamed import Identity, StreamedData
from hydractl.stages.shared.open_inputs import warn
from hydractl.stages.shared.predictions import FitOn, PreparedData
from hydractl.stages.shared.zero_shot_classes import Classes


class DataSummary(NamedTuple):
    """What is known of the data once all of them were read.

    Attributes:
        labels: Of the ID set, (N,), the models' classes; (N, Q) of models that answer Q labels.
        identities: Of every set, those with labels besides the ID set's under the names of their options.
        caveats: What is to be known of them before numbers on them are believed, in a line each.
    """

    labels: Tensor
    identities: dict[str, Identity]
    caveats: tuple[str, ...]

    @property
    def fingerprints(self) -> dict[str, Fingerprint]:
        """The fingerprint of every set."""
        return {name: identity.fingerprint for name, identity in self.identities.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalData:
    """The data, ready for any row.

    Attributes:
        config: Of the run.
        inputs: The ID set and the OOD sets, and those of validation.
        temperature_data: The split that temperatures are fitted on, and its labels (N,), the models' classes; None if there is none.
        fit: Training data for feature-based scores; None if there are none.
        classes: What zero-shot models tell apart.
        identities: Of every set; a stream tells its own once it has passed.
        alignment: The labels' classes.
        queries: The query of each pair of the ID set, (N,), if all models are rerankers.
        skipped: What was left out of the sets, in a line each.
        progress: Hears what is doubtful.
    """

    config: EvalConfig
    inputs: dict[str, PreparedData | StreamedData]
    temperature_data: tuple[PreparedData, Tensor] | None
    fit: FitOn | None
    classes: Classes | None
    identities: dict[str, Identity | StreamedData]
    alignment: ClassAlignment
    queries: Tensor | None
    skipped: Sequence[str]
    progress: Progress

    @classmethod
    def open(
        cls, config: EvalConfig, opened: Sequence[Sequence[OpenModel]], team: ProcessGroup, progress: Progress
    ) -> EvalData:
        """Open all data sets and translate the labels.

        Raises:
            DataError: If a set cannot be used, one that needs labels has none, or they do not fit the models.
        """
        models = [*chain.from_iterable(opened)]
        for model in {m.reference: m for m in models}.values():
            warn(model, progress)
        opener = DataOpener(config, models[0].header.preprocess, team, progress)
        sets = opener.sets()
        tested = sets[ID_NAME]
        classes = config.naming.classes_of_all(models, data=tested.class_names)
        alignment = ClassAlignment(models, classes, progress)
        labelled = {name: items for name in (TEMPERATURE, FIT) if isinstance(items := sets.get(name), Items)}
        labels = alignment.align(tested, labelled)
        progress.step(f"Reading {len(sets)} data sets" if len(sets) > 1 else "Reading the data")
        limit = CACHE_BYTES // len(sets) if len(models) > 1 else 0
        streams = {
            name: opener.streamed(items, name, limit, alignment)
            for name, items in sets.items()
            if isinstance(items, ItemStream)
        }
        prepared = {
            name: opener.prepared(items, name, limit)
            for name, items in sets.items()
            if isinstance(items, Items)
        }
        identities = {
            name: streams[name] if name in streams else Identity.of(prepared[name].dataset, team)
            for name in sets
        }
        temperature_data, fit = (
            (prepared[name], labels[name]) if name in labelled else None for name in (TEMPERATURE, FIT)
        )
        return cls(
            config=config,
            inputs={
                name: streams[name] if name in streams else prepared[name]
                for name in sets
                if name not in labelled and (name != VAL or config.ood_val)
            },
            temperature_data=temperature_data,
            fit=fit and FitOn(*fit, None if config.standardized_on is None else prepared[VAL]),
            classes=classes,
            identities=identities,
            alignment=alignment,
            queries=queries_of(config, tested, models),
            skipped=opener.skipped,
            progress=progress,
        )

    @property
    def streamed(self) -> bool:
        """Whether a set is a stream, which must pass once before the data are known."""
        return any(isinstance(inputs, StreamedData) for inputs in self.inputs.values())

    @cached_property
    def summary(self) -> DataSummary:
        """What is known of the data; raises as `validate`."""
        config, tested = self.config, self.inputs[ID_NAME]
        identities = {
            name: identity.identity if isinstance(identity, StreamedData) else identity
            for name, identity in self.identities.items()
        }
        labels = self.alignment.labels(tested.digest if isinstance(tested, StreamedData) else tested.dataset)
        caveats = (*self.skipped, *of_data(config, identities))
        for caveat in caveats:
            self.progress.warn(caveat)
        check_apart(config, identities)
        check_enough(config, labels, self.class_names)
        return DataSummary(labels, identities, caveats)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the models' classes are called, once the labels are known."""
        return self.alignment.names

    def validate(self) -> None:
        """Take note of what is known of the data, all of which were read.

        Raises:
            DataError: If the labels of a stream do not fit the models, or validation data are what is tested on.
        """
        _ = self.summary

    def prepared(self, name: str) -> PreparedData:
        """Return a set that is no stream."""
        inputs = self.inputs[name]
        if not isinstance(inputs, PreparedData):
            raise ValueError(f"{name} is a stream")  # noqa: TRY004 - a bug, which configurations refuse
        return inputs


class DataOpener:
    """Opens the data, and notes in `skipped` what is left out of them."""

    def __init__(self, config: EvalConfig, how: Reading, team: ProcessGroup, progress: Progress) -> None:
        self.config, self.how, self.team, self.progress = config, how, team, progress
        self.skipped: list[str] = []

    def items(self, ref: DataRef) -> Items:
        """Return a set, with `--skip-bad` without the images that cannot be read."""
        workers, progress = self.config.num_workers, self.progress
        if not self.config.skip_bad:
            return open_items(ref, self.how, workers=workers, progress=progress)
        items, caveat = open_readable(ref, self.how, workers=workers, progress=progress)
        self.skipped += [caveat] if caveat else []
        return items

    def sets(self) -> dict[str, Items | ItemStream]:
        """Return every set: of a stream whose length nobody knows no more than is read at a time."""
        config = self.config
        refs = {ID_NAME: config.data} | {d.name: d.ref for d in config.ood + config.ood_val}
        options = {TEMPERATURE: config.temperature_data, FIT: config.fit, VAL: config.val}
        sets: dict[str, Items | ItemStream] = {}
        for name, ref in (refs | options).items():
            if ref is not None and ref.endless and name not in {TEMPERATURE, FIT}:
                check_skips(ref, skip_bad=config.skip_bad)
                sets[name] = open_stream(ref, self.how, workers=config.num_workers, progress=self.progress)
            elif ref is not None:
                sets[name] = self.items(ref)
        return sets

    def streamed(
        self, stream: ItemStream, name: str, limit_bytes: int, alignment: ClassAlignment
    ) -> StreamedData:
        """Return a stream as model inputs; `alignment` looks at the labels of the ID set as they come."""
        return StreamedData(
            stream=stream,
            name=name,
            batch_size=self.config.batch_size,
            limit_bytes=limit_bytes,
            team=self.team,
            progress=self.progress,
            check=alignment.check if name == ID_NAME else None,
        )

    def prepared(self, items: Items, name: str, limit_bytes: int) -> PreparedData:
        """Return a set that is no stream as model inputs."""
        return PreparedData(
            items,
            batch_size=self.config.batch_size,
            limit_bytes=limit_bytes,
            name=name,
            deal=BatchShare(self.team.rank, self.team.world, among=BATCHES),
        )


UNLABELLED = "unlabelled data can be an OOD set: `--near NAME=DATA`"
_WITHOUT_LABELS = {
    TEMPERATURE: "name a labelled split, or a number to divide all logits by",
    FIT: "name labelled training data",
}


class ClassAlignment:
    """Which class of the models is which class of the data.

    A class name means the same in all sets, even where the ID set's classes are taken in order.
    """

    def __init__(self, models: Sequence[OpenModel], classes: Classes | None, progress: Progress) -> None:
        """Take note of the models' classes; `classes` are those that zero-shot ones tell apart."""
        stored = next((m.header.labels for m in models if m.header.labels), ())
        self._names = classes.names if classes else stored
        self._count = len(self._names) if classes else models[0].header.num_classes
        self._architecture = models[0].header.architecture
        self._by_text = classes is not None
        self._progress = progress
        self._classes: tuple[int, ...] | None = None
        self._class_by_name: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What the models' classes are called: as the models do, else as the ID set does, else by their numbers."""
        if self._names and not nameless(self._names):
            return tuple(self._names)
        name_by_class = {place: name for name, place in self._class_by_name.items()}
        return tuple(name_by_class.get(i, str(i)) for i in range(self._count))

    def align(self, tested: Items | ItemStream, labelled: Mapping[str, Items]) -> dict[str, Tensor]:
        """Settle the ID set's classes as far as they are known, and return the labels (N,) of other sets by what names them.

        Raises:
            DataError: If a set has no labels, or its classes do not fit the models or are needed before they are known.
        """
        if isinstance(tested, ItemStream):
            self._check_stream(tested, labelled)
        if not isinstance(tested, ItemStream) or tested.class_names:
            self._match_tested(tested)
        return {option: self.aligned(option, items) for option, items in labelled.items()}

    def labels(self, tested: Classed) -> Tensor:
        """Return the labels of the ID set, the models' classes, as `model_labels` has them.

        Raises:
            DataError: If it has none, or they do not fit the models.
        """
        check_labels(tested, "--data", task=self._architecture.task, hint=UNLABELLED)
        return self._labels(tested, self._match_tested(tested), "--data")

    def check(self, reader: LabelReader) -> None:
        """Refuse what has come of the labels of a stream, if nothing that follows can mend it.

        Raises:
            DataError: If they are withheld, or more than the models' classes.
        """
        if reader.withheld:
            raise DataError(
                f"{reader.where}: has no labels, but `--data` needs labelled samples", hint=UNLABELLED
            )
        if len(reader.texts) > self._count:
            raise DataError(
                f"{reader.where}: has more classes than the {self._count} of the model, for "
                f"example {first_names(reader.texts)}",
                hint="name the classes as the model does",
            )

    def _match_tested(self, tested: Classed) -> tuple[int, ...]:
        """Return for each class of the ID set the models', which is settled once."""
        if self._classes is None:
            if not isinstance(tested, ItemStream):
                check_labels(tested, "--data", task=self._architecture.task, hint=UNLABELLED)
            self._classes = self._matched(tested, by_text=self._by_text)
            self._class_by_name = dict(zip(tested.class_names, self._classes, strict=True))
        return self._classes

    def _check_stream(self, tested: ItemStream, labelled: Mapping[str, Items]) -> None:
        """Refuse a stream without labels, or whose classes are needed before they are known."""
        if tested.column is None:
            required_labels(tested, "--data", hint=UNLABELLED)
        late = f"{tested.name}: the classes are known only at the end of the stream"
        if labelled and not tested.class_names:
            option = next(iter(labelled))
            called = f"--{option}" if option in _WITHOUT_LABELS else option
            raise DataError(
                f"{late}, but `{called}` needs them first",
                hint="add `limit=N` to `--data` to read the first N rows before the evaluation",
            )
        if not self._count and not tested.class_names:
            raise DataError(
                f"{late}, but the zero-shot model needs their names",
                hint="name them: `--classes cat,dog`, or a file",
            )

    def aligned(self, option: str, items: Items) -> Tensor:
        """Return the labels (N,) of another set, the models' classes; the ID set's classes are settled."""
        is_option = option in _WITHOUT_LABELS
        needs = f"--{option}" if is_option else option
        called = f"{needs} {items.name}" if is_option else option  # what a row is made with is named by it
        check_labels(
            items, needs, task=self._architecture.task, hint=_WITHOUT_LABELS.get(option, LABELS_HINT)
        )
        strange = [name for name in items.class_names if name not in self._class_by_name]
        if not strange:
            classes = tuple(self._class_by_name[name] for name in items.class_names)
            return self._labels(items, classes, needs)
        if not (self._names or items.by_position or self._are_places(strange)):
            raise DataError(
                f"`{called}`: its class `{strange[0]}` is not in `--data`, and the model has no class names to map it to",
                hint="select the classes of `--data` with `::classes=`, or use the same names",
            )
        try:
            # in order such classes could be others than those of the same place in the ID set
            classes = self._matched(items, by_text=self._by_text or nameless(self._names))
        except DataError as error:
            raise DataError(f"`{called}`: {error.message}", hint=error.hint) from error
        return self._labels(items, classes, needs)

    def _labels(self, items: Classed, classes: Sequence[int], option: str) -> Tensor:
        """Return labels as `model_labels` does, of texts whose words are answered in windows those of the whole texts."""
        labels = model_labels(items, classes, option, architecture=self._architecture)
        return items.by_document(labels[None])[0] if isinstance(items, WordSet) else labels

    def _are_places(self, names: Sequence[str]) -> bool:
        """Return whether names are the numbers of the models' classes."""
        return are_numerals(names) and all(int(name) < self._count for name in names)

    def _matched(self, items: Classed, *, by_text: bool) -> tuple[int, ...]:
        return match_classes(
            items, self._names, num_classes=self._count, by_text=by_text, progress=self._progress
        )
