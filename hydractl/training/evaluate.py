"""Validation of a classifier, by all processes together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hydractl.inputs import map_inputs
from hydractl.metrics.classification import accuracy, nll
from hydractl.training.state import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from hydractl.data.batches import Batch
    from hydractl.inputs import Inputs
    from hydractl.training.engine import Engine


def classifier_metrics(
    engine: Engine, batches: Iterable[Batch[Inputs]], labels: torch.Tensor
) -> Callable[[nn.Module], Metrics | None]:
    """Return a function that measures a model which maps inputs to logits (B, C).

    Args:
        engine: Who computes; each process takes every world-th batch.
        batches: The validation data, in the same order each time they are gone over.
        labels: Shape (N,), int64, the model's class of each item of the data set.
    """

    def measure(model: nn.Module) -> Metrics | None:
        correct, loss, broken, count = 0.0, 0.0, 0.0, 0.0
        with torch.inference_mode():
            for i, batch in enumerate(batches):
                if i % engine.world != engine.rank:
                    continue
                inputs = map_inputs(lambda x: x.to(engine.device), batch.inputs)
                log_probs = model(inputs).float().log_softmax(-1).cpu()
                if not log_probs.isfinite().all():
                    broken += 1
                    continue
                wanted, size = labels[batch.indices], len(batch.indices)
                correct += accuracy(log_probs.exp(), wanted) * size
                loss += nll(log_probs, wanted) * size
                count += size
        correct, loss, broken, count = engine.sum([correct, loss, broken, count])
        # a share of whole samples, rid of the rounding that summing shares brings
        return None if broken else Metrics(accuracy=round(correct) / count, nll=loss / count)

    return measure
