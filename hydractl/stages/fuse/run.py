"""fuse: fuses M members into a hydra, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch

from hydractl import progress
from hydractl.checkpoint import digest_together, write_checkpoint
from hydractl.data.labels import has_default_names
from hydractl.data.preprocess import reading_differences
from hydractl.errors import EDITED, CheckFailed, CheckpointError, UsageError
from hydractl.families.finite import check_weights, warn_refusing
from hydractl.families.load import OpenModel, check_tensors, open_model
from hydractl.families.registry import architecture_differences, expected_specs
from hydractl.families.tower import TOLERANCE, largest_difference, probe_inputs
from hydractl.fusion.build import hydra_logits, member_logits
from hydractl.fusion.plan import Fusion, unpruned_shape
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.header import Fate, Header, Kind
from hydractl.manifest.temperature import Temperature, TemperatureFields
from hydractl.messages import counted, quoted
from hydractl.metrics.per_sample import ensemble_log_probs
from hydractl.output.publish import OutputLock, is_stream
from hydractl.prediction.class_names import with_classes
from hydractl.processes.distributed import require_one_process, start_team
from hydractl.progress import stage
from hydractl.provenance.outputs import check_models, claim
from hydractl.stages.fuse.config import FuseConfig, Measuring
from hydractl.stages.fuse.result import (
    UNKNOWN_DIGEST,
    Measured,
    MergeEvaluator,
    Outcome,
    ScoreFitter,
    make_header,
)
from hydractl.tensor_spec import spec_of, tensor_bytes


def check_members(config: FuseConfig, members: Sequence[OpenModel]) -> None:
    """Refuse members that cannot be fused as configured, from their headers alone.

    Raises:
        CheckpointError: Naming the first that does not belong to the others.
        UsageError: If no tower has a block that is named, or members own what nothing trains.
    """
    first = members[0]
    for member in members:
        _check_architecture(member, first)
        _check_reading(member, first)
        _check_specs(member, first)
    if not config.verify:  # which would find it out; all members have the same tensors
        check_tensors(first.reference, first.checkpoint.specs, expected_specs(first.family, first.header))
    _check_own_from(first, config.own_from)
    _check_merge_trunk(config, members)
    if config.merges and not config.force_merge:
        _check_one_start(members)


def merge_trunk_of(config: FuseConfig, members: Sequence[OpenModel]) -> int:
    """Return before which block tensors are averaged: with `auto` the last one before which all keep the same heads."""
    if not config.auto:
        return int(config.merge_trunk or 0)
    own_from = inf if config.own_from is None else config.own_from
    return int(
        min([_depth_of(members[0]), own_from, *(_first_difference(m, members[0])[1] for m in members)])
    )


def starting_temperature(measuring: Measuring, members: Sequence[OpenModel]) -> Temperature:
    """Return the temperature that is given, or that all members store, as a hydra has one; 1 where one is to be fitted.

    Raises:
        CheckpointError: If they store different ones.
    """
    if measuring.given_temperature or measuring.temperature_data:
        return Temperature(measuring.given_temperature or 1.0)
    first = members[0]
    for member in members:
        if member.header.scale != first.header.scale:
            raise CheckpointError(
                f"{member.reference}: stores the temperature {member.header.scale}, {first.reference} "
                f"{first.header.scale}; the members of a hydra share one temperature",
                hint="add `--temperature val/` to fit one, or `--temperature 1` to use none",
            )
    return first.header.scale


def _check_architecture(member: OpenModel, first: OpenModel) -> None:
    where, ours, theirs = member.reference, member.header.architecture, first.header.architecture
    if member.header.kind == Kind.HYDRA:
        raise CheckpointError(f"{where}: is already a hydra", hint="fuse its members instead")
    different = architecture_differences(ours, theirs)
    if different and (ours.library, ours.name) != (theirs.library, theirs.name):
        raise CheckpointError(
            f"{where}: is a {ours.name} of {ours.library}, {first.reference} a {theirs.name} of {theirs.library}",
            hint="all members must have the same architecture",
        )
    if ours.num_classes != theirs.num_classes:
        raise CheckpointError(
            f"{where}: has {ours.num_classes} classes, {first.reference} has {theirs.num_classes}",
            hint=(
                "fine-tune all members on data with the same classes; `hydractl finetune` replaces the classifiers"
            ),
        )
    if different:
        raise CheckpointError(
            f"{where}: is a {ours.name} with {', '.join(different)}, {first.reference} a {theirs.name}",
            hint="all members must have the same architecture",
        )


def _check_reading(member: OpenModel, first: OpenModel) -> None:
    """Refuse a member that takes its inputs, or counts its classes, otherwise than the first."""
    ours, theirs = member.header, first.header
    reads = reading_differences(ours.preprocess, theirs.preprocess)
    different = {
        "has other preprocessing": reads,
        "has another tokenizer or other templates": ours.prompting != theirs.prompting,
        "has other class labels, or another order of them,": ours.labels != theirs.labels,
    }
    for problem, differs in different.items():
        if differs:
            raise CheckpointError(
                f"{member.reference}: {problem} than {first.reference}"
                + (f": other {quoted(reads)}" if differs is reads else ""),
                hint="one of them has no class names: `import --labels a,b,c` and `make --labels a,b,c` name those of imported weights"
                if has_default_names(ours.labels) != has_default_names(theirs.labels) and not reads
                else "`hydractl inspect` shows both",
            )


def _check_specs(member: OpenModel, first: OpenModel) -> None:
    """Refuse a member whose tensors differ from the first's by more than the heads that their masks drop."""
    if differing := member.checkpoint.specs.keys() ^ first.checkpoint.specs.keys():
        raise CheckpointError(
            f"{member.reference}: tensor `{min(differing)}` exists in only one of this member and {first.reference}"
        )
    for name, spec in member.checkpoint.specs.items():
        first_spec = first.checkpoint.specs[name]
        if spec.dtype != first_spec.dtype:
            raise CheckpointError(
                f"{member.reference}: tensor `{name}` is {spec.dtype}, in {first.reference} it is {first_spec.dtype}",
                hint="prune with the same `--dtype` for all members",
            )
        if _unpruned(member, name) != _unpruned(first, name):
            raise CheckpointError(
                f"{member.reference}: tensor `{name}` has shape {spec.shape}, in {first.reference} {first_spec.shape}"
            )


