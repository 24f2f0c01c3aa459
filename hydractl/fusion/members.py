"""Checks of models before fusion, from their headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hydractl import progress
from hydractl.data.labels import has_default_names
from hydractl.data.preprocess import reading_differences
from hydractl.errors import EDITED, CheckpointError, UsageError
from hydractl.families.open_model import OpenModel
from hydractl.families.registry import architecture_differences
from hydractl.fusion.plan import unpruned_shape
from hydractl.manifest.header import Kind
from hydractl.manifest.terms import Temperature
from hydractl.messages import counted, quoted

MAX_SHOWN = 3
"""Maximum number of copies in a warning. Chosen by hand; each further copy adds a pair of file names to the
warning."""


def check_members(members: Sequence[OpenModel]) -> None:
    """Check that members have equal architectures, preprocessing and tensor shapes, except for removed heads.

    Raises:
        CheckpointError: If two members differ. The message names the first different member.
    """
    first = members[0]
    for member in members:
        _check_architecture(member, first)
        _check_reading(member, first)
        _check_specs(member, first)


def _check_architecture(member: OpenModel, first: OpenModel) -> None:
    place, ours, theirs = member.reference, member.header.architecture, first.header.architecture
    if member.header.kind == Kind.HYDRA:
        raise CheckpointError(f"{place}: is already a hydra", hint="fuse its members instead")
    different = architecture_differences(ours, theirs)
    if different and (ours.library, ours.name) != (theirs.library, theirs.name):
        raise CheckpointError(
            f"{place}: is a {ours.name} of {ours.library}, {first.reference} a {theirs.name} of {theirs.library}",
            hint="all members must have the same architecture",
        )
    if ours.num_classes != theirs.num_classes:
        raise CheckpointError(
            f"{place}: has {ours.num_classes} classes, {first.reference} has {theirs.num_classes}",
            hint=(
                "fine-tune all members on data with the same classes; `hydractl finetune` replaces the classifiers"
            ),
        )
    if different:
        raise CheckpointError(
            f"{place}: is a {ours.name} with {', '.join(different)}, "
            f"{first.reference} with {', '.join(architecture_differences(theirs, ours))}",
            hint="all members must have the same architecture",
        )


def _check_reading(member: OpenModel, first: OpenModel) -> None:
    """Check that a member has the same preprocessing and class names as the first member.

    Zero-shot models must also have the same tokenizer and templates. The order of the class names counts.

    Raises:
        CheckpointError: If the member differs.
    """
    ours, theirs = member.header, first.header
    preprocessing = reading_differences(ours.preprocess, theirs.preprocess)
    different = {
        "has other preprocessing": preprocessing,
        "has another tokenizer or other templates": ours.prompting != theirs.prompting,
        "has other class labels, or another order of them,": ours.labels != theirs.labels,
    }
    for problem, differs in different.items():
        if differs:
            raise CheckpointError(
                f"{member.reference}: {problem} than {first.reference}"
                + (f": other {quoted(preprocessing)}" if differs is preprocessing else ""),
                hint="one of them has no class names: `import --labels a,b,c` and `make --labels a,b,c` name those of imported weights"
                if has_default_names(ours.labels) != has_default_names(theirs.labels) and not preprocessing
                else "`hydractl inspect` shows both",
            )


def _check_specs(member: OpenModel, first: OpenModel) -> None:
    """Check that a member's tensors differ from the first member's only by removed heads.

    Raises:
        CheckpointError: With the name of the first different tensor.
    """
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


def check_own_blocks(first: OpenModel) -> None:
    """Check that members can have separate copies of the blocks after the trunk.

    Raises:
        UsageError: If the model cannot be trained.
    """
    if first.header.prompting is not None:
        raise UsageError(
            f"`--own-blocks`: {first.reference} is a zero-shot model, which cannot be trained",
            hint="leave it out; tensors that differ between members are stored for each member anyway",
        )


def largest_trunk(members: Sequence[OpenModel]) -> int:
    """Return the number of first blocks with the same heads in all members."""
    return int(min(_depth_of(members[0]), *(_first_difference(m, members[0])[1] for m in members)))


def check_trunk(members: Sequence[OpenModel], trunk: int) -> None:
    """Check that the tensors before block `trunk` can be averaged.

    Raises:
        UsageError: If all towers have fewer blocks.
        CheckpointError: If members keep different heads before that block.
    """
    first, depth = members[0], _depth_of(members[0])
    if trunk > depth:
        raise UsageError(
            f"`--trunk {trunk}`: must be in 0..{depth}; the model has {counted(depth, 'block')}",
            hint=f"`--trunk {depth}` merges everything except readout and classifier",
        )
    for member in members[1:]:
        tower, layer = _first_difference(member, first)
        if layer < trunk:
            place = f"block {layer}" + (f" of tower {tower}" if len(first.header.masks[0]) > 1 else "")
            raise CheckpointError(
                f"{member.reference}: keeps other heads than {first.reference} in {place}, so "
                "their weights cannot be averaged",
                hint=(
                    f"prune with `--trunk {min(trunk, depth - 1)}`, so that members keep the same heads before that block"
                )
                + (f", or merge less: `--trunk {layer}`" if layer else ""),
            )


def _first_difference(member: OpenModel, first: OpenModel) -> tuple[str, float]:
    """Return the tower and layer of the earliest block with different heads; infinity if all heads agree."""
    places = [("", inf)]
    for name, tower in first.header.masks[0].items():
        pairs = enumerate(zip(tower.keep, member.header.masks[0][name].keep, strict=True))
        places += [(name, layer) for layer, (ours, theirs) in pairs if ours != theirs]
    return min(places, key=lambda place: place[1])


def _depth_of(member: OpenModel) -> int:
    """Return the number of blocks of the deepest tower."""
    return max(tower.layers for tower in member.header.architecture.towers.values())


def check_one_start(members: Sequence[OpenModel]) -> None:
    """Check that all members were trained from the same weights.

    Averages of models work if the models were fine-tuned from the same weights (Wortsman et al. 2022).

    Raises:
        CheckpointError: If a member has another base.
    """
    first = members[0]
    for member in members[1:]:
        if _origin(member) != _origin(first):
            without_base = next(
                (m for m in (member, first) if not m.header.base and not m.header.made_by), None
            )
            doubt = (
                f" ({without_base.reference} does not record which weights it was trained from)"
                if without_base
                else ""
            )
            raise CheckpointError(
                f"{member.reference}: comes from another base than {first.reference}{doubt}; averaging "
                "unrelated weights gives a useless model",
                hint="if all were trained from the same weights, add `--force-merge`; to fuse "
                "unrelated models, use `--mlp keep` without `--trunk`",
            )


def _origin(member: OpenModel) -> str:
    """Return the digest of a member's base; for a base, the digest of its own weights."""
    return member.header.base or member.checkpoint.digest


def common_temperature(members: Sequence[OpenModel]) -> Temperature:
    """Return the temperature stored in all members.

    Raises:
        CheckpointError: If the temperatures differ.
    """
    first = members[0]
    for member in members:
        if member.header.scale != first.header.scale:
            raise CheckpointError(
                f"{member.reference}: stores the temperature {member.header.scale}, {first.reference} "
                f"{first.header.scale}; the members of a hydra share one temperature",
                hint="add `--temperature val/` to fit one, or `--temperature 1` to use none",
            )
    return first.header.scale


def warn_of_copies(members: Sequence[OpenModel]) -> None:
    """Warn if members have the same weights as earlier members."""
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
