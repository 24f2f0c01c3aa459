"""Adapters of training methods without a training run."""

from __future__ import annotations

from hydractl.plugins import load
from hydractl.research.methods.options import TrainingOptions, method_reference
from hydractl.training.recipe import Recipe


def adapter_of(method, header):
    options = TrainingOptions(method=method_reference(method))
    return load(options.training)(
        model="base.st", header=header, recipe=Recipe(), seed=0, own_batches=False, options=options
    )