def _unpruned(member: OpenModel, name: str) -> tuple[int, ...]:
    header, spec = member.header, member.checkpoint.specs[name]
    try:
        return unpruned_shape(member.family, header.architecture, header.masks[0], name, spec)
    except ValueError as error:
        raise CheckpointError(
            f"{member.reference}: {error}", hint=f"{EDITED}; prune the base again"
        ) from error


def _check_own_from(first: OpenModel, own_from: int | None) -> None:
    """Refuse `--own-from` where there is no such block, or nothing to train.

    Raises:
        UsageError: If it is so.
    """
    if own_from is not None and first.header.prompting is not None:
        raise UsageError(
            f"`--own-from {own_from}`: {first.reference} is a zero-shot model, which cannot be trained",
            hint="leave it out; tensors that differ between members are stored for each member anyway",
        )
    depth = _depth_of(first)
    if own_from is not None and own_from > depth:
        raise UsageError(
            f"`--own-from {own_from}`: {first.reference} has {counted(depth, 'block')}",
            hint=f"`--own-from {depth}` gives each member its own readout and head",
        )


def _check_merge_trunk(config: FuseConfig, members: Sequence[OpenModel]) -> None:
    """Refuse to average blocks that do not exist, or in which members keep other heads. `auto` averages fewer blocks instead.

    Raises:
        UsageError: If no tower has so many blocks.
        CheckpointError: If members keep other heads before that block; it has the way out.
    """
    first, depth = members[0], _depth_of(members[0])
    merge_trunk = merge_trunk_of(config, members)
    if merge_trunk > depth:
        raise UsageError(
            f"`--merge-trunk {merge_trunk}`: must be in 0..{depth}; the model has {counted(depth, 'block')}",
            hint=f"`--merge-trunk {depth}` merges everything except readout and classifier",
        )
    for member in members[1:]:
        tower, layer = _first_difference(member, first)
        if layer < merge_trunk:
            where = f"block {layer}" + (f" of tower {tower}" if len(first.header.masks[0]) > 1 else "")
            raise CheckpointError(
                f"{member.reference}: keeps other heads than {first.reference} in {where}, so "
                "their weights cannot be averaged",
                hint=(
                    f"prune with `--diverge-from {min(merge_trunk, depth - 1)}`, so that members keep the same heads before that block"
                )
                + (f", or merge less: `--merge-trunk {layer}`" if layer else ""),
            )


