"""Comparison of an exported model with the original, on random inputs and on labelled data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from PIL import Image

from hydractl import progress
from hydractl.data.batches import Batch, eval_batches
from hydractl.data.datasets import Dataset, ImageSet, of_kind
from hydractl.data.preprocess import eval_transform, to_channels
from hydractl.errors import CheckFailed, InputError, reason_of
from hydractl.exporting.formats import IMAGES, OUTPUTS, ExportModule, Named, Program, named
from hydractl.families.open_model import OpenModel, fingerprint_of
from hydractl.families.tower import largest_difference, probe_inputs
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.manifest.report import Report, Row
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.compute import Measurement, means, measure_all
from hydractl.metrics.ood_scores import MSP
from hydractl.metrics.per_sample import Responses, in_memory
from hydractl.metrics.registry import METRICS, choose_metrics
from hydractl.metrics.resampling import Resampling
from hydractl.model_inputs import PIXELS, WORDS, Inputs
from hydractl.prediction.inference import Runnable, collected
from hydractl.prediction.inference import responses as responses_of
from hydractl.runtime import versions
from hydractl.version import __version__

BATCHES = (1, 2, 5)
"""Batch sizes of random inputs. The example for tracing has two samples, so 1 and 5 test the dynamic batch
axis."""
SIZES = ((1.0, 1.0), (0.6, 0.8), (1.7, 2.3), (3.1, 1.3))
"""Heights and widths of random images, relative to the model's: equal, smaller, larger, and one side much
larger. Pillow filters differently when it shrinks an image, so both directions are tested."""
OOD = "ood"
RANDOM = "random inputs"
PREPARED = "random pixels with the preprocessing of `eval`"
"""Name of the second comparison, whose difference is only reported. Pillow resizes one axis after the other,
rounds in between, and chooses the order of the axes itself, so single pixels may differ."""


@dataclass(frozen=True, slots=True)
class Runner:
    """An exported model with the interface of `Runnable`."""

    program: Program
    device: ClassVar = torch.device("cpu")
    dtype: ClassVar = torch.float32

    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return the logits of the members (M, B, C), or of words (M, B, Q, C)."""
        by_name = dict(named(inputs))
        words = by_name.pop(WORDS, None)
        logits = self.program(by_name)["member_logits"]
        return (logits if words is None else logits.take_along_dim(words.clamp(min=0)[None, :, :, None], 2),)


def samples(header: Header, *, batch: int, seed: int) -> dict[str, torch.Tensor]:
    """Return random inputs by name, with `batch` samples. For a zero-shot model, only images."""
    inputs = named(probe_inputs(header, batch=batch, seed=seed))
    texts = isinstance(header.preprocess, Tokenization)
    return {name: x for name, x in inputs.items() if texts or name == PIXELS}


def pictures(preprocess: Preprocess, *, size: tuple[float, float], batch: int, seed: int) -> torch.Tensor:
    """Return random pixels (B, H, W, C), uint8.

    Args:
        preprocess: Preprocessing of the model.
        size: Height and width relative to the model's.
        batch: Number of images B.
        seed: Seed of the pixels.
    """
    channels, height, width = preprocess.input_size
    shape = (batch, max(2, round(height * size[0])), max(2, round(width * size[1])), channels)
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def prepared(preprocess: Preprocess, pixels: torch.Tensor) -> torch.Tensor:
    """Return pixels (B, H, W, C), uint8, with the preprocessing of `eval`: (B, C, height, width), float32."""
    transform = eval_transform(preprocess)
    return torch.stack([transform(Image.fromarray(image)) for image in pixels.squeeze(-1).numpy()])


