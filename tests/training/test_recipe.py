"""Recipes: the named recipes of the paper, overrides, and errors."""

from __future__ import annotations

import pytest

from hydractl.data.preprocess import AUGMENTATIONS
from hydractl.errors import UsageError
from hydractl.families.base import position_of
from hydractl.families.registry import family_for_name
from hydractl.heads.masks import full_mask
from hydractl.settings import words
from hydractl.training.optimizers import trainable
from hydractl.training.recipe import PARTS, RECIPES, Recipe, parse_rates, parse_warmup, recipe_of

TINY = "vit_tiny_patch16_224"
OPTIONS = {
    "img_size": 8,
    "patch_size": 4,
    "in_chans": 1,
    "embed_dim": 8,
    "depth": 6,
    "num_heads": 2,
    "num_classes": 7,
}


def test_imagenet_recipe_is_the_papers():
    found = RECIPES["imagenet1k"]

    assert (found.optimizer, found.lr, found.momentum) == ("sgd", (0.003, 0.01, 0.03, 0.06), 0.9)
    assert (found.warmup, found.schedule, found.floor, found.steps) == (5000, "cosine", 1e-5, 120_000)
    assert (set(found.augment), found.label_smoothing, found.dropout) == (
        {"rrc", "flip", "randaugment"},
        0.1,
        0.1,
    )


def test_cifar_recipe_is_the_papers():
    found = RECIPES["cifar100"]

    assert (found.optimizer, found.lr) == ("sgd", (0.001, 0.003, 0.01, 0.03))
    assert (found.warmup, found.steps, set(found.augment)) == (500, 10_000, {"rrc", "flip"})
    assert (found.label_smoothing, found.last_blocks, found.reset_head) == (0.1, 5, True)


def test_recipes_name_known_augmentations():
    assert all(set(recipe.augment) <= set(AUGMENTATIONS) for recipe in RECIPES.values())


@pytest.mark.parametrize("name", [None, *RECIPES])
def test_without_overrides_a_recipe_is_itself(name):
    overrides = {"lr": None, "steps": None, "train_parts": None, "reset_head": None}

    assert recipe_of(name, overrides) == (RECIPES[name] if name else Recipe())


def test_an_override_changes_its_field_and_no_other():
    found = recipe_of("imagenet1k", {"batch_size": 8, "lr": (0.5,), "augment": ()})

    assert (found.batch_size, found.lr, found.augment) == (8, (0.5,), ())
    assert (found.steps, found.warmup) == (120_000, 5000)


def test_epochs_take_the_place_of_a_recipes_steps():
    found = recipe_of("cifar100", {"epochs": 3})

    assert (found.steps, found.epochs, found.total_steps(200)) == (None, 3, 600)


def test_another_optimizer_has_its_own_rate():
    assert recipe_of("cifar100", {"optimizer": "adamw"}).lr == Recipe(optimizer="adamw").lr


def test_parts_are_kept_in_one_order():
    assert Recipe(train_parts=("head", "norm")) == Recipe(train_parts=("norm", "head"))


def test_early_stopping_keeps_the_best():
    assert Recipe(early_stop=2).keep_best


@pytest.mark.parametrize(
    ("text", "warmup", "steps"), [("7", 7, 7), ("0", 0, 0), ("0.25", 0.25, 10), (None, 0.05, 2)]
)
def test_warmup_is_steps_or_a_fraction(text, warmup, steps):
    recipe = recipe_of(None, {"warmup": text and parse_warmup(text)})

    assert recipe.warmup == warmup
    assert recipe.warmup_steps(40) == steps


def test_warmup_that_leaves_nothing_is_refused():
    with pytest.raises(UsageError, match="warm-up of 5000 steps takes all of the 100 steps"):
        recipe_of("imagenet1k", {"steps": 100}).total_steps(10)


@pytest.mark.parametrize(("text", "names"), [("a,b", ("a", "b")), (" a , b ", ("a", "b")), ("none", ())])
def test_lists(text, names):
    assert words("--augment", text) == names


@pytest.mark.parametrize("call", [
    lambda: words("--train-parts", "a,,b"),
    lambda: parse_rates("0.1,x"),
    lambda: parse_rates("nan"),
    lambda: parse_warmup("soon"),
])  # fmt: skip
def test_malformed_texts_are_refused(call):
    with pytest.raises(UsageError, match="`--"):
        call()


