"""Options of several stages, with common names and help texts. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.data.reference import BUILT_IN, LABELLED_BUILT_IN, DataRef
from hydractl.errors import UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.terms import LARGEST_TEMPERATURE, POOLINGS, SMALLEST_TEMPERATURE
from hydractl.model_inputs import LARGEST_SIDE
from hydractl.output.publish import DOCUMENT, WEIGHTS, output
from hydractl.prediction.class_names import FORMS, Naming
from hydractl.reporting.report_values import SMALLEST as SMALLEST_DIFFERENCES
from hydractl.runtime import DTYPES
from hydractl.settings import (
    LARGEST_SEED,
    CheckedSettings,
    Option,
    OptionGroup,
    Role,
    Setting,
    details,
    number,
    setting,
    words,
)
from hydractl.training.run_log import TRACKERS

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue


DATA, OOD, CHECKS, IMAGES_PANEL, ZERO_SHOT, MODEL_PANEL, MACHINE, OUTPUT, BUDGET_PANEL = (
    "Data", "OOD scores", "Checks and measurement", "Images", "Zero-shot", "Model", "Machine", "Output",
    "Budget (one of three)",
)  # fmt: skip
"""Panels of options in help texts."""
AUTO = "auto"
"""Value for numbers that the command chooses."""
DATA_METAVAR = "DATA[::K=V,...]"
SKIP_BAD = Setting("Skip unreadable images and report how many; decodes each image twice.", panel=DATA)
DATA_SOURCES = f"{', '.join(LABELLED_BUILT_IN)}, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME"
DATA_DETAILS = details(f"DATA is {DATA_SOURCES}.")
UNLABELLED_SOURCES = ", ".join(name for name in BUILT_IN if name not in LABELLED_BUILT_IN)

MODEL = Setting(
    "A checkpoint, a folder of timm, transformers or OpenCLIP, a Hub id `org/name[@revision]`, `arch:NAME[::K=V,...]` "
    "(random weights), or `-` (standard input).",
    metavar="MODEL",
    positional=True,
    shows_default=False,
    role=Role.MODEL,
)
ARCH = Setting(
    "Architecture of a bare .safetensors file.",
    metavar="NAME[::K=V,...]",
    panel=MODEL_PANEL,
    role=Role.CONTENT,
)
OUT = Setting(
    "Output file, or `-` for standard output.",
    option_names=("-o", "--output", "--out"),
    metavar="PATH",
    shows_default=False,
    role=Role.OUTPUT,
)
OUT_DOCUMENT = replace(OUT, check_path=DOCUMENT)
OUT_MODEL = replace(
    OUT,
    check_path=WEIGHTS,
    help="Output file, an existing folder, a new folder (`NAME/`), or `-` for standard output.",
    parse=output,
)
OUT_MEMBERS = replace(OUT_MODEL, placeholders=("{i}",))


MOST_OUTPUTS = 10_000
"""Maximum number of outputs of a command. Chosen by hand to prevent accidental floods of files; twice the
number has no other effect."""


def numbered(out: Path, count: int) -> tuple[Path, ...]:
    """Return the paths of numbered outputs. `{i}` in the name is replaced by 0, 1, ...

    Raises:
        UsageError: If `count` exceeds `MOST_OUTPUTS`, or the name of several outputs has no `{i}`.
    """
    if count > MOST_OUTPUTS:
        raise UsageError(f"`{out}`: stands for {count} outputs, but the maximum is {MOST_OUTPUTS}")
    if count > 1 and "{i}" not in out.stem:
        raise UsageError(
            f"{count} members need {count} different output names",
            hint="put `{i}` into the name, before its suffix: `-o 'member-{i}.st'`",
        )
    return tuple(out.with_name(out.name.replace("{i}", str(i))) for i in range(count))


FORCE = Setting("Overwrite existing output.", panel=OUTPUT, role=Role.EXECUTION)
FORCE_ANEW = replace(FORCE, help="Overwrite existing output and discard an unfinished run.")
WAIT = Setting(
    "Wait while another command writes the same output, instead of exiting with 6.",
    panel=OUTPUT,
    role=Role.EXECUTION,
)
SEED = Setting("Random seed.", low=0, high=LARGEST_SEED, shows_range=False, metavar="N")
LOG_TO = Setting(
    f"Log figures and options to experiment trackers: {', '.join(TRACKERS)}; may be repeated.",
    metavar="NAME",
    choices=TRACKERS,
    parse=partial(words, "--log-to"),
    repeated=True,
    panel=OUTPUT,
    role=Role.EXECUTION,
)
LOG_DIR = Setting(
    "Folder that tensorboard and wandb write to (default: the output's name with `.logs`).",
    metavar="DIR",
    panel=OUTPUT,
    role=Role.EXECUTION,
    only_with="log_to",
)


DEVICE = Setting(
    "Device: auto, cpu, cuda, cuda:N or mps.",
    metavar="DEVICE",
    suggestions=("auto", "cpu", "cuda", "mps"),
    panel=MACHINE,
    role=Role.EXECUTION,
)
DTYPE = Setting(
    "Data type of the weights: bf16, fp16 or fp32 (default: as stored).",
    metavar="DTYPE",
    suggestions=tuple(DTYPES),
    panel=MACHINE,
)
BATCH_SIZE = Setting("Samples per forward pass.", low=1, metavar="N", panel=MACHINE)


def count_or_auto(option: str, text: str, *, of: str, hint: str, digits: int = 9) -> int | str:
    """Parse an integer or `auto`.

    Args:
        option: Name of the option, for messages.
        text: Value of the option.
        of: Unit of the number, for messages.
        hint: Hint for other values.
        digits: Maximum number of digits.

    Raises:
        UsageError: If the text is neither.
    """
    if text == AUTO:
        return AUTO
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise UsageError(f"`{option} {text}`: must be a number of {of}, or `{AUTO}`", hint=hint)
    return int(text)


def parse_workers(text: str) -> int | None:
    """Parse a number of worker processes. Return None for `auto`.

    Raises:
        UsageError: If the text is neither.
    """
    count = count_or_auto(
        "--num-workers", text, of="processes", hint="give 0 to decode in threads of this process", digits=4
    )
    return None if count == AUTO else int(count)


NUM_WORKERS = Setting(
    "Processes that decode and augment images; 0 uses threads. Default: auto.",
    parse=parse_workers,
    low=0,
    metavar="N|auto",
    panel=MACHINE,
    shows_default=False,
    role=Role.EXECUTION,
)
TRAIN = Setting(
    "Labelled training data to fit feature-based OOD scores on, for each model.",
    parse=DataRef.parse,
    metavar=DATA_METAVAR,
    shows_default=False,
    role=Role.DATA,
)
MAX_LENGTH = Setting(
    "Truncate texts to N tokens (default: the model's maximum).", low=1, metavar="N", panel=DATA
)


def parse_size(text: str) -> tuple[int, int]:
    """Parse height and width of images: `224` or `224x160`.

    Raises:
        UsageError: If the text is neither.
    """
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise UsageError(
            f"`--img-size {text}`: is not an image size",
            hint="for example `224`, or `224x160` (height x width)",
        )
    return int(sides[0]), int(sides[-1])


def _numbers(option: str) -> Callable[[str], tuple[float, ...]]:
    return lambda text: tuple(number(option, word) for word in words(option, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Images(CheckedSettings):
    """Options for the preprocessing of images. None uses the value of the model."""

    img_size: tuple[int, int] | None = setting(
        None,
        "Image size in pixels (default: the model's).",
        parse=parse_size,
        high=LARGEST_SIDE,
        metavar="N|HxW",
        panel=IMAGES_PANEL,
    )
    mean: tuple[float, ...] | None = setting(
        None,
        "Mean of each channel, with white as 1 (default: the model's).",
        parse=_numbers("--mean"),
        low=-1e6,
        high=1e6,
        metavar="X[,Y,Z]",
        panel=IMAGES_PANEL,
    )
    std: tuple[float, ...] | None = setting(
        None,
        "Standard deviation of each channel (default: the model's).",
        parse=_numbers("--std"),
        low=1e-6,
        high=1e6,
        metavar="X[,Y,Z]",
        panel=IMAGES_PANEL,
    )

    def options(self) -> dict[str, OptionValue]:
        """Return the given options by name."""
        options: dict[str, OptionValue] = {"img_size": self.img_size, "mean": self.mean, "std": self.std}
        return {name: value for name, value in options.items() if value is not None}


IMAGES = OptionGroup(lambda options: Images(**options), Option.of(Images))
HEAD_SEED = replace(SEED, help="Seed of a new classifier (default: `--seed`).", panel=MODEL_PANEL)
NUM_CLASSES = Setting("Number of classes (default: that of the data).", low=1, metavar="N", panel=MODEL_PANEL)
POOLING = Setting(
    "Pooling before the classifier of a text model: its family's own, or the mean over all tokens (default: as the model says).",
    choices=POOLINGS,
    panel=MODEL_PANEL,
)
VERIFY = Setting(
    "Check the output on a random batch before writing it.",
    option_names=("--verify/--no-verify",),
    panel=OUTPUT,
)
KEEP_HEADS = Setting(
    "Keep N heads per layer, on average over the model.", low=0, metavar="N", panel=BUDGET_PANEL
)
REMOVE = Setting("Remove R heads in total.", low=0, metavar="R", panel=BUDGET_PANEL)
KEEP_FRACTION = Setting(
    "Keep the fraction F of all heads.", low=0.0, high=1.0, metavar="F", panel=BUDGET_PANEL
)
MAX_NLL_INCREASE = Setting(
    "Largest increase of the NLL on `--val` by a shared trunk, in nats.",
    low=0.0,
    shows_range=False,
    metavar="NATS",
)
SMALL_INCREASE = 0.01
"""Default of `--max-nll-increase`, in nats. Chosen by hand: about the difference between seeds. Twice the number
merges more blocks and costs up to twice the NLL."""
CLASSES = Setting(
    f"Class names of a zero-shot model: {FORMS}.",
    metavar="A,B,...|FILE",
    panel=ZERO_SHOT,
)
TEMPLATE = Setting(
    'Prompt with `{label}` for the class name; give several to average (default: "A photo of a {label}.").',
    metavar="TEXT",
    panel=ZERO_SHOT,
)
NAMING = OptionGroup(
    lambda options: Naming.parse(options.get("classes"), options.get("template")),
    (Option("classes", "str", CLASSES), Option("template", "tuple[str, ...]", TEMPLATE)),
)
"""Classes of a zero-shot model."""


def parse_temperature(text: str) -> DataRef | float:
    """Parse a number or a data reference. A folder named by a number must be written as `./2`.

    Raises:
        UsageError: If the reference is malformed. The range of a number is not checked.
    """
    try:
        return float(text)
    except ValueError:
        return DataRef.parse(text)


TEMPERATURE = Setting(
    "Temperature to divide logits by, or labelled held-out data to fit it on.",
    low=SMALLEST_TEMPERATURE,
    high=LARGEST_TEMPERATURE,
    range_hint="give a number above 0 (1 changes nothing), or labelled held-out data to fit it on",
    shows_range=False,
    parse=parse_temperature,
    metavar="DATA|NUMBER",
    role=Role.DATA,
)


class WithTemperature:
    """Base class of configurations with a `temperature`: a number, data for fitting, or None."""

    __slots__ = ()
    temperature: DataRef | float | None

    @property
    def temperature_data(self) -> DataRef | None:
        """Data for fitting the temperature; None if there are none."""
        return self.temperature if isinstance(self.temperature, DataRef) else None

    @property
    def given_temperature(self) -> float | None:
        """Temperature given as a number; None if there is none."""
        return float(self.temperature) if isinstance(self.temperature, int | float) else None


def budget(default: str = "", keep: Setting = KEEP_HEADS) -> OptionGroup:
    """Return the option group for a budget: `--keep-heads`, `--remove` and `--keep-fraction`.

    Args:
        default: Text after the word "default" in the help, for example `: 2/3`; empty for no default.
        keep: Declaration of `--keep-heads`.
    """
    help_text = f"Keep the fraction F of all heads{f' (default{default})' if default else ''}."
    options = (
        Option("keep_heads", "int", keep),
        Option("remove", "int", REMOVE),
        Option("keep_fraction", "float", replace(KEEP_FRACTION, help=help_text)),
    )
    return OptionGroup(lambda options_given: budget_of(**options_given), options)


def budget_of(
    *, keep_heads: int | None = None, remove: int | None = None, keep_fraction: float | None = None
) -> HeadBudget | None:
    """Return the budget from one of three options, or None if all are None.

    Raises:
        UsageError: If two options are given, or a value is out of range.
    """
    options = {"--keep-heads": keep_heads, "--remove": remove, "--keep-fraction": keep_fraction}
    stated = [f"`{name}`" for name, value in options.items() if value is not None]
    if not stated:
        return None
    if len(stated) > 1:
        raise UsageError(
            f"{' and '.join(stated)} exclude each other",
            hint="give one of `--keep-heads N`, `--remove R`, `--keep-fraction F`",
        )
    if keep_fraction is not None and not 0 < keep_fraction <= 1:
        raise UsageError(
            f"`--keep-fraction {keep_fraction:g}`: the fraction must be above 0 and at most 1",
            hint="`--keep-fraction 0.667` keeps two thirds; `--keep-heads 0` removes all heads",
        )
    return HeadBudget(keep_per_layer=keep_heads, remove=remove, keep_fraction=keep_fraction)


@dataclass(frozen=True, slots=True)
class Smallest:
    """Difference of a metric below which two rows are level."""

    metric: str
    difference: float

    def __str__(self) -> str:
        return f"{self.metric}={self.difference:g}"

    @classmethod
    def parse(cls, text: str) -> Smallest:
        """Parse `METRIC=X`.

        Raises:
            UsageError: If the text has another form, or the verdict lacks the metric.
        """
        name, _, typed = text.partition("=")
        if name not in SMALLEST_DIFFERENCES:
            raise UsageError(
                f"`--smallest {text}`: expected METRIC=X with a metric of the verdict",
                hint=f"metrics: {', '.join(SMALLEST_DIFFERENCES)}; for example `--smallest nll=0.01`",
            )
        return cls(name, number("--smallest", typed))


SMALLEST = Setting(
    "Call rows level in a metric below this difference."
    + details(f"Default: {', '.join(f'{k}={v:g}' for k, v in SMALLEST_DIFFERENCES.items())}."),
    parse=Smallest.parse,
    repeated=True,
    metavar="METRIC=X",
    shows_default=False,
)
