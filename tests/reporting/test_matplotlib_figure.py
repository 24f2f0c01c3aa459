"""Files of matplotlib: equal bytes in any environment, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hydractl.reporting.matplotlib_figure import printable

DRAW = (
    "import sys; from hydractl.manifest.head_mask import TowerKeep; from hydractl.reporting.head_maps import head_map; "
    "from hydractl.reporting.matplotlib_figure import png, svg; "
    "panel = head_map('m', TowerKeep(num_heads=2, keep=((0,), ()))); "
    "sys.stdout.buffer.write(png(panel) + svg(panel).encode())"
)


def run(**environment):
    return subprocess.run(
        [sys.executable, "-c", DRAW], env={**os.environ, **environment}, capture_output=True, check=False
    )


@pytest.mark.more
def test_settings_and_process_play_no_part(tmp_path):
    (tmp_path / "matplotlibrc").write_text(
        "font.size: 20\naxes.facecolor: red\nsavefig.dpi: 10\nsvg.fonttype: path\n"
    )
    first, second = run(MPLCONFIGDIR=str(tmp_path), PYTHONHASHSEED="1"), run(PYTHONHASHSEED="2")

    assert first.stdout == second.stdout
    assert first.stdout.startswith(b"\x89PNG")


def test_a_backend_that_matplotlib_does_not_know_is_no_traceback():
    error = run(MPLBACKEND="are not supported: open_clip has no such cleaning").stderr.decode()

    assert "UsageError: matplotlib does not start: " in error
    assert "are not supported: open_clip has no such cleaning" in error


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", "a?b"),
        ("\udcff.json", "?.json"),
        ("a\u202e\u200b\u3164", "a???"),
        ("$x_1$ é 日", "$x_1$ é 日"),
    ],
)
def test_what_a_figure_cannot_show(name, shown):
    assert printable(name) == shown
