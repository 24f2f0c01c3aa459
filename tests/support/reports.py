"""Reports of `eval` with random numbers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from hydractl.manifest.document import Fingerprint, Value
from hydractl.manifest.guarantees import ByClass, ClassHits, Confusion, Example, Examples, Threshold
from hydractl.manifest.head_mask import TowerKeep
from hydractl.manifest.header import InputFile, Step
from hydractl.manifest.report import Bins, Curves, Line, Origin, Report, Row
from hydractl.metrics.registry import METRICS
from support.builders import sha

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("hydra", "base", "Deep ensemble")
THRESHOLD = Threshold(score="msp", below=-0.5, risk=0.1, delta=0.05, count=10, accepted=5, errors=0)
COSTS = (46.2e9, 17.6e9, 52.7e9)


def write_report(path: Path, digest: str) -> Path:
    """Write a report of two models. The second model has the given digest."""

    def row(name, digest, accuracy):
        values = {"accuracy": Value(value=accuracy, low=0.9, high=0.97, count=257)}
        ood = {"noise": {"auroc": Value(value=0.75, low=0.7, high=0.8, count=400)}}
        models = (Fingerprint(reference=f"{name}.st", sha256=digest),)
        return Row(name=name, models=models, members=1, values=values, ood=ood)

    report = Report(
        rows=(row("Single", sha("other"), 0.5), row("Hydra", digest, 0.95)),
        data={"id": Fingerprint(reference="digits::split=test", sha256=sha("id"), count=257), "noise": Fingerprint(reference="noise", sha256=sha("noise"))},
        far=("noise",),
        definitions={"accuracy": "What it means.", "auroc": "What it means."},
        options={},
        versions={},
    )  # fmt: skip
    path.write_text(report.to_json())
    return path


def seeded(
    seed: int,
    *,
    names: tuple[str, ...] = NAMES,
    near: tuple[str, ...] = ("birds",),
    far: tuple[str, ...] = ("noise",),
    curves: bool = True,
    shape: tuple[int, int, int] = (3, 2, 4),
    fixed: tuple[str, ...] = (),
    shift: bool = False,
    data: str = "id",
) -> Report:
    """Return a report with the random numbers of one seed.

    Args:
        seed: Seed of the numbers.
        names: Names of the rows.
        near: Near-OOD sets.
        far: Far-OOD sets.
        curves: Whether rows have curves, classes and origins.
        shape: Members of the first row, layers, and heads per layer.
        fixed: Rows with the same model for every seed.
        shift: Whether rows have results of `--corrupt all`.
        data: Source of the ID set's digest.
    """
    draw = Random(seed)  # noqa: S311 - no secret
    rows = tuple(_row(i, name, near + far, draw, shape, curves) for i, name in enumerate(names))
    rows = tuple(
        row.model_copy(
            update={
                "models": (
                    Fingerprint(
                        reference=f"{row.name}.st", sha256=sha(row.name + str(seed) * (row.name not in fixed))
                    ),
                )
            }
        )
        for row in rows
    )
    if shift:
        rows = tuple(row.model_copy(update={"shift": _shift(draw)}) for row in rows)
    return Report(
        rows=rows,
        data={
            name: Fingerprint(reference=name, sha256=sha(data if name == "id" else name), count=100)
            for name in ("id", *near, *far)
        },
        near=near,
        far=far,
        definitions={name: metric.definition for name, metric in METRICS.items()},
        options={"bootstrap": 200, "seed": 0},
        versions={"hydractl": "0"},
    )


def _row(
    i: int, name: str, sets: tuple[str, ...], draw: Random, shape: tuple[int, int, int], curves: bool
) -> Row:
    members = shape[0] if i == 0 else 1

    def value(centre: float) -> Value:
        found = centre + 0.01 * draw.random()
        return Value(value=found, low=found - 0.02, high=found + 0.02, count=100)

    values = {
        metric: value(centre)
        for metric, centre in (("accuracy", 0.9), ("nll", 0.3), ("ece", 0.03), ("brier", 0.2))
    }
    costs = {"macs": Value(value=COSTS[i % 3]), "parameters": Value(value=COSTS[i % 3] / 500)}
    ood = {data: {"auroc": value(0.85), "fpr95": value(0.4)} for data in sets}
    means = {
        metric: sum(own[metric].value for own in ood.values()) / len(sets)
        for metric in ("auroc", "fpr95")
        if sets
    }
    return Row(
        name=name,
        models=(Fingerprint(reference=f"{name}.st", sha256=sha(name)),),
        members=members,
        values=values | costs,
        ood=ood,
        means={"all": means} if sets else {},
        curves=_curves(sets, draw) if curves else None,
        by_class=_by_class(draw) if curves else None,
        origins=(_origin(name, i, draw, shape),) if curves else (),
    )


def _shift(draw: Random) -> Any:
    severities = {
        str(i): {"accuracy": 0.9 - i * draw.uniform(0.05, 0.08), "nll": 0.3 + i * draw.random()}
        for i in range(1, 6)
    }
    intervals = {
        scope + colon: {name: (found - 0.04, found + 0.03) for name, found in own.items()}
        for each, own in severities.items()
        for scope, colon in (("fog", f":{each}"), ("shift", f":{each}"))
    }
    schema = pytest.importorskip("hydractl.research.corruptions.schema")
    return schema.Shift(
        values={"fog": severities}, means=severities | {"all": severities["3"]}, intervals=intervals
    )


def _curves(sets: tuple[str, ...], draw: Random) -> Curves:
    end = draw.uniform(0.05, 0.1)
    return Curves(
        reliability=Bins(count=(0, 40, 60), confidence=(0.0, 0.6, 0.95), accuracy=(0.0, 0.55, 0.97)),
        risk=Line(x=(0.01, 0.5, 1.0), y=(0.0, end / 4, end)),
        roc={name: Line(x=(0.0, 0.2, 1.0), y=(0.0, draw.uniform(0.6, 0.9), 1.0)) for name in sets},
    )


def _by_class(draw: Random) -> ByClass:
    hits = [draw.randrange(10, 50) for _ in "abc"]
    confusions = (
        Confusion(label="a", answer="b", count=50 - hits[0]),
        Confusion(label="b", answer="c", count=3),
    )
    classes = tuple(ClassHits(index=i, name="abc"[i], count=50, hits=n) for i, n in enumerate(hits))
    return ByClass(total=3, classes=classes, confusions=confusions)


def examples() -> Examples:
    """Return an image with disagreeing members, and a misclassified text."""
    one = Example(
        name="cat/1.png",
        label="cat",
        answer="dog",
        confidence=0.6,
        disagreement=0.25,
        votes=("cat", "dog", "dog"),
        picture="/9j/AAAA",
    )
    other = Example(
        name="row 7",
        label="<b>",
        answer="|",
        confidence=0.9,
        votes=("|",),
        text="the <img src=x> `secret` text " * 12,
    )
    return Examples(disagreements=(one,), mistakes=(other,))


def _origin(name: str, i: int, draw: Random, shape: tuple[int, int, int]) -> Origin:
    members, layers, heads = shape
    base = InputFile(
        name="base.st", sha256=sha("base"), made_by=Step(command="import", options={"arch": "vit"})
    )
    if i:
        keep = TowerKeep(num_heads=heads, keep=(tuple(range(heads)),) * layers)
        return Origin(name="base.st", masks=({"vision": keep},), made_by=base.made_by)
    pruned = tuple(
        InputFile(
            name=f"m-{k}.st",
            sha256=sha(f"{name} {k}"),
            made_by=Step(command="prune", options={"keep": 2}, inputs=(base,)),
        )
        for k in range(members)
    )
    masks = tuple(
        {
            "vision": TowerKeep(
                num_heads=heads,
                keep=tuple(tuple(sorted(draw.sample(range(heads), heads // 2))) for _ in range(layers)),
            )
        }
        for _ in range(members)
    )
    return Origin(
        name=f"{name}.st",
        masks=masks,
        made_by=Step(command="fuse", options={"mlp": "merge"}, inputs=pruned, seed=0),
    )
