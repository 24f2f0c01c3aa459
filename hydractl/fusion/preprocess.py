"""Converts texts or images in Python to a model's inputs, as its header specifies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from hydractl.data.datasets import ImageSet
from hydractl.data.encode import Item, given_items, is_text, kinds, listed, of_kind
from hydractl.data.preprocess import eval_transform
from hydractl.data.tokenize import encode_texts
from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.model_inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Preprocessing of a model's inputs.

    Attributes:
        images: Preprocessing of images, None for a text model.
        texts: Tokenization of texts, None for an image model.
    """

    images: Preprocess | None
    texts: Tokenization | None

    @classmethod
    def of(cls, header: Header) -> Encoder:
        """Return the encoder of a checkpoint; that of a zero-shot model takes both."""
        how = header.preprocess
        if isinstance(how, Tokenization):
            return cls(images=None, texts=how)
        return cls(images=how, texts=None if header.prompting is None else header.prompting.tokenization)

    def __call__(self, items: Iterable[Item]) -> Inputs:
        """Return items of one type as one batch; see `Towers.encode`."""
        item_list = listed(items)
        texts = [item for item in item_list if is_text(item)]
        if len(texts) == len(item_list) and self.texts is not None:
            return encode_texts(texts, self.texts)
        if (texts and self.texts is not None) or self.images is None:
            expected = "texts" if self.images is None else "images, or texts"
            raise TypeError(f"the model reads {expected}, found {kinds(item_list)}")
        transform = eval_transform(self.images)
        images = of_kind(given_items(item_list, self.images), ImageSet)
        return torch.stack([transform(images.image(i)) for i in range(len(images))])
