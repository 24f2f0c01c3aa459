"""Recipes by name: the paper's, and those that pretrained encoders are usually tuned with. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType

from hydractl.errors import UsageError
from hydractl.settings import declared, long_option
from hydractl.training.recipes.recipe import PARTS, Recipe

FOR_IMAGES = ("augment", "mixup", "cutmix")
"""Settings of recipes that apply only to images."""
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
            train=BUT_EMBEDDING,
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

Recipes for pretrained encoders, which are not the paper's:

`vit-finetune` is that of a masked autoencoder's ViT-B, and but for the rate that of BEiT (He et al. 2022, table 9; Bao et al.
2022), with the numbers of the former's code, where the table has a layer decay of 0.75: 5e-4 for each 256 samples of a batch, a
warm-up of 5 epochs in 100, down to 1e-6. RandAugment is the one of `imagenet1k`; random erasing, which that code calls of
smaller effect than chance, is left out. It answers with a mean of the weights, whose decay is that of Cai et al. (2022), who
tune the same encoders. For a ViT-L: `--lr 1e-3 --layer-decay 0.75 --drop-path 0.2 --epochs 50`.

`bert-finetune` is BERT's (Devlin et al. 2019, appendix A.3): the best of three rates on the validation data, 3 epochs, batches
of 32. Warm-up, weight decay, clipping and length are those of its code.

`sentence-finetune` is for encoders of sentences, such as MiniLM, and some tens of texts a class: more epochs, a warm-up and a
line down to nothing, which Mosbach et al. (2021, section 6) find stable for few samples; small encoders take the higher rates.
The embedding stays as it is: a few texts hold few of a language's words, and the vectors of those alone would move.
"""


EXCLUSIVE = tuple(
    (name, constraint.field_name)
    for name, setting in declared(Recipe).items()
    for constraint in setting.constraints("excludes")
)
"""Pairs of settings that exclude each other."""


def recipe_of(name: str | None, overrides: Mapping[str, object]) -> Recipe:
    """Return a named recipe, or the defaults, with every override that is not None.

    Raises:
        UsageError: If the name is unknown, the result is not a valid recipe, or an override would change nothing.
    """
    if name is not None and name not in RECIPES:
        raise UsageError(f"unknown recipe `{name}`", hint=f"use one of {', '.join(RECIPES)}")
    stated = {key: value for key, value in overrides.items() if value is not None}
    base = asdict(RECIPES[name]) if name is not None else {}
    for either in EXCLUSIVE:
        if stated.keys() & set(either):
            base |= dict.fromkeys(either)
    if stated.get("optimizer", base.get("optimizer")) != base.get("optimizer"):
        # a rate and a decay are meant for one optimiser
        base = {k: v for k, v in base.items() if k not in {"lr", "weight_decay"}}
    recipe = replace(Recipe(), **{"lr": (), "weight_decay": None, "epochs": None, **base, **stated})
    _refuse_idle(recipe, stated)
    return recipe


def _refuse_idle(recipe: Recipe, stated: Mapping[str, object]) -> None:
    """Refuse options that were given and that another one makes idle."""
    for name, constraint in recipe.idle().items():
        if name in stated:
            raise constraint.refusal(recipe, name, "only_with")
    if stated.get("keep_best") is False and recipe.early_stop is not None:
        raise UsageError(
            "`--keep-last` and `--early-stop` exclude each other: stopping early keeps the best weights",
            hint="leave one of them out",
        )
    blocks = next((name for name in ("last_blocks", "freeze_blocks") if name in recipe.options()), None)
    if "train" in stated and "embed" in recipe.train and blocks is not None:
        raise UsageError(
            f"`--train embed` has no effect with `{long_option(blocks)} "
            f"{getattr(recipe, blocks)}`, which freezes the embedding",
            hint="leave out `embed` from `--train`",
        )
