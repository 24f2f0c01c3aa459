"""Check one architecture of any library: forward pass, pruning and fusing."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hydractl.errors import HydraError, UnsupportedModelError
from hydractl.families.open_model import load_model, open_model
from hydractl.families.registry import family_of
from hydractl.families.tower import TOLERANCE, largest_difference
from hydractl.heads.masks import full_mask
from hydractl.manifest.header import Header, Kind
from hydractl.model_inputs import inputs_like
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.builders import Sample, perturbed  # The reference implementations are part of the tests.

if TYPE_CHECKING:
    from collections.abc import Callable

    from hydractl.families.base import ModelDescription
    from hydractl.model_inputs import Inputs

DEPTH = 2
VISIBLE = 1e-3
"""Smallest relative change of the logits by dropped heads. 100 times `TOLERANCE`, so that a wrong mask is
visible; with twice the value, more architectures fail as untestable."""
ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, KeyError, AssertionError, ImportError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An architecture, or one configuration of an architecture.

    Attributes:
        name: Name in messages.
        group: Line of the summary; empty for the family of the model.
        describe: Returns the model, in original or small size. An `UnsupportedModelError` counts as refused.
        shrink: Returns a small model if `describe` returns the original size; an error counts as failed.
        save: Writes the library's model to a folder, which is then opened and compared. None to skip this
            check.
    """

    name: str
    group: str = ""
    describe: Callable[[], ModelDescription]
    shrink: Callable[[], ModelDescription] | None = None
    save: Callable[[Any, Path], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one case.

    Attributes:
        name: Name of the case.
        group: Line of the summary.
        verdict: `supported`, `refused` or `failed`.
        reason: Reason of a refusal or failure, else empty.
        library: Difference to the library's logits, relative to max(1, largest logit) in fp32; None if not
            measured.
        masked: The same between the pruned and the masked model.
        members: The same between a hydra and its members.
    """

    name: str
    group: str
    verdict: str
    reason: str = ""
    library: float | None = None
    masked: float | None = None
    members: float | None = None


def examine(case: Case) -> Finding:
    """Check one case. Errors other than a refusal by hydractl count as failed."""
    group = case.group
    try:
        described = case.describe()
    except UnsupportedModelError as error:
        reason = error.message.partition(": ")[2] or error.message
        return Finding(name=case.name, group=group, verdict="refused", reason=reason)
    except (HydraError, *ERRORS) as error:
        return _failed(case.name, group, error)
    group = group or described.architecture.family
    try:
        small = described if case.shrink is None else case.shrink()
        library, masked, members = differences(small, case.save)
    except (HydraError, *ERRORS) as error:
        return _failed(case.name, group, error)
    good = max(library, masked, members) <= TOLERANCE
    return Finding(
        name=case.name,
        group=group,
        verdict="supported" if good else "failed",
        reason="" if good else f"differs by more than {TOLERANCE:g}",
        library=library,
        masked=masked,
        members=members,
    )


def _failed(name: str, group: str, error: Exception) -> Finding:
    reason = f"{type(error).__name__}: {error}"[:300]
    return Finding(name=name, group=group, verdict="failed", reason=reason)


@torch.inference_mode()
def differences(
    described: ModelDescription, save: Callable[[Any, Path], None] | None = None
) -> tuple[float, float, float]:
    """Measure the three differences of a model with random weights.

    Returns:
        Largest difference to the library, between pruned and masked, and between a hydra and its members.

    Raises:
        ValueError: If dropped heads do not change the logits, so that the check would be empty.
    """
    architecture = described.architecture
    header = Header(
        kind=Kind.BASE,
        architecture=architecture,
        masks=(full_mask(architecture.towers),),
        preprocess=described.preprocess,
        prompting=described.prompting,
    )
    family = family_of(architecture)
    base = Sample(header, perturbed(family.initialise(architecture, 0), seed=1))
    inputs = base.inputs()
    library = base.library()
    expected = library(inputs)
    from_library = largest_difference(base.model()(inputs), expected)
    if save is not None:
        from_library = max(from_library, _stored_difference(library, save, inputs, expected))
    heads = min(tower.num_heads for tower in architecture.towers.values())
    masked, members = 0.0, []
    for seed, keep in enumerate(((range(1, heads), ()), (range(heads - 1), (heads - 1,))), start=2):
        whole = base.masked(*keep).model()(inputs)
        if largest_difference(whole, expected) < VISIBLE:
            raise ValueError("dropping heads changes nothing: the check would be empty")
        pruned = base.pruned(*keep)
        masked = max(masked, largest_difference(pruned.model()(inputs), whole))
        members.append(pruned.tuned(seed))
    return from_library, masked, fused_difference(members, inputs)


def _stored_difference(
    library: Any,  # noqa: ANN401 - libraries are untyped
    save: Callable[[Any, Path], None],
    inputs: Inputs,
    expected: torch.Tensor,
) -> float:
    """Return the difference between a model opened from the library's folder and the library's logits."""
    with tempfile.TemporaryDirectory(prefix="hydractl-") as folder:
        save(library, Path(folder))
        model = load_model(open_model(folder))
        return largest_difference(model(inputs_like(inputs, expected)), expected)


def fused_difference(members: list[Any], inputs: Inputs) -> float:
    """Fuse members, and return the difference between the hydra's member logits and the members' own."""
    with tempfile.TemporaryDirectory(prefix="hydractl-") as folder:
        paths = [member.save(Path(folder) / f"{i}.st") for i, member in enumerate(members)]
        out = Path(folder) / "hydra.st"
        run_fuse(FuseConfig(models=tuple(map(str, paths)), out=out, mlp="keep", verify=False))
        found = load(out)(inputs).member_logits
        expected = torch.cat([member.model()(inputs).unsqueeze(0) for member in members])
    return largest_difference(found, expected)
