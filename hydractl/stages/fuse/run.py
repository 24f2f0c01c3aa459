"""fuse: fuses M members into a hydra, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hydractl.checkpoint import digest_together, write_checkpoint
from hydractl.errors import CheckFailed
from hydractl.families.load import OpenModel, open_model
from hydractl.families.tower import TOLERANCE, largest_difference, probe_inputs
from hydractl.fusion.build import hydra_logits, member_logits
from hydractl.fusion.plan import Fusion
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.header import Fate, Header
from hydractl.manifest.temperature import Temperature, TemperatureFields
from hydractl.messages import counted
from hydractl.metrics.per_sample import ensemble_log_probs
from hydractl.output.publish import OutputLock, is_stream
from hydractl.processes.distributed import ProcessGroup, require_one_process, start_team
from hydractl.progress import SILENT, Progress
from hydractl.stages.fuse.compatibility import check_members, merge_trunk_of, starting_temperature
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.result import UNKNOWN_DIGEST, Measured, Outcome, make_header
from hydractl.stages.shared.finite import check_weights, warn_refusing
from hydractl.stages.shared.outputs import check_models, claim
from hydractl.stages.shared.zero_shot_classes import with_classes
from hydractl.tensor_spec import spec_of, tensor_bytes

if TYPE_CHECKING:
    from hydractl.stages.fuse.fit_scores import ScoreFitter
    from hydractl.stages.fuse.result import MergeEvaluator

MAX_SHOWN = 3
LATER = "members are still identical: the hydra predicts like one model until `finetune` trains it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Difference between a hydra and its members on the same random batch.

    Attributes:
        logits: Largest difference of a member's logits, in units of max(1, largest logit).
        probabilities: Largest difference of the ensemble's probabilities.
    """

    logits: float
    probabilities: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseReport(TemperatureFields):
    """Result of `fuse`.

    Attributes:
        path: Output file.
        members: Number of members.
        layers: Number of blocks over all towers.
        trunk: Number of blocks that are computed once.
        merge_trunk: Block of each tower before which tensors that differ are averaged.
        tensors: Number of tensors with each fate.
        stored_bytes: Their size in bytes.
        members_bytes: Size of the separate members in bytes.
        gap: Difference from the members on a random batch; None without verification.
        measured: Effect of merging on labelled data; None without data.
        ood_scores: Names of stored OOD scores.
        ood_scores_bytes: Their size in bytes.
    """

    path: Path
    members: int
    layers: int
    trunk: int
    merge_trunk: int
    tensors: dict[str, int]
    stored_bytes: dict[str, int]
    members_bytes: int
    gap: Gap | None
    measured: Measured | None
    ood_scores: tuple[str, ...]
    ood_scores_bytes: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return (self.path,)


