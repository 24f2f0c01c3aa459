"""Reports of `eval` that nothing was measured for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.manifest.document import Fingerprint
from hydractl.manifest.report import Report, Row, Value
from support.builders import sha

if TYPE_CHECKING:
    from pathlib import Path


def write_report(path: Path, digest: str) -> Path:
    """Write a report of two models, of which the second has the digest."""

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
