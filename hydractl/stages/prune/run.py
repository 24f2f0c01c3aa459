"""prune: select heads and remove the others from the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydractl import progress
from hydractl.checkpoint import write_checkpoint
from hydractl.errors import CheckpointError
from hydractl.families.finite import check_finite_weights, warn_temperature
from hydractl.families.open_model import OpenModel, check_tensors, open_model
from hydractl.families.registry import expected_specs
from hydractl.families.tower import TOLERANCE
from hydractl.heads.budget import total_heads
from hydractl.heads.masks import Sampling, total_kept
from hydractl.manifest.head_mask import HeadImportance, Mask
from hydractl.manifest.header import Header, Kind, samples_of
from hydractl.messages import quoted
from hydractl.prediction.open_inputs import warn_of_folder
from hydractl.prediction.run_models import Execution
from hydractl.processes.distributed import ProcessGroup, require_one_process, start_team
from hydractl.progress import stage
from hydractl.provenance.output import Output, make_step
from hydractl.pruning.diverse import DiverseChoice, DiverseReport, choose, evaluator_for, open_validation
from hydractl.pruning.masks import SelectedMasks, choose_masks, read_importance, read_masks
from hydractl.pruning.members import Member, Size, size_of, stored_specs, verify_members
from hydractl.pruning.strategies import Strategy
from hydractl.runtime import torch_dtype
from hydractl.stages.prune.config import NEEDS_POOL, PruneConfig, mask_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedMember:
    """A written member.

    Attributes:
        path: The member.
        mask_path: File of its head mask; None if the member is a stream or a folder.
        heads_kept: Number of remaining heads.
        heads_removed: Number of removed heads.
        size: Cost of the member.
        largest_difference: Largest difference of logits from the masked base; None without verification.
    """

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
        found: Heads selected by `--keep-heads auto`, a sentence for each scores file; empty without this option.
        diverse: Report of the strategy `diverse`; None for other strategies.
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

    Memory contains a single tensor at a time; for verification, the weights of a single step. Processes of a
    launcher share the candidates of `diverse`. The first process writes the same bytes as a single process.

    Raises:
        InputError: If an input cannot be used. Nothing is written.
        CheckFailed: If a member differs from the masked base by more than the tolerance.
        OutputExists: If an output already exists.
        UsageError: If several processes were started, but there is no work to share.
        Interrupted: If another process of the run ended unexpectedly.
    """
    if config.diverse is None:
        require_one_process("prune")
    with start_team() as team, Output.claim(config, config.outputs(), writes=team.leads) as output:
        model_file = _open_base(config, output)
        choice = read_masks(config.masks, model_file) if config.masks else _choose(config, model_file, team)
        if config.diverse is None:  # `diverse` already checks weights before it runs candidates
            check_finite_weights(model_file)
        specs = model_file.checkpoint.specs
        members = [
            Member(
                model_file=model_file,
                mask=mask,
                path=path,
                sources=sources,
                specs=stored_specs(model_file, mask.towers, specs, config.dtype),
            )
            for mask, path, sources in zip(choice.masks, config.outputs(), choice.sources, strict=True)
        ]
        for member in members:
            if empty := [name for name, tower in member.mask.towers.items() if not any(tower.keep)]:
                progress.warn(f"{member.path}: no head remains in {quoted(empty)}")
        differences: Sequence[float | None] = [None] * len(members)
        if config.verify and team.leads:
            named = "member equals" if len(members) == 1 else "members equal"
            progress.step(f"Checking that {len(members)} pruned {named} the masked base")
            differences = verify_members(members)
        written = [
            PrunedMember(
                path=member.path,
                mask_path=mask_path(member.path),
                heads_kept=total_kept(member.mask.towers),
                heads_removed=total_heads(member.mask.towers) - total_kept(member.mask.towers),
                size=size_of(model_file, member.mask.towers, member.specs),
                largest_difference=difference,
            )
            for member, difference in zip(members, differences, strict=True)
        ]
        if team.leads:
            _write(config, members, output)
        team.broadcast("")  # the other processes end only after the outputs exist
    return PruneReport(
        model=config.model,
        heads=total_heads(model_file.header.architecture.towers),
        base=size_of(model_file, model_file.header.masks[0], specs),
        members=tuple(written),
        found=choice.remarks,
        diverse=choice.diverse,
    )


