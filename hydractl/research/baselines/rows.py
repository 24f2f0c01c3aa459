"""Baselines of `eval --compare KIND:MODEL`, made of loaded models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch
from typing_extensions import override

from hydractl import progress
from hydractl.data.batches import encoded
from hydractl.data.datasets import Dataset, Reading
from hydractl.evaluation.data import EvalData
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import OpenModel, build_checked
from hydractl.families.tower import OutputHead, Towers
from hydractl.fusion.build import hollow, hydra_from_state
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.header import Kind
from hydractl.manifest.terms import ID_NAME
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.prediction.class_names import Classes
from hydractl.prediction.open_inputs import overlap
from hydractl.research.baselines.options import DATA, VAL, BaselineOptions, DerivedModels
from hydractl.research.schema import Derived


class BaselineModel(Towers):
    """A model derived from the towers of another one.

    Attributes:
        passes: Forward passes per prediction.
        training_macs: Multiply-accumulates of its training.
    """

    passes = 1
    training_macs = 0

    def __init__(self, model: Towers) -> None:
        towers = {name: model.tower(name) for name in model.towers}
        super().__init__(towers, [answer for answer in model.answers if isinstance(answer, OutputHead)])
        self.temperature = model.temperature
        self.eval()

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return each member's logits (M, B, C)."""
        return self.member_logits(inputs)


class WithConfidence(BaselineModel):
    """A derived model that also estimates the probability of being correct.

    Attributes:
        confidence: Confidence on the last batch, (B,).
    """

    confidence: torch.Tensor

    @override
    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return each member's logits (M, B, C), and the score `msp` of the inputs, minus the confidence, (1, B, 1)."""
        logits = self.member_logits(inputs)
        return logits, -self.confidence[None, :, None]


class FittedData(NamedTuple):
    """Data that a baseline is fitted on, and their labels (N,) in the order of the models' classes; no labels if none are read."""

    items: Dataset
    fingerprint: Fingerprint
    labels: torch.Tensor


class BaselineInputs(NamedTuple):
    """Inputs of a baseline.

    Attributes:
        models: Loaded models.
        files: The same models, opened.
        data: Data of the run.
        fitted_on: Data of `data=` and `val=` by their references.
    """

    models: Sequence[Towers]
    files: Sequence[OpenModel]
    data: EvalData
    fitted_on: Mapping[str, FittedData]

    @property
    def name(self) -> str:
        """What messages call the first model."""
        return self.files[0].reference

    def batches(self, items: Dataset, how: Reading) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """Yield inputs as the first model takes them, and which items they are; in each process all of them."""
        model, size = self.models[0], self.data.inputs[ID_NAME].batch_size
        like = torch.empty(0, device=model.device, dtype=model.dtype)
        every = encoded(items, how, batch_size=size, limit_bytes=0)
        label, total = f"{self.name} on {items.name}", -(-len(items) // size)
        for batch in progress.track(every, label=label, total=total):
            yield inputs_like(batch.inputs, like), batch.indices


def without_weights(opened: OpenModel) -> Towers:
    """Return a model without its weights."""
    state, header = hollow(opened.checkpoint.specs), opened.header
    return (
        hydra_from_state(header, state, where=opened.reference)
        if header.kind == Kind.HYDRA
        else build_checked(opened.family, header, state, where=opened.reference)
    )


def check_baseline(options: BaselineOptions, files: Sequence[OpenModel], classes: Classes | None) -> None:
    """Check without data whether a baseline can be made of files.

    Raises:
        UnsupportedModelError: If it cannot.
    """
    import_module(options.MODULE).check(options, files, classes)


def build_baseline(options: BaselineOptions, inputs: BaselineInputs) -> tuple[Towers, Derived]:
    """Return the model that answers, and the record of the baseline.

    Raises:
        UnsupportedModelError: If the baseline cannot be made of the models.
    """
    model, fitted = import_module(options.MODULE).build(options, inputs)
    settings = {
        name: setting
        for name, setting in asdict(options).items()
        if name not in {DATA, VAL} and setting is not None
    }
    data, val = (
        None if ref is None else inputs.fitted_on[str(ref)].fingerprint
        for ref in (options.reads, options.val)
    )
    return model, Derived(kind=options.KIND, options=settings | fitted, data=data, val=val)


def overlaps(
    options: Sequence[BaselineOptions], tested: np.ndarray, contents: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Yield a line for each data set that shares samples with test data, or with the data that a prior is selected on.

    Args:
        options: Of all baselines.
        tested: Digests of the samples of the ID set, as `DIGEST`.
        contents: Digests of the data of each reference, likewise.
    """
    for name, content in contents.items():
        if twice := int(np.isin(tested, content).sum()):
            yield f"{twice} of {len(tested)} samples of `--data` are also in `{name}`, which a row was fitted on"
    for data, val in dict.fromkeys((o.reads, o.val) for o in options if o.reads and o.val):
        if shared := overlap(f"val={val}", contents[str(val)], f"data={data}", contents[str(data)]):
            yield f"{shared}, so the prior is selected on data that the model was fitted on"


def baselines_of_row(named: NamedModels) -> Iterator[tuple[BaselineOptions | None, slice]]:
    """Yield the options of each baseline of a row, and the places of its models; None for a model that answers as it is."""
    place, rivals = 0, named.rivals if isinstance(named, DerivedModels) else ()
    while place < len(rivals):
        options = rivals[place]
        end = place + (1 if options is None else options.checkpoints)
        yield options, slice(place, end)
        place = end
