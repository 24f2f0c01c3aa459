"""Learned gates: a trainable factor of each head's output.

Axes: N heads of all scored towers (tower after tower, layer after layer), H heads of a layer, B batch, C
classes.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from typing_extensions import override

from hydractl import progress
from hydractl.checkpoint import write_tensors
from hydractl.data.preprocess import sample_seed
from hydractl.errors import CheckFailed, UsageError
from hydractl.families.finite import count_not_finite, stored_tensors
from hydractl.families.open_model import OpenModel, open_model
from hydractl.families.tower import Model
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.head_mask import HeadImportance
from hydractl.manifest.header import Header, samples_of
from hydractl.metrics.per_sample import item_losses
from hydractl.model_inputs import Inputs, map_inputs
from hydractl.output.publish import Digested, is_stream
from hydractl.processes.distributed import world_size
from hydractl.provenance.output import Output, make_step, scored_data
from hydractl.research.scores.options import GateSettings, TrainedWeights
from hydractl.runtime import digest_text, versions
from hydractl.scoring.attention_hooks import Gated
from hydractl.scoring.job import MethodRun, Ranking, ScoreInputs, ScoreJob
from hydractl.scoring.journal import settings_of
from hydractl.stages.score.config import ScoreConfig
from hydractl.training.accelerator import Share, start_engine
from hydractl.training.feeding import ItemFeed
from hydractl.training.loop import Trained, metrics_of, tally, train
from hydractl.training.recipe import Recipe
from hydractl.training.resume import Metrics, Snapshot, StateFolder
from hydractl.training.trainer import Job, copy_weights

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import TowerHeads
    from hydractl.training.feeding import Feed


_INITIAL, _NOISE = -3, -4
"""Stream numbers that separate seeds of gates from seeds of data and dropout."""


class Gates(nn.Module, ABC):
    """Gates of N heads. Noise is applied in training only."""

    @property
    @abstractmethod
    def scores(self) -> torch.Tensor:
        """Parameters of the gates, shape (N,); higher is more important."""

    @abstractmethod
    def forward(self) -> torch.Tensor:
        """Return the gates (N,), differentiable with respect to the parameters."""

    def begin(self, step: int, *, seed: int) -> None:
        """Draw the noise of a step and update schedules. The base class has neither.

        Args:
            step: Number of the step, from 0.
            seed: Seed of the run. The result depends on seed and step only.
        """


class GatedModel(nn.Module):
    """A model with learned gates on head outputs, before the output projection."""

    def __init__(self, model: Model, gates: Gates, towers: Mapping[str, TowerHeads]) -> None:
        """Add gates to a model.

        Args:
            model: A base. Attention modules are replaced in place.
            gates: A gate per head of the towers.
            towers: Towers with gates.
        """
        super().__init__()
        self.model, self.gates = model, gates
        self._taps: list[Gated] = []
        for name in towers:
            for block in model.tower(name).layers():
                tap = Gated(block.attn, torch.ones(block.attn.groups()[0].heads))
                block.attn = tap
                self._taps.append(tap)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (B, C)."""
        for tap, gate in zip(self._taps, self._by_layer(self.gates()), strict=True):
            tap.gate = gate
        logits: torch.Tensor = self.model(inputs)
        return logits

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the state dict of the model without its gates, by the library's names."""
        return {name: tensor.detach() for name, tensor in self.model.library_state().items()}

    @torch.no_grad()
    def absorb(self, gates: torch.Tensor) -> None:
        """Multiply the output projections by gates (N,), so the model without gates equals the gated model.

        Gates of 0 are skipped, so the weights of closed heads stay for later pruning.
        """
        for tap, gate in zip(self._taps, self._by_layer(gates), strict=True):
            group = tap.groups()[0]
            factors = torch.where(gate > 0, gate, torch.ones_like(gate)).repeat_interleave(group.head_dim)
            group.proj.weight *= factors.to(group.proj.weight)

    def _by_layer(self, gates: torch.Tensor) -> Sequence[torch.Tensor]:
        shares: tuple[torch.Tensor, ...] = gates.split([tap.groups()[0].heads for tap in self._taps])
        return shares


