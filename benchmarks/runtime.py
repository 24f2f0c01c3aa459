"""What a hydra costs to run, against its members in turn, a deep ensemble and the single base.

Interleaved: each repetition runs every model once, so that a noisy machine is noisy for all; figures are medians of
the per-repetition ratios. The base, the deep ensemble and the members in turn are timm's own modules and timm's own
forward pass (members with sliced attention), so the comparison is with what a user would run without hydractl.

    python benchmarks/runtime.py [--repeats 15] [--batch 1 4] [--dtype fp32 bf16]
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import timm
import torch

from hydractl.families.opening import build_checked
from hydractl.families.timm.families import TIMM_VIT
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.slicing import prune_tensor
from hydractl.heads.masks import full_mask
from hydractl.manifest.header import Header, Kind
from hydractl.manifest.heads import TowerKeep
from hydractl.runtime import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ARCH, LAYERS, HEADS, KEPT, MEMBERS = "vit_base_patch16_224", 12, 12, 8, 3


@dataclass(frozen=True, slots=True)
class Claim:
    """A bound on the ratio of two rows' times, and for which batch sizes it is claimed."""

    row: str
    against: str
    bound: float
    batches: tuple[int, ...]


CLAIMS = (
    Claim("hydra", "members in turn", 0.95, (1, 4)),
    Claim("hydra", "deep ensemble x3", 0.90, (1, 4)),
    Claim("hydra", "single base", 2.50, (1,)),
    Claim("hydra, diverge-from 8", "single base", 1.40, (1, 4)),
    Claim("hydra, diverge-from 10", "single base", 1.10, (1, 4)),
)


def main() -> int:
    """Measure, print a table for each batch size and dtype, and return 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"])
    options = parser.parse_args()
    torch.manual_seed(0)
    print(
        f"{ARCH}, {MEMBERS} members with {KEPT} of {HEADS} heads a layer, {torch.get_num_threads()} threads"
    )
    failed = 0
    for dtype in options.dtype:
        rows = build_rows(torch_dtype(dtype))
        for batch in options.batch:
            images = torch.randn(batch, 3, 224, 224, dtype=torch_dtype(dtype))
            times = measure(rows, images, options.repeats)
            failed += report(times, batch, dtype)
    return 1 if failed else 0


def build_rows(dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], object]]:
    """Build every model that is compared, from one set of random weights."""
    base = timm.create_model(ARCH).eval()
    state = {k: v.to(dtype) for k, v in base.state_dict().items()}
    base = base.to(dtype)
    others = [copy.deepcopy(base) for _ in range(MEMBERS)]
    masks = random_masks(0)
    members = [timm_member(base, keep) for keep in masks]
    rows: dict[str, Callable[[torch.Tensor], object]] = {
        "single base": base,
        "deep ensemble x3": lambda x: torch.stack([m(x).softmax(-1) for m in others]).mean(0),
        "members in turn": lambda x: torch.stack([m(x).softmax(-1) for m in members]).mean(0),
        "hydra": hydra_of(state, masks),
    }
    for layer in (8, 10):
        rows[f"hydra, diverge-from {layer}"] = hydra_of(state, random_masks(layer))
    return rows


def random_masks(diverge_from: int) -> list[tuple[tuple[int, ...], ...]]:
    """Draw masks of 8 heads a layer on average, uneven like a circuit's, that agree before a layer."""
    masks = []
    for member in range(MEMBERS):
        layers = []
        for layer in range(LAYERS):
            source = random.Random(f"{layer}" if layer < diverge_from else f"{layer}-{member}")  # noqa: S311 - reproducible
            kept = KEPT + (1 if layer % 2 else -1)
            layers.append(tuple(sorted(source.sample(range(HEADS), kept))))
        masks.append(tuple(layers))
    return masks


def timm_member(base: Any, keep: Sequence[Sequence[int]]) -> Any:  # noqa: ANN401 - timm is untyped
    """Slice a timm model in place of hydractl, so that timm's own forward pass runs it."""
    member = copy.deepcopy(base)
    for block, kept in zip(member.blocks, keep, strict=True):
        attention, width = block.attn, block.attn.head_dim
        rows = torch.tensor([h * width + k for h in kept for k in range(width)])
        qkv = torch.cat([rows + i * HEADS * width for i in range(3)])
        attention.qkv.weight.data = attention.qkv.weight.data[qkv].contiguous()
        attention.qkv.bias.data = attention.qkv.bias.data[qkv].contiguous()
        attention.proj.weight.data = attention.proj.weight.data[:, rows].contiguous()
        attention.num_heads, attention.attn_dim = len(kept), len(rows)
    return member


def hydra_of(state: dict[str, torch.Tensor], masks: Sequence[Sequence[tuple[int, ...]]]) -> Hydra:
    """Fuse members that were pruned but not fine-tuned; equal tensors are the same objects, as `fuse` makes them."""
    described = TIMM_VIT.describe(ARCH, {})
    architecture = described.architecture
    held: dict[tuple[str, object], torch.Tensor] = {}
    models = []
    for keep in masks:
        mask = {"vision": TowerKeep(num_heads=HEADS, keep=tuple(keep))}
        sliced = {n: prune_tensor(TIMM_VIT, architecture, mask, n, t) for n, t in state.items()}
        shared = {
            n: held.setdefault((n, t.data_ptr() if t is state[n] else _layer(n, keep)), torch.nn.Parameter(t))
            for n, t in sliced.items()
        }
        header = Header(
            kind=Kind.MEMBER, architecture=architecture, masks=(mask,), preprocess=described.preprocess
        )
        models.append(build_checked(TIMM_VIT, header, shared, where="member"))
    if full_mask(architecture.towers)["vision"].num_heads != HEADS:
        raise SystemExit(f"{ARCH} has not {HEADS} heads")
    return Hydra(models).eval()


def _layer(name: str, keep: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return keep[int(name.split(".")[1])]


def measure(
    rows: dict[str, Callable[[torch.Tensor], object]], images: torch.Tensor, repeats: int
) -> dict[str, list[float]]:
    """Return seconds of each repetition for each row, after two rounds that do not count."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    with torch.inference_mode():
        for repetition in range(repeats + 2):
            for name, model in rows.items():
                start = time.perf_counter()
                model(images)
                if repetition >= 2:
                    times[name].append(time.perf_counter() - start)
    return times


def report(times: dict[str, list[float]], batch: int, dtype: str) -> int:
    """Print medians and ratios, and return how many claims do not hold."""
    print(f"\nbatch {batch}, {dtype}")
    base = times["single base"]
    for name, seconds in times.items():
        print(
            f"  {name:24s} {1e3 * statistics.median(seconds):9.1f} ms   {ratio(seconds, base):5.2f} x single"
        )
    failed = 0
    for claim in CLAIMS:
        if batch not in claim.batches:
            continue
        found = ratio(times[claim.row], times[claim.against])
        holds = found <= claim.bound
        failed += not holds
        print(
            f"  {'holds' if holds else 'FAILS'}: {claim.row} / {claim.against} = {found:.3f}, claimed at most {claim.bound}"
        )
    return failed


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios within each repetition."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
