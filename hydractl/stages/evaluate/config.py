"""What `eval` is asked to do, checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.metrics.metric import Needs
from hydractl.metrics.table import TEMPERATURE, choose_metrics, needing
from hydractl.stages.evaluate.refs import NamedModels, check_distinct, model_name
from hydractl.stages.shared.classes import NOTHING_NAMED, Naming

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.stages.evaluate.condition import Condition
    from hydractl.stages.evaluate.refs import NamedData

LEAST_GIVEN, MOST_GIVEN = 1e-3, 1e3  # beyond, float32 cannot hold what differs


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """What to measure, on what, and what to do with it.

    Attributes:
        model: The first row, which conditions are about.
        data: The ID set, with labels.
        near: OOD sets that are close to the ID set.
        far: OOD sets that are not.
        compare: The other rows.
        name: What the first row is called; default: its file's name.
        arch: Architecture of a bare file, of `model` only.
        metrics: Names of `METRICS`; None measures everything.
        fail_if: Conditions that make the command fail.
        out: The report; None writes none.
        save_predictions: Where the predictions go; None keeps none.
        batch_size: Samples in one forward pass.
        naming: What zero-shot models tell apart; without it what they store, or the data's classes.
        max_length: Tokens of a text at most, no more than every model reads; None for as many as each reads.
        device: `auto`, `cpu`, `cuda[:N]` or `mps`.
        dtype: bf16, fp16 or fp32; None runs each model as it is stored.
        temperature: What logits are divided by: a number, or a labelled split to fit one on for each row; None for 1.
        latency: Measure time too, which is never the same twice.
        bootstrap: Resamples for intervals; 0 makes none.
        seed: Of the resamples.
        force: Replace existing outputs.
    """

    model: str
    data: DataRef
    near: tuple[NamedData, ...] = ()
    far: tuple[NamedData, ...] = ()
    compare: tuple[NamedModels, ...] = ()
    name: str | None = None
    arch: str | None = None
    metrics: tuple[str, ...] | None = None
    fail_if: tuple[Condition, ...] = ()
    out: Path | None = None
    save_predictions: Path | None = None
    batch_size: int = 64
    naming: Naming = NOTHING_NAMED
    max_length: int | None = None
    device: str = "auto"
    dtype: str | None = None
    temperature: DataRef | float | None = None
    latency: bool = True
    bootstrap: int = 200
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        check_distinct([row.name for row in self.rows], what="rows", option="--compare")
        check_distinct([d.name for d in self.ood], what="OOD data sets", option="--near")
        if [m for row in self.rows for m in row.models].count("-") > 1:
            raise UsageError("only one model can come from standard input")
        if self.batch_size < 1 or self.bootstrap < 0:
            raise UsageError("`--batch-size` must be at least 1 and `--bootstrap` at least 0")
        if self.out is not None and self.out == self.save_predictions:
            raise UsageError("`-o` and `--save-predictions` name the same file")
        self._check_temperature()
        chosen = self.chosen  # refuses what cannot be measured
        if self.ood and not needing(chosen, Needs.OOD, Needs.MEMBERS):
            raise UsageError("there are OOD data sets, but no chosen metric looks at them")
        for condition in self.fail_if:
            condition.check_measured(chosen, self.scopes)

    def _check_temperature(self) -> None:
        """Refuse a number that is no temperature, and an OOD set of the name that the split has in the report."""
        if isinstance(self.temperature, int | float):
            if not LEAST_GIVEN <= self.temperature <= MOST_GIVEN:
                raise UsageError(
                    f"`--temperature {self.temperature:g}`: a temperature lies between {LEAST_GIVEN:g} and {MOST_GIVEN:g}",
                    hint="1 changes nothing; or name a labelled held-out split to fit it on",
                )
        elif self.temperature is not None and TEMPERATURE in [d.name for d in self.ood]:
            raise UsageError(
                f"an OOD data set cannot be called `{TEMPERATURE}` beside `--temperature`",
                hint="call it something else: `--near NAME=DATA`",
            )

    @property
    def heldout(self) -> DataRef | None:
        """The split that temperatures are fitted on."""
        return self.temperature if isinstance(self.temperature, DataRef) else None

    @property
    def given_temperature(self) -> float | None:
        """The number that all rows' logits are divided by."""
        return (
            None
            if self.temperature is None or isinstance(self.temperature, DataRef)
            else float(self.temperature)
        )

    @property
    def rows(self) -> tuple[NamedModels, ...]:
        """Every row of the table, the model's first."""
        name = model_name(self.model) if self.name is None else self.name
        return (NamedModels(name=name, models=(self.model,)), *self.compare)

    @property
    def ood(self) -> tuple[NamedData, ...]:
        """All OOD sets, near ones first."""
        return self.near + self.far

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The sets that each mean is over; groups without one are left out."""
        groups = {"near": self.near, "far": self.far, "all": self.ood}
        return {group: tuple(d.name for d in sets) for group, sets in groups.items() if sets}

    @property
    def scopes(self) -> tuple[str, ...]:
        """What may stand in the brackets of a condition."""
        return (*(d.name for d in self.ood), *self.groups)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The metrics to measure, in the order of reports."""
        return choose_metrics(
            self.metrics, ood=bool(self.ood), latency=self.latency, scaled=self.temperature is not None
        )
