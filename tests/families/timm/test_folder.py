"""Fields of timm's `config.json` that change inputs or outputs are honoured like in timm, or refused.

Each rule is tested with a folder that sets only this field.
"""

from __future__ import annotations

import json
import warnings

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import CustomDatasetInfo, create_transform, resolve_data_config

from hydractl.data.preprocess import eval_transform
from hydractl.errors import HydraError
from hydractl.families.base import COMMON_RULES
from hydractl.families.open_model import load_model, open_model
from hydractl.families.timm.models import RULES
from hydractl.families.tower import largest_difference
from support.builders import over_classes

ARCH = "vit_tiny_patch16_384"  # the images of this architecture have another size than timm's default
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
CLASSES = "abcde"
PICTURES = [Image.effect_noise((70, 47), 90).convert("RGB"), Image.effect_noise((33, 64), 40).convert("RGB")]
LIBRARY = None
"""Expected result: the library's logits."""
BACKBONE = "backbone: "
"""Prefix of reasons for folders that only `finetune` accepts."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder written by timm, of a model with a random classifier."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    model = timm.create_model(ARCH, num_classes=5, **TINY)
    torch.nn.init.normal_(model.head.weight)
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    return folder


def configured(**changes):
    return lambda config: {k: v for k, v in (config | changes).items() if v is not ...}


def preprocessing(**changes):
    return lambda config: config | {"pretrained_cfg": configured(**changes)(config["pretrained_cfg"])}


def arguments(**changes):
    return lambda config: config | {"model_args": configured(**changes)(config["model_args"])}


def flat(**changes):
    """Return a change to the older form: `pretrained_cfg` is the whole file, without `model_args`."""
    return lambda config: {**config["pretrained_cfg"], "architecture": ARCH, "num_classes": 5, **changes}


SAID = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bilinear", "crop_pct": 0.6}
CASES = {
    "`architecture`, `model_args`": [
        (configured(), LIBRARY),
        (configured(architecture=f"{ARCH}.augreg_in21k_ft_in1k"), LIBRARY),
        (configured(architecture=f"{ARCH}.unheard_of"), LIBRARY),
        (configured(architecture="vit_small_patch16_224"), LIBRARY),
        (arguments(act_layer="relu"), LIBRARY),
        (arguments(norm_layer="unheard_of"), "timm cannot build"),
        (arguments(drop_path_rate=0.5), LIBRARY),
        (arguments(init_values=None), "`model_args.init_values` is null"),
        (arguments(in_chans=3, dynamic_img_size=True), LIBRARY),
        (arguments(in_chans=1), "has shape"),
        (arguments(unheard_of=1), "has no option `unheard_of`"),
        (arguments(checkpoint_path="x.pth"), "has no option `checkpoint_path`"),
        (configured(model_args=[1]), "must be objects"),
    ],
    "no `pretrained_cfg` (older form)": [
        (configured(pretrained_cfg=..., model_args=...), "`global_pool` is not a field"),
        (configured(pretrained_cfg=..., global_pool=...), "`model_args` is not a field"),
    ],
    "`mean`, `std`, `interpolation`, `crop_pct`, `crop_mode`": [
        *[(preprocessing(**{key: value}), LIBRARY) for key, value in SAID.items()],
        *[(preprocessing(**{key: ...}), LIBRARY) for key in SAID],
        (preprocessing(crop_pct=0, interpolation="", mean=[]), LIBRARY),
        (preprocessing(mean=None, std=None), LIBRARY),
        *[(preprocessing(crop_mode=mode, crop_pct=0.7), LIBRARY) for mode in ("center", "squash", "border")],
        (configured(pretrained_cfg={}), LIBRARY),
        (preprocessing(interpolation="random"), "interpolation"),
        (preprocessing(crop_mode="unheard_of"), "crop_mode"),
        (preprocessing(std=[0, 0, 0]), "preprocessing is not supported"),
        (preprocessing(mean="dark"), "invalid mean"),
    ],
    "`input_size`, `fixed_input_size`": [
        (preprocessing(input_size=[3, 48, 48]), LIBRARY),  # `img_size` in `model_args` has precedence
        (preprocessing(input_size=[3, 48, 48], fixed_input_size=False), "builds a model for \\(3, 32, 32\\)"),
        (preprocessing(fixed_input_size=False), LIBRARY),
        (lambda c: arguments(dynamic_img_size=True)(preprocessing(input_size=[3, 48, 64])(c)), LIBRARY),
        (lambda c: arguments(dynamic_img_size=True)(preprocessing(input_size=...)(c)), LIBRARY),
        (lambda c: arguments(img_size=...)(preprocessing(input_size=[3, 32, 32])(c)), LIBRARY),
        (preprocessing(input_size=[3, 2**40, 2**40]), "input_size"),
        (preprocessing(input_size=5), "timm cannot build"),
    ],
    "other fields of `pretrained_cfg`": [
        (preprocessing(test_input_size=[3, 64, 64], test_crop_pct=1.0, min_input_size=[3, 8, 8]), LIBRARY),
        (preprocessing(tag="mine", url="https://example.org/w.pth", custom_load=True, first_conv=None), LIBRARY),
        (preprocessing(hf_hub_id="timm/unheard_of", file="unheard_of.pth", source="hf-hub"), LIBRARY),
        (preprocessing(classifier="head", pool_size=[7, 7], license="mit"), LIBRARY),
        (preprocessing(unheard_of=1), "`unheard_of` is not a field"),
        (configured(num_features=7, unheard_of=[1]), LIBRARY),
    ],
    "`global_pool` at the top level": [
        (configured(global_pool="token"), LIBRARY),
        (configured(global_pool=...), LIBRARY),
        (configured(global_pool="avg"), "builds a model with `token`"),
    ],
    "`num_classes`": [
        (configured(num_classes=...), LIBRARY),
        (preprocessing(num_classes=9), LIBRARY),  # the top level has precedence
        (configured(num_classes=6), f"{BACKBONE}`num_classes` is 6, but 5"),
        (lambda c: configured(num_classes=1)(arguments(num_classes=1)(c)), r"`head.bias` has shape \(5,\)"),
        (lambda c: configured(num_classes=0)(arguments(num_classes=0)(c)), f"{BACKBONE}has no classifier"),
    ],
    "`problem_type`": [
        (configured(problem_type="multi_label_classification"), LIBRARY),
        (configured(problem_type="single_label_classification"), LIBRARY),
        (configured(problem_type="regression"), f"{BACKBONE}`regression`"),
    ],
    "`label_names`": [
        (configured(label_names=[*CLASSES]), LIBRARY),
        (preprocessing(label_names=[*CLASSES]), LIBRARY),
        (configured(label_names={str(i): CLASSES[i] for i in (4, 2, 0, 1, 3)}), LIBRARY),
        (configured(label_names=[*CLASSES], label_descriptions={c: c.upper() for c in CLASSES}), LIBRARY),
        (configured(label_names=[*"abc"]), f"{BACKBONE}has 3 label names for 5 classes"),
        (configured(label_names={str(i): f"{i}" for i in range(1, 6)}), f"{BACKBONE}no name for class 0"),
        (configured(label_names={"a": "b"}), f"{BACKBONE}not class names"),
        (configured(label_names="abcde"), f"{BACKBONE}not class names"),
        (configured(label_names=[*"abcda"]), LIBRARY),
    ],
    "`label_offset`": [(preprocessing(label_offset=1, classifier="head"), f"{BACKBONE}`label_offset` is 1")],
}  # fmt: skip
ROWS = [
    pytest.param(change, answer, id=f"{name}-{i}")
    for name, cases in CASES.items()
    for i, (change, answer) in enumerate(cases)
]


def test_every_rule_has_a_folder():
    assert {rule.name for rule in RULES} == CASES.keys() | {rule.name for rule in COMMON_RULES}


def edited(saved, folder, change):
    """Copy a folder, with another `config.json`."""
    config = json.loads((saved / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(change(config)))
    save_file(load_file(saved / "model.safetensors"), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(("change", "answer"), ROWS)
def test_a_field_alone_is_honoured_as_timm_does_or_refused(saved, tmp_path, change, answer):
    folder = edited(saved, tmp_path, change)
    if answer is LIBRARY:
        check_answers(folder)
        return
    reason = answer.removeprefix(BACKBONE)
    with pytest.raises(HydraError, match=reason) as caught:
        open_model(str(folder))
    assert caught.value.exit_code == 3
    if answer == reason:
        with pytest.raises(HydraError, match=reason):
            open_model(str(folder), backbone=True)
    else:
        backbone = open_model(str(folder), backbone=True)
        assert reason in backbone.lacks
        assert not [name for name in backbone.checkpoint.specs if name.startswith("head.")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("resnet18", "ResNet"), ("cait_xxs24_224", "Cait"), ("swin_tiny_patch4_window7_224", "Swin")],
)
def test_a_folder_of_another_class_is_refused_by_the_name_of_its_class(saved, tmp_path, name, kind):
    folder = edited(saved, tmp_path, configured(architecture=name, model_args={}, pretrained_cfg={}))
    with pytest.raises(HydraError, match=f"`{name}` is not supported: class {kind}"):
        open_model(str(folder))


def check_answers(folder):
    """Compare class names, inputs and logits with timm's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    model_file = open_model(str(folder))
    preprocess = model_file.header.preprocess
    try:
        transform = create_transform(**resolve_data_config(model=library))
        expected = torch.stack([transform(picture) for picture in PICTURES])
        with torch.inference_mode():
            logits = library(expected)
    except AssertionError:  # timm's default size, which the model does not accept
        assert preprocess.input_size == (3, 32, 32)
        transform = create_transform(
            **resolve_data_config({"input_size": preprocess.input_size}, model=library)
        )
        expected = torch.stack([transform(picture) for picture in PICTURES])
        logits = library(expected).detach()
    inputs = torch.stack([eval_transform(preprocess)(picture) for picture in PICTURES])
    assert largest_difference(inputs, expected) <= 1e-6
    logits = over_classes(logits, multi_label=model_file.header.architecture.task.by_label)
    with torch.inference_mode():
        assert largest_difference(load_model(model_file)(inputs), logits) <= 1e-5
    names = library.pretrained_cfg.get("label_names")
    table = CustomDatasetInfo(names) if names else None
    assert model_file.header.labels == tuple(table.index_to_label_name(i) for i in range(5) if table)


@pytest.mark.parametrize(
    "changes",
    [{}, SAID, {"labels": [*CLASSES]}, {"label_names": [*CLASSES]}, {"crop_pct": None, "mean": None}, {"num_features": 3}],
    ids=str,
)  # fmt: skip
def test_the_older_form_is_read_as_timm_does(monkeypatch, saved, tmp_path, changes):
    """Without `model_args`, the architecture itself must be tiny."""
    from timm.models import vision_transformer

    whole = vision_transformer._create_vision_transformer
    monkeypatch.setattr(
        vision_transformer, "_create_vision_transformer", lambda *a, **k: whole(*a, **(TINY | k | TINY))
    )
    check_answers(edited(saved, tmp_path, flat(**changes)))


def test_a_number_is_the_lesser_word(tmp_path, saved):
    """Only `model_args` has the number of classes. timm would draw a new classifier."""
    change = lambda c: configured(num_classes=...)(preprocessing(num_classes=...)(c))
    assert open_model(str(edited(saved, tmp_path, change))).header.num_classes == 5
