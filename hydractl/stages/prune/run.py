"""prune: selects heads and slices the others out of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from hydractl import progress
from hydractl.checkpoint import write_checkpoint
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.families.finite import check_weights, warn_temperature
from hydractl.families.load import OpenModel, build_checked, check_tensors, open_model
from hydractl.families.registry import expected_specs
from hydractl.families.tower import TOLERANCE, Model, blank_inputs, largest_difference, probe_inputs
from hydractl.fusion.build import hollow, streamed_logits
from hydractl.fusion.plan import pruned_spec
from hydractl.heads.budget import total_heads
from hydractl.heads.masks import total_kept
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.head_mask import Mask
from hydractl.manifest.header import Header, Kind, samples_of
from hydractl.messages import quoted
from hydractl.metrics.cost import macs_of
from hydractl.model_inputs import Inputs
from hydractl.output.publish import OutputLock
from hydractl.prediction.open_inputs import warn_of_folder
from hydractl.processes.distributed import require_one_process, start_team
from hydractl.progress import stage
from hydractl.provenance.outputs import check_models, claim
from hydractl.provenance.up_to_date import make_step
from hydractl.runtime import torch_dtype
from hydractl.stages.prune.config import PruneConfig, mask_path
from hydractl.stages.prune.diverse import DiverseReport
from hydractl.stages.prune.masks import Chosen, Plan, choose_masks
from hydractl.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Cost of a model: parameters, multiply-accumulates per sample, bytes of its tensors."""

    parameters: int
    macs: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedMember:
    """A written member."""

    path: Path
    mask_path: Path | None
    heads_kept: int
    heads_removed: int
    size: Size
    largest_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """Result of `prune`.

    Attributes:
        model: The base.
        heads: Number of heads of the base.
        base: Cost of the base.
        members: Written members.
        found: Description of what `--keep auto` selected, one per scores file; empty without it.
        diverse: What `diverse` selected; None with another strategy.
    """

    model: str
    heads: int
    base: Size
    members: tuple[PrunedMember, ...]
    found: tuple[str, ...] = ()
    diverse: DiverseReport | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return tuple(p for m in self.members for p in (m.path, m.mask_path) if p is not None)


@stage
def run_prune(config: PruneConfig) -> PruneReport:
    """Prune a base to one or more members.

    Memory holds one tensor at a time; for verification, the weights of one step. Processes of a launcher share the
    candidates of `diverse`; the first writes, with the same bytes as a single process.

    Raises:
        InputError: If an input cannot be used; nothing is written.
        CheckFailed: If a member differs from the masked base by more than the tolerance.
        OutputExists: If an output already exists.
        UsageError: If there are several processes but no shared work.
        Interrupted: If another process of the run ended unexpectedly.
    """
    if config.diverse is None:
        require_one_process("prune")
    with (
        start_team() as team,
        claim(config, config.outputs() * team.leads) as output_lock,
    ):
        opened = _open_base(config, output_lock if team.leads else None)
        choice = choose_masks(config, opened, team)
        if config.diverse is None:  # `diverse` checks them before it runs candidates
            check_weights(opened)
        plans = _plan_members(config, opened, choice)
        for plan in plans:
            if empty := [name for name, tower in plan.mask.towers.items() if not any(tower.keep)]:
                progress.warn(f"{plan.path}: no head remains in {quoted(empty)}")
        verifies = config.verify and team.leads
        differences = _verify(opened, plans) if verifies else [None] * len(plans)
        members = [
            PrunedMember(
                path=plan.path,
                mask_path=mask_path(plan.path),
                heads_kept=total_kept(plan.mask.towers),
                heads_removed=total_heads(plan.mask.towers) - total_kept(plan.mask.towers),
                size=_size(opened, plan.mask.towers, plan.specs),
                largest_difference=difference,
            )
            for plan, difference in zip(plans, differences, strict=True)
        ]
        if team.leads:
            _write(config, plans, output_lock)
        team.broadcast("")  # the others end when it is there
    return PruneReport(
        model=config.model,
        heads=total_heads(opened.header.architecture.towers),
        base=_size(opened, opened.header.masks[0], opened.checkpoint.specs),
        members=tuple(members),
        found=choice.remarks,
        diverse=choice.diverse,
    )


def _open_base(config: PruneConfig, output_lock: OutputLock | None) -> OpenModel:
    """Return the base; who writes, and has the lock, checks that no output is something that is read."""
    opened = open_model(config.model, arch=config.arch)
    if opened.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{config.model}: is a {opened.header.kind}, but `prune` needs a base",
            hint="prune its base",
        )
    check_tensors(config.model, opened.checkpoint.specs, expected_specs(opened.family, opened.header))
    if config.dtype is not None:
        torch_dtype(config.dtype)  # refuses one that there is not
    if output_lock is not None:
        diverse = config.diverse
        check_models(
            config.output_files(),
            output_lock,
            models=[opened],
            data=[diverse.data, diverse.ood] if diverse else [],
            files=[*config.scores, *config.masks, diverse.naming.file if diverse else None],
        )
    warn_temperature(opened)
    warn_of_folder(opened)
    return opened


