"""The stages as functions: the command line's options under the same names, quiet, typed, and its errors."""

from __future__ import annotations

import inspect
import json
import re
import warnings
from pathlib import Path

import pytest

import hydractl
from hydractl.api import stub
from hydractl.api.stage import keyword_of, type_of
from hydractl.api.stages import STAGES
from hydractl.cli.app import command_tree
from hydractl.errors import CheckFailed, OutputExists, UsageError
from support.builders import base
from support.heard import Heard

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with three members, as the current one."""
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        base().pruned((0, 1), (2,), (i,)).tuned(i).save(tmp_path / f"m{i}.st")
    return tmp_path


@pytest.mark.newer  # it exports
def test_the_page_on_python_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """From the first block to the last, one after another; warnings of so small a training do not matter."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page

    said = capsys.readouterr()
    assert len(blocks) >= 7
    assert "hydra.st: already exists - add `--force` to replace it" in said.out
    assert said.err == ""
    assert names["found"].labels == tuple(names["hydra"].labels[i] for i in names["found"].classes)
    assert names["accepted"].shape == (3,)
    assert len(Path("predictions.csv").read_text().splitlines()) == 21


def test_a_function_takes_every_option_of_its_command_by_its_name_and_no_other():
    other = {"json", "quiet", "if_changed"}
    for stage in STAGES:
        spelled = [
            [p.name] if p.param_type_name == "argument" else [*p.opts, *p.secondary_opts]
            for p in command_tree().get_command(None, stage.command).params
        ]
        options = [{word.removeprefix("--").replace("-", "_") for word in words} for words in spelled]
        keywords = {*inspect.signature(getattr(hydractl, stage.name)).parameters} - {"progress"}

        assert keywords <= {name for names in options for name in names}, stage.name
        assert [names for names in options if not names & (keywords | other)] == [], stage.name
        assert all(f"\n    {name}: " in getattr(hydractl, stage.name).__doc__ for name in keywords)


def test_the_stub_says_what_the_options_say(monkeypatch, tmp_path, capsys):
    """So that type checkers and editors know the functions too."""
    assert stub.main(["--check"]) == 0
    compile(stub.stub(), "stages.pyi", "exec")
    monkeypatch.setattr(stub, "FILE", tmp_path / "stages.pyi")
    assert stub.main(["--check"]) == 1
    assert stub.main([]) == 0
    assert stub.main(["--check"]) == 0
    types = {(s.name, o.name): type_of(o) for s in STAGES for o in s.options}
    assert types["fuse", "models"] == "str | Path | Sequence[str | Path]"
    assert types["fuse", "mlp"] == 'Literal["merge", "keep"] | None'
    assert types["evaluate", "temperature"] == "str | Path | float | None"
    assert types["predict", "out"] == "str | Path"


def test_lists_paths_and_numbers_are_read_as_a_command_line_is(work):
    report = hydractl.fuse(["m0.st", work / "m1.st", Path("m2.st")], out="h.st", mlp="keep", verify=False)
    assert (report.members, report.paths) == (3, (Path("h.st"),))
    hydra = "h.st"
    measured = hydractl.evaluate(
        hydra, data="digits::split=test,classes=0-6,limit=14", metrics=["accuracy", "ece"], fail_if="accuracy<0.9999",
        device="cpu", latency=False, bootstrap=0, compare=["one=m0.st", "two=m1.st"],
    )  # fmt: skip
    assert [row.name for row in measured.document.rows] == ["h", "one", "two"]
    assert {*measured.document.rows[0].values} == {"accuracy", "ece"}
    with pytest.raises(CheckFailed, match="1 of 1 checks failed"):
        measured.require_checks()
    told = hydractl.predict(
        work / hydra, "digits::limit=3", out=work / "p.jsonl", device="cpu", top_k=1, dtype="fp32"
    )
    assert told.inputs == len([json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]) == 3


def test_functions_are_quiet_unless_asked_and_warnings_are_pythons(work, capsys):
    heard, said = Heard(), []
    with pytest.warns(UserWarning, match="there is only one member: the hydra predicts like one model"):
        hydractl.fuse("m0.st", out="one.st", verify=False)
    hydractl.fuse(["m0.st"], out="two.st", verify=False, progress=heard)
    hydractl.fuse(["m0.st"], out="three.st", verify=False, progress=said.append)

    assert capsys.readouterr() == ("", "")
    assert heard.steps == ["Comparing 1 member", "Writing two.st"]
    assert said[0] == heard.steps[0]
    assert any(text.startswith("warning: there is only one member") for text in said)


def test_errors_are_those_of_the_command(work):
    hydractl.fuse(["m0.st", "m1.st"], out="h.st", verify=False)
    with pytest.raises(OutputExists, match="already exists"):
        hydractl.fuse(["m0.st", "m1.st"], out="h.st")
    with pytest.raises(UsageError, match="`--mlp mix`: unknown"):
        hydractl.fuse(["m0.st", "m1.st"], out="x.st", mlp="mix")
    with pytest.raises(TypeError, match=r"fuse\(\) has no option `merge_tunk`; did you mean `merge_trunk`\?"):
        hydractl.fuse(["m0.st"], out="x.st", merge_tunk=1)
    with pytest.raises(TypeError, match=r"prune\(\) has no option `masks`; did you mean `mask`\?"):
        hydractl.prune("m0.st", out="x.st", masks=["mask.json"])
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        hydractl.predict("m0.st", "digits")
    with pytest.raises(ValueError, match="classes: `a,b` contains a comma"):
        hydractl.predict("m0.st", "digits", out="x.csv", classes=["a,b", "c"])


BOUNDED = {
    stage: [option for option in stage.options if {option.setting.low, option.setting.above} != {None}]
    for stage in STAGES
}


@pytest.mark.parametrize(
    "stage", [stage for stage in BOUNDED if BOUNDED[stage]], ids=lambda stage: stage.name
)
def test_a_number_out_of_range_is_refused_as_the_option_is_called(stage):
    needed = {o.name: "x" for o in stage.options if o.default is ...}
    if suffix := {"predict": ".csv", "export": ".onnx"}.get(stage.name):
        needed["out"] += suffix
    for option in BOUNDED[stage]:
        least = option.setting.above if option.setting.low is None else option.setting.low

        with pytest.raises(UsageError, match=f"`{option.setting.option(option.name)} "):
            getattr(hydractl, stage.name)(**needed | {keyword_of(option): least - 1})
