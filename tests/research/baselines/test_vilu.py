"""ViLU against the authors' formulas and transformers' CLIP, and as a row of `eval`."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.data.tokenize import encode_texts
from hydractl.errors import DataError, UnsupportedModelError, UsageError
from hydractl.evaluation.options import NamedData, NamedModels
from hydractl.families.tower import settle_classes, unit
from hydractl.fusion.hydra import Hydra
from hydractl.metrics.classification import adaptive_ece, ece
from hydractl.metrics.selective import errors_among_accepted
from hydractl.prediction.class_names import Naming
from hydractl.research.baselines.options import ViluOptions
from hydractl.research.baselines.vilu import FailurePredictor, Vilu, contrast_of, loss_of, train
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.training.feeding import ItemFeed
from support.builders import base
from support.pairs import pair
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog

F, C, SCALE = 6, 4, 30.0
DATA, FOREIGN = "digits::classes=0-4,limit=40", "noise::limit=12,size=8"
NAMED = Naming(names=("0", "1", "2", "3", "4"), templates=("a photo of a {label} .",))


def drawn(*shape, seed=0):
    return unit(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def preprocess(**options):
    return ViluOptions(data=DataRef.parse(DATA), **options)


def judge(seed=0, thaw=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FailurePredictor(F, scale=SCALE, thaw=thaw)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def written_out(state, v, t, *, projected):
    """Compute the authors' `viluAttention.forward` in numpy: [v, attention, predicted t], then the MLP."""
    w = {name: tensor.double().numpy() for name, tensor in state.items()}
    v, t = v.double().numpy(), t.double().numpy()
    q, k = (v @ w["project_images.weight"].T, t @ w["project_texts.weight"].T) if projected else (v, t)
    x = np.concatenate([v, softmax(SCALE * q @ k.T) @ k, t[(SCALE * v @ t.T).argmax(-1)]], 1)
    for layer in (0, 2, 4):
        x = np.maximum(x @ w[f"mlp.{layer}.weight"].T + w[f"mlp.{layer}.bias"], 0)
    return (x @ w["mlp.6.weight"].T + w["mlp.6.bias"])[:, 0]


@pytest.mark.parametrize(("thaw", "projected"), [(None, False), (0, True)])
def test_logits_are_those_of_the_authors_formulas(thaw, projected):
    it, v, t = judge(thaw=thaw).eval(), drawn(9, F), drawn(C, F, seed=1)
    for number, name in enumerate(("project_images", "project_texts") if projected else ()):
        noise = torch.randn(F, F, generator=torch.Generator().manual_seed(7 + number))
        it.get_submodule(name).weight.data += 0.3 * noise
    it.steps = 1  # one step more than `thaw`

    with torch.no_grad():
        found = it(v, t)

    np.testing.assert_allclose(
        found, written_out(it.state_dict(), v, t, projected=projected), rtol=0, atol=1e-6
    )
    assert [tuple(part.weight.shape) for part in it.mlp[::2]] == [
        (512, 3 * F),
        (256, 512),
        (128, 256),
        (1, 128),
    ]


@pytest.mark.parametrize("thaw", [None, 0, 5])
def test_attention_begins_as_the_zero_shot_probabilities_of_classes(thaw):
    it, v, t = judge(thaw=thaw), drawn(9, F), drawn(C, F, seed=1)
    it.steps = 1

    with torch.no_grad():
        torch.testing.assert_close(it.attended(v, t), (SCALE * v @ t.T).softmax(-1) @ t)


@pytest.mark.parametrize("right", [(1, 0, 1, 1, 0, 1, 1, 1), (1, 0, 0, 0, 0, 0, 0, 0), (1,) * 8, (0,) * 8])
def test_wrong_answers_weigh_the_logarithm_of_one_and_the_odds(right):
    """The reference is the authors' `BCELoss` with `adaptative` weights."""
    logits, correct = 3 * drawn(8), np.array(right, dtype=bool)
    p, acc = 1 / (1 + np.exp(-logits.double().numpy())), correct.mean()
    each = -np.where(correct, np.log(p), np.log(1 - p))
    if not correct.all():
        each[~correct] *= np.log(1 + acc / (1 - acc))

    found = loss_of(logits, torch.tensor(correct))

    assert float(found) == pytest.approx(each.mean(), rel=1e-6, abs=1e-12)
    assert math.isfinite(found)


