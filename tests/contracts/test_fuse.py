"""All variants: a hydra equals its members, and computes shared parts once."""

from __future__ import annotations

import copy
import pickle
import subprocess

import pytest
import torch

import hydractl
from hydractl.families.base import position_of
from hydractl.families.tower import largest_difference
from hydractl.fusion.hydra import Hydra
from hydractl.manifest.header import Fate
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.variants import PLAIN, READERS, VARIANTS, variant

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
DISTINCT = ("class-token", "registers", "map-pool", "rms-norm-swiglu", "distilled", "res-post", "hybrid")
KEEPS = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)), ((0, 1, 2, 3), (3,), ()))


def fuse(folder, samples, *, mlp="keep"):
    """Fuse samples through files; return the report and the loaded hydra."""
    paths = [str(s.save(folder / f"{i}.st")) for i, s in enumerate(samples)]
    report = run_fuse(
        FuseConfig(models=tuple(paths), out=folder / "hydra.st", mlp=mlp, verify=False, force=True)
    )
    return report, load(folder / "hydra.st")


@torch.inference_mode()
def member_logits(samples, inputs, dtype=torch.float32):
    return torch.stack([s.model(dtype)(inputs) for s in samples])


@torch.inference_mode()
def check(folder, samples, *, tolerance=1e-5):
    report, hydra = fuse(folder, samples)
    inputs = samples[0].inputs(batch=3)
    out = hydra(inputs)
    assert largest_difference(out.member_logits, member_logits(samples, inputs)) <= tolerance
    return report, hydra


@pytest.mark.spread(alike=True, every=24)
@every_variant
@pytest.mark.parametrize("kind", ["ragged", "fine-tuned", "deep ensemble", "float64"])
def test_fused_equals_its_members(tmp_path, variant, kind):
    sample = base(variant)
    if kind == "deep ensemble":
        samples = [sample, base(variant, seed=1)]
    else:
        samples = [sample.pruned(*keep) for keep in KEEPS]
    if kind in {"fine-tuned", "float64"}:
        samples = [s.tuned(i) for i, s in enumerate(samples)]

    if kind != "float64":
        report, _ = check(tmp_path, samples)
    else:
        report, _ = fuse(tmp_path, samples)
        inputs = sample.inputs(dtype=torch.float64)
        with torch.inference_mode():
            found = load(tmp_path / "hydra.st", dtype=torch.float64).member_logits(inputs)
            assert largest_difference(found, member_logits(samples, inputs, torch.float64)) <= 1e-10

    if kind != "ragged":
        assert report.tensors["merged"] == 0
    if kind == "fine-tuned":
        assert report.trunk == 0


@pytest.mark.spread(cases=14)
@pytest.mark.parametrize("variant", [variant(n) for n in DISTINCT], ids=str)
@pytest.mark.parametrize("part", ["embed", "attention", "norm", "mlp", "readout", "head"])
def test_fused_equals_members_that_differ_in_one_part(tmp_path, variant, part):
    family = base(variant).family
    samples = [base(variant).tuned(i, only=lambda n: position_of(family, n).part == part) for i in range(2)]
    changed = {n for n in samples[0].state if not torch.equal(samples[0].state[n], samples[1].state[n])}

    report, _ = check(tmp_path, samples)

    assert report.tensors["grouped"] == len(changed)
    expected = {"embed": 0, "readout": 3, "head": 3}.get(part, 0) if changed else 3
    assert report.trunk == expected


@pytest.mark.parametrize("members", [1, 2, 4])
def test_identical_members_run_once(tmp_path, members):
    report, hydra = check(tmp_path, [base(PLAIN).pruned(*KEEPS[0])] * members)
    assert report.trunk == report.layers == 3
    assert report.tensors["grouped"] == report.tensors["merged"] == 0
    with torch.inference_mode():
        out = hydra(base(PLAIN).inputs())
    assert out.member_logits.shape[0] == members
    assert largest_difference(out.logits, out.member_logits[0].log_softmax(-1)) <= 1e-6


def test_one_member_is_itself(tmp_path):
    sample = base(PLAIN).pruned(*KEEPS[0])
    _, hydra = fuse(tmp_path, [sample])
    with torch.inference_mode():
        out = hydra(sample.inputs())
        assert torch.equal(out.member_logits[0], sample.model()(sample.inputs()))
        assert largest_difference(out.logits, out.member_logits[0].log_softmax(-1)) <= 1e-6


@pytest.mark.spread(cases=5)
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("name", ["class-token", "registers", "map-pool", "distilled", "res-post"])
def test_the_trunk_is_found_and_run_once(tmp_path, name, layer):
    """Blocks before the first difference get B samples, later blocks M B samples. The embedding runs once."""
    shared = ((1, 3),) * layer
    keeps = [(*shared, *((i,),) * (3 - layer)) for i in range(3)]
    samples = [base(variant(name)).pruned(*keep) for keep in keeps]
    report, hydra = fuse(tmp_path, samples)
    seen: list[int] = []
    tower = hydra.towers["vision"]
    for block in tower.layers():
        block.mlp.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[0]))
    embeds: list[int] = []
    tower.embed.register_forward_hook(lambda _m, i, _o: embeds.append(i[0].shape[0]))

    with torch.inference_mode():
        hydra(samples[0].inputs(batch=2))

    assert report.trunk == layer
    assert seen == [2] * layer + [6] * (3 - layer)
    assert embeds == [2]


