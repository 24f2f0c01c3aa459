from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hydractl.cli.commands.demo import command as demo
from hydractl.cli.commands.demo.plan import PAGE, REPORT, Part, page
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.strict_json import parse
from support.commands import check_order, check_typed

TASKS = ("digits", "text")


@pytest.fixture
def commands(monkeypatch):
    """Keep the demo's command lines instead of running them."""
    kept = []

    def run(_main, arguments, *, loud):
        kept.append((arguments, loud))
        return 0

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(demo, "conclude", lambda *_: None)
    return kept


def change_task(monkeypatch, task, **changes):
    changed = replace(demo.load_task(task), **changes)
    monkeypatch.setattr(demo, "load_task", lambda _: changed)


@pytest.mark.parametrize("task", TASKS)
def test_every_command_is_one_that_a_user_could_type(call, commands, tmp_path, task):
    seen = call("demo", "--task", task, "-o", tmp_path / "demo")

    assert seen.code == 0
    check_typed(arguments for arguments, _ in commands)
    assert [a[0] for a, _ in commands].count("finetune") == 3 + 4 + 10
    assert [arguments[0] for arguments, _ in commands[-2:]] == ["eval", "report"]


@pytest.mark.parametrize("task", TASKS)
def test_a_hydra_is_trained_for_no_longer_than_the_ensemble(task, tmp_path):
    tuned = [
        c
        for part in demo.load_task(demo.Task(task)).plan(tmp_path, 0)
        for c in part.commands
        if c[0] == "finetune"
    ]
    epochs = [int(c[c.index("--epochs") + 1]) for c in tuned]

    assert sum(epochs[3:7]) <= sum(epochs[:3])


@pytest.mark.parametrize("task", TASKS)
def test_every_data_reference_can_be_read(call, commands, tmp_path, task):
    call("demo", "--task", task, "-o", tmp_path / "demo")

    wants = Content.TEXTS if task == "text" else Content.IMAGES
    plain = {b for line, _ in commands for a, b in pairwise(line) if a in {"--data", "--val", "--ood"}}
    named = {
        b.partition("=")[2] for line, _ in commands for a, b in pairwise(line) if a in {"--near", "--far"}
    }
    assert (len(plain), len(named)) == (4, 4)
    assert all(len(open_data(ref, content=wants)) >= 100 for ref in plain | named)


@pytest.mark.parametrize("task", TASKS)
def test_what_a_command_reads_an_earlier_one_has_written(call, commands, tmp_path, task):
    call("demo", "--task", task, "-o", tmp_path / "demo")

    written = set(map(str, (tmp_path / "demo").iterdir()))
    check_order([arguments for arguments, _ in commands], tmp_path, written)


def test_each_line_is_shown_before_it_runs(call, commands, tmp_path):
    seen = call("demo", "-o", tmp_path / "demo", "--seed", 4)

    shown = [line for line in seen.err.splitlines() if line.startswith("$ hydractl ")]
    assert len(shown) == len(commands)
    assert "--seed 4" in shown[0]
    assert "--seed 6" in shown[2]


def test_each_step_says_which_of_how_many_it_is(call, commands, tmp_path):
    said = call("demo", "-o", tmp_path / "demo").err.splitlines()

    steps = [one for one, after in pairwise(said) if after.startswith("$ hydractl ")]
    assert steps == [f"step {i + 1} of {len(commands)}" for i in range(len(commands))]


def test_each_step_says_how_long_it_took(call, commands, tmp_path):
    seen = call("demo", "-o", tmp_path / "demo")

    assert sum(line.startswith("done in ") for line in seen.err.splitlines()) == len(commands)


@pytest.mark.parametrize("watched", [True, False])
def test_steps_show_their_progress_where_somebody_watches(call, commands, tmp_path, monkeypatch, watched):
    monkeypatch.setattr(demo, "watched", lambda: watched)
    call("demo", "-o", tmp_path / "demo")

    quiet = [arguments[0] for arguments, _ in commands if "-q" in arguments]
    assert quiet == ([] if watched else [a[0] for a, _ in commands if a[0] != "eval"])


@pytest.mark.parametrize(("option", "concluded"), [([], 1), (["--json"], 0), (["-q"], 0)])
def test_the_table_is_read_out_to_a_person(call, commands, tmp_path, monkeypatch, option, concluded):
    paths = []
    monkeypatch.setattr(demo, "conclude", lambda _, out: paths.append(out / REPORT))
    call("demo", "-o", tmp_path / "demo", *option)

    assert paths == [tmp_path / "demo" / "report.json"] * concluded


