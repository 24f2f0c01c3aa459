"""Inputs of a scoring method: the base, its towers, the budget, and batches of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hydractl import progress
from hydractl.data.batches import BatchShare, epoch_order, eval_batches
from hydractl.data.datasets import Dataset
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.finite import check_finite
from hydractl.families.open_model import OpenModel, load_model
from hydractl.families.tower import Model
from hydractl.heads.budget import HeadBudget, total_heads
from hydractl.manifest.head_mask import TowerHeads
from hydractl.manifest.header import Kind, SampledFile
from hydractl.messages import counted
from hydractl.prediction.class_names import run_both_towers
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.prediction.open_inputs import data_input, open_reader
from hydractl.processes.distributed import ProcessGroup
from hydractl.runtime import torch_dtype
from hydractl.scoring.circuit.outcomes import check_halves
from hydractl.scoring.job import RepeatedBatches, ScoreInputs, ScoreJob
from hydractl.scoring.settings import BudgetMeaning, Method, Settings

LEAST_KEPT = {BudgetMeaning.KEPT: 1, BudgetMeaning.CHOICE: 1}
"""Minimum number of kept heads by the meaning of the budget; 0 for other meanings."""


def open_base(
    reference: str, method: Method, *, arch: str | None, seed: int, max_length: int | None
) -> OpenModel:
    """Open the model to score. Arguments other than `method` are those of `open_reader`.

    Raises:
        CheckpointError: If the model is missing, malformed or not a base.
        UsageError: If `open_reader` raises it, or the method does not support the task of the model.
    """
    model_file = open_reader(
        reference, arch=arch, seed=seed, max_length=max_length, reads_data=method.needs_data
    )
    if model_file.header.kind != Kind.BASE:
        raise CheckpointError(
            f"{reference}: is a {model_file.header.kind}, but `score` needs a base",
            hint="score its base",
        )
    task = model_file.header.architecture.task
    if method.name == "cahp" and not task.has_one_question:
        raise UsageError(
            f"`--method {method.name}`: compares classes of inputs, but {reference} answers {task.labels}",
            hint="use another method, such as `--method taylor`",
        )
    return model_file


def scored_towers(model_file: OpenModel, names: Sequence[str]) -> dict[str, TowerHeads]:
    """Return the named towers of a model, in the order of the model; all towers if `names` is empty.

    Raises:
        UsageError: If the model has no tower of a name.
    """
    towers = model_file.header.architecture.towers
    for name in names:
        if name not in towers:
            raise UsageError(
                f"`--towers {name}`: {model_file.reference} has no such tower",
                hint=f"it has {', '.join(towers)}",
            )
    return {n: t for n, t in towers.items() if not names or n in names}


def check_budget(
    method: str,
    means: BudgetMeaning,
    budget: HeadBudget | None,
    towers: Mapping[str, TowerHeads],
    *,
    keep: int,
    removals: int,
) -> None:
    """Raise if the budget leaves nothing to select.

    Warns if the budget has no effect, or if equal numbers of heads per layer differ from the budget.

    Args:
        method: Name of the method.
        means: Meaning of the budget for the method.
        budget: Budget from the command line, or None.
        towers: Towers to score.
        keep: Number of heads that each layer keeps.
        removals: Number of heads to remove in total.

    Raises:
        UsageError: If the budget leaves nothing to select.
    """
    layers, total = sum(t.layers for t in towers.values()), total_heads(towers)
    kept_heads = total - removals
    if budget is not None and means == BudgetMeaning.NOTHING:
        progress.warn(
            f"`{budget.option_text}` has no effect: scores by `{method}` do not depend "
            "on the budget; give it to `prune`"
        )
    if not LEAST_KEPT.get(means, 0) <= kept_heads <= total - (means == BudgetMeaning.KEPT):
        raise UsageError(
            f"`--method {method}`: keeping {kept_heads} of {counted(total, 'head')} leaves nothing to select",
            hint="for example `--keep-fraction 0.5`",
        )
    if means == BudgetMeaning.KEEP and budget is not None and keep * layers != kept_heads:
        progress.warn(
            f"`--method {method}` keeps the same number of heads in each layer: {keep} each, "
            f"{counted(keep * layers, 'head')} in total; `{budget.option_text}` keeps {kept_heads}"
        )


def drawn_indices(dataset: Dataset | None, limit: int | None, *, seed: int) -> torch.Tensor | None:
    """Return the positions of the samples of a random subset, increasing; None for all samples.

    Args:
        dataset: The data, or None.
        limit: Number of samples, or None.
        seed: Seed of the subset.
    """
    if dataset is None or limit is None or limit >= len(dataset):
        return None
    return epoch_order(len(dataset), seed=seed, epoch=0)[:limit].sort().values


def data_files(inputs: ScoreInputs, team: ProcessGroup) -> dict[str, SampledFile]:
    """Return the lineage entry of each data set by role, with the digests of the used samples.

    Raises:
        DataError: If an item cannot be read.
    """
    return {
        role: data_input(dataset, team, inputs.sample_indices if role == "id" else None)
        for role, dataset in inputs.sets.items()
    }


def load_base(inputs: ScoreInputs, *, device: torch.device, dtype: str | None) -> Model:
    """Load the base on a device. A zero-shot model gets the prompts of its classes.

    Args:
        inputs: Inputs of the method.
        device: Device of the computation.
        dtype: Name of a torch dtype; None for the dtype of the checkpoint.

    Raises:
        CheckpointError: If weights are malformed or not finite.
    """
    model_file = inputs.model_file
    model = load_model(model_file, dtype=torch_dtype(dtype) if dtype else None)
    check_finite(model.library_state(), place=model_file.reference, dtype=dtype)
    model = model.to(device)
    run_both_towers(model, model_file, inputs.classes)
    return model


def open_job(
    inputs: ScoreInputs,
    model: Model,
    method: Method,
    settings: Settings,
    *,
    team: ProcessGroup,
    batch_size: int,
) -> ScoreJob:
    """Open the batches of this process, and return the job of the method.

    The fields `seed`, `free`, `max_memory`, `compiles`, `log` and `training` have their defaults.

    Args:
        inputs: Inputs of the method.
        model: The loaded base.
        method: The method.
        settings: Settings of the method.
        team: Process group.
        batch_size: Samples per batch.

    Raises:
        DataError: If an item cannot be read, or the data has too few samples for the settings.
    """
    model_file, labels, indices = inputs.model_file, inputs.labels, inputs.sample_indices
    like = torch.empty(0, device=model.device, dtype=model.dtype)
    batch_share = BatchShare(team.rank, team.world, as_given=method.as_given)
    batches = {
        role: RepeatedBatches(
            eval_batches(
                dataset,
                model_file.header.preprocess,
                batch_size=batch_size,
                indices=indices if role == "id" else None,
                batch_share=batch_share,
            ),
            labels if role == "id" else None,
            like,
        )
        for role, dataset in inputs.sets.items()
    }
    features = None
    if settings.needs_features and labels is not None:
        check_halves(labels if indices is None else labels[indices])
        features = FeatureExtractor.of(model, model_file.family, name=model_file.reference)
    return ScoreJob(
        model=model,
        family=model_file.family,
        architecture=model_file.header.architecture,
        id_data=batches.get("id", ()),
        ood_data=batches.get("ood", ()),
        settings=settings,
        keep=inputs.keep,
        budget=inputs.removals,
        towers=tuple(inputs.scored),
        team=team,
        features=features,
    )
