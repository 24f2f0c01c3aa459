"""The data sets of `eval`, opened once for all rows, with labels of the models' classes; and checks of the models of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from hydractl import progress
from hydractl.data.batches import BATCHES, CACHE_BYTES, BatchShare
from hydractl.data.datasets import LABELS_HINT, Items, TextSet
from hydractl.data.encode import Reading, content_of, open_items, open_readable
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
from hydractl.families.load import OpenModel
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import FIT, METRICS, TEMPERATURE, VAL, metrics_of, needing
from hydractl.prediction.class_names import Classes
from hydractl.prediction.feature_ood import FitOn
from hydractl.prediction.inference import PreparedData
from hydractl.prediction.open_inputs import Identity, warn
from hydractl.processes.distributed import ProcessGroup
from hydractl.provenance.command_config import input_refs
from hydractl.provenance.output import Output
from hydractl.settings import Role
from hydractl.stages.evaluate.caveats import check_apart, check_enough, of_data
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.tasks import SINGLE_LABEL, TASKS


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalData:
    """The data, ready for any row.

    Attributes:
        inputs: The ID set and the OOD sets, and those of validation.
        temperature_data: The split that temperatures are fitted on, and its labels (N,), the models' classes; None if there is none.
        fit: Training data for feature-based scores; None if there are none.
        classes: What zero-shot models tell apart.
        alignment: Classes of the labels.
        labels: Labels of the ID set in the models' classes, (N,); (N, Q) of models that answer Q labels.
        identities: Digests of every set, by name; labelled sets beside the ID set have the names of their options.
        caveats: Warnings about the data, for the report.
        queries: The query of each pair of the ID set, (N,), if all models are rerankers.
    """

    inputs: dict[str, PreparedData]
    temperature_data: tuple[PreparedData, Tensor] | None
    fit: FitOn | None
    classes: Classes | None
    alignment: ClassAlignment
    labels: Tensor
    identities: dict[str, Identity]
    caveats: tuple[str, ...]
    queries: Tensor | None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the models' classes."""
        return self.alignment.names

    @property
    def fingerprints(self) -> dict[str, Fingerprint]:
        """The fingerprint of every set."""
        return {name: identity.fingerprint for name, identity in self.identities.items()}

    @classmethod
    def open(cls, config: EvalConfig, opened: Sequence[Sequence[OpenModel]], team: ProcessGroup) -> EvalData:
        """Open all data sets and translate the labels.

        Raises:
            DataError: If a set cannot be used, one that needs labels has none, they do not fit the models, or validation data are
                the test data.
        """
        models = [*chain.from_iterable(opened)]
        for model in {m.reference: m for m in models}.values():
            warn(model)
        skipped: list[str] = []
        opened_as = partial(open_set, config, models[0].header.preprocess, skipped)
        refs: dict[str, DataRef | None] = {
            ID_NAME: config.data,
            **{d.name: d.ref for d in config.ood + config.ood_val},
            TEMPERATURE: config.temperature_data,
            FIT: config.fit,
            VAL: config.val,
        }
        sets = {name: opened_as(ref) for name, ref in refs.items() if ref is not None}
        tested = sets[ID_NAME]
        classes = config.naming.classes_of_all(models, data=tested.class_names)
        alignment = ClassAlignment(models, classes)
        labelled = {name: sets[name] for name in (TEMPERATURE, FIT) if name in sets}
        labels = alignment.align(tested, labelled)
        progress.step(f"Reading {len(sets)} data sets" if len(sets) > 1 else "Reading the data")
        limit = CACHE_BYTES // len(sets) if len(models) > 1 else 0
        prepared = {
            name: PreparedData(
                items,
                batch_size=config.batch_size,
                limit_bytes=limit,
                name=name,
                deal=BatchShare(team.rank, team.world, among=BATCHES),
            )
            for name, items in sets.items()
        }
        identities = {name: Identity.of(items, team) for name, items in sets.items()}
        temperature_data, fit = (
            (prepared[name], labels[name]) if name in labelled else None for name in (TEMPERATURE, FIT)
        )
        queries = queries_of(config, tested, models)
        tested_labels = alignment.labels(tested)
        caveats = (*skipped, *of_data(config, identities))
        for caveat in caveats:
            progress.warn(caveat)
        check_apart(config, identities)
        check_enough(config, tested_labels, alignment.names)
        return cls(
            inputs={
                name: inputs
                for name, inputs in prepared.items()
                if name not in labelled and (name != VAL or config.ood_val)
            },
            temperature_data=temperature_data,
            fit=fit and FitOn(*fit, None if config.standardized_on is None else prepared[VAL]),
            classes=classes,
            alignment=alignment,
            labels=tested_labels,
            identities=identities,
            caveats=caveats,
            queries=queries,
        )


