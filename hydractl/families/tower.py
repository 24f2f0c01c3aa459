"""Towers (embedding, blocks, readout) of a library's model, zero-shot classifiers, and inputs for checks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.errors import EDITED, CheckpointError
from hydractl.families.attention import Attention, QuietDropout
from hydractl.families.head_slicing import TowerLayout, select_heads
from hydractl.families.stream import (
    CopiedWeights,
    MemberParallel,
    Product,
    Stream,
    all_same,
    compute_product,
    member_slice,
)
from hydractl.manifest.terms import Temperature
from hydractl.model_inputs import TEXTS, Inputs, batch_of, checked_inputs, map_inputs, repeat_batch
from hydractl.runtime import at_least_single

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import TowerKeep
    from hydractl.manifest.header import Architecture, Header, Preprocess, Tokenization


class Block(nn.Module):
    """A transformer block. Members share or replace direct children of the block.

    Attributes:
        feeds: For each norm, the name of the only part that reads the norm's output.
        adds: Whether `join` passes the outputs of attention and MLP to no other functions than `apply_module`
            and `residual`. Both accept a `Product`, so stacked parts may return one.
        tokenwise: Whether `join` computes each token from the same token and its attention output, without
            other tokens or context.
    """

    attn: Attention
    feeds: Mapping[str, str] = MappingProxyType({})
    adds = False
    tokenwise = True

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """Return the outputs (B, T', H, K) of heads, before the projection, for the tokens `queries` or all."""
        raise NotImplementedError

    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        """Return the stream after residual, norms, layer scale and MLP, for the attention output y (N, T, D)."""
        raise NotImplementedError

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return the attention output (N, T', D) for head outputs z (B, T', H, K)."""
        return compute_product(self.attn.project(z))

    @override
    def forward(self, stream: Stream, queries: slice | None = None) -> Stream:
        """Return the stream after this block, with the tokens `queries` only if given."""
        y = self.attn.project(self.heads(stream, queries))
        if queries is not None:
            stream = stream.with_tokens(stream.tokens[:, queries])
        if self.attn.projects_for > 1:
            stream = stream.spread(self.attn.projects_for)
        return self.join(stream, y)

    def fold(self) -> bool:
        """Fold stacked norms (`MemberParallel.fold_into`), and return whether any norm was folded."""
        folded = False
        for norm, reader in self.feeds.items():
            norm_part, reader_part = getattr(self, norm), getattr(self, reader)
            if isinstance(norm_part, MemberParallel) and isinstance(reader_part, MemberParallel):
                folded |= norm_part.fold_into(reader_part)
        return folded

    def delay(self) -> None:
        """Let stacked parts return their last product as a `Product`, if `residual` adds it."""
        if self.adds:
            width = self.attn.groups()[0].proj.weight.shape[0]
            for part in (self.attn, getattr(self, "mlp", None)):
                if isinstance(part, MemberParallel):
                    part.delay(width)

    def branching(self) -> Block | None:
        """Return this block with one input stream for all members and an output stream per member.

        None if heads are not stacked, norms before attention not folded, or `adds` or `tokenwise` is false.
        """
        norms = [getattr(self, name) for name, reader in self.feeds.items() if reader == "attn"]
        if not self.adds or any(isinstance(norm, MemberParallel) and not norm.folded for norm in norms):
            return None
        attention = self.attn.on_one_stream()
        return self.with_parts({"attn": attention}) if attention is not None and self.tokenwise else None

    def with_parts(self, parts: Mapping[str, nn.Module]) -> Block:
        """Return a copy of this block with other children in `parts`. The copy shares all other children."""
        copied = copy.copy(self)
        copied.__dict__["_modules"] = {**self._modules, **parts}
        return copied


class Tower(nn.Module):
    """A stack of blocks between an embedding and a readout, run for M members at once.

    `embed` and `readout` hold library modules under the name `host`, with the library's state-dict names.

    Attributes:
        members: M.
        fork: The stream is repeated for each member before this step: 0 is the embedding, i + 1 block i, L +
            1 the readout. None if no part differs among members.
    """

    def __init__(
        self,
        *,
        embed: nn.Module,
        blocks: Sequence[Block],
        readout: nn.Module,
        read_tokens: slice | None,
        names: Mapping[str, str],
    ) -> None:
        """Build the tower.

        Args:
            embed: Module from inputs to a `Stream`.
            blocks: The blocks in order.
            readout: Module from a `Stream` to the output (N, C).
            read_tokens: Tokens that the readout reads, or None for all. The last block computes no other tokens.
            names: The library's state-dict prefix, with `{layer}`, for prefixes of tensor names in a `Block`.
                The longest matching prefix is used; `""` matches all names.
        """
        super().__init__()
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)
        self.readout = readout
        self.read_tokens = read_tokens
        self.names = dict(sorted(names.items(), key=lambda pair: -len(pair[0])))
        self.members = 1
        self.fork: int | None = None
        self._stacking_requested = False
        self._copied: CopiedWeights | None = None
        # in a tuple, so that its tensors do not become parameters of the tower
        self._branch: tuple[Block, ...] = ()

    def stack(self, on: bool) -> None:
        """Stack the parts that differ among members if `on`, else run members in turn.

        Parts are stacked in evaluation mode only, and if `MemberParallel.at_once` supports them. Valid
        stacked copies are kept, because a captured CUDA graph may use the memory.
        """
        self._stacking_requested = on
        if on and not self.training and self._copied is not None and not self._copied.changed:
            return
        parts = self._member_parallel_parts()
        # stacked parts may contain the weights of a neighbour in training mode
        on = on and not any(part.training for part in (self, *parts))
        for part in parts:
            part.stack(on)
        folded = [block for block in self.layers() if block.fold()]
        for block in self.layers():
            block.delay()
        fork = self.fork or 0
        branch = self.layers()[fork - 1].branching() if on and 0 < fork <= len(self.blocks) else None
        self._branch = () if branch is None else (branch,)
        self._copied = CopiedWeights(parts, within=folded) if on else None

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run members in turn inside the `with` statement, although stacked copies exist.

        Needed while a part is replaced: the stacked copy of a neighbour may contain the weights of the part.
        """
        was_stacked, self._stacking_requested = self._stacking_requested, False
        with ExitStack() as contexts:
            for part in self._member_parallel_parts() if was_stacked else ():
                contexts.enter_context(part.in_turn())
            try:
                yield
            finally:
                self._stacking_requested = was_stacked

    def _member_parallel_parts(self) -> list[MemberParallel]:
        return [module for module in self.modules() if isinstance(module, MemberParallel)]

    def _keep_up(self) -> None:
        """Stack changed weights again. One comparison covers all parts, because comparisons take time."""
        if (
            torch.compiler.is_compiling()
            or not self._stacking_requested
            or self.training
            or torch.is_grad_enabled()
        ):
            return
        self.stack(on=True)

    @override
    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_copied": None, "_branch": ()}  # as in `MemberParallel`

    def layers(self) -> list[Block]:
        """Return the blocks in order."""
        return cast("list[Block]", list(self.blocks))

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return logits or embeddings (N, C). N = M B, member after member, or N = B if `fork` is None."""
        self._keep_up()
        if self.fork == 0:
            inputs = map_inputs(lambda x: repeat_batch(x, self.members), inputs)
        return self.resume(self.embed(inputs), 0)

    def forward_member_inputs(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (M B, C) for separate inputs (M B, ...) of each member. `fork` must be 0 or 1."""
        self._keep_up()
        stream: Stream = self.embed(inputs)
        for i, block in enumerate(self.layers()):
            stream = block(stream, self.queries(i))
        return cast("torch.Tensor", self.readout(stream))

    def resume(self, stream: Stream, layer: int) -> torch.Tensor:
        """Return logits for a stream that enters block `layer`."""
        blocks = self.layers()
        for i in range(layer, len(blocks)):  # without `queries`, because each function call takes time
            block = blocks[i]
            if self.fork == i + 1 and self._branch and block.attn.stacked is not None:
                (block,) = self._branch
            elif self.fork == i + 1:
                stream = stream.tile(self.members)
            stream = block(stream, self.read_tokens if i == len(blocks) - 1 else None)
        return self.finish(stream)

    def finish(self, stream: Stream) -> torch.Tensor:
        """Return logits for a stream that leaves the last block."""
        forked = stream.tile(self.members) if self.fork == len(self.blocks) + 1 else stream
        return cast("torch.Tensor", self.readout(forked))

    def queries(self, layer: int) -> slice | None:
        """Return the tokens to compute in block `layer`: None (all), except in the last block."""
        return self.read_tokens if layer == len(self.blocks) - 1 else None

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
    """Conversion of tower outputs into logits.

    In this base class, the readout of a single tower returns the logits. State-dict names are the library's.

    Attributes:
        fixed: Names of the towers with the same inputs in every pass.
        features: Number of features after the logits in the readout's output, from `FeatureLinear`.
        multi_label: Whether each of Q labels is a question with two classes.
    """

    fixed: frozenset[str] = frozenset()
    features: int = 0
    multi_label: bool = False

    def route(self, inputs: Inputs, towers: Sequence[str]) -> dict[str, Inputs]:
        """Return the inputs of each tower. Towers that are not needed are left out."""
        return {towers[0]: inputs}

    def expect(self, labels: int) -> None:
        """Allocate the stored tensors of a number of named classes on the meta device. This class has none."""

    def forward(self, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (k, B, C) or (k, B, Q, C) for tower outputs (k or 1, N, F).

        The k models of a call are members, or models with different heads removed. A tower with 1 output is
        shared.
        """
        (logits,) = outputs.values()
        return self.class_logits(logits[..., : -self.features] if self.features else logits)

    def class_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits (..., C) for a classifier's outputs, or (..., Q, 2) for Q labels.

        A single logit z, of the classifier or of a label, is the log odds of the second of two classes, and
        becomes (0, z).
        """
        logits = logits.unsqueeze(-1) if self.multi_label else logits
        return F.pad(logits, (1, 0)) if logits.shape[-1] == 1 else logits


class Towers(nn.Module):
    """Named towers with a common dtype and device: the base class of members and hydras.

    Attributes:
        towers: Towers by `text` or `vision`.
        answers: Output heads, one per member.
        encoder: Preprocessing of texts or images, set by `hydractl.load`; else None.
        temperature: Divisor of the logits in prediction.
        label_temperatures: Divisors per label, (Q, 1), or None.
    """

    def __init__(self, towers: Mapping[str, Tower], answers: Sequence[OutputHead]) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(towers)
        self.answers = nn.ModuleList(answers)
        self.encoder: Callable[[Sequence[Any]], Inputs] | None = None
        for module in self.modules():
            # So that dropout layers of the library's modules are skipped in evaluation, too.
            if type(module) is nn.Dropout:
                module.__class__ = QuietDropout
        self.set_temperature(Temperature())

    def set_temperature(self, temperature: Temperature) -> None:
        """Set the temperature that divides `member_logits`. Models without a call have temperature 1."""
        self.temperature = temperature.common
        numbers = temperature.by_label
        by_label = torch.tensor(numbers, device=self.device).unsqueeze(-1) if numbers else None
        self.register_buffer("label_temperatures", by_label, persistent=False)

    def tower(self, name: str | None = None) -> Tower:
        """Return a tower by name, or the first tower."""
        return cast("Tower", self.towers[name] if name else next(iter(self.towers.values())))

    @property
    def answer(self) -> OutputHead:
        """The output head of the first member."""
        return cast("OutputHead", self.answers[0])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, to which inputs are cast. ValueError without floating-point weights."""
        if (first := _first_floating(self)) is None:
            raise ValueError("the model has no weights")
        return first.dtype

    def encode(self, items: Sequence[Any]) -> Inputs:
        """Convert texts, pairs of texts or Pillow images to inputs of the model.

        Texts become a dict of tensors (B, T), by the tokenizer in the checkpoint; images become a tensor (B,
        C, height, width). The input of a zero-shot model with both towers is `{"pixel_values":
        model.encode(images)} | model.encode(texts)`.

        Args:
            items: Items of the same type; not empty.

        Raises:
            TypeError: If the items are not of the type that the model reads, or the model does not come from
                `hydractl.load`.
            DataError: If an image cannot be read.
            CheckpointError: If a text model has no tokenizer.
        """
        if self.encoder is None:
            raise TypeError("only a model from `hydractl.load` has the preprocessing of its inputs")
        return self.encoder(items)

    def run_tower(self, name: str, inputs: Inputs) -> torch.Tensor:
        """Return a tower's outputs (G, B, F) or (G, B, Q, F) for inputs (B, ...).

        G is M, or 1 if no part of the tower differs among members.
        """
        tower = self.tower(name)
        outputs: torch.Tensor = tower(inputs)
        members = 1 if tower.fork is None else tower.members
        return outputs.view(members, batch_of(inputs), *outputs.shape[1:])

    def member_logits(self, inputs: Inputs) -> torch.Tensor:
        """Return the members' logits (M, B, C) for inputs (B, ...), cast to the dtype of the weights."""
        return self.scaled_logits(self.run_towers(inputs))

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return the members' logits (M, B, C) in a tuple. Subclasses append other outputs of the same pass."""
        return (self.member_logits(inputs),)

    def run_towers(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Return the outputs (G, B, F) of all towers needed for inputs (B, ...)."""
        return {name: self.run_tower(name, asked) for name, asked in self.routed(inputs).items()}

    def scaled_logits(self, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the result of `answered` divided by the temperature."""
        logits = self.answered(outputs)
        if isinstance(self.label_temperatures, torch.Tensor):
            return (logits / self.label_temperatures).to(logits.dtype)
        return logits if self.temperature == 1 else logits / self.temperature

    def routed(self, inputs: Inputs) -> dict[str, Inputs]:
        """Return the inputs of each tower in the dtype of the weights, without towers that are not needed."""
        return self.answer.route(self.adapted(inputs), list(self.towers.keys()))

    def answered(self, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the members' logits (M, B, C) for tower outputs (G, B, F)."""
        answers = [cast("OutputHead", answer) for answer in self.answers]
        if type(answers[0]) is OutputHead or all_same(answers):  # the plain class has no tensors
            logits: torch.Tensor = answers[0](outputs)
            return logits if len(logits) == len(answers) else torch.cat([logits] * len(answers))
        return torch.cat(
            [
                answer({name: member_slice(x, m) for name, x in outputs.items()})
                for m, answer in enumerate(answers)
            ]
        )

    def adapted(self, inputs: Inputs) -> Inputs:
        """Return inputs in the dtype of the weights. Integer tensors (token ids) are unchanged."""
        dtype = self.dtype
        return map_inputs(lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device


def _first_floating(module: nn.Module) -> torch.Tensor | None:
    """Return the first floating-point parameter, or None. Recursive, because `module.parameters()` is slow."""
    for tensor in module._parameters.values():
        if tensor is not None and tensor.is_floating_point():
            return tensor
    for child in module._modules.values():
        if child is not None and (first := _first_floating(child)) is not None:
            return first
    return None


class Model(Towers):
    """A base or a member. The forward pass equals the library's own."""

    def __init__(self, towers: Mapping[str, Tower], answer: OutputHead | None = None) -> None:
        super().__init__(towers, [OutputHead() if answer is None else answer])

    def forward(self, inputs: Inputs | None = None, **named: torch.Tensor) -> torch.Tensor:
        """Return logits (B, C). Inputs, by position or keyword, are cast to the dtype of the weights.

        Raises:
            TypeError: If the model does not read these inputs; see `checked_inputs`.
        """
        return self.member_logits(checked_inputs(inputs, named, self.towers.keys())).squeeze(0)

    def library_state(self) -> dict[str, torch.Tensor]:
        """Return parameters and persistent buffers under the library's state-dict names, not detached."""
        pairs = (pair for tower in self.towers.values() for pair in cast("Tower", tower).library_tensors())
        return dict(pairs) | self.answer.state_dict(keep_vars=True)


PRE_NORM = MappingProxyType({"norm1": "attn", "norm2": "mlp"})
"""`Block.feeds` of pre-norm blocks (Xiong et al. 2020)."""
HeadNumbers = Sequence[tuple[int, ...]]
"""Kept heads of a tower, by layer."""


def without_weights() -> AbstractContextManager[None]:
    """Return a context for new modules with parameters on the meta device, and real buffers.

    Non-persistent buffers, for example rotary angles, are computed in constructors only.
    """
    from accelerate import init_empty_weights

    return cast("AbstractContextManager[None]", init_empty_weights(include_buffers=False))


def cut_heads(
    library: nn.Module,
    layouts: Mapping[str, TowerLayout],
    architecture: Architecture,
    mask: Mapping[str, TowerKeep],
) -> None:
    """Give all tensors with a head axis the sizes of a head mask, on the meta device.

    Raises:
        CheckpointError: If the library's towers have another number of layers than the masks.
    """
    for tower, layout in layouts.items():
        heads, kept_heads = architecture.towers[tower], mask[tower].keep
        last, beyond = (layout.block.format(layer=n)[:-1] for n in (heads.layers - 1, heads.layers))
        if _submodule(library, last) is None or _submodule(library, beyond) is not None:
            raise CheckpointError(
                f"its masks have {heads.layers} layers, but its configuration makes a "
                f"`{architecture.name}` with another number",
                hint=EDITED,
            )
        for layer, head_numbers in enumerate(kept_heads):
            for tensor in layout.heads:
                select_heads(library, layout.block.format(layer=layer), tensor, head_numbers, heads)


def load_tensors(library: nn.Module, state: Mapping[str, torch.Tensor] | None) -> None:
    """Load a state dict into a library's model. Without a state dict, parameters stay on the meta device.

    Raises:
        RuntimeError: If names or shapes differ from the library's.
    """
    if state is None:
        return
    library.load_state_dict(state, strict=True, assign=True)
    for parameter in library.parameters():
        parameter.requires_grad_(parameter.is_floating_point() and parameter.numel() > 0)


def part(library: nn.Module, keep: Callable[[str], bool], path: str = "") -> Any:  # noqa: ANN401 - libraries are untyped
    """Return a copy of a library model with a selection of children, parameters and buffers.

    Other children and tensors are None in the copy. The methods of the copy run unchanged.

    Args:
        library: The model, or a module of a model.
        keep: Predicate of dotted names, called for tensors and for modules without children.
        path: Prefix of the names, for a module in a model.
    """
    copied = copy.copy(library)
    for kind in ("_parameters", "_buffers"):
        copied.__dict__[kind] = {
            n: v if v is None or keep(path + n) else None for n, v in getattr(library, kind).items()
        }
    copied.__dict__["_modules"] = {
        n: None if child is None else _kept_child(child, path + n, keep)
        for n, child in library._modules.items()
    }
    return copied


def _kept_child(child: nn.Module, path: str, keep: Callable[[str], bool]) -> nn.Module | None:
    """Return the child if kept completely, a copy with the kept parts, or None."""
    inner = [
        *(n for n, m in child.named_modules() if n and not m._modules),
        *(n for n, _ in (*child.named_parameters(), *child.named_buffers())),
    ]
    keep_flags = [keep(f"{path}.{n}") for n in inner] or [keep(path)]
    if all(keep_flags):
        return child
    return part(child, keep, f"{path}.") if any(keep_flags) else None


def _submodule(library: nn.Module, path: str) -> nn.Module | None:
    try:
        return library.get_submodule(path)
    except AttributeError:
        return None


class Hosted(nn.Module):
    """A part of a library's model that runs library modules under the library's state-dict names."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host


class FunctionModule(Hosted):
    """A module that runs a function on library modules: from inputs to a stream, or from a stream to outputs."""

    def __init__(self, host: nn.Module, run: Callable[[Any, Any], Any]) -> None:
        super().__init__(host)
        self.run = run

    @override
    def forward(self, x: Any) -> Any:
        return self.run(self.host, x)


class LayerScale(nn.Module):
    """A scale per feature, for libraries with scales as parameters of blocks."""

    def __init__(self, gamma: nn.Parameter) -> None:
        super().__init__()
        self.gamma = gamma

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gamma * x


CLASS_EMBEDDINGS = "class_embeddings"
"""Name of the stored class embeddings in the state dict."""


class Contrast(OutputHead):
    """Zero-shot classifier: scaled cosines of the embeddings of images and classes.

    Towers return embeddings of length 1. Logits are float32 at least, even under autocast: near 30,
    neighbouring bf16 numbers differ by 1/8, so several classes could share the largest logit.

    Attributes:
        class_embeddings: Shape (C, F), or None if classes are not stored.
        prompts: Tokenized prompts of the classes if the text tower runs in every pass; else None.
        templates: P, the number of prompts per class.
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
        """Store the parts of a library's model.

        Args:
            logit_scale: Logarithm of the factor of the cosines.
            logit_bias: Bias added to the logits (SigLIP), or None.
            width: F, the width of the embeddings.
            class_embeddings: Embeddings of length 1, (C, F), or None if classes are not stored.
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
        """Factor of the cosines."""
        return self.logit_scale.to(at_least_single(self.logit_scale.dtype)).exp()

    def ask(self, prompts: Mapping[str, torch.Tensor], *, templates: int) -> None:
        """Define classes by prompts (C P, T), P per class. The text tower then runs in every pass."""
        self.prompts, self.templates = dict(prompts), templates
        self.class_embeddings = None
        self.fixed = frozenset({"text"})

    def set_class_embeddings(self, class_embeddings: torch.Tensor) -> None:
        """Define classes by embeddings (C, F). The text tower does not run."""
        self.prompts, self.templates, self.fixed = None, 1, frozenset()
        self.class_embeddings = class_embeddings

    @override
    def expect(self, labels: int) -> None:
        self.class_embeddings = (
            torch.empty(labels, self.width, dtype=self.logit_scale.dtype, device="meta") if labels else None
        )

    @override
    def route(self, inputs: Inputs, towers: Sequence[str]) -> dict[str, Inputs]:
        """Return the inputs of each tower, for images, or images and texts.

        Raises:
            CheckpointError: If texts are missing, and the classes have no names.
        """
        del towers
        if isinstance(inputs, Mapping):
            return {
                "text": {name: x for name, x in inputs.items() if name in TEXTS},
                "vision": inputs["pixel_values"],
            }
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
        """Average prompt embeddings (k, C P, F) over templates into class embeddings (k, C, F) of length 1."""
        if self.templates == 1:
            return texts
        prompts: torch.Tensor = texts.unflatten(1, (-1, self.templates))
        return unit(prompts.mean(dim=2))


def unit(x: torch.Tensor) -> torch.Tensor:
    """Divide vectors (..., F) by their length."""
    length: torch.Tensor = x.norm(dim=-1, keepdim=True)
    return x / length


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that disables autocast on a device.

    The context does nothing if autocast is off: `torch.autocast` would be a node of an exported graph.
    """
    kind = device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)  # the meta device has no autocast
    return torch.autocast(kind, enabled=False) if on else nullcontext()


@torch.no_grad()  # not inference mode, whose tensors cannot be used in computations with gradients
def settle_classes(model: Towers, prompts: Mapping[str, torch.Tensor], *, templates: int) -> None:
    """Define the classes of all members by prompts (C P, T), P per class. The text tower runs once, now.

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
        answer.set_class_embeddings(answer.classes(member_slice(text_features, m)).squeeze(0).clone())


TOLERANCE = 1e-5
"""Largest difference between a hydra or pruned member and its reference, in the units of
`largest_difference`. About 80 times the precision of float32, which leaves room for another order of
summation. If doubled, checks miss errors up to 2e-5 of the logits' size."""
PROBE_TOKENS = 24
"""Number of tokens of the longest text in `probe_inputs`. Chosen by hand: short texts keep checks fast, and
still have padding and two segments. If doubled, checks of text models take about twice as long."""
BLANK_TOKENS = 128
"""Maximum number of tokens of the texts in `blank_inputs`. Chosen by hand; it is also the maximum length of
SST-2 texts in the Hydra Ensembles paper. If doubled, reported costs of text models roughly double, and the
share of attention grows."""


def probe_inputs(header: Header, *, batch: int = 2, seed: int = 0) -> Inputs:
    """Return random inputs for a model, determined by the seed.

    Images are standard normal (B, C, height, width), float32. Texts are random tokens (B, T). If texts are
    padded to the longest, T is at most `PROBE_TOKENS`, else the maximum length. All texts but the first have
    random lengths, so that the comparison covers padding. A second segment begins halfway. Zero-shot models
    get images (B, ...) and texts (B, ...), for logits (B, B).
    """
    from hydractl.manifest.header import Tokenization

    generator = torch.Generator().manual_seed(seed)
    preprocess = header.preprocess
    if isinstance(preprocess, Tokenization):
        return _texts(preprocess, batch, generator)
    images = torch.randn(batch, *preprocess.input_size, generator=generator)
    if header.prompting is None:
        return images
    return {"pixel_values": images} | _texts(header.prompting.tokenization, batch, generator)


def _texts(preprocess: Tokenization, batch: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    length = (
        min(PROBE_TOKENS, preprocess.max_length) if preprocess.padding == "longest" else preprocess.max_length
    )
    ids = torch.randint(preprocess.vocab_size, (batch, length), generator=generator)
    ids[ids == preprocess.pad_id] = (preprocess.pad_id + 1) % preprocess.vocab_size
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[:1] = length
    positions = torch.arange(length)
    token_mask = positions < lengths[:, None]
    if preprocess.padding_side == "left":
        token_mask = token_mask.flip(1)
    segments = (token_mask & (positions >= length // 2)).long()
    return _named(preprocess, ids.masked_fill(~token_mask, preprocess.pad_id), token_mask.long(), segments)


def blank_inputs(preprocess: Preprocess | Tokenization, batch: int, *, device: torch.device | str) -> Inputs:
    """Return inputs for cost measurements: images (B, C, height, width) or texts (B, T).

    T is at most `BLANK_TOKENS`. All tokens are equal, without padding.
    """
    from hydractl.manifest.header import Tokenization

    if not isinstance(preprocess, Tokenization):
        return torch.zeros(batch, *preprocess.input_size, device=device)
    ids = torch.zeros(batch, min(BLANK_TOKENS, preprocess.max_length), dtype=torch.long, device=device)
    return _named(
        preprocess, ids + (preprocess.pad_id + 1) % preprocess.vocab_size, torch.ones_like(ids), ids
    )


def _named(
    preprocess: Tokenization, ids: torch.Tensor, token_mask: torch.Tensor, segments: torch.Tensor
) -> dict[str, torch.Tensor]:
    named = {"attention_mask": token_mask, "token_type_ids": segments}
    return {"input_ids": ids} | {name: named[name] for name in preprocess.names}


def largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return max |actual - expected| / max(1, max |expected|); infinite if a number is not finite.

    Rounding errors grow with the logits. Therefore the size of the expected logits is the unit.
    """
    if not (actual.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1.0)).item()
