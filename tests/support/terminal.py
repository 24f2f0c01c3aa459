"""Run hydractl in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import sys


def in_terminal(environment: dict[str, str], *argv: str, program: object = sys.executable) -> tuple[int, str]:
    """Run hydractl in a pseudo-terminal of 80 columns.

    Returns:
        Exit status, and the complete output.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(program, [str(program), "-m", "hydractl", *argv], {**environment, "COLUMNS": "80"})  # noqa: S606
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux raises EIO after the last writer has closed the terminal.
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode().replace("\r\n", "\n")