def authors(state, batches, t, *, epochs, lr, thaw=None):
    """Train like the authors' `Trainer`, with explicit SGD updates and rates, and return the weights."""
    w = {name: tensor.clone().double().requires_grad_() for name, tensor in state.items()}
    speed = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    t, step = t.double(), 0
    for epoch in range(epochs):
        rate = lr * (0.1 + 0.9 * min(epoch, 5) / 5) * (1 + math.cos(math.pi * epoch / epochs)) / 2
        for images, labels in batches:
            v, step = images.double(), step + 1
            q, k = v, t
            if thaw is not None:
                q, k = v @ w["project_images.weight"].T, t @ w["project_texts.weight"].T
                q, k = (q, k) if step > thaw else (q * 0 + v, k * 0 + t)
            probs = (SCALE * v @ t.T).softmax(-1)
            x = torch.cat([v, (SCALE * q @ k.T).softmax(-1) @ k, t[probs.argmax(1)]], 1)
            for layer in (0, 2, 4):
                x = (x @ w[f"mlp.{layer}.weight"].T + w[f"mlp.{layer}.bias"]).relu()
            said = (x @ w["mlp.6.weight"].T + w["mlp.6.bias"])[:, 0]
            correct = probs.argmax(1) == labels
            acc = correct.double().mean()
            weights = torch.ones_like(said)
            weights[~correct] *= torch.log(1 + acc / (1 - acc))
            each = torch.where(
                correct, -torch.nn.functional.logsigmoid(said), -torch.nn.functional.logsigmoid(-said)
            )
            slopes = torch.autograd.grad((weights * each).mean(), [*w.values()])
            with torch.no_grad():
                for name, slope in zip(w, slopes, strict=True):
                    speed[name] = 0.9 * speed[name] + slope + 5e-4 * w[name]
                    w[name] -= rate * speed[name]
    return w


@pytest.mark.parametrize("thaw", [None, 6])
def test_training_is_the_authors(thaw):
    """Covers loss weights, momentum, weight decay, warm-up, cosine, and decay of frozen projections."""
    batches = [(drawn(16, F, seed=s), torch.arange(16) % C) for s in (3, 4)]
    t, it = drawn(C, F, seed=1), judge(thaw=thaw)
    expected = authors(it.state_dict(), batches, t, epochs=9, lr=0.05, thaw=thaw)

    train(it, preprocess(epochs=9, lr=0.05), batches * 9, t, per_epoch=2)

    for name, tensor in it.state_dict().items():
        torch.testing.assert_close(tensor.double(), expected[name].detach(), rtol=1e-5, atol=1e-6, msg=name)
    if thaw is not None:
        away = it.state_dict()["project_images.weight"] - torch.eye(F)
        assert away[~torch.eye(F, dtype=torch.bool)].abs().max() > 1e-6


def test_projections_wait_and_only_decay():
    batches = [(drawn(16, F, seed=3), torch.arange(16) % C)] * 4
    it = judge(thaw=4)

    train(it, preprocess(epochs=4, lr=0.05), batches, drawn(C, F, seed=1), per_epoch=1)

    weight = it.state_dict()["project_images.weight"]
    torch.testing.assert_close(weight, weight[0, 0] * torch.eye(F))
    assert 0.999 < float(weight[0, 0]) < 1


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    sample = pair("clip", folder)
    return sample, sample.save(folder / "clip.st")


def labelled(sample, ref=DATA):
    preprocess = sample.header.preprocess
    items = open_items(DataRef.parse(ref), preprocess)
    return items, torch.cat([b.inputs for b in eval_batches(items, preprocess, batch_size=64)])


def made(sample, **options):
    """Return the model with its trained network, for named classes."""
    model, asked = sample.model(), preprocess(**{"epochs": 4, "batch": 16, "lr": 0.05} | options)
    texts = [NAMED.templates[0].replace("{label}", name) for name in NAMED.names]
    settle_classes(model, encode_texts(texts, sample.header.prompting.tokenization), templates=1)
    items, _ = labelled(sample)
    feed = ItemFeed.open(
        items, items.labels, sample.header.preprocess, augment=asked.augments, batch_size=asked.batch, seed=asked.seed
    )  # fmt: skip
    before = torch.random.get_rng_state()
    found = Vilu(model, asked, feed, name="it")
    assert torch.equal(before, torch.random.get_rng_state())
    return found


def confidence(model, images):
    with torch.no_grad():
        logits = model.member_logits(images)
    return logits, model.confidence


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("augment", ["none", "crops"])
def test_the_seed_says_all_and_answers_are_the_model_s(clip, augment):
    sample, _ = clip
    _, images = labelled(sample)
    first, again, other = (made(sample, augment=augment, seed=seed) for seed in (0, 0, 1))

    logits, found = confidence(first, images)

    assert torch.equal(found, confidence(again, images)[1])
    assert not torch.allclose(found, confidence(other, images)[1])
    assert not torch.allclose(found, confidence(made(sample, augment=augment, epochs=1), images)[1])
    assert logits.shape == (1, 40, 5)
    assert 0 < float(found.min()) < float(found.max()) < 1


