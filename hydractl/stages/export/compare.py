"""How far an exported model is from the model itself, on random inputs and on data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from hydractl.data.batches import Batch
from hydractl.data.datasets import ImageSet
from hydractl.data.preprocess import eval_transform, to_channels
from hydractl.errors import CheckFailed, InputError, reason_of
from hydractl.families.dummy_inputs import largest_difference, probe_inputs
from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.model_inputs import PIXELS, Inputs
from hydractl.stages.export.export_module import IMAGES, OUTPUTS
from hydractl.stages.export.formats import Named, Program

BATCHES = (1, 2, 5)
SIZES = ((1.0, 1.0), (0.6, 0.8), (1.7, 2.3), (3.1, 1.3))
"""Heights and widths of random images, in those of the model's."""


@dataclass(frozen=True, slots=True)
class Runner:
    """An exported model, asked as a model is that `respond` is given."""

    program: Program

    @property
    def device(self) -> torch.device:
        """Where it takes its inputs."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it takes them in."""
        return torch.float32

    def member_logits(self, inputs: Inputs) -> torch.Tensor:
        """Return each member's logits (M, B, C)."""
        return self.program(named(inputs))["member_logits"]


def named(inputs: Inputs) -> Named:
    """Return inputs by name."""
    if isinstance(inputs, torch.Tensor):
        return {IMAGES if inputs.dtype == torch.uint8 else PIXELS: inputs}
    return inputs


def samples(header: Header, *, batch: int, seed: int) -> dict[str, torch.Tensor]:
    """Return random inputs by name; of a zero-shot model images, which are all that it is asked."""
    inputs = named(probe_inputs(header, batch=batch, seed=seed))
    texts = isinstance(header.preprocess, Tokenization)
    return {name: x for name, x in inputs.items() if texts or name == PIXELS}


def pictures(how: Preprocess, *, size: tuple[float, float], batch: int, seed: int) -> torch.Tensor:
    """Return random pixels (B, H, W, C) of a size relative to the model's, uint8."""
    channels, height, width = how.input_size
    shape = (batch, max(2, round(height * size[0])), max(2, round(width * size[1])), channels)
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def prepared(how: Preprocess, pixels: torch.Tensor) -> torch.Tensor:
    """Return pixels (B, H, W, C) as `eval` reads such images."""
    transform = eval_transform(how)
    return torch.stack([transform(Image.fromarray(image)) for image in pixels.squeeze(-1).numpy()])


def trials(header: Header, *, with_pixels: bool, seed: int) -> Iterator[Named]:
    """Yield random inputs of several numbers of samples; texts of two lengths, pixels of several sizes."""
    how = header.preprocess
    if with_pixels and isinstance(how, Preprocess):
        for i, size in enumerate(SIZES):
            yield {IMAGES: pictures(how, size=size, batch=BATCHES[i % len(BATCHES)], seed=seed + i)}
        return
    for i, batch in enumerate(BATCHES):
        inputs = samples(header, batch=batch, seed=seed + i)
        yield inputs
        if isinstance(how, Tokenization) and how.padding == "longest":
            yield shorter(inputs)


def shorter(texts: Named) -> Named:
    """Return the first half of texts (B, T), which are padded on the right: no row is nothing but padding."""
    return {name: x[:, : max(1, x.shape[1] // 2)] for name, x in texts.items()}


def difference(exported: Program, expected: Program, trial_inputs: Iterable[Named]) -> float:
    """Return the largest difference of any output; see `largest_difference`.

    Raises:
        InputError: If the program does not run.
    """
    worst = 0.0
    for inputs in trial_inputs:
        try:
            answer = exported(inputs)
        except Exception as error:  # of a runtime: no public kinds
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
            raise InputError(f"the exported model fails on {shapes}: {reason_of(error)}") from error
        reference = expected(inputs)
        worst = max(worst, *(largest_difference(answer[name], reference[name]) for name in OUTPUTS))
    return worst


def require_near(difference_found: float, tolerance: float, *, inputs_name: str) -> None:
    """Refuse an exported model that is too far from the model.

    Raises:
        CheckFailed: With both numbers.
    """
    if not difference_found <= tolerance:
        raise CheckFailed(
            f"the exported model differs by {difference_found:.1e} from the model on {inputs_name}, more than {tolerance:g}; nothing was written",
            hint=f"if that is near enough, add `--tolerance {2 * difference_found:.0e}`"
            if difference_found < 1
            else None,
        )


def undecoded(items: ImageSet, channels: int) -> Iterator[Batch[torch.Tensor]]:
    """Yield images as pixels (1, H, W, C), uint8, one by one: they may be of different sizes."""
    for i in range(len(items)):
        pixels = np.array(to_channels(items.image(i), channels))
        yield Batch(torch.from_numpy(pixels).reshape(1, *pixels.shape[:2], channels), None, torch.tensor([i]))
