"""Compare losses for further training of the members of a hydra with one own block.

Each row is the hydra `merged trunk of 3 K 1` of `promise.py`, trained for another third of the epochs with a
third of the learning rate. Rows differ in the loss:

- `labels .1`, `.5`, `none`: each member is distilled from one model of the ensemble; the number is the weight
  of the labels;
- `disagreement`: as `labels .1`, on inputs moved towards disagreement of the teachers (Nam et al. 2021,
  section 3.2);
- `repulsion .1`, `1`: as `labels .1`, with `--repulsion` of this weight;
- `own members`: each member is distilled from its own model before merging, which needs no further teacher;
- `own members with repulsion .1`, `labels alone with repulsion .1`: repulsion between members, without
  another ensemble;
- `own mean`: members are distilled from the mean of all members, which needs no further teacher (after arXiv
  2408.02301).

Files are shared with `promise.py` and reused. The table has differences from the ensemble of 3 by the default
OOD score, paired by seed, with 95 % intervals (Student).

    python benchmarks/teaching.py digits --work promise/ --seeds 41 42 43
    python benchmarks/teaching.py fashion --idx fashion-mnist/ --work promise/ --seeds 0 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from promise import DEFAULT, RESULTS, Numbers, differences, make_files, means_of, numbers, report, run, table
from promise_plan import MEMBERS, OWN_BLOCK, RIVAL, SINGLE, TAUGHT_HYDRA, Plan, fill
from promise_tasks import parse_task
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.stages.finetune import run as finetune
from hydractl.stages.finetune.config import TEMPERATURE, WEIGHT
from hydractl.training.losses import DistillationLoss
from hydractl.training.trainer import Job

MOVE = 0.1
"""Norm of the input perturbation relative to the norm of the image. Chosen by hand. Doubling moves inputs
further from the data, so that teachers disagree more."""
SEED = 7
JUDGED = {"accuracy": True, "nll": False, f"near by {DEFAULT}": True, f"far by {DEFAULT}": True}
Lesson = Callable[[Tensor, Tensor, Tensor], Tensor]
Change = Callable[[DistillationLoss | None, Callable[[], nn.Module]], Lesson]


def disagreement(lesson: DistillationLoss | None, model: Callable[[], nn.Module]) -> Lesson:
    """Return a distillation loss on perturbed inputs.

    Each batch is moved along the gradient of a randomly weighted sum of the probabilities of one random
    teacher.

    Args:
        lesson: Distillation loss with its teachers.
        model: Function that returns the model in training.

    Raises:
        ValueError: If there are no teachers.
    """
    if lesson is None:
        raise ValueError("disagreement needs teachers")
    random = torch.Generator().manual_seed(SEED)

    def loss(losses: Tensor, _outputs: Tensor, inputs: Tensor) -> Tensor:
        teacher = lesson.teachers[int(torch.randint(len(lesson.teachers), (), generator=random))]
        moved = inputs.detach().clone().requires_grad_()
        probs = (teacher(moved).float() / lesson.temperature).softmax(-1).mean(0)
        mix = torch.rand(probs.shape, generator=random) * 2 - 1
        (gradient,) = torch.autograd.grad((mix * probs).sum(), moved)
        length = partial(torch.linalg.vector_norm, dim=(1, 2, 3), keepdim=True)
        # The lower bound avoids a division by zero for inputs without a gradient.
        moved = inputs + MOVE * length(inputs) / length(gradient).clamp_min(1e-12) * gradient
        return lesson(losses, model()(moved), moved)

    return loss


def own_mean(_lesson: DistillationLoss | None, _model: Callable[[], nn.Module]) -> Lesson:
    """Return a distillation loss with the mean of the members as the teacher."""

    def loss(losses: Tensor, outputs: Tensor, _inputs: Tensor) -> Tensor:
        scaled = outputs.float() / TEMPERATURE
        targets = scaled.detach().softmax(-1).mean(0).expand_as(scaled)
        divergence = F.kl_div(scaled.log_softmax(-1), targets, reduction="none").sum(-1).mean(0)
        return (1 - WEIGHT) * losses + WEIGHT * TEMPERATURE**2 * divergence

    return loss


@dataclass(frozen=True, slots=True)
class Variant:
    """A loss for further training.

    Attributes:
        teachers: Files of the teachers.
        options: Further options of `finetune`.
        change: Function that builds the loss from the stage's own; None for the loss of `finetune`.
        passes: Forward and backward passes of the hydra per step, for the cost.
    """

    teachers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    change: Change | None = None
    passes: int = 1


ENSEMBLE = tuple(f"single-{i}.st" for i in range(MEMBERS))
MEMBERS_ALONE = tuple(f"member-{i}.st" for i in range(MEMBERS))
REPELLED = ("--repulsion", "0.1")
VARIANTS = {
    "labels .5": Variant(ENSEMBLE, ("--teacher-weight", "0.5")),
    "labels none": Variant(ENSEMBLE, ("--teacher-weight", "1")),
    "disagreement": Variant(ENSEMBLE, change=disagreement, passes=2),
    "repulsion .1": Variant(ENSEMBLE, REPELLED, passes=2),
    "repulsion 1": Variant(ENSEMBLE, ("--repulsion", "1"), passes=2),
    "own members": Variant(MEMBERS_ALONE),
    "own mean": Variant(change=own_mean),
    "own members with repulsion .1": Variant(MEMBERS_ALONE, REPELLED, passes=2),
    "labels alone with repulsion .1": Variant((), REPELLED, passes=2),
}


@contextlib.contextmanager
def changed(change: Change | None) -> Iterator[None]:
    """Replace the loss of `finetune` within the block. None changes nothing."""
    original: Callable[..., Job] = vars(finetune)["open_job"]

    def open_job(*args: Any) -> Job:  # noqa: ANN401 - as the function's
        job = original(*args)
        trained: list[nn.Module] = []
        if change is None:
            return job

        def begin_training(model: nn.Module) -> None:
            trained[:] = [model]
            job.begin_training(model)

        lesson: Any = change(job.distillation_loss, lambda: trained[0])
        return replace(job, distillation_loss=lesson, begin_training=begin_training)

    vars(finetune)["open_job"] = open_job
    try:
        yield
    finally:
        vars(finetune)["open_job"] = original


def make(plan: Plan) -> dict[str, Numbers]:
    """Create the files of a seed, and return the numbers of each row by name."""
    # `eval` measures the rows relative to the first model, so the single model comes first.
    plan.keep((SINGLE, RIVAL, OWN_BLOCK, TAUGHT_HYDRA))
    make_files(plan)
    task = plan.task
    for name, variant in VARIANTS.items():
        file = plan.tune(
            f"teaching-{name.replace(' ', '-')}.st", "merged3-1.st", "--lr", f"{task.lr / 3:g}", *variant.options,
            epochs=max(1, task.epochs // 3), compute=variant.passes * task.compute(1), teachers=variant.teachers,
        )  # fmt: skip
        plan.row(name, file)
        if not Path(plan.path(file)).exists():
            with changed(variant.change):
                run(plan.files[file].command)
    plan.rows = [replace(row, name="labels .1") if row.name == TAUGHT_HYDRA else row for row in plan.rows]
    found = report(plan.report("teaching.json", "--no-latency", "--temperature", plan.data.val))
    return {
        row.name: numbers(row, plan) | {"training": plan.training(planned)}
        for row, planned in zip(found.rows, plan.rows, strict=True)
    }


def main() -> None:
    """Create missing files, evaluate, and print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options, begun = parse_task(parser)
    found = [make(fill(begun(options.work, seed))) for seed in options.seeds]
    command = f"python benchmarks/teaching.py {options.task} --work promise/ --seeds {' '.join(map(str, options.seeds))}"
    seeds = (
        f"# Losses for further training of a hydra: {options.task}\n\nMeans over seeds, and differences paired by seed with 95 % intervals, "
        f"by `{command}` (`--help` has the options for the data)."
    )
    text = "\n".join((f"{seeds}\n", table(means_of(found)), differences(found, RIVAL, JUDGED)))
    print(text)
    out = RESULTS / f"teaching-{options.task}"
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    kept = {"seeds": options.seeds, "rows": found}
    out.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