@pytest.mark.parametrize(("field", "value", "said"), [
    ("optimizer", "adam", "--optimizer adam"),
    ("schedule", "step", "--schedule step"),
    ("precision", "fp16", "--precision fp16"),
    ("train_parts", ("attention", "gates"), "--train-parts gates"),
    ("train_parts", (), "nothing would train"),
    ("lr", (0.0,), "--lr 0"),
    ("lr", (0.1, 0.1), "repeats a learning rate"),
    ("steps", 0, "--steps 0"),
    ("epochs", 0, "--epochs 0"),
    ("batch_size", 0, "--batch-size 0"),
    ("accumulate", 0, "--accumulate 0"),
    ("early_stop", 0, "--early-stop 0"),
    ("eval_every", 0, "--eval-every 0"),
    ("trunk", -1, "--trunk -1"),
    ("layer_decay", 0.0, "--layer-decay 0`: must be above 0 and at most 1"),
    ("layer_decay", 1.5, "--layer-decay 1.5`: must be above 0 and at most 1"),
    ("floor", 1.5, "--min-lr-rate 1.5"),
    ("ema", 1.0, "--ema 1"),
    ("swa", 1.5, "--swa 1.5`: must be above 0 and below 1"),
    ("weight_decay", -0.1, "--weight-decay -0.1"),
    ("patience_delta", -0.1, "--patience-delta -0.1"),
    ("clip", 0.0, "--clip 0"),
    ("momentum", 1.0, "--momentum 1"),
    ("label_smoothing", 1.0, "--label-smoothing 1"),
    ("dropout", -0.5, "--dropout -0.5"),
    ("warmup", 1.5, "--warmup 1.5"),
    ("warmup", -1, "--warmup -1"),
])  # fmt: skip
def test_each_field_has_its_range(field, value, said):
    with pytest.raises(UsageError) as caught:
        recipe_of(None, {field: value})

    assert said in caught.value.message


@pytest.mark.parametrize(("one", "other"), [("steps", "epochs"), ("ema", "swa")])
def test_two_of_a_kind_exclude_each_other_and_replace_a_recipes(one, other):
    values = {"ema": 0.5}
    with pytest.raises(UsageError, match="exclude"):
        recipe_of(None, {one: values.get(one, 1), other: 1})
    name = {"steps": "cifar100", "ema": "vit-finetune"}[one]
    found = recipe_of(name, {other: 3})
    assert getattr(RECIPES[name], one)
    assert (getattr(found, one), getattr(found, other)) == (None, 3)


def test_a_trunk_replaces_the_last_blocks_of_a_recipe():
    found = recipe_of("cifar100", {"trunk": 3})
    assert (found.trunk, found.last_blocks) == (3, None)
    assert found.options()["freeze_blocks"] == 3


@pytest.mark.parametrize("field", ["ema", "mixup", "cutmix"])
def test_zero_takes_back_what_a_recipe_says(field):
    assert getattr(RECIPES["vit-finetune"], field)
    assert getattr(recipe_of("vit-finetune", {field: 0.0}), field) is None


@pytest.mark.parametrize(("recipe", "said", "hint"), [
    (Recipe(epochs=3, swa=3), "`--swa 3` averages fewer than two sets of weights: 12 steps are 3 epochs", "`--epochs`"),
    (Recipe(epochs=3, swa=0.9), "`--swa 0.9`", "`--epochs`"),
    (Recipe(steps=1, swa=50), "`--swa 50` .*: 1 step is 0.25 epochs", "`--steps`"),
    (Recipe(epochs=3, swa=1, warmup=5), "`--swa 1` begins at step 4, within the warm-up of 5 steps", "`--warmup`"),
])  # fmt: skip
def test_means_that_cannot_be_are_refused_before_training(recipe, said, hint):
    with pytest.raises(UsageError, match=said) as caught:
        recipe.total_steps(4)
    assert hint in caught.value.hint


def test_a_zero_head_that_does_not_train_is_refused():
    with pytest.raises(UsageError, match="--reset-head"):
        recipe_of(None, {"reset_head": True, "train_parts": tuple(p for p in PARTS if p != "head")})


@pytest.mark.parametrize(("name", "given", "options"), [
    (None, {"momentum": 0.5}, ("--momentum", "--optimizer sgd")),
    ("cifar100", {"momentum": 0.5, "optimizer": "adamw"}, ("--momentum", "--optimizer sgd")),
    (None, {"patience_delta": 0.1}, ("--patience-delta", "--early-stop")),
    (None, {"keep_best": False, "early_stop": 2}, ("--keep-last", "--early-stop")),
    (None, {"trunk": 2, "train_parts": ("head",)}, ("--trunk", "--train-parts head")),
    (None, {"layer_decay": 0.5, "train_parts": ("head",)}, ("--layer-decay", "--train-parts head")),
    (None, {"floor": 0.1, "schedule": "constant"}, ("--min-lr-rate", "--schedule constant")),
    (None, {"mixup": 0.1, "batch_size": 1}, ("--mixup", "--batch-size 1")),
    (None, {"train_parts": ("embed", "head"), "trunk": 1}, ("--train-parts embed", "--trunk 1")),
    ("cifar100", {"train_parts": ("embed", "head")}, ("--train-parts embed", "--recipe cifar100")),
])  # fmt: skip
def test_an_option_that_another_makes_idle_is_refused(name, given, options):
    with pytest.raises(UsageError) as caught:
        recipe_of(name, given)

    assert all(f"`{option}`" in caught.value.message for option in options)
    assert caught.value.hint


