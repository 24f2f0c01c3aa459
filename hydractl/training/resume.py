"""State of an interrupted run, to resume at the exact step: tensors in safetensors, the rest in JSON.

`state.json` names the files that belong together, with their digests and its own digest. It is replaced last and as a whole,
so a kill at any moment leaves either the state before or the state after. It identifies the folder: a folder without it, or
with other files, is never touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from hydractl import progress
from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.errors import CheckpointError, InputError, ManifestError, OutputExists
from hydractl.manifest.document import Digest, SealedDocument, StrictModel
from hydractl.output.publish import (
    Digested,
    has_content,
    keep,
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
"""Maximum length of a value in a message, and maximum number of settings in it."""


def texts_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as short texts: of a long value its digest, of None nothing."""
    texts = {name: _text(value) for name, value in settings.items() if value is not None}
    return {name: text if len(text) <= LONGEST else digest_text(text)[:19] for name, text in texts.items()}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return which settings differ, from which value to which; None where nothing is known of the run before."""
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
    "{why}: the state of an unfinished run in {where} is discarded",
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
    """What an unfinished run keeps beside its output belongs to other options, inputs or versions than those of this run."""

    def __init__(self, path: Path, changes: str | None) -> None:
        super().__init__(
            f"{path}: belongs to an unfinished run with other options, inputs or versions"
            + (f": {changes}" if changes else ""),
            hint="run that command again to finish it, add `--force` to discard it and start again, or choose another name with `-o`",
        )


class Metrics(StrictModel):
    """Metrics on the validation data: accuracy in [0, 1], mean negative log-likelihood in nats, and of words the F1 of spans."""

    accuracy: float
    nll: float
    span_f1: float | None = Field(default=None, exclude_if=lambda value: value is None)

    def beats(self, reference: Metrics | None, *, delta: float = 0.0) -> bool:
        """Return whether this is better: more accurate by more than `delta`, or as accurate and likelier by so much."""
        if reference is None or self.accuracy > reference.accuracy + delta:
            return True
        return self.accuracy >= reference.accuracy and self.nll < reference.nll - delta


class Position(StrictModel):
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


class Winner(StrictModel):
    """The best candidate that is done: its place in the grid, its metrics, and the steps its weights took."""

    candidate: int = Field(ge=0)
    metrics: Metrics
    step: int = Field(ge=0)


class StateFile(SealedDocument):
    """What `state.json` holds."""

    kind_of_file: ClassVar[str] = "training-state"

    schema_: Literal["hydractl.training-state/1"] = Field(default="hydractl.training-state/1", alias="schema")
    fingerprint: Digest
    position: Position
    winner: Winner | None
    files: dict[str, str]
    digests: dict[str, Digest] = Field(default={})
    """Digest of each file by name."""
    settings: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)
    """Settings of the run, from `texts_of`."""


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

    def __init__(self, path: Path, fingerprint: str, settings: Mapping[str, str] | None = None) -> None:
        """Name the folder; nothing is touched.

        Args:
            path: The folder.
            fingerprint: Digest of everything that the run's result hangs on.
            settings: What of that a refusal may name, as `texts_of` has it.
        """
        self.path = path
        self.fingerprint = fingerprint
        self._settings = dict(settings or {})
        self._digests: dict[str, str] | None = None  # None until the folder is this run's

    def resumed(self, *, force: bool, others: bool = False) -> Snapshot:
        """Return where to go on: at the beginning, unless there is a state of this run.

        Args:
            force: Start anew. What is there is replaced by the first save, not before.
            others: Whether the state of a run with other options, inputs or versions counts as none, and is so replaced.

        Raises:
            OutputExists: If something stands there that is not ours.
            OtherRunError: If there is a state of another run.
            ManifestError: If there is one that cannot be read.
            CheckpointError: If a file of it is missing or damaged.
        """
        is_of_another_run = others and self._is_of_another()
        if not self.check(force=force or is_of_another_run):
            if self.path.exists():
                progress.warn(
                    DROPPED.format(
                        why=FORCED if force else OTHERS if is_of_another_run else EMPTY, where=self.path
                    )
                )
            return Snapshot()
        start = self.load()
        progress.step(f"Resuming at step {start.position.step} from {self.path}")
        return start

    def check(self, *, force: bool) -> bool:
        """Return whether there is a state of this run to go on from.

        Args:
            force: Whether any state counts as none, and may be replaced.

        Raises:
            OutputExists: If something stands there that is not ours.
            OtherRunError: If there is a state of another run.
            ManifestError: If there is one that cannot be read.
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
        """Return why what stands there is not ours, None if it is."""
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
        """Read the state.

        Raises:
            CheckpointError: If a file of it is missing or damaged.
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
        """Replace the state; a file that has not changed stays as it is.

        Raises:
            OutputError: If it cannot be written.
        """
        if self._digests is not None:
            self._write(self.path, snapshot, self._digests)
            return
        with publish_folder(self.path) as folder:
            digests = self._write(folder, snapshot, {})
            self.clear()  # the state of another run, only after this one is complete
        self._digests = digests

    def _write(self, folder: Path, snapshot: Snapshot, digests: dict[str, str]) -> dict[str, str]:
        """Write a snapshot; `digests` are the digests of files that are there, and then those of its own."""
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
        """Remove the folder, if it is there, but nothing that is not ours."""
        mine, self._digests = self._digests is not None, None
        if not self.path.is_dir() or self.path.is_symlink():
            return
        if self._strange() is not None:  # somebody put something into it meanwhile
            for path in [path for path in self.path.iterdir() if mine and _OURS.fullmatch(path.name)]:
                path.unlink()
            return
        scratch = scratch_beside(self.path)  # from one moment to the next, as it came
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            keep(descriptor, self.path)  # so that nobody takes it for one that a killed command left
            self.path.rename(scratch)
            shutil.rmtree(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # a signal may have come in between
            os.close(descriptor)
