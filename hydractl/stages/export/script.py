"""The script beside an exported model: it reads inputs as the model does, runs the model, and prints what it answers."""

from __future__ import annotations

from math import floor
from pathlib import Path

from hydractl.data.decoding import FORMATS
from hydractl.data.preprocess import MODES
from hydractl.data.reference import MAX_ITEM
from hydractl.manifest.guarantees import Threshold
from hydractl.manifest.header import Header, Preprocess
from hydractl.manifest.tokenizers import is_python_tokenizer, parts_of
from hydractl.stages.export.config import ONNX, ExportConfig

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
