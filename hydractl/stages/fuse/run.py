"""fuse: M members become one hydra, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hydractl.checkpoint import digest_together, write_checkpoint
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.families.opening import OpenModel, open_model
from hydractl.fusion.plan import Fusion, trunk_length
from hydractl.fusion.slicing import unpruned_shape
from hydractl.manifest.header import Fate, FusePlan, Header, Kind
from hydractl.parallel import require_one_process
from hydractl.progress import SILENT, Progress, counted
from hydractl.publish import is_stream, publish
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.shared.classes import with_classes
from hydractl.stages.shared.lineage import make_step
from hydractl.stages.shared.outputs import check_outputs

UNKNOWN = f"sha256:{'0' * 64}"
"""What stands for a digest until it is known: as long as one."""


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
    """What `fuse` did: how many tensors and bytes had each fate, and how long the trunk is."""

    path: Path
    members: int
    layers: int
    trunk: int
    tensors: dict[str, int]
    stored_bytes: dict[str, int]
    members_bytes: int
    gap: Gap | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return (self.path,)


def run_fuse(config: FuseConfig, progress: Progress = SILENT) -> FuseReport:
    """Fuse members into one hydra.

    Memory holds one tensor of every member at a time, unless the result is verified.

    Raises:
        CheckpointError: If the members do not belong together; said before their tensors are read.
        CheckFailed: If nothing was averaged and the hydra still differs from its members.
        OutputExists: If the output is there already.
    """
    require_one_process("fuse")
    members = [open_model(m) for m in config.models]
    check_outputs([config.out], force=config.force, models=members, files=[config.naming.file])
    _check_compatible(config, members)
    classes = config.naming.classes(members[0])
    if classes is not None:
        progress.step(f"Naming {counted(len(classes.names), 'class', 'classes')}")
        members = [with_classes(m, classes) for m in members]
    elif members[0].header.prompting is not None:
        progress.warn("no classes are named yet: `eval` will ask for them, or fuse with `--classes`")
    progress.step(f"Comparing {counted(len(members), 'member')}")
    gap = None
    # The lineage wants the members' digests. A file is written while they are computed, and its header last;
    # a pipe has to wait for them.
    with ThreadPoolExecutor(max_workers=1) as pool:
        hashing = pool.submit(digest_together, [m.checkpoint for m in members])
        fusion = Fusion(members, mlp=config.mlp)
        if found := _sameness(fusion, count=len(members)):
            progress.warn(found)
        if config.verify or is_stream(config.out):
            hashing.result()
        if config.verify:
            progress.step("Checking that the hydra equals its members")
            gap = _verify(config, members, fusion, _header(config, members, fusion))
        progress.step(f"Writing {config.out}")
        digest = None if hashing.done() else UNKNOWN

        def final() -> Header:
            hashing.result()
            return _header(config, members, fusion)

        with publish(config.out) as file:
            header = _header(config, members, fusion, digest=digest)
            write_checkpoint(
                file, fusion.specs, fusion.chunks, header=header, final=final if digest else None
            )
    if Fate.GROUPED in fusion.fates.values():  # else all are alike, which has been said
        for member, twin in _twins(members):
            progress.warn(f"{member} and {twin} hold the same weights: what they say counts twice")
    return _report(config, members, fusion, gap)


def _check_compatible(config: FuseConfig, members: Sequence[OpenModel]) -> None:
    """Refuse members that do not belong together, from their headers alone."""
    first = members[0]
    for member in members:
        where, header = member.reference, member.header
        if header.kind == Kind.HYDRA:
            raise CheckpointError(f"{where}: is a hydra already", hint="fuse its members instead")
        ours, theirs = header.architecture, first.header.architecture
        if (ours.library, ours.name) != (theirs.library, theirs.name):
            raise CheckpointError(
                f"{where}: is a {ours.name} of {ours.library}, {first.reference} a {theirs.name} of {theirs.library}",
                hint="members must be of one architecture",
            )
        if ours.num_classes != theirs.num_classes:
            raise CheckpointError(
                f"{where}: has {ours.num_classes} classes, {first.reference} has {theirs.num_classes}"
            )
        if ours != theirs:
            raise CheckpointError(
                f"{where}: is a {ours.name} {_differing(ours.config, theirs.config)}, {first.reference} a {theirs.name}",
                hint="members must be of one architecture",
            )
        _check_reading(member, first)
        if member.checkpoint.specs.keys() != first.checkpoint.specs.keys():
            name = min(member.checkpoint.specs.keys() ^ first.checkpoint.specs.keys())
            raise CheckpointError(
                f"{where}: tensor `{name}` is in this member or in {first.reference}, but not in both"
            )
        _check_specs(member, first)
    for member in members[1:] if config.mlp == "merge" else ():
        if _origin(member) != _origin(first):
            raise CheckpointError(
                f"{member.reference}: comes from another base than {first.reference}; the mean of unrelated MLPs is no MLP",
                hint="add `--mlp keep` to fuse models that were trained apart",
            )


def _sameness(fusion: Fusion, *, count: int) -> str | None:
    """Return why a hydra answers as one model does, or None if its members may disagree."""
    fates = set(fusion.fates.values())
    if count == 1:
        return "there is one member only: the hydra answers as one model"
    if Fate.GROUPED in fates:
        return None
    if Fate.MERGED in fates:
        return "members differ in nothing but averaged MLPs: the hydra answers as one model; `--mlp keep` keeps them apart"
    return "members are identical: the hydra answers as one model"


def _twins(members: Sequence[OpenModel]) -> Iterator[tuple[str, str]]:
    """Yield the names of the first of several equal members and of each further one."""
    first: dict[str, str] = {}
    for member in members:
        digest = member.checkpoint.digest
        if digest in first:
            yield first[digest], member.reference
        first.setdefault(digest, member.reference)


def _check_reading(member: OpenModel, first: OpenModel) -> None:
    """Refuse a member that takes its inputs, or counts its classes, otherwise than the first."""
    ours, theirs = member.header, first.header
    different = {
        "expects other preprocessing": ours.preprocess != theirs.preprocess,
        "reads texts otherwise, or has other templates,": ours.prompting != theirs.prompting,
        "has other class labels, or in another order,": ours.labels != theirs.labels,
    }
    for what, differs in different.items():
        if differs:
            raise CheckpointError(
                f"{member.reference}: {what} than {first.reference}", hint="`hydractl inspect` shows both"
            )


def _origin(member: OpenModel) -> str:
    """Return the digest of the base that a member was made of; a base is its own."""
    return member.header.base or member.checkpoint.digest


def _check_specs(member: OpenModel, first: OpenModel) -> None:
    """Refuse a member whose tensors differ from the first's by more than the heads that their masks drop."""
    for name, spec in member.checkpoint.specs.items():
        other = first.checkpoint.specs[name]
        if spec.dtype != other.dtype:
            raise CheckpointError(
                f"{member.reference}: tensor `{name}` is {spec.dtype}, in {first.reference} it is {other.dtype}",
                hint="prune with the same `--dtype` for all members",
            )
        if _unpruned(member, name) != _unpruned(first, name):
            raise CheckpointError(
                f"{member.reference}: tensor `{name}` has shape {spec.shape}, in {first.reference} {other.shape}"
            )


