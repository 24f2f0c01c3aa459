"""`hydractl make`: one command from checkpoints to a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hydractl.cli.command import command
from hydractl.cli.commands.make.config import HYDRA, MODEL, PAGE, PLAN, REPORT, THRESHOLD, MakeConfig
from hydractl.cli.commands.make.held_out import check_held_out
from hydractl.cli.commands.run.plan import read_back, run_plan, written
from hydractl.cli.output import Terminal, console, line, written_out


@command(MakeConfig)
def make(config: MakeConfig, terminal: Terminal) -> None:
    r"""Make a hydra from trained checkpoints and compare it with them.

    Imports what a training script saved, fuses the models with the longest trunk that `--val` allows, fits the temperature and
    the OOD score, measures the hydra beside the ensemble and each model, finds the threshold below which it may answer, and
    writes a page. The same command resumes an interrupted run, as does `hydractl run DIR/make.toml`. `--keep FILE` with `--dry-run` saves
    that pipeline to edit it first.

    Examples:
      hydractl make a.st b.st c.st --train train/ --val val/ --test test/ -o out/
      hydractl make seed-0.pth.tar seed-1.pth.tar --val val/ --test test/ \
        --near birds=birds/ --far noise -o out/
      hydractl make a.st b.st c.st --val val/ --test test/ --risk 0.1 \
        -o out/ --dry-run
    """
    if not config.dry_run:
        check_held_out(config)
    plan = config.keep or config.out / PLAN
    text = written(config.stages(), command="make")
    stages = read_back(plan, text, force=config.force or (config.dry_run and config.keep is None))
    run_plan(
        plan,
        text,
        stages,
        terminal,
        dry_run=config.dry_run,
        keep=config.keep is not None,
        brief=True,
        may_fail=(THRESHOLD,),
    )
    if not (config.dry_run or terminal.as_json or terminal.quiet):
        with written_out():
            _show(config)


def _show(config: MakeConfig) -> None:
    """Print the table, the verdict, the threshold, and what to type next."""
    from hydractl.cli.quality import show_quality
    from hydractl.manifest.report import Report
    from hydractl.reporting.comparison import Compared
    from hydractl.reporting.verdict import sentence

    compared = Compared.of({REPORT: Report.read(config.out / REPORT)})
    show_quality(compared, unit=config.names[0])
    for text in ("", sentence(compared), *_outcome(config)):
        line(console(), text)


def _outcome(config: MakeConfig) -> Iterator[str]:
    """Yield what the hydra costs and which inputs it accepts, and what to type next."""
    from hydractl.families.load import open_model

    plan = open_model(str(config.out / HYDRA)).header.plan
    if plan is not None and not plan.trunk:
        yield (
            f"The models share no block, so the hydra costs as much as {len(config.models)} models. Models that "
            "are fine-tuned from the same weights can share a trunk: see docs/checkpoints.md"
        )
    model = config.out / MODEL
    threshold = open_model(str(model)).header.threshold
    if threshold is None or threshold.below is None:
        yield (
            f"No threshold satisfies the risk {config.risk:g} on half of `--val`: use more data, or "
            f"allow more risk: `--risk {min(2 * config.risk, 0.5):g}`"
        )
    else:
        yield f"{MODEL} {threshold.summary}"
    yield from (
        f"The page: {config.out / PAGE}",
        f"Next: hydractl predict {shlex.quote(str(model))} INPUTS -o predictions.csv",
    )
