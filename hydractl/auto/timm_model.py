"""Image members and hydras in timm's registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydractl.metrics.per_sample import opinions
from hydractl.model_source import download

if TYPE_CHECKING:
    from hydractl.prediction.loaded_model import LoadedHydra, LoadedModel


class TimmHydra(nn.Module):
    """A member or a hydra with the interface of timm's models, from images to logits.

    `loaded` returns member outputs.
    """

    def __init__(self, loaded: LoadedModel | LoadedHydra, pretrained_cfg: dict[str, Any]) -> None:
        super().__init__()
        self.loaded = loaded
        self.pretrained_cfg = self.default_cfg = pretrained_cfg
        self.num_classes = loaded.header.num_classes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `log mean_m softmax(z_m)` (B, C), float32 or float64, for images (B, channels, H, W).

        For a model with Q labels, the log odds of the members' mean sigmoids (B, Q).
        """
        several = self.loaded.header.architecture.task.by_label
        return opinions(self.loaded.member_logits(x)).logits(multi_label=several)


def hydractl(*, pretrained: bool = False, **kwargs: Any) -> TimmHydra:  # noqa: ANN401 - as timm calls it
    """Load a member or a hydra for `timm.create_model("hf-hub:org/name", pretrained=True)`.

    The name `local-dir:folder` loads a folder. The model is in evaluation mode.

    Args:
        pretrained: Must be True.
        kwargs: `pretrained_cfg` and `cache_dir` from timm. Other arguments must be None or have the model's
            value.

    Raises:
        RuntimeError: Without `pretrained=True`, or without a source of the weights.
        TypeError: If options of timm's constructors are given that would change the model or have no effect.
    """
    cfg = dict(kwargs.pop("pretrained_cfg", None) or {})
    name = cfg.get("hf_hub_id")
    place = f"hf-hub:{name}" if name else cfg.get("file")
    if not pretrained or place is None:
        raise RuntimeError(
            "a hydra needs its weights: use `timm.create_model('hf-hub:org/name', "
            "pretrained=True)`, or `local-dir:folder`"
        )
    cache = kwargs.pop("cache_dir", None)
    model_settings = {"num_classes": cfg.get("num_classes"), "in_chans": cfg.get("input_size", (None,))[0]}
    if strange := sorted(
        key for key, value in kwargs.items() if value not in (None, model_settings.get(key))
    ):
        raise TypeError(f"a hydra does not support `{strange[0]}={kwargs[strange[0]]!r}`")
    if name and cache:
        place = download(name, cache_dir=cache)
    from hydractl.prediction.loaded_model import load  # noqa: PLC0415 - importing timm must not cost all that this needs

    return TimmHydra(load(place), cfg).eval()
