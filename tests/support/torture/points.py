"""Count, watch and break the calls of a command to the file system, the network and other programs."""

from __future__ import annotations

import builtins
import io
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CANARY = "evil.pth"
"""A file next to every command, named by hostile inputs. No command may open this file."""
CHANGES = {
    "write", "fsync", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown",
}  # fmt: skip
LOOKS = {"open", "read", "os.listdir", "os.scandir", "fcntl.flock"}
LEAVING = {
    "socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
}  # fmt: skip
OF_THE_MACHINE = {"uname", "lscpu", "ldconfig"}
"""Programs that libraries use to detect the platform."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
open_as_ever = io.open


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An event at a call: at the call number `at` (0-based), and at all later calls if `stays`.

    Attributes:
        at: Number of the call.
        number: Signal for this process, or error number of the call.
        error: Whether `number` is an error number.
        changes: Whether only calls that change files are counted.
        stays: Whether later calls have the event too.
    """

    at: int
    number: int
    error: bool = False
    changes: bool = False
    stays: bool = False


@dataclass
class Points:
    """The calls of a process that concern its folders. Without a plan, each call is reported.

    Attributes:
        roots: Folders to watch.
        say: Receives the reported lines.
        plan: Planned event, or None.
        hosts: Allowed addresses. Other connections and all programs are offences.
    """

    roots: tuple[str, ...]
    say: Callable[[str], object]
    plan: Plan | None = None
    hosts: Sequence[tuple[str, int]] = ()
    counted: int = field(default=0, init=False)

    def arm(self) -> None:
        """Install the hooks for the rest of the process."""
        os.fsync = self._announced(os.fsync)
        io.open = builtins.open = self._open  # type: ignore[assignment]
        sys.addaudithook(self._heard)

    def meet(self, event: str, path: str | bytes | os.PathLike[Any] | None = None) -> None:
        """Count a call if it concerns the folders, and run the planned event."""
        if path is not None and not self._ours(path):
            return
        name = "" if path is None else os.fsdecode(path)
        if event == "open" and name.endswith(CANARY):
            self.say(f"offence open {name}")
        if self.plan is None:
            self.say(f"point {event} {name!r}")
        elif not self.plan.changes or event in CHANGES:
            self.counted += 1
            if self.counted - 1 == self.plan.at or (self.plan.stays and self.counted > self.plan.at):
                self._happen(self.plan, event, name)

    def _happen(self, plan: Plan, event: str, name: str) -> None:
        self.say(f"met {event} {name!r}")
        if plan.error:
            raise OSError(plan.number, os.strerror(plan.number), *filter(None, [name]))
        os.kill(os.getpid(), plan.number)

    def _ours(self, path: str | bytes | os.PathLike[Any]) -> bool:
        return str(Path(os.fsdecode(path)).absolute()).startswith(self.roots)

    def _announced(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def announced(number: Any) -> None:
            self.meet("fsync")
            call(number)

        return announced

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in LEAVING:
            self._leaves(event, arguments)
        elif event == "open" and not isinstance(arguments[0], int):
            self.meet("write" if arguments[2] & WRITING else "open", arguments[0])
        elif event == "fcntl.flock":
            self.meet(event)
        elif event in CHANGES | LOOKS and isinstance(arguments[0], str | bytes | os.PathLike):
            self.meet(event, arguments[0])

    def _leaves(self, event: str, arguments: tuple[Any, ...]) -> None:
        whom = (
            arguments[0] if event in {"socket.getaddrinfo", "subprocess.Popen", "os.system"} else arguments[1]
        )
        if event == "socket.getaddrinfo":
            known = whom in {host for host, _ in self.hosts}
        elif event.startswith("socket."):
            known = whom in self.hosts
        else:
            known = Path(str(whom)).name in OF_THE_MACHINE
        if not known:
            self.say(f"offence {event} {whom!r}"[:300])
            raise PermissionError(1, "an offence", str(whom))

    def _open(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        """Open a file. Reads and writes of watched files are reported."""
        if isinstance(file, int) or not self._ours(file):
            return open_as_ever(file, mode, buffering, *rest, **named)
        raw = Raw(file, mode.translate({ord("b"): None, ord("t"): None}), points=self)
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        buffered = kind(raw)
        if "b" in mode:
            return buffered
        text = dict(zip(("encoding", "errors", "newline"), rest, strict=False)) | named
        return io.TextIOWrapper(buffered, **text)  # type: ignore[arg-type]


class Raw(io.FileIO):
    """A file that reports its reads and writes."""

    def __init__(self, file: Any, mode: str, *, points: Points) -> None:
        super().__init__(file, mode)
        self.points = points

    def write(self, data: Any) -> int:
        self.points.meet("write")
        return super().write(data)

    def readinto(self, buffer: Any) -> int:
        self.points.meet("read")
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.points.meet("read")
        return super().readall()
