"""doctor: show versions, devices, cache, Hub and token, and suggest a command for each failed check."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from hydractl import progress
from hydractl.errors import CheckFailed, reason_of
from hydractl.messages import counted, quoted
from hydractl.progress import stage
from hydractl.provenance.command_config import CommandConfig
from hydractl.settings import CheckedSettings, setting
from hydractl.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig(CheckedSettings, CommandConfig):
    """Options of `doctor`."""

    timeout: float = setting(5.0, "Seconds to wait for the Hub.", above=0, high=600, metavar="S")


LIBRARIES = ("torch", "torchvision", "timm", "transformers", "safetensors", "huggingface_hub")
OFFLINE = (
    "check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 to work offline"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check.

    Attributes:
        group: `libraries`, `machine` or `hub`.
        name: Object of the check.
        found: Description of the present state.
        state: Whether the check passed.
        fix: Command for a failed check, or None.
    """

    group: str
    name: str
    found: str
    state: Literal["ok", "failed", "skipped"] = "ok"
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """Result of `doctor`."""

    findings: tuple[Finding, ...]
    paths: tuple[Path, ...] = ()

    def require_checks(self) -> None:
        """Raise an error if a check failed.

        Raises:
            CheckFailed: The message has the names of the failed checks.
        """
        failed = [finding for finding in self.findings if finding.state == "failed"]
        if failed:
            raise CheckFailed(
                f"{counted(len(failed), 'check')} failed: {quoted(finding.name for finding in failed)}",
                hint="; ".join(finding.fix for finding in failed if finding.fix),
            )


@stage
def run_doctor(config: DoctorConfig) -> DoctorReport:
    """Run all checks. Nothing is changed, and the network is used only for a single request to the Hub."""
    progress.step("Checking libraries, devices and the Hub")
    return DoctorReport(findings=(*_libraries(), *_devices(), *_hub(config.timeout)))


def _libraries() -> Iterator[Finding]:
    yield Finding("libraries", "hydractl", __version__)
    yield Finding("libraries", "python", platform.python_version())
    for name in LIBRARIES:
        try:
            yield Finding("libraries", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding("libraries", name, "not installed", "failed", f"pip install {name}")


def _devices() -> Iterator[Finding]:
    try:
        import torch  # noqa: PLC0415 - `--help` loads no torch
    except Exception as error:  # noqa: BLE001 - a broken library may raise anything
        yield Finding("machine", "torch", reason_of(error), "failed", "pip install --force-reinstall torch")
        return
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("machine", "cpu", f"{capability}, {counted(torch.get_num_threads(), 'thread')}")
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        yield Finding("machine", f"cuda:{index}", f"{about.name}, {about.total_memory / 1e9:.1f} GB")
    if torch.backends.mps.is_available():
        yield Finding("machine", "mps", "available")


def _hub(timeout: float) -> Iterator[Finding]:
    """Request the owner of the token. The answer shows if the Hub responds and accepts the token."""
    import httpx2  # noqa: PLC0415 - `--help` loads no network stack
    from huggingface_hub import constants, get_token  # noqa: PLC0415 - as above

    folder, endpoint, token = Path(constants.HF_HUB_CACHE), constants.ENDPOINT, get_token()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = f"{folder}, {shutil.disk_usage(existing).free / 1e9:.1f} GB free"
    if os.access(existing, os.W_OK):
        yield Finding("hub", "cache", free)
    else:
        yield Finding("hub", "cache", f"{free}, cannot be written", "failed", "export HF_HOME=FOLDER")
    if constants.HF_HUB_OFFLINE:
        reason = f"{endpoint}: not contacted, because HF_HUB_OFFLINE is set"
        yield Finding("hub", "endpoint", reason, "skipped")
        yield Finding("hub", "token", "found, not tested" if token else "none", "skipped")
        return
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx2.get(f"{endpoint}/api/whoami-v2", headers=headers, timeout=timeout)
        owner = None if answer.status_code in {401, 403} else answer.json()["name"]
    except Exception as error:  # noqa: BLE001 - a client may raise anything for a wrong address or answer
        reason = f"{type(error).__name__}: {reason_of(error)}".replace(token or "\0", "***")
        yield Finding("hub", "endpoint", f"{endpoint}: {reason}", "failed", OFFLINE)
        return
    yield Finding("hub", "endpoint", f"{endpoint} responds")
    if token and owner is None:
        yield Finding("hub", "token", "found, but the Hub rejects it", "failed", "hf auth login")
    else:
        described = (
            f"found, belongs to `{owner}`" if token else "none: you cannot read private and gated models"
        )
        yield Finding("hub", "token", described)
