"""One candidate of a learning-rate grid: its model, its optimiser, a step, means of its weights, an evaluation.

Recomputation and compilation replace forward passes on the modules, so that names of parameters stay, and only while
gradients are recorded in training. Results do not depend on them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from hydractl.families.stream import Stream
from hydractl.families.tower import Tower
from hydractl.model_inputs import Inputs, inputs_on
from hydractl.processes.signals import signals_held
from hydractl.runtime import compiled, on_device
from hydractl.training.accelerator import (
    Engine,
    OrderedGradients,
    copy_into,
    copy_tensors,
    like,
    made_whole,
    part_again,
)
from hydractl.training.dropout import set_dropout
from hydractl.training.optimizers import (
    PEAK,
    SCALE,
    lr_factor,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
)
from hydractl.training.recipe import Recipe
from hydractl.training.run_log import NO_LOG, RunLog

if TYPE_CHECKING:
    from hydractl.training.feeding import Feed, Piece
    from hydractl.training.losses import DistillationLoss, Repulsion
    from hydractl.training.resume import Metrics, Snapshot, StateFolder


WARMUP_POWER = 2 / 3


def share_of(recipe: Recipe, step: int, *, total: int, steps_per_epoch: int) -> float:
    """Return what the weights after a step count in the mean, in [0, 1]; 1 where it begins.

    With `ema` that is 1 - d of `Recipe.ema`. With `swa` it is 1 / n for the n-th weights that are averaged, so that all
    count alike; 0 for those that are not, and before it begins.

    Args:
        recipe: Has one of the two.
        step: How many steps the weights have taken, 1 <= step <= total.
        total: All steps.
        steps_per_epoch: So many are an epoch.
    """
    if recipe.ema is not None:
        return max(1 - recipe.ema, float(step**-WARMUP_POWER))
    start = recipe.swa_start(total, steps_per_epoch)
    if step < start or (step % steps_per_epoch and step != total):
        return 0.0
    return 1 / (1 + -(-(step - start) // steps_per_epoch))


class Average:
    """The mean of a model's weights, beside those that train.

    Attributes:
        tensors: The mean by name, on the model's device; empty until it begins.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> None:
        """Take up a mean.

        Args:
            parameters: What trains, by name, where it trains.
            tensors: The mean so far; empty at the beginning.
        """
        self.parameters = parameters
        # in the order of the parameters: both are walked side by side, and a file has an order of its own
        self.tensors = {
            n: like(p, tensors[n]).to(p.device, copy=True) for n, p in parameters.items() if tensors
        }
        self._swapped = False

    def add(self, share: float) -> None:
        """Let the weights as they are now count a share of the mean, which begins with a share of 1."""
        current = {name: parameter.detach() for name, parameter in self.parameters.items()}
        if share == 1:
            self.tensors = copy_tensors(current)
        elif share:
            get_ema_multi_avg_fn(1 - share)(list(self.tensors.values()), list(current.values()), None)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the mean for weights within the block; an interruption finds its own back."""
        try:
            with signals_held():
                self._swap()
            yield
        finally:
            with signals_held():
                if self._swapped:
                    self._swap()

    def _swap(self) -> None:
        weights = {name: parameter.detach() for name, parameter in self.parameters.items()}
        mean, self.tensors = self.tensors, copy_tensors(weights)
        copy_into(weights.values(), mean.values())
        self._swapped = not self._swapped


def recompute_blocks(model: nn.Module) -> None:
    """Let the backward pass run each block's forward pass again, so that only what goes from block to block is held till then.

    The same numbers come again, drops included: gradients are the same to the last bit.
    """
    for tower in model.modules():
        for block in tower.layers() if isinstance(tower, Tower) else ():
            _run_instead(block, _checkpointed)


def compile_step(model: nn.Module, *, name: str) -> None:
    """Compile the forward and the backward pass of training, as one graph.

    Args:
        model: On its device, in the dtype that it trains in.
        name: What messages call it.

    Raises:
        UsageError: When it runs, if it is not one graph, or this machine cannot compile.
    """
    run = compiled(model.forward, name=name)
    _run_instead(model, lambda _, *args: run(*args))


def _checkpointed(forward: Callable[..., Stream], stream: Stream, *args: Any) -> Stream:  # noqa: ANN401 - as the block's
    # the tokens by themselves tell on which device the state of random numbers is to be kept
    def run(tokens: torch.Tensor) -> Stream:
        return forward(stream.with_tokens(tokens), *args)

    return checkpoint(run, stream.tokens, use_reentrant=False)


def _run_instead(module: nn.Module, run: Callable[..., Any]) -> None:
    """Let `run`, given a module's forward pass and its arguments, stand for that where gradients are recorded in training."""
    forward = module.forward

    def chosen(*args: Any) -> Any:  # noqa: ANN401 - as the module's
        return run(forward, *args) if module.training and torch.is_grad_enabled() else forward(*args)

    vars(module)["forward"] = chosen


