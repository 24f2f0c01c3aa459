"""Hydras that are measured before one is written: how much may be merged, and which temperature it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hydractl.errors import CheckFailed
from hydractl.families.load import OpenModel
from hydractl.fusion.build import hydra_from_state
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import Fusion
from hydractl.manifest.header import Fate, Header
from hydractl.messages import counted
from hydractl.progress import Progress
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.merge_quality import MergeEvaluator
from hydractl.stages.fuse.result import Measured, Outcome, Tried

HYDRA, ENSEMBLE = "the hydra", "the members' ensemble"


def search(
    config: FuseConfig,
    members: Sequence[OpenModel],
    fusion: Fusion,
    judge: MergeEvaluator,
    header_of: Callable[[Fusion], Header],
) -> Outcome:
    """Return what to write: with `auto` the hydra that merges most of those whose loss is small enough.

    Members are asked once, one by one; then one hydra at a time, merging less and less. Where nothing was averaged the hydra is
    its members and is not asked.

    Args:
        config: What was asked for.
        members: What is fused.
        fusion: The one that merges most.
        judge: Has the data.
        header_of: Describes a hydra.

    Raises:
        CheckFailed: If none is good enough.
    """
    data = config.measuring.data
    if data is None:
        hydra_log_probs = judge.log_probs_of(partial(_hydra, fusion, header_of), HYDRA)
        return Outcome(
            fusion=fusion, temperature=judge.temperature(hydra_log_probs, HYDRA), sources=judge.sources
        )
    member_log_probs = judge.log_probs_of_members(members)
    before, predicted = judge.quality(member_log_probs, judge.temperature(member_log_probs, ENSEMBLE))
    tried: list[Tried] = []
    for merge_trunk in range(fusion.merge_trunk, -1, -1):
        candidate = fusion.merging(merge_trunk)
        quality, classes = before, predicted
        if Fate.MERGED in candidate.fates.values():
            name = f"{HYDRA} merged before block {merge_trunk}" if config.auto else HYDRA
            hydra_log_probs = judge.log_probs_of(partial(_hydra, candidate, header_of), name)
            quality, classes = judge.quality(hydra_log_probs, judge.temperature(hydra_log_probs, name))
        tried.append(
            Tried(
                merge_trunk=merge_trunk,
                hydra=quality,
                loss=quality.nll - before.nll,
                agreement=float((classes == predicted).double().mean()),
            )
        )
        _tell(tried[-1], judge.progress)
        if not config.auto or tried[-1].loss <= (config.max_loss or 0.0):
            if config.auto and not merge_trunk:
                judge.progress.warn("merging any blocks costs more: every member keeps all of its own")
            items = judge.sets[data].inputs.dataset
            measured = Measured(data=items.name, samples=len(items), members=before, tried=tuple(tried))
            return Outcome(
                fusion=candidate, temperature=quality.temperature, measured=measured, sources=judge.sources
            )
    least = min(tried, key=lambda trial: trial.loss)
    raise CheckFailed(
        f"every hydra loses more than {config.max_loss or 0.0:g} nats; the best, `--merge-trunk {least.merge_trunk}`, loses "
        f"{least.loss:.4g}; nothing was written",
        hint=f"`--max-loss {least.loss:.2g}`, or leave `--mlp merge` out: members then keep what is not merged",
    )


def _hydra(fusion: Fusion, header_of: Callable[[Fusion], Header]) -> Hydra:
    state = {name: fusion.tensor(name) for name in fusion.specs}
    return hydra_from_state(header_of(fusion), state, where=HYDRA)


def _tell(tried: Tried, progress: Progress) -> None:
    progress.step(
        f"{counted(tried.merge_trunk, 'block')} merged: NLL {tried.hydra.nll:.4f}, {tried.loss:+.4f} over {ENSEMBLE}; accuracy "
        f"{tried.hydra.accuracy:.4f}, agreement {tried.agreement:.4f}"
    )
