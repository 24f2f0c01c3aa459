"""`hydractl fuse`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, size, table
from hydractl.manifest.temperature import Temperature
from hydractl.messages import counted
from hydractl.stages.fuse.config import FuseConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.fuse.result import Measured, Quality
    from hydractl.stages.fuse.run import FuseReport

ENSEMBLE = "the members' ensemble"


@command(FuseConfig)
def fuse(config: FuseConfig, terminal: Terminal) -> None:
    r"""Fuse members into one model that runs all in one forward pass.

    Stores and computes tensors once that are equal in all members, averages MLPs that differ, and keeps all other tensors of
    each member. `--merge-trunk L` averages all that differs before block L and nothing after it: for members that were trained from
    the same weights. Under `torchrun`, processes share the batches.

    Examples:
      hydractl fuse a.st b.st c.st -o hydra.st
      hydractl fuse a.st b.st c.st --merge-trunk 8 -o hydra.st
      hydractl fuse a.st b.st c.st --merge-trunk auto --data val/ -o hydra.st
      hydractl fuse a.st b.st c.st --fit train/ --val val/ \
        --temperature val/ -o hydra.st
      hydractl fuse a.st b.st c.st --mlp keep -o ensemble.st
    """
    from hydractl.stages.fuse.run import run_fuse

    terminal.result(run_fuse(config, terminal.progress()), render)


def render(report: FuseReport, out: Console) -> None:
    """Show fates, trunk, what merging did, and gap."""
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
        (
            f"{counted(report.members, 'member')} {'takes' if report.members == 1 else 'take'} "
            f"{size(report.members_bytes)} separately, {size(total)} fused"
        ),
    )
    line(
        out,
        f"Trunk: {report.trunk} of {counted(report.layers, 'block')}, computed once"
        + (f", tensors that differ before block {report.merge_trunk} averaged" if report.merge_trunk else ""),
    )
    if report.scale != Temperature():
        line(out, f"Temperature: {report.scale}")
    if report.ood_scores:
        line(
            out,
            f"OOD score: {', '.join(report.ood_scores)}, {size(report.ood_scores_bytes)} in addition to the weights",
        )
    if report.measured is not None:
        measured(report.measured, out)
    if report.gap is not None:
        at = ", before temperature scaling" if report.temperature != 1 else ""
        line(
            out,
            f"Largest difference from the members{at}: logits {report.gap.logits:.1e}, probabilities {report.gap.probabilities:.1e}",
        )


def measured(quality: Measured, out: Console) -> None:
    """Show hydras beside their members' ensemble; the last is the one that was written."""
    rows = [
        (ENSEMBLE, *_quality(quality.members), "", ""),
        *(
            (
                f"{counted(trial.merge_trunk, 'block')} merged" if trial.merge_trunk else "no trunk merged",
                *_quality(trial.hydra),
                f"{trial.loss:+.4f}",
                f"{trial.agreement:.3f}",
            )
            for trial in quality.tried
        ),
    ]
    out.print(
        table(
            ["model", "T", "Acc ↑", "NLL ↓", "MI", "Loss ↓", "Agree ↑"],
            rows,
            title=f"{quality.data}: {counted(quality.samples, 'sample')}",
        )
    )
    line(
        out,
        f"Loss is the NLL minus that of {ENSEMBLE}, Agree the fraction of equal predictions. Acc and Agree are in [0, 1]",
    )
    before, after = quality.members.mutual_information, quality.tried[-1].hydra.mutual_information
    if before > 0 and quality.tried[-1].merge_trunk:
        line(
            out,
            (
                f"Disagreement of the members (mutual information, MI): {after:.4f} nats, {after / before:.0%} of "
                f"the {before:.4f} of {ENSEMBLE}"
            ),
        )


def _quality(quality: Quality) -> tuple[str, ...]:
    return (
        f"{quality.temperature:.3f}",
        f"{quality.accuracy:.3f}",
        f"{quality.nll:.4f}",
        f"{quality.mutual_information:.4f}",
    )
