"""Costs of the rows of a report: counted parameters and multiply-accumulates, and measured latencies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

import torch

from hydractl import progress
from hydractl.errors import UsageError
from hydractl.evaluation.options import Condition, NamedModels
from hydractl.families.stream import Stream
from hydractl.families.tower import Block, Tower, blank_inputs
from hydractl.manifest.document import Value
from hydractl.manifest.header import lineage_to
from hydractl.metrics.cost import count_parameters, macs_of
from hydractl.metrics.resampling import Resampling, measured
from hydractl.plugins import plugins
from hydractl.prediction.feature_ood import Predictor
from hydractl.runtime import wait_for

if TYPE_CHECKING:
    from hydractl.families.open_model import OpenModel
    from hydractl.families.tower import Towers


MIN_CALLS, MAX_CALLS = 3, 50
"""Minimum and maximum number of timed calls for each row. Chosen by hand: three calls give a median that is
not an extreme. Doubling both doubles the measuring time of models slower than 1 s and faster than 60 ms per
call."""
BUDGET_S = 3.0
"""Seconds of timed calls for each row and batch size, unless `MIN_CALLS` calls take longer. Chosen by hand;
doubling the budget doubles the number of calls for models that need 60 ms to 1 s per call."""
MIN_CPU_SHARE = 0.8
"""Minimum ratio of the thread's processor time to wall time. A lower ratio means that other programs used the
processor. Chosen by hand; the ratio is at most 1, so twice the value would always warn."""
TRAINING = "training_macs"
WARMUP, WARMUP_S = 3, 0.5
"""Warm-up calls, which are not timed: at most `WARMUP` calls, and none after `WARMUP_S` seconds. The first
calls include memory allocation and the selection of kernels. Chosen by hand; doubling both doubles the time
before the first number."""


def count_sizes(
    row: Sequence[Predictor], metrics: Sequence[str], model_files: Sequence[OpenModel] = ()
) -> dict[str, Value]:
    """Return parameters, multiply-accumulates per sample, and those of training, summed over models.

    Args:
        row: Models that predict, with their OOD scores. Feature-based scores add their tensors and
            operations.
        metrics: Names of the metrics. Other sizes are left out.
        model_files: Checkpoints of the models.

    Returns:
        Sizes by metric. `training_macs` is missing if the lineages do not record the cost of training.
    """
    fitted = [
        score
        for predictor in row
        if predictor.scores is not None
        for member_scores in predictor.scores.fitted.values()
        for score in member_scores
    ]
    score_macs = sum(score.multiplications for score in fitted)
    sizes = _training(model_files, row) if TRAINING in metrics else {}
    if "parameters" in metrics:
        numbers_kept = sum(tensor.numel() for score in fitted for tensor in score.tensors.values())
        parameters = numbers_kept + sum(count_parameters(predictor.model) for predictor in row)
        sizes["parameters"] = Value(value=float(parameters))
    if "macs" in metrics:
        sizes["macs"] = Value(value=float(score_macs + sum(map(_macs, row))))
    if "macs_textbook" in metrics:
        with ExitStack() as stack:
            for i, predictor in enumerate(row):
                separately = not any(map(_is_one_network, model_files[i : i + 1]))
                stack.enter_context(_textbook(predictor.model, separately=separately))
            sizes["macs_textbook"] = Value(value=float(score_macs + sum(map(_macs, row))))
    return sizes


def check_training_is_recorded(
    named: Sequence[NamedModels],
    model_files: Sequence[Sequence[OpenModel]],
    metrics: Sequence[str],
    conditions: Sequence[Condition],
) -> None:
    """Raise if a report would need a cost of training that the lineages do not record.

    Args:
        named: The rows.
        model_files: Models of each row.
        metrics: Names of the metrics selected by the user.
        conditions: Conditions on the first row.

    Raises:
        UsageError: If a condition is on `training_macs` and the first row's lineage does not record it, or
            the metric is selected and no row's lineage records it.
    """
    hint = "`hydractl finetune` records it in the models that it trains; leave it out for other models"
    for condition in conditions:
        if condition.metric == TRAINING and not _runs(model_files[0]):
            raise UsageError(
                f"`--fail-if {condition}`: the lineage of `{named[0].name}` does not record {TRAINING}",
                hint=hint,
            )
    trained = any(row.trains for row in named)
    if TRAINING in metrics and not trained and not any(map(_runs, model_files)):
        names = ", ".join(f"`{row.name}`" for row in named)
        raise UsageError(f"`--metrics {TRAINING}`: the lineage of {names} does not record it", hint=hint)


def measure_latencies(
    rows: Sequence[Sequence[Predictor]],
    metrics: Sequence[str],
    *,
    batch_size: int,
    seed: int = 0,
    warn: Callable[[Iterable[str]], object] = list,
) -> list[dict[str, Value]]:
    """Return each row's median time of one forward pass in milliseconds, with its 95 % interval.

    The rows run in turn, call by call, so other load on the machine affects all rows equally. On a CPU, a
    warning is sent if this thread ran for less than `MIN_CPU_SHARE` of the time.

    Args:
        rows: Models of each row, all in memory.
        metrics: Names of the metrics: `latency_ms` for one sample, `latency_batch_ms` for `batch_size`
            samples. Other names are ignored.
        batch_size: At least 1.
        seed: Seed of the bootstrap for the intervals.
        warn: Receives warnings.

    Returns:
        For each row, the values by metric.
    """
    latencies: list[dict[str, Value]] = [{} for _ in rows]
    for metric, size in (("latency_ms", 1), ("latency_batch_ms", batch_size)):
        if metric not in metrics:
            continue
        progress.step(f"Measuring latency with batch size {size}")
        calls = [_call(row, size) for row in rows]
        devices = {predictor.model.device for row in rows for predictor in row}
        begin, ran = perf_counter(), thread_time()
        for values, times in zip(latencies, _in_turn(calls, devices), strict=True):
            ms = torch.tensor(times, dtype=torch.float64) * 1e3
            draws = Resampling(seed=seed).draws(len(ms))
            medians = torch.cat([ms[index].quantile(0.5, dim=1) for (index,) in draws])
            values[metric] = measured(float(ms.quantile(0.5)), medians, count=len(ms)).to_value()
        share = (thread_time() - ran) / (perf_counter() - begin)
        if share < MIN_CPU_SHARE and all(device.type == "cpu" for device in devices):
            busy = f"other programs used the processor, and hydractl ran for {share:.0%} of the time only"
            warn([f"`{metric}` is too high: {busy}; measure again on an idle machine"])
    return latencies


def _training(models: Sequence[OpenModel], row: Sequence[Predictor]) -> dict[str, Value]:
    """Return the multiply-accumulates of a row's training; empty if a lineage does not record the number."""
    runs = _runs(models)
    derived = [macs for predictor in row if (macs := getattr(predictor.model, "training_macs", 0))]
    macs = [*(runs or ()), *derived]
    return {TRAINING: Value(value=float(sum(macs)))} if macs and runs is not None else {}


