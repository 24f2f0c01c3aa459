"""Time of each step of `hydractl make`: seconds on the clock, and seconds of all processor cores.

    python benchmarks/make_time.py MODEL --train T --val V --test S -o out/

The options are those of `make`. The first line includes the start of Python and the imports before the first step.
"""

from __future__ import annotations

import sys
import time

from hydractl.cli import app

COMMAND = app.main


def timed(argv: list[str], **options: bool) -> int:
    """Run a command line, print its seconds, and return the exit code."""
    begin, processor = time.monotonic(), time.process_time()
    code = COMMAND(argv, **options)
    seconds, processor = time.monotonic() - begin, time.process_time() - processor
    print(f"{argv[0]:8} {seconds:7.1f} s, processor {processor:7.1f} s", flush=True)
    return code


if __name__ == "__main__":
    vars(app)["main"] = timed  # `make` runs its steps by this function.
    code = timed(["make", *sys.argv[1:]])
    print(f"with imports: processor {time.process_time():.1f} s")
    sys.exit(code)
