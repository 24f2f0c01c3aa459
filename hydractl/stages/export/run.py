"""export: a model becomes a file that runs without hydractl, compared with the model before it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from hydractl.errors import UnsupportedModelError, UsageError
from hydractl.families.load import OpenModel
from hydractl.families.tower import Towers
from hydractl.fusion.build import load_any
from hydractl.manifest.document import OptionValue
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.manifest.report import Report
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.per_sample import Responses
from hydractl.model_inputs import PIXELS
from hydractl.output.atomic_write import publish_together
from hydractl.output.locks import OutputLock
from hydractl.processes.distributed import require_one_process
from hydractl.progress import SILENT, Progress
from hydractl.stages.export import formats
from hydractl.stages.export.accuracy_drop import OOD, Trial, furthest, measured
from hydractl.stages.export.compare import (
    Runner,
    difference,
    pictures,
    prepared,
    require_near,
    samples,
    trials,
)
from hydractl.stages.export.config import ONNX, ExportConfig
from hydractl.stages.export.export_module import IMAGES, ExportModule
from hydractl.stages.export.pixel_input import FILTERS, Pixels
from hydractl.stages.shared.open_inputs import labels_of, open_reader, open_sets
from hydractl.stages.shared.output_record import begin_with_sidecar, check_sidecar, make_step, sidecar_step
from hydractl.stages.shared.outputs import check_outputs, claim
from hydractl.stages.shared.zero_shot_classes import Classes, settle

EXAMPLES = 2
"""Samples that a model is traced with: torch takes an axis of 1 for one that is always 1."""
RANDOM, DATA, QUANTISED = "random inputs", "the data", "the data, quantised"
PREPARED = "random pixels that `eval` prepares"
"""Pillow resizes along one axis after the other, rounding in between, and which comes first is its own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What `export` wrote and how near it is to the model.

    Attributes:
        paths: The files written.
        inputs: Name, type and shape of each; what may be of any length has a name.
        outputs: Likewise.
        members: M.
        classes: C.
        size_bytes: Of the model.
        differences: How far outputs are from the model's own, at most: on random inputs; on the data, of logits; where pixels go
            in, from what it answers to the same ones as `eval` prepares them; of a quantised one before and after.
        measured: Both on the data, as `eval` reports it; None without.
    """

    paths: tuple[Path, ...]
    inputs: tuple[tuple[str, str, str], ...]
    outputs: tuple[tuple[str, str, str], ...]
    members: int
    classes: int
    size_bytes: int
    differences: dict[str, float]
    measured: Report | None = None


def run_export(config: ExportConfig, progress: Progress = SILENT) -> ExportReport:
    """Export a model.

    Raises:
        UnsupportedModelError: If it cannot be exported, or a library is missing or too old that is needed.
        CheckFailed: If what was exported is further from the model than `tolerance`.
        OutputExists: If an output is there already.
    """
    require_one_process("export")
    formats.require_torch()
    if config.form == ONNX:
        formats.onnx_libraries()
    with claim(config, [config.out, config.report], progress) as output_lock:
        return _run(config, output_lock, progress)


class Traced(NamedTuple):
    """A model on its way to a file."""

    opened: OpenModel
    classes: Classes | None
    subject: ExportModule
    axes: formats.Axes
    example: formats.Named

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; none where it has none."""
        return self.opened.header.labels if self.classes is None else self.classes.names

    def answer(self, inputs: formats.Named) -> dict[str, torch.Tensor]:
        """Return what the model itself answers."""
        with torch.inference_mode():
            answer: dict[str, torch.Tensor] = self.subject(dict(inputs))
        return answer

    def answer_prepared(self, inputs: formats.Named) -> dict[str, torch.Tensor]:
        """Return what it answers to pixels that are prepared as `eval` does."""
        how = self.opened.header.preprocess
        if not isinstance(how, Preprocess):
            raise TypeError("texts are no pixels")
        with torch.inference_mode():
            answer: dict[str, torch.Tensor] = ExportModule(self.subject.model)(
                {PIXELS: prepared(how, inputs[IMAGES])}
            )
        return answer


