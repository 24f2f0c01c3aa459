"""Image processor for pipelines of transformers. Its outputs are bit-identical to those of `encode`."""

from __future__ import annotations

from typing import Any

from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from hydractl.manifest.header import Preprocess
from hydractl.prediction.loaded_model import Encoder
from hydractl.strict_json import compact


class HydraImageProcessor(BaseImageProcessor):
    """Image processor with the preprocessing of the checkpoint. Its settings are the fields of `Preprocess`."""

    def __call__(  # type: ignore[override]  # it has no settings a call
        self,
        images: Any,  # noqa: ANN401 - as the library has it
        return_tensors: str | None = None,
        **_: Any,  # noqa: ANN401 - as above
    ) -> BatchFeature:
        """Return images as `pixel_values` (B, C, height, width), float32.

        Args:
            images: A Pillow image, a path or an array, or a list or tuple of these.
            return_tensors: Type of the result as in transformers; None for a torch tensor.
            _: Other arguments of transformers, which are ignored.
        """
        settings = {name: getattr(self, name) for name in Preprocess.model_fields if hasattr(self, name)}
        encoder = Encoder(images=Preprocess.model_validate_json(compact(settings)), texts=None)
        image_list = list(images) if isinstance(images, list | tuple) else [images]
        return BatchFeature({"pixel_values": encoder(image_list)}, tensor_type=return_tensors)
