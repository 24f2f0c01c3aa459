"""`hydractl fuse`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, size, table
from hydractl.progress import counted
from hydractl.stages.fuse.config import FuseConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.fuse.run import FuseReport


@command(FuseConfig)
def fuse(config: FuseConfig, terminal: Terminal) -> None:
    """Fuse members into one model that runs them all in a single forward pass.

    Tensors that are equal in all members are stored and computed once. MLPs that differ are averaged; everything
    else that differs is kept for each member. With --merge-trunk L all that differs before block L is averaged instead,
    and members keep their last blocks whole: for members that were tuned from one set of weights.

    Examples:
      hydractl fuse a.st b.st c.st -o hydra.st
      hydractl fuse a.st b.st c.st --merge-trunk 8 -o hydra.st
      hydractl fuse seed0.st seed1.st seed2.st --mlp keep -o ensemble.st
      hydractl fuse base.st base.st base.st --own-from 4 -o hydra.st
      hydractl fuse clip0.st clip1.st clip2.st --classes cat,dog --template "A photo of a {label}." -o hydra.st
    """
    from hydractl.stages.fuse.run import run_fuse

    report = run_fuse(config, terminal.progress())
    terminal.result(report, render)


def render(report: FuseReport, out: Console) -> None:
    """Show fates, trunk and gap."""
    rows = [(fate, str(report.tensors[fate]), size(report.stored_bytes[fate])) for fate in report.tensors]
    total = sum(report.stored_bytes.values())
    out.print(
        table(
            ["tensors", "count", "bytes"],
            [*rows, ("in all", str(sum(report.tensors.values())), size(total))],
        )
    )
    line(
        out,
        f"{counted(report.members, 'member')} {'takes' if report.members == 1 else 'take'} {size(report.members_bytes)} apart, {size(total)} fused",
    )
    line(out, f"Trunk: {report.trunk} of {counted(report.layers, 'block')} run once")
    if report.gap is not None:
        line(
            out,
            f"Largest difference from the members: logits {report.gap.logits:.1e}, probabilities {report.gap.probabilities:.1e}",
        )
