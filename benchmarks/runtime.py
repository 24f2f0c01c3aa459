"""Compare the runtime of a hydra with its members in turn, a deep ensemble, and the library's single model.

Runs are interleaved: each round runs every row once, so that noise affects all rows. Times are medians;
ratios are medians of the ratios within a round. Rounds are repeated `--repeats` times, and until every row
has run for 0.2 s in total or 500 times. On a GPU, time is measured between events on the stream, and the peak
is the memory of one run beyond all weights (for a CUDA graph, of the captured run). `runtime_rows.py` makes
the models.

With few samples, a device waits for the processor that launches its kernels. `--how calls` measures this
launch time on any device: eager runs of models with the same layers and heads, but so narrow that computation
is negligible, with stacked hydras.

Compiled rows take any batch size (`dynamic=True`): one compilation serves all sizes except 1, which torch
compiles separately; batch size 1 therefore runs last. Code for a single size may be slightly faster, for
every row.

Needs torch, timm and the source tree of hydractl; hydractl need not be installed.

    python benchmarks/runtime.py [--device cpu] [--dtype fp32 bf16] [--batch 1 4] [--repeats 15]
    python benchmarks/runtime.py --device cuda --dtype bf16 --batch 1,4,16,64,256
                                 [--how calls eager graph compiled "compiled graph"] [--minutes 5]

Work that would end after `--minutes` is not started. A row that fails is skipped, and the table shows the
reason. Each table is followed by a line of JSON, which survives if the command is killed; the last line of
JSON has all tables. On a GPU, a block of Markdown for an issue follows.

At batch 4 on a GPU, the paper reports a ratio of 1.07 for a hydra, and a trunk of 10 was claimed to be free.
On an H200 the first claim fails, and in bf16 also the second (`results/runtime-h200.md`). Counted costs of a
hydra (with a trunk of 10), relative to the single model:

    launches         148 / 133 = 1.11        138 / 133 = 1.04       of an eager pass; a graph has none
                     123 / 109 = 1.13        113 / 109 = 1.04       of a compiled pass
    bytes of weights 115 M / 87 M = 1.33     91 M / 87 M = 1.05     attention twice: 3 members, 8 of 12 heads
    work             46.17 / 17.56 = 2.63    20.58 / 17.56 = 1.17     multiply-accumulates, in G

On an H200 in bf16: at batch 4, limited by launches, eager 1.28 (1.13) and compiled 1.19 (1.12). Graphs: at
batch 1, limited by memory, 1.18 (1.00); at batch 4 already 1.67 (1.04); at batch 64, limited by compute, 2.28
(1.03).
"""

from __future__ import annotations

import time

START = time.monotonic()  # Loading torch counts towards `--minutes`.

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from runtime_rows import (
    ARCH,
    ENSEMBLE,
    HEADS,
    IN_TURN,
    KEPT,
    MEMBERS,
    NARROW,
    SINGLE,
    TIMM,
    TRUNKS,
    Row,
    build_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Run = Callable[[torch.Tensor], object]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CALLS = "calls"
HOWS = (CALLS, "eager", "graph", "compiled", "compiled graph")
"""Execution modes. The last two may need minutes for compilation and share the compiled code."""
WARM, UNCOUNTED, ENOUGH, MOST, LAST = 3, 2, 0.2, 500, 5.0
"""WARM: runs before a row is ready. UNCOUNTED: first rounds that are discarded. ENOUGH: least total seconds
of each row. MOST: number of rounds that suffices instead. LAST: seconds reserved for the rounds of a table.
All were chosen by hand: doubling ENOUGH or MOST doubles the time of fast rows, doubling LAST skips more rows
near the time limit."""
TIME_WAS_UP = "not measured: time limit reached"


@dataclass(frozen=True, slots=True)
class Claim:
    """Upper bound on the ratio of two rows' times.

    Attributes:
        device: Device of the claim.
        row: Claimed row.
        against: Row for comparison.
        bound: Largest allowed ratio.
        batches: Batch sizes of the claim.
        hows: Execution modes of the claim.
    """

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
    Claim("cpu", "hydra", SINGLE, 1.35, (1,), (CALLS,)),
    Claim("cpu", "hydra, trunk of 10", SINGLE, 1.10, (1,), (CALLS,)),
    Claim("cuda", "hydra", SINGLE, 1.07, (4,), ("eager", "graph")),
    Claim("cuda", "hydra, trunk of 10", SINGLE, 1.00, (4,), ("eager", "graph")),
)
"""Claims for small batches. For 64 samples on a GPU, `claimed` adds that a hydra's time ratio is at most its
MAC ratio."""


