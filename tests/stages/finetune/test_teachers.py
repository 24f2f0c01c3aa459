"""`finetune --teacher`: distillation from models and hydras; refused teachers."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError, OutputExists, UsageError
from hydractl.families.open_model import open_model
from hydractl.fusion.plan import split_members
from hydractl.progress import Silent
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training.recipe import Recipe
from hydractl.training.teachers import check_teachers
from support.builders import base
from support.variants import PLAIN, VARIANTS

TRAIN = "digits::split=train,classes=0-6,limit=24"
VAL = "digits::split=val,classes=0-6,limit=20"
SGD = Recipe(lr=(0.05,), optimizer="sgd", weight_decay=0.0, steps=3, batch_size=8, augment=("shift",))
LABELS = tuple("0123456")


def config(out, model, **changes):
    given = {"train": DataRef.parse(TRAIN), "val": DataRef.parse(VAL), "recipe": SGD, "device": "cpu"}
    return FinetuneConfig(model=str(model), out=out, **(given | changes))


def tuned(out, model, **changes):
    run_finetune(config(out, model, **changes))
    return Checkpoint.open(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two teachers, two students, and a hydra of each pair, without shared tensors."""
    made = tmp_path_factory.mktemp("teachers")
    for seed in (3, 4):
        base(seed=seed).save(made / f"teacher{seed - 3}.st")
    samples = [base().pruned((0,), (1, 2), ()).tuned(1), base().pruned((0, 3), (), (1,)).tuned(2)]
    for i, sample in enumerate(samples):
        sample.save(made / f"student{i}.st")
    for who in ("teacher", "student"):
        models = tuple(str(made / f"{who}{i}.st") for i in (0, 1))
        run_fuse(FuseConfig(models=models, out=made / f"{who}s.st", mlp="keep", verify=False))
    return made


@pytest.fixture(scope="module")
def taught_hydra(folder):
    """Hydra of the students, trained with one teacher per member."""
    teachers = tuple(str(folder / f"teacher{i}.st") for i in (0, 1))
    return tuned(folder / "together.st", folder / "students.st", teacher=teachers)


def taught_student(folder, student, *, teacher):
    """Return a student after distillation from one teacher, at half the rate: a hydra averages two losses."""
    out, model = folder / f"alone{student}{teacher}.st", folder / f"student{student}.st"
    recipe = replace(SGD, lr=(0.025,))
    return tuned(out, model, recipe=recipe, teacher=(str(folder / f"teacher{teacher}.st"),)).tensors()


def test_a_member_learns_from_its_teacher_what_it_would_learn_alone(folder, taught_hydra):
    model_file = open_model(str(folder / "together.st"))
    members = split_members(model_file.family, model_file.header, taught_hydra.tensors())
    for i, found in enumerate(members):
        expected = taught_student(folder, i, teacher=i)
        assert all(torch.allclose(found[n], t, atol=1e-5) for n, t in expected.items())
    other = taught_student(folder, 0, teacher=1)
    assert not torch.allclose(members[0]["head.weight"], other["head.weight"], atol=1e-4)


def test_a_hydra_teaches_a_hydra_member_by_member(folder, taught_hydra):
    taught = tuned(folder / "by-hydra.st", folder / "students.st", teacher=(str(folder / "teachers.st"),))

    assert all(torch.allclose(taught.tensor(n), t, atol=1e-6) for n, t in taught_hydra.tensors().items())


@pytest.mark.more
def test_another_model_learns_the_mean_of_teachers_which_a_hydra_says_too(folder):
    two = tuple(str(folder / f"teacher{i}.st") for i in (0, 1))
    mean, same, half = (
        tuned(folder / f"{n}.st", folder / "student0.st", teacher=teacher)
        for n, teacher in (("mean", two), ("same", (str(folder / "teachers.st"),)), ("half", two[:1]))
    )

    assert all(torch.allclose(same.tensor(n), t, atol=1e-6) for n, t in mean.tensors().items())
    assert not torch.allclose(half.tensor("head.weight"), mean.tensor("head.weight"), atol=1e-4)


def test_teachers_are_in_the_lineage(folder, taught_hydra):
    step = taught_hydra.header.made_by

    assert step.inputs[0].name == "students.st"
    assert [file.name for file in step.inputs[3:]] == ["teacher0.st", "teacher1.st"]
    assert step.inputs[3].sha256 == Checkpoint.open(folder / "teacher0.st").digest
    assert (step.options["teacher_temperature"], step.options["teacher_weight"]) == (2.0, 0.9)


class CutAtStep(Silent):
    """A `Progress` that raises `KeyboardInterrupt` at the first evaluated step."""

    def step(self, message):
        if message.startswith("step"):
            raise KeyboardInterrupt