@pytest.mark.parametrize("task", demo.Task)
def test_a_task_says_what_its_rows_are(task, tmp_path):
    steps = demo.load_task(task)
    parts = steps.plan(tmp_path, 0)
    (measured,), (paged,) = (part.commands for part in parts[-2:])
    rows = {steps.single, *(a.split("=")[1] for a in measured if a.startswith("--compare="))}

    assert measured[0] == "eval"
    assert measured[measured.index("--name") + 1] == steps.single
    assert {*steps.ensembles, *steps.hydras} < rows
    assert measured[-3:] == ("--curves", "-o", str(tmp_path / REPORT))
    assert paged == ("report", str(tmp_path / REPORT), "-o", str(tmp_path / PAGE))


@pytest.mark.parametrize(("option", "told"), [([], 1), (["--json"], 0), (["-q"], 0), (["--prepare"], 0)])
def test_a_person_is_told_where_the_page_lies(call, commands, tmp_path, option, told):
    seen = call("demo", "-o", tmp_path / "demo", *option)

    lines = [
        line for line in seen.err.splitlines() if line.startswith(f"{tmp_path / 'demo' / 'report.html'}: ")
    ]
    assert (len(lines), lines) == (told, seen.err.splitlines()[-1:] * told)


def test_one_page_ends_every_demo(call, monkeypatch, work):
    """With real commands: of a table with curves; `--json` prints nothing but what `eval` prints."""
    folder = Path("demo")
    line = (
        "eval",
        "base.st",
        "--name",
        "Single",
        "--data",
        "digits::classes=0-6,split=test",
        "--compare=other=base.st",
        "--curves",
        "-o",
        str(folder / "report.json"),
    )
    parts = (Part("Compare", (line,)), page(folder))
    change_task(monkeypatch, demo.Task.digits, plan=lambda *_: parts)
    seen = call("demo", "-o", folder, "--json")

    assert seen.code == 0
    assert [row["name"] for row in parse(seen.out)["rows"]] == ["Single", "other"]
    assert 'id="reliability"' in (folder / "report.html").read_text()
    made = (folder / "report.html").stat().st_ino
    assert call("demo", "-o", folder, "-q").out.splitlines() == [
        str(folder / name) for name in ("report.json", "report.html")
    ]
    assert (folder / "report.html").stat().st_ino == made


def test_an_unknown_task_is_refused(call, commands, tmp_path):
    seen = call("demo", "--task", "audio", "-o", tmp_path / "demo")

    assert (seen.code, commands) == (2, [])
    assert "zero-shot" in seen.err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("task", TASKS)
def test_another_seed_changes_seeds_alone(task, tmp_path):
    steps = demo.load_task(demo.Task(task))
    one, two = (
        [a for part in steps.plan(tmp_path, seed) for command in part.commands for a in command]
        for seed in (0, 5)
    )
    changed = [(one[i - 1], a, b) for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]

    assert changed
    assert all(flag == "--seed" and int(b) == int(a) + 5 for flag, a, b in changed)


def test_json_is_the_reports_alone(call, commands, tmp_path):
    seen = call("demo", "-o", tmp_path / "demo", "--json")

    assert (seen.out, seen.err) == ("", "")
    assert [a[0] for a, _ in commands if "--json" in a] == ["eval"]
    assert [a[0] for a, loud in commands if loud] == ["eval"]


def test_a_failing_command_ends_the_demo_with_its_code(call, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "run", lambda *_, **__: 3)

    assert call("demo", "-o", tmp_path / "demo").code == 3


def test_a_folder_in_use_is_refused(call, commands, tmp_path):
    (tmp_path / "mine").write_text("x")

    seen = call("demo", "-o", tmp_path)

    assert (seen.code, commands) == (6, [])
    assert "is not empty" in seen.err
    assert call("demo", "-o", tmp_path, "--force").code == 0
    assert all("--force" not in a for a, _ in commands)
    assert (tmp_path / "mine").read_text() == "x"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_an_interrupted_demo_goes_on_with_the_same_command(call, commands, monkeypatch, tmp_path, force):
    line = ("demo", "-o", tmp_path / "demo", *force)
    with monkeypatch.context() as patch:
        patch.setattr(demo, "run", lambda *_, **__: 130)
        first = call(*line)

    again = call(*line)

    assert (first.code, again.code) == (130, 0)
    assert "the same command goes on from there" in first.err
    assert "what is done is not done again" in again.err
    assert all("--if-changed" in a for a, _ in commands)


