"""Read the predictions of `eval --save-predictions` and `predict`."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from hydractl.checkpoint import Checkpoint
from hydractl.metrics.per_sample import Responses, StoredPredictions, in_memory
from hydractl.prediction.run_models import LABELS, LOG_PROBS, LOGSUMEXP, SCORE_TENSORS
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict


@dataclass(kw_only=True)
class SavedPredictions:
    """Predictions of a file by row and data set.

    Attributes:
        said: Predictions by row and data set.
        labels: Labels by data set.
        raw: Rows with logsumexp, and so with known logits.
    """

    said: dict[str, dict[str, StoredPredictions]] = field(default_factory=dict)
    labels: dict[str, Tensor] = field(default_factory=dict)
    raw: set[str] = field(default_factory=set)

    @property
    def log_probs(self):
        """Log-probabilities of members by row and data set, shape (M, N, C)."""
        return {row: {data: found.log_probs for data, found in self.of(row).items()} for row in self.said}

    def of(self, row):
        return {data: in_memory(said) for data, said in self.said[row].items()}

    @classmethod
    def load(cls, path: Path):
        checkpoint, saved = Checkpoint.open(path), cls()
        for name in sorted(checkpoint.specs):
            kind, *place = name.split("/")
            tensor = checkpoint.tensor(name)
            if kind == LABELS:
                saved.labels["/".join(place)] = tensor
                continue
            row, data, *scores = place
            sets = saved.said.setdefault(row, {})
            if kind == LOG_PROBS:
                sets[data] = Responses(tensor)
            elif kind == LOGSUMEXP:
                sets[data] = Responses(in_memory(sets[data]).log_probs, tensor)
                saved.raw.add(row)
            else:
                assert kind == SCORE_TENSORS, name
                known = in_memory(sets[data])
                sets[data] = known._replace(scores={**known.scores, scores[0]: tensor})
        return saved


def predicted_lines(folder, model, data, out="out.jsonl", **settings):
    """Run `predict` with a model of a folder and return the parsed lines."""
    path = folder / out
    path.unlink(missing_ok=True)
    run_predict(PredictConfig(model=str(folder / model), data=(data,), out=path, device="cpu", **settings))
    return [json.loads(line) for line in path.read_text().splitlines()]
