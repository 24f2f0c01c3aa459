"""The paper's data sets of images: CIFAR, ImageNet-1k with OpenOOD's lists, the nine of zero-shot classification.

OpenOOD 1.5 (Zhang et al. 2023): its lists, folders and roles are those of `openood/evaluation_api/datasets.py`.
"""

from __future__ import annotations

from hydractl.data.presets.schema import (
    FAR,
    NEAR,
    NOT_STATED,
    OOD_VAL,
    TEST,
    UNKNOWN,
    Listed,
    Outside,
    Preset,
    PresetPart,
)

CLASSIC, LARGE = "images_classic", "images_largescale"
ALL = "all"
_CIFAR_FAR = (
    Outside(
        name="mnist", role=FAR, preset="mnist", part=ALL, listed=Listed("test_mnist.txt", CLASSIC, 70000)
    ),
    Outside(name="svhn", role=FAR, preset="svhn", listed=Listed("test_svhn.txt", CLASSIC, 26032)),
    Outside(
        name="textures", role=FAR, preset="dtd", part=ALL, listed=Listed("test_texture.txt", CLASSIC, 5640)
    ),
)
IMAGES = (
    Preset(
        name="cifar100",
        content="images",
        about="32 x 32 photographs, 100 classes (Krizhevsky 2009)",
        source="hf:uoft-cs/cifar100",
        options={"image": "img", "label": "fine_label"},
        parts={"train": PresetPart("train", 50000), TEST: PresetPart("test", 10000)},
        classes=100,
        licence=UNKNOWN,
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        note="OpenOOD's lists make 1,000 of the test images `val`. The paper chooses heads by Tiny ImageNet (`ood-val`) and so "
        "leaves it out of `near`: `--near preset:cifar100/cifar10`.",
        benchmark="cifar100",
        listed={
            "train": Listed("train_cifar100.txt", CLASSIC, 50000),
            "val": Listed("val_cifar100.txt", CLASSIC, 1000),
            TEST: Listed("test_cifar100.txt", CLASSIC, 9000),
        },
        outside=(
            Outside(
                name="cifar10", role=NEAR, preset="cifar10", listed=Listed("test_cifar10.txt", CLASSIC, 10000)
            ),
            Outside(name="tin", role=NEAR, listed=Listed("test_tin.txt", CLASSIC, 6526)),
            *_CIFAR_FAR,
            Outside(name="places365", role=FAR, listed=Listed("test_places365.txt", CLASSIC, 33773)),
            Outside(name="tin-val", role=OOD_VAL, listed=Listed("val_tin.txt", CLASSIC)),
        ),
        zero_shot=True,
    ),
    Preset(
        name="cifar10",
        content="images",
        about="32 x 32 photographs, 10 classes (Krizhevsky 2009)",
        source="hf:uoft-cs/cifar10",
        options={"image": "img", "label": "label"},
        parts={"train": PresetPart("train", 50000), TEST: PresetPart("test", 10000)},
        classes=10,
        licence=UNKNOWN,
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        note="OpenOOD's lists make 1,000 of the test images `val`.",
        benchmark="cifar10",
        listed={
            "train": Listed("train_cifar10.txt", CLASSIC, 50000),
            "val": Listed("val_cifar10.txt", CLASSIC, 1000),
            TEST: Listed("test_cifar10.txt", CLASSIC, 9000),
        },
        outside=(
            Outside(name="cifar100", role=NEAR, listed=Listed("test_cifar100.txt", CLASSIC, 9000)),
            Outside(name="tin", role=NEAR, listed=Listed("test_tin.txt", CLASSIC, 7793)),
            *_CIFAR_FAR,
            Outside(name="places365", role=FAR, listed=Listed("test_places365.txt", CLASSIC, 35195)),
            Outside(name="tin-val", role=OOD_VAL, listed=Listed("val_tin.txt", CLASSIC)),
        ),
        zero_shot=True,
    ),
    Preset(
        name="imagenet-1k",
        content="images",
        about="photographs, 1,000 classes (Russakovsky et al. 2015)",
        source="hf:ILSVRC/imagenet-1k",
        options={"image": "image", "label": "label"},
        parts={"train": PresetPart("train", 1281167), TEST: PresetPart("validation", 50000)},
        classes=1000,
        licence="other: for research that is not commercial",
        home="https://image-net.org/",
        note="Agree to the terms on its page on the Hub, then `hf auth login`. OpenOOD's lists make 5,000 of the validation images "
        "`val`. The paper chooses heads by OpenImage-O (`ood-val`) and so leaves it out of `far`: "
        "`--far preset:imagenet-1k/inaturalist::... --far preset:imagenet-1k/textures::...`.",
        benchmark="imagenet",
        listed={
            "train": Listed("train_imagenet.txt", LARGE, 1281167),
            "val": Listed("val_imagenet.txt", LARGE, 5000),
            TEST: Listed("test_imagenet.txt", LARGE, 45000),
        },
        outside=(
            Outside(name="ssb-hard", role=NEAR, listed=Listed("test_ssb_hard.txt", LARGE, 49000)),
            Outside(name="ninco", role=NEAR, listed=Listed("test_ninco.txt", LARGE, 5879)),
            Outside(name="inaturalist", role=FAR, listed=Listed("test_inaturalist.txt", LARGE, 10000)),
            Outside(name="textures", role=FAR, listed=Listed("test_textures.txt", CLASSIC, 5160)),
            Outside(name="openimage-o", role=FAR, listed=Listed("test_openimage_o.txt", LARGE, 15869)),
            Outside(name="openimage-o-val", role=OOD_VAL, listed=Listed("val_openimage_o.txt", LARGE, 1763)),
        ),
        zero_shot=True,
    ),
    Preset(
        name="food101",
        content="images",
        about="dishes, 101 classes (Bossard et al. 2014)",
        source="hf:ethz/food101",
        options={"image": "image", "label": "label"},
        parts={"train": PresetPart("train", 75750), TEST: PresetPart("validation", 25250)},
        classes=101,
        licence=UNKNOWN,
        home="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        zero_shot=True,
    ),
    Preset(
        name="sun397",
        content="images",
        about="scenes, 397 classes (Xiao et al. 2010)",
        source="hf:tanganke/sun397",
        options={"image": "image", "label": "label"},
        parts={"train": PresetPart("train", 19850), TEST: PresetPart("test", 19850)},
        classes=397,
        licence=NOT_STATED,
        home="https://vision.princeton.edu/projects/2010/SUN/",
        note="As many images as in each of the authors' partitions; the paper takes it from the Hub, and does not say whose copy.",
        zero_shot=True,
    ),
    Preset(
        name="oxford-pets",
        content="images",
        about="cats and dogs, 37 breeds (Parkhi et al. 2012)",
        source="hf:timm/oxford-iiit-pet",
        options={"image": "image", "label": "label"},
        parts={"train": PresetPart("train", 3680), TEST: PresetPart("test", 3669)},
        classes=37,
        licence="cc-by-sa-4.0",
        home="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        zero_shot=True,
    ),
    Preset(
        name="dtd",
        content="images",
        about="textures, 47 classes (Cimpoi et al. 2014)",
        source="hf:tanganke/dtd",
        options={"image": "image", "label": "label"},
        parts={
            "train": PresetPart("train", 3760),
            TEST: PresetPart("test", 1880),
            ALL: PresetPart("train+test", 5640),
        },
        classes=47,
        licence=NOT_STATED,
        home="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        note="`train` is the authors' training and validation data. `all` is `textures` of OpenOOD's lists for CIFAR.",
        zero_shot=True,
    ),
    Preset(
        name="eurosat",
        content="images",
        about="64 x 64 satellite images, 10 kinds of land (Helber et al. 2018)",
        source="hf:timm/eurosat-rgb",
        options={"image": "image", "label": "label"},
        parts={
            "train": PresetPart("train", 16200),
            "val": PresetPart("validation", 5400),
            TEST: PresetPart("test", 5400),
            ALL: PresetPart("train+validation+test", 27000),
        },
        classes=10,
        licence="mit",
        home="https://github.com/phelber/EuroSAT",
        note="torchvision, which the paper takes it from, has it in one part: `split=all`.",
        zero_shot=True,
    ),
    Preset(
        name="caltech101",
        content="images",
        about="objects, 101 classes (Fei-Fei et al. 2004), without the class of backgrounds",
        source="hf:flwrlabs/caltech101",
        options={"image": "image", "label": "label"},
        parts={TEST: PresetPart("train", 8677)},
        classes=101,
        licence="unknown of this copy; cc-by-4.0 of the original",
        home="https://data.caltech.edu/records/20086",
        note="In one part, as torchvision has it, which the paper takes it from.",
        zero_shot=True,
    ),
    Preset(
        name="mnist",
        content="images",
        about="28 x 28 digits by hand (LeCun et al. 1998)",
        source="hf:ylecun/mnist",
        options={"image": "image", "label": "label"},
        parts={
            "train": PresetPart("train", 60000),
            TEST: PresetPart("test", 10000),
            ALL: PresetPart("train+test", 70000),
        },
        classes=10,
        licence="see its page",
        home="https://huggingface.co/datasets/ylecun/mnist",
        note="`all` is what OpenOOD lists for CIFAR.",
    ),
    Preset(
        name="svhn",
        content="images",
        about="32 x 32 digits of house numbers (Netzer et al. 2011)",
        source="hf:ufldl-stanford/svhn",
        options={"config": "cropped_digits", "image": "image", "label": "label"},
        parts={"train": PresetPart("train", 73257), TEST: PresetPart("test", 26032)},
        classes=10,
        licence="other: not commercial",
        home="http://ufldl.stanford.edu/housenumbers/",
    ),
)
