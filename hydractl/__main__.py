"""`python -m hydractl` and the `hydractl` script."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        # typer decides on boxes and escapes when it is imported, and CI variables would force them into pipes
        os.environ["TYPER_USE_RICH"] = "0"
    from hydractl.cli.app import main as run  # noqa: PLC0415 - keeps `import hydractl.__main__` free

    sys.exit(run())


if __name__ == "__main__":
    main()
