"""Thresholds: which inputs each row answers so that few enough answers are wrong, and a copy of the model that stores its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydractl.checkpoint import Checkpoint, write_checkpoint
from hydractl.errors import CheckFailed, UsageError
from hydractl.families.opening import OpenModel
from hydractl.fusion.detecting import Scores
from hydractl.fusion.predictions import Predictions
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.header import Header, InputFile
from hydractl.manifest.report import Row
from hydractl.manifest.scopes import ID_NAME
from hydractl.manifest.threshold import FittedScores, Threshold
from hydractl.metrics.samples import Kept, Scored, at_once
from hydractl.metrics.scores import FITTED, KNN
from hydractl.metrics.selective import fewest, select
from hydractl.metrics.table import FIT, TEMPERATURE
from hydractl.metrics.temperature import rounded
from hydractl.progress import Progress
from hydractl.publish import Sink
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.risk import OPTION, told
from hydractl.stages.shared.classes import Classes
from hydractl.stages.shared.lineage import make_step
from hydractl.tensors import spec_of, tensor_bytes

FUSE = "fuse"
"""The command that keeps what members store."""
THRESHOLD = "threshold"


def check_count(config: EvalConfig, count: int) -> None:
    """Refuse samples that are too few for any threshold, before a model is loaded.

    Raises:
        CheckFailed: If they are.
    """
    if config.threshold_for is None:
        return
    least = fewest(config.threshold_for, config.chance) + 1
    if count < least:
        raise CheckFailed(
            f"`{OPTION} {told(config.threshold_for)}`: {count} samples cannot tell, even if every answer were right",
            hint=f"give at least {least} samples, allow more risk, or a greater `--delta`",
        )


def threshold_of(config: EvalConfig, said: Kept, labels: Tensor) -> Threshold | None:
    """Return the threshold of a row, None if no threshold keeps the risk, or none is asked for."""
    if config.threshold_for is None:
        return None
    score = config.scores[0]
    names = tuple(map(str, range(said.shape[2])))
    beside = said.scores.get(score) if isinstance(said, Scored) else None
    classes = torch.empty(len(labels), dtype=torch.int64)
    scores = torch.empty(len(labels)) if beside is None else beside
    begin = 0
    for part in said.split(at_once(said)):
        told = Predictions.of(part, names)  # as `predict` does
        end = begin + len(told)
        classes[begin:end] = told.classes
        if beside is None:
            scores[begin:end] = told.scores[score]
        begin = end
    selected = select(scores, classes == labels, risk=config.threshold_for, delta=config.chance)
    if selected is None:
        return None
    return Threshold(
        score=score, risk=config.threshold_for, delta=config.chance, count=len(labels), **selected._asdict()
    )


def check_storable(config: EvalConfig, opened: OpenModel, classes: Classes | None) -> None:
    """Refuse to store what is of classes that the model does not store.

    Raises:
        UsageError: If it is.
    """
    if config.store:
        check_stores(opened, classes)


def check_stores(opened: OpenModel, classes: Classes | None) -> None:
    """Refuse a model that does not store the classes that it is asked about.

    Raises:
        UsageError: If it does not.
    """
    prompting = opened.header.prompting
    stored = (opened.header.labels, prompting.templates) if prompting else None
    if classes and stored and stored != (classes.names, classes.templates):
        raise UsageError(
            f"`--store`: {opened.reference} stores other classes, or none",
            hint="fuse the members with `--classes` and `--template` first",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A copy of a model that stores its temperature, its threshold and its OOD scores of features.

    Attributes:
        checkpoint: The model.
        header: Of the copy.
        scores: None leaves those that the model holds already.
    """

    checkpoint: Checkpoint
    header: Header
    scores: Scores | None

    @classmethod
    def of(
        cls,
        config: EvalConfig,
        opened: OpenModel,
        row: Row,
        data: Mapping[str, Fingerprint],
        scores: Scores | None,
        progress: Progress,
    ) -> Self:
        """Return the copy; arguments as of the run, whose first row this is."""
        header = _stored_header(config, opened, row, data)
        if config.threshold_for is None and opened.header.threshold is not None:
            other = _otherwise(config, opened.header.threshold, opened.header, header, scores)
            if other is None:
                header = header.model_copy(update={"threshold": opened.header.threshold})
            else:
                progress.warn(
                    f"{opened.reference}: its threshold is not kept: {other}, which `{OPTION}` finds"
                )
        if scores is not None:
            fitted = FittedScores(scores=tuple(scores.fitted), data=data[FIT], temperature=scores.temperature)
            header = header.model_copy(update={"fitted": fitted})
        return cls(checkpoint=opened.checkpoint, header=header, scores=scores)

    def write(self, file: Sink) -> None:
        """Write it: weights as they lie, byte for byte."""
        checkpoint = self.checkpoint
        made = {} if self.scores is None else self.scores.tensors()
        beside = checkpoint.beside if self.scores is None else {n: spec_of(t) for n, t in made.items()}
        write_checkpoint(
            file,
            checkpoint.specs | beside,
            lambda name: [tensor_bytes(made[name]) if name in made else checkpoint.spans[name]],
            header=self.header,
        )


