"""prune: choose which heads stay, and slice the others out."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hydractl.checkpoint import TORCH_NAMES, TensorSpec, tensor_bytes, write_checkpoint
from hydractl.errors import CheckFailed, CheckpointError, ManifestError, UsageError
from hydractl.families.opening import OpenModel, build_checked, open_model
from hydractl.families.probe import TOLERANCE, largest_difference, probe_inputs
from hydractl.fusion.slicing import prune_tensor, pruned_spec, zero_dropped
from hydractl.heads.masks import HeadId, TowerMask, TowerShape
from hydractl.heads.members import Sampling, sample_masks, share_before
from hydractl.heads.select import Budget, best_mask, best_mask_per_layer, removal_order
from hydractl.manifest import Header, HeadMask, HeadScores, Kind, MaskOrigin, TowerKeep, check_mask_fits
from hydractl.metrics.cost import count_macs
from hydractl.progress import SILENT, Progress
from hydractl.publish import STDOUT, check_output, publish, publish_text
from hydractl.runtime import torch_dtype
from hydractl.stages.lineage import TOOL, document_input, make_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hydractl.checkpoint import Chunks
    from hydractl.manifest import Architecture, InputFile, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneConfig:
    """What to prune, how far, and where to.

    Attributes:
        model: The base.
        out: Output; with several members its name holds `{i}`.
        arch: Architecture of a bare file.
        scores: Scores files: one, or one a member.
        masks: Mask files, one a member; instead of scores.
        budget: How many heads go; needed with scores.
        per_layer: Every layer keeps equally many.
        members: How many members to make of one scores file.
        pool: The first so many heads of the removal order are what members sample from.
        diverge_from: Members are alike before this layer.
        seed: Of the sampling.
        dtype: bf16, fp16 or fp32; None keeps each tensor's own.
        verify: Check that pruned equals masked before anything is published.
        force: Replace existing outputs.
    """

    model: str
    out: Path
    arch: str | None = None
    scores: tuple[Path, ...] = ()
    masks: tuple[Path, ...] = ()
    budget: Budget | None = None
    per_layer: bool = False
    members: int = 1
    pool: int | None = None
    diverge_from: int = 0
    seed: int = 0
    dtype: str | None = None
    verify: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        if bool(self.scores) == bool(self.masks):
            raise UsageError(
                "give either `--scores` or `--mask`",
                hint="make scores with `hydractl score MODEL -o scores.json`",
            )
        if self.scores and self.budget is None:
            raise UsageError(
                "how many heads should stay?", hint="add `--keep N`, `--remove R` or `--keep-fraction F`"
            )
        if self.masks and (self.budget or self.per_layer or self.members > 1 or self.pool is not None):
            raise UsageError(
                "a mask says itself which heads stay; it excludes budgets, `--members` and `--pool`"
            )
        if self.members > 1 and len(self.scores) > 1:
            raise UsageError("several `--scores` already make one member each; drop `--members`")
        if self.members > 1 and self.pool is None:
            raise UsageError(
                "`--members` needs a pool to sample from",
                hint="add `--pool P`, for example twice the number of removed heads",
            )
        if self.pool is not None and (len(self.scores) > 1 or self.per_layer):
            raise UsageError(
                "`--pool` samples from one global removal order: one `--scores`, no `--per-layer`"
            )
        if self.per_layer and (self.budget is None or self.budget.keep_per_layer is None):
            raise UsageError("`--per-layer` goes with `--keep N`")
        if self.count > 1 and "{i}" not in self.out.name:
            raise UsageError(
                f"{self.count} members need {self.count} names",
                hint="put `{i}` into the name: `-o 'member-{i}.st'`",
            )

    @property
    def count(self) -> int:
        """How many members come out."""
        return max(self.members, len(self.scores), len(self.masks))

    def outputs(self) -> tuple[Path, ...]:
        """Return each member's path."""
        return tuple(self.out.parent / self.out.name.replace("{i}", str(i)) for i in range(self.count))


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
    """What `prune` did."""

    model: str
    heads: int
    base: Size
    members: tuple[PrunedMember, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return tuple(p for m in self.members for p in (m.path, m.mask_path) if p is not None)


def run_prune(config: PruneConfig, progress: Progress = SILENT) -> PruneReport:
    """Prune a base into one or several members.

    Raises:
        InputError: If an input cannot be used; nothing is written then.
        CheckFailed: If a member differs from the masked base by more than the tolerance.
        OutputExists: If an output is there already.
    """
    opened = open_model(config.model, arch=config.arch)
    if opened.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{config.model}: is a {opened.header.kind}, but heads are counted in a base",
            hint="prune the base it came from",
        )
    specs = _specs(opened, config)
    masks, inputs = _masks(config, opened, progress)
    outputs = config.outputs()
    for path in (*outputs, *(m for m in map(mask_path, outputs) if m)):
        check_output(
            path, force=config.force, inputs=[*opened.checkpoint.paths, *config.scores, *config.masks]
        )
    differences = _verify(opened, masks, progress) if config.verify else [None] * len(masks)
    members = []
    for i, (mask, path, source, difference) in enumerate(
        zip(masks, outputs, inputs, differences, strict=True)
    ):
        progress.step(f"Writing {path}")
        member_specs = {
            n: pruned_spec(opened.family, opened.header.architecture, mask.towers, n, s)
            for n, s in specs.items()
        }
        header = _member_header(config, opened, mask, source, member=i)
        with publish(path) as file:
            write_checkpoint(
                file, member_specs, lambda name, m=mask: _data(opened, m, specs, name), header=header
            )
        beside = mask_path(path)
        if beside:
            publish_text(beside, mask.to_json())
        members.append(_described(opened, mask, member_specs, path=path, difference=difference))
    return PruneReport(
        model=config.model,
        heads=sum(t.layers * t.num_heads for t in opened.header.architecture.towers.values()),
        base=_size(opened, opened.header.masks[0], specs),
        members=tuple(members),
    )