@pytest.mark.parametrize(("name", "given"), [
    (None, {"momentum": 0.5, "optimizer": "sgd"}),
    (None, {"patience_delta": 0.1, "early_stop": 2}),
    (None, {"keep_best": True, "early_stop": 2}),
    ("cifar100", {"train_parts": ("head",)}),
    ("vit-finetune", {"schedule": "constant", "train_parts": ("head",), "batch_size": 1}),
    ("cifar100", {"optimizer": "adamw"}),
])  # fmt: skip
def test_what_has_an_effect_is_not(name, given):
    assert recipe_of(name, given)


def test_options_without_effect_are_not_recorded():
    idle = {"momentum", "patience_delta", "floor", "last_blocks"}

    assert not idle & Recipe(schedule="constant").options().keys()
    assert not idle & Recipe(schedule="constant", last_blocks=2, train_parts=("head",)).options().keys()
    full = Recipe(optimizer="sgd", early_stop=2, last_blocks=2)
    assert idle <= full.options().keys()


def test_sst2_recipe_is_the_papers_where_the_paper_says():
    found = RECIPES["sst2"]

    assert (found.optimizer, found.lr, found.warmup, found.schedule) == ("adamw", (1e-5,), 0.1, "linear")
    assert (found.clip, found.label_smoothing, found.floor, found.augment) == (1.0, 0.0, 0.0, ())


def test_unknown_recipe():
    with pytest.raises(UsageError, match="unknown recipe `mnli`"):
        recipe_of("mnli", {})


@pytest.mark.parametrize("name", ["imagenet1k", "cifar100", "sst2"])
def test_after_pruning_embeddings_are_frozen(name):
    """Appendix D.2 of the paper: attention, MLPs, norms and the classifier train."""
    family, described = family_for_name(TINY), family_for_name(TINY).describe(TINY, OPTIONS)
    state = family.build(
        described.architecture, full_mask(described.architecture.towers), None
    ).library_state()

    names = trainable(family, described.architecture, RECIPES[name], state)

    places = [position_of(family, n) for n in names]
    assert {p.part for p in places} == {"norm", "attention", "mlp", "readout", "head"}
    assert {p.layer for p in places} == {None, *range(0 if name != "cifar100" else 1, 6)}


@pytest.mark.parametrize("name", ["imagenet1k", "cifar100"])
def test_rates_of_images_fall_to_a_floor(name):
    assert RECIPES[name].floor == 1e-5


def test_recipes_of_single_bases_are_the_papers():
    imagenet, cifar, sst2 = (RECIPES[f"{name}-base"] for name in ("imagenet1k", "cifar100", "sst2"))

    for found in (imagenet, cifar):
        assert (found.optimizer, found.momentum, found.weight_decay, found.dropout) == ("sgd", 0.9, 0.0, 0.0)
        assert (found.warmup, found.schedule, found.floor, found.augment) == (
            500,
            "cosine",
            0.0,
            ("rrc", "flip"),
        )
        assert (found.train_parts, found.reset_head, found.keep_best, found.label_smoothing) == (
            PARTS,
            True,
            True,
            0.0,
        )
    assert (imagenet.lr, imagenet.steps) == ((0.003, 0.01, 0.03, 0.06), 20_000)
    assert (cifar.lr, cifar.steps) == ((0.001, 0.003, 0.01, 0.03), 10_000)
    assert (sst2.optimizer, sst2.lr, sst2.weight_decay, sst2.clip) == ("adamw", (8e-6,), 0.01, 1.0)
    assert (sst2.warmup, sst2.schedule, sst2.epochs) == (0.1, "linear", 7)
    assert (sst2.early_stop, sst2.patience_delta, sst2.max_length, sst2.train_parts) == (2, 5e-4, 128, PARTS)


def test_recipes_of_pretrained_encoders_are_those_of_their_papers():
    vit, bert, sentence = (RECIPES[f"{name}-finetune"] for name in ("vit", "bert", "sentence"))

    assert (vit.optimizer, vit.lr, vit.layer_decay, vit.weight_decay) == ("adamw", (5e-4,), 0.65, 0.05)
    assert (vit.batch_size, vit.epochs, vit.warmup_steps(100)) == (256, 100, 5)
    assert vit.floor * vit.lr[0] == pytest.approx(1e-6)
    assert (vit.mixup, vit.cutmix, vit.label_smoothing, vit.drop_path, vit.ema) == (
        0.8,
        1.0,
        0.1,
        0.1,
        0.9998,
    )
    for text in (bert, sentence):
        assert (text.optimizer, text.schedule, text.warmup, text.batch_size) == ("adamw", "linear", 0.1, 32)
    assert (set(bert.lr), bert.epochs, bert.train_parts) == ({2e-5, 3e-5, 5e-5}, 3, PARTS)
    assert (sentence.epochs, "embed" in sentence.train_parts) == (20, False)


def test_what_is_new_leaves_no_trace_unasked():
    new = {"layer_decay", "ema", "swa", "mixup", "cutmix", "drop_path", "trunk"}

    assert not new & Recipe().options().keys()
