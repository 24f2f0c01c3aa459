"""`--log-to`: values logged to trackers of accelerate; outputs do not change."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
from accelerate import tracking

from hydractl.data.reference import DataRef
from hydractl.errors import InputError, OutputError, UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.scoring.methods import METHODS
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from hydractl.training import run_log
from hydractl.training.recipe import Recipe
from support.builders import base
from support.progress_log import InterruptedLoop, InterruptedProgress
from support.ranks import environment, launcher
from support.variants import variant

pytestmark = pytest.mark.usefixtures("one_thread")

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
TRAIN, VAL = "digits::split=train,classes=0-6,limit=96", "digits::split=val,classes=0-6,limit=40"
RECIPE = Recipe(lr=(1e-3, 1e-2), epochs=4, batch_size=16, schedule="linear", dropout=0.1)
STEPS = 24
"""Steps per learning rate; six steps are an epoch."""


class Planted(tracking.GeneralTracker):
    """Tracker that records its calls and the earlier trackers."""

    name, requires_logging_directory = "wandb", False
    runs: list[Planted]
    main_process_only = True
    fails_at = None

    def __init__(self, run_name, **options):
        super().__init__()
        self.project, self.options, self.logged, self.configuration, self.finished = (
            run_name,
            options,
            [],
            None,
            False,
        )
        type(self).__mro__[-3].runs.append(self)

    tracker = property(lambda self: self)

    def store_init_configuration(self, values):
        self.configuration = values

    def log(self, values, step=None, **_):
        if step == self.fails_at:
            raise ConnectionError("the server is gone\nTraceback of its own")
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def runs(monkeypatch):
    """Trackers started so far."""
    monkeypatch.setattr(Planted, "runs", [], raising=False)
    monkeypatch.setattr(Planted, "fails_at", None)
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "wandb", Planted)
    monkeypatch.setattr(run_log, "find_spec", lambda _: True)
    return Planted.runs


def run_in_processes(argv, folder):
    """Run a launcher's command line and assert its success."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment(PYTHON_EXEC=argv[0]),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def config(out, **changes):
    given = {
        "train": DataRef.parse(TRAIN),
        "val": DataRef.parse(VAL),
        "recipe": RECIPE,
        "device": "cpu",
        "log_to": ("wandb",),
    }
    return FinetuneConfig(model=ARCH, out=out, **(given | changes))


def scalars(folder):
    """Return the scalars that TensorBoard reads from a folder: lists of (step, value) by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_finetune_logs_losses_rates_and_metrics(runs, tmp_path):
    """Log every ten steps and at each validation. Steps of the second rate follow the first rate's steps."""
    report = run_finetune(config(tmp_path / "out.st"))

    (run,) = runs
    assert run.project == "hydractl"
    assert run.options["name"].startswith("out.st-")
    assert run.options["dir"] == tmp_path / "out.st.logs"
    assert run.configuration["lr"] == "0.001,0.01"
    assert (run.configuration["model"], run.configuration["epochs"], run.configuration["seed"]) == (
        ARCH,
        4,
        0,
    )
    assert run.finished
    expected = sorted({*range(10, STEPS, 10), *range(6, STEPS + 1, 6)})
    assert [step for step, _ in run.logged] == [*expected, *(STEPS + step for step in expected)]
    for step, values in run.logged:
        own = (step - 1) % STEPS + 1
        assert values["epoch"] == own / 6
        assert values["train/loss"] > 0
        assert ("validation/nll" in values) == (own % 6 == 0)
    rates = [values["train/lr"] for _, values in run.logged]
    assert all(later < earlier <= 1e-3 for earlier, later in pairwise(rates[:6]))
    assert rates[6:] == pytest.approx([10 * rate for rate in rates[:6]])
    last = dict(run.logged)[2 * STEPS if report.lr == 1e-2 else STEPS]
    assert (last["validation/accuracy"], last["validation/nll"]) == (report.accuracy, report.nll)