def begin_training(model: nn.Module) -> None:
    """Switch a model to training but for layers with running statistics, which stay in evaluation; their weights train.

    Batch norm in training mode makes a sample hang on the others of its piece, and changes buffers that are no parameters:
    results would hang on pieces and processes, and a file would hold other statistics than were validated.
    """
    model.train()
    for module in _with_statistics(model):
        module.eval()


def keeps_statistics(model: nn.Module) -> bool:
    """Return whether a model has layers that `begin_training` leaves in evaluation."""
    return bool(_with_statistics(model))


def _with_statistics(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "track_running_stats", False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train.

    Attributes:
        build: Makes the model anew, on the CPU; the parameters that require gradients train.
        feed: Where batches come from.
        loss: Outputs and labels as pieces have them to one loss a sample, (B,).
        evaluate: The model's validation metrics, None if its outputs are not finite. Called by every process.
        probe: Inputs of one sample, to find parameters that the output does not hang on.
        recipe: How.
        seed: Of dropout; the feed has its own.
        save_every: Steps between saves of the state; None for every half minute, and for epochs.
        scales: What the recipe's peak learning rate is multiplied by for a parameter, by name; 1 where nothing is said.
        rates: Peak learning rates of parameters that do not train at the recipe's, by name; they do not decay.
        begin_training: Switches the model to training before each step.
        begin_step: Is given the model and the number of the step, from 0, before each step: for what changes with the steps.
            A function of these alone, so that a resumed run finds it as it was.
        penalty: What a step adds to the mean loss of its batch, from the model alone: a number that requires gradients.
        pieces: Into how many pieces each batch is cut, whatever the number of processes, their gradients added in the order
            of the data: the weights then have the same bits for any number. None for the recipe's `accumulate` pieces a
            process, averaged as DDP does.
        lesson: What teachers make of the losses, given the outputs and the inputs of the same piece.
        repulsion: What pushes members of a hydra apart.
        run_log: Where losses, rates and metrics are logged.
        measured_on: What progress calls the data of `evaluate`.
        recomputes: Whether blocks run again in the backward pass, rather than hold what they computed.
        compiles: What messages call a model that is compiled; None compiles none.
    """

    build: Callable[[], nn.Module]
    feed: Feed
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    evaluate: Callable[[nn.Module], Metrics | None]
    probe: Inputs
    recipe: Recipe
    seed: int
    save_every: int | None = None
    scales: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    begin_training: Callable[[nn.Module], None] = begin_training
    begin_step: Callable[[nn.Module, int], None] | None = None
    penalty: Callable[[nn.Module], torch.Tensor] | None = None
    pieces: int | None = None
    lesson: DistillationLoss | None = None
    repulsion: Repulsion | None = None
    run_log: RunLog = NO_LOG
    measured_on: str = "validation"
    recomputes: bool = False
    compiles: str | None = None

    @property
    def total(self) -> int:
        """Steps of one candidate."""
        return self.recipe.total_steps(self.feed.steps_per_epoch)

    @property
    def eval_every(self) -> int:
        """Steps between evaluations."""
        return self.recipe.eval_every or self.feed.steps_per_epoch


class TrainingRun:
    """One candidate in training."""

    def __init__(self, job: Job, engine: Engine, snapshot: Snapshot) -> None:
        self.job, self.engine, self.snapshot = job, engine, snapshot
        self.position = snapshot.position
        self.lr = job.recipe.lr[self.position.candidate]
        self.loss = torch.zeros((), device=engine.device)
        self.rate = 0.0
        """Of the last step: the peak rate as the schedule has it then."""
        self.whole = True
        """Whether weights, optimizer and position are consistent; False during a step."""
        model = job.build()
        freeze_unused(model, job.probe)
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        copy_weights(model, snapshot.weights)
        self.noise = set_dropout(model, job.recipe.dropout, path=job.recipe.drop_path)
        self.model = model if engine.shards else model.to(engine.device)
        if job.recomputes:
            recompute_blocks(self.model)
        if job.compiles is not None:
            compile_step(self.model, name=job.compiles)
        self.prepared = engine.prepare(self.model, ordered=job.pieces is not None)
        if engine.shards:  # they are others now
            self.parameters = {n: p for n, p in self.model.named_parameters() if n in self.parameters}
        averages = job.recipe.ema is not None or job.recipe.swa is not None
        self.best = {n: like(self.parameters[n], t) for n, t in snapshot.best.items()}
        self.average = Average(self.parameters, snapshot.average) if averages else None
        self.optimizer = make_optimizer(self.parameters, job.recipe, rates=job.rates, scales=job.scales)
        if snapshot.optimizer:
            restore_optimizer(self.optimizer, self.parameters, snapshot.optimizer)
        self.share = engine.share(job.recipe.accumulate) if job.pieces is None else engine.cut(job.pieces)
        self.counts = job.pieces is None or engine.owner(self.share.first, job.pieces) == engine.rank
        """Whether what this process computes is part of the batch's loss: of some pieces several processes compute one."""
        self.saved_at, self.saved_position = time.monotonic(), snapshot.position

    def step(self, pieces: Sequence[Piece]) -> None:
        """Take one optimiser step on this process's pieces of the batch."""
        job, recipe, step = self.job, self.job.recipe, self.position.step
        self.whole = False
        total, per_epoch = job.total, job.feed.steps_per_epoch
        factor = lr_factor(
            step if recipe.swa is None else min(step, recipe.swa_start(total, per_epoch)),
            total=total,
            warmup=recipe.warmup_steps(total),
            schedule=recipe.schedule,
            floor=recipe.floor,
        )
        self.rate = self.lr * factor
        for group in self.optimizer.param_groups:
            group["lr"] = group.get(PEAK, self.lr) * group[SCALE] * factor
        if job.begin_step is not None:
            job.begin_step(self.model, step)
        job.begin_training(self.prepared)
        self.loss = torch.zeros_like(self.loss)
        device = self.engine.device
        ordered = None if job.pieces is None else OrderedGradients(self.engine, self.parameters, job.pieces)
        for i, piece in enumerate(pieces):
            with self.noise.at(seed=job.seed, step=step, rows=piece.rows, total=piece.total, device=device):
                loss = self._loss(piece)
                if ordered is not None:
                    ordered.add(loss)
                else:
                    # DDP averages over processes, and the weights are shares of the sum
                    self.engine.backward(loss * self.engine.world, self.prepared, sync=i == len(pieces) - 1)
            self.loss += loss.detach() * self.counts
        if ordered is not None:
            ordered.finish()
        if recipe.clip is not None:
            self.engine.clip(list(self.parameters.values()), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.add(share_of(recipe, step + 1, total=total, steps_per_epoch=per_epoch))
        self.position = self.position.model_copy(update={"step": step + 1})
        self.whole = True

    def _loss(self, piece: Piece) -> torch.Tensor:
        """Return a piece's part of the batch's loss."""
        device = self.engine.device
        inputs = inputs_on(piece.inputs, device)
        outputs = self.prepared(inputs)
        losses = self.job.loss(outputs, on_device(piece.labels, device))
        if self.job.lesson is not None:
            losses = self.job.lesson(losses, outputs, inputs)
        loss = losses.mean()
        if self.job.repulsion is not None:
            step, rows, total = self.position.step, piece.rows, piece.total
            loss = loss + self.job.repulsion(self.prepared, inputs, step=step, rows=rows, total=total)
        if self.job.penalty is not None:
            loss = loss + self.job.penalty(self.model)
        return loss * piece.weight

    @property
    def evaluation_due(self) -> bool:
        """Whether the weights as they are now are to be measured, and have not been."""
        step = self.position.step
        due = step % self.job.eval_every == 0 or step == self.job.total
        return due and step > self.position.evaluated

    def evaluate(self) -> None:
        """Measure, remember the best, and decide whether to go on; weights before their mean begins are measured only."""
        average = self.average
        self.model.eval()
        with average.in_place() if average is not None and average.tensors else contextlib.nullcontext():
            metrics = self.job.evaluate(self.model)
            if self.engine.shards:
                part_again(self.model)
        self.position = self.position.model_copy(
            update={"evaluated": self.position.step} | self._changes_by(metrics)
        )

    def _changes_by(self, metrics: Metrics | None) -> dict[str, object]:
        """Return what an evaluation changes of the position, and keep the weights if they are the best and those are wanted."""
        recipe, position, average = self.job.recipe, self.position, self.average
        if metrics is None:
            return {"ended": True, "diverged": True}
        update: dict[str, object] = {"last": metrics}
        if average is not None and not average.tensors:
            return update
        if metrics.beats(position.best):
            update |= {"best": metrics, "best_step": position.step}
            if recipe.keep_best:
                measured = self.parameters if average is None else average.tensors
                self.best = copy_tensors({n: t.detach() for n, t in measured.items()})
        if metrics.beats(position.mark, delta=recipe.patience_delta):
            return update | {"mark": metrics, "stale": 0}
        stale = position.stale + 1
        return update | {
            "stale": stale,
            "ended": recipe.early_stop is not None and stale >= recipe.early_stop,
        }

    def save(self, folder: StateFolder | None) -> None:
        """Save the run in a folder, unless it has not changed since the last time."""
        if folder is None or not self.whole or self.position == self.saved_position:
            return
        if self.engine.leads or self.engine.shards:
            snapshot = self.saved()
            if self.engine.leads:
                folder.save(snapshot)
        self.saved_at, self.saved_position = time.monotonic(), self.position

    def saved(self) -> Snapshot:
        """Return the run as it is now; its tensors go on changing, or lay in parts: then all processes call this."""
        gather = made_whole if self.engine.shards else dict
        return replace(
            self.snapshot,
            position=self.position,
            weights=gather({n: p.detach() for n, p in self.parameters.items()}),
            optimizer=gather(optimizer_tensors(self.optimizer, self.parameters)),
            average={} if self.average is None else gather(self.average.tensors),
            best=gather(self.best),
        )


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into the parameters of the same names."""
    parameters = dict(model.named_parameters())
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)


def freeze_unused(model: nn.Module, probe: Inputs) -> None:
    """Switch off gradients of parameters that the output does not hang on: DDP would wait for them for ever.

    A layer without heads has such, for example its q and k norms.
    """
    model.eval()
    with torch.enable_grad():
        model(probe).sum().backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.requires_grad = False
        parameter.grad = None
