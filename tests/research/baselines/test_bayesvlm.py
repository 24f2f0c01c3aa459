"""BayesVLM against the authors' numbers, autograd and transformers' CLIP, and as a row of `eval`."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.data.tokenize import encode_texts
from hydractl.errors import DataError, UnsupportedModelError, UsageError
from hydractl.evaluation.options import NamedModels
from hydractl.families.tower import settle_classes
from hydractl.prediction.class_names import Naming
from hydractl.research.baselines.bayesvlm import (
    BayesVlm,
    Pairs,
    Projected,
    ProjectionCovariance,
    best_prior,
    curvature,
    factors,
    similarity,
)
from hydractl.research.baselines.options import BayesVlmOptions
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support.builders import base
from support.pairs import pair
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog

N, P, Q, F = 12, 5, 4, 3
SCALE = math.exp(1.2)
GOLDEN = {
    "image": (
        [
            [0.7120366818994082, 0.12623537332168538, -0.20578911500260605],
            [0.1262353733216853, 0.3525338639655655, -0.01723865199465669],
            [-0.20578911500260605, -0.01723865199465672, 0.2341643610760005],
        ],
        1.5146379470825195,
    ),
    "text": (
        [
            [0.42594361736610725, 0.057975601526707145, 0.22342198276606373],
            [0.05797560152670712, 1.0651511058457321, 0.44755022625741947],
            [0.22342198276606368, 0.4475502262574196, 1.0441164185715672],
        ],
        0.49580976366996765,
    ),
}
"""Values of AaltoML/BayesVLM: `kfac_ggn` of 12 pairs in batches of 6, and `optimize_prior_precision` after
6,000 steps with n = 10."""
MEAN = [
    [3.0964219812559275, 2.9634807147977136, -2.6181913072054486],
    [1.5692181881055869, 2.0408490454651016, -0.3449496685443241],
]
VARIANCE = [
    [0.3278796276153598, 0.622244953069223, 0.22662249062759296],
    [0.19729362527256905, 0.39380916338431554, 0.12775624114604797],
]
"""Variances of AaltoML/BayesVLM's probabilistic logits for two images and three texts, with lambda 2 for
images and 0.5 for texts."""
CAPTIONS = (
    "a 3",
    "the big drawing of the number 2",
    "4",
    "a photo of the big 2",
    "an 0",
    "the big photo of the number 1",
    "3 .",
    "a drawing of the number 4 .",
)
NAMED = Naming(names=("0", "1", "2", "3", "4"), templates=("a photo of a {label} .",))


def table(rows, columns, start):
    places = torch.arange(rows * columns, dtype=torch.float64)
    return torch.sin(start + 0.37 * places**2).view(rows, columns)


WEIGHTS = {"image": table(F, P, 0.3), "text": 1.5 * table(F, Q, 1.1)}


def projected(side, activations):
    return Projected(activations, activations @ WEIGHTS[side].T)


PAIRS = {"image": projected("image", 2 * table(N, P, 0.1)), "text": projected("text", table(N, Q, 0.7))}


@pytest.mark.parametrize(("side", "other"), [("image", "text"), ("text", "image")])
def test_factors_and_prior_are_those_of_the_authors_code(side, other):
    inner, prior = GOLDEN[side]

    a, b = factors(PAIRS[side], PAIRS[other].embeddings, scale=SCALE, contrast=6)

    activations = PAIRS[side].activations
    torch.testing.assert_close(a, activations.T @ activations / math.sqrt(N))
    torch.testing.assert_close(b, torch.tensor(inner).double(), rtol=1e-6, atol=1e-7)
    assert best_prior(WEIGHTS[side], a, b, 10) == pytest.approx(prior, rel=1e-5)


def test_probabilistic_logits_are_those_of_the_authors_code():
    said = []
    for side, other, asked, prior in (
        ("image", "text", table(2, P, 0.9), 2.0),
        ("text", "image", table(3, Q, 0.2), 0.5),
    ):
        a, b = factors(PAIRS[side], PAIRS[other].embeddings, scale=SCALE, contrast=6)
        found = projected(side, asked)
        said.append((found.embeddings, ProjectionCovariance.of(a, b, count=10, prior=prior).variances(asked)))

    mean, variance = similarity(*said)

    torch.testing.assert_close(SCALE * mean, torch.tensor(MEAN).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(SCALE**2 * variance, torch.tensor(VARIANCE).double(), rtol=1e-6, atol=0)


def test_curvature_is_the_gauss_newton_matrix_by_autograd(monkeypatch):
    monkeypatch.setattr("hydractl.research.baselines.bayesvlm.CHUNK", 5)
    sources, candidates = PAIRS["image"].embeddings, PAIRS["text"].embeddings
    targets = candidates / candidates.norm(dim=-1, keepdim=True)
    expected = torch.zeros(F, F).double()
    for source in sources:
        jacobian = torch.func.jacrev(lambda x: SCALE * targets @ (x / x.norm()))(source)
        p = torch.func.vmap(lambda y, x=source: SCALE * y @ (x / x.norm()))(targets).softmax(-1)
        expected += jacobian.T @ (p.diag() - p.outer(p)) @ jacobian

    torch.testing.assert_close(curvature(sources, candidates, SCALE), expected)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Return a small CLIP, its file, and a table of eight images with captions."""
    folder = tmp_path_factory.mktemp("clip")
    sample = pair("clip", folder)
    rows = []
    for i, caption in enumerate(CAPTIONS):
        values = np.random.Generator(np.random.PCG64(i)).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{i}.png")
        rows.append(json.dumps({"image": f"{i}.png", "caption": caption}))
    (folder / "pairs.jsonl").write_text("\n".join(rows))
    return sample, sample.save(folder / "clip.st"), f"{folder}/pairs.jsonl"


