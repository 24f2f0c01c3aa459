"""fuse: M members become one hydra, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.checkpoint import digest_together, write_checkpoint
from hydractl.errors import CheckFailed
from hydractl.families.load import OpenModel, open_model
from hydractl.fusion.plan import Fusion, trunk_length
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.header import Fate, FusePlan, Header, Kind
from hydractl.messages import counted
from hydractl.output.atomic_write import is_stream
from hydractl.output.locks import OutputLock
from hydractl.processes.distributed import ProcessGroup, require_one_process, start_team
from hydractl.progress import SILENT, Progress
from hydractl.stages.fuse.compatibility import (
    check_compatible,
    check_layout,
    check_one_start,
    check_own_from,
    most_merged,
    stored_temperature,
)
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.result import Measured, Outcome
from hydractl.stages.shared.finite import warn_refusing
from hydractl.stages.shared.output_record import make_step
from hydractl.stages.shared.outputs import check_models, claim
from hydractl.stages.shared.zero_shot_classes import with_classes

if TYPE_CHECKING:
    from hydractl.stages.fuse.merge_quality import MergeEvaluator

UNKNOWN = f"sha256:{'0' * 64}"
"""What stands for a digest until it is known: as long as one."""
MAX_SHOWN = 3
LATER = "members are identical yet: the hydra answers as one model until `finetune` trains it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How far a hydra is from its members run one by one, on the same random batch.

    Attributes:
        logits: Largest difference of a member's logits, in units of max(1, largest logit).
        probabilities: Largest difference of the ensemble's probabilities.
    """

    logits: float
    probabilities: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseReport:
    """What `fuse` did.

    Attributes:
        path: The output.
        members: How many.
        layers: Blocks over all towers.
        trunk: How many of them run once.
        merge_trunk: Before which block of each tower all that differs was averaged.
        temperature: What the hydra's logits are divided by.
        tensors: How many had each fate.
        stored_bytes: How much they take.
        members_bytes: What the members take apart.
        gap: How far the hydra is from them on a random batch; None unless that was verified.
        measured: What merging did on labelled data; None without any.
    """

    path: Path
    members: int
    layers: int
    trunk: int
    merge_trunk: int
    temperature: float
    tensors: dict[str, int]
    stored_bytes: dict[str, int]
    members_bytes: int
    gap: Gap | None
    measured: Measured | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return (self.path,)


def run_fuse(config: FuseConfig, progress: Progress = SILENT) -> FuseReport:
    """Fuse members into one hydra.

    Memory holds one tensor of every member at a time; where the result is verified, one block of every member; where it is
    measured, a hydra. Several processes that a launcher started measure together; the first of them writes.

    Raises:
        CheckpointError: If the members do not belong together; said before their tensors are read.
        CheckFailed: If nothing was averaged and the hydra still differs from its members, or no merge costs little enough.
        OutputExists: If the output is there already.
        UsageError: If there are several processes and nothing that they could share.
        Interrupted: If another process of the run ended before its time.
    """
    if not config.measuring.refs:
        require_one_process("fuse")
    with (
        start_team() as team,
        claim(config, [config.out] * team.leads, progress) as output_lock,
    ):
        return _run(config, team, output_lock, progress)


def _run(config: FuseConfig, team: ProcessGroup, output_lock: OutputLock, progress: Progress) -> FuseReport:
    members: Sequence[OpenModel] = [open_model(m) for m in config.models]
    measuring = config.measuring
    if team.leads:
        data = measuring.refs.values()
        check_models([config.out], output_lock, models=members, data=data, files=[config.naming.file])
    check_compatible(members)
    if not config.verify:  # which would find it out
        check_layout(members)
    check_own_from(members[0], config.own_from)
    merge_trunk = most_merged(config, members)
    if config.merges and not config.force_merge:
        check_one_start(members)
    warn_refusing(members, progress)
    temperature = measuring.given_temperature or (1.0 if measuring.heldout else stored_temperature(members))
    members = _named(config, members, progress)
    judge = _judge(config, members, temperature, team, progress)
    progress.step(f"Comparing {counted(len(members), 'member')}")
    gap = None
    # The lineage wants the members' digests. A file is written while they are computed, and its header last;
    # a pipe has to wait for them.
    with ThreadPoolExecutor(max_workers=1) as pool:
        hashing = pool.submit(digest_together, [m.checkpoint for m in members])
        fusion = Fusion(members, mlp=config.mlps, merge_trunk=merge_trunk, own_from=config.own_from)
        _check_finite(members, fusion)
        outcome = Outcome(fusion=fusion, temperature=temperature)
        if judge is not None:
            outcome = _searched(config, members, fusion, judge)
            fusion = outcome.fusion
        for doubt in _doubts(config, fusion):
            progress.warn(doubt)
        if config.verify or is_stream(config.out):
            hashing.result()
        if config.verify and team.leads:
            progress.step("Running hydra and members on a random batch")
            gap = _verify(config, members, fusion, _header(config, members, outcome))
        if team.leads:
            _write(config, members, outcome, hashing, output_lock, progress)
        team.broadcast("")  # the others end when it is there
    if twins := _twins(members, fusion):
        progress.warn(twins)
    return _report(config, members, outcome, gap)


