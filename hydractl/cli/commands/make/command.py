"""`hydractl make`: one command from checkpoints to a verdict."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import replace

from hydractl.cli.command import command
from hydractl.cli.commands.make.config import (
    HYDRA,
    MODEL,
    PAGE,
    PLAN,
    REPORT,
    TESTED,
    THRESHOLD,
    MakeConfig,
    from_script,
)
from hydractl.cli.commands.make.held_out import check_held_out
from hydractl.cli.commands.run.pipeline import literal
from hydractl.cli.commands.run.plan import read_back, run_plan, written
from hydractl.cli.output import Terminal, console, line, written_out
from hydractl.messages import counted


@command(MakeConfig)
def make(config: MakeConfig, terminal: Terminal) -> None:
    r"""Make a hydra from trained checkpoints and compare it with them.

    Imports what a training script saved, fuses the models with the longest trunk that `--val` allows, fits the temperature and
    the OOD score, measures the hydra beside the ensemble and each model, finds the threshold below which it may answer, and
    writes a page. The same command resumes an interrupted run, as does `hydractl run DIR/make.toml`. `--keep FILE` with `--dry-run` saves
    that pipeline to edit it first.

    Examples:
      hydractl make a.st b.st c.st --train train/ --val val/ --test test/ -o out/
      hydractl make run1/model_best.pth.tar run2/model_best.pth.tar --ema \
        --val val/ --test test/ --near birds=birds/ --far noise -o out/
      hydractl make first=a.st second=b.st --val val/ --test test/ --risk 0.1 \
        -o out/ --dry-run
    """
    if not config.dry_run:
        check_held_out(config)
    plan = config.keep or config.out / PLAN
    if config.train and (labels := _other_labels(config)):
        terminal.progress().warn(
            f"`--train` is ignored: the models answer {labels}, and only models with one label use it"
        )
        config = replace(config, train=None)
    stage_tables = ({key: literal(value) for key, value in stage.items()} for stage in config.stages())
    text = written(stage_tables, command="make")
    stages = read_back(plan, text, force=config.force or (config.dry_run and config.keep is None))
    run_plan(
        plan,
        text,
        stages,
        terminal,
        dry_run=config.dry_run,
        keep=config.keep is not None,
        brief=not terminal.quiet,
        may_fail=(THRESHOLD,),
    )
    if not (config.dry_run or terminal.as_json or terminal.quiet):
        with written_out():
            _show(config)


def _other_labels(config: MakeConfig) -> str:
    """Return the kind of labels of models with several labels or words. Empty if an input has one label, or only weights say it."""
    from hydractl.families.load import open_model
    from hydractl.progress import SILENT
    from hydractl.stages.importing.config import ImportConfig
    from hydractl.stages.importing.read import Metadata
    from hydractl.stages.importing.resolve import describe

    stored = [model for _, model in config.named_models if not from_script(model)]
    if not stored and config.arch is None:
        return ""
    imported = ImportConfig(sources=("weights.pth",), out=config.out / HYDRA, arch=config.arch)
    header = open_model(stored[0]).header if stored else describe(imported, Metadata(), (), SILENT)[0]
    return "" if header.architecture.task.has_one_question else header.architecture.task.labels


def _show(config: MakeConfig) -> None:
    """Print the table, the verdict, the threshold, and the next command."""
    from hydractl.cli.quality import show_quality
    from hydractl.manifest.report import Report
    from hydractl.reporting.comparison import Compared
    from hydractl.reporting.verdict import sentence

    compared = Compared.of({REPORT: Report.read(config.out / REPORT)})
    show_quality(compared, unit=config.named_models[0][0])
    for text in ("", sentence(compared), *_outcome(config)):
        line(console(), text)


def _outcome(config: MakeConfig) -> Iterator[str]:
    """Yield lines about the cost of the hydra, its threshold, and the next command."""
    from hydractl.families.load import open_model

    plan = open_model(str(config.out / HYDRA)).header.plan
    if plan is not None and not plan.trunk:
        yield (
            f"The models share no block, so the hydra costs as much as {len(config.models)} models. Models that "
            "are fine-tuned from the same weights can share a trunk: see docs/checkpoints.md"
        )
    model = config.out / MODEL
    threshold = open_model(str(model)).header.threshold
    if threshold is not None:
        yield from (
            [f"{MODEL} {threshold.summary}"] if threshold.accepted else _no_threshold(config, threshold.count)
        )
    yield from (
        f"The page: {config.out / PAGE}",
        f"Next: hydractl predict {shlex.quote(str(model))} INPUTS -o predictions.csv",
    )


def _no_threshold(config: MakeConfig, count: int) -> Iterator[str]:
    """Yield the reason why no threshold of `count` samples satisfies the risk, and a hint with a risk that they may satisfy."""
    from hydractl.manifest.report import Report
    from hydractl.metrics.selective import HALF, fewest
    from hydractl.stages.evaluate.fail_if import DELTA

    least = fewest(config.risk, DELTA)
    hits = Report.read(config.out / TESTED).rows[0].values["accuracy"].value
    few = count < least
    risk = 1 - (DELTA ** (1 / max(1, count - 1)) if few else hits - 1 / math.sqrt(count))
    risk = max(math.ceil(100 * risk), round(100 * config.risk) + 1) / 100
    reason = (
        f"at least {least} samples are needed, and half of `--val` has {count}"
        if few
        else f"the hydra makes too many errors on the {counted(count, 'sample')} in half of `--val`"
    )
    way = f"give at least {2 * least} samples in `--val`" if few else "train the models further"
    yield f"No threshold satisfies the risk {config.risk:g}: {reason}."
    yield f"hint: {way}" + f", or allow more risk: `--risk {risk:g}`" * (risk <= HALF)
