"""fuse: fuse M members into a hydra, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from hydractl import progress
from hydractl.checkpoint import digest_together, spec_of, tensor_bytes, write_checkpoint
from hydractl.families.finite import check_finite_weights, warn_refusing
from hydractl.families.open_model import OpenModel, check_tensors, open_model
from hydractl.families.registry import expected_specs
from hydractl.fusion.build import Gap, verify
from hydractl.fusion.members import (
    check_members,
    check_one_start,
    check_own_blocks,
    check_trunk,
    common_temperature,
    largest_trunk,
    warn_of_copies,
)
from hydractl.fusion.plan import Fusion
from hydractl.manifest.header import Fate, FittedScores, Header, InputFile, samples_of
from hydractl.manifest.terms import Temperature, TemperatureFields
from hydractl.messages import counted
from hydractl.output.publish import is_stream
from hydractl.prediction.class_names import Naming, with_classes
from hydractl.prediction.feature_ood import Scores
from hydractl.prediction.merge_trunk import DensityFitter, MergeEvaluator, MergeMeasurement
from hydractl.prediction.run_models import Execution
from hydractl.processes.distributed import ProcessGroup, require_one_process, start_team
from hydractl.progress import stage
from hydractl.provenance.output import Output, make_step
from hydractl.stages import options as shared
from hydractl.stages.fuse.config import FuseConfig

UNKNOWN_DIGEST = f"sha256:{'0' * 64}"
"""Placeholder until the digest is known. It must have the same length, because the final header replaces the
first header in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseReport(TemperatureFields):
    """Result of `fuse`.

    Attributes:
        path: Output file.
        members: Number of members.
        layers: Number of blocks over all towers.
        trunk: Number of blocks that are computed once for all members.
        merge_trunk: Number of merged blocks of each tower, in which different tensors are averaged.
        tensors: Number of tensors with each fate.
        stored_bytes: Size of the tensors with each fate, in bytes.
        members_bytes: Size of the separate members, in bytes.
        gap: Difference from the members on a random batch; None without verification.
        measured: Effect of merging on labelled data; None without data.
        ood_scores: Names of stored OOD scores.
        ood_scores_bytes: Size of the stored OOD scores, in bytes.
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
    measured: MergeMeasurement | None
    ood_scores: tuple[str, ...]
    ood_scores_bytes: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return (self.path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Contents of the output.

    Attributes:
        fusion: Source of the fused tensors.
        temperature: Temperature to store.
        measured: Effect of merging; None without data to measure on.
        scores: Tensors of the OOD score; None without `--train`.
        fitted: Header entry of the OOD score; None without `--train`.
        sources: Provenance entries of the data sets.
    """

    fusion: Fusion
    temperature: Temperature
    measured: MergeMeasurement | None = None
    scores: Scores | None = None
    fitted: FittedScores | None = None
    sources: tuple[InputFile, ...] = ()


