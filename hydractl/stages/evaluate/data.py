"""The data sets of `eval`, opened once for all rows, with labels that mean the models' classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydractl.data.batches import CACHE_BYTES, Deal
from hydractl.data.inputs import open_items
from hydractl.data.items import LABELS_HINT, Items
from hydractl.data.labels import are_numerals, match_classes, required_labels
from hydractl.errors import DataError
from hydractl.families.opening import OpenModel
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.scopes import ID_NAME
from hydractl.metrics.table import FIT, TEMPERATURE, VAL
from hydractl.parallel import Team
from hydractl.progress import Progress
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.doubts import DIGEST, of_data, of_training
from hydractl.stages.shared.classes import Classes
from hydractl.stages.shared.predictions import PreparedData
from hydractl.stages.shared.reading import digests, warn


class FittedOn(NamedTuple):
    """Data that a row is made with, and where they are read its labels, (N,), the models' classes."""

    items: Items
    fingerprint: Fingerprint
    labels: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalData:
    """The data, ready for any row.

    Attributes:
        inputs: The ID set and the OOD sets, and those of validation.
        labels: Of the ID set, (N,), the models' classes.
        heldout: The split that temperatures are fitted on, and its labels (N,), the models' classes; None if there is none.
        fit: Training data that scores of features are fitted on, likewise.
        classes: What zero-shot models tell apart.
        fingerprints: Of every set, those with labels besides the ID set's under the names of their options.
        fitted_on: What rows are made with, by its reference.
        doubts: What is to be known of them before numbers on them are believed, in a line each.
    """

    inputs: dict[str, PreparedData]
    labels: Tensor
    heldout: tuple[PreparedData, Tensor] | None
    fit: tuple[PreparedData, Tensor] | None
    classes: Classes | None
    fingerprints: dict[str, Fingerprint]
    fitted_on: dict[str, FittedOn]
    doubts: tuple[str, ...]

    @classmethod
    def open(
        cls, config: EvalConfig, opened: Sequence[Sequence[OpenModel]], team: Team, progress: Progress
    ) -> EvalData:
        """Open all data sets and translate the labels.

        Raises:
            DataError: If a set cannot be used, one that needs labels has none, or they do not fit the models.
        """
        how = opened[0][0].header.preprocess
        refs = {ID_NAME: config.data} | {d.name: d.ref for d in config.ood + config.ood_val}
        others = {TEMPERATURE: config.heldout, FIT: config.fit, VAL: config.val}
        refs |= {name: ref for name, ref in others.items() if ref is not None}
        for model in {m.reference: m for row in opened for m in row}.values():
            warn(model, progress)
        sets = {
            name: open_items(ref, how, workers=config.num_workers, progress=progress)
            for name, ref in refs.items()
        }
        rivals = {
            str(ref): open_items(ref, how, workers=config.num_workers, progress=progress)
            for ref in config.fitted_on
        }
        models = [m for row in opened for m in row]
        classes = config.naming.classes_of_all(models, data=sets[ID_NAME].class_names)
        labelled = {name: sets[name] for name in (TEMPERATURE, FIT) if name in sets}
        judged = config.judged_on
        labelled |= {called: rivals[ref] for ref, called in judged.items()}
        labels, known = _labels(sets[ID_NAME], labelled, models, classes, progress)
        limit = CACHE_BYTES // len(sets) if len(models) > 1 else 0
        progress.step(f"Reading {len(sets)} data sets" if len(sets) > 1 else "Reading the data")
        inputs = {
            name: PreparedData(
                found,
                batch_size=config.batch_size,
                limit_bytes=limit,
                name=name,
                deal=Deal(team.rank, team.world),
            )
            for name, found in sets.items()
        }
        read = {name: _read(found, team) for name, found in sets.items()}
        fingerprints = {name: fingerprint for name, (fingerprint, _) in read.items()}
        held = {name: (inputs.pop(name), known[name]) for name in (TEMPERATURE, FIT) if name in known}
        seen = {ref: _read(found, team) for ref, found in rivals.items()}
        doubts = (
            *of_data(config, fingerprints, {name: content for name, (_, content) in read.items()}),
            *of_training(config, read[ID_NAME][1], {ref: content for ref, (_, content) in seen.items()}),
        )
        for doubt in doubts:
            progress.warn(doubt)
        return cls(
            inputs=inputs,
            labels=labels,
            heldout=held.get(TEMPERATURE),
            fit=held.get(FIT),
            classes=classes,
            fingerprints=fingerprints,
            fitted_on={
                ref: FittedOn(rivals[ref], print_, known.get(judged.get(ref, "")))
                for ref, (print_, _) in seen.items()
            },
            doubts=doubts,
        )


def _read(items: Items, team: Team) -> tuple[Fingerprint, np.ndarray]:
    """Return what tells a set from others, and what tells its items, as `DIGEST`."""
    content = bytearray()

    def noted() -> Iterator[bytes]:
        for digest in digests(items, team):
            content.extend(digest[: DIGEST.itemsize])
            yield digest

    sha256 = items.fingerprint(noted())
    found = Fingerprint(reference=items.name, sha256=sha256, count=len(items))
    return found, np.frombuffer(content, DIGEST)


_WITHOUT_LABELS = {
    TEMPERATURE: "name a labelled split, or a number to divide all logits by",
    FIT: "name labelled training data",
}


def _labels(
    tested: Items,
    others: Mapping[str, Items],
    models: Sequence[OpenModel],
    asked: Classes | None,
    progress: Progress,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the labels of the ID set and of others, by the names of their options, as the models' classes.

    A class name means the same in all, even where the ID set's classes are taken in order.
    """
    names = asked.names if asked else next((m.header.labels for m in models if m.header.labels), ())
    count = len(names) if asked else models[0].header.num_classes
    labels = required_labels(tested, "--data", hint="unlabelled data can be an OOD set: `--near NAME=DATA`")
    by_text = asked is not None
    classes = match_classes(tested, names, num_classes=count, by_text=by_text, progress=progress)
    known = dict(zip(tested.class_names, classes, strict=True))

    def aligned(option: str, items: Items) -> Tensor:
        is_option = option in _WITHOUT_LABELS
        needs = f"--{option}" if is_option else option
        called = f"{needs} {items.name}" if is_option else option  # what a row is made with is named by it
        own = required_labels(items, needs, hint=_WITHOUT_LABELS.get(option, LABELS_HINT))
        if all(name in known for name in items.class_names):
            return torch.tensor([known[items.class_names[label]] for label in own])
        strange = [name for name in items.class_names if name not in known]
        if not names and not (are_numerals(strange) and all(int(name) < count for name in strange)):
            raise DataError(
                f"`{called}`: its class `{strange[0]}` is not in `--data`, and the model's classes have no names",
                hint="choose the classes of `--data` with `::classes=`, or name them alike",
            )
        try:
            found = match_classes(items, names, num_classes=count, by_text=by_text, progress=progress)
        except DataError as error:
            raise DataError(f"`{called}`: {error.message}", hint=error.hint) from error
        return torch.tensor([found[label] for label in own])

    return torch.tensor([classes[label] for label in labels]), {
        option: aligned(option, items) for option, items in others.items()
    }