def test_it_learns_on_embeddings_of_the_library_s_clip(clip):
    """Training on images equals training on their embeddings in the order of the seed."""
    sample, _ = clip
    items, images = labelled(sample)
    library = sample.library()
    texts = encode_texts([f"a photo of a {n} ." for n in NAMED.names], sample.header.prompting.tokenization)
    with torch.no_grad():
        v = unit(library.get_image_features(pixel_values=images).pooler_output)
        t = unit(library.get_text_features(**texts).pooler_output)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        it = FailurePredictor(len(v[0]), scale=float(library.logit_scale.detach().exp()), thaw=None)
    labels = torch.tensor(items.labels)
    orders = [torch.randperm(40, generator=torch.Generator().manual_seed(s)) for s in seeds(10)]
    batches = [(v[own], labels[own]) for order in orders for own in order.split(16) if len(own) == 16]
    train(it, preprocess(epochs=10, lr=0.5), batches, t, per_epoch=2)

    model = made(sample, augment="none", epochs=10, lr=0.5)

    with torch.no_grad():
        torch.testing.assert_close(confidence(model, images)[1], it(v, t).sigmoid(), rtol=1e-4, atol=1e-5)


def seeds(epochs):
    from hydractl.data.preprocess import sample_seed

    return [sample_seed(0, epoch) for epoch in range(epochs)]


def test_training_is_counted(clip):
    sample, _ = clip
    once, anew = (made(sample, augment=augment) for augment in ("none", "crops"))
    width, seen = 16, 4 * 32  # 40 images give two batches of 16 per epoch
    network = 3 * width * 512 + 512 * 256 + 256 * 128 + 128 + 3 * 5 * width
    embedded = (anew.training_macs - once.training_macs) / (seen - 40)

    assert once.training_macs == 3 * network * seen + embedded * 40
    tower = 4 * (3 * 16 * 32) + 2 * (5 * (4 * 32 * 32 + 2 * 32 * 48))
    assert 0.5 * tower < embedded < 1.5 * tower


def evaluated(path, row, **options):
    given = {
        "model": str(path), "data": DataRef.parse(DATA), "far": (NamedData.parse(f"noise={FOREIGN}"),), "naming": NAMED, "latency": False,
        "bootstrap": 0, "device": "cpu", "compare": (NamedModels.parse(row),),
    }  # fmt: skip
    return run_eval(EvalConfig(**given | options), ProgressLog()).document


def test_as_a_row_its_confidence_is_what_calibration_and_ood_read(clip, tmp_path):
    sample, path = clip
    items, images = labelled(sample)
    row = f"ViLU=vilu:{path}::epochs=4,batch=16,lr=0.05,augment=none,data={DATA}"

    document = evaluated(path, row, batch_size=7, save_predictions=tmp_path / "p.st", curves=True,
                         ood_score=("msp", "entropy"))  # fmt: skip

    own, vilu = document.rows
    model = made(sample, augment="none")
    logits, sure = confidence(model, images)
    hits = logits[0].argmax(-1) == torch.tensor(items.labels)
    said = {
        name: SavedPredictions.load(tmp_path / "p.st").said["ViLU"][name].scores["msp"]
        for name in ("id", "noise")
    }
    torch.testing.assert_close(-said["id"].float(), sure, rtol=1e-5, atol=1e-6)
    ranks = roc_auc_score([0] * 40 + [1] * 12, torch.cat([said["id"], said["noise"]]))
    assert vilu.ood["noise"]["auroc"].value == pytest.approx(ranks)
    assert vilu.values["ece"].value == pytest.approx(float(ece(-said["id"], hits)))
    assert vilu.values["adaptive_ece"].value == pytest.approx(float(adaptive_ece(-said["id"], hits)))
    for name in ("accuracy", "brier", "nll"):
        assert vilu.values[name] == own.values[name]
    assert vilu.ood["noise"]["auroc@entropy"] == own.ood["noise"]["auroc@entropy"]
    assert vilu.ood["noise"]["auroc"] != own.ood["noise"]["auroc"]
    assert vilu.values["ece"] != own.values["ece"]
    bins = vilu.curves.reliability
    assert sum(n * c for n, c in zip(bins.count, bins.confidence, strict=True)) / 40 == pytest.approx(
        float(sure.mean())
    )
    assert vilu.curves.roc["noise"] != own.curves.roc["noise"]
    assert vilu.curves.risk != own.curves.risk


def test_it_is_no_member_of_a_row_of_several_models():
    with pytest.raises(
        UsageError, match="`vilu:` predicts whether a single model is correct, not an ensemble"
    ):
        NamedModels.parse(f"both=a.st,vilu:clip.st::data={DATA}")