def open_set(config: EvalConfig, how: Reading, skipped: list[str], ref: DataRef) -> Items:
    """Open a data set. With `--skip-bad`, leave out unreadable images and append their number to `skipped`."""
    if not config.skip_bad:
        return open_items(ref, how, workers=config.num_workers)
    items, caveat = open_readable(ref, how, workers=config.num_workers)
    skipped += [caveat] if caveat else []
    return items


UNLABELLED = "unlabelled data can be an OOD set: `--near NAME=DATA`"
_WITHOUT_LABELS = {
    TEMPERATURE: "name a labelled split, or a number to divide all logits by",
    FIT: "name labelled training data",
}


class ClassAlignment:
    """Which class of the models is which class of the data.

    A class name means the same in all sets, even where the ID set's classes are taken in order.
    """

    def __init__(self, models: Sequence[OpenModel], classes: Classes | None) -> None:
        """Take note of the models' classes; `classes` are those that zero-shot ones tell apart."""
        stored = next((m.header.labels for m in models if m.header.labels), ())
        self._names = classes.names if classes else stored
        self._count = len(self._names) if classes else models[0].header.num_classes
        self._architecture = models[0].header.architecture
        self._by_text = classes is not None
        self._classes: tuple[int, ...] = ()
        self._class_by_name: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What the models' classes are called: as the models do, else as the ID set does, else by their numbers."""
        if self._names and not nameless(self._names):
            return tuple(self._names)
        name_by_class = {place: name for name, place in self._class_by_name.items()}
        return tuple(name_by_class.get(i, str(i)) for i in range(self._count))

    def align(self, tested: Items, labelled: Mapping[str, Items]) -> dict[str, Tensor]:
        """Match the ID set's classes, and return the labels (N,) of the other sets by their names.

        Raises:
            DataError: If a set has no labels, or its classes do not fit the models.
        """
        check_labels(tested, "--data", task=self._architecture.task, hint=UNLABELLED)
        self._classes = self._matched(tested, by_text=self._by_text)
        self._class_by_name = dict(zip(tested.class_names, self._classes, strict=True))
        return {option: self.aligned(option, items) for option, items in labelled.items()}

    def labels(self, tested: Items) -> Tensor:
        """Return the labels of the ID set, the models' classes, as `model_labels` has them; after `align`.

        Raises:
            DataError: If the labels do not fit the models.
        """
        return self._labels(tested, self._classes, "--data")

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
        if not (
            self._names
            or items.by_position
            or (are_numerals(strange) and all(int(name) < self._count for name in strange))
        ):
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

    def _labels(self, items: Items, classes: Sequence[int], option: str) -> Tensor:
        """Return labels as `model_labels` does, of texts whose words are answered in windows those of the whole texts."""
        labels = model_labels(items, classes, option, architecture=self._architecture)
        return items.by_document(labels[None])[0] if isinstance(items, WordSet) else labels

    def _matched(self, items: Items, *, by_text: bool) -> tuple[int, ...]:
        return match_classes(items, self._names, num_classes=self._count, by_text=by_text)


def check_outputs(config: EvalConfig, opened: Sequence[Sequence[OpenModel]], output: Output) -> None:
    """Refuse outputs that must not be written."""
    models = [*chain.from_iterable(opened)]
    for path, option in ((config.out, "-o"), (config.save_predictions, "--save-predictions")):
        output.check(
            path,
            models=models,
            data=[config.data, *config.others],
            files=[
                config.naming.file,
                *(Path(str(r.ref)) for r in input_refs(config) if r.role is Role.FILE),
            ],
            option=option,
        )
    output.check(config.store, models=models, option="--store", folders=True)


