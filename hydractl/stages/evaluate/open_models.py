"""The models of all rows: whether they can stand in one table, and whether outputs may lie beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch

from hydractl.data.datasets import Items, TextSet
from hydractl.data.encode import content_of
from hydractl.data.labels import has_default_names
from hydractl.errors import InputError, UsageError
from hydractl.families.load import OpenModel
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import METRICS, metrics_of, needing
from hydractl.output.publish import OutputLock
from hydractl.settings import Role
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.shared import outputs
from hydractl.stages.shared.command_config import input_refs
from hydractl.tasks import SINGLE_LABEL, TASKS


def check_outputs(config: EvalConfig, opened: Sequence[Sequence[OpenModel]], lock: OutputLock) -> None:
    """Refuse outputs that must not be written."""
    models = [*chain.from_iterable(opened)]
    for path, option in ((config.out, "-o"), (config.save_predictions, "--save-predictions")):
        outputs.check_outputs(
            [] if path is None else [path],
            force=lock.may_replace,
            models=models,
            data=[config.data, *config.others],
            files=[
                config.naming.file,
                *(Path(str(r.ref)) for r in input_refs(config) if r.role is Role.FILE),
            ],
            option=option,
        )
    if config.store is not None:
        outputs.check_models([config.store], lock, models=models, option="--store")


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
