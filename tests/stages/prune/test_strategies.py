"""Strategies of `prune`: origin of masks, required options, lineage."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.checkpoint import Checkpoint
from hydractl.errors import ManifestError, UsageError
from hydractl.families.open_model import open_model
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadMask, HeadName, Removal
from hydractl.pruning.strategies import Diversity, Strategy
from hydractl.stages.prune.config import DiverseConfig, PruneConfig
from hydractl.stages.prune.run import run_prune
from support.builders import base, mask_file, scores_file
from support.progress_log import ProgressLog
from support.variants import PLAIN

TABLE = ((0.9, 0.1, 0.8, 0.7), (0.2, 0.3, 0.6, 0.5), (0.95, 0.4, 0.05, 0.85))
CLUSTERS = (((0, 0), (2, 0), (2, 3)), ((0, 2), (0, 3)), ((2, 1),), ((0, 1), (2, 2)))
"""Layer 1 has no head in any cluster."""
REMOVE = HeadBudget(remove=4)


def named(clusters):
    return tuple(
        tuple(HeadName(tower="vision", layer=layer, head=head) for layer, head in c) for c in clusters
    )


@pytest.fixture
def model(tmp_path):
    return base(PLAIN).save(tmp_path / "base.st")


@pytest.fixture
def cahp(tmp_path):
    return scores_file(tmp_path / "cahp.json", TABLE, method="cahp", clusters=named(CLUSTERS))


@pytest.fixture
def scores(tmp_path):
    return scores_file(tmp_path / "s.json", TABLE)


def prune(model, out, progress=None, *, verify=False, **changes):
    return run_prune(
        PruneConfig(model=str(model), out=out, verify=verify, **changes), progress or ProgressLog()
    )


def warnings_without_weights(progress_log):
    """Return the warnings, except about scores of other weights."""
    return [warning for warning in progress_log.warnings if "other weights" not in warning]


def masks_of(report):
    return [HeadMask.read(m.mask_path) for m in report.members]


def keeps(report):
    return [mask.towers["vision"].keep for mask in masks_of(report)]


# --- every strategy ----------------------------------------------------------------------------------------------------


STRATEGIES = {
    "best": {"strategy": Strategy.BEST, "budget": REMOVE, "scores": 1},
    "best-auto": {"strategy": Strategy.BEST, "auto": True, "scores": 1},
    "sample": {"strategy": Strategy.SAMPLE, "budget": REMOVE, "scores": 1, "members": 3, "pool": 8},
    "objectives": {"strategy": Strategy.OBJECTIVES, "budget": REMOVE, "scores": 2},
    "clusters": {"strategy": Strategy.CLUSTERS, "scores": 1, "members": 3},
    "random": {"strategy": Strategy.RANDOM, "budget": REMOVE, "members": 3},
    "random-layers": {"strategy": Strategy.RANDOM, "budget": HeadBudget(keep_per_layer=2), "per_layer": True, "members": 3},
    "diverse": {
        "strategy": Strategy.DIVERSE, "budget": REMOVE, "scores": 1, "members": 3, "pool": 8,
        "diverse": DiverseConfig(data="digits::classes=0-6,limit=20", candidates=6),
    },
}  # fmt: skip


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize(
    ("name", "start"),
    [
        pytest.param(name, start, marks=() if i % 2 == start else pytest.mark.more)
        for i, name in enumerate(STRATEGIES)
        for start in (0, 1)
    ],
)
def test_members_equal_the_masked_base_agree_where_they_must_and_are_the_same_twice(
    tmp_path, model, cahp, name, start
):
    given = dict(STRATEGIES[name])
    files = [cahp, scores_file(tmp_path / "t.json", TABLE[::-1])][: given.pop("scores", 0)]
    found = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        report = prune(
            model,
            tmp_path / folder / "m-{i}.st",
            scores=tuple(files),
            trunk=start,
            verify=True,
            **given,
        )
        found.append([p.read_bytes() for p in report.paths])

    assert found[0] == found[1]
    assert all(m.largest_difference <= 1e-5 for m in report.members)
    assert len({keep[:start] for keep in keeps(report)}) == 1
    assert len(set(keeps(report))) == len(report.members) == given.get("members", max(1, len(files)))
    for i, mask in enumerate(masks_of(report)):
        assert mask.origin is not None
        assert (mask.origin.strategy, mask.origin.member) == (given["strategy"], i)
        assert (mask.origin.seed is not None) == (name.split("-")[0] in {"sample", "random", "diverse"})
        assert mask.origin.budget.get("diverge_from", 0) == start
        assert len(mask.origin.scores) == (1 if files else 0)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("name", ["sample", "random", "random-layers"])
def test_another_seed_is_another_draw(tmp_path, model, scores, name):
    given = dict(STRATEGIES[name])
    files = (scores,) if given.pop("scores", 0) else ()
    found = {
        tuple(keeps(prune(model, tmp_path / f"{seed}-{{i}}.st", scores=files, seed=seed, **given)))
        for seed in range(2)
    }
    assert len(found) == 2


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", ["best", "sample", "objectives"])
def test_a_strategy_that_is_named_is_the_one_that_is_implied(tmp_path, model, scores, name):
    given = dict(STRATEGIES[name])
    files = (scores, scores_file(tmp_path / "t.json", TABLE[::-1]))[: given.pop("scores")]
    told = prune(model, tmp_path / "a{i}.st", scores=files, **given)
    implied = prune(model, tmp_path / "b{i}.st", scores=files, **given | {"strategy": None})
    assert [p.read_bytes() for p in told.paths] == [p.read_bytes() for p in implied.paths]


# --- clusters ------------------------------------------------------------------------------------------------------------


def test_member_j_keeps_the_jth_best_of_each_cluster_and_an_empty_layer_its_best_head(tmp_path, model, cahp):
    report = prune(model, tmp_path / "m{i}.st", scores=(cahp,), auto=True, members=3)

    assert keeps(report) == [
        ((0, 1, 2), (2,), (1,)),
        ((3,), (2,), (0, 1, 2)),
        ((1, 2), (2,), (1, 3)),
    ]
    assert [m.origin.budget for m in masks_of(report)] == [{"keep": "auto", "clusters": 4}] * 3
    assert {m.origin.strategy for m in masks_of(report)} == {"clusters"}
    assert report.found == (f"{cahp}: keeps 5 heads of 12: one of each of 4 clusters",)


def test_clusters_that_nobody_asks_for_are_scores_like_others(tmp_path, model, cahp, scores):
    by_clusters = prune(model, tmp_path / "a.st", scores=(cahp,), budget=REMOVE)
    by_scores = prune(model, tmp_path / "b.st", scores=(scores,), budget=REMOVE)
    assert keeps(by_clusters) == keeps(by_scores)


def test_sampled_members_may_keep_as_many_heads_as_there_are_clusters(tmp_path, model, cahp):
    report = prune(model, tmp_path / "m{i}.st", scores=(cahp,), auto=True, members=2, pool=10)
    assert {m.heads_kept for m in report.members} == {5}
    assert {m.origin.strategy for m in masks_of(report)} == {"sample"}


def test_without_a_budget_a_member_of_each_file_keeps_one_head_of_each_cluster(tmp_path, model, cahp):
    other = scores_file(tmp_path / "o.json", TABLE[::-1], method="cahp", clusters=named(CLUSTERS[:3]))

    both = prune(model, tmp_path / "m{i}.st", scores=(cahp, other), auto=True)

    alone = [
        prune(model, tmp_path / f"{i}.st", scores=(file,), auto=True) for i, file in enumerate((cahp, other))
    ]
    assert keeps(both) == [keep for report in alone for keep in keeps(report)]


# --- messages --------------------------------------------------------------------------------------


def test_scores_by_layer_that_are_compared_over_layers_are_warned_about(tmp_path, model):
    by_layer = scores_file(tmp_path / "t.json", TABLE, method="taylor", options={"keep": 2})

    def said(name, keep, **changes):
        progress_log = ProgressLog()
        budget = HeadBudget(keep_per_layer=keep)
        prune(model, tmp_path / name, progress_log, scores=(by_layer,), budget=budget, **changes)
        return warnings_without_weights(progress_log)

    assert said("a.st", 2, per_layer=True) == []
    (warning,) = said("b.st", 2)
    assert "scored layer by layer" in warning
    assert "`--keep-heads 2 --per-layer`" in warning
    (warning,) = said("c.st", 1, per_layer=True)
    assert "scored layers that each keep 2 heads; score again with `--keep-heads 1 --per-layer`" in warning


def test_what_layers_in_common_do_to_the_number_of_heads_is_said_and_recorded(tmp_path, model, scores):
    other = scores_file(tmp_path / "o.json", ((1.0,) * 4, (1.0,) * 4, (0.0,) * 4))
    progress_log = ProgressLog()

    report = prune(model, tmp_path / "m{i}.st", progress_log, scores=(scores, other), budget=REMOVE, trunk=2)

    removed = [m.heads_removed for m in report.members]
    assert removed[0] == 4
    assert removed[1] != 4
    assert warnings_without_weights(progress_log) == [
        f"member 1 loses {removed[1]} heads, because before layer 2 it keeps the heads of member 0"
    ]
    assert [m.origin.budget["removed"] for m in masks_of(report)] == removed


def test_lineage_takes_no_masks_word_for_how_it_was_made(tmp_path, model, scores):
    prune(model, tmp_path / "a.st", scores=(scores,), budget=REMOVE, pool=6, seed=7)

    prune(model, tmp_path / "b.st", masks=(tmp_path / "a.mask.json",))

    step = Checkpoint.open(tmp_path / "b.st").header.made_by
    assert step.options == {"strategy": "mask", "member": 0}
    assert step.seed is None


def test_the_base_is_reported_as_it_is(tmp_path, model, scores):
    report = prune(model, tmp_path / "a.st", scores=(scores,), budget=HeadBudget(remove=0), dtype="bf16")

    assert report.base.size_bytes == 2 * report.members[0].size.size_bytes


# --- random --------------------------------------------------------------------------------------------------------------


def test_random_needs_no_scores_and_its_lineage_names_the_base_alone(tmp_path, model):
    prune(model, tmp_path / "m.st", strategy=Strategy.RANDOM, budget=HeadBudget(keep_per_layer=2), seed=5)
    mask = HeadMask.read(tmp_path / "m.mask.json")
    step = open_model(str(tmp_path / "m.st")).header.made_by
    assert sum(map(len, mask.towers["vision"].keep)) == 6
    assert mask.origin is not None
    assert (mask.origin.method, mask.origin.scores, mask.origin.seed) == (None, (), 5)
    assert step is not None
    assert [i.name for i in step.inputs] == ["base.st"]
    assert step.options["strategy"] == "random"


# --- objectives ----------------------------------------------------------------------------------------------------------


def test_members_that_keep_the_same_heads_are_said(tmp_path, model, scores):
    progress_log = ProgressLog()
    prune(model, tmp_path / "m{i}.st", progress_log, scores=(scores, scores), budget=REMOVE)
    assert [w for w in progress_log.warnings if "same heads" in w] == ["members 0 and 1 keep the same heads"]


def test_each_objective_has_a_number_of_its_own(tmp_path, model):
    files = [circuit(tmp_path / f"c{k}.json", knee=k) for k in (4, 6)]
    report = prune(model, tmp_path / "m{i}.st", scores=tuple(files), auto=True)
    assert [m.heads_removed for m in report.members] == [4, 6]
    assert [m.origin.budget["remove"] for m in masks_of(report)] == [4, 6]


# --- number of heads from the scores ---------------------------------------------------------------


def circuit(path, *, knee=6, stop=12, baseline=0.9, rise=0.02, **changes):
    """Write importances of a greedy search with `stop` removals.

    The objective is above `baseline` until `knee` removals, then falls.
    """
    heads = sorted((s, layer, h) for layer, row in enumerate(TABLE) for h, s in enumerate(row))
    steps = [
        Removal(
            tower="vision", layer=layer, head=head, objective=baseline + rise - 0.1 * max(0, i + 1 - knee)
        )
        for i, (_, layer, head) in enumerate(heads[:stop])
    ]
    given = {"method": "circuit", "objective": "avg", "baseline": baseline, "removals": tuple(steps)}
    return scores_file(path, TABLE, **given | changes)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("knee", [3, 6, 9])
@pytest.mark.parametrize("stop", [11, 12])
def test_a_circuit_goes_up_to_its_knee(tmp_path, model, knee, stop):
    file = circuit(tmp_path / "c.json", knee=knee, stop=stop)
    report = prune(model, tmp_path / "m.st", scores=(file,), auto=True)
    (mask,) = masks_of(report)
    assert report.members[0].heads_removed == knee
    assert mask.origin.budget == {"keep": "auto", "remove": knee}
    assert report.found == (f"{file}: keeps {12 - knee} heads of 12: `avg` drops after {knee} removals",)


def test_a_greedy_run_without_a_name_for_what_it_maximised(tmp_path, model):
    file = circuit(tmp_path / "c.json", objective=None, method="michel")
    report = prune(model, tmp_path / "m.st", scores=(file,), auto=True)
    assert ": the objective drops after 6 removals" in report.found[0]


@pytest.mark.parametrize("open_gates", [0, 5, 12])
def test_open_gates_stay(tmp_path, model, open_gates):
    file = scores_file(tmp_path / "l0.json", TABLE, method="l0", results={"open": open_gates})
    report = prune(model, tmp_path / "m.st", scores=(file,), auto=True)
    assert report.members[0].heads_kept == open_gates
    assert f"keeps {open_gates} heads of 12: their gates stayed open" in report.found[0]


def test_a_given_number_goes_before_what_the_scores_chose(tmp_path, model):
    report = prune(
        model, tmp_path / "m.st", scores=(circuit(tmp_path / "c.json"),), budget=HeadBudget(remove=2)
    )
    assert (report.members[0].heads_removed, report.found) == (2, ())


CHOICES = {
    "does-not-choose": (lambda p: scores_file(p, TABLE), UsageError, "was made by `random`, which does not determine", "use scores by cahp, l0, circuit or another greedy method, or give one of"),
    "stops-too-early": (lambda p: circuit(p, stop=5), UsageError, "stops after 5 removals with `avg` 0.9200, not below the 0.9000 of the whole model", "score again with `--remove 10`; `--remove 5` gives the highest value, 0.9200"),
    "never-falls": (lambda p: circuit(p, knee=12), UsageError, "never drops below that of the whole model", "`--remove 12` gives"),
    "straight-down": (lambda p: circuit(p, knee=0, rise=0.0), UsageError, "`avg` of", "`--remove 0` gives"),
    "open-too-many": (lambda p: scores_file(p, TABLE, results={"open": 13}), ManifestError, "results.open is 13, but must be a number of heads in 0..12", "edited"),
    "open-no-number": (lambda p: scores_file(p, TABLE, results={"open": "5"}), ManifestError, "results.open is '5'", "edited"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message", "hint"), CHOICES.values(), ids=CHOICES)
def test_scores_that_do_not_say_how_many(tmp_path, model, make, kind, message, hint):
    file = make(tmp_path / "s.json")
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(kind) as caught:
        prune(model, tmp_path / "m.st", scores=(file,), auto=True)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == before


# --- refusals --------------------------------------------------------------------------------------


def test_scores_of_another_architecture_of_the_same_shape(tmp_path, model):
    file = scores_file(tmp_path / "s.json", TABLE, architecture="vit_other")
    with pytest.raises(
        ManifestError, match=f"architecture is `vit_other`, but .* is a `{PLAIN.arch}`"
    ) as caught:
        prune(model, tmp_path / "m.st", scores=(file,), budget=REMOVE)
    assert "score this model" in caught.value.hint


REFUSED = {
    "clusters-without-clusters": ({"strategy": Strategy.CLUSTERS, "scores": "s"}, "was made by `random`, which makes no clusters", "--method cahp"),
    "more-members-than-heads": ({"strategy": Strategy.CLUSTERS, "scores": "cahp", "members": 4}, "members 0 and 3 would keep the same heads: the largest of 4 clusters has 3 heads", "fewer `--members`"),
    "members-of-no-clusters": ({"auto": True, "scores": "open", "members": 2}, "`--members` needs a pool", "--pool P"),
    "too-many-random": ({"strategy": Strategy.RANDOM, "budget": HeadBudget(remove=12), "members": 2}, "2 different masks are required", "fewer `--members`"),
    "random-beyond": ({"strategy": Strategy.RANDOM, "budget": HeadBudget(remove=13)}, "cannot remove 13 heads", None),
    "random-diverges-late": ({"strategy": Strategy.RANDOM, "budget": REMOVE, "trunk": 4}, "must be in 0..3", "in none"),
    "auto-pool-too-small": ({"auto": True, "scores": "open", "pool": 5}, "`--pool 5`: `--keep-heads auto` removes 7 heads", "larger pool"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_the_scores(tmp_path, model, cahp, changes, message, hint):
    files = {
        "cahp": cahp,
        "s": scores_file(tmp_path / "s.json", TABLE),
        "open": scores_file(tmp_path / "open.json", TABLE, results={"open": 5}),
    }
    given = dict(changes)
    wanted = (files[given.pop("scores")],) if "scores" in given else ()
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(UsageError) as caught:
        prune(model, tmp_path / "m{i}.st", scores=wanted, **given)
    assert message in str(caught.value)
    assert hint is None or hint in caught.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == before


S = (Path("s.json"),)
DATA = DiverseConfig(data="digits", candidates=2, diversity=Diversity.MI)
CONFIGS = {
    "best-of-two": ({"strategy": Strategy.BEST, "scores": S * 2, "budget": REMOVE}, "takes one `--scores` file, not 2"),
    "best-of-none": ({"strategy": Strategy.BEST, "budget": REMOVE}, "give either `--scores` or `--mask`"),
    "best-of-many": ({"strategy": Strategy.BEST, "scores": S, "budget": REMOVE, "members": 2}, "makes one member per scores file; leave out `--members"),
    "best-of-a-pool": ({"strategy": Strategy.BEST, "scores": S, "budget": REMOVE, "pool": 8}, "`--pool` has no effect with `--strategy best`"),
    "sample-without-pool": ({"strategy": Strategy.SAMPLE, "scores": S, "budget": REMOVE, "members": 2}, "`--strategy sample` needs a pool of heads"),
    "sample-by-layer": ({"strategy": Strategy.SAMPLE, "scores": S, "budget": HeadBudget(keep_per_layer=2), "pool": 8, "per_layer": True}, "`--per-layer` has no effect with `--strategy sample`"),
    "objectives-of-one": ({"strategy": Strategy.OBJECTIVES, "scores": S, "budget": REMOVE}, "makes one member per scores file and needs several files"),
    "objectives-and-members": ({"strategy": Strategy.OBJECTIVES, "scores": S * 2, "budget": REMOVE, "members": 2}, "makes one member per scores file; leave out `--members"),
    "clusters-and-budget": ({"strategy": Strategy.CLUSTERS, "scores": S, "budget": REMOVE}, "keeps one head per cluster, so `--remove 4` has no effect"),
    "clusters-and-pool": ({"strategy": Strategy.CLUSTERS, "scores": S, "pool": 8}, "`--pool` has no effect with `--strategy clusters`"),
    "random-with-scores": ({"strategy": Strategy.RANDOM, "scores": S, "budget": REMOVE}, "`--strategy random` uses no scores"),
    "random-without-budget": ({"strategy": Strategy.RANDOM}, "the number of heads to keep is missing: give one of `--keep-heads N`, `--remove R`, `--keep-fraction F"),
    "random-auto": ({"strategy": Strategy.RANDOM, "auto": True}, "`--keep-heads auto` takes the number of heads from scores, but `--strategy random` uses none"),
    "random-of-a-pool": ({"strategy": Strategy.RANDOM, "budget": REMOVE, "pool": 8}, "`--pool` has no effect"),
    "mask-and-strategy": ({"strategy": Strategy.BEST, "masks": S}, "a mask already says which heads are kept"),
    "mask-and-auto": ({"auto": True, "masks": S}, "a mask already says which heads are kept"),
    "auto-by-layer": ({"auto": True, "scores": S, "per_layer": True}, "`--per-layer` requires `--keep-heads N`"),
    "diverse-without-pool": ({"strategy": Strategy.DIVERSE, "scores": S, "budget": REMOVE, "diverse": DATA}, "`--strategy diverse` needs a pool of heads"),
    "diverse-of-too-few": ({"strategy": Strategy.DIVERSE, "scores": S, "budget": REMOVE, "pool": 8, "members": 3, "diverse": DATA}, "`--candidates 2`: fewer candidates than the 3 members"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), CONFIGS.values(), ids=CONFIGS)
def test_options_that_a_strategy_does_not_take(changes, message):
    with pytest.raises(UsageError) as caught:
        PruneConfig(model="base.st", out=Path("m{i}.st"), **changes)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.hint or "drop" in message or "--per-layer" in message


def test_a_mask_file_is_as_good_as_ever(tmp_path, model):
    mask = mask_file(tmp_path / "mask.json", base(PLAIN).header, (0,), (), (1,))
    report = prune(model, tmp_path / "m.st", masks=(mask,))
    assert (report.members[0].heads_kept, report.found, report.diverse) == (2, (), None)


def test_a_strategy_may_be_a_text():
    diverse = DiverseConfig(data="digits")
    config = PruneConfig(
        model="b.st",
        out="m-{i}.st",
        scores="s.json",
        budget=REMOVE,
        strategy="diverse",
        pool=8,
        members=2,
        diverse=diverse,
    )

    assert config.strategy is Strategy.DIVERSE
