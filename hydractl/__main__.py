"""`python -m hydractl` and the `hydractl` script."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

from hydractl.signals import heed_no_more_signals, heed_signals


def main() -> None:
    """Run the command line."""
    launched = os.environ.get("WORLD_SIZE", "1") != "1"
    heed_signals(once=launched)
    try:
        code = _run()
    except KeyboardInterrupt:  # before or after the command itself
        code = 130
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write("interrupted\n")
    heed_no_more_signals()
    if not launched:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left to do is not worth a traceback
    sys.exit(code)


def _run() -> int:
    """Make the streams safe to print anything on, then run."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - as above
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a file name may hold what the terminal cannot show
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    if not terminal or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        # typer decides on boxes and escapes when it is imported, and CI variables would force them into pipes
        os.environ["TYPER_USE_RICH"] = "0"
    from hydractl.cli.app import main as run  # noqa: PLC0415 - keeps `import hydractl.__main__` free

    return run()


if __name__ == "__main__":
    main()