def mask_path(path: Path) -> Path | None:
    """Return where a member's mask manifest goes: beside it, nowhere for a stream."""
    return None if path == STDOUT else path.parent / f"{path.stem}.mask.json"


def _specs(opened: OpenModel, config: PruneConfig) -> dict[str, TensorSpec]:
    """Return the base's specs in the wanted dtype, after checking that its heads lie where they should."""
    specs = opened.checkpoint.specs
    if config.dtype:
        torch_dtype(config.dtype)
        name = config.dtype.upper().replace("FP", "F")
        specs = {
            k: TensorSpec(name, s.shape) if s.dtype in {"F32", "F16", "BF16", "F64"} else s
            for k, s in specs.items()
        }
    try:
        for name, spec in specs.items():
            pruned_spec(opened.family, opened.header.architecture, opened.header.masks[0], name, spec)
    except ValueError as error:
        raise CheckpointError(
            f"{config.model}: {error}", hint="is it another architecture than it says?"
        ) from error
    return specs


def _masks(
    config: PruneConfig, opened: OpenModel, progress: Progress
) -> tuple[list[HeadMask], list[InputFile]]:
    architecture = opened.header.architecture
    if config.masks:
        masks = [_given_mask(path, opened, progress) for path in config.masks]
        return masks, [
            document_input(p, m.digest() if p == Path("-") else None)
            for p, m in zip(config.masks, masks, strict=True)
        ]
    scores = [_given_scores(path, opened, progress) for path in config.scores]
    try:
        chosen = _choose(config, scores, architecture)
    except ValueError as error:
        raise UsageError(str(error)) from error
    digests = [s.digest() for s in scores]
    masks = [
        HeadMask(
            towers={name: TowerKeep(num_heads=m.num_heads, keep=m.keep) for name, m in mask.items()},
            architecture=architecture.name,
            base=opened.checkpoint.digest,
            origin=_origin(config, scores, digests, member=i),
        )
        for i, mask in enumerate(chosen)
    ]
    files = [document_input(p, d) for p, d in zip(config.scores, digests, strict=True)]
    return masks, files if len(files) == len(masks) else files * len(masks)


