"""Training of a candidate of a learning-rate grid: steps, averaged weights and evaluation.

Recomputation and compilation replace the forward pass on the instance, which keeps the names of parameters.
Both apply only in training mode while gradients are recorded, and do not change results.
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
    gather_tensors,
    like,
    reshard,
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
"""Exponent of the EMA warm-up of timm's `ModelEmaV3` (`use_warmup`). Twice the value would forget initial
weights more slowly."""


def averaging_weight(recipe: Recipe, step: int, *, total: int, steps_per_epoch: int) -> float:
    """Return the weight of the current weights in their running mean, in [0, 1]; 1 starts the mean.

    With `ema` the weight is 1 - d of `Recipe.ema`. With `swa` the n-th averaged weights have weight 1 / n,
    for a mean with equal weights. All other steps have weight 0.

    Args:
        recipe: Recipe with `ema` or `swa`.
        step: Number of steps so far, 1 <= step <= total.
        total: Number of all steps.
        steps_per_epoch: Number of steps per epoch.
    """
    if recipe.ema is not None:
        return max(1 - recipe.ema, float(step**-WARMUP_POWER))
    start = recipe.swa_start(total, steps_per_epoch)
    if step < start or (step % steps_per_epoch and step != total):
        return 0.0
    return 1 / (1 + -(-(step - start) // steps_per_epoch))


class Average:
    """Running mean of a model's parameters.

    Attributes:
        tensors: Mean by name, on the device of the model. Empty before the mean starts.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> None:
        """Start or resume a mean.

        Args:
            parameters: Trained parameters by name.
            tensors: Mean so far by name; empty at the start.
        """
        self.parameters = parameters
        # The order is that of the parameters, because `add` pairs both by position. A file has another order.
        self.tensors = {
            n: like(p, tensors[n]).to(p.device, copy=True) for n, p in parameters.items() if tensors
        }
        self._swapped = False

    def add(self, share: float) -> None:
        """Add the current weights to the mean with weight `share`, in [0, 1]; 1 starts the mean."""
        current = {name: parameter.detach() for name, parameter in self.parameters.items()}
        if share == 1:
            self.tensors = copy_tensors(current)
        elif share:
            get_ema_multi_avg_fn(1 - share)(list(self.tensors.values()), list(current.values()), None)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the mean into the model for the block. An interruption restores the weights."""
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
    """Recompute the forward pass of each block in the backward pass, to save memory.

    Only the stream between blocks is stored. Dropout masks are the same in both passes, so gradients have the
    same bits.
    """
    for tower in model.modules():
        for block in tower.layers() if isinstance(tower, Tower) else ():
            _run_instead(block, _checkpointed)


def compile_step(model: nn.Module, *, name: str) -> None:
    """Compile the forward and backward pass of training into a single graph.

    Args:
        model: Model on the device and in the dtype of the training.
        name: Name of the model in messages.

    Raises:
        UsageError: In the first step, if the model is not one graph or this machine cannot compile.
    """
    run = compiled(model.forward, name=name)
    _run_instead(model, lambda _, *args: run(*args))


def _checkpointed(forward: Callable[..., Stream], stream: Stream, *args: Any) -> Stream:  # noqa: ANN401 - as the block's
    # `checkpoint` finds the device of the random state from tensor arguments, so the tokens are passed
    # separately.
    def run(tokens: torch.Tensor) -> Stream:
        return forward(stream.with_tokens(tokens), *args)

    return checkpoint(run, stream.tokens, use_reentrant=False)


def _run_instead(module: nn.Module, run: Callable[..., Any]) -> None:
    """Replace the forward pass of a module by `run(forward, *args)`.

    The original `forward` still runs in evaluation mode and if no gradients are recorded.
    """
    forward = module.forward

    def chosen(*args: Any) -> Any:  # noqa: ANN401 - as the module's
        return run(forward, *args) if module.training and torch.is_grad_enabled() else forward(*args)

    vars(module)["forward"] = chosen


def begin_training(model: nn.Module) -> None:
    """Switch a model to training mode, except for layers with running statistics, whose weights still train.

    Batch norm in training mode makes a sample depend on the other samples of its piece, and changes buffers.
    Results would depend on pieces and processes, and the published statistics would differ from the validated
    ones.
    """
    model.train()
    for module in _with_statistics(model):
        module.eval()


def keeps_statistics(model: nn.Module) -> bool:
    """Return whether a model has layers that `begin_training` leaves in evaluation mode."""
    return bool(_with_statistics(model))


def _with_statistics(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "track_running_stats", False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Model, batches, loss, evaluation and settings of a training.

    Each batch is cut into pieces. A piece is computed by one process in one forward and backward pass.

    Attributes:
        build: Returns a new model on the CPU. Parameters that require gradients train.
        feed: Source of batches.
        loss: Function from outputs and labels of a piece to one loss per sample, shape (B,).
        evaluate: Returns the validation metrics of a model, or None if outputs are not finite. All processes
            call the function.
        probe: Inputs of one sample, to find parameters without influence on the output.
        recipe: Settings of the training.
        seed: Seed of dropout. The feed has its own seed.
        save_every: Steps between saves of the state; None to save by time.
        scales: Factors of the recipe's peak learning rate, by parameter name; 1 for other names.
        rates: Peak learning rates of parameters with a rate other than the recipe's, by name; without weight
            decay.
        begin_training: Switches the model to training mode before each step.
        begin_step: Function of the model and the step (from 0), called before each step. The function must
            depend on nothing else, so that a resumed run equals an uninterrupted run.
        penalty: Function from the model to a scalar that is added to the loss of each step.
        pieces: Number of pieces of each batch, independent of the number of processes. Gradients are added in
            the order of the data, so weights have the same bits for any number of processes. With None, each
            process has `accumulate` pieces (of the recipe), and DDP averages the gradients.
        distillation_loss: Distillation loss, or None.
        repulsion: Penalty on members with equal predictions, or None.
        run_log: Log of losses, rates and metrics.
        measured_on: Name of the evaluation data in messages.
        recomputes: Whether blocks are recomputed in the backward pass to save memory.
        compiles: Name of the compiled model in messages; None to not compile.
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
    distillation_loss: DistillationLoss | None = None
    repulsion: Repulsion | None = None
    run_log: RunLog = NO_LOG
    measured_on: str = "validation"
    recomputes: bool = False
    compiles: str | None = None

    @property
    def total(self) -> int:
        """Number of steps of one candidate."""
        return self.recipe.total_steps(self.feed.steps_per_epoch)

    @property
    def eval_every(self) -> int:
        """Number of steps between evaluations."""
        return self.recipe.eval_every or self.feed.steps_per_epoch


class TrainingRun:
    """Training of one candidate of the learning-rate grid."""

    def __init__(self, job: Job, engine: Engine, snapshot: Snapshot) -> None:
        self.job, self.engine, self.snapshot = job, engine, snapshot
        self.position = snapshot.position
        self.lr = job.recipe.lr[self.position.candidate]
        self.loss = torch.zeros((), device=engine.device)
        self.rate = 0.0
        """Learning rate of the last step: the peak rate times the factor of the schedule."""
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
        if engine.shards:  # Sharding has replaced the parameter objects.
            self.parameters = {n: p for n, p in self.model.named_parameters() if n in self.parameters}
        averages = job.recipe.ema is not None or job.recipe.swa is not None
        self.best = {n: like(self.parameters[n], t) for n, t in snapshot.best.items()}
        self.average = Average(self.parameters, snapshot.average) if averages else None
        self.optimizer = make_optimizer(self.parameters, job.recipe, rates=job.rates, scales=job.scales)
        if snapshot.optimizer:
            restore_optimizer(self.optimizer, self.parameters, snapshot.optimizer)
        self.share = engine.share(job.recipe.accumulate) if job.pieces is None else engine.cut(job.pieces)
        self.counts = job.pieces is None or engine.owner(self.share.first, job.pieces) == engine.rank
        """Whether the loss of this process counts; several processes may compute the same piece."""
        self.saved_at, self.saved_position = time.monotonic(), snapshot.position

    def step(self, pieces: Sequence[Piece]) -> None:
        """Run one optimizer step on this process's pieces of the batch."""
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
                    # DDP averages gradients over processes, but the weights of pieces sum to 1 over all
                    # processes.
                    self.engine.backward(loss * self.engine.world, self.prepared, sync=i == len(pieces) - 1)
            self.loss += loss.detach() * self.counts
        if ordered is not None:
            ordered.finish()
        if recipe.clip is not None:
            self.engine.clip(list(self.parameters.values()), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.add(averaging_weight(recipe, step + 1, total=total, steps_per_epoch=per_epoch))
        self.position = self.position.model_copy(update={"step": step + 1})
        self.whole = True

    def _loss(self, piece: Piece) -> torch.Tensor:
        """Return the part of a piece in the loss of the batch, a scalar."""
        device = self.engine.device
        inputs = inputs_on(piece.inputs, device)
        outputs = self.prepared(inputs)
        losses = self.job.loss(outputs, on_device(piece.labels, device))
        if self.job.distillation_loss is not None:
            losses = self.job.distillation_loss(losses, outputs, inputs)
        loss = losses.mean()
        if self.job.repulsion is not None:
            step, rows, total = self.position.step, piece.rows, piece.total
            loss = loss + self.job.repulsion(self.prepared, inputs, step=step, rows=rows, total=total)
        if self.job.penalty is not None:
            loss = loss + self.job.penalty(self.model)
        return loss * piece.weight

    @property
    def evaluation_due(self) -> bool:
        """Whether the current weights must be evaluated and have not been evaluated."""
        step = self.position.step
        due = step % self.job.eval_every == 0 or step == self.job.total
        return due and step > self.position.evaluated

    def evaluate(self) -> None:
        """Evaluate the weights or their running mean, and update `position` and the best weights.

        Training ends if outputs are not finite, or after `Recipe.early_stop` evaluations without improvement.
        Before the running mean starts, the metrics are only reported.
        """
        average = self.average
        self.model.eval()
        with average.in_place() if average is not None and average.tensors else contextlib.nullcontext():
            metrics = self.job.evaluate(self.model)
            if self.engine.shards:
                reshard(self.model)
        self.position = self.position.model_copy(
            update={"evaluated": self.position.step} | self._changes_by(metrics)
        )

    def _changes_by(self, metrics: Metrics | None) -> dict[str, object]:
        """Return the changed fields of the position after an evaluation, and store the best weights.

        `metrics` is None if an output is not finite.
        """
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
        """Save the state to a folder, unless the position has not changed since the last save.

        Only the leading process writes. The state is not saved during a step.
        """
        if folder is None or not self.whole or self.position == self.saved_position:
            return
        if self.engine.leads or self.engine.shards:
            snapshot = self.saved()
            if self.engine.leads:
                folder.save(snapshot)
        self.saved_at, self.saved_position = time.monotonic(), self.position

    def saved(self) -> Snapshot:
        """Return a snapshot of the run. Further steps change its tensors.

        If the model is sharded, all processes must call the method, because tensors are gathered.
        """
        gather = gather_tensors if self.engine.shards else dict
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
    """Copy weights to the parameters of the same names."""
    parameters = dict(model.named_parameters())
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)


def freeze_unused(model: nn.Module, probe: Inputs) -> None:
    """Disable gradients of parameters without influence on the output, because DDP would wait for them.

    Examples are the norms of queries and keys in a layer without heads. The model stays in evaluation mode.

    Args:
        model: The model, changed in place.
        probe: Inputs of one sample.
    """
    model.eval()
    with torch.enable_grad():
        model(probe).sum().backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.requires_grad = False
        parameter.grad = None
