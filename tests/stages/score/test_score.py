from __future__ import annotations

import json

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from hydractl import runtime
from hydractl.errors import CheckpointError, DataError, ManifestError, OutputExists, UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadImportance, Removal
from hydractl.scoring.journal import JournalFile
from hydractl.scoring.methods import METHODS
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from support.builders import base
from support.progress_log import InterruptedLoop, ProgressLog
from support.variants import variant

DIGITS = "digits::classes=0-6,limit=40"
NINES = "digits::classes=9,limit=30"


def circuit(model, out, **changes):
    settings = {"data": DIGITS, "ood": NINES, "budget": HeadBudget(remove=5), "batch_size": 16} | changes
    return ScoreConfig(model=model, out=out, **settings)


def test_a_circuit_file_says_everything(model, tmp_path):
    report = run_score(circuit(model, tmp_path / "s.json"))

    found = HeadImportance.read(tmp_path / "s.json")
    assert found == report.scores
    assert (found.method, found.objective, found.options["removals"]) == ("circuit", "avg", 5)
    assert len(found.removals) == 5
    assert (found.data["id"].count, found.data["ood"].count) == (40, 30)
    assert report.paths == (tmp_path / "s.json",)
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupted_run_ends_with_the_same_bytes(model, tmp_path, after):
    whole = tmp_path / "whole.json"
    run_score(circuit(model, whole))
    out = tmp_path / "s.json"
    with pytest.raises(KeyboardInterrupt) as caught:
        run_score(circuit(model, out), InterruptedLoop(after))
    assert caught.value.__notes__ == [f"the progress is saved in {out}.journal; the same command resumes it"]
    assert not out.exists()
    assert len(json.loads((tmp_path / "s.json.journal").read_text())["removals"]) == after

    report = run_score(circuit(model, out))

    assert report.resumed_from == after
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "s.json.journal").exists()


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("given", [{}, {"objective": "acc-0.1*nll"}])
def test_an_interrupted_search_ends_with_the_same_bytes(model, tmp_path, monkeypatch, given):
    monkeypatch.setattr("hydractl.scoring.circuit.search.FULL_EVALUATION_INTERVAL", 3)
    settings = {"given": {"search": "lazy", **given}} | ({"ood": None} if "objective" in given else {})
    whole = tmp_path / "whole.json"
    run_score(circuit(model, whole, **settings))
    out = tmp_path / "s.json"
    for after in (
        2,
        4,
        1,
    ):  # steps since the last full check; the third run stops before the position of the second
        with pytest.raises(KeyboardInterrupt):
            run_score(circuit(model, out, **settings), InterruptedLoop(after))

    report = run_score(circuit(model, out, **settings))

    assert report.resumed_from == 4
    assert out.read_bytes() == whole.read_bytes()
    assert report.scores.results["exact_evaluations"] == 12 + 11 + 10 + 9 + 8


def test_a_search_is_recorded_unless_it_is_algorithm_1(model, tmp_path):
    usual = run_score(circuit(model, tmp_path / "a.json", given={"search": "exact"})).scores
    other = run_score(
        circuit(
            model,
            tmp_path / "b.json",
            given={"ood_score": "energy", "objective": "fpr95"},
        )
    ).scores

    assert not {"search", "ood_score"} & set(usual.options)
    assert usual.results == {}
    assert {
        "search": "lazy",
        "ood_score": "energy",
    }.items() <= other.options.items()
    assert other.objective == "-fpr95"
    assert set(other.results) == {"evaluations", "exact_evaluations", "work", "swapped"}


def test_a_bound_on_memory_changes_no_byte(model, tmp_path):
    for name, bound in (("a.json", None), ("b.json", 1 << 24)):
        run_score(circuit(model, tmp_path / name, max_memory=bound))

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.more
@pytest.mark.newer
def test_a_compiled_search_ends_with_the_same_bytes_and_goes_on(model, tmp_path, monkeypatch):
    """The backend runs graphs without changes; kernels of the default backend would round differently."""
    count = CompileCounter()
    monkeypatch.setattr(runtime, "BACKEND", count)
    whole, out = tmp_path / "whole.json", tmp_path / "s.json"
    run_score(circuit(model, whole))
    with pytest.raises(KeyboardInterrupt):
        run_score(circuit(model, out, compile=True), InterruptedLoop(3))
    assert count.frame_count == 1

    report = run_score(circuit(model, out, compile=True))

    assert (report.resumed_from, count.frame_count) == (3, 2)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.newer
