"""prune: choose which heads stay, and slice the others out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from hydractl.checkpoint import write_checkpoint
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.families.dummy_inputs import TOLERANCE, blank_inputs, largest_difference, probe_inputs
from hydractl.families.load import OpenModel, build_checked, check_tensors, open_model
from hydractl.families.registry import expected_specs
from hydractl.fusion.streaming import hollow, streamed_logits
from hydractl.heads.budget import total_heads
from hydractl.heads.masks import total_kept
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.head_mask import Mask
from hydractl.manifest.header import Header, Kind
from hydractl.metrics.cost import macs_of
from hydractl.output.locks import OutputLock
from hydractl.processes.distributed import ProcessGroup, require_one_process, start_team
from hydractl.progress import SILENT, Progress
from hydractl.runtime import torch_dtype
from hydractl.stages.prune.config import PruneConfig, mask_path
from hydractl.stages.prune.diverse import DiverseReport
from hydractl.stages.prune.masks import choose_masks
from hydractl.stages.prune.plan import Plan
from hydractl.stages.shared.finite import check_weights, warn_temperature
from hydractl.stages.shared.image_preprocessing import warn_of_folder
from hydractl.stages.shared.output_record import make_step
from hydractl.stages.shared.outputs import check_models, claim
from hydractl.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a model costs: parameters, multiply-accumulates for one sample, bytes of its tensors."""

    parameters: int
    macs: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedMember:
    """One member as it was written."""

    path: Path
    mask_path: Path | None
    heads_kept: int
    heads_removed: int
    size: Size
    largest_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What `prune` did.

    Attributes:
        model: The base.
        heads: How many it has.
        base: What it costs.
        members: What was written.
        found: What `--keep auto` chose, in words, one for each scores file; empty without it.
        diverse: What `diverse` chose; None with another strategy.
    """

    model: str
    heads: int
    base: Size
    members: tuple[PrunedMember, ...]
    found: tuple[str, ...] = ()
    diverse: DiverseReport | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return tuple(p for m in self.members for p in (m.path, m.mask_path) if p is not None)


def run_prune(config: PruneConfig, progress: Progress = SILENT) -> PruneReport:
    """Prune a base into one or several members.

    Memory holds one tensor at a time; while members are verified, the weights of one step. Several processes that a launcher
    started run the candidates of `diverse` together; the first of them writes, the same bytes as one alone.

    Raises:
        InputError: If an input cannot be used; nothing is written then.
        CheckFailed: If a member differs from the masked base by more than the tolerance.
        OutputExists: If an output is there already.
        UsageError: If there are several processes and nothing that they could share.
        Interrupted: If another process of the run ended before its time.
    """
    if config.diverse is None:
        require_one_process("prune")
    with (
        start_team() as team,
        claim(config, config.outputs() * team.leads, progress) as output_lock,
    ):
        return _run(config, team, output_lock, progress)


def _run(config: PruneConfig, team: ProcessGroup, output_lock: OutputLock, progress: Progress) -> PruneReport:
    opened = open_model(config.model, arch=config.arch)
    if opened.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{config.model}: is a {opened.header.kind}, but heads are counted in a base",
            hint="prune the base it came from",
        )
    specs = _specs(opened, config)
    diverse_config = config.diverse
    if team.leads:
        check_models(
            config.output_files(),
            output_lock,
            models=[opened],
            data=[] if diverse_config is None else [diverse_config.data, diverse_config.ood],
            files=[*config.scores, *config.masks, diverse_config.naming.file if diverse_config else None],
        )
    check_weights(opened)
    warn_temperature(opened, progress)
    warn_of_folder(opened, progress)
    chosen = choose_masks(config, opened, team, progress)
    plans = [
        Plan.of(opened, mask, specs, path=path, sources=sources)
        for mask, path, sources in zip(chosen.masks, config.outputs(), chosen.sources, strict=True)
    ]
    differences: Sequence[float | None] = [None] * len(plans)
    if config.verify and team.leads:
        differences = _verify(opened, plans, progress)
    members = [_described(plan, difference) for plan, difference in zip(plans, differences, strict=True)]
    if team.leads:
        _write(config, plans, output_lock, progress)
    team.broadcast("")  # the others end when it is there
    return PruneReport(
        model=config.model,
        heads=total_heads(opened.header.architecture.towers),
        base=_size(opened, opened.header.masks[0], opened.checkpoint.specs),
        members=tuple(members),
        found=chosen.remarks,
        diverse=chosen.diverse,
    )


def _write(config: PruneConfig, plans: Sequence[Plan], output_lock: OutputLock, progress: Progress) -> None:
    """Publish all members when all of them are written, or none."""
    with publish_models(output_lock) as begin:
        for i, plan in enumerate(plans):
            progress.step(f"Writing {plan.path}")
            header = _member_header(config, plan, member=i)
            write_checkpoint(begin(plan.path, header), plan.specs, plan.chunks, header=header)
            if beside := mask_path(plan.path):
                begin(beside, header).write(plan.mask.to_json().encode())


def _specs(opened: OpenModel, config: PruneConfig) -> dict[str, TensorSpec]:
    """Return the base's specs in the wanted dtype, after checking that they are those of its architecture."""
    specs = opened.checkpoint.specs
    check_tensors(config.model, specs, expected_specs(opened.family, opened.header))
    if config.dtype is None:
        return specs
    torch_dtype(config.dtype)
    name, exact = config.dtype.upper().replace("FP", "F"), opened.family.exact
    return {
        k: TensorSpec("F32" if k in exact else name, s.shape) if s.is_floating else s
        for k, s in specs.items()
    }


