"""Settings of `cahp`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.scoring.settings import CAHP, BudgetMeaning, Settings
from hydractl.settings import check, setting

PERPLEXITY = 10.0
HIGHEST_DEGREE = 15
"""Of a polynomial whose fit to hundreds of numbers of groups is still well conditioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CahpSettings(Settings):
    """Settings of `cahp`, with the defaults of the source."""

    degree: int = setting(
        6,
        "Degree of the polynomial that smooths the silhouettes (default: 6).",
        low=1,
        high=HIGHEST_DEGREE,
        shows_range=False,
        metavar="N",
        panel=CAHP,
    )
    representative: str = setting(
        "salience",
        "Keep the most salient head of each group (default) or its medoid.",
        choices=("salience", "medoid"),
        panel=CAHP,
    )
    embedding: str = setting(
        "tsne",
        "Group heads after t-SNE (default) or by their class profiles.",
        choices=("tsne", "none"),
        panel=CAHP,
    )
    perplexity: float | None = setting(
        None,
        f"Perplexity of t-SNE (default: {PERPLEXITY:g}).",
        above=0.0,
        finite=True,
        metavar="P",
        panel=CAHP,
    )
    """Lowered for models of few heads; None without t-SNE."""
    signature_size: int = setting(
        32,
        "Resize attention maps to N x N (default: 32).",
        low=2,
        high=256,
        shows_range=False,
        metavar="N",
        panel=CAHP,
    )
    salience_share: float = setting(
        0.25,
        "Compute salience on this fraction of the batches (default: 0.25).",
        low=0.0,
        high=1.0,
        shows_range=False,
        metavar="F",
        panel=CAHP,
    )
    """One batch at least."""

    def __post_init__(self) -> None:
        if self.embedding == "tsne" and self.perplexity is None:
            object.__setattr__(self, "perplexity", PERPLEXITY)
        if self.perplexity is not None and self.embedding != "tsne":
            raise UsageError(
                f"`--perplexity` has no effect with `--embedding {self.embedding}`", hint="leave it out"
            )
        check(self)

    @property
    def budget_means(self) -> BudgetMeaning:
        """The budget is the number of heads that are kept in total; by default the method determines it."""
        return BudgetMeaning.CHOICE
