"""What an interrupted command leaves to go on with, said where it ends."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hydractl.publish import is_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEPT = (".journal", ".state")


@contextmanager
def resumable(out: Path, *, force: bool = False) -> Iterator[None]:
    """Note on what interrupts the block what it leaves beside its output, and that the same command goes on.

    Args:
        out: The output; a run keeps what it has done in a `.journal` or a `.state` beside it.
        force: Whether the command drops what an earlier run kept.

    Raises:
        KeyboardInterrupt: What came, with a note to print.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        kept = [] if is_stream(out) else [out.with_name(out.name + suffix) for suffix in KEPT]
        left = [str(path) for path in kept if path.exists()]
        if left:
            again = "the same command without `--force`" if force else "the same command"
            error.add_note(f"what was done is kept in {' and '.join(left)}; {again} goes on from there")
        raise
