"""`eval --analyse` against the libraries' models, scikit-learn and numpy, for images, texts and pairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from hydractl.cli.app import main
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform
from hydractl.errors import InputError, UsageError
from hydractl.families.open_model import open_model
from hydractl.manifest.report import Report
from hydractl.prediction.loaded_model import load
from hydractl.research.analyses import gradients
from support import pairs, reviews
from support.builders import Sample, base, perturbed, scores_file
from support.predictions import SavedPredictions

DATA, NEAR = "digits::split=test,classes=0-6,limit=70", "digits::classes=7-9,limit=40"
SETS = {"id": DATA, "others": NEAR}
TABLE = [[5, 1, 2, 9], [4, 3, 8, 6], [7, 12, 10, 11]]
KEEPS = (((0, 2, 3), (0, 1, 2), (1, 3)), ((1, 2), (), (0, 1, 2)), ((0, 1, 2, 3), (0,), (0, 3)))
HALVES = {"random": ((3,), (2,), (0, 1, 2, 3)), "layers": ((0, 3), (2, 3), (1, 3))}
"""Masks that keep half of the heads, by importance over the model and per layer."""
COMMON = ("--no-latency", "--device", "cpu", "--bootstrap", "0", "--batch-size", "50", "--force")


def pruned(sample, path, folder, keeps):
    """Write pruned members of a base that is stored at a path."""
    digest = open_model(str(path)).checkpoint.digest
    for i, keep in enumerate(keeps):
        member = sample.pruned(*keep)
        update = {"base": digest}
        replace(member, header=member.header.model_copy(update=update)).save(folder / f"m{i}.st")


@pytest.fixture(scope="module", autouse=True)
def few():
    """Use few probes: other tests check the estimates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "PROBES", 2)
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyses")
    pruned(base(), base().save(folder / "base.st"), folder, KEEPS)
    members = [str(folder / f"m{i}.st") for i in range(len(KEEPS))]
    assert main(["fuse", *members, "-o", str(folder / "hydra.st"), "--no-verify"]) == 0
    scores_file(folder / "scores.json", TABLE)
    scores_file(folder / "layers.json", TABLE, options={"keep": 3})
    for name, keep in HALVES.items():
        base().pruned(*keep).save(folder / f"{name}.st")
    halves = [word for name in HALVES for word in ("--compare", f"{name}={folder}/{name}.st")]
    command = (
        "eval", f"{folder}/hydra.st", "--compare", f"base={folder}/base.st", "--compare", f"turn={','.join(members)}", "--data",
        DATA, "--near", f"others={NEAR}", "--scores", f"random={folder}/scores.json", "--scores", f"{folder}/layers.json", *halves, "--analyse",
        "all", "--corrupt",
        "gaussian-noise:3", "-o", f"{folder}/r.json", *COMMON,
    )  # fmt: skip
    assert main([*command]) == 0
    return folder


@pytest.fixture(scope="module")
def rows(here):
    return {row.name: row for row in Report.read(here / "r.json").rows}


def said(sample, reference):
    """Return the inputs of timm's output projections at the class token: L arrays (N, H, K)."""
    items, library, found = open_data(reference), sample.library(), []
    for block in library.blocks:
        block.attn.proj.register_forward_pre_hook(
            lambda _, args: found.append(args[0][:, 0].unflatten(-1, (4, 8)))
        )
    preprocess = eval_transform(sample.header.preprocess)
    with torch.inference_mode():
        library(torch.stack([preprocess(items.image(i)) for i in range(len(items))]))
    return [z.double().numpy() for z in found]


@pytest.fixture(scope="module")
def by_timm():
    """Return the head outputs of the base and of each member, which is the base with masked heads."""
    models = {"base": base()} | {i: base().masked(*keep) for i, keep in enumerate(KEEPS)}
    return {name: {s: said(model, ref) for s, ref in SETS.items()} for name, model in models.items()}


def distances(inside, outside):
    apart = inside.mean(0) - outside.mean(0)
    return np.linalg.norm(apart), np.sqrt(
        apart @ np.linalg.pinv(np.cov(inside, rowvar=False), hermitian=True) @ apart
    )


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("name", ["hydra", "turn", "base"])
def test_centroids_are_numpys_of_what_timm_gives_to_the_output_projection(name, rows, by_timm):
    found = rows[name].analyses.centroids
    wanted = (
        [("base", h) for h in range(4)] if name == "base" else [(m, h) for m in range(3) for h in KEEPS[m][2]]
    )
    assert [(each.member, each.head.head) for each in found.heads] == [
        (0 if m == "base" else m, h) for m, h in wanted
    ]
    for each, (model, head) in zip(found.heads, wanted, strict=True):
        own = {s: z[2][:, head] for s, z in by_timm[model].items()}
        euclidean, mahalanobis = distances(own["id"], own["others"])
        assert (each.head.layer, each.head.tower) == (2, "vision")
        assert each.euclidean == {"others": pytest.approx(euclidean, rel=1e-4)}
        assert each.mahalanobis == {"others": pytest.approx(mahalanobis, rel=1e-3)}
    assert found.mahalanobis["others"] == pytest.approx(
        np.mean([h.mahalanobis["others"] for h in found.heads])
    )