def _check_finite(members: Sequence[OpenModel], fusion: Fusion) -> None:
    """Refuse weights that are not numbers; of tensors that are equal in all members one is read."""
    from hydractl.stages.shared.finite import check_weights  # noqa: PLC0415 - loads torch

    check_weights(members[0])
    for member in members[1:]:
        check_weights(member, [name for name, identical in fusion.same.items() if not identical])


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
    digest = None if hashing.done() else UNKNOWN

    def final() -> Header:
        hashing.result()
        return _header(config, members, outcome)

    with publish_models(output_lock) as begin:
        header = _header(config, members, outcome, digest=digest)
        file = begin(config.out, header)
        specs, chunks = outcome.fusion.specs, outcome.fusion.chunks
        write_checkpoint(file, specs, chunks, header=header, final=final if digest else None)


def _named(config: FuseConfig, members: Sequence[OpenModel], progress: Progress) -> Sequence[OpenModel]:
    """Return zero-shot members that store the classes which are named, any others as they are."""
    classes = config.naming.classes(members[0])
    if classes is not None:
        progress.step(f"Naming {counted(len(classes.names), 'class', 'classes')}")
        return [with_classes(m, classes) for m in members]
    if members[0].header.prompting is not None:
        progress.warn("no classes are named yet: `eval` will ask for them, or fuse with `--classes`")
    return members


def _judge(
    config: FuseConfig,
    members: Sequence[OpenModel],
    temperature: float,
    team: ProcessGroup,
    progress: Progress,
) -> MergeEvaluator | None:
    """Return what measures hydras, if there are data to do it on."""
    if not config.measuring.refs:
        return None
    from hydractl.stages.fuse.merge_quality import MergeEvaluator  # noqa: PLC0415 - runs models: not needed to fuse

    return MergeEvaluator(config.measuring, members, temperature, team, progress)


def _doubts(config: FuseConfig, fusion: Fusion) -> Iterator[str]:
    """Yield what of a fusion may not be what was meant."""
    if reason := _sameness(fusion, count=len(config.models)):
        yield reason
    elif config.merge_trunk == 0 and config.mlp is None:
        yield (
            "`--merge-trunk 0` averages nothing, MLPs neither: whatever differs is stored once a member; without it, or "
            "with `--mlp merge`, MLPs are averaged"
        )
    elif config.merge_trunk and not config.auto and Fate.MERGED not in fusion.fates.values():
        yield f"`--merge-trunk {config.merge_trunk}` averages nothing: members are equal before that block"
    elif config.mlp == "merge" and Fate.MERGED not in fusion.fates.values():
        yield "`--mlp merge` averages nothing: MLPs are equal" + (
            "" if config.own_from is None else f" before block {config.own_from}"
        )
    if fusion.own_from is not None and not fusion.owns_more:
        yield f"`--own-from {fusion.own_from}` changed nothing: all that members would own differs between them anyway"


def _sameness(fusion: Fusion, *, count: int) -> str | None:
    """Return why a hydra answers as one model does, or None if its members may disagree."""
    fates = set(fusion.fates.values())
    if count == 1:
        return "there is one member only: the hydra answers as one model"
    if Fate.GROUPED in fates:
        return LATER if all(fusion.same.values()) else None
    if Fate.MERGED in fates:
        averaged, instead = (
            ("MLPs", "`--mlp keep`") if not fusion.merge_trunk else ("tensors", "a lower `--merge-trunk`")
        )
        return f"members differ in nothing but averaged {averaged}: the hydra answers as one model; {instead} keeps them apart"
    return "members are identical: the hydra answers as one model"


def _twins(members: Sequence[OpenModel], fusion: Fusion) -> str | None:
    """Return which members hold the weights of an earlier one, where it has not been said; None where none does."""
    if all(fusion.same.values()) or Fate.GROUPED not in fusion.fates.values():
        return None
    first: dict[str, str] = {}
    pairs = []
    for member in members:
        if (digest := member.checkpoint.digest) in first:
            pairs.append((member.reference, first[digest]))
        first.setdefault(digest, member.reference)
    if len(pairs) > 1:
        pair_texts = [
            *(f"{twin} those of {original}" for twin, original in pairs[:MAX_SHOWN]),
            *["..."] * (len(pairs) > MAX_SHOWN),
        ]
        return (
            f"{len(pairs)} of {len(members)} members hold the weights of an earlier one, so what these say counts several times: "
            f"{', '.join(pair_texts)}"
        )
    return next(
        (
            f"{original} and {twin} hold the same weights: what they say counts twice"
            for twin, original in pairs
        ),
        None,
    )


