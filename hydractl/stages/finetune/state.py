"""The state that a run of `finetune` keeps beside its output, and what it is of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hydractl.runtime import digest_text, versions
from hydractl.training.resume import StateFolder
from hydractl.training.run_settings import texts_of
from hydractl.version import __version__

if TYPE_CHECKING:
    from hydractl.stages.finetune.prepare import TrainingPlan


def state_folder(work: TrainingPlan) -> StateFolder | None:
    """Return the folder of the run's state; None where it keeps none."""
    if work.config.state is None:
        return None
    options, seed = work.config.options(), work.config.seed
    libraries = {"hydractl": __version__, **versions("torch", work.opened.family.library)}
    depends_on = {
        "options": options,
        "seed": seed,
        "inputs": [(file.name, file.sha256) for file in work.inputs],
        "header": work.header.to_metadata(),
        "versions": libraries,
    }
    files = {f"input {i}": f"{file.name[-30:]} ({file.sha256[:19]})" for i, file in enumerate(work.inputs)}
    return StateFolder(
        work.config.state,
        digest_text(json.dumps(depends_on, sort_keys=True)),
        texts_of({**options, "seed": seed, **files, **libraries}),
    )