def initial_draws(sizes: Sequence[int], *, seed: int) -> torch.Tensor:
    """Return uniform initial values, float64, within the bounds of Glorot and Bengio (2010, eq. 16).

    A group of n values has the bounds ±sqrt(6 / (1 + n)) of a 1 x n matrix.

    Args:
        sizes: Number of values of each group.
        seed: Seed of the run.
    """
    generator = torch.Generator().manual_seed(sample_seed(_INITIAL, seed))
    draws = torch.rand(sum(sizes), generator=generator, dtype=torch.float64) * 2 - 1
    return draws * torch.tensor([(6 / (1 + n)) ** 0.5 for n in sizes for _ in range(n)], dtype=torch.float64)


def step_uniform(count: int, *, seed: int, step: int) -> torch.Tensor:
    """Return uniform draws (count,) in [0, 1), float64, which depend on seed and step only."""
    generator = torch.Generator().manual_seed(sample_seed(_NOISE, seed, step))
    return torch.rand(count, generator=generator, dtype=torch.float64)


def tables(values: torch.Tensor, towers: Mapping[str, TowerHeads]) -> dict[str, list[list[float]]]:
    """Return values (N,) as a table of L rows and H columns per tower."""
    parts = values.detach().cpu().split([t.layers * t.num_heads for t in towers.values()])
    return {
        name: part.reshape(t.layers, t.num_heads).tolist()
        for (name, t), part in zip(towers.items(), parts, strict=True)
    }


PIECES = 4
"""Number of pieces of each batch, and so of processes that share the work; more processes compute pieces
twice. Results do not depend on the number of processes. Chosen by hand; doubling lets 8 processes share the
work, but smaller pieces use a device less."""
CLIP = 1.0
"""Largest norm of the gradients of gates and weights together, as in the code of Li et al. Gradients of a
relaxed selection grow without bound while it hardens."""
_GATES = "gates."


@dataclass(frozen=True, kw_only=True)
class GateTraining:
    """Data and state of a training of gates.

    Attributes:
        feed: Function that opens shuffled batches of the ID data.
        folder: Folder for the state of an unfinished run; None to save nothing.
        start: State to resume from; None to start from the beginning.
        keeps_weights: Whether trained weights will be saved.
    """

    feed: Callable[[], Feed]
    folder: StateFolder | None = None
    start: Snapshot | None = None
    keeps_weights: bool = False


