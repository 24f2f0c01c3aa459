"""`hydractl push`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.cli.command import QUIET, command
from hydractl.cli.output import Terminal, line, size, table
from hydractl.stages.push.config import PushConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.push.run import PushReport


@command(PushConfig, quiet=replace(QUIET, help="Print only the URL of the commit."), streams=())
def push(config: PushConfig, terminal: Terminal) -> None:
    r"""Push a base, a member or a hydra to the Hub with a model card.

    One commit holds weights, configuration, head masks, the report and the card, which says what the model is, how it was
    made, what `eval` measured and how to load it. Pushing the same model again makes no commit. The token comes from HF_TOKEN or
    `hf auth login`.

    Examples:
      hydractl push hydra.st my-team/my-hydra --report report.json --dry-run
      hydractl push hydra.st my-team/my-hydra --report report.json \
        --base-model timm/vit_small_patch16_224.augreg_in21k \
        --license apache-2.0
      hydractl push hydra.st my-team/my-hydra --revision v2 --create-pr
    """
    from huggingface_hub import utils

    from hydractl.hub_client import without_bars
    from hydractl.stages.push.run import run_push

    with without_bars(utils) if terminal.quiet or terminal.as_json else nullcontext():
        report = run_push(config, terminal.progress())
    terminal.result(report, render)


def render(report: PushReport, out: Console) -> None:
    """Show files and what became of them; in a dry run, the card too."""
    words = {None: "", True: "written", False: "unchanged"}
    rows = [(file.name, size(file.size_bytes), words[file.written]) for file in report.files]
    rows += [(name, "", "deleted") for name in report.deleted]
    out.print(table(["file", "bytes", report.repository], rows))
    if report.commit is None:
        line(out, "")
        for text in report.card.splitlines():
            line(out, text)
    elif report.unchanged:
        line(out, f"Nothing has changed since {report.url}")
