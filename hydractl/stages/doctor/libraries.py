"""Checks of libraries: whether their releases are compatible with hydractl and with each other."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module, metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hydractl.errors import reason_of
from hydractl.stages.doctor.finding import Finding, FindingState
from hydractl.version import __version__

LOADED = ("torch", "torchvision", "timm", "transformers", "safetensors", "huggingface_hub")
"""Modules to import as a check. torchvision fails to import beside a torch that it was not built for."""
NOT_FOR_USERS = {"dev", "demo", "test"}
finding = partial(Finding, group="libraries")


def libraries() -> Iterator[Finding]:
    """Yield the checks of Python, of each required library, and of their compatibility."""
    yield finding(name="hydractl", found=__version__)
    yield finding(name="python", found=platform.python_version())
    try:
        requirements = [Requirement(text) for text in metadata.requires("hydractl") or ()]
    except metadata.PackageNotFoundError:
        yield finding(
            name="requirements",
            found="unknown: hydractl is on the Python path but not installed",
            state=FindingState.SKIPPED,
        )
        requirements = []
    required = [wish for wish in requirements if wish.marker is None or wish.marker.evaluate({"extra": ""})]
    for wish in required:
        yield from _required(wish)
    for extra in sorted(
        {*(metadata.metadata("hydractl").get_all("Provides-Extra") or ())} - NOT_FOR_USERS
        if requirements
        else ()
    ):
        yield from _optional(extra, [wish for wish in requirements if wish not in required])
    yield from _builds()
    for module in LOADED:
        yield from _loaded(module)


def installed(name: str) -> str | None:
    """Return the release of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _required(wish: Requirement) -> Iterator[Finding]:
    release, requirement = installed(wish.name), f"{wish.name}{wish.specifier}"
    fix = f"pip install '{requirement}'"
    if release is None:
        yield finding(name=wish.name, found="not installed", state=FindingState.FAILED, fix=fix)
    elif not wish.specifier.contains(release, prereleases=True):
        yield finding(
            name=wish.name, found=f"{release}, not {wish.specifier}", state=FindingState.FAILED, fix=fix
        )
    else:
        yield finding(name=wish.name, found=release)
        yield from _conflicts(wish.name, wish.extras)


def _conflicts(name: str, extras: Iterable[str]) -> Iterator[Finding]:
    """Yield what a library that is installed, with some extras, needs in other releases than are."""
    for text in metadata.requires(name) or ():
        wish = Requirement(text)
        release, marker = installed(wish.name), wish.marker
        if release is None or not (
            marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras))
        ):
            continue
        if not wish.specifier.contains(release, prereleases=True):
            yield finding(
                name=f"{name} with {wish.name}",
                found=f"{name} {installed(name)} needs {wish.name}{wish.specifier}, and {release} is installed",
                state=FindingState.FAILED,
                fix=f"pip install --upgrade {name} '{wish.name}{wish.specifier}'",
            )


def _optional(extra: str, wishes: list[Requirement]) -> Iterator[Finding]:
    for wish in wishes:
        if wish.marker is None or not wish.marker.evaluate({"extra": extra}):
            continue
        release = installed(wish.name)
        description = release or f"not installed: `pip install 'hydractl[{extra}]'` if it is needed"
        bad = release is not None and not wish.specifier.contains(release, prereleases=True)
        yield finding(
            name=f"{canonicalize_name(wish.name)} (optional)",
            found=f"{description}, not {wish.specifier}" if bad else description,
            state=FindingState.WARNING if bad else FindingState.OK if release else FindingState.SKIPPED,
            fix=f"pip install 'hydractl[{extra}]'" if bad else None,
        )


def _builds() -> Iterator[Finding]:
    """Yield torch and torchvision of different builds: `+cpu` beside `+cu130`."""
    torch, vision = installed("torch"), installed("torchvision")
    if torch is None or vision is None:
        return
    builds = [release.partition("+")[2] for release in (torch, vision)]
    if builds[0] != builds[1] and all(builds):
        index = f"https://download.pytorch.org/whl/{builds[0]}"
        yield finding(
            name="torch with torchvision",
            found=f"torch {torch} and torchvision {vision} come from different builds",
            state=FindingState.FAILED,
            fix=f"pip install --force-reinstall --no-deps torchvision --index-url {index}",
        )


def _loaded(module: str, load: Callable[[str], object] = import_module) -> Iterator[Finding]:
    """Yield a library that cannot be loaded; a broken one may raise anything."""
    try:
        load(module)
    except Exception as error:  # noqa: BLE001 - as said
        yield finding(
            name=f"import {module}",
            found=f"{type(error).__name__}: {reason_of(error)}",
            state=FindingState.FAILED,
            fix=f"pip install --force-reinstall {module}",
        )
