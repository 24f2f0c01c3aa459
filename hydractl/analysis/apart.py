"""Models on their own in fp32, as methods of scoring take them: with both towers where classes are asked about by texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hydractl.analysis.subject import Part, Subject
from hydractl.families.opening import OpenModel, load_model
from hydractl.families.tower import Model
from hydractl.families.zero_shot import Contrast
from hydractl.fusion.building import members_from_state
from hydractl.fusion.classes import prompts_of
from hydractl.inputs import inputs_like
from hydractl.manifest.header import Kind
from hydractl.manifest.scopes import ID_NAME
from hydractl.scoring.job import Samples


def asked(model: Model, opened: OpenModel, subject: Subject) -> Model:
    """Return a model on the row's device, without gradients of weights, with its classes as prompts if it is zero-shot."""
    if isinstance(model.answer, Contrast) and subject.classes is not None:
        model.answer.ask(prompts_of(opened, subject.classes), templates=len(subject.classes.templates))
    for parameter in model.parameters():
        parameter.requires_grad = False
    return model.to(subject.parts[0].model.device)


def single(opened: OpenModel, subject: Subject) -> Model:
    """Return a base or a member."""
    return asked(load_model(opened, dtype=torch.float32), opened, subject)


def members_of(part: Part, subject: Subject) -> Iterator[Model]:
    """Yield each member of a model of the row."""
    opened = part.opened
    if opened.header.kind != Kind.HYDRA:
        yield single(opened, subject)
        return
    state = opened.checkpoint.tensors()
    for model in members_from_state(opened.header, state, where=opened.reference, dtype=torch.float32):
        yield asked(model, opened, subject)


@dataclass(frozen=True, slots=True)
class Labelled:
    """This process's batches of the ID set with their labels, on a model's device, again and again."""

    subject: Subject
    part: Part
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.subject.batches(self.part, ID_NAME):
            labels = self.subject.labels[batch.indices].to(self.like.device)
            yield Samples(inputs_like(batch.inputs, self.like), labels)
