"""`hydractl make`: from checkpoints to a hydra, a table, a threshold and a page, by a resumable pipeline."""

from __future__ import annotations

import io
import json
import re
import shutil
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from html import unescape
from pathlib import Path

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.cli.commands.make import MakeConfig
from hydractl.cli.make_results import choice
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.manifest.document import Value
from hydractl.manifest.report import Difference, Report
from support.builders import base
from support.digits_classifier import with_digits_classifier
from support.pairs import pair
from support.reports import seeded

DIGITS = "digits::classes=0-6"
DATA = (
    "--train", f"{DIGITS},split=train,limit=90", "--val", f"{DIGITS},split=val,limit=80", "--test", f"{DIGITS},split=test,limit=40",
)  # fmt: skip
ARCH = "vit_tiny_patch16_224::" + ",".join(f"{k}={v}" for k, v in base().header.architecture.config.items())
OOD = ("--near", "others=digits::classes=7-9,limit=20", "--far", "noise::limit=20,size=8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with three trained models, weights of a training script, and the outputs of `make`."""
    from hydractl.cli.app import main

    folder = tmp_path_factory.mktemp("make")
    for i in range(3):
        with_digits_classifier(base().tuned(i), 12).save(folder / f"m{i}.st")
    torch.save({"state_dict": base().tuned(7).library().state_dict()}, folder / "saved.pth")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["make", "m0.st", "m1.st", "m2.st", *DATA, *OOD, "--risk", "0.9", "-o", "out/"]) == 0
    return folder


@pytest.fixture
def folder(whole, monkeypatch):
    monkeypatch.chdir(whole)
    return whole


def test_it_makes_a_hydra_a_table_a_threshold_and_a_page(folder):
    header = Checkpoint.open(folder / "out/hydra.st").header
    report = Report.read(folder / "out/report.json")

    assert (len(header.masks), header.fitted.scores) == (3, ("energy+density",))
    assert [row.name for row in report.rows] == ["hydra", "ensemble", "m0", "m1", "m2"]
    assert report.ood_scores == ("msp", "energy+density")
    assert {*report.rows[0].ood} == {"others", "noise"}
    assert all(row.curves for row in report.rows)
    assert Checkpoint.open(folder / "out/model.st").header.threshold.risk == 0.9
    assert "ensemble" in (folder / "out/report.html").read_text(encoding="utf-8")


def test_one_model_gets_what_the_single_commands_give(folder, call):
    """Weights stay unchanged. One half of the data fits temperature and OOD score, the other both tests."""
    seen = call("make", "m0.st", *DATA, *OOD, "--risk", "0.9", "-o", "one/")
    assert seen.code == 0
    report, model = Report.read(folder / "one/report.json"), Checkpoint.open(folder / "one/model.st")
    fitting, testing = (f"{DIGITS},split=val,limit=80,part={k}/2" for k in (1, 2))
    fitted = ("--temperature", fitting, "--train", DATA[1], "--val", fitting)
    by_hand = ("--save-model", "stored.st", "-o", "stored.json")
    assert call("eval", "m0.st", "--data", DATA[5], *OOD, *fitted, *by_hand).code == 0
    tests = ("--threshold-for", "risk<=0.9", "--keep-known", "0.95", "--name", "m0", "--keep-examples", "1")
    step = (*tests, "--no-latency", "--bootstrap", "0", "--save-model", "accepting.st", "-o", "tests.json")
    assert call("eval", "stored.st", "--data", testing, *step).code == 0
    assert call("report", "stored.json", "--tests", "tests.json", "-o", "by-hand.html").code == 0
    expected, accepting = Report.read(folder / "stored.json"), Checkpoint.open(folder / "accepting.st")

    timed = {"latency_ms", "latency_batch_ms"}
    values, values_by_hand = (
        {name: value for name, value in document.rows[0].values.items() if name not in timed}
        for document in (report, expected)
    )
    assert ([row.name for row in report.rows], values) == (["m0"], values_by_hand)
    assert report.rows[0].ood == expected.rows[0].ood
    for name in ("temperature", "fitted", "threshold", "known_test"):
        assert getattr(model.header, name) == getattr(accepting.header, name) is not None
    assert Report.read(folder / "tests.json").examples == Report.read(folder / "one/threshold.json").examples
    assert answers_on(folder / "one/report.html") == answers_on(folder / "by-hand.html")
    before = Checkpoint.open(folder / "m0.st")
    assert all(torch.equal(model.tensor(name), before.tensor(name)) for name in before.specs)
    assert not (folder / "one/hydra.st").exists()
    assert "hydractl predict one/model.st INPUTS" in seen.out
    shutil.rmtree(folder / "one")