def test_a_difference_in_the_classifier_alone_runs_all_blocks_once(tmp_path):
    samples = [base(PLAIN).tuned(i, only=lambda n: n.startswith("head.")) for i in range(3)]
    report, hydra = check(tmp_path, samples)
    seen: list[int] = []
    hydra.towers["vision"].layers()[-1].mlp.register_forward_hook(lambda _m, _i, o: seen.append(o.shape[0]))
    with torch.inference_mode():
        hydra(samples[0].inputs(batch=2))
    assert (report.trunk, seen) == (3, [2])


def test_last_block_of_a_hydra_computes_only_the_token_that_is_read(tmp_path):
    _, hydra = check(tmp_path, [base(PLAIN).pruned(*keep) for keep in KEEPS])
    seen: list[int] = []
    for block in hydra.towers["vision"].layers():
        block.mlp.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[1]))
    with torch.inference_mode():
        hydra(base(PLAIN).inputs())
    assert seen == [5, 5, 1]


@pytest.mark.spread(families=(*READERS, "transformers-vit"))
@every_variant
def test_merged_mlp_is_the_mean_in_float64(tmp_path, variant):
    family = base(variant).family
    samples = [base(variant).pruned(*keep).tuned(i) for i, keep in enumerate(KEEPS)]

    report, hydra = fuse(tmp_path, samples, mlp="merge")

    model_file = hydractl_header(tmp_path / "hydra.st")
    merged = [n for n, fate in model_file.header.plan.fates.items() if fate == Fate.MERGED]
    assert merged == sorted(n for n in samples[0].state if position_of(family, n).part == "mlp")
    assert report.tensors["merged"] == len(merged) > 0
    for name in merged:
        mean = torch.stack([s.state[name].double() for s in samples]).mean(0)
        assert largest_difference(model_file.tensor(name).double(), mean) <= 1e-7
        assert model_file.tensor(name).dtype == samples[0].state[name].dtype
    with torch.inference_mode():
        assert hydra(samples[0].inputs()).logits.isfinite().all()


def hydractl_header(path):
    from hydractl.checkpoint import Checkpoint

    return Checkpoint.open(path)


def test_a_hydra_with_merged_mlps_is_its_members_with_the_mean_mlp(tmp_path):
    samples = [base(PLAIN).pruned(*keep).tuned(i) for i, keep in enumerate(KEEPS)]
    _, hydra = fuse(tmp_path, samples, mlp="merge")
    mean = {
        n: torch.stack([s.state[n].double() for s in samples]).mean(0).float()
        for n in samples[0].state
        if ".mlp." in n
    }
    for sample in samples:
        sample.state.update(mean)
    inputs = samples[0].inputs()
    with torch.inference_mode():
        assert largest_difference(hydra.member_logits(inputs), member_logits(samples, inputs)) <= 1e-5


@torch.inference_mode()
def test_softmax_of_the_answer_is_the_mean_of_the_members_softmax(tmp_path):
    _, hydra = fuse(tmp_path, [base(PLAIN).pruned(*k).tuned(i) for i, k in enumerate(KEEPS)])
    out = hydra(base(PLAIN).inputs(batch=5))
    mean = out.member_logits.softmax(-1).mean(0)
    assert largest_difference(out.logits.softmax(-1), mean) <= 1e-6
    assert largest_difference(out.logits.exp().sum(-1), torch.ones(5)) <= 1e-6


