"""The models of all rows, and whether they can stand in one table."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.claims import Claim
from hydractl.data.inputs import content_of
from hydractl.errors import InputError
from hydractl.families.opening import OpenModel
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.shared.outputs import check_models, check_outputs
from hydractl.stages.shared.reading import open_reader


def open_rows(config: EvalConfig) -> list[list[OpenModel]]:
    """Open the models of every row."""
    return [
        [
            open_reader(m, arch=config.arch if row == 0 else None, max_length=config.max_length)
            for m in named.models
        ]
        for row, named in enumerate(config.rows)
    ]


def check_written(config: EvalConfig, opened: Sequence[Sequence[OpenModel]], own: Claim) -> None:
    """Refuse outputs that must not be written."""
    for path, option in ((config.out, "-o"), (config.save_predictions, "--save-predictions")):
        check_outputs(
            [] if path is None else [path],
            force=own.may_replace,
            models=[m for row in opened for m in row],
            data=[config.data, *config.others],
            files=[config.naming.file, *(scores.ref for scores in config.analysing.scores)],
            option=option,
        )
    if config.store is not None:
        models = [m for row in opened for m in row]
        check_models([config.store], own, models=models, option="--store")


def check_alike(models: Sequence[OpenModel], *, renamed: bool) -> None:
    """Refuse models that answer different questions; one without class names may stand beside any other.

    Where classes are named on the command line, what zero-shot models store of them does not count.

    Raises:
        InputError: If there are such.
    """
    first = models[0]
    for model in models[1:]:
        reads, wanted = content_of(model.header.preprocess), content_of(first.header.preprocess)
        if reads != wanted:
            raise InputError(f"{model.reference}: reads {reads}, {first.reference} reads {wanted}")
    own = [m for m in models if not (renamed and m.header.prompting)]
    named = next((m for m in own if m.header.labels), first)
    for model in own:
        ours, theirs = model.header.num_classes, named.header.num_classes
        if ours != theirs and ours and theirs:
            raise InputError(
                f"{model.reference}: has {ours} classes, {named.reference} has {theirs}; one table compares models of one task"
            )
        if model.header.labels and model.header.labels != named.header.labels:
            raise InputError(
                f"{model.reference}: has other class labels, or in another order, than {named.reference}"
            )
