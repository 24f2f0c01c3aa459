"""Layouts of a hydra: stacked weights follow every change, and torch's operations on modules work."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from PIL import Image
from torch.func import functional_call
from torch.utils._pytree import tree_map

from hydractl.families.stream import MemberParallel
from hydractl.families.tower import largest_difference
from hydractl.fusion.hydra import Hydra
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.gpu import simulated_gpu
from support.kernels import kernels
from support.variants import variant

KEEPS = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)), ((0, 1, 2, 3), (3,), ()))
EITHER = pytest.mark.parametrize("name", ["timm-vit-class-token", "transformers-bert-mean-pool"])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Hydras of images and of texts whose members differ in all tensors except the MLPs."""
    folder = tmp_path_factory.mktemp("hydras")
    found = {}
    for name in ("timm-vit-class-token", "transformers-bert-mean-pool"):
        one = variant(name)
        samples = [base(one).pruned(*keep).tuned(i) for i, keep in enumerate(KEEPS)]
        paths = tuple(str(s.save(folder / f"{name}{i}.st")) for i, s in enumerate(samples))
        run_fuse(FuseConfig(models=paths, out=folder / f"{name}.st", mlp="merge", verify=False))
        found[name] = folder / f"{name}.st", samples[0]
    return found


@pytest.fixture
def hydra(files):
    """Stacked hydra of images."""
    return laid_out(files["timm-vit-class-token"][0])


@pytest.fixture
def images(files):
    return files["timm-vit-class-token"][1].inputs(batch=3)


def fine_tuned():
    """Stacked hydra of images whose members differ in every tensor, and inputs."""
    sample = base(variant("timm-vit-class-token"))
    hydra = Hydra([sample.tuned(i).model() for i in range(3)]).eval()
    hydra.lay_out("stacked")
    return hydra, sample.inputs(batch=3)


def laid_out(path):
    hydra = load(path)
    hydra.lay_out("stacked")
    return hydra


@torch.inference_mode()
def answers(hydra, inputs, layout):
    """Return the member logits and the number of kernels in a layout. The hydra is copied first."""
    hydra = copy.deepcopy(hydra)
    hydra.lay_out(layout)
    return hydra(inputs).member_logits, kernels(lambda: hydra(inputs)).total()


@torch.inference_mode()
def in_step(hydra, inputs):
    """Return whether the stacked layout gives the same logits as the weights in turn."""
    return largest_difference(hydra(inputs).member_logits, answers(hydra, inputs, "in turn")[0]) <= 1e-5


def test_on_a_cpu_members_run_in_turn_unless_told(files, images):
    hydra = load(files["timm-vit-class-token"][0])
    in_turn, stacked = (answers(hydra, images, layout)[1] for layout in ("in turn", "stacked"))
    assert stacked < in_turn
    assert answers(hydra, images, "auto")[1] == in_turn


