"""Data sets of `eval`, opened once for all rows, and checks that all rows can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydractl import progress
from hydractl.data.batches import CACHE_BYTES, SORTED_BATCHES, BatchShare
from hydractl.data.datasets import LABELS_HINT, Dataset, TextSet, content_of
from hydractl.data.labels import (
    are_numerals,
    check_labels,
    has_default_names,
    match_classes,
    model_labels,
    nameless,
)
from hydractl.data.reference import DataRef
from hydractl.data.words import WordSet
from hydractl.errors import DataError, InputError, UsageError
from hydractl.families.open_model import OpenModel
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import FIT, METRICS, OPTION_NAMES, TEMPERATURE, VAL, metrics_of, needing
from hydractl.prediction.class_names import Classes, Naming
from hydractl.prediction.feature_ood import FitOn
from hydractl.prediction.inference import PreparedData
from hydractl.prediction.open_inputs import Identity, warn_of_model
from hydractl.processes.distributed import ProcessGroup
from hydractl.tasks import SINGLE_LABEL, TASKS


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalData:
    """The opened data sets of a run, for all rows.

    Attributes:
        inputs: Data sets by name: `id`, names of options, and names of OOD sets.
        classes: Classes of zero-shot models. `None` if no model is zero-shot.
        alignment: Mapping from classes of the data sets to classes of the models.
        labels: Class indices of the ID set, shape (N,); (N, Q) for models with Q labels or words.
        labels_of: Class indices of the data of `--temperature` and `--train`, by name, in the same shapes.
        identities: Sample digests of each data set.
        queries: Index of the query of each pair in the ID set, shape (N,). `None` unless all models are
            rerankers and the data have queries.
        skipped: Warnings about skipped samples.
    """

    inputs: dict[str, PreparedData]
    classes: Classes | None
    alignment: ClassAlignment
    labels: Tensor
    labels_of: dict[str, Tensor]
    identities: dict[str, Identity]
    queries: Tensor | None
    skipped: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the models' classes."""
        return self.alignment.names

    @property
    def temperature_data(self) -> tuple[PreparedData, Tensor] | None:
        """Data set for fitting temperatures and its class indices, or `None` without `--temperature DATA`."""
        return (self.inputs[TEMPERATURE], self.labels_of[TEMPERATURE]) if TEMPERATURE in self.inputs else None

    def fit_on(self, *, standardized: bool) -> FitOn | None:
        """Return the data for fitting feature-based scores, or `None` without `--train`.

        Args:
            standardized: Whether a score is standardized on the data of `--val`.
        """
        if FIT not in self.inputs:
            return None
        return FitOn(self.inputs[FIT], self.labels_of[FIT], self.inputs[VAL] if standardized else None)

    @property
    def fingerprints(self) -> dict[str, Fingerprint]:
        """Name and digest of each data set."""
        return {name: identity.fingerprint for name, identity in self.identities.items()}

    @classmethod
    def open(
        cls,
        refs: Mapping[str, DataRef],
        open_set: Callable[[DataRef, list[str]], Dataset],
        models: Sequence[OpenModel],
        naming: Naming,
        team: ProcessGroup,
        *,
        batch_size: int,
    ) -> EvalData:
        """Open all data sets and map their labels to the models' classes.

        Args:
            refs: References of the data sets, by name: `id`, names of options, and names of OOD sets.
            open_set: Opens a data set, and appends warnings to the list.
            models: Models of all rows.
            naming: Classes of zero-shot models.
            team: Process group.
            batch_size: At least 1.

        Raises:
            DataError: If a data set cannot be used, lacks required labels, or has labels that do not fit the
                models.
        """
        for model in {m.reference: m for m in models}.values():
            warn_of_model(model)
        skipped: list[str] = []
        sets = {name: open_set(ref, skipped) for name, ref in refs.items()}
        tested = sets[ID_NAME]
        classes = naming.classes_of_all(models, data=tested.class_names)
        alignment = ClassAlignment(models, classes)
        labelled = {name: sets[name] for name in (TEMPERATURE, FIT) if name in sets}
        labels = alignment.align(tested, labelled)
        progress.step(f"Reading {len(sets)} data sets" if len(sets) > 1 else "Reading the data")
        limit = CACHE_BYTES // len(sets) if len(models) > 1 else 0
        prepared = {
            name: PreparedData(
                dataset,
                batch_size=batch_size,
                limit_bytes=limit,
                name=name,
                batch_share=BatchShare(team.rank, team.world, among=SORTED_BATCHES),
            )
            for name, dataset in sets.items()
        }
        # rerankers are text classifiers with a single logit
        rerank = all(model.header.architecture.config.get("num_labels") == 1 for model in models)
        queries = tested.queries() if rerank and isinstance(tested, TextSet) else None
        return cls(
            inputs=prepared,
            classes=classes,
            alignment=alignment,
            labels=alignment.labels(tested),
            labels_of=labels,
            identities={name: Identity.of(dataset, team) for name, dataset in sets.items()},
            queries=None if queries is None else torch.tensor(queries),
            skipped=tuple(skipped),
        )


