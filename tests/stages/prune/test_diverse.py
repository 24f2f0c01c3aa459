"""`prune --strategy diverse`: predictions of candidates, choice of members, refusals."""

from __future__ import annotations

import statistics

import pytest
import torch

from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_items
from hydractl.errors import DataError, HydraError, UsageError
from hydractl.evaluation.caveats import tuned_on_ood
from hydractl.families.open_model import load_model, open_model
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadImportance, HeadMask, TowerImportance
from hydractl.metrics.diversity import disagreement, mutual_information
from hydractl.metrics.ood_ranking import auroc
from hydractl.metrics.per_sample import places
from hydractl.prediction.class_names import Classes, Naming, run_both_towers
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.pruning import diverse
from hydractl.pruning.strategies import Diversity, Strategy
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.scoring.settings import CircuitSettings
from hydractl.stages.prune.config import DiverseConfig, PruneConfig
from hydractl.stages.prune.run import run_prune
from support.builders import base, sha
from support.pairs import pair
from support.reviews import arch, gibberish, reviews
from support.variants import PLAIN

DIGITS, OTHERS = "digits::classes=0-6,limit=60", "digits::classes=9,limit=25"
NAMES = tuple("0123456")
TEMPLATES = ("a photo of a {label} .", "the big {label}")


class Case:
    """A base, random head importances, and data."""

    def __init__(self, folder, model, data, ood, naming=None):
        self.folder, self.model, self.data, self.ood = folder, str(model), str(data), str(ood)
        self.naming = naming or Naming()
        self.model_file = open_model(self.model)

    def scores(self, *, towers=None, **changes):
        architecture = self.model_file.header.architecture
        draw = torch.Generator().manual_seed(3)
        document = HeadImportance(
            method="random", objective=None, options={}, data={}, tool="hydractl 0.1.0",
            model={"reference": "base.st", "sha256": sha("base"), "count": None},
            architecture=architecture.name,
            towers={
                n: TowerImportance(scores=tuple(map(tuple, torch.rand(t.layers, t.num_heads, generator=draw).tolist())))
                for n, t in architecture.towers.items() if towers is None or n in towers
            },
        )  # fmt: skip
        path = self.folder / f"scores-{len(list(self.folder.iterdir()))}.json"
        path.write_text(document.model_copy(update=changes).to_json())
        return path

    def prune(self, scores, *, strategy=Strategy.DIVERSE, out="m", asked=None, **changes):
        diverse = None
        if strategy is Strategy.DIVERSE:
            given = {
                "data": self.data,
                "naming": self.naming,
                "candidates": 8,
                "batch_size": 16,
                "device": "cpu",
            }
            diverse = DiverseConfig(**given | (asked or {}))
        given = {"budget": HeadBudget(remove=5), "pool": 8, "members": 3, "verify": False}
        config = PruneConfig(
            model=self.model, out=self.folder / f"{out}-{{i}}.st", scores=(scores,), strategy=strategy,
            diverse=diverse, **given | changes,
        )  # fmt: skip
        return run_prune(config)

    def probabilities(self, path, reference):
        """Return the probabilities (N, C) of a member, and the labels (N,) in the same order, or None."""
        model_file = open_model(str(path))
        preprocess = model_file.header.preprocess
        items = open_items(reference, preprocess)
        model = load_model(model_file)
        if self.naming.names:
            run_both_towers(
                model, model_file, Classes(names=self.naming.names, templates=self.naming.templates)
            )
        batches = list(eval_batches(items, preprocess, batch_size=7))
        with torch.inference_mode():
            probs = torch.cat([model(batch.inputs).double().softmax(-1) for batch in batches])
        order = torch.cat([batch.indices for batch in batches])
        labels = None if items.labels is None else torch.tensor(items.labels)[order]
        return probs, labels


def images(folder):
    return Case(folder, base(PLAIN).save(folder / "base.st"), DIGITS, OTHERS)


def texts(folder):
    data = reviews(folder / "val.jsonl", 50, seed=1)
    return Case(
        folder, arch(folder), f"{data}::text=text,label=label", gibberish(folder / "ood.jsonl", 20, seed=2)
    )


