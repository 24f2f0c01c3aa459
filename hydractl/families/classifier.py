"""A classifier made anew: for a model that has none, or one for other classes, or one that reads something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.checkpoint import Checkpoint
from hydractl.families.base import DEFAULT_POOLING, Family, place_of, with_pooling
from hydractl.families.load import OpenModel
from hydractl.families.model_folder import num_classes_of
from hydractl.families.registry import expected_specs
from hydractl.manifest.header import Architecture
from hydractl.model_source import parse_arch
from hydractl.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch

CLASSES = {"timm": "num_classes", "transformers": "num_labels", "open_clip_torch": "num_classes"}
"""Option name of the number of classes in each library."""


def with_classifier(
    opened: OpenModel,
    number: int,
    *,
    labels: tuple[str, ...] = (),
    seed: int = 0,
    head_seed: int | None = None,
    pooling: str = DEFAULT_POOLING,
) -> OpenModel:
    """Return a base or a member with a classifier drawn by its library's own rules, and a pooler where it lacks one.

    Args:
        opened: The model; no other tensor of it changes, but that random weights are drawn anew for their classifier.
        number: How many classes, at least 1.
        labels: Their names, one each, or none.
        seed: Of random weights, and of the classifier where `head_seed` is None.
        head_seed: Of the classifier.
        pooling: What it reads, one of `POOLINGS`.
    """
    family, before = opened.family, opened.header.architecture
    architecture = with_pooling(resized(before, number, family.library), pooling)
    header = opened.header.model_copy(update={"architecture": architecture, "labels": labels})
    own_seed = seed if head_seed is None else head_seed
    if opened.is_random:
        initial_state = family.initialise(architecture, own_seed)
        random_state = initial_state if head_seed is None else family.initialise(architecture, seed)
        state = {
            n: initial_state[n] if place_of(family, n).part == "head" else t for n, t in random_state.items()
        }
        return replace(opened, checkpoint=Checkpoint.of(state, header=header), header=header)
    expected, stored = expected_specs(family, header), opened.checkpoint.specs
    kept_specs = {n: s for n, s in stored.items() if n in expected and place_of(family, n).part != "head"}
    fresh = drawn_for(family, architecture, expected, kept_specs, seed=own_seed)
    checkpoint = replace(opened.checkpoint, specs=kept_specs).joined(Checkpoint.of(fresh))
    return replace(opened, checkpoint=checkpoint, header=header, lacks="")


def drawn_for(
    family: Family,
    architecture: Architecture,
    expected: Iterable[str],
    kept_specs: Mapping[str, TensorSpec],
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """Return the tensors that a model lacks, drawn by its library's own rules, in the dtype of the largest that it has.

    Args:
        family: Its family.
        architecture: What it is to be.
        expected: The names of all its tensors.
        kept_specs: Those that it has, at least one.
        seed: Of the drawing.
    """
    initial_state = family.initialise(architecture, seed)
    dtype = max(kept_specs.values(), key=lambda spec: spec.size_bytes).torch_dtype
    return {name: initial_state[name].to(dtype) for name in expected if name not in kept_specs}


def resized(architecture: Architecture, number: int, library: str) -> Architecture:
    """Return an architecture with another number of logits, without what its configuration says of the former classifier.

    A single logit tells two classes apart, whether an input could have several or not.
    """
    config = {k: v for k, v in architecture.config.items() if k != "problem_type"} | {
        CLASSES[library]: number
    }
    several = architecture.problem_type if number > 1 else None
    return architecture.model_copy(
        update={"config": config, "num_classes": num_classes_of(number), "problem_type": several}
    )


def asked_number(opened: OpenModel) -> int | None:
    """Return how many classes an `arch:` reference asks for, None where it does not say."""
    if not opened.is_random:
        return None
    number = parse_arch(opened.reference.removeprefix("arch:"))[1].get(CLASSES[opened.family.library])
    return num_classes_of(number) if isinstance(number, int) else None
