"""What `inspect` finds: plain facts, for a table or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.manifest import (
        Architecture,
        Document,
        Mask,
        Preprocess,
        Prompting,
        Step,
        Tokenization,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
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
    amounts: dict[str, dict[str, Tally]]
    apart_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which model this is, as far as the file says.

    Attributes:
        name: Architecture, or what a folder's `config.json` calls it.
        num_classes: How many.
        labels: Their names.
        architecture: The whole description; None for a foreign file.
        preprocess: How an image or a text becomes an input; of a tokenizer only the digest.
        prompting: Of a zero-shot model, how its classes become texts; likewise.
        tokenizer_size: How many tokens its tokenizer knows, added ones included; the model may know more.
        masks: For each member the kept heads of each tower; empty for a foreign file.
        heads_kept: For each member, over all towers.
        heads_total: Heads of the base.
    """

    name: str | None = None
    num_classes: int | None = None
    labels: tuple[str, ...] = ()
    architecture: Architecture | None = None
    preprocess: Preprocess | Tokenization | None = None
    prompting: Prompting | None = None
    tokenizer_size: int | None = None
    masks: tuple[Mask, ...] = ()
    heads_kept: tuple[int, ...] = ()
    heads_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What one row of a report said about one data set, as `eval --save-predictions` keeps it."""

    row: str
    data: str
    members: int
    samples: int
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What a file of predictions holds.

    Attributes:
        log_probs: One entry for each row and data set.
        labels: For each labelled data set, how many labels.
    """

    log_probs: tuple[Predicted, ...]
    labels: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What a checkpoint's header says.

    Attributes:
        file: As the user named it.
        kind: `base`, `member`, `hydra`, `predictions`, or `foreign` where hydractl did not write it.
        model: Which model it is.
        total: All tensors.
        dtypes: By safetensors dtype.
        parts: By what tensors belong to.
        fused: Of a hydra.
        predictions: Of a file that `eval --save-predictions` wrote.
        lineage: The stages that led here.
        metadata: What else the safetensors header says.
        listing: Every tensor, if it was asked for.
        hint: What to type next, for a foreign file.
    """

    file: str
    kind: str
    model: Identity
    total: Tally
    dtypes: dict[str, Tally]
    parts: dict[str, Tally]
    fused: Fused | None
    predictions: Predictions | None
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
