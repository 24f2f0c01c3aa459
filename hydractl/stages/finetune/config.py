"""Configuration of `finetune`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.output.publish import is_stream
from hydractl.processes.distributed import refuse_shared_input
from hydractl.provenance.command_config import IF_CHANGED, CommandConfig
from hydractl.settings import (
    Constraint,
    Extension,
    Option,
    OptionGroup,
    Role,
    Setting,
    by_default,
    check,
    check_extensions,
    extension_field,
    flag,
    required,
    setting,
    words,
)
from hydractl.stages import options as shared
from hydractl.training.recipe import OWN_PARTS, PARTS, RECIPES, SEEDS, FinetuneExtension, Recipe, recipe_of
from hydractl.training.run_log import check_log

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

TEACHERS = "Hydras and teachers"
TEMPERATURE, WEIGHT = 2.0, 0.9
"""Defaults for distillation, chosen by hand. Twice the temperature softens the teachers' probabilities; the
weight must not exceed 1."""
RECIPE = Option(
    "recipe",
    "str",
    Setting(
        "Start from a named recipe (docs/members.md); other options override it.",
        choices=tuple(RECIPES),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig(CommandConfig):
    """Options of `finetune`."""

    COMMAND: ClassVar[str] = "finetune"
    COMMON = (
        "train",
        "val",
        "out",
        "recipe",
        "lr",
        "epochs",
        "batch_size",
        "seed",
        "train_parts",
        "trunk",
        "teacher",
        "device",
    )

    model: str = required(shared.MODEL)
    """A backbone, a base, a member or a hydra. `arch:NAME` trains from random weights."""
    train: DataRef = required(
        Setting(
            f"Labelled training data.{shared.DATA_DETAILS}",
            metavar=shared.DATA_METAVAR,
            parse=DataRef.parse,
            role=Role.DATA,
        )
    )
    val: DataRef = required(
        Setting("Labelled validation data.", metavar=shared.DATA_METAVAR, parse=DataRef.parse, role=Role.DATA)
    )
    out: Path = required(shared.OUT_MEMBERS)
    max_length: int | None = by_default(None, shared.MAX_LENGTH)
    recipe: Recipe = by_default(
        Recipe(),
        OptionGroup(lambda texts: recipe_of(texts.pop("recipe", None), texts), (RECIPE, *Option.of(Recipe))),
    )
    recipe_name: str | None = by_default(
        None, OptionGroup(lambda texts: texts.get("recipe"), extra_names=("recipe",))
    )
    """Name of the recipe in the options, for messages."""
    batches: str = setting(
        "shared",
        "Give all members the same batches, or each its own order and augmentation, which needs a hydra without a trunk.",
        choices=("shared", "own"),
        panel=TEACHERS,
        excludes=Constraint(
            "teacher", for_values=("own",), why="teachers see one batch, but each member would see its own"
        ),
    )
    """With `own`, the data order of member m has the seed plus m."""
    teacher: tuple[str, ...] = setting(
        (),
        "Models to distil: member m of a hydra learns from the m-th, any other model from their mean.",
        parse=partial(words, "--teacher"),
        metavar="MODEL[,...]",
        panel=TEACHERS,
        role=Role.MODEL,
    )
    teacher_temperature: float | None = setting(
        None,
        f"Temperature of the distillation loss (default: {TEMPERATURE:g}).",
        above=0.0,
        panel=TEACHERS,
        only_with="teacher",
    )
    teacher_weight: float | None = setting(
        None,
        f"Weight of the distillation loss, in (0, 1]; labels have the rest (default: {WEIGHT:g}).",
        above=0.0,
        high=1.0,
        shows_range=False,
        panel=TEACHERS,
        only_with="teacher",
    )
    repulsion: float | None = setting(
        None,
        "Push members of a hydra apart on images with permuted patches, with this weight, for example 0.1; doubles the time of a step.",
        above=0.0,
        shows_range=False,
        panel=TEACHERS,
        excludes=(
            Constraint("has_own_batches", (True,), option="batches", why="members must see the same images"),
        ),
    )
    gradient_checkpointing: bool = flag(
        Setting(
            "Recompute activations in the backward pass: less memory, a third more time, the same result.",
            panel=shared.MACHINE,
            role=Role.EXECUTION,
        )
    )
    compile: bool = flag(
        Setting(
            "Compile the training step: takes minutes at first, then runs faster; rounds differently.",
            panel=shared.MACHINE,
            excludes=Constraint(
                "gradient_checkpointing",
                why="the recomputation would draw other dropout masks",
                hint="leave one of them out; a compiled step already saves memory",
            ),
        )
    )
    log_to: tuple[str, ...] = by_default((), shared.LOG_TO)
    log_dir: Path | None = by_default(None, shared.LOG_DIR)
    save_every: int | None = setting(
        None,
        "Steps between saves of the state to resume from (default: 30 s, and each epoch).",
        low=1,
        shows_range=False,
        metavar="STEPS",
        panel=shared.MACHINE,
        role=Role.EXECUTION,
        only_with=Constraint(
            "state",
            option="out",
            why="an output stream cannot be resumed",
            hint="name a file with `-o`, or leave `--save-every` out",
        ),
    )
    seed: int = by_default(0, shared.SEED)
    """Seed of random weights, a new classifier, data order, augmentation and dropout, unless they have a
    separate seed."""
    head_seed: int | None = by_default(
        None,
        replace(
            shared.HEAD_SEED,
            panel=SEEDS,
            excludes=Constraint("recipe.reset_head", (False,), why="no new classifier is made"),
        ),
    )
    num_classes: int | None = by_default(None, shared.NUM_CLASSES)
    pooling: str | None = by_default(None, shared.POOLING)
    images: shared.Images = by_default(shared.Images(), shared.IMAGES)
    device: str = by_default("auto", shared.DEVICE)
    num_workers: int | None = by_default(None, shared.NUM_WORKERS)
    skip_bad: bool = flag(shared.SKIP_BAD)
    arch: str | None = by_default(
        None,
        replace(
            shared.ARCH,
            excludes=Constraint(
                lambda config: config.model.startswith("arch:"),
                message="`--arch` has no effect with `{config.model}`, which already names the architecture",
                hint="leave `--arch` out",
            ),
        ),
    )
    force: bool = flag(shared.FORCE_ANEW)
    wait: bool = flag(shared.WAIT)
    if_changed: bool = flag(IF_CHANGED)
    extensions: tuple[Extension, ...] = extension_field("finetune")

    def __post_init__(self) -> None:
        check(self)
        self.outputs()  # checks the name, which must contain `{i}` for several outputs
        check_log(self.log_to, self.log_dir, self.out)
        check_extensions(self)
        if {*str(self.train).split(",")} <= {*PARTS, OWN_PARTS} and not Path(str(self.train)).exists():
            raise UsageError(
                f"`--train {self.train}` is now `--train-parts {self.train}`",
                hint="add `--train DATA` with the training data",
            )
        refuse_shared_input(self.model, *self.teacher)

    @property
    def extension(self) -> FinetuneExtension:
        """Options of a plugin, or defaults without a plugin."""
        return next((e for e in self.extensions if isinstance(e, FinetuneExtension)), FinetuneExtension())

    @override
    def outputs(self) -> tuple[Path, ...]:
        """Return the path of each output model. With several models, `{i}` in the name becomes 0, 1, ...

        Raises:
            UsageError: If the name of several models has no `{i}`, the name of a single model has `{i}`, or
                there are too many models.
        """
        models = self.extension.models
        if models == 1 and "{i}" in self.out.name:
            raise UsageError(
                f"`-o {self.out}`: `{{i}}` numbers several models, but this command makes one",
                hint="leave out `{i}` from the name",
            )
        return (self.out,) if models == 1 else shared.numbered(self.out, models)

    @property
    def has_own_batches(self) -> bool:
        """Whether each member of a hydra has separate batches."""
        return self.batches == "own"

    @property
    def temperature(self) -> float:
        """Temperature of the distillation loss."""
        return TEMPERATURE if self.teacher_temperature is None else self.teacher_temperature

    @property
    def weight(self) -> float:
        """Weight of the distillation loss, in (0, 1]."""
        return WEIGHT if self.teacher_weight is None else self.teacher_weight

    def options(self) -> dict[str, OptionValue]:
        """Return the options with an influence on the result, for the provenance record."""
        field_names = ("head_seed", "num_classes", "pooling")
        taught = {"teacher_temperature": self.temperature, "teacher_weight": self.weight}
        return (
            self.recipe.options()
            | {"max_length": self.tokens}
            | {name: getattr(self, name) for name in field_names}
            | self.images.options()
            | (taught if self.teacher else {})
            | self.extension.recorded()
            | ({"batches": self.batches} if self.has_own_batches else {})
            | ({"compile": True} if self.compile else {})
            | ({} if self.repulsion is None else {"repulsion": self.repulsion})
        )

    @property
    def tokens(self) -> int | None:
        """Maximum number of tokens of a text, from the option or the recipe."""
        return self.recipe.max_length if self.max_length is None else self.max_length

    @property
    def state(self) -> Path | None:
        """Path of the state of an unfinished run; None for a stream."""
        return None if is_stream(self.out) else self.out.with_name(f"{self.out.name}.state")