def train_gates(
    job: ScoreJob,
    settings: GateSettings,
    make: Callable[[int], Gates],
    *,
    penalty: Callable[[Gates], torch.Tensor] | None = None,
) -> tuple[GatedModel, Ranking]:
    """Train gates, and with `joint` training also the weights of a copy of the job's model.

    AdamW without weight decay trains gates with `gate_lr` and weights with `weights_lr`. Both rates fall
    linearly to 0, and gradients are clipped to norm `CLIP`. Weights are fp32, with autocast if the job's
    model is bf16. An fp16 model trains in fp32 from its rounded weights, with a warning. The result is
    bit-identical for any number of processes.

    Args:
        job: Job whose `training` is a `GateTraining`.
        settings: Epochs and learning rates.
        make: Returns the initial gates, given the number of steps.
        penalty: Function from the gates to a scalar, added to the loss of each batch.

    Returns:
        The gated model in evaluation mode (CPU, fp32), and the head importance with metrics on the training
        data.

    Raises:
        CheckFailed: If outputs or gates are not finite.
        DataError: If there are no labels.
        TypeError: If the job has no `GateTraining`.
    """
    if not isinstance(job.training, GateTraining):
        raise TypeError("a method that trains gates needs a `GateTraining`")
    if settings.trains_weights and not job.training.keeps_weights:
        progress.warn(
            "joint training also changes the weights, which are discarded, so the scores are for a model that is "
            "not saved; save it with `--save-model PATH`"
        )
    if job.model.dtype == torch.float16:  # fp16 gradients underflow without loss scaling
        progress.warn(
            "gates cannot be trained in fp16; training in fp32 with the weights rounded to fp16; `--dtype "
            "bf16` trains under autocast"
        )
    feed = job.training.feed()
    recipe = Recipe(
        optimizer="adamw",
        lr=(settings.weights_lr or settings.gate_lr,),
        weight_decay=0.0,
        schedule="linear",
        warmup=0,
        epochs=settings.epochs,
        clip=CLIP,
        precision="bf16" if job.model.dtype == torch.bfloat16 else "fp32",
    )
    total = recipe.total_steps(feed.steps_per_epoch)

    def build() -> GatedModel:
        return _gated(job, make(total), weights=settings.trains_weights)

    def begin_step(model: nn.Module, step: int) -> None:
        _gates_of(model).begin(step, seed=job.seed)

    names = [f"{_GATES}{name}" for name, _ in make(total).named_parameters()]
    work = Job(
        build=build,
        feed=feed,
        loss=lambda logits, labels: item_losses(logits.float(), labels),
        evaluate=_measure(job),
        # one training sample, the same on every rank
        probe=map_inputs(
            lambda x: x[:1], next(feed.steps(0, 1, Share(first=0, pieces=1, total=1)))[0].inputs
        ),
        recipe=recipe,
        seed=job.seed,
        rates=dict.fromkeys(names, settings.gate_lr),
        begin_step=begin_step,
        penalty=None if penalty is None else lambda model: penalty(_gates_of(model)),
        pieces=PIECES,
        measured_on="training",
        run_log=job.log.run_log,
    )
    trained = _trained(job.training, work, job.model.device, settings=settings)
    model = build()
    copy_weights(model, trained.weights)
    if any(map(count_not_finite, model.parameters())):
        raise _diverged(settings)
    results = {
        "training_accuracy": trained.metrics.accuracy,
        "training_nll": trained.metrics.nll,
        "steps": trained.step,
    }
    return model.eval(), Ranking(scores=tables(model.gates.scores, job.scored), results=results)


def _trained(offered: GateTraining, work: Job, device: torch.device, *, settings: GateSettings) -> Trained:
    name = str(device) if world_size() == 1 else device.type
    start = Snapshot() if offered.start is None else offered.start
    with start_engine(name, precision=work.recipe.precision) as engine:
        engine.wait()  # All ranks must read the state before rank 0 overwrites it.
        try:
            return train(work, engine, folder=offered.folder, start=start)
        except CheckFailed as error:
            raise _diverged(settings) from error


def _diverged(settings: GateSettings) -> CheckFailed:
    or_weights_lr = " and `--weights-lr`" if settings.trains_weights else ""
    return CheckFailed(
        f"training of the gates diverged with learning rate {settings.gate_lr:g}: the outputs are not finite",
        hint=f"lower `--gate-lr`{or_weights_lr}",
    )


def _gated(job: ScoreJob, gates: Gates, *, weights: bool) -> GatedModel:
    """Return a copy of the job's model with gates, on the CPU in fp32."""
    model = copy.deepcopy(job.model).to("cpu", torch.float32)
    return GatedModel(model.requires_grad_(requires_grad=weights), gates, job.scored)


def _gates_of(model: nn.Module) -> Gates:
    if not isinstance(model, GatedModel):
        raise TypeError(f"expected a gated model, got {type(model).__name__}")
    return model.gates


def _measure(job: ScoreJob) -> Callable[[nn.Module], Metrics | None]:
    """Return a function from a model to its metrics on the job's data. All ranks must call the function."""

    def measure(model: nn.Module) -> Metrics | None:
        tallies = []
        with torch.inference_mode():
            for samples in job.id_data:
                inputs, labels = samples.labelled("training gates")
                tallies.append(torch.tensor(tally(model(inputs), labels.cpu()), dtype=torch.float64))
        return metrics_of(torch.stack(job.team.in_order(tallies)).sum(dim=0).tolist())

    return measure


