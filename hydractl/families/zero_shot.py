"""Zero-shot classification: logits are the cosines of an image and the texts that name the classes.

The library's own answer, to images and texts given together, is logits (B, B'). With classes attached, a model is asked about
images alone: its text tower runs over the prompts in every pass (to score its heads, to train), or was run once and for all,
which is what a checkpoint with named classes holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from typing_extensions import override

from hydractl.errors import CheckpointError
from hydractl.families.stream import share
from hydractl.families.tower import OutputHead, Towers
from hydractl.model_inputs import TEXTS, Inputs
from hydractl.runtime import at_least_single

CLASS_EMBEDDINGS = "class_embeddings"


class Contrast(OutputHead):
    """Scaled cosines of images' and classes' embeddings.

    Towers answer with embeddings of length one. Logits are float32 at least, whatever the weights are, under autocast too: near
    30 bf16 knows every eighth only, and several classes would be the likeliest.
    """

    class_embeddings: torch.Tensor | None

    def __init__(
        self,
        *,
        logit_scale: nn.Parameter,
        logit_bias: nn.Parameter | None = None,
        width: int,
        class_embeddings: torch.Tensor | None = None,
    ) -> None:
        """Take over a library model's parts.

        Args:
            logit_scale: The logarithm of what cosines are multiplied with.
            logit_bias: What is added then (SigLIP).
            width: F, of the embeddings.
            class_embeddings: (C, F), one for each class, of length one; None where no classes are stored.
        """
        super().__init__()
        self.logit_scale = logit_scale
        self.logit_bias = logit_bias
        self.width = width
        self.register_buffer(CLASS_EMBEDDINGS, class_embeddings)
        self.prompts: dict[str, torch.Tensor] | None = None
        self.templates = 1

    @property
    def scale(self) -> torch.Tensor:
        """What cosines are multiplied with."""
        return self.logit_scale.to(at_least_single(self.logit_scale.dtype)).exp()

    def ask(self, prompts: Mapping[str, torch.Tensor], *, templates: int) -> None:
        """Name the classes by prompts (C P, T), P templates a class, class after class; the text tower runs in every pass."""
        self.prompts, self.templates = dict(prompts), templates
        self.class_embeddings = None
        self.fixed = frozenset({"text"})

    def settle(self, class_embeddings: torch.Tensor) -> None:
        """Name the classes by their embeddings (C, F); the text tower runs no more."""
        self.prompts, self.templates, self.fixed = None, 1, frozenset()
        self.class_embeddings = class_embeddings

    @override
    def expect(self, labels: int) -> None:
        self.class_embeddings = (
            torch.empty(labels, self.width, dtype=self.logit_scale.dtype, device="meta") if labels else None
        )

    @override
    def route(self, inputs: Inputs, towers: Sequence[str]) -> dict[str, Inputs]:
        """Return what each tower is asked; inputs are images, or images and texts.

        Raises:
            CheckpointError: If images come alone and the classes have no names.
        """
        del towers
        if isinstance(inputs, Mapping):
            texts = {name: x for name, x in inputs.items() if name in TEXTS}
            return {"text": texts, "vision": inputs["pixel_values"]}
        if self.class_embeddings is not None:
            return {"vision": inputs}
        if self.prompts is None:
            raise CheckpointError(
                "the model has no class names yet",
                hint=(
                    'give them: `--classes cat,dog`, or in Python `hydractl.load(..., classes=["cat", "dog"])`'
                ),
            )
        return {"text": {name: x.to(inputs.device) for name, x in self.prompts.items()}, "vision": inputs}

    @override
    def forward(self, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        images = outputs["vision"]
        classes = self.class_embeddings if "text" not in outputs else self.classes(outputs["text"])
        if classes is None:
            raise CheckpointError("the model has no class names yet")
        dtype = at_least_single(images.dtype)
        with without_autocast(images.device):
            scaled = self.scale * images.to(dtype)
            logits: torch.Tensor = scaled @ classes.to(scaled).transpose(-1, -2)
        return logits if self.logit_bias is None else logits + self.logit_bias

    def classes(self, texts: torch.Tensor) -> torch.Tensor:
        """Return classes' embeddings (k, C, F) of prompts' (k, C P, F): the mean over templates, of length one again."""
        if self.templates == 1:
            return texts
        prompts: torch.Tensor = texts.unflatten(1, (-1, self.templates))
        return unit(prompts.mean(dim=2))


def unit(x: torch.Tensor) -> torch.Tensor:
    """Return vectors (..., F) of length one."""
    length: torch.Tensor = x.norm(dim=-1, keepdim=True)
    return x / length


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return what ends autocast where it is on; elsewhere nothing, as an exported graph would have it as a step."""
    kind = device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)  # that device has none
    return torch.autocast(kind, enabled=False) if on else nullcontext()


@torch.no_grad()  # tensors of inference mode could not be used where gradients are wanted
def settle_classes(model: Towers, prompts: Mapping[str, torch.Tensor], *, templates: int) -> None:
    """Name the classes of every member by prompts (C P, T), P templates a class; its text tower runs once, now.

    Raises:
        CheckpointError: If the model has no text tower.
    """
    placed = {name: x.to(model.device) for name, x in prompts.items()}
    answers = [answer for answer in model.answers if isinstance(answer, Contrast)]
    if len(answers) != len(model.answers):
        raise CheckpointError("only a model with a text tower takes class names")
    text_features = model.run_tower("text", placed)
    for m, answer in enumerate(answers):
        answer.templates = templates
        answer.settle(answer.classes(share(text_features, m)).squeeze(0).clone())
