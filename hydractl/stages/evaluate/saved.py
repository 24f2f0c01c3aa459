"""The file that keeps what models said about data.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from hydractl.checkpoint import Checkpoint, write_checkpoint
from hydractl.errors import CheckpointError
from hydractl.metrics.samples import Kept, Responses, Scored, at_once, whole
from hydractl.publish import Sink
from hydractl.tensors import Chunks, TensorSpec, spec_of, tensor_bytes

LOG_PROBS, LOGSUMEXP, LABELS, SCORES = "log_probs", "logsumexp", "labels", "scores"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPredictions:
    """Everything that the metrics of a report follow from.

    Attributes:
        said: What each row says of each data set, float32, scaled by the row's temperature if it has one. The ID set is `id`.
        labels: For each labelled data set, the model's classes (N,), int64.
        raw: The rows whose logits are known too; none where no metric reads logits.
    """

    said: dict[str, dict[str, Kept]] = field(default_factory=dict)
    labels: dict[str, Tensor]
    raw: set[str] = field(default_factory=set)

    @property
    def log_probs(self) -> dict[str, dict[str, Tensor]]:
        """For each row and data set, members' log-probabilities (M, N, C)."""
        return {
            row: {data: whole(said).log_probs for data, said in sets.items()}
            for row, sets in self.said.items()
        }

    def add(self, row: str, found: dict[str, Kept], *, raw: bool) -> None:
        """Keep a row's predictions, of `raw` ones what tells the logits too."""
        self.said[row] = found
        if raw:
            self.raw.add(row)

    def of(self, row: str) -> dict[str, Responses]:
        """Return what a row says of each data set."""
        return {data: whole(said) for data, said in self.said[row].items()}

    def write(self, file: Sink) -> None:
        """Write a canonical safetensors file: `log_probs/ROW/DATA`, perhaps `logsumexp/ROW/DATA`, and `labels/DATA`.

        Scores of features are `scores/ROW/DATA/SCORE`.
        """
        sets = {f"{row}/{data}": said for row, own in self.said.items() for data, said in own.items()}
        raw = {name: said for name, said in sets.items() if name.partition("/")[0] in self.raw}
        held = {f"{LABELS}/{data}": found for data, found in self.labels.items()}
        held |= {
            f"{SCORES}/{name}/{score}": found
            for name, said in sets.items()
            if isinstance(said, Scored)
            for score, found in said.scores.items()
        }
        specs = {name: spec_of(found) for name, found in held.items()}
        specs |= {f"{LOG_PROBS}/{name}": TensorSpec("F32", said.shape) for name, said in sets.items()}
        specs |= {f"{LOGSUMEXP}/{name}": TensorSpec("F32", said.shape[:2]) for name, said in raw.items()}

        def data(name: str) -> Chunks:
            kind, _, of = name.partition("/")
            return [tensor_bytes(held[name])] if name in held else _bytes(sets[of], kind)

        write_checkpoint(file, specs, data, header=None)

    @classmethod
    def load(cls, path: Path) -> SavedPredictions:
        """Read what `write` wrote.

        Raises:
            CheckpointError: If the file is malformed or holds something else.
        """
        checkpoint = Checkpoint.open(path)
        saved = cls(labels={})
        for name in sorted(checkpoint.specs):
            match name.split("/"):
                case ["log_probs", row, data]:
                    saved.said.setdefault(row, {})[data] = Responses(checkpoint.tensor(name))
                case ["logsumexp", row, data] if data in saved.said.get(row, {}):
                    (log_probs,) = whole(saved.said[row][data]).tensors()
                    saved.said[row][data] = Responses(log_probs, checkpoint.tensor(name))
                    saved.raw.add(row)
                case ["scores", row, data, score] if data in saved.said.get(row, {}):
                    said = saved.said[row][data]
                    known = said if isinstance(said, Scored) else Scored(said, {})
                    saved.said[row][data] = Scored(
                        known.said, {**known.scores, score: checkpoint.tensor(name)}
                    )
                case ["labels", data]:
                    saved.labels[data] = checkpoint.tensor(name)
                case _:
                    raise CheckpointError(
                        f"{path}: tensor `{name}` is no prediction",
                        hint="expected a file that `hydractl eval --save-predictions` wrote",
                    )
        return saved


def _bytes(said: Kept, kind: str) -> Iterator[memoryview | bytes]:
    """Yield what a tensor of that kind holds, member after member."""
    for one in said.members():
        for part in one.split(at_once(one)):
            found = part.log_probs if kind == LOG_PROBS else part.logsumexp
            yield b"" if found is None else tensor_bytes(found)
