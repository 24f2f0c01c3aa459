"""What is made of members, what was measured of it, and the header that says both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hydractl.families.load import OpenModel
from hydractl.fusion.feature_ood import Scores
from hydractl.fusion.plan import Fusion
from hydractl.manifest.document import OptionValue
from hydractl.manifest.header import FittedScores, Header, InputFile, Kind
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.shared.output_record import make_step

UNKNOWN_DIGEST = f"sha256:{'0' * 64}"
"""What stands for a digest until it is known: as long as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How good the mean of members' probabilities is, each one's logits divided by `temperature`.

    Attributes:
        accuracy: In [0, 1].
        nll: In nats.
        temperature: As above.
        mutual_information: How much the members disagree, in nats: the mean over samples.
    """

    accuracy: float
    nll: float
    temperature: float
    mutual_information: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A hydra that was measured.

    Attributes:
        merge_trunk: Before which block it averages whatever differs.
        hydra: How good it is.
        loss: Its NLL minus that of its members' ensemble, in nats.
        agreement: On which share of the samples it predicts the class that the ensemble does.
    """

    merge_trunk: int
    hydra: Quality
    loss: float
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What merging did on labelled data.

    Attributes:
        data: What they are called.
        samples: How many.
        members: The ensemble of the members as they were.
        tried: The hydras, in the order in which they were tried; the last is the one that is written.
    """

    data: str
    samples: int
    members: Quality
    tried: tuple[Tried, ...]

    def results(self) -> dict[str, OptionValue]:
        """Return what lineage keeps."""
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
    """What is written: fused tensors, a temperature and OOD scores; what was measured of them, and the data that this took."""

    fusion: Fusion
    temperature: float
    measured: Measured | None = None
    scores: Scores | None = None
    fitted: FittedScores | None = None
    sources: tuple[InputFile, ...] = ()

    def beside(self) -> dict[str, Tensor]:
        """Return the tensors that are stored beside the weights."""
        return {} if self.scores is None else self.scores.tensors()


def make_header(
    config: FuseConfig, members: Sequence[OpenModel], outcome: Outcome, *, digest: str | None = None
) -> Header:
    """Return the header of a hydra; `digest` stands for its members' until these are known."""
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
        | ({} if config.measuring.temperature_data is None else {"temperature": outcome.temperature}),
    )
    return first.header.of_other_weights(
        {
            "kind": Kind.HYDRA,
            "masks": tuple(m.header.masks[0] for m in members),
            "plan": fusion.plan,
            "temperature": outcome.temperature,
            "fitted": outcome.fitted,
            "made_by": step,
        }
    )
