"""How far an exported model is from the model itself, on random inputs and on data, and what both are worth there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from hydractl.data.batches import Batch
from hydractl.data.datasets import ImageSet, Items
from hydractl.data.encode import encoded, of_kind
from hydractl.data.preprocess import eval_transform, to_channels
from hydractl.errors import CheckFailed, InputError, reason_of
from hydractl.families.dummy_inputs import largest_difference, probe_inputs
from hydractl.families.load import OpenModel
from hydractl.families.weights_digest import fingerprint_of
from hydractl.fusion.inference import Runnable, collected
from hydractl.fusion.inference import responses as responses_of
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.manifest.report import Report, Row
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.compute import Selection, means, measure_all
from hydractl.metrics.ood_scores import MSP
from hydractl.metrics.per_sample import Responses, in_memory
from hydractl.metrics.registry import METRICS, choose_metrics
from hydractl.metrics.resampling import Resampling
from hydractl.model_inputs import PIXELS, WORDS, Inputs
from hydractl.progress import Progress
from hydractl.runtime import versions
from hydractl.stages.export.export_module import IMAGES, OUTPUTS
from hydractl.stages.export.formats import Named, Program
from hydractl.version import __version__

BATCHES = (1, 2, 5)
SIZES = ((1.0, 1.0), (0.6, 0.8), (1.7, 2.3), (3.1, 1.3))
"""Heights and widths of random images, relative to the model's."""
OOD = "ood"


@dataclass(frozen=True, slots=True)
class Runner:
    """An exported model, asked as a model is that `respond` is given."""

    program: Program

    @property
    def device(self) -> torch.device:
        """Where it takes its inputs."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it takes them in."""
        return torch.float32

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return each member's logits (M, B, C), or of words (M, B, Q, C)."""
        by_name = dict(named(inputs))
        words = by_name.pop(WORDS, None)
        logits = self.program(by_name)["member_logits"]
        return (logits if words is None else logits.take_along_dim(words.clamp(min=0)[None, :, :, None], 2),)


def named(inputs: Inputs) -> Named:
    """Return inputs by name."""
    if isinstance(inputs, torch.Tensor):
        return {IMAGES if inputs.dtype == torch.uint8 else PIXELS: inputs}
    return inputs


def samples(header: Header, *, batch: int, seed: int) -> dict[str, torch.Tensor]:
    """Return random inputs by name; of a zero-shot model images, which are all that it is asked."""
    inputs = named(probe_inputs(header, batch=batch, seed=seed))
    texts = isinstance(header.preprocess, Tokenization)
    return {name: x for name, x in inputs.items() if texts or name == PIXELS}


def pictures(how: Preprocess, *, size: tuple[float, float], batch: int, seed: int) -> torch.Tensor:
    """Return random pixels (B, H, W, C) of a size relative to the model's, uint8."""
    channels, height, width = how.input_size
    shape = (batch, max(2, round(height * size[0])), max(2, round(width * size[1])), channels)
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def prepared(how: Preprocess, pixels: torch.Tensor) -> torch.Tensor:
    """Return pixels (B, H, W, C) as `eval` reads such images."""
    transform = eval_transform(how)
    return torch.stack([transform(Image.fromarray(image)) for image in pixels.squeeze(-1).numpy()])


def trials(header: Header, *, with_pixels: bool, seed: int) -> Iterator[Named]:
    """Yield random inputs of several numbers of samples; texts of two lengths, pixels of several sizes."""
    how = header.preprocess
    if with_pixels and isinstance(how, Preprocess):
        for i, size in enumerate(SIZES):
            yield {IMAGES: pictures(how, size=size, batch=BATCHES[i % len(BATCHES)], seed=seed + i)}
        return
    for i, batch in enumerate(BATCHES):
        inputs = samples(header, batch=batch, seed=seed + i)
        yield inputs
        if isinstance(how, Tokenization) and how.padding == "longest":
            # texts are padded on the right: no row of their first half is nothing but padding
            yield {name: x[:, : max(1, x.shape[1] // 2)] for name, x in inputs.items()}


def difference(exported: Program, expected: Program, trial_inputs: Iterable[Named]) -> float:
    """Return the largest difference of any output; see `largest_difference`.

    Raises:
        InputError: If the program does not run.
    """
    worst = 0.0
    for inputs in trial_inputs:
        try:
            answer = exported(inputs)
        except Exception as error:  # of a runtime: no public kinds
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
            raise InputError(f"the exported model fails on {shapes}: {reason_of(error)}") from error
        reference = expected(inputs)
        worst = max(worst, *(largest_difference(answer[name], reference[name]) for name in OUTPUTS))
    return worst


def require_near(difference_found: float, tolerance: float, *, inputs_name: str) -> None:
    """Refuse an exported model that is too far from the model.

    Raises:
        CheckFailed: With both numbers.
    """
    if not difference_found <= tolerance:
        raise CheckFailed(
            f"the outputs of the exported model differ by {difference_found:.1e} on {inputs_name}, "
            f"more than the tolerance {tolerance:g}; nothing was written",
            hint=f"to accept that difference, add `--tolerance {2 * difference_found:.0e}`"
            if difference_found < 1
            else None,
        )


def undecoded(items: ImageSet, how: Preprocess) -> Iterator[Batch[torch.Tensor]]:
    """Yield images as pixels (1, H, W, C), uint8, one by one: they may be of different sizes."""
    for i in range(len(items)):
        pixels = np.array(to_channels(items.image(i), how.input_size[0], how.transparency))
        yield Batch(torch.from_numpy(pixels).reshape(1, *pixels.shape[:2], -1), torch.tensor([i]))


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
            return undecoded(of_kind(items, ImageSet), self.how)
        return encoded(items, self.how, batch_size=self.batch_size, limit_bytes=0)

    def ask(
        self, model: Runnable, *, name: str, progress: Progress, pixels: bool = False
    ) -> dict[str, Responses]:
        """Return what a model says of each set; `pixels` where it prepares images itself."""
        predictions = {}
        for role, items in self.sets.items():
            total = len(items) if pixels else -(-len(items) // self.batch_size)
            batches = progress.track(self.batches(items, pixels=pixels), label=name, total=total)
            outputs = responses_of(model, batches, name=name, data=items.name)
            predictions[role] = in_memory(collected(outputs, count=len(items)))
        return predictions


def furthest(actual: Mapping[str, Responses], expected: Mapping[str, Responses]) -> float:
    """Return the largest difference of logits on any set; see `largest_difference`."""
    return max(
        largest_difference(*(x[~x.isnan()] for x in (actual[role].logits(), expected[role].logits())))
        for role in expected
    )


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
    selection = Selection(chosen, (MSP,), Resampling(resamples=0))
    rows = []
    for name, responses in responses_by_row.items():
        foreign = {OOD: responses[OOD]} if OOD in responses else {}
        numbers = measure_all(
            responses[ID_NAME],
            trial.labels,
            foreign,
            opened.header,
            selection,
        )
        rows.append(
            Row(
                name=name,
                models=(fingerprint_of(opened),),
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
            role: Fingerprint(reference=items.name, sha256=items.fingerprint(), count=items.total)
            for role, items in trial.sets.items()
        },
        far=(OOD,) if OOD in trial.sets else (),
        definitions={name: METRICS[name].definition for name in METRICS if name in metric_names},
        options=dict(options),
        versions={"hydractl": __version__, **versions("torch", opened.family.library)},
    )
