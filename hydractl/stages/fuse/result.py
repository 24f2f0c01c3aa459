"""Result of fusion, its measurements, and its header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hydractl.families.load import OpenModel
from hydractl.fusion.feature_ood import Scores
from hydractl.fusion.plan import Fusion
from hydractl.manifest.document import OptionValue
from hydractl.manifest.header import FittedScores, Header, InputFile, Kind, samples_of
from hydractl.manifest.temperature import Temperature
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.shared.provenance import make_step

UNKNOWN_DIGEST = f"sha256:{'0' * 64}"
"""Placeholder with the length of a digest, until the digest is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of the mean of the members' probabilities, with logits divided by `temperature`.

    Attributes:
        accuracy: Accuracy, in [0, 1].
        nll: NLL, in nats.
        temperature: Temperature of all members.
        mutual_information: Disagreement of the members, in nats, mean over samples.
    """

    accuracy: float
    nll: float
    temperature: float
    mutual_information: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A measured hydra.

    Attributes:
        merge_trunk: Block before which all tensors that differ are averaged.
        hydra: Its quality.
        loss: NLL of the hydra minus that of the members' ensemble, in nats.
        agreement: Fraction of samples with the same prediction as the ensemble.
    """

    merge_trunk: int
    hydra: Quality
    loss: float
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Effect of merging on labelled data.

    Attributes:
        data: Name of the data.
        samples: Number of samples.
        members: Quality of the ensemble of the original members.
        tried: Hydras in the order of evaluation; the last one is written.
    """

    data: str
    samples: int
    members: Quality
    tried: tuple[Tried, ...]

    def results(self) -> dict[str, OptionValue]:
        """Return the values for the lineage."""
        last = self.tried[-1]
        return {
            "merge_trunk": last.merge_trunk,
            "validation_count": self.samples,
            "validation_accuracy": last.hydra.accuracy,
            "validation_nll": last.hydra.nll,
            "mutual_information": last.hydra.mutual_information,
            "members_accuracy": self.members.accuracy,
            "members_nll": self.members.nll,
            "members_mutual_information": self.members.mutual_information,
            "agreement": last.agreement,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Contents of the output: fused tensors, temperature and OOD scores, with their measurements and data."""

    fusion: Fusion
    temperature: Temperature
    measured: Measured | None = None
    scores: Scores | None = None
    fitted: FittedScores | None = None
    sources: tuple[InputFile, ...] = ()

    def beside(self) -> dict[str, Tensor]:
        """Return the tensors that are stored in addition to the weights."""
        return {} if self.scores is None else self.scores.tensors()


def make_header(
    config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome, *, digest: str | None = None
) -> Header:
    """Return the header of a hydra; `digest` is a placeholder for its members' digests."""
    first, fusion, measured = members[0], outcome.fusion, outcome.measured
    step = make_step(
        config,
        family=first.family,
        options={
            "mlp": config.mlps,
            "merge_trunk": config.merge_trunk,
            "own_from": config.own_from,
            "max_loss": config.max_loss,
            "temperature": config.measuring.given_temperature,
            "fitted": None if outcome.fitted is None else outcome.fitted.scores,
            "max_length": config.measuring.max_length,
            "force_merge": config.force_merge or None,
            "classes": config.naming.names or None,
            "templates": config.naming.templates or None,
        },
        inputs=[*(m.as_input(digest=digest) for m in members), *outcome.sources],
        seed=config.seed if config.verify else None,
        results=({"verified": True} if config.verify else {})
        | ({} if measured is None else measured.results())
        | ({} if config.measuring.temperature_data is None else {"temperature": outcome.temperature.common}),
    )
    return first.header.of_other_weights(
        {
            "kind": Kind.HYDRA,
            "masks": tuple(m.header.masks[0] for m in members),
            "plan": fusion.plan,
            **outcome.temperature.fields,
            "fitted": outcome.fitted,
            "samples": samples_of(outcome.sources, *(m.header for m in members)),
            "made_by": step,
        }
    )