def test_extreme_logits_do_not_overflow():
    from hydractl.metrics.per_sample import ensemble_log_probs

    z = torch.tensor([[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]]])
    assert (
        largest_difference(ensemble_log_probs(z.log_softmax(-1)).exp(), torch.tensor([[0.5, 0.5, 0.0]]))
        <= 1e-6
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_what_it_is(tmp_path, dtype):
    samples = [base(PLAIN).pruned(*keep).tuned(i).cast(dtype) for i, keep in enumerate(KEEPS)]
    _, hydra = fuse(tmp_path, samples, mlp="merge")
    assert {p.dtype for p in hydra.parameters()} == {dtype} == {hydra.dtype}
    with torch.inference_mode():
        assert hydra(samples[0].inputs(dtype=dtype)).member_logits.dtype == dtype


@pytest.mark.spread(alike=True, every=8)
@every_variant
def test_a_hydra_goes_through_a_pickle(variant):
    sample = base(variant)
    hydra = Hydra([sample.pruned(*keep).model() for keep in KEEPS]).eval()
    again = pickle.loads(pickle.dumps(hydra))  # noqa: S301 - our own
    inputs = sample.inputs()
    with torch.inference_mode():
        assert torch.equal(again(inputs).member_logits, hydra(inputs).member_logits)


def test_models_fused_in_memory_are_the_models_fused_in_files(tmp_path):
    samples = [base(PLAIN).pruned(*keep) for keep in KEEPS]
    _, stored = fuse(tmp_path, samples)
    inputs = samples[0].inputs()
    with torch.inference_mode():
        in_memory = Hydra([s.model() for s in samples])(inputs)
        assert largest_difference(in_memory.logits, stored(inputs).logits) <= 1e-6


def test_an_empty_batch_has_a_shape(tmp_path):
    for samples in ([base(PLAIN)] * 3, [base(PLAIN).pruned(*k) for k in KEEPS]):
        _, hydra = fuse(tmp_path, samples)
        for layout in ("in turn", "stacked"):
            hydra.lay_out(layout)
            with torch.inference_mode():
                out = hydra(base(PLAIN).inputs()[:0])
            assert (out.logits.shape, out.member_logits.shape) == ((0, 7), (3, 0, 7))


KINDS = ["base", "member", "hydra", "trunk"]
TRACED = [
    pytest.param("base", marks=pytest.mark.more),
    pytest.param("member", marks=pytest.mark.more),
    "hydra",
    pytest.param("trunk", marks=pytest.mark.more),
]
"""Models to trace. Tracing is slow, and a hydra with layers without heads contains all parts of the
others."""


@pytest.fixture
def loaded(tmp_path, request):
    sample = base(PLAIN)
    match request.param:
        case "base":
            return load(sample.save(tmp_path / "m.st")), sample.inputs(batch=3)
        case "member":
            return load(sample.pruned(*KEEPS[0]).save(tmp_path / "m.st")), sample.inputs(batch=3)
        case "hydra":
            members = [sample.pruned(*k).tuned(i) for i, k in enumerate(KEEPS)]
        case _:
            members = [sample.pruned((0,), (1,), (i,)) for i in range(3)]
    return fuse(tmp_path, members)[1], sample.inputs(batch=3)


def answers(out):
    return list(out) if isinstance(out, tuple) else [out]


@pytest.mark.newer
@pytest.mark.parametrize("loaded", TRACED, indirect=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch
def test_compiles(loaded):
    model, inputs = loaded
    torch._dynamo.reset()
    with torch.inference_mode():
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(inputs)
        for a, b in zip(answers(found), answers(model(inputs)), strict=True):
            assert largest_difference(a, b) <= 1e-6


@pytest.mark.more  # tests/contracts/test_export.py exports a hydra
@pytest.mark.newer
@pytest.mark.parametrize("loaded", TRACED, indirect=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # raised inside torch
def test_exports_with_any_batch(loaded):
    model, inputs = loaded
    exported = torch.export.export(model, (inputs,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for batch in (1, 2, 7):
        x = base(PLAIN).inputs(batch=batch, seed=batch)
        with torch.inference_mode():
            for a, b in zip(answers(exported.module()(x)), answers(model(x)), strict=True):
                assert largest_difference(a, b) <= 1e-6


@pytest.mark.parametrize("loaded", KINDS, indirect=True)
def test_load_returns_a_plain_module(loaded):
    model, inputs = loaded
    assert isinstance(model, torch.nn.Module)
    assert not any(m.training for m in model.modules())
    assert hydractl.load is load
    with torch.inference_mode():
        moved = copy.deepcopy(model).to(torch.float64).to(torch.float32)
        # In older releases of torch, rounding may depend on the memory addresses of weights.
        torch.testing.assert_close(answers(moved(inputs)), answers(model(inputs)), rtol=0, atol=1e-6)
    states = model.state_dict(), moved.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))


def test_a_fresh_process_gives_the_same_logits(tmp_path, python):
    sample = base(PLAIN)
    members = [sample.pruned(*k).tuned(i) for i, k in enumerate(KEEPS)]
    _, hydra = fuse(tmp_path, members, mlp="merge")
    sample.save(tmp_path / "base.st")
    code = (
        "import sys, torch, hydractl\n"
        "from hydractl.families.tower import probe_inputs\n"
        "from hydractl.checkpoint import Checkpoint\n"
        "torch.set_num_threads(1)\n"
        "for p in sys.argv[1:]:\n"
        "    with torch.inference_mode():\n"
        "        out = hydractl.load(p)(probe_inputs(Checkpoint.open(__import__('pathlib').Path(p)).header))\n"
        "    out = out.member_logits if isinstance(out, tuple) else out\n"
        "    print(out.flatten().tolist())\n"
    )
    paths = [tmp_path / n for n in ("base.st", "0.st", "hydra.st")]
    done = subprocess.run(
        [python(), "-c", code, *map(str, paths)], capture_output=True, text=True, check=True
    )
    inputs = sample.inputs()
    with torch.inference_mode():
        expected = [sample.model()(inputs), members[0].model()(inputs), hydra(inputs).member_logits]
    for text, logits in zip(done.stdout.splitlines(), expected, strict=True):
        found = torch.tensor([float(v) for v in text.strip("[]").split(", ")]).reshape(logits.shape)
        assert largest_difference(found, logits) <= 1e-6
