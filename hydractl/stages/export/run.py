"""export: write a model in a format of another runtime, and compare both on the same inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image

from hydractl import progress
from hydractl.checkpoint import write_checkpoint
from hydractl.data.batches import Batch
from hydractl.data.datasets import ImageSet, Items
from hydractl.data.decoding import FORMATS
from hydractl.data.encode import encoded, of_kind
from hydractl.data.preprocess import MODES, eval_transform, to_channels
from hydractl.data.reference import MAX_ITEM
from hydractl.errors import CheckFailed, InputError, UnsupportedModelError, UsageError, reason_of
from hydractl.families.base import problem_type_of
from hydractl.families.load import OpenModel, fingerprint_of
from hydractl.families.tower import largest_difference, probe_inputs
from hydractl.fusion.hydra import load_any
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.guarantees import Threshold
from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.manifest.report import Report, Row
from hydractl.manifest.terms import ID_NAME
from hydractl.manifest.tokenizers import is_python_tokenizer, parts_of
from hydractl.metrics.compute import Selection, means, measure_all
from hydractl.metrics.ood_scores import MSP, means_the_same
from hydractl.metrics.per_sample import Responses, in_memory
from hydractl.metrics.registry import METRICS, choose_metrics
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.selective import HALF
from hydractl.model_inputs import PIXELS, WORDS, Inputs
from hydractl.prediction.class_names import Classes, settle, with_class_names
from hydractl.prediction.feature_ood import WithDefaultScore
from hydractl.prediction.inference import Runnable, collected
from hydractl.prediction.inference import responses as responses_of
from hydractl.prediction.open_inputs import labels_of, open_reader, open_sets
from hydractl.processes.distributed import require_one_process
from hydractl.progress import stage
from hydractl.provenance.output import Output, make_step, sidecar_step
from hydractl.runtime import versions
from hydractl.stages.export import formats
from hydractl.stages.export.config import ONNX, ExportConfig
from hydractl.stages.export.formats import FILTERS, IMAGES, OUTPUTS, ExportModule, Named, Pixels, Program
from hydractl.version import __version__

TEMPLATE = Path(__file__).with_name("script.py.jinja")


def script(config: ExportConfig, header: Header, threshold: Threshold | None) -> bytes:
    """Return the source of a Python script that runs the exported model.

    Args:
        config: Of the export.
        header: Of the model; of a zero-shot one with its classes.
        threshold: On the exported model's OOD score; None if it has none.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - `--help` does without

    environment = Environment(  # noqa: S701 - no HTML; what a user or a file may say goes through `literal`
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters["literal"] = repr
    how = header.preprocess
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        how=how,
        labelled=bool(header.labels),
        multi_label=header.architecture.task.by_label,
        by_word=header.architecture.task.by_word,
        name=config.out.name,
        onnx=config.form == ONNX,
        pixels=config.with_preprocess,
        threshold=threshold,
        sets=header.prediction_sets,
        **(_of_images(how) if isinstance(how, Preprocess) else _of_texts(how.tokenizer or "")),
    ).encode()


def _of_images(how: Preprocess) -> dict[str, object]:
    """Return sizes as (width, height): of the crop, and that images are resized to before it."""
    channels, height, width = how.input_size
    return {
        "images": True,
        "packages": "pillow",
        "mode": MODES[channels],
        "size": (width, height),
        "scaled": (floor(width / how.crop_pct), floor(height / how.crop_pct)),
        "fill": tuple(round(255 * mean) for mean in how.mean),
        "on_arrays": how.resizes_tensors,
        "formats": FORMATS,
        "max_item": MAX_ITEM,
        "python_tokenizer": None,
    }


