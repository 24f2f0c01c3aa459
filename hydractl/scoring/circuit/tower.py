"""A tower without each of some heads, at the cost of the layers from the head's layer on.

The step after a head is compiled once for all equal blocks. The streams that enter the blocks are cached from one
evaluation to the next.

Axes: k candidates, B or N batch, T tokens, H heads, K head width, D width, F outputs of a tower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hydractl.families.attention import HeadGroup
from hydractl.families.stream import Stream
from hydractl.families.tower import Block, Model, Tower
from hydractl.model_inputs import Inputs
from hydractl.runtime import compiled
from hydractl.scoring.circuit.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import HeadId


Key: TypeAlias = tuple[str, str, int]
"""A tower, and a batch: its set and its number."""


class Streams:
    """Of each batch what enters the first blocks, as many as there is room for; and the same without each of some heads.

    When one of these heads goes, what is known without it is what is known of the circuit. Each batch has an equal share of
    the room, whoever has it: so what is kept, and with it the rounding, does not depend on the number of processes.

    Attributes:
        trails: Whether it is kept without each head that is valued.
    """

    def __init__(self, room: int) -> None:
        """Keep nothing yet.

        Args:
            room: How many bytes may be kept of each batch.
        """
        self.room = room
        self.trails = False
        self._known: dict[Key, list[LayerInput]] = {}
        self._without: dict[HeadId, dict[Key, tuple[Ablation, int]]] = {}
        self._kept: Counter[tuple[str, int]] = Counter()

    def clear(self) -> None:
        """Keep nothing any more."""
        self._known.clear()
        self._without.clear()
        self._kept.clear()

    def entering(self, key: Key | None, tower: Tower, inputs: Inputs) -> Iterator[LayerInput]:
        """Yield each block with what enters it, and keep it; without a key keep nothing."""
        if key is None or not self.room:
            yield from entering(tower, inputs)
            return
        cached = self._known.setdefault(key, [])
        for layer, entered in enumerate(entering(tower, inputs, tuple(cached))):
            if layer == len(cached) and self._fits(key, entered.size):
                cached.append(entered)
            yield entered

    def without(
        self,
        key: Key | None,
        at: tuple[Tower, int, LayerInput],
        heads: Sequence[HeadId],
        positions: Sequence[int],
        room: MemoryBudget,
    ) -> Iterator[torch.Tensor]:
        """Yield a tower's outputs (k, N, F) without each of a layer's heads, and keep what enters later blocks then."""
        cache_key = key if self.trails and self.room > 0 else None
        begin = 0
        for ablation in iterate_ablations(*at, positions, room, trails=cache_key is not None):
            if cache_key is not None and self._fits(cache_key, ablation.size):
                for number, head in enumerate(heads[begin : begin + len(ablation.outputs)]):
                    self._without.setdefault(head, {})[cache_key] = (ablation, number)
            begin += len(ablation.outputs)
            outputs = ablation.outputs
            del ablation  # or the next is made while this is still there
            yield outputs

    def remove_head(self, head: HeadId) -> None:
        """Take note that a head has been removed."""
        known_without = self._without.pop(head, {})
        self._without.clear()
        for key, cached in self._known.items():
            if key[0] == head.tower:
                full = len(cached) >= head.layer
                del cached[head.layer :]
                if full and key in known_without:
                    ablation, number = known_without[key]
                    cached.extend(ablation.trail(number))
        self._count()

    def cut(self, tower: str, layer: int) -> None:
        """Take note that a tower has changed from a layer on."""
        self._without.clear()
        for key, cached in self._known.items():
            if key[0] == tower:
                del cached[layer:]
        self._count()

    def _count(self) -> None:
        self._kept.clear()
        for key, cached in self._known.items():
            self._kept[key[1:]] += sum(entered.size for entered in cached)

    def _fits(self, key: Key, size: int) -> bool:
        """Whether so many bytes more fit into a batch's room, which they then take."""
        batch = key[1:]
        fits = self._kept[batch] + size <= self.room
        self._kept[batch] += size * fits
        return fits


