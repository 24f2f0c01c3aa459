"""Measure the speed of circuit scoring relative to a literal Algorithm 1, with equal results.

The search removes a third of the heads of a ViT-S/16 with random weights. Both sides are sampled at the
first, middle and last removal, with the earlier removals spread evenly over the layers. Naive scoring runs
timm's full forward pass for each candidate, with zeroed slices of the output projection. Both sides run in
turn on the same batch; the result is the ratio of the summed seconds. Values and ranking of the candidates
are also compared, with `--double` in float64.

With `--compile`, hydractl's eager scoring is compared with `score --compile`, in turn. The extra time of the
first call is printed separately: compilation, unless torch has cached the code (set TORCHINDUCTOR_CACHE_DIR
to an empty folder). On a CPU, seconds are processor time, nearly independent of other load on the machine. No
speed is claimed.

    python benchmarks/circuit.py [--arch vit_small_patch16_224] [--samples 4] [--repeats 1] [--double]
    python benchmarks/circuit.py --compile [--device cuda] [--heads 1] [--samples 8] [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import timm
import torch

from hydractl.families.open_model import load_model, open_model
from hydractl.manifest.head_mask import HeadId
from hydractl.runtime import pick_device
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.scoring.settings import CircuitSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import naive  # The reference implementation is part of the tests.

if TYPE_CHECKING:
    from collections.abc import Callable

    from hydractl.manifest.header import Preprocess

T = TypeVar("T")
CLAIM = 2.2
ROUNDING = 1e-5
"""Largest allowed difference between compiled and eager objectives in float32. Chosen by hand, about 100
units of rounding; doubling hides larger errors of the compiler."""


def main() -> int:
    """Measure both sides and print them. The exit code is 1 if the claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="vit_small_patch16_224", help="timm architecture")
    parser.add_argument("--samples", type=int, default=4, help="ID samples; half as many OOD samples")
    parser.add_argument("--repeats", type=int, default=1, help="repetitions of the measurement")
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--device", default="cpu", help="device for --compile")
    parser.add_argument(
        "--compile", action="store_true", help="compare with `score --compile` instead of naive scoring"
    )
    parser.add_argument("--heads", type=int, help="with --compile: candidates per layer (default: all)")
    options = parser.parse_args()
    if not options.compile and (options.device != "cpu" or options.heads is not None):
        parser.error("--device and --heads need --compile")
    dtype = torch.float64 if options.double else torch.float32
    device = pick_device(options.device)
    model_file = open_model(f"arch:{options.arch}::num_classes=10")
    library = timm.create_model(options.arch, num_classes=10).eval()
    library.load_state_dict(model_file.checkpoint.tensors())
    library = library.to(dtype)
    library.head_width = library.blocks[0].attn.head_dim
    shape = cast("Preprocess", model_file.header.preprocess).input_size
    images = torch.randn(options.samples, *shape, dtype=dtype).to(device)
    labels = torch.randint(0, 10, (options.samples,)).to(device)
    others = 2 * torch.randn(max(1, options.samples // 2), *shape, dtype=dtype).to(device)
    job = ScoreJob(
        model=load_model(model_file, dtype=dtype).to(device),
        family=model_file.family,
        architecture=model_file.header.architecture,
        id_data=[Samples(images, labels)],
        ood_data=[Samples(others, None)],
    )
    data = (images, labels, others)
    heads = list(naive.candidates(library, []))
    budget = len(heads) // 3
    print(
        f"{options.arch}, {len(heads)} heads, {budget} to remove, {len(images)} + {len(others)} images, {dtype}, "
        f"{device_name(device)}, torch {torch.__version__}"
    )
    if options.compile:
        compiled = replace(job, model=load_model(model_file, dtype=dtype).to(device), compiles=options.arch)
        return against_compiled(job, compiled, heads=options.heads, repeats=options.repeats)
    circuit, gone = Circuit(job), 0
    order = sorted(heads, key=lambda place: place[::-1])
    ours_s, naive_s, same, apart = 0.0, 0.0, True, 0.0
    for step in (0, budget // 2, budget - 1):
        for layer, head in order[gone:step]:
            circuit.remove(HeadId("vision", layer, head))
            naive.remove(library, layer, head)
        gone = step
        for _ in range(options.repeats):
            fast, fast_s = timed(partial(ours, circuit))
            slow, slow_s = timed(partial(literally, library, sorted(order[gone:]), data))
            ours_s, naive_s = ours_s + fast_s, naive_s + slow_s
            same &= sorted(slow, key=lambda h: -fast[h]) == sorted(slow, key=lambda h: -slow[h])
            apart = max(apart, *(abs(fast[h] - slow[h]) for h in slow))
            print(
                f"  {step:3d} heads removed: naive {slow_s:.2f} s, ours {fast_s:.2f} s, {slow_s / fast_s:.2f} times faster"
            )
    ratio = naive_s / ours_s
    print(f"  total: {ratio:.2f} times faster (claim: at least {CLAIM})")
    print(
        f"  ranking of all candidates {'equal' if same else 'NOT equal'}; largest difference of values {apart:.2g}"
    )
    holds = ratio >= CLAIM and same
    print("  holds" if holds else "  FAILS")
    return 0 if holds else 1


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or the device type with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def against_compiled(job: ScoreJob, other: ScoreJob, *, heads: int | None, repeats: int) -> int:
    """Compare eager and compiled scoring, and print both.

    Args:
        job: Eager job.
        other: Compiled job.
        heads: Number of candidates per layer; None for all.
        repeats: Timed repetitions.

    Returns:
        Exit code: 1 if the rankings differ, or values differ by more than `ROUNDING`.
    """
    settings = CircuitSettings(objective="auroc-nll")  # This objective depends on every logit.
    sides = {"eager": job, "compiled": other}
    circuits = {name: Circuit(replace(side, settings=settings)) for name, side in sides.items()}
    wanted = [h for h in circuits["eager"].candidates() if heads is None or h.head < heads]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    found: dict[str, list[float]] = {}
    begin: dict[str, float] = {}
    for name, circuit in circuits.items():
        # A candidate in the last layer needs little more than a forward pass.
        one = partial(valued, circuit, wanted[-1:])
        _, first = timed(one)
        begin[name] = first - timed(one)[1]
    is_cpu = job.model.device.type == "cpu"
    for _ in range(repeats):
        for name, circuit in circuits.items():
            clock = time.process_time if is_cpu else time.perf_counter
            found[name], spent = timed(partial(valued, circuit, wanted), clock)
            seconds[name].append(spent)
    print(
        f"  {len(wanted)} candidates, {'processor time' if is_cpu else 'time'} of {repeats} interleaved repetitions"
    )
    for name, each in seconds.items():
        print(
            f"  {name:8s} {statistics.median(each):.3f} s ({min(each):.3f} to {max(each):.3f}), first call "
            f"{begin[name]:.1f} s longer"
        )
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    print(
        f"  compiled {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times as fast, "
        f"with {graphs} graph{'s' * (graphs != 1)}"
    )
    apart = max(abs(a - b) for a, b in zip(*found.values(), strict=True))
    orders = [
        torch.tensor(values, dtype=torch.float64).argsort(descending=True, stable=True).tolist()
        for values in found.values()
    ]
    print(
        f"  ranking {'equal' if orders[0] == orders[1] else 'NOT equal'}; largest difference of values {apart:.2g}"
    )
    holds = orders[0] == orders[1] and apart <= ROUNDING
    print("  holds" if holds else "  FAILS")
    return 0 if holds else 1


def valued(circuit: Circuit, heads: list[HeadId]) -> list[float]:
    """Return the objective without each of the given heads."""
    with torch.inference_mode():
        return circuit.without(heads)[0].tolist()


def ours(circuit: Circuit) -> dict[tuple[int, int], float]:
    """Return the objective without each remaining head, by (layer, head)."""
    with torch.inference_mode():
        return {(h.layer, h.head): v for h, v in circuit.candidate_values().items()}


def literally(
    library: torch.nn.Module,
    heads: list[tuple[int, int]],
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> dict[tuple[int, int], float]:
    """Return the same objectives by a full forward pass per head."""
    return {head: naive.without(library, *head, "avg", data, batch=len(data[0])) for head in heads}


def timed(work: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[T, float]:
    """Return the result of a function and its seconds."""
    start = clock()
    result = work()
    return result, clock() - start


if __name__ == "__main__":
    sys.exit(main())
