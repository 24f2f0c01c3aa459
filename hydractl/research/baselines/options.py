"""Options of each baseline, `eval --compare KIND:MODEL::OPTIONS`. Importing this module does not load torch."""

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
    parse_reference_options,
    required,
    setting,
    whole_number,
)

DATA, VAL = "data", "val"
KRON, FULL = "kron", "full"
PROBIT, SAMPLES = "probit", "samples"
CROPS, NONE = "crops", "none"
DRAWS = 20
"""Drawn weights of `laplace:` with `predictive=samples`. Chosen by hand; doubling doubles the products with
the last layer and lowers the variance of the mean by half."""
SEED = Setting("Of what is drawn.", parse=whole_number, low=0, high=LARGEST_SEED, option_names=("seed",))
MIN_ITEMS = 2
"""Smallest number of checkpoints or pairs: a single sample has no spread."""


_real = partial(number, "option")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineOptions(CheckedSettings):
    """Options of a baseline. A subclass is a frozen dataclass of declared settings.

    Attributes:
        KIND: Name in `--compare`.
        EXAMPLE: Example for hints.
        MODULE: Module with the functions `check` and `build`.
        SEVERAL: Whether the baseline combines several models.
        LABELLED: Whether the labels of `data_ref` are used.
        TRAINS: Whether the multiply-accumulates of the training are counted.
        REFUSED_AS_MEMBER: Reason why the baseline cannot be a member of a row with several models; empty if
            it can.
        OWN_CONFIDENCE: Whether the baseline estimates a confidence besides probabilities.
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
        """Number of combined models; 1 in this base class."""
        return 1

    @property
    def val(self) -> DataRef | None:
        """Held-out data that select an option; None without such data."""
        return None

    @property
    def data_ref(self) -> DataRef | None:
        """Data to fit on (option `data`), or None."""
        data: DataRef | None = getattr(self, DATA, None)
        return data

    def made_of(self, checkpoints: int) -> Self:
        """Return the options for a number of combined models; unchanged for baselines of a single model."""
        del checkpoints
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class McDropoutOptions(BaselineOptions):
    """MC dropout: dropout stays active, and each pass is a member (Gal and Ghahramani 2016)."""

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
    """Laplace approximation of the last layer (Daxberger et al. 2021)."""

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
    """SWAG: weights drawn around the mean of several checkpoints of one training (Maddox et al. 2019)."""

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
    """Number of checkpoints."""

    @override
    def made_of(self, checkpoints: int) -> Self:
        return replace(self, checkpoints=checkpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesVlmOptions(BaselineOptions):
    """BayesVLM: Laplace approximation of both projections of a CLIP (Baumann et al. 2024)."""

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
    def data_ref(self) -> DataRef:
        """The images of the pairs."""
        return replace(self.data, text=None)

    @property
    def captions(self) -> DataRef:
        """The captions of the pairs, in the order of the images."""
        return replace(self.data, image=None, decode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViluOptions(BaselineOptions):
    """ViLU: a small network estimates whether a zero-shot prediction is correct (Lafon et al. 2025).

    The row keeps the model's predictions and probabilities. The estimate is the row's confidence.
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
        """Names for `finetune --augment`; empty with `augment=none`."""
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
        rivals: For each model, the options of the baseline made from the model, or None without a baseline.
            Models of the same baseline have equal options.
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
    """Return the options of all baselines in rows."""
    rivals = (rival for row in rows if isinstance(row, DerivedModels) for rival in row.rivals)
    return [rival for rival in rivals if rival is not None]


def data_of(options: Sequence[BaselineOptions]) -> dict[str, DataRef]:
    """Return the data of baselines, each once: first the data to fit on, then the data that select options.

    Returns:
        Data references by text.
    """
    refs = (*(o.data_ref for o in options), *(o.val for o in options))
    return {str(ref): ref for ref in refs if ref is not None}


def parse_row(name: str | None, text: str) -> DerivedModels | None:
    """Parse `MODEL[,MODEL...]` that contains a baseline.

    Args:
        name: Name of the row; if None, derived from the first model.
        text: Value of `--compare` without the name.

    Returns:
        None if there is no baseline.

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
    """Return whether the part after a comma continues the baseline's reference before the comma."""
    last, has_options, options = reference.partition("::")
    return (
        is_baseline(last) and continues_options(options, part)
        if has_options
        else is_baseline(last) and BASELINES[last.partition(":")[0]].SEVERAL and not is_baseline(part)
    )


def is_baseline(reference: str) -> bool:
    """Return whether a reference has the form `KIND:MODEL` of a baseline."""
    return reference.partition(":")[0] in BASELINES and ":" in reference


def parse_baseline(reference: str) -> tuple[str, BaselineOptions]:
    """Split a baseline's reference into model and options.

    Args:
        reference: For example `mc:base.st::passes=10`, with the model `base.st`.

    Returns:
        The model (several are separated by commas) and the options.

    Raises:
        UsageError: If the model is missing or has random weights, there is a single checkpoint for `swag`, or
            an option is unknown, missing or out of range.
    """
    name, _, reference_text = reference.partition(":")
    kind = BASELINES[name]
    model, _, text = reference_text.partition("::")
    models = model.split(",") if kind.SEVERAL else [model]
    if not all(models) or any(checkpoint.startswith("arch:") for checkpoint in models):
        problem = "a model with random weights cannot be used" if all(models) else "the model is missing"
        raise UsageError(f"`{reference}`: {problem}", hint=f"for example `{kind.EXAMPLE}`")
    if kind.SEVERAL and len(models) < MIN_ITEMS:
        raise UsageError(
            f"`{reference}`: needs more than one checkpoint", hint=f"for example `{kind.EXAMPLE}`"
        )
    long = dict.fromkeys((DATA, VAL), _data_of)
    options: BaselineOptions = parse_reference_options(
        kind, text, place=reference, called=f"{name}:", example=kind.EXAMPLE, long=long
    )
    return model, options.made_of(len(models))


def _data_of(text: str, options: Iterable[str]) -> str:
    """Return the data reference at the start of a text, with its own keys.

    The reference ends before the first of `options` that is no key of the data: `train/::label=a` of
    `train/::label=a,prior=1`.
    """
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
    help=f", or a baseline `KIND:MODEL[::K=V,...]` of kind {', '.join(BASELINES)} (benchmarks/rivals.md)",
)
