"""Configuration and stages of `bench`. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from hydractl.cli.commands.run import StageOptions
from hydractl.cli.pipeline import naming_options, text_of
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.evaluation.options import OOD_SETS, ROWS, NamedData, NamedModels, model_name
from hydractl.messages import did_you_mean, listed
from hydractl.output.publish import Folder
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.provenance.command_config import CommandConfig
from hydractl.research.baselines.options import BayesVlmOptions
from hydractl.research.bench.rows import PLANS, SHARED_DEFAULT, TEST, Rival, SharedSettings
from hydractl.settings import (
    Option,
    OptionGroup,
    Role,
    Setting,
    by_default,
    check,
    details,
    flag,
    required,
    setting,
    typed_options,
)
from hydractl.stages import options as shared
from hydractl.stages.finetune.config import RECIPE
from hydractl.training.recipe import Recipe, recipe_of

ALL = "all"
EVERY = tuple(name for name, plan in PLANS.items() if not plan.named)
TABLE, START = "Rows of the table", "Training from scratch"
TRAINING = (RECIPE, *Option.of(Recipe))


def parse_rivals(text: str) -> tuple[str, ...] | None:
    """Parse `--rivals NAME,...` to the names in the given order, or `all` to None.

    Raises:
        UsageError: If a rival is unknown or named twice.
    """
    if text == ALL:
        return None
    names = tuple(text.split(","))
    for name in names:
        if name not in PLANS:
            raise UsageError(
                f"`--rivals {text}`: unknown rival `{name}`",
                hint=did_you_mean(name, PLANS) or f"use {ALL}, or some of {', '.join(PLANS)}",
            )
    if len({*names}) < len(names):
        raise UsageError(f"`--rivals {text}`: repeats a rival")
    return names


def parse_pairs(text: str) -> DataRef:
    """Parse `--pairs`.

    Raises:
        UsageError: If the reference is malformed or names no column of captions.
    """
    ref = DataRef.parse(text)
    try:
        BayesVlmOptions(data=ref)
    except UsageError as error:
        raise UsageError(
            f"`--pairs {text}`: needs the column with the captions",
            hint="add `text=COLUMN`, for example `--pairs pairs.jsonl::text=caption`",
        ) from error
    return ref


def _data(help_text: str) -> Setting:
    return Setting(
        help_text,
        parse=DataRef.parse,
        metavar=shared.DATA_METAVAR,
        shows_default=False,
        role=Role.DATA,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig(CommandConfig):
    """Options of `bench`: a model, its data, the rivals, and the training of the rivals."""

    COMMAND: ClassVar[str] = "bench"
    COMMON = (
        "train",
        "val",
        "test",
        "near",
        "far",
        "compare",
        "rivals",
        "hydra_model",
        "lr",
        "epochs",
        "out",
        "dry_run",
    )

    model: str = required(shared.MODEL)
    train: DataRef = required(_data(f"Labelled training data.{shared.DATA_DETAILS}"))
    val: DataRef = required(_data("Labelled validation data, for training, temperatures and trunks."))
    test: DataRef = required(_data("Labelled test data, for the table."))
    near: tuple[NamedData, ...] = by_default((), OOD_SETS)
    far: tuple[NamedData, ...] = by_default((), replace(OOD_SETS, help="Far OOD data."))
    rivals: tuple[str, ...] | None = setting(
        None,
        f"Names of rivals,{details(', '.join(PLANS))} or `{ALL}` but {', '.join(n for n in PLANS if n not in EVERY)} (default).",
        parse=parse_rivals,
        metavar="NAME,...",
        suggestions=tuple(PLANS),
        panel=TABLE,
    )
    hydra_model: str | None = setting(
        None,
        "Your hydra, as the first row (default: MODEL).",
        metavar="MODEL",
        panel=TABLE,
        role=Role.MODEL,
    )
    compare: tuple[NamedModels, ...] = by_default((), ROWS)
    members: int = setting(3, "Members of each ensemble.", low=2, high=64, metavar="M", panel=TABLE)
    start: str | None = setting(
        None,
        f"Backbone or `arch:NAME` to train {', '.join(n for n, plan in PLANS.items() if plan.starts)} from (default: leave them out).",
        metavar="MODEL",
        panel=START,
    )
    start_epochs: int | None = setting(
        None,
        f"Epochs from `--start` (default: {SHARED_DEFAULT}).",
        low=1,
        metavar="N",
        panel=START,
        only_with="start",
    )
    start_lr: float | None = setting(
        None,
        f"Peak learning rate from `--start` (default: {SHARED_DEFAULT}).",
        above=0.0,
        panel=START,
        only_with="start",
    )
    pairs: DataRef | None = by_default(
        None,
        replace(
            _data(
                f"Captioned images, with `text=COLUMN`, to fit {listed([n for n, p in PLANS.items() if p.compares])} on "
                "(default: leave it out)."
            ),
            panel=TABLE,
            parse=parse_pairs,
        ),
    )
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    recipe: Recipe = by_default(
        Recipe(),
        OptionGroup(lambda texts: recipe_of(texts.pop("recipe", None), texts), TRAINING),
    )
    out: Path = required(
        replace(
            shared.OUT,
            help="Output folder for the plan, checkpoints, report.json and report.html.",
            parse=Folder,
            metavar="DIR",
        )
    )
    dry_run: bool = flag(Setting("Print the commands and how long they would take, and run none."))
    force: bool = flag(replace(shared.FORCE, help="Overwrite a different plan."))

    def __post_init__(self) -> None:
        check(self)
        if any(sign in str(self.out) for sign in ",{}"):
            raise UsageError(
                f"`-o {self.out}`: the folder name must not contain a comma or a brace, because commands use "
                "lists of its files",
                hint="choose another folder",
            )
        if self.pairs is not None and not any(PLANS[name].compares for name in self.rival_names):
            raise UsageError(
                f"`--pairs {self.pairs}` has no effect: no selected rival uses pairs",
                hint="leave it out, or add `bayesvlm` to `--rivals`",
            )
        names = [*(row.name for row in self.compare), *(data.name for data in (*self.near, *self.far))]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"`{name}` appears twice", hint="give each row and data set its own name")

    @property
    def rival_names(self) -> tuple[str, ...]:
        """Names of the selected rivals. With `all`, rivals that the model does not support are removed later."""
        return EVERY if self.rivals is None else self.rivals

    def terms(self, *, blocks: int, heads: int) -> SharedSettings:
        """Return the shared settings of all rivals.

        Args:
            blocks: Number of blocks of the model.
            heads: Number of heads of the model.
        """
        from_start = {"epochs": self.start_epochs, "lr": self.start_lr}
        return SharedSettings(
            out=self.out,
            model=self.model,
            blocks=blocks,
            heads=heads,
            data=str(self.train),
            val=str(self.val),
            test=str(self.test),
            members=self.members,
            training=self._training(),
            start=self.start,
            from_start={name: f"{value:g}" for name, value in from_start.items() if value is not None},
            pairs=None if self.pairs is None else str(self.pairs),
            naming=naming_options(self.naming),
        )

    def _training(self) -> dict[str, str]:
        """Return the options of `finetune` that differ from the defaults, in text form by name."""
        names = {option.name for option in TRAINING}
        return {
            option.name: text_of(value)
            for option, value in typed_options(self) or ()
            if option.name in names and value != option.default
        }


TABLE_STAGE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEstimate:
    """Amount of work, with a training step as unit.

    Attributes:
        training: A training of a model with validation.
        from_start: A training from `--start` with validation.
        answers: Predictions of a model on all test and OOD data (`test`), training data (`train`), validation
            data (`val`) and pairs (`pairs`).
        blocks: Number of blocks of the model.
        heads: Number of heads of the model.
    """

    training: float
    from_start: float
    answers: Mapping[str, float]
    blocks: int
    heads: int

    def of(self, rival: Rival, members: int) -> float:
        """Return the work of a rival's stages and rows. A row has the cost of separate members."""
        times = rival.trainings(members)
        trained = times * (self.from_start if rival.starts else self.training)
        answered = sum(count * self.answers[data] for data, count in rival.answers.items())
        return trained + answered + self.answers[TEST] * max(1, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Measured durations on this machine.

    Attributes:
        step: Seconds per training step.
        begin: Seconds to start a command.
    """

    step: float
    begin: float

    def of(self, work: WorkEstimate, rival: Rival, members: int) -> float:
        """Return the estimated seconds of a rival."""
        return work.of(rival, members) * self.step + rival.trainings(members) * self.begin


def in_order(names: Iterable[str], work: WorkEstimate, *, members: int) -> tuple[str, ...]:
    """Sort rivals by estimated work, cheapest first."""
    return tuple(sorted(names, key=lambda name: work.of(PLANS[name], members)))


def stages(config: BenchConfig, names: Sequence[str], work: WorkEstimate) -> Iterator[StageOptions]:
    """Yield the stages of the rivals in order, then the stages `table` (`eval`) and `page` (`report`)."""
    terms = config.terms(blocks=work.blocks, heads=work.heads)
    compared = [f"{row.name}={row.typed}" for row in config.compare]
    if config.hydra_model is not None:
        compared.append(f"{model_name(config.model)}={config.model}")
    for name in names:
        yield from PLANS[name].stages(terms)
        compared += [f"{row}={models}" for row, models in PLANS[name].rows(terms).items()]
    yield {
        "name": TABLE_STAGE,
        "command": "eval",
        "model": config.model if config.hydra_model is None else config.hydra_model,
        "data": terms.test,
        "near": [f"{ood_set.name}={ood_set.ref}" for ood_set in config.near],
        "far": [f"{ood_set.name}={ood_set.ref}" for ood_set in config.far],
        "compare": compared,
        **terms.naming,
        "latency": False,
        "out": terms.path("report.json"),
    }
    yield {
        "name": "page",
        "command": "report",
        "files": [f"@{TABLE_STAGE}"],
        "out": terms.path("report.html"),
    }
