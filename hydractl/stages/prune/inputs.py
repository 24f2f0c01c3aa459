"""The scores and masks that `prune` reads, and whether they are of the model at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.errors import ManifestError
from hydractl.manifest import HeadMask, HeadScores, check_mask_fits

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.families.opening import OpenModel
    from hydractl.progress import Progress


def given_mask(path: Path, opened: OpenModel, progress: Progress) -> HeadMask:
    """Read a head mask for a base.

    Raises:
        ManifestError: If it is malformed, or is for another architecture.
    """
    mask = HeadMask.read(path)
    name = opened.header.architecture.name
    if mask.architecture not in {None, name}:
        raise ManifestError(
            f"{path}: architecture is `{mask.architecture}`, but {opened.reference} is a `{name}`",
            hint="delete the key `architecture` from the mask if it is meant for this model",
        )
    try:
        check_mask_fits(mask.towers, opened.header.architecture, where="towers")
    except ValueError as error:
        raise ManifestError(f"{path}: {error}", hint="is the mask for another model?") from error
    if mask.base is not None and mask.base != opened.checkpoint.digest:
        progress.warn(
            f"{path}: was made for another base than {opened.reference} (same architecture, other weights)"
        )
    return mask


def given_scores(path: Path, opened: OpenModel, progress: Progress) -> HeadScores:
    """Read the scores of a base's heads.

    Raises:
        ManifestError: If they are malformed, or are for another architecture.
    """
    scores = HeadScores.read(path)
    name, towers = opened.header.architecture.name, opened.header.architecture.towers
    again = f"score this model: `hydractl score {opened.reference} -o {path}`"
    for tower_name in sorted(scores.towers.keys() | (towers.keys() if not scores.towers else ())):
        table = scores.towers[tower_name].scores if tower_name in scores.towers else ()
        tower = towers.get(tower_name)
        if tower is None:
            raise ManifestError(
                f"{path}: towers has `{tower_name}`, but {opened.reference} has {', '.join(towers)}",
                hint="are these the scores of another model?",
            )
        if (len(table), len(table[0]) if table else 0) != (tower.layers, tower.num_heads):
            raise ManifestError(
                f"{path}: towers.{tower_name}.scores is {len(table)} layers by {len(table[0]) if table else 0} heads, "
                f"but {opened.reference} has {tower.layers} by {tower.num_heads}",
                hint=again,
            )
    if scores.architecture != name:
        raise ManifestError(
            f"{path}: architecture is `{scores.architecture}`, but {opened.reference} is a `{name}`",
            hint=again,
        )
    if scores.model.sha256 != opened.checkpoint.digest:
        progress.warn(f"{path}: scores were measured on other weights than those of {opened.reference}")
    return scores
