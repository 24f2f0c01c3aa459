"""Run several scorings or commands in each process of a launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hydractl

ROOT = Path(hydractl.__file__).parents[1]


def environment(**settings: str) -> dict[str, str]:
    """Return the environment of the processes: a single passive thread, without the user's settings."""
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR"}}
    return {
        **kept,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        **settings,
    }


def launcher(world: int, python: object = sys.executable) -> list[str]:
    """Return the command for starting `world` processes. A single process needs no launcher."""
    if world == 1:
        return [str(python)]
    return [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]


def score_all(
    world: int, jobs: Path, out: Path, *, threads: int = 1, python: object = sys.executable
) -> None:
    """Run the scorings and commands of a JSON file in `world` processes.

    Args:
        world: Number of processes.
        jobs: JSON file of settings by name (see `main`).
        out: Folder of the output files, named like the jobs.
        threads: Threads per process.
        python: Interpreter.
    """
    command = [*launcher(world, python), "-m", "support.ranks", str(jobs), str(out)]
    done = subprocess.run(
        command,
        env=environment(OMP_NUM_THREADS=str(threads), PYTHON_EXEC=str(python)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def main(jobs: str, out: str) -> None:
    """Run each scoring or command. Refused settings write `NAME.refused` with the message."""
    from hydractl.cli.app import main as run_command
    from hydractl.errors import UsageError
    from hydractl.heads.budget import HeadBudget
    from hydractl.stages.score.config import ScoreConfig
    from hydractl.stages.score.run import run_score

    for name, settings in json.loads(Path(jobs).read_text()).items():
        if "argv" in settings:
            words = [word.replace("{out}", f"{out}/{name}") for word in settings["argv"]]
            assert run_command([*words, "-q"]) == 0, name
            continue
        budget = HeadBudget(**settings.pop("budget"))
        try:
            run_score(ScoreConfig(**settings, budget=budget, out=Path(out) / f"{name}.json"))
        except UsageError as error:
            (Path(out) / f"{name}.refused").write_text(error.message)


if __name__ == "__main__":
    import torch

    # A forked process has read the variable in its parent.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main(*sys.argv[1:])