def _of_texts(tokenizer: str) -> dict[str, object]:
    name = parts_of(tokenizer)[0] if is_python_tokenizer(tokenizer) else None
    return {
        "images": False,
        "packages": "transformers" if name else "tokenizers" if tokenizer else "",
        "python_tokenizer": name,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Files or folder that `export` wrote, and their differences from the model.

    Attributes:
        paths: Files written: the model, the script that runs it, the report.
        inputs: Name, type and shape of each input; dynamic axes have names.
        outputs: Name, type and shape of each output.
        members: Number of members M.
        classes: Number of classes C.
        size_bytes: Size of the model.
        differences: Largest differences from the model's outputs: on random inputs; of logits on the data; for pixel
            inputs, from the outputs with the preprocessing of `eval`; for a quantized model, before and after
            quantization.
        measured: Report of both models on the data, as from `eval`; None without data.
    """

    paths: tuple[Path, ...]
    inputs: tuple[tuple[str, str, str], ...]
    outputs: tuple[tuple[str, str, str], ...]
    members: int
    classes: int
    size_bytes: int
    differences: dict[str, float]
    measured: Report | None = None


def export_folder(config: ExportConfig) -> ExportReport:
    """Write a copy of a model as a folder of transformers and timm, which needs no comparison: the weights are the same bytes.

    Raises:
        OutputExists: If the folder contains a model that may not be replaced.
        OutputError: If it cannot be written.
    """
    with Output.claim(config, [config.out]) as output:
        opened = open_reader(config.model, arch=config.arch)
        output.check(config.out, models=[opened], files=[config.naming.file], folders=True)
        step = make_step(
            config,
            family=opened.family,
            options={
                "format": "folder",
                "classes": config.naming.names or None,
                "templates": config.naming.templates or None,
            },
            inputs=[opened.as_input()],
        )
        named, checkpoint = with_class_names(opened.header, config.naming.classes(opened)), opened.checkpoint
        header = named.model_copy(update={"base": opened.base, "made_by": step})
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


BATCHES = (1, 2, 5)
SIZES = ((1.0, 1.0), (0.6, 0.8), (1.7, 2.3), (3.1, 1.3))
"""Heights and widths of random images, relative to the model's."""
OOD = "ood"


@dataclass(frozen=True, slots=True)
class Runner:
    """An exported model, asked as a model is that `respond` is given."""

    program: Program
    device: ClassVar = torch.device("cpu")
    dtype: ClassVar = torch.float32

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return each member's logits (M, B, C), or of words (M, B, Q, C)."""
        by_name = dict(named(inputs))
        words = by_name.pop(WORDS, None)
        logits = self.program(by_name)["member_logits"]
        return (logits if words is None else logits.take_along_dim(words.clamp(min=0)[None, :, :, None], 2),)


def named(inputs: Inputs) -> Named:
    """Return inputs by name."""
    return (
        {IMAGES if inputs.dtype == torch.uint8 else PIXELS: inputs}
        if isinstance(inputs, torch.Tensor)
        else inputs
    )


def samples(header: Header, *, batch: int, seed: int) -> dict[str, torch.Tensor]:
    """Return random inputs by name; of a zero-shot model images, which are all that it is asked."""
    inputs = named(probe_inputs(header, batch=batch, seed=seed))
    texts = isinstance(header.preprocess, Tokenization)
    return {name: x for name, x in inputs.items() if texts or name == PIXELS}


def pictures(how: Preprocess, *, size: tuple[float, float], batch: int, seed: int) -> torch.Tensor:
    """Return random pixels (B, H, W, C) of a size relative to the model's, uint8."""
    channels, height, width = how.input_size
    shape = (batch, max(2, round(height * size[0])), max(2, round(width * size[1])), channels)
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def prepared(how: Preprocess, pixels: torch.Tensor) -> torch.Tensor:
    """Return pixels (B, H, W, C) as `eval` reads such images."""
    transform = eval_transform(how)
    return torch.stack([transform(Image.fromarray(image)) for image in pixels.squeeze(-1).numpy()])


def trials(header: Header, *, with_pixels: bool, seed: int) -> Iterator[Named]:
    """Yield random inputs of several numbers of samples; texts of two lengths, pixels of several sizes."""
    how = header.preprocess
    if with_pixels and isinstance(how, Preprocess):
        for i, size in enumerate(SIZES):
            yield {IMAGES: pictures(how, size=size, batch=BATCHES[i % len(BATCHES)], seed=seed + i)}
        return
    for i, batch in enumerate(BATCHES):
        inputs = samples(header, batch=batch, seed=seed + i)
        yield inputs
        if isinstance(how, Tokenization) and how.padding == "longest":
            # texts are padded on the right: no row of their first half is nothing but padding
            yield {name: x[:, : max(1, x.shape[1] // 2)] for name, x in inputs.items()}


def difference(exported: Program, expected: Program, trial_inputs: Iterable[Named]) -> float:
    """Return the largest difference of any output; see `largest_difference`.

    Raises:
        InputError: If the program does not run.
    """
    worst = 0.0
    for inputs in trial_inputs:
        try:
            answer = exported(inputs)
        except Exception as error:  # of a runtime: no public kinds
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
            raise InputError(f"the exported model fails on {shapes}: {reason_of(error)}") from error
        reference = expected(inputs)
        worst = max(worst, *(largest_difference(answer[name], reference[name]) for name in OUTPUTS))
    return worst


def require_near(difference_found: float, tolerance: float, *, inputs_name: str) -> None:
    """Refuse an exported model that is too far from the model.

    Raises:
        CheckFailed: With both numbers.
    """
    if not difference_found <= tolerance:
        raise CheckFailed(
            f"the outputs of the exported model differ by {difference_found:.1e} on {inputs_name}, "
            f"more than the tolerance {tolerance:g}; nothing was written",
            hint=f"to accept that difference, add `--tolerance {2 * difference_found:.0e}`"
            if difference_found < 1
            else None,
        )


def undecoded(items: ImageSet, how: Preprocess) -> Iterator[Batch[torch.Tensor]]:
    """Yield images as pixels (1, H, W, C), uint8, one by one: they may be of different sizes."""
    for i in range(len(items)):
        pixels = np.array(to_channels(items.image(i), how.input_size[0], how.transparency))
        yield Batch(torch.from_numpy(pixels).reshape(1, *pixels.shape[:2], -1), torch.tensor([i]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Data that a model and what was exported of it are asked about.

    Attributes:
        sets: By role, `id` and perhaps `ood`.
        labels: Of the former, (N,), the model's classes.
        how: How the model reads them.
        batch_size: At least 1.
    """

    sets: Mapping[str, Items]
    labels: torch.Tensor
    how: Preprocess | Tokenization
    batch_size: int

    def batches(self, items: Items, *, pixels: bool) -> Iterable[Batch[Inputs]]:
        """Return what is asked: inputs as they are prepared for the model, or pixels."""
        return (
            undecoded(of_kind(items, ImageSet), self.how)
            if pixels and isinstance(self.how, Preprocess)
            else encoded(items, self.how, batch_size=self.batch_size, limit_bytes=0)
        )

    def ask(self, model: Runnable, *, name: str, pixels: bool = False) -> dict[str, Responses]:
        """Return what a model says of each set; `pixels` where it prepares images itself."""
        predictions = {}
        for role, items in self.sets.items():
            total = len(items) if pixels else -(-len(items) // self.batch_size)
            batches = progress.track(self.batches(items, pixels=pixels), label=name, total=total)
            outputs = responses_of(model, batches, name=name, data=items.name)
            predictions[role] = in_memory(collected(outputs, count=len(items)))
        return predictions


def furthest(actual: Mapping[str, Responses], expected: Mapping[str, Responses]) -> float:
    """Return the largest difference of logits on any set; see `largest_difference`."""
    return max(
        largest_difference(*(x[~x.isnan()] for x in (actual[role].logits(), expected[role].logits())))
        for role in expected
    )


def measured(
    opened: OpenModel,
    trial: Trial,
    responses_by_row: Mapping[str, dict[str, Responses]],
    options: Mapping[str, OptionValue],
) -> Report:
    """Return what rows are worth, as `eval` reports it but for costs and intervals.

    Args:
        opened: The model that all of them are.
        trial: What they were asked.
        responses_by_row: What each row says of each set.
        options: Of the export.
    """
    chosen = choose_metrics(None, ood=OOD in trial.sets, latency=False)
    selection = Selection(chosen, (MSP,), Resampling(resamples=0))
    rows = []
    for name, responses in responses_by_row.items():
        foreign = {OOD: responses[OOD]} if OOD in responses else {}
        numbers = measure_all(responses[ID_NAME], trial.labels, foreign, opened.header, selection)
        rows.append(
            Row(
                name=name,
                models=(fingerprint_of(opened),),
                members=len(responses[ID_NAME].log_probs),
                values=numbers.values,
                ood=numbers.ood,
                means=means(numbers.ood, {"far": (OOD,), "all": (OOD,)} if foreign else {}),
            )
        )
    metric_names = {name for row in rows for name in (*row.values, *(n for v in row.ood.values() for n in v))}
    return Report(
        rows=tuple(rows),
        data={
            role: Fingerprint(reference=items.name, sha256=items.fingerprint(), count=items.total)
            for role, items in trial.sets.items()
        },
        far=(OOD,) if OOD in trial.sets else (),
        definitions={name: METRICS[name].definition for name in METRICS if name in metric_names},
        options=dict(options),
        versions={"hydractl": __version__, **versions("torch", opened.family.library)},
    )


EXAMPLES = 2
"""Batch size for tracing; torch would treat an axis of size 1 as constant."""
RANDOM, DATA, QUANTISED = "random inputs", "the data", "the data, quantized"
PREPARED = "random pixels with the preprocessing of `eval`"
"""Pillow resizes one axis after the other and rounds in between. It chooses the order of the axes itself."""


@stage
def run_export(config: ExportConfig) -> ExportReport:
    """Export a model.

    Raises:
        UnsupportedModelError: If the model cannot be exported, or a library is missing or too old.
        CheckFailed: If the exported model differs from the model by more than `tolerance`.
        OutputExists: If an output already exists.
    """
    require_one_process("export")
    if not config.form:
        return export_folder(config)
    formats.require_torch()
    if config.form == ONNX:
        formats.onnx_libraries()
    with Output.claim(config, [config.out, config.report]) as output:
        opened = open_reader(config.model, arch=config.arch, seed=config.seed, reads=config.data is not None)
        _check(config, opened, output)
        classes = _classes(config, opened)
        trial = _open_trial(config, opened, classes)
        progress.step(f"Tracing {opened.reference}")
        source = _load(config, opened, classes)
        exported = _convert(config, source)
        progress.step("Comparing the exported model with the original")
        differences = _compare_on_random(config, source, exported.program)
        report = None
        if trial is not None:
            exported, report = _compare_on_data(config, source, exported, trial, differences)
        progress.step(f"Writing {config.out}")
        paths = _publish(config, source, exported, report, output)
        answers = exported.program(source.example)
        return ExportReport(
            paths=paths,
            inputs=tuple(_described_tensor(name, x, source.axes) for name, x in source.example.items()),
            outputs=tuple(
                _described_tensor(name, x, ("members", "batch") if name == "member_logits" else ("batch",))
                for name, x in answers.items()
            ),
            members=len(source.module.model.answers),
            classes=answers["probabilities"].shape[1],
            size_bytes=len(exported.content),
            differences=differences,
            measured=report,
        )


class Source(NamedTuple):
    """A model that becomes a file, with an example of its inputs and what of these may be of any length.

    Its threshold is None where what is exported is another model, or has another OOD score.
    """

    opened: OpenModel
    module: ExportModule
    axes: tuple[str, ...]
    most: int | None
    example: formats.Named
    header: Header
    threshold: Threshold | None


class Exported(NamedTuple):
    """The bytes of a file and what runs them; of ONNX its document too, which may be quantised."""

    content: bytes
    program: formats.Program
    document: Any = None


def _check(config: ExportConfig, opened: OpenModel, output: Output) -> None:
    """Refuse outputs that cannot be written, and pixels for a model that has no use for them."""
    for path, option in ((config.out, "-o"), (config.script, "-o"), (config.report, "--report")):
        output.check(
            path,
            models=[opened],
            data=[config.data, config.ood],
            files=[config.naming.file],
            option=option,
            sidecars=config.if_changed,
        )
    how = opened.header.preprocess
    if config.with_preprocess and isinstance(how, Tokenization):
        raise UsageError(
            f"`--with-preprocess` is for images, but {opened.reference} reads texts", hint="leave it out"
        )
    if config.with_preprocess and isinstance(how, Preprocess) and how.interpolation not in FILTERS:
        raise UnsupportedModelError(
            f"{opened.reference}: its preprocessing resizes by `{how.interpolation}`, which cannot be exported exactly",
            hint="leave out `--with-preprocess`",
        )


def _classes(config: ExportConfig, opened: OpenModel) -> Classes | None:
    """Return what a zero-shot model tells apart; None of a classifier.

    Raises:
        UsageError: If nothing names any: the exported model reads images alone.
    """
    classes = config.naming.classes(opened)
    if classes is None and opened.header.prompting is not None:
        raise UsageError(
            f"{opened.reference}: has no class names yet, and an exported model takes images only",
            hint='name them: `--classes cat,dog --template "A photo of a {label}."`',
        )
    return classes


def _open_trial(config: ExportConfig, opened: OpenModel, classes: Classes | None) -> Trial | None:
    if config.data is None:
        return None
    sets = open_sets(opened, {ID_NAME: config.data, OOD: config.ood}, workers=config.num_workers)
    labels, _ = labels_of(opened, sets[ID_NAME], classes)
    return Trial(sets=sets, labels=labels, how=opened.header.preprocess, batch_size=config.batch_size)


def _load(config: ExportConfig, opened: OpenModel, classes: Classes | None) -> Source:
    """Return the model in memory; one that knows its classes leaves out its text tower."""
    how = opened.header.preprocess
    model = load_any(opened, dtype=torch.float32)
    settle(model, opened, classes)
    if classes is not None:
        for name in model.towers.keys() - {"vision"}:
            del model.towers[name]
    pixels, example = None, samples(opened.header, batch=EXAMPLES, seed=config.seed)
    axes: tuple[str, ...] = ("batch",)
    if isinstance(how, Tokenization):
        # what a batch of texts is always filled up to is no axis of any length
        axes = ("batch", "length") if how.padding == "longest" else ("batch",)
    elif config.with_preprocess:
        pixels, axes = Pixels(how), ("batch", "height", "width")
        example = {IMAGES: pictures(how, size=(1.5, 1.25), batch=EXAMPLES, seed=config.seed)}
    module = ExportModule(WithDefaultScore.stored(model, opened, classes), pixels)
    header = with_class_names(opened.header, classes)
    threshold = header.threshold
    if threshold is not None and (reason := _unfit(config, threshold, module, header)):
        progress.warn(f"{opened.reference}: its threshold is not exported: {reason}")
        threshold = None
    if config.quantize is not None and header.prediction_sets is not None:
        progress.warn(
            f"{opened.reference}: its prediction sets are not exported: they do not hold for the quantized model"
        )
        header = header.model_copy(update={"prediction_sets": None})
    most = how.max_length if isinstance(how, Tokenization) else None
    return Source(opened, module, axes, most, example, header, threshold)


def _unfit(config: ExportConfig, threshold: Threshold, module: ExportModule, header: Header) -> str | None:
    """Return why a threshold does not hold for what is exported, which computes an OOD score; None if it does."""
    if config.quantize is not None:
        return "it does not hold for the quantized model"
    if header.architecture.task.by_word:
        return "it is for the mean score of a text's words, but the exported model scores each token"
    if threshold.score != (score := module.with_score.score):
        return f"it is for `{threshold.score}`, but the exported model computes `{score}`"
    earlier = f"it is for an earlier definition of `{score}`"
    return None if means_the_same(score, threshold.version) else earlier


def _convert(config: ExportConfig, source: Source) -> Exported:
    where, metadata = source.opened.reference, _metadata(config, source)
    program = formats.traced(source.module, source.example, source.axes, most=source.most, where=where)
    if config.form != ONNX:
        content = formats.pt2(program, metadata)
        return Exported(content, formats.run_pt2(content))
    progress.step("Converting to an ONNX graph")
    document = formats.onnx(program, source.axes, names=list(source.example), where=where)
    content = formats.onnx_bytes(document, metadata, where=where)
    return Exported(content, formats.run_onnx(content), document)


def _compare_on_random(config: ExportConfig, source: Source, program: formats.Program) -> dict[str, float]:
    """Return how far the exported model is from the model.

    Raises:
        CheckFailed: If it is too far.
    """
    how = source.opened.header.preprocess
    inputs = list(trials(source.opened.header, with_pixels=config.with_preprocess, seed=config.seed))
    differences = {RANDOM: difference(program, source.module.answer, inputs)}
    require_near(differences[RANDOM], config.tolerance, inputs_name=RANDOM)
    if config.with_preprocess and isinstance(how, Preprocess):
        as_eval = ExportModule(source.module.with_score).answer
        differences[PREPARED] = difference(
            program, lambda pixels: as_eval({PIXELS: prepared(how, pixels[IMAGES])}), inputs
        )
    return differences


def _compare_on_data(
    config: ExportConfig, source: Source, exported: Exported, trial: Trial, differences: dict[str, float]
) -> tuple[Exported, Report]:
    """Return what is to be written, quantised if that is wanted, and what all are worth; note how far each is from the one before.

    Raises:
        CheckFailed: If it is too far from the model, before it is quantised.
    """
    where, kind, pixels = source.opened.reference, config.form.removeprefix("."), config.with_preprocess
    responses = {"model": trial.ask(source.module.model, name=where)}
    responses[kind] = trial.ask(Runner(exported.program), name=kind, pixels=pixels)
    differences[DATA] = furthest(responses[kind], responses["model"])
    if not pixels:
        require_near(differences[DATA], config.tolerance, inputs_name=DATA)
    if (how := config.quantize) is not None:
        progress.step("Quantizing the ONNX model")
        document = formats.quantized(exported.document)
        content = formats.onnx_bytes(document, _metadata(config, source), where=where)
        exported = Exported(content, formats.run_onnx(content))
        responses[how] = trial.ask(Runner(exported.program), name=how, pixels=pixels)
        differences[QUANTISED] = furthest(responses[how], responses["model"])
    return exported, measured(source.opened, trial, responses, _options(config))


def _publish(
    config: ExportConfig,
    source: Source,
    exported: Exported,
    report: Report | None,
    output: Output,
) -> tuple[Path, ...]:
    """Write all files, and beside each what made it, if that is wanted; return their paths."""
    written = {config.out: exported.content, config.script: script(config, source.header, source.threshold)}
    if config.report is not None and report is not None:
        written[config.report] = report.to_json().encode()
    step = sidecar_step(
        config,
        config.out,
        opened=source.opened,
        options=_options(config),
        seed=config.seed,
        libraries=formats.LIBRARIES if config.form == ONNX else (),
    )
    with output.publish() as begin:
        for path, content in written.items():
            begin(path, made_by=step).write(content)
    return (*written,)


def _metadata(config: ExportConfig, source: Source) -> dict[str, str]:
    """Return what the file says of itself: JSON by key."""
    header, threshold = source.header, source.threshold
    step = make_step(
        config,
        family=source.opened.family,
        options=_options(config),
        inputs=[source.opened.as_input()],
        seed=config.seed,
    )
    fields = {
        "labels": list(header.labels),
        "preprocess": header.preprocess.model_dump(mode="json"),
        "preprocess_in_graph": config.with_preprocess,
        "temperature": header.temperature,  # which the logits are divided by already
        "temperature_in_graph": True,
        "architecture": header.architecture.name,
        "kind": header.kind.value,
        "ood_score": source.module.with_score.score,
        "threshold": None if threshold is None else threshold.model_dump(mode="json"),
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