@stage
def run_fuse(config: FuseConfig) -> FuseReport:
    """Fuse members into a hydra.

    Memory contains a single tensor of every member at a time; for verification, a block of every member; for
    measurement, a hydra. Processes of a launcher share the measurements. The first process writes.

    Raises:
        CheckpointError: If the members do not fit together. This is checked before tensors are read.
        CheckFailed: If nothing was averaged but the hydra differs from its members, or every merge costs too
            much.
        OutputExists: If the output already exists.
        UsageError: If several processes were started, but there is no work to share.
        Interrupted: If another process of the run ended unexpectedly.
    """
    measuring = config.measuring
    if not measuring.refs:
        require_one_process("fuse")
    with (
        start_team() as team,
        Output.claim(config, [config.out], writes=team.leads) as output,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        members: Sequence[OpenModel] = [open_model(model) for model in config.models]
        files = [config.naming.file]
        output.check(config.out, models=members, data=measuring.refs, files=files, folders=True)
        trunk = _check(config, members)
        warn_refusing(members)
        temperature = (
            Temperature(measuring.given_temperature or 1.0)
            if measuring.given_temperature or measuring.temperature_data
            else common_temperature(members)
        )
        members = _with_classes(members, config.naming)
        evaluator, fitter = _open_data(config, members, team)
        members = evaluator.members if evaluator else members
        # The header contains the digests of the members. A file is written during hashing and gets its final
        # header at the end. A stream is written after hashing, because its header comes first.
        hashing = pool.submit(digest_together, [m.checkpoint for m in members])
        fusion = _plan(config, members, trunk)
        contents = _measure(config, fusion, temperature, evaluator, fitter)
        _warn_of_no_effect(config, contents.fusion)
        if config.verify or is_stream(config.out):
            hashing.result()
        gap = None
        if config.verify and team.leads:
            progress.step("Comparing hydra and members on a random batch")
            gap = verify(contents.fusion, seed=config.seed, place=str(config.out))
        if team.leads:
            _write(config, contents, hashing, output)
        team.broadcast("")  # the other processes end only after the output exists
    if not all(fusion.same.values()) and Fate.GROUPED in contents.fusion.fates.values():
        warn_of_copies(members)
    return _report(config, contents, gap)


def _check(config: FuseConfig, members: Sequence[OpenModel]) -> int:
    """Check from the headers if members can be fused. Return the number of merged blocks."""
    check_members(members)
    first = members[0]
    if not config.verify:  # verification checks the tensors of all members
        check_tensors(first.reference, first.checkpoint.specs, expected_specs(first.family, first.header))
    if config.own_blocks:
        check_own_blocks(first)
    trunk = largest_trunk(members) if config.auto else int(config.trunk or 0)
    check_trunk(members, trunk)
    # `choose` measures the loss of an average, so members of different bases get no trunk.
    if config.merges and not (config.force_merge or config.auto):
        check_one_start(members)
    return trunk


def _with_classes(members: Sequence[OpenModel], naming: Naming) -> Sequence[OpenModel]:
    """Return zero-shot members with embeddings of the named classes. Other members are returned unchanged."""
    classes = naming.classes(members[0])
    if classes is not None:
        progress.step(f"Encoding the names of {counted(len(classes.names), 'class', 'classes')}")
        return [with_classes(m, classes) for m in members]
    if members[0].header.prompting is not None:
        progress.warn(
            "the hydra has no class names yet: fuse with `--classes`, or give `--classes` to `eval`"
        )
    return members


def _open_data(
    config: FuseConfig, members: Sequence[OpenModel], team: ProcessGroup
) -> tuple[MergeEvaluator | None, DensityFitter | None]:
    """Open the data for measurement and calibration, and the data for the OOD score."""
    measuring, evaluator, fitter = config.measuring, None, None
    execution = Execution(
        batch_size=measuring.batch_size,
        workers=measuring.num_workers,
        max_length=measuring.max_length,
        device=measuring.device,
        team=team,
    )
    if measuring.labelled:
        evaluator = MergeEvaluator(members, measuring.labelled, execution)
        members = evaluator.members
    if measuring.train is not None and measuring.val is not None:
        fitter = DensityFitter.open(members[0], measuring.train, measuring.val, execution)
    return evaluator, fitter


def _plan(config: FuseConfig, members: Sequence[OpenModel], trunk: int) -> Fusion:
    """Determine the fate of each tensor. Check that all weights are finite."""
    progress.step(f"Comparing {counted(len(members), 'member')}")
    if config.auto and not trunk:
        progress.warn("members keep different heads in block 0, so no block is merged")
    own_from = trunk if config.own_blocks else None
    fusion = Fusion(members, mlp=config.mlps, merge_trunk=trunk, own_from=own_from)
    check_finite_weights(members[0])
    for member in members[1:]:  # equal tensors were already checked in the first member
        check_finite_weights(member, [name for name, identical in fusion.same.items() if not identical])
    return fusion


def _measure(
    config: FuseConfig,
    fusion: Fusion,
    temperature: Temperature,
    evaluator: MergeEvaluator | None,
    fitter: DensityFitter | None,
) -> Contents:
    """Choose the number of merged blocks, fit temperature and OOD score, and measure the hydra.

    Steps without data are left out.
    """
    measuring, measured = config.measuring, None
    fit_on = measuring.temperature_data
    if evaluator is not None and measuring.val is not None:
        limit = config.max_nll_increase if config.auto else None
        fusion, temperature, measured = evaluator.choose(
            fusion, measuring.val, fit_on or temperature, max_nll_increase=limit
        )
    elif evaluator is not None and fit_on is not None:
        temperature = evaluator.temperature_of(fusion, fit_on)
    contents = Contents(
        fusion=fusion,
        temperature=temperature,
        measured=measured,
        sources=evaluator.sources if evaluator else (),
    )
    if fitter is None:
        return contents
    scores, fitted = fitter.fit(fusion, temperature)
    # `--val` is already a source.
    return replace(contents, scores=scores, fitted=fitted, sources=(*contents.sources, fitter.source))


def _warn_of_no_effect(config: FuseConfig, fusion: Fusion) -> None:
    """Warn about options without an effect on these members."""
    if reason := fusion.sameness:
        progress.warn(reason)
    elif config.trunk == 0 and config.mlp is None and not config.own_blocks:
        progress.warn(
            "`--trunk 0` averages nothing, not even MLPs: every tensor that differs is stored "
            "for each member; leave it out or add `--mlp merge` to average MLPs"
        )
    elif config.trunk and not (config.auto or config.own_blocks or fusion.averages):
        progress.warn(
            f"`--trunk {config.trunk}` averages nothing, because members are equal before that block"
        )
    elif config.mlp == "merge" and not fusion.averages:
        progress.warn("`--mlp merge` averages nothing, because MLPs are equal")
    if fusion.own_from is not None and not fusion.separates_equal:
        progress.warn(
            "`--own-blocks` has no effect: all tensors after the trunk differ between members anyway"
        )


def _header(config: FuseConfig, contents: Contents, *, digest: str | None = None) -> Header:
    """Return the header of the hydra. If given, `digest` replaces the digests of the members."""
    fusion, measured, measuring = contents.fusion, contents.measured, config.measuring
    step = make_step(
        config,
        family=fusion.family,
        options={
            "mlp": config.mlps,
            "merge_trunk": shared.AUTO if config.auto else config.trunk,
            "own_from": fusion.own_from,
            "max_loss": config.max_nll_increase if config.auto else None,
            "temperature": measuring.given_temperature,
            "fitted": None if contents.fitted is None else contents.fitted.scores,
            "max_length": measuring.max_length,
            "force_merge": config.force_merge or None,
            "classes": config.naming.names or None,
            "templates": config.naming.templates or None,
        },
        inputs=[*(m.as_input(digest=digest) for m in fusion.members), *contents.sources],
        seed=config.seed if config.verify else None,
        results=({"verified": True} if config.verify else {})
        | ({} if measured is None else measured.results())
        | ({} if measuring.temperature_data is None else {"temperature": contents.temperature.common}),
    )
    update: dict[str, object] = {
        **contents.temperature.fields,
        "fitted": contents.fitted,
        "samples": samples_of(contents.sources, *(m.header for m in fusion.members)),
        "made_by": step,
    }
    return fusion.header.model_copy(update=update)


def _write(config: FuseConfig, contents: Contents, hashing: Future[None], output: Output) -> None:
    """Publish the hydra. Digests of members are inserted at the end if hashing has not finished."""
    progress.step(f"Writing {config.out}")
    digest = None if hashing.done() else UNKNOWN_DIGEST

    def final() -> Header:
        hashing.result()
        return _header(config, contents)

    fusion, header = contents.fusion, _header(config, contents, digest=digest)
    beside = {} if contents.scores is None else contents.scores.tensors()
    with output.publish() as begin:
        write_checkpoint(
            begin(config.out, header),
            fusion.specs | {name: spec_of(tensor) for name, tensor in beside.items()},
            lambda name: [tensor_bytes(beside[name])] if name in beside else fusion.chunks(name),
            header=header,
            final=final if digest else None,
        )


def _report(config: FuseConfig, contents: Contents, gap: Gap | None) -> FuseReport:
    fusion = contents.fusion
    return FuseReport(
        path=config.out,
        members=len(fusion.members),
        layers=sum(tower.layers for tower in fusion.towers.values()),
        trunk=fusion.plan.trunk,
        merge_trunk=fusion.merge_trunk,
        **contents.temperature.fields,
        tensors={fate.value: [*fusion.fates.values()].count(fate) for fate in Fate},
        stored_bytes={
            fate.value: sum(fusion.specs[n].size_bytes for n in fusion.fates if fusion.fates[n] == fate)
            for fate in Fate
        },
        members_bytes=sum(m.checkpoint.size_bytes for m in fusion.members),
        gap=gap,
        measured=contents.measured,
        ood_scores=() if contents.fitted is None else contents.fitted.scores,
        ood_scores_bytes=0 if contents.scores is None else contents.scores.size,
    )
