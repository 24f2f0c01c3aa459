"""What an exported model's answers are worth on data, beside the model's own, by the metrics of `eval`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from hydractl.data.batches import Batch
from hydractl.data.datasets import ImageSet, Items
from hydractl.data.encode import encoded, of_kind
from hydractl.families.dummy_inputs import largest_difference
from hydractl.families.load import OpenModel
from hydractl.fusion.inference import Answers, respond_to_all
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.manifest.report import Report, Row
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.compute import means, measure
from hydractl.metrics.ood_scores import MSP
from hydractl.metrics.per_sample import Responses
from hydractl.metrics.registry import METRICS, choose_metrics
from hydractl.metrics.resampling import Resampling
from hydractl.model_inputs import Inputs
from hydractl.progress import Progress
from hydractl.runtime import versions
from hydractl.stages.export.compare import undecoded
from hydractl.version import __version__

OOD = "ood"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Data that a model and what was exported of it are asked about.

    Attributes:
        sets: By role, `id` and perhaps `ood`.
        labels: Of the former, (N,), the model's classes.
        how: How the model reads them.
        batch_size: At least 1.
    """

    sets: Mapping[str, Items]
    labels: torch.Tensor
    how: Preprocess | Tokenization
    batch_size: int

    def batches(self, items: Items, *, pixels: bool) -> Iterable[Batch[Inputs]]:
        """Return what is asked: inputs as they are prepared for the model, or pixels."""
        if pixels and isinstance(self.how, Preprocess):
            return undecoded(of_kind(items, ImageSet), self.how.input_size[0])
        return encoded(items, self.how, batch_size=self.batch_size, limit_bytes=0)

    def ask(
        self, model: Answers, *, name: str, progress: Progress, pixels: bool = False
    ) -> dict[str, Responses]:
        """Return what a model says of each set; `pixels` where it prepares images itself."""
        responses = {}
        for role, items in self.sets.items():
            total = len(items) if pixels else -(-len(items) // self.batch_size)
            batches = progress.track(self.batches(items, pixels=pixels), label=name, total=total)
            responses[role] = respond_to_all(model, batches, count=len(items), name=name, data=items.name)
        return responses


def furthest(actual: Mapping[str, Responses], expected: Mapping[str, Responses]) -> float:
    """Return the largest difference of logits on any set; see `largest_difference`."""
    return max(largest_difference(actual[role].logits(), expected[role].logits()) for role in expected)


def measured(
    opened: OpenModel,
    trial: Trial,
    responses_by_row: Mapping[str, dict[str, Responses]],
    options: Mapping[str, OptionValue],
) -> Report:
    """Return what rows are worth, as `eval` reports it but for costs and intervals.

    Args:
        opened: The model that all of them are.
        trial: What they were asked.
        responses_by_row: What each row says of each set.
        options: Of the export.
    """
    chosen = choose_metrics(None, ood=OOD in trial.sets, latency=False)
    rows = []
    for name, responses in responses_by_row.items():
        foreign = {OOD: responses[OOD]} if OOD in responses else {}
        numbers = measure(
            responses[ID_NAME],
            trial.labels,
            foreign,
            metrics=chosen,
            scores=(MSP,),
            resampling=Resampling(resamples=0, seed=0),
        )
        rows.append(
            Row(
                name=name,
                models=(Fingerprint(reference=opened.as_input().name, sha256=opened.checkpoint.digest),),
                members=len(responses[ID_NAME].log_probs),
                values=numbers.values,
                ood=numbers.ood,
                means=means(numbers.ood, {"far": (OOD,), "all": (OOD,)} if foreign else {}),
            )
        )
    metric_names = {name for row in rows for name in (*row.values, *(n for v in row.ood.values() for n in v))}
    return Report(
        rows=tuple(rows),
        data={
            role: Fingerprint(reference=items.name, sha256=items.fingerprint(), count=len(items))
            for role, items in trial.sets.items()
        },
        far=(OOD,) if OOD in trial.sets else (),
        definitions={name: METRICS[name].definition for name in METRICS if name in metric_names},
        options=dict(options),
        versions={"hydractl": __version__, **versions("torch", opened.family.library)},
    )