def zero_shot(folder):
    naming = Naming(names=NAMES, templates=TEMPLATES)
    return Case(folder, pair("clip", folder).save(folder / "base.st"), DIGITS, OTHERS, naming)


CASES = {"images": images, "texts": texts, "zero-shot": zero_shot}


BY_DEFAULT = {"images": Diversity.NONE, "texts": Diversity.MI, "zero-shot": Diversity.DISAGREEMENT}
"""Diversity measured by default for each case."""


@pytest.fixture
def pictures(tmp_path):
    return images(tmp_path)


def towers_of(report):
    return [HeadMask.read(m.mask_path).towers for m in report.members]


# --- predictions of candidates ---------------------------------------------------------------------


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if kind is BY_DEFAULT[name] else pytest.mark.more)
        for name in sorted(CASES)
        for kind in Diversity
    ],
)
def test_what_is_reported_is_what_the_members_are(tmp_path, name, kind):
    case = CASES[name](tmp_path)
    report = case.prune(case.scores(), asked={"ood": case.ood, "diversity": kind})

    found = [case.probabilities(m.path, case.data) for m in report.members]
    foreign = [case.probabilities(m.path, case.ood)[0] for m in report.members]
    for (probs, labels), others, candidate in zip(found, foreign, report.diverse.chosen, strict=True):
        accuracy = float((probs.argmax(1) == labels).double().mean())
        separated = float(auroc(**places(-probs.amax(1), -others.amax(1))))
        assert candidate.objective == pytest.approx((accuracy + separated) / 2, abs=0.01)
    together, chosen = torch.stack([probs for probs, _ in found]), report.diverse.sets[0]
    assert chosen.mi == pytest.approx(mutual_information(together), abs=1e-5)
    assert chosen.disagreement == pytest.approx(disagreement(together), abs=0.02)
    assert report.diverse.objective == "avg"


def test_towers_without_scores_keep_their_heads(tmp_path):
    case = zero_shot(tmp_path)

    report = case.prune(case.scores(towers=("vision",)), budget=HeadBudget(remove=3), pool=6)

    assert {t["text"] for t in map(dict, towers_of(report))} == {case.model_file.header.masks[0]["text"]}
    probs = torch.stack([case.probabilities(m.path, case.data)[0] for m in report.members])
    assert report.diverse.sets[0].mi == pytest.approx(mutual_information(probs), abs=1e-5)


# --- choice of members -----------------------------------------------------------------------------


def test_as_many_candidates_as_members_are_what_sample_draws(pictures):
    scores = pictures.scores()

    sampled = towers_of(pictures.prune(scores, strategy=Strategy.SAMPLE, out="s"))
    report = pictures.prune(scores, asked={"candidates": 3})

    chosen = towers_of(report)
    assert all(mask in sampled for mask in chosen)
    assert len(chosen) == len({str(mask) for mask in chosen}) == 3
    # Sums differ in the last bit, because both sets have the same members in another order.
    assert report.diverse.sets[0].mi == pytest.approx(report.diverse.sets[1].mi, abs=1e-12)
    assert report.diverse.sets[0].disagreement == report.diverse.sets[1].disagreement


@pytest.mark.more
def test_what_it_says_of_sample_is_what_sample_draws(pictures):
    scores = pictures.scores()
    report = pictures.prune(scores)
    drawn = pictures.prune(scores, strategy=Strategy.SAMPLE, out="s")

    probs = torch.stack([pictures.probabilities(m.path, pictures.data)[0] for m in drawn.members])

    assert [s.name for s in report.diverse.sets] == ["chosen", "sample", "mean of 2 samples"]
    assert report.diverse.sets[1].mi == pytest.approx(mutual_information(probs), abs=1e-5)