def answers_on(page: Path) -> list[str]:
    """Return the table rows of example answers, and the marks of thresholds."""
    text = page.read_text(encoding="utf-8")
    table = text[text.index("Answers of ") :]
    rows = re.findall(r"<tr>.*?</tr>", table[: table.index("</table>")], re.DOTALL)
    return [*rows, *re.findall(r"threshold of [^<]*", text)]


def test_predict_gives_the_reasons_of_both_tests_and_the_page_shows_five_answers(folder, call):
    """The page marks the threshold, and lists a held-back wrong answer if the tests hold one back."""
    words = ("--risk", "0.9", "--keep-known", "0.6", "-o", "both/")
    assert call("make", "m0.st", *DATA, *words).code == 0
    header, report = (
        Checkpoint.open(folder / "both/model.st").header,
        Report.read(folder / "both/threshold.json"),
    )
    assert (report.rows[0].name, report.rows[0].known_test) == ("m0", header.known_test)
    testing = f"{DIGITS},split=val,limit=80,part=2/2"
    assert call("predict", "both/model.st", testing, "-o", "decided.jsonl").code == 0
    lines = [json.loads(line) for line in (folder / "decided.jsonl").read_text().splitlines()]
    reasons = [line.get("reason") for line in lines]
    assert all(line["accepted"] == (reason is None) for line, reason in zip(lines, reasons, strict=True))
    assert {*reasons} == {None, "unknown", "unsure"}

    items = open_data(testing)
    wrong = [line["label"] != items.class_names[y] for line, y in zip(lines, items.labels, strict=True)]
    held_back = sum(error and reason is not None for error, reason in zip(wrong, reasons, strict=True))
    shown = [(e.accepted, e.answer != e.label) for e in report.examples.answers]
    assert len(shown) == 5
    assert held_back
    assert (False, True) in shown
    rows = answers_on(folder / "both/report.html")
    assert sum("held back" in row for row in rows) == sum(not accepted for accepted, _ in shown)
    assert any(f"threshold of m0: {header.threshold.summary}" in unescape(row) for row in rows)
    assert f"m0: {header.known_test.summary}." in unescape(
        (folder / "both/report.html").read_text(encoding="utf-8")
    )
    shutil.rmtree(folder / "both")


@pytest.mark.parametrize(
    ("words", "test", "other"),
    [
        (("--risk", "0.9", "--keep-known", "none"), "threshold", "known_test"),
        (("--risk", "none"), "known_test", "threshold"),
    ],
)
def test_each_test_can_be_left_out(folder, call, words, test, other):
    seen = call("make", "m0.st", *DATA, *words, "-o", "alone/")

    header = Checkpoint.open(folder / "alone/model.st").header
    assert seen.code == 0
    assert getattr(header, other) is None
    fitted = getattr(header, test)
    assert fitted.count == len(open_data(f"{DIGITS},split=val,limit=80,part=2/2"))
    assert f"model.st {fitted.summary}" in seen.out
    shutil.rmtree(folder / "alone")


def test_weights_of_a_training_script_alone_are_imported(folder, call):
    seen = call("make", "saved.pth", "--arch", ARCH, *DATA, "--risk", "0.9", "-o", "script/")

    assert seen.code == 0
    assert [row.name for row in Report.read(folder / "script/report.json").rows] == ["saved"]
    shutil.rmtree(folder / "script")


def test_halves_of_validation_data_fit_and_test_the_threshold(folder):
    stages = {
        stage["name"]: stage for stage in tomllib.loads((folder / "out/make.toml").read_text())["stage"]
    }
    first, second = (open_data(f"{DIGITS},split=val,limit=80,part={k}/2") for k in (1, 2))

    assert stages["fuse"]["temperature"] == stages["fuse"]["val"] == stages["table"]["temperature"]
    assert "part=1/2" in stages["fuse"]["val"]
    assert "part=2/2" in stages["threshold"]["data"]
    assert not {*first.places} & {*second.places}
    header = Checkpoint.open(folder / "out/model.st").header
    assert len(second) == 80 - len(first)
    assert header.known_test.count == (len(second) + 1) // 2
    assert header.threshold.count <= len(second) // 2


