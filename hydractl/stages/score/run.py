"""score: scores the importance of each attention head."""

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
from hydractl.fusion.feature_ood import FeatureExtractor
from hydractl.fusion.prompts import Classes
from hydractl.heads.budget import COMMON_KEEP_FRACTION, HeadBudget, total_heads
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.head_mask import HeadScores, TowerHeads, TowerScores
from hydractl.manifest.header import Architecture, Kind, samples_of
from hydractl.messages import counted
from hydractl.plugins import load
from hydractl.processes.distributed import ProcessGroup, own_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.runtime import torch_dtype
from hydractl.scoring.circuit.outcomes import check_halves
from hydractl.scoring.job import Ranking, Samples, ScoreJob
from hydractl.scoring.settings import BudgetMeaning
from hydractl.stages.score.config import ScoreConfig, ScoreReport
from hydractl.stages.score.journal import MethodRun, open_journal
from hydractl.stages.shared.finite import check_finite
from hydractl.stages.shared.mask_selection import quota_of
from hydractl.stages.shared.open_inputs import RepeatedBatches, data_input, labels_of, open_reader, open_sets
from hydractl.stages.shared.outputs import check_outputs, claim, resumable
from hydractl.stages.shared.provenance import TOOL, make_step
from hydractl.stages.shared.zero_shot_classes import ask
from hydractl.training.run_log import open_run_log

LEAST_KEPT = {BudgetMeaning.KEPT: 1, BudgetMeaning.CHOICE: 1}
"""Least number of kept heads, by the meaning of the budget."""


class ScoreInputs(NamedTuple):
    """Inputs of a method.

    Attributes:
        opened: The base.
        sets: Its data sets by role.
        classes: The classes of a zero-shot model.
        scored: The towers to score.
        keep: Number of heads that each layer keeps, for methods that score layer by layer.
        removals: Total number of heads to remove, for greedy methods.
    """

    opened: OpenModel
    sets: Mapping[str, Items]
    classes: Classes | None
    scored: Mapping[str, TowerHeads]
    keep: int
    removals: int


def run_score(config: ScoreConfig, progress: Progress = SILENT) -> ScoreReport:
    """Score every head of a base and write the scores file.

    A greedy run writes a journal, from which an interrupted run resumes. The output has the same bytes after a resumption
    and with any number of processes, which share the batches; the first writes.

    Raises:
        InputError: If the model or the data cannot be used.
        OutputExists: If the output or the journal of another run already exists, or another command is writing it.
        Interrupted: If another process of the run ended unexpectedly.
    """
    with (
        resumable(config.out, force=config.force),
        start_team(own_device(config.device)) as team,
        claim(config, [config.out] * team.leads, progress) as output_lock,
    ):
        opened = open_base(config)
        method_run: MethodRun = load(config.entry.method_run)() if config.entry.method_run else MethodRun()
        if team.leads:  # once: another process may come here when the first one has written
            check_outputs(
                [config.out],
                force=output_lock.may_replace,
                models=[opened],
                data=config.references.values(),
                files=[config.naming.file],
            )
            method_run.check(config, opened, output_lock)
        scored = scored_towers(config, opened.header.architecture)
        keep, removals = amounts(config, scored, progress)
        sets = open_sets(opened, config.references, progress, workers=config.num_workers)
        classes = config.naming.classes(opened, data=sets["id"].class_names if "id" in sets else ())
        inputs = ScoreInputs(opened, sets, classes, scored, keep, removals)
        document = _describe(config, inputs, team)
        journal = open_journal(config, document, heads=scored, team=team, progress=progress)
        method_run.open_state(config, opened, document, progress)
        team.in_order(())  # all have read the state before one writes it
        job = replace(make_job(config, inputs, team, method_run, progress), log=journal)
        progress.step(f"Scoring {counted(total_heads(scored), 'head')} by {config.method}")
        with open_run_log(
            config.log_to,
            config.log_dir,
            out=config.out,
            options={"model": config.model, "method": config.method, **document.options},
            resumes=bool(journal.recorded or method_run.resumes),
            leads=team.leads,
        ) as journal.run_log:
            try:
                ranking: Ranking = load(config.entry.run)(job, progress)
            except CheckFailed:
                # a training that failed would fail again; data that cannot be read now may be readable later
                if team.leads:
                    method_run.clear_state()
                raise
        towers = {
            name: TowerScores(scores=tuple(tuple(row) for row in table))
            for name, table in ranking.scores.items()
        }
        step = make_step(config, family=opened.family, options={}, inputs=(), results=ranking.results)
        scores = document.model_copy(
            update={
                "towers": towers,
                "removals": ranking.removals,
                "baseline": ranking.baseline,
                "clusters": ranking.clusters,
                **step.model_dump(include={"results", "versions", "config_digest", "argv"}),
            }
        )
        if team.leads:
            scores = method_run.publish(config, opened, scores, ranking, output_lock)
            journal.discard()
            method_run.clear_state()
    return ScoreReport(
        path=config.out,
        scores=scores,
        resumed_from=len(journal.recorded),
        default_budget=config.budget is None
        and config.settings.budget_means not in {BudgetMeaning.NOTHING, BudgetMeaning.CHOICE},
        trained=next((path for path in config.output_files() if path != config.out), None),
    )


