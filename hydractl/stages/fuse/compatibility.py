"""Whether members belong together, and how much of them has one mean: told from their headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hydractl.data.labels import has_default_names
from hydractl.data.preprocess import reading_differences
from hydractl.errors import EDITED, CheckpointError, UsageError
from hydractl.families.load import OpenModel, check_tensors
from hydractl.families.registry import architecture_differences, expected_specs
from hydractl.fusion.plan import unpruned_shape
from hydractl.manifest.header import Kind
from hydractl.manifest.temperature import Temperature
from hydractl.messages import counted, quoted
from hydractl.stages.fuse.config import FuseConfig, Measuring


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
    where, header = member.reference, member.header
    if header.kind == Kind.HYDRA:
        raise CheckpointError(f"{where}: is already a hydra", hint="fuse its members instead")
    ours, theirs = header.architecture, first.header.architecture
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
            fields = f": other {quoted(reads)}" if differs is reads else ""
            raise CheckpointError(
                f"{member.reference}: {problem} than {first.reference}{fields}",
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
    if own_from is None:
        return
    if first.header.prompting is not None:
        raise UsageError(
            f"`--own-from {own_from}`: {first.reference} is a zero-shot model, which cannot be trained",
            hint="leave it out; tensors that differ between members are stored for each member anyway",
        )
    depth = _depth_of(first)
    if own_from > depth:
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