def _open_base(config: PruneConfig, output: Output) -> OpenModel:
    model_file = open_model(config.model, arch=config.arch)
    if model_file.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{config.model}: is a {model_file.header.kind}, but `prune` needs a base",
            hint="prune its base",
        )
    check_tensors(
        config.model, model_file.checkpoint.specs, expected_specs(model_file.family, model_file.header)
    )
    if config.dtype is not None:
        torch_dtype(config.dtype)  # raises an error for unknown names
    diverse = config.diverse
    output.check(
        *config.output_files(),
        models=[model_file],
        data=[diverse.data, diverse.ood] if diverse else [],
        files=[*config.scores, *config.masks, diverse.naming.file if diverse else None],
        folders=True,
    )
    warn_temperature(model_file)
    warn_of_folder(model_file)
    return model_file


def _choose(config: PruneConfig, model_file: OpenModel, team: ProcessGroup) -> SelectedMasks:
    """Select the heads of all members by scores or at random."""
    scores = [(path, read_importance(path, model_file)) for path in config.scores]
    diverse, budget, count = config.diverse, config.budget, config.members

    def compare(scores_of_file: HeadImportance, draws: Sequence[Mask]) -> DiverseChoice:
        if diverse is None:
            raise ValueError("`diverse` requires data")
        execution = Execution(
            batch_size=diverse.batch_size,
            workers=diverse.num_workers,
            max_length=diverse.max_length,
            device=diverse.device,
            team=team,
        )
        data = open_validation(
            model_file,
            {"id": diverse.data, "ood": diverse.ood},
            evaluator_for(scores_of_file, has_ood=diverse.ood is not None),
            naming=diverse.naming,
            candidates=len(draws),
            execution=execution,
        )
        return choose(draws, data, members=config.members, diversity=diverse.diversity)

    return choose_masks(
        model_file,
        scores,
        _strategy(config, [scores_of_file for _, scores_of_file in scores]),
        budget=budget and replace(budget, whole_groups=config.whole_groups),
        sampling=Sampling(
            pool=config.pool,
            members=diverse.candidates if diverse else count,
            seed=config.seed,
            diverge_from=config.trunk,
        ),
        compare=compare if diverse else None,
    )


def _strategy(config: PruneConfig, scores: Sequence[HeadImportance]) -> Strategy:
    """Return the given strategy, or the strategy implied by other options and the scores."""
    if config.strategy is not None:
        return config.strategy
    if len(scores) > 1:
        return Strategy.OBJECTIVES
    if config.pool is not None:
        return Strategy.SAMPLE
    if config.auto and scores[0].clusters is not None:
        return Strategy.CLUSTERS
    if config.members > 1:
        raise NEEDS_POOL.refusal(config, "members", "needs")
    return Strategy.BEST


def _write(config: PruneConfig, members: Sequence[Member], output: Output) -> None:
    with output.publish() as begin:
        for i, member in enumerate(members):
            progress.step(f"Writing {member.path}")
            header = _header(config, member, number=i)
            write_checkpoint(begin(member.path, header), member.specs, member.chunks, header=header)
            if beside := mask_path(member.path):
                begin(beside).write(member.mask.to_json().encode())


def _header(config: PruneConfig, member: Member, *, number: int) -> Header:
    model_file, mask = member.model_file, member.mask
    # the origin in a mask file may have been edited, so it is not copied
    origin = None if config.masks else mask.origin
    step = make_step(
        config,
        family=model_file.family,
        options={
            "strategy": origin.strategy if origin else "mask",
            "dtype": config.dtype,
            **(dict(origin.budget.items()) if origin else {}),
            "member": number,
        },
        inputs=[model_file.as_input(), *member.sources],
        seed=origin.seed if origin else None,
        results={"verified": config.verify, "tolerance": TOLERANCE} if config.verify else {},
    )
    return model_file.header.of_other_weights(
        {
            "kind": Kind.MEMBER,
            "masks": (mask.towers,),
            "base": model_file.header.base or model_file.checkpoint.digest,
            "samples": samples_of((), model_file.header, mask),
            "made_by": step,
        }
    )