def _roles(config: EvalConfig) -> tuple[str, ...]:
    """Return the data that a step names after the model, in the order by which `found_on` knows them."""
    heldout, fit = config.heldout is not None, config.fit is not None
    return (ID_NAME, *(TEMPERATURE,) * heldout, *(FIT,) * fit)


def found_on(header: Header) -> Iterator[tuple[str, str]]:
    """Yield the digests of data that `eval --store` found on what a model stores, each after `TEMPERATURE` or `THRESHOLD`.

    Temperatures come on top of one another, a threshold in place of another, and other weights drop both; but `fuse` keeps a
    temperature that all members store.
    """
    left, threshold = [header.made_by], header.threshold is not None
    while left:
        step = left.pop()
        if step is None or step.command not in {EvalConfig.COMMAND, FUSE}:
            continue
        if step.command == FUSE:
            left += [] if "temperature" in step.options | step.results else [m.made_by for m in step.inputs]
            continue
        left += [model.made_by for model in step.inputs[:1]]
        data = [own.sha256 for own in step.inputs[1:]]
        if threshold and "threshold_for" in step.options:
            threshold = False
            yield from ((THRESHOLD, own) for own in data[:1])
        if header.temperature != 1:
            yield from ((TEMPERATURE, own) for own in data[1 : len(data) - ("fitted" in step.options)])


def _otherwise(
    config: EvalConfig, threshold: Threshold, before: Header, after: Header, scores: Scores | None
) -> str | None:
    """Return what of that which a model's threshold was found with is another now, None if nothing is."""
    if after.temperature != before.temperature:
        return "another temperature needs its own"
    if scores is not None and threshold.score in FITTED:
        return "scores that are fitted anew need their own"
    return None if config.max_length is None else "another `--max-length` needs its own"


def _stored_header(
    config: EvalConfig, opened: OpenModel, row: Row, data: Mapping[str, Fingerprint]
) -> Header:
    header = opened.header
    scaled = row.values.get(TEMPERATURE)
    temperature = header.temperature if scaled is None else rounded(scaled.value)
    found = row.threshold
    step = make_step(
        config,
        family=opened.family,
        options={
            "temperature": config.given_temperature,
            "threshold_for": None if config.threshold_for is None else told(config.threshold_for),
            "delta": None if config.threshold_for is None else config.chance,
            "ood_score": None if config.threshold_for is None else config.scores[0],
            "fitted": config.fitted if config.fit is not None else None,
            "knn_k": config.neighbours if KNN in config.scores and config.fit is not None else None,
            "max_length": config.max_length,
        },
        inputs=[
            opened.as_input(),
            *(InputFile(name=data[n].reference, sha256=data[n].sha256) for n in _roles(config)),
        ],
        results={"temperature": temperature} | ({} if found is None else {"coverage": found.coverage}),
    )
    update = {"base": opened.base, "temperature": temperature, "threshold": found, "made_by": step}
    return header.model_copy(update=update)
