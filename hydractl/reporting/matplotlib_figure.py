"""Files of matplotlib's: the same bytes wherever they are drawn."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from hydractl.errors import UsageError, is_safe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
DPI = 150


def picture(
    draw: Callable[[Figure], None], *, suffix: str, dpi: int = DPI, software: str | None = None
) -> bytes:
    """Return a figure's file: the user's matplotlib settings play no part, and it holds no date.

    Args:
        draw: Gives a figure its size, and fills it.
        suffix: One of `FORMATS`.
        dpi: Pixels an inch.
        software: What a PNG says made it.

    Raises:
        UsageError: If the environment names a backend that matplotlib does not know.
    """
    try:
        from matplotlib import rc_context, rcParamsDefault  # noqa: PLC0415 - slow, and only needed for a figure
    except ValueError as error:  # it reads the environment as it loads
        raise UsageError(f"matplotlib does not start: {error}", hint="unset MPLBACKEND") from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    settings = {k: v for k, v in rcParamsDefault.items() if not k.startswith(("backend", "interactive"))}
    settings |= {"svg.hashsalt": "hydractl", "font.size": 8.0, "font.family": ["DejaVu Sans"]}
    with rc_context(settings), warnings.catch_warnings():
        # a name may hold letters that the font lacks; a box stands for each
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure = Figure()
        FigureCanvasAgg(figure)
        draw(figure)
        file = io.BytesIO()
        nothing = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": software}
        figure.savefig(file, format=suffix.removeprefix("."), dpi=dpi, metadata=nothing)
    return file.getvalue()


def printable(text: str) -> str:
    """Return a text with `?` for each unsafe character and line break, which a figure cannot show."""
    return "".join(letter if is_safe(letter) else "?" for letter in text)
