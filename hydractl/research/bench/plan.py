"""What `bench` runs, cheapest first, as a pipeline file, and how long it takes. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydractl.cli.commands.run import StageOptions
from hydractl.research.bench.config import BenchConfig
from hydractl.research.bench.rows import PLANS, TEST, Rival
from hydractl.stages.evaluate.refs import model_name

TABLE = "table"
FORWARD = 1 / 3
"""A pass without a gradient, of one with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEstimate:
    """How much there is to do, in steps of training.

    Attributes:
        training: One training of a model, with its validation.
        from_start: One from the beginning.
        answers: One model's answers to all test data, to what is trained and validated on, and to pairs if there are any.
        blocks: How many the model has.
        heads: Likewise.
    """

    training: float
    from_start: float
    answers: Mapping[str, float]
    blocks: int
    heads: int

    def of(self, rival: Rival, members: int) -> float:
        """Return what its stages and its rows take; a row computes as several models do, be they one or not."""
        times = rival.trainings(members)
        trained = times * (self.from_start if rival.starts else self.training)
        answered = sum(count * self.answers[data] for data, count in rival.answers.items())
        return trained + answered + self.answers[TEST] * max(1, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds that a step of training takes here, and a command besides."""

    step: float
    begin: float

    def of(self, work: WorkEstimate, rival: Rival, members: int) -> float:
        """Return seconds that a rival takes."""
        return work.of(rival, members) * self.step + rival.trainings(members) * self.begin


def in_order(names: Iterable[str], work: WorkEstimate, *, members: int) -> tuple[str, ...]:
    """Return rivals, the cheapest first."""
    return tuple(sorted(names, key=lambda name: work.of(PLANS[name], members)))


def stages(config: BenchConfig, names: Sequence[str], work: WorkEstimate) -> Iterator[StageOptions]:
    """Yield what makes these rivals, in their order, then the table and its page."""
    terms = config.terms(blocks=work.blocks, heads=work.heads)
    compared = [f"{row.name}={row.typed}" for row in config.compare]
    if config.hydra is not None:
        compared.append(f"{model_name(config.model)}={config.model}")
    for name in names:
        yield from PLANS[name].stages(terms)
        compared += [f"{row}={models}" for row, models in PLANS[name].rows(terms).items()]
    yield {
        "name": TABLE,
        "command": "eval",
        "model": config.model if config.hydra is None else config.hydra,
        "data": terms.test,
        "near": [f"{ood_set.name}={ood_set.ref}" for ood_set in config.near],
        "far": [f"{ood_set.name}={ood_set.ref}" for ood_set in config.far],
        "compare": compared,
        **terms.naming,
        "latency": False,
        "out": terms.path("report.json"),
    }
    yield {"name": "page", "command": "report", "files": [f"@{TABLE}"], "out": terms.path("report.html")}
