"""Files beside an exported model: its folder and the script that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from pathlib import Path

from hydractl.checkpoint import write_checkpoint
from hydractl.data.decoding import FORMATS
from hydractl.data.preprocess import MODES
from hydractl.data.reference import MAX_ITEM
from hydractl.fusion.prompts import with_class_names
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.guarantees import Threshold
from hydractl.manifest.header import Header, Preprocess
from hydractl.manifest.report import Report
from hydractl.manifest.tokenizers import is_python_tokenizer, parts_of
from hydractl.progress import Progress
from hydractl.stages.export.config import ONNX, ExportConfig
from hydractl.stages.shared.open_inputs import open_reader
from hydractl.stages.shared.outputs import check_models, claim
from hydractl.stages.shared.provenance import make_step

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


def export_folder(config: ExportConfig, progress: Progress) -> ExportReport:
    """Write a copy of a model as a folder of transformers and timm, which needs no comparison: the weights are the same bytes.

    Raises:
        OutputExists: If the folder contains a model that may not be replaced.
        OutputError: If it cannot be written.
    """
    with claim(config, [config.out], progress) as output_lock:
        opened = open_reader(config.model, arch=config.arch)
        check_models([config.out], output_lock, models=[opened], files=[config.naming.file])
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
        with publish_models(output_lock) as begin:
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
