"""Entry point of `python -m hydractl` and of the `hydractl` script."""

from __future__ import annotations

import sys

try:
    import io
    import os
    import signal
    from importlib.util import find_spec
    from typing import TYPE_CHECKING, TextIO

    from hydractl.processes.signals import ENDING, heed_no_more_signals, heed_signals, received_end_signal
except KeyboardInterrupt:  # An interrupt while these modules load leaves nothing to clean up.
    sys.stderr.write("interrupted\n")
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _LossyStderr(io.FileIO):
    """A standard error stream that ignores write errors, because a closed terminal must not end the work."""

    def write(self, data: Buffer, /) -> int:
        """Write the data, or drop the data if writing fails. Return the length."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def main() -> None:
    """Run the command line and exit with its code."""
    launched = os.environ.get("WORLD_SIZE", "1") != "1"
    try:
        heed_signals(only_first=launched)
        code = _run()
        _leave_signals(launched=launched)  # Also here, because a signal may arrive before the call below.
    except BaseException as error:
        # The interrupt came outside of the command, or a loading module turned the interrupt into another
        # error.
        if not (isinstance(error, KeyboardInterrupt) or received_end_signal()):
            raise
        code = 130
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write("interrupted\n")
    _leave_signals(launched=launched)
    sys.exit(code)


def _leave_signals(*, launched: bool) -> None:
    """Restore the default actions of signals. Nothing after this point needs cleanup."""
    heed_no_more_signals()
    if not launched:
        for number in filter(lambda number: callable(signal.getsignal(number)), ENDING):
            signal.signal(number, signal.SIG_DFL)


def _run() -> int:
    """Prepare the standard streams and run the command. Return the exit code."""
    if find_spec("fcntl") is None:  # Outputs are locked with fcntl, and renamed while open.
        sys.stderr.write(
            "error: hydractl runs only on Linux, macOS and similar systems\n\nhint: on Windows use WSL\n"
        )
        return 3
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        # Occupy closed standard streams. Otherwise a file opened later would have the number of a standard
        # stream.
        pass
    os.close(spare)
    sys.stdout = _writer(sys.stdout, io.FileIO(1, "w", closefd=False))
    sys.stderr = _writer(sys.stderr, _LossyStderr(2, "w", closefd=False))
    os.environ["TYPER_USE_RICH"] = "0"  # Otherwise typer loads rich for nothing.
    from hydractl.cli.app import main as run  # noqa: PLC0415 - keeps `import hydractl.__main__` free
    from hydractl.runtime import LateCompiler  # noqa: PLC0415 - as above

    LateCompiler.install()
    return run()


def _writer(stream: TextIO | None, raw: io.FileIO) -> io.TextIOWrapper:
    """Return a new standard stream with escapes for unencodable characters.

    Each write is whole, even with `python -u`.
    """
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=raw.isatty()
    )


if __name__ == "__main__":
    main()