def test_a_machine_that_cannot_compile_is_told_before_anything_is_written(model, tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("no working C++ compiler found")

    monkeypatch.setattr(runtime, "BACKEND", fails)

    with pytest.raises(
        UsageError, match=r"--compile`: .*base.st cannot be compiled here: .*no working"
    ) as caught:
        run_score(circuit(model, tmp_path / "s.json", compile=True))

    assert caught.value.hint == "leave out `--compile`"
    assert not list(tmp_path.iterdir())


def test_another_runs_journal_is_refused_unless_forced(model, tmp_path):
    out = tmp_path / "s.json"
    with pytest.raises(KeyboardInterrupt):
        run_score(circuit(model, out), InterruptedLoop(2))

    with pytest.raises(OutputExists, match=r"other options, inputs or versions: `removals` was 5, is now 4$"):
        run_score(circuit(model, out, budget=HeadBudget(remove=4)))
    progress_log = ProgressLog()
    report = run_score(circuit(model, out, budget=HeadBudget(remove=4), force=True), progress_log)

    assert progress_log.warnings == [
        f"`--force` starts again: the state of an unfinished run in {out}.journal is discarded"
    ]
    assert report.resumed_from == 0
    assert len(report.scores.removals) == 4


@pytest.fixture(scope="module")
def journal_text(model, tmp_path_factory):
    """A journal with three removals."""
    out = tmp_path_factory.mktemp("journal") / "s.json"
    with pytest.raises(KeyboardInterrupt):
        run_score(circuit(model, out), InterruptedLoop(3))
    return out.with_name("s.json.journal").read_text()


def changed_journal(text, **changes):
    """Return the journal with changed values and a matching digest."""
    journal = JournalFile.from_json(text, place="the journal")
    return journal.model_copy(update=changes).sealed().to_json()


def removing(text, tower, layer, head):
    removals = JournalFile.from_json(text, place="the journal").removals
    return changed_journal(
        text, removals=(*removals, Removal(tower=tower, layer=layer, head=head, objective=0.5))
    )


@pytest.mark.parametrize(
    "change", [
        lambda text: text[:-20],
        lambda text: text + "3",
        lambda text: text[:-1] + "[" * 200_000,
        lambda text: text.replace('"objective": ', '"objective": 1'),
        lambda text: text.replace('"baseline": ', '"baseline": 1'),
        lambda text: text.replace('"tower": "vision"', '"tower": 3'),
        lambda text: text.replace('"memory": {', '"memory": {"x": 1'),
        lambda text: removing(text, "text", 0, 0),
        lambda text: removing(text, "vision", 9, 0),
        lambda text: changed_journal(text, removals=2 * JournalFile.from_json(text, place="the journal").removals),
    ],
    ids=["cut off", "no JSON", "deep", "objective", "baseline", "no removal", "no memory", "tower", "layer", "twice"],
)  # fmt: skip
def test_a_damaged_journal_is_refused(model, tmp_path, journal_text, change):
    path = tmp_path / "s.json.journal"
    path.write_text(change(journal_text))

    with pytest.raises(ManifestError, match="damaged") as caught:
        run_score(circuit(model, tmp_path / "s.json"))
    assert "--force" in caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("make", [
    lambda path: path.mkdir(), lambda path: path.write_text("mine\n"),
    lambda path: path.write_text('{"schema": "hydractl.scores/1"}\n'), lambda path: path.symlink_to("nowhere"),
], ids=["folder", "notes", "JSON", "link"])  # fmt: skip
def test_what_is_no_journal_is_never_touched(model, tmp_path, make, force):
    path = tmp_path / "s.json.journal"
    make(path)
    before = [path.lstat()[i] for i in (0, 1, 6, 8)]

    with pytest.raises(
        OutputExists,
        match=(
            "the journal of the run goes here, but the existing file is not from this version of hydractl"
        ),
    ):
        run_score(circuit(model, tmp_path / "s.json", force=force))
    assert [path.lstat()[i] for i in (0, 1, 6, 8)] == before


@pytest.mark.parametrize("force", [False, True])
def test_a_journal_of_0_bytes_counts_as_missing(model, tmp_path, force):
    (tmp_path / "s.json.journal").touch()
    for name in ("s.json", "plain.json"):
        run_score(circuit(model, tmp_path / name, force=force))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain.json", "s.json"]
    assert (tmp_path / "s.json").read_bytes() == (tmp_path / "plain.json").read_bytes()


@pytest.mark.parametrize("method", ["taylor", "magnitude", "random"])
def test_other_methods_score_every_head_twice_alike(model, tmp_path, method):
    config = {
        "model": model,
        "method": method,
        "data": DIGITS,
        "budget": HeadBudget(keep_per_layer=2),
        "seed": 3,
    }

    for name in ("a.json", "b.json"):
        run_score(ScoreConfig(out=tmp_path / name, **config))

    found = HeadImportance.read(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert [len(row) for row in found.towers["vision"].scores] == [4, 4, 4]
    assert found.removals is None
    assert ("id" in found.data) == (method == "taylor")


@pytest.mark.parametrize("method", ["taylor", "cahp"])
def test_scoring_in_a_dtype_is_scoring_a_model_of_that_dtype(model, tmp_path, method):
    half = base(variant("class-token")).cast(torch.bfloat16).save(tmp_path / "half.st")

    full, asked, stored = (
        run_score(
            circuit(str(path), tmp_path / f"{i}.json", method=method, ood=None, dtype=dtype)
        ).scores.towers
        for i, (path, dtype) in enumerate([(model, None), (model, "bf16"), (half, None)])
    )

    assert asked == stored != full


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, True),
        ({"budget": HeadBudget(remove=4)}, False),
        ({"method": "taylor", "given": {}}, True),
        ({"method": "taylor", "given": {"scope": "global"}}, False),
        ({"method": "magnitude", "given": {}}, False),
    ],
)
def test_a_default_budget_is_reported_where_it_shapes_the_scores(model, tmp_path, changes, asked):
    settings = {"data": "digits::classes=0-6,limit=8", "given": {"objective": "acc"}} | changes

    report = run_score(ScoreConfig(model=model, out=tmp_path / "s.json", **settings))

    assert report.default_budget == asked
    assert report.scores.removals is None or len(report.scores.removals) == 4


