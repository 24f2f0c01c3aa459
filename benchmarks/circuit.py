"""How much faster circuit scoring is than Algorithm 1 as it is written, with the same result.

A run that removes a third of the heads of a ViT-S/16-sized model with random weights, sampled at its first, middle and
last removal (what is gone by then is spread evenly over the layers). Naive scoring runs timm's full forward pass for each
candidate, with the slices of the output projection zeroed. Both sides take turns on the same batch; the figure is the ratio
of the summed seconds. The candidates' values and their ranking are compared, too; `--double` does so in float64.

    python benchmarks/circuit.py [--arch vit_small_patch16_224] [--samples 4] [--repeats 1] [--double]
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import timm
import torch

from hydractl.families.opening import load_model, open_model
from hydractl.manifest.heads import HeadId
from hydractl.scoring.circuit.model import Circuit
from hydractl.scoring.job import Samples, ScoreJob

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import naive  # the oracle lives with the tests

if TYPE_CHECKING:
    from collections.abc import Callable

    from hydractl.manifest.header import Preprocess

T = TypeVar("T")
CLAIM = 2.2


def main() -> int:
    """Measure both sides, print them, and return 1 if the claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="vit_small_patch16_224")
    parser.add_argument("--samples", type=int, default=4, help="ID samples; half as many OOD samples")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--double", action="store_true", help="compute in float64")
    options = parser.parse_args()
    dtype = torch.float64 if options.double else torch.float32
    opened = open_model(f"arch:{options.arch}::num_classes=10")
    library = timm.create_model(options.arch, num_classes=10).eval()
    library.load_state_dict(opened.checkpoint.tensors())
    library = library.to(dtype)
    library.head_width = library.blocks[0].attn.head_dim
    shape = cast("Preprocess", opened.header.preprocess).input_size
    images = torch.randn(options.samples, *shape, dtype=dtype)
    labels = torch.randint(0, 10, (options.samples,))
    others = 2 * torch.randn(max(1, options.samples // 2), *shape, dtype=dtype)
    job = ScoreJob(
        model=load_model(opened, dtype=dtype),
        family=opened.family,
        architecture=opened.header.architecture,
        id_data=[Samples(images, labels)],
        ood_data=[Samples(others, None)],
    )
    data = (images, labels, others)
    heads = list(naive.candidates(library, []))
    budget = len(heads) // 3
    print(
        f"{options.arch}, {len(heads)} heads, {budget} to remove, {len(images)} + {len(others)} images, {dtype}, "
        f"{torch.get_num_threads()} threads"
    )
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
                f"  {step:3d} heads gone: naive {slow_s:.2f} s, ours {fast_s:.2f} s, {slow_s / fast_s:.2f} times faster"
            )
    ratio = naive_s / ours_s
    print(f"  in all {ratio:.2f} times faster, claimed at least {CLAIM}")
    print(
        f"  ranking of all candidates {'equal' if same else 'NOT equal'}; largest difference of their values {apart:.2g}"
    )
    holds = ratio >= CLAIM and same
    print("  holds" if holds else "  FAILS")
    return 0 if holds else 1


def ours(circuit: Circuit) -> dict[tuple[int, int], float]:
    """Return the objective without each remaining head."""
    with torch.inference_mode():
        return {(h.layer, h.head): v for h, v in circuit.candidate_values().items()}


def literally(
    library: torch.nn.Module,
    heads: list[tuple[int, int]],
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> dict[tuple[int, int], float]:
    """Return the same by a full pass for each head."""
    return {head: naive.without(library, *head, "avg", data, batch=len(data[0])) for head in heads}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and the seconds that it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
