"""Multi-input multi-output (Havasi et al. 2021): one network that sees M images at once, and has a classifier for each.

Images stand side by side on the channel axis, as one convolution sees them; of M times the same image it is the convolution whose
weight is the sum over slots, which is what a file holds: an ordinary embedding.

Axes: M slots, B batch, D width, C channels, P side of a patch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.errors import UsageError


class Slots(nn.Module):
    """The sum of the weights that a convolution has for each slot.

    Attributes:
        slot_weight: Those, (M, D, C, P, P).
        images: What the slots see now, M times (B, C, height, width); None where all see the same image.
    """

    def __init__(self, weight: torch.Tensor, members: int) -> None:
        """Deal out a weight's filters to the slots in turn: slots differ at once, and their sum is the weight.

        Args:
            weight: Of a convolution, (D, C, P, P).
            members: M.
        """
        super().__init__()
        dealt = torch.arange(len(weight)) % members == torch.arange(members)[:, None]
        self.slot_weight = nn.Parameter(weight.detach() * dealt[..., None, None, None])
        self.images: Sequence[torch.Tensor] | None = None

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (D, C, P, P)."""
        del weight
        return self.slot_weight.sum(0)

    @contextlib.contextmanager
    def seeing(self, images: Sequence[torch.Tensor]) -> Iterator[None]:
        """Let each slot see an image of its own within the block."""
        self.images = images
        try:
            yield
        finally:
            self.images = None


def stack_images(layer: nn.Module, slots: Slots) -> None:
    """Let a convolution, whose weight `slots` makes, see the images of all slots; what it is called with is the first's."""
    if isinstance(layer, nn.Conv2d):
        vars(layer)["forward"] = partial(_stacked, layer, slots)


def _stacked(layer: nn.Conv2d, slots: Slots, x: torch.Tensor) -> torch.Tensor:
    run = partial(
        F.conv2d, bias=layer.bias, stride=layer.stride, padding=layer.padding, dilation=layer.dilation
    )
    if slots.images is None:
        return run(x, layer.weight)
    if not torch.equal(x, slots.images[0]):
        raise UsageError(
            "`--method mimo`: the model changes images before it embeds them, and takes no more than one"
        )
    return run(torch.cat([*slots.images], dim=1), slots.slot_weight.movedim(0, 1).flatten(1, 2))