class GateRun(MethodRun):
    """A run of `score` that trains gates.

    The state of an unfinished training is stored next to the output file, unless the output is a stream.

    Attributes:
        folder: Folder of the state; None before `open_state`, and for a stream.
        start: State to resume from; None like `folder`.
    """

    folder: StateFolder | None = None
    start: Snapshot | None = None

    def __init__(self, config: ScoreConfig, model_file: OpenModel) -> None:
        """Store the configuration of `score` and the base."""
        self.config, self.model_file = config, model_file
        self.trained = next((e.save_model for e in config.extensions if isinstance(e, TrainedWeights)), None)

    @override
    def check(self, output: Output) -> None:
        config, trained = self.config, self.trained
        if (
            cast("GateSettings", config.settings).trains_weights
            and self.model_file.header.prompting is not None
        ):
            raise UsageError(
                f"{config.model}: is a zero-shot model, whose weights cannot be trained",
                hint="add `--training pipelined`",
            )
        if trained and (is_stream(trained) or trained.resolve() == config.out.resolve()):
            raise UsageError(
                f"`--save-model {trained}`: "
                f"{'is a stream' if is_stream(trained) else 'is also the output file of the scores'}",
                hint="name another file",
            )
        output.check(
            trained,
            models=[self.model_file],
            data=config.references.values(),
            option="--save-model",
        )

    @override
    def open_state(self, document: HeadImportance) -> None:
        out = self.config.out
        if is_stream(out):
            return
        libraries = versions("torch", self.model_file.family.library)
        self.folder = StateFolder(
            out.with_name(f"{out.name}.state"),
            digest_text(json.dumps([document.to_json(), libraries])),
            settings_of(document) | libraries,
        )
        self.start = self.folder.resumed(force=self.config.force, others=self.config.if_changed)
        self.resumes = bool(self.start.weights)

    @override
    def training(self, inputs: ScoreInputs) -> GateTraining | None:
        items, labels = inputs.sets.get("id"), inputs.labels
        if items is None or labels is None:
            return None
        chosen = list(range(len(items))) if inputs.sample_indices is None else inputs.sample_indices.tolist()
        feed = partial(
            ItemFeed.open,
            items.subset(chosen),
            labels[chosen].tolist(),
            self.model_file.header.preprocess,
            augment=(),
            batch_size=self.config.batch_size,
            seed=self.config.seed,
        )
        return GateTraining(
            feed=feed, folder=self.folder, start=self.start, keeps_weights=self.trained is not None
        )

    @override
    def publish(self, out: Path, scores: HeadImportance, ranking: Ranking, output: Output) -> HeadImportance:
        """Write the head importance, and with `--save-model` also the trained weights.

        The importance file then refers to the trained weights as its model.

        Raises:
            CheckFailed: If a trained weight exceeds the dtype.
            OutputError: If a file cannot be written.
        """
        if self.trained is None or ranking.weights is None:
            return super().publish(out, scores, ranking, output)
        tensors = stored_tensors(
            self.model_file.checkpoint,
            ranking.weights,
            trained=ranking.weights.keys(),
            hint="lower `--weights-lr`",
        )
        with output.publish() as begin:
            digested = Digested(begin(self.trained))
            write_tensors(digested, tensors, header=self._header(scores))
            model = Fingerprint(reference=self.trained.name, sha256=digested.digest)
            scores = scores.model_copy(update={"model": model})
            begin(out).write(scores.to_json().encode())
        return scores

    @override
    def clear_state(self) -> None:
        if self.folder is not None:
            self.folder.clear()

    def _header(self, scores: HeadImportance) -> Header:
        """Return the header of the trained base: the base's header with a further step."""
        config, model_file, data = self.config, self.model_file, scored_data(scores)
        step = make_step(
            config,
            family=model_file.family,
            options={"method": config.method, **scores.options},
            inputs=(model_file.as_input(), *data),
            seed=config.seed,
            results=scores.results,
        )
        samples = samples_of(data, model_file.header)
        update: dict[str, object] = {"base": model_file.base, "samples": samples, "made_by": step}
        if config.max_length is None:
            return model_file.header.of_other_weights(update)
        # `--max-length` truncates texts in this run only. The trained model keeps the stored length.
        stored_header = (
            model_file.checkpoint.header
            or open_model(config.model, arch=config.arch, seed=config.seed).header
        )
        return model_file.header.of_other_weights(update | {"preprocess": stored_header.preprocess})