class LayerInput(NamedTuple):
    """A block with the stream that enters it, its heads' outputs z (B, T, H, K) and their projection y (B, T, D).

    Or outputs of all heads of a group, in y only those of the block's own; of the others z is the negative.
    """

    block: Block
    stream: Stream
    z: torch.Tensor
    y: torch.Tensor
    group: HeadGroup | None = None

    def without(self, head: int) -> torch.Tensor:
        """Return the projection without one of z's heads, or with it if it is none of the block's own."""
        group = self.group or self.block.attn.groups()[0]
        return self.y - group.head_term(self.z, head)

    def of(self, rows: slice) -> LayerInput:
        """Return it for some samples of the batch."""
        context = {name: x[rows] for name, x in self.stream.context.items()}
        stream = replace(self.stream, tokens=self.stream.tokens[rows], context=context)
        return LayerInput(self.block, stream, self.z[rows], self.y[rows])

    def copy(self) -> LayerInput:
        """Return it with memory of its own."""
        context = {name: x.clone() for name, x in self.stream.context.items()}
        stream = replace(self.stream, tokens=self.stream.tokens.clone(), context=context)
        return LayerInput(self.block, stream, self.z.clone(), self.y.clone())

    @property
    def leaving(self) -> Stream:
        """The stream that leaves the block."""
        return self.block.join(self.stream, self.y)

    @property
    def size(self) -> int:
        """How many bytes it holds on to."""
        tensors = (self.stream.tokens, self.z, self.y, *self.stream.context.values())
        return sum(x.untyped_storage().nbytes() for x in tensors)


def entering(tower: Tower, inputs: Inputs, cached: Sequence[LayerInput] = ()) -> Iterator[LayerInput]:
    """Yield each block with what enters it, those that are known first."""
    yield from cached
    if len(cached) < len(tower.blocks):
        yield from following(tower, cached[-1].leaving if cached else tower.embed(inputs), len(cached))


def following(tower: Tower, stream: Stream, layer: int) -> Iterator[LayerInput]:
    """Yield each block from a layer on with what enters it; the last one's of the tokens that are read."""
    blocks = tower.layers()
    for i in range(layer, len(blocks)):
        queries = tower.queries(i)
        z = blocks[i].heads(stream, queries)
        y = blocks[i].project(z)
        if queries is not None:
            stream = stream.with_tokens(stream.tokens[:, queries])
        yield LayerInput(blocks[i], stream, z, y)
        if i + 1 < len(blocks):
            stream = blocks[i].join(stream, y)


def heads_of(block: Block, group: HeadGroup, stream: Stream, queries: slice | None) -> torch.Tensor:
    """Return the outputs (B, T', H, K) of other heads than a block has."""
    original_group = block.attn.members[0]
    block.attn.members[0] = group
    try:
        return block.heads(stream, queries)
    finally:
        block.attn.members[0] = original_group


def with_all_heads(
    tower: Tower, inputs: Inputs, groups: Sequence[HeadGroup], remaining: Sequence[Sequence[int]]
) -> Iterator[LayerInput]:
    """Yield each block with what enters it, and with the outputs of all heads.

    Args:
        tower: It has the heads that are left.
        inputs: What it is asked.
        groups: All heads of each layer.
        remaining: Their numbers.
    """
    stream = tower.embed(inputs)
    for layer, (block, every, remaining_in_layer) in enumerate(
        zip(tower.layers(), groups, remaining, strict=True)
    ):
        queries = tower.queries(layer)
        z = heads_of(block, every, stream, queries)
        if queries is not None:
            stream = stream.with_tokens(stream.tokens[:, queries])
        signs = z.new_tensor([[1.0 if head in remaining_in_layer else -1.0] for head in range(every.heads)])
        entered = LayerInput(
            block, stream, signs * z, block.project(z[..., list(remaining_in_layer), :]), every
        )
        yield entered
        stream = entered.leaving


class CandidateHeads(NamedTuple):
    """Heads of a tower.

    Attributes:
        tower: Name of the tower.
        heads: For each layer their positions among the remaining heads, or with `around` among all heads.
        around: Whether heads that were removed are among them.
    """

    tower: str
    heads: tuple[tuple[int, ...], ...]
    around: bool = False


