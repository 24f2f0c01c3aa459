"""State of an interrupted run, to resume at the same step: tensors in safetensors files, the rest in JSON.

`state.json` has the names and digests of the state's files, and a digest of `state.json` itself. It is
replaced last, in one operation: after a kill at any time, the old or the new state is complete. The file also
identifies the folder: folders without `state.json`, or with other files, are never changed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import not_
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from hydractl import progress
from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.errors import CheckpointError, InputError, ManifestError, OutputExists
from hydractl.manifest.document import Digest, SealedDocument, StrictModel, is_none
from hydractl.output.publish import (
    Digested,
    has_content,
    lock_new,
    publish,
    publish_folder,
    publish_text,
    remove_dead_parts,
    scratch_beside,
)
from hydractl.runtime import digest_text
from hydractl.strict_json import MAX_BYTES

if TYPE_CHECKING:
    import torch


LONGEST, MOST = 60, 3
"""Maximum length of a value in a message, in characters, and maximum number of settings in a message. Chosen
by hand for messages of a few lines; doubling them doubles the longest message."""


def texts_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as short texts by name, without settings that are None.

    `True` becomes `true`, and (1, 2) becomes `1,2`. A text of more than 60 characters becomes the first 19
    characters of its digest.
    """
    texts = {name: _text(value) for name, value in settings.items() if value is not None}
    return {name: text if len(text) <= LONGEST else digest_text(text)[:19] for name, text in texts.items()}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return the settings that differ as a text for a message.

    An example is "`lr` was 0.1, is now 0.2; `clip` was not set, is now 1.0". After three settings, the number
    of the others follows: `; 2 more`.

    Args:
        before: Settings of the stored run, from `texts_of`.
        after: Settings of this run.

    Returns:
        None if `before` is empty or nothing differs.
    """
    if not before:
        return None
    names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    texts = [
        f"`{name}` was {before.get(name, 'not set')}, is now {after.get(name, 'not set')}" for name in names
    ]
    remainder = [f"{len(texts) - MOST} more"] if len(texts) > MOST else []
    return "; ".join((*texts[:MOST], *remainder)) or None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


NAME = "state.json"
DROPPED, FORCED, OTHERS, EMPTY = (
    "{why}: the state of an unfinished run in {place} is discarded",
    "`--force` starts again",
    "options, inputs or versions have changed",
    f"{NAME} is empty, as after a power loss",
)
_ANEW = "add `--force` to start again"
_OURS = re.compile(
    r"state\.json|(weights|average|optimizer|best|winner)-[\d-]+\.st|\..*\.[0-9a-f]{8}\.hydractl-part"
)
_MARK = b'"hydractl.training-state/'


class OtherRunError(OutputExists):
    """Error for the state of an unfinished run with other options, inputs or versions."""

    def __init__(self, path: Path, changes: str | None) -> None:
        super().__init__(
            f"{path}: belongs to an unfinished run with other options, inputs or versions"
            + (f": {changes}" if changes else ""),
            hint="run that command again to finish it, add `--force` to discard it and start again, or choose another name with `-o`",
        )


class Metrics(StrictModel):
    """Metrics on the validation data.

    Attributes:
        accuracy: Accuracy in [0, 1].
        nll: Mean negative log-likelihood in nats.
        span_f1: F1 of spans in [0, 1]; None for models without words.
    """

    accuracy: float
    nll: float
    span_f1: float | None = Field(default=None, exclude_if=is_none)

    def beats(self, reference: Metrics | None, *, delta: float = 0.0) -> bool:
        """Return whether the metrics are better than `reference` by more than `delta`.

        Better means a higher accuracy, or a lower NLL at an accuracy that is at least equal. The F1 of spans
        is not compared. Any metrics beat None.
        """
        if reference is None or self.accuracy > reference.accuracy + delta:
            return True
        return self.accuracy >= reference.accuracy and self.nll < reference.nll - delta


class Position(StrictModel):
    """Progress of one candidate of the learning-rate grid.

    Attributes:
        candidate: Index of the candidate in the grid, from 0.
        step: Number of optimizer steps so far.
        ended: Whether an evaluation ended the training: no improvement (`Recipe.early_stop`), or divergence.
        diverged: Whether an output of the last evaluation was not finite.
        last: Metrics of the last finite evaluation; None before.
        best: Best metrics of any evaluation; None before.
        best_step: Step of the best metrics.
        mark: Metrics that the next evaluation must improve by `Recipe.patience_delta`.
        stale: Number of evaluations since `mark`.
        evaluated: Step of the last evaluation. An interrupted evaluation is repeated.
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