def test_a_limit_draws_with_the_seed(model, tmp_path):
    scores = [
        run_score(
            ScoreConfig(
                model=model, out=tmp_path / f"{i}.json", method="taylor", data=DIGITS, limit=limit, seed=seed
            )
        ).scores.towers
        for i, (limit, seed) in enumerate([(8, 0), (8, 0), (8, 1), (40, 0), (400, 1)])
    ]

    assert scores[0] == scores[1] != scores[2]
    assert scores[3] == scores[4]


def test_the_scores_name_the_data_that_made_them(model, tmp_path):
    one, other = (
        run_score(
            circuit(model, tmp_path / f"{i}.json", given={"objective": "acc"}, ood=None, data=data)
        ).scores.data["id"]
        for i, data in enumerate([DIGITS, "digits::classes=0-6,limit=39"])
    )

    assert one.sha256 != other.sha256
    assert json.loads((tmp_path / "0.json").read_text())["data"]["id"]["reference"] == DIGITS


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"method": "taylr"}, UsageError, "unknown method `taylr`"),
        ({"given": {"objective": "auc"}}, UsageError, "unknown objective `auc`"),
        ({"ood": None}, UsageError, "needs OOD data"),
        (
            {"given": {"objective": "acc"}},
            UsageError,
            "`--ood` applies only to `--method circuit` with an objective that uses OOD data: `ood`, `avg`, `fpr95` or a sum with one",
        ),
        ({"given": {"objective": "ood+"}}, UsageError, "expected a metric, found the end at character 5"),
        (
            {"given": {"objective": "-fpr95"}, "ood": None},
            UsageError,
            "`-fpr95` needs OOD data",
        ),
        (
            {"given": {"objective": "acc", "ood_score": "energy"}, "ood": None},
            UsageError,
            "`--ood-score` has no effect with `--objective acc`",
        ),
        ({"given": {"ood_score": "odin"}}, UsageError, "`--ood-score odin`: unknown"),
        ({"given": {"ood_score": "mi"}}, UsageError, "`--ood-score mi`: for a circuit it is always 0"),
        ({"given": {"ood_score": "msp+mi"}}, UsageError, "for a circuit it is `msp`"),
        (
            {"given": {"objective": "acc", "ood_score": "energy+density"}, "ood": None},
            UsageError,
            "`--ood-score` has no effect with `--objective acc`",
        ),
        ({"given": {"ood_score": "energy+density"}, "ood": None}, UsageError, "needs OOD data"),
        (
            {"given": {"ood_score": "energy+density"}, "limit": 3},
            DataError,
            "`energy\\+density` is fitted on each half of the labelled data, but no class has 4 samples",
        ),
        (
            {"given": {"ood_score": "energy+density"}, "max_memory": 1000},
            UsageError,
            "the features of all samples without one head need",
        ),
        ({"given": {"search": "fast"}}, UsageError, "`--search fast`: unknown"),
        ({"max_memory": 1000}, UsageError, "the removal of one head from one batch needs"),
        ({"method": "random", "ood": None, "max_memory": 1}, UsageError, "`--max-memory` has no effect with"),
        ({"method": "random", "ood": None, "compile": True}, UsageError, "`--compile` has no effect with"),
        (
            {"method": "random"},
            UsageError,
            "`--ood` applies only to `--method circuit` with an objective that uses OOD data: `ood`, `avg`, `fpr95` or a sum with one",
        ),
        (
            {"budget": HeadBudget(remove=13)},
            UsageError,
            "`--remove 13`: cannot remove 13 heads: the model has 12",
        ),
        ({"data": "photos::limit=8"}, DataError, "has no labels"),
        ({"data": "digits"}, DataError, "10 classes and the model 7"),
        ({"data": None}, UsageError, "`--method circuit` needs labelled data"),
        ({"data": "missing"}, DataError, "missing"),
        ({"model": "missing.st"}, CheckpointError, "missing.st"),
    ],
)
def test_bad_input(model, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        run_score(circuit(**{"model": model, "out": tmp_path / "s.json"} | changes))

    assert not list(tmp_path.iterdir())


def test_a_member_and_an_existing_output_are_refused(model, tmp_path):
    member = base(variant("class-token")).pruned((0,), (), (1, 2)).save(tmp_path / "member.st")
    (tmp_path / "s.json").write_text("mine")

    with pytest.raises(CheckpointError, match="is a member"):
        run_score(circuit(str(member), tmp_path / "t.json"))
    with pytest.raises(OutputExists):
        run_score(circuit(model, tmp_path / "s.json"))
    assert (tmp_path / "s.json").read_text() == "mine"


@pytest.mark.parametrize("method", ["taylor"])
@pytest.mark.parametrize(
    ("budget", "said"), [(HeadBudget(remove=5), True), (HeadBudget(remove=6), False), (None, False)]
)
def test_a_budget_that_layers_cannot_share_evenly_is_said(model, tmp_path, method, budget, said):
    progress_log = ProgressLog()
    data = "digits::classes=0-6,limit=8"

    run_score(
        ScoreConfig(model=model, out=tmp_path / "s.json", method=method, data=data, budget=budget),
        progress_log,
    )

    assert len(progress_log.warnings) == said
    assert all(
        "the same number of heads in each layer: 2 each, 6 heads in total" in message
        for message in progress_log.warnings
    )


@pytest.mark.parametrize("method", METHODS)
def test_no_method_scores_weights_that_are_not_finite(tmp_path, method):
    sample = base()
    name = "blocks.0.attn.qkv.weight"
    state = sample.state | {name: sample.state[name].index_fill(0, torch.tensor([0]), torch.nan)}
    model = type(sample)(sample.header, state).save(tmp_path / "broken.st")
    entry, objective = METHODS[method], {"ood": NINES} if method == "circuit" else {}
    needs = {"data": DIGITS} | objective if entry.needs_data else {}

    with pytest.raises(
        CheckpointError, match=f"broken.st: tensor `{name}` holds .* that are not finite"
    ) as caught:
        run_score(ScoreConfig(model=str(model), out=tmp_path / "s.json", method=method, **needs))

    assert caught.value.hint == "the training may have diverged; use an earlier checkpoint"
    assert [p.name for p in tmp_path.iterdir()] == ["broken.st"]


def test_a_dtype_that_is_too_small_for_a_weight_is_what_is_wrong(tmp_path):
    sample = base()
    state = sample.state | {"norm.weight": sample.state["norm.weight"] * 1e6}
    model = type(sample)(sample.header, state).save(tmp_path / "large.st")

    with pytest.raises(CheckpointError, match=r"tensor `norm\.weight`") as caught:
        run_score(
            ScoreConfig(model=str(model), out=tmp_path / "s.json", method="taylor", data=DIGITS, dtype="fp16")
        )

    assert "`--dtype fp32`" in str(caught.value.hint)


@pytest.mark.parametrize("method", ["magnitude", "random"])
def test_methods_that_read_no_data_need_none(model, tmp_path, method):
    scores = run_score(ScoreConfig(model=model, out=tmp_path / "s.json", method=method)).scores

    assert scores.data == scores.samples == {}
