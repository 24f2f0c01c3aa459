"""What a hydra costs to run, against its members in turn, a deep ensemble and the library's own single model.

Interleaved: each repetition runs every row once, so that a noisy machine is noisy for all; figures are medians of
the per-repetition ratios. The single model, the deep ensemble and the members in turn are timm's own modules and timm's own
forward pass (members with sliced attention), so the comparison is with what a user would run without hydractl. Weights are
random. On a GPU time is between events on its stream, and each row has a warm-up, its peak memory, and its graph where asked.

It needs torch, timm and hydractl's sources, and with `--minutes` it stops before that: what was not measured it says.

    python benchmarks/runtime.py [--device cpu] [--dtype fp32 bf16] [--batch 1 4] [--repeats 15]
    python benchmarks/runtime.py --device cuda --dtype bf16 --batch 1,4,16,64,256 [--how eager compiled graph] [--minutes 5]

The last line that it prints is one of JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.auto.hooks import HEARD

HEARD.clear()  # timm is not told of hydractl's models, which would take more than torch and timm
import timm
import torch

from hydractl.families.timm.modules import wrap
from hydractl.fusion.hydra import Hydra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    Mask = Sequence[tuple[int, ...]]

ARCH, LAYERS, HEADS, KEPT, MEMBERS = "vit_base_patch16_224", 12, 12, 8, 3
SINGLE, ENSEMBLE, IN_TURN = "single", f"deep ensemble x{MEMBERS}", "members in turn"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HOWS = ("eager", "compiled", "graph")
LAYOUTS = {"": "auto", ", in turn": "in turn", ", stacked": "stacked"}
WARM = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """A bound on the ratio of two rows' times, and for which devices and batch sizes it is claimed."""

    device: str
    row: str
    against: str
    bound: float
    batches: tuple[int, ...]
    hows: tuple[str, ...] = ("eager",)


CLAIMS = (
    Claim("cpu", "hydra", IN_TURN, 0.95, (1, 4)),
    Claim("cpu", "hydra", ENSEMBLE, 0.90, (1, 4)),
    Claim("cpu", "hydra", SINGLE, 2.50, (1,)),
    Claim("cpu", "hydra, trunk of 8", SINGLE, 1.40, (1, 4)),
    Claim("cpu", "hydra, trunk of 10", SINGLE, 1.10, (1, 4)),
    Claim("cuda", "hydra", SINGLE, 1.07, (4,), ("eager", "graph")),
    Claim("cuda", "hydra, trunk of 10", SINGLE, 1.00, (4,), ("eager", "graph")),
)
"""At 64 samples on a GPU a hydra is held against its arithmetic: its time over single's is no more than its operations over single's."""


class Row(NamedTuple):
    """What is timed, and its multiply-accumulates for one sample."""

    model: Callable[[torch.Tensor], object]
    macs: float