def _verify(opened: OpenModel, plans: Sequence[Plan], progress: Progress) -> list[float | None]:
    """Compare each member as it is stored with the masked base in the same dtype, in fp32: slicing rounds nothing."""
    progress.step(
        f"Checking that {len(plans)} pruned {'member equals' if len(plans) == 1 else 'members equal'} the masked base"
    )
    header, family = opened.header, opened.family
    base_model = build_checked(family, header, hollow(opened.checkpoint.specs), where=opened.reference)
    inputs = probe_inputs(header)
    differences: list[float | None] = []
    for i, plan in enumerate(plans):

        def sliced(name: str, plan: Plan = plan) -> list[torch.Tensor]:
            return [plan.tensor(name)]

        def zeroed(name: str, plan: Plan = plan) -> list[torch.Tensor]:
            return [plan.masked(name)]

        pruned_header = header.model_copy(update={"kind": Kind.MEMBER, "masks": (plan.mask.towers,)})
        pruned = build_checked(family, pruned_header, hollow(plan.specs), where=f"member {i}")
        difference = largest_difference(
            streamed_logits(pruned, sliced, inputs), streamed_logits(base_model, zeroed, inputs)
        )
        if not difference <= TOLERANCE:
            raise CheckFailed(
                f"member {i} differs from the masked base by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
                hint="are there weights so large that outputs overflow? `--no-verify` skips the check",
            )
        differences.append(difference)
    return differences


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
            "made_by": step,
        }
    )


def _described(plan: Plan, difference: float | None) -> PrunedMember:
    """Count what was removed and compare with what the mask and the shapes say."""
    mask = plan.mask.towers
    kept_heads = total_kept(mask)
    return PrunedMember(
        path=plan.path,
        mask_path=mask_path(plan.path),
        heads_kept=kept_heads,
        heads_removed=total_heads(mask) - kept_heads,
        size=_size(plan.opened, mask, plan.specs),
        largest_difference=difference,
    )


def _size(opened: OpenModel, mask: Mask, specs: Mapping[str, TensorSpec]) -> Size:
    """Count parameters and bytes from the shapes, and MACs by running the model without data on the meta device."""
    model = opened.family.build(opened.header.architecture, mask, None)
    parameters = sum(p.numel() for p in model.parameters())
    stored = sum(prod(spec.shape) for spec in specs.values())
    model_elements = sum(tensor.numel() for tensor in model.library_state().values())
    if stored != model_elements:
        raise CheckpointError(
            f"{opened.reference}: shapes promise {stored} elements, the model has {model_elements}"
        )
    model.answer.expect(1)  # a zero-shot model costs what its vision side costs
    inputs = blank_inputs(opened.header.preprocess, 1, device="meta")
    return Size(
        parameters=parameters,
        macs=macs_of(model, inputs),
        size_bytes=sum(s.size_bytes for s in specs.values()),
    )