def _searched(
    config: FuseConfig, members: Sequence[OpenModel], fusion: Fusion, judge: MergeEvaluator
) -> Outcome:
    """Return what the data choose; hydras that are only measured have logits as they are."""
    from hydractl.stages.fuse.search import search  # noqa: PLC0415 - runs models: not needed to fuse

    def header_of(draft: Fusion) -> Header:
        return _header(config, members, Outcome(fusion=draft, temperature=1.0), digest=UNKNOWN)

    return search(config, members, fusion, judge, header_of)


def _header(
    config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome, *, digest: str | None = None
) -> Header:
    first, fusion, measured = members[0].header, outcome.fusion, outcome.measured
    trunk = trunk_length(fusion.family, fusion.fates, first.architecture.towers)
    step = make_step(
        config,
        family=members[0].family,
        options={
            "mlp": config.mlps,
            "merge_trunk": config.merge_trunk,
            "own_from": config.own_from,
            "max_loss": config.max_loss,
            "temperature": config.measuring.given_temperature,
            "max_length": config.measuring.max_length,
            "force_merge": config.force_merge or None,
            "classes": config.naming.names or None,
            "templates": config.naming.templates or None,
        },
        inputs=[*(m.as_input(digest=digest) for m in members), *outcome.sources],
        seed=config.seed if config.verify else None,
        results=({"verified": True} if config.verify else {})
        | ({} if measured is None else measured.results())
        | ({} if config.measuring.heldout is None else {"temperature": outcome.temperature}),
    )
    return first.of_other_weights(
        {
            "kind": Kind.HYDRA,
            "masks": tuple(m.header.masks[0] for m in members),
            "plan": FusePlan(
                fates=fusion.fates,
                trunk=trunk,
                mlp=fusion.mlp,
                merge_trunk=fusion.merge_trunk,
                own_from=fusion.own_from,
            ),
            "temperature": outcome.temperature,
            "made_by": step,
        }
    )


def _verify(config: FuseConfig, members: Sequence[OpenModel], fusion: Fusion, header: Header) -> Gap:
    """Run hydra and members on one batch in fp32; without averaged tensors they must agree."""
    import torch  # noqa: PLC0415 - fusing without averages does not need torch

    from hydractl.families.dummy_inputs import TOLERANCE, largest_difference, probe_inputs  # noqa: PLC0415 - builds models: not needed to fuse
    from hydractl.fusion.streaming import hydra_logits, member_logits  # noqa: PLC0415 - as above
    from hydractl.metrics.per_sample import ensemble_log_probs  # noqa: PLC0415 - as above

    inputs = probe_inputs(header, seed=config.seed)
    # first, as these say which member is not what its header says
    expected = torch.cat([member_logits(m, inputs) for m in members])
    logits = hydra_logits(fusion, header, inputs, where=str(config.out))
    difference = largest_difference(logits, expected)
    of_hydra, of_members = (ensemble_log_probs(z.log_softmax(-1)).exp() for z in (logits, expected))
    probabilities = (of_hydra - of_members).abs().max().item()
    exact = Fate.MERGED not in fusion.fates.values()
    if not difference <= TOLERANCE and (exact or difference == float("inf")):
        raise CheckFailed(
            f"the hydra differs from its members by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="are there weights so large that outputs overflow? `--no-verify` skips the check",
        )
    return Gap(logits=difference, probabilities=probabilities)


def _report(
    config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome, gap: Gap | None
) -> FuseReport:
    towers, fusion = members[0].header.architecture.towers, outcome.fusion

    def of(fate: Fate) -> Iterator[str]:
        return (name for name, tensor_fate in fusion.fates.items() if tensor_fate == fate)

    return FuseReport(
        path=config.out,
        members=len(members),
        layers=sum(tower.layers for tower in towers.values()),
        trunk=trunk_length(fusion.family, fusion.fates, towers),
        merge_trunk=fusion.merge_trunk,
        temperature=outcome.temperature,
        tensors={fate.value: sum(1 for _ in of(fate)) for fate in Fate},
        stored_bytes={fate.value: sum(fusion.specs[n].size_bytes for n in of(fate)) for fate in Fate},
        members_bytes=sum(m.checkpoint.size_bytes for m in members),
        gap=gap,
        measured=outcome.measured,
    )