def queries_of(config: EvalConfig, tested: Items, models: Sequence[OpenModel]) -> torch.Tensor | None:
    """Return the query of each pair of the ID set, (N,), if all models are rerankers: text classifiers with a single logit.

    Raises:
        UsageError: If a metric was chosen that the models, or these data, do not have.
    """
    rerank = all(model.header.architecture.config.get("num_labels") == 1 for model in models)
    queries = tested.queries() if rerank and isinstance(tested, TextSet) else None
    _check_metrics(config, models[0], has_queries=queries is not None)
    return None if queries is None else torch.tensor(queries)


def _check_metrics(config: EvalConfig, first: OpenModel, *, has_queries: bool) -> None:
    """Refuse metrics that were chosen and cannot be measured: of another task, of queries, or of sets that the first model lacks."""
    explicit = [
        *(config.chosen if config.metrics else ()),
        *(condition.metric for condition in config.fail_if),
    ]
    task = first.header.architecture.task
    for owner in TASKS.values():
        names = {metric.name for metric in metrics_of(owner)}
        if task is not owner and (name := next((name for name in explicit if name in names), None)):
            raise UsageError(
                f"`{name}` cannot be measured: it needs models that answer {owner.labels}, but "
                f"{first.reference} answers {task.labels}",
                hint=f"for any model use {'auroc' if METRICS[name].needs is MetricNeeds.OOD else 'accuracy'}",
            )
    has_sets = config.set_options.sets is not None or first.header.prediction_sets is not None
    if not has_sets and (metrics := needing(explicit, MetricNeeds.SETS)):
        raise UsageError(
            f"`{metrics[0]}` cannot be measured: {first.reference} stores no prediction sets",
            hint="`eval MODEL --data HELDOUT --sets 0.9 --store SETS.st` stores them in a copy",
        )
    if not has_queries and (metrics := needing(explicit, MetricNeeds.QUERIES)):
        raise UsageError(
            f"`{metrics[0]}` cannot be measured: it needs rerankers, which have a single logit, and pairs of texts "
            "of which several have the same first text, the query",
            hint='write pairs as {"query": Q, "passage": P, "label": 1}, where 1 is a relevant passage',
        )


def check_alike(config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> None:
    """Refuse models that answer different questions; one without class names may stand beside any other.

    Where classes are named on the command line, what zero-shot models store of them does not count.

    Raises:
        InputError: If there are such.
    """
    models = [*chain.from_iterable(opened)]
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
    compared = [m for m in models if not (config.naming.names and m.header.prompting)]
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


def check_task(config: EvalConfig, first: OpenModel) -> None:
    """Refuse what is defined for models with one label an input, if the models answer others, and the other way round.

    Raises:
        UsageError: Naming the option.
    """
    task = first.header.architecture.task
    if config.label_thresholds and not task.by_label:
        raise UsageError(
            f"`--label-thresholds`: {first.reference} answers {task.labels}, the most probable one",
            hint="leave it out; for a threshold of the OOD score add `--threshold-for 'risk<=0.05'`",
        )
    options = {
        "--fit": config.fit is not None,
        f"--ood-score {''.join(config.fitted[:1])}": bool(config.fitted),
        "--keep-examples": config.keep_examples > 0,
        "--sets": config.set_options.sets is not None,
    }
    check_one_question(options, first)


def check_one_question(options: Mapping[str, bool], first: OpenModel) -> None:
    """Refuse the first given option if models answer several questions about an input.

    Raises:
        UsageError: Naming the option.
    """
    task = first.header.architecture.task
    option = next((option for option, is_given in options.items() if is_given), None)
    if option is not None and not task.has_one_question:
        raise UsageError(
            f"`{option}`: needs models that answer {SINGLE_LABEL.labels}, but {first.reference} answers {task.labels}",
            hint="leave it out",
        )
