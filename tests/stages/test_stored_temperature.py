"""Stored temperatures: applied to predictions, ignored and dropped by training and scoring."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from hydractl.checkpoint import Checkpoint
from hydractl.cli.commands.measure import show_report as render
from hydractl.data.reference import DataRef
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import load_model, open_model
from hydractl.manifest.head_mask import HeadImportance
from hydractl.manifest.header import Header
from hydractl.prediction.loaded_model import load
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from hydractl.training.recipe import Recipe
from support.builders import Sample, base, mask_file
from support.variants import PLAIN, variant

CLIP = variant("transformers-clip-plain")
KEEP = ((0, 1), (2,), (0, 3))
DATA = DataRef.parse("digits::split=test,classes=0-6,limit=30")


def at(sample, temperature):
    """Return the sample with a temperature in its header."""
    return Sample(sample.header.model_copy(update={"temperature": temperature}), sample.state)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, a member, a zero-shot model and a hydra, each without a temperature and with T = 2."""
    folder = tmp_path_factory.mktemp("models")
    made = {"base": base(PLAIN), "member": base(PLAIN).pruned(*KEEP), "clip": base(CLIP)}
    for name, sample in made.items():
        sample.save(folder / f"{name}.st")
        at(sample, 2.0).save(folder / f"{name}-2.st")
    samples = [base(PLAIN).pruned(*KEEP).tuned(i) for i in range(2)]
    paths = tuple(str(s.save(folder / f"m{i}.st")) for i, s in enumerate(samples))
    run_fuse(FuseConfig(models=paths, out=folder / "hydra.st", mlp="keep", verify=False))
    hydra = open_model(str(folder / "hydra.st"))
    at(Sample(hydra.header, hydra.checkpoint.tensors()), 2.0).save(folder / "hydra-2.st")
    at(base(PLAIN), 3.0).save(folder / "base-3.st")
    return folder


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", ["base", "member", "hydra", "clip"])
@torch.inference_mode()
def test_what_is_loaded_answers_with_logits_divided_by_it(models, name):
    plain, scaled = load(models / f"{name}.st"), load(models / f"{name}-2.st")
    inputs = base(CLIP if name == "clip" else PLAIN).inputs(batch=3)
    raw, found = plain.member_logits(inputs), scaled.member_logits(inputs)

    assert torch.equal(found, raw / 2)
    if name == "hydra":
        assert torch.equal(scaled(inputs).member_logits, found)
        expected = (raw / 2).softmax(-1).mean(0)
        torch.testing.assert_close(scaled(inputs).logits.exp(), expected)
    else:
        assert torch.equal(scaled(inputs), raw[0] / 2)
        assert torch.equal(load_model(open_model(str(models / f"{name}-2.st"))).member_logits(inputs), raw)


def rows_of(models, name, **changes):
    given = {"latency": False, "bootstrap": 0, "device": "cpu", "batch_size": 30}
    return run_eval(EvalConfig(model=str(models / f"{name}.st"), data=DATA, **(given | changes))).document


def numbers(document, row=0):
    return {name: value.value for name, value in document.rows[row].values.items()}


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(("name", "on_top", "together"), [("base", None, 2.0), ("hydra", 1.5, 3.0)])
def test_eval_divides_by_it_and_by_what_is_given_on_top(models, name, on_top, together):
    found = rows_of(models, f"{name}-2", temperature=on_top)
    assert numbers(found) == pytest.approx(numbers(rows_of(models, name, temperature=together)), rel=1e-5)
    assert found.rows[0].stored_temperatures == (2.0,)
    assert "temperature" in found.definitions


def test_what_is_fitted_on_top_ends_where_it_does_without(models):
    heldout = DataRef.parse("digits::split=val,classes=0-6,limit=30")
    plain, scaled = (rows_of(models, name, temperature=heldout) for name in ("hydra", "hydra-2"))
    assert numbers(scaled) == pytest.approx(numbers(plain), rel=1e-3)
    assert numbers(scaled)["temperature"] != 1
    assert plain.rows[0].stored_temperatures == ()


def test_models_that_answer_together_keep_temperatures_of_their_own(models):
    together = NamedModels(name="both", models=(str(models / "base-2.st"), str(models / "base-3.st")))
    document = rows_of(models, "base", compare=(together,))
    shown = io.StringIO()
    render(document, Console(file=shown, width=200))

    assert document.rows[1].stored_temperatures == (2.0, 3.0)
    assert "temperature" not in document.rows[1].values
    assert "the models of both store different temperatures, which T does not include" in shown.getvalue()


UNFAIR = (
    "the comparison of Brier, NLL, ECE and aECE is unfair: {} a temperature, {} not; add "
    "`--temperature DATA` to fit one for each row"
)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("first", "others", "said"),
    [
        ("hydra-2", {"base": ["base"], "both": ["base", "base-3"]}, ("hydra-2 and both store", "base and both do")),
        ("base", {"hydra": ["hydra-2"]}, ("hydra stores", "base does")),
        ("base-2", {"hydra": ["hydra-2"]}, None),
        ("base", {"member": ["member"]}, None),
    ],
)  # fmt: skip
def test_a_temperature_of_some_rows_alone_is_unfair(models, first, others, said):
    """The report warns and names the option for a fair comparison."""
    compare = tuple(
        NamedModels(name=name, models=tuple(str(models / f"{own}.st") for own in row))
        for name, row in others.items()
    )
    heldout = DataRef.parse("digits::split=val,classes=0-6")
    unfair = [] if said is None else [UNFAIR.format(*said)]
    given = {"compare": compare, "metrics": ("accuracy", "brier", "nll", "ece", "adaptive_ece")}

    for temperature, expected in ((None, unfair), (1.5, unfair), (heldout, [])):
        found = rows_of(models, first, temperature=temperature, **given).warnings
        assert [warning for warning in found if "unfair" in warning] == expected
    assert not rows_of(models, first, compare=compare, metrics=("accuracy",)).warnings


def test_the_table_says_that_it_is_stored(models):
    shown = io.StringIO()
    render(rows_of(models, "base-2"), Console(file=shown, width=200))
    assert "Logits are divided by T, as stored in the checkpoint\n" in shown.getvalue()
    assert "2.000" in shown.getvalue()


def made_of(models, folder, name):
    """Return checkpoints from `prune` and `finetune`, and head importances from `score`."""
    model = str(models / f"{name}.st")
    mask = mask_file(folder / "mask.json", open_model(model).header, *KEEP)
    run_prune(PruneConfig(model=model, masks=(mask,), out=folder / f"{name}-pruned.st"))
    run_finetune(FinetuneConfig(
        model=model, train=DATA, val=DATA, out=folder / f"{name}-tuned.st", device="cpu",
        recipe=Recipe(steps=2, batch_size=8, warmup=0),
    ))  # fmt: skip
    run_score(ScoreConfig(
        model=model, method="taylor", data="digits::classes=0-6", out=folder / f"{name}.json", device="cpu", limit=8,
    ))  # fmt: skip
    scores = HeadImportance.read(folder / f"{name}.json").towers
    return [Checkpoint.open(folder / f"{name}-{made}.st") for made in ("pruned", "tuned")], scores


def test_what_changes_weights_runs_on_raw_logits_and_drops_it(models, tmp_path):
    (plain, raw), (scaled, found) = (made_of(models, tmp_path, name) for name in ("base", "base-2"))

    for one, other in zip(plain, scaled, strict=True):
        assert isinstance(other.header, Header)
        assert other.header.temperature == 1
        assert all(torch.equal(one.tensor(n), other.tensor(n)) for n in one.specs)
    assert raw == found
