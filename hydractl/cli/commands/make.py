"""`hydractl make`: a report and a model with a threshold, from one trained model or a hydra."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from hydractl import progress
from hydractl.cli.command import command
from hydractl.cli.commands.run import StageOptions, read_back, run_plan, written
from hydractl.cli.make_results import (
    CHOICE,
    HYDRA,
    MODEL,
    PAGE,
    REPORT,
    SINGLE,
    TESTED,
    choice,
    no_threshold,
    show,
)
from hydractl.cli.output import Terminal, written_out
from hydractl.cli.pipeline import literal, naming_options
from hydractl.data.reference import KEYS, DataRef
from hydractl.errors import CheckpointError, DataError, UsageError
from hydractl.evaluation.options import (
    KEEP_KNOWN,
    OOD_SETS,
    NamedData,
    NamedModels,
    check_distinct,
    model_name,
    risk_text,
)
from hydractl.messages import did_you_mean_path, duration_text, quoted
from hydractl.output.publish import Folder, is_stream
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.progress import SILENT, reporting
from hydractl.provenance.command_config import CommandConfig, InputRef, open_readings
from hydractl.settings import Constraint, Role, Setting, by_default, check, flag, number, required, setting
from hydractl.stages import options as shared
from hydractl.stages.importing.config import name_of
from hydractl.tasks import SINGLE_LABEL
from hydractl.training.recipe import RECIPES, Recipe, parse_rates

if TYPE_CHECKING:
    import numpy as np

    from hydractl.manifest.header import Header


PLAN = "make.toml"
CALIBRATED = "calibrated.st"
"""Copy of a single model with temperature and OOD score."""
NAMED = "named.st"
"""Copy of a single zero-shot model with class names."""
THRESHOLD = "threshold"
"""Name of the stage that fits both tests. The stage fails if no threshold satisfies the risk."""
ENSEMBLE = "ensemble"
"""Name of the row of the ensemble."""
TUNED, PRUNED = "tuned", "pruned"
MEMBERS = 3
"""Number of members that `--hydra` makes, as in the paper."""
FROM_SCRIPTS = (".pth", ".pt", ".ckpt", ".bin", ".tar", ".pkl")
"""File name suffixes of weights that `import` must convert first."""
_PLAIN = re.compile(r"[\w-]+")
_OTHER_SIGNS = re.compile(r"[^\w.+ -]+")
"""Characters not permitted in names of models, because they have a meaning in options or paths."""


FOR_HYDRA = Constraint("hydra", hint=f"add `--hydra {TUNED}`, or leave the option out")
"""Constraint of options for the training of members."""
NO_TEST = "none"
"""Value that leaves out a test."""


def _share_or_none(option: str) -> Callable[[str], float | None]:
    return lambda text: None if text == NO_TEST else number(option, text)


def _data(help_text: str) -> Setting:
    return Setting(
        help_text, parse=DataRef.parse, metavar=shared.DATA_METAVAR, shows_default=False, role=Role.DATA
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeConfig(CommandConfig):
    """Options of `make`: checkpoints, data and output."""

    COMMAND: ClassVar[str] = "make"
    COMMON = (
        *("val", "test", "train", "near", "far", "risk", "keep_known", "hydra", "classes", "out", "dry_run"),
        "force",
    )

    models: tuple[str, ...] = required(
        Setting(
            "Models with the same architecture and classes: checkpoints, folders, Hub ids, or weights of training scripts. "
            "NAME is used in tables (default: from the path).",
            positional=True,
            metavar="[NAME=]MODEL...",
            shows_default=False,
        )
    )
    val: DataRef = required(
        _data("Labelled held-out data: one half fits temperature, OOD score and trunk, the other both tests.")
    )
    test: DataRef = required(_data("Labelled test data, for the table."))
    train: DataRef | None = by_default(
        None, _data("Labelled training data to fit the OOD score on (default: use a score of logits).")
    )
    near: tuple[NamedData, ...] = by_default((), OOD_SETS)
    far: tuple[NamedData, ...] = by_default((), replace(OOD_SETS, help="Far OOD data."))
    keep_known: float | None = by_default(
        0.95,
        replace(
            KEEP_KNOWN,
            help="Hold back inputs with a high OOD score as `unknown`, but keep at least this share of known inputs; "
            f"`{NO_TEST}` for no such test.",
            parse=_share_or_none("--keep-known"),
            metavar=f"SHARE|{NO_TEST}",
            panel=None,
        ),
    )
    risk: float | None = setting(
        0.05,
        f"Largest allowed fraction of errors among accepted inputs; other inputs are `unsure`. `{NO_TEST}` for no such test.",
        above=0.0,
        below=1.0,
        parse=_share_or_none("--risk"),
        metavar=f"R|{NO_TEST}",
        needs=Constraint(
            "keep_known",
            for_values=(None,),
            message=f"`--risk {NO_TEST}` with `--keep-known {NO_TEST}` leaves no test",
            hint="leave one of them out",
        ),
    )
    hydra: str | None = setting(
        None,
        f"Make a hydra of one MODEL: `{TUNED}` trains {MEMBERS} copies on `--train`; `{PRUNED}` removes a third of the heads first.",
        choices=(TUNED, PRUNED),
        only_with=Constraint(
            lambda config: len(config.models) == 1,
            message="`--hydra` has no effect: several models are the members of the hydra",
            hint="leave it out, or give a single model",
        ),
    )
    epochs: int | None = setting(
        None, "Epochs of `--hydra` (default: by type of model).", low=1, metavar="N", only_with=FOR_HYDRA
    )
    lr: tuple[float, ...] = setting(
        (),
        "Learning rate of `--hydra`; of several, the best on `--val` (default: by type of model).",
        above=0.0,
        parse=parse_rates,
        metavar="X[,Y,...]",
        only_with=FOR_HYDRA,
    )
    pick: str | None = setting(
        None,
        f"Row of the table for {MODEL} (default: hydra; with `--hydra`, the cheapest row that is not worse on `--val`).",
        metavar="ROW",
        only_with=Constraint(
            lambda config: config.fuses,
            message="`--pick` has no effect, because the table has a single row",
            hint="leave it out, or add `--hydra tuned`",
        ),
    )
    smallest: tuple[shared.Smallest, ...] = by_default((), shared.SMALLEST)
    max_nll_increase: float = by_default(
        shared.SMALL_INCREASE,
        replace(
            shared.MAX_NLL_INCREASE,
            only_with=Constraint(
                lambda config: config.fuses and config.hydra != PRUNED,
                message="`--max-nll-increase` has no effect: no trunk is merged",
                hint="leave it out, or give several models",
            ),
        ),
    )
    arch: str | None = by_default(
        None,
        replace(shared.ARCH, help="Architecture, if weights of a training script lack it; see `import`."),
    )
    labels: str | None = setting(
        None,
        "Class names, if weights of a training script lack them; see `import`.",
        metavar="PATH",
        role=Role.CONTENT,
    )
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    ema: bool = flag(Setting("Import the exponential moving average of the weights; see `import`."))
    out: Path = required(
        replace(
            shared.OUT,
            help=f"Output folder for {MODEL}, {REPORT}, {PAGE} and {PLAN}.",
            parse=Folder,
            metavar="DIR",
        )
    )
    device: str = by_default("auto", shared.DEVICE)
    save_pipeline: Path | None = by_default(
        None,
        replace(
            shared.OUT,
            help=f"File for the pipeline, also written with `--dry-run` (default: {PLAN} in DIR).",
            option_names=("--save-pipeline",),
            metavar="FILE",
        ),
    )
    dry_run: bool = flag(Setting("Print the commands without running them."))
    force: bool = flag(replace(shared.FORCE, help="Overwrite a different pipeline."))

    def __post_init__(self) -> None:
        check(self)
        if self.save_pipeline is not None and is_stream(self.save_pipeline):
            raise UsageError(
                f"`--save-pipeline {self.save_pipeline}`: must be a file",
                hint="`--dry-run` prints the commands",
            )
        for option in ("arch", "labels", "ema"):
            if getattr(self, option) and not any(from_script(model) for _, model in self.named_models):
                raise UsageError(
                    f"`--{option}` has no effect: no model is a file of a training script ({', '.join(FROM_SCRIPTS)})",
                    hint="leave it out, or give such files",
                )
        names = [name for name, _ in self.named_models]
        if len(names) > 1:
            check_distinct([*names, Path(HYDRA).stem, ENSEMBLE], kind="rows", option="hydractl make")
        elif typed_name := _split_name(self.models[0])[0]:
            raise UsageError(
                f"`{self.models[0]}`: the name `{typed_name}` has no effect, because the table has a single row",
                hint=f"give `{self.named_models[0][1]}`",
            )

        if self.hydra and from_script(self.models[0]):
            raise UsageError(
                f"`--hydra {self.hydra}`: {self.models[0]} has to be imported first",
                hint=f"`hydractl import {shlex.quote(self.models[0])} -o model.st`, then `hydractl make model.st`",
            )
        if self.pick not in {None, *self.picks}:
            raise UsageError(
                f"`--pick {self.pick}`: no row that is one model has this name",
                hint=f"choose from {', '.join(self.picks)}",
            )

    @property
    def fuses(self) -> bool:
        """Whether the first row is a hydra."""
        return len(self.models) > 1 or self.hydra is not None

    @property
    def picks(self) -> tuple[str, ...]:
        """Names of the rows that can be `model.st`."""
        others = [SINGLE] if self.hydra else [name for name, _ in self.named_models]
        return (Path(HYDRA).stem, *others) if self.fuses else tuple(others)

    @property
    def chooses(self) -> bool:
        """Whether the row of `model.st` is chosen on the fitting half of `--val`."""
        return self.hydra is not None and self.pick is None

    @property
    def named_models(self) -> tuple[tuple[str, str], ...]:
        """Name in the table and reference of each model. Names not typed are derived from paths."""
        pairs = [_split_name(text) for text in self.models]
        derived = iter(_derived_names([model for name, model in pairs if not name]))
        return tuple((name or next(derived), model) for name, model in pairs)

    @property
    @override
    def further_inputs(self) -> tuple[InputRef, ...]:
        return tuple(InputRef(Role.MODEL, model) for _, model in self.named_models if not from_script(model))

    @property
    def candidates(self) -> tuple[str, ...]:
        """Rows that the last stage of the pipeline may store as `model.st`: one, or all rows before the choice."""
        return self.picks if self.chooses else (self.pick or self.picks[0],)

    def stages(self, header: Header | None, *, has_one_question: bool = True) -> Iterator[StageOptions]:
        """Yield the pipeline stages that import, train and fuse models, and make table, tests and page.

        A single model stays unchanged. The table measures the model with fitted temperature and OOD score.
        `calibrated.st` stores both.

        Args:
            header: Header of the first model; None for weights of a training script.
            has_one_question: Whether each input has a single label, so OOD scores are fitted on `--train`, and
                the page shows example answers.

        Yields:
            All stages; the last ones fit the tests and write the page, two stages for each of `candidates`.

        Raises:
            CheckpointError: If weights of a training script do not exist.
            UsageError: If a path contains a comma, the separator of lists of models, or if members cannot be
                made of the model.
        """
        fitting, testing = self.halves(self.val)
        models = []
        for place, (name, model) in enumerate(self.named_models, start=1):
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
                    "name": f"import-{name}" if _PLAIN.fullmatch(name) else f"import-model-{place}",
                    "command": "import",
                    "sources": [model],
                    **self._options(arch=self.arch, labels=self.labels),
                    "ema": self.ema,
                    "out": models[-1],
                }
        on = self._options(device=None if self.device == "auto" else self.device)
        scored = {"train": str(self.train), "val": fitting} if self.train and has_one_question else {}
        rows = dict(zip([SINGLE] if self.hydra else [n for n, _ in self.named_models], models, strict=True))
        base, names = models[0], naming_options(self.naming)
        if names and len(models) == 1:
            rows = dict.fromkeys(rows, self._path(NAMED))
            yield {"name": "classes", "command": "fuse", "models": models, **names, "out": self._path(NAMED)}
        if self.hydra and header is not None:
            members = [self._path(f"{self.hydra}-{i}.st") for i in range(MEMBERS)]
            yield from self._member_stages(base, header, fitting, {**on, **names})
        else:
            members = models
        merging: StageOptions = {"val": fitting, "max-nll-increase": self.max_nll_increase}
        if self.fuses:
            yield {
                "name": "fuse",
                "command": "fuse",
                "models": members,
                **(({"mlp": "merge"} if scored else {}) if self.hydra == PRUNED else merging),
                **names,
                "temperature": fitting,
                **scored,
                **on,
                "out": self._path(HYDRA),
            }
        fitted: StageOptions = {"temperature": fitting, **scored}
        compared = [f"{name}={model}" for name, model in rows.items()]
        if self.chooses:
            yield {
                "name": "choice",
                "command": "eval",
                "model": self._path(HYDRA),
                "data": fitting,
                **(ood_sets := self._ood_sets(0)),
                "compare": compared,
                **(fitted if any(ood_sets.values()) else {"temperature": fitting}),
                "latency": False,
                **on,
                "out": self._path(CHOICE),
            }
        yield {
            "name": "table",
            "command": "eval",
            "model": self._path(HYDRA) if self.fuses else next(iter(rows.values())),
            "data": str(self.test),
            **self._ood_sets(1 if self.chooses else None),
            **(
                {"compare": [f"{ENSEMBLE}={','.join(members)}", *compared]}
                if self.fuses
                else {"--name": self.picks[0], "save-model": self._path(CALIBRATED)}
            ),
            **(fitted if self.near or self.far or not self.fuses else {"temperature": fitting}),
            **on,
            "out": self._path(REPORT),
        }
        calibrated = self._path(HYDRA if self.fuses else CALIBRATED)
        for pick in self.candidates:
            yield {
                "name": THRESHOLD,
                "command": "eval",
                **({"model": rows[pick], **fitted} if self.fuses and pick in rows else {"model": calibrated}),
                "--name": pick,
                "data": testing,
                **self._options(**{"threshold-for": risk_text(self.risk), "keep-known": self.keep_known}),
                "latency": False,
                "bootstrap": 0,
                "keep-examples": int(has_one_question),
                **on,
                "save-model": self._path(MODEL),
                "out": self._path(TESTED),
            }
            yield {
                "name": "page",
                "command": "report",
                "files": [self._path(REPORT)],
                "tests": self._path(TESTED),
                "smallest": [*map(str, self.smallest)],
                "out": self._path(PAGE),
            }

    def _member_stages(
        self, model: str, header: Header, fitting: str, on: StageOptions
    ) -> Iterator[StageOptions]:
        """Yield the stages of `--hydra`: with `pruned` scores and pruned members, and the training of each member.

        Zero-shot models have no training.

        Raises:
            UsageError: If the model cannot be trained, or `--train` is missing.
        """
        trains, recipe = header.prompting is None, self.training(header)
        if self.hydra == TUNED and not trains:
            raise UsageError(
                f"`--hydra {TUNED}`: {model} is a zero-shot model, which `finetune` does not train",
                hint=f"use `--hydra {PRUNED}`, which needs no training",
            )
        if trains and self.train is None:
            raise UsageError(
                f"`--hydra {self.hydra}` trains {MEMBERS} members, but there are no training data",
                hint="add `--train DATA`, or leave out `--hydra`",
            )
        starts = [model] * MEMBERS
        if self.hydra == PRUNED:
            heads = sum(tower.layers * tower.num_heads for tower in header.architecture.towers.values())
            removed = round(heads / 3)
            pool = min(2 * removed, heads - 1)
            member_paths = self._path(f"{PRUNED}-{{i}}.st" if not trains else "start-{i}.st")
            yield {
                "name": "score",
                "command": "score",
                "model": model,
                "method": "circuit",
                "objective": "acc",
                "data": fitting,
                "remove": pool,
                **on,
                "out": self._path("scores.json"),
            }
            yield {
                "name": "prune",
                "command": "prune",
                "model": model,
                "scores": [self._path("scores.json")],
                "strategy": "sample",
                "remove": removed,
                "pool": pool,
                "members": MEMBERS,
                "out": member_paths,
            }
            starts = [member_paths.replace("{i}", str(i)) for i in range(MEMBERS)]
        for i, start in enumerate(starts if trains else ()):
            yield {
                "name": f"tune-{i}",
                "command": "finetune",
                "model": start,
                "train": str(self.train),
                "val": fitting,
                "lr": [f"{lr:g}" for lr in recipe.lr],
                "epochs": int(recipe.epochs or 0),
                "batch-size": recipe.batch_size,
                "seed": i,
                **on,
                "out": self._path(f"{self.hydra}-{i}.st"),
            }

    def training(self, header: Header) -> Recipe:
        """Return the training of a member: of texts by `bert-finetune`, of images by the defaults of `finetune`.

        Only learning rates, epochs and batch size are those of the recipe. Its longest text would change the
        model's own, and the flips of image recipes change the class of some images.
        """
        from hydractl.data.datasets import Content, content_of

        is_text = content_of(header.preprocess) is Content.TEXTS
        recipe = RECIPES["bert-finetune"] if is_text else Recipe()
        epochs = recipe.epochs if self.epochs is None else self.epochs
        return replace(Recipe(), lr=self.lr or recipe.lr, epochs=epochs, batch_size=recipe.batch_size)

    def _ood_sets(self, half: int | None) -> StageOptions:
        """Return the OOD sets as options of `eval`, or a half of each set: 0 for the choice, 1 for the table.

        Generated sets have no halves. The choice omits these sets, so that no test data decide.
        """
        options: StageOptions = {}
        for kind, sets in (("near", self.near), ("far", self.far)):
            refs = {
                s.name: self.halves(s.ref) if "part" in KEYS[s.ref.kind] else ("", str(s.ref)) for s in sets
            }
            options[kind] = [
                f"{s.name}={ref}" for s in sets if (ref := str(s.ref) if half is None else refs[s.name][half])
            ]
        return options

    @staticmethod
    def halves(ref: DataRef) -> tuple[str, str]:
        """Return the two halves of a data set, or of a part of a data set."""
        number, parts = ref.part_numbers or (1, 1)
        first, second = (str(replace(ref, part=f"{k}/{2 * parts}")) for k in (2 * number - 1, 2 * number))
        return first, second

    def _path(self, name: str) -> str:
        return str(self.out / name)

    @staticmethod
    def _options(**options: str | float | None) -> StageOptions:
        return {name: value for name, value in options.items() if value is not None}


def _split_name(text: str) -> tuple[str, str]:
    """Split `NAME=MODEL`. The name is empty if it is missing, or if the whole text is a path.

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
    """Return a unique name for each model, from the last parts of the path that differ between models.

    For example, `run1/model_best.pth.tar` and `run2/model_best.pth.tar` have the names `run1` and `run2`.
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


def _headers(config: MakeConfig) -> list[Header]:
    """Return the headers of all models but weights of training scripts."""
    from hydractl.families.open_model import open_model

    return [open_model(model).header for _, model in config.named_models if not from_script(model)]


def check_held_out(config: MakeConfig, headers: Sequence[Header]) -> None:
    """Raise if `--val` contains samples that trained or selected a model.

    The threshold would have no guarantee.

    These samples are known from `--train` and from the provenance of checkpoints. Files of earlier releases
    have no record of samples.

    Raises:
        DataError: If the samples overlap.
    """
    import numpy as np

    from hydractl.data.datasets import content_of, samples_in
    from hydractl.manifest.document import merge_samples, unpack_digests

    if not config.naming.names and any(header.prompting and not header.labels for header in headers):
        raise UsageError(
            "the zero-shot model stores no class names",
            hint="add `--classes A,B,C` or `--classes names.txt`, and `--template` for other prompts",
        )
    read_by_models = [content_of(header.preprocess) for header in headers]

    def samples(ref: DataRef) -> np.ndarray:
        items = min(open_readings(ref, labelled=True), key=lambda items: items.content not in read_by_models)
        return samples_in(map(items.item_digest, range(len(items))))

    used = [unpack_digests(text) for text in merge_samples(*(header.samples for header in headers)).values()]
    used += [] if config.train is None else [samples(config.train)]
    val_samples = samples(config.val) if used else ()
    if used and (overlap := np.isin(val_samples, np.concatenate(used))).any():
        (first, second), tests = config.halves(config.val), config.halves(config.test)
        replaced = f"replace `--val` and `--test` by `--val {shlex.quote(tests[0])} --test {shlex.quote(tests[1])}`, or "
        raise DataError(
            f"{overlap.sum()} of {len(val_samples)} samples of `--val {config.val}` were used to train or select the models, so the "
            "guarantee of the threshold does not hold",
            hint=replaced
            * (not np.isin(samples(config.test), np.concatenate(used)).any())
            + "give other labelled data as `--val`; or train the models again with "
            f"`--val {shlex.quote(first)}`, and give `make` `--val {shlex.quote(second)}`",
        )


def missing_classes(config: MakeConfig) -> list[str]:
    """Return the classes of `--test` without samples in `--val`; empty for data with several labels per input.

    Raises:
        DataError: If `--val` or `--test` has samples of a single class, or both have no class in common.
    """
    from hydractl.data.labels import required_labels

    classes: dict[str, set[str]] = {}
    for option, ref in (("val", config.val), ("test", config.test)):
        items = open_readings(ref, labelled=True)[0]
        if items.task is not SINGLE_LABEL or not items.labels:
            return []
        classes[option] = {items.class_names[label] for label in required_labels(items, f"--{option}")}
        if len(classes[option]) == 1:
            raise DataError(
                f"`--{option} {ref}`: all samples have the class {quoted(classes[option])}",
                hint="give labelled samples of every class",
            )
    if not classes["test"] & classes["val"]:
        raise DataError(
            f"`--val {config.val}` and `--test {config.test}` have no class in common",
            hint="give labelled samples of every class",
        )
    return sorted(classes["test"] - classes["val"])


@command("hydractl.cli.commands.make:MakeConfig")
def make(config: MakeConfig, terminal: Terminal) -> None:
    r"""Make a model that holds back answers from one model or several.

    Imports weights of training scripts, fits temperature and OOD score on `--val`, measures the model on
    `--test`, fits the tests for `unknown` and `unsure` inputs, and writes a page. Nothing is trained
    without `--hydra`. Several models are fused into a hydra with the longest trunk that `--val` permits; the
    table then has rows for the ensemble and for each model too. `--hydra` makes the hydra of one model, and
    model.st is the hydra or the single model, by NLL and AUROC on half of `--val`. The same command, or
    `hydractl run DIR/make.toml`, resumes an interrupted run. `--save-pipeline FILE` with `--dry-run` saves the pipeline
    for editing.

    Examples:
      hydractl make model/ --train train/ --val val/ --test test/ -o out/
      hydractl make m.st --hydra tuned --train train/ --val val/ --test test/ -o out
      hydractl make a.st b.st c.st --train train/ --val val/ --test test/ -o out/
      hydractl make run1/model_best.pth.tar run2/model_best.pth.tar --ema \
        --val val/ --test test/ --near birds=birds/ --far noise -o out/
      hydractl make first=a.st second=b.st --val val/ --test test/ --risk 0.1 \
        -o out/ --dry-run
    """
    headers = _headers(config)
    first_header = next(iter(headers), None)
    if not config.dry_run:
        check_held_out(config, headers)
        if missing := missing_classes(config):
            terminal.progress().warn(
                f"`--val {config.val}` has no samples of {quoted(missing, most=4)}, so temperature, choice and threshold "
                "do not cover these classes; add samples of every class of `--test`"
            )
    plan = config.save_pipeline or config.out / PLAN
    labels = _other_labels(config, first_header)
    if labels and config.train and not config.hydra:
        terminal.progress().warn(
            f"`--train` is ignored: the models answer {labels}, and only models with one label use it"
        )
    picks = config.candidates
    stages = [
        {k: literal(v) for k, v in s.items()}
        for s in config.stages(first_header, has_one_question=not labels)
    ]
    common, last = stages[: -2 * len(picks)], stages[-2 * len(picks) :]
    texts = {
        p: written([*common, *pair], command="make")
        for p, *pair in zip(picks, last[::2], last[1::2], strict=True)
    }
    first = written(common, command="make") if config.chooses else texts[picks[0]]
    # With a choice, the file has one of several texts after an earlier run.
    present = plan.read_bytes() if plan.is_file() else b""
    current_text = next((text for text in (first, *texts.values()) if text.encode() == present), first)
    force = config.force or (config.dry_run and config.save_pipeline is None)
    read_back(plan, current_text, force=force)
    results: list[dict[str, object]] = []

    def run(text: str, *, last: bool) -> None:
        run_plan(
            plan,
            text,
            read_back(plan, text, force=True)[-2 if last else None :],
            terminal,
            dry_run=config.dry_run,
            keep=config.save_pipeline is not None,
            brief=not terminal.quiet,
            may_fail=(THRESHOLD,),
            results=results,
        )

    if config.hydra and first_header is not None:
        with reporting(terminal.progress()):
            _prepare_training(config, first_header, estimates=not (terminal.as_json or terminal.quiet))
    run(first, last=False)
    if config.chooses and not config.dry_run:
        run(texts[choice(config.out)], last=True)
    if not (config.dry_run or terminal.as_json or terminal.quiet):
        with written_out():
            show(
                config.out,
                models=len(config.models),
                pick=config.pick,
                smallest={s.metric: s.difference for s in config.smallest},
                makes_members=config.hydra is not None,
            )
    elif terminal.quiet and not config.dry_run:
        from hydractl.families.open_model import open_model

        for text in no_threshold(open_model(str(config.out / MODEL)).header, config.out):
            terminal.progress().warn(text)


def _prepare_training(config: MakeConfig, header: Header, *, estimates: bool) -> None:
    """Check the classes of `--train`, and print the steps of the training and the time from a few timed steps.

    There is no training for zero-shot models, and if the hydra exists.

    Raises:
        DataError: If `--train` has another number of classes than the model.
        HydraError: If the model cannot be trained on the data.
    """
    from hydractl.cli.timing import MORE_STEPS, step_and_start, training_seconds, training_work
    from hydractl.data.datasets import content_of
    from hydractl.data.open_dataset import open_data

    ((_, model),), train = config.named_models, config.train
    if train is None or header.prompting is not None or (config.out / HYDRA).exists():
        return
    recipe, fitting = config.training(header), DataRef.parse(config.halves(config.val)[0])
    trained_on, validated_on = (
        open_data(ref, content=content_of(header.preprocess), labelled=True) for ref in (train, fitting)
    )
    names, classes = trained_on.class_names, max(2, header.architecture.num_classes)
    if trained_on.task is SINGLE_LABEL and len(names) != classes:
        # `finetune` would replace the classifier.
        raise DataError(
            f"`--train {train}`: has {len(names)} classes, but {model} has {classes}",
            hint="give data with the classes of the model, or select them with `::classes=`",
        )
    if not estimates:
        return
    samples, validated = len(trained_on), len(validated_on)
    steps = MEMBERS * len(recipe.lr) * recipe.total_steps(math.ceil(samples / recipe.batch_size))
    progress.step(f"Timing {MORE_STEPS} steps of training {model}")
    with reporting(SILENT):
        step, start = step_and_start(
            lambda count, out: training_seconds(model, train, fitting, recipe, steps=count, out=out)
        )
    seconds = MEMBERS * (start + step * training_work(recipe, samples=samples, validated=validated))
    progress.step(
        f"Training {MEMBERS} members: {steps} steps of {recipe.batch_size} samples, about {duration_text(seconds)}, "
        f"estimated from {step * 1000:.0f} ms per step"
        + ", without the time of `hydractl score`"
        * (config.hydra == PRUNED)
    )


def _other_labels(config: MakeConfig, header: Header | None) -> str:
    """Describe the labels of models with several labels or words per input.

    Empty for models with a single label, and if only the weights could show the task.
    """
    from hydractl.importing.architecture import describe, resolve
    from hydractl.importing.weights import Metadata

    if header is not None:
        architecture = header.architecture
    elif config.arch is None:
        return ""
    else:
        resolved = resolve(config.arch, Metadata(), place="weights.pth", image_options={}, sets_classes=False)
        architecture = describe(resolved).architecture
    return "" if architecture.task.has_one_question else architecture.task.labels
