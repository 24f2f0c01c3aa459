"""The options of each baseline, as `eval --compare KIND:MODEL::OPTIONS` takes them. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from typing_extensions import override

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.parsing import number, whole_number
from hydractl.settings import LARGEST_SEED, Constraint, Setting, by_default, check, required, setting
from hydractl.stages.evaluate.baselines.base import BaselineOptions

KRON, FULL = "kron", "full"
PROBIT, SAMPLES = "probit", "samples"
CROPS, NONE = "crops", "none"
DRAWS = 20
SEED = Setting("Of what is drawn.", parse=whole_number, low=0, high=LARGEST_SEED, option_names=("seed",))
FEWEST = 2
"""Checkpoints or pairs that tell something."""


_real = partial(number, "option")


@dataclass(frozen=True, slots=True, kw_only=True)
class McDropoutOptions(BaselineOptions):
    """Dropout stays active: each pass is a member (Gal and Ghahramani 2016)."""

    KIND: ClassVar = "mc"
    EXAMPLE: ClassVar = "mc:base.st::passes=10,rate=0.1"
    MODULE: ClassVar = "hydractl.research.baselines.mc_dropout"

    passes: int = setting(
        10, "Forward passes.", parse=whole_number, low=1, high=256, option_names=("passes",)
    )
    rate: float | None = setting(
        None,
        "The share dropped; None: as each layer says.",
        parse=_real,
        above=0.0,
        below=1.0,
        option_names=("rate",),
    )
    seed: int = by_default(0, SEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceOptions(BaselineOptions):
    """A normal distribution over the weights of the last layer, as curved as the loss on training data."""

    KIND: ClassVar = "laplace"
    EXAMPLE: ClassVar = "laplace:base.st::data=train/"
    MODULE: ClassVar = "hydractl.research.baselines.laplace"

    data: DataRef = required(
        Setting("What the model was trained on; labels are not read.", parse=DataRef.parse)
    )
    hessian: str = setting(
        KRON, "How the curvature is kept.", choices=(KRON, FULL), option_names=("hessian",)
    )
    predictive: str = setting(
        PROBIT,
        "How logits of many weights become one.",
        choices=(PROBIT, SAMPLES),
        option_names=("predictive",),
    )
    samples: int | None = setting(
        None,
        f"Weights to draw (default {DRAWS}).",
        parse=whole_number,
        low=1,
        high=256,
        option_names=("samples",),
        only_with=Constraint("predictive", (SAMPLES,)),
    )
    prior: float | None = setting(
        None,
        "Precision of the prior; None: what makes the data likeliest.",
        parse=_real,
        above=0.0,
        finite=True,
        option_names=("prior",),
        excludes=Constraint("val", why="the prior precision is either given or selected"),
    )
    val: DataRef | None = setting(
        None,
        "Labelled held-out data: the prior is the one of the lowest NLL there.",
        parse=DataRef.parse,
        option_names=("val",),
    )
    seed: int = by_default(0, SEED)

    def __post_init__(self) -> None:
        check(self)
        if self.samples is None and self.predictive == SAMPLES:
            object.__setattr__(self, "samples", DRAWS)

    @property
    def reads(self) -> DataRef:
        """What the model's own inputs are made of."""
        return self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class SwagOptions(BaselineOptions):
    """Weights are drawn around the mean of several checkpoints of one training (Maddox et al. 2019)."""

    KIND: ClassVar = "swag"
    EXAMPLE: ClassVar = "swag:a.st,b.st,c.st::samples=10,rank=20"
    MODULE: ClassVar = "hydractl.research.baselines.swag"
    SEVERAL: ClassVar = True

    samples: int = setting(
        10, "Weights to draw, each a member.", parse=whole_number, low=1, high=256, option_names=("samples",)
    )
    rank: int = setting(
        20,
        "Of how many of the last checkpoints deviations are kept.",
        parse=whole_number,
        low=2,
        option_names=("rank",),
    )
    scale: float = setting(
        0.5,
        "What their covariance is multiplied with.",
        parse=_real,
        above=0.0,
        finite=True,
        option_names=("scale",),
    )
    seed: int = by_default(0, SEED)
    checkpoints: int = 2
    """How many there are."""

    @override
    def made_of(self, checkpoints: int) -> Self:
        return replace(self, checkpoints=checkpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesVlmOptions(BaselineOptions):
    """A normal distribution over the projections of a model that compares images with texts (Baumann et al. 2024)."""

    KIND: ClassVar = "bayesvlm"
    EXAMPLE: ClassVar = "bayesvlm:clip.st::data=pairs.jsonl::text=caption"
    MODULE: ClassVar = "hydractl.research.baselines.bayesvlm"

    data: DataRef = required(Setting("Images with a caption each.", parse=DataRef.parse))
    count: float = setting(
        10.0,
        "How many pairs the data count for.",
        parse=_real,
        above=0.0,
        finite=True,
        option_names=("count",),
    )
    contrast: int = setting(
        32768, "How many pairs are told apart at once.", parse=whole_number, low=2, option_names=("contrast",)
    )
    prior_image: float | None = setting(
        None,
        "Precision of the prior of images' projection; None: the authors' choice.",
        parse=_real,
        above=0.0,
        finite=True,
        option_names=("prior_image",),
    )
    prior_text: float | None = setting(
        None, "Likewise of texts'.", parse=_real, above=0.0, finite=True, option_names=("prior_text",)
    )

    def __post_init__(self) -> None:
        check(self)
        if self.data.text is None or self.data.label is not None:
            raise UsageError(
                f"`data={self.data}`: needs the column with the captions",
                hint=f"add `text=COLUMN`, for example `{self.EXAMPLE}`",
            )

    @property
    def reads(self) -> DataRef:
        """The images, as which the model reads them."""
        return replace(self.data, text=None)

    @property
    def captions(self) -> DataRef:
        """Their captions, in the same order."""
        return replace(self.data, image=None, decode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViluOptions(BaselineOptions):
    """A small network says how likely an answer of a model that compares images with texts is right (Lafon et al. 2025).

    The row has the model's own answers and probabilities; what it says is its confidence.
    """

    KIND: ClassVar = "vilu"
    EXAMPLE: ClassVar = "vilu:clip.st::epochs=100,data=train/"
    MODULE: ClassVar = "hydractl.research.baselines.vilu"
    LABELLED: ClassVar = True
    TRAINS: ClassVar = True
    REFUSED_AS_MEMBER: ClassVar = "predicts whether a single model is correct, not an ensemble"
    OWN_CONFIDENCE: ClassVar = True

    data: DataRef = required(Setting("Labelled images of the model's classes.", parse=DataRef.parse))
    epochs: int = setting(
        300, "As often each image is seen.", parse=whole_number, low=1, option_names=("epochs",)
    )
    batch: int = setting(512, "Images in a batch.", parse=whole_number, low=1, option_names=("batch",))
    lr: float = setting(
        1e-3, "Learning rate after the warm-up.", parse=_real, above=0.0, finite=True, option_names=("lr",)
    )
    augment: str = setting(
        CROPS,
        f"`{CROPS}`: each image is cropped, flipped and embedded anew in every epoch; `{NONE}`: once for all.",
        choices=(CROPS, NONE),
        option_names=("augment",),
    )
    thaw: int | None = setting(
        None,
        "After how many steps the attention's projections train; None: never.",
        parse=whole_number,
        low=0,
        option_names=("thaw",),
    )
    seed: int = by_default(0, replace(SEED, help="Of weights, and of the order of images and their crops."))

    @property
    def augments(self) -> tuple[str, ...]:
        """As `--augment` of `finetune`."""
        return ("rrc", "flip") if self.augment == CROPS else ()

    @property
    def reads(self) -> DataRef:
        """What the model's own inputs are made of."""
        return self.data


BASELINES = (McDropoutOptions, LaplaceOptions, SwagOptions, BayesVlmOptions, ViluOptions)