def _given_mask(path: Path, opened: OpenModel, progress: Progress) -> HeadMask:
    mask = HeadMask.read(path)
    try:
        check_mask_fits(mask.towers, opened.header.architecture, where="towers")
    except ValueError as error:
        raise ManifestError(f"{path}: {error}", hint="is the mask for another model?") from error
    if mask.base is not None and mask.base != opened.checkpoint.digest:
        progress.warn(
            f"{path}: was made for another base than {opened.reference} (same architecture, other weights)"
        )
    return mask


def _given_scores(path: Path, opened: OpenModel, progress: Progress) -> HeadScores:
    scores = HeadScores.read(path)
    for name, tower in opened.header.architecture.towers.items():
        table = scores.towers[name].scores if name in scores.towers else ()
        if (len(table), len(table[0]) if table else 0) != (tower.layers, tower.num_heads):
            raise ManifestError(
                f"{path}: towers.{name}.scores is {len(table)} layers by {len(table[0]) if table else 0} heads, "
                f"but {opened.reference} has {tower.layers} by {tower.num_heads}",
                hint=f"score this model: `hydractl score {opened.reference} -o {path}`",
            )
    if scores.model.sha256 != opened.checkpoint.digest:
        progress.warn(f"{path}: scores were measured on other weights than those of {opened.reference}")
    return scores


def _choose(
    config: PruneConfig, scores: Sequence[HeadScores], architecture: Architecture
) -> Sequence[Mapping[str, TowerMask]]:
    budget = config.budget
    if budget is None:
        raise ValueError("no budget")
    shape = {name: TowerShape(t.layers, t.num_heads) for name, t in architecture.towers.items()}
    removals = budget.removals(shape)
    orders = [
        removal_order(
            {name: s.towers[name].scores for name in shape},
            [HeadId(r.tower, r.layer, r.head) for r in s.removals] if s.removals is not None else None,
        )
        for s in scores
    ]
    if config.pool is not None:
        sampling = Sampling(
            pool=config.pool, members=config.members, seed=config.seed, diverge_from=config.diverge_from
        )
        return sample_masks(orders[0], shape, removals=removals, sampling=sampling)
    if config.per_layer and budget.keep_per_layer is not None:
        masks = [best_mask_per_layer(order, shape, keep=budget.keep_per_layer) for order in orders]
    else:
        masks = [best_mask(order, shape, removals=removals) for order in orders]
    return share_before(masks, config.diverge_from)


def _origin(
    config: PruneConfig, scores: Sequence[HeadScores], digests: Sequence[str], *, member: int
) -> MaskOrigin:
    own = member if len(scores) > 1 else 0
    budget = config.budget
    options: dict[str, Option] = {
        "keep_per_layer": budget and budget.keep_per_layer,
        "remove": budget and budget.remove,
        "keep_fraction": budget and budget.keep_fraction,
        "per_layer": config.per_layer or None,
        "pool": config.pool,
        "diverge_from": config.diverge_from or None,
    }
    return MaskOrigin(
        strategy="sample" if config.pool is not None else "objectives" if len(scores) > 1 else "best",
        method=scores[own].method,
        scores=(digests[own],),
        budget={k: v for k, v in options.items() if v is not None},
        seed=config.seed if config.pool is not None else None,
        member=member,
        tool=TOOL,
    )