@pytest.mark.more
def test_logging_changes_no_byte(runs, tmp_path):
    run_finetune(config(tmp_path / "plain.st", log_to=()))
    run_finetune(config(tmp_path / "logged.st"))

    assert (tmp_path / "plain.st").read_bytes() == (tmp_path / "logged.st").read_bytes()
    assert not (tmp_path / "plain.st.logs").exists()


def test_a_run_that_was_cut_off_goes_on_under_its_name_and_steps(runs, tmp_path):
    run_finetune(config(tmp_path / "whole.st"))
    out, cuts = tmp_path / "out.st", 0
    while not out.exists():
        cuts += 1
        try:
            run_finetune(config(out, save_every=1), InterruptedProgress(3))
        except KeyboardInterrupt:
            assert runs[-1].finished

    whole, *parts = runs
    assert len(parts) == cuts > 1
    assert len({run.options["name"] for run in parts}) == 1 < len({run.options["name"] for run in runs})
    assert [run.configuration is None for run in parts] == [False] + [True] * (cuts - 1)
    steps = [entry for run in parts for entry in run.logged]
    # wandb ignores steps that do not increase.
    assert [step for step, _ in steps] == sorted(step for step, _ in steps)
    assert dict(steps) == dict(whole.logged)

    run_finetune(config(out, force=True))
    assert runs[-1].options["name"] != parts[0].options["name"]


