"""What a hydra costs to run, against its members in turn, a deep ensemble and the library's own single model.

Interleaved: each round runs every row once, so that a noisy machine is noisy for all; figures are medians, and those of ratios are of
the ratios within a round. A round is repeated until there are `--repeats`, and until every row has run for 0.2 s in all, or 500 times. On a GPU
time is between events on its stream, and a row's peak is the memory that one run of it takes beside all weights; of a
graph, that of the run that it keeps. `runtime_rows.py` makes the models.

A device with few samples waits for the processor that calls its kernels. `--how calls` measures that processor's time, wherever it is:
eager rows of models with the same layers and heads, but so narrow that there is next to nothing to compute, and hydras stacked.

Compiled rows take any batch size (`dynamic=True`): one compilation does for all sizes but 1, which torch compiles on its own and
which is therefore the last. Code for one size alone may be a little faster, for every row.

It needs torch, timm and hydractl's sources, where they are: nothing else is installed, and hydractl itself need not be.

    python benchmarks/runtime.py [--device cpu] [--dtype fp32 bf16] [--batch 1 4] [--repeats 15]
    python benchmarks/runtime.py --device cuda --dtype bf16 --batch 1,4,16,64,256 [--how calls eager graph compiled "compiled graph"] [--minutes 5]

What would end after `--minutes` is not begun, and a row that fails is left out: its table says why. Each table is followed by itself
as a line of JSON, which stays where the command is killed; a line of JSON with all tables ends it. On a GPU a block follows, to
paste into an issue.

At batch 4 on a GPU, the paper reports 1.07 of a hydra, and a trunk of 10 was claimed to cost nothing. On an H200 the first fails, and in
bf16 the second (`results/runtime-h200.md`). Counted, a hydra (a trunk of 10) takes these times what the single model takes:

    launches         148 / 133 = 1.11        138 / 133 = 1.04       of an eager pass; a graph has none
                     123 / 109 = 1.13        113 / 109 = 1.04       of a compiled pass
    bytes of weights 115 M / 87 M = 1.33     91 M / 87 M = 1.05     attention twice: 3 members with 8 of 12 heads
    work             46.17 / 17.56 = 2.63    20.58 / 17.56 = 1.17     multiply-accumulates, in G

An H200 in bf16: at batch 4, where it waits for the processor, eager 1.28 (1.13) and compiled 1.19 (1.12); graphs, at batch 1, where
memory counts, 1.18 (1.00); at 4 already 1.67 (1.04); at 64, where it is busy, 2.28 (1.03).
"""

from __future__ import annotations

import time

START = time.monotonic()  # to load torch is part of the time

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
"""The last two are those that may take minutes; they share what is compiled."""
WARM, UNCOUNTED, ENOUGH, MOST, LAST = 3, 2, 0.2, 500, 5.0
"""Runs before a row is ready; rounds that do not count; the seconds that each row runs at least, if not as many rounds as come next;
and the seconds that are left for the rounds of a table."""
TIME_WAS_UP = "not measured: time was up"


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
    Claim("cpu", "hydra", SINGLE, 1.35, (1,), (CALLS,)),
    Claim("cpu", "hydra, trunk of 10", SINGLE, 1.10, (1,), (CALLS,)),
    Claim("cuda", "hydra", SINGLE, 1.07, (4,), ("eager", "graph")),
    Claim("cuda", "hydra, trunk of 10", SINGLE, 1.00, (4,), ("eager", "graph")),
)
"""At 64 samples on a GPU a hydra is held against its arithmetic: its time over single's is no more than its operations over single's."""


def main() -> int:
    """Measure, print a table for each dtype, way and batch size, and return 1 if a claim does not hold or was not measured."""
    options = parsed()
    torch.manual_seed(0)
    cuda = options.device == "cuda"
    print(
        f"{ARCH}, {MEMBERS} members with {KEPT} of {HEADS} heads a layer; torch {torch.__version__}, timm {TIMM}, "
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
    """Return what was measured on a GPU as a block of Markdown."""
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
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=15, help="the least rounds of a table; 15 unless said")
    parser.add_argument("--batch", nargs="+", default=["1,4"], help="sizes, with spaces or commas between")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=["fp32", "bf16"])
    parser.add_argument("--how", nargs="+", choices=HOWS, help="default: calls and eager, and on a GPU all")
    parser.add_argument("--minutes", type=float, help="of the whole; default: 5 on a GPU, else without end")
    options = parser.parse_args()
    options.batch = [int(size) for part in options.batch for size in part.split(",")]
    options.how = options.how or (HOWS if options.device == "cuda" else HOWS[:2])
    if options.minutes is None:
        options.minutes = 5.0 if options.device == "cuda" else math.inf
    if options.device == "cpu" and any("graph" in how for how in options.how):
        parser.error("graphs are for --device cuda")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here")
    return options


