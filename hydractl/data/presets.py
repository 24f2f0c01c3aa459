"""Data sets by name, `preset:NAME[/SETS][::key=value,...]`. Importing this module loads only the table.

Images are the data sets of the paper: CIFAR, ImageNet-1k with the lists, folders and roles of OpenOOD 1.5
(Zhang et al. 2023, `openood/evaluation_api/datasets.py`), and the nine data sets of zero-shot classification.
Texts are SST-2 and its OOD sets, from the branch `OodEval` of torch-uncertainty by the paper's first author.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean, quoted

NEAR, FAR, OOD_VAL = "near", "far", "ood-val"
ROLES = (NEAR, FAR, OOD_VAL)
"""Roles of an OOD set: near OOD, far OOD, and OOD validation data."""
TEST = "test"
NOT_STATED, UNKNOWN = "not stated", "unknown"
"""Licence of data sets whose card on the Hub states no licence."""


@dataclass(frozen=True, slots=True)
class PresetPart:
    """Split of a data set on the Hub.

    Attributes:
        split: Name or slice of the split on the Hub.
        samples: Number of samples.
    """

    split: str
    samples: int


@dataclass(frozen=True, slots=True)
class Listed:
    """Images in a list of OpenOOD 1.5.

    Attributes:
        file: File name of the list.
        images: Folder of the image paths in the list.
        samples: Number of images. None if unknown.
    """

    file: str
    images: str
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Data set that is out-of-distribution for another data set.

    Attributes:
        name: Name in tables.
        role: One of `ROLES`.
        preset: Preset with exactly the same samples. None if the Hub lacks this data set.
        part: Part of the preset.
        listed: List in OpenOOD. None for texts.
    """

    name: str
    role: str
    preset: str | None = None
    part: str = TEST
    listed: Listed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Data set with a name.

    Attributes:
        name: Name after `preset:`.
        content: `images` or `texts`.
        about: Description in a few words.
        source: Reference on the Hub.
        options: Configuration and columns on the Hub.
        parts: Splits by name, always including `test`.
        classes: Number of classes. None without labels.
        licence: Licence on the Hub.
        home: Page about the data set.
        note: Advice for users, or None.
        benchmark: Name of the data set in OpenOOD. None if OpenOOD has no lists.
        listed: Lists of OpenOOD for the splits.
        outside: OOD sets.
        zero_shot: Whether the paper evaluates zero-shot classification on this data set.
    """

    name: str
    content: str
    about: str
    source: str
    options: Mapping[str, str]
    parts: Mapping[str, PresetPart]
    licence: str
    home: str
    classes: int | None = None
    note: str | None = None
    benchmark: str | None = None
    listed: Mapping[str, Listed] = field(default_factory=dict)
    outside: tuple[Outside, ...] = ()
    zero_shot: bool = False


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


TEXTS = (
    Preset(
        name="sst2",
        content="texts",
        about="Stanford Sentiment Treebank, two classes of film reviews (Socher et al. 2013), as GLUE has it",
        source="hf:nyu-mll/glue",
        options={"config": "sst2", "text": "sentence", "label": "label"},
        # GLUE withholds the labels of its test split
        parts={
            "train": PresetPart("train[3000:]", 64349),
            "val": PresetPart("train[:3000]", 3000),
            TEST: PresetPart("validation", 872),
        },
        classes=2,
        licence="other",
        home="https://nlp.stanford.edu/sentiment/",
        note="As in the paper, `val` is the first 3,000 rows of GLUE's training data, and `test` GLUE's validation data.",
        outside=(
            Outside(name="yelp", role=NEAR, preset="yelp"),
            Outside(name="amazon", role=NEAR, preset="amazon"),
            Outside(name="20-newsgroups", role=FAR, preset="20-newsgroups"),
            Outside(name="trec", role=FAR, preset="trec"),
            Outside(name="mnli", role=FAR, preset="mnli"),
            Outside(name="rte", role=FAR, preset="rte"),
            Outside(name="wmt16", role=FAR, preset="wmt16"),
            Outside(name="ag-news", role=OOD_VAL, preset="ag-news"),
        ),
    ),
    Preset(
        name="yelp",
        content="texts",
        about="reviews of places, two classes (Zhang et al. 2015)",
        source="hf:fancyzhx/yelp_polarity",
        options={"text": "text", "label": "label"},
        parts={"train": PresetPart("train", 560000), TEST: PresetPart("test", 38000)},
        classes=2,
        licence=NOT_STATED,
        home="https://arxiv.org/abs/1509.01626",
    ),
    Preset(
        name="amazon",
        content="texts",
        about="reviews of goods, two classes (McAuley and Leskovec 2013; Zhang et al. 2015), without their titles",
        source="hf:fancyzhx/amazon_polarity",
        options={"text": "content", "label": "label"},
        parts={"train": PresetPart("train", 3600000), TEST: PresetPart("test", 400000)},
        classes=2,
        licence="apache-2.0",
        home="https://arxiv.org/abs/1509.01626",
    ),
    Preset(
        name="ag-news",
        content="texts",
        about="news, four classes (Zhang et al. 2015)",
        source="hf:fancyzhx/ag_news",
        options={"text": "text", "label": "label"},
        parts={"train": PresetPart("train", 120000), TEST: PresetPart("test", 7600)},
        classes=4,
        licence=UNKNOWN,
        home="https://arxiv.org/abs/1509.01626",
    ),
    Preset(
        name="20-newsgroups",
        content="texts",
        about="posts to newsgroups, 20 classes, without headers, signatures and quotations",
        source="hf:SetFit/20_newsgroups",
        options={"text": "text", "label": "label"},
        parts={"train": PresetPart("train", 11314), TEST: PresetPart("test", 7532)},
        classes=20,
        licence=NOT_STATED,
        home="https://scikit-learn.org/0.19/datasets/twenty_newsgroups.html",
    ),
    Preset(
        name="trec",
        content="texts",
        about="questions (Li and Roth 2002), six coarse classes",
        source="hf:SetFit/TREC-QC",
        options={"text": "text", "label": "label_coarse_text"},
        parts={"train": PresetPart("train", 5452), TEST: PresetPart("test", 500)},
        classes=6,
        licence=NOT_STATED,
        home="https://cogcomp.seas.upenn.edu/Data/QA/QC/",
    ),
    Preset(
        name="mnli",
        content="texts",
        about="pairs of sentences of other genres than its training data's (Williams et al. 2018), as GLUE has them",
        source="hf:nyu-mll/glue",
        options={"config": "mnli", "text": "premise+hypothesis", "label": "label"},
        parts={TEST: PresetPart("validation_mismatched", 9832)},
        classes=3,
        licence="other",
        home="https://gluebenchmark.com/",
    ),
    Preset(
        name="rte",
        content="texts",
        about="pairs of sentences, entailed or not, as GLUE has them",
        source="hf:nyu-mll/glue",
        options={"config": "rte", "text": "sentence1+sentence2", "label": "label"},
        parts={TEST: PresetPart("validation", 277)},
        classes=2,
        licence="other",
        home="https://gluebenchmark.com/",
    ),
    Preset(
        name="wmt16",
        content="texts",
        about="news in English, of the pairs with Romanian (Bojar et al. 2016)",
        source="hf:wmt/wmt16",
        options={"config": "ro-en", "text": "translation.en"},
        parts={TEST: PresetPart("test", 1999)},
        licence=UNKNOWN,
        home="https://www.statmt.org/wmt16/",
        note="Without labels.",
    ),
)


PREFIX = "preset:"
OPENOOD, SPLIT = "openood", "split"
LISTS = "benchmark_imglist"
"""Folder with the image lists of OpenOOD."""
FETCH = "https://github.com/Jingkang50/OpenOOD/blob/main/scripts/download/download.py"
PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in (*IMAGES, *TEXTS)})


def find(source: str, user_options: Mapping[str, str]) -> tuple[tuple[str, str, dict[str, str]], ...]:
    """Return the data sets of a reference.

    Args:
        source: `preset:NAME`, or `preset:NAME/SETS` for the OOD sets of a role or with a name.
        user_options: Options after `::`.

    Returns:
        For each data set its name in tables, its source and the options of the source.

    Raises:
        UsageError: If a data set, split or list does not exist.
    """
    name, slash, sets = source.removeprefix(PREFIX).partition("/")
    preset = of_name(name, reference=source)
    chosen = dict(user_options)
    folder = chosen.pop(OPENOOD, None)
    if folder is not None and preset.benchmark is None:
        raise UsageError(f"`{source}::{OPENOOD}={folder}`: OpenOOD has no lists for it", hint="leave it out")
    if not slash:
        return ((name, *_source_of_split(preset, chosen.pop(SPLIT, TEST), folder, chosen)),)
    if SPLIT in chosen:
        raise UsageError(
            f"`{source}::{SPLIT}={chosen[SPLIT]}`: an OOD set has only one split",
            hint="leave it out, or give the data set under its own name",
        )
    return tuple(
        (ood_set.name, *_outside(preset, ood_set, folder, chosen)) for ood_set in _named(preset, sets)
    )


def of_name(name: str, *, reference: str) -> Preset:
    """Return the preset with a name.

    Args:
        name: The name.
        reference: Reference in messages.

    Raises:
        UsageError: If no preset has this name.
    """
    if name not in PRESETS:
        raise UsageError(
            f"`{reference}`: there is no data set of that name",
            hint=did_you_mean(name, PRESETS) or "`hydractl data list` lists the names",
        )
    return PRESETS[name]


def _named(preset: Preset, sets: str) -> tuple[Outside, ...]:
    ood_sets = tuple(ood_set for ood_set in preset.outside if sets in {ood_set.role, ood_set.name})
    if ood_sets:
        return ood_sets
    if not preset.outside:
        raise UsageError(
            f"`{PREFIX}{preset.name}/{sets}`: has no OOD sets",
            hint=(
                f"data sets with OOD sets: {quoted(preset.name for preset in PRESETS.values() if preset.outside)}"
            ),
        )
    choices = [role for role in ROLES if any(ood_set.role == role for ood_set in preset.outside)]
    choices += [ood_set.name for ood_set in preset.outside]
    raise UsageError(
        f"`{PREFIX}{preset.name}/{sets}`: is neither a role nor one of its sets",
        hint=did_you_mean(sets, choices) or f"available: {quoted(choices)}",
    )


def _source_of_split(
    preset: Preset, split: str, folder: str | None, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    parts = preset.listed if folder is not None else preset.parts
    if split not in parts:
        elsewhere = folder is None and split in preset.listed
        raise UsageError(
            f"`{PREFIX}{preset.name}::{SPLIT}={split}`: available splits are {quoted(parts)}",
            hint=f"OpenOOD has a list of that split: {_how(preset)}"
            if elsewhere
            else did_you_mean(split, parts),
        )
    if folder is not None:
        return _of_list(preset, preset.listed[split], folder, chosen)
    return preset.source, {**preset.options, SPLIT: preset.parts[split].split, **chosen}


def _outside(
    preset: Preset, ood_set: Outside, folder: str | None, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    if folder is not None and ood_set.listed is not None:
        return _of_list(preset, ood_set.listed, folder, chosen)
    if ood_set.preset is None:
        raise UsageError(
            f"`{PREFIX}{preset.name}/{ood_set.name}`: is a list of OpenOOD without a known data "
            "set on the Hub that has exactly its images",
            hint=_how(preset),
        )
    return _source_of_split(PRESETS[ood_set.preset], ood_set.part, None, chosen)


def _how(preset: Preset) -> str:
    return (
        f"download OpenOOD's lists and images ({FETCH}), then add `{OPENOOD}=DIR` with the folder that contains "
        f"`{LISTS}/{preset.benchmark}/`; or use another set"
    )


def _of_list(
    preset: Preset, listed: Listed, folder: str, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    base = folder.rstrip("/") or folder
    return f"{base}/{LISTS}/{preset.benchmark}/{listed.file}", {"root": f"{base}/{listed.images}", **chosen}
