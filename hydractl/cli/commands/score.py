"""`hydractl score`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, table
from hydractl.messages import counted
from hydractl.stages.score.config import ScoreConfig, ScoreReport

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.manifest.head_mask import HeadScores

HEADS_SHOWN = 10


@command(ScoreConfig)
def score(config: ScoreConfig, terminal: Terminal) -> None:
    r"""Score how much each attention head matters.

    `prune` reads the scores. Without a budget, two thirds of the heads are kept: a circuit search then ranks the other third,
    and `prune` can remove no more than these. The same command resumes an interrupted circuit search. Under `torchrun`,
    processes share the batches; the scores have the same bytes.

    Examples:
      hydractl score base.st --data val/ --ood birds/ -o scores.json
      hydractl score base.st --data val/ --ood birds/ --search exact \
        -o scores.json
      hydractl score base.st --method taylor --data train/ -o scores.json
      hydractl score base.st --method random -o - | \
        hydractl prune base.st --scores - --keep 8 -o member.st
    """
    from hydractl.stages.score.run import run_score

    terminal.result(run_score(config, terminal.progress()), render)


def render(report: ScoreReport, out: Console) -> None:
    """Show the first heads to go."""
    scores = report.scores
    if scores.removals is not None:
        rows = [
            (str(i + 1), f"{r.tower} {r.layer}.{r.head}", f"{r.objective:.4f}")
            for i, r in enumerate(scores.removals[:HEADS_SHOWN])
        ]
        out.print(
            table(
                ["step", "head removed", f"{scores.objective} after"],
                [("0", "", f"{scores.baseline:.4f}"), *rows],
            )
        )
        if len(scores.removals) > HEADS_SHOWN:
            last = scores.removals[-1]
            line(
                out,
                f"... {counted(len(scores.removals), 'removal')}; {scores.objective} {last.objective:.4f} after the last",
            )
        if "exact_evaluations" in scores.results:
            line(
                out,
                "Evaluated {evaluations:g} of {exact_evaluations} candidates on all data: {work:.1%} of the work of "
                "`--search exact`".format_map(scores.results),
            )
    else:
        heads = sorted(
            (s, n, layer, h)
            for n, t in scores.towers.items()
            for layer, row in enumerate(t.scores)
            for h, s in enumerate(row)
        )
        lowest = [(f"{n} {layer}.{h}", f"{s:.4g}") for s, n, layer, h in heads[:HEADS_SHOWN]]
        out.print(table(["lowest heads", "score"], lowest))
    if scores.clusters is not None:
        heads_in_all = counted(sum(map(len, scores.clusters)), "head")
        groups = counted(len(scores.clusters), "group")
        line(out, f"{heads_in_all} in {groups}: one of each is kept, and at least one in each layer")
    if report.default_budget:
        line(out, _default_budget(scores))


def _default_budget(scores: HeadScores) -> str:
    total = sum(len(row) for tower in scores.towers.values() for row in tower.scores)
    if "kept" in scores.options:
        budget_text = (
            f"two thirds of the heads are kept, {scores.options['kept']} of {counted(total, 'head')}"
        )
    elif scores.removals is None:
        budget_text = "two thirds of the heads of each layer are kept"
    else:
        budget_text = f"{len(scores.removals)} of {counted(total, 'head')} are removed, two thirds are kept"
    return f"Default budget: {budget_text}. Set another with `--keep N`, `--remove R` or `--keep-fraction F`"
