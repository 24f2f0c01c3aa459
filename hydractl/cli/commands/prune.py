"""`hydractl prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, model_cell, size, table
from hydractl.messages import count
from hydractl.output.publish import STDOUT
from hydractl.stages.prune.config import PruneConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.prune.diverse import DiverseReport
    from hydractl.stages.prune.run import PruneReport, Size


@command(PruneConfig)
def prune(config: PruneConfig, terminal: Terminal) -> None:
    r"""Remove attention heads from a base to make one or more members.

    Writes a head mask beside each member (`member-0.mask.json`). Under `torchrun`, processes share the candidates of
    `--strategy diverse`; the members have the same bytes.

    Examples:
      hydractl prune base.st --scores scores.json --keep 8 -o member.st
      hydractl prune base.st --scores scores.json --keep 8 \
        --members 3 --pool 96 -o 'member-{i}.st'
      hydractl prune base.st --scores scores.json --keep 8 \
        --members 3 --pool 96 --strategy diverse --data val/ -o 'member-{i}.st'
      hydractl prune base.st --strategy random --keep 8 -o member.st
      hydractl prune base.st --mask mask.json -o member.st
    """
    from hydractl.stages.prune.run import run_prune

    terminal.result(run_prune(config, terminal.progress()), render)


def render(report: PruneReport, out: Console) -> None:
    """Show sizes before and after."""
    rows = [(model_cell(report.model), str(report.heads), *size_cells(report.base), "")]
    rows += [
        (
            "stdout" if m.path == STDOUT else str(m.path),
            str(m.heads_kept),
            *size_cells(m.size),
            "" if m.largest_difference is None else f"{m.largest_difference:.1e}",
        )
        for m in report.members
    ]
    out.print(table(["model", "heads", "parameters", "MACs", "bytes", "difference from masked"], rows))
    for remark in report.found:
        line(out, remark)
    if report.diverse is not None:
        render_diverse(report.diverse, out)


def render_diverse(report: DiverseReport, out: Console) -> None:
    """Show what was chosen, and how diverse it is beside what `sample` draws."""
    rows = [
        (f"member {i}", f"draw {c.draw}", f"{c.objective:.4f}", "", "") for i, c in enumerate(report.chosen)
    ]
    rows += [(s.name, "", f"{s.objective:.4f}", f"{s.mi:.4f}", f"{s.disagreement:.4f}") for s in report.sets]
    out.print(table(["set", "mask", report.objective, "MI", "disagreement"], rows))


def size_cells(cost: Size) -> tuple[str, str, str]:
    """Return parameters, MACs and bytes as texts."""
    return count(cost.parameters), count(cost.macs), size(cost.size_bytes)
