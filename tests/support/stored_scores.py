"""Checkpoints with stored `energy+density`, fitted on noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

import hydractl
from hydractl.data.batches import Batch
from hydractl.families.registry import family_of
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.header import FittedScores
from hydractl.metrics.ood_scores import ENERGY_DENSITY, VERSION
from hydractl.prediction.feature_ood import FeatureExtractor, Scores, fit_scores
from hydractl.processes.distributed import ProcessGroup
from support.builders import sha

if TYPE_CHECKING:
    from hydractl.families.base import Family
    from hydractl.families.tower import Towers
    from hydractl.model_inputs import Inputs

COUNT = 24
"""Number of samples for fitting, and of held-out samples."""


def fitted(model: Towers, family: Family, fit: Inputs, val: Inputs) -> Scores:
    """Return `energy+density` of a model, fitted on inputs of shape (COUNT, ...)."""
    batches = [[Batch(inputs, torch.arange(COUNT))] for inputs in (fit, val)]
    return fit_scores(
        FeatureExtractor.of(model, family, name="model"), [ENERGY_DENSITY], (batches[0], torch.arange(COUNT) % 3), batches[1],
        name="model", team=ProcessGroup(),
    )  # fmt: skip


def store_scores(path: Path, fit: Inputs, val: Inputs, *, temperature: float = 2.0) -> None:
    """Store the fitted score in a checkpoint, then change its temperature."""
    model = hydractl.load(path)
    header, was = model.header, model.temperature
    model.scores = fitted(model, family_of(header.architecture), fit, val)
    stored = FittedScores(
        scores=(ENERGY_DENSITY,), data=Fingerprint(reference="noise", sha256=sha("noise")), temperature=was, version=VERSION
    )  # fmt: skip
    model.header = header.model_copy(update={"fitted": stored, "temperature": temperature})
    model.save(path, force=True)