def _first_difference(member: OpenModel, first: OpenModel) -> tuple[str, float]:
    """Return the tower and layer of the earliest block where heads differ; infinity where none do."""
    places = [("", inf)]
    for name, tower in first.header.masks[0].items():
        pairs = enumerate(zip(tower.keep, member.header.masks[0][name].keep, strict=True))
        places += [(name, layer) for layer, (ours, theirs) in pairs if ours != theirs]
    return min(places, key=lambda place: place[1])


def _depth_of(member: OpenModel) -> int:
    """Return how many blocks the deepest tower has."""
    return max(tower.layers for tower in member.header.architecture.towers.values())


def _check_one_start(members: Sequence[OpenModel]) -> None:
    """Refuse to average members that were not made of one set of weights.

    Means of models tuned from one start work, as all lie in one basin (Wortsman et al. 2022); of others they do not.

    Raises:
        CheckpointError: Naming the first that has another base, with what to type to insist.
    """
    first = members[0]
    for member in members[1:]:
        if _origin(member) != _origin(first):
            untold = next((m for m in (member, first) if not m.header.base and not m.header.made_by), None)
            doubt = (
                f" ({untold.reference} does not record which weights it was trained from)" if untold else ""
            )
            raise CheckpointError(
                f"{member.reference}: comes from another base than {first.reference}{doubt}; averaging "
                "unrelated weights gives a useless model",
                hint="if all were trained from the same weights, add `--force-merge`; to fuse "
                "unrelated models, use `--mlp keep` without `--merge-trunk`",
            )


def _origin(member: OpenModel) -> str:
    """Return the digest of the base that a member was made of; a base is its own."""
    return member.header.base or member.checkpoint.digest


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


@stage
def run_fuse(config: FuseConfig) -> FuseReport:
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
        claim(config, [config.out] * team.leads) as output_lock,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        members = _open_members(config, output_lock if team.leads else None)
        temperature = starting_temperature(config.measuring, members)
        members = _name_classes(config, members)
        evaluator = MergeEvaluator(config, members, temperature, team) if config.measuring.labelled else None
        members = evaluator.members if evaluator else members
        fitter = ScoreFitter.open(config, members, team)
        # The lineage wants the members' digests. A file is written while they are computed, and its header last;
        # a pipe has to wait for them.
        hashing = pool.submit(digest_together, [m.checkpoint for m in members])
        fusion = _compare(config, members)
        outcome = evaluator.choose(fusion) if evaluator else Outcome(fusion=fusion, temperature=temperature)
        outcome = fitter.add(outcome) if fitter else outcome
        _warn_of_no_effect(config, outcome.fusion)
        if config.verify or is_stream(config.out):
            hashing.result()
        gap = _verify(config, members, outcome) if config.verify and team.leads else None
        if team.leads:
            _write(config, members, outcome, hashing, output_lock)
        team.broadcast("")  # the others end when it is there
    _warn_of_copies(members, outcome.fusion)
    return _report(config, members, outcome, gap)


def _open_members(config: FuseConfig, output_lock: OutputLock | None) -> Sequence[OpenModel]:
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
    warn_refusing(members)
    return members


def _name_classes(config: FuseConfig, members: Sequence[OpenModel]) -> Sequence[OpenModel]:
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


def _compare(config: FuseConfig, members: Sequence[OpenModel]) -> Fusion:
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


def _warn_of_no_effect(config: FuseConfig, fusion: Fusion) -> None:
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


def _verify(config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome) -> Gap:
    """Run hydra and members on one batch in fp32; without averaged tensors they must agree."""
    progress.step("Comparing hydra and members on a random batch")
    fusion, header = outcome.fusion, make_header(config, members, outcome)
    inputs = probe_inputs(header, seed=config.seed)
    # first, as these say which member is not what its header says
    expected = torch.cat([member_logits(m, inputs) for m in members])
    logits = hydra_logits(fusion, header, inputs, where=str(config.out))
    difference = largest_difference(logits, expected)
    of_hydra, of_members = (ensemble_log_probs(z.log_softmax(-1)).exp() for z in (logits, expected))
    may_differ = Fate.MERGED in fusion.fates.values() and difference != float("inf")
    if not difference <= TOLERANCE and not may_differ:
        raise CheckFailed(
            f"the hydra differs from its members by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="very large weights may overflow; `--no-verify` skips the check",
        )
    return Gap(logits=difference, probabilities=(of_hydra - of_members).abs().max().item())


def _write(
    config: FuseConfig,
    members: Sequence[OpenModel],
    outcome: Outcome,
    hashing: Future[None],
    output_lock: OutputLock,
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


def _warn_of_copies(members: Sequence[OpenModel], fusion: Fusion) -> None:
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
