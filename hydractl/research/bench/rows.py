"""Rivals of `bench`: stages and table rows. Importing this module does not load torch."""

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
"""Passes of MC dropout, the default of `mc:`. Doubling doubles the time of the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings:
    """Shared settings of all rivals.

    Attributes:
        out: Output folder.
        model: Base of the rivals.
        blocks: Number of the base's blocks.
        heads: Number of the base's heads.
        data: Training data.
        val: Validation data.
        test: Test data of the table.
        members: Members of every ensemble.
        training: Options of `finetune`, by name.
        start: Backbone or `arch:NAME` to train from the beginning; None without `--start`.
        from_start: Options of `finetune` for training from `start`.
        pairs: Captioned images; None without `--pairs`.
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
        """Return the path of a file in the output folder."""
        return str(self.out / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A method that `bench` compares with hydras: its stages, table rows and cost.

    Attributes:
        rows: Returns the rows of the table: values of `--compare` by row name. `@NAME` is the output of a
            stage.
        stages: Returns the stages of the models; empty for baselines.
        trainings: Returns the number of trainings for M members.
        answers: Number of additional passes over each data set, by name of the data set. Trainings and the
            predictions of the table's row are counted separately.
        starts: Whether the models are trained from `--start`.
        compares: Whether the rival is fitted on captioned images.
        named: Whether `all` excludes the rival, because few architectures support the rival.
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
    """Return a stage that fine-tunes a model, or `times` models with seeds 0, 1, and so on.

    Args:
        terms: Shared settings.
        name: Name of the stage and stem of the output files.
        model: Reference of the model.
        times: Number of models; None for a single model without a seed option.
        options: Options of `finetune` that replace the shared options.
    """
    training = {
        name: value for name, value in terms.training.items() if not (name == "steps" and "epochs" in options)
    }
    return {
        "name": name,
        "command": "finetune",
        "model": model,
        "train": terms.data,
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
            "save-model": terms.path("temperature.st"),
            "out": terms.path("temperature.json"),
        }
    ]


def _pruned(terms: SharedSettings) -> Sequence[StageOptions]:
    """Return the stages of a hydra of pruned members (Hydra Ensembles, B.5).

    A third of the heads is removed, drawn for each member from twice as many heads of lowest importance. The
    paper draws 48 of 100.
    """
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
    """Return a rival with a separate run per member."""
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
        # `augment=none` embeds each image once. The authors embed new crops in each of 300 epochs.
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
                {**_fused(terms, "hydra", "@copies"), "val": terms.val, "max-nll-increase": 0},
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
            trainings=lambda members: members,  # one joint run computes as much as the members
        ),
        "mimo": Rival(
            rows=lambda terms: {f"MIMO of {terms.members}": "@mimo"},
            stages=lambda terms: [
                _fused(terms, "mimo-copies", *[terms.model] * terms.members)
                | {"trunk": terms.blocks, "own-blocks": True},
                tuned(terms, "mimo", "@mimo-copies", method="mimo"),
            ],
            trainings=lambda _: Mimo().repeat,  # every batch contains each image this many times
        ),
        "oba": Rival(
            rows=lambda _: {"OBA": "@oba"},
            # share of weights kept in Hydra Ensembles for ImageNet-1K
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
