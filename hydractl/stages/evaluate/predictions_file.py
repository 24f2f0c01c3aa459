"""The file that keeps what models said about data.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from hydractl.checkpoint import write_checkpoint
from hydractl.metrics.per_sample import Scored, StoredPredictions, at_once
from hydractl.output.publish import Sink
from hydractl.tensor_spec import Chunks, TensorSpec, spec_of, tensor_bytes

LOG_PROBS, LOGSUMEXP, LABELS, SCORES = "log_probs", "logsumexp", "labels", "scores"


def write_predictions(
    file: Sink,
    predictions: Mapping[str, Mapping[str, StoredPredictions]],
    labels: Mapping[str, Tensor],
    *,
    with_logits: bool,
) -> None:
    """Write a canonical safetensors file: `log_probs/ROW/DATA`, perhaps `logsumexp/ROW/DATA`, and `labels/DATA`.

    Scores of features are `scores/ROW/DATA/SCORE`.

    Args:
        file: Where to.
        predictions: Of each row on each data set, float32, scaled by the row's temperature if it has one. The ID set is `id`.
        labels: Of each labelled data set, the model's classes (N,), int64; (N, Q) of models that answer Q labels.
        with_logits: Whether `logsumexp` is written, from which logits follow.
    """
    sets = {
        f"{row}/{data}": responses
        for row, by_data in predictions.items()
        for data, responses in by_data.items()
    }
    tensors = {f"{LABELS}/{data}": tensor for data, tensor in labels.items()}
    for name, responses in sets.items():
        scores = responses.scores if isinstance(responses, Scored) else {}
        tensors |= {f"{SCORES}/{name}/{score}": tensor for score, tensor in scores.items()}
    specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
    for name, responses in sets.items():
        specs[f"{LOG_PROBS}/{name}"] = TensorSpec("F32", responses.shape)
        if with_logits:
            specs[f"{LOGSUMEXP}/{name}"] = TensorSpec("F32", responses.shape[:-1])

    def chunks(name: str) -> Chunks:
        kind, _, of = name.partition("/")
        return [tensor_bytes(tensors[name])] if name in tensors else _bytes(sets[of], kind)

    write_checkpoint(file, specs, chunks, header=None)


def _bytes(predictions: StoredPredictions, kind: str) -> Iterator[memoryview | bytes]:
    """Yield what a tensor of that kind holds, member after member."""
    for member in predictions.members():
        for part in member.split(at_once(member)):
            tensor = part.log_probs if kind == LOG_PROBS else part.logsumexp
            yield b"" if tensor is None else tensor_bytes(tensor)
