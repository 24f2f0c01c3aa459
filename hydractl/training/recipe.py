"""Training recipes: all settings of a training in one frozen class, and named recipes. Loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.messages import counted
from hydractl.settings import (
    Constraint,
    Extension,
    Setting,
    by_default,
    check,
    declared,
    flag,
    number,
    setting,
    violations,
    words,
)

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue


LEARN, REGULARISE = "Optimisation", "Regularisation and augmentation"
TRAINED_PARTS, STOP = "What trains", "Evaluation and stopping"
SEEDS = "Seeds"
PARTS = ("embed", "norm", "attention", "mlp", "readout", "head")
TRUNK = "trunk"
OWN_PARTS = "own"
"""Value of `--train-parts` that restricts the parts to weights which members of a hydra do not share."""
RECORDED_NAMES = {"train_parts": "train", TRUNK: "freeze_blocks"}
"""Names of settings in the lineage, if they differ from the options."""
BLOCKLESS = frozenset({"readout", "head"})
"""Parts that `trunk` and `last_blocks` never freeze."""
TRAINS_BLOCKS = Constraint(
    "parts",
    tuple(part for part in PARTS if part not in BLOCKLESS),
    option="train_parts",
    hint="add parts of blocks to `--train-parts`",
)
TRAINS_ENCODER = Constraint(
    "parts", PARTS[:-1], option="train_parts", hint="add parts of blocks to `--train-parts`"
)
"""Required by settings of the encoder. If the classifier alone trains, the encoder is in evaluation mode and
its tensors have no learning rate."""
MIXES = Constraint("batch_size", range(2, sys.maxsize), hint="raise `--batch-size`")
"""Required by mixing: in a batch of one sample, the sample would be mixed with itself."""
DEFAULT_EPOCHS = 10
"""Chosen by hand; 20 doubles the training time."""
DEFAULT_LR = MappingProxyType({"sgd": (1e-2,), "adamw": (1e-4,)})
"""Peak learning rates by optimizer. For sgd, a value of both grids of the paper (appendix D.2). For adamw,
chosen by hand; doubling it learns faster and diverges more easily."""
DEFAULT_DECAY = MappingProxyType({"sgd": 0.0, "adamw": 1e-2})
"""Weight decay by optimizer. The values are torch's defaults and those of the paper's base models (appendices
C.1.2 and C.2). Doubling 0.01 keeps weights slightly smaller."""


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse the value of `--lr X[,Y,...]`.

    Raises:
        UsageError: If an item is not a number.
    """
    return tuple(number("--lr", word) for word in words("--lr", text))


def parse_count(option: str, text: str) -> int | float:
    """Parse a whole number of steps or epochs, or a fraction of all steps.

    Args:
        option: Name of the option for the error, for example `--warmup`.
        text: `500` gives the int 500, a count. Any other number gives a float, a fraction: 0.05 for `0.05`.

    Raises:
        UsageError: If the text is not a number. The range is not checked.
    """
    return int(text) if text.isdecimal() else number(option, text)