def main() -> int:
    """Measure, print a table for each dtype, way and batch size, and return 1 if a claim does not hold."""
    options = parsed()
    torch.manual_seed(0)
    end = time.monotonic() + 60 * options.minutes
    cuda = options.device == "cuda"
    print(
        f"{ARCH}, {MEMBERS} members with {KEPT} of {HEADS} heads a layer; torch {torch.__version__}, timm {timm.__version__}, "
        + (torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads")
    )
    tables: list[dict[str, object]] = []
    failed = 0
    for dtype in options.dtype:
        rows = build_rows(DTYPES[dtype], options.device)
        for how in options.how:
            for batch in options.batch:
                if time.monotonic() > end:
                    print(f"not measured, as time was up: {dtype}, {how}, batch {batch}")
                    continue
                images = torch.randn(batch, 3, 224, 224, dtype=DTYPES[dtype], device=options.device)
                found = measure(rows, images, how, options.repeats)
                table, fails = report(found, rows, Setting(options.device, dtype, how, batch))
                tables.append(table)
                failed += fails
    print(json.dumps({"arch": ARCH, "torch": torch.__version__, "device": options.device, "tables": tables}))
    return 1 if failed else 0


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", nargs="+", default=["1,4"], help="sizes, with spaces or commas between")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=["fp32", "bf16"])
    parser.add_argument("--how", nargs="+", choices=HOWS, help="default: eager, and on a GPU all three")
    parser.add_argument("--minutes", type=float, default=1e6, help="when to begin nothing more")
    options = parser.parse_args()
    options.batch = [int(size) for part in options.batch for size in part.split(",")]
    options.how = options.how or (HOWS if options.device == "cuda" else HOWS[:1])
    if options.device == "cpu" and "graph" in options.how:
        parser.error("--how graph is for --device cuda")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here")
    return options


def build_rows(dtype: torch.dtype, device: str) -> dict[str, Row]:
    """Build every model that is compared, from one set of random weights."""
    base = timm.create_model(ARCH).eval().to(device, dtype)
    masks = random_masks(0)
    others = [copy.deepcopy(base) for _ in range(MEMBERS)]
    members = [timm_member(base, keep, {}) for keep in masks]
    one = macs(base, [[tuple(range(HEADS))] * LAYERS])
    rows = {
        SINGLE: Row(base, one),
        ENSEMBLE: Row(lambda x: torch.stack([m(x).softmax(-1) for m in others]).mean(0), MEMBERS * one),
        IN_TURN: Row(
            lambda x: torch.stack([m(x).softmax(-1) for m in members]).mean(0),
            sum(macs(base, [keep]) for keep in masks),
        ),
    }
    for trunk in (0, 8, 10):
        apart = random_masks(trunk)
        for suffix, layout in LAYOUTS.items():
            if layout == "auto" or (trunk == 0 and layout != ("in turn" if device == "cpu" else "stacked")):
                name = f"hydra, trunk of {trunk}" if trunk else "hydra"
                rows[name + suffix] = Row(hydra_of(base, apart, layout), macs(base, apart))
    return rows


def random_masks(trunk: int) -> list[Mask]:
    """Draw masks of 8 heads a layer on average, uneven like a circuit's, that agree in the first layers."""
    masks: list[Mask] = []
    for member in range(MEMBERS):
        layers = []
        for layer in range(LAYERS):
            source = random.Random(f"{layer}" if layer < trunk else f"{layer}-{member}")  # noqa: S311 - reproducible
            kept = KEPT + (1 if layer % 2 else -1)
            layers.append(tuple(sorted(source.sample(range(HEADS), kept))))
        masks.append(tuple(layers))
    return masks


def timm_member(base: Any, keep: Mask, held: dict[object, Any]) -> Any:  # noqa: ANN401 - timm is untyped
    """Slice a copy of timm's model in place of hydractl, so that timm's own forward pass runs it.

    It shares its tensors with the base, and its attentions with those of the same heads among `held`, to which it adds its own.
    """
    member = copy.deepcopy(base, {id(p): p for p in base.parameters()})
    for i, (block, kept) in enumerate(zip(member.blocks, keep, strict=True)):
        block.attn = held.setdefault((i, kept), sliced(block.attn, kept))
    return member


def sliced(attention: Any, kept: tuple[int, ...]) -> Any:  # noqa: ANN401 - as above
    """Return timm's attention with some of its heads."""
    width = attention.head_dim
    rows = torch.tensor([h * width + k for h in kept for k in range(width)])
    qkv = torch.cat([rows + i * HEADS * width for i in range(3)])
    for layer, name, index in (
        ("qkv", "weight", qkv),
        ("qkv", "bias", qkv),
        ("proj", "weight", (slice(None), rows)),
    ):
        module = getattr(attention, layer)
        setattr(module, name, torch.nn.Parameter(getattr(module, name).detach()[index].contiguous()))
    attention.num_heads, attention.attn_dim = len(kept), len(rows)
    return attention


def hydra_of(base: nn.Module, masks: Sequence[Mask], layout: Any) -> Hydra:  # noqa: ANN401 - one of three words
    """Fuse members that were pruned but not fine-tuned; equal tensors are the same objects, as `fuse` makes them."""
    held: dict[object, Any] = {}
    hydra = Hydra([wrap(timm_member(base, keep, held), keep) for keep in masks]).eval()
    hydra.lay_out(layout)
    return hydra


def macs(base: Any, masks: Sequence[Mask]) -> float:  # noqa: ANN401 - as above
    """Return the multiply-accumulates of one sample: layers that all members share once, MLPs and norms for each."""
    width, tokens = base.embed_dim, base.patch_embed.num_patches + 1
    head = width // HEADS
    total, apart = base.patch_embed.num_patches * 3 * 16 * 16 * width, False
    for layer in range(LAYERS):
        apart = apart or len({keep[layer] for keep in masks}) > 1
        for keep in masks if apart else masks[:1]:
            total += len(keep[layer]) * head * tokens * (4 * width + 2 * tokens) + 8 * tokens * width * width
    return float(total)


class Times(NamedTuple):
    """Seconds of each repetition, and the most memory that a row took on a GPU, in MiB."""

    seconds: list[float]
    peak: float | None


def measure(rows: dict[str, Row], images: torch.Tensor, how: str, repeats: int) -> dict[str, Times]:
    """Return what each row took, after rounds that do not count."""
    with torch.inference_mode():
        ready = {name: prepared(row.model, images, how) for name, row in rows.items()}
        peaks = {name: peak_of(run, images) for name, run in ready.items()}
        times: dict[str, list[float]] = {name: [] for name in rows}
        for repetition in range(repeats + 2):
            for name, run in ready.items():
                seconds = timed(run, images)
                if repetition >= 2:
                    times[name].append(seconds)
    return {name: Times(times[name], peaks[name]) for name in rows}


def prepared(model: Callable[[Any], object], images: torch.Tensor, how: str) -> Callable[[Any], object]:
    """Return what runs a model in a way, warm."""
    if how == "compiled":
        torch._dynamo.reset()
        model = torch.compile(model)
    for _ in range(WARM):
        model(images)
    if how != "graph":
        return model
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(images)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = model(images)

    def replay(_: torch.Tensor) -> object:
        graph.replay()
        return kept

    return replay


def timed(run: Callable[[Any], object], images: torch.Tensor) -> float:
    """Return the seconds of one run."""
    if images.device.type == "cpu":
        start = time.perf_counter()
        run(images)
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    run(images)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def peak_of(run: Callable[[Any], object], images: torch.Tensor) -> float | None:
    """Return the MiB that one run takes beside what all rows' weights and graphs hold."""
    if images.device.type == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(images)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class Setting(NamedTuple):
    """What a table was measured with."""

    device: str
    dtype: str
    how: str
    batch: int


def report(found: dict[str, Times], rows: dict[str, Row], setting: Setting) -> tuple[dict[str, object], int]:
    """Print medians, ratios and claims; return the table as data, and how many claims do not hold."""
    single = found[SINGLE].seconds
    print(
        f"\n{setting.how}, batch {setting.batch}, {setting.dtype}\n  {'':24s} {'time':>9s} {'x single':>9s} {'MACs':>6s}  peak"
    )
    table: dict[str, object] = setting._asdict()
    for name, (seconds, peak) in found.items():
        line = {
            "ms": 1e3 * statistics.median(seconds), "times_single": ratio(seconds, single),
            "macs_times_single": rows[name].macs / rows[SINGLE].macs, "peak_mib": peak,
        }  # fmt: skip
        table[name] = {key: value if value is None else round(value, 4) for key, value in line.items()}
        print(
            f"  {name:24s} {line['ms']:6.2f} ms {line['times_single']:9.3f} {line['macs_times_single']:6.2f}  "
            + ("" if peak is None else f"{peak:.0f} MiB")
        )
    failed = 0
    for row, against, bound in claimed(rows, setting):
        value = ratio(found[row].seconds, found[against].seconds)
        failed += value > bound
        verdict = "FAILS" if value > bound else "holds"
        print(f"  {verdict}: {row} / {against} = {value:.3f}, claimed at most {bound:.3f}")
    return table, failed


def claimed(rows: dict[str, Row], setting: Setting) -> Iterator[tuple[str, str, float]]:
    """Yield what is claimed of a setting: row, against which, and the bound."""
    for claim in CLAIMS:
        if (claim.device, True, True) == (
            setting.device,
            setting.batch in claim.batches,
            setting.how in claim.hows,
        ):
            yield claim.row, claim.against, claim.bound
    if setting.device == "cuda" and setting.batch == 64:
        for row in ("hydra", "hydra, trunk of 8", "hydra, trunk of 10"):
            yield row, SINGLE, rows[row].macs / rows[SINGLE].macs


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios within each repetition."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
