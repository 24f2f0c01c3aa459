"""What training does, as data: one frozen recipe, and the paper's by name. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.settings import Setting, check, flag, number, setting, words

if TYPE_CHECKING:
    from hydractl.manifest.document import Option

LEARN, TIME, WHAT, STOP = "Optimisation", "Length and batches", "What trains", "Evaluation and stopping"
PARTS = ("embed", "norm", "attention", "mlp", "readout", "head")
OWN = "own"
"""Stands beside parts for: no more of them than members of a hydra have as their own."""
BLOCKLESS = frozenset({"readout", "head"})
"""Parts that train whatever `last_blocks` says."""
DEFAULT_EPOCHS = 10
DEFAULT_LR = MappingProxyType({"sgd": (1e-2,), "adamw": (1e-4,)})
DEFAULT_DECAY = MappingProxyType({"sgd": 0.0, "adamw": 1e-2})


def parse_rates(text: str) -> tuple[float, ...]:
    """Read `--lr X[,Y,...]`.

    Raises:
        UsageError: If an item is not a number.
    """
    return tuple(number("--lr", word) for word in words("--lr", text))


def parse_warmup(text: str) -> int | float:
    """Read `--warmup`: a whole number is steps, a number with a point a fraction.

    Raises:
        UsageError: If it is no number.
    """
    return int(text) if text.isdecimal() else number("--warmup", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything about training that does not depend on the model or the data."""

    optimizer: str = setting("adamw", "Default: adamw.", choices=("sgd", "adamw"), panel=LEARN)
    lr: tuple[float, ...] = setting(
        (),
        "Peak learning rate (default 1e-4 for adamw, 1e-2 for sgd); of several, the one that validates best.",
        above=0.0,
        parse=parse_rates,
        metavar="X[,Y,...]",
        panel=LEARN,
    )
    weight_decay: float | None = setting(
        None, "Of matrices only (default 0.01 for adamw, 0 for sgd).", low=0.0, tells=False, panel=LEARN
    )
    """Biases, norms, tokens and position embeddings are not decayed."""
    momentum: float = setting(0.9, "Of sgd only (default 0.9).", low=0.0, below=1.0, tells=False, panel=LEARN)
    schedule: str = setting(
        "cosine",
        "After the warm-up (default: cosine).",
        choices=("constant", "cosine", "linear"),
        panel=LEARN,
    )
    floor: float = 0.0
    """Where the schedule ends, as a fraction of the peak."""
    warmup: int | float = setting(
        0.05,
        "Warm-up in steps, or as a fraction such as 0.05 (default).",
        low=0,
        tells=False,
        parse=parse_warmup,
        metavar="N|F",
        panel=LEARN,
    )
    """Linear; a float in (0, 1) is a fraction of all steps."""
    clip: float | None = setting(None, "Largest norm of the gradient.", above=0.0, panel=LEARN)
    label_smoothing: float = setting(0.0, "Share in [0, 1).", low=0.0, below=1.0, tells=False, panel=LEARN)
    """Of each target, that is spread over all classes."""
    dropout: float | None = setting(
        None,
        "Share in [0, 1); default: as the architecture says.",
        low=0.0,
        below=1.0,
        tells=False,
        panel=LEARN,
    )
    """On the embedded tokens, the attention's output and inside the MLP (Dosovitskiy et al. 2021)."""
    augment: tuple[str, ...] = setting(
        (),
        "flip, rrc, randaugment, shift; or none (default).",
        parse=partial(words, "--augment"),
        metavar="NAME[,...]",
        panel=LEARN,
    )
    """Names from `hydractl.data.preprocess.AUGMENTATIONS`."""
    max_length: int | None = None
    """Tokens of a text at most, of models that read more; None for as many as they read."""
    precision: str = setting(
        "fp32", "Default: fp32; bf16 computes under autocast.", choices=("fp32", "bf16"), panel=LEARN
    )
    """Of the forward pass; weights and optimiser stay in fp32."""
    steps: int | None = setting(None, "Optimiser steps.", low=1, tells=False, panel=TIME)
    epochs: int | None = setting(None, "Passes over the data (default 10).", low=1, tells=False, panel=TIME)
    """None where steps are counted."""
    batch_size: int = setting(
        64, "Samples in one optimiser step, over all processes (default 64).", low=1, tells=False, panel=TIME
    )
    accumulate: int = setting(
        1,
        "Compute each batch in N pieces, to save memory; the result is the same.",
        low=1,
        tells=False,
        metavar="N",
        panel=TIME,
    )
    train: tuple[str, ...] = setting(
        PARTS,
        f"{', '.join(PARTS)}; default: all. `own` leaves what members of a hydra share as it is.",
        choices=(*PARTS, OWN),
        parse=partial(words, "--train"),
        metavar="PART[,...]",
        panel=WHAT,
    )
    last_blocks: int | None = setting(
        None, "Only the last N blocks, readout and head.", low=0, tells=False, metavar="N", panel=WHAT
    )
    """None for all blocks and the embedding."""
    reset_head: bool = flag(
        Setting("Start from a classifier of zeros.", spelled=("--reset-head/--keep-head",), panel=WHAT)
    )
    eval_every: int | None = setting(
        None, "Validate so often (default: every epoch).", low=1, tells=False, metavar="STEPS", panel=STOP
    )
    early_stop: int | None = setting(
        None,
        "Stop after N evaluations without improvement, and keep the best weights.",
        low=1,
        tells=False,
        metavar="N",
        panel=STOP,
    )
    patience_delta: float = setting(
        0.0, "With `--early-stop`: how much is an improvement (default 0).", low=0.0, tells=False, panel=STOP
    )
    """By how much accuracy must grow, or the negative log-likelihood fall."""
    keep_best: bool = flag(
        Setting(
            "Keep the weights that validated best, or the last (default).",
            spelled=("--keep-best/--keep-last",),
            panel=STOP,
        )
    )
    """Implied by `early_stop`."""

    def __post_init__(self) -> None:
        if isinstance(self.warmup, float) and not 0 < self.warmup < 1:
            raise UsageError(f"`--warmup {self.warmup:g}`: must be above 0 and below 1")
        check(self)
        if len(set(self.lr)) != len(self.lr):
            raise UsageError("`--lr` has a learning rate twice")
        if not self.train:
            raise UsageError(
                "nothing would train: `--train` names no part", hint=f"choose from {', '.join(PARTS)}"
            )
        if self.steps is not None and self.epochs is not None:
            raise UsageError("`--steps` and `--epochs` exclude each other")
        if self.reset_head and "head" not in self.parts:
            raise UsageError(
                "`--reset-head` makes the classifier zero, and a zero that does not train lets nothing else learn",
                hint="add `head` to `--train`, or add `--keep-head`",
            )
        # defaults that hang on another field are filled in here, so that a recipe says what will be done
        set_field = object.__setattr__
        if self.steps is None and self.epochs is None:
            set_field(self, "epochs", DEFAULT_EPOCHS)
        set_field(self, "lr", self.lr or DEFAULT_LR[self.optimizer])
        if self.weight_decay is None:
            set_field(self, "weight_decay", DEFAULT_DECAY[self.optimizer])
        set_field(self, "train", tuple(part for part in (*PARTS, OWN) if part in self.train))
        set_field(self, "keep_best", self.keep_best or self.early_stop is not None)

    @property
    def own(self) -> bool:
        """Whether what members of a hydra share stays as it is."""
        return OWN in self.train

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that train."""
        return tuple(part for part in PARTS if part in self.train) or PARTS

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimiser steps.

        Raises:
            UsageError: If the warm-up alone takes as long.
        """
        total = self.steps if self.steps is not None else (self.epochs or 0) * steps_per_epoch
        if self.warmup_steps(total) >= total > 0 and self.warmup:
            raise UsageError(
                f"the warm-up of {self.warmup_steps(total)} steps leaves nothing of {total} steps",
                hint="add `--warmup 0.05` for a twentieth of all steps",
            )
        return total

    def warmup_steps(self, total: int) -> int:
        """Return the steps of warm-up out of `total`."""
        return int(self.warmup * total) if isinstance(self.warmup, float) else self.warmup

    def options(self) -> dict[str, Option]:
        """Return the recipe as lineage options, without those that change nothing."""
        idle = {
            "momentum": self.optimizer != "sgd",
            "floor": self.schedule == "constant",
            "patience_delta": self.early_stop is None,
            "last_blocks": self.last_blocks is None or BLOCKLESS.issuperset(self.parts),
        }
        return {key: value for key, value in asdict(self).items() if not idle.get(key, False)}


