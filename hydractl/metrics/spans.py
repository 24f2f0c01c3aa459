"""Spans of words with one label, as in named entity recognition: from tags to spans, counts and metrics.

`tags.tag_scheme` maps the tags of all schemes to `B-`, `I-`, `E-`, `S-` and `O`. Spans are defined as in
conlleval (Tjong Kim Sang and De Meulder 2003), the default mode of seqeval: a span begins wherever the label
changes, with or without `B-`. Labels without a tag scheme count as `I-` tags: neighbours with one label are
one span.

Axes: N texts, at most Q words per text, E spans. Importing this module does not load torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hydractl.metrics.classification import RISK_COVERAGE, ece, of_equal_width
from hydractl.metrics.metric_spec import Metric, MetricNeeds, Unit
from hydractl.metrics.ood_ranking import auroc, fpr_at_tpr
from hydractl.tags import OUTSIDE, tag_scheme

if TYPE_CHECKING:
    from torch import Tensor

_PREFIXES = "OBIES"


class Spans(NamedTuple):
    """Spans in the order of texts and words. Each tensor has shape (E,), int64.

    Attributes:
        rows: Index of the text.
        first: Index of the first word.
        last: Index of the last word.
        labels: Label, an index into `span_labels`.
    """

    rows: Tensor
    first: Tensor
    last: Tensor
    labels: Tensor

    def word_numbers(self, rows: int, words: int) -> Tensor:
        """Return the span index of each word, shape (N Q,), int64; -1 for words outside spans.

        Args:
            rows: N.
            words: Q.
        """
        import torch  # noqa: PLC0415 - the table of metrics loads without it

        lengths = self.last - self.first + 1
        numbers = torch.arange(len(lengths)).repeat_interleave(lengths)
        offsets = self.rows * words + self.first - (lengths.cumsum(0) - lengths)
        of_words = torch.full((rows * words,), -1)
        of_words[offsets.repeat_interleave(lengths) + torch.arange(len(numbers))] = numbers
        return of_words


def lowest(values: Tensor, of_words: Tensor, count: int) -> Tensor:
    """Return the minimum value over the words of each span, shape (E,).

    Args:
        values: Values of words, shape (N Q,).
        of_words: Span index of each word, shape (N Q,), from `Spans.word_numbers`.
        count: E.
    """
    inside = of_words >= 0
    lowest_values = values.new_full((count,), float("inf"))
    return lowest_values.scatter_reduce(0, of_words[inside], values[inside], "amin")


def span_labels(names: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct span labels of tags with these names, in the order of the names."""
    return tuple(dict.fromkeys(filter(None, tag_scheme(names).labels)))


def spans_of(tags: Tensor, names: Sequence[str]) -> Spans:
    """Return the spans of tagged texts.

    Args:
        tags: Tag indices into `names`, shape (N, Q), int64; negative for padding words.
        names: Names of the tags.

    Raises:
        DataError: If the names mix tag schemes.
    """
    import torch  # noqa: PLC0415 - as above

    labels, tags = span_labels(names), tags.clamp(min=-1)
    scheme, number = tag_scheme(names), {label: i for i, label in enumerate(labels)}
    # index -1 is a padding word, which ends spans like a word outside
    prefix = torch.tensor([*map(_PREFIXES.index, (*scheme.prefixes, OUTSIDE))])[tags]
    label = torch.tensor([number.get(label, -1) for label in (*scheme.labels, "")])[tags]
    outside = prefix.new_zeros(len(tags), 1), label.new_full((len(tags), 1), -1)
    (prefix, label), (before, label_before) = (
        tuple(torch.cat(pair, 1) for pair in pairs)
        for pairs in (
            ((prefix, outside[0]), (label, outside[1])),
            ((outside[0], prefix), (outside[1], label)),
        )
    )
    o, b, i, e, s = range(len(_PREFIXES))
    changes = label != label_before
    ends = (before == e) | (before == s) | ((before != o) & (_any(prefix, b, s, o) | changes))
    starts = _any(prefix, b, s) | (_any(before, e, s, o) & _any(prefix, e, i)) | ((prefix != o) & changes)
    places = torch.arange(prefix.shape[1])
    firsts = torch.where(starts, places, -1).cummax(1).values
    rows, after = ends.nonzero(as_tuple=True)
    last = after - 1
    return Spans(rows, firsts[rows, last], last, label[rows, last])


def _any(x: Tensor, *values: int) -> Tensor:
    equal = x == values[0]
    for value in values[1:]:
        equal = equal | (x == value)
    return equal


def span_counts(predicted: Spans, true: Spans, *, rows: int, words: int) -> dict[str, Tensor]:
    """Count the correct, predicted and true spans of each text.

    Args:
        predicted: E predicted spans.
        true: True spans.
        rows: N.
        words: Q.

    Returns:
        `span_hits`, `span_predicted`, `span_true`: shape (N,), int64. `span_correct`: shape (E,), boolean.
    """
    import torch  # noqa: PLC0415 - as above

    keys = [
        ((spans.rows * words + spans.first) * words + spans.last) * (_most(predicted, true) + 1)
        + spans.labels
        for spans in (predicted, true)
    ]
    correct = torch.isin(keys[0], keys[1])
    return {
        "span_hits": predicted.rows[correct].bincount(minlength=rows),
        "span_predicted": predicted.rows.bincount(minlength=rows),
        "span_true": true.rows.bincount(minlength=rows),
        "span_correct": correct,
    }


