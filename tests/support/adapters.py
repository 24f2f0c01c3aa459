"""Adapters of training methods without a run."""

from __future__ import annotations

from types import SimpleNamespace

from hydractl.plugins import load
from hydractl.research.methods.options import TrainingOptions, method_reference


def adapter_of(method, header):
    """Return the adapter of a method for a model with a header."""
    options = TrainingOptions(method=method_reference(method))
    config = SimpleNamespace(model="base.st", seed=0, extensions=(options,), has_own_batches=False)
    return load(options.training)(config, header)