@pytest.mark.more
def test_a_tracker_that_fails_ends_the_run_which_can_go_on(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(Planted, "fails_at", 12)
    with pytest.raises(OutputError, match=r"^`--log-to wandb`: the server is gone$") as caught:
        run_finetune(config(tmp_path / "out.st", save_every=1))
    assert caught.value.hint.startswith("check that wandb can write its files, or leave out `--log-to wandb`")
    assert "the same command resumes it" in caught.value.hint
    monkeypatch.setattr(Planted, "fails_at", None)

    assert run_finetune(config(tmp_path / "out.st", save_every=1)).resumed_from > 0


def test_tensorboard_reads_it(tmp_path):
    report = run_finetune(
        config(tmp_path / "out.st", log_to=("tensorboard",), recipe=replace(RECIPE, lr=(1e-2,)))
    )

    record = json.loads((tmp_path / "out.st.logs" / "out.st.run.json").read_text())
    found = scalars(tmp_path / "out.st.logs" / record["name"])
    assert [step for step, _ in found["validation/nll"]] == [6, 12, 18, 24]
    assert found["validation/nll"][-1][1] == pytest.approx(report.nll, rel=1e-6)
    assert [step for step, _ in found["train/loss"]] == [6, 10, 12, 18, 20, 24]
    assert set(found) >= {"train/lr", "epoch", "validation/accuracy"}


@pytest.mark.more
def test_of_two_processes_one_logs_and_the_loss_is_that_of_the_batch(tmp_path, python):
    words = [
        "-m",
        "hydractl",
        "finetune",
        ARCH,
        "--train",
        TRAIN,
        "--val",
        VAL,
        "--lr",
        "1e-2",
        "--epochs",
        "2",
    ]
    words += ["--optimizer", "sgd", "--device", "cpu", "--batch-size", "16", "-q", "--log-to", "tensorboard"]
    found = []
    for world in (1, 2):
        argv = [*launcher(world, python()), *words, "--log-dir", f"logs-{world}", "-o", f"{world}.st"]
        run_in_processes(argv, tmp_path)
        (folder,) = [path for path in (tmp_path / f"logs-{world}").iterdir() if path.is_dir()]
        found.append(scalars(folder))

    assert [step for step, _ in found[1]["train/loss"]] == [6, 10, 12]
    for tag, values in found[0].items():
        assert found[1][tag] == [(step, pytest.approx(value, abs=1e-5)) for step, value in values]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(base(variant("timm-vit-class-token")).save(tmp_path_factory.mktemp("model") / "base.st"))


def scoring(model, out, **changes):
    given = {
        "data": VAL,
        "budget": HeadBudget(remove=4),
        "device": "cpu",
        "log_to": ("wandb",),
        "given": {"objective": "acc", "search": "exact"},
    }
    return ScoreConfig(model=model, out=out, **(given | changes))


def test_a_search_logs_its_objective_also_when_it_goes_on(runs, tmp_path, model):
    whole = run_score(scoring(model, tmp_path / "whole.json")).scores
    with pytest.raises(KeyboardInterrupt):
        run_score(scoring(model, tmp_path / "out.json"), InterruptedLoop(2))
    run_score(scoring(model, tmp_path / "out.json"))

    logged = [(0, whole.baseline), *((i, r.objective) for i, r in enumerate(whole.removals, 1))]
    assert [(step, values["objective"]) for step, values in runs[0].logged] == logged
    assert [(step, values["objective"]) for run in runs[1:] for step, values in run.logged] == logged
    assert runs[1].options["name"] == runs[2].options["name"] != runs[0].options["name"]
    assert (runs[0].configuration["method"], runs[0].configuration["removals"]) == ("circuit", 4)


@pytest.mark.skipif("l0" not in METHODS, reason="a method of research")
def test_gates_log_their_training(runs, tmp_path, model):
    run_score(scoring(model, tmp_path / "out.json", method="l0", given={"epochs": 2}, batch_size=8))

    assert [step for step, _ in runs[0].logged] == [5, 10]
    assert {"train/loss", "train/lr", "training/accuracy"} <= runs[0].logged[-1][1].keys()


@pytest.mark.more
def test_scores_of_two_processes_are_logged_by_one(tmp_path, python, model):
    words = [
        "-m",
        "hydractl",
        "score",
        model,
        "--data",
        VAL,
        "--objective",
        "acc",
        "--remove",
        "2",
        "--batch-size",
        "16",
    ]
    argv = [
        *launcher(2, python()),
        *words,
        "--device",
        "cpu",
        "-q",
        "--log-to",
        "tensorboard",
        "-o",
        "out.json",
    ]
    run_in_processes(argv, tmp_path)

    (folder,) = [path for path in (tmp_path / "out.json.logs").iterdir() if path.is_dir()]
    assert [step for step, _ in scalars(folder)["objective"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"log_to": ("trackio",)}, "`--log-to trackio`: trackio is not installed", "`pip install trackio`"),
        ({"log_dir": "logs"}, "`--log-dir` has no effect without `--log-to`", "add `--log-to NAME`"),
        (
            {"log_to": ("neptune",)},
            "`--log-to neptune`: unknown",
            "choose from tensorboard, wandb, mlflow, trackio",
        ),
    ],
)
def test_what_cannot_be_logged_is_refused(tmp_path, monkeypatch, changes, said, hint):
    monkeypatch.setattr(run_log, "find_spec", lambda name: None if name == "trackio" else True)
    with pytest.raises(UsageError) as caught:
        config(tmp_path / "out.st", **({"log_to": ()} | changes))
    assert caught.value.message.startswith(said)
    assert hint in caught.value.hint


def test_a_stream_has_no_default_folder_for_its_log(runs):
    from pathlib import Path

    with pytest.raises(UsageError, match="no default folder") as caught:
        config(Path("-"))
    assert "--log-dir" in caught.value.hint
    config(Path("-"), log_dir=Path("logs"))


def test_a_method_without_steps_has_nothing_to_log(runs, tmp_path, model):
    with pytest.raises(UsageError, match="`--log-to` has no effect with `--method taylor`: it has no steps"):
        scoring(model, tmp_path / "out.json", method="taylor", given={}, budget=None)


@pytest.mark.parametrize("text", ["no JSON", '{"name": 3}'])
def test_an_unreadable_name_of_a_run_is_refused(tmp_path, text):
    (tmp_path / "out.st.run.json").write_text(text)

    with (
        pytest.raises(InputError) as caught,
        run_log.open_run_log(
            ["wandb"], tmp_path, out=tmp_path / "out.st", options={}, resumes=True, leads=True
        ),
    ):
        pass
    assert caught.value.hint == "choose another `--log-dir`"
