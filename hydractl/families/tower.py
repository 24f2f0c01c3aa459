"""A model is embed → blocks → readout: the view of a transformer on which the whole tool stands.

Axes: M members, N = M B batch (B where the members agree), T tokens, D width, H heads, K head width, C classes.
A family wraps a library's modules into `Block`s, an embedding and a readout; running them in turn equals the
library's own forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.families.attention import Attention
from hydractl.families.attention_bias import QuietDropout
from hydractl.families.batched_members import MemberParallel, Sources, all_same
from hydractl.families.stream import Product, Stream, computed, share
from hydractl.manifest.temperature import Temperature
from hydractl.model_inputs import Inputs, batch_of, checked_inputs, map_inputs, repeat_batch


class Block(nn.Module):
    """One transformer block; its direct children are the parts that members may share or not."""

    attn: Attention

    @property
    def feeds(self) -> Mapping[str, str]:
        """For norms the part that alone reads what they give."""
        return {}

    @property
    def adds(self) -> bool:
        """Whether `join` gives what attention and MLP make to `residual` alone, or to `applied` before."""
        return False

    @property
    def tokenwise(self) -> bool:
        """Whether `join` makes each token of itself and of its attention output alone: of no other, of no context."""
        return True

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """Return every head's output (B, T', H, K) before the output projection; `queries` picks the T' tokens."""
        raise NotImplementedError

    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        """Return the stream after residual, norms, layer scale and MLP, for the attention output y (N, T, D)."""
        raise NotImplementedError

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return the attention output (N, T', D) of head outputs z (B, T', H, K)."""
        return computed(self.attn.project(z))

    @override
    def forward(self, stream: Stream, queries: slice | None = None) -> Stream:
        """Return the stream after this block, of the tokens `queries` only where given."""
        y = self.attn.project(self.heads(stream, queries))
        if queries is not None:
            stream = stream.with_tokens(stream.tokens[:, queries])
        if self.attn.projects_for > 1:
            stream = stream.spread(self.attn.projects_for)
        return self.join(stream, y)

    def fold(self) -> bool:
        """Have stacked norms multiplied into what alone reads them, and return whether any were: see `MemberParallel.fold_into`."""
        folded = False
        for norm, reader in self.feeds.items():
            norm_part, reader_part = getattr(self, norm), getattr(self, reader)
            if isinstance(norm_part, MemberParallel) and isinstance(reader_part, MemberParallel):
                folded |= norm_part.fold_into(reader_part)
        return folded

    def delay(self) -> None:
        """Have stacked parts leave their last product to `residual`, where that is what becomes of it."""
        if self.adds:
            width = self.attn.groups()[0].proj.weight.shape[0]
            for part in (self.attn, getattr(self, "mlp", None)):
                if isinstance(part, MemberParallel):
                    part.delay(width)

    def branching(self) -> Block | None:
        """Return this block as one stream goes in, and each member's own comes out; None where that is not possible."""
        norms = [getattr(self, name) for name, reader in self.feeds.items() if reader == "attn"]
        if not self.adds or any(isinstance(norm, MemberParallel) and not norm.folded for norm in norms):
            return None
        attention = self.attn.on_one_stream()
        return self.with_parts({"attn": attention}) if attention is not None and self.tokenwise else None

    def with_parts(self, parts: Mapping[str, nn.Module]) -> Block:
        """Return a copy of this block that has `parts` in place of its own children and shares all others."""
        copied = copy.copy(self)
        copied.__dict__["_modules"] = {**self._modules, **parts}
        return copied


