"""Configuration of `export`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from hydractl.output.publish import DOCUMENT, OutputKind, is_folder, output
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.provenance.command_config import IF_CHANGED_BESIDE, CommandConfig
from hydractl.settings import CheckedSettings, Constraint, Role, Setting, by_default, flag, required, setting
from hydractl.stages import options as shared

ONNX, PT2 = ".onnx", ".pt2"
FORMATS = (ONNX, PT2)
QUANTIZED = ("int8",)


TO_FILE = Constraint("form", FORMATS, option="out", why=f"it applies to {ONNX} and {PT2} files")
MEASURED_ON = Constraint("data", why="it needs labelled data to measure on", hint="add `--data DATA`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig(CheckedSettings, CommandConfig):
    """Options of `export`."""

    COMMAND: ClassVar[str] = "export"
    COMMON = (
        "out",
        "with_preprocess",
        "quantize",
        "data",
        "ood",
        "tolerance",
        "save_report",
        "classes",
        "force",
    )

    model: str = required(shared.MODEL)
    out: Path = required(
        replace(
            shared.OUT,
            check_path=OutputKind(
                description="an exported model", suffixes=FORMATS, decides=True, streams=False
            ),
            parse=output,
            help="Output: a .onnx file for ONNX, a .pt2 file for torch.export, or `NAME/` for a folder of transformers.",
        )
    )
    with_preprocess: bool = flag(
        Setting(
            "Include image preprocessing: the model takes uint8 pixels (B, height, width, channels) of any size.",
            only_with=TO_FILE,
        )
    )
    quantize: str | None = setting(
        None,
        "Quantize weights and activations of ONNX to 8 bits and measure the effect on `--data`.",
        choices=QUANTIZED,
        metavar="int8",
        needs=MEASURED_ON,
        only_with=Constraint("form", (ONNX,), option="out", why=f"quantization needs {ONNX}"),
    )
    data: str | None = setting(
        None,
        f"Also compare and measure the exported model on labelled data.{shared.DATA_DETAILS}",
        metavar=shared.DATA_METAVAR,
        panel=shared.CHECKS,
        only_with=TO_FILE,
        role=Role.DATA,
    )
    ood: str | None = setting(
        None,
        f"OOD data to measure AUROC on; also {shared.UNLABELLED_SOURCES}.",
        metavar=shared.DATA_METAVAR,
        panel=shared.CHECKS,
        needs=MEASURED_ON,
        role=Role.DATA,
    )
    tolerance: float = setting(
        1e-4,
        "Exit with 5 if outputs differ from the model's by more than X, relative to the largest value if above 1.",
        panel=shared.CHECKS,
        above=0.0,
        finite=True,
        only_with=TO_FILE,
        metavar="X",
    )
    save_report: Path | None = setting(
        None,
        "Write a report of the measurement on `--data`, as `eval` does.",
        metavar="PATH",
        panel=shared.CHECKS,
        check_path=DOCUMENT,
        needs=MEASURED_ON,
        shows_default=False,
        role=Role.OUTPUT,
    )
    batch_size: int = by_default(64, replace(shared.BATCH_SIZE, only_with=TO_FILE))
    num_workers: int | None = by_default(None, replace(shared.NUM_WORKERS, only_with=TO_FILE))
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    arch: str | None = by_default(None, shared.ARCH)
    seed: int = by_default(
        0, replace(shared.SEED, help="Seed of random inputs.", panel=shared.CHECKS, only_with=TO_FILE)
    )
    force: bool = flag(shared.FORCE)
    if_changed: bool = flag(IF_CHANGED_BESIDE)

    @property
    def form(self) -> str:
        """Suffix of the output in lower case; empty for a folder."""
        return "" if is_folder(self.out) else self.out.suffix.lower()

    @property
    def script(self) -> Path:
        """Path of the Python script for running the exported model, for example `model.onnx.py`."""
        return self.out.with_name(f"{self.out.name}.py")

    @override
    def outputs(self) -> tuple[Path, ...]:
        return (self.out, self.script) if self.form else (self.out,)
