from __future__ import annotations

import io
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from hydractl.cli import output
from hydractl.cli.output import Terminal, as_json, line, size
from hydractl.cli.tables import facts
from hydractl.errors import OutputError, UsageError
from hydractl.messages import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    path: Path = Path("a[red].st")
    number: float = 1.5

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,)


class Word(StrEnum):
    one = "one"


def show(terminal: Terminal, report: Report = Report()) -> None:
    terminal.progress().step("working on [b]")
    terminal.progress().warn("odd [/x]")
    terminal.result(report, lambda report, out: line(out, f"made {report.path}"))


@pytest.mark.parametrize(
    ("settings", "out", "err"),
    [
        ({}, "made a[red].st\nWrote a[red].st\n", "working on [b]\nwarning: odd [/x]\n"),
        ({"quiet": True}, "a[red].st\n", "warning: odd [/x]\n"),
        (
            {"as_json": True},
            '{\n  "number": 1.5,\n  "path": "a[red].st",\n  "warnings": [\n    "odd [/x]"\n  ]\n}\n',
            "warning: odd [/x]\n",
        ),
        ({"out": Path("-")}, "", "working on [b]\nwarning: odd [/x]\nmade a[red].st\nWrote a[red].st\n"),
    ],
    ids=["human", "quiet", "json", "streamed"],
)
def test_modes(capsys, settings, out, err):
    show(Terminal(**settings))

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (out, err)


@pytest.mark.parametrize("settings", [{}, {"quiet": True}, {"as_json": True}, {"out": Path("-")}])
def test_other_ranks_are_silent(capsys, monkeypatch, settings):
    monkeypatch.setenv("RANK", "1")

    show(Terminal(**settings))

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_quiet_leaves_standard_output_to_the_output(capsys):
    Terminal(quiet=True, out=Path("-")).result(Report(path=Path("-")), lambda _, _out: None)

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("settings", [{"as_json": True, "quiet": True}, {"as_json": True, "out": Path("-")}])
def test_two_results_cannot_share_standard_output(settings):
    with pytest.raises(UsageError):
        Terminal(**settings)


def test_what_steers_a_terminal_is_shown_and_not_obeyed(capsys):
    out = output.console()
    line(out, "\x1b[31mred\x9b")
    out.print(output.table(["\x1b]0;a"], [["\x1b[2Jb\x08"]], title="\x07c"))

    out.print(facts([("\x1b]1;d", "\x1be")]))

    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x9b\x08\x07")
    assert all(
        text in shown
        for text in (r"\x1b[31mred\x9b", r"\x1b]0;a", r"\x1b[2Jb\x08", r"\x07c", r"\x1b]1;d", r"\x1be")
    )


def test_a_document_on_a_terminal_steers_nothing(capsys):
    Terminal(as_json=True).document({"\x9b": "\u202e\x1b\U000e0041é"})

    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "é" in shown
    assert json.loads(shown) == {"\x9b": "\u202e\x1b\U000e0041é"}


def test_json_is_plain():
    value = {"p": Path("x"), "e": Word.one, "t": (1, None), "r": Report(number=float("inf"))}

    assert json.loads(json.dumps(as_json(value))) == {
        "p": "x",
        "e": "one",
        "t": [1, None],
        "r": {"path": "a[red].st", "number": None},
    }


def test_tracking_without_a_terminal_hands_the_items_on():
    items = [1, 2]

    assert Terminal().progress().track(items, label="x", total=2) is items


@pytest.mark.parametrize(
    ("value", "text", "bytes_text"),
    [
        (0, "0", "0 B"),
        (812, "812", "812 B"),
        (1000, "1.00 k", "1.00 kB"),
        (46_170_000_000, "46.17 G", "46.17 GB"),
    ],
)
def test_counts(value, text, bytes_text):
    assert count(value) == text
    assert size(value) == bytes_text


def test_a_full_disk_behind_standard_output_is_an_error_of_ours(monkeypatch):
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.sys, "stdout", Full())
    with pytest.raises(OutputError, match="standard output: cannot be written: No space left"):
        Terminal(as_json=True).document({})