def _verify(opened: OpenModel, masks: Sequence[HeadMask], progress: Progress) -> list[float | None]:
    """Compare each pruned model with the masked base, in fp32 whatever is stored: slicing rounds nothing."""
    progress.step(
        f"Checking that {len(masks)} pruned {'member equals' if len(masks) == 1 else 'members equal'} the masked base"
    )
    header, family = opened.header, opened.family
    state = {k: v.float() if v.is_floating_point() else v for k, v in opened.checkpoint.tensors().items()}
    inputs = probe_inputs(header)
    found: list[float | None] = []
    for i, mask in enumerate(masks):
        sliced = {n: prune_tensor(family, header.architecture, mask.towers, n, t) for n, t in state.items()}
        pruned_header = header.model_copy(update={"kind": Kind.MEMBER, "masks": (mask.towers,)})
        with torch.inference_mode():
            pruned = build_checked(family, pruned_header, sliced, where=f"member {i}")(inputs)
            zeroed = zero_dropped(family, header.architecture, mask.towers, state)
            masked = build_checked(family, header, zeroed, where=opened.reference)(inputs)
        difference = largest_difference(pruned, masked)
        if not difference <= TOLERANCE:
            raise CheckFailed(
                f"member {i} differs from the masked base by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
                hint="are there non-finite weights? `--no-verify` skips the check",
            )
        found.append(difference)
    return found


def _member_header(
    config: PruneConfig, opened: OpenModel, mask: HeadMask, source: InputFile, *, member: int
) -> Header:
    origin = mask.origin
    step = make_step(
        "prune",
        family=opened.family,
        options={
            "strategy": origin.strategy if origin else "mask",
            "dtype": config.dtype,
            **(dict(origin.budget.items()) if origin else {}),
            "member": member,
        },
        inputs=[opened.as_input(), source],
        seed=origin.seed if origin else None,
        results={"verified": config.verify, "tolerance": TOLERANCE} if config.verify else {},
    )
    return opened.header.model_copy(
        update={
            "kind": Kind.MEMBER,
            "masks": (mask.towers,),
            "base": opened.header.base or opened.checkpoint.digest,
            "made_by": step,
        }
    )


def _data(opened: OpenModel, mask: HeadMask, specs: Mapping[str, TensorSpec], name: str) -> Chunks:
    """Return a member's tensor as chunks, copying bytes where nothing changes."""
    stored, wanted = opened.checkpoint.specs[name], specs[name]
    architecture = opened.header.architecture
    if stored == pruned_spec(opened.family, architecture, mask.towers, name, wanted):
        return opened.checkpoint.chunks(name)
    tensor = prune_tensor(opened.family, architecture, mask.towers, name, opened.checkpoint.tensor(name))
    return [tensor_bytes(tensor.to(getattr(torch, TORCH_NAMES[wanted.dtype])))]


def _described(
    opened: OpenModel,
    mask: HeadMask,
    specs: Mapping[str, TensorSpec],
    *,
    path: Path,
    difference: float | None,
) -> PrunedMember:
    """Count what was removed and compare with what the mask and the shapes say."""
    architecture = opened.header.architecture
    total = sum(t.layers * t.num_heads for t in architecture.towers.values())
    kept = sum(len(layer) for tower in mask.towers.values() for layer in tower.keep)
    size = _size(opened, mask.towers, specs)
    return PrunedMember(
        path=path,
        mask_path=mask_path(path),
        heads_kept=kept,
        heads_removed=total - kept,
        size=size,
        largest_difference=difference,
    )


def _size(opened: OpenModel, mask: Mapping[str, TowerKeep], specs: Mapping[str, TensorSpec]) -> Size:
    """Count parameters and bytes from the shapes, and MACs by running the model without data on the meta device."""
    model = opened.family.build(opened.header.architecture, mask, None)
    parameters = sum(p.numel() for p in model.parameters())
    stored = sum(prod(spec.shape) for spec in specs.values())
    held = sum(tensor.numel() for tensor in model.library_state().values())
    if stored != held:
        raise CheckpointError(f"{opened.reference}: shapes promise {stored} elements, the model has {held}")
    inputs = torch.empty(1, *opened.header.preprocess.input_size, device="meta")
    return Size(
        parameters=parameters,
        macs=count_macs(model, inputs),
        size_bytes=sum(s.size_bytes for s in specs.values()),
    )
