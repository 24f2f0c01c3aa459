"""`hydractl eval`: parsing, printed tables, and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.evaluation.options import Condition, NamedData, NamedModels
from hydractl.manifest.report import Report
from hydractl.metrics.registry import METRICS
from hydractl.stages.evaluate.config import EvalConfig
from support.builders import base
from support.pictures import digits_folder

DATA = "digits::split=test,classes=0-6,limit=40"
QUICK = ["--no-latency", "--bootstrap", "0", "--device", "cpu"]
GOLDEN = Path(__file__).parent.parent / "golden" / "report-1.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(base().save(tmp_path_factory.mktemp("models") / "base.st"))


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["m.st", "--data", "digits"], {}),
        (
            ["m.st", "--data", "digits", "--near", "a=photos", "--near", "noise", "--far", "b=x/y"],
            {
                "near": (NamedData.parse("a=photos"), NamedData.parse("noise")),
                "far": (NamedData.parse("b=x/y"),),
            },
        ),
        (
            ["m.st", "--data", "digits", "--compare", "b=b.st", "--compare", "e=c.st,d.st", "--name", "mine"],
            {"compare": (NamedModels.parse("b=b.st"), NamedModels.parse("e=c.st,d.st")), "name": "mine"},
        ),
        (
            ["m.st", "--data", "digits", "--temperature", "digits::split=val"],
            {"temperature": DataRef.parse("digits::split=val")},
        ),
        (["m.st", "--data", "digits", "--temperature", "1.5"], {"temperature": 1.5}),
        (
            ["m.st", "--data", "digits", "--fail-if", "ece>0.02", "--metrics", "ece,nll"],
            {"fail_if": (Condition.parse("ece>0.02"),), "metrics": ("ece", "nll")},
        ),
        (
            ["m.st", "--data", "digits", "-o", "r.json", "--save-predictions", "p.st", "--force"],
            {"out": Path("r.json"), "save_predictions": Path("p.st"), "force": True},
        ),
        (
            [
                "m.st", "--data", "digits", "--batch-size", "8", "--device", "cpu", "--dtype", "bf16", "--seed", "3",
                "--bootstrap", "9", "--no-latency", "--arch", "vit",
            ],
            {
                "batch_size": 8, "device": "cpu", "dtype": "bf16", "seed": 3, "bootstrap": 9, "latency": False,
                "arch": "vit",
            },
        ),
    ],
)  # fmt: skip
def test_what_the_options_mean(argv, expected, monkeypatch):
    seen = []

    def record(config, progress):
        seen.append(config)
        raise StopError

    monkeypatch.setattr("hydractl.stages.evaluate.run.run_eval", record)
    monkeypatch.setattr("hydractl.cli.command._check_inputs", lambda _: None)
    with pytest.raises(StopError):
        main(["eval", *argv])

    assert seen == [EvalConfig(**({"model": "m.st", "data": DataRef.parse("digits")} | expected))]


def test_the_table_names_every_number(model, capsys):
    code = main(
        ["eval", model, "--data", DATA, "--near", "others=digits::classes=7-9", "--far", "noise", *QUICK]
    )

    out, err = capsys.readouterr()
    assert code == 0
    head = out.splitlines()[0].replace(" ↑", "+").replace(" ↓", "-").split()
    assert head == [
        "model",
        "Acc+",
        "Brier-",
        "NLL-",
        "ECE-",
        "aECE-",
        "AUROC+",
        *["accepted", "at", "95", "%", "known-"],
        "FPR95-",
        "AUPR+",
        "Params-",
        "MACs-",
    ]
    assert "others (near OOD: digits::classes=7-9" in out
    assert "noise (far OOD: noise, 400 samples)" in out
    assert "Evaluating base" in err


@pytest.mark.parametrize(
    ("temperature", "note", "shown"),
    [
        (
            "digits::split=val,classes=0-6,limit=30",
            "Logits are divided by T, fitted on digits::classes=0-6,limit=30,split=val, 30 samples\n",
            r"\d+\.\d{3}",
        ),
        ("1.5", "Logits are divided by T, as given\n", r"1\.500"),
    ],
)
def test_the_table_shows_the_temperature(model, temperature, note, shown, capsys):
    assert main(["eval", model, "--data", DATA, "--temperature", temperature, *QUICK]) == 0

    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:3] == ["model", "T", "Acc"]
    assert re.fullmatch(shown, out.splitlines()[2].split()[1])
    assert note in out


def test_a_saved_report_shows_it_too(model, tmp_path, capsys):
    file = tmp_path / "r.json"
    assert main(["eval", model, "--data", DATA, "--temperature", "1.5", *QUICK, "-o", str(file)]) == 0
    shown = capsys.readouterr().out

    assert main(["inspect", str(file)]) == 0

    assert "Logits are divided by T, as given" in shown
    assert "Logits are divided by T, as given" in capsys.readouterr().out


def test_json_is_the_report_file(model, tmp_path, capsys):
    file = tmp_path / "r.json"

    assert main(["eval", model, "--data", DATA, *QUICK, "--json", "-o", str(file)]) == 0

    out, err = capsys.readouterr()
    assert out == file.read_text()
    assert Report.from_json(out, place="stdout").rows[0].name == "base"
    assert err == ""


def test_quiet_prints_the_paths_written(model, tmp_path, capsys):
    files = [tmp_path / "p.st", tmp_path / "r.json"]
    argv = [
        "eval",
        model,
        "--data",
        DATA,
        *QUICK,
        "-q",
        "-o",
        str(files[1]),
        "--save-predictions",
        str(files[0]),
    ]

    assert main(argv) == 0

    assert capsys.readouterr().out == f"{files[0]}\n{files[1]}\n"


def test_the_report_goes_down_a_pipe(model, capfd):
    assert main(["eval", model, "--data", DATA, *QUICK, "-o", "-"]) == 0

    out, err = capfd.readouterr()
    assert Report.from_json(out, place="pipe").data["id"].count == 40
    assert "Acc" in err


def test_an_interrupted_run_leaves_nothing(model, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hydractl.evaluation.rows.answers", interrupted)

    assert main(["eval", model, "--data", DATA, *QUICK, "-o", str(tmp_path / "r.json")]) == 130

    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_shows_everything_and_exits_5(model, tmp_path, capsys):
    argv = ["eval", model, "--data", DATA, *QUICK, "-o", str(tmp_path / "r.json")]

    code = main([*argv, "--fail-if", "accuracy<0.99", "--fail-if", "nll>1e9"])

    out, err = capsys.readouterr()
    assert code == 5
    assert "failed: accuracy<0.99, measured 0." in out
    assert "ok: nll>1000000000, measured " in out
    assert "error: 1 of 2 checks failed for `base`: `accuracy<0.99` (measured 0." in err
    report = json.loads((tmp_path / "r.json").read_text())
    assert [c["failed"] for c in report["checks"]] == [True, False]
    assert main([*argv, "--fail-if", "accuracy<0.99", "--fail-if", "nll>1e9", "--if-changed", "--json"]) == 5
    told = json.loads(capsys.readouterr().out)
    assert (told["error"]["kind"], told["error"]["exit_code"]) == ("check_failed", 5)
    assert told["rows"] == report["rows"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "`--data` is missing"),
        (["--data", "digits::splt=test"], 2, "unknown key `splt`"),
        (
            ["--data", DATA, "--near", "val=noise"],
            2,
            "an OOD data set cannot be called `val`\n\nhint: `--near NAME=DATA`",
        ),
        (["--data", DATA, "--fail-if", "ece>"], 2, "`--fail-if ece>`: expected METRIC"),
        (["--data", DATA, "--metrics", "ac"], 2, "unknown metric `ac`\n\nhint: did you mean `accuracy`?"),
        (
            ["--data", DATA, "--fail-if", "acuracy<0.9"],
            2,
            "unknown metric `acuracy`\n\nhint: did you mean `accuracy`?",
        ),
        (["--data", DATA, "-o", "/proc/hydractl.json"], 3, "/proc/hydractl.json: cannot be written"),
        (["--data", DATA, "--metrics", "auroc"], 2, "`auroc` cannot be measured without an OOD data set"),
        (["--data", DATA, "--dtype", "int4"], 2, "unknown dtype `int4`"),
        (["--data", DATA, "--json", "-q"], 2, "exclude each other"),
        (["--data", DATA, "-q"], 2, "`-q` prints only the paths written, but nothing is written"),
        (["--data", DATA, "--json", "-o", "-"], 2, "both write to standard output"),
        (["--data", DATA, "-o", "-", "--save-predictions", "-"], 2, "name the same file"),
        (["--data", "digits"], 3, "model"),
        (["--data", "noise"], 3, "noise: has no labels, but `--data` needs them"),
        (["--data", DATA, "--far", "x=nowhere"], 3, "nowhere"),
        (["--data", DATA, "--temperature", "0"], 2, "must be between 0.001 and 1000"),
        (["--data", DATA, "--temperature", "-2"], 2, "must be between 0.001 and 1000"),
        (["--data", DATA, "--temperature", "digits::splt=val"], 2, "unknown key `splt`"),
        (
            ["--data", DATA, "--temperature", "noise"],
            3,
            ("noise: has no labels, but `--temperature` needs them"),
        ),
        (["--data", DATA, "--temperature", "digits"], 3, "its class `7` is not in `--data`"),
        (["--data", DATA, "--metrics", "temperature"], 2, "cannot be measured without `--temperature`"),
        (["--data", DATA, "--compare", "x=nowhere.st"], 3, "nowhere.st: no such file or folder"),
        (["--data", DATA, "-o", "nowhere/r.json"], 3, "folder `nowhere` does not exist"),
    ],
)
def test_every_refusal_is_one_message_and_leaves_nothing(
    options, code, message, model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    assert main(["eval", model, *options, *QUICK]) == code

    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == "" or json.loads(out)["error"]["exit_code"] == code
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_cannot_be_read_is_answered_with_the_option_that_leaves_it_out(model, tmp_path, call):
    root = digits_folder(tmp_path / "d", DATA)
    (root / "0" / "bad.png").write_bytes(b"no image")

    seen = call("eval", model, "--data", root, *QUICK)
    assert seen.code == 3
    assert "bad.png: is not an image that can be decoded" in seen.err
    assert seen.err.rstrip().endswith(", or add `--skip-bad`")
    seen = call("eval", model, "--data", root, *QUICK, "--skip-bad")
    assert seen.code == 0
    assert "warning: d: skipped 1 of" in seen.err


def test_existing_output_is_kept(model, tmp_path, capsys):
    file = tmp_path / "r.json"
    file.write_text("mine")

    assert main(["eval", model, "--data", DATA, *QUICK, "-o", str(file)]) == 6

    assert "already exists" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("metrics", "note"),
    [
        ("parameters", " 40 samples\n"),
        ("accuracy,nll", " 40 samples. Acc is a share of 1\n"),
        ("accuracy,auroc", "; AUROC is a mean over 2 OOD sets. Acc and AUROC are shares of 1\n"),
        ("fpr95,aupr,nll", "; FPR95 and AUPR are means over 2 OOD sets. FPR95 and AUPR are shares of 1\n"),
    ],
)
def test_the_note_is_about_the_columns_that_are_there(model, capsys, metrics, note):
    ood = (
        ["--far", "a=noise::limit=8", "--far", "b=photos::limit=8"]
        if {"auroc", "aupr"} & {*metrics.split(",")}
        else []
    )

    assert main(["eval", model, "--data", DATA, *ood, *QUICK, "--metrics", metrics]) == 0

    assert note in capsys.readouterr().out


def test_the_help_names_every_metric(capsys):
    assert main(["eval", "--help", "--all"]) == 0

    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert {*METRICS} <= words


def test_a_report_renders_without_models(capsys):
    from hydractl.cli.commands.measure import show_report as render
    from hydractl.cli.output import console

    render(Report.read(GOLDEN), console())

    out = capsys.readouterr().out
    assert "Hydra (Circ)" in out
    assert "0.900 [0.880, 0.920]" in out
    assert "1.25 ms" in out


@pytest.mark.parametrize(("options", "code", "message", "hint"), [
    (["--near", "7"], 3, "7: no such folder or file", "`--near NAME=DATA`: DATA is `digits`"),
    (["--far", "nois"], 3, "nois: no such folder or file", "`--far NAME=DATA`: did you mean `noise`?"),
    (["--far", "A="], 2, "the data reference has no source", "`--far NAME=DATA`: DATA is"),
    (["--compare", "none.st"], 3, "none.st: no such file", "`--compare NAME=MODEL[,MODEL...]`: a MODEL is"),
    (["--compare", "A="], 2, "`A`: an empty model reference", "`--compare NAME=MODEL[,MODEL...]`: for example `'Deep"),
    (["--compare", "=b.st"], 2, "a name is empty", "choose another: use `--name NAME` for MODEL and `NAME=...` for other rows"),
    (["--compare", "/"], 2, "`/`: needs a name for the tables", "use `--name NAME` for MODEL and `NAME=...` for other rows"),
    (["--train", "7", "--ood-score", "knn", "--near", "noise"], 3, "7: no such folder or file", "DATA is `digits`"),
])  # fmt: skip
def test_what_cannot_be_read_is_answered_with_the_form_of_its_option(
    call, model, options, code, message, hint
):
    seen = call("eval", model, "--data", DATA, *options)

    assert seen.code == code
    assert seen.err.startswith(f"error: {message}")
    assert f"\nhint: {hint}" in seen.err


def test_a_model_without_a_name_is_named(call):
    seen = call("eval", "/", "--data", DATA)

    said, hint = seen.err.split("\n\n")
    assert (seen.code, said) == (2, "error: `/`: needs a name for the tables")
    assert hint == "hint: use `--name NAME` for MODEL and `NAME=...` for other rows\n"