def test_the_report_says_what_the_row_is(clip):
    sample, path = clip
    row = f"ViLU=vilu:{path}::epochs=2,batch=16,augment=none,seed=3,data={DATA}"

    document = evaluated(path, row)

    own, vilu = document.rows
    (said,) = vilu.derived
    assert (said.kind, said.data.count) == ("vilu", 40)
    assert said.options == {
        "epochs": 2, "batch": 16, "lr": 1e-3, "augment": "none", "seed": 3, "accuracy": pytest.approx(said.options["accuracy"]),
    }  # fmt: skip
    assert any("ViLU: predictions and probabilities are those of" in line for line in document.warnings)
    assert not any("clip: answers" in line for line in document.warnings)
    assert vilu.values["training_macs"].value == made(sample, augment="none", epochs=2).training_macs
    assert vilu.values["parameters"].value > own.values["parameters"].value
    assert vilu.values["macs"].value > own.values["macs"].value
    assert "training_macs" not in own.values


def test_a_threshold_is_on_its_confidence(clip):
    sample, path = clip
    items, images = labelled(sample)
    row = f"ViLU=vilu:{path}::epochs=4,batch=16,lr=0.05,augment=none,data={DATA}"

    found = evaluated(path, row, threshold_for=0.95, far=()).rows[1].threshold

    logits, sure = confidence(made(sample, augment="none"), images)
    hits = logits[0].argmax(-1) == torch.tensor(items.labels)
    expected = errors_among_accepted(-sure.double(), hits, risk=0.95, delta=0.05)
    assert (found.score, found.accepted, found.errors) == ("msp", expected.accepted, expected.errors)
    assert found.below == pytest.approx(expected.below, rel=1e-5)


def test_a_temperature_is_not_of_its_confidence(clip):
    _, path = clip
    row = f"ViLU=vilu:{path}::epochs=2,batch=16,augment=none,data={DATA}"
    plain, scaled = (evaluated(path, row, temperature=t).rows[1] for t in (None, 3.0))

    assert scaled.values["ece"] == plain.values["ece"]
    assert scaled.ood["noise"]["auroc"] == plain.ood["noise"]["auroc"]
    assert scaled.values["nll"] != plain.values["nll"]


def test_fewer_images_than_a_batch_are_one_batch(clip):
    sample, _ = clip

    assert made(sample, augment="none", batch=512, epochs=3).accuracy < 1
    assert made(sample, batch=512, epochs=1).accuracy < 1


def test_what_cannot_be_judged_is_refused(clip, tmp_path):
    _, path = clip
    classifier = base().save(tmp_path / "base.st")
    given = {"data": DataRef.parse("digits::classes=0-6,limit=14"), "far": (), "naming": Naming()}
    with pytest.raises(UnsupportedModelError, match="needs a single model that compares images with texts"):
        evaluated(classifier, f"x=vilu:{classifier}::epochs=1,data=digits::classes=0-6,limit=14", **given)
    sample, _ = clip
    with pytest.raises(UnsupportedModelError, match="but it has several models"):
        contrast_of(Hydra([sample.model(), sample.model()]), name="hydra.st")
    with pytest.raises(DataError, match="has no labels, but `vilu: data="):
        evaluated(path, f"x=vilu:{path}::epochs=1,data={FOREIGN}")
    with pytest.raises(DataError, match=re.escape("`vilu: data=digits::classes=8-9,limit=10`: digits")):
        evaluated(path, f"x=vilu:{path}::epochs=1,data=digits::classes=8-9,limit=10")
    for words, said in (
        ("x=vilu:a.st", "data"),
        ("x=vilu:a.st::epochs=0,data=d/", "epochs"),
        ("x=vilu:a.st::augment=all,data=d/", "augment"),
        (
            "x=vilu:a.st::data=d/,vilu:b.st::data=d/",
            "predicts whether a single model is correct, not an ensemble",
        ),
        ("x=b.st,vilu:a.st::data=d/", "predicts whether a single model is correct, not an ensemble"),
    ):
        with pytest.raises(UsageError, match=said):
            NamedModels.parse(words)


def test_a_model_that_is_always_wrong_teaches_nothing_and_that_is_said(clip):
    _, path = clip
    ear = ProgressLog()
    found = run_eval(EvalConfig(
        model=str(path), data=DataRef.parse(DATA), naming=NAMED, latency=False, bootstrap=0, device="cpu",
        compare=(NamedModels.parse(f"x=vilu:{path}::epochs=1,augment=none,data=digits::classes=0-4,limit=1"),),
    ), ear)  # fmt: skip

    assert any("so there is nothing to learn" in line for line in ear.warnings)
    assert all(math.isfinite(value.value) for value in found.document.rows[1].values.values())