parse_warmup = partial(parse_count, "--warmup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All settings of a training that do not depend on the model or the data."""

    optimizer: str = setting("adamw", "Optimiser (default: adamw).", choices=("sgd", "adamw"), panel=LEARN)
    lr: tuple[float, ...] = setting(
        (),
        "Peak learning rate (default: 1e-4 for adamw, 1e-2 for sgd); several are tried and the best is kept.",
        above=0.0,
        parse=parse_rates,
        metavar="X[,Y,...]",
    )
    layer_decay: float | None = setting(
        None,
        "Multiply the learning rate of each block by F relative to the next, for example 0.75.",
        above=0.0,
        high=1.0,
        shows_range=False,
        metavar="F",
        panel=LEARN,
        only_with=TRAINS_ENCODER,
    )
    """Layer-wise decay of the learning rate (Clark et al. 2020, appendix B; Bao et al. 2022).

    Block l of L, from 0, trains at `lr` F^(L - l), the embedding at F^(L + 1), the norm after the last block
    at F, and the rest of the readout and the head at `lr`. The factors are those of
    `timm.optim.param_groups_layer_decay`.
    """
    weight_decay: float | None = setting(
        None, "Weight decay of matrices (default: 0.01; sgd: 0).", low=0.0, shows_range=False, panel=LEARN
    )
    """Weight decay of weights with at least two axes: matrices, kernels, and tables of tokens and positions
    if the library has `weight` tensors for them. Biases, norms and bare parameters do not decay, for example
    timm's class tokens and position embeddings, which timm excludes too. The `Trainer` of transformers decays
    them."""
    momentum: float = setting(
        0.9,
        "Momentum of sgd (default: 0.9).",
        low=0.0,
        below=1.0,
        shows_range=False,
        panel=LEARN,
        only_with=Constraint("optimizer", ("sgd",)),
    )
    schedule: str = setting(
        "cosine",
        "Learning rate schedule after the warm-up (default: cosine).",
        choices=("constant", "cosine", "linear"),
        panel=LEARN,
    )
    floor: float = setting(
        0.0,
        "Final learning rate as a fraction of the peak (default: 0).",
        low=0.0,
        high=1.0,
        shows_range=False,
        option_names=("--min-lr-rate",),
        only_with=Constraint(
            "schedule", ("cosine", "linear"), hint="choose another `--schedule`, or leave `--min-lr-rate` out"
        ),
        metavar="F",
        panel=LEARN,
    )
    """Same as `min_lr_rate` of transformers. timm's `min_lr` is this fraction times the peak."""
    warmup: int | float = setting(
        0.05,
        "Warm-up in steps, or as a fraction of all steps (default: 0.05).",
        low=0,
        shows_range=False,
        parse=parse_warmup,
        metavar="N|F",
        panel=LEARN,
    )
    """Length of the linear warm-up. A float in (0, 1) is a fraction of all steps."""
    clip: float | None = setting(None, "Clip gradients to this norm.", above=0.0, panel=LEARN)
    ema: float | None = setting(
        None,
        "Validate and save an exponential moving average of the weights, for example with decay 0.999.",
        low=0.0,
        below=1.0,
        shows_range=False,
        metavar="DECAY",
        panel=REGULARISE,
        excludes="swa",
    )
    """Exponential moving average (Polyak and Juditsky 1992): mean = d mean + (1 - d) weights after each step.

    The mean starts with the weights after the first step. After step n, from 1, d is the smaller of DECAY and
    1 - n^(-2/3), so that short runs forget the initial weights, as timm's `ModelEmaV3` with `use_warmup`.
    """
    swa: int | float | None = setting(
        None,
        "Validate and save the mean of the weights at each epoch's end, from epoch N or fraction F of the steps.",
        low=0,
        shows_range=False,
        parse=partial(parse_count, "--swa"),
        metavar="N|F",
        panel=REGULARISE,
    )
    """Stochastic weight averaging (Izmailov et al. 2018, algorithm 1, constant rate).

    The mean starts at the end of epoch N (from 1), or of the first epoch that ends at fraction F of all steps
    or later. The weights at the end of this and each later epoch, and of the last step, have equal weight in
    the mean. After the start the learning rate is constant. Before the start, validation uses the weights
    themselves and never keeps them as the best.
    """
    label_smoothing: float = setting(
        0.0, "Label smoothing (default: 0).", low=0.0, below=1.0, shows_range=False, panel=REGULARISE
    )
    """Fraction of each target that is distributed over all classes."""
    mixup: float | None = setting(
        None,
        "Mixup: blend pairs of images and labels with weights from Beta(A, A), for example 0.8.",
        low=0.0,
        shows_range=False,
        metavar="A",
        panel=REGULARISE,
        only_with=MIXES,
    )
    """Parameter of Beta(A, A). Each batch has one weight; sample i is mixed with sample B - 1 - i (Zhang et
    al. 2018, section 2; timm's `Mixup`)."""
    cutmix: float | None = setting(
        None,
        "CutMix: paste boxes with areas from Beta(A, A); with `--mixup`, each batch uses one of both.",
        low=0.0,
        shows_range=False,
        metavar="A",
        panel=REGULARISE,
        only_with=MIXES,
    )
    """Parameter of Beta(A, A), the distribution of 1 minus the box's fraction of the image. Each batch has
    one box. Labels are mixed by the area of the box inside the image (Yun et al. 2019, section 3; timm's
    `Mixup`). If `mixup` is given too, each batch uses either method with probability 1/2."""
    dropout: float | None = setting(
        None,
        "Dropout rate, in [0, 1) (default: the architecture's).",
        low=0.0,
        below=1.0,
        shows_range=False,
        panel=REGULARISE,
        only_with=TRAINS_ENCODER,
    )
    """Dropout of embedded tokens, of the attention's output and inside the MLP (Dosovitskiy et al. 2021).
    None keeps the architecture's rates."""
    drop_path: float | None = setting(
        None,
        "Stochastic depth rate of the last block; falls linearly to 0 at the first.",
        low=0.0,
        below=1.0,
        shows_range=False,
        panel=REGULARISE,
        only_with=TRAINS_ENCODER,
    )
    """Stochastic depth (Huang et al. 2016, section 3): block l of L, from 0, is skipped with probability F l
    / (L - 1), as with `drop_path_rate` of timm and transformers. None keeps the architecture's rate."""
    augment: tuple[str, ...] = setting(
        (),
        "Augmentations: flip, rrc, randaugment, shift, or none (default).",
        parse=partial(words, "--augment"),
        metavar="NAME[,...]",
        panel=REGULARISE,
    )
    """Names from `hydractl.data.preprocess.AUGMENTATIONS`."""
    max_length: int | None = None
    """Maximum number of tokens of a text; None for the maximum of the model."""
    precision: str = setting(
        "fp32", "Precision under autocast (default: fp32).", choices=("fp32", "bf16"), panel=LEARN
    )
    """Precision of the forward pass. Weights and optimizer state are always fp32."""
    steps: int | None = setting(
        None, "Optimiser steps, instead of epochs.", low=1, shows_range=False, panel=LEARN, excludes="epochs"
    )
    epochs: int | None = setting(
        None, f"Passes over the data (default: {DEFAULT_EPOCHS}).", low=1, shows_range=False
    )
    """None if `steps` is given."""
    batch_size: int = setting(
        64, "Samples per optimiser step, over all processes (default: 64).", low=1, shows_range=False
    )
    accumulate: int = setting(
        1,
        "Split each batch into N forward passes to save memory.",
        low=1,
        shows_range=False,
        metavar="N",
        panel=LEARN,
    )
    train_parts: tuple[str, ...] = setting(
        PARTS,
        f"Parts to train: {', '.join(PARTS)} (default: all); `own` freezes what members of a hydra share.",
        choices=(*PARTS, OWN_PARTS),
        parse=partial(words, "--train-parts"),
        metavar="PART[,...]",
        panel=TRAINED_PARTS,
    )
    trunk: int | None = setting(
        None,
        "Freeze the embedding and the first N blocks, which a hydra of such members runs once.",
        low=0,
        shows_range=False,
        metavar="N",
        panel=TRAINED_PARTS,
        only_with=TRAINS_BLOCKS,
    )
    last_blocks: int | None = None
    """Blocks before the last N and the embedding are frozen. Recipes use this number, because they do not know
    the number of blocks. An option `--trunk` replaces it."""
    reset_head: bool | None = by_default(
        None,
        Setting(
            "Replace the classifier, or refuse to (default: replace one that does not fit the data).",
            option_names=("--reset-head/--keep-head",),
            panel=TRAINED_PARTS,
        ),
    )
    """True always replaces the classifier. False raises an error if the classifier does not fit the data.
    None replaces the classifier only if it does not fit the data."""
    eval_every: int | None = setting(
        None,
        "Steps between validations (default: one epoch).",
        low=1,
        shows_range=False,
        metavar="STEPS",
        panel=STOP,
    )
    early_stop: int | None = setting(
        None,
        "Stop after N validations without improvement and keep the best weights.",
        low=1,
        shows_range=False,
        metavar="N",
        panel=STOP,
    )
    patience_delta: float = setting(
        0.0,
        "Smallest improvement that counts for `--early-stop` (default: 0).",
        low=0.0,
        shows_range=False,
        panel=STOP,
        only_with="early_stop",
    )
    """Minimum increase of accuracy, or decrease of NLL at equal accuracy."""
    keep_best: bool = flag(
        Setting(
            "Keep the weights that validate best, or the last (default).",
            option_names=("--keep-best/--keep-last",),
            panel=STOP,
        )
    )
    """True if `early_stop` is given."""

    def __post_init__(self) -> None:
        for option, share in (("--warmup", self.warmup), ("--swa", self.swa)):
            if isinstance(share, float) and not 0 < share < 1:
                raise UsageError(f"`{option} {share:g}`: must be above 0 and below 1")
        set_field = object.__setattr__
        for name in ("ema", "swa", "mixup", "cutmix"):
            # 0 on the command line disables a setting of the named recipe.
            set_field(self, name, getattr(self, name) or None)
        check(self, may_idle=True)
        if len(set(self.lr)) != len(self.lr):
            raise UsageError("`--lr` repeats a learning rate")
        if not self.train_parts:
            raise UsageError(
                "nothing would train: `--train-parts` has no part", hint=f"choose from {', '.join(PARTS)}"
            )
        if self.reset_head and "head" not in self.parts:
            raise UsageError(
                "`--reset-head` sets the classifier to zero, and without training it nothing else can learn",
                hint="add `head` to `--train-parts`, or add `--keep-head`",
            )
        # Defaults that depend on another field are set here, so that the recipe and the lineage contain the
        # values in use.
        if self.steps is None and self.epochs is None:
            set_field(self, "epochs", DEFAULT_EPOCHS)
        set_field(self, "lr", self.lr or DEFAULT_LR[self.optimizer])
        if self.weight_decay is None:
            set_field(self, "weight_decay", DEFAULT_DECAY[self.optimizer])
        set_field(
            self, "train_parts", tuple(part for part in (*PARTS, OWN_PARTS) if part in self.train_parts)
        )
        set_field(self, "keep_best", self.keep_best or self.early_stop is not None)

    @property
    def trains_own_parts(self) -> bool:
        """Whether the weights that members of a hydra share are frozen."""
        return OWN_PARTS in self.train_parts

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that train, in the order of `PARTS`; all parts if `--train-parts` has only `own`."""
        return tuple(part for part in PARTS if part in self.train_parts) or PARTS

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimizer steps: `steps`, or the number of epochs times `steps_per_epoch`.

        Args:
            steps_per_epoch: Number of batches per epoch.

        Raises:
            UsageError: If training ends during the warm-up, or `swa` starts during the warm-up, or not before
                the last step.
        """
        total = self.steps if self.steps is not None else (self.epochs or 0) * steps_per_epoch
        if self.warmup_steps(total) >= total > 0 and self.warmup:
            raise UsageError(
                f"the warm-up of {counted(self.warmup_steps(total), 'step')} takes all of the {counted(total, 'step')}",
                hint="use for example `--warmup 0.05` for 5 % of all steps",
            )
        if self.swa is None:
            return total
        start = self.swa_start(total, steps_per_epoch)
        if start < self.warmup_steps(total):
            raise UsageError(
                f"`--swa {self.swa}` begins at step {start}, within the warm-up of {counted(self.warmup_steps(total), 'step')}",
                hint="use a later start, or a shorter `--warmup`",
            )
        if start >= total:
            raise UsageError(
                f"`--swa {self.swa}` averages fewer than two sets of weights: {counted(total, 'step')} {'is' if total == 1 else 'are'} {total / steps_per_epoch:.3g} epochs",
                hint=f"start earlier, or train longer with `{'--epochs' if self.steps is None else '--steps'}`",
            )
        return total

    def warmup_steps(self, total: int) -> int:
        """Return the number of warm-up steps of a training of `total` steps."""
        return int(self.warmup * total) if isinstance(self.warmup, float) else self.warmup

    def swa_start(self, total: int, steps_per_epoch: int) -> int:
        """Return the step after which `swa` averages the first weights, a multiple of `steps_per_epoch`.

        0 if `swa` is None.
        """
        swa = self.swa or 0
        epochs = ceil(swa * total / steps_per_epoch) if isinstance(swa, float) else swa
        return epochs * steps_per_epoch

    def idle(self) -> dict[str, Constraint]:
        """Return the unmet constraint of each setting without effect, by the name of the setting.

        Settings with their default value are included, for example `momentum` for adamw.
        """
        return dict(violations(self, "only_with"))

    def options(self) -> dict[str, OptionValue]:
        """Return the settings for the lineage by name, without None and without settings that have no effect."""
        idle = self.idle()
        idle |= {"last_blocks": idle[TRUNK]} if TRUNK in idle else {}
        options = {k: value for k, value in asdict(self).items() if value is not None and k not in idle}
        return {RECORDED_NAMES.get(name, name): value for name, value in options.items()}


FOR_IMAGES = ("augment", "mixup", "cutmix")
"""Settings of recipes that apply only to images."""
BUT_EMBEDDING = tuple(part for part in PARTS if part != "embed")
"""Parts that train after pruning (appendix D.2): all except the embedding."""
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
            train_parts=BUT_EMBEDDING,
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
            train_parts=BUT_EMBEDDING,
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
        "vit-finetune": Recipe(
            optimizer="adamw",
            lr=(5e-4,),
            layer_decay=0.65,
            weight_decay=0.05,
            warmup=0.05,
            schedule="cosine",
            floor=2e-3,
            epochs=100,
            batch_size=256,
            augment=("rrc", "flip", "randaugment"),
            label_smoothing=0.1,
            mixup=0.8,
            cutmix=1.0,
            drop_path=0.1,
            ema=0.9998,
        ),
        "bert-finetune": Recipe(
            optimizer="adamw",
            lr=(5e-5, 3e-5, 2e-5),
            weight_decay=0.01,
            warmup=0.1,
            schedule="linear",
            epochs=3,
            batch_size=32,
            clip=1.0,
            max_length=128,
        ),
        "sentence-finetune": Recipe(
            optimizer="adamw",
            lr=(1e-4, 5e-5, 2e-5),
            weight_decay=0.01,
            warmup=0.1,
            schedule="linear",
            epochs=20,
            batch_size=32,
            clip=1.0,
            max_length=128,
            train_parts=BUT_EMBEDDING,
        ),
    }
)
"""Named recipes.

`imagenet1k`, `cifar100` and `sst2` are the paper's fine-tuning after pruning (appendix D.2).
`imagenet1k-base`, `cifar100-base` and `sst2-base` are the fine-tuning of its base models (appendices C.1.2,
C.1.3 and C.2).

After pruning, attention, MLPs, norms and the classifier train, and embeddings do not. The paper gives no
batch size; 512 is the batch size of the fine-tuning with the same grids (Dosovitskiy et al. 2021, table 4).
For CIFAR-100 the paper states both that "only the last five blocks" train and that "only the final
classification layer" trains. The recipe trains the last five blocks, readout and head; use
`--train-parts head` for the other reading.

For SST-2 the paper gives AdamW at 1e-5, decoupled weight decay, a linear warm-up over a tenth of the steps,
then linear decay, gradients clipped to norm 1, and no label smoothing. Weight decay is not given; 0.01 is the
value of the paper's base model, which excludes biases and norms. Batch size 32 and 3 epochs are those of BERT
(Devlin et al. 2019, appendix A.3). Texts have at most 128 tokens, as for the base model.

Base models of images train all weights, without weight decay and dropout, with a new classifier and the
augmentations of their pre-training. The weights with the best validation result are kept.

The other recipes are for pretrained encoders and are not from the paper:

`vit-finetune` is the fine-tuning of a masked autoencoder's ViT-B (He et al. 2022, table 9) with the values of
the authors' code: layer decay 0.65 (0.75 in the table), rate 5e-4 per 256 samples of a batch, warm-up of 5
epochs in 100, final rate 1e-6. Except for the rate, BEiT uses the same (Bao et al. 2022). RandAugment is that
of `imagenet1k`. Random erasing is left out; the authors' code notes that its effect is smaller than random
variation. The decay of the weight average is from Cai et al. (2022), who tune the same encoders. For a ViT-L:
`--lr 1e-3 --layer-decay 0.75 --drop-path 0.2 --epochs 50`.

`bert-finetune` is BERT's (Devlin et al. 2019, appendix A.3): the best of three rates on validation data, 3
epochs, batch size 32. Warm-up, weight decay, clipping and length are from BERT's code.

`sentence-finetune` is for sentence encoders such as MiniLM and some tens of texts per class. It has more
epochs, a warm-up and a linear decay to 0, which is stable for few samples (Mosbach et al. 2021, section 6).
Small encoders need the higher rates. The embedding is frozen: a few texts contain few tokens of a language,
and only the vectors of these tokens would move.
"""


