"""Multi-input multi-output (MIMO): a network with M images as input, and a classifier per image.

Havasi et al. (2021) concatenate the images along the channel axis before the first convolution. A slot is the
input of one member's image. For M copies of an image, this equals a convolution with the sum over the slots
as weight. Files store this sum, an ordinary embedding.

Axes: M slots, B batch, D width, C channels, P side of a patch or rows of a piece, R repetitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.data.preprocess import sample_seed
from hydractl.errors import UsageError
from hydractl.families.base import Family, TensorPosition
from hydractl.manifest.header import Fate, Header, Tokenization
from hydractl.model_inputs import Inputs, map_inputs, split_inputs
from hydractl.research.methods.adapters import Adapter, Site, parametrize_weight
from hydractl.research.methods.options import Mimo
from hydractl.training.accelerator import Share
from hydractl.training.feeding import Feed, ItemFeed, Piece
from hydractl.training.trainable import TrainableModel, TrainingHydra


class Slots(nn.Module):
    """Parametrization of a convolution: its weight is the sum of a weight per slot.

    Attributes:
        slot_weight: Weights of the slots, (M, D, C, P, P).
        images: Images of the slots, M times (B, C, height, width); None for the same image in all slots.
    """

    def __init__(self, weight: torch.Tensor, members: int) -> None:
        """Distribute a weight's filters over the slots in turn, so slots differ and sum to the weight.

        Args:
            weight: Weight of a convolution, (D, C, P, P).
            members: Number of slots M.
        """
        super().__init__()
        self.images: Sequence[torch.Tensor] | None = None
        dealt = torch.arange(len(weight)) % members == torch.arange(members)[:, None]
        self.slot_weight = nn.Parameter(weight.detach() * dealt[..., None, None, None])

    @contextmanager
    def seeing(self, images: Sequence[torch.Tensor]) -> Iterator[None]:
        """Give each slot an image of its own within the context."""
        self.images = images
        try:
            yield
        finally:
            self.images = None

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (D, C, P, P), the sum over the slots."""
        del weight
        return self.slot_weight.sum(0)


def stack_images(layer: nn.Module, slots: Slots) -> None:
    """Make a convolution with weight `slots` add the outputs of all slots, each for its own image.

    The argument of the forward pass must be the first image. Without images in `slots`, all slots read the
    argument. Layers other than `nn.Conv2d` stay unchanged.
    """
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
            "`--method mimo`: the model transforms images before it embeds them, so it takes only one"
        )
    return run(torch.cat([*slots.images], dim=1), slots.slot_weight.movedim(0, 1).flatten(1, 2))


class MultiInput(TrainingHydra):
    """A hydra with different images per member in training, in a single forward pass."""

    @override
    def forward(self, inputs: Inputs) -> torch.Tensor:
        slots = [module for module in self.hydra.modules() if isinstance(module, Slots)]
        if not self.training or not slots:
            return super().forward(inputs)
        images = [x for x in split_inputs(inputs, self.hydra.members) if isinstance(x, torch.Tensor)]
        with ExitStack() as stack:
            for slot in slots:
                stack.enter_context(slot.seeing(images))
            return self.answer(self.hydra.member_logits(images[0]))


class MimoAdapter(Adapter):
    """Trains the members of a hydra on different images in one forward pass."""

    method: Mimo

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.repeat = self.method.repeat

    @override
    def check_base(self) -> None:
        if isinstance(self.header.preprocess, Tokenization):
            raise UsageError(f"`--method mimo`: {self.model} reads texts, but the method needs images")

    @override
    def check_model(self) -> None:
        self.check_base()
        model, header = self.model, self.header
        depth = sum(tower.layers for tower in header.architecture.towers.values())
        if header.plan is None or header.plan.trunk < depth or Fate.GROUPED not in header.plan.fates.values():
            raise UsageError(
                f"`--method mimo`: {model} is not a hydra whose members share every block and have their own classifiers",
                hint=f"`hydractl fuse base.st base.st base.st --trunk {depth} --own-blocks -o copies.st` makes one from a base",
            )

    @override
    def load(
        self, family: Family, header: Header, state: Mapping[str, torch.Tensor], *, place: str
    ) -> TrainableModel:
        subject = super().load(family, header, state, place=place)
        return replace(subject, module=MultiInput(cast("TrainingHydra", subject.module).hydra))

    @override
    def wrap(self, feed: ItemFeed) -> Feed:
        return MimoFeed(feed=feed, slots=self.members, repeat=self.repeat, rho=self.method.rho)

    @override
    def fits(self, site: Site) -> bool:
        # Subclasses of Conv2d in libraries may compute something else.
        plain = (
            type(site.layer) is nn.Conv2d and site.layer.groups == 1 and site.layer.padding_mode == "zeros"
        )
        return plain and site.place.part == "embed"

    @override
    def changes(self, parametrized_names: Collection[str], places: Mapping[str, TensorPosition]) -> set[str]:
        return set(places)

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        for name in self.computed_names(sites, names):
            layer = sites[name].layer
            slots = Slots(layer.weight, self.members)
            parametrize_weight(sites[name], slots)
            stack_images(layer, slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoFeed(Feed):
    """Pieces with M R P rows: the images of each slot one after another, drawn again in each step.

    As in `MIMOBatchFormat` of torch-uncertainty, every image is repeated R times. A share of the rows is the
    same in all slots, and the other rows are shuffled for each slot. Labels have M R P rows too.

    Attributes:
        feed: Feed of single images.
        slots: M.
        repeat: R.
        rho: Share of rows that are the same in all slots, in [0, 1].
    """

    feed: ItemFeed
    slots: int
    repeat: int
    rho: float

    @property
    @override
    def steps_per_epoch(self) -> int:
        return self.feed.steps_per_epoch

    @override
    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        for step, pieces in enumerate(self.feed.steps(start, stop, share), start):
            yield [self._side_by_side(piece, step) for piece in pieces]

    def _side_by_side(self, piece: Piece, step: int) -> Piece:
        generator = torch.Generator().manual_seed(sample_seed(self.feed.seed, step, piece.first))
        rows = self._rows(len(piece.labels), generator).flatten()
        return Piece(
            inputs=map_inputs(lambda x: x[rows], piece.inputs),
            labels=piece.labels[rows],
            first=piece.first * self.repeat,
            total=piece.total * self.repeat,
            weight=piece.weight,
            members=self.slots,
        )

    def _rows(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Return the image indices of each slot, (M, R P), for a piece of `size` images."""
        every = torch.arange(size).repeat(self.repeat)
        every = every[torch.randperm(len(every), generator=generator)]
        shuffled_count = int(len(every) * (1 - self.rho))
        shuffled = [
            every[:shuffled_count][torch.randperm(shuffled_count, generator=generator)]
            for _ in range(self.slots)
        ]
        return torch.stack([torch.cat([slot_rows, every[shuffled_count:]]) for slot_rows in shuffled])
