"""score: how much does each head matter?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from hydractl.data.batches import BatchShare, epoch_order
from hydractl.data.datasets import Items
from hydractl.data.encode import encoded
from hydractl.errors import CheckFailed, CheckpointError, UsageError
from hydractl.families.load import OpenModel, load_model
from hydractl.heads.budget import COMMON_KEEP_FRACTION, HeadBudget, total_heads
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.head_mask import HeadScores, TowerHeads, TowerScores
from hydractl.manifest.header import Architecture, InputFile, Kind
from hydractl.messages import counted
from hydractl.output.locks import OutputLock
from hydractl.processes.distributed import ProcessGroup, own_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.runtime import digest_text, torch_dtype
from hydractl.scoring.job import Ranking, Samples, ScoreJob
from hydractl.scoring.settings import BudgetMeaning
from hydractl.stages.score.config import ScoreConfig, ScoreReport
from hydractl.stages.score.journal import ScoreJournal, open_journal
from hydractl.stages.score.training import (
    State,
    check_training,
    offered,
    open_state,
    publish_scores,
    settings_of,
)
from hydractl.stages.shared.command_config import config_digest, recorded_argv
from hydractl.stages.shared.finite import check_finite
from hydractl.stages.shared.mask_selection import quota_of
from hydractl.stages.shared.open_inputs import RepeatedBatches, digests, labels_of, open_reader, open_sets
from hydractl.stages.shared.output_record import TOOL, library_versions
from hydractl.stages.shared.outputs import check_outputs, claim, resumable
from hydractl.stages.shared.zero_shot_classes import Classes, ask


class Run(NamedTuple):
    """Who scores, from where on, and who hears of it."""

    team: ProcessGroup
    state: State
    progress: Progress


def run_score(config: ScoreConfig, progress: Progress = SILENT) -> ScoreReport:
    """Score every head of a base and write the scores file.

    A greedy run keeps a journal beside the output: interrupted and started again, it goes on where it was and
    ends with the same bytes. Several processes that a launcher started share the batches; they end with the same
    bytes too, and the first of them writes.

    Raises:
        InputError: If the model or the data cannot be used.
        OutputExists: If the output is there already, or what another run left of it, or another command makes it.
        Interrupted: If another process of the run ended before its time.
    """
    with (
        resumable(config.out, force=config.force),
        start_team(own_device(config.device)) as team,
        claim(config, [config.out] * team.leads, progress) as output_lock,
    ):
        return _run(config, team, output_lock, progress)


def _run(config: ScoreConfig, team: ProcessGroup, output_lock: OutputLock, progress: Progress) -> ScoreReport:
    opened = open_base(config)
    if team.leads:  # once: another process may come here when the first one has written
        check_outputs(
            [config.out],
            force=output_lock.may_replace,
            models=[opened],
            data=[config.data if config.entry.needs_data else None, config.ood],
            files=[config.naming.file],
        )
        check_training(config, opened, output_lock)
    architecture = opened.header.architecture
    scored = scored_towers(config, architecture)
    heads = total_heads(scored)
    keep, removals = amounts(config, scored, progress)
    options = _options(config, keep=keep, removals=removals, total=heads)
    references = {"id": config.data if config.entry.needs_data else None, "ood": config.ood}
    sets = open_sets(opened, references, progress, workers=config.num_workers)
    classes = config.naming.classes(opened, data=sets["id"].class_names if "id" in sets else ())
    if classes is not None:
        options |= {"classes": classes.names, "templates": classes.templates}
    data = {
        role: Fingerprint(
            reference=ref, sha256=sets[role].fingerprint(digests(sets[role], team)), count=len(sets[role])
        )
        for role, ref in references.items()
        if ref is not None
    }
    document = _document(config, opened, options, data)
    journal = open_journal(
        config,
        ScoreJournal(fingerprint=digest_text(document.to_json()), settings=settings_of(document)),
        heads=scored,
        team=team,
        progress=progress,
    )
    if journal.recorded:
        progress.step(f"Going on after {counted(len(journal.recorded), 'removal')} of an interrupted run")
    state = open_state(config, opened, document, progress)
    team.in_order(())  # all have read the state before one writes it
    job = make_job(config, opened, classes, sets, Run(team, state, progress))
    job = replace(
        job, towers=tuple(scored), keep=keep, budget=removals, free=config.budget is None, log=journal
    )
    progress.step(f"Scoring {counted(heads, 'head')} by {config.method}")
    ranking = _ranking(config, job, state, progress)
    scores = document.model_copy(
        update={
            "towers": {
                n: TowerScores(scores=tuple(tuple(row) for row in table))
                for n, table in ranking.scores.items()
            },
            "removals": ranking.removals,
            "baseline": ranking.baseline,
            "clusters": ranking.clusters,
            "results": dict(ranking.results),
            "versions": library_versions(opened.family),
            "asked": config_digest(config),
            "typed": recorded_argv(config),
        }
    )
    inputs = tuple(
        InputFile(name=sets[role].name, sha256=fingerprint.sha256) for role, fingerprint in data.items()
    )
    if team.leads:
        scores = publish_scores(config, opened, scores, ranking, inputs=inputs, claim=output_lock)
        journal.discard()
        state.clear()
    unasked = config.budget is None and config.settings.budget_means in {
        BudgetMeaning.REMOVALS,
        BudgetMeaning.KEEP,
        BudgetMeaning.KEPT,
    }
    return ScoreReport(
        path=config.out,
        scores=scores,
        resumed_from=len(journal.recorded),
        default_budget=unasked,
        trained=config.trained,
    )


def open_base(config: ScoreConfig) -> OpenModel:
    """Open the model whose heads are scored.

    Raises:
        CheckpointError: If it is missing or malformed, or no base.
        UsageError: As `open_reader`.
    """
    opened = open_reader(
        config.model,
        arch=config.arch,
        seed=config.seed,
        max_length=config.max_length,
        reads=config.entry.needs_data,
    )
    if opened.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{config.model}: is a {opened.header.kind}, but heads are scored in a base",
            hint="score the base it came from",
        )
    return opened


def _ranking(config: ScoreConfig, job: ScoreJob, state: State, progress: Progress) -> Ranking:
    """Run the method; a training that failed would fail again, so it leaves nothing to go on with.

    Data that cannot be read now may be so later.
    """
    try:
        return config.entry.run(job, progress)
    except CheckFailed:
        if job.team.leads:
            state.clear()
        raise


def scored_towers(config: ScoreConfig, architecture: Architecture) -> dict[str, TowerHeads]:
    """Return the towers whose heads are scored."""
    for name in config.towers:
        if name not in architecture.towers:
            raise UsageError(
                f"`--towers {name}`: {config.model} has no such tower",
                hint=f"it has {', '.join(architecture.towers)}",
            )
    return {n: t for n, t in architecture.towers.items() if not config.towers or n in config.towers}


def amounts(config: ScoreConfig, towers: Mapping[str, TowerHeads], progress: Progress) -> tuple[int, int]:
    """Return how many heads a layer keeps (methods by layer) and how many go in all (greedy methods)."""
    means, budget = (
        config.settings.budget_means,
        config.budget or HeadBudget(keep_fraction=COMMON_KEEP_FRACTION),
    )
    removals, keep = quota_of(budget, towers).removals, budget.kept_a_layer(towers)
    if config.budget is not None and means == BudgetMeaning.NOTHING:
        progress.warn(
            f"`{config.budget.option_text}` has no effect: scores by `{config.method}` are the same for every budget, which "
            "`prune` takes"
        )
    layers = sum(t.layers for t in towers.values())
    kept_heads = total_heads(towers) - removals
    if means == BudgetMeaning.KEEP and config.budget is not None and keep * layers != kept_heads:
        progress.warn(
            f"`--method {config.method}` scores layers that keep equally many heads: {keep} each, "
            f"{counted(keep * layers, 'head')} in all; `{config.budget.option_text}` keeps {kept_heads}"
        )
    return keep, removals


def _options(config: ScoreConfig, *, keep: int, removals: int, total: int) -> dict[str, OptionValue]:
    """Return the options that shape the scores, and no others."""
    means = config.settings.budget_means
    options: dict[str, OptionValue] = config.settings.options()
    if means == BudgetMeaning.REMOVALS:
        options["removals"] = removals
    if means == BudgetMeaning.KEEP:
        options["keep"] = keep
    if means == BudgetMeaning.KEPT or (means == BudgetMeaning.CHOICE and config.budget is not None):
        options["kept"] = total - removals
    if config.entry.seeded or config.sample_limit is not None:
        options["seed"] = config.seed
    if config.entry.needs_data:
        options |= {"batch_size": config.batch_size, "limit": config.sample_limit, "dtype": config.dtype}
        options |= {"max_length": config.max_length}
    if config.towers:
        options["towers"] = config.towers
    return {k: v for k, v in options.items() if v is not None}


def _document(
    config: ScoreConfig, opened: OpenModel, options: Mapping[str, OptionValue], data: dict[str, Fingerprint]
) -> HeadScores:
    """Return the scores file without its scores: everything that decides them."""
    return HeadScores(
        method=config.method,
        objective=config.settings.objective,
        options=dict(options),
        model=Fingerprint(reference=opened.as_input().name, sha256=opened.checkpoint.digest),
        architecture=opened.header.architecture.name,
        data=data,
        towers={},
        tool=TOOL,
    )


def make_job(
    config: ScoreConfig,
    opened: OpenModel,
    classes: Classes | None,
    sets: Mapping[str, Items],
    run: Run,
) -> ScoreJob:
    """Return what the method is given, but for its amounts and its log."""
    device = own_device(config.device)
    dtype = torch_dtype(config.dtype) if config.dtype else None
    model = load_model(opened, dtype=dtype)
    check_finite(model.library_state(), where=config.model, dtype=config.dtype)
    model = model.to(device)
    ask(model, opened, classes)
    like = torch.empty(0, device=device, dtype=model.dtype)
    loaded = {}
    training = None
    for role, item_set in sets.items():
        labels = labels_of(opened, item_set, classes, run.progress)[0] if role == "id" else None
        loaded[role] = _samples(config, opened, item_set, labels=labels, like=like, team=run.team)
        if labels is not None and config.entry.trains:
            chosen = _chosen(config, item_set)
            training = offered(config, opened, item_set, labels, indices=chosen, state=run.state)
    return ScoreJob(
        model=model,
        family=opened.family,
        architecture=opened.header.architecture,
        id_data=loaded.get("id", ()),
        ood_data=loaded.get("ood", ()),
        settings=config.settings,
        seed=config.seed,
        max_memory=config.max_memory,
        compiles=config.model if config.compile else None,
        team=run.team,
        training=training,
    )


def _samples(
    config: ScoreConfig,
    opened: OpenModel,
    item_set: Items,
    *,
    labels: torch.Tensor | None,
    like: torch.Tensor,
    team: ProcessGroup,
) -> Iterable[Samples]:
    """Return this process's batches on the device and in the dtype of `like`; held in memory where they fit."""
    indices = None if labels is None else _chosen(config, item_set)
    how, size = opened.header.preprocess, config.batch_size
    deal = BatchShare(team.rank, team.world, as_given=config.entry.as_given)
    cached = encoded(item_set, how, batch_size=size, indices=indices, deal=deal)
    return RepeatedBatches(cached, labels, like)


def _chosen(config: ScoreConfig, item_set: Items) -> torch.Tensor | None:
    """Return the positions of the samples that a limit draws, None without one."""
    if config.sample_limit is None or config.sample_limit >= len(item_set):
        return None
    return epoch_order(len(item_set), seed=config.seed, epoch=0)[: config.sample_limit].sort().values
