"""Models on their own in fp32, as methods of scoring take them: with both towers where classes are asked about by texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hydractl.families.load import OpenModel, load_model
from hydractl.families.tower import Contrast, Model
from hydractl.fusion.build import members_from_state
from hydractl.fusion.prompts import prompts_of
from hydractl.manifest.header import Kind
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.model_inputs import inputs_like
from hydractl.runtime import on_device
from hydractl.scoring.job import Samples
from hydractl.stages.evaluate.analyses.context import AnalysisContext, ModelOfRow


def with_classes(model: Model, opened: OpenModel, context: AnalysisContext) -> Model:
    """Return a model on the row's device, without gradients of weights, with its classes as prompts if it is zero-shot."""
    if isinstance(model.answer, Contrast) and context.classes is not None:
        model.answer.ask(prompts_of(opened, context.classes), templates=len(context.classes.templates))
    return model.requires_grad_(requires_grad=False).to(context.parts[0].model.device)


def single(opened: OpenModel, context: AnalysisContext) -> Model:
    """Return a base or a member."""
    return with_classes(load_model(opened, dtype=torch.float32), opened, context)


def members_of(part: ModelOfRow, context: AnalysisContext) -> Iterator[Model]:
    """Yield each member of a model of the row."""
    opened = part.opened
    if opened.header.kind != Kind.HYDRA:
        yield single(opened, context)
        return
    state = opened.checkpoint.tensors()
    for model in members_from_state(opened.header, state, where=opened.reference, dtype=torch.float32):
        yield with_classes(model, opened, context)


@dataclass(frozen=True, slots=True)
class LabelledBatches:
    """This process's batches of the ID set with their labels, on a model's device, again and again."""

    context: AnalysisContext
    part: ModelOfRow
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.context.batches(self.part, ID_NAME):
            labels = on_device(self.context.labels[batch.indices], self.like.device)
            yield Samples(inputs_like(batch.inputs, self.like), labels)
