from __future__ import annotations

import contextlib
import errno
import json
import re
from pathlib import Path

import pytest
import typer
from typer.core import TyperOption

from hydractl import errors
from hydractl.cli import app as module
from hydractl.cli import output
from hydractl.cli.app import COMMANDS, command_tree, main
from hydractl.cli.helptext import paragraphs
from hydractl.cli.output import REPORT_A_BUG
from hydractl.cli.summaries import SUMMARIES
from hydractl.errors import UsageError
from hydractl.version import __version__

ERRORS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HydraError)
]


@pytest.fixture
def raising(monkeypatch):
    """Make `hydractl schema` raise a given error."""

    def install(error: BaseException) -> None:
        def command(json: bool = False) -> None:
            raise error

        fake = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        fake.callback()(lambda: None)
        fake.command("schema")(command)
        monkeypatch.setattr(module, "app", fake)

    return install


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hint", [None, "type this"])
def test_an_error_is_one_message_its_hint_and_the_code_of_its_class(call, raising, kind, hint):
    raising(kind("a.st: is [red] wrong [/x]", hint=hint))

    seen = call("schema")

    assert seen.code == kind.exit_code
    assert seen.out == ""
    assert seen.err == "error: a.st: is [red] wrong [/x]\n" + (f"\nhint: {hint}\n" if hint else "")


REMOVED = {
    "score --estimate": "the progress bar of a run shows the remaining time",
    "finetune --estimate": "the progress bar of a run shows the remaining time",
    "fuse --provenance=x.json": "`hydractl inspect MODEL --lineage --json` prints how a model was made",
    "inspect --plot": "`hydractl inspect FILE` prints which heads a model or a mask keeps",
    "score --doubt": "`--search exact` evaluates every head",
}


@pytest.mark.parametrize("line", REMOVED)
def test_a_removed_option_is_refused_with_its_replacement(call, line):
    name, option = line.split()

    seen = call(name, "x.st", option)

    assert (seen.code, seen.out) == (2, "")
    option = option.partition("=")[0]
    assert seen.err == f"error: `{option}` was removed from `hydractl {name}`\n\nhint: {REMOVED[line]}\n"


def test_a_removed_command_is_refused_with_its_replacement(call):
    seen = call("lineage", "x.st")

    assert (seen.code, seen.out) == (2, "")
    hint = "type `hydractl inspect MODEL --lineage`, or `hydractl inspect MODEL --verify FILE...`"
    assert seen.err == f"error: `lineage` was removed from `hydractl`\n\nhint: {hint}\n"


def test_exit_codes_are_those_of_the_contract():
    found = {kind.__name__: kind.exit_code for kind in ERRORS}

    assert found == {
        "HydraError": 1, "UsageError": 2, "InputError": 3, "ManifestError": 3, "CheckpointError": 3,
        "UnsupportedModelError": 3, "DataError": 3, "UnreadableError": 3, "OutputError": 3, "HubError": 4, "CheckFailed": 5, "OutputExists": 6,
        "Interrupted": 130,
    }  # fmt: skip


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), typer.Abort()])
def test_interruption_is_130_and_one_word(call, raising, interruption):
    raising(interruption)

    seen = call("schema")

    assert (seen.code, seen.out, seen.err) == (130, "", "interrupted\n")


def test_a_closed_pipe_is_no_error_message(call, raising, monkeypatch):
    # The function would redirect pytest's own standard output.
    monkeypatch.setattr(output, "drop_stdout", lambda: None)
    raising(BrokenPipeError())

    seen = call("schema")

    assert (seen.code, seen.out, seen.err) == (141, "", "")


def test_a_file_that_the_system_refuses_is_one_message(call, raising):
    raising(OSError(36, "File name too long", "x" * 300 + ".st"))

    seen = call("schema")

    assert (seen.code, seen.out) == (3, "")
    assert re.fullmatch(r"error: x+…x+\.st: File name too long\n", seen.err)
    assert len(seen.err) < 250


def test_a_disk_that_fails_while_a_file_is_read_is_one_message(call, raising):
    raising(OSError(5, "Input/output error"))

    seen = call("schema")

    assert (seen.code, seen.err) == (3, "error: an input or output file: Input/output error\n")


def test_an_error_of_the_system_about_nothing_keeps_its_traceback(raising):
    raising(OSError(22, "Invalid argument"))

    with pytest.raises(OSError, match="Invalid argument"):
        main(["schema"])


def test_a_bug_keeps_its_traceback(raising):
    raising(ZeroDivisionError("ours"))

    with pytest.raises(ZeroDivisionError, match="ours"):
        main(["schema"])


def test_a_rank_says_which_it_is_when_it_fails(call, raising, monkeypatch):
    raising(errors.DataError("corrupt image"))
    monkeypatch.setenv("RANK", "1")

    seen = call("schema", "--json")

    assert seen.err == "rank 1: error: corrupt image\n"
    assert seen.out == ""  # Only rank 0 prints the document.


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["prun"], "`prun` is not a command of `hydractl`\n\nhint: did you mean `prune`?"),
        (["prune", "base.st", "-o", "x.st", "--keep-head", "3"], "`--keep-head` is not an option of `hydractl prune`\n\nhint: did you mean `--keep-heads`?"),
        (["prune", "base.st", "-o", "x.st", "--remove", "few"], "`--remove`: "),
        (["prune", "base.st", "-o", "x.st", "--remove", "-1"], "`--remove`: input should be greater than or equal to 0"),
        (["prune", "base.st", "--keep-heads", "3"], "`-o/--output/--out` is missing\n\nhint: see `hydractl prune --help`"),
        (["prune", "-o", "x.st"], "`MODEL` is missing"),
        (["prune", "a.st", "-o"], "option `-o` requires an argument\n\nhint: see `hydractl prune --help`"),
        (["fuse", "a.st", "-o", "x.st", "--mlp", "mean"], "`--mlp`: `mean` is not one of `merge`, `keep`"),
        (["schema", "mask"], "`KIND`: `mask` is not one of"),
        (["schema", "scores", "b"], "unexpected extra argument"),
        (["score", "a.st", "-o", "x.json", "--method", "magnitud"], "did you mean `magnitude`?"),
        (["schema", "head-maks"], "did you mean `head-mask`?"),
    ],
)  # fmt: skip
def test_a_refusal_of_the_parser_has_the_form_of_ours(call, argv, text):
    seen = call(*argv)

    assert (seen.code, seen.out) == (2, "")
    assert text in seen.err
    assert re.fullmatch(r"error: .+\n\nhint: .+\n", seen.err)
    again = call(argv[0], "--json", *argv[1:])
    document = json.loads(again.out)["error"]
    assert again.err == seen.err == "error: {message}\n\nhint: {hint}\n".format(**document)
    assert (document["kind"], document["exit_code"]) == ("usage", 2)