def asked(sample, source):
    """Return images (N, ...), tokens of captions and prompts, and digit images (B, ...)."""
    tokenization = sample.header.prompting.tokenization
    preprocess = sample.header.preprocess
    images, digits = (
        torch.cat(
            [
                b.inputs
                for b in eval_batches(open_items(ref, preprocess, labelled=False), preprocess, batch_size=4)
            ]
        )
        for ref in (source, "digits::classes=0-4,limit=20")
    )
    prompts = NAMED.templates[0]
    texts = [prompts.replace("{label}", name) for name in NAMED.names]
    return images, encode_texts(list(CAPTIONS), tokenization), encode_texts(texts, tokenization), digits


def made(sample, source, **options):
    images, captions, prompts, _ = asked(sample, source)
    model = sample.model()
    settle_classes(model, prompts, templates=1)
    count = len(images)
    sides = [iter([(x, torch.arange(count))]) for x in (images, captions)]
    preprocess = BayesVlmOptions(data=DataRef.parse("p.jsonl::text=caption"), **options)
    return BayesVlm(model, preprocess, Pairs(*sides, count), prompts, name="it")


@pytest.fixture(scope="module")
def by_hand(clip):
    """Compute logits with transformers' CLIP and numpy: n = 1e4, lambda 30 and 20, batches of 4 pairs."""
    sample, _, source = clip
    images, captions, prompts, digits = asked(sample, source)
    library = sample.library()

    def seen(x):
        with torch.no_grad():
            if isinstance(x, dict):
                pooled, layer = library.text_model(**x).pooler_output, library.text_projection
            else:
                pooled, layer = library.vision_model(pixel_values=x).pooler_output, library.visual_projection
            return pooled.double().numpy(), layer(pooled).double().numpy()

    sides = [seen(images), seen(captions)]
    scale = float(library.logit_scale.detach().exp())
    doubts = []
    for i, prior in ((0, 30.0), (1, 20.0)):
        (a, e), (_, other) = sides[i], sides[1 - i]
        inner = np.zeros((e.shape[1],) * 2)
        for begin in (0, 4):
            targets = other[begin : begin + 4] / np.linalg.norm(
                other[begin : begin + 4], axis=1, keepdims=True
            )
            for x in e[begin : begin + 4]:
                logits = scale * targets @ x / np.linalg.norm(x)
                p = np.exp(logits - logits.max())
                p /= p.sum()
                jacobian = np.eye(len(x)) / np.linalg.norm(x) - np.outer(x, x) / np.linalg.norm(x) ** 3
                inner += scale**2 * jacobian @ targets.T @ (np.diag(p) - np.outer(p, p)) @ targets @ jacobian
        root = math.sqrt(1e4 / len(a))
        doubts.append([np.linalg.inv(root * f + math.sqrt(prior) * np.eye(len(f))) for f in (a.T @ a, inner)])
    (a1, e1), (a2, e2) = seen(digits), seen(prompts)
    s1, s2 = (
        np.einsum("np,pq,nq->n", a, d[0], a)[:, None] * np.diag(d[1])
        for a, d in zip((a1, a2), doubts, strict=True)
    )
    n1, n2 = e1**2 + s1, e2**2 + s2
    lengths = n1.sum(1)[:, None] * n2.sum(1)
    variance = (n1 @ s2.T + s1 @ (e2**2).T) / lengths
    return scale * e1 @ e2.T / np.sqrt(lengths) / np.sqrt(1 + math.pi / 8 * scale**2 * variance)


