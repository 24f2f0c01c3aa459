"""export: write a model in the format of another runtime, and compare both on the same inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from hydractl import progress
from hydractl.checkpoint import write_checkpoint
from hydractl.errors import UnsupportedModelError, UsageError
from hydractl.exporting import formats
from hydractl.exporting.comparison import (
    OOD,
    Runner,
    Trial,
    furthest,
    pictures,
    random_differences,
    require_near,
    samples,
)
from hydractl.exporting.formats import FILTERS, IMAGES, ExportModule, Pixels, Source, script
from hydractl.families.base import problem_type_of
from hydractl.families.open_model import OpenModel
from hydractl.fusion.build import load_any
from hydractl.manifest.document import OptionValue
from hydractl.manifest.guarantees import KnownTest, Threshold
from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.manifest.report import Report
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.ood_scores import MSP, has_same_definition
from hydractl.metrics.selective import HALF
from hydractl.prediction.class_names import Classes, set_classes, with_class_names
from hydractl.prediction.feature_ood import WithDefaultScore
from hydractl.prediction.open_inputs import labels_of, open_reader, open_sets
from hydractl.processes.distributed import require_one_process
from hydractl.progress import stage
from hydractl.provenance.output import Output, make_step, sidecar_step
from hydractl.stages.export.config import ONNX, ExportConfig

EXAMPLES = 2
"""Batch size for tracing. Must be at least 2, because torch.export treats an axis of size 1 as constant. A
larger batch only makes tracing slower."""
DATA, QUANTIZED = "the data", "the data, quantized"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Paths of the exported model, and its differences from the original.

    Attributes:
        paths: Written files: the model, a script for running it, the report.
        inputs: Name, dtype and shape of each input. Dynamic axes have names.
        outputs: Name, dtype and shape of each output.
        members: Number of members M.
        classes: Number of classes C.
        size_bytes: Size of the model.
        differences: Largest differences from the original by name: on random inputs; of logits on the data;
            for pixel inputs, from the preprocessing of `eval`; for a quantized model, before and after
            quantization.
        measured: Report of both models on the data, in the format of `eval`; None without data.
    """

    paths: tuple[Path, ...]
    inputs: tuple[tuple[str, str, str], ...]
    outputs: tuple[tuple[str, str, str], ...]
    members: int
    classes: int
    size_bytes: int
    differences: dict[str, float]
    measured: Report | None = None


@stage
def run_export(config: ExportConfig) -> ExportReport:
    """Export a model.

    Raises:
        UnsupportedModelError: If the model cannot be exported, or a library is missing or too old.
        UsageError: If a zero-shot model has no class names, or an option does not fit the model.
        CheckFailed: If the exported model differs from the original by more than `tolerance`.
        OutputExists: If an output already exists.
    """
    require_one_process("export")
    if not config.form:
        return _export_folder(config)
    formats.require_torch()
    if config.form == ONNX:
        formats.onnx_libraries()
    with Output.claim(config, [config.out, config.report]) as output:
        model_file = open_reader(
            config.model, arch=config.arch, seed=config.seed, reads_data=config.data is not None
        )
        _check(config, model_file, output)
        classes = config.naming.classes(model_file)
        if classes is None and model_file.header.prompting is not None:
            raise UsageError(
                f"{model_file.reference}: has no class names yet, and an exported model takes images only",
                hint='name them: `--classes cat,dog --template "A photo of a {label}."`',
            )
        trial = None
        if config.data is not None:
            sets = open_sets(model_file, {ID_NAME: config.data, OOD: config.ood}, workers=config.num_workers)
            labels, _ = labels_of(model_file, sets[ID_NAME], classes)
            trial = Trial(model_file=model_file, sets=sets, labels=labels, batch_size=config.batch_size)
        progress.step(f"Tracing {model_file.reference}")
        source = _load(config, model_file, classes)
        header = _guarantees(config, model_file, with_class_names(model_file.header, classes), source.module)
        metadata = _metadata(config, model_file, source.module, header)
        traced, document = formats.traced(source, place=model_file.reference), None
        if config.form == ONNX:
            progress.step("Converting to an ONNX graph")
            document = formats.onnx(traced, source, place=model_file.reference)
            content = formats.onnx_bytes(document, metadata, place=model_file.reference)
            program = formats.run_onnx(content)
        else:
            content = formats.pt2(traced, metadata)
            program = formats.run_pt2(content)
        progress.step("Comparing the exported model with the original")
        differences = random_differences(
            program, source.module, model_file.header, tolerance=config.tolerance, seed=config.seed
        )
        report = None
        if trial is not None:
            kind, pixels = config.form.removeprefix("."), config.with_preprocess
            responses = {"model": trial.responses(source.module.model, name=model_file.reference)}
            responses[kind] = trial.responses(Runner(program), name=kind, pixels=pixels)
            differences[DATA] = furthest(responses[kind], responses["model"])
            if not pixels:
                require_near(differences[DATA], config.tolerance, inputs_name=DATA)
            if (preprocess := config.quantize) is not None:
                progress.step("Quantizing the ONNX model")
                content = formats.onnx_bytes(
                    formats.quantized(document), metadata, place=model_file.reference
                )
                program = formats.run_onnx(content)
                responses[preprocess] = trial.responses(Runner(program), name=preprocess, pixels=pixels)
                differences[QUANTIZED] = furthest(responses[preprocess], responses["model"])
            report = trial.report(responses, _options(config))
        progress.step(f"Writing {config.out}")
        script_text = script(
            header,
            name=config.out.name,
            onnx=config.form == ONNX,
            with_preprocess=config.with_preprocess,
            score=source.module.with_score.score,
        )
        written = {config.out: content, config.script: script_text}
        if config.report is not None and report is not None:
            written[config.report] = report.to_json().encode()
        _publish(config, model_file, written, output)
        answers = program(source.example)
        return ExportReport(
            paths=tuple(written),
            inputs=tuple(_described_tensor(name, x, source.axes) for name, x in source.example.items()),
            outputs=tuple(
                _described_tensor(name, x, ("members", "batch") if name == "member_logits" else ("batch",))
                for name, x in answers.items()
            ),
            members=len(source.module.model.answers),
            classes=answers["probabilities"].shape[1],
            size_bytes=len(content),
            differences=differences,
            measured=report,
        )


