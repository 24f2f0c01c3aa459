"""All variants: a stacked hydra equals its members, with few more kernels than one model.

In both layouts, a forward pass causes no synchronization between GPU and processor.
"""

from __future__ import annotations

import pytest
import torch

from hydractl.families.tower import largest_difference
from hydractl.model_inputs import map_inputs
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.gpu import count_synchronizations, simulated_gpu
from support.kernels import functions, kernels
from support.variants import VARIANTS, Variant

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
RAGGED = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)), ((0, 1, 2, 3), (3,), ()))
APART = 5
"""Additional kernels outside layers: one to repeat the stream, one to separate queries from keys in the last
block, three for the ensemble."""

THEIRS = {
    # the grid of patches, which depends on the image size
    "timm-eva": {"copy in timm.layers.pos_embed_sincos._get_pos_embed_from_coords"},
    # a constant for the comparison of distances
    "transformers-deberta": {
        "copy in transformers.models.deberta_v2.modeling_deberta_v2.make_log_bucket_position"
    },
}
"""Copies to the device inside the library, by family: once per forward pass, for all layers and members."""


def stacked(folder, samples, *, mlp="keep"):
    """Fuse samples through files; return the hydra in the stacked layout."""
    paths = tuple(str(s.save(folder / f"{i}.st")) for i, s in enumerate(samples))
    run_fuse(FuseConfig(models=paths, out=folder / "hydra.st", mlp=mlp, verify=False, force=True))
    hydra = load(folder / "hydra.st")
    hydra.lay_out("stacked")
    return hydra


@torch.inference_mode()
def check(hydra, samples, *, tolerance=1e-5):
    inputs = samples[0].inputs(batch=3)
    expected = torch.stack([s.model()(inputs) for s in samples])
    assert largest_difference(hydra(inputs).member_logits, expected) <= tolerance


@pytest.mark.spread(alike=True, every=16)
@every_variant
@pytest.mark.parametrize("kind", ["ragged", "fine-tuned"])
def test_stacked_equals_its_members_with_fewer_kernels(tmp_path, variant, kind):
    single = base(variant)
    samples = [single.pruned(*keep) for keep in RAGGED]
    if kind == "fine-tuned":
        samples = [s.tuned(i) for i, s in enumerate(samples)]
    hydra = stacked(tmp_path, samples)
    check(hydra, samples)
    inputs = single.inputs()
    at_once = kernels(lambda: hydra(inputs)).total()
    if kind == "ragged":
        library = single.library()
        assert at_once <= 1.1 * kernels(lambda: library(inputs)).total() + APART
    else:
        hydra.lay_out("in turn")
        assert at_once < kernels(lambda: hydra(inputs)).total()


@pytest.mark.newer  # the simulated GPU needs a release after torch 2.5
@pytest.mark.spread(
    alike=True,
    every=16,
    families=(
        "timm-vit",
        "timm-eva",
        "timm-beit",
        "timm-relpos",
        "transformers-bert",
        "transformers-deberta",
        "transformers-modernbert",
        "transformers-decoder",
        "transformers-clip",
        "openclip",
    ),
)
@every_variant
@torch.inference_mode()
def test_a_forward_pass_copies_nothing_to_the_device_and_reads_nothing_there(tmp_path, variant):
    """A copy waits for all queued kernels, and prevents the capture of a CUDA graph."""
    samples = [base(variant).pruned(*keep) for keep in RAGGED]
    hydra, member = stacked(tmp_path, samples), samples[0].model()
    with simulated_gpu():
        inputs = map_inputs(lambda x: x.cuda(), samples[0].inputs())
        for layout, model in (("member", member.cuda()), ("stacked", hydra.cuda()), ("in turn", hydra)):
            if layout != "member":
                hydra.lay_out(layout)
            with count_synchronizations() as found:
                model(inputs)
            assert set(found) <= THEIRS.get(variant.family, set()), (layout, found)
            assert max(found.values(), default=0) <= 1, (layout, found)


DEEP = {
    "timm-vit": ("depth", "class-token"),
    "timm-eva": ("depth", "dinov3"),
    "transformers-bert": ("num_hidden_layers", "plain"),
    "transformers-vit": ("num_hidden_layers", "plain"),
}


TURNED = {"timm-eva"}
"""Families with rotary angles per member and layer, which need more function calls than the library."""


def twelve_layers(family):
    option, name = DEEP[family]
    one = next(v for v in VARIANTS if (v.family, v.name) == (family, name))
    return base(Variant(family, f"{name}-deep", one.arch, one.options | {option: 12}))


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("family", DEEP)
def test_twelve_layers_that_are_fine_tuned_call_a_tenth_more_kernels_at_most(tmp_path, family):
    """Members have different norms, whose weights are multiplied into the following linear layers."""
    single = twelve_layers(family)
    samples = [single.pruned(*([(m,), (m, 3)] * 6)).tuned(m) for m in range(3)]
    hydra, library, inputs = stacked(tmp_path, samples), single.library(), single.inputs()
    ratio = kernels(lambda: hydra(inputs)).total() / kernels(lambda: library(inputs)).total()
    assert ratio <= 1.1, ratio


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize("family", DEEP)
@pytest.mark.parametrize("shared", [0, 10])
def test_twelve_layers_call_a_tenth_more_kernels_and_functions_at_most(tmp_path, family, shared):
    single = twelve_layers(family)
    samples = [single.pruned(*([(0, 1, 2)] * shared), *([(m,), (m, 3)] * 6)[: 12 - shared]) for m in range(3)]
    hydra, library, inputs = stacked(tmp_path, samples), single.library(), single.inputs()
    check(hydra, samples)
    ratio = kernels(lambda: hydra(inputs)).total() / kernels(lambda: library(inputs)).total()
    assert ratio <= 1.1, ratio
    if family not in TURNED:
        functions(lambda: hydra(inputs))  # the first pass also inspects the stacked weights
        ratio = functions(lambda: hydra(inputs)) / functions(lambda: library(inputs))
        assert ratio <= 1.1, ratio
