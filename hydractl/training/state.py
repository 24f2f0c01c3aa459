"""What a run that was cut off needs to go on at the exact step: tensors in safetensors, the rest in JSON.

The folder's `state.json` names the files that belong together. It is replaced last and whole, so a kill at any moment
leaves either the state before or the state after.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.errors import CheckpointError, InputError, ManifestError, OutputError, UsageError
from hydractl.manifest.document import Digest, Document, Strict
from hydractl.publish import publish, publish_text

if TYPE_CHECKING:
    import torch

NAME = "state.json"
_ANEW = "add `--force` to start anew"


class Metrics(Strict):
    """How good a model is on the validation data: accuracy in [0, 1], mean negative log-likelihood in nats."""

    accuracy: float
    nll: float

    def beats(self, other: Metrics | None, *, delta: float = 0.0) -> bool:
        """Return whether this is better: more accurate by more than `delta`, or as accurate and likelier by so much."""
        if other is None or self.accuracy > other.accuracy + delta:
            return True
        return self.accuracy >= other.accuracy and self.nll < other.nll - delta


class Position(Strict):
    """How far one candidate of the learning-rate grid has come.

    Attributes:
        candidate: Its place in the grid, from 0.
        step: Optimiser steps done.
        ended: Whether it stopped before the last step, early or because it diverged.
        diverged: Whether its outputs are no longer finite.
        last: What the last evaluation found.
        best: The best that an evaluation found, and `best_step` when.
        mark: What the next evaluation must improve on to count as improvement.
        stale: Evaluations since then.
        evaluated: The step of the last evaluation; an interrupted one is owed.
    """

    candidate: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    ended: bool = False
    diverged: bool = False
    last: Metrics | None = None
    best: Metrics | None = None
    best_step: int = 0
    mark: Metrics | None = None
    stale: int = 0
    evaluated: int = Field(default=0, ge=0)


class Winner(Strict):
    """The best candidate that is done: its place in the grid, its metrics, and the steps its weights took."""

    candidate: int = Field(ge=0)
    metrics: Metrics
    step: int = Field(ge=0)


class StateFile(Document):
    """What `state.json` holds."""

    kind_of_file: ClassVar[str] = "training-state"

    schema_: Literal["hydractl.training-state/1"] = Field(default="hydractl.training-state/1", alias="schema")
    fingerprint: Digest
    position: Position
    winner: Winner | None
    files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run between two steps.

    Attributes:
        position: Of the present candidate.
        weights: Its trained parameters by name; empty before its first step.
        optimizer: Its optimiser's state by name.
        average: The mean of its parameters that is answered with; empty without one, and before it begins.
        best: Its best parameters; empty unless they are kept.
        winner: The best candidate before it.
        winner_weights: That candidate's parameters.
    """

    position: Position = field(default_factory=Position)
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, torch.Tensor] = field(default_factory=dict)
    average: Mapping[str, torch.Tensor] = field(default_factory=dict)
    best: Mapping[str, torch.Tensor] = field(default_factory=dict)
    winner: Winner | None = None
    winner_weights: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def named(self) -> dict[str, tuple[str, Mapping[str, torch.Tensor]]]:
        """Return each group of tensors with the name of its file, which changes when the content does."""
        at, won = self.position, self.winner.candidate if self.winner else 0
        stem = f"{at.candidate}-{at.step}"
        groups = {
            "weights": (f"weights-{stem}.st", self.weights),
            "average": (f"average-{stem}.st", self.average),
            "optimizer": (f"optimizer-{stem}.st", self.optimizer),
            "best": (f"best-{at.candidate}-{at.best_step}.st", self.best),
            "winner_weights": (f"winner-{won}.st", self.winner_weights),
        }
        return {key: pair for key, pair in groups.items() if pair[1]}


class StateFolder:
    """The folder beside an output in which its run keeps its state."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Name the folder; nothing is touched.

        Args:
            path: The folder.
            fingerprint: Digest of everything that the run's result hangs on.
        """
        self.path = path
        self.fingerprint = fingerprint

    def check(self, *, force: bool) -> bool:
        """Return whether there is a state of this run.

        Args:
            force: Whether a state of another run counts as none, and may be removed.

        Raises:
            UsageError: If there is a state of another run, or one that cannot be read.
            OutputError: If something else stands there.
        """
        if not self.path.exists():
            return False
        if not self.path.is_dir():
            raise OutputError(f"{self.path}: is where the state of the run goes, and is not a folder")
        if not (self.path / NAME).is_file():
            return False
        try:
            found = StateFile.read(self.path / NAME)
        except ManifestError as error:
            if force:
                return False
            raise UsageError(error.message, hint=f"it is not a state of this version; {_ANEW}") from error
        if found.fingerprint != self.fingerprint and not force:
            raise UsageError(
                f"{self.path}: holds the state of a run with other options, inputs or library versions",
                hint=f"run that command again to finish it, or {_ANEW}",
            )
        return found.fingerprint == self.fingerprint

    def load(self) -> Snapshot:
        """Read the state.

        Raises:
            CheckpointError: If a file of it is missing or malformed.
        """
        found = StateFile.read(self.path / NAME)
        try:
            groups = {key: Checkpoint.open(self.path / name).tensors() for key, name in found.files.items()}
        except InputError as error:
            raise CheckpointError(
                error.message, hint=f"the state is damaged: `rm -r {self.path}` and start anew"
            ) from error
        return Snapshot(position=found.position, winner=found.winner, **groups)

    def save(self, snapshot: Snapshot) -> None:
        """Replace the state; a file that has not changed stays as it is.

        Raises:
            OutputError: If it cannot be written.
        """
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be made: {error.strerror}") from error
        groups = snapshot.named()
        for name, tensors in groups.values():
            if not (self.path / name).exists():
                with publish(self.path / name) as file:
                    write_tensors(file, tensors, header=None)
        document = StateFile(
            fingerprint=self.fingerprint,
            position=snapshot.position,
            winner=snapshot.winner,
            files={key: name for key, (name, _) in groups.items()},
        )
        publish_text(self.path / NAME, document.to_json())
        kept = {NAME, *document.files.values()}
        for other in self.path.iterdir():
            if other.name not in kept:
                other.unlink()

    def clear(self) -> None:
        """Remove the folder, if it is there."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