def entity_probability(lowest_probabilities: Tensor, temperature: float) -> Tensor:
    """Return the probability that each entity is correct, shape (E,), in [0, 1].

    Args:
        lowest_probabilities: Minimum probability of the predicted tag over the words of each entity, shape
            (E,).
        temperature: Divides the log odds; 1 returns the argument.
    """
    return (
        lowest_probabilities if temperature == 1 else (lowest_probabilities.logit() / temperature).sigmoid()
    )


def filled_up(values: Tensor, counts: Tensor, width: int, absent: float) -> Tensor:
    """Return values of spans as a padded vector (N S,), with S values per text.

    Args:
        values: Values of spans, shape (E,).
        counts: Number of spans per text, shape (N,).
        width: S, at least the maximum of `counts`.
        absent: Padding value.
    """
    import torch  # noqa: PLC0415 - as above

    in_row = torch.arange(width) < counts[:, None]
    return values.new_full(in_row.shape, absent).masked_scatter(in_row, values).flatten()


def _most(*several: Spans) -> int:
    return max((int(spans.labels.max()) for spans in several if len(spans.labels)), default=0)


def span_precision(hits: Tensor, predicted: Tensor) -> Tensor:
    """Return the fraction of predicted spans that are correct, (...), float64, from counts (..., N).

    The result is 0 if no span is predicted.
    """
    return hits.double().sum(-1) / predicted.double().sum(-1).clamp(min=1)


def span_f1(hits: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """Return the harmonic mean of precision and recall, (...), float64, from counts (..., N).

    The result is 0 without spans.
    """
    return 2 * hits.double().sum(-1) / (predicted.double().sum(-1) + true.double().sum(-1)).clamp(min=1)


def span_f1_of(tags: Tensor, names: Sequence[str]) -> float:
    """Return the F1 of spans from predicted and true tags.

    Args:
        tags: Predicted tags, then true tags, shape (2, N, Q), int64, indices into `names`; negative for
            padding words.
        names: Names of the tags.
    """
    predicted, true = (spans_of(rows, names) for rows in tags)
    counts = span_counts(predicted, true, rows=tags.shape[1], words=tags.shape[2])
    return float(span_f1(counts["span_hits"], counts["span_predicted"], counts["span_true"]))


_of_spans = partial(
    Metric, needs=MetricNeeds.TASK, interval=True, unit=Unit.SHARE, high=1.0, higher_is_better=True
)
SPANS = (
    _of_spans(
        name="span_f1",
        column="span F1",
        definition="Harmonic mean of precision and recall of spans, over all labels together. A predicted span is correct if a true span "
        "has the same words and the same label (Tjong Kim Sang and De Meulder 2003), as in seqeval. Intervals resample texts.",
        arguments=("span_hits", "span_predicted", "span_true"),
        compute=span_f1,
    ),
    _of_spans(
        name="span_precision",
        column="precision",
        definition="Share of predicted spans that are correct; 0 without predicted spans.",
        arguments=("span_hits", "span_predicted"),
        compute=span_precision,
    ),
    _of_spans(
        name="span_recall",
        column="recall",
        definition="Share of true spans that are predicted; 0 without true spans.",
        arguments=("span_hits", "span_true"),
        compute=span_precision,
    ),
    Metric(
        name="span_ece",
        may_lack=True,
        column="span ECE",
        definition="Calibration error of predicted spans, computed as `ece`. The confidence of a span is the lowest probability of the "
        "predicted tag among the words of the span. A temperature of entities (`entity_temperature`) divides the log odds of "
        "the confidence.",
        needs=MetricNeeds.TASK,
        interval=True,
        high=1.0,
        higher_is_better=False,
        arguments=("span_confidence", "span_correct"),
        compute=ece,
        bins=of_equal_width,
    ),
    *(
        replace(
            metric,
            name=f"span_{metric.name}",
            column=f"span {metric.column}",
            definition=f"Metric `{metric.name}` of predicted spans: the answers are the predicted spans, and the score of a span is the "
            "highest of its words. Intervals resample texts.",
            may_lack=True,
        )
        for metric in RISK_COVERAGE
    ),
    _of_spans(
        name="span_auroc",
        may_lack=True,
        column="span AUROC",
        definition="AUROC of predicted spans in OOD texts against predicted spans in ID texts. The score of a span is the highest score "
        "of its words. Not measured without predicted spans. Intervals resample texts; no interval if a resample has no spans.",
        needs=MetricNeeds.OOD,
        arguments=("inside", "outside"),
        compute=auroc,
    ),
    _of_spans(
        name="span_fpr95",
        may_lack=True,
        column="span FPR95",
        definition="FPR95 of predicted spans, with scores and intervals as in `span_auroc`.",
        needs=MetricNeeds.OOD,
        higher_is_better=False,
        arguments=("inside", "outside"),
        compute=fpr_at_tpr,
    ),
)
"""Metrics of token classifiers. For the metrics in `LABELLED`, each word counts as a sample."""
