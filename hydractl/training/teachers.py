"""Teachers of a training: opening, checks of headers, and the distillation loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hydractl.data.datasets import ItemPreprocess
from hydractl.data.preprocess import reading_differences
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.open_model import OpenModel, check_tensors, open_model
from hydractl.fusion.build import load_any, stored_specs
from hydractl.manifest.header import Header, Tokenization
from hydractl.messages import counted
from hydractl.model_inputs import Inputs
from hydractl.training.accelerator import Engine
from hydractl.training.losses import DistillationLoss, Teacher

MAX_SHOWN_CHARACTERS = 60
"""Maximum length of two differing values in a message, in characters. Chosen by hand for one line; 120 would
show longer values."""


def open_teachers(references: Sequence[str]) -> tuple[OpenModel, ...]:
    """Open the teachers; only headers are read.

    Raises:
        CheckpointError: If a teacher is missing or malformed.
        UsageError: If a teacher has random weights.
    """
    for reference in references:
        if reference.startswith("arch:"):
            raise UsageError(
                f"`--teacher {reference}`: a model with random weights cannot be a teacher",
                hint="give a trained model",
            )
    return tuple(open_model(reference) for reference in references)


def check_teachers(teachers: tuple[OpenModel, ...], student: Header, preprocess: ItemPreprocess) -> None:
    """Raise if teachers have a wrong number, other preprocessing, or other classes.

    Args:
        teachers: Opened teachers.
        student: Header of the student, with the classes of the data.
        preprocess: Preprocessing of this run.

    Raises:
        UsageError: If the number of teachers or of their members does not fit a hydra.
        CheckpointError: If a teacher has other preprocessing, classes or tensors.
    """
    members = len(student.masks)
    theirs = len(teachers[0].header.masks) if len(teachers) == 1 else 1
    if student.plan is not None and theirs not in {1, members}:
        raise UsageError(
            f"`--teacher {teachers[0].reference}`: is a hydra of {counted(theirs, 'member')}, but the "
            f"student has {counted(members, 'member')}",
            hint=(
                "give a hydra with as many members, or one teacher per member, in order: `--teacher a.st,b.st,c.st`"
            ),
        )
    if teachers and student.plan is not None and not _splits(teachers, student) and len(teachers) != members:
        raise UsageError(
            f"`--teacher` gives {counted(len(teachers), 'teacher')} for a hydra of {counted(members, 'member')}",
            hint=(
                "give one teacher per member, in order: `--teacher a.st,b.st,c.st`, or one hydra with as many members"
            ),
        )
    for teacher in teachers:
        _check_classes(teacher, student)
        _check_reading(teacher, preprocess)
        check_tensors(teacher.reference, teacher.checkpoint.specs, stored_specs(teacher))


def lesson_of(
    teachers: tuple[OpenModel, ...],
    student: Header,
    engine: Engine,
    *,
    temperature: float,
    weight: float,
    halves: bool,
) -> DistillationLoss | None:
    """Load the teachers on the device of the student, and return the distillation loss.

    Args:
        teachers: Opened teachers.
        student: Header of the student.
        engine: Device of the student.
        temperature: Temperature of the distillation loss.
        weight: Weight of the distillation loss, in (0, 1].
        halves: Whether teachers run in bf16 under autocast, like the student.

    Returns:
        None without teachers.
    """

    def teacher_of(model_file: OpenModel) -> Teacher:
        model = load_any(model_file, dtype=torch.float32).to(engine.device).eval()

        def teach(inputs: Inputs) -> torch.Tensor:
            with torch.autocast(engine.device.type, torch.bfloat16, enabled=halves):
                return model.member_logits(inputs)

        return teach

    if not teachers:
        return None
    return DistillationLoss(
        teachers=tuple(map(teacher_of, teachers)),
        temperature=temperature,
        weight=weight,
        by_member=student.plan is not None,
        split=_splits(teachers, student),
    )


def _splits(teachers: tuple[OpenModel, ...], student: Header) -> bool:
    """Return whether student and only teacher are hydras with the same number of members."""
    first = teachers[0].header if len(teachers) == 1 else None
    are_hydras = first is not None and first.plan is not None and student.plan is not None
    return are_hydras and first is not None and len(first.masks) == len(student.masks)


def _check_classes(teacher: OpenModel, student: Header) -> None:
    where, ours, theirs = teacher.reference, student.num_classes, teacher.header.num_classes
    if ours != theirs:
        raise CheckpointError(
            f"{where}: has {counted(theirs, 'class', 'classes')}, but the student has {ours}",
            hint="use a teacher that was trained on the same classes",
        )
    theirs_task, ours_task = (header.architecture.task for header in (teacher.header, student))
    if theirs_task is not ours_task:
        raise CheckpointError(
            f"{where}: answers {theirs_task.labels}, but the student {ours_task.labels}",
            hint="use a teacher that was trained on such labels",
        )
    labels = (student.labels, teacher.header.labels)
    if all(labels) and labels[0] != labels[1]:
        place = next(i for i, (a, b) in enumerate(zip(*labels, strict=True)) if a != b)
        classes = "another order of classes" if sorted(labels[0]) == sorted(labels[1]) else "other classes"
        raise CheckpointError(
            f"{where}: has {classes} than the student: class {place} is `{labels[1][place]}`, in the student `{labels[0][place]}`",
            hint="`hydractl inspect` shows both",
        )


def _check_reading(teacher: OpenModel, preprocess: ItemPreprocess) -> None:
    place, theirs = teacher.reference, teacher.header.preprocess
    if type(theirs) is not type(preprocess):
        raise CheckpointError(
            f"{place}: reads {'texts' if isinstance(theirs, Tokenization) else 'images'}, but the student does not"
        )
    if isinstance(theirs, Tokenization) and isinstance(preprocess, Tokenization):
        if theirs.max_length < preprocess.max_length:
            raise CheckpointError(
                f"{place}: reads texts of at most {counted(theirs.max_length, 'token')}, but the "
                f"student reads {preprocess.max_length}",
                hint=f"add `--max-length {theirs.max_length}`",
            )
        theirs = theirs.model_copy(update={"max_length": preprocess.max_length})
    for field in reading_differences(preprocess, theirs):
        student_field, teacher_field = getattr(preprocess, field), getattr(theirs, field)
        difference = (
            f" is {teacher_field!r}, not {student_field!r}"
            if len(repr(student_field) + repr(teacher_field)) <= MAX_SHOWN_CHARACTERS
            else ""
        )
        raise CheckpointError(
            f"{place}: has other preprocessing than the student: `{field}`{difference}",
            hint="`hydractl inspect` shows both; a teacher must read the same inputs as the student",
        )