GIVEN = {"count": 1e4, "contrast": 4, "prior_image": 30.0, "prior_text": 20.0}


def test_logits_are_those_of_the_library_s_clip_and_the_formulas(clip, by_hand):
    sample, _, source = clip
    with torch.no_grad():
        found = made(sample, source, **GIVEN).member_logits(asked(sample, source)[-1])

    np.testing.assert_allclose(found[0], by_hand, rtol=1e-4, atol=1e-4)


def test_as_a_row_captions_stay_with_their_images(clip, by_hand, tmp_path):
    """Captions are sorted by length, in another order than images, but pairs must form the same batches."""
    _, path, source = clip
    row = f"Bayes=bayesvlm:{path}::count=1e4,contrast=4,prior_image=30,prior_text=20,data={source}::text=caption"
    document = run_eval(
        EvalConfig(
            model=str(path), data=DataRef.parse("digits::classes=0-4,limit=20"), compare=(NamedModels.parse(row),),
            naming=NAMED, latency=False, bootstrap=0, batch_size=3, device="cpu", save_predictions=tmp_path / "p.st",
        )
    ).document  # fmt: skip
    own, bayes = document.rows
    said = SavedPredictions.load(tmp_path / "p.st").log_probs

    np.testing.assert_allclose(
        said["Bayes"]["id"][0], torch.tensor(by_hand).log_softmax(-1), rtol=0, atol=3e-5
    )
    assert bayes.derived[0].options == {
        "count": 1e4, "contrast": 4, "prior_image": 30.0, "prior_text": 20.0,
    }  # fmt: skip
    assert (bayes.derived[0].data.count, bayes.members) == (8, 1)
    assert own.values["macs"].value < bayes.values["macs"].value
    assert bayes.values["parameters"].value == own.values["parameters"].value


def test_what_is_left_of_pairs_is_said(clip):
    _, path, source = clip
    row = NamedModels.parse(f"x=bayesvlm:{path}::contrast=3,data={source}::text=caption")
    given = {"data": DataRef.parse("digits::classes=0-4,limit=5"), "naming": NAMED, "latency": False}
    config = EvalConfig(model=str(path), compare=(row,), bootstrap=0, device="cpu", **given)

    run_eval(config, ear := ProgressLog())

    assert any("the last 2 pairs are ignored, because a batch has 3 pairs" in said for said in ear.warnings)


def test_a_temperature_divides_before_the_projections_are_doubted(clip):
    """1 / logit^2 is then linear in the square of the temperature."""
    sample, _, source = clip
    model, digits = made(sample, source, **GIVEN), asked(sample, source)[-1]
    found = []
    for temperature in (1.0, 2.0, 3.0):
        model.temperature = temperature
        with torch.no_grad():
            found.append(model.member_logits(digits).double() ** -2)

    assert (found[1] > 1.1 * found[0]).all()
    torch.testing.assert_close((found[1] - found[0]) / 3, (found[2] - found[0]) / 8, rtol=1e-3, atol=1e-6)


def test_what_compares_no_images_with_texts_is_refused(clip, tmp_path):
    _, path, source = clip
    siglip = pair("siglip", tmp_path)

    with pytest.raises(UnsupportedModelError, match="needs a single CLIP"):
        made(siglip, source)
    classifier = base().save(tmp_path / "base.st")
    given = {
        "data": DataRef.parse("digits::classes=0-6,limit=7"),
        "latency": False,
        "bootstrap": 0,
        "device": "cpu",
    }
    row = "x=bayesvlm:{}::data=" + source + "::text=caption"
    for model, options, said in (
        (classifier, {}, "`bayesvlm:` needs a model that compares images with texts"),
        (
            path,
            {"naming": Naming(names=NAMED.names, templates=("a {label}", "the {label}"))},
            "needs one template, but there are 2",
        ),
    ):
        own = given | options | {"data": DataRef.parse("digits::classes=0-4,limit=5")} if options else given
        with pytest.raises(UnsupportedModelError, match=said):
            run_eval(EvalConfig(model=str(model), compare=(NamedModels.parse(row.format(model)),), **own))
    one = (NamedModels.parse(row.format(path) + ",limit=1"),)
    own = given | {"data": DataRef.parse("digits::classes=0-4,limit=5"), "naming": NAMED}
    with pytest.raises(DataError, match="at least two pairs are needed"):
        run_eval(EvalConfig(model=str(path), compare=one, **own))
    with pytest.raises(UsageError, match="needs the column with the captions"):
        NamedModels.parse("x=bayesvlm:a.st::data=p.jsonl")
