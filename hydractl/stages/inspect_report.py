"""What `inspect` finds: plain facts, for a table or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.manifest import Architecture, Document, Preprocess, Step, TowerKeep


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much some tensors are together: their number, their elements, their bytes."""

    tensors: int
    parameters: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """One tensor as the header states it; `part` is what it belongs to, `fate` what `fuse` did with it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    part: str
    fate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What only a hydra has.

    Attributes:
        members: The members' file names, or `member 0`, ... where the lineage does not say.
        trunk: How many leading blocks run once.
        mlp: `merge` or `keep`.
        amounts: By part, then by fate.
        apart_bytes: What the members would take apart.
    """

    members: tuple[str, ...]
    trunk: int
    mlp: str
    amounts: dict[str, dict[str, Amount]]
    apart_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which model this is, as far as the file says.

    Attributes:
        name: Architecture, or what a folder's `config.json` calls it.
        num_classes: How many.
        labels: Their names.
        architecture: The whole description; None for a foreign file.
        preprocess: How an image becomes an input.
        masks: For each member the kept heads of each tower; empty for a foreign file.
        heads_kept: For each member, over all towers.
        heads_total: Heads of the base.
    """

    name: str | None = None
    num_classes: int | None = None
    labels: tuple[str, ...] = ()
    architecture: Architecture | None = None
    preprocess: Preprocess | None = None
    masks: tuple[dict[str, TowerKeep], ...] = ()
    heads_kept: tuple[int, ...] = ()
    heads_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What a checkpoint's header says.

    Attributes:
        file: As the user named it.
        kind: `base`, `member`, `hydra`, or `foreign` where hydractl did not write it.
        model: Which model it is.
        total: All tensors.
        dtypes: By safetensors dtype.
        parts: By what tensors belong to.
        fused: Of a hydra.
        lineage: The stages that led here.
        metadata: What else the safetensors header says.
        listing: Every tensor, if it was asked for.
        hint: What to type next, for a foreign file.
    """

    file: str
    kind: str
    model: Identity
    total: Amount
    dtypes: dict[str, Amount]
    parts: dict[str, Amount]
    fused: Fused | None
    lineage: Step | None
    metadata: dict[str, str]
    listing: tuple[TensorLine, ...] | None
    hint: str | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Nothing is written."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReport:
    """A JSON file of ours: `kind` is `scores`, `head-mask` or `report`."""

    file: str
    kind: str
    document: Document

    @property
    def paths(self) -> tuple[Path, ...]:
        """Nothing is written."""
        return ()