BUT_EMBEDDING = tuple(part for part in PARTS if part != "embed")
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "imagenet1k": Recipe(
            optimizer="sgd",
            lr=(0.003, 0.01, 0.03, 0.06),
            warmup=5_000,
            schedule="cosine",
            floor=1e-5,
            steps=120_000,
            batch_size=512,
            augment=("rrc", "flip", "randaugment"),
            label_smoothing=0.1,
            dropout=0.1,
            train=BUT_EMBEDDING,
        ),
        "cifar100": Recipe(
            optimizer="sgd",
            lr=(0.001, 0.003, 0.01, 0.03),
            warmup=500,
            schedule="cosine",
            floor=1e-5,
            steps=10_000,
            batch_size=512,
            augment=("rrc", "flip"),
            label_smoothing=0.1,
            last_blocks=5,
            reset_head=True,
        ),
        "sst2": Recipe(
            optimizer="adamw",
            lr=(1e-5,),
            weight_decay=0.01,
            warmup=0.1,
            schedule="linear",
            epochs=3,
            batch_size=32,
            clip=1.0,
            max_length=128,
            train=BUT_EMBEDDING,
        ),
        "imagenet1k-base": Recipe(
            optimizer="sgd",
            lr=(0.003, 0.01, 0.03, 0.06),
            warmup=500,
            schedule="cosine",
            steps=20_000,
            batch_size=512,
            augment=("rrc", "flip"),
            dropout=0.0,
            reset_head=True,
            keep_best=True,
        ),
        "cifar100-base": Recipe(
            optimizer="sgd",
            lr=(0.001, 0.003, 0.01, 0.03),
            warmup=500,
            schedule="cosine",
            steps=10_000,
            batch_size=512,
            augment=("rrc", "flip"),
            dropout=0.0,
            reset_head=True,
            keep_best=True,
        ),
        "sst2-base": Recipe(
            optimizer="adamw",
            lr=(8e-6,),
            weight_decay=0.01,
            warmup=0.1,
            schedule="linear",
            epochs=7,
            batch_size=32,
            clip=1.0,
            early_stop=2,
            patience_delta=5e-4,
            max_length=128,
        ),
    }
)
"""Fine-tuning after pruning as the paper's appendix D.2 has it, and that of the single bases (C.1.2, C.1.3, C.2).

After pruning attention, MLPs, norms and the classifier train, and embeddings do not. The paper gives no batch size: 512 is
that of the fine-tuning whose grids it takes over (Dosovitskiy et al. 2021, table 4). For CIFAR-100 the paper says both that "only the last five
blocks" and that "only the final classification layer" train. The recipe takes the first, with readout and head;
`--last-blocks 0` or `--train head` is the second.

For SST-2 the paper gives AdamW at 1e-5, decoupled weight decay, a linear warm-up over a tenth of the steps and a linear
decay after it, gradients clipped to a norm of 1, and no label smoothing. It does not give the decay, which is here the 0.01
that it trains its base with (there and here not on biases and norms), nor batch size and epochs: 32 and 3 are those of BERT's
own fine-tuning (Devlin et al. 2019, appendix A.3). Texts are cut to 128 tokens, as those of its base.

Bases of images train whole, without weight decay and dropout, from a classifier that is made anew, on the augmentations of
their pre-training, until validation converges or the steps are done: the weights that validated best are kept.
"""


