"""What a stage writes down about itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hydractl.data.reference import DataRef
from hydractl.families.base import Family
from hydractl.families.load import OpenModel
from hydractl.manifest.document import OptionValue
from hydractl.manifest.header import InputFile, Step
from hydractl.manifest.heads import HeadScores
from hydractl.messages import quoted
from hydractl.output.atomic_write import is_stream
from hydractl.progress import Progress
from hydractl.runtime import digest_file, versions
from hydractl.stages.shared.cache_key import Commanded, Stage, asked_of, references, typed_by
from hydractl.stages.shared.output_record import is_recorded
from hydractl.version import __version__

TOOL = f"hydractl {__version__}"


def make_step(
    config: Commanded,
    *,
    family: Family,
    options: Mapping[str, OptionValue],
    inputs: Sequence[InputFile],
    seed: int | None = None,
    results: Mapping[str, OptionValue] | None = None,
) -> Step:
    """Return the lineage entry of one stage. Options are those that shape the output, never paths."""
    return Step(
        command=config.COMMAND,
        options={k: v for k, v in options.items() if v is not None},
        inputs=tuple(inputs),
        seed=seed,
        results=dict(results or {}),
        versions=made_with(family),
        asked=asked_of(config),
        typed=typed_by(config),
    )


def recorded(
    config: Stage,
    out: Path,
    *,
    opened: OpenModel,
    options: Mapping[str, OptionValue],
    seed: int | None = None,
    needs: Sequence[str] = (),
) -> Step | None:
    """Return what is written beside an output that cannot say itself what makes it; None where nobody has asked for that.

    What came through a stream is gone, and nothing is written of it.

    Args:
        config: What was asked.
        out: The output.
        opened: The model, which is the first thing that is read.
        options: As `make_step`.
        seed: Likewise.
        needs: Further libraries that the output hangs on.
    """
    _, *read = references(config)
    streams = is_stream(out) or any(one.is_stream for one in read)
    if streams or not (config.if_changed or is_recorded(out)):
        return None
    inputs = [opened.as_input(), *(InputFile(name=one.name, sha256=one.digest()) for one in read)]
    step = make_step(config, family=opened.family, options=options, inputs=inputs, seed=seed)
    return step.model_copy(update={"versions": step.versions | versions(*needs)})


def made_with(family: Family) -> dict[str, str]:
    """Return the versions of what an output hangs on."""
    return {"hydractl": __version__, **versions("torch", "safetensors", family.library)}


def warn_temperature(opened: OpenModel, progress: Progress) -> None:
    """Say what is left behind with the weights that it was found for: a temperature, and what `warn_refusing` says."""
    warn_refusing([opened], progress)
    if opened.header.temperature != 1:
        progress.warn(
            f"{opened.reference}: its temperature {opened.header.temperature:g} is not kept: other weights need their own"
        )


def warn_refusing(models: Iterable[OpenModel], progress: Progress) -> None:
    """Say that thresholds, or OOD scores of features, are left behind with the weights that they were found for."""
    every = list(models)
    bounded = dict.fromkeys(m.reference for m in every if m.header.threshold is not None)
    fitted = {m.reference: m.header.fitted.scores for m in every if m.header.fitted is not None}
    scores = ", ".join(dict.fromkeys(name for names in fitted.values() for name in names))
    for named, one, several in (
        ([*bounded], "its threshold is", "their thresholds are"),
        ([*fitted], f"its OOD scores ({scores}) are", f"their OOD scores ({scores}) are"),
    ):
        if named:
            shown, kept = (named[0], one) if len(named) == 1 else (quoted(named, most=3), several)
            progress.warn(f"{shown}: {kept} not kept: other weights need their own")


def document_input(path: Path, digest: str | None = None, *, made_by: Step | None = None) -> InputFile:
    """Return the lineage entry of a JSON file; `digest` where the file was a stream and is gone."""
    name = "-" if is_stream(path) else path.name
    return InputFile(name=name, sha256=digest or digest_file(path), made_by=made_by)


def scored_by(scores: HeadScores, opened: OpenModel) -> Step | None:
    """Return the step that wrote scores, as they say themselves; with the model's own lineage where they are of that one."""
    own = opened.as_input()
    if scores.model.sha256 != own.sha256:
        own = InputFile(name=scores.model.reference, sha256=scores.model.sha256)
    elif own.made_by is not None and own.made_by.command == "score":  # which trained the model too
        return own.made_by
    read = [scores.data[role] for role in sorted(scores.data)]
    data = [InputFile(name=DataRef.parse(one.reference).name, sha256=one.sha256) for one in read]
    told = {} if scores.objective is None else {"objective": scores.objective}
    return Step(
        command="score",
        options={"method": scores.method, **told, **scores.options},
        inputs=(own, *data),
        results=scores.results,
        versions=scores.versions,
        asked=scores.asked,
        typed=scores.typed,
    )
