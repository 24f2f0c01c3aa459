"""All variants: gradients of a hydra equal the gradients of its members; trained tensors return to the file."""

from __future__ import annotations

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.families.base import position_of
from hydractl.families.open_model import open_model
from hydractl.families.tower import largest_difference
from hydractl.fusion.build import stored_specs
from hydractl.fusion.plan import split_members
from hydractl.manifest.header import Fate
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.training.feeding import joined_inputs
from hydractl.training.trainable import TrainableModel, of_each
from support.builders import base
from support.variants import PLAIN, VARIANTS

KEEPS = (((0, 2, 3), (), (1,)), ((0, 2, 3), (1, 2), (0, 3)))


def fused(folder, samples, **options):
    paths = tuple(str(s.save(folder / f"{i}.st")) for i, s in enumerate(samples))
    run_fuse(FuseConfig(models=paths, out=folder / "hydra.st", verify=False, **options))
    return open_model(str(folder / "hydra.st"))


def subject_of(model_file):
    return TrainableModel.of(
        model_file.family, model_file.header, model_file.checkpoint.tensors(), place="hydra"
    )


def sharply(logits, labels):
    return -logits.log_softmax(-1)[torch.arange(len(labels)), labels]


@pytest.mark.spread(every=16, families=("timm-vit", "timm-eva", "transformers-bert", "transformers-deberta"))
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_hydra_s_gradients_are_its_members_and_its_tensors_go_back(tmp_path, variant):
    """A trunk of one block, different masks after the trunk, and shared or averaged parts."""
    samples = [base(variant).pruned(*keep) for keep in KEEPS]
    family = base(variant).family

    def late(name):
        place = position_of(family, name)
        return place.part in {"head", "readout", "mlp"} and place.layer in {None, 2}

    samples = [s.tuned(i, only=late) for i, s in enumerate(samples)]
    model_file = fused(tmp_path, samples, mlp="merge")
    header, state = model_file.header, model_file.checkpoint.tensors()
    subject = subject_of(model_file)

    again = subject.tensors()[0]
    assert again.keys() == state.keys()
    assert all(torch.equal(again[n], t) for n, t in state.items())
    assert {n: (s.shape) for n, s in stored_specs(model_file).items()} == {
        n: s.shape for n, s in model_file.checkpoint.specs.items()
    }

    inputs, labels = samples[0].inputs(batch=2), torch.tensor([1, 0])
    subject.module.training = True  # submodules stay in evaluation mode, so dropout is off
    outputs = subject.module(inputs)
    of_each(header, sharply)(outputs, labels).sum().backward()
    alone = []
    for i, own in enumerate(split_members(family, header, state)):
        sample = type(samples[i])(samples[i].header, {n: t.clone() for n, t in own.items()})
        model = sample.model()
        logits = model(inputs)
        assert largest_difference(outputs[i].detach(), logits.detach()) <= 1e-5
        sharply(logits, labels).sum().backward()
        alone.append({n: t.grad for n, t in model.library_state().items() if t.requires_grad})
    assert Fate.SHARED in header.plan.fates.values()
    for name, grads in ((n, [a[n] for a in alone]) for n in alone[0]):
        grouped = header.plan.fates[name] == Fate.GROUPED
        mean = None if grouped or None in grads else sum(grads) / len(grads)
        for state_of_one, grad in zip(subject.states, grads, strict=True):
            found, expected = state_of_one[name].grad, grad if grouped else mean
            if expected is None:
                continue  # unused, or unused in some members
            close = largest_difference(found, expected / (len(grads) if grouped else 1))
            assert close <= 1e-5, name


@pytest.mark.parametrize(
    ("family", "shares"),
    [("timm-vit", True), ("timm-eva", True), ("transformers-deberta", True), ("timm-eva", False)],
)
@torch.no_grad()
def test_members_may_have_inputs_of_their_own(tmp_path, family, shares):
    """There is no trunk; the embedding may be shared or not."""
    one = base(next(v for v in VARIANTS if v.family == family))
    late = one.tuned(1, only=lambda n: not shares or position_of(one.family, n).part != "embed")
    model_file = fused(tmp_path, [one, late], mlp="keep")
    subject = TrainableModel.of(
        model_file.family, model_file.header, model_file.checkpoint.tensors(), place="hydra", by_member=True
    )
    batches = [one.inputs(batch=3, seed=seed) for seed in (1, 2)]

    subject.module.training = True
    found = subject.module(joined_inputs(batches, model_file.header.preprocess))

    assert subject.module.hydra.tower().fork == shares
    for i, sample in enumerate((one, late)):
        assert largest_difference(found[i], sample.model()(batches[i])) <= 1e-5


def test_a_tensor_without_axes_goes_back(tmp_path):
    """A hydra stores scalars of its members as a vector."""
    clip = next(v for v in VARIANTS if v.family == "transformers-clip")
    model_file = fused(tmp_path, [base(clip), base(clip, seed=1)], mlp="keep")

    again = subject_of(model_file).tensors()[0]

    assert again["logit_scale"].shape == (2,)
    assert all(torch.equal(again[n], t) for n, t in Checkpoint.open(tmp_path / "hydra.st").tensors().items())


@pytest.mark.parametrize("own_from", [0, 2, 3])
def test_from_a_block_on_everything_is_each_member_s_own(tmp_path, own_from):
    one = base(PLAIN)
    model_file = fused(tmp_path, [one, one, one], trunk=own_from, own_blocks=True)

    plan = model_file.header.plan
    assert (plan.own_from, plan.trunk) == (own_from, own_from)
    for name, fate in plan.fates.items():
        place = position_of(model_file.family, name)
        late = place.part in {"readout", "head"} or (place.layer is not None and place.layer >= own_from)
        assert fate == (Fate.GROUPED if late else Fate.SHARED), name
    states = subject_of(model_file).states
    assert all(torch.equal(own[n], t) for own in states for n, t in one.state.items())
    assert all((states[0][n] is states[1][n]) == (fate == Fate.SHARED) for n, fate in plan.fates.items())