EXCLUSIVE = tuple(
    (name, str(constraint.field_name))
    for name, setting in declared(Recipe).items()
    for constraint in setting.constraints("excludes")
)
"""Pairs of settings that exclude each other."""


def recipe_of(name: str | None, overrides: Mapping[str, object]) -> Recipe:
    """Return a named recipe, or the default recipe, with overrides.

    An override also removes the recipe's value of a setting that excludes it (`EXCLUSIVE`). Another optimizer
    replaces learning rates and weight decay of the recipe by the defaults of that optimizer.

    Args:
        name: Key of `RECIPES`, or None for the defaults.
        overrides: Values by setting. None keeps the value of the recipe.

    Raises:
        UsageError: If the name is unknown, the result is not a valid recipe, or an override has no effect.
    """
    if name is not None and name not in RECIPES:
        raise UsageError(f"unknown recipe `{name}`", hint=f"use one of {', '.join(RECIPES)}")
    stated = {key: value for key, value in overrides.items() if value is not None}
    base = asdict(RECIPES[name]) if name is not None else {}
    for either in (*EXCLUSIVE, (TRUNK, "last_blocks")):
        if stated.keys() & set(either):
            base |= dict.fromkeys(either)
    if stated.get("optimizer", base.get("optimizer")) != base.get("optimizer"):
        # Learning rate and weight decay of a recipe are chosen for its optimizer.
        base = {k: v for k, v in base.items() if k not in {"lr", "weight_decay"}}
    recipe = replace(Recipe(), **{"lr": (), "weight_decay": None, "epochs": None, **base, **stated})
    for key, constraint in recipe.idle().items():
        if key in stated:
            raise constraint.refusal(recipe, key, "only_with")
    if stated.get("keep_best") is False and recipe.early_stop is not None:
        raise UsageError(
            "`--keep-last` and `--early-stop` exclude each other: stopping early keeps the best weights",
            hint="leave one of them out",
        )
    freezing = f"--recipe {name}" if recipe.trunk is None else f"--trunk {recipe.trunk}"
    if (
        "train_parts" in stated
        and "embed" in recipe.train_parts
        and (recipe.trunk, recipe.last_blocks) != (None, None)
    ):
        raise UsageError(
            f"`--train-parts embed` has no effect with `{freezing}`, which freezes the embedding",
            hint="leave out `embed` from `--train-parts`",
        )
    return recipe


class FinetuneExtension(Extension):
    """Options that a plugin adds to `finetune`. The base class adds none: full fine-tuning of one model."""

    __slots__ = ()

    @property
    def models(self) -> int:
        """Number of models that train together and are not members of a hydra; 1 in this base class."""
        return 1

    @property
    def training(self) -> str:
        """Path of the training class, `module:name`."""
        return "hydractl.training.trainable:Training"

    def check_sharding(self) -> None:
        """Raise `UsageError` if the training does not support weights sharded by FSDP.

        The base class never raises.
        """

    def reference(self, model: str) -> str:
        """Return the reference of the model to train for the argument MODEL; here MODEL itself."""
        return model

    def recorded(self) -> dict[str, OptionValue]:
        """Return the options for the lineage by name. Options with the value None are not recorded."""
        return {}
