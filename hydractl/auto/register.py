"""Registration of the models with Auto classes and timm once these are imported, at no import cost.

`import hydractl` loads neither torch nor transformers. If the Auto classes of transformers or the registry of
timm are already loaded, the models are registered at once, otherwise when they are loaded. Python can report
a later import only to a module finder. This finder handles a few names and ignores all others.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in the package itself: `typing` takes longer to load than this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WATCHED_MODULES = [
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.configuration_auto",
    "transformers.models.auto.image_processing_auto",
    "timm.models",
]


class ImportHook:
    """A module finder that registers the models after certain modules are loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in `WATCHED_MODULES`. Its loader also registers the models.

        Returns:
            None for other modules, for example `transformers`, and if no other finder has the module.
        """
        for finder in sys.meta_path if name in WATCHED_MODULES else ():
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _register_after(spec.loader, name)
                return spec
        return None


def _register_after(loader: Loader, name: str) -> None:
    """Make a loader register the models after the execution of its module."""

    def exec_module(module: ModuleType) -> None:
        del vars(loader)["exec_module"]
        loader.exec_module(module)
        register(name)

    vars(loader)["exec_module"] = exec_module


def register_on_import() -> None:
    """Register the models with all modules in `WATCHED_MODULES`: loaded modules now, others when they are loaded."""
    sys.meta_path.insert(0, ImportHook())
    for name in WATCHED_MODULES:
        if name in sys.modules:
            register(name)


def register(name: str) -> None:
    """Register the models with the Auto classes or the registry in a loaded module.

    Args:
        name: Name of the module, in `WATCHED_MODULES`.
    """
    if name == "timm.models":
        from timm.models import register_model  # noqa: PLC0415 - loaded by now

        from hydractl.auto.timm_model import hydractl  # noqa: PLC0415 - needed with timm only

        register_model(hydractl)
        return
    from hydractl.auto.config import HydraConfig  # noqa: PLC0415 - as above

    if name.endswith(".configuration_auto"):
        from transformers.models.auto.configuration_auto import AutoConfig  # noqa: PLC0415 - as above

        AutoConfig.register(HydraConfig.model_type, HydraConfig, exist_ok=True)
    elif name.endswith(".image_processing_auto"):
        from transformers.models.auto.image_processing_auto import AutoImageProcessor  # noqa: PLC0415 - as above

        from hydractl.auto.image_processor import HydraImageProcessor  # noqa: PLC0415 - as above

        processor_classes: dict[str, type] = dict.fromkeys(("pil", "torchvision"), HydraImageProcessor)
        AutoImageProcessor.register(HydraConfig, image_processor_classes=processor_classes, exist_ok=True)
    else:
        from transformers.models.auto import modeling_auto  # noqa: PLC0415 - as above

        from hydractl.auto import models  # noqa: PLC0415 - as above

        modeling_auto.AutoModelForImageClassification.register(
            HydraConfig, models.HydraForImageClassification, exist_ok=True
        )
        modeling_auto.AutoModelForSequenceClassification.register(
            HydraConfig, models.HydraForSequenceClassification, exist_ok=True
        )
        modeling_auto.AutoModelForTokenClassification.register(
            HydraConfig, models.HydraForTokenClassification, exist_ok=True
        )