def test_the_same_command_makes_nothing_twice_and_run_does_the_same(folder, call):
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir() if path.suffix != ".toml"}

    again = call("make", "m0.st", "m1.st", "m2.st", *DATA, *OOD, "--risk", "0.9", "-o", "out/")
    run = call("run", "out/make.toml")

    assert (again.code, run.code) == (0, 0)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert "hydra " in again.out
    assert "hydractl predict out/model.st INPUTS" in again.out
    quiet = call("make", "m0.st", "m1.st", "m2.st", *DATA, *OOD, "--risk", "0.9", "-o", "out/", "-q")
    assert {*quiet.out.split()} == {
        f"out/{name}" for name in ("hydra.st", "model.st", "report.json", "report.html", "threshold.json")
    }


def test_a_dry_run_prints_the_commands(folder, call):
    seen = call("make", "m0.st", "m1.st", *DATA, "-o", "other/", "--dry-run")

    assert seen.code == 0
    assert [line.split()[1] for line in seen.out.splitlines() if line.startswith("hydractl")] == [
        "fuse",
        "eval",
        "eval",
        "report",
    ]
    assert not (folder / "other").exists()


def test_a_dry_run_keeps_the_pipeline_where_it_is_told_to(folder, call):
    words = ("make", "m0.st", "m1.st", *DATA, "-o", "other/")
    kept = folder / "plans/kept.toml"
    seen = call(*words, "--dry-run", "--save-pipeline", str(kept))
    run = call("run", str(kept), "--dry-run")
    kept.write_text(edited := kept.read_text().replace("0.01", "0.02"))
    again = call(*words, "--dry-run", "--save-pipeline", str(kept))

    assert (seen.code, run.code, again.code) == (0, 0, 6)
    assert seen.out == run.out
    assert kept.read_text() == edited
    assert not (folder / "other").exists()
    shutil.rmtree(kept.parent)


def test_what_a_script_saved_is_imported_first(folder, call):
    words = ("m0.st", "saved.pth", *DATA, "--arch", ARCH, "-o", "other/")
    plan = json.loads(call("make", *words, "--dry-run", "--json").out)["stages"]
    seen = call("make", *words)

    assert [stage["stage"] for stage in plan] == ["import-saved", "fuse", "table", "threshold", "page"]
    assert plan[1]["command"][2:4] == ["m0.st", "other/imported/saved.st"]
    assert seen.code == 0
    assert [row.name for row in Report.read(folder / "other/report.json").rows] == [
        "hydra",
        "ensemble",
        "m0",
        "saved",
    ]
    shutil.rmtree(folder / "other")


@pytest.mark.more
def test_a_plan_of_which_nothing_was_made_is_in_nobody_s_way(folder, call):
    words = ("make", "m0.st", "saved.pth", *DATA, "-o", "other/")
    first = call(*words)
    is_there = (folder / "other").exists()
    second = call(*words, "--arch", ARCH)

    assert (first.code, second.code) == (3, 0)
    assert "--arch" in first.err
    assert not is_there
    shutil.rmtree(folder / "other")


