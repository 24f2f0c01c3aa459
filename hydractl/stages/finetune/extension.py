"""Options that plugins add to `finetune`. Importing this module does not load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.settings import Extension

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

SEEDS = "Seeds"
"""Panel of the options of seeds."""


class FinetuneExtension(Extension):
    """Options that a plugin adds to `finetune`. This class stands for none: full fine-tuning of one model."""

    __slots__ = ()

    @property
    def models(self) -> int:
        """Number of models that train together without being a hydra."""
        return 1

    @property
    def training(self) -> str:
        """Path of the class of the training."""
        return "hydractl.stages.finetune.trainable:Training"

    def check_sharding(self) -> None:
        """Refuse weights in shards if the training cannot shard them."""

    def reference(self, model: str) -> str:
        """Return the reference of the model that trains in the place of MODEL."""
        return model

    def recorded(self) -> dict[str, OptionValue]:
        """Return the options for the lineage, which drops None."""
        return {}
