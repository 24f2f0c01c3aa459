"""Configuration of `make`, and its stages. Importing this module does not load torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from hydractl.cli.commands.run.plan import StageOptions
from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError, UsageError
from hydractl.messages import did_you_mean_path
from hydractl.output.publish import Folder, is_stream
from hydractl.settings import Role, Setting, by_default, check, flag, required, setting
from hydractl.stages.evaluate.fail_if import risk_text
from hydractl.stages.evaluate.refs import OOD_SETS, NamedData, NamedModels, check_distinct, model_name
from hydractl.stages.importing.config import name_of
from hydractl.stages.shared import settings as shared
from hydractl.stages.shared.command_config import CommandConfig, InputRef

PLAN, HYDRA, MODEL, REPORT, PAGE = "make.toml", "hydra.st", "model.st", "report.json", "report.html"
"""Files in the output folder: the pipeline, the hydra, its copy with a threshold, the report and its page."""
TESTED = "threshold.json"
"""Report of the stage that finds the threshold."""
THRESHOLD = "threshold"
"""Name of the last stage, which fails if no threshold satisfies the risk."""
ENSEMBLE = "ensemble"
"""Name of the ensemble's row."""
FROM_SCRIPTS = (".pth", ".pt", ".ckpt", ".bin", ".tar", ".pkl")
"""File name suffixes of weights that `import` must convert first."""
_PLAIN = re.compile(r"[\w-]+")
_OTHER_SIGNS = re.compile(r"[^\w.+ -]+")
"""Characters that names of models do not contain: they have a meaning in options or paths."""


