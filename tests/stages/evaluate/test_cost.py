"""Parameters, MACs, training costs and latencies of rows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.evaluation import cost as evaluate_cost
from hydractl.evaluation.cost import count_sizes, measure_latencies
from hydractl.evaluation.options import Condition, NamedModels
from hydractl.families.tower import blank_inputs
from hydractl.fusion.hydra import Hydra
from hydractl.manifest.header import Header, InputFile, Step
from hydractl.metrics.cost import count_macs
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import METRICS, needing
from hydractl.prediction.feature_ood import Predictor
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support.builders import base, sha
from support.variants import VARIANTS

SIZES, LATENCIES = (needing(METRICS, needs) for needs in (MetricNeeds.WEIGHTS, MetricNeeds.TIME))
KEEP = ((0, 1), (2,), (0, 3))


def predictors(*models):
    return [Predictor(model=model, name="m", preprocess=base().header.preprocess) for model in models]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_macs_are_those_of_a_forward_pass(dtype):
    sample = base().pruned(*KEEP)
    model = sample.model(dtype)

    found = count_sizes(predictors(model), SIZES)

    assert found["macs"].value == count_macs(model, sample.inputs(batch=1).to(dtype))
    assert found["parameters"].value == sum(t.numel() for t in sample.state.values())


def test_shared_parameters_count_once_and_sums_are_over_models():
    model = base().model()
    alone = count_sizes(predictors(model), SIZES)

    twice = count_sizes(predictors(model, model), SIZES)
    hydra = count_sizes(predictors(Hydra([model, model])), SIZES)

    assert (*alone, "training_macs") == SIZES
    for metric in alone:
        assert twice[metric].value == 2 * alone[metric].value
        times = 2 if metric == "macs_textbook" else 1
        assert hydra[metric].value == times * alone[metric].value


def test_textbook_macs_of_one_network_with_several_classifiers_are_of_one_pass():
    """A hydra trained with the method MIMO counts one pass; any other method counts one pass per member."""
    model = base().model()
    alone = count_sizes(predictors(model), SIZES)["macs_textbook"].value

    def textbook(method, **later):
        step = Step(command="finetune", options={} if method is None else {"method": method})
        if later:
            step = Step(inputs=(InputFile(name="a.st", sha256=sha("a"), made_by=step),), options={}, **later)
        model_file = SimpleNamespace(header=base().header.model_copy(update={"made_by": step}))
        return count_sizes(predictors(Hydra([model] * 3)), SIZES, [model_file])["macs_textbook"].value

    assert textbook("mimo::rho=0.5,repeat=4") == textbook("mimo::rho=0", command="eval") == alone
    assert textbook(None) == textbook("batch-ensemble::members=3,spread=0.1") == 3 * alone


def model_with_training_cost(seed, macs, *sources):
    """Return a model whose lineage has one run of `finetune` on these models."""
    inputs = tuple(InputFile(name="a.st", sha256=sha("a"), made_by=one.header.made_by) for one in sources)
    results = {} if macs is None else {"training_macs": macs}
    step = Step(command="finetune", options={}, inputs=inputs, seed=seed, results=results)
    header = base().header.model_copy(update={"made_by": step})
    return SimpleNamespace(header=Header.model_validate_json(header.to_metadata()))


def test_training_costs_what_all_runs_did_that_led_there():
    """A run shared by several models counts once. Untrained models, and runs without a record, have no value."""
    untrained, old, first = (
        SimpleNamespace(header=base().header),
        model_with_training_cost(0, None),
        model_with_training_cost(0, 1000),
    )
    pruned = Step(
        command="prune",
        options={},
        inputs=(InputFile(name="b", sha256=sha("b"), made_by=first.header.made_by),),
    )
    between = SimpleNamespace(header=first.header.model_copy(update={"made_by": pruned}))
    members = [model_with_training_cost(seed, 30, between) for seed in range(3)]

    def cost(*model_file):
        return {n: v.value for n, v in count_sizes(predictors(), ("training_macs",), model_file).items()}

    assert cost(first) == cost(between) == cost(first, untrained) == {"training_macs": 1000}
    assert cost(*members) == {"training_macs": 1090}
    assert cost(*members, members[0], first) == {"training_macs": 1090}
    assert cost(untrained) == cost(old, first) == cost(model_with_training_cost(1, 5, old)) == {}


def test_what_training_took_is_not_asked_where_no_lineage_tells(tmp_path, monkeypatch):
    """The error precedes all forward passes. A column may have gaps if another row has a value."""
    told = replace(base(), header=model_with_training_cost(0, 1000).header).save(tmp_path / "told.st")
    model = base().save(tmp_path / "base.st")
    given = {
        "data": DataRef.parse("digits::classes=0-6,limit=8"),
        "latency": False,
        "bootstrap": 0,
        "device": "cpu",
    }
    condition = Condition.parse("training_macs>10")
    named = {"metrics": ("training_macs",)}
    beside = (NamedModels.parse(f"told={told}"),)

    def run(path, **changes):
        return run_eval(EvalConfig(model=str(path), **(given | changes))).document

    assert run(told, fail_if=(condition,)).checks[0].failed
    rows = run(model, compare=beside, **named).rows
    assert [{n: v.value for n, v in row.values.items()} for row in rows] == [{}, {"training_macs": 1000}]
    monkeypatch.setattr("hydractl.prediction.run_models.load_any", lambda *_, **__: pytest.fail("too late"))
    for changes in ({"compare": beside, "fail_if": (condition,)}, named):
        with pytest.raises(UsageError, match=r"the lineage of `base` does not record"):
            run(model, **changes)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("family", ["timm-vit", "transformers-bert", "transformers-beit"])
def test_textbook_macs_are_those_of_the_librarys_own_model(family):
    sample = base(next(variant for variant in VARIANTS if variant.family == family))
    preprocess, library = sample.header.preprocess, sample.library()
    inputs = blank_inputs(preprocess, 1, device="cpu")

    found = count_sizes([Predictor(model=sample.model(), name="m", preprocess=preprocess)], SIZES)

    expected = count_macs(lambda: library(inputs))
    assert found["macs_textbook"].value == expected
    assert found["macs"].value <= expected


def test_textbook_macs_of_a_hydra_are_its_members():
    """Neither the shared trunk nor the pruned last block lowers the sum."""
    models = [base().model(), base().pruned((0, 1, 2, 3), (2,), (0, 3)).model()]
    alone = [count_sizes(predictors(model), SIZES)["macs_textbook"].value for model in models]
    first, second = (model.tower() for model in models)
    second.embed, second.blocks[0] = first.embed, first.blocks[0]
    hydra = Hydra(models)
    fork = hydra.tower().fork

    found = count_sizes(predictors(hydra), SIZES)

    assert found["macs_textbook"].value == sum(alone)
    assert found["macs"].value < sum(alone)
    assert hydra.tower().fork == fork == 2
    assert hydra.tower().read_tokens == first.read_tokens is not None


def test_counting_leaves_the_model_as_it_was():
    sample = base()
    model = sample.model()
    before = model(sample.inputs())

    count_sizes(predictors(model), SIZES)

    assert torch.equal(model(sample.inputs()), before)


def test_the_clock_is_read_around_the_call(monkeypatch):
    ticks = iter([1.0, 3.5])
    monkeypatch.setattr(evaluate_cost, "perf_counter", lambda: next(ticks))
    calls = []

    assert evaluate_cost._seconds_of(lambda: calls.append(1)) == 2.5
    assert calls == [1]


def test_rows_take_turns(monkeypatch):
    monkeypatch.setattr(evaluate_cost, "MAX_CALLS", 2 * evaluate_cost.MIN_CALLS)
    calls = []

    times = evaluate_cost._in_turn([lambda: calls.append("a"), lambda: calls.append("b")])

    assert "".join(calls).endswith("ab" * evaluate_cost.MIN_CALLS)
    assert len(times[0]) == len(times[1]) == evaluate_cost.MAX_CALLS


def test_each_row_is_waited_for_on_its_own_devices(monkeypatch):
    """Synchronizing another CUDA device would initialize it."""
    waited = []
    monkeypatch.setattr("torch.cuda.synchronize", waited.append)
    monkeypatch.setattr(evaluate_cost, "_call", lambda *_: lambda: None)
    rows = [
        predictors(*(SimpleNamespace(device=torch.device(device)) for device in devices))
        for devices in (("cpu",), ("cuda:1", "cuda:2"))
    ]

    measure_latencies(rows, ("latency_ms",), batch_size=2)

    assert {*waited} == {torch.device("cuda:1"), torch.device("cuda:2")}


def test_only_the_times_asked_for_are_measured(monkeypatch):
    monkeypatch.setattr(evaluate_cost, "MAX_CALLS", 4)
    rows = [predictors(base().model()), predictors(base(seed=1).model(), base().model())]

    one = measure_latencies(rows, ("latency_ms",), batch_size=2)
    both = measure_latencies(rows, LATENCIES, batch_size=2)

    assert [list(values) for values in one] == [["latency_ms"]] * 2
    assert [list(values) for values in both] == [list(LATENCIES)] * 2


@pytest.mark.parametrize(
    ("share", "device", "doubtful"), [(0.95, "cpu", False), (0.5, "cpu", True), (0.5, "cuda", False)]
)
def test_times_of_a_busy_machine_are_doubtful(monkeypatch, share, device, doubtful):
    """On a GPU the share of processor time proves nothing, because the thread waits for kernels."""
    clock = [0.0]

    def passing(*_args: object) -> list[list[float]]:
        clock[0] += 10.0
        return [[0.1, 0.1, 0.1]]

    monkeypatch.setattr(evaluate_cost, "_in_turn", passing)
    monkeypatch.setattr(evaluate_cost, "_call", lambda *_: None)
    monkeypatch.setattr(evaluate_cost, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(evaluate_cost, "thread_time", lambda: share * clock[0])
    model = SimpleNamespace(device=torch.device(device))

    doubts: list[str] = []
    measure_latencies([predictors(model)], ("latency_ms",), batch_size=2, warn=doubts.extend)

    said = "`latency_ms` is too high: other programs used the processor, and hydractl ran for 50% of the time"
    assert [doubt.startswith(said) for doubt in doubts] == [True] * doubtful