def _export_folder(config: ExportConfig) -> ExportReport:
    """Write a copy of a model as a folder of transformers and timm.

    The weights are copied byte by byte, so nothing is compared.

    Raises:
        UsageError: If the model stores other classes.
        OutputExists: If the folder contains a model that may not be replaced.
        OutputError: If the folder cannot be written.
    """
    with Output.claim(config, [config.out]) as output:
        model_file = open_reader(config.model, arch=config.arch)
        output.check(config.out, models=[model_file], files=[config.naming.file], folders=True)
        step = make_step(
            config,
            family=model_file.family,
            options={
                "format": "folder",
                "classes": config.naming.names or None,
                "templates": config.naming.templates or None,
            },
            inputs=[model_file.as_input()],
        )
        named, checkpoint = (
            with_class_names(model_file.header, config.naming.classes(model_file)),
            model_file.checkpoint,
        )
        if named != model_file.header:
            raise UsageError(
                f"`--classes`: {model_file.reference} stores no embeddings of these classes, and a folder has the stored weights",
                hint="fuse the members with these `--classes` and `--template` first",
            )
        header = named.model_copy(update={"base": model_file.base, "made_by": step})
        with output.publish() as begin:
            write_checkpoint(
                begin(config.out, header),
                checkpoint.specs | checkpoint.beside,
                lambda name: [checkpoint.spans[name]],
                header=header,
            )
    return ExportReport(
        paths=(config.out,),
        inputs=(),
        outputs=(),
        members=len(header.masks),
        classes=header.num_classes,
        size_bytes=checkpoint.size_bytes,
        differences={},
    )


def _check(config: ExportConfig, model_file: OpenModel, output: Output) -> None:
    """Check that outputs can be written, and that the model can take pixels if required."""
    for path, option in ((config.out, "-o"), (config.script, "-o"), (config.report, "--report")):
        output.check(
            path,
            models=[model_file],
            data=[config.data, config.ood],
            files=[config.naming.file],
            option=option,
            sidecars=config.if_changed,
        )
    preprocess = model_file.header.preprocess
    if config.with_preprocess and isinstance(preprocess, Tokenization):
        raise UsageError(
            f"`--with-preprocess` is for images, but {model_file.reference} reads texts", hint="leave it out"
        )
    if (
        config.with_preprocess
        and isinstance(preprocess, Preprocess)
        and preprocess.interpolation not in FILTERS
    ):
        raise UnsupportedModelError(
            f"{model_file.reference}: its preprocessing resizes by `{preprocess.interpolation}`, which cannot be exported exactly",
            hint="leave out `--with-preprocess`",
        )


