"""The command tree: the only place that knows which commands there are."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl import __version__
from hydractl.cli import fuse, prune

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    name="hydractl",
    help="Turn one trained transformer into a pruned, fused ensemble with calibrated uncertainty.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = {
    "prune": prune.prune,
    "fuse": fuse.fuse,
}
for _name, _command in COMMANDS.items():
    app.command(_name, no_args_is_help=True)(_command)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hydractl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Turn one trained transformer into a pruned, fused ensemble with calibrated uncertainty."""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; see DESIGN: errors become messages here and nowhere else."""
    from hydractl.errors import HydraError

    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = app(args=argv, standalone_mode=False)
    except HydraError as error:
        from hydractl.cli.output import fail

        fail(error)
        return error.exit_code
    except BrokenPipeError:
        # The reader left: what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        from hydractl.cli.output import say

        say("interrupted")
        return 130
    except Exception as error:  # noqa: BLE001 - typer's usage errors are of a private class; all others are raised again
        return _usage_or_bug(error)
    return result if isinstance(result, int) else 0


def _usage_or_bug(error: Exception) -> int:
    """Show typer's own usage errors as typer does; anything else is a bug of ours and keeps its traceback."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if callable(show) and isinstance(code, int):
        show()
        return code
    raise error


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Unwind on SIGTERM, so that scratch files go."""
    raise KeyboardInterrupt