def test_another_demo_is_refused_where_one_was_begun(call, commands, tmp_path):
    line = ("demo", "-o", tmp_path / "demo")
    assert call(*line).code == 0

    others = [call(*line, *more) for more in (["--seed", 1], ["--task", "text"])]

    assert [(seen.code, "holds another demo" in seen.err) for seen in others] == [(6, True)] * 2
    assert call(*line).code == 0
    assert call(*line, "--seed", 1, "--force").code == 0
    assert (call(*line).code, call(*line, "--seed", 1).code) == (6, 0)


@pytest.mark.parametrize("text", ["", "[]", '{"task": "digits"}', "{", '{"wrong": 1}'])
def test_a_record_that_says_nothing_is_another_demo(call, commands, tmp_path, text):
    (tmp_path / demo.RECORD).write_text(text)

    assert (call("demo", "-o", tmp_path).code, commands) == (6, [])
    assert call("demo", "-o", tmp_path, "--force").code == 0
    assert call("demo", "-o", tmp_path).code == 0


def test_what_is_prepared_is_prepared_again_only_where_that_did_not_end(
    call, commands, monkeypatch, tmp_path
):
    steps, prepared = demo.load_task(demo.Task.text), []
    line = ("demo", "--task", "text", "-o", tmp_path / "demo")
    whole = steps.prepare

    def prepare(out, seed, said):
        whole(out, seed, said)
        prepared.append(seed)
        if len(prepared) == 1:
            raise KeyboardInterrupt

    change_task(monkeypatch, demo.Task.text, prepare=prepare)

    assert [call(*line).code for _ in range(3)] == [130, 0, 0]
    assert prepared == [0, 0]
    (tmp_path / "demo" / "tokenizer.json").unlink()
    assert call(*line).code == 0
    assert call(*line, "--seed", 3, "--force").code == 0
    assert prepared == [0, 0, 0, 3]


def test_steps_that_are_done_are_not_done_again(call, monkeypatch, work):
    """With real commands, of which the second is missing an input at first."""
    made, late = Path("demo/first.st"), Path("late.st")
    pruned = ("--strategy", "random", "--keep", "2", "--no-verify", "-o")
    lines = (("prune", "base.st", *pruned, str(made)), ("prune", str(late), *pruned, "demo/second.st"))
    change_task(monkeypatch, demo.Task.digits, plan=lambda *_: (Part("Prune twice", lines),))
    monkeypatch.setattr(demo, "conclude", lambda *_: None)
    assert call("demo", "-o", "demo").code == 3
    first = made.stat().st_ino
    late.write_bytes(Path("base.st").read_bytes())

    assert call("demo", "-o", "demo").code == 0
    assert made.stat().st_ino == first
    assert Path("demo/second.st").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("base.st", "does not say what made it"), ("report.json", "does not say what made it"),
        ("report.html", "was made by something else"),
    ],
)  # fmt: skip
def test_what_somebody_put_where_a_step_writes_is_refused_before_the_first_one(
    call, commands, tmp_path, name, said
):
    mine = tmp_path / name
    mine.write_text("mine")

    seen = call("demo", "-o", tmp_path, "--force")

    assert (seen.code, commands, [*tmp_path.iterdir()], mine.read_text()) == (6, [], [mine], "mine")
    assert seen.err == (
        f"error: {mine}: {said}, and the demo replaces what its own commands made\n\n"
        "hint: move it away, or choose another folder with `-o`\n"
    )
    assert mine.rename(tmp_path / "elsewhere").read_text() == "mine"
    assert call("demo", "-o", tmp_path, "--force").code == 0


def test_a_comma_in_the_folders_name_is_refused(call, commands, tmp_path):
    seen = call("demo", "-o", tmp_path / "one,two")

    assert (seen.code, commands) == (2, [])
    assert "which a comma would break" in seen.err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_made_is_refused(call, commands, tmp_path):
    (tmp_path / "file").write_text("x")

    seen = call("demo", "-o", tmp_path / "file" / "demo")

    assert (seen.code, commands) == (3, [])


def test_results_of_the_steps_go_to_stderr(capsys):
    def main(_):
        sys.stdout.write("a result\n")
        return 0

    demo.run(main, [], loud=False)
    demo.run(main, [], loud=True)

    assert capsys.readouterr() == ("a result\n", "a result\n")