def _load(config: ExportConfig, model_file: OpenModel, classes: Classes | None) -> Source:
    """Load the model, without the text tower if the classes are known."""
    preprocess = model_file.header.preprocess
    model = load_any(model_file, dtype=torch.float32)
    set_classes(model, model_file, classes)
    if classes is not None:
        for name in model.towers.keys() - {"vision"}:
            del model.towers[name]
    pixels, example = None, samples(model_file.header, batch=EXAMPLES, seed=config.seed)
    axes: tuple[str, ...] = ("batch",)
    if isinstance(preprocess, Tokenization):
        # with padding to a fixed length, the length is constant
        axes = ("batch", "length") if preprocess.padding == "longest" else ("batch",)
    elif config.with_preprocess:
        pixels, axes = Pixels(preprocess), ("batch", "height", "width")
        example = {IMAGES: pictures(preprocess, size=(1.5, 1.25), batch=EXAMPLES, seed=config.seed)}
    module = ExportModule(WithDefaultScore.stored(model, model_file, classes), pixels)
    return Source(
        module, example, axes, most=preprocess.max_length if isinstance(preprocess, Tokenization) else None
    )


def _guarantees(config: ExportConfig, model_file: OpenModel, header: Header, module: ExportModule) -> Header:
    """Return the header without guarantees that do not hold for the exported model. Warns about these."""
    reasons = [_unfit(config, test, module, header) for test in (header.threshold, header.known_test) if test]
    if reason := next(filter(None, reasons), None):
        progress.warn(f"{model_file.reference}: its threshold is not exported: {reason}")
        header = header.model_copy(update={"threshold": None, "known_test": None})
    if config.quantize is not None and header.prediction_sets is not None:
        progress.warn(
            f"{model_file.reference}: its prediction sets are not exported: they do not hold for the quantized model"
        )
        header = header.model_copy(update={"prediction_sets": None})
    return header


def _unfit(
    config: ExportConfig, test: KnownTest | Threshold, module: ExportModule, header: Header
) -> str | None:
    """Return the reason why a threshold is not valid for the exported model, or None if it is valid."""
    if config.quantize is not None:
        return "it does not hold for the quantized model"
    if header.architecture.task.by_word:
        return "it is for the mean score of a text's words, but the exported model scores each token"
    if test.score not in {MSP, score := module.with_score.score}:
        return f"it is for `{test.score}`, but the exported model computes `{score}`"
    earlier = f"it is for an earlier definition of `{test.score}`"
    return None if has_same_definition(test.score, test.version) else earlier


def _publish(config: ExportConfig, model_file: OpenModel, written: dict[Path, bytes], output: Output) -> None:
    """Write all files, with provenance sidecars if `--if-changed` needs them."""
    step = sidecar_step(
        config,
        config.out,
        model_file=model_file,
        options=_options(config),
        seed=config.seed,
        libraries=formats.LIBRARIES if config.form == ONNX else (),
    )
    with output.publish() as begin:
        for path, content in written.items():
            begin(path, made_by=step).write(content)


def _metadata(
    config: ExportConfig,
    model_file: OpenModel,
    module: ExportModule,
    header: Header,
) -> dict[str, str]:
    """Return the metadata of the file: JSON texts by key."""
    step = make_step(
        config,
        family=model_file.family,
        options=_options(config),
        inputs=[model_file.as_input()],
        seed=config.seed,
    )
    fields = {
        "labels": list(header.labels),
        "preprocess": header.preprocess.model_dump(mode="json"),
        "preprocess_in_graph": config.with_preprocess,
        "temperature": header.temperature,  # the exported logits are already divided by the temperature
        "temperature_in_graph": True,
        "architecture": header.architecture.name,
        "kind": header.kind.value,
        "ood_score": module.with_score.score,
        "threshold": None if header.threshold is None else header.threshold.model_dump(mode="json"),
        **({} if header.known_test is None else {"known_test": header.known_test.model_dump(mode="json")}),
        **(
            {
                "labels": header.class_names,
                "label_temperatures": header.label_temperatures,
                "label_thresholds": header.label_thresholds or (HALF,) * header.num_classes,
                **problem_type_of(header.architecture),
            }
            if header.architecture.task.by_label
            else {}
        ),
        "prediction_sets": header.prediction_sets and header.prediction_sets.model_dump(mode="json"),
        "members": len(header.masks),
        "made_by": step.model_dump(mode="json"),
    }
    return {f"hydractl.{name}": json.dumps(value, sort_keys=True) for name, value in fields.items()}


def _options(config: ExportConfig) -> dict[str, OptionValue]:
    """Return the options with an influence on the file."""
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
    """Return the name, dtype and shape of an input or output."""
    sizes = [axis if axis != "members" else str(x.shape[0]) for axis in axes] + [
        str(side) for side in x.shape[len(axes) :]
    ]
    return name, str(x.dtype).removeprefix("torch."), f"({', '.join(sizes)})"
