"""What files say about which heads stay: budgets of scores, members of hydras, and what chooses no heads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hydractl.errors import CheckpointError, InputError, ManifestError, UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.heads.masks import dropped
from hydractl.manifest.head_mask import HeadId, HeadMask, HeadScores, Removal, TowerKeep, TowerScores
from hydractl.stages.inspect.head_choices import Cut, check_comparable, read_choices, shape_text
from support.builders import scores

GOLDEN = Path(__file__).parents[2] / "golden"
TABLE = ((0.6, 0.1, 0.5), (0.4, 0.2, 0.3))
FEWEST = [
    ("vision", 0, 1),
    ("vision", 1, 1),
    ("vision", 1, 2),
    ("vision", 1, 0),
    ("vision", 0, 2),
    ("vision", 0, 0),
]


def write(path, document) -> str:
    path.write_text(document.to_json(), encoding="utf-8")
    return str(path)


def scored(path, *, removed=None, **changes) -> str:
    """Write scores; `removed` heads make them those of a greedy method."""
    if removed is not None:
        steps = tuple(Removal(tower=t, layer=i, head=h, objective=0.5) for t, i, h in FEWEST[:removed])
        changes |= {"removals": steps}
    return write(path, scores(TABLE).model_copy(update=changes))


def one(file, budget=None):
    [(choice, tables)], _ = read_choices(file, budget)
    return choice, tables


def masked(path, *keep, name="vision", num_heads=3, **changes) -> str:
    return write(path, HeadMask(towers={name: TowerKeep(num_heads=num_heads, keep=keep)}, **changes))


@pytest.mark.parametrize(
    ("options", "removed", "budget", "option", "source", "count"),
    [
        ({}, None, None, "--keep-fraction 0.666667", "default", 2),
        ({"kept": 1}, None, None, "--remove 5", "recorded", 5),
        ({"keep": 1}, None, HeadBudget(remove=3), "--remove 3", "asked", 3),
        ({"removals": 3}, 3, None, "--remove 3", "recorded", 3),
        ({"removals": 3}, 3, HeadBudget(keep_per_layer=2), "--keep 2", "asked", 2),
        ({"removals": 3}, 1, None, "--remove 1", "recorded", 1),  # it stopped early
        ({"removals": 6}, 6, None, "--keep-fraction 0.666667", "default", 2),  # an order of all heads
        ({}, 1, None, "--remove 1", "default", 1),  # two would be the default
        ({}, 0, None, "--remove 0", "default", 0),
        ({"keep": True, "removals": "3"}, None, None, "--keep-fraction 0.666667", "default", 2),
    ],
)
def test_the_budget_that_makes_a_mask_of_scores(tmp_path, options, removed, budget, option, source, count):
    choice, tables = one(scored(tmp_path / "s.json", removed=removed, options=options), budget)

    assert (choice.cut.option, choice.cut.source, choice.removed) == (option, source, count)
    assert dropped(choice.mask) == tuple(sorted(HeadId(*head) for head in FEWEST[:count]))
    assert choice.ranked == (6 if removed is None else removed)
    assert tables == {"vision": TABLE}


def test_scores_that_group_heads_keep_one_of_each_group(tmp_path):
    from hydractl.manifest.head_mask import HeadName

    groups = (tuple(HeadName(tower=t, layer=i, head=h) for t, i, h in FEWEST[3:]),)

    choice, _ = one(scored(tmp_path / "s.json", clusters=groups))

    assert choice.cut == Cut(option="--keep auto", source="recorded")
    assert choice.mask["vision"].keep == (
        (0,),
        (0,),
    )  # the group's first head, and the best of the empty layer


@pytest.mark.parametrize(("budget", "source"), [(None, "recorded"), (HeadBudget(keep_per_layer=1), "asked")])
def test_scores_taken_layer_by_layer_are_cut_layer_by_layer(tmp_path, budget, source):
    choice, _ = one(scored(tmp_path / "s.json", options={"keep": 1}), budget)

    assert choice.cut == Cut(option="--keep 1 --per-layer", source=source)
    assert choice.mask["vision"].keep == ((0,), (0,))


@pytest.mark.parametrize(("found", "removed"), [(4, 2), (7, 2), ("4", 2), (0, 6), (5, 1)])
def test_scores_with_gates_keep_those_that_are_open(tmp_path, found, removed):
    assert one(scored(tmp_path / "s.json", results={"open": found}))[0].removed == removed


def test_a_mask_is_what_prune_makes_of_the_scores(tmp_path):
    from hydractl.stages.prune.config import PruneConfig
    from hydractl.stages.prune.run import run_prune
    from support.builders import base

    base().save(tmp_path / "base.st")
    table = tuple(tuple(((5 * i + 3 * h) % 7) / 7 for h in range(4)) for i in range(3))
    file = write(tmp_path / "s.json", scores(table))
    run_prune(
        PruneConfig(
            model=str(tmp_path / "base.st"),
            out=tmp_path / "m.st",
            scores=(Path(file),),
            budget=HeadBudget(remove=5),
        )
    )

    ours, _ = one(file, HeadBudget(remove=5))
    mask, _ = one(str(tmp_path / "m.mask.json"))
    member, _ = one(str(tmp_path / "m.st"))

    assert ours.mask == mask.mask == member.mask
    assert (ours.kind, mask.kind, member.kind) == ("scores", "head-mask", "member")
    assert (mask.removed, mask.heads, mask.cut, mask.standing) == (5, 12, None, None)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda _: str(GOLDEN / "report-1.json"), ManifestError, "is a report, which selects no heads"),
        (lambda p: scored(p, towers={}), ManifestError, "has no scores"),
        (lambda p: scored(p, options={"keep": 9}), ManifestError, "options: cannot keep 9 heads per layer"),
        (lambda p: scored(p, towers={"vision": TowerScores(scores=((1.0,), (2.0,)))}, removed=2), ManifestError, ""),
        (lambda p: str(p.parent / "none.json"), CheckpointError, "no such file"),
    ],
)  # fmt: skip
def test_what_chooses_no_heads(tmp_path, make, error, text):
    file = make(tmp_path / "s.json")

    with pytest.raises(error) as caught:
        read_choices(file, None)

    assert caught.value.message.startswith(f"{file}: ")
    assert text in caught.value.message


def test_a_foreign_checkpoint_does_not_say_which_heads_it_has(tmp_path):
    from hydractl.checkpoint import write_checkpoint
    from hydractl.tensor_spec import TensorSpec

    with (tmp_path / "x.safetensors").open("wb") as file:
        write_checkpoint(file, {"labels/id": TensorSpec("I64", (0,))}, lambda _: [b""], header=None)

    with pytest.raises(CheckpointError, match="is not a checkpoint of hydractl") as caught:
        read_choices(str(tmp_path / "x.safetensors"), None)

    assert caught.value.hint == "give scores, a head mask or a checkpoint of hydractl"


@pytest.mark.parametrize(
    ("removed", "budget", "text"),
    [
        (3, HeadBudget(remove=4), "ranks only 3 heads, but `--remove 4` removes 4"),
        (None, HeadBudget(remove=7), "`--remove 7`: {file}: cannot remove 7 heads: the model has 6"),
        (None, HeadBudget(keep_per_layer=4), "`--keep 4`: {file}: cannot keep 4 heads per layer"),
    ],
)
def test_budgets_that_do_not_fit(tmp_path, removed, budget, text):
    file = scored(tmp_path / "s.json", removed=removed)

    with pytest.raises(UsageError) as caught:
        read_choices(file, budget)

    assert text.format(file=file) in caught.value.message


def test_shapes_that_differ_are_named_with_their_files(tmp_path):
    first, _ = one(masked(tmp_path / "a.json", (0,), (1,)))
    two_towers = {
        "vision": TowerKeep(num_heads=3, keep=((0,), ())),
        "text": TowerKeep(num_heads=2, keep=((), (), ())),
    }
    second, _ = one(write(tmp_path / "b.json", HeadMask(towers=two_towers)))

    assert shape_text(second.mask) == "text 3x2 and vision 2x3"
    check_comparable([first, first])
    with pytest.raises(InputError) as caught:
        check_comparable([first, first, second])

    assert caught.value.message == (
        f"{tmp_path}/b.json: is for text 3x2 and vision 2x3 heads, but {tmp_path}/a.json is for vision 2x3"
    )


def test_the_architecture_is_what_the_file_says(tmp_path):
    assert read_choices(masked(tmp_path / "a.json", (0,)), None)[1] is None
    assert read_choices(masked(tmp_path / "b.json", (0,), architecture="vit"), None)[1] == "vit"
    assert read_choices(scored(tmp_path / "c.json", architecture="deit"), None)[1] == "deit"


def test_scores_from_the_golden_file():
    found = json.loads((GOLDEN / "scores-1.json").read_text())
    choice, _ = one(str(GOLDEN / "scores-1.json"))

    assert choice.method == found["method"]
    assert isinstance(HeadScores.read(GOLDEN / "scores-1.json"), HeadScores)
