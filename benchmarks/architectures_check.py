"""What is checked of one architecture, whichever library it is of."""

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
from support.builders import Sample, perturbed  # the oracles live with the tests

if TYPE_CHECKING:
    from collections.abc import Callable

    from hydractl.families.base import Described
    from hydractl.model_inputs import Inputs

DEPTH = 2
VISIBLE = 1e-3
ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, KeyError, AssertionError, ImportError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One architecture, or one configuration of it.

    Attributes:
        name: What to call it.
        group: Which line it is counted in; empty for that of the family that reads it.
        describe: Return it as it is, or shrunk; an `UnsupportedModelError` is a refusal.
        shrink: Return it shrunk, where `describe` does not; it must succeed.
        save: Write a sample's library model to a folder as the library does, where the model is then to be opened from.
    """

    name: str
    group: str = ""
    describe: Callable[[], Described]
    shrink: Callable[[], Described] | None = None
    save: Callable[[Any, Path], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of one case: `supported`, `refused` (reason) or `failed` (reason).

    The differences are relative to max(1, largest logit) in fp32.
    """

    name: str
    group: str
    verdict: str
    reason: str = ""
    library: float | None = None
    masked: float | None = None
    members: float | None = None


def examine(case: Case) -> Finding:
    """Decide one case; an error that is not a refusal of ours is a failure."""
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
    described: Described, save: Callable[[Any, Path], None] | None = None
) -> tuple[float, float, float]:
    """Return how far the model is from the library's, pruned from masked, and a hydra from its members.

    Raises:
        ValueError: If a check would be empty: dropped heads change nothing.
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
    """Return how far a model opened from the library's folder is from the library's."""
    with tempfile.TemporaryDirectory(prefix="hydractl-") as folder:
        save(library, Path(folder))
        model = load_model(open_model(folder))
        return largest_difference(model(inputs_like(inputs, expected)), expected)


def fused_difference(members: list[Any], inputs: Inputs) -> float:
    """Fuse members through files, and return how far the hydra's member logits are from their own."""
    with tempfile.TemporaryDirectory(prefix="hydractl-") as folder:
        paths = [member.save(Path(folder) / f"{i}.st") for i, member in enumerate(members)]
        out = Path(folder) / "hydra.st"
        run_fuse(FuseConfig(models=tuple(map(str, paths)), out=out, mlp="keep", verify=False))
        found = load(out)(inputs).member_logits
        expected = torch.cat([member.model()(inputs).unsqueeze(0) for member in members])
    return largest_difference(found, expected)
