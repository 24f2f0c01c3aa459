"""The file that keeps what models said about data.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.errors import CheckpointError
from hydractl.publish import Sink

LOG_PROBS, LABELS = "log_probs", "labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPredictions:
    """Everything that the metrics of a report follow from.

    Attributes:
        log_probs: For each row and data set, members' log-probabilities (M, N, C), float32, scaled by the row's
            temperature if it has one. The ID set is `id`.
        labels: For each labelled data set, the model's classes (N,), int64.
    """

    log_probs: dict[str, dict[str, Tensor]]
    labels: dict[str, Tensor]

    def write(self, file: Sink) -> None:
        """Write a canonical safetensors file: `log_probs/ROW/DATA` and `labels/DATA`."""
        tensors = {f"{LABELS}/{data}": found for data, found in self.labels.items()}
        tensors |= {
            f"{LOG_PROBS}/{row}/{data}": found
            for row, sets in self.log_probs.items()
            for data, found in sets.items()
        }
        write_tensors(file, tensors, header=None)

    @classmethod
    def load(cls, path: Path) -> SavedPredictions:
        """Read what `write` wrote.

        Raises:
            CheckpointError: If the file is malformed or holds something else.
        """
        checkpoint = Checkpoint.open(path)
        log_probs: dict[str, dict[str, Tensor]] = {}
        labels: dict[str, Tensor] = {}
        for name in sorted(checkpoint.specs):
            match name.split("/"):
                case ["log_probs", row, data]:
                    log_probs.setdefault(row, {})[data] = checkpoint.tensor(name)
                case ["labels", data]:
                    labels[data] = checkpoint.tensor(name)
                case _:
                    raise CheckpointError(
                        f"{path}: tensor `{name}` is no prediction",
                        hint="expected a file that `hydractl eval --save-predictions` wrote",
                    )
        return cls(log_probs=log_probs, labels=labels)