@pytest.mark.parametrize(
    ("risk", "reason", "way"),
    [
        (("0.001",), "at least 2996 known samples are needed, and a quarter of `--val` has 20", "at least 12834 samples in `--val`"),
        pytest.param(
            ("0.075", "--keep-known", "none"), "too many errors on the 40 known samples in half of `--val`",
            "train the models further", marks=pytest.mark.more,
        ),
    ],
    ids=["too few samples", "too many errors"],
)  # fmt: skip
def test_a_threshold_that_cannot_be_reached_ends_nothing(folder, call, risk, reason, way):
    """The output model records the missing threshold."""
    seen = call("make", "m0.st", "m1.st", *DATA, "--risk", *risk, "-o", "strict/")

    assert seen.code == 0
    assert f"No threshold satisfies the risk {risk[0]}: " in seen.out
    assert reason in seen.out
    assert way in seen.out
    assert "error:" not in seen.err
    told = call("make", "m0.st", "m1.st", *DATA, "--risk", *risk, "-o", "strict/", "--json")
    assert told.code == 0
    assert "error" not in json.loads(told.out)
    quiet = call("make", "m0.st", "m1.st", *DATA, "--risk", *risk, "-o", "strict/", "-q")
    assert f"warning: No threshold satisfies the risk {risk[0]}: " in quiet.err
    assert "hydractl predict strict/model.st INPUTS" in seen.out
    assert Checkpoint.open(folder / "strict/model.st").header.threshold.below is None
    shutil.rmtree(folder / "strict")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a=m0.st",), "the name `a` has no effect"),
        (("m0.st", "m0.st"), "have the name `m0`"),
        (("a=m0.st", "a=m1.st"), "have the name `a`"),
        (("hydra=m0.st", "m1.st"), "have the name `hydra`"),
        (("a[0]=m0.st", "m1.st"), "`a[0]=m0.st`: expected NAME=MODEL"),
        (("m0.st", "m1.st", "--ema"), "`--ema` has no effect"),
        (("m0.st", "m1.st", "--save-pipeline", "-"), "must be a file"),
        (("m0.st", "m1.st", "--labels", "a,b"), "`--labels` has no effect"),
        (("m0.st", "m1.st", "--arch", "vit_tiny_patch16_224"), "`--arch` has no effect"),
        (("m0.st", "m1.st", "--hydra", "tuned"), "`--hydra` has no effect"),
        (
            ("m0.st", "--epochs", "1"),
            "`--epochs` has no effect without `--hydra`\n\nhint: add `--hydra tuned`, or",
        ),
        (
            ("m0.st", "--lr", "1e-4"),
            "`--lr` has no effect without `--hydra`\n\nhint: add `--hydra tuned`, or",
        ),
        (("m0.st", "--pick", "m0"), "`--pick` has no effect"),
        (
            ("m0.st", "m1.st", "--pick", "ensemble"),
            "`--pick ensemble`: no row that is one model has this name",
        ),
        (
            ("m0.st", "--hydra", "tuned", "--pick", "m0"),
            "`--pick m0`: no row that is one model has this name",
        ),
        (("m0.st", "--hydra", "pruned", "--max-nll-increase", "0.1"), "`--max-nll-increase` has no effect"),
        (("saved.pth", "--hydra", "tuned"), "saved.pth has to be imported first"),
        (("m0.st", "--smallest", "accuracy"), "`--smallest`: `` is not a number"),
        (("m0.st", "--smallest", "brier=1"), "expected METRIC=X with a metric of the verdict"),
        (("m0.st", "--risk", "none", "--keep-known", "none"), "leaves no test"),
        (("m0.st", "--keep-known", "95"), "`--keep-known 95`: must be above 0"),
    ],
)
def test_what_cannot_be_is_refused(folder, call, words, message):
    seen = call("make", *words, *DATA, "-o", "other/")

    assert seen.code == 2
    assert message in seen.err
    assert not (folder / "other").exists()


def test_another_pipeline_is_not_written_over_one_that_is_there(folder, call):
    before = (folder / "out/make.toml").read_text()
    seen = call("make", "m0.st", "m1.st", *DATA, "-o", "out/")

    assert seen.code == 6
    assert (folder / "out/make.toml").read_text() == before


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (("run1/checkpoint-16", "run2/checkpoint-16"), ("run1", "run2")),
        (
            ("a/x/model_best.pth.tar", "a/y/model_best.pth.tar", "b/x/model_best.pth.tar"),
            ("a-x", "a-y", "b-x"),
        ),
        (("exp/s0/out/m.pth", "exp/s1/out/m.pth/"), ("s0", "s1")),
        (("./lr=0.1,seed=1/m.ckpt", "./lr=0.1,seed=2/m.ckpt"), ("lr-0.1-seed-1", "lr-0.1-seed-2")),
        (("v1.2.st", "v1.3.st", "org/name"), ("v1.2", "v1.3", "name")),
        (("./a.pth", "run/../b.pth", "c=run/m.pth"), ("a", "b", "c")),
        (("{i} @x.st", "seed one=b.st"), ("i- -x", "seed one")),
    ],
)
def test_names_come_from_the_parts_of_paths_that_differ(models, names):
    """Law: names do not depend on the order of models."""

    def named(*texts):
        data = {option: DataRef.parse(DIGITS) for option in ("val", "test")}
        return tuple(name for name, _ in MakeConfig(models=texts, out=Path("out"), **data).named_models)

    assert named(*models) == names
    assert named(*reversed(models)) == names[::-1]


