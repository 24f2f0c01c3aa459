"""`hydractl demo`: the pipelines consist of ordinary commands, and the results are printed."""

from __future__ import annotations

import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from PIL import Image

import hydractl
from hydractl.cli.app import command_tree
from hydractl.cli.commands import run as demos
from hydractl.cli.pipeline import parsed
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from support.commands import check_order, check_typed

DEMOS = (*get_args(demos.Task), "full")
PREPARED = {"intents": {"minilm", "questions.jsonl", "model.st"}, "pretrained": {"minilm"}}
ROOT = Path(hydractl.__file__).parents[1]
TINY = """
model = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=8,num_classes=7"
together = 2
apart = 1
long = 1
trunk = 1
risk = 0.9
"""


def lines(name, out=Path("d"), seed=3):
    text = demos.pipeline(name, out, seed)
    return [line for stage in parsed(Path("demo.toml"), text, {}, command_tree()) for line in stage.lines]


def values(commands, *options):
    return [b for line in commands for a, b in pairwise(line) if a in options]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A demo folder, and a function for running the demo with a tiny model."""
    from hydractl.cli.app import main

    folder = tmp_path_factory.mktemp("demo")
    tiny = tomllib.loads(TINY)
    lines = (demos.DEMOS / "digits.toml").read_text().splitlines()
    kept = [line for line in lines if line.partition(" = ")[0] not in tiny]
    (folder / "digits.toml").write_text("\n".join(kept).replace("[params]", f"[params]{TINY}"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(demos, "DEMOS", folder)
        yield folder, lambda *words: main(["demo", "--task", "digits", *words])


@pytest.fixture(scope="module")
def shown(whole):
    """Standard output and standard error of the first run."""
    import contextlib
    import io

    _, run = whole
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert run() == 0
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize("name", DEMOS)
def test_every_command_is_one_that_can_be_run_by_hand_in_the_order_of_what_they_read(name, tmp_path):
    commands = lines(name, tmp_path)

    check_typed(commands)
    check_order(commands, tmp_path, {str(tmp_path / path) for path in PREPARED.get(name, ())})
    assert [line[0] for line in commands].count("eval") == {"digits": 2, "intents": 0}.get(name, 1)


@pytest.mark.parametrize("name", DEMOS)
def test_another_seed_changes_seeds_alone(name):
    one, two = ([word for line in lines(name, seed=seed) for word in line] for seed in (0, 5))
    before = ["", *one]
    changed = {before[i] for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b}

    assert changed == {"--seed"}


def test_a_hydra_is_trained_for_no_longer_than_the_ensemble():
    epochs = [int(number) for number in values(lines("full"), "--epochs")]

    assert sum(epochs[3:7]) <= sum(epochs[:3])


def test_the_single_model_of_the_digits_is_trained_as_long_as_the_hydra():
    tuned = [line for line in lines("digits") if line[:2] == ("finetune", "d/start.st")]
    epochs = [int(number) for number in values(tuned, "--epochs")]

    assert epochs[3] == sum(epochs[:3])


@pytest.mark.parametrize("name", DEMOS)
def test_no_item_has_two_uses(name):
    content = Content.TEXTS if name in {"intents", "pretrained"} else Content.IMAGES
    plain = {*values(lines(name), "--data", "--train", "--val", "--ood")}
    ood = {ref.partition("=")[2] for ref in values(lines(name), "--near", "--far")}
    sets = {ref: open_data(ref, content=content) for ref in plain | ood if "part=" not in ref}
    items = [(data.name, data.key(i)) for data in sets.values() for i in range(len(data))]

    assert len({*items}) == len(items)
    assert all(len(data) >= 100 for data in sets.values())


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--task", "audio"), 2, "pretrained"),
        (("--full",), 2, "`--full` has no effect with `--task intents`"),
        (("-o", "one,two"), 2, "which a comma would break"),
        (("--task", "digits", "-o", "file/demo"), 3, "file/demo"),
        (("--json", "-q"), 2, "exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(call, tmp_path, monkeypatch, words, code, text):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    seen = call("demo", *words)

    assert seen.code == code
    assert text in seen.err
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.parametrize("name", DEMOS)
def test_a_dry_run_prints_the_commands_and_keeps_the_pipeline_where_it_is_told(
    call, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    options = ["--task", "digits", "--full"] if name == "full" else ["--task", name]
    seen = call("demo", *options, "-o", "d", "--dry-run", "--save-pipeline", "kept.toml", "-q")

    assert seen.code == 0
    assert call("run", "kept.toml", "--dry-run", "-q").out == seen.out
    assert len(seen.out.splitlines()) == len(lines(name))
    assert [*tmp_path.iterdir()] == [tmp_path / "kept.toml"]


def test_it_says_where_it_is_and_how_long_it_takes_from_the_first_line(shown):
    _, err = shown
    positions = [line for line in err.splitlines() if line.startswith("command ")]

    assert err.lstrip().startswith("command 1 of 13, about 1.9 min left\nstart: $ hydractl finetune arch:")
    assert [line.partition(",")[0] for line in positions] == [f"command {i + 1} of 13" for i in range(13)]
    assert all(line.endswith(" left") for line in positions)


def test_one_table_of_five_rows_in_80_columns_and_ten_inputs(shown):
    out, _ = shown
    table, inputs = (
        text.splitlines()[2:] for text in (out.partition("Ten inputs")[0], out.partition("Ten inputs")[2])
    )
    rows = [line for line in table[2:] if len(line.split("   ")) > 5]
    answers = inputs[1:11]

    assert [row.split("  ")[0] for row in rows] == [
        "hydra", "single", "trained longer", "pruned", "ensemble",
    ]  # fmt: skip
    assert [line for line in [*table[:8], *inputs[:11]] if len(line) > 80] == []
    assert [line.split()[0] for line in answers] == ["digits"] * 7 + ["photos"] * 2 + ["noise"]
    assert [" none " in line for line in answers] == [False] * 7 + [True] * 3
    assert [line.partition(":")[0] for line in out.splitlines() if line.startswith("hydra against ")] == [
        f"hydra against {row}" for row in ("single", "trained longer", "ensemble")
    ]
    assert "with 95 % confidence, at most 90 % of the accepted inputs are answered wrongly" in out


def test_the_picture_and_the_page_are_there(whole, shown):
    folder, _ = whole
    out, _ = shown

    with Image.open(folder / "hydractl-demo/cost.png") as picture:
        assert (picture.format, min(picture.size) > 500) == ("PNG", True)
    assert "hydractl-demo/cost.png" in out
    assert 'id="cost"' in (folder / "hydractl-demo/report.html").read_text(encoding="utf-8")


@pytest.mark.more
def test_the_same_command_goes_on_where_it_was_interrupted_and_makes_nothing_twice(
    whole, shown, call, monkeypatch
):
    folder, run = whole
    del shown
    out = folder / "hydractl-demo"
    (out / "scores.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in out.glob("*.st")}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hydractl.stages.score.run.run_score", interrupt)
        assert run() == 130
    assert run() == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert call("run", "hydractl-demo/demo.toml", "-q").code == 0
    assert (run("--seed", "1"), {path: path.stat().st_mtime_ns for path in times}) == (6, times)


def test_make_demo_installs_the_package_alone_and_shows_the_progress_of_pip():
    def commands(target: str) -> str:
        words = ["make", "-n", "-C", str(ROOT), "VENV=/nowhere", target]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    assert "pip install --no-compile --disable-pip-version-check -e '.[demo]'\n" in commands("demo")
    assert all(word not in commands("demo") for word in ("[dev]", "--quiet"))
    assert commands("demo").index('echo "Installing ') < commands("demo").index(" -m venv ")
    assert "-e '.[dev]'" in commands("test")
