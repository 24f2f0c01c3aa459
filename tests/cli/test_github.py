"""Behaviour in GitHub Actions: annotations, no bars, job summary; example workflows, and files that GitHub reads."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from hydractl.cli.app import command_tree
from hydractl.cli.output import TerminalProgress, annotate, console, line, say, table
from hydractl.cli.tables import facts
from hydractl.version import __version__

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
FILES = {
    ".github/workflows/tests.yml": "github-workflows",
    ".github/workflows/release.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/feature.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "CITATION.cff": "citation-file-format",
}
"""Schema of each file that GitHub reads."""
EVAL = (
    "eval hydra.st --data digits::classes=0-6,limit=7 --no-latency --bootstrap 0 --name a|<b> --metrics nll"
)


@pytest.fixture
def github(monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


def test_warnings_and_errors_are_annotations(github, work, call):
    seen = call("fuse", "m-0.st", "m-0.st", "-o", "twins.st")
    failed = call("fuse", "none.st", "-o", "x.st")

    assert seen.code == 0
    assert seen.err.count("::warning title=hydractl::") >= 1
    assert "warning: " not in seen.err
    assert failed.err.startswith("::error title=hydractl::none.st: no such file")
    assert "\nhint: " in failed.err


def test_what_ends_a_line_is_escaped(capsys):
    annotate("warning", "50% of\r\nit")

    assert capsys.readouterr().err == "::warning title=hydractl::50%25 of%0D%0Ait\n"


def test_no_text_is_a_command_to_the_runner(github, capsys):
    hostile = "::add-mask::a"
    TerminalProgress(steps=True, warnings=True).step(f"{hostile}\n  {hostile} ##[error]b")
    say(f"x\n  {hostile}")
    out = console()
    line(out, f"{hostile}\nx ::y")
    out.print(table(["model"], [[hostile], ["x" * 198 + hostile]], title=hostile))
    out.print(facts([(hostile, "x")]))

    seen = capsys.readouterr()
    assert seen.err == "\\::add-mask::a\\n  ::add-mask::a \\##[error]b\nx\n  \\::add-mask::a\n"
    assert seen.out.startswith("\\::add-mask::a\\nx ::y\n")
    assert seen.out.count("\\::add-mask::a") >= 4
    assert not [text for text in seen.out.splitlines() if text.strip().startswith("::")]


def test_no_bar_is_drawn(github, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    items = [1, 2]

    assert TerminalProgress(steps=True, warnings=True).track(items, label="x", total=2) is items


def test_the_headline_table_is_added_to_the_summary(github, work, call):
    github.write_text("before\n")

    assert call(*EVAL.split(), "--fail-if", "nll>0").code == 5

    lines = github.read_text().splitlines()
    assert lines[:3] == ["before", "| model | NLL ↓ |", "|---|---:|"]
    assert re.fullmatch(r"\| a\\\|&lt;b&gt; \| [\d.]+ \|", lines[3])
    assert lines[5].startswith("- ❌ failed: `nll>0`, measured ")


def test_elsewhere_nothing_is_added(work, call, monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))

    assert call(*EVAL.split()).code == 0
    assert not (tmp_path / "summary.md").exists()


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in text.splitlines() if line.strip().startswith("hydractl ")]


def workflow() -> str:
    document = yaml.safe_load((EXAMPLES / "hydra.yml").read_text())
    steps = document["jobs"]["hydra"]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    return "\n".join(step.get("run", "") for step in steps)


def makefile() -> str:
    text = (EXAMPLES / "Makefile").read_text()
    assert all(line.startswith("\t") for line in text.splitlines() if "$(HYDRACTL)" in line)
    for name, value in (
        ("$(HYDRACTL)", "hydractl"),
        ("$(REPOSITORY)", "my-team/my-hydra"),
        ("$@", "x.st"),
        ("$<", "y.st"),
    ):
        text = text.replace(name, value)
    return text


def lint(path: Path, schema: str = "github-workflows") -> subprocess.CompletedProcess[str]:
    """Check a file against a schema bundled with check-jsonschema, without network access."""
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", path],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_the_workflow_is_one_that_github_takes(tmp_path):
    seen = lint(EXAMPLES / "hydra.yml")
    misspelt = tmp_path / "hydra.yml"
    misspelt.write_text((EXAMPLES / "hydra.yml").read_text().replace("runs-on:", "run-on:"))

    assert seen.returncode == 0, seen.stdout
    assert "'runs-on' is a required property" in lint(misspelt).stdout


@pytest.mark.parametrize("name", FILES)
def test_files_for_github_match_their_schemas(name):
    checked = lint(ROOT / name, FILES[name])

    assert checked.returncode == 0, checked.stdout


def test_every_file_for_github_has_a_schema():
    found = {str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.*") if path.is_file()}

    assert found == FILES.keys() - {"CITATION.cff"}


def test_actions_are_pinned_and_the_matrix_is_what_the_package_promises():
    tests, release = (yaml.safe_load((ROOT / name).read_text()) for name in [*FILES][:2])
    uses = [
        step["uses"]
        for document in (tests, release)
        for job in document["jobs"].values()
        for step in job.get("steps", ())
        if "uses" in step
    ]
    matrix = tests["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    versions = [name.removeprefix(prefix) for name in project["classifiers"] if name.startswith(prefix)]

    assert [use for use in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", use)] == []
    assert matrix == {
        "os": ["ubuntu-latest", "macos-latest"],
        "python": [f"3.{version}" for version in versions],
    }
    assert project["requires-python"] == f">=3.{versions[0]}"


def test_only_the_upload_identifies_itself_to_pypi():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    permissions = {name: job["permissions"] for name, job in jobs.items()}

    assert [name for name, granted in permissions.items() if "id-token" in granted] == ["publish"]
    assert permissions["publish"] == {"id-token": "write"}
    assert jobs["publish"]["steps"][-1]["with"] == {"attestations": True}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_the_citation_has_the_version_and_licences_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert citation["version"] == __version__
    assert " AND ".join(citation["license"]) == project["license"]
    assert "date-released" not in citation or f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("text", [workflow(), makefile()], ids=["workflow", "Makefile"])
def test_every_command_of_the_examples_is_understood(text):
    tree = command_tree()
    found = commands(text)

    assert {"import", "eval", "push"} <= {argv[0] for argv in found}
    for name, *rest in found:
        if name == "push" and name not in tree.commands:
            continue
        tree.commands[name].make_context(name, rest).close()