def compiled(model: Run, backend: str | Callable[..., Run] = "inductor") -> Run:
    """Return a model that is compiled when it is first called.

    Beside a function's code dynamo keeps all that it made of it, eight at most, and a call looks through them: each row has code
    of its own, or those of one class would pay for one another.
    """

    def call(x: torch.Tensor) -> object:
        return model(x)

    own = FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    run: Run = torch.compile(own, dynamic=True, backend=backend)
    return run


class Limits(NamedTuple):
    """How much is measured: the least rounds of a table, and when all ends, by the monotonic clock."""

    repeats: int
    end: float


class Times(NamedTuple):
    """Seconds of each round, and the memory of one run on a GPU, in MiB."""

    seconds: list[float]
    peak: float | None


def measure(
    rows: dict[str, tuple[Run, float]], images: torch.Tensor, how: str, limits: Limits
) -> dict[str, Times | str]:
    """Return what each row took, after rounds that do not count; or why there is nothing.

    Args:
        rows: What is run, and its multiply-accumulates, by which it is foretold how long a row needs until it is ready.
        images: What it is given.
        how: The way.
        limits: A round that is begun is finished; there is one at least, which then counts.
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
    """Return whether nothing more need be measured of a table, of all rounds of each row."""
    if not seconds or time.monotonic() > limits.end:
        return True
    rounds = len(seconds[0]) - UNCOUNTED
    steady = rounds >= MOST or min(sum(each[UNCOUNTED:]) for each in seconds) >= ENOUGH
    return rounds >= limits.repeats and steady


def first_line(error: Exception) -> str:
    """Return what a table says of a row that failed."""
    return f"failed: {type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def prepared(run: Run, images: torch.Tensor, how: str) -> tuple[Run, float | None]:
    """Return what is timed, warm, and its peak."""
    for _ in range(WARM):
        run(images)
    if images.device.type == "cpu":
        return run, None
    if "graph" not in how:
        return run, peak_of(lambda: run(images))[1]
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
    """Return what a run returns, and the MiB that it takes beside what is held before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run()
    torch.cuda.synchronize()
    return out, (torch.cuda.max_memory_allocated() - before) / 2**20


class Setting(NamedTuple):
    """What a table was measured with."""

    device: str
    dtype: str
    how: str
    batch: int


def report(
    found: dict[str, Times | str], rows: dict[str, Row], setting: Setting
) -> tuple[dict[str, object], int]:
    """Print medians, ratios and claims; return the table as data, and how many claims do not hold or were not measured."""
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
            f"  {name:24s} {line['ms']:6.2f} ms {told(line['times_single']):>9s} {line['macs_times_single']:6.2f}  "
            + ("" if one.peak is None else f"{one.peak:.0f} MiB")
        )
    failed = 0
    claims: list[dict[str, object]] = []
    for row, against, bound in claimed(rows, setting):
        value = ratio(seconds, row, against)
        verdict = "not measured" if value is None else "holds" if value <= bound else "FAILS"
        failed += verdict != "holds"
        claims.append({"row": row, "against": against, "bound": bound, "ratio": value, "verdict": verdict})
        print(f"  {verdict}: {row} / {against} = {told(value)}, claimed at most {bound:.3f}")
    whole = {**setting._asdict(), "rounds": rounds, "rows": table, "claims": claims}
    print(json.dumps(whole), flush=True)
    return whole, failed


def told(value: float | None) -> str:
    """Return a ratio as a table has it."""
    return "-" if value is None else f"{value:.3f}"


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
        for row in TRUNKS:
            yield row, SINGLE, rows[row].macs / rows[SINGLE].macs


def ratio(seconds: dict[str, list[float]], row: str, against: str) -> float | None:
    """Return the median of the ratios within each round, None where one of both was not measured."""
    if row not in seconds or against not in seconds:
        return None
    return round(statistics.median(a / b for a, b in zip(seconds[row], seconds[against], strict=True)), 4)


if __name__ == "__main__":
    sys.exit(main())
