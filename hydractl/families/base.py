"""What every family states, as data: where heads and MLPs lie in its tensors. Importing this loads no library.

Axes: B batch, T tokens, D width, H heads, K head width, L layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hydractl.errors import UnsupportedModelError
from hydractl.families.head_tensors import HeadTensor
from hydractl.families.model_folder import logits_of
from hydractl.tasks import SINGLE_LABEL, Task

if TYPE_CHECKING:
    import torch

    from hydractl.families.model_folder import Rule
    from hydractl.families.tower import Model
    from hydractl.manifest.head_mask import TowerKeep
    from hydractl.manifest.header import Architecture, Preprocess, Prompting, Tokenization


COMPILED = "_orig_mod."
"""Prefix that torch.compile adds to tensor names."""
DEFAULT_POOLING = "own"
POOLINGS = (DEFAULT_POOLING, "mean")
"""Poolings of a text classifier: that of its family, or the mean over all tokens except padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerLayout:
    """Where a tower's blocks lie among the state-dict names.

    Attributes:
        block: Prefix of a block's tensors, with `{layer}`.
        heads: Tensors with a head axis, relative to the prefix; one that a model lacks is absent from its state dict.
        mlp: Prefixes, relative to the block's, of what the paper averages.
        attention: Prefixes, relative to the block's, of the attention and the norm before it.
        readout: Prefixes of what lies between the blocks and the classifier.
        last_norm: Those among them of the norm that ends the blocks, where they are pre-norm.
        head: Prefixes of the classifier.
        pooler: Prefixes of what belongs to the readout and a model without a classifier may lack.
        embed: Prefixes of the embedding; where a model has one tower, what fits nothing else is the embedding.
    """

    block: str
    heads: tuple[HeadTensor, ...]
    attention: tuple[str, ...]
    mlp: tuple[str, ...]
    readout: tuple[str, ...]
    head: tuple[str, ...]
    pooler: tuple[str, ...] = ()
    embed: tuple[str, ...] = ()
    last_norm: tuple[str, ...] = ()

    def under(self, prefix: str) -> TowerLayout:
        """Return the layout of the same tower in a model whose names for it begin with `prefix`."""
        outside = {
            name: tuple(prefix + path for path in getattr(self, name))
            for name in ("readout", "head", "pooler", "embed", "last_norm")
        }
        return replace(self, block=prefix + self.block, **outside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A model as its headers tell it.

    Attributes:
        architecture: Of a model that `lacks` a classifier, the one with a classifier of any number of classes.
        preprocess: How its inputs are made.
        labels: Names of its classes, if it has any.
        prompting: How names of classes become texts, where the model is asked about them.
        assumed: Whether nothing says how images are read, and what is usual for such models stands in for it.
        lacks: What it is where it does not classify, for messages; empty where it does.
        may_classify: Whether it is a classifier after all where its weights hold one: its folder is of a class that has none,
            and transformers reads the classifier all the same.
        pools: What the classifier should read that it is given, where its folder says it.
        notes: What the user is told of how the folder is read.
    """

    architecture: Architecture
    preprocess: Preprocess | Tokenization
    labels: tuple[str, ...] = ()
    prompting: Prompting | None = None
    assumed: bool = False
    lacks: str = ""
    may_classify: bool = False
    pools: Literal["mean"] | None = None
    notes: tuple[str, ...] = ()


SCALE = ("logit_scale", "logit_bias")
"""Tensors that turn cosines into logits in models of images and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The architectures that one adapter can read.

    Attributes:
        name: As stored in checkpoints.
        library: The distribution whose version matters.
        covers: Which classes or architectures, for a table.
        refuses: What of them is refused and why, for a table; empty where nothing is.
        towers: Layout of each tower.
        read_config: Turn the `config.json` of a library's folder, and what lies beside it, into an architecture, its
            preprocessing and its labels.
        write_config: The inverse, of a model with all its heads: what the library reads of such a folder besides weights and
            tokenizer, by file; None where it would make another model of it.
        names: The architecture names that it reads, where they are few.
        claims: Whether an architecture name is of this family; of several families the first in the table has it.
        describe: Turn an architecture name and its options into the same.
        build: Make the model with the given mask; on the meta device unless a state dict is given.
        initialise: Random weights by the library's own rules, from a seed.
        evaluation_config: What of an architecture changes the answers of trained weights, in one form: options that act in
            training alone are left out, defaults are filled in.
        matches: Whether a `config.json` is of this family.
        matches_encoder: Whether it is of a model, of whatever class, whose encoder one of the family's classifiers has.
        texts: How many tokens of a text, and how many different ones, a model takes; None where none are read.
        scalars: Tensors without an axis, which a hydra holds as a vector of M.
        exact: Tensors that are stored and loaded in float32 at least, whatever the others are: bf16 changes CLIP's scale by 1 %.
        adopt: Give a folder's tensors the names that they have in memory; None where a library never renames any. What can be
            drawn anew is left out where it is missing, and keeps a shape of its own. Takes what messages call the folder, the
            architecture, and the tensors.
        rules: How fields and files of a library's folder are treated.
        on_disk: Patterns in such names and what stands for them in memory, applied in turn; where a library also splits
            or joins tensors they tell no more than the part of the model. Headers are read with them, not tensors.
    """

    name: str
    library: str
    covers: str
    refuses: str
    towers: Mapping[str, TowerLayout]
    matches: Callable[[Mapping[str, object]], bool]
    matches_encoder: Callable[[Mapping[str, object]], bool]
    claims: Callable[[str], bool]
    read_config: Callable[[Mapping[str, object], Path], Described]
    write_config: Callable[[Described], dict[str, Mapping[str, object]] | None]
    describe: Callable[[str, Mapping[str, object]], Described]
    build: Callable[[Architecture, Mapping[str, TowerKeep], Mapping[str, torch.Tensor] | None], Model]
    initialise: Callable[[Architecture, int], dict[str, torch.Tensor]]
    evaluation_config: Callable[[Architecture], Mapping[str, object]]
    texts: Callable[[Architecture], tuple[int, int]] | None = None
    adopt: Callable[[str, Architecture, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    rules: tuple[Rule, ...] = ()
    on_disk: tuple[tuple[str, str], ...] = ()
    scalars: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one tensor stands in a model: its tower, its layer (None outside the blocks) and what it belongs to."""

    tower: str
    layer: int | None
    part: str
    heads: HeadTensor | None = None


def with_pooling(architecture: Architecture, pooling: str) -> Architecture:
    """Return an architecture whose classifier reads what one of `POOLINGS` says."""
    return architecture.model_copy(update={"pooling": None if pooling == DEFAULT_POOLING else pooling})


def answering(described: Described, task: Task) -> Described:
    """Return a model that answers a task.

    Raises:
        UnsupportedModelError: If it is to answer words, but reads no texts, or has a single class.
    """
    from hydractl.manifest.header import Tokenization

    architecture, how = described.architecture, described.preprocess
    update: dict[str, object] = {"problem_type": None if task is SINGLE_LABEL else task.problem_type}
    if task.by_word:
        if not isinstance(how, Tokenization) or logits_of(architecture) == 1:
            raise UnsupportedModelError(
                f"{architecture.name}: only models of texts with several classes answer each word"
            )
        update["pooling"] = None
    if isinstance(how, Tokenization):
        how = how.model_copy(update={"by_word": task.by_word})
    return replace(described, architecture=architecture.model_copy(update=update), preprocess=how)


def is_replaceable(family: Family, name: str) -> bool:
    """Return whether a tensor belongs to a classifier, or to what may come with one, and can be drawn anew."""
    return name.startswith(
        tuple(p for layout in family.towers.values() for p in (*layout.head, *layout.pooler))
    )


def name_in_memory(family: Family, name: str) -> str:
    """Return what a tensor of a library's folder is called in memory, as far as its name alone tells."""
    for pattern, replacement in family.on_disk:
        name = re.sub(pattern, replacement, name)
    return name


def without_wrapper(family: Family, names: Iterable[str], expected: Collection[str]) -> dict[str, str] | None:
    """Return the names of a library's folder without what a wrapper put before or into all of them (`module.`, `_orig_mod.`).

    Args:
        family: The family that reads the folder.
        names: Of its tensors.
        expected: Those of the architecture in memory.

    Returns:
        Each name and what is left of it; None where what is left is not the architecture.
    """
    plain = {name: name.replace(COMPILED, "") for name in names}
    first = next(iter(plain.values()), "")
    for end in (0, *(dot.end() for dot in re.finditer(r"\.", first))):
        if not all(name.startswith(first[:end]) for name in plain.values()):
            return None
        stripped = {name: short[end:] for name, short in plain.items()}
        in_memory = [name_in_memory(family, short) for short in stripped.values()]
        if len(in_memory) == len(expected) and {*in_memory} == {*expected}:
            return stripped if any(name != short for name, short in stripped.items()) else None
    return None


def place_of(family: Family, name: str) -> Place:
    """Return where the state-dict name `name` stands.

    `part` is `embed`, `readout`, `head`, `attention`, `mlp` or `norm` (anything else inside a block).
    """
    for tower, layout in family.towers.items():
        prefix, suffix = layout.block.split("{layer}")
        if name.startswith(prefix):
            number, _, parameter = name.removeprefix(prefix).partition(suffix)
            if not number.isdecimal():
                continue
            parts = (part for part in ("attention", "mlp") if parameter.startswith(getattr(layout, part)))
            heads = next((h for h in layout.heads if h.name == parameter), None)
            return Place(tower=tower, layer=int(number), part=next(parts, "norm"), heads=heads)
        for part in ("head", "readout", "embed"):
            if name.startswith(getattr(layout, part)):
                return Place(tower=tower, layer=None, part=part)
    return Place(tower=next(iter(family.towers)), layer=None, part="embed")


def place_on_disk(family: Family, name: str) -> Place:
    """Return where a tensor of a library's folder stands, be the folder of a classifier or of its encoder alone."""
    memory_name = name_in_memory(family, name)
    models = (layout.block.partition(".")[0] for layout in family.towers.values())
    places = [place_of(family, n) for n in (memory_name, *(f"{model}.{memory_name}" for model in models))]
    return next((place for place in places if place.layer is not None or place.part != "embed"), places[0])
