"""A folder of transformers and timm as an exported model, and the result of every export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.checkpoint import write_checkpoint
from hydractl.fusion.prompts import with_class_names
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.report import Report
from hydractl.progress import Progress
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.shared.open_inputs import open_reader
from hydractl.stages.shared.outputs import check_models, claim
from hydractl.stages.shared.provenance import make_step


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
