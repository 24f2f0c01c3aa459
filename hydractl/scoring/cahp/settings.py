"""What a user may set of `cahp`. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.scoring.settings import Amount, Settings, one_of, positive, within

PERPLEXITY = 10.0
HIGHEST_DEGREE = 15
"""Of a polynomial whose fit to hundreds of numbers of groups is still well conditioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CahpSettings(Settings):
    """Of `cahp`; the defaults are the source's.

    Attributes:
        degree: Of the polynomial that smooths the silhouettes before their knee is looked for.
        representative: `salience`: the most salient head leads its group; `medoid`: the one in the middle.
        embedding: `tsne`: heads are grouped in the plane of a t-SNE; `none`: by their profiles themselves.
        perplexity: Of the t-SNE, None for `PERPLEXITY`; lowered for models of few heads.
        signature_size: S: attention maps are brought to S x S.
        salience_share: Of the batches, that the salience is computed on; one batch at least.
    """

    degree: int = 6
    representative: str = "salience"
    embedding: str = "tsne"
    perplexity: float | None = None
    signature_size: int = 32
    salience_share: float = 0.25

    def __post_init__(self) -> None:
        within("degree", self.degree, low=1, high=HIGHEST_DEGREE)
        one_of("representative", self.representative, ("salience", "medoid"))
        one_of("embedding", self.embedding, ("tsne", "none"))
        if self.embedding == "tsne" and self.perplexity is None:
            object.__setattr__(self, "perplexity", PERPLEXITY)
        if self.perplexity is not None:
            if self.embedding != "tsne":
                raise UsageError(
                    f"`--perplexity` has no effect with `--embedding {self.embedding}`", hint="leave it out"
                )
            positive("perplexity", self.perplexity)
        within("signature_size", self.signature_size, low=2, high=256)
        within("salience_share", self.salience_share, low=0.0, high=1.0)

    @property
    def amount(self) -> Amount:
        """The heads that stay in all, found by the method unless told."""
        return Amount.CHOICE

    @property
    def seeded(self) -> bool:
        """Yes: of t-SNE and of the first medoids."""
        return True
