"""`python -m hydractl` and the `hydractl` script."""

from __future__ import annotations

import sys

try:
    import io
    import os
    import signal
    from importlib.util import find_spec
    from typing import TYPE_CHECKING, TextIO

    from hydractl.processes.signals import ENDING, heed_no_more_signals, heed_signals, told_to_end
except KeyboardInterrupt:  # nothing has begun
    sys.stderr.write("interrupted\n")
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Unheard(io.FileIO):
    """Standard error: what it cannot take is lost, for no work ends because nobody listens."""

    def write(self, data: Buffer, /) -> int:
        """Write, or act as if."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def main() -> None:
    """Run the command line."""
    launched = os.environ.get("WORLD_SIZE", "1") != "1"
    try:
        heed_signals(only_first=launched)
        code = _run()
        _leave_signals(launched=launched)  # here too, for one may come at this very moment
    except BaseException as error:
        # before or after the command itself, or what was loading when the signal came has made another error of it
        if not (isinstance(error, KeyboardInterrupt) or told_to_end()):
            raise
        code = 130
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write("interrupted\n")
    _leave_signals(launched=launched)
    sys.exit(code)


def _leave_signals(*, launched: bool) -> None:
    """Let signals end the process, or pass: what is left to do is not worth a traceback."""
    heed_no_more_signals()
    if not launched:
        for number in filter(lambda number: callable(signal.getsignal(number)), ENDING):
            signal.signal(number, signal.SIG_DFL)


def _run() -> int:
    """Make the streams safe to print anything on, then run."""
    if find_spec("fcntl") is None:  # outputs are locked with it, and renamed while they are open
        sys.stderr.write(
            "error: hydractl runs only on Linux, macOS and similar systems\n\nhint: on Windows use WSL\n"
        )
        return 3
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # no file of ours may get the number of a standard stream that is closed
    os.close(spare)
    sys.stdout = _writer(sys.stdout, io.FileIO(1, "w", closefd=False))
    sys.stderr = _writer(sys.stderr, _Unheard(2, "w", closefd=False))
    os.environ["TYPER_USE_RICH"] = "0"  # typer would load rich for nothing
    from hydractl.cli.app import main as run  # noqa: PLC0415 - keeps `import hydractl.__main__` free

    return run()


def _writer(stream: TextIO | None, raw: io.FileIO) -> io.TextIOWrapper:
    """Return a standard stream anew: a file name may hold what it cannot show, and writes are whole also with `python -u`."""
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=raw.isatty()
    )


if __name__ == "__main__":
    main()
