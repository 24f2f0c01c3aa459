"""From texts or images in Python to a model's inputs, as its header says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from hydractl.data.preprocess import eval_transform
from hydractl.data.tokenize import encode_texts
from hydractl.inputs import Inputs
from hydractl.manifest.header import Header, Preprocess, Tokenization

if TYPE_CHECKING:
    from PIL import Image

    from hydractl.data.items import Text

Item: TypeAlias = "Text | Image.Image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """What makes a model's inputs.

    Attributes:
        images: How images are read, None by a model of texts.
        texts: How texts are read, None by a model of images.
    """

    images: Preprocess | None
    texts: Tokenization | None

    @classmethod
    def of(cls, header: Header) -> Encoder:
        """Return the encoder of a checkpoint; a zero-shot model's takes both."""
        how = header.preprocess
        if isinstance(how, Tokenization):
            return cls(images=None, texts=how)
        return cls(images=how, texts=None if header.prompting is None else header.prompting.tokenization)

    def __call__(self, items: Sequence[Item]) -> Inputs:
        """Return items of one kind as one batch; see `Towers.encode`."""
        given = [items] if isinstance(items, str) else list(items)
        if isinstance(items, str) or not given:
            what = "one text" if isinstance(items, str) else "nothing"
            raise TypeError(f"`encode` takes a list of items, found {what}")
        texts = [item for item in given if isinstance(item, str | tuple)]
        if len(texts) == len(given) and self.texts is not None:
            return encode_texts(texts, self.texts)
        if texts or self.images is None:
            wanted = (
                "images" if self.texts is None else "texts" if self.images is None else "images, or texts"
            )
            raise TypeError(f"the model reads {wanted}, found {_kinds(given)}")
        transform = eval_transform(self.images)
        try:
            return torch.stack([transform(cast("Image.Image", item)) for item in given])
        except AttributeError as error:
            raise TypeError(f"`encode` takes images of Pillow, found {_kinds(given)}") from error


def _kinds(items: Sequence[object]) -> str:
    return ", ".join(sorted({type(item).__name__ for item in items}))
