"""Which rivals `bench` knows: the stages that make each one, and the row that it becomes. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from hydractl.cli.commands.run import StageOptions
from hydractl.research.methods.options import Mimo

SHARED_DEFAULT = "as for every rival"
TEST, TRAIN, VAL, PAIRS = "test", "train", "val", "pairs"
PASSES = 10
"""Of Monte Carlo dropout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings:
    """What all rivals have in common.

    Attributes:
        out: The folder.
        model: What they are made of.
        blocks: How many it has.
        heads: Likewise.
        data: To train on.
        val: To validate on.
        test: What the table is of.
        members: Of every ensemble.
        training: Options of `finetune`, by name.
        start: What is trained from the beginning, if anything.
        from_start: Options that hold for that in place of others.
        pairs: Images with captions, if there are any.
        naming: Options of `eval` that name the classes of a zero-shot model.
    """

    out: Path
    model: str
    blocks: int
    heads: int
    data: str
    val: str
    test: str
    members: int
    training: Mapping[str, str]
    start: str | None
    from_start: Mapping[str, str]
    pairs: str | None
    naming: Mapping[str, str | list[str]]

    def path(self, name: str) -> str:
        """Return where a file of the folder lies."""
        return str(self.out / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """What one rival takes.

    Attributes:
        rows: Its rows of the table: the models of each, as `--compare` has them, by its name; `@NAME` is what a stage writes.
        stages: What makes them; none where the row itself does.
        trainings: Of M members: how many models are trained, each as long as `finetune` is told.
        answers: How often a model answers which data, besides what training and one row of the table take.
        starts: Whether these train from the beginning.
        compares: Whether it is fitted on images with captions.
        named: Whether `all` leaves it out: not every architecture will do.
    """

    rows: Callable[[SharedSettings], Mapping[str, str]]
    stages: Callable[[SharedSettings], Sequence[StageOptions]] = lambda _: ()
    trainings: Callable[[int], int] = lambda _: 0
    answers: Mapping[str, int] = field(default_factory=dict)
    starts: bool = False
    compares: bool = False
    named: bool = False


def tuned(
    terms: SharedSettings, name: str, model: str, *, times: int | None = None, **options: str
) -> StageOptions:
    """Return a stage that fine-tunes one model, or `times` with seeds from 0 on."""
    training = {
        name: value for name, value in terms.training.items() if not (name == "steps" and "epochs" in options)
    }
    return {
        "name": name,
        "command": "finetune",
        "model": model,
        "data": terms.data,
        "val": terms.val,
        **training,
        **({} if times is None else {"repeat": times, "seed": "{i}"}),
        **options,
        "out": terms.path(f"{name}.st" if times is None else f"{name}-{{i}}.st"),
    }


def _temperature(terms: SharedSettings) -> Sequence[StageOptions]:
    return [
        {
            "name": "temperature",
            "command": "eval",
            "model": terms.model,
            "data": terms.test,
            "temperature": terms.val,
            **terms.naming,
            "latency": False,
            "bootstrap": 0,
            "store": terms.path("temperature.st"),
            "out": terms.path("temperature.json"),
        }
    ]


def _pruned(terms: SharedSettings) -> Sequence[StageOptions]:
    """The paper's: a third of the heads goes, drawn from twice as many of the lowest scores."""
    removed = round(terms.heads / 3)
    return [
        {
            "name": "scores",
            "command": "score",
            "model": terms.model,
            "method": "taylor",
            "data": terms.data,
            "limit": 1000,
            "out": terms.path("scores.json"),
        },
        {
            "name": "pruned",
            "command": "prune",
            "model": terms.model,
            "scores": ["@scores"],
            "remove": removed,
            "pool": min(2 * removed, terms.heads - 1),
            "members": terms.members,
            "out": terms.path("pruned-{i}.st"),
        },
        *(
            tuned(terms, f"pruned-tuned-{i}", terms.path(f"pruned-{i}.st"), seed=str(i))
            for i in range(terms.members)
        ),
        _fused(terms, "pruned-hydra", *(f"@pruned-tuned-{i}" for i in range(terms.members))),
    ]


def _fused(terms: SharedSettings, name: str, *members: str) -> StageOptions:
    return {
        "name": name,
        "command": "fuse",
        "models": list(members),
        "out": terms.path(f"{name}.st"),
    }


def _by(method: str, title: str) -> Rival:
    """Return a rival of which a run makes one member."""
    return Rival(
        rows=lambda terms: {f"{title} of {terms.members}": f"@{method}"},
        stages=lambda terms: [tuned(terms, method, terms.model, times=terms.members, method=method)],
        trainings=lambda members: members,
    )


PLANS: Mapping[str, Rival] = MappingProxyType(
    {
        "temperature": Rival(
            rows=lambda terms: {"Temperature scaling": terms.path("temperature.st")},
            stages=_temperature,
            answers={VAL: 1, TEST: 1},
        ),
        "mc": Rival(
            rows=lambda terms: {"MC dropout": f"mc:{terms.model}::passes={PASSES},rate=0.1"},
            answers={TEST: PASSES - 1},
        ),
        "laplace": Rival(
            rows=lambda terms: {"Laplace": f"laplace:{terms.model}::val={terms.val},data={terms.data}"},
            answers={TRAIN: 1, VAL: 1},
        ),
        "bayesvlm": Rival(
            rows=lambda terms: {"BayesVLM": f"bayesvlm:{terms.model}::data={terms.pairs}"},
            answers={PAIRS: 1},
            compares=True,
        ),
        # embedded once: the authors embed crops anew in each of 300 epochs
        "vilu": Rival(
            rows=lambda terms: {"ViLU": f"vilu:{terms.model}::augment=none,data={terms.data}"},
            answers={TRAIN: 1},
        ),
        "longer": Rival(
            rows=lambda _: {"Trained on": "@longer"},
            stages=lambda terms: [tuned(terms, "longer", terms.model, seed=str(terms.members))],
            trainings=lambda _: 1,
        ),
        "hydra": Rival(
            rows=lambda terms: {f"Hydra of {terms.members}": "@hydra"},
            stages=lambda terms: [
                tuned(terms, "copies", terms.model, times=terms.members),
                {**_fused(terms, "hydra", "@copies"), "merge-trunk": "auto", "data": terms.val},
            ],
            trainings=lambda members: members,
        ),
        "pruned-hydra": Rival(
            rows=lambda terms: {f"Pruned hydra of {terms.members}": "@pruned-hydra"},
            stages=_pruned,
            trainings=lambda members: members,
        ),
        "lora-ensemble": _by("lora-ensemble", "LoRA ensemble"),
        "batch-ensemble": Rival(
            rows=lambda terms: {
                f"BatchEnsemble of {terms.members}": ",".join(
                    terms.path(f"batch-ensemble-{i}.st") for i in range(terms.members)
                )
            },
            stages=lambda terms: [
                tuned(terms, "batch-ensemble", terms.model, method=f"batch-ensemble::members={terms.members}")
                | {"out": terms.path("batch-ensemble-{i}.st")}
            ],
            trainings=lambda members: members,  # as much to compute
        ),
        "mimo": Rival(
            rows=lambda terms: {f"MIMO of {terms.members}": "@mimo"},
            stages=lambda terms: [
                _fused(terms, "mimo-copies", *[terms.model] * terms.members) | {"own-from": terms.blocks},
                tuned(terms, "mimo", "@mimo-copies", method="mimo"),
            ],
            trainings=lambda _: Mimo().repeat,  # a batch holds each image so often, and computes as much
        ),
        "oba": Rival(
            rows=lambda _: {"OBA": "@oba"},
            # the share that the hydra paper keeps for ImageNet-1k
            stages=lambda terms: [tuned(terms, "oba", terms.model, method="oba::keep=0.891")],
            trainings=lambda _: 1,
        ),
        "singular-values": _by("singular-values", "Singular value ensemble"),
        "packed": Rival(
            rows=lambda terms: {f"Packed ensemble of {terms.members}": "@packed"},
            stages=lambda terms: [
                tuned(
                    terms,
                    "packed",
                    str(terms.start),
                    times=terms.members,
                    method=f"packed::members={terms.members},alpha=2",
                    **terms.from_start,
                )
            ],
            trainings=lambda members: members,
            starts=True,
            named=True,
        ),
        "deep-ensemble": Rival(
            rows=lambda terms: {
                f"Deep ensemble of {m}": ",".join(terms.path(f"alone-{i}.st") for i in range(m))
                for m in range(2, terms.members + 1)
            },
            stages=lambda terms: [
                tuned(terms, "alone", str(terms.start), times=terms.members, **terms.from_start)
            ],
            trainings=lambda members: members,
            starts=True,
        ),
    }
)
"""Rivals by name. `longer` controls for training time: a single model trained as long as the ensembles."""