def test_braces_signs_and_blanks_in_paths_are_literal(folder, call):
    odd = folder / "we{i}rd @fuse"
    odd.mkdir()
    for i, name in enumerate(("@fuse.st", "{members}.st")):
        shutil.copy(folder / f"m{i}.st", odd / name)
    paths = (f"{odd.name}/@fuse.st", f"first={odd.name}/{{members}}.st")
    seen = call("make", *paths, *DATA, "-o", "@out {x}/", "--dry-run", "--json")
    kept = call("make", *paths, *DATA, "-o", "@out {x}/", "--dry-run", "--save-pipeline", "odd.toml")
    run = call("run", "odd.toml", "--dry-run", "--json")
    fuse, table = (stage["command"] for stage in json.loads(seen.out)["stages"][:2])

    assert (seen.code, kept.code, run.code) == (0, 0, 0)
    assert fuse[2:4] == [f"{odd.name}/@fuse.st", f"{odd.name}/{{members}}.st"]
    assert f"first={odd.name}/{{members}}.st" in table
    assert "@out {x}/report.json" in table
    assert run.out == seen.out
    shutil.rmtree(odd)


def test_a_pipeline_file_that_is_not_utf_8_is_another_pipeline(folder, call):
    (folder / "latin").mkdir()
    (folder / "latin/make.toml").write_bytes(b"# caf\xe9")
    seen = call("make", "m0.st", "m1.st", *DATA, "-o", "latin/")

    assert seen.code == 6
    assert "is a different plan" in seen.err
    shutil.rmtree(folder / "latin")


@pytest.mark.more
def test_members_with_other_heads_in_block_0_share_no_trunk(folder, call):
    for i in range(2):
        with_digits_classifier(base().pruned((i, 2), (0, 1), (0, 1)), 12).save(folder / f"pruned-{i}.st")
    seen = call("make", "pruned-0.st", "pruned-1.st", *DATA[2:], "-o", "apart/")

    assert seen.code == 0
    assert "members keep different heads in block 0, so no block is merged" in seen.err
    assert "share no block" in seen.out
    shutil.rmtree(folder / "apart")


TUNING = ("--hydra", "tuned", "--epochs", "1", "--lr", "1e-4")


@pytest.fixture(scope="module")
def tuned(whole):
    """The folder with the outputs of `make --hydra tuned`, and what the command printed."""
    from hydractl.cli.app import main

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.chdir(whole)
        assert main(["make", "m0.st", *TUNING, *DATA, *OOD, "--risk", "0.9", "-o", "tuned/"]) == 0
    return printed.getvalue()


def numbers(report, row):
    """Return the values of a row without times."""
    found = next(r for r in Report.read(report).rows if r.name == row)
    return {k: v for k, v in found.values.items() if not k.startswith("latency")}, found.ood


def test_one_model_becomes_a_hydra_as_by_the_single_commands(folder, tuned, call):
    fitting = f"{DIGITS},split=val,limit=80,part=1/2"
    for i in range(3):
        step = ("--val", fitting, "--epochs", "1", "--lr", "1e-4", "--batch-size", "64", "--seed", str(i))
        assert call("finetune", "m0.st", "--train", DATA[1], *step, "-o", f"by-hand-{i}.st").code == 0
    members = [f"by-hand-{i}.st" for i in range(3)]
    merging = ("--max-nll-increase", "0.01")
    fitted = ("--temperature", fitting, "--train", DATA[1], "--val", fitting)
    assert call("fuse", *members, *merging, *fitted, "-o", "by-hand.st").code == 0
    near, far = "others=digits::classes=7-9,limit=20,part=2/2", "noise=noise::limit=20,size=8"
    rows = ("--name", "hydra", "--compare", f"ensemble={','.join(members)}", "--compare", "single=m0.st")
    on = ("--data", DATA[5], "--near", near, "--far", far, *rows, *fitted)
    assert call("eval", "by-hand.st", *on, "-o", "by-hand.json").code == 0

    for ours, by_hand in (("tuned/tuned-2.st", "by-hand-2.st"), ("tuned/hydra.st", "by-hand.st")):
        made, expected = Checkpoint.open(folder / ours), Checkpoint.open(folder / by_hand)
        assert made.specs.keys() == expected.specs.keys()
        assert all(torch.equal(made.tensor(name), expected.tensor(name)) for name in expected.specs)
    for row in ("hydra", "ensemble", "single"):
        assert numbers(folder / "tuned/report.json", row) == numbers(folder / "by-hand.json", row)
    assert re.search(
        r"Training 3 members: 6 steps of 64 samples, about .*, estimated from \d+ ms per step", tuned
    )