def _data(help_text: str) -> Setting:
    return Setting(
        help_text, parse=DataRef.parse, metavar=shared.DATA_METAVAR, shows_default=False, role=Role.DATA
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeConfig(CommandConfig):
    """From which checkpoints, on which data, and where to."""

    COMMAND: ClassVar[str] = "make"

    models: tuple[str, ...] = required(
        Setting(
            "Two or more models of one architecture and the same classes: checkpoints, folders, Hub ids, or weights that a "
            "training script saved. NAME is the name in tables (default: from the path).",
            positional=True,
            metavar="[NAME=]MODEL...",
            shows_default=False,
        )
    )
    val: DataRef = required(
        _data(
            "Labelled held-out data: one half fits trunk, temperature and OOD score, the other the threshold."
        )
    )
    test: DataRef = required(_data("Labelled test data, for the table."))
    train: DataRef | None = by_default(
        None, _data("Labelled training data to fit the OOD score on (default: use a score of logits).")
    )
    near: tuple[NamedData, ...] = by_default((), OOD_SETS)
    far: tuple[NamedData, ...] = by_default((), replace(OOD_SETS, help="Far OOD data."))
    risk: float = setting(
        0.05,
        "Largest allowed fraction of errors among accepted inputs.",
        above=0.0,
        below=1.0,
        metavar="R",
    )
    max_loss: float = setting(
        0.01,
        "Highest cost of a shared trunk on `--val`, in nats of NLL.",
        low=0.0,
        shows_range=False,
        metavar="NATS",
    )
    arch: str | None = by_default(
        None,
        replace(shared.ARCH, help="Architecture of checkpoints that do not record it, as in `import`."),
    )
    labels: str | None = setting(
        None,
        "Class names of checkpoints that do not record them, as in `import`.",
        metavar="PATH",
        role=Role.CONTENT,
    )
    ema: bool = flag(
        Setting(
            "Import the exponential moving average of the weights that a training script saved, as in `import`."
        )
    )
    out: Path = required(
        replace(
            shared.OUT,
            help=f"Output folder for {HYDRA}, {MODEL}, {REPORT}, {PAGE} and {PLAN}.",
            parse=Folder,
            metavar="DIR",
        )
    )
    device: str = by_default("auto", shared.DEVICE)
    keep: Path | None = by_default(
        None,
        replace(
            shared.OUT,
            help=f"Where to save the pipeline, with `--dry-run` too (default: {PLAN} in DIR).",
            option_names=("--keep",),
            metavar="FILE",
        ),
    )
    dry_run: bool = flag(Setting("Print the commands and run none."))
    force: bool = flag(replace(shared.FORCE, help="Overwrite a different pipeline."))

    def __post_init__(self) -> None:
        check(self)
        if self.keep is not None and is_stream(self.keep):
            raise UsageError(f"`--keep {self.keep}`: must be a file", hint="`--dry-run` prints the commands")
        for option in ("arch", "labels", "ema"):
            if getattr(self, option) and not any(from_script(model) for _, model in self.named_models):
                raise UsageError(
                    f"`--{option}` has no effect: no model is a file of a training script ({', '.join(FROM_SCRIPTS)})",
                    hint="leave it out, or give such files",
                )
        names = [name for name, _ in self.named_models]
        check_distinct([*names, Path(HYDRA).stem, ENSEMBLE], kind="rows", option="hydractl make")

    @property
    def named_models(self) -> tuple[tuple[str, str], ...]:
        """Name in the table and reference of each model. Names that are not typed are derived from paths."""
        pairs = [_split_name(text) for text in self.models]
        derived = iter(_derived_names([model for name, model in pairs if not name]))
        return tuple((name or next(derived), model) for name, model in pairs)

    @property
    @override
    def further_inputs(self) -> tuple[InputRef, ...]:
        return tuple(InputRef(Role.MODEL, model) for _, model in self.named_models if not from_script(model))

    def stages(self) -> Iterator[StageOptions]:
        """Yield the stages that make the hydra, its table, its page and its threshold.

        Raises:
            CheckpointError: If weights of a training script do not exist.
            UsageError: If there is only one model, or a list of models cannot contain a path.
        """
        if len(self.models) < 2:
            raise UsageError(
                "a hydra needs at least two models",
                hint=(
                    "make members of one model first, with `hydractl prune` or `hydractl finetune`: "
                    "see docs/one-model.md"
                ),
            )
        fitting, testing = self.halves(self.val)
        models = []
        for number, (name, model) in enumerate(self.named_models, start=1):
            models.append(self._path(f"imported/{name}.st") if from_script(model) else model)
            if from_script(model) and not Path(model).is_file():
                raise CheckpointError(
                    f"{model}: no such file", hint=did_you_mean_path(model) or "check the path"
                )
            if NamedModels.parse(f"{name}={models[-1]}").models != (models[-1],):
                raise UsageError(
                    f"`{models[-1]}`: a comma separates models, so a path cannot contain one",
                    hint="rename the folder, or link it: `ln -s FOLDER NAME`",
                )
            if from_script(model):
                yield {
                    "name": f"import-{name}" if _PLAIN.fullmatch(name) else f"import-model-{number}",
                    "command": "import",
                    "sources": [model],
                    **self._options(arch=self.arch, labels=self.labels),
                    "ema": self.ema,
                    "out": models[-1],
                }
        on = self._options(device=None if self.device == "auto" else self.device)
        scored = {} if self.train is None else {"fit": str(self.train), "val": fitting}
        yield {
            "name": "fuse",
            "command": "fuse",
            "models": models,
            "merge-trunk": "auto",
            "max-loss": self.max_loss,
            "force-merge": True,
            "data": fitting,
            "temperature": fitting,
            **scored,
            **on,
            "out": self._path(HYDRA),
        }
        yield {
            "name": "table",
            "command": "eval",
            "model": self._path(HYDRA),
            "data": str(self.test),
            "near": [f"{ood_set.name}={ood_set.ref}" for ood_set in self.near],
            "far": [f"{ood_set.name}={ood_set.ref}" for ood_set in self.far],
            "compare": [
                f"{ENSEMBLE}={','.join(models)}",
                *(f"{n}={m}" for (n, _), m in zip(self.named_models, models, strict=True)),
            ],
            "temperature": fitting,
            **(scored if self.near or self.far else {}),
            **on,
            "out": self._path(REPORT),
        }
        yield {"name": "page", "command": "report", "files": [self._path(REPORT)], "out": self._path(PAGE)}
        yield {
            "name": THRESHOLD,
            "command": "eval",
            "model": self._path(HYDRA),
            "data": testing,
            "threshold-for": str(risk_text(self.risk)),
            "latency": False,
            "bootstrap": 0,
            **on,
            "store": self._path(MODEL),
            "out": self._path(TESTED),
        }

    @staticmethod
    def halves(ref: DataRef) -> tuple[str, str]:
        """Return the two halves of a data set, or of a part of one."""
        number, parts = ref.part_of or (1, 1)
        first, second = (str(replace(ref, part=f"{k}/{2 * parts}")) for k in (2 * number - 1, 2 * number))
        return first, second

    def _path(self, name: str) -> str:
        return str(self.out / name)

    @staticmethod
    def _options(**options: str | None) -> StageOptions:
        return {name: value for name, value in options.items() if value is not None}


def _split_name(text: str) -> tuple[str, str]:
    """Split `NAME=MODEL`; the name is empty if there is none, or if the whole text is a path.

    Raises:
        UsageError: If the name is not valid.
    """
    name, equals, model = text.partition("=")
    if not equals or {*name} & {"/", ":"} or Path(text).exists():
        return "", text
    if not name or name != _valid_name(name) or not model:
        raise UsageError(
            f"`{text}`: expected NAME=MODEL; a name has letters, digits, spaces and `_ . + -`",
            hint=f"for example `{_valid_name(name) or 'seed-0'}={model or 'MODEL'}`",
        )
    return name, model


def _valid_name(text: str) -> str:
    return _OTHER_SIGNS.sub("-", text).strip(" .-")


def _derived_names(models: Sequence[str]) -> list[str]:
    """Return a name for each model: the parts of its path that differ between models, as few as make names distinct.

    Parts are compared from the last one backwards, so that `run1/model_best.pth.tar` and `run2/model_best.pth.tar` are
    `run1` and `run2`.
    """
    paths = [Path(os.path.abspath(model)) for model in models]  # noqa: PTH100 - `resolve` would follow links
    parts = [
        [name_of(path.name) if from_script(path.name) else model_name(str(path)), *path.parts[-2::-1]]
        for path in paths
    ]
    names = [""] * len(models)
    for level in zip_longest(*parts, fillvalue=""):
        level_parts = [*map(_valid_name, level)]
        if len({*level_parts}) > 1:
            names = [f"{part}-{name}".strip("-") for part, name in zip(level_parts, names, strict=True)]
        if len({name.casefold() for name in names}) == len(models):
            break
    return [name or _valid_name(path[0]) or "model" for name, path in zip(names, parts, strict=True)]


def from_script(model: str) -> bool:
    """Return whether `import` must convert a model first, by the suffix of its file."""
    return model.lower().endswith(FROM_SCRIPTS)
