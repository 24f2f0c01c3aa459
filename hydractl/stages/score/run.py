"""score: compute the importance of each attention head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hydractl import progress
from hydractl.errors import CheckFailed
from hydractl.families.open_model import OpenModel
from hydractl.heads.budget import COMMON_KEEP_FRACTION, HeadBudget, total_heads
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.head_mask import HeadImportance
from hydractl.manifest.header import SampledFile, samples_of
from hydractl.messages import counted
from hydractl.plugins import load
from hydractl.prediction.open_inputs import labels_of, open_sets
from hydractl.processes.distributed import own_device, start_team
from hydractl.progress import stage
from hydractl.provenance.output import TOOL, Output, make_step, resumable
from hydractl.pruning.selection import quota_of
from hydractl.scoring.inputs import (
    check_budget,
    data_files,
    drawn_indices,
    load_base,
    open_base,
    open_job,
    scored_towers,
)
from hydractl.scoring.job import MethodRun, Ranking, ScoreInputs
from hydractl.scoring.journal import open_journal
from hydractl.scoring.settings import BudgetMeaning
from hydractl.stages.score.config import ScoreConfig, ScoreReport
from hydractl.training.run_log import open_run_log


@stage
def run_score(config: ScoreConfig) -> ScoreReport:
    """Compute the importance of every head of a base, and write the scores file.

    A greedy search writes a journal. An interrupted run resumes from the journal. The output has the same
    bytes after a resumption and for any number of processes. Processes share the batches; the first process
    writes.

    Raises:
        InputError: If the model or the data cannot be used.
        OutputExists: If the output or the journal of another run already exists, or another command is
            writing it.
        Interrupted: If another process of the run ended unexpectedly.
    """
    entry, settings, device = config.entry, config.settings, own_device(config.device)
    with (
        resumable(config.out, force=config.force),
        start_team(device) as team,
        Output.claim(config, [config.out], writes=team.leads) as output,
    ):
        model_file = open_base(
            config.model, entry, arch=config.arch, seed=config.seed, max_length=config.max_length
        )
        method_run: MethodRun = (
            load(entry.method_run)(config, model_file) if entry.method_run else MethodRun()
        )
        # only in the first process, because the output may already exist when other processes arrive here
        if team.leads:
            output.check(
                config.out,
                models=[model_file],
                data=config.references.values(),
                files=[config.naming.file],
            )
            method_run.check(output)
        inputs = _open_inputs(config, model_file)
        document = _describe(config, inputs, data_files(inputs, team))
        journal = open_journal(
            config.out,
            document,
            heads=inputs.scored,
            team=team,
            force=config.force,
            if_changed=config.if_changed,
        )
        method_run.open_state(document)
        team.in_order(())  # all processes must have read the state before the first process writes it
        model = load_base(inputs, device=device, dtype=config.dtype)
        job = replace(
            open_job(inputs, model, entry, settings, team=team, batch_size=config.batch_size),
            free=config.budget is None,
            seed=config.seed,
            max_memory=config.max_memory,
            compiles=config.model if config.compile else None,
            log=journal,
            training=method_run.training(inputs),
        )
        progress.step(f"Scoring {counted(total_heads(inputs.scored), 'head')} by {config.method}")
        with open_run_log(
            config.log_to,
            config.log_dir,
            out=config.out,
            options={"model": config.model, "method": config.method, **document.options},
            resumes=bool(journal.recorded or method_run.resumes),
            leads=team.leads,
        ) as journal.run_log:
            try:
                ranking: Ranking = load(entry.run)(job)
            except CheckFailed:
                # A diverged training would diverge again, so its state is removed. After other errors the
                # state is kept, because unreadable data may become readable.
                if team.leads:
                    method_run.clear_state()
                raise
        step = make_step(config, family=model_file.family, options={}, inputs=(), results=ranking.results)
        made_by = step.model_dump(include={"results", "versions", "config_digest", "argv"})
        scores = document.model_copy(update=ranking.recorded() | made_by)
        if team.leads:
            scores = method_run.publish(config.out, scores, ranking, output)
            journal.discard()
            method_run.clear_state()
    return ScoreReport(
        path=config.out,
        scores=scores,
        resumed_from=len(journal.recorded),
        default_budget=config.budget is None
        and settings.budget_means not in {BudgetMeaning.NOTHING, BudgetMeaning.CHOICE},
        trained=next((path for path in config.output_files() if path != config.out), None),
    )


def _open_inputs(config: ScoreConfig, model_file: OpenModel) -> ScoreInputs:
    scored = scored_towers(model_file, config.towers)
    budget = config.budget or HeadBudget(keep_fraction=COMMON_KEEP_FRACTION)
    removals, keep = quota_of(budget, scored).removals, budget.mean_kept_per_layer(scored)
    means = config.settings.budget_means
    check_budget(config.method, means, config.budget, scored, keep=keep, removals=removals)
    sets = open_sets(model_file, config.references, workers=config.num_workers)
    data = sets.get("id")
    classes = config.naming.classes(model_file, data=data.class_names if data else ())
    return ScoreInputs(
        model_file=model_file,
        scored=scored,
        keep=keep,
        removals=removals,
        sets=sets,
        classes=classes,
        labels=None if data is None else labels_of(model_file, data, classes)[0],
        sample_indices=drawn_indices(data, config.limit, seed=config.seed),
    )


def _describe(config: ScoreConfig, inputs: ScoreInputs, files: Mapping[str, SampledFile]) -> HeadImportance:
    """Return the scores file without importances, with all values that determine importances."""
    means, reads_data, classes = config.settings.budget_means, config.entry.needs_data, inputs.classes
    counts_kept = means == BudgetMeaning.KEPT or (means == BudgetMeaning.CHOICE and config.budget is not None)
    options: dict[str, OptionValue] = {
        **config.settings.options(),
        "removals": inputs.removals if means == BudgetMeaning.REMOVALS else None,
        "keep": inputs.keep if means == BudgetMeaning.KEEP else None,
        "kept": total_heads(inputs.scored) - inputs.removals if counts_kept else None,
        "seed": config.seed if config.entry.seeded or config.limit is not None else None,
        "batch_size": config.batch_size if reads_data else None,
        "limit": config.limit if reads_data else None,
        "dtype": config.dtype if reads_data else None,
        "max_length": config.max_length if reads_data else None,
        "towers": config.towers or None,
        "classes": None if classes is None else classes.names,
        "templates": None if classes is None else classes.templates,
    }
    model_file = inputs.model_file
    return HeadImportance(
        method=config.method,
        objective=config.settings.objective,
        options={name: option for name, option in options.items() if option is not None},
        model=Fingerprint(reference=model_file.as_input().name, sha256=model_file.checkpoint.digest),
        architecture=model_file.header.architecture.name,
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