UNLABELLED = "unlabelled data can be an OOD set: `--near NAME=DATA`"
_WITHOUT_LABELS = {
    TEMPERATURE: "name a labelled split, or a number to divide all logits by",
    FIT: "name labelled training data",
}


class ClassAlignment:
    """Mapping from the classes of data sets to the classes of the models.

    A class name has the same index in all data sets, even if the ID set's classes are matched by position.
    """

    def __init__(self, models: Sequence[OpenModel], classes: Classes | None) -> None:
        """Collect the class names of the models.

        Args:
            models: Models of all rows.
            classes: Classes of zero-shot models. `None` if no model is zero-shot.
        """
        stored = next((m.header.labels for m in models if m.header.labels), ())
        self._names = classes.names if classes else stored
        self._count = len(self._names) if classes else models[0].header.num_classes
        self._architecture = models[0].header.architecture
        self._by_text = classes is not None
        self._classes: tuple[int, ...] = ()
        self._class_by_name: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models' classes: stored in a model, else from the ID set, else class numbers."""
        if self._names and not nameless(self._names):
            return tuple(self._names)
        name_by_class = {place: name for name, place in self._class_by_name.items()}
        return tuple(name_by_class.get(i, str(i)) for i in range(self._count))

    def align(self, tested: Dataset, labelled: Mapping[str, Dataset]) -> dict[str, Tensor]:
        """Match the ID set's classes, and return the class indices of the other sets by name; see `aligned`.

        Raises:
            DataError: If a set has no labels, or its classes do not fit the models.
        """
        check_labels(tested, "--data", task=self._architecture.task, hint=UNLABELLED)
        self._classes = self._matched(tested, by_text=self._by_text)
        self._class_by_name = dict(zip(tested.class_names, self._classes, strict=True))
        return {option: self.aligned(option, dataset) for option, dataset in labelled.items()}

    def labels(self, tested: Dataset) -> Tensor:
        """Return the class indices of the ID set, as `model_labels` does. Requires a call of `align`.

        Raises:
            DataError: If the labels do not fit the models.
        """
        return self._labels(tested, self._classes, "--data")

    def aligned(self, option: str, dataset: Dataset) -> Tensor:
        """Return the class indices of another data set, (N,) or (N, Q). Requires a call of `align`.

        Args:
            option: Name of the data set's option without dashes, or text that names the data set in messages.
            dataset: Labelled data set.

        Raises:
            DataError: If the data set has no labels, or its classes do not fit the models.
        """
        is_option = option in _WITHOUT_LABELS
        needs = f"--{OPTION_NAMES.get(option, option)}" if is_option else option
        # Data for a derived row have a text that already includes their name.
        called = f"{needs} {dataset.name}" if is_option else option
        check_labels(
            dataset, needs, task=self._architecture.task, hint=_WITHOUT_LABELS.get(option, LABELS_HINT)
        )
        strange = [name for name in dataset.class_names if name not in self._class_by_name]
        if not strange:
            classes = tuple(self._class_by_name[name] for name in dataset.class_names)
            return self._labels(dataset, classes, needs)
        if not (
            self._names
            or dataset.by_position
            or (are_numerals(strange) and all(int(name) < self._count for name in strange))
        ):
            raise DataError(
                f"`{called}`: its class `{strange[0]}` is not in `--data`, and the model has no class names to map it to",
                hint="select the classes of `--data` with `::classes=`, or use the same names",
            )
        try:
            # Matching these classes by position could assign other indices than in the ID set.
            classes = self._matched(dataset, by_text=self._by_text or nameless(self._names))
        except DataError as error:
            raise DataError(f"`{called}`: {error.message}", hint=error.hint) from error
        return self._labels(dataset, classes, needs)

    def _labels(self, dataset: Dataset, classes: Sequence[int], option: str) -> Tensor:
        """Return labels as `model_labels` does, with the windows of a long text merged."""
        labels = model_labels(dataset, classes, option, architecture=self._architecture)
        return dataset.by_document(labels[None])[0] if isinstance(dataset, WordSet) else labels

    def _matched(self, dataset: Dataset, *, by_text: bool) -> tuple[int, ...]:
        return match_classes(dataset, self._names, num_classes=self._count, by_text=by_text)


