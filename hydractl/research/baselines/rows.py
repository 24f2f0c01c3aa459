"""Baselines of `eval --compare KIND:MODEL`, derived from loaded models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch
from typing_extensions import override

from hydractl import progress
from hydractl.data.batches import eval_batches
from hydractl.data.datasets import Dataset, ItemPreprocess
from hydractl.evaluation.data import EvalData
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import OpenModel, build_checked
from hydractl.families.tower import OutputHead, Towers
from hydractl.fusion.build import hydra_from_state, placeholder_tensors
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.header import Kind
from hydractl.manifest.terms import ID_NAME
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.prediction.class_names import Classes
from hydractl.prediction.open_inputs import overlap
from hydractl.research.baselines.options import DATA, VAL, BaselineOptions, DerivedModels
from hydractl.research.schema import Derived


class BaselineModel(Towers):
    """A model derived from the towers of another model.

    Attributes:
        passes: Forward passes per prediction.
        training_macs: Multiply-accumulates of the training.
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
    """A derived model that also estimates the probability of a correct prediction.

    Attributes:
        confidence: Confidence on the last batch, (B,).
    """

    confidence: torch.Tensor

    @override
    def outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Return logits (M, B, C), and the negative confidence (1, B, 1) as OOD score `msp`."""
        logits = self.member_logits(inputs)
        return logits, -self.confidence[None, :, None]


class FittedData(NamedTuple):
    """Data to fit a baseline on.

    Attributes:
        items: The data set.
        fingerprint: Fingerprint for the record.
        labels: Labels (N,) in the classes of the models; empty if the baseline uses no labels.
    """

    items: Dataset
    fingerprint: Fingerprint
    labels: torch.Tensor


class BaselineInputs(NamedTuple):
    """Models and data of a baseline.

    Attributes:
        models: Loaded models.
        files: Header and files of the same models.
        data: Data of the run.
        fitted_on: Data of `data=` and `val=`, by reference.
    """

    models: Sequence[Towers]
    files: Sequence[OpenModel]
    data: EvalData
    fitted_on: Mapping[str, FittedData]

    @property
    def name(self) -> str:
        """Reference of the first model, for messages."""
        return self.files[0].reference

    def batches(self, items: Dataset, preprocess: ItemPreprocess) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """Yield inputs for the first model with their item indices (B,); every rank gets all batches."""
        model, size = self.models[0], self.data.inputs[ID_NAME].batch_size
        like = torch.empty(0, device=model.device, dtype=model.dtype)
        every = eval_batches(items, preprocess, batch_size=size, limit_bytes=0)
        label, total = f"{self.name} on {items.name}", -(-len(items) // size)
        for batch in progress.track(every, label=label, total=total):
            yield inputs_like(batch.inputs, like), batch.indices


def without_weights(model_file: OpenModel) -> Towers:
    """Build a model whose weights are NaN and use no memory."""
    state, header = placeholder_tensors(model_file.checkpoint.specs), model_file.header
    return (
        hydra_from_state(header, state, place=model_file.reference)
        if header.kind == Kind.HYDRA
        else build_checked(model_file.family, header, state, place=model_file.reference)
    )


def check_baseline(options: BaselineOptions, files: Sequence[OpenModel], classes: Classes | None) -> None:
    """Raise if a baseline cannot be made from files. No data is read.

    Raises:
        UnsupportedModelError: If the baseline does not support the models.
    """
    import_module(options.MODULE).check(options, files, classes)


def build_baseline(options: BaselineOptions, inputs: BaselineInputs) -> tuple[Towers, Derived]:
    """Fit a baseline.

    Returns:
        The model that predicts, and the record of the baseline.

    Raises:
        UnsupportedModelError: If the baseline does not support the models.
    """
    model, fitted = import_module(options.MODULE).build(options, inputs)
    settings = {
        name: setting
        for name, setting in asdict(options).items()
        if name not in {DATA, VAL} and setting is not None
    }
    data, val = (
        None if ref is None else inputs.fitted_on[str(ref)].fingerprint
        for ref in (options.data_ref, options.val)
    )
    return model, Derived(kind=options.KIND, options=settings | fitted, data=data, val=val)


def overlaps(
    options: Sequence[BaselineOptions], tested: np.ndarray, contents: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Yield a warning for each data set of a baseline that shares samples with other data of the run.

    Args:
        options: Options of all baselines.
        tested: Digests of the samples of the ID set, of dtype `DIGEST`.
        contents: Digests of the samples of each data reference.
    """
    for name, content in contents.items():
        if twice := int(np.isin(tested, content).sum()):
            yield f"{twice} of {len(tested)} samples of `--data` are also in `{name}`, which a row was fitted on"
    for data, val in dict.fromkeys((o.data_ref, o.val) for o in options if o.data_ref and o.val):
        if shared := overlap(f"val={val}", contents[str(val)], f"data={data}", contents[str(data)]):
            yield f"{shared}, so the prior is selected on data that the model was fitted on"


def baselines_of_row(named: NamedModels) -> Iterator[tuple[BaselineOptions | None, slice]]:
    """Yield each baseline of a row with the positions of its models.

    Yields:
        Options and positions. The options are None for a model without a baseline. Rows without baselines
        yield nothing.
    """
    place, rivals = 0, named.rivals if isinstance(named, DerivedModels) else ()
    while place < len(rivals):
        options = rivals[place]
        end = place + (1 if options is None else options.checkpoints)
        yield options, slice(place, end)
        place = end
