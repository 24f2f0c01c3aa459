"""What `make` is told, and the stages that it stands for. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from hydractl.cli.commands.run.plan import StageOptions
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.output.atomic_write import Folder, is_stream
from hydractl.settings import Role, Setting, by_default, check, flag, required, setting
from hydractl.stages.evaluate.fail_if import risk_text
from hydractl.stages.evaluate.refs import OOD_SETS, NamedData, check_distinct
from hydractl.stages.shared import settings as shared
from hydractl.stages.shared.command_config import CommandConfig

PLAN, HYDRA, MODEL, REPORT, PAGE = "make.toml", "hydra.st", "model.st", "report.json", "report.html"
"""Files in the output folder: the pipeline, the hydra, its copy with a threshold, the report and its page."""
THRESHOLD = "threshold"
"""Name of the last stage, which fails if no threshold satisfies the risk."""
ENSEMBLE = "ensemble"
"""Name of the ensemble's row."""
FROM_SCRIPTS = (".pth", ".pt", ".ckpt", ".bin", ".tar", ".pkl")
"""File name suffixes of weights that `import` must convert first."""


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
            "training script saved.",
            positional=True,
            metavar="MODEL...",
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
        for option in ("arch", "labels"):
            if getattr(self, option) is not None and not any(map(from_script, self.models)):
                raise UsageError(
                    f"`--{option}` has no effect: no model is a file of a training script ({', '.join(FROM_SCRIPTS)})",
                    hint="leave it out, or give such files",
                )
        check_distinct([*self.names, Path(HYDRA).stem, ENSEMBLE], kind="models", option="MODEL")

    @property
    def names(self) -> tuple[str, ...]:
        """What the models are called in the table: the last part of what was typed, without its ending."""
        return tuple(Path(model.rstrip("/")).name.partition(".")[0] for model in self.models)

    def stages(self) -> Iterator[StageOptions]:
        """Yield what makes the hydra, its table, its page and its threshold.

        Raises:
            UsageError: If there is but one model.
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
        for name, model in zip(self.names, self.models, strict=True):
            models.append(model)
            if from_script(model):
                yield {
                    "name": f"import-{name}",
                    "command": "import",
                    "sources": [model],
                    **self._options(arch=self.arch, labels=self.labels),
                    "out": self._path(f"{name}.st"),
                }
                models[-1] = self._path(f"{name}.st")
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
            "model": "@fuse",
            "data": str(self.test),
            "near": [f"{ood_set.name}={ood_set.ref}" for ood_set in self.near],
            "far": [f"{ood_set.name}={ood_set.ref}" for ood_set in self.far],
            "compare": [
                f"{ENSEMBLE}={','.join(models)}",
                *(f"{n}={m}" for n, m in zip(self.names, models, strict=True)),
            ],
            "temperature": fitting,
            **(scored if self.near or self.far else {}),
            **on,
            "out": self._path(REPORT),
        }
        yield {"name": "page", "command": "report", "files": ["@table"], "out": self._path(PAGE)}
        yield {
            "name": THRESHOLD,
            "command": "eval",
            "model": "@fuse",
            "data": testing,
            "threshold-for": str(risk_text(self.risk)),
            "latency": False,
            "bootstrap": 0,
            **on,
            "store": self._path(MODEL),
            "out": self._path("threshold.json"),
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


def from_script(model: str) -> bool:
    """Return whether a training script saved a model, so that `import` must convert it first."""
    return model.lower().endswith(FROM_SCRIPTS)