def _unpruned(member: OpenModel, name: str) -> tuple[int, ...]:
    header, spec = member.header, member.checkpoint.specs[name]
    try:
        return unpruned_shape(member.family, header.architecture, header.masks[0], name, spec)
    except ValueError as error:
        raise CheckpointError(
            f"{member.reference}: {error}", hint="was the file edited? prune the base again"
        ) from error


def _differing(ours: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    keys = sorted(k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k))
    return f"with {', '.join(f'{k}={ours.get(k)}' for k in keys)}" if keys else "of another shape"


def _header(
    config: FuseConfig, members: Sequence[OpenModel], fusion: Fusion, *, digest: str | None = None
) -> Header:
    first = members[0].header
    trunk = trunk_length(fusion.family, fusion.fates, first.architecture.towers)
    step = make_step(
        "fuse",
        family=members[0].family,
        options={
            "mlp": config.mlp,
            "classes": config.naming.names or None,
            "templates": config.naming.templates or None,
        },
        inputs=[m.as_input(digest=digest) for m in members],
        seed=config.seed if config.verify else None,
        results={"verified": True} if config.verify else {},
    )
    return first.model_copy(
        update={
            "kind": Kind.HYDRA,
            "masks": tuple(m.header.masks[0] for m in members),
            "plan": FusePlan(fates=fusion.fates, trunk=trunk, mlp=config.mlp),
            "made_by": step,
        }
    )


def _verify(config: FuseConfig, members: Sequence[OpenModel], fusion: Fusion, header: Header) -> Gap:
    """Run hydra and members on one batch in fp32; without averaged tensors they must agree."""
    import torch  # noqa: PLC0415 - fusing without averages does not need torch

    from hydractl.families.opening import load_model  # noqa: PLC0415 - builds models: not needed to fuse
    from hydractl.families.probe import TOLERANCE, largest_difference, probe_inputs  # noqa: PLC0415 - as above
    from hydractl.fusion.hydra import hydra_from_state  # noqa: PLC0415 - as above
    from hydractl.metrics.samples import ensemble_log_probs  # noqa: PLC0415 - as above

    inputs = probe_inputs(header, seed=config.seed)
    state = {name: fusion.tensor(name) for name in fusion.specs}
    with torch.inference_mode():
        hydra = hydra_from_state(header, state, where=str(config.out), dtype=torch.float32)
        found = hydra.member_logits(inputs)
        expected = torch.cat([load_model(m, dtype=torch.float32).member_logits(inputs) for m in members])
        difference = largest_difference(found, expected)
        together, apart = (ensemble_log_probs(z.log_softmax(-1)).exp() for z in (found, expected))
        probabilities = (together - apart).abs().max().item()
    exact = Fate.MERGED not in fusion.fates.values()
    if not difference <= TOLERANCE and (exact or difference == float("inf")):
        raise CheckFailed(
            f"the hydra differs from its members by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="are there non-finite weights? `--no-verify` skips the check",
        )
    return Gap(logits=difference, probabilities=probabilities)


def _report(config: FuseConfig, members: Sequence[OpenModel], fusion: Fusion, gap: Gap | None) -> FuseReport:
    towers = members[0].header.architecture.towers

    def of(fate: Fate) -> Iterator[str]:
        return (name for name, found in fusion.fates.items() if found == fate)

    return FuseReport(
        path=config.out,
        members=len(members),
        layers=sum(tower.layers for tower in towers.values()),
        trunk=trunk_length(fusion.family, fusion.fates, towers),
        tensors={fate.value: sum(1 for _ in of(fate)) for fate in Fate},
        stored_bytes={fate.value: sum(fusion.specs[n].size_bytes for n in of(fate)) for fate in Fate},
        members_bytes=sum(m.checkpoint.size_bytes for m in members),
        gap=gap,
    )