@pytest.mark.parametrize(("name", "member"), [("hydra", 0), ("hydra", 2), ("base", 0)])
def test_planes_are_scikit_learns_of_the_most_and_least_important_heads_that_stay(
    name, member, rows, by_timm
):
    planes = next(each for each in rows[name].analyses.pca if each.member == member)
    model = "base" if name == "base" else member
    keep = ((0, 1, 2, 3),) * 3 if name == "base" else KEEPS[member]
    order = sorted(
        ((layer, h) for layer in range(3) for h in keep[layer]), key=lambda at: TABLE[at[0]][at[1]]
    )
    some = min(6, len(order) // 2)
    for plane, wanted in ((planes.least, order[:some]), (planes.most, order[::-1][:some])):
        assert [(head.layer, head.head) for head in plane.heads] == wanted
        sides = {
            s: np.concatenate([z[layer][:, head] for layer, head in wanted], 1)
            for s, z in by_timm[model].items()
        }
        fitted = PCA(2).fit(np.concatenate([*sides.values()]))
        assert plane.variance == pytest.approx(fitted.explained_variance_ratio_, rel=1e-4)
        for s, side in sides.items():
            flat, points = fitted.transform(side), np.array(plane.points[s])
            signs = np.sign((flat * points).sum(0))
            np.testing.assert_allclose(points, flat * signs, atol=2e-3)
        _, far = distances(fitted.transform(sides["id"]), fitted.transform(sides["others"]))
        assert plane.mahalanobis == {"others": pytest.approx(far, rel=1e-3)}
    assert planes.scores == "random"


def test_ensembles_of_members_are_by_hand_and_all_of_them_are_the_row(here, rows):
    sizes = rows["hydra"].analyses.members
    items, preprocess = open_data(DATA), eval_transform(base().header.preprocess)
    images, labels = (
        torch.stack([preprocess(items.image(i)) for i in range(len(items))]),
        torch.tensor(items.labels),
    )
    with torch.inference_mode():
        probs = load(here / "hydra.st").member_logits(images).double().softmax(-1)
    assert [(s.members, s.measured, s.possible) for s in sizes] == [(1, 3, 3), (2, 3, 3), (3, 1, 1)]
    for size in sizes:
        each = [probs[list(own)].mean(0) for own in combinations(range(3), size.members)]
        nll = [float(-p[range(len(labels)), labels].log().mean()) for p in each]
        found = size.values["nll"]
        assert (found.mean, found.low, found.high) == pytest.approx(
            (np.mean(nll), min(nll), max(nll)), abs=1e-5
        )
    row, last = rows["hydra"], sizes[-1]
    assert {name: spread.mean for name, spread in last.values.items()} == pytest.approx(
        {name: row.values[name].value for name in last.values}
    )
    own = {name: spread.mean for name, spread in last.means["near"].items()}
    assert own == pytest.approx({name: row.means["near"][name] for name in own})
    assert {"accuracy", "ece"} <= last.values.keys()
    assert {"auroc", "fpr95"} <= own.keys()
    assert rows["base"].analyses.members == ()


def test_fewer_heads_are_measured_as_pruned_models_are(rows):
    found = rows["base"].analyses.heads
    assert [(own.scores, own.kept) for own in found] == [
        *(("random", kept) for kept in (10, 8, 6, 4, 2)),
        *(("layers", kept) for kept in (9, 6, 3)),
    ]
    for name in HALVES:
        (own,) = (each for each in found if (each.scores, each.kept) == (name, 6))
        row = rows[name]
        assert own.values == pytest.approx({n: row.values[n].value for n in own.values}, abs=1e-4)
        assert own.means["near"] == pytest.approx(
            {n: row.means["near"][n] for n in own.means["near"]}, abs=1e-4
        )
        assert own.heads == 12
    assert not rows["hydra"].analyses.heads
    assert not rows["random"].analyses.heads


@pytest.mark.parametrize(("name", "member"), [("base", 0), ("hydra", 1)])
def test_taylor_scores_are_of_timms_gradients(name, member, rows):
    (found,) = (each for each in rows[name].analyses.taylor if each.member == member)
    keep = ((0, 1, 2, 3),) * 3 if name == "base" else KEEPS[member]
    library, items = base().masked(*keep).library(), open_data(DATA)
    preprocess = eval_transform(base().header.preprocess)
    images = torch.stack([preprocess(items.image(i)) for i in range(len(items))])
    torch.nn.functional.cross_entropy(library(images), torch.tensor(items.labels)).backward()
    for layer, block in enumerate(library.blocks):
        weight = block.attn.qkv.weight
        expected = (weight * weight.grad).detach().abs().unflatten(0, (3, 4, 8)).mean((0, 2, 3))
        assert {h: s for h, s in enumerate(found.scores[layer]) if s is not None} == pytest.approx(
            {h: float(expected[h]) for h in keep[layer]}, rel=1e-3
        )


def test_what_merging_changes_is_told_beside_the_members_apart(tmp_path):
    sample = base()
    members = [sample.tuned(i, only=lambda name: ".mlp." in name) for i in range(2)]
    paths = [str(member.save(tmp_path / f"t{i}.st")) for i, member in enumerate(members)]
    assert main(["fuse", *paths, "-o", f"{tmp_path}/h.st", "--no-verify", "--force-merge"]) == 0
    command = (
        "eval", f"{tmp_path}/h.st", "--compare", f"apart={','.join(paths)}", "--data", DATA, "--near", f"others={NEAR}", "--analyse",
        "mlps", "--temperature", "0.7", "-o", f"{tmp_path}/r.json", "--save-predictions", f"{tmp_path}/p.st", *COMMON,
    )  # fmt: skip
    assert main([*command]) == 0
    merged, apart = Report.read(tmp_path / "r.json").rows
    found = merged.analyses.mlps
    assert apart.analyses is None
    for name, pair in found.values.items():
        assert (pair.merged, pair.apart) == pytest.approx(
            (merged.values[name].value, apart.values[name].value), abs=1e-5
        )
    for name, pair in found.means["all"].items():
        assert (pair.merged, pair.apart) == pytest.approx(
            (merged.means["all"][name], apart.means["all"][name]), abs=1e-5
        )
    said = SavedPredictions.load(tmp_path / "p.st").log_probs
    ours, theirs = (said[row]["id"].double().exp().mean(0) for row in ("h", "apart"))
    assert found.agreement == pytest.approx(float((ours.argmax(1) == theirs.argmax(1)).double().mean()))
    assert found.divergence == pytest.approx(float((theirs * (theirs / ours).log()).sum(1).mean()), abs=1e-6)
    names = [name for name in sample.state if name.startswith("blocks.1.mlp.")]
    each = [torch.cat([member.state[name].flatten() for name in names]).double() for member in members]
    mean = torch.stack(each).mean(0)
    off = torch.stack([(own - mean).square().sum() for own in each]).mean()
    assert found.distances["vision.1"] == pytest.approx(float((off / mean.square().sum()).sqrt()), rel=1e-5)
    assert [*found.distances] == ["vision.0", "vision.1", "vision.2"]


def gap(row):
    ((_, by_severity),) = row.shift.values.items()
    ((_, own),) = by_severity.items()
    return own["nll"] - row.values["nll"].value


def test_the_gaps_of_proposition_1_are_those_of_the_rows(rows):
    """After the step, the base predicts like the member."""
    hydra, turn = (rows[name].analyses.proposition for name in ("hydra", "turn"))
    assert [(p.member, p.corruption) for p in hydra] == [(m, "gaussian-noise:3") for m in range(3)]
    assert all(p.gap == pytest.approx(gap(rows["base"]), abs=1e-5) for p in hydra)
    assert rows["base"].analyses.proposition == ()
    for ours, theirs in zip(hydra, turn, strict=True):
        a, b = (own.model_dump(exclude={"corruption"}) for own in (ours, theirs))
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    per_head = 3 * 8 * (32 + 1) + 32 * 8
    assert [p.moved for p in hydra] == [(12 - sum(map(len, keep))) * per_head for keep in KEEPS]


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("kind", ["clip", "bert"])
def test_both_towers_and_texts_are_pruned_and_compared(kind, tmp_path, capsys):
    """The gaps equal those of a row with the member alone."""
    zero_shot = kind == "clip"
    sample = pairs.pair("clip", tmp_path) if zero_shot else _reader(tmp_path)
    pruned(sample, sample.save(tmp_path / "base.st"), tmp_path, [((0, 2), (1, 3)), ((0, 1, 2, 3), (0,))])
    data = (
        "digits::classes=0-4,limit=24"
        if zero_shot
        else str(reviews.reviews(tmp_path / "a.jsonl", 24, seed=1))
    )
    other = (
        "digits::classes=9,limit=20"
        if zero_shot
        else str(reviews.reviews(tmp_path / "b.jsonl", 20, seed=2, things=reviews.GADGETS))
    )
    command = (
        "eval", f"{tmp_path}/m0.st", "--compare", f"m1={tmp_path}/m1.st", "--compare", f"base={tmp_path}/base.st", "--data", data,
        "--far", f"others={other}", "--corrupt", "fog:4" if zero_shot else "swap:4", "--analyse", "proposition,centroids,taylor", "-o",
        f"{tmp_path}/r.json", *COMMON, *(("--classes", "0,1,2,3,4") if zero_shot else ()),
    )  # fmt: skip
    assert main([*command]) == 0
    assert "--normalize" not in capsys.readouterr().err  # `score_taylor` suggests this option of `score`
    *members, single = Report.read(tmp_path / "r.json").rows
    for row in members:
        (found,) = row.analyses.proposition
        assert (found.gap, found.gap_pruned) == pytest.approx((gap(single), gap(row)), abs=1e-5)
        assert found.slope
        assert [own.tower for own in row.analyses.taylor] == (["text", "vision"] if zero_shot else ["text"])
        assert all(min(own.defined_scores) > 0 for own in row.analyses.taylor)
    assert {h.head.tower for h in members[0].analyses.centroids.heads} == {"vision" if zero_shot else "text"}
    per_head = 3 * 8 * (32 + 1) + 32 * 8
    first, second = (row.analyses.proposition[0].moved for row in members)
    towers = 2 if zero_shot else 1
    assert (first, second) == (towers * 4 * per_head, towers * 3 * per_head)


def _reader(folder):
    model_file = open_model(reviews.arch(folder))
    return Sample(model_file.header, perturbed(model_file.checkpoint.tensors(), seed=7, scale=2.0))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--analyse", "centroid"), UsageError, "did you mean `centroids`"),
        (("--analyse", "centroids"), UsageError, "add `--near NAME=DATA`"),
        (("--analyse", "pca", "--near", NEAR), UsageError, "add `--scores scores.json`"),
        (("--analyse", "proposition"), UsageError, "add `--corrupt gaussian-noise:3`"),
        (("--scores", "scores.json"), UsageError, "add `--analyse pca`"),
        (("--analyse", "members"), InputError, "a row with several members"),
        (("--analyse", "mlps"), InputError, "add them: `--compare 'apart=m0.st,m1.st,m2.st'`"),
        (("--analyse", "heads", "--scores", "scores.json"), InputError, "add it: `--compare base=BASE`"),
        (("--analyse", "proposition", "--corrupt", "fog:1"), InputError, "the base as a row"),
        (("--analyse", "pca", "--near", NEAR, "--scores", "short.json"), InputError, "its scores are for a tower `vision` with 2 layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(options, error, message, here, capsys, monkeypatch):
    monkeypatch.chdir(here)
    scores_file(here / "short.json", TABLE[:2])
    assert main(["eval", "m0.st", "--data", DATA, *options, *COMMON[:-1]]) == error.exit_code
    assert message in capsys.readouterr().err


def test_all_leaves_out_what_cannot_be_asked(here, monkeypatch):
    monkeypatch.chdir(here)
    assert main(["eval", "m0.st", "--data", DATA, "--analyse", "all", "-o", "all.json", *COMMON]) == 0
    (row,) = Report.read(here / "all.json").rows
    assert row.analyses.model_fields_set == {"taylor"}
    assert main(["eval", "m0.st", "--data", DATA, "-o", "none.json", *COMMON]) == 0
    assert '"analyses"' not in (here / "none.json").read_text()


def test_a_report_is_made_anew_where_scores_changed_and_not_else(here, monkeypatch, capsys):
    """Data of `--train`, `--val` and `--ood-val` must not make the report stale."""
    monkeypatch.chdir(here)
    scores_file(here / "a.json", TABLE)
    command = (
        "eval", "m0.st", "--data", DATA, "--near", f"others={NEAR}", "--ood-score", "msp,knn", "--train",
        "digits::split=train,classes=0-6,limit=20", "--val", "digits::split=val,classes=0-6,limit=20", "--ood-val",
        "nine=digits::split=val,classes=9,limit=20", "--scores", "z=a.json", "--scores", "scores.json", "--analyse", "pca", "-o",
        "again.json", *COMMON[:-1],
    )  # fmt: skip
    said = []
    for table in (TABLE, TABLE, [*TABLE[1:], TABLE[0]]):
        scores_file(here / "a.json", table)
        assert main([*command, "--if-changed"]) == 0
        said.append("up to date" in capsys.readouterr().out)
    assert said == [False, True, False]
    found = Report.read(here / "again.json").scores
    assert [own.reference for own in found] == ["z=a.json", "scores=scores.json"]
