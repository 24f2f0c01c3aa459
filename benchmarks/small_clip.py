"""Train a small CLIP from random weights on labelled images with captions. The result is a folder for transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hydractl.data.preprocess import to_channels
from hydractl.errors import UsageError
from hydractl.families.transformers.hf_models import quiet

if TYPE_CHECKING:
    from hydractl.data.datasets import ImageSet

PAD, BEGIN, END, UNKNOWN = "<pad>", "<begin>", "<end>", "<unknown>"
CAPTIONS = (
    "A photo of a {label}.",
    "a {label}",
    "there is a {label} here",
    "an image of one {label}",
    "the {label} lies among other marks",
)
"""Captions for training the CLIPs. Commands use the first as prompt."""
WARM_UP = 0.1
"""Fraction of all steps with linear warm-up. Chosen by hand; 0.2 reaches the peak rate twice as late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairConfig:
    """Size and training settings of a small CLIP.

    Attributes:
        templates: Captions with `{label}`. Each image gets a random caption in each epoch.
        width: Width D of both towers; a multiple of `heads`.
        layers: Number of layers of each tower.
        heads: Number of heads of each layer.
        size: Side of the images in pixels; a multiple of `patch`.
        patch: Side of a patch in pixels.
        epochs: Passes over the images.
        batch_size: Image-caption pairs per step.
        lr: Peak learning rate of AdamW, after a warm-up over a tenth of the steps, then falling to 0 as a
            cosine.
        seed: Seed of weights, order, captions and flips.
    """

    templates: tuple[str, ...]
    width: int = 48
    layers: int = 3
    heads: int = 6
    size: int = 24
    patch: int = 6
    epochs: int = 16
    batch_size: int = 48
    lr: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width % self.heads or self.size % self.patch:
            raise UsageError("`width` must be a multiple of `heads`, and `size` a multiple of `patch`")
        if min(self.layers, self.epochs, self.batch_size) < 1 or not self.lr > 0:
            raise UsageError("`layers`, `epochs`, `batch_size` and `lr` must be positive")
        if not self.templates or not all("{label}" in template for template in self.templates):
            raise UsageError("`templates` must not be empty, and each must contain {label}")


def train_pair(images: ImageSet, out: Path, config: PairConfig) -> float:
    """Train a CLIP on labelled images, and write model, tokenizer and image processor to a folder.

    On the same machine with the same number of threads, the result depends only on images and configuration.

    Args:
        images: Images with labels; class names replace `{label}` in the captions.
        out: Folder of the result.
        config: Size and training settings.

    Returns:
        Mean loss of the last epoch, in nats.

    Raises:
        UsageError: If the images have no labels.
    """
    if images.labels is None:
        raise UsageError(f"{images.name}: has no labels, but captions need them")
    captions = [[t.replace("{label}", name) for t in config.templates] for name in images.class_names]
    tokenizer = word_tokenizer([text for texts in captions for text in texts])
    texts = _encoded(tokenizer, captions)
    pixels, labels = _pixels(images), torch.tensor(images.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = _model(config, tokenizer, length=texts["input_ids"].shape[-1])
        loss = _learn(model, pixels, labels, texts, config=config)
    with quiet():
        model.eval().save_pretrained(out)
        tokenizer.save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(_image_processor(config.size), indent=2) + "\n")
    return loss


def word_tokenizer(texts: Sequence[str]) -> Any:  # noqa: ANN401 - transformers is untyped
    """Return a transformers tokenizer for the words of the given texts, in lower case."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in texts for word in _words(text)})
    vocabulary = {word: i for i, word in enumerate((PAD, UNKNOWN, *words, BEGIN, END))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(name, vocabulary[name]) for name in (BEGIN, END)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, pad_token=PAD, unk_token=UNKNOWN, bos_token=BEGIN, eos_token=END
    )


def _words(text: str) -> list[str]:
    from tokenizers import pre_tokenizers

    return [word for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text.lower())]


def _encoded(tokenizer: Any, captions: Sequence[Sequence[str]]) -> dict[str, torch.Tensor]:  # noqa: ANN401 - as above
    """Return the token inputs of captions by name, shape (classes, templates, tokens)."""
    flat = [text for texts in captions for text in texts]
    encoding = tokenizer(flat, padding=True, return_tensors="pt")
    return {
        name: encoding[name].unflatten(0, (len(captions), -1)) for name in ("input_ids", "attention_mask")
    }


def _pixels(images: ImageSet) -> torch.Tensor:
    """Return images of shape (N, 3, height, width) with values in [-1, 1]."""
    import numpy as np

    stacked = np.stack([np.asarray(to_channels(images.image(i), 3)) for i in range(len(images))])
    return torch.from_numpy(stacked).movedim(-1, 1).float() / 127.5 - 1


def _model(config: PairConfig, tokenizer: Any, *, length: int) -> Any:  # noqa: ANN401 - as above
    from transformers import CLIPConfig, CLIPModel

    tower = {
        "hidden_size": config.width, "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "intermediate_size": 2 * config.width, "projection_dim": config.width,
    }  # fmt: skip
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    text = {**tower, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": length + 4}
    vision = {**tower, "image_size": config.size, "patch_size": config.patch}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=config.width)).train()


def _learn(
    model: Any,  # noqa: ANN401 - as above
    pixels: torch.Tensor,
    labels: torch.Tensor,
    texts: dict[str, torch.Tensor],
    *,
    config: PairConfig,
) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.05)
    batches = len(labels) // config.batch_size or 1
    steps = batches * config.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    last = 0.0
    for _ in range(config.epochs):
        total = 0.0
        for chosen in torch.randperm(len(labels))[: batches * config.batch_size].chunk(batches):
            written = torch.randint(len(config.templates), (len(chosen),))
            captions = {name: x[labels[chosen], written] for name, x in texts.items()}
            images = pixels[chosen]
            mirrored = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(-1), images)
            loss = model(pixel_values=mirrored, return_loss=True, **captions).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        last = total / batches
    return last


def _rate(step: int, steps: int) -> float:
    progress = (step + 1) / steps
    return (
        progress / WARM_UP
        if progress < WARM_UP
        else (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))) / 2
    )


def _image_processor(size: int) -> dict[str, object]:
    return {
        "image_processor_type": "CLIPImageProcessor", "do_resize": True, "size": {"shortest_edge": size},
        "do_center_crop": True, "crop_size": {"height": size, "width": size}, "do_rescale": True,
        "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "resample": 3, "do_convert_rgb": True,
    }  # fmt: skip