class Tower(nn.Module):
    """A stack of blocks between an embedding and a readout, run for M members at once.

    `embed` and `readout` hold library modules under the name `host`, whose state-dict names are the library's.
    """

    def __init__(
        self,
        *,
        embed: nn.Module,
        blocks: Sequence[Block],
        readout: nn.Module,
        reads: slice | None,
        names: Mapping[str, str],
    ) -> None:
        """Put the parts together.

        Args:
            embed: Inputs to `Stream`.
            blocks: The blocks in order.
            readout: `Stream` to (N, C).
            reads: The tokens that the readout reads, None for all: the last block computes no others.
            names: The library's state-dict prefix, with `{layer}`, for each prefix of a tensor within a block of ours; the
                longest that fits counts, `""` fits all.
        """
        super().__init__()
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)
        self.readout = readout
        self.reads = reads
        self.names = dict(sorted(names.items(), key=lambda pair: -len(pair[0])))
        self.members = 1
        self.fork: int | None = None
        self._asked = False
        self._copied: Sources | None = None
        self._branch: tuple[Block, ...] = ()  # in a tuple, as it holds no tensors of the model's own

    def stack(self, on: bool) -> None:
        """Stack what differs among members from here on, where that is possible and nothing is trained; or let it run in turn.

        What is stacked already and has not changed stays: whoever holds it, as a captured graph of a GPU does, may go on with it.
        """
        self._asked = on
        if on and not self.training and self._copied is not None and not self._copied.changed:
            return
        parts = self._member_parallel_parts()
        on = on and not any(part.training for part in (self, *parts))  # one may hold its neighbour's weights
        for part in parts:
            part.stack(on)
        folded = [block for block in self.layers() if block.fold()]
        for block in self.layers():
            block.delay()
        self._branch = self._branching() if on else ()
        self._copied = Sources(parts, within=folded) if on else None

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run members in turn meanwhile, whatever is stacked: where some part is exchanged, which may hold its neighbour's weights."""
        was_stacked, self._asked = self._asked, False
        with ExitStack() as contexts:
            for part in self._member_parallel_parts() if was_stacked else ():
                contexts.enter_context(part.in_turn())
            try:
                yield
            finally:
                self._asked = was_stacked

    def _branching(self) -> tuple[Block, ...]:
        fork = self.fork or 0
        branch = self.layers()[fork - 1].branching() if 0 < fork <= len(self.blocks) else None
        return () if branch is None else (branch,)

    def _member_parallel_parts(self) -> list[MemberParallel]:
        return [module for module in self.modules() if isinstance(module, MemberParallel)]

    def _keep_up(self) -> None:
        """Stack anew what has changed since it was stacked; all is looked at together, as each look takes time."""
        if torch.compiler.is_compiling() or not self._asked or self.training or torch.is_grad_enabled():
            return
        self.stack(on=True)

    @override
    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_copied": None, "_branch": ()}  # as in `MemberParallel`

    def layers(self) -> list[Block]:
        """Return the blocks in order."""
        return cast("list[Block]", list(self.blocks))

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (N, C): N = M B with members one after another, or B where no part differs among members.

        `fork` is the step before which the stream is repeated: 0 the embedding, i + 1 block i, L + 1 the readout.
        """
        self._keep_up()
        if self.fork == 0:
            inputs = map_inputs(lambda x: repeat_batch(x, self.members), inputs)
        return self.resume(self.embed(inputs), 0)

    def forward_member_inputs(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (M B, C) for inputs (M B, ...) that are each member's own; `fork` is 0 or 1."""
        self._keep_up()
        stream: Stream = self.embed(inputs)
        for i, block in enumerate(self.layers()):
            stream = block(stream, self.queries(i))
        return cast("torch.Tensor", self.readout(stream))

    def resume(self, stream: Stream, layer: int) -> torch.Tensor:
        """Return logits from the stream that enters block `layer`."""
        blocks = self.layers()
        for i in range(layer, len(blocks)):  # without `queries`, as each call of a function takes time
            block = blocks[i]
            if self.fork == i + 1 and self._branch and block.attn.stacked is not None:
                (block,) = self._branch
            elif self.fork == i + 1:
                stream = stream.tile(self.members)
            stream = block(stream, self.reads if i == len(blocks) - 1 else None)
        return self.finish(stream)

    def finish(self, stream: Stream) -> torch.Tensor:
        """Return logits from the stream that leaves the last block."""
        forked = stream.tile(self.members) if self.fork == len(self.blocks) + 1 else stream
        return cast("torch.Tensor", self.readout(forked))

    def queries(self, layer: int) -> slice | None:
        """Return the tokens that block `layer` must compute: all, or in the last block those that are read."""
        return self.reads if layer == len(self.blocks) - 1 else None

    def library_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield parameters and persistent buffers under the library's state-dict names, for a single member."""
        for key, tensor in self.state_dict(keep_vars=True).items():
            part, _, local_name = key.partition(".")
            if part != "blocks":
                yield local_name.removeprefix("host."), tensor
                continue
            layer, _, name = local_name.partition(".")
            ours = next(prefix for prefix in self.names if name.startswith(prefix))
            yield self.names[ours].format(layer=layer) + name.removeprefix(ours), tensor