def test_the_choice_reads_no_test_data(folder, tuned):
    data = {name: of.reference for name, of in Report.read(folder / "tuned/choice.json").data.items()}

    assert data["id"] == data["temperature"] == f"{DIGITS},limit=80,part=1/2,split=val"
    assert data["others"] == "digits::classes=7-9,limit=20,part=1/2"
    assert "noise" not in data


def test_ratios_of_costs_name_the_row_of_the_reference(tuned):
    assert re.search(r"hydra against ensemble: .* times the compute of ensemble\.", tuned)
    assert re.search(r"model.st is the .* times the compute of the single model\.", tuned)


def test_a_model_is_opened_once_before_the_first_stage(folder, call, monkeypatch):
    opened: list[str] = []
    import hydractl.families.open_model as module

    def counted(reference, *args, **kwargs):
        opened.append(reference)
        return open_model(reference, *args, **kwargs)

    open_model = module.open_model
    monkeypatch.setattr(module, "open_model", counted)
    assert call("make", "m0.st", *TUNING, *DATA, "-o", "dry/", "--dry-run", "-q").code == 0
    assert opened == ["m0.st"]


def test_any_row_can_be_picked_and_is_the_model_of_its_own_make(folder, tuned, call):
    words = ("make", "m0.st", *TUNING, *DATA, *OOD, "--risk", "0.9")
    assert call(*words, "--pick", "single", "-o", "picked/").code == 0
    assert call("make", "m0.st", *DATA, *OOD, "--risk", "0.9", "-o", "alone/").code == 0
    picked, alone = (Checkpoint.open(folder / f"{name}/model.st") for name in ("picked", "alone"))

    assert not (folder / "picked/choice.json").exists()
    for name in ("temperature", "fitted", "masks"):
        assert getattr(picked.header, name) == getattr(alone.header, name)
    # The threshold of the copy `calibrated.st` is by the rounded temperature.
    thresholds = [model.header.threshold.model_dump() for model in (picked, alone)]
    below, expected = (threshold.pop("below") for threshold in thresholds)
    assert (thresholds[0], below) == (thresholds[1], pytest.approx(expected, rel=1e-5))
    assert all(torch.equal(picked.tensor(name), alone.tensor(name)) for name in alone.specs)
    shutil.rmtree(folder / "picked")
    shutil.rmtree(folder / "alone")


def test_the_same_command_resumes_after_the_choice(folder, tuned, call):
    before = {path: path.stat().st_mtime_ns for path in (folder / "tuned").glob("*.st")}
    words = ("make", "m0.st", *TUNING, *DATA, *OOD, "--risk", "0.9", "-o", "tuned/")
    again, run = call(*words, "--json"), call("run", "tuned/make.toml")

    assert (again.code, run.code) == (0, 0)
    assert [stage["stage"] for stage in json.loads(again.out)["stages"]] == [
        "tune-0", "tune-1", "tune-2", "fuse", "choice", "table", "threshold", "page",
    ]  # fmt: skip
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert call(*words, "--max-nll-increase", "0.5").code == 6


def test_a_pruned_hydra_has_members_with_two_thirds_of_the_heads(folder, call):
    words = ("--hydra", "pruned", "--epochs", "1", "--lr", "1e-4", *DATA, "--risk", "0.9", "-o", "few/")
    seen = call("make", "m0.st", *words)

    assert seen.code == 0
    header, before = (Checkpoint.open(folder / name).header for name in ("few/hydra.st", "m0.st"))
    towers = before.architecture.towers.values()
    heads = sum(tower.layers * tower.num_heads for tower in towers)
    assert [sum(len(kept) for tower in mask.values() for kept in tower.keep) for mask in header.masks] == [
        heads - round(heads / 3)
    ] * 3
    assert re.search(
        r"model.st is the (hydra|single model): on the test data the hydra differs in NLL by", seen.out
    )
    shutil.rmtree(folder / "few")


