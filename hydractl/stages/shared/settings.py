"""Settings that several stages have: one spelling, one help text. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.data.reference import BUILT_IN, LABELLED_BUILT_IN, DataRef
from hydractl.errors import UsageError
from hydractl.families.base import POOLINGS
from hydractl.heads.budget import HeadBudget
from hydractl.model_inputs import LARGEST_SIDE
from hydractl.output.paths import DOCUMENT, WEIGHTS, output
from hydractl.parsing import number, words
from hydractl.runtime import DTYPES
from hydractl.settings import LARGEST_SEED, CheckedSettings, Option, OptionGroup, Role, Setting, setting
from hydractl.stages.shared.zero_shot_classes import FORMS, Naming

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

ZERO_SHOT, MODEL_PANEL, MACHINE, BUDGET_PANEL = "Zero-shot", "Model", "Machine", "Budget (one of three)"
AUTO = "auto"
"""What leaves a number to the command."""
DATA_METAVAR = "DATA[::K=V,...]"
SKIP_BAD = Setting("Leave out images that cannot be read, and say how many. Each image is decoded once more.")
DATA_SOURCES = f"{', '.join(LABELLED_BUILT_IN)}, a folder, a .jsonl, .json, .csv, .tsv or .parquet file, .tar shards, hf:org/name, or preset:NAME"
UNLABELLED_SOURCES = ", ".join(name for name in BUILT_IN if name not in LABELLED_BUILT_IN)

MODEL = Setting(
    "A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id "
    "`org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.",
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
    "Output file; `-` is standard output.",
    option_names=("-o", "--output", "--out"),
    metavar="PATH",
    shows_default=False,
    role=Role.OUTPUT,
)
OUT_DOCUMENT = replace(OUT, check_path=DOCUMENT)
OUT_MODEL = replace(
    OUT,
    check_path=WEIGHTS,
    help="Output file, or a folder: one that is there, or a name with a slash at its end. `-` is standard output.",
    parse=output,
)
OUT_MEMBERS = replace(OUT_MODEL, placeholders=("{i}",))


MOST_OUTPUTS = 10_000


def numbered(out: Path, count: int) -> tuple[Path, ...]:
    """Return the names of so many outputs: `{i}` in one name stands for their numbers.

    Raises:
        UsageError: If there are several and it has none, or more than a folder should have.
    """
    if count > MOST_OUTPUTS:
        raise UsageError(f"`{out}`: stands for {count} outputs, at most {MOST_OUTPUTS} are made at once")
    if count > 1 and "{i}" not in out.stem:
        raise UsageError(
            f"{count} members need {count} names",
            hint="put `{i}` into the name, before its ending: `-o 'member-{i}.st'`",
        )
    return tuple(out.with_name(out.name.replace("{i}", str(i))) for i in range(count))


FORCE = Setting("Replace an existing output.", role=Role.EXECUTION)
FORCE_ANEW = replace(
    FORCE, help="Replace an existing output, and start anew where an unfinished run could be gone on with."
)
WAIT = Setting("Wait while another command makes the same output, rather than exit 6.", role=Role.EXECUTION)
IF_CHANGED = Setting(
    "Do nothing where the output is what this command would write: of the same inputs, options and versions. Else replace "
    "what it wrote before.",
    role=Role.EXECUTION,
)
IF_CHANGED_BESIDE = replace(IF_CHANGED, help=f"{IF_CHANGED.help} What made it stands in a file beside it.")
SEED = Setting("Seed of everything random.", low=0, high=LARGEST_SEED, metavar="N")
DEVICE = Setting(
    "auto, cpu, cuda, cuda:N or mps.",
    metavar="DEVICE",
    suggestions=("auto", "cpu", "cuda", "mps"),
    panel=MACHINE,
    role=Role.EXECUTION,
)
DTYPE = Setting(
    "bf16, fp16 or fp32; default: as stored.", metavar="DTYPE", suggestions=tuple(DTYPES), panel=MACHINE
)
BATCH_SIZE = Setting("Samples in one forward pass.", low=1, metavar="N", panel=MACHINE)


def count_or_auto(option: str, text: str, *, of: str, hint: str, digits: int = 9) -> int | str:
    """Read a whole number, or `auto`.

    Args:
        option: Where it was typed.
        text: What was typed.
        of: What is counted, for messages.
        hint: What to type instead of anything else.
        digits: How many it has at most.

    Raises:
        UsageError: If it is neither.
    """
    if text == AUTO:
        return AUTO
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise UsageError(f"`{option} {text}`: must be a number of {of} or `{AUTO}`", hint=hint)
    return int(text)


def parse_workers(text: str) -> int | None:
    """Read a number of worker processes, None for `auto`.

    Raises:
        UsageError: If it is neither.
    """
    count = count_or_auto(
        "--num-workers", text, of="processes", hint="0 decodes in threads of this process", digits=4
    )
    return None if count == AUTO else int(count)


NUM_WORKERS = Setting(
    "Processes that decode and augment images, 0 for threads of this one; the result is the same. `auto` (default) takes some "
    "where images are many and cores too.",
    parse=parse_workers,
    low=0,
    metavar="N|auto",
    panel=MACHINE,
    shows_default=False,
    role=Role.EXECUTION,
)
FIT = Setting(
    "Labelled training data, which OOD scores of features are fitted on, for each model.",
    parse=DataRef.parse,
    metavar=DATA_METAVAR,
    shows_default=False,
    role=Role.DATA,
)
MAX_LENGTH = Setting("Tokens of a text at most; default: as many as the model reads.", low=1, metavar="N")


def parse_size(text: str) -> tuple[int, int]:
    """Read the height and width of images: `224`, or `224x160`.

    Raises:
        UsageError: If it is neither.
    """
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise UsageError(
            f"`--img-size {text}`: is not a size", hint="for example `224`, or `224x160`: height first"
        )
    return int(sides[0]), int(sides[-1])


def _numbers(option: str) -> Callable[[str], tuple[float, ...]]:
    return lambda text: tuple(number(option, word) for word in words(option, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Images(CheckedSettings):
    """What a user says of how images are read; None for what the model says."""

    img_size: tuple[int, int] | None = setting(
        None,
        "Images of another size than the model says.",
        parse=parse_size,
        high=LARGEST_SIDE,
        metavar="N|HxW",
        panel="Images",
    )
    mean: tuple[float, ...] | None = setting(
        None,
        "What is subtracted of each channel, where white is 1; default: as the model says.",
        parse=_numbers("--mean"),
        metavar="X[,Y,Z]",
        panel="Images",
    )
    std: tuple[float, ...] | None = setting(
        None,
        "What it is divided by then; likewise.",
        parse=_numbers("--std"),
        above=0.0,
        metavar="X[,Y,Z]",
        panel="Images",
    )

    def options(self) -> dict[str, OptionValue]:
        """Return what was said, by field."""
        options: dict[str, OptionValue] = {"img_size": self.img_size, "mean": self.mean, "std": self.std}
        return {name: value for name, value in options.items() if value is not None}


IMAGES = OptionGroup(lambda given: Images(**given), Option.of(Images))
HEAD_SEED = replace(SEED, help="Seed of a classifier that is drawn anew (default: --seed).")
NUM_CLASSES = Setting("Classes to tell apart (default: as many as the data have).", low=1, metavar="N")
POOLING = Setting(
    "What the classifier of a text model reads: what its family's does, or the mean over all tokens. Default: as the model or "
    "its folder says.",
    choices=POOLINGS,
)
VERIFY = Setting(
    "Check the result on a seeded random batch before it is published.",
    option_names=("--verify/--no-verify",),
)
KEEP = Setting("Keep N heads a layer, on average over the model.", low=0, metavar="N", panel=BUDGET_PANEL)
REMOVE = Setting("Remove R heads in all.", low=0, metavar="R", panel=BUDGET_PANEL)
KEEP_FRACTION = Setting("Keep this share of all heads.", low=0.0, high=1.0, metavar="F", panel=BUDGET_PANEL)
CLASSES = Setting(
    f"Classes of a zero-shot model: {FORMS}.",
    metavar="A,B,...|FILE",
    panel=ZERO_SHOT,
)
TEMPLATE = Setting(
    'What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."',
    metavar="TEXT",
    panel=ZERO_SHOT,
)
NAMING = OptionGroup(
    lambda given: Naming.parse(given.get("classes"), given.get("template")),
    (Option("classes", "str", CLASSES), Option("template", "tuple[str, ...]", TEMPLATE)),
)
"""Which classes a zero-shot model tells apart."""


def parse_temperature(text: str) -> DataRef | float:
    """Read a number, or DATA to fit one on; a folder named by a number is written `./2`.

    Raises:
        UsageError: If the reference is malformed. Whether the number makes sense is not looked at.
    """
    try:
        return float(text)
    except ValueError:
        return DataRef.parse(text)


TEMPERATURE = Setting(
    "A temperature: the number that logits are divided by, or labelled held-out data to fit it on.",
    low=1e-3,  # beyond, float32 cannot hold what differs
    high=1e3,
    range_hint="1 changes nothing; or name a labelled held-out split to fit it on",
    shows_range=False,
    parse=parse_temperature,
    metavar="DATA|NUMBER",
    role=Role.DATA,
)


class WithTemperature:
    """A base of configurations with a `temperature`: a number, data to fit one on, or none."""

    __slots__ = ()
    temperature: DataRef | float | None

    @property
    def heldout(self) -> DataRef | None:
        """The data that a temperature is fitted on."""
        return self.temperature if isinstance(self.temperature, DataRef) else None

    @property
    def given_temperature(self) -> float | None:
        """The number that logits are divided by as it is."""
        return float(self.temperature) if isinstance(self.temperature, int | float) else None


def budget(default: str = "", keep: Setting = KEEP) -> OptionGroup:
    """Return how one of three options gives a budget.

    Args:
        default: What holds without any, for the help.
        keep: How the first of them is told.
    """
    help_text = f"Keep this share of all heads{f' (default{default})' if default else ''}."
    options = (
        Option("keep", "int", keep),
        Option("remove", "int", REMOVE),
        Option("keep_fraction", "float", replace(KEEP_FRACTION, help=help_text)),
    )
    return OptionGroup(lambda options_given: budget_of(**options_given), options)


def budget_of(
    *, keep: int | None = None, remove: int | None = None, keep_fraction: float | None = None
) -> HeadBudget | None:
    """Return the budget that one of three options gives, or None without any.

    Raises:
        UsageError: If two are given, or one is out of range.
    """
    options = {"--keep": keep, "--remove": remove, "--keep-fraction": keep_fraction}
    stated = [f"`{name}`" for name, value in options.items() if value is not None]
    if not stated:
        return None
    if len(stated) > 1:
        raise UsageError(
            f"{' and '.join(stated)} exclude each other",
            hint="give one of `--keep N`, `--remove R`, `--keep-fraction F`",
        )
    if keep_fraction is not None and not 0 < keep_fraction <= 1:
        raise UsageError(
            f"`--keep-fraction {keep_fraction:g}`: the share must be more than 0 and at most 1",
            hint="`--keep 0` removes all heads; two thirds are `--keep-fraction 0.667`",
        )
    return HeadBudget(keep_per_layer=keep, remove=remove, keep_fraction=keep_fraction)
