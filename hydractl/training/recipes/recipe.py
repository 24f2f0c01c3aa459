"""What training does, as data: one frozen recipe, and the paper's three by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hydractl.manifest import Option

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("constant", "cosine", "linear")
PRECISIONS = ("fp32", "bf16")
PARTS = ("embed", "norm", "attention", "mlp", "readout", "head")
BLOCKLESS = frozenset({"readout", "head"})
"""Parts that train whatever `last_blocks` says."""
DEFAULT_EPOCHS = 10
DEFAULT_LR = MappingProxyType({"sgd": (1e-2,), "adamw": (1e-4,)})
DEFAULT_DECAY = MappingProxyType({"sgd": 0.0, "adamw": 1e-2})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything about training that does not depend on the model or the data.

    Attributes:
        optimizer: One of `OPTIMIZERS`.
        lr: Peak learning rates; several are a grid, and the one that validates best is kept.
        weight_decay: Of weight matrices; biases, norms, tokens and position embeddings are not decayed.
        momentum: Of SGD; AdamW has none.
        schedule: One of `SCHEDULES`, after the warm-up.
        floor: Where the schedule ends, as a fraction of the peak.
        warmup: Steps of linear warm-up; a float in (0, 1) is a fraction of all steps.
        steps: Optimiser steps; None counts epochs instead.
        epochs: Passes over the data.
        batch_size: Samples in one optimiser step, over all processes and pieces.
        accumulate: Pieces that a process computes its share of a batch in, to save memory.
        clip: Largest gradient norm, None for any.
        label_smoothing: Share of each target that is spread over all classes, in [0, 1).
        dropout: On the embedded tokens, the attention's output and inside the MLP (Dosovitskiy et al. 2021);
            None as the architecture says.
        augment: Names from `hydractl.data.preprocess.AUGMENTATIONS`.
        train: Parts that train, from `PARTS`.
        last_blocks: Only so many last blocks train, beside readout and head; None for all and the embedding.
        reset_head: Start from a classifier of zeros.
        early_stop: Stop after so many evaluations without improvement.
        patience_delta: By how much accuracy must grow, or the negative log-likelihood fall, to count as improvement.
        keep_best: Keep the weights that validated best instead of the last ones; implied by `early_stop`.
        precision: `bf16` computes under autocast; weights and optimiser stay in fp32.
        eval_every: Steps between evaluations; None for once an epoch.
    """

    optimizer: str = "adamw"
    lr: tuple[float, ...] = ()
    weight_decay: float | None = None
    momentum: float = 0.9
    schedule: str = "cosine"
    floor: float = 0.0
    warmup: int | float = 0.05
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 64
    accumulate: int = 1
    clip: float | None = None
    label_smoothing: float = 0.0
    dropout: float | None = None
    augment: tuple[str, ...] = ()
    train: tuple[str, ...] = PARTS
    last_blocks: int | None = None
    reset_head: bool = False
    early_stop: int | None = None
    patience_delta: float = 0.0
    keep_best: bool = False
    precision: str = "fp32"
    eval_every: int | None = None

    def __post_init__(self) -> None:
        _one_of("--optimizer", self.optimizer, OPTIMIZERS)
        _one_of("--schedule", self.schedule, SCHEDULES)
        _one_of("--precision", self.precision, PRECISIONS)
        for part in self.train:
            _one_of("--train", part, PARTS)
        if not self.train:
            raise UsageError(
                "nothing would train: `--train` names no part", hint=f"choose from {', '.join(PARTS)}"
            )
        if self.steps is not None and self.epochs is not None:
            raise UsageError("`--steps` and `--epochs` exclude each other")
        if self.reset_head and "head" not in self.train:
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
        set_field(self, "train", tuple(part for part in PARTS if part in self.train))
        set_field(self, "keep_best", self.keep_best or self.early_stop is not None)
        self._check_ranges()

    def _check_ranges(self) -> None:
        if len(set(self.lr)) != len(self.lr):
            raise UsageError("`--lr` has a learning rate twice")
        for lr in self.lr:
            _within("--lr", lr, above=0.0)
        for option, value in (("--steps", self.steps), ("--epochs", self.epochs), ("--batch-size", self.batch_size),
                              ("--accumulate", self.accumulate), ("--early-stop", self.early_stop),
                              ("--eval-every", self.eval_every)):  # fmt: skip
            _within(option, value, least=1)
        _within("--last-blocks", self.last_blocks, least=0)
        _within("--weight-decay", self.weight_decay, least=0.0)
        _within("--patience-delta", self.patience_delta, least=0.0)
        _within("--clip", self.clip, above=0.0)
        for option, fraction in (("--momentum", self.momentum), ("--label-smoothing", self.label_smoothing),
                                 ("--dropout", self.dropout)):  # fmt: skip
            _within(option, fraction, least=0.0, below=1.0)
        if isinstance(self.warmup, float):
            _within("--warmup", self.warmup, above=0.0, below=1.0)
        _within("--warmup", self.warmup, least=0)

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
            "last_blocks": self.last_blocks is None or BLOCKLESS.issuperset(self.train),
        }
        return {key: value for key, value in asdict(self).items() if not idle.get(key, False)}


def _one_of(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise UsageError(f"`{option} {value}`: unknown", hint=f"choose from {', '.join(known)}")


def _within(
    option: str, value: float | None, *, least: float = -inf, above: float = -inf, below: float = inf
) -> None:
    if value is None or (value >= least and value > above and value < below):
        return
    wanted = [f"at least {least:g}" if least > -inf else "", f"above {above:g}" if above > -inf else "",
              f"below {below:g}" if below < inf else ""]  # fmt: skip
    raise UsageError(f"`{option} {value:g}`: must be {' and '.join(w for w in wanted if w) or 'finite'}")


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
        ),
        "cifar100": Recipe(
            optimizer="sgd",
            lr=(0.001, 0.003, 0.01, 0.03),
            warmup=500,
            schedule="cosine",
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
        ),
    }
)
"""Fine-tuning after pruning as the paper's appendix has it (METHODS 0.5).

The paper gives no batch size, and no schedule for CIFAR-100: 512 and a cosine are those of the fine-tuning whose
grids it takes over (Dosovitskiy et al. 2021, table 4). For CIFAR-100 the paper says both that "only the last five
blocks" and that "only the final classification layer" train. The recipe takes the first, with readout and head;
`--last-blocks 0` or `--train head` is the second.

For SST-2 the paper gives AdamW at 1e-5, decoupled weight decay, a linear warm-up over a tenth of the steps and a linear
decay after it, gradients clipped to a norm of 1, and no label smoothing. It does not give the decay, which is here the 0.01
that it trains its base with (there and here not on biases and norms), nor batch size and epochs: 32 and 3 are those of BERT's
own fine-tuning (Devlin et al. 2019, appendix A.3). Its texts are cut with `--max-length 128`.
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
    if "last_blocks" in given and BLOCKLESS.issuperset(recipe.train):
        raise UsageError(
            f"`--last-blocks` has no effect with `--train {','.join(recipe.train)}`",
            hint="neither is a part of a block; leave `--last-blocks` out",
        )
    if "train" in given and "embed" in recipe.train and recipe.last_blocks is not None:
        raise UsageError(
            f"`--train embed` has no effect with `--last-blocks {recipe.last_blocks}`, which leave the embedding as it is",
            hint="leave `embed` out of `--train`",
        )