def recipe_of(name: str | None, overrides: Mapping[str, object]) -> Recipe:
    """Return a named recipe, or the defaults, with every override that is not None.

    Raises:
        UsageError: If the name is unknown, the result is not a valid recipe, or an override would change nothing.
    """
    if name is not None and name not in RECIPES:
        raise UsageError(f"unknown recipe `{name}`", hint=f"choose one of {', '.join(RECIPES)}")
    given = {key: value for key, value in overrides.items() if value is not None}
    base = asdict(RECIPES[name]) if name is not None else {}
    if given.keys() & {"steps", "epochs"}:
        base |= {"steps": None, "epochs": None}
    if given.get("optimizer", base.get("optimizer")) != base.get("optimizer"):
        # a rate and a decay are meant for one optimiser
        base = {k: v for k, v in base.items() if k not in {"lr", "weight_decay"}}
    recipe = replace(Recipe(), **{"lr": (), "weight_decay": None, "epochs": None, **base, **given})
    _refuse_idle(recipe, given)
    return recipe


def _refuse_idle(recipe: Recipe, given: Mapping[str, object]) -> None:
    """Refuse options that were given and that another one makes idle."""
    if "momentum" in given and recipe.optimizer != "sgd":
        raise UsageError(
            f"`--momentum` has no effect with `--optimizer {recipe.optimizer}`",
            hint="add `--optimizer sgd`, or leave `--momentum` out",
        )
    if "patience_delta" in given and recipe.early_stop is None:
        raise UsageError(
            "`--patience-delta` has no effect without `--early-stop`",
            hint="add `--early-stop N`, or leave `--patience-delta` out",
        )
    if given.get("keep_best") is False and recipe.early_stop is not None:
        raise UsageError(
            "`--keep-last` and `--early-stop` exclude each other: stopping early keeps the best weights",
            hint="leave one of them out",
        )
    if "last_blocks" in given and BLOCKLESS.issuperset(recipe.parts):
        raise UsageError(
            f"`--last-blocks` has no effect with `--train {','.join(recipe.train)}`",
            hint="neither is a part of a block; leave `--last-blocks` out",
        )
    if "train" in given and "embed" in recipe.train and recipe.last_blocks is not None:
        raise UsageError(
            f"`--train embed` has no effect with `--last-blocks {recipe.last_blocks}`, which leave the embedding as it is",
            hint="leave `embed` out of `--train`",
        )