def _run(config: ExportConfig, output_lock: OutputLock, progress: Progress) -> ExportReport:
    opened = open_reader(config.model, arch=config.arch, seed=config.seed, reads=config.data is not None)
    for path, option in ((config.out, "-o"), (config.report, "--report")):
        if path is not None and config.if_changed:
            check_sidecar(path)
        check_outputs(
            [] if path is None else [path],
            force=output_lock.may_replace,
            models=[opened],
            data=[config.data, config.ood],
            files=[config.naming.file],
            option=option,
        )
    _check_pixels(config, opened)
    classes = _classes(config, opened)
    trial = _trial(config, opened, classes, progress)
    progress.step(f"Tracing {opened.reference}")
    traced = _traced(config, opened, classes)
    content, program, differences, responses = _written(config, traced, trial, progress)
    report = None
    if trial is not None:
        report = measured(opened, trial, responses, _options(config))
    progress.step(f"Writing {config.out}")
    written = {config.out: content}
    if config.report is not None and report is not None:
        written[config.report] = report.to_json().encode()
    _publish(config, output_lock, opened, written)
    answers = program(traced.example)
    return ExportReport(
        paths=(*written,),
        inputs=tuple(_described_tensor(name, x, traced.axes.names) for name, x in traced.example.items()),
        outputs=tuple(
            _described_tensor(name, x, ("members", "batch") if name == "member_logits" else ("batch",))
            for name, x in answers.items()
        ),
        members=len(traced.subject.model.answers),
        classes=answers["probabilities"].shape[1],
        size_bytes=len(content),
        differences=differences,
        measured=report,
    )


def _publish(
    config: ExportConfig, output_lock: OutputLock, opened: OpenModel, written: Mapping[Path, bytes]
) -> None:
    """Write all files, and beside each what made it, if that is wanted."""
    step = sidecar_step(
        config,
        config.out,
        opened=opened,
        options=_options(config),
        seed=config.seed,
        needs=formats.LIBRARIES if config.form == ONNX else (),
    )
    with publish_together(output_lock) as begin:
        for path, content in written.items():
            with begin_with_sidecar(begin, path, step) as file:
                file.write(content)


def _check_pixels(config: ExportConfig, opened: OpenModel) -> None:
    how = opened.header.preprocess
    if not config.with_preprocess:
        return
    if isinstance(how, Tokenization):
        raise UsageError(
            f"`--with-preprocess` is for images, but {opened.reference} reads texts", hint="leave it out"
        )
    if how.interpolation not in FILTERS:
        raise UnsupportedModelError(
            f"{opened.reference}: resizes by `{how.interpolation}`, which no graph does as Pillow does",
            hint="leave `--with-preprocess` out",
        )


def _classes(config: ExportConfig, opened: OpenModel) -> Classes | None:
    """Return what a zero-shot model tells apart; None of a classifier.

    Raises:
        UsageError: If nothing names any: the exported model reads images alone.
    """
    classes = config.naming.classes(opened)
    if classes is None and opened.header.prompting is not None:
        raise UsageError(
            f"{opened.reference}: has no classes yet, and what is exported reads images alone",
            hint='name them: `--classes cat,dog --template "A photo of a {label}."`',
        )
    return classes


def _trial(
    config: ExportConfig, opened: OpenModel, classes: Classes | None, progress: Progress
) -> Trial | None:
    if config.data is None:
        return None
    sets = open_sets(opened, {ID_NAME: config.data, OOD: config.ood}, progress, workers=config.num_workers)
    labels, _ = labels_of(opened, sets[ID_NAME], classes, progress)
    return Trial(sets=sets, labels=labels, how=opened.header.preprocess, batch_size=config.batch_size)


def _traced(config: ExportConfig, opened: OpenModel, classes: Classes | None) -> Traced:
    how = opened.header.preprocess
    model = load_any(opened, dtype=torch.float32)
    settle(model, opened, classes)
    if classes is not None:
        _drop_unasked(model)
    if isinstance(how, Tokenization):
        # what a batch of texts is always filled up to is no axis of any length
        names = ("batch", "length") if how.padding == "longest" else ("batch",)
        axes = formats.Axes(names, {"length": how.max_length})
        return Traced(
            opened,
            classes,
            ExportModule(model),
            axes,
            samples(opened.header, batch=EXAMPLES, seed=config.seed),
        )
    if not config.with_preprocess:
        example = samples(opened.header, batch=EXAMPLES, seed=config.seed)
        return Traced(opened, classes, ExportModule(model), formats.Axes(("batch",)), example)
    pixels = pictures(how, size=(1.5, 1.25), batch=EXAMPLES, seed=config.seed)
    axes = formats.Axes(("batch", "height", "width"))
    return Traced(opened, classes, ExportModule(model, Pixels(how)), axes, {IMAGES: pixels})