@pytest.mark.more
@pytest.mark.parametrize(
    "kind",
    [
        Diversity.MI,
        *(pytest.param(k, marks=pytest.mark.more) for k in Diversity if k is not Diversity.MI),
    ],
)
def test_no_member_is_worse_than_the_median_candidate(pictures, kind):
    scores = pictures.scores()

    every = pictures.prune(scores, members=8, out="all")
    report = pictures.prune(scores, asked={"diversity": kind})

    values = {c.draw: c.objective for c in every.diverse.chosen}
    assert sorted(values) == list(range(8))
    assert report.diverse.median == statistics.median_low(values.values())
    assert all(values[c.draw] == c.objective >= report.diverse.median for c in report.diverse.chosen)
    assert report.diverse.chosen[0].objective == max(values.values())


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("kind", Diversity)
def test_no_other_admitted_pair_with_the_best_candidate_is_more_diverse(pictures, kind):
    report = pictures.prune(pictures.scores(), members=2, asked={"diversity": kind})
    every = pictures.prune(pictures.scores(), members=8, out="all")

    by_draw = {c.draw: m.path for c, m in zip(every.diverse.chosen, every.members, strict=True)}
    first, second = (c.draw for c in report.diverse.chosen)
    admitted = [c.draw for c in every.diverse.chosen if c.objective >= report.diverse.median]
    measure = {Diversity.MI: mutual_information, Diversity.DISAGREEMENT: disagreement}.get(
        kind, lambda _: 0.0
    )
    probs = {draw: pictures.probabilities(by_draw[draw], pictures.data)[0] for draw in admitted}
    gains = {d: measure(torch.stack([probs[first], probs[d]])) for d in admitted if d != first}
    assert gains[second] == pytest.approx(max(gains.values()), abs=1e-5)


@pytest.mark.more
@pytest.mark.parametrize("size", [7, pytest.param(60, marks=pytest.mark.more)])
def test_the_size_of_batches_changes_no_choice(pictures, size):
    scores = pictures.scores()
    first = pictures.prune(scores, asked={"ood": OTHERS})
    second = pictures.prune(scores, out="n", asked={"ood": OTHERS, "batch_size": size})
    assert [c.draw for c in first.diverse.chosen] == [c.draw for c in second.diverse.chosen]


def test_origin_and_lineage_say_what_decided(pictures):
    report = pictures.prune(pictures.scores(), asked={"ood": OTHERS})

    mask = HeadMask.read(report.members[1].mask_path)
    model_file = open_model(str(report.members[1].path))
    step = model_file.header.made_by
    assert mask.origin is not None
    assert mask.origin.strategy == "diverse"
    assert mask.origin.budget == {
        "remove": 5, "pool": 8, "candidates": 8, "diversity": "mi", "objective": "avg",
        "draw": report.diverse.chosen[1].draw, "objective_value": report.diverse.chosen[1].objective,
    }  # fmt: skip
    assert step is not None
    assert [i.name for i in step.inputs][2:] == [DIGITS, OTHERS]
    assert step.inputs[1].made_by.command == "score"
    assert tuned_on_ood([model_file])


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("recorded", "ood", "used"),
    [
        (None, None, "acc"), (None, OTHERS, "avg"), ("avg", None, "acc"), ("ood", OTHERS, "ood"), ("nll", None, "-nll"),
        ("acc", None, "acc"),
    ],
)  # fmt: skip
def test_candidates_are_valued_by_what_the_scores_were_searched_by(pictures, recorded, ood, used):
    report = pictures.prune(pictures.scores(objective=recorded), asked={"ood": ood, "candidates": 3})
    assert report.diverse.objective == used


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("name", ["images", "zero-shot"])
def test_candidates_are_valued_by_density_as_circuits_are(tmp_path, name):
    case = CASES[name](tmp_path)
    changes = {"objective": "ood", "options": {"ood_score": "energy+density"}}

    report = case.prune(case.scores(**changes), asked={"ood": case.ood})

    for member, candidate in zip(report.members, report.diverse.chosen, strict=True):
        model_file = open_model(case.model)
        items = {
            role: open_items(ref, model_file.header.preprocess)
            for role, ref in {"id": case.data, "ood": case.ood}.items()
        }
        model = load_model(model_file)
        if case.naming.names:
            run_both_towers(
                model, model_file, Classes(names=case.naming.names, templates=case.naming.templates)
            )
        job = ScoreJob(
            model=model,
            family=model_file.family,
            architecture=model_file.header.architecture,
            id_data=[
                Samples(b.inputs, torch.tensor(items["id"].labels)[b.indices])
                for b in eval_batches(items["id"], model_file.header.preprocess, batch_size=16)
            ],
            ood_data=[
                Samples(b.inputs, None)
                for b in eval_batches(items["ood"], model_file.header.preprocess, batch_size=16)
            ],
            settings=CircuitSettings(objective="ood", ood_score="energy+density"),
            features=FeatureExtractor.of(model, model_file.family, name="base"),
        )
        kept = HeadMask.read(member.mask_path).towers
        circuit = Circuit(job)
        with torch.inference_mode():
            circuit.change(
                [h for h in circuit.heads() if h.tower in kept and h.head not in kept[h.tower].keep[h.layer]]
            )
            assert candidate.objective == pytest.approx(circuit.value(), abs=1e-3)