@pytest.mark.parametrize(
    "argv",
    [("{}",), ("schema", "{}"), ("schema", "scores", "{}", "{}"), ("schema", "--{}"), ("fuse", "a", "-o", "b", "--mlp", "{}")],
)  # fmt: skip
def test_a_usage_error_is_one_line_whatever_was_typed(call, argv):
    seen = call(*(word.format("x\x1b[31m\n" * 10_000) for word in argv))

    message, blank, hint = seen.err.splitlines()
    assert (seen.code, blank) == (2, "")
    assert message.startswith("error: ")
    assert hint.startswith("hint: ")
    assert len(message) < 500
    assert message.isprintable()


@pytest.mark.parametrize("error", [*errors.KINDS], ids=str)
def test_a_failure_is_a_document_with_its_kind(call, raising, error):
    classes = [errors.HydraError, *errors.HydraError.__subclasses__(), *errors.InputError.__subclasses__()]
    raising(next(one for one in classes if one.kind == error)("what \x1b", hint="type this"))

    seen = call("schema", "--json")

    assert json.loads(seen.out) == {
        "error": {"kind": error, "message": "what \\x1b", "hint": "type this", "exit_code": seen.code}
    }
    assert seen.code == errors.KINDS[error]
    assert seen.err == "error: what \\x1b\n\nhint: type this\n"
    assert call("schema").out == ""


@pytest.mark.parametrize(
    ("error", "kind", "code", "message"),
    [
        (KeyboardInterrupt(), "interrupted", 130, "interrupted"),
        (OSError(errno.EACCES, "Permission denied", "a.st"), "input", 3, "a.st: Permission denied"),
        (ZeroDivisionError("ours"), "bug", 1, "ZeroDivisionError: ours"),
    ],
)
def test_other_failures_are_documents_too(capsys, raising, error, kind, code, message):
    raising(error)

    with contextlib.suppress(ZeroDivisionError):
        assert main(["schema", "--json"]) == code

    told = json.loads(capsys.readouterr().out)["error"]
    assert (told["kind"], told["exit_code"], told["message"]) == (kind, code, message)
    assert (told["hint"] == REPORT_A_BUG) == (kind == "bug")


def test_every_kind_of_failure_is_in_the_docs_with_its_exit_code():
    text = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE)

    assert {kind: int(code) for kind, code in rows} == errors.KINDS


def test_an_option_that_takes_one_value_is_given_once():
    lists, flags = set(), set()
    for name, command in command_tree().commands.items():
        for option in (p for p in command.params if isinstance(p, TyperOption)):
            first, last = option.opts[-1], (option.secondary_opts or option.opts)[0]
            typed = [first, last] if option.is_flag else [first, "1", last, "1"]
            if option.multiple or (option.is_flag and not option.secondary_opts):
                (lists if option.multiple else flags).add(first)
                continue
            with pytest.raises(UsageError, match=f"^`{option.opts[0]}.*` appears more than once$"):
                command.make_context(name, typed)

    assert "--scores" in lists
    assert "--force" in flags


def test_version(call):
    assert call("--version").out == f"hydractl {__version__}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command(call, flag):
    seen = call(flag)

    assert seen.code == 0
    assert all(name in seen.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_leads_with_usage_and_examples(call, name):
    seen = call(name, "--help")

    assert seen.code == 0
    assert f"hydractl {name}" in seen.out
    assert "Examples:" in seen.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_json(name):
    options = {word for p in command_tree().commands[name].params for word in p.opts}

    assert "--json" in options


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_writes_has_quiet_and_force(name):
    options = {word for p in command_tree().commands[name].params for word in p.opts}

    assert "--out" not in options or {"-o", "--output", "-q", "--quiet", "--force"} <= options


def test_commands_that_need_nothing_run_when_named_alone():
    commands = command_tree().commands

    assert [name for name in COMMANDS if not commands[name].no_args_is_help] == ["doctor", "run", "demo"]
    assert not [p for name in ("doctor", "run", "demo") for p in commands[name].params if p.required]


@pytest.mark.parametrize("name", [*sorted(COMMANDS.keys() - {"doctor", "run", "demo"}), None])
def test_a_command_that_needs_something_has_its_help_when_named_alone(capsys, name):
    assert main([name] if name else []) == 2
    title = "Examples:" if name else "Exit codes:"
    assert title in [line.strip() for line in capsys.readouterr().err.splitlines()]


def test_the_table_is_the_tree():
    tree = command_tree()

    assert list(COMMANDS) == list(tree.commands)
    assert {name: paragraphs(command)[0] for name, command in tree.commands.items()} == SUMMARIES
