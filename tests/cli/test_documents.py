"""Command lines and links of the documents, including the examples of `--help`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hydractl.cli.app import command_tree, main
from hydractl.cli.command import CONFIGURATIONS

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
RESEARCH = sorted((ROOT / "benchmarks").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *DOCS, *RESEARCH]
ENDS = re.compile(r"[|&;<>]+|do|done")


def command_lines(text: str) -> list[list[str]]:
    """Return the arguments of each `hydractl` command in shell blocks, split like in a shell."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.wordchars += "{}[],:@%+$"
            words.whitespace_split = True
            rest = [*words]
            while "hydractl" in rest:
                rest = rest[rest.index("hydractl") + 1 :]
                end = next((i for i, word in enumerate(rest) if ENDS.fullmatch(word)), len(rest))
                found.append(rest[:end])
    return found


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_is_one_that_the_command_takes(page, tmp_path, monkeypatch):
    """Parse options, values and combinations without running the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "birds.txt").write_text("crow\nrook\n")
    tree = command_tree()
    kept = CONFIGURATIONS.set([])
    try:
        for name, *arguments in command_lines(page.read_text(encoding="utf-8").replace("$i", "0")):
            command = tree.commands[name]
            with command.make_context(name, arguments) as context:
                if hasattr(command.callback, "is_configured"):
                    command.invoke(context)
    finally:
        CONFIGURATIONS.reset(kept)


def test_every_pipeline_file_is_one_that_run_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [
        block
        for page in PAGES
        for block in re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert files

    for text in files:
        Path("hydra.toml").write_text(text, encoding="utf-8")
        assert main(["run", "hydra.toml", "--dry-run"]) == 0, text


def test_there_are_command_lines():
    lines = [line for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))]

    assert len(lines) > 80
    assert ["predict", "hydra.st", "-"] in lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")

    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), target


def test_the_first_screen_of_the_readme_has_40_lines_and_its_pictures():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    screen, pictures = text.partition("\n## ")[0], re.findall(r'\bsrc(?:set)?="([^"]+)"', text)

    assert len(screen.splitlines()) <= 40
    assert len(pictures) == 2
    for picture in pictures:
        assert (ROOT / picture).read_text(encoding="utf-8").startswith("<svg ")


def test_the_index_lists_every_page():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\(((?:\.\./benchmarks/)?[\w.-]+)\)", index)

    pages = {page.name for page in DOCS} - {"README.md"} | {f"../benchmarks/{page.name}" for page in RESEARCH}
    assert set(listed) == pages


def test_the_index_for_language_models_lists_every_page():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    names = re.findall(r"\]\(https://github\.com/hydractl/hydractl/blob/main/([^)]+)\)", text)

    assert len(names) == text.count("](")
    assert sorted(names) == sorted(
        [
            "AGENTS.md",
            "CHANGELOG.md",
            *(str(page.relative_to(ROOT)) for page in [*DOCS, *RESEARCH] if page.name != "README.md"),
        ]
    )