def test_what_is_stacked_is_no_part_of_the_model(files, hydra):
    plain = load(files["timm-vit-class-token"][0])
    assert list(hydra.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in hydra.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert len(list(hydra.modules())) == len(list(plain.modules()))


@torch.inference_mode()
def test_weights_that_move_convert_or_load_are_stacked_anew(hydra, images):
    hydra.double()
    assert in_step(hydra, images)
    assert hydra(images).logits.dtype == torch.float64
    hydra.float().load_state_dict({n: x * 1.5 for n, x in hydra.state_dict().items()})
    assert in_step(hydra, images)


def test_training_sees_the_members_own_weights_and_leaves_them_stacked_anew(hydra, images):
    optimizer = torch.optim.SGD(hydra.parameters(), lr=0.1)
    for _ in range(2):
        hydra.train()(images).logits.square().sum().backward()
        assert all(p.grad is not None for p in hydra.parameters() if p.requires_grad)
        optimizer.step()
    assert in_step(hydra.eval(), images)


def test_weights_that_training_in_evaluation_mode_changes_are_stacked_anew(hydra, images):
    """For example training without dropout, or evaluation of averaged weights."""
    assert in_step(hydra, images)
    hydra(images).logits.square().sum().backward()
    torch.optim.SGD(hydra.parameters(), lr=0.1).step()
    assert in_step(hydra, images)


@pytest.mark.parametrize("part", ["norm1", "norm2", "attn", "mlp"])
@torch.no_grad()
def test_what_one_part_was_multiplied_into_is_made_anew_with_it(part):
    """Norms are folded into the linear layers after them, whose own weights have not changed."""
    hydra, inputs = fine_tuned()
    before = hydra(inputs).member_logits
    for parameter in hydra.tower().layers()[1].get_submodule(f"{part}.members.1").parameters():
        parameter.mul_(1.5)
    assert largest_difference(before, hydra(inputs).member_logits) > 1e-3
    assert in_step(hydra, inputs)


@torch.no_grad()
def test_parts_that_are_exchanged_are_stacked_anew():
    """A norm may be folded into the exchanged part."""
    hydra, inputs = fine_tuned()
    before = hydra(inputs).member_logits
    first, second, _ = hydra.tower().layers()
    first.attn, second.attn = second.attn, first.attn
    assert largest_difference(before, hydra(inputs).member_logits) > 1e-3
    assert in_step(hydra, inputs)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("part", ["norm1", "norm2", "attn", "mlp"])
@torch.no_grad()
def test_one_part_in_training_mode_puts_all_in_turn(part):
    """Training mode has no effect here without dropout, but neighbours can no longer share stacked weights."""
    hydra, inputs = fine_tuned()
    few = kernels(lambda: hydra(inputs)).total()
    hydra.tower().layers()[1].get_submodule(part).train()
    assert in_step(hydra, inputs)
    assert kernels(lambda: hydra(inputs)).total() > few
    hydra.eval()
    assert in_step(hydra, inputs)
    assert kernels(lambda: hydra(inputs)).total() == few


@torch.no_grad()
def test_weights_that_are_called_with_are_those_that_answer(files, hydra, images):
    other = {n: x * 1.5 for n, x in hydra.named_parameters()}
    found = functional_call(hydra, other, (images,)).member_logits
    plain = functional_call(load(files["timm-vit-class-token"][0]), other, (images,)).member_logits
    assert largest_difference(found, plain) <= 1e-5
    assert in_step(hydra, images)


@torch.inference_mode()
def test_nothing_is_stacked_anew_that_has_not_changed(hydra, images):
    """A captured CUDA graph keeps using the stacked tensors."""
    hydra(images)
    before = [module._stack for module in hydra.modules() if isinstance(module, MemberParallel)]
    assert not kernels(hydra.eval)
    hydra.predict([Image.new("L", (8, 8))])
    after = [module._stack for module in hydra.modules() if isinstance(module, MemberParallel)]
    assert all(
        a is b for each, other in zip(before, after, strict=True) for a, b in zip(each, other, strict=True)
    )


@torch.inference_mode()
def test_what_is_written_through_data_is_stacked_anew_when_laid_out(hydra, images):
    for parameter in hydra.parameters():
        parameter.data.mul_(1.5)
    hydra.lay_out("stacked")
    assert in_step(hydra, images)


@torch.inference_mode()
def test_a_pickled_hydra_is_as_large_as_one_that_is_not_stacked(files, hydra, images):
    sizes = [len(pickle.dumps(one)) for one in (hydra, load(files["timm-vit-class-token"][0]))]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    again = pickle.loads(pickle.dumps(hydra))  # noqa: S301 - our own
    again(images)  # the first call stacks the weights
    assert kernels(lambda: again(images)) == kernels(lambda: hydra(images))


def test_what_is_stacked_leaves_no_part_in_evaluation(hydra, images):
    """Stacked parts are modules of the first member. In training, every member needs its own dropout."""
    hydra.eval()(images)
    assert all(part.training for part in hydra.train().modules())
    assert not any(part.training for part in hydra.eval().modules())


def test_gradients_flow_in_evaluation_too(files, hydra, images):
    for one in (hydra, load(files["timm-vit-class-token"][0])):
        one(images).logits.sum().backward()
    pairs = zip(hydra.parameters(), one.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs if b.grad is not None)


@EITHER
@torch.inference_mode()
def test_stacked_under_autocast_is_in_turn_under_autocast(files, name):
    path, sample = files[name]
    hydra, inputs = laid_out(path), sample.inputs(batch=3)
    with torch.autocast("cpu", torch.bfloat16):
        found = hydra(inputs).member_logits.float()
        expected = answers(hydra, inputs, "in turn")[0].float()
    assert largest_difference(found, expected) <= 0.05 * float(expected.abs().max())


@pytest.mark.spread(cases=1)
@pytest.mark.newer
@EITHER
@torch.no_grad()
def test_stacked_is_one_graph_for_all_batch_sizes(files, name):
    path, sample = files[name]
    torch._dynamo.reset()
    hydra, graphs = laid_out(path), []
    compiled = torch.compile(hydra, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True, dynamic=True)  # fmt: skip
    for batch in (2, 3, 5):
        inputs = sample.inputs(batch=batch)
        torch.testing.assert_close(
            compiled(inputs).member_logits, hydra(inputs).member_logits, rtol=0, atol=1e-5
        )
    (graph,) = graphs
    products = [node for node in graph.graph.nodes if node.target in {torch.bmm, torch.baddbmm}]
    # with other operators, inductor adds a kernel for the biases of queries, keys and values, and copies
    # reshaped operands
    assert sum(node.target is torch.baddbmm for node in products) == sum(
        block.attn.stacked is not None for block in hydra.tower().layers()
    )
    assert all(operand.target != "reshape" for node in products for operand in node.args)


@pytest.mark.spread(cases=1)
@pytest.mark.newer
@EITHER
@torch.inference_mode()
def test_large_products_on_a_gpu_are_made_one_by_one(files, name, monkeypatch):
    """The result equals a batched product. Small products stay batched."""
    path, sample = files[name]
    inputs = sample.inputs(batch=3)
    expected = answers(load(path), inputs, "in turn")[0]
    calls, addmm = [], torch.addmm
    monkeypatch.setattr("torch.addmm", lambda *args, out: calls.append(1) or addmm(*args, out=out))
    with simulated_gpu():
        hydra = load(path).to("cuda")
        hydra.lay_out("stacked")
        for size, least in ((2**24, 0), (0, 3 * 2 * 3)):
            monkeypatch.setattr("hydractl.families.stream.LARGE", size)
            found = hydra(tree_map(torch.Tensor.cuda, inputs)).member_logits.cpu()
            assert largest_difference(found, expected) <= 1e-5
            assert len(calls) >= least
            assert bool(calls) == bool(least)


@pytest.mark.spread(cases=1)
@pytest.mark.newer
@EITHER
@torch.no_grad()
def test_stacked_can_be_exported(files, name):
    path, sample = files[name]
    hydra, inputs = laid_out(path), sample.inputs(batch=3)
    batch = torch.export.Dim("batch", min=1, max=64)
    axes = {0: batch} if isinstance(inputs, torch.Tensor) else {key: {0: batch} for key in inputs}
    program = torch.export.export(hydra, (inputs,), dynamic_shapes=(axes,))
    for size in (1, 5):
        other = sample.inputs(batch=size, seed=1)
        found = program.module()(other).member_logits
        assert largest_difference(found, hydra(other).member_logits) <= 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@EITHER
@torch.inference_mode()
def test_stacked_can_be_captured_as_a_cuda_graph(files, name):
    path, sample = files[name]
    inputs = sample.inputs(batch=3)
    hydra = load(path, device="cuda")
    placed = inputs.cuda() if isinstance(inputs, torch.Tensor) else {n: x.cuda() for n, x in inputs.items()}
    hydra(placed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = hydra(placed).member_logits
    graph.replay()
    assert largest_difference(found.cpu(), answers(load(path), inputs, "in turn")[0]) <= 1e-4