class OutputHead(nn.Module):
    """How towers' outputs become logits. This one: there is one tower, and its readout gives them.

    State-dict names are the library's. `fixed` names the towers that are always asked the same; `features` is how many numbers the
    readout gives after its logits, of `FeatureLinear`; `multi_label` says that each of Q labels is a question of two classes.
    """

    fixed: frozenset[str] = frozenset()
    features: int = 0
    multi_label: bool = False

    def route(self, inputs: Inputs, towers: Sequence[str]) -> dict[str, Inputs]:
        """Return what each tower is asked; a tower that is not needed is left out."""
        return {towers[0]: inputs}

    def expect(self, labels: int) -> None:
        """Make room on the meta device for what is stored of `labels` named classes."""

    def forward(self, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (k, B, C), or (k, B, Q, C), of towers' outputs (k or 1, N, F), for k variants of one of the towers."""
        (logits,) = outputs.values()
        return self.class_logits(logits[..., : -self.features] if self.features else logits)

    def class_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits (..., C) of a classifier's outputs, or (..., Q, 2) of Q labels.

        A single logit, of the classifier or of a label, is the log odds of the second of two classes, so z becomes (0, z).
        """
        logits = logits.unsqueeze(-1) if self.multi_label else logits
        return F.pad(logits, (1, 0)) if logits.shape[-1] == 1 else logits


class Towers(nn.Module):
    """Named towers with one dtype and one place: what a member and a hydra have in common."""

    def __init__(self, towers: Mapping[str, Tower], answers: Sequence[OutputHead]) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(towers)
        self.answers = nn.ModuleList(answers)
        self.encoder: Callable[[Sequence[Any]], Inputs] | None = None
        for module in self.modules():
            if type(module) is nn.Dropout:
                module.__class__ = QuietDropout
        self.set_temperature(Temperature())

    def set_temperature(self, temperature: Temperature) -> None:
        """Divide logits by a temperature in prediction, but not in scoring or training."""
        self.temperature = temperature.common
        numbers = temperature.by_label
        by_label = torch.tensor(numbers, device=self.device).unsqueeze(-1) if numbers else None
        self.register_buffer("label_temperatures", by_label, persistent=False)

    def tower(self, name: str | None = None) -> Tower:
        """Return a tower by name, or the only one."""
        return cast("Tower", self.towers[name] if name else next(iter(self.towers.values())))

    @property
    def answer(self) -> OutputHead:
        """How towers' outputs become logits, of the first member."""
        return cast("OutputHead", self.answers[0])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, which inputs are cast to."""
        if (first := _first_floating(self)) is None:
            raise ValueError("the model has no weights")
        return first.dtype

    def encode(self, items: Sequence[Any]) -> Inputs:
        """Return texts, pairs of texts or images of Pillow, at least one and all of one kind, as what the model is called with.

        Texts become a dict of tensors (B, T), by the tokenizer that the checkpoint holds; images a tensor (B, C, height,
        width). Both towers of a zero-shot model take `{"pixel_values": model.encode(images)} | model.encode(texts)`.

        Raises:
            TypeError: If they are not what the model reads, or it was not made by `hydractl.load`.
            DataError: If an image cannot be read.
            CheckpointError: If a text model has no tokenizer.
        """
        if self.encoder is None:
            raise TypeError("only a model from `hydractl.load` has the preprocessing of its inputs")
        return self.encoder(items)

    def run_tower(self, name: str, inputs: Inputs) -> torch.Tensor:
        """Return the members' outputs (G, B, F) of a tower for inputs (B, ...), or (G, B, Q, F); G is 1 where they are the same."""
        tower = self.tower(name)
        outputs: torch.Tensor = tower(inputs)
        members = 1 if tower.fork is None else tower.members
        return outputs.view(members, batch_of(inputs), *outputs.shape[1:])

    def member_logits(self, inputs: Inputs) -> torch.Tensor:
        """Return each member's logits (M, B, C) for inputs (B, ...), which are cast to the dtype of the weights."""
        return self.scaled_logits(self.run_towers(inputs))

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return each member's logits (M, B, C); subclasses append other outputs of the same pass."""
        return (self.member_logits(inputs),)

    def run_towers(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Return the outputs (G, B, F) of the towers that answer about inputs (B, ...)."""
        return {name: self.run_tower(name, asked) for name, asked in self.routed(inputs).items()}

    def scaled_logits(self, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return `answered` divided by the temperature."""
        logits = self.answered(outputs)
        if isinstance(self.label_temperatures, torch.Tensor):
            return (logits / self.label_temperatures).to(logits.dtype)
        return logits if self.temperature == 1 else logits / self.temperature

    def routed(self, inputs: Inputs) -> dict[str, Inputs]:
        """Return what each tower is asked, in the dtype of the weights; a tower that is not needed is left out."""
        return self.answer.route(self.adapted(inputs), list(self.towers.keys()))

    def answered(self, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return each member's logits (M, B, C) of towers' outputs (G, B, F)."""
        answers = [cast("OutputHead", answer) for answer in self.answers]
        if type(answers[0]) is OutputHead or all_same(answers):  # the plain one has nothing that could differ
            logits: torch.Tensor = answers[0](outputs)
            return logits if len(logits) == len(answers) else torch.cat([logits] * len(answers))
        return torch.cat(
            [answer({name: share(x, m) for name, x in outputs.items()}) for m, answer in enumerate(answers)]
        )

    def adapted(self, inputs: Inputs) -> Inputs:
        """Return inputs in the dtype of the weights; ids stay whole numbers."""
        dtype = self.dtype
        return map_inputs(lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device


def _first_floating(module: nn.Module) -> torch.Tensor | None:
    """Return the first of `module.parameters()` that is of a floating-point dtype; their generators take longer than an operator."""
    for tensor in module._parameters.values():
        if tensor is not None and tensor.is_floating_point():
            return tensor
    for child in module._modules.values():
        if child is not None and (first := _first_floating(child)) is not None:
            return first
    return None


class Model(Towers):
    """A base or a member, whose forward pass equals the library's own."""

    def __init__(self, towers: Mapping[str, Tower], answer: OutputHead | None = None) -> None:
        super().__init__(towers, [OutputHead() if answer is None else answer])

    def forward(self, inputs: Inputs | None = None, **named: torch.Tensor) -> torch.Tensor:
        """Return logits (B, C); inputs, as one argument or by keyword, are cast to the dtype of the weights.

        Raises:
            TypeError: If they are not what the model reads; see `checked_inputs`.
        """
        return self.member_logits(checked_inputs(inputs, named, self.towers.keys())).squeeze(0)

    def library_state(self) -> dict[str, torch.Tensor]:
        """Return parameters and persistent buffers under the library's state-dict names, not detached."""
        pairs = (pair for tower in self.towers.values() for pair in cast("Tower", tower).library_tensors())
        return dict(pairs) | self.answer.state_dict(keep_vars=True)