def main() -> int:
    """Measure, and print a table for each dtype, mode and batch size.

    Returns:
        Exit code: 1 if a claim fails or was not measured.
    """
    options = parsed()
    torch.manual_seed(0)
    cuda = options.device == "cuda"
    print(
        f"{ARCH}, {MEMBERS} members with {KEPT} of {HEADS} heads per layer; torch {torch.__version__}, timm {TIMM}, "
        + (torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads"),
        flush=True,
    )
    limits = Limits(options.repeats, START + 60 * options.minutes)
    tables: list[dict[str, object]] = []
    failed = 0
    for dtype in options.dtype:
        torch._dynamo.reset()
        wide = build_rows(DTYPES[dtype], options.device) if {*options.how} != {CALLS} else {}
        wide_compiled = {name: compiled(row.model) for name, row in wide.items()}
        for how in options.how:
            rows = build_rows(DTYPES[dtype], options.device, narrow=True) if how == CALLS else wide
            side = NARROW["img_size"] if how == CALLS else 224
            runs = wide_compiled if "compiled" in how else {name: row.model for name, row in rows.items()}
            for batch in sorted(options.batch, key=lambda size: "compiled" in how and size == 1):
                images = torch.randn(batch, 3, side, side, dtype=DTYPES[dtype], device=options.device)
                found = measure(
                    {name: (runs[name], row.macs) for name, row in rows.items()}, images, how, limits
                )
                table, fails = report(found, rows, Setting(options.device, dtype, how, batch))
                tables.append(table)
                failed += fails
    whole = {"arch": ARCH, "torch": torch.__version__, "timm": TIMM, "device": options.device}
    print(json.dumps(whole | {"tables": tables}), flush=True)
    if cuda:
        print(for_an_issue(torch.cuda.get_device_name(), tables), flush=True)
    return 1 if failed else 0


def for_an_issue(name: str, tables: Sequence[dict[str, object]]) -> str:
    """Return the measurements on a GPU as a block of Markdown."""
    lines = [
        "", "Paste this into an issue:", "",
        f"### benchmarks/runtime.py on {name}", "",
        f"{ARCH}, torch {torch.__version__} (CUDA {torch.version.cuda}), timm {TIMM}", "",
        "| how | batch | dtype | row | ms | x single | x MACs | MiB |", "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for table in tables:
        setting = " | ".join(str(table[key]) for key in ("how", "batch", "dtype"))
        rows = cast("dict[str, dict[str, object] | str]", table["rows"])
        for row, cells in rows.items():
            known = [cells, "", "", ""] if isinstance(cells, str) else cells.values()
            lines.append(
                f"| {setting} | {row} | " + " | ".join("" if x is None else str(x) for x in known) + " |"
            )
    lines += ["", "| how | batch | dtype | claim | at most | found | |", "|---|---|---|---|---|---|---|"]
    for table in tables:
        setting = " | ".join(str(table[key]) for key in ("how", "batch", "dtype"))
        for claim in cast("list[dict[str, object]]", table["claims"]):
            found = " | ".join(str(claim[key]) for key in ("bound", "ratio", "verdict"))
            lines.append(f"| {setting} | {claim['row']} / {claim['against']} | {found} |")
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--repeats", type=int, default=15, help="smallest number of rounds per table (default: 15)"
    )
    parser.add_argument(
        "--batch", nargs="+", default=["1,4"], help="batch sizes, separated by spaces or commas"
    )
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=["fp32", "bf16"])
    parser.add_argument(
        "--how", nargs="+", choices=HOWS, help="ways to run (default: calls and eager; on a GPU all)"
    )
    parser.add_argument(
        "--minutes", type=float, help="time limit of the whole run (default: 5 on a GPU, else no limit)"
    )
    options = parser.parse_args()
    options.batch = [int(size) for part in options.batch for size in part.split(",")]
    options.how = options.how or (HOWS if options.device == "cuda" else HOWS[:2])
    if options.minutes is None:
        options.minutes = 5.0 if options.device == "cuda" else math.inf
    if options.device == "cpu" and any("graph" in how for how in options.how):
        parser.error("graphs need --device cuda")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here")
    return options


