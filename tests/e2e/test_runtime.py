"""`benchmarks/runtime.py`: required packages, reasons for missing numbers, rows after a failed row."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from timm.layers import Attention as TimmAttention

FOLDER = Path(__file__).parents[2] / "benchmarks"
ALONE = """
import runpy, sys
from pathlib import Path
sys.modules.update(dict.fromkeys({absent!r}))
sys.path[:] = [path for path in sys.path if not (Path(path) / "hydractl").is_dir()]
sys.argv = [{script!r}, "--help"]
runpy.run_path({script!r}, run_name="__main__")
"""
ABSENT = ("pydantic", "typer", "rich", "transformers", "datasets", "accelerate", "sklearn", "scipy")


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr("hydractl.auto.register.WATCHED_MODULES", {})  # cleared by the benchmark
    for name in ("runtime", "runtime_rows"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import runtime_rows

    yield runtime_rows
    for name in ("runtime", "runtime_rows"):
        sys.modules.pop(name, None)


@pytest.fixture
def runtime(rows):
    import runtime

    return runtime


def test_nothing_but_torch_and_timm_is_needed(tmp_path):
    """hydractl need not be installed. Unlike `python`, `runpy` does not add the script's folder to the path."""
    script = str(FOLDER / "runtime.py")
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r})" + ALONE.format(absent=ABSENT, script=script)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--minutes" in done.stdout


@torch.inference_mode()
def test_older_attention_with_some_heads_is_that_of_the_library(rows):
    torch.manual_seed(0)
    newer = TimmAttention(24, num_heads=4, qkv_bias=True).eval().double()
    older = copy.deepcopy(newer)
    del older.attn_dim
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    expected = rows.sliced(newer, (0, 2, 3))(x)
    assert expected.shape == x.shape
    assert torch.allclose(rows.sliced(older, (0, 2, 3))(x, attn_mask=None), expected, atol=1e-12, rtol=0)


def times(runtime, models, *, repeats=3, end=math.inf):
    rows = {name: (model, 1.0) for name, model in models.items()}
    with torch.inference_mode():
        return runtime.measure(rows, torch.zeros(1), "eager", runtime.Limits(repeats, end))


def test_a_row_that_fails_leaves_the_others(runtime, monkeypatch, capsys):
    monkeypatch.setattr(runtime, "ENOUGH", 0.0)
    calls = []

    def breaks(x):
        raise RuntimeError("out of memory\nof 80 GiB")

    def breaks_later(x):
        calls.append(x)
        if len(calls) > runtime.WARM + runtime.UNCOUNTED + 1:
            raise ValueError

    models = {runtime.SINGLE: torch.neg, "hydra": breaks, runtime.IN_TURN: breaks_later, runtime.ENSEMBLE: torch.neg}  # fmt: skip
    found = times(runtime, models)
    assert found["hydra"] == "failed: RuntimeError: out of memory"
    assert found[runtime.IN_TURN] == "failed: ValueError: "
    assert len(found[runtime.SINGLE].seconds) == len(found[runtime.ENSEMBLE].seconds) == 3

    made = {name: runtime.Row(model, 1.0) for name, model in models.items()}
    table, failed = runtime.report(found, made, runtime.Setting("cpu", "fp32", "eager", 4))
    *printed, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == table
    assert table["rows"]["hydra"] == "failed: RuntimeError: out of memory"
    assert sum("not measured: hydra" in line for line in printed) == failed == 4


def test_a_gpus_tables_end_as_a_block_for_an_issue(runtime):
    """Missing numbers have a reason, and all lines have the cells of the heading."""
    found = {runtime.SINGLE: runtime.Times([0.002], 12.0), "hydra": "failed: E: "}
    made = {name: runtime.Row(torch.neg, 1.0) for name in found}
    table, _ = runtime.report(found, made, runtime.Setting("cuda", "bf16", "eager", 4))
    lines = runtime.for_an_issue("A GPU", [table]).splitlines()

    assert "| eager | 4 | bf16 | single | 2.0 | 1.0 | 1.0 | 12.0 |" in lines
    assert "| eager | 4 | bf16 | hydra | failed: E:  |  |  |  |" in lines
    assert "| eager | 4 | bf16 | hydra / single | 1.07 | None | not measured |" in lines
    rows, claims = [i for i, line in enumerate(lines) if line.startswith("| how")]
    assert {line.count("|") for line in lines[rows : claims - 1]} == {9}
    assert {line.count("|") for line in lines[claims:]} == {8}


def test_a_table_whose_single_failed_has_no_ratios(runtime, capsys):
    found = {runtime.SINGLE: "failed: E: ", "hydra": runtime.Times([0.1], None)}
    made = {name: runtime.Row(torch.neg, 1.0) for name in found}
    table, _ = runtime.report(found, made, runtime.Setting("cpu", "fp32", "eager", 1))
    assert table["rows"]["hydra"]["times_single"] is None


def sleeps(seconds):
    return lambda _: time.sleep(seconds)


def test_what_takes_little_is_measured_more_often(runtime, monkeypatch):
    monkeypatch.setattr(runtime, "ENOUGH", 0.05)
    found = times(runtime, {runtime.SINGLE: sleeps(0.002), "hydra": sleeps(0.001)})
    seconds = [one.seconds for one in found.values()]
    assert len(set(map(len, seconds))) == 1
    assert min(sum(each[:-1]) for each in seconds) < runtime.ENOUGH <= min(map(sum, seconds))


def test_what_takes_no_time_at_all_is_measured_so_often(runtime, monkeypatch):
    monkeypatch.setattr(runtime, "timed", lambda *_: 1e-9)
    assert len(times(runtime, {runtime.SINGLE: torch.neg})[runtime.SINGLE].seconds) == runtime.MOST


def test_nothing_is_begun_that_would_end_after_the_time(runtime, monkeypatch):
    seconds = [0.0]

    def slow(_):
        seconds[0] += 0.1

    monkeypatch.setattr(runtime, "LAST", 0.0)
    monkeypatch.setattr(
        runtime, "time", SimpleNamespace(monotonic=lambda: seconds[0], perf_counter=lambda: seconds[0])
    )
    found = times(runtime, {runtime.SINGLE: slow, "hydra": slow}, end=0.5)  # the first time needs three runs
    assert found["hydra"] == runtime.TIME_WAS_UP
    assert len(found[runtime.SINGLE].seconds) == 1


def test_compiled_rows_share_no_code(runtime):
    """With shared code, each call checks the guards of all rows, and torch stops compiling after eight."""
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    torch._dynamo.reset()
    layers = [torch.nn.Linear(2, width) for width in range(1, 11)]
    runs = [runtime.compiled(layer, backend=backend) for layer in layers]
    for batch in (3, 4, 5):
        for run in runs:
            run(torch.zeros(batch, 2))
    assert len(seen) == len(layers)