def open_base(config: ScoreConfig) -> OpenModel:
    """Open the model to score.

    Raises:
        CheckpointError: If it is missing, malformed or not a base.
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
            f"{config.model}: is a {opened.header.kind}, but `score` needs a base",
            hint="score its base",
        )
    task = opened.header.architecture.task
    if config.method == "cahp" and not task.has_one_question:
        raise UsageError(
            f"`--method {config.method}`: compares classes of inputs, but {config.model} answers {task.labels}",
            hint="use another method, such as `--method taylor`",
        )
    return opened


def scored_towers(config: ScoreConfig, architecture: Architecture) -> dict[str, TowerHeads]:
    """Return the towers to score."""
    for name in config.towers:
        if name not in architecture.towers:
            raise UsageError(
                f"`--towers {name}`: {config.model} has no such tower",
                hint=f"it has {', '.join(architecture.towers)}",
            )
    return {n: t for n, t in architecture.towers.items() if not config.towers or n in config.towers}


def amounts(config: ScoreConfig, towers: Mapping[str, TowerHeads], progress: Progress) -> tuple[int, int]:
    """Return the number of heads per layer to keep (methods by layer) and the total number to remove (greedy methods)."""
    means = config.settings.budget_means
    budget = config.budget or HeadBudget(keep_fraction=COMMON_KEEP_FRACTION)
    removals, keep = quota_of(budget, towers).removals, budget.kept_a_layer(towers)
    if config.budget is not None and means == BudgetMeaning.NOTHING:
        progress.warn(
            f"`{config.budget.option_text}` has no effect: scores by `{config.method}` do not depend "
            "on the budget; give it to `prune`"
        )
    layers, total = sum(t.layers for t in towers.values()), total_heads(towers)
    kept_heads = total - removals
    if not LEAST_KEPT.get(means, 0) <= kept_heads <= total - (means == BudgetMeaning.KEPT):
        raise UsageError(
            f"`--method {config.method}`: keeping {kept_heads} of {counted(total, 'head')} leaves nothing to select",
            hint="for example `--keep-fraction 0.5`",
        )
    if means == BudgetMeaning.KEEP and config.budget is not None and keep * layers != kept_heads:
        progress.warn(
            f"`--method {config.method}` keeps the same number of heads in each layer: {keep} each, "
            f"{counted(keep * layers, 'head')} in total; `{config.budget.option_text}` keeps {kept_heads}"
        )
    return keep, removals


def _options(config: ScoreConfig, inputs: ScoreInputs) -> dict[str, OptionValue]:
    """Return the options that shape the scores, and no others."""
    means, reads, classes = config.settings.budget_means, config.entry.needs_data, inputs.classes
    counts_kept = means == BudgetMeaning.KEPT or (means == BudgetMeaning.CHOICE and config.budget is not None)
    options: dict[str, OptionValue] = {
        **config.settings.options(),
        "removals": inputs.removals if means == BudgetMeaning.REMOVALS else None,
        "keep": inputs.keep if means == BudgetMeaning.KEEP else None,
        "kept": total_heads(inputs.scored) - inputs.removals if counts_kept else None,
        "seed": config.seed if config.entry.seeded or config.limit is not None else None,
        "batch_size": config.batch_size if reads else None,
        "limit": config.limit if reads else None,
        "dtype": config.dtype if reads else None,
        "max_length": config.max_length if reads else None,
        "towers": config.towers or None,
        "classes": None if classes is None else classes.names,
        "templates": None if classes is None else classes.templates,
    }
    return {name: option for name, option in options.items() if option is not None}


def _describe(config: ScoreConfig, inputs: ScoreInputs, team: ProcessGroup) -> HeadScores:
    """Return the scores file without its scores: everything that decides them."""
    files = {
        role: data_input(item_set, team, _drawn_indices(config, item_set) if role == "id" else None)
        for role, item_set in inputs.sets.items()
    }
    return HeadScores(
        method=config.method,
        objective=config.settings.objective,
        options=_options(config, inputs),
        model=Fingerprint(reference=inputs.opened.as_input().name, sha256=inputs.opened.checkpoint.digest),
        architecture=inputs.opened.header.architecture.name,
        data={
            role: Fingerprint(
                reference=config.references[role], sha256=file.sha256, count=inputs.sets[role].total
            )
            for role, file in files.items()
        },
        towers={},
        samples=samples_of(files.values()),
        tool=TOOL,
    )


def make_job(
    config: ScoreConfig, inputs: ScoreInputs, team: ProcessGroup, method_run: MethodRun, progress: Progress
) -> ScoreJob:
    """Return the job of the method, without its log."""
    opened, device = inputs.opened, own_device(config.device)
    model = load_model(opened, dtype=torch_dtype(config.dtype) if config.dtype else None)
    check_finite(model.library_state(), where=config.model, dtype=config.dtype)
    model = model.to(device)
    ask(model, opened, inputs.classes)
    like = torch.empty(0, device=device, dtype=model.dtype)
    deal = BatchShare(team.rank, team.world, as_given=config.entry.as_given)
    batches: dict[str, Iterable[Samples]] = {}
    training: object = None
    for role, item_set in inputs.sets.items():
        labels = labels_of(opened, item_set, inputs.classes, progress)[0] if role == "id" else None
        indices = None if labels is None else _drawn_indices(config, item_set)
        cached = encoded(
            item_set, opened.header.preprocess, batch_size=config.batch_size, indices=indices, deal=deal
        )
        batches[role] = RepeatedBatches(cached, labels, like)
        if labels is not None:
            training = method_run.training(config, opened, item_set, labels, indices)
            if config.settings.needs_features:
                check_halves(labels if indices is None else labels[indices])
    return ScoreJob(
        model=model,
        family=opened.family,
        architecture=opened.header.architecture,
        id_data=batches.get("id", ()),
        ood_data=batches.get("ood", ()),
        settings=config.settings,
        keep=inputs.keep,
        budget=inputs.removals,
        free=config.budget is None,
        towers=tuple(inputs.scored),
        seed=config.seed,
        max_memory=config.max_memory,
        compiles=config.model if config.compile else None,
        team=team,
        training=training,
        features=FeatureExtractor.of(model, opened.family, name=config.model)
        if config.settings.needs_features
        else None,
    )


def _drawn_indices(config: ScoreConfig, item_set: Items) -> torch.Tensor | None:
    """Return the positions of the samples that a limit draws, None without one."""
    if config.limit is None or config.limit >= len(item_set):
        return None
    return epoch_order(len(item_set), seed=config.seed, epoch=0)[: config.limit].sort().values