def trials(header: Header, *, with_pixels: bool, seed: int) -> Iterator[Named]:
    """Yield random inputs of several batch sizes.

    With `with_pixels`, a model of images gets uint8 pixels of several sizes; without, `pixel_values` of its
    own size. Texts that are padded to the longest text follow in half their length too.
    """
    preprocess = header.preprocess
    if with_pixels and isinstance(preprocess, Preprocess):
        for i, size in enumerate(SIZES):
            yield {IMAGES: pictures(preprocess, size=size, batch=BATCHES[i % len(BATCHES)], seed=seed + i)}
        return
    for i, batch in enumerate(BATCHES):
        inputs = samples(header, batch=batch, seed=seed + i)
        yield inputs
        if isinstance(preprocess, Tokenization) and preprocess.padding == "longest":
            # Texts are padded on the right. Every row has tokens in the first half.
            yield {name: x[:, : max(1, x.shape[1] // 2)] for name, x in inputs.items()}


def random_differences(
    program: Program, module: ExportModule, header: Header, *, tolerance: float, seed: int
) -> dict[str, float]:
    """Return the largest differences of outputs on random inputs; see `largest_difference`.

    Args:
        program: The exported model.
        module: The original.
        header: Header of the model.
        tolerance: Largest accepted difference for the model itself.
        seed: Seed of the inputs.

    Returns:
        Differences by kind of inputs: `RANDOM`, and `PREPARED` if the exported model contains the
            preprocessing.

    Raises:
        CheckFailed: If the difference for `RANDOM` is too large.
        InputError: If the exported model does not run.
    """
    preprocess, with_pixels = header.preprocess, module.pixels is not None
    inputs = list(trials(header, with_pixels=with_pixels, seed=seed))
    differences = {RANDOM: _difference(program, module.answer, inputs)}
    require_near(differences[RANDOM], tolerance, inputs_name=RANDOM)
    if with_pixels and isinstance(preprocess, Preprocess):
        as_eval = ExportModule(module.with_score).answer
        differences[PREPARED] = _difference(
            program, lambda pixels: as_eval({PIXELS: prepared(preprocess, pixels[IMAGES])}), inputs
        )
    return differences


def _difference(exported: Program, expected: Program, trial_inputs: Iterable[Named]) -> float:
    worst = 0.0
    for inputs in trial_inputs:
        try:
            answer = exported(inputs)
        except Exception as error:  # Runtimes raise private classes.
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
            raise InputError(f"the exported model fails on {shapes}: {reason_of(error)}") from error
        reference = expected(inputs)
        worst = max(worst, *(largest_difference(answer[name], reference[name]) for name in OUTPUTS))
    return worst


def require_near(difference: float, tolerance: float, *, inputs_name: str) -> None:
    """Raise if an exported model differs too much from the original.

    Raises:
        CheckFailed: The message has both numbers. Also raised for NaN.
    """
    if not difference <= tolerance:
        raise CheckFailed(
            f"the outputs of the exported model differ by {difference:.1e} on {inputs_name}, "
            f"more than the tolerance {tolerance:g}; nothing was written",
            hint=f"to accept that difference, add `--tolerance {2 * difference:.0e}`"
            if difference < 1
            else None,
        )


def undecoded(dataset: ImageSet, preprocess: Preprocess) -> Iterator[Batch[torch.Tensor]]:
    """Yield images as pixels (1, H, W, C), uint8, one at a time because sizes may differ."""
    for i in range(len(dataset)):
        pixels = np.array(to_channels(dataset.image(i), preprocess.input_size[0], preprocess.transparency))
        yield Batch(torch.from_numpy(pixels).reshape(1, *pixels.shape[:2], -1), torch.tensor([i]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Data for the comparison of an exported model with the original.

    Attributes:
        model_file: The original model.
        sets: Data sets by role: `id`, and `ood` if given.
        labels: Labels of `id`, shape (N,), as classes of the model.
        batch_size: At least 1.
    """

    model_file: OpenModel
    sets: Mapping[str, Dataset]
    labels: torch.Tensor
    batch_size: int

    def responses(self, model: Runnable, *, name: str, pixels: bool = False) -> dict[str, Responses]:
        """Return the predictions of a model on each set, by role.

        Args:
            model: The original or the exported model.
            name: Name for progress and messages.
            pixels: Whether the model contains the preprocessing of images.
        """
        preprocess, predictions = self.model_file.header.preprocess, {}
        for role, dataset in self.sets.items():
            total = len(dataset) if pixels else -(-len(dataset) // self.batch_size)
            batches: Iterable[Batch[Inputs]] = (
                undecoded(of_kind(dataset, ImageSet), preprocess)
                if pixels and isinstance(preprocess, Preprocess)
                else eval_batches(dataset, preprocess, batch_size=self.batch_size, limit_bytes=0)
            )
            batches = progress.track(batches, label=name, total=total)
            outputs = responses_of(model, batches, name=name, data=dataset.name)
            predictions[role] = in_memory(collected(outputs, count=len(dataset)))
        return predictions

    def report(
        self, responses_by_row: Mapping[str, dict[str, Responses]], options: Mapping[str, OptionValue]
    ) -> Report:
        """Return a report in the form of `eval`, without costs and confidence intervals.

        Args:
            responses_by_row: Predictions on each set, by row name.
            options: Options of the export.
        """
        chosen = choose_metrics(None, ood=OOD in self.sets, latency=False)
        selection = Measurement(chosen, (MSP,), Resampling(resamples=0))
        rows = []
        for name, responses in responses_by_row.items():
            foreign = {role: responses[role] for role in self.sets if role == OOD}
            numbers = measure_all(responses[ID_NAME], self.labels, foreign, self.model_file.header, selection)
            rows.append(
                Row(
                    name=name,
                    models=(fingerprint_of(self.model_file),),
                    members=len(responses[ID_NAME].log_probs),
                    values=numbers.values,
                    ood=numbers.ood,
                    means=means(numbers.ood, {"far": (OOD,), "all": (OOD,)} if foreign else {}),
                )
            )
        metric_names = {
            name for row in rows for name in (*row.values, *(n for v in row.ood.values() for n in v))
        }
        return Report(
            rows=tuple(rows),
            data={
                role: Fingerprint(reference=dataset.name, sha256=dataset.fingerprint(), count=dataset.total)
                for role, dataset in self.sets.items()
            },
            far=(OOD,) if OOD in self.sets else (),
            definitions={name: METRICS[name].definition for name in METRICS if name in metric_names},
            options=dict(options),
            versions={"hydractl": __version__, **versions("torch", self.model_file.family.library)},
        )


def furthest(actual: Mapping[str, Responses], expected: Mapping[str, Responses]) -> float:
    """Return the largest difference of logits on any set; see `largest_difference`."""
    return max(
        largest_difference(*(x[~x.isnan()] for x in (actual[role].logits(), expected[role].logits())))
        for role in expected
    )