@pytest.mark.parametrize(
    ("nll", "auroc", "macs", "row"),
    [
        ((-0.2, -0.1), (-0.01, 0.01), (3, 1), "hydra"),
        ((-0.1, 0.1), (0.01, 0.02), (3, 1), "hydra"),
        ((-0.1, 0.1), (-0.01, 0.01), (3, 1), "single"),
        ((0.1, 0.2), (-0.01, 0.01), (3, 1), "single"),
        ((-0.2, -0.1), (-0.02, -0.01), (3, 1), "single"),
        ((-0.1, 0.1), (-0.01, 0.01), (0.9, 1), "hydra"),
        ((0.1, 0.2), (-0.01, 0.01), (0.9, 1), "single"),
        ((-0.0002, -0.0001), (-0.01, 0.01), (3, 1), "hydra"),
    ],
)
def test_the_cheapest_row_that_is_not_significantly_worse_is_chosen(tmp_path, nll, auroc, macs, row):
    """Intervals of hydra minus single model. The last case is below the smallest difference of the verdict."""
    report = seeded(0, names=("hydra", "single"), near=(), far=("noise",), curves=False)

    def gap(low, high):
        return Value(value=(low + high) / 2, low=low, high=high)

    names = [f"auroc@{score}" if i else "auroc" for i, score in enumerate(report.ood_scores)]
    difference = Difference(values={"nll": gap(*nll)}, ood={"noise": {names[-1]: gap(*auroc)}})
    hydra, single = (
        r.model_copy(update={"values": r.values | {"macs": Value(value=cost)}})
        for r, cost in zip(report.rows, macs, strict=True)
    )
    rows = (hydra, single.model_copy(update={"difference": difference}))
    (tmp_path / "choice.json").write_text(report.model_copy(update={"rows": rows}).to_json())

    assert choice(tmp_path) == row


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hydra", "tuned", *DATA[2:]), "`--hydra tuned` trains 3 members, but there are no training data"),
        (("--hydra", "tuned", "--train", "digits::split=train", *DATA[2:]), "has 10 classes, but m0.st has 7"),
        (("--val", "digits::classes=0,split=val", *DATA[4:]), "`--val digits::classes=0,split=val`: all samples have the class `0`"),
        ((*DATA[:4], "--test", "digits::classes=3,split=test"), "all samples have the class `3`"),
        ((*DATA[:4], "--test", "digits::classes=8-9,split=test"), "have no class in common"),
    ],
)  # fmt: skip
def test_data_that_give_no_meaningful_model_are_refused_before_the_first_stage(folder, call, words, message):
    seen = call("make", "m0.st", *words, "-o", "other/")

    assert seen.code in {2, 3}
    assert message in seen.err
    assert "hint: " in seen.err
    assert "command 1 of" not in seen.err
    assert not (folder / "other").exists()


def test_a_class_without_samples_in_val_is_named(folder, call):
    few = ("--val", "digits::classes=0-4,split=val,limit=80", *DATA[4:], "--risk", "0.9", "-o", "less/")
    seen = call("make", "m0.st", *few)

    assert seen.code == 0
    assert "has no samples of `5`, `6`, so temperature" in seen.err
    assert (
        "has no samples of" not in call("make", "m0.st", *DATA, "--risk", "0.9", "-o", "less/", "--force").err
    )
    shutil.rmtree(folder / "less")


def test_a_zero_shot_model_gets_class_names_and_a_hydra_without_training(folder, call):
    pair("clip", folder).save(folder / "zero.st")
    data = (
        "--val",
        "digits::classes=0-4,split=val,limit=60",
        "--test",
        "digits::classes=0-4,split=test,limit=30",
    )
    words = ("make", "zero.st", *data, "--risk", "0.95", "-o", "zero/")
    nameless, trained = call(*words), call(*words, "--classes", "0,1,2,3,4", "--hydra", "tuned")
    seen = call(*words, "--classes", "0,1,2,3,4", "--hydra", "pruned", "--pick", "hydra")

    assert (nameless.code, trained.code, seen.code) == (2, 2, 0)
    assert "stores no class names" in nameless.err
    assert "use `--hydra pruned`, which needs no training" in trained.err
    assert "finetune" not in (folder / "zero/make.toml").read_text()
    header = Checkpoint.open(folder / "zero/model.st").header
    assert (len(header.masks), header.labels) == (3, ("0", "1", "2", "3", "4"))
    assert "model.st is the hydra: on the test data the hydra differs in NLL by" in seen.out
    shutil.rmtree(folder / "zero")
