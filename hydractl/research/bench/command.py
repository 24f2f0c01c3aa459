"""`hydractl bench`: train the rivals of a model and compare all in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.commands.run import read_back, run_plan, written
from hydractl.cli.output import Terminal, console, line, table, written_out
from hydractl.messages import duration_text
from hydractl.progress import reporting
from hydractl.research.bench.config import BenchConfig, CostModel, WorkEstimate, in_order, stages
from hydractl.research.bench.rows import PLANS

if TYPE_CHECKING:
    from hydractl.families.open_model import OpenModel

PLAN = "bench.toml"


@command("hydractl.research.bench.config:BenchConfig")
def bench(config: BenchConfig, terminal: Terminal) -> None:
    r"""Train rival methods and compare them with a model in one table.

    Times a few training steps and prints how long all will take, then runs the cheapest rival first. The same command resumes an
    interrupted run, as does `hydractl run DIR/bench.toml`, the plan that it writes. Options of training hold for every rival
    (benchmarks/rivals.md).

    Examples:
      hydractl bench base.st --train train/ --val val/ --test test/ \
        --far noise --epochs 5 -o bench/ --dry-run
      hydractl bench base.st --train train/ --val val/ --test test/ \
        --rivals mc,laplace --hydra-model hydra.st -o bench/
    """
    from hydractl.research.bench.measure import base_of, measure

    plan = config.out / PLAN
    base = base_of(config)
    with reporting(terminal.progress()):
        work, names = _planned(config, base)
        text = written(stages(config, names, work), command="bench")
        pipeline = read_back(plan, text, force=config.force or config.dry_run)
        if not (terminal.as_json or terminal.quiet):
            _print_estimate(config, names, work, measure(config, base))
    run_plan(plan, text, pipeline, terminal, dry_run=config.dry_run)


def _planned(config: BenchConfig, base: OpenModel) -> tuple[WorkEstimate, tuple[str, ...]]:
    """Estimate the work, and return it with the possible rivals, cheapest first; the data sets are closed."""
    from hydractl.research.bench.measure import Sets, supported_rivals, work_of

    sets = Sets()
    work = work_of(config, base, sets)
    terms = config.terms(blocks=work.blocks, heads=work.heads)
    return work, in_order(supported_rivals(config, base, terms, sets), work, members=config.members)


def _print_estimate(config: BenchConfig, names: tuple[str, ...], work: WorkEstimate, pace: CostModel) -> None:
    """Print the rivals with estimated durations to stderr."""
    seconds = [pace.of(work, PLANS[name], config.members) for name in names]
    rows = [
        [name, str(PLANS[name].trainings(config.members) or ""), duration_text(time)]
        for name, time in zip(names, seconds, strict=True)
    ]
    with written_out():
        out = console(stderr=True)
        out.print(table(["rival", "trainings", "about"], rows))
        line(
            out,
            f"{duration_text(sum(seconds))} in total, estimated from {pace.step * 1000:.0f} ms per training step",
        )