class Winner(StrictModel):
    """Best finished candidate of the learning-rate grid.

    Attributes:
        candidate: Index of the candidate in the grid, from 0.
        metrics: Metrics of the weights.
        step: Number of steps after which the weights were reached.
    """

    candidate: int = Field(ge=0)
    metrics: Metrics
    step: int = Field(ge=0)


class StateFile(SealedDocument):
    """Content of `state.json`.

    Attributes:
        fingerprint: Digest of everything that determines the result of the run.
        position: Progress of the current candidate.
        winner: Best finished candidate, or None.
        files: Name of the file of each group of tensors in `Snapshot.named`.
    """

    kind_of_file: ClassVar[str] = "training-state"

    schema_: Literal["hydractl.training-state/1"] = Field(default="hydractl.training-state/1", alias="schema")
    fingerprint: Digest
    position: Position
    winner: Winner | None
    files: dict[str, str]
    digests: dict[str, Digest] = Field(default={})
    """Digest of each file by name."""
    settings: dict[str, str] = Field(default={}, exclude_if=not_)
    """Settings of the run, from `texts_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a run between two steps.

    Attributes:
        position: Progress of the current candidate.
        weights: Trained parameters by name; empty before the first step.
        optimizer: State of the optimizer by name.
        average: Mean of the parameters, see `Average`; empty before the mean starts or without a mean.
        best: Parameters with the best metrics; empty unless the recipe keeps the best.
        winner: Best finished candidate, or None.
        winner_weights: Parameters of the winner.
    """

    position: Position = field(default_factory=Position)
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, torch.Tensor] = field(default_factory=dict)
    average: Mapping[str, torch.Tensor] = field(default_factory=dict)
    best: Mapping[str, torch.Tensor] = field(default_factory=dict)
    winner: Winner | None = None
    winner_weights: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def named(self) -> dict[str, tuple[str, Mapping[str, torch.Tensor]]]:
        """Return the non-empty groups of tensors by field name, each as (file name, tensors).

        The file name contains the candidate and, except for the winner's weights, the step. A file with other
        content therefore has another name.
        """
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
    """Folder with the state of a run, next to the output."""

    def __init__(self, path: Path, fingerprint: str, settings: Mapping[str, str] | None = None) -> None:
        """Create the object; no file is read or written.

        Args:
            path: Path of the folder.
            fingerprint: Digest of everything that determines the result of the run.
            settings: Settings for messages about another run, from `texts_of`.
        """
        self.path = path
        self.fingerprint = fingerprint
        self._settings = dict(settings or {})
        self._digests: dict[str, str] | None = None  # None until the folder contains the state of this run.

    def resumed(self, *, force: bool, others: bool = False) -> Snapshot:
        """Return the stored snapshot, or an empty snapshot if the folder has no state of this run.

        Args:
            force: Whether to start again. The first save replaces the old state.
            others: Whether to discard the state of a run with other options, inputs or versions.

        Raises:
            OutputExists: If the path has content that hydractl did not write.
            OtherRunError: If the folder has the state of another run.
            ManifestError: If the state cannot be read.
            CheckpointError: If a file of the state is missing or damaged.
        """
        is_of_another_run = others and self._is_of_another()
        if not self.check(force=force or is_of_another_run):
            if self.path.exists():
                progress.warn(
                    DROPPED.format(
                        why=FORCED if force else OTHERS if is_of_another_run else EMPTY, place=self.path
                    )
                )
            return Snapshot()
        start = self.load()
        progress.step(f"Resuming at step {start.position.step} from {self.path}")
        return start

    def check(self, *, force: bool) -> bool:
        """Return whether the folder has a state of this run.

        False if the folder is missing, or its `state.json` is empty.

        Args:
            force: Whether to ignore any state, and return False.

        Raises:
            OutputExists: If the path has content that hydractl did not write.
            OtherRunError: If the folder has the state of another run.
            ManifestError: If the state cannot be read.
        """
        remove_dead_parts(self.path)
        if not os.path.lexists(self.path):
            return False
        if (strange := self._strange()) is not None:
            raise OutputExists(
                f"{self.path}: the state of the run goes here, but it {strange}",
                hint="move it to another place, or choose another name with `-o`",
            )
        return not force and has_content(self.path / NAME) and bool(self._read_state_file())

    def _strange(self) -> str | None:
        """Return why the path is no state folder of hydractl, for example `is not a folder`; else None."""
        if self.path.is_symlink():
            return "is a symbolic link"
        if not self.path.is_dir():
            return "is not a folder"
        names = sorted(path.name for path in self.path.iterdir())
        if others := [name for name in names if not _OURS.fullmatch(name)]:
            return f"contains `{others[0]}`, which hydractl did not write"
        state_file = self.path / NAME
        try:
            with state_file.open("rb") as file:
                content = file.read(MAX_BYTES)
            marked = not content or _MARK in content
        except OSError:
            marked = False
        return None if marked else f"has no `{NAME}` that hydractl wrote"

    def _is_of_another(self) -> bool:
        try:
            return StateFile.read(self.path / NAME).fingerprint != self.fingerprint
        except ManifestError:
            return False

    def _read_state_file(self) -> StateFile:
        try:
            state = StateFile.read(self.path / NAME)
        except ManifestError as error:
            raise ManifestError(error.message, hint=f"the state is of another version; {_ANEW}") from error
        if state != state.sealed() or set(state.files.values()) != state.digests.keys():
            raise ManifestError(f"{self.path / NAME}: is damaged: its digest does not match", hint=_ANEW)
        if state.fingerprint != self.fingerprint:
            raise OtherRunError(self.path, changes(state.settings, self._settings))
        return state

    def load(self) -> Snapshot:
        """Read the state of this run, without checks of other files in the folder.

        Raises:
            OtherRunError: If the folder has the state of another run.
            ManifestError: If the state cannot be read.
            CheckpointError: If a file of the state is missing or damaged.
        """
        state = self._read_state_file()
        try:
            files = {key: Checkpoint.open(self.path / name) for key, name in state.files.items()}
            for key, file in files.items():
                if file.digest != state.digests[state.files[key]]:
                    raise CheckpointError(f"{file.name}: is damaged: its digest does not match")
            groups = {key: file.tensors() for key, file in files.items()}
        except (InputError, OSError) as error:
            raise CheckpointError(str(error), hint=f"the state is damaged; {_ANEW}") from error
        self._digests = dict(state.digests)
        return Snapshot(position=state.position, winner=state.winner, **groups)

    def save(self, snapshot: Snapshot) -> None:
        """Replace the state. Unchanged files are not written again.

        Raises:
            OutputError: If the state cannot be written.
        """
        if self._digests is not None:
            self._write(self.path, snapshot, self._digests)
            return
        with publish_folder(self.path) as folder:
            digests = self._write(folder, snapshot, {})
            self.clear()  # The state of another run is removed only after the new one is complete.
        self._digests = digests

    def _write(self, folder: Path, snapshot: Snapshot, digests: dict[str, str]) -> dict[str, str]:
        """Write a snapshot and remove old files.

        Args:
            folder: Folder to write to.
            snapshot: State of the run.
            digests: Digests of existing files by name; changed in place.

        Returns:
            Digests of the files of the snapshot.
        """
        groups = snapshot.named()
        for name, tensors in groups.values():
            if name not in digests:
                with publish(folder / name) as file:
                    digested = Digested(file)
                    write_tensors(digested, tensors, header=None)
                digests[name] = digested.digest
        kept_names = {name for name, _ in groups.values()}
        document = StateFile(
            fingerprint=self.fingerprint,
            position=snapshot.position,
            winner=snapshot.winner,
            files={key: name for key, (name, _) in groups.items()},
            digests={name: digests[name] for name in kept_names},
            settings=self._settings,
        )
        publish_text(folder / NAME, document.sealed().to_json())
        for state_path in [path for path in folder.iterdir() if _OURS.fullmatch(path.name)]:
            if state_path.name not in {NAME, *kept_names}:
                digests.pop(state_path.name, None)
                state_path.unlink()
        return digests

    def clear(self) -> None:
        """Remove the folder if it exists. Files that hydractl did not write are kept."""
        mine, self._digests = self._digests is not None, None
        if not self.path.is_dir() or self.path.is_symlink():
            return
        if self._strange() is not None:  # Another program has written to the folder since the run started.
            for path in [path for path in self.path.iterdir() if mine and _OURS.fullmatch(path.name)]:
                path.unlink()
            return
        scratch = scratch_beside(self.path)  # The rename removes the state in one operation.
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            # Prevents other commands from treating the folder as a leftover of a killed command.
            lock_new(descriptor, self.path)
            self.path.rename(scratch)
            shutil.rmtree(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # A signal may have interrupted the first removal.
            os.close(descriptor)