def _runs(models: Sequence[OpenModel]) -> list[int] | None:
    """Return the multiply-accumulates of each `finetune` run in the lineages.

    `None` if a run did not record the number.
    """
    steps = [
        step for model in models for step in lineage_to(model.header.made_by) if step.command == "finetune"
    ]
    runs = {step.model_dump_json(): step.results.get(TRAINING) for step in steps}
    recorded = [macs for macs in runs.values() if isinstance(macs, int)]
    return recorded if len(recorded) == len(runs) else None


def _is_one_network(model: OpenModel) -> bool:
    """Return whether a hydra was trained as one network with several classifiers."""
    names = {name for plugin in plugins() for name in plugin.one_network_methods}
    methods = (step.options.get("method") for step in lineage_to(model.header.made_by))
    return any(str(method).partition("::")[0] in names for method in methods)


def _macs(predictor: Predictor) -> int:
    return macs_of(predictor.model, blank_inputs(predictor.preprocess, 1, device="meta"))


@contextmanager
def _textbook(model: Towers, *, separately: bool) -> Iterator[None]:
    """Run all tokens through every block, as the libraries' own models do.

    Hydractl skips tokens in the last block that the readout does not use. A hook on the last block removes
    these tokens after the block instead.

    Args:
        model: Model to change inside the context.
        separately: Whether members run separately from the input on, without a shared trunk.
    """
    towers = [module for module in model.modules() if isinstance(module, Tower)]
    before = [(tower, tower.read_tokens, tower.fork) for tower in towers]
    hooks = []
    for tower, read_tokens, _ in before:
        tower.read_tokens = None
        tower.fork = 0 if separately and tower.members > 1 else tower.fork
        if read_tokens is not None:
            hooks.append(tower.layers()[-1].register_forward_hook(partial(_cut, read_tokens)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for tower, read_tokens, fork in before:
            tower.read_tokens, tower.fork = read_tokens, fork


def _cut(read_tokens: slice, _: Block, __: object, stream: Stream) -> Stream:
    """Return the tokens of the last block's output that the readout uses."""
    return stream.with_tokens(stream.tokens[:, read_tokens])


def _call(row: Sequence[Predictor], batch_size: int) -> Callable[[], object]:
    models = [predictor.model for predictor in row]
    inputs = [
        model.adapted(blank_inputs(predictor.preprocess, batch_size, device=model.device))
        for model, predictor in zip(models, row, strict=True)
    ]

    @torch.inference_mode()
    def call() -> None:
        for model, images in zip(models, inputs, strict=True):
            model.member_logits(images)

    return call


def _in_turn(
    calls: Sequence[Callable[[], object]], devices: Collection[torch.device] = ()
) -> list[list[float]]:
    """Time functions in rounds, and return the seconds of all calls of each function."""
    for call in calls:
        end = perf_counter() + WARMUP_S
        for _ in range(WARMUP):
            _seconds_of(call, devices)
            if perf_counter() > end:
                break
    times: list[list[float]] = [[] for _ in calls]
    end = perf_counter() + BUDGET_S * len(calls)
    while len(times[0]) < MIN_CALLS or (len(times[0]) < MAX_CALLS and perf_counter() < end):
        for call, seconds in zip(calls, times, strict=True):
            seconds.append(_seconds_of(call, devices))
    return times


def _seconds_of(fn: Callable[[], object], devices: Collection[torch.device] = ()) -> float:
    """Return the seconds of one call, including all kernels that it launched on the devices."""
    for device in devices:
        wait_for(device)
    start = perf_counter()
    fn()
    for device in devices:
        wait_for(device)
    return perf_counter() - start