def compiled(model: Run, backend: str | Callable[..., Run] = "inductor") -> Run:
    """Return a model that is compiled at the first call.

    Dynamo caches up to eight compilations per code object and searches all of them in each call. Each row
    therefore gets a copy of the code object, otherwise rows of one class would slow each other down.
    """

    def call(x: torch.Tensor) -> object:
        return model(x)

    own = FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    run: Run = torch.compile(own, dynamic=True, backend=backend)
    return run


class Limits(NamedTuple):
    """Limits of a measurement.

    Attributes:
        repeats: Least number of rounds per table.
        end: End of the run on the monotonic clock.
    """

    repeats: int
    end: float


class Times(NamedTuple):
    """Measurements of a row.

    Attributes:
        seconds: Seconds of each round.
        peak: Memory of a run on a GPU in MiB, or None.
    """

    seconds: list[float]
    peak: float | None


def measure(
    rows: dict[str, tuple[Run, float]], images: torch.Tensor, how: str, limits: Limits
) -> dict[str, Times | str]:
    """Time all rows in interleaved rounds.

    Args:
        rows: For each row, the model and its MACs. MACs predict the preparation time of a row.
        images: Input batch.
        how: Execution mode.
        limits: Limits of the run. A started round is finished, and at least one round runs and counts.

    Returns:
        Times of each row without warm-up rounds, or the reason if the row was not measured.
    """
    whys: dict[str, str] = {}
    ready: dict[str, Run] = {}
    times: dict[str, Times] = {}
    pace = 0.0
    with torch.inference_mode():
        for name, (run, macs) in rows.items():
            begin = time.monotonic()
            if begin + pace * macs + LAST > limits.end:
                whys[name] = TIME_WAS_UP
                continue
            try:
                ready[name], peak = prepared(run, images, how)
                times[name] = Times([], peak)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other rows go on
                whys[name] = first_line(error)
            pace = max(pace, (time.monotonic() - begin) / macs)
        count = 0
        while ready and not (count and enough([times[name].seconds for name in ready], limits)):
            count += 1
            for name, run in list(ready.items()):
                try:
                    times[name].seconds.append(timed(run, images))
                except Exception as error:  # noqa: BLE001 - as above
                    whys[name] = first_line(error)
                    del ready[name]
    for one in times.values():
        del one.seconds[: min(UNCOUNTED, count - 1)]
    return {name: whys[name] if name in whys else times[name] for name in rows}


def enough(seconds: Sequence[Sequence[float]], limits: Limits) -> bool:
    """Return whether all rows of a table have enough rounds, or time is up."""
    if not seconds or time.monotonic() > limits.end:
        return True
    rounds = len(seconds[0]) - UNCOUNTED
    steady = rounds >= MOST or min(sum(each[UNCOUNTED:]) for each in seconds) >= ENOUGH
    return rounds >= limits.repeats and steady


