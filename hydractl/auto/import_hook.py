"""Auto classes know hydractl's models as soon as both are imported, in whichever order, and neither costs the other anything.

`import hydractl` loads neither torch nor transformers. Where transformers' Auto classes or timm's registry are loaded already,
ours are registered at once; else when they are. Python has no other way to hear of that than a finder of modules; this one
looks for three names and leaves all others alone.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in the package itself: `typing` takes longer to load than this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

HEARD = {
    "transformers.models.auto.modeling_auto": "hydractl.auto.register",
    "transformers.models.auto.configuration_auto": "hydractl.auto.register",
    "transformers.models.auto.image_processing_auto": "hydractl.auto.register",
    "timm.models": "hydractl.auto.register",
}


class ImportHook:
    """A finder of modules that has the module after which ours are registered found by the others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is whose end of loading is waited for."""
        if name not in HEARD:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader, name)  # type: ignore[assignment]  # what it lacks, the other has
                return spec
        return None


class Loader:
    """A loader that registers ours when another has done its work."""

    def __init__(self, loader: Any, name: str) -> None:  # noqa: ANN401 - loaders share no type
        self._loader = loader
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as above
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as the other loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then register ours."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        register(self._name)


def register(name: str) -> None:
    """Register with a module that has been loaded."""
    from importlib import import_module  # noqa: PLC0415 - `import hydractl` does without

    import_module(HEARD[name]).after(name)


def listen() -> None:
    """Register ours with what is loaded, and with the others when they are."""
    sys.meta_path.insert(0, ImportHook())
    for name in HEARD:
        if name in sys.modules:
            register(name)
