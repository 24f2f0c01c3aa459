"""Checks of the machine: devices, their dtypes, threads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from hydractl.errors import reason_of
from hydractl.messages import counted
from hydractl.runtime import DTYPES, torch_dtype
from hydractl.stages.doctor.finding import Finding, FindingState

if TYPE_CHECKING:
    import torch

finding = partial(Finding, group="machine")


def machine() -> Iterator[Finding]:
    """Yield the checks of devices and threads; none if torch cannot be loaded, which another check reports."""
    try:
        import torch  # noqa: PLC0415 - `--help` loads no torch
    except Exception:  # noqa: BLE001 - of a broken installation
        return
    yield _threads(torch.get_num_threads())
    yield computes(torch.device("cpu"), torch.backends.cpu.get_cpu_capability())
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        yield computes(torch.device("cuda", index), f"{about.name}, {about.total_memory / 1e9:.1f} GB")
    if torch.backends.mps.is_available():
        yield computes(torch.device("mps"))
    if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPU only"
        yield finding(
            name="cuda",
            found=f"an NVIDIA driver is installed, but torch ({built}) finds no GPU",
            state=FindingState.WARNING,
            fix=(
                "`nvidia-smi` shows the CUDA version of the driver; install torch for it: "
                "https://pytorch.org/get-started/locally"
            ),
        )


def _threads(threads: int) -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return finding(
        name="threads",
        found=f"torch uses {counted(threads, 'thread')} on {counted(cores, 'core')}",
        state=FindingState.WARNING if threads > cores else FindingState.OK,
        fix=f"export OMP_NUM_THREADS={cores}" if threads > cores else None,
    )


def computes(device: torch.device, about: str | None = None) -> Finding:
    """Check in which dtypes a device multiplies matrices, by trying them; a wrong product fails the check.

    Args:
        device: Device to check.
        about: Further description of the device.
    """
    import torch  # noqa: PLC0415 - as above

    able: list[str] = []
    wrong: list[str] = []
    unable: list[str] = []
    for name in sorted(DTYPES):
        try:
            matrix = torch.ones(8, 8, dtype=torch_dtype(name), device=device)
            right = bool((matrix @ matrix == 8).all())
        except (RuntimeError, TypeError) as error:
            unable.append(f"{name} ({reason_of(error)})")
        else:
            (able if right else wrong).append(name)
    parts = [
        about,
        " ".join(able),
        unable and f"not {', '.join(unable)}",
        wrong and f"wrong in {', '.join(wrong)}",
    ]
    failed = bool(wrong) or not able
    return finding(
        name=str(device),
        found="; ".join(part for part in parts if part),
        state=FindingState.FAILED if failed else FindingState.OK,
        fix=_fix(device) if failed else None,
    )


def _fix(device: torch.device) -> str:
    """Return what to type where a device does not multiply matrices as it should."""
    if device.type == "cuda":
        return f"`nvidia-smi -q -d ECC -i {device.index}` shows errors of its memory; use `--device cpu` until it computes right"
    return "pip install --force-reinstall torch" if device.type == "cpu" else "use `--device cpu`"
