"""What the rows of a report cost: sizes are counted, times measured in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

import torch

from hydractl import progress
from hydractl.errors import UsageError
from hydractl.families.stream import Stream
from hydractl.families.tower import Block, Tower, blank_inputs
from hydractl.manifest.document import Value
from hydractl.manifest.header import Preprocess, Tokenization, steps_to
from hydractl.metrics.cost import count_parameters, macs_of
from hydractl.metrics.resampling import Resampling, measured
from hydractl.model_inputs import Inputs
from hydractl.plugins import plugins
from hydractl.runtime import wait_for
from hydractl.stages.evaluate.config import EvalConfig

if TYPE_CHECKING:
    from hydractl.families.load import OpenModel
    from hydractl.families.tower import Towers


LEAST, MOST = 3, 50
BUDGET_S = 3.0  # for each row and batch size, unless `LEAST` calls take longer
LEAST_SHARE = 0.8  # of the time that a thread takes, on a machine that does nothing else
TRAINING = "training_macs"
WARMUP, WARMUP_S = 3, 0.5  # calls whose time is not kept: at most so many, and no more after so long


@dataclass(frozen=True, slots=True, kw_only=True)
class RowModels:
    """The models that answer together in one row, with their preprocessing."""

    models: tuple[Towers, ...]
    preprocess: tuple[Preprocess | Tokenization, ...]

    def inputs(self, batch_size: int) -> list[Inputs]:
        """Return blank inputs for each model, on its device."""
        return [
            m.adapted(blank_inputs(p, batch_size, device=m.device))
            for m, p in zip(self.models, self.preprocess, strict=True)
        ]


def count_sizes(
    row: RowModels,
    metrics: Sequence[str],
    opened: Sequence[OpenModel] = (),
    score_sizes: tuple[int, int] = (0, 0),
) -> dict[str, Value]:
    """Return parameters, and multiply-accumulates for one sample, of which sums are over the models of a row; and of training.

    Args:
        row: The models.
        metrics: What of it is wanted.
        opened: What the models are made of.
        score_sizes: How many numbers their OOD scores of features keep, and multiply-accumulates of these.
    """
    numbers_kept, score_macs = score_sizes
    sizes = _training(opened, row) if TRAINING in metrics else {}
    if "parameters" in metrics:
        sizes["parameters"] = Value(value=float(numbers_kept + sum(count_parameters(m) for m in row.models)))
    pairs = [*zip(row.models, row.preprocess, strict=True)]
    if "macs" in metrics:
        sizes["macs"] = Value(value=float(score_macs + sum(_macs(m, p) for m, p in pairs)))
    if "macs_textbook" in metrics:
        with ExitStack() as stack:
            for i, model in enumerate(row.models):
                stack.enter_context(
                    _textbook(model, separately=not any(map(_is_one_network, opened[i : i + 1])))
                )
            sizes["macs_textbook"] = Value(value=float(score_macs + sum(_macs(m, p) for m, p in pairs)))
    return sizes


def check_training_told(config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> None:
    """Refuse to ask what training took where lineages do not say, before anything is measured.

    Raises:
        UsageError: If a condition is on it and the first row's do not, or it is named as a metric and no row's do.
    """
    hint = "`hydractl finetune` records it in the models that it trains; leave it out for other models"
    for condition in config.fail_if:
        if condition.metric == TRAINING and not _runs(opened[0]):
            raise UsageError(
                f"`--fail-if {condition}`: the lineage of `{config.rows[0].name}` does not record {TRAINING}",
                hint=hint,
            )
    trained = any(row.trains for row in config.rows)
    if TRAINING in (config.metrics or ()) and not trained and not any(map(_runs, opened)):
        names = ", ".join(f"`{named.name}`" for named in config.rows)
        raise UsageError(f"`--metrics {TRAINING}`: the lineage of {names} does not record it", hint=hint)


def measure_latencies(
    rows: Sequence[RowModels],
    metrics: Sequence[str],
    *,
    batch_size: int,
    seed: int = 0,
    warn: Callable[[Iterable[str]], object] = list,
) -> list[dict[str, Value]]:
    """Return each row's median time of one forward pass in milliseconds, with the interval of the median.

    The rows take turns, so that whatever else the machine does hits all alike. Where models run on a processor that runs this
    thread for less than `LEAST_SHARE` of the time, other programs have the rest, which is a warning.

    Args:
        rows: All in memory at once.
        metrics: `latency_ms` is for one sample, `latency_batch_ms` for `batch_size`.
        batch_size: At least 1.
        seed: Of the intervals' resamples.
        warn: Receives warnings.
    """
    latencies: list[dict[str, Value]] = [{} for _ in rows]
    for metric, size in (("latency_ms", 1), ("latency_batch_ms", batch_size)):
        if metric not in metrics:
            continue
        progress.step(f"Measuring latency with batch size {size}")
        calls = [_call(row, size) for row in rows]
        devices = {model.device for row in rows for model in row.models}
        begin, ran = perf_counter(), thread_time()
        for values, times in zip(latencies, _in_turn(calls, devices), strict=True):
            ms = torch.tensor(times, dtype=torch.float64) * 1e3
            draws = Resampling(seed=seed).draws(len(ms))
            medians = torch.cat([ms[index].quantile(0.5, dim=1) for (index,) in draws])
            values[metric] = measured(float(ms.quantile(0.5)), medians, count=len(ms)).to_value()
        share = (thread_time() - ran) / (perf_counter() - begin)
        if share < LEAST_SHARE and all(device.type == "cpu" for device in devices):
            busy = f"other programs used the processor, and hydractl ran for {share:.0%} of the time only"
            warn([f"`{metric}` is too high: {busy}; measure again on an idle machine"])
    return latencies


def _training(models: Sequence[OpenModel], row: RowModels) -> dict[str, Value]:
    """Return multiply-accumulates of the training that led to a row, nothing where lineages do not say."""
    runs = _runs(models)
    derived = [macs for model in row.models if (macs := getattr(model, "training_macs", 0))]
    macs = [*(runs or ()), *derived]
    return {TRAINING: Value(value=float(sum(macs)))} if macs and runs is not None else {}


def _runs(models: Sequence[OpenModel]) -> list[int] | None:
    """Return multiply-accumulates of each run of `finetune` that led to models, None where one does not say."""
    steps = [
        step for model in models for step in steps_to(model.header.made_by) if step.command == "finetune"
    ]
    runs = {step.model_dump_json(): step.results.get(TRAINING) for step in steps}
    recorded = [macs for macs in runs.values() if isinstance(macs, int)]
    return recorded if len(recorded) == len(runs) else None


def _is_one_network(model: OpenModel) -> bool:
    """Return whether a hydra was trained as one network with several classifiers."""
    names = {name for plugin in plugins() for name in plugin.one_network_methods}
    methods = (step.options.get("method") for step in steps_to(model.header.made_by))
    return any(str(method).partition("::")[0] in names for method in methods)


def _macs(model: Towers, preprocess: Preprocess | Tokenization) -> int:
    return macs_of(model, blank_inputs(preprocess, 1, device="meta"))


@contextmanager
def _textbook(model: Towers, *, separately: bool) -> Iterator[None]:
    """Have all tokens run through every block, as in libraries' own models, and members `separately` from the input on."""
    towers = [module for module in model.modules() if isinstance(module, Tower)]
    before = [(tower, tower.reads, tower.fork) for tower in towers]
    hooks = []
    for tower, reads, _ in before:
        tower.reads = None
        tower.fork = 0 if separately and tower.members > 1 else tower.fork
        if reads is not None:
            hooks.append(tower.layers()[-1].register_forward_hook(partial(_cut, reads)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for tower, reads, fork in before:
            tower.reads, tower.fork = reads, fork


def _cut(reads: slice, _: Block, __: object, stream: Stream) -> Stream:
    """Return the tokens of the last block's stream that the readout takes."""
    return stream.with_tokens(stream.tokens[:, reads])


def _call(row: RowModels, batch_size: int) -> Callable[[], object]:
    inputs = row.inputs(batch_size)

    @torch.inference_mode()
    def call() -> None:
        for model, images in zip(row.models, inputs, strict=True):
            model.member_logits(images)

    return call


def _in_turn(
    calls: Sequence[Callable[[], object]], devices: Collection[torch.device] = ()
) -> list[list[float]]:
    """Return the seconds of repeated calls, one round after the other over all of them."""
    for call in calls:
        end = perf_counter() + WARMUP_S
        for _ in range(WARMUP):
            _seconds_of(call, devices)
            if perf_counter() > end:
                break
    times: list[list[float]] = [[] for _ in calls]
    end = perf_counter() + BUDGET_S * len(calls)
    while len(times[0]) < LEAST or (len(times[0]) < MOST and perf_counter() < end):
        for call, seconds in zip(calls, times, strict=True):
            seconds.append(_seconds_of(call, devices))
    return times


def _seconds_of(fn: Callable[[], object], devices: Collection[torch.device] = ()) -> float:
    """Return the seconds of one call, until its last kernel is done on the devices where it runs."""
    for device in devices:
        wait_for(device)
    start = perf_counter()
    fn()
    for device in devices:
        wait_for(device)
    return perf_counter() - start
