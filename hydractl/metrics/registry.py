"""Registry of all metrics of reports, in the order of reports. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from hydractl.errors import UsageError
from hydractl.messages import nearest
from hydractl.metrics.classification import LABELLED, RETRIEVAL, RISK_COVERAGE
from hydractl.metrics.diversity import DIVERSITY
from hydractl.metrics.metric_spec import Metric, MetricNeeds, Unit
from hydractl.metrics.ood_ranking import RANKING
from hydractl.plugins import load
from hydractl.tasks import TASKS, Task

FIT, VAL = "fit", "val"
"""Names of two data sets in reports: training data of feature-based scores, and held-out ID data."""
OPTION_NAMES = {FIT: "train"}
"""Options of data sets, if they differ from the name in reports."""
TEMPERATURE = "temperature"
SET_COVERAGE, SET_SIZE = "set_coverage", "set_size"
_OTHERS = (
    Metric(
        name=SET_COVERAGE,
        column="set coverage",
        definition="Share of samples whose prediction set contains the label, with the exact binomial interval (Clopper and Pearson 1934).",
        needs=MetricNeeds.SETS,
        unit=Unit.SHARE,
        high=1.0,
    ),
    Metric(
        name=SET_SIZE,
        column="set size",
        definition="Mean number of classes in a prediction set.",
        needs=MetricNeeds.SETS,
        higher_is_better=False,
    ),
    Metric(
        name=TEMPERATURE,
        column="T",
        definition="Divisor of every member's logits before the softmax, for all numbers of the row: the number of the option, or the "
        "minimizer of N NLL(T) + (ln T)^2 / (2 * 0.5^2) on the N samples of the data set `temperature` (Guo et al. 2017), times "
        "the temperature that the checkpoint stores. For models with several labels, the temperature to which the prior draws "
        "the labels' own temperatures.",
        needs=MetricNeeds.TEMPERATURE,
    ),
    Metric(
        name="parameters",
        column="Params",
        definition="Number of values in the model's parameters. A shared parameter counts once.",
        needs=MetricNeeds.WEIGHTS,
        unit=Unit.COUNT,
        higher_is_better=False,
    ),
    Metric(
        name="macs",
        column="MACs",
        definition="Multiply-accumulates of matrix products, convolutions and attention in one forward pass of one sample: half of "
        "torch's FLOP counter. The last block computes only the tokens that the readout reads, unlike the library's own model.",
        needs=MetricNeeds.WEIGHTS,
        unit=Unit.COUNT,
        higher_is_better=False,
    ),
    Metric(
        name="macs_textbook",
        definition="Multiply-accumulates as papers count, which differ from the computation that runs: each member separately in the "
        "library's own model, with all tokens in every block, times the passes of a row. MIMO is one network and counts one "
        "pass.",
        needs=MetricNeeds.WEIGHTS,
        unit=Unit.COUNT,
        higher_is_better=False,
    ),
    Metric(
        name="training_macs",
        column="Training",
        definition="Multiply-accumulates of training, from the lineage of the row's models: three forward passes for each sample that the "
        "written weights of each `finetune` saw, including frozen weights. With stored features of a frozen encoder, one pass "
        "of the encoder per sample and three of the classifiers. A run that several models share counts once. Rows of `vilu:` "
        "include the network of `vilu`. Teachers, evaluations, other learning rates, scores and training elsewhere do not "
        "count.",
        needs=MetricNeeds.WEIGHTS,
        unit=Unit.COUNT,
        higher_is_better=False,
    ),
    Metric(
        name="latency_ms",
        column="Latency",
        definition="Median wall-clock time of one forward pass of one sample, including the last kernel.",
        needs=MetricNeeds.TIME,
        unit=Unit.MS,
        higher_is_better=False,
        interval=True,
    ),
    Metric(
        name="latency_batch_ms",
        column="at batch {batch_size}",
        definition="Median wall-clock time of one forward pass of `batch_size` samples, including the last kernel.",
        needs=MetricNeeds.TIME,
        unit=Unit.MS,
        higher_is_better=False,
        interval=True,
    ),
)


def by_name(*metrics: Metric) -> Mapping[str, Metric]:
    """Return a read-only mapping from name to metric, in the given order.

    Raises:
        ValueError: If two metrics have the same name.
    """
    table = {metric.name: metric for metric in metrics}
    if len(table) != len(metrics):
        raise ValueError("two metrics have the same name")
    return MappingProxyType(table)


def metrics_of(task: Task) -> tuple[Metric, ...]:
    """Return the metrics that apply only to this task; empty for a task without own metrics."""
    return () if task.metrics is None else tuple(load(task.metrics))


_OF_TASKS = chain.from_iterable(map(metrics_of, TASKS.values()))
METRICS = by_name(*LABELLED, *RISK_COVERAGE, *_OF_TASKS, *RETRIEVAL, *DIVERSITY, *RANKING, *_OTHERS)

ALIASES: Mapping[str, str] = MappingProxyType({"acc": "accuracy", "ood": "auroc"})
"""Alternative names of metrics."""

_WITHOUT = {
    MetricNeeds.OOD: ("without an OOD data set", "add `--near NAME=DATA` or `--far NAME=DATA`"),
    MetricNeeds.TIME: ("with `--no-latency`", "leave out `--no-latency`"),
    MetricNeeds.TEMPERATURE: (
        "without `--temperature`",
        "add `--temperature DATA` with labelled data to fit it on",
    ),
}


def choose_metrics(
    names: Sequence[str] | None, *, ood: bool, latency: bool, scaled: bool = False
) -> tuple[str, ...]:
    """Return the names of the metrics to measure, in the order of reports.

    Args:
        names: Names of metrics. `None` or empty for all metrics that can be measured.
        ood: Whether the run has an OOD set.
        latency: Whether latency may be measured.
        scaled: Whether logits are divided by a temperature. The metric `temperature` is then always included.

    Raises:
        UsageError: If a name is unknown, or the metric cannot be measured.
    """
    available = {MetricNeeds.OOD: ood, MetricNeeds.TIME: latency, MetricNeeds.TEMPERATURE: scaled}
    chosen = [metric_named(name) for name in names or METRICS]
    for metric in chosen if names else ():
        if not available.get(metric.needs, True):
            why, hint = _WITHOUT[metric.needs]
            raise UsageError(f"`{metric.name}` cannot be measured {why}", hint=hint)
    return tuple(
        name
        for name, metric in METRICS.items()
        if available.get(metric.needs, True) and (metric in chosen or name == TEMPERATURE)
    )


def metric_named(name: str) -> Metric:
    """Return a metric by its name or an alternative name.

    Raises:
        UsageError: If the name is unknown. The hint has the most similar name, and the command that lists all.
    """
    metric_name = ALIASES.get(name, name)
    if metric_name not in METRICS:
        raise UsageError(
            f"unknown metric `{name}`",
            hint=" ".join(filter(None, (_nearest(name), "`hydractl eval --help --all` lists all metrics"))),
        )
    return METRICS[metric_name]


def _nearest(name: str) -> str | None:
    """Return a hint with the metric whose name or table heading is most similar to `name`, or `None`."""
    columns = {m.column.lower(): m.name for m in METRICS.values() if m.column is not None}
    metric_by_name = {metric: metric for metric in METRICS} | columns
    nearest_name = nearest(name.lower().replace("-", "_"), metric_by_name)
    return f"did you mean `{metric_by_name[nearest_name]}`?" if nearest_name else None


def needing(metrics: Iterable[str], *needs: MetricNeeds) -> tuple[str, ...]:
    """Return the names of the metrics that need one of these inputs, in the given order."""
    return tuple(name for name in metrics if METRICS[name].needs in needs)