def check_metrics(explicit: Sequence[str], first: OpenModel, *, has_sets: bool, has_queries: bool) -> None:
    """Raise if a selected metric cannot be measured.

    Args:
        explicit: Names of the metrics that the user selected.
        first: The first model.
        has_sets: Whether the first model has prediction sets.
        has_queries: Whether all models are rerankers and the data have queries.

    Raises:
        UsageError: If a metric is for another task, or needs queries or prediction sets. The message names
            the first such metric.
    """
    task = first.header.architecture.task
    for owner in TASKS.values():
        names = {metric.name for metric in metrics_of(owner)}
        if task is not owner and (name := next((name for name in explicit if name in names), None)):
            raise UsageError(
                f"`{name}` cannot be measured: it needs models that answer {owner.labels}, but "
                f"{first.reference} answers {task.labels}",
                hint=f"for any model use {'auroc' if METRICS[name].needs is MetricNeeds.OOD else 'accuracy'}",
            )
    if not has_sets and (metrics := needing(explicit, MetricNeeds.SETS)):
        raise UsageError(
            f"`{metrics[0]}` cannot be measured: {first.reference} stores no prediction sets",
            hint="`eval MODEL --data HELDOUT --sets 0.9 --save-model SETS.st` stores them in a copy",
        )
    if not has_queries and (metrics := needing(explicit, MetricNeeds.QUERIES)):
        raise UsageError(
            f"`{metrics[0]}` cannot be measured: it needs rerankers, which have a single logit, and pairs of texts "
            "of which several have the same first text, the query",
            hint='write pairs as {"query": Q, "passage": P, "label": 1}, where 1 is a relevant passage',
        )


def check_same_task_and_classes(models: Sequence[OpenModel], *, names_classes: bool) -> None:
    """Raise if models have different tasks or classes. Models without class names match any names.

    Args:
        models: Models of all rows.
        names_classes: Whether the user names the classes of zero-shot models. Their stored classes are then
            ignored.

    Raises:
        InputError: With the name of the first model that differs.
    """
    first = models[0]
    content = content_of(first.header.preprocess)
    for model in models[1:]:
        if (other_model := content_of(model.header.preprocess)) != content:
            raise InputError(f"{model.reference}: reads {other_model}, {first.reference} reads {content}")
    for model in models[1:]:
        if model.header.architecture.problem_type != first.header.architecture.problem_type:
            answers = (m.header.architecture.task.labels for m in (first, model))
            raise InputError(
                f"{first.reference} answers {next(answers)}, {model.reference} {next(answers)}; all models in a table must "
                "answer the same kind of labels"
            )
    compared = [m for m in models if not (names_classes and m.header.prompting)]
    named = next((m for m in compared if not has_default_names(m.header.labels)), first)
    for model in compared:
        count, expected = model.header.num_classes, named.header.num_classes
        if count != expected and count and expected:
            raise InputError(
                f"{model.reference}: has {count} classes, {named.reference} has {expected}; all "
                "models in a table must have the same classes"
            )
        if not has_default_names(model.header.labels) and model.header.labels != named.header.labels:
            raise InputError(
                f"{model.reference}: its class labels or their order differ from those of {named.reference}"
            )


def check_one_question(options: Mapping[str, bool], first: OpenModel) -> None:
    """Raise if the model answers several labels or words, and an option is given that needs a single label.

    Args:
        options: Whether each option is given.
        first: The first model.

    Raises:
        UsageError: With the name of the first given option.
    """
    task = first.header.architecture.task
    option = next((option for option, is_given in options.items() if is_given), None)
    if option is not None and not task.has_one_question:
        raise UsageError(
            f"`{option}`: needs models that answer {SINGLE_LABEL.labels}, but {first.reference} answers {task.labels}",
            hint="leave it out",
        )
