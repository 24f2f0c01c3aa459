"""Validation of a classifier, by all processes together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from hydractl.data.batches import Batch
from hydractl.metrics.classification import mean
from hydractl.metrics.per_sample import answers
from hydractl.model_inputs import Inputs, inputs_on
from hydractl.training.accelerator import Engine
from hydractl.training.resume import Metrics

TALLIED = 4


def classifier_metrics(
    engine: Engine,
    batches: Iterable[Batch[Inputs]],
    labels: torch.Tensor,
    span_f1: Callable[[torch.Tensor], float] | None = None,
) -> Callable[[nn.Module], Metrics | None]:
    """Return a function that measures a model which maps inputs to logits (B, C).

    Args:
        engine: Who computes; each process takes every world-th batch.
        batches: The validation data, in the same order each time they are gone over.
        labels: Shape (N,), int64, the model's class of each item of the data set; or (N, Q), which of its Q labels apply, or the
            class of each word, below 0 for none.
        span_f1: Returns the F1 of spans, given the predicted class of each word (N, Q); None for models without words.
    """

    def measure(model: nn.Module) -> Metrics | None:
        sums, classes = [0.0] * TALLIED, torch.zeros_like(labels)
        # what is made whole in inference is of no use in training
        with torch.no_grad() if engine.shards else torch.inference_mode():
            i, last = 0, None
            for i, batch in enumerate(batches, start=1):
                last = batch.inputs
                if (i - 1) % engine.world != engine.rank:
                    continue
                inputs = inputs_on(batch.inputs, engine.device)
                logits = model(inputs)
                if span_f1 is not None:
                    classes[batch.indices, : logits.shape[1]] = logits.argmax(-1).cpu()
                batch_sums = tally(logits, labels[batch.indices])
                sums = [total + batch_sum for total, batch_sum in zip(sums, batch_sums, strict=True)]
            if engine.shards and last is not None and engine.rank >= i % engine.world > 0:
                model(inputs_on(last, engine.device))  # the others need this process's parts
        metrics = metrics_of(engine.sum(sums))
        if span_f1 is None or metrics is None:
            return metrics
        if engine.world > 1:  # each process has the classes of its batches, and zeros
            classes = torch.tensor(engine.sum(classes.flatten().tolist())).long().view(labels.shape)
        return metrics.model_copy(update={"span_f1": span_f1(classes)})

    return measure


def tally(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, ...]:
    """Return what a batch adds to `metrics_of`: right answers, nats, samples or their labels, and whether it has none that count.

    Args:
        logits: Shape (B, C), or (B, Q, C).
        labels: Shape (B,), or (B, Q), int64, on the CPU; those below 0 do not count.
    """
    log_probs, counted = logits.float().log_softmax(-1).cpu(), labels >= 0
    if not log_probs.isfinite().all():
        return 0.0, 0.0, 0.0, 1.0
    log_probs, labels = log_probs[counted], labels[counted]
    size = len(labels)
    if not size:
        return 0.0, 0.0, 0.0, 0.0
    per_sample = answers(log_probs.exp(), labels, log_probs=log_probs)
    return float(mean(per_sample["hits"])) * size, float(mean(per_sample["nll"])) * size, float(size), 0.0


def metrics_of(sums: Sequence[float]) -> Metrics | None:
    """Return the metrics that the sums of all batches' tallies make, None if an output is not finite."""
    correct, loss, count, broken = sums
    # a share of whole samples, rid of the rounding that summing shares brings
    return None if broken else Metrics(accuracy=round(correct) / count, nll=loss / count)
