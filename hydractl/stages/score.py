"""score: how much does each head matter?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from hydractl.data.batches import epoch_order, tensor_cache
from hydractl.data.dataset import open_data
from hydractl.data.labels import align_labels
from hydractl.data.preprocess import eval_transform
from hydractl.data.reference import did_you_mean
from hydractl.errors import CheckpointError, DataError, UsageError
from hydractl.families.opening import OpenModel, load_model, open_model
from hydractl.heads.masks import TowerShape
from hydractl.heads.select import Budget
from hydractl.manifest import Fingerprint, HeadScores, Kind, TowerScores
from hydractl.progress import SILENT, Progress
from hydractl.publish import check_output, publish_text
from hydractl.runtime import digest_text, pick_device, require_one_process, torch_dtype
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.scoring.objective import OBJECTIVES
from hydractl.scoring.table import METHODS
from hydractl.stages.journal import Journal
from hydractl.stages.lineage import TOOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from hydractl.data.batches import Batch
    from hydractl.data.images import ImageSet
    from hydractl.manifest import Architecture, Option
    from hydractl.scoring.job import Method

DEFAULT_KEEP_FRACTION = 2 / 3  # the paper's ImageNet members keep 8 of 12 heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreConfig:
    """What to score, how, and where to.

    Attributes:
        model: A base.
        out: The scores file.
        method: A name of `METHODS`.
        data: Labelled in-distribution data: validation data for circuits, calibration data for gradients.
        ood: Out-of-distribution validation data, for objectives that need it.
        objective: A name of `OBJECTIVES`, for greedy methods.
        scope: `layer` or `global`, for Taylor.
        budget: Heads to remove (greedy), or heads that a layer keeps (Taylor by layer).
        limit: Use only so many in-distribution samples, drawn with the seed.
        seed: Of everything random.
        arch: Architecture of a bare file.
        batch_size: Samples in one forward pass.
        device: Where to compute.
        dtype: What to compute in; None is the checkpoint's own.
        force: Replace an existing output, drop another run's journal.
    """

    model: str
    out: Path
    method: str = "circuit"
    data: str = "digits"
    ood: str | None = None
    objective: str = "avg"
    scope: str = "layer"
    budget: Budget | None = None
    limit: int | None = None
    seed: int = 0
    arch: str | None = None
    batch_size: int = 64
    device: str = "auto"
    dtype: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(
                f"unknown method `{self.method}`",
                hint=did_you_mean(self.method, METHODS) or f"methods: {', '.join(METHODS)}",
            )
        if self.objective not in OBJECTIVES:
            raise UsageError(
                f"unknown objective `{self.objective}`", hint=f"objectives: {', '.join(OBJECTIVES)}"
            )
        if self.needs_ood and self.ood is None:
            raise UsageError(
                f"objective `{self.objective}` needs out-of-distribution data",
                hint="add `--ood DATA`, or `--objective acc`",
            )
        if self.ood is not None and not self.needs_ood:
            raise UsageError("`--ood` is read only by `--method circuit` with objective `ood` or `avg`")

    @property
    def entry(self) -> Method:
        """The chosen row of the table of methods."""
        return METHODS[self.method]

    @property
    def needs_ood(self) -> bool:
        """Whether out-of-distribution data is read."""
        return self.entry.greedy and OBJECTIVES[self.objective].needs_ood


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """What `score` did."""

    path: Path
    scores: HeadScores
    resumed_from: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return (self.path,)


def run_score(config: ScoreConfig, progress: Progress = SILENT) -> ScoreReport:
    """Score every head of a base and write the scores file.

    A greedy run keeps a journal beside the output: interrupted and started again, it goes on where it was and
    ends with the same bytes.

    Raises:
        InputError: If the model or the data cannot be used.
        OutputExists: If the output is there already.
    """
    require_one_process("score")
    opened = open_model(config.model, arch=config.arch, seed=config.seed)
    if opened.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{config.model}: is a {opened.header.kind}, but heads are scored in a base",
            hint="score the base it came from",
        )
    check_output(config.out, force=config.force, inputs=opened.checkpoint.paths)
    architecture = opened.header.architecture
    keep, removals = _amounts(config, architecture)
    options = _options(config, keep=keep, removals=removals)
    sets = _open_sets(config, progress)
    data = {
        role: Fingerprint(reference=ref, sha256=found.fingerprint(), count=len(found))
        for role, (ref, found) in sets.items()
    }
    document = _document(config, opened, options, data)
    journal = Journal.open(config.out, digest_text(document.to_json()), anew=config.force)
    if journal.done:
        progress.step(f"Going on after {len(journal.done)} removals of an interrupted run")
    job = _job(config, opened, sets, progress)
    job = replace(job, keep=keep, budget=removals, log=journal)
    progress.step(f"Scoring {_count_heads(architecture)} heads by {config.method}")
    ranking = config.entry.run(job, progress)
    scores = document.model_copy(
        update={
            "towers": {
                n: TowerScores(scores=tuple(tuple(row) for row in table))
                for n, table in ranking.scores.items()
            },
            "removals": ranking.removals,
            "baseline": ranking.baseline,
        }
    )
    publish_text(config.out, scores.to_json())
    journal.discard()
    return ScoreReport(path=config.out, scores=scores, resumed_from=len(journal.done))


def _count_heads(architecture: Architecture) -> int:
    return sum(t.layers * t.num_heads for t in architecture.towers.values())


def _amounts(config: ScoreConfig, architecture: Architecture) -> tuple[int, int]:
    """Return how many heads a layer keeps (methods by layer) and how many go in all (greedy methods)."""
    shape = {name: TowerShape(t.layers, t.num_heads) for name, t in architecture.towers.items()}
    budget = config.budget or Budget(keep_fraction=DEFAULT_KEEP_FRACTION)
    try:
        removals = budget.removals(shape)
    except ValueError as error:
        raise UsageError(str(error)) from error
    layers = sum(t.layers for t in architecture.towers.values())
    kept = _count_heads(architecture) - removals
    return round(kept / layers), removals


def _options(config: ScoreConfig, *, keep: int, removals: int) -> dict[str, Option]:
    """Return the options that shape the scores, and no others."""
    entry = config.entry
    options: dict[str, Option] = {}
    if entry.greedy:
        options["removals"] = removals
    if "scope" in entry.uses:
        options["scope"] = config.scope
    if "keep" in entry.uses and config.scope == "layer":
        options["keep"] = keep
    if "seed" in entry.uses or config.limit is not None:
        options["seed"] = config.seed
    if entry.needs_data:
        options |= {"batch_size": config.batch_size, "limit": config.limit, "dtype": config.dtype}
    return {k: v for k, v in options.items() if v is not None}


def _open_sets(config: ScoreConfig, progress: Progress) -> dict[str, tuple[str, ImageSet]]:
    references = {"id": config.data if config.entry.needs_data else None, "ood": config.ood}
    return {
        role: (ref, open_data(ref, progress=progress)) for role, ref in references.items() if ref is not None
    }


def _document(
    config: ScoreConfig, opened: OpenModel, options: Mapping[str, Option], data: dict[str, Fingerprint]
) -> HeadScores:
    """Return the scores file without its scores: everything that decides them."""
    return HeadScores(
        method=config.method,
        objective=config.objective if config.entry.greedy else None,
        options=dict(options),
        model=Fingerprint(reference=opened.as_input().name, sha256=opened.checkpoint.digest),
        architecture=opened.header.architecture.name,
        data=data,
        towers={},
        tool=TOOL,
    )


def _job(
    config: ScoreConfig, opened: OpenModel, sets: Mapping[str, tuple[str, ImageSet]], progress: Progress
) -> ScoreJob:
    device = pick_device(config.device)
    dtype = torch_dtype(config.dtype) if config.dtype else None
    model = load_model(opened, dtype=dtype).to(device)
    like = torch.empty(0, device=device, dtype=model.dtype)
    loaded = {
        role: _samples(config, opened, found, role=role, like=like, progress=progress)
        for role, (_, found) in sets.items()
    }
    return ScoreJob(
        model=model,
        family=opened.family,
        architecture=opened.header.architecture,
        id_data=loaded.get("id", ()),
        ood_data=loaded.get("ood", ()),
        objective=config.objective,
        scope=config.scope,
        seed=config.seed,
    )


def _samples(
    config: ScoreConfig,
    opened: OpenModel,
    found: ImageSet,
    *,
    role: str,
    like: torch.Tensor,
    progress: Progress,
) -> Iterable[Samples]:
    """Return batches on the device and in the dtype of `like`; held in memory where they fit."""
    labels = None
    if role == "id":
        if found.labels is None:
            raise DataError(
                f"{found.name}: has no labels; scoring needs them",
                hint="use a folder with one sub-folder a class",
            )
        header = opened.header
        aligned = align_labels(
            found.class_names,
            found.labels,
            header.labels,
            num_classes=header.architecture.num_classes,
            progress=progress,
        )
        labels = torch.tensor(aligned)
    indices = None
    if role == "id" and config.limit is not None and config.limit < len(found):
        indices = epoch_order(len(found), seed=config.seed, epoch=0)[: config.limit].sort().values
    transform = eval_transform(opened.header.preprocess)
    cached = tensor_cache(found, transform, batch_size=config.batch_size, indices=indices)
    return Again(cached, labels, like)


@dataclass(frozen=True, slots=True)
class Again:
    """Batches for a method, made anew on each pass from cached ones."""

    cached: Iterable[Batch]
    labels: torch.Tensor | None
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.cached:
            labels = None if self.labels is None else self.labels[batch.indices].to(self.like.device)
            yield Samples(batch.inputs.to(self.like), labels)
