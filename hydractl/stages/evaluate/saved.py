"""The file that keeps what models said about data.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.errors import CheckpointError
from hydractl.metrics.samples import Responses
from hydractl.publish import Sink

LOG_PROBS, LOGSUMEXP, LABELS = "log_probs", "logsumexp", "labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPredictions:
    """Everything that the metrics of a report follow from.

    Attributes:
        log_probs: For each row and data set, members' log-probabilities (M, N, C), float32, scaled by the row's
            temperature if it has one. The ID set is `id`.
        labels: For each labelled data set, the model's classes (N,), int64.
        logsumexp: Of the logits, (M, N), float32, as `log_probs`; empty where no metric reads logits.
    """

    log_probs: dict[str, dict[str, Tensor]]
    labels: dict[str, Tensor]
    logsumexp: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def add(self, row: str, found: dict[str, Responses], *, raw: bool) -> None:
        """Keep a row's predictions, of `raw` ones what tells the logits too."""
        self.log_probs[row] = {data: said.log_probs for data, said in found.items()}
        if raw:
            self.logsumexp[row] = {
                data: said.logsumexp for data, said in found.items() if said.logsumexp is not None
            }

    def of(self, row: str) -> dict[str, Responses]:
        """Return what a row says of each data set."""
        kept = self.logsumexp.get(row, {})
        return {data: Responses(own, kept.get(data)) for data, own in self.log_probs[row].items()}

    def write(self, file: Sink) -> None:
        """Write a canonical safetensors file: `log_probs/ROW/DATA`, perhaps `logsumexp/ROW/DATA`, and `labels/DATA`."""
        tensors = {f"{LABELS}/{data}": found for data, found in self.labels.items()}
        tensors |= {
            f"{kind}/{row}/{data}": found
            for kind, rows in ((LOG_PROBS, self.log_probs), (LOGSUMEXP, self.logsumexp))
            for row, sets in rows.items()
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
        saved = cls(log_probs={}, labels={})
        for name in sorted(checkpoint.specs):
            match name.split("/"):
                case ["log_probs", row, data]:
                    saved.log_probs.setdefault(row, {})[data] = checkpoint.tensor(name)
                case ["logsumexp", row, data]:
                    saved.logsumexp.setdefault(row, {})[data] = checkpoint.tensor(name)
                case ["labels", data]:
                    saved.labels[data] = checkpoint.tensor(name)
                case _:
                    raise CheckpointError(
                        f"{path}: tensor `{name}` is no prediction",
                        hint="expected a file that `hydractl eval --save-predictions` wrote",
                    )
        return saved
