"""Metrics of labelled data: accuracy, calibration, risk-coverage, multi-label classification and retrieval.

Inputs are vectors of `per_sample.answers`, or of `by_query` for retrieval. Importing this module does not
load torch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hydractl.metrics.metric_spec import Metric, MetricNeeds, Unit
from hydractl.metrics.ood_ranking import counts_by_rank

if TYPE_CHECKING:
    from torch import Tensor

BINS = 15
"""Number of bins of the calibration errors, as in Guo et al. (2017). Twice the number halves the samples per
bin, so the noise of a calibrated model's error grows by about 1.4."""
CUTOFF = 10
"""Number of first passages of a query in the metric `ndcg`; nDCG@10 is the usual metric of retrieval
benchmarks. Twice the number gives nDCG@20, which is a different metric."""
COVERAGE, RISK = 0.8, 0.05
"""Coverage of the metric `risk80`, and risk of the metric `coverage5`, as in torch-uncertainty. Other values are
other metrics."""


def mean(per_sample: Tensor) -> Tensor:
    """Return the mean over samples of values (..., N), shape (...), in float64. NaN values are ignored."""
    values = per_sample.double()
    return values.nanmean(-1) if values.isnan().any() else values.mean(-1)


def ece(confidence: Tensor, hits: Tensor, *, bins: int = BINS) -> Tensor:
    """Return the expected calibration error with bins of equal width, in [0, 1].

    The mean over bins, weighted by sample count, of the absolute gap between mean confidence and accuracy of
    the predicted class (Guo et al. 2017, eq. 3). Bins are those of torchmetrics' MulticlassCalibrationError:
    [lo, hi), edges and confidences in float32, and a separate bin for a confidence of exactly 1. Empty bins
    have weight 0. Sums are in float64.

    Args:
        confidence: Probability of the predicted class, shape (..., N), in [0, 1].
        hits: Whether the predicted class is the label, shape (..., N), boolean or 0 and 1.
        bins: Number of bins of [0, 1), at least 1.

    Returns:
        Shape (...), float64.

    Raises:
        ValueError: If shapes differ, there are no samples or bins, or a confidence is out of range.
    """
    _check(confidence, hits, bins)
    gap = confidence.double().new_zeros(*confidence.shape[:-1], bins + 1)
    gap.scatter_add_(-1, of_equal_width(confidence, bins=bins), hits.double() - confidence.double())
    return gap.abs().sum(-1) / confidence.shape[-1]


def of_equal_width(confidence: Tensor, *, bins: int = BINS) -> Tensor:
    """Return the bin index of each sample in `ece`, shape (..., N), int64.

    A confidence of exactly 1 has the extra index `bins`.
    """
    import torch  # noqa: PLC0415 - the table of metrics loads without it

    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float32, device=confidence.device)
    return torch.bucketize(confidence.float().contiguous(), edges, right=True) - 1


def adaptive_ece(confidence: Tensor, hits: Tensor, *, bins: int = BINS) -> Tensor:
    """Return the expected calibration error with bins of equal count, in [0, 1]; arguments as in `ece`.

    Samples are sorted by confidence and split like `torch.tensor_split`, where the first bins have one more
    sample if necessary (Nguyen and O'Connor 2015, section 3; torch-uncertainty's AdaptiveCalibrationError).
    With fewer samples than bins, the other bins are empty and have weight 0. Equal confidences keep the order
    of the samples, so the value can depend on the order if equal confidences cross the edge of a bin.
    """
    _check(confidence, hits, bins)
    order = confidence.argsort(stable=True, dim=-1)
    gaps = (hits.double() - confidence.double()).gather(-1, order)
    total = gaps.new_zeros(*gaps.shape[:-1], bins)
    for index, part in enumerate(gaps.tensor_split(bins, -1)):
        total[..., index] = part.sum(-1).abs()
    return total.sum(-1) / confidence.shape[-1]