def _drop_unasked(model: Towers) -> None:
    """Leave out the text tower of a model that knows its classes."""
    for name in [name for name in model.towers if name != "vision"]:
        del model.towers[name]


def _written(
    config: ExportConfig, traced: Traced, trial: Trial | None, progress: Progress
) -> tuple[bytes, formats.Program, dict[str, float], dict[str, dict[str, Responses]]]:
    """Return the file's bytes, what runs them, how far it is from the model, and what both say of the data.

    Raises:
        CheckFailed: If it is too far.
    """
    where, names = traced.opened.reference, list(traced.example)
    exported = formats.traced(traced.subject, traced.example, traced.axes, where=where)
    metadata = _metadata(config, traced)
    document = None
    if config.form == ONNX:
        progress.step("Making an ONNX graph of it")
        document = formats.onnx(exported, traced.axes, names=names, where=where)
        content = formats.onnx_bytes(document, metadata, where=where)
        program = formats.run_onnx(content)
    else:
        content = formats.pt2(exported, metadata)
        program = formats.run_pt2(content)
    progress.step("Comparing it with the model")
    trial_inputs = list(trials(traced.opened.header, with_pixels=config.with_preprocess, seed=config.seed))
    differences = {RANDOM: difference(program, traced.answer, trial_inputs)}
    require_near(differences[RANDOM], config.tolerance, inputs_name=RANDOM)
    if config.with_preprocess:
        differences[PREPARED] = difference(program, traced.answer_prepared, trial_inputs)
    responses: dict[str, dict[str, Responses]] = {}
    if trial is None:
        return content, program, differences, responses
    responses["model"] = trial.ask(traced.subject.model, name=where, progress=progress)
    kind = config.form.removeprefix(".")
    responses[kind] = trial.ask(Runner(program), name=kind, progress=progress, pixels=config.with_preprocess)
    differences[DATA] = furthest(responses[kind], responses["model"])
    if not config.with_preprocess:
        require_near(differences[DATA], config.tolerance, inputs_name=DATA)
    if config.quantize is not None:
        progress.step("Quantising it")
        content = formats.onnx_bytes(formats.quantized(document), metadata, where=where)
        program = formats.run_onnx(content)
        responses[config.quantize] = trial.ask(
            Runner(program), name=config.quantize, progress=progress, pixels=config.with_preprocess
        )
        differences[QUANTISED] = furthest(responses[config.quantize], responses["model"])
    return content, program, differences, responses


def _metadata(config: ExportConfig, traced: Traced) -> dict[str, str]:
    """Return what the file says of itself: JSON by key."""
    header = traced.opened.header
    step = make_step(
        config,
        family=traced.opened.family,
        options=_options(config),
        inputs=[traced.opened.as_input()],
        seed=config.seed,
    )
    fields = {
        "labels": list(traced.labels),
        "preprocess": header.preprocess.model_dump(mode="json"),
        "preprocess_in_graph": config.with_preprocess,
        "temperature": header.temperature,  # which the logits are divided by already
        "temperature_in_graph": True,
        "architecture": header.architecture.name,
        "kind": header.kind.value,
        "members": len(header.masks),
        "made_by": step.model_dump(mode="json"),
    }
    return {f"hydractl.{name}": json.dumps(value, sort_keys=True) for name, value in fields.items()}


def _options(config: ExportConfig) -> dict[str, OptionValue]:
    """Return what shapes the file."""
    options: dict[str, OptionValue] = {
        "format": config.form.removeprefix("."),
        "with_preprocess": config.with_preprocess,
        "tolerance": config.tolerance,
        "quantize": config.quantize,
        "classes": config.naming.names or None,
        "templates": config.naming.templates or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _described_tensor(name: str, x: torch.Tensor, axes: tuple[str, ...]) -> tuple[str, str, str]:
    """Return an input or output in words."""
    sizes = [axis if axis != "members" else str(x.shape[0]) for axis in axes] + [
        str(side) for side in x.shape[len(axes) :]
    ]
    return name, str(x.dtype).removeprefix("torch."), f"({', '.join(sizes)})"