class Ablation(NamedTuple):
    """A tower's outputs (k, N, F) without each of k heads of a layer.

    Attributes:
        outputs: The tower's.
        entered: What enters the layer.
        positions: The heads' among those that are left in it.
        attention_outputs: The layer's attention outputs (k B, T, D) without each head.
        later: What enters the blocks that follow, (k B, ...); empty where it is not wanted.
    """

    outputs: torch.Tensor
    entered: LayerInput
    positions: Sequence[int]
    attention_outputs: torch.Tensor
    later: list[LayerInput]

    def trail(self, number: int) -> list[LayerInput]:
        """Return what enters the blocks from the layer's own on without the head of that number, in memory of its own."""
        size = len(self.entered.y)
        rows = slice(number * size, (number + 1) * size)
        others = [i for i in range(self.entered.z.shape[-2]) if i != self.positions[number]]
        first = self.entered._replace(
            z=self.entered.z[..., others, :], y=self.attention_outputs[rows].clone()
        )
        return [first, *(entered.of(rows).copy() for entered in self.later)]

    @property
    def size(self) -> int:
        """How many bytes all trails take."""
        return self.attention_outputs.numel() * self.attention_outputs.element_size() + sum(
            entered.size for entered in self.later
        )


def iterate_ablations(
    tower: Tower,
    layer: int,
    entered: LayerInput,
    positions: Sequence[int],
    room: MemoryBudget,
    *,
    trails: bool = False,
) -> Iterator[Ablation]:
    """Yield what there is without each of a layer's heads at `positions`, several heads side by side.

    With `trails`, also what enters the blocks that follow, where there is room for that.
    """
    block, stream, z, y, _ = entered

    def ablate(heads: Sequence[int], *, trails: bool) -> Ablation:
        attention_outputs = torch.cat([entered.without(head) for head in heads])
        joined = block.join(stream.tile(len(heads)), attention_outputs)
        later = list(following(tower, joined, layer + 1)) if trails else []
        outputs = tower.finish(later[-1].leaving) if later else tower.resume(joined, layer + 1)
        return Ablation(
            outputs.reshape(len(heads), -1, *outputs.shape[1:]), entered, heads, attention_outputs, later
        )

    if not positions:
        return

    def fit(*, with_trails: bool) -> int:
        key = (id(tower), layer, y.shape, z.shape, with_trails)
        return room.side_by_side(
            key, y, 2 * entered.size, lambda: ablate(positions[:1], trails=with_trails).outputs
        )

    keeps_trails = trails and fit(with_trails=True) > 0
    side_by_side = fit(with_trails=keeps_trails)
    if not side_by_side:
        raise room.refused()
    for begin in range(0, len(positions), side_by_side):
        yield ablate(positions[begin : begin + side_by_side], trails=keeps_trails)


def compile_joins(model: Model, *, name: str) -> None:
    """Let each block's `join` run compiled: residual, norms, scales, MLP.

    Heads are cut out of what comes before it. Tokens are told neither by sample nor by place, so that one graph does for any
    number of candidates, samples and tokens, and for all blocks of a tower that are alike. A block whose `join` mixes tokens
    runs as ever, and so does a lone token, which would take a graph of its own.

    Args:
        model: In evaluation mode, on its device, in its dtype.
        name: What messages call it.

    Raises:
        UsageError: When it runs, if this machine cannot compile.
    """
    run = compiled(_joined, name=name, dynamic=True)
    for tower_name in model.towers:
        for block in model.tower(tower_name).layers():
            if block.tokenwise:
                vars(block)["join"] = partial(_join, run, block)


def _join(run: Callable[..., torch.Tensor], block: Block, stream: Stream, y: torch.Tensor) -> Stream:
    # what counts memory must see what is made
    if y.shape[:-1].numel() == 1 or _get_current_dispatch_mode() is not None:
        return type(block).join(block, stream, y)
    return stream.with_tokens(run(block, _in_one_row(stream.tokens), _in_one_row(y)).view(y.shape))


def _in_one_row(x: torch.Tensor) -> torch.Tensor:
    """Return x (N, T, D) as (1, N T, D), whose strides are always the same: each other shape would be compiled anew."""
    return x.reshape(-1).view(1, -1, x.shape[-1])


def _joined(block: Block, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return type(block).join(block, Stream(tokens), y).tokens