def run_fuse(config: FuseConfig, progress: Progress = SILENT) -> FuseReport:
    """Fuse members into a hydra.

    Memory holds one tensor of every member at a time; for verification, one block of every member; for measurement, a
    hydra. Processes of a launcher measure together; the first writes.

    Raises:
        CheckpointError: If the members do not fit together; checked before their tensors are read.
        CheckFailed: If nothing was averaged but the hydra differs from its members, or every merge costs too much.
        OutputExists: If the output already exists.
        UsageError: If there are several processes but no shared work.
        Interrupted: If another process of the run ended unexpectedly.
    """
    if not config.measuring.refs:
        require_one_process("fuse")
    with (
        start_team() as team,
        claim(config, [config.out] * team.leads, progress) as output_lock,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        members = _open_members(config, output_lock if team.leads else None, progress)
        temperature = starting_temperature(config.measuring, members)
        members = _name_classes(config, members, progress)
        evaluator = _open_evaluator(config, members, temperature, team, progress)
        members = evaluator.members if evaluator else members
        fitter = _open_fitter(config, members, team, progress)
        # The lineage wants the members' digests. A file is written while they are computed, and its header last;
        # a pipe has to wait for them.
        hashing = pool.submit(digest_together, [m.checkpoint for m in members])
        fusion = _compare(config, members, progress)
        outcome = evaluator.choose(fusion) if evaluator else Outcome(fusion=fusion, temperature=temperature)
        outcome = fitter.add(outcome) if fitter else outcome
        _warn_of_no_effect(config, outcome.fusion, progress)
        if config.verify or is_stream(config.out):
            hashing.result()
        gap = _verify(config, members, outcome, progress) if config.verify and team.leads else None
        if team.leads:
            _write(config, members, outcome, hashing, output_lock, progress)
        team.broadcast("")  # the others end when it is there
    _warn_of_copies(members, outcome.fusion, progress)
    return _report(config, members, outcome, gap)


def _open_members(
    config: FuseConfig, output_lock: OutputLock | None, progress: Progress
) -> Sequence[OpenModel]:
    """Return members that belong together; who writes, and has the lock, checks that their files stay as they are."""
    members = [open_model(model) for model in config.models]
    if output_lock is not None:
        check_models(
            [config.out],
            output_lock,
            models=members,
            data=config.measuring.refs,
            files=[config.naming.file],
        )
    check_members(config, members)
    warn_refusing(members, progress)
    return members


def _name_classes(
    config: FuseConfig, members: Sequence[OpenModel], progress: Progress
) -> Sequence[OpenModel]:
    """Return zero-shot members that store the classes which are named, any others as they are."""
    classes = config.naming.classes(members[0])
    if classes is not None:
        progress.step(f"Encoding the names of {counted(len(classes.names), 'class', 'classes')}")
        return [with_classes(m, classes) for m in members]
    if members[0].header.prompting is not None:
        progress.warn(
            "the hydra has no class names yet: fuse with `--classes`, or give `--classes` to `eval`"
        )
    return members


def _open_evaluator(
    config: FuseConfig,
    members: Sequence[OpenModel],
    temperature: Temperature,
    team: ProcessGroup,
    progress: Progress,
) -> MergeEvaluator | None:
    """Return what measures hydras, if there are data to do it on."""
    if not config.measuring.labelled:
        return None
    from hydractl.stages.fuse.result import MergeEvaluator  # noqa: PLC0415 - runs models on data: not needed to fuse

    return MergeEvaluator(config, members, temperature, team, progress)


def _open_fitter(
    config: FuseConfig, members: Sequence[OpenModel], team: ProcessGroup, progress: Progress
) -> ScoreFitter | None:
    """Return what fits the hydra's OOD score, if there are data to do it on."""
    fit, val = config.measuring.fit, config.measuring.val
    if fit is None or val is None:
        return None
    from hydractl.stages.fuse.fit_scores import ScoreFitter  # noqa: PLC0415 - as above

    return ScoreFitter.open(config, members, (fit, val), team, progress)


def _compare(config: FuseConfig, members: Sequence[OpenModel], progress: Progress) -> Fusion:
    """Return what becomes of each tensor; refuse weights that are not numbers."""
    progress.step(f"Comparing {counted(len(members), 'member')}")
    if config.auto and not merge_trunk_of(config, members):
        progress.warn("members keep different heads in block 0, so no block is merged")
    fusion = Fusion(
        members,
        mlp=config.mlps,
        merge_trunk=merge_trunk_of(config, members),
        own_from=config.own_from,
    )
    check_weights(members[0])
    for member in members[1:]:  # of tensors that are equal in all members one is read
        check_weights(member, [name for name, identical in fusion.same.items() if not identical])
    return fusion


def _warn_of_no_effect(config: FuseConfig, fusion: Fusion, progress: Progress) -> None:
    """Say what of a fusion may not be what was meant."""
    averages = Fate.MERGED in fusion.fates.values()
    if reason := _sameness(fusion, count=len(config.models)):
        progress.warn(reason)
    elif config.merge_trunk == 0 and config.mlp is None:
        progress.warn(
            "`--merge-trunk 0` averages nothing, not even MLPs: every tensor that differs is stored "
            "for each member; leave it out or add `--mlp merge` to average MLPs"
        )
    elif config.merge_trunk and not config.auto and not averages:
        progress.warn(
            f"`--merge-trunk {config.merge_trunk}` averages nothing, because members are equal before that block"
        )
    elif config.mlp == "merge" and not averages:
        before = "" if config.own_from is None else f" before block {config.own_from}"
        progress.warn(f"`--mlp merge` averages nothing, because MLPs are equal{before}")
    if fusion.own_from is not None and not fusion.owns_more:
        progress.warn(
            f"`--own-from {fusion.own_from}` has no effect: all tensors from that block on differ between members anyway"
        )


def _sameness(fusion: Fusion, *, count: int) -> str | None:
    """Return why a hydra answers as one model does, or None if its members may disagree."""
    fates = set(fusion.fates.values())
    if count == 1:
        return "there is only one member: the hydra predicts like one model"
    if Fate.GROUPED in fates:
        return LATER if all(fusion.same.values()) else None
    if Fate.MERGED in fates:
        averaged, instead = (
            ("MLPs", "`--mlp keep`") if not fusion.merge_trunk else ("tensors", "a lower `--merge-trunk`")
        )
        return (
            f"members differ only in averaged {averaged}, so the hydra predicts like one model; use "
            f"{instead} to keep them separate"
        )
    return "members are identical: the hydra predicts like one model"


def _verify(config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome, progress: Progress) -> Gap:
    """Run hydra and members on one batch in fp32; without averaged tensors they must agree."""
    progress.step("Comparing hydra and members on a random batch")
    fusion, header = outcome.fusion, make_header(config, members, outcome)
    inputs = probe_inputs(header, seed=config.seed)
    # first, as these say which member is not what its header says
    expected = torch.cat([member_logits(m, inputs) for m in members])
    logits = hydra_logits(fusion, header, inputs, where=str(config.out))
    difference = largest_difference(logits, expected)
    of_hydra, of_members = (ensemble_log_probs(z.log_softmax(-1)).exp() for z in (logits, expected))
    probabilities = (of_hydra - of_members).abs().max().item()
    averages = Fate.MERGED in fusion.fates.values()
    if not difference <= TOLERANCE and (not averages or difference == float("inf")):
        raise CheckFailed(
            f"the hydra differs from its members by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="very large weights may overflow; `--no-verify` skips the check",
        )
    return Gap(logits=difference, probabilities=probabilities)


def _write(
    config: FuseConfig,
    members: Sequence[OpenModel],
    outcome: Outcome,
    hashing: Future[None],
    output_lock: OutputLock,
    progress: Progress,
) -> None:
    """Publish the hydra; of members whose digests are not known yet, these come last."""
    progress.step(f"Writing {config.out}")
    digest = None if hashing.done() else UNKNOWN_DIGEST

    def final() -> Header:
        hashing.result()
        return make_header(config, members, outcome)

    with publish_models(output_lock) as begin:
        header = make_header(config, members, outcome, digest=digest)
        beside = outcome.beside()
        write_checkpoint(
            begin(config.out, header),
            outcome.fusion.specs | {name: spec_of(tensor) for name, tensor in beside.items()},
            lambda name: [tensor_bytes(beside[name])] if name in beside else outcome.fusion.chunks(name),
            header=header,
            final=final if digest else None,
        )


def _warn_of_copies(members: Sequence[OpenModel], fusion: Fusion, progress: Progress) -> None:
    """Say which members hold the weights of an earlier one, where it has not been said."""
    if all(fusion.same.values()) or Fate.GROUPED not in fusion.fates.values():
        return
    first: dict[str, OpenModel] = {}
    originals = [first.setdefault(member.checkpoint.digest, member) for member in members]
    copies = [(m.reference, o.reference) for m, o in zip(members, originals, strict=True) if m is not o]
    if len(copies) == 1:
        copy, original = copies[0]
        progress.warn(f"{original} and {copy} have the same weights, so their prediction counts twice")
    elif copies:
        copy_texts = [f"{copy} has those of {original}" for copy, original in copies[:MAX_SHOWN]]
        copy_texts += ["..."] * (len(copies) > MAX_SHOWN)
        progress.warn(
            f"{len(copies)} of {len(members)} members have the same weights as an earlier one, so "
            f"their prediction counts several times: {', '.join(copy_texts)}"
        )


def _report(
    config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome, gap: Gap | None
) -> FuseReport:
    fusion = outcome.fusion
    names = {
        fate.value: [name for name, fate_of_name in fusion.fates.items() if fate_of_name == fate]
        for fate in Fate
    }
    return FuseReport(
        path=config.out,
        members=len(members),
        layers=sum(tower.layers for tower in fusion.towers.values()),
        trunk=fusion.plan.trunk,
        merge_trunk=fusion.merge_trunk,
        **outcome.temperature.fields,
        tensors={fate: len(named) for fate, named in names.items()},
        stored_bytes={fate: sum(fusion.specs[n].size_bytes for n in named) for fate, named in names.items()},
        members_bytes=sum(m.checkpoint.size_bytes for m in members),
        gap=gap,
        measured=outcome.measured,
        ood_scores=() if outcome.fitted is None else outcome.fitted.scores,
        ood_scores_bytes=0 if outcome.scores is None else outcome.scores.size,
    )
