from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from hydractl.cli.app import COMMANDS, COMPLETE
from support.analysed import RESEARCH
from support.terminal import in_terminal

HEAVY = (
    "torch",
    "timm",
    "transformers",
    "numpy",
    "pydantic",
    "safetensors",
    "huggingface_hub",
    "sklearn",
    "PIL",
    "scipy",
    "matplotlib",
)
PROBE = """
import sys
from hydractl.cli.app import main
for argv in {lines!r}:
    assert main(argv) == {code}, f"exit code of {{argv}}"
    if loaded := sorted(set({heavy!r}) & set(sys.modules)):
        sys.exit(f"{{argv}} loaded {{loaded}}")
"""


def probe(environment, *lines: list[str], code: int = 0, heavy: tuple[str, ...] = HEAVY) -> str:
    """Run command lines in a single process. Return the error of the first import of a heavy module."""
    script = PROBE.format(lines=lines, code=code, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""


def test_help_loads_no_model_library(environment):
    lines = ([], ["help"], *([name, "--help"] for name in COMMANDS))

    assert probe(environment, ["--version"], *lines[1:], heavy=(*HEAVY, "rich")) == ""
    assert probe(environment, lines[0], code=2, heavy=(*HEAVY, "rich")) == ""


def test_tab_loads_no_model_library(environment):
    lines = ([""], ["fuse", "a.st", "--mlp="], *([name, word] for name in COMMANDS for word in ("-", "")))

    assert probe(environment | {COMPLETE: "zsh"}, *lines) == ""


def test_a_usage_error_loads_no_model_library(environment):
    heavy = tuple(name for name in HEAVY if name != "pydantic")  # typer converts arguments with it

    assert "loaded" not in probe(environment, ["prune", "base.st"], code=2, heavy=heavy)


def test_what_is_not_there_is_refused_without_model_libraries(environment, work):
    heavy = tuple(name for name in HEAVY if name != "pydantic")
    lines = (
        ["eval", "base.st", "--data", "nowhere/", "-o", "r.json"],
        ["fuse", "m-0.st", "nowhere.st", "-o", "h.st"],
        ["score", "base.st", "--data", "digits", "--ood", "nowhere.csv", "-o", "s.json"],
    )

    assert probe(environment, *lines, code=3, heavy=heavy) == ""


def test_what_is_up_to_date_loads_no_model_library(environment, work):
    argv = ["fuse", "m-0.st", "m-1.st", "m-2.st", "-o", "hydra.st", "--if-changed"]
    heavy = tuple(name for name in HEAVY if name != "pydantic")

    assert probe(environment, argv, heavy=heavy) == ""


def test_inspect_loads_no_model_library(environment, work):
    heavy = tuple(name for name in HEAVY if name != "pydantic")
    files = ("base.st", "m-0.st", "hydra.st", "scores.json", "m-0.mask.json")

    assert probe(environment, *(["inspect", file] for file in files), heavy=heavy) == ""


STAGE = """
import sys
from hydractl.__main__ import main
from hydractl.runtime import LateCompiler
try:
    main()
except SystemExit as done:
    assert not done.code, f"exit code {{done.code}}"
heavy = {heavy!r} & {{name for name, module in sys.modules.items() if not isinstance(module, LateCompiler)}}
if further := sorted(heavy - {allowed!r}):
    sys.exit(f"loaded {{further}}")
"""
RARELY_NEEDED = {
    "torch._dynamo", "torch._inductor", "sympy", "scipy.stats", "sklearn", "matplotlib", "datasets", "pandas",
    "transformers", "tensorboard",
}  # fmt: skip
LOADS: dict[str, set[str]] = {
    "inspect base.st": set(),
    "prune base.st --strategy random --remove 2 --members 2 -o n-{i}.st": {"sympy"},
    "fuse m-0.st m-1.st m-2.st -o other.st": set(),
    "predict hydra.st digits::split=test,classes=0-6,limit=8 -o p.jsonl": set(),
    "eval hydra.st --data digits::split=test,classes=0-6,limit=8 -o r.json": {"sympy"},
}
"""Modules of `RARELY_NEEDED` that a stage on a model of timm may load. Counting operations on the meta device
loads sympy."""


@pytest.mark.parametrize("line", LOADS, ids=lambda line: line.partition(" ")[0])
def test_a_stage_loads_few_libraries(environment, work, line):
    script = STAGE.format(heavy=RARELY_NEEDED, allowed=LOADS[line])
    done = subprocess.run(
        [sys.executable, "-c", script, *line.split()],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


LATE = """
import sys
from hydractl.runtime import LateCompiler
LateCompiler.install()
import torch
plain = torch.compiler.disable(lambda x: x.sin())
model = torch.compiler.disable(torch.nn.Linear(2, 2)) if {wraps_modules} else None
import timm
assert isinstance(sys.modules["torch._dynamo"], LateCompiler) is not {wraps_modules}
{use}
import torch._dynamo, torch._dynamo.utils, torch._dynamo.config
for name, module in sys.modules.items():
    assert not isinstance(module, LateCompiler), name
    assert not name.startswith("torch._dynamo") or module.__spec__.loader is module.__loader__, name
graphs = []
compiled = torch.compile(lambda x: plain(x * 2) + 1, backend=lambda graph, _: graphs.append(graph) or graph)
x = torch.ones(3)
assert torch.equal(compiled(x), (x * 2).sin() + 1)
assert len(graphs) == 2 and not any("sin" in graph.code for graph in graphs)
assert torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).graph_module.code.count("linear")
"""
USES = {
    "a module": "import torch._dynamo.config as c; assert c is torch._dynamo.config is sys.modules[c.__name__]",
    "a function": "from torch._dynamo.utils import counters; assert torch._dynamo.utils.counters is counters",
    "an attribute": "torch._dynamo.reset()",
    "a model": "assert model(torch.ones(2)).shape == (2,)",
    "a check": "from torchvision.ops.roi_align import is_compile_supported as f; assert f('cpu') in (True, False)",
}


@pytest.mark.parametrize("use", USES)
def test_the_compiler_works_after_it_was_delayed(environment, use):
    script = LATE.format(use=USES[use], wraps_modules=use == "a model")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_an_import_of_the_package_delays_nothing(environment):
    code = (
        "import sys, hydractl; hydractl.fuse; import timm; from hydractl.runtime import LateCompiler as late; "
        "sys.exit(late in sys.meta_path or any(isinstance(module, late) for module in sys.modules.values()))"
    )

    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_generating_completions_loads_no_model_library(environment):
    script = f"import sys, hydractl.cli.completion as c; c.files(); sys.exit(sorted((set({HEAVY!r}) - {{'pydantic'}}) & set(sys.modules)) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def least_work(run: Callable[[], object]) -> float:
    """Return the least processor time of several runs in seconds. Other processes have no effect on it."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def in_pipe(environment, *arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)


LONGEST = (["--help"], ["finetune", "--help"], ["help", "score"])
SHORTER = [
    pytest.param([name, "--help"], marks=pytest.mark.more)
    for name in ("eval", *(["bench"] if RESEARCH else []))
]
"""Commands whose help is read like that of `finetune`, which has more options."""


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("argv", [["--version"], *LONGEST, *SHORTER], ids=" ".join)
def test_help_is_there_at_once(environment, argv):
    bare = least_work(partial(in_pipe, environment, "-c", "import typer"))

    assert least_work(partial(in_pipe, environment, "-m", "hydractl", *argv)) < max(0.15, 3.5 * bare)
    assert least_work(partial(in_terminal, environment, *argv)) < max(0.2, 4 * bare)


def test_tab_is_answered_at_once(environment):
    bare = least_work(partial(in_pipe, environment, "-c", "import typer"))

    for argv in ([""], ["fuse", "--mlp="], ["eval", "-"]):
        asked = environment | {COMPLETE: "zsh"}
        assert least_work(partial(in_pipe, asked, "-m", "hydractl", *argv)) < max(0.15, 3.5 * bare), argv


def test_what_a_command_needs_alone_is_loaded_at_tab(environment):
    lines = [""], ["fu"], ["fuse", "--mlp="], ["fuse", "a.st", ""]
    others = tuple(f"hydractl.stages.{stage}.config" for stage in ("prune", "finetune", "evaluate", "score"))

    assert probe(environment | {COMPLETE: "zsh"}, *lines, heavy=others) == ""


def test_a_system_without_locks_of_files_is_refused_in_words(monkeypatch, capsys):
    from hydractl.__main__ import _run

    monkeypatch.setitem(sys.modules, "fcntl", None)  # Simulates Windows.
    assert _run() == 3
    assert capsys.readouterr().err == (
        "error: hydractl runs only on Linux, macOS and similar systems\n\nhint: on Windows use WSL\n"
    )
