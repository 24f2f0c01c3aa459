"""Whether `--val` is held out: no model was trained or selected on its samples."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hydractl.cli.commands.make.config import from_script
from hydractl.errors import DataError
from hydractl.stages.shared.command_config import open_readings

if TYPE_CHECKING:
    import numpy as np

    from hydractl.cli.commands.make.config import MakeConfig
    from hydractl.data.reference import DataRef


def check_held_out(config: MakeConfig) -> None:
    """Refuse `--val` with samples that trained or selected a model, because the threshold would have no guarantee.

    `--train`, and checkpoints that record their samples, name these samples. Files of earlier releases record none.

    Raises:
        DataError: If there are such samples.
    """
    import numpy as np

    from hydractl.data.datasets import samples_in
    from hydractl.data.encode import content_of
    from hydractl.families.load import open_model
    from hydractl.manifest.samples import union, unpack

    headers = [open_model(model).header for _, model in config.named_models if not from_script(model)]
    read_by_models = [content_of(header.preprocess) for header in headers]

    def samples(ref: DataRef) -> np.ndarray:
        items = min(open_readings(ref, labelled=True), key=lambda items: items.content not in read_by_models)
        return samples_in(map(items.item_digest, range(len(items))))

    used = [unpack(text) for text in union(*(header.samples for header in headers)).values()]
    used += [] if config.train is None else [samples(config.train)]
    val_samples = samples(config.val) if used else ()
    if used and (overlap := np.isin(val_samples, np.concatenate(used))).any():
        (first, second), tests = config.halves(config.val), config.halves(config.test)
        replaced = f"replace `--val` and `--test` by `--val {shlex.quote(tests[0])} --test {shlex.quote(tests[1])}`, or "
        raise DataError(
            f"{overlap.sum()} of {len(val_samples)} samples of `--val {config.val}` were used to train or select the models, so the "
            "guarantee of the threshold does not hold",
            hint=replaced
            * (not np.isin(samples(config.test), np.concatenate(used)).any())
            + "give other labelled data as `--val`; or train the models again with "
            f"`--val {shlex.quote(first)}`, and give `make` `--val {shlex.quote(second)}`",
        )
