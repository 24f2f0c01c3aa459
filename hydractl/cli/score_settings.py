"""Options of `hydractl score`: the settings of methods that use gradients, train gates or group heads."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

TAYLOR, GATES, GRADIENTS, CAHP = "Taylor", "Learned gates", "Gradients", "CAHP"


class Form(StrEnum):
    """What the absolute value is of."""

    sample = "sample"
    batch = "batch"


class Normalize(StrEnum):
    """What scores are divided by."""

    none = "none"
    layer = "layer"
    tower = "tower"


class Variant(StrEnum):
    """How weights and gradients become a score."""

    l1 = "l1"
    molchanov = "molchanov"


class Training(StrEnum):
    """What trains with learned gates."""

    pipelined = "pipelined"
    joint = "joint"


class Estimator(StrEnum):
    """How `dsp` chooses K heads so that gradients pass."""

    soft = "soft"
    ste = "ste"


class Representative(StrEnum):
    """Which head stands for its group."""

    salience = "salience"
    medoid = "medoid"


class Embedding(StrEnum):
    """Where heads are grouped."""

    tsne = "tsne"
    none = "none"


class Scope(StrEnum):
    """Over what gradients are compared."""

    layer = "layer"
    all = "global"


ScopeOpt = Annotated[
    Scope | None,
    typer.Option(
        "--scope",
        help="Score layer by layer, each without what went before (default); or all at once.",
        rich_help_panel=TAYLOR,
    ),
]
VariantOpt = Annotated[
    Variant | None,
    typer.Option(
        "--variant",
        help="Σ|w g| (default), or (Σ w g)² a batch.",
        rich_help_panel=TAYLOR,
    ),
]
FormOpt = Annotated[
    Form | None,
    typer.Option(
        "--form",
        help="michel: whose gradient the absolute value is of, each sample's (default) or each batch's.",
        rich_help_panel=GRADIENTS,
    ),
]
RecomputeOpt = Annotated[
    int | None,
    typer.Option(
        "--recompute",
        min=0,
        metavar="N",
        help="michel: remove N heads, score anew without them, until the budget is gone; 0 (default) scores once.",
        rich_help_panel=GRADIENTS,
    ),
]
NormalizeOpt = Annotated[
    Normalize | None,
    typer.Option(
        "--normalize",
        help="Divide scores by the norm of their layer's (default of michel), by the root mean square of their tower's, or "
        "not at all (default of taylor, gnorm, hies, magnitude).",
        rich_help_panel=GRADIENTS,
    ),
]
AlphaOpt = Annotated[
    float | None,
    typer.Option(
        "--alpha",
        min=0.0,
        max=1.0,
        metavar="A",
        help="hies: how much importance weighs beside entropy (default .5).",
        rich_help_panel=GRADIENTS,
    ),
]
SamplesOpt = Annotated[
    int | None,
    typer.Option(
        "--samples",
        min=1,
        metavar="N",
        help="headmap: look at the N samples of the lowest loss (default 64).",
        rich_help_panel=GRADIENTS,
    ),
]
TrainingOpt = Annotated[
    Training | None,
    typer.Option(
        "--training",
        help="Learn gates while the weights are frozen (pipelined, default), or together with them (joint).",
        rich_help_panel=GATES,
    ),
]
EpochsOpt = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="N",
        help="Passes over the data (default: l0 3; dsp 1, with joint 3).",
        rich_help_panel=GATES,
    ),
]
GateLrOpt = Annotated[
    float | None,
    typer.Option(
        "--gate-lr",
        metavar="LR",
        help="Learning rate of the gates (default: l0 0.1, dsp 0.5).",
        rich_help_panel=GATES,
    ),
]
WeightsLrOpt = Annotated[
    float | None,
    typer.Option(
        "--weights-lr",
        metavar="LR",
        help="Learning rate of the weights, for joint (default: 2e-5).",
        rich_help_panel=GATES,
    ),
]
PenaltyOpt = Annotated[
    float | None,
    typer.Option(
        "--penalty",
        metavar="P",
        help="What an open head adds to the loss, for l0 (default: 0.0015): more closes more heads.",
        rich_help_panel=GATES,
    ),
]
EstimatorOpt = Annotated[
    Estimator | None,
    typer.Option(
        "--estimator",
        help="For dsp: a soft choice that hardens (default), or a hard one, straight through (ste).",
        rich_help_panel=GATES,
    ),
]
TemperatureOpt = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        help="Where the temperature of dsp starts (default: 1000); it falls to 1e-8.",
        rich_help_panel=GATES,
    ),
]
CooldownOpt = Annotated[
    float | None,
    typer.Option(
        "--cooldown",
        metavar="F",
        help="Share of the steps in which it falls (default: 2/3).",
        rich_help_panel=GATES,
    ),
]
TrainedOpt = Annotated[
    Path | None,
    typer.Option(
        "--trained",
        metavar="PATH",
        help="Write the weights that joint trains to PATH, a base; the scores are then of it.",
        rich_help_panel=GATES,
    ),
]
DegreeOpt = Annotated[
    int | None,
    typer.Option(
        "--degree",
        metavar="N",
        help="Of the polynomial that smooths the silhouettes, whose knee is the number of groups (default 6).",
        rich_help_panel=CAHP,
    ),
]
RepresentativeOpt = Annotated[
    Representative | None,
    typer.Option(
        "--representative",
        help="Who leads a group: its most salient head (default), or the one in the middle.",
        rich_help_panel=CAHP,
    ),
]
EmbeddingOpt = Annotated[
    Embedding | None,
    typer.Option(
        "--embedding",
        help="Group heads in the plane of a t-SNE (default), or by their class profiles as they are.",
        rich_help_panel=CAHP,
    ),
]
PerplexityOpt = Annotated[
    float | None,
    typer.Option("--perplexity", metavar="P", help="Of the t-SNE (default 10).", rich_help_panel=CAHP),
]
SignatureSizeOpt = Annotated[
    int | None,
    typer.Option(
        "--signature-size",
        metavar="N",
        help="Bring attention maps to N x N (default 32).",
        rich_help_panel=CAHP,
    ),
]
SalienceShareOpt = Annotated[
    float | None,
    typer.Option(
        "--salience-share",
        metavar="F",
        help="Compute the salience on the first F of the batches (default 0.25).",
        rich_help_panel=CAHP,
    ),
]