def test_a_run_goes_on_with_its_own_teachers_alone(tmp_path, folder):
    teacher = tmp_path / "teacher.st"
    shutil.copy(folder / "teacher0.st", teacher)
    recipe = replace(SGD, eval_every=2)
    given = config(
        tmp_path / "out.st", folder / "student0.st", recipe=recipe, teacher=(str(teacher),), save_every=1
    )
    with pytest.raises(KeyboardInterrupt):
        run_finetune(given, CutAtStep())

    shutil.copy(folder / "teacher1.st", teacher)
    with pytest.raises(
        OutputExists,
        match=r"inputs or versions: `input 3` was teacher\.st \(sha256:\w+\), is now teacher\.st \(sha256:\w+\)$",
    ):
        run_finetune(given)
    shutil.copy(folder / "teacher0.st", teacher)
    assert run_finetune(given).resumed_from > 0
    tuned(tmp_path / "whole.st", folder / "student0.st", recipe=recipe, teacher=(str(teacher),))
    assert (tmp_path / "out.st").read_bytes() == (tmp_path / "whole.st").read_bytes()


def refusal(folder, **changes):
    with pytest.raises((UsageError, CheckpointError)) as caught:
        run_finetune(config(folder / "never.st", folder / "student0.st", **changes))
    assert not (folder / "never.st").exists()
    return caught.value.message


def test_who_cannot_teach_is_told_why(folder):
    sample = base()
    base(replace(PLAIN, options={**PLAIN.options, "num_classes": 9})).save(folder / "nine.st")
    preprocess = sample.header.preprocess.model_copy(update={"mean": (0.25,)})
    replace(sample, header=sample.header.model_copy(update={"preprocess": preprocess})).save(
        folder / "mean.st"
    )
    labels = ("1", "0", *LABELS[2:])
    replace(sample, header=sample.header.model_copy(update={"labels": labels})).save(folder / "order.st")

    assert "has 9 classes" in refusal(folder, teacher=(str(folder / "nine.st"),))
    assert "`mean` is (0.25,), not (0.5,)" in refusal(folder, teacher=(str(folder / "mean.st"),))
    assert "has another order of classes than the student: class 0 is `1`, in the student `0`" in refusal(
        folder, teacher=(str(folder / "order.st"),)
    )
    assert "a model with random weights cannot be a teacher" in refusal(
        folder, teacher=("arch:vit_tiny_patch16_224",)
    )
    assert "no such file" in refusal(folder, teacher=(str(folder / "missing.st"),))


def test_each_member_of_a_hydra_wants_a_teacher(folder):
    with pytest.raises(UsageError, match="gives 3 teachers for a hydra of 2 members") as caught:
        tuned(folder / "never.st", folder / "students.st", teacher=(str(folder / "teacher0.st"),) * 3)
    assert (
        "give one teacher per member, in order: `--teacher a.st,b.st,c.st`, or one hydra with as many members"
    ) in caught.value.hint
    models = tuple(str(folder / f"teacher{i}.st") for i in (0, 1, 0))
    run_fuse(FuseConfig(models=models, out=folder / "three.st", mlp="keep", verify=False))
    with pytest.raises(
        UsageError, match=r"three\.st`: is a hydra of 3 members, but the student has 2 members"
    ):
        tuned(folder / "never.st", folder / "students.st", teacher=(str(folder / "three.st"),))


def test_a_teacher_of_texts_reads_as_many_tokens(folder):
    sample = base(next(v for v in VARIANTS if v.family == "transformers-bert"))
    teacher = open_model(str(sample.save(folder / "bert.st")))
    student, preprocess = sample.header, sample.header.preprocess

    check_teachers(
        (teacher,), student, preprocess.model_copy(update={"max_length": preprocess.max_length - 1})
    )
    with pytest.raises(CheckpointError, match="at most 512 tokens") as caught:
        check_teachers(
            (teacher,), student, preprocess.model_copy(update={"max_length": preprocess.max_length + 1})
        )
    assert f"`--max-length {preprocess.max_length}`" in caught.value.hint
    with pytest.raises(CheckpointError, match="`pad_id` is 0, not 1"):
        check_teachers((teacher,), student, preprocess.model_copy(update={"pad_id": 1}))
    with pytest.raises(CheckpointError, match="reads texts, but the student does not"):
        check_teachers((teacher,), student, base().header.preprocess)


@pytest.mark.parametrize("option", [{"teacher_temperature": 3.0}, {"teacher_weight": 0.5}])
def test_teaching_without_teachers_is_refused(tmp_path, option):
    with pytest.raises(UsageError, match="has no effect without `--teacher`"):
        config(tmp_path / "out.st", "model.st", **option)


def test_bf16_and_labels_beside_teachers(folder):
    recipe = replace(SGD, precision="bf16", label_smoothing=0.1)
    taught = tuned(
        folder / "bf16.st",
        folder / "students.st",
        recipe=recipe,
        teacher=(str(folder / "teachers.st"),),
        teacher_weight=0.5,
    )

    assert taught.header.made_by.options["teacher_weight"] == 0.5
