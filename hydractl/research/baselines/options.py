"""The options of each baseline, as `eval --compare KIND:MODEL::OPTIONS` takes them. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Self

from typing_extensions import override

from hydractl.data.presets import PREFIX
from hydractl.data.reference import KEYS, DataRef, split_source
from hydractl.errors import UsageError
from hydractl.evaluation.options import NamedModels, RowSyntax, continues_options, model_name, split_models
from hydractl.provenance.command_config import shaping_settings
from hydractl.settings import (
    LARGEST_SEED,
    CheckedSettings,
    Constraint,
    Setting,
    by_default,
    check,
    number,
    required,
    setting,
    whole_number,
    written,
)

DATA, VAL = "data", "val"
KRON, FULL = "kron", "full"
PROBIT, SAMPLES = "probit", "samples"
CROPS, NONE = "crops", "none"
DRAWS = 20
SEED = Setting("Of what is drawn.", parse=whole_number, low=0, high=LARGEST_SEED, option_names=("seed",))
FEWEST = 2
"""Smallest number of checkpoints or pairs."""


_real = partial(number, "option")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineOptions(CheckedSettings):
    """Options of what is made of models and answers in their place: a subclass is a frozen dataclass of declared settings.

    Attributes:
        KIND: What `--compare` calls it.
        EXAMPLE: What hints show.
        MODULE: Its `BaselineModule`.
        SEVERAL: Whether it is made of several models.
        LABELLED: Whether labels of `reads` are read.
        TRAINS: Whether multiply-accumulates of its training are counted.
        REFUSED_AS_MEMBER: Why it cannot be a member of a row of several models; empty if it can.
        OWN_CONFIDENCE: Whether it says how confident it is, beside its probabilities.
    """

    KIND: ClassVar[str]
    EXAMPLE: ClassVar[str]
    MODULE: ClassVar[str]
    SEVERAL: ClassVar[bool] = False
    LABELLED: ClassVar[bool] = False
    TRAINS: ClassVar[bool] = False
    REFUSED_AS_MEMBER: ClassVar[str] = ""
    OWN_CONFIDENCE: ClassVar[bool] = False

    @property
    def checkpoints(self) -> int:
        """Of how many models it is made."""
        return 1

    @property
    def val(self) -> DataRef | None:
        """Held-out data that choose an option."""
        return None

    @property
    def reads(self) -> DataRef | None:
        """The data that it is fitted on, as the model reads them: its option `data`, or None if it has no such option."""
        data: DataRef | None = getattr(self, DATA, None)
        return data

    def made_of(self, checkpoints: int) -> Self:
        """Return the options of what is made of so many models; of one, where `SEVERAL` does not hold."""
        del checkpoints
        return self


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


BASELINES: Mapping[str, type[BaselineOptions]] = MappingProxyType(
    {
        options.KIND: options
        for options in (McDropoutOptions, LaplaceOptions, SwagOptions, BayesVlmOptions, ViluOptions)
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedModels(NamedModels):
    """A row with baselines.

    Attributes:
        rivals: Options of the baseline that each model becomes; None for a model that answers as it is. Models of one baseline
            have equal options.
    """

    is_derived: ClassVar[bool] = True
    rivals: tuple[BaselineOptions | None, ...]

    def __post_init__(self) -> None:
        NamedModels.__post_init__(self)
        refused = next(
            (rival for rival in self.rivals if rival is not None and rival.REFUSED_AS_MEMBER), None
        )
        if len(self.models) > 1 and refused is not None:
            raise UsageError(
                f"`{self.name}`: `{refused.KIND}:` {refused.REFUSED_AS_MEMBER}",
                hint="add it as a separate row",
            )

    @property
    @override
    def trains(self) -> bool:
        return any(rival is not None and rival.TRAINS for rival in self.rivals)

    @override
    def identity(self) -> object:
        return [self.name, [rival and shaping_settings(rival) for rival in self.rivals]]


def baselines_of(rows: Iterable[NamedModels]) -> list[BaselineOptions]:
    """Return the options of all baselines of some rows."""
    rivals = (rival for row in rows if isinstance(row, DerivedModels) for rival in row.rivals)
    return [rival for rival in rivals if rival is not None]


def data_of(options: Sequence[BaselineOptions]) -> dict[str, DataRef]:
    """Return the data that baselines are fitted on, then the data that priors are selected on, each once by its name."""
    refs = (*(o.reads for o in options), *(o.val for o in options))
    return {str(ref): ref for ref in refs if ref is not None}


def parse_row(name: str | None, text: str) -> DerivedModels | None:
    """Read `MODEL[,MODEL...]` with at least one baseline; None if there is no baseline.

    Raises:
        UsageError: If a baseline is malformed.
    """
    references = split_models(text, _belongs)
    if not any(map(is_baseline, references)):
        return None
    parsed = [parse_baseline(ref) if is_baseline(ref) else (ref, None) for ref in references]
    checkpoints = [
        (model, rival)
        for refs, rival in parsed
        for model in (refs.split(",") if rival is not None and rival.SEVERAL else [refs])
    ]
    models, rivals = tuple(zip(*checkpoints, strict=True))
    if name is None:
        name = model_name(models[0]) + ("" if rivals[0] is None else f" {rivals[0].KIND}")
    return DerivedModels(name=name, models=models, rivals=rivals, typed=text)


def _belongs(reference: str, part: str) -> bool:
    """Return whether the part after a comma belongs to the reference of a baseline before it."""
    last, has_options, options = reference.partition("::")
    return (
        is_baseline(last) and continues_options(options, part)
        if has_options
        else is_baseline(last) and BASELINES[last.partition(":")[0]].SEVERAL and not is_baseline(part)
    )


def is_baseline(reference: str) -> bool:
    """Return whether a reference names what is made of a model."""
    return reference.partition(":")[0] in BASELINES and ":" in reference


def parse_baseline(reference: str) -> tuple[str, BaselineOptions]:
    """Return the model of a baseline's reference, or several with commas between them, and what is made of it.

    Raises:
        UsageError: If there is no model, or an option is unknown, missing or out of range.
    """
    name, _, reference_text = reference.partition(":")
    kind = BASELINES[name]
    model, _, text = reference_text.partition("::")
    models = model.split(",") if kind.SEVERAL else [model]
    if not all(models) or any(checkpoint.startswith("arch:") for checkpoint in models):
        problem = "a model with random weights cannot be used" if all(models) else "the model is missing"
        raise UsageError(f"`{reference}`: {problem}", hint=f"for example `{kind.EXAMPLE}`")
    if kind.SEVERAL and len(models) < FEWEST:
        raise UsageError(
            f"`{reference}`: needs more than one checkpoint", hint=f"for example `{kind.EXAMPLE}`"
        )
    long = dict.fromkeys((DATA, VAL), _data_of)
    options: BaselineOptions = written(
        kind, text, where=reference, called=f"{name}:", example=kind.EXAMPLE, long=long
    )
    return model, options.made_of(len(models))


def _data_of(text: str, options: Iterable[str]) -> str:
    """Return the data reference at the beginning of a text: up to the next option that is no key of the data."""
    reference = _up_to(text, options)
    source, separator, _ = split_source(reference)
    return (
        reference
        if not separator or not source or source.startswith(PREFIX)
        else _up_to(text, {*options} - KEYS[DataRef(source=source).kind])
    )


def _up_to(text: str, options: Iterable[str]) -> str:
    return text[: min((at for name in options if (at := text.find(f",{name}=")) >= 0), default=len(text))]


ROWS = RowSyntax(
    parse=parse_row,
    kinds=tuple(BASELINES),
    help=f", or a baseline `KIND:MODEL[::K=V,...]` of kind {', '.join(BASELINES)} (docs/rivals.md)",
)
