"""Options of `hydractl score`: what is scored, how much of it, and the settings of circuits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hydractl.cli.options import DATA_METAVAR, DATA_SOURCES, keep_fraction_option
from hydractl.scoring.circuit.settings import RECHECK

GREEDY = "Circuit"


class OodScore(StrEnum):
    """What tells OOD samples."""

    msp = "msp"
    energy = "energy"
    entropy = "entropy"
    max_logit = "max-logit"


class Search(StrEnum):
    """How a circuit's next removal is looked for."""

    exact = "exact"
    lazy = "lazy"


DataOpt = Annotated[
    str,
    typer.Option(
        "--data",
        metavar=DATA_METAVAR,
        help=f"Labelled data, validation for circuits, calibration or training data else: {DATA_SOURCES}.",
    ),
]
LimitOpt = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        metavar="N",
        help="Use N samples of it, drawn with the seed (hies: 32 by default).",
    ),
]
KeepFractionOpt = Annotated[float | None, keep_fraction_option(" without a budget: 2/3")]
TowersOpt = Annotated[
    str | None,
    typer.Option(
        "--towers",
        metavar="A,B",
        help="Score the heads of these towers only (text, vision); the others keep all of theirs.",
        rich_help_panel="Zero-shot",
    ),
]
ObjectiveOpt = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="OBJECTIVE",
        help="What the kept heads should be good at: acc, ood (AUROC), avg of both (default), nll, ece, fpr95, or a sum such "
        "as `0.5*acc+0.5*auroc` or `acc-0.1*nll`. More is better: nll, ece and fpr95 are subtracted, whichever sign is "
        "written.",
        rich_help_panel=GREEDY,
    ),
]
OodOpt = Annotated[
    str | None,
    typer.Option(
        "--ood",
        metavar=DATA_METAVAR,
        help="Out-of-distribution validation data, for ood, avg and fpr95.",
        rich_help_panel=GREEDY,
    ),
]
OodScoreOpt = Annotated[
    OodScore | None,
    typer.Option(
        "--ood-score",
        help="What tells OOD samples: the maximum softmax probability (default), the energy, the entropy or the largest logit.",
        rich_help_panel=GREEDY,
    ),
]
SearchOpt = Annotated[
    Search | None,
    typer.Option(
        "--search",
        help="exact (default): every head on all data at each removal; lazy: those that look best by what is remembered of "
        "them.",
        rich_help_panel=GREEDY,
    ),
]
RecheckOpt = Annotated[
    int | None,
    typer.Option(
        "--recheck",
        min=1,
        metavar="N",
        help=f"lazy: every head at each N-th removal (default {RECHECK}).",
        rich_help_panel=GREEDY,
    ),
]
MaxMemoryOpt = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="circuit: bytes for what is computed with, beside the model and the data, such as 2GiB or 512MB (default: what "
        "suits the device). It changes speed, results by no more than rounding.",
        rich_help_panel=GREEDY,
    ),
]