def first_line(error: Exception) -> str:
    """Return the reason for a failed row."""
    return f"failed: {type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def prepared(run: Run, images: torch.Tensor, how: str) -> tuple[Run, float | None]:
    """Warm up a row, and capture its CUDA graph if requested.

    Returns:
        Function to time, and peak memory in MiB (None on the CPU).
    """
    for _ in range(WARM):
        run(images)
    if images.device.type == "cpu":
        return run, None
    if "graph" not in how:
        return run, peak_of(lambda: run(images))[1]
    # A graph must be captured after a run on a side stream, see "CUDA Graphs" in the documentation of
    # PyTorch.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(images)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()

    def capture() -> object:
        with torch.cuda.graph(graph):
            return run(images)

    kept, peak = peak_of(capture)

    def replay(_: torch.Tensor) -> object:
        graph.replay()
        return kept

    return replay, peak


def timed(run: Run, images: torch.Tensor) -> float:
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


def peak_of(run: Callable[[], object]) -> tuple[object, float]:
    """Call a function on the GPU.

    Returns:
        Result, and peak memory in MiB beyond the memory allocated before.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run()
    torch.cuda.synchronize()
    return out, (torch.cuda.max_memory_allocated() - before) / 2**20


class Setting(NamedTuple):
    """Settings of a table."""

    device: str
    dtype: str
    how: str
    batch: int


def report(
    found: dict[str, Times | str], rows: dict[str, Row], setting: Setting
) -> tuple[dict[str, object], int]:
    """Print medians, ratios and claims of a table.

    Returns:
        The table as data, and the number of claims that fail or were not measured.
    """
    seconds = {name: one.seconds for name, one in found.items() if isinstance(one, Times)}
    rounds = max(map(len, seconds.values()), default=0)
    print(f"\n{setting.how}, batch {setting.batch}, {setting.dtype}: medians of {rounds} rounds")
    print(f"  {'':24s} {'time':>9s} {'x single':>9s} {'MACs':>6s}  peak")
    table: dict[str, object] = {}
    for name, one in found.items():
        if isinstance(one, str):
            table[name] = one
            print(f"  {name:24s} {one}")
            continue
        line = {
            "ms": 1e3 * statistics.median(one.seconds), "times_single": ratio(seconds, name, SINGLE),
            "macs_times_single": rows[name].macs / rows[SINGLE].macs, "peak_mib": one.peak,
        }  # fmt: skip
        table[name] = {key: value if value is None else round(value, 4) for key, value in line.items()}
        print(
            f"  {name:24s} {line['ms']:6.2f} ms {format_ratio(line['times_single']):>9s} {line['macs_times_single']:6.2f}  "
            + ("" if one.peak is None else f"{one.peak:.0f} MiB")
        )
    failed = 0
    claims: list[dict[str, object]] = []
    for row, against, bound in claimed(rows, setting):
        value = ratio(seconds, row, against)
        verdict = "not measured" if value is None else "holds" if value <= bound else "FAILS"
        failed += verdict != "holds"
        claims.append({"row": row, "against": against, "bound": bound, "ratio": value, "verdict": verdict})
        print(f"  {verdict}: {row} / {against} = {format_ratio(value)}, claim at most {bound:.3f}")
    whole = {**setting._asdict(), "rounds": rounds, "rows": table, "claims": claims}
    print(json.dumps(whole), flush=True)
    return whole, failed


def format_ratio(value: float | None) -> str:
    """Format a ratio; `-` for None."""
    return "-" if value is None else f"{value:.3f}"


def claimed(rows: dict[str, Row], setting: Setting) -> Iterator[tuple[str, str, float]]:
    """Yield the claims for a setting: row, row for comparison, and bound."""
    for claim in CLAIMS:
        if (claim.device, True, True) == (
            setting.device,
            setting.batch in claim.batches,
            setting.how in claim.hows,
        ):
            yield claim.row, claim.against, claim.bound
    if setting.device == "cuda" and setting.batch == 64:
        for row in TRUNKS:
            yield row, SINGLE, rows[row].macs / rows[SINGLE].macs


def ratio(seconds: dict[str, list[float]], row: str, against: str) -> float | None:
    """Return the median of the ratios within each round, or None if a row was not measured."""
    if row not in seconds or against not in seconds:
        return None
    return round(statistics.median(a / b for a, b in zip(seconds[row], seconds[against], strict=True)), 4)


if __name__ == "__main__":
    sys.exit(main())
