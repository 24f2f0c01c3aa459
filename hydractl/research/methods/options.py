"""Options of `finetune` for methods and seeds. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.plugins import load
from hydractl.settings import (
    CheckedSettings,
    Setting,
    by_default,
    check,
    number,
    parse_reference_options,
    required,
    setting,
    whole_number,
)
from hydractl.stages import options as shared
from hydractl.training.recipe import SEEDS, TRAINED_PARTS, FinetuneExtension

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

_real = partial(number, "option")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMethod(CheckedSettings):
    """Options of a training method. A subclass is a frozen dataclass of declared settings.

    Attributes:
        KIND: Name in `--method`.
        EXAMPLE: Example for hints.
        ADAPTER: Path of the class for training.
        TAKES_TEACHERS: Whether the models can learn from teachers.
    """

    KIND: ClassVar[str]
    EXAMPLE: ClassVar[str]
    ADAPTER: ClassVar[str] = "hydractl.research.methods.adapters:SeededTraining"
    TAKES_TEACHERS: ClassVar[bool] = True

    @property
    def models(self) -> int:
        """Number of models that one run trains and writes."""
        return 1

    def reference(self, model: str) -> str:
        """Return the reference of the model to train for the argument MODEL; in this base class MODEL itself.

        Raises:
            UsageError: If the method cannot train MODEL.
        """
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraEnsemble(TrainingMethod):
    """LoRA: attention projections W train as W + (alpha / rank) B A (Hu et al. 2022).

    The classifier trains too. All other tensors are frozen. Queries, keys and values have separate A and B,
    also in a concatenated matrix. A is initialized like peft, B with zeros. A run trains a single member.
    Members share no trainable tensors, so members trained with M seeds equal jointly trained members
    (Mühlematter et al. 2024; Hydra Ensembles, C.1.4).
    """

    KIND: ClassVar = "lora-ensemble"
    EXAMPLE: ClassVar = "lora-ensemble::rank=4,alpha=8"
    ADAPTER: ClassVar = "hydractl.research.methods.adapters:LoraAdapter"

    rank: int = setting(4, "r.", parse=whole_number, low=1, option_names=("rank",))
    alpha: float = setting(8.0, "Scales by alpha / r.", parse=_real, above=0.0, option_names=("alpha",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingularValues(TrainingMethod):
    """Singular value ensemble: trains S of each weight matrix U S V in the blocks (Turkoglu et al. 2026).

    U and V are fixed. The biases of these layers and the classifier train too. S starts at S (1 + e) and a
    bias b at b + e, with e from N(0, spread²) for each entry. Negative singular values act as zero. A run
    trains a single member; several seeds make an ensemble.
    """

    KIND: ClassVar = "singular-values"
    EXAMPLE: ClassVar = "singular-values::spread=0.01"
    ADAPTER: ClassVar = "hydractl.research.methods.adapters:SingularValueAdapter"

    spread: float = setting(
        0.01, "Deviation of what members begin with.", parse=_real, low=0.0, option_names=("spread",)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Oba(TrainingMethod):
    """Optimal Brain Apoptosis: the least important weights become zero, the others train (Sun et al. 2025).

    The method applies to the blocks' linear layers. Importance comes from exact second derivatives of the
    loss on training batches; see `methods.adapters`.
    """

    KIND: ClassVar = "oba"
    EXAMPLE: ClassVar = "oba::keep=0.9"
    ADAPTER: ClassVar = "hydractl.research.methods.adapters:ObaAdapter"

    keep: float = required(
        Setting("Share of these weights.", parse=_real, above=0.0, below=1.0, option_names=("keep",))
    )
    batches: int = setting(
        200, "So many batches tell, an epoch's at most.", parse=whole_number, low=1, option_names=("batches",)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnsemble(TrainingMethod):
    """BatchEnsemble: member m's weight is W o (s r'), with its own r, s and bias (Wen et al. 2020).

    Members share each matrix W, which trains too. Members train jointly on the mean of the losses on the same
    batches. W is initialized from the model, r and s from N(1, spread²). A run trains all members.
    """

    KIND: ClassVar = "batch-ensemble"
    EXAMPLE: ClassVar = "batch-ensemble::members=3"
    ADAPTER: ClassVar = "hydractl.research.methods.adapters:BatchEnsembleAdapter"
    TAKES_TEACHERS: ClassVar = False

    members: int = setting(3, "M.", parse=whole_number, low=2, high=256, option_names=("members",))
    spread: float = setting(0.1, "Deviation of r and s.", parse=_real, low=0.0, option_names=("spread",))

    @property
    @override
    def models(self) -> int:
        return self.members


@dataclass(frozen=True, slots=True, kw_only=True)
class Mimo(TrainingMethod):
    """MIMO: a network with an input image and a classifier per member (Havasi et al. 2021).

    Members of a hydra share all layers before the classifier. In training images and labels differ; in
    prediction all members get the same image, in one pass. `fuse base.st base.st base.st --trunk L --own-blocks`
    makes such a hydra from a base with L blocks.
    """

    KIND: ClassVar = "mimo"
    EXAMPLE: ClassVar = "mimo::rho=0.5,repeat=4"
    ADAPTER: ClassVar = "hydractl.research.methods.mimo:MimoAdapter"
    TAKES_TEACHERS: ClassVar = False

    rho: float = setting(
        0.5, "Share of rows that all see alike.", parse=_real, low=0.0, high=1.0, option_names=("rho",)
    )
    repeat: int = setting(
        4, "How often a batch holds an image.", parse=whole_number, low=1, high=256, option_names=("repeat",)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed(TrainingMethod):
    """Packed-Ensembles: a network `alpha` times as wide, in `members` groups (Laurent et al. 2023).

    Groups share nothing. Each group is a narrow model with separate embedding, norms and classifier. A run
    trains a single narrow model from random weights. Joint training on the mean of the losses gives the same
    result up to the scale of gradients, which AdamW ignores.
    """

    KIND: ClassVar = "packed"
    EXAMPLE: ClassVar = "packed::members=3,alpha=2"

    members: int = setting(3, "M.", parse=whole_number, low=2, high=256, option_names=("members",))
    alpha: float = setting(
        2.0, "How much wider all are together.", parse=_real, above=0.0, option_names=("alpha",)
    )

    @override
    def reference(self, model: str) -> str:
        if not model.startswith("arch:"):
            raise UsageError(
                f"`--method packed`: {model} has weights, but its members are narrow models that train from "
                "random weights",
                hint="give an architecture: `arch:NAME[::K=V,...]`",
            )

        narrow_reference: str = load("hydractl.research.methods.packed:narrow_reference")(model, self)
        return narrow_reference


METHODS: Mapping[str, type[TrainingMethod]] = MappingProxyType(
    {method.KIND: method for method in (LoraEnsemble, SingularValues, Oba, BatchEnsemble, Mimo, Packed)}
)


def parse_method(text: str) -> TrainingMethod:
    """Parse a value of `--method`: `NAME`, or `NAME::option=value,...` as in `lora-ensemble::rank=4,alpha=8`.

    Raises:
        UsageError: If the method or an option is unknown, or an option is missing or out of range.
    """
    name, _, options = text.partition("::")
    if name not in METHODS:
        hint = did_you_mean(name, METHODS) or f"choose from {', '.join(METHODS)}"
        raise UsageError(f"`--method {name}`: unknown", hint=hint)
    kind = METHODS[name]
    method: TrainingMethod = parse_reference_options(
        kind, options, place=f"--method {text}", called=name, example=kind.EXAMPLE
    )
    return method


def method_reference(method: TrainingMethod) -> str:
    """Return the text of a method with all its options, for example `lora-ensemble::rank=4,alpha=8`."""
    options = ",".join(f"{key}={number:g}" for key, number in asdict(method).items())
    return f"{method.KIND}::{options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions(FinetuneExtension):
    """Options of `finetune` for methods of other papers, and for the seeds of single sources of randomness."""

    method: str | None = setting(
        None,
        f"Train by another method: {', '.join(METHODS)} (benchmarks/rivals.md).",
        metavar="NAME[::K=V,...]",
        suggestions=tuple(METHODS),
        panel=TRAINED_PARTS,
        after="reset_head",
    )
    order_seed: int | None = by_default(
        None,
        replace(
            shared.SEED,
            help="Seed of data order and augmentation (default: `--seed`).",
            panel=SEEDS,
            after="seed",
        ),
    )
    dropout_seed: int | None = by_default(
        None,
        replace(shared.SEED, help="Seed of dropout (default: `--seed`).", panel=SEEDS, after="order_seed"),
    )

    def __post_init__(self) -> None:
        check(self)
        self.trains_by  # noqa: B018 - refuses a wrong text

    @property
    def trains_by(self) -> TrainingMethod | None:
        """The method; None for full fine-tuning."""
        return None if self.method is None else parse_method(self.method)

    @property
    @override
    def models(self) -> int:
        return 1 if self.trains_by is None else self.trains_by.models

    @property
    @override
    def training(self) -> str:
        return TrainingMethod.ADAPTER if self.trains_by is None else self.trains_by.ADAPTER

    @override
    def check_config(self, config: Any) -> None:
        if (method := self.trains_by) is None:
            return
        method.reference(config.model)  # raises if the method cannot train the model
        if config.repulsion is not None:
            raise UsageError(
                "`--repulsion` and `--method` exclude each other: members of a method are trained as it says",
                hint="leave one of them out",
            )
        if config.teacher and not method.TAKES_TEACHERS:
            raise UsageError(
                f"`--method {self.method}` and `--teacher` exclude each other: members of that "
                "method train on labels only",
                hint="leave one of them out",
            )

    @override
    def check_sharding(self) -> None:
        if self.training != TrainingMethod.ADAPTER:
            raise UsageError(
                "`--method` and `--use_fsdp` exclude each other: weights that a method computes cannot be sharded",
                hint="leave out `--use_fsdp`",
            )

    @override
    def reference(self, model: str) -> str:
        return model if self.trains_by is None else self.trains_by.reference(model)

    @override
    def recorded(self) -> dict[str, OptionValue]:
        return {
            "order_seed": self.order_seed,
            "dropout_seed": self.dropout_seed,
            "method": None if self.trains_by is None else method_reference(self.trains_by),
        }