def _plan_members(config: PruneConfig, opened: OpenModel, choice: Chosen) -> list[Plan]:
    """Return what is written of the base for each mask, in the dtype that is wanted."""
    specs, family, architecture = opened.checkpoint.specs, opened.family, opened.header.architecture
    if config.dtype is not None:
        name, exact = config.dtype.upper().replace("FP", "F"), family.exact
        specs = {
            k: TensorSpec("F32" if k in exact else name, s.shape) if s.is_floating else s
            for k, s in specs.items()
        }
    return [
        Plan(
            opened=opened,
            mask=mask,
            path=path,
            sources=sources,
            specs={n: pruned_spec(family, architecture, mask.towers, n, spec) for n, spec in specs.items()},
        )
        for mask, path, sources in zip(choice.masks, config.outputs(), choice.sources, strict=True)
    ]


def _verify(opened: OpenModel, plans: Sequence[Plan]) -> Sequence[float | None]:
    """Compare each member as it is stored with the masked base in the same dtype, in fp32: slicing rounds nothing."""
    progress.step(
        f"Checking that {len(plans)} pruned {'member equals' if len(plans) == 1 else 'members equal'} the masked base"
    )
    base_model = build_checked(
        opened.family, opened.header, hollow(opened.checkpoint.specs), where=opened.reference
    )
    inputs = probe_inputs(opened.header)
    return [_verify_member(base_model, plan, inputs, where=f"member {i}") for i, plan in enumerate(plans)]


def _verify_member(base_model: Model, plan: Plan, inputs: Inputs, *, where: str) -> float:
    """Return how far a member is from the masked base."""
    header = plan.opened.header.model_copy(update={"kind": Kind.MEMBER, "masks": (plan.mask.towers,)})
    pruned = build_checked(plan.opened.family, header, hollow(plan.specs), where=where)
    difference = largest_difference(
        streamed_logits(pruned, lambda name: [plan.tensor(name)], inputs),
        streamed_logits(base_model, lambda name: [plan.masked(name)], inputs),
    )
    if not difference <= TOLERANCE:
        raise CheckFailed(
            f"{where} differs from the masked base by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="very large weights may overflow; `--no-verify` skips the check",
        )
    return difference


def _write(config: PruneConfig, plans: Sequence[Plan], output_lock: OutputLock) -> None:
    """Publish all members when all of them are written, or none."""
    with publish_models(output_lock) as begin:
        for i, plan in enumerate(plans):
            progress.step(f"Writing {plan.path}")
            header = _member_header(config, plan, member=i)
            write_checkpoint(begin(plan.path, header), plan.specs, plan.chunks, header=header)
            if beside := mask_path(plan.path):
                begin(beside, header).write(plan.mask.to_json().encode())


def _member_header(config: PruneConfig, plan: Plan, *, member: int) -> Header:
    opened, mask = plan.opened, plan.mask
    origin = None if config.masks else mask.origin  # what a mask file says of itself may have been edited
    step = make_step(
        config,
        family=opened.family,
        options={
            "strategy": origin.strategy if origin else "mask",
            "dtype": config.dtype,
            **(dict(origin.budget.items()) if origin else {}),
            "member": member,
        },
        inputs=[opened.as_input(), *plan.sources],
        seed=origin.seed if origin else None,
        results={"verified": config.verify, "tolerance": TOLERANCE} if config.verify else {},
    )
    return opened.header.of_other_weights(
        {
            "kind": Kind.MEMBER,
            "masks": (mask.towers,),
            "base": opened.header.base or opened.checkpoint.digest,
            "samples": samples_of((), opened.header, mask),
            "made_by": step,
        }
    )


def _size(opened: OpenModel, mask: Mask, specs: Mapping[str, TensorSpec]) -> Size:
    """Count parameters and bytes from the shapes, and MACs by running the model without data on the meta device."""
    model = opened.family.build(opened.header.architecture, mask, None)
    parameters = sum(p.numel() for p in model.parameters())
    stored = sum(prod(spec.shape) for spec in specs.values())
    model_elements = sum(tensor.numel() for tensor in model.library_state().values())
    if stored != model_elements:
        raise CheckpointError(
            f"{opened.reference}: the shapes of its tensors give {stored} elements, but the model has {model_elements}"
        )
    model.answer.expect(1)  # a zero-shot model costs what its vision side costs
    return Size(
        parameters=parameters,
        macs=macs_of(model, blank_inputs(opened.header.preprocess, 1, device="meta")),
        size_bytes=sum(s.size_bytes for s in specs.values()),
    )