def of_equal_count(confidence: Tensor, *, bins: int = BINS) -> Tensor:
    """Return the bin index of each sample in `adaptive_ece`, shape (N,), int64."""
    order = confidence.argsort(stable=True)
    bin_numbers = order.new_empty(len(order))
    for index, part in enumerate(order.tensor_split(bins)):
        bin_numbers[part] = index
    return bin_numbers


def wrong_and_all(ranks: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of wrong answers and of all answers at each of P ranks, shape (..., P), float64.

    The sums up to rank p count the answers that a threshold between the ranks p and p + 1 accepts.

    Args:
        ranks: Shape (..., N), from `per_sample.certainty_ranks`; negative for padding.
        hits: Whether the answer is correct, shape (..., N), boolean or 0 and 1; NaN for padding.
    """
    wrong, every = counts_by_rank(ranks.masked_fill(hits != 0, -1), ranks)
    return wrong.double(), every.double()


def aurc(ranks: Tensor, hits: Tensor) -> Tensor:
    """Return the area under the risk-coverage curve, in [0, 1].

    The mean over k = 1 to N of the error rate among the k most certain answers (Geifman et al. 2019). Answers
    with equal rank are in random order, and the result is the expected value. Arguments as in
    `wrong_and_all`.

    Returns:
        Shape (...), float64; NaN without answers.
    """
    import torch  # noqa: PLC0415 - the table of metrics loads without it

    wrong, every = wrong_and_all(ranks, hits)
    before, errors = every.cumsum(-1) - every, wrong.cumsum(-1) - wrong
    # With e errors among the b answers before a rank, and w errors among its s answers, the sum over k = b + 1 to
    # b + s of (e + w (k - b) / s) / k is w + (e - w b / s) (H(b + s) - H(b)), where H are the harmonic numbers.
    harmonic = torch.cat(
        [wrong.new_zeros(1), wrong.new_ones(ranks.shape[-1]).cumsum(0).reciprocal().cumsum(0)]
    )
    steps = harmonic[(before + every).long()] - harmonic[before.long()]
    return (wrong + (errors - wrong * before / every.clamp(min=1)) * steps).sum(-1) / every.sum(-1)


def augrc(ranks: Tensor, hits: Tensor) -> Tensor:
    """Return the area under the generalized risk-coverage curve, in [0, 0.5].

    The generalized risk is the probability that an answer is accepted and wrong. The area is that of
    trapezoids from coverage 0 to 1 (Traub et al. 2024), which is the expected value for a random order
    of answers with equal rank. Arguments and shape as in `aurc`.
    """
    wrong, every = wrong_and_all(ranks, hits)
    return (every * (wrong.cumsum(-1) - wrong / 2)).sum(-1) / every.sum(-1).square()


def risk_at_coverage(ranks: Tensor, hits: Tensor, *, coverage: float = COVERAGE) -> Tensor:
    """Return the error rate at the lowest threshold that accepts at least `coverage` of the answers, in [0, 1].

    Answers with equal rank are accepted together. Arguments and shape as in `aurc`.
    """
    wrong, every = (counts.cumsum(-1) for counts in wrong_and_all(ranks, hits))
    first = (every < (coverage * every[..., -1:]).ceil()).sum(-1, keepdim=True)
    return (wrong / every).gather(-1, first).squeeze(-1)


def coverage_at_risk(ranks: Tensor, hits: Tensor, *, risk: float = RISK) -> Tensor:
    """Return the largest fraction of answers that a threshold accepts with an error rate of at most `risk`.

    0 if no threshold has such an error rate. Answers with equal rank are accepted together. Arguments and
    shape as in `aurc`.
    """
    wrong, every = (counts.cumsum(-1) for counts in wrong_and_all(ranks, hits))
    return (every * (wrong / every <= risk)).amax(-1) / every[..., -1]


def by_query(scores: Tensor, relevant: Tensor, queries: Tensor) -> dict[str, Tensor]:
    """Return ranking metrics of a reranker for each of the K queries that have a relevant passage.

    Queries are in the order of their index. Of equal scores, relevant passages come last, so ties never
    improve a metric.

    Args:
        scores: Shape (N,), finite, for N pairs of query and passage; higher is more relevant.
        relevant: Shape (N,), boolean.
        queries: Index of each pair's query, shape (N,), int64, from 0.

    Returns:
        Shape (K,) each, float64, in [0, 1]. `reciprocal_rank`: of the first relevant passage. `precision`:
        the mean precision at the ranks of relevant passages. `gain`: the discounted cumulative gain of the
        first 10 passages, divided by the gain of the best order (Järvelin and Kekäläinen 2002).
    """
    import torch  # noqa: PLC0415 - the table of metrics loads without it

    order = relevant.int().argsort(stable=True)
    for key in (-scores, queries):
        order = order[key[order].argsort(stable=True)]
    ordered, hits = queries[order], relevant[order].double()
    counts, positives = ordered.bincount(), ordered.bincount(hits)
    offsets = counts.cumsum(0) - counts
    rank = (torch.arange(len(order)) - offsets[ordered] + 1).double()
    count = hits.cumsum(0)
    count = count - (count - hits)[offsets[ordered]]
    discount = (rank <= CUTOFF) / (rank + 1).log2()
    best = torch.cat([discount.new_zeros(1), (1 / torch.arange(2, CUTOFF + 2).double().log2()).cumsum(0)])
    values = {
        "reciprocal_rank": torch.zeros_like(positives).scatter_reduce(0, ordered, hits / rank, "amax"),
        "precision": ordered.bincount(hits * count / rank) / positives,
        "gain": ordered.bincount(hits * discount) / best[positives.long().clamp(max=CUTOFF)],
    }
    return {name: value[positives > 0] for name, value in values.items()}


def f1_micro(decided: Tensor, applies: Tensor) -> Tensor:
    """Return F1 = 2 TP / (2 TP + FP + FN) over all labels of all samples, shape (...), float64.

    The result is 0 if no label applies or is predicted.

    Args:
        decided: Whether a label is predicted, shape (..., N Q), boolean.
        applies: Whether a label applies, shape (..., N Q), boolean.
    """
    return _f1(decided, applies, -1)


def f1_macro(decided: Tensor, applies: Tensor, number: Tensor) -> Tensor:
    """Return the mean over labels of the F1 of a label, shape (...), float64.

    Args:
        decided: Whether a label is predicted, shape (..., N Q), boolean.
        applies: Whether a label applies, shape (..., N Q), boolean.
        number: Label index of each value, shape (..., N Q), int64.
    """
    decided, applies = _by_label(number, decided, applies)
    return _f1(decided, applies, -2).mean(-1)


def average_precision(applies: Tensor, log_odds: Tensor, number: Tensor) -> Tensor:
    """Return the mean over labels of sum_k (R_k - R_{k-1}) P_k, shape (...), float64, as in scikit-learn.

    k runs over the thresholds of a label. Labels without positive samples are ignored. The result is 0 if no
    label has positive samples.

    Args:
        applies: Whether a label applies, shape (..., N Q), boolean.
        log_odds: Log odds of a label, shape (..., N Q).
        number: Label index of each value, shape (..., N Q), int64.
    """
    relevant, _, last = _ranked_by_label(applies, log_odds, number)
    true_positives = relevant.cumsum(-1).gather(-1, last)
    positives = relevant.sum(-1)
    precision = (relevant * true_positives / (last + 1)).sum(-1) / positives
    return precision.nanmean(-1).nan_to_num(nan=0.0)


def label_auroc(applies: Tensor, log_odds: Tensor, number: Tensor) -> Tensor:
    """Return the mean over labels of the AUROC of samples with the label against samples without it.

    Ties count one half. Labels with only positive or only negative samples are ignored. The result is 0.5 if
    all labels are ignored. Arguments and shape as in `average_precision`.
    """
    relevant, first, last = _ranked_by_label(applies, log_odds, number)
    count, positives = relevant.shape[-1], relevant.sum(-1)
    below = (relevant * (count - 1 - (first + last) / 2)).sum(-1) - positives * (positives - 1) / 2
    return (below / (positives * (count - positives))).nanmean(-1).nan_to_num(nan=0.5)


def _f1(decided: Tensor, applies: Tensor, axis: int) -> Tensor:
    true_positives = (decided & applies).double().sum(axis)
    return 2 * true_positives / (decided.double().sum(axis) + applies.double().sum(axis)).clamp(min=1)


def _by_label(number: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Return values of shape (..., N, Q) for values of shape (..., N Q)."""
    labels = int(number.max()) + 1
    return tuple(value.unflatten(-1, (-1, labels)) for value in values)


def _ranked_by_label(applies: Tensor, log_odds: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each label's samples in descending order of log odds, and ranges of ties, (..., Q, N) each.

    Returns:
        Whether the label applies, float64; the first rank and the last rank with the same log odds.
    """
    import torch  # noqa: PLC0415 - the table of metrics loads without it

    relevant, scores = (x.transpose(-1, -2) for x in _by_label(number, applies, log_odds))
    ordered, order = scores.sort(-1, descending=True)
    changes = ordered[..., 1:] != ordered[..., :-1]
    edge = changes.new_ones(*changes.shape[:-1], 1)
    rank = torch.arange(ordered.shape[-1])
    first = torch.where(torch.cat([edge, changes], -1), rank, 0).cummax(-1).values
    ends = torch.where(torch.cat([changes, edge], -1), rank, len(rank))
    last = ends.flip(-1).cummin(-1).values.flip(-1)
    return relevant.gather(-1, order).double(), first, last


def _check(confidence: Tensor, hits: Tensor, bins: int) -> None:
    if confidence.shape != hits.shape or not confidence.numel():
        raise ValueError(
            "confidence and correctness must have the same non-empty shape, got "
            f"{tuple(confidence.shape)} and {tuple(hits.shape)}"
        )
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    if not bool(((confidence >= 0) & (confidence <= 1)).all()):
        raise ValueError("confidences must be in [0, 1]")


_labelled = partial(Metric, needs=MetricNeeds.LABELS, interval=True)

LABELLED = (
    _labelled(
        name="accuracy",
        column="Acc",
        definition="Share of samples whose most probable class is the label.",
        unit=Unit.SHARE,
        high=1.0,
        higher_is_better=True,
        arguments=("hits",),
        compute=mean,
    ),
    _labelled(
        name="brier",
        column="Brier",
        definition="Squared error of the probabilities, summed over classes, mean over samples (Brier 1950).",
        high=2.0,
        higher_is_better=False,
        arguments=("error",),
        compute=mean,
    ),
    _labelled(
        name="nll",
        column="NLL",
        definition="Mean negative log-likelihood of the label under the mean of the members' softmaxes.",
        unit=Unit.NATS,
        higher_is_better=False,
        arguments=("nll",),
        compute=mean,
    ),
    _labelled(
        name="ece",
        column="ECE",
        definition="Mean gap between confidence and accuracy of the predicted class over 15 bins of equal width, "
        "[lo, hi), weighted by count, as torchmetrics' MulticlassCalibrationError (Guo et al. 2017).",
        high=1.0,
        higher_is_better=False,
        arguments=("confidence", "hits"),
        compute=ece,
        bins=of_equal_width,
    ),
    _labelled(
        name="adaptive_ece",
        column="aECE",
        definition="Mean gap between confidence and accuracy of the predicted class over 15 bins of equal count "
        "(Nguyen and O'Connor 2015).",
        high=1.0,
        higher_is_better=False,
        arguments=("confidence", "hits"),
        compute=adaptive_ece,
        bins=of_equal_count,
    ),
)
CALIBRATED = tuple(metric.name for metric in LABELLED if metric.arguments != ("hits",))
"""Metrics of probabilities. A temperature changes these metrics, although predictions stay the same."""

_by_certainty = partial(
    Metric,
    needs=MetricNeeds.CERTAINTY,
    interval=True,
    high=1.0,
    higher_is_better=False,
    arguments=("certainty_rank", "hits"),
)
RISK_COVERAGE = (
    _by_certainty(
        name="aurc",
        column="AURC",
        definition="Area under the risk-coverage curve: mean over k of the error rate among the k answers with the lowest OOD "
        "score, for a random order of equal scores (Geifman et al. 2019).",
        compute=aurc,
    ),
    _by_certainty(
        name="augrc",
        column="AUGRC",
        definition="Area under the generalized risk-coverage curve: mean over coverages of the share of answers that are accepted "
        "and wrong (Traub et al. 2024).",
        high=0.5,
        compute=augrc,
    ),
    _by_certainty(
        name="risk80",
        column="risk at 80 % coverage",
        definition="Error rate at the lowest threshold on the OOD score that accepts at least 80 % of the answers.",
        unit=Unit.SHARE,
        compute=risk_at_coverage,
    ),
    _by_certainty(
        name="coverage5",
        column="coverage at 5 % risk",
        definition="Largest share of answers that a threshold on the OOD score accepts with an error rate of at most 5 %, 0 without "
        "such a threshold. The threshold is chosen on the same data, so the share has no guarantee.",
        unit=Unit.SHARE,
        higher_is_better=True,
        compute=coverage_at_risk,
    ),
)
"""Metrics of answers ranked by an OOD score. The score `msp` is the negated confidence. For models with several labels
or words, each label or word of a sample counts as an answer, with its own score where the score is computed from
logits."""

_of_labels = partial(
    Metric,
    needs=MetricNeeds.TASK,
    interval=True,
    unit=Unit.SHARE,
    high=1.0,
    higher_is_better=True,
)

MULTI_LABEL = (
    _of_labels(
        name="f1_micro",
        column="F1",
        definition="F1 over all labels of all samples. A label is predicted if its probability is above the threshold that the model "
        "stores for the label, or above 0.5 without a stored threshold.",
        arguments=("decided", "applies"),
        compute=f1_micro,
    ),
    _of_labels(
        name="f1_macro",
        column="macro F1",
        definition="Mean over labels of the F1 of a label; 0 for a label that applies to no sample and is never predicted.",
        arguments=("decided", "applies", "label_number"),
        compute=f1_macro,
    ),
    _of_labels(
        name="average_precision",
        column="AP",
        definition="Mean over labels of the average precision of the samples ordered by the label's probability, as in scikit-learn. "
        "Labels that apply to no sample are left out.",
        arguments=("applies", "log_odds", "label_number"),
        compute=average_precision,
    ),
    _of_labels(
        name="label_auroc",
        column="label AUROC",
        definition="Mean over labels of the probability that a sample with the label has a higher probability of the label than a sample "
        "without the label; ties count one half. Labels that apply to all samples or to no sample are left out.",
        arguments=("applies", "log_odds", "label_number"),
        compute=label_auroc,
    ),
)
"""Metrics of multi-label models. For the metrics in `LABELLED`, each label of a sample counts as a sample."""

_ranked = partial(
    Metric,
    needs=MetricNeeds.QUERIES,
    may_lack=True,
    interval=True,
    high=1.0,
    higher_is_better=True,
    compute=mean,
)

RETRIEVAL = (
    _ranked(
        name="ndcg",
        column=f"nDCG@{CUTOFF}",
        definition=f"Normalized discounted cumulative gain of the first {CUTOFF} passages of a query, mean over the queries with "
        "a relevant passage (Järvelin and Kekäläinen 2002). Intervals resample queries.",
        arguments=("gain",),
    ),
    _ranked(
        name="mrr",
        column="MRR",
        definition="Reciprocal rank of a query's first relevant passage, mean over the queries with a relevant passage.",
        arguments=("reciprocal_rank",),
    ),
    _ranked(
        name="map",
        column="MAP",
        definition="Average precision of a query's relevant passages, mean over the queries with a relevant passage.",
        arguments=("precision",),
    ),
)