# --- refusals --------------------------------------------------------------------------------------


def unlabelled(folder):
    (folder / "plain").mkdir()
    from PIL import Image

    Image.new("L", (8, 8)).save(folder / "plain" / "a.png")
    return str(folder / "plain")


REFUSED = {
    "ood-for-nothing": (lambda _: {"ood": OTHERS}, {"objective": "acc"}, UsageError, "`--ood` has no effect: the objective of the scores is `acc`"),
    "unknown-score": (lambda _: {"ood": OTHERS}, {"objective": "avg", "options": {"ood_score": "nope"}}, HydraError, "the OOD score `nope`"),
    "too-few-to-fit": (lambda _: {"ood": OTHERS, "data": "digits::classes=0-6,limit=3"}, {"objective": "avg", "options": {"ood_score": "energy+density"}}, DataError, "no class has 4 samples"),
    "no-labels": (lambda f: {"data": unlabelled(f)}, {}, DataError, "has no labels, but `--data` needs them"),
    "other-classes": (lambda _: {"data": "digits::limit=20"}, {}, DataError, "classes"),
    "no-such-data": (lambda f: {"data": str(f / "none")}, {}, DataError, "none"),
    "no-such-device": (lambda _: {"device": "quantum"}, {}, UsageError, "unknown device `quantum`"),
    "named-classes": (lambda _: {"naming": Naming(names=NAMES)}, {}, UsageError, "already has classes"),
    "tokens-of-images": (lambda _: {"max_length": 5}, {}, UsageError, "`--max-length` is for texts"),
    "too-many-candidates": (lambda _: {"candidates": 500}, {}, UsageError, "500 different masks are required"),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "changes", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_is_left_behind(
    pictures, tmp_path, asked, changes, kind, message
):
    scores, given = pictures.scores(**changes), asked(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(kind) as caught:
        pictures.prune(scores, asked=given)
    assert message in str(caught.value)
    assert caught.value.exit_code in {2, 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_probabilities_that_would_not_fit_are_refused_with_a_number_that_fits(pictures, monkeypatch):
    monkeypatch.setattr(diverse, "PREDICTION_BYTES", 8 * 8 * 7 * 40)
    with pytest.raises(UsageError, match="8 candidates on 60 samples of 7 classes take") as caught:
        pictures.prune(pictures.scores())
    assert "`--data DATA::limit=40`" in caught.value.hint
    pictures.prune(pictures.scores(), asked={"data": DIGITS.replace("60", "40")})


def test_numbers_that_are_not_finite(tmp_path):
    sample = base(PLAIN)
    state = sample.state | {"head.weight": torch.full_like(sample.state["head.weight"], 3e38)}
    case = Case(tmp_path, type(sample)(sample.header, state).save(tmp_path / "base.st"), DIGITS, OTHERS)
    with pytest.raises(DataError, match="outputs that are not finite on these data"):
        case.prune(case.scores())


def test_a_configuration_needs_candidates():
    with pytest.raises(UsageError, match="`--candidates 0`: must be at least 1"):
        DiverseConfig(data="digits", candidates=0)
