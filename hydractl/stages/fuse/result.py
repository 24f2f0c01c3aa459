"""What is made of members, and what was measured of it. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.fusion.plan import Fusion
from hydractl.manifest.document import OptionValue
from hydractl.manifest.header import InputFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How good the mean of members' probabilities is, each one's logits divided by `temperature`; the NLL in nats."""

    accuracy: float
    nll: float
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A hydra that was measured.

    Attributes:
        merge_trunk: Before which block it averages whatever differs.
        hydra: How good it is.
        loss: Its NLL less that of its members' ensemble, in nats.
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
            "members_accuracy": self.members.accuracy,
            "members_nll": self.members.nll,
            "agreement": last.agreement,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is written: fused tensors and a temperature; what was measured of them, and the data that this took."""

    fusion: Fusion
    temperature: float
    measured: Measured | None = None
    sources: tuple[InputFile, ...] = ()
