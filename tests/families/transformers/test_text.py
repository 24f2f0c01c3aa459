"""Folders of transformers' text models: loading of `save_pretrained`, and refusals with a reason."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

from hydractl.errors import UnsupportedModelError, UsageError
from hydractl.families.base import name_in_memory, position_of
from hydractl.families.open_model import load_model, open_model
from hydractl.families.registry import FAMILIES, family_for_name
from hydractl.families.tower import blank_inputs, largest_difference
from hydractl.families.transformers.hf_models import REFUSED
from hydractl.fusion.hydra import Hydra
from hydractl.manifest.header import Tokenization
from hydractl.metrics.cost import count_macs
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.run import run_inspect
from support.builders import base, over_classes
from support.text_folders import edit_config, save_text_model
from support.variants import VARIANTS, Variant

TEXTS = [v for v in VARIANTS if set(FAMILIES[v.family].towers) == {"text"} and "pooling" not in v.options]
ONE_EACH = list({v.family: v for v in reversed(TEXTS)}.values())
every_text = pytest.mark.parametrize("variant", TEXTS, ids=str)
every_family = pytest.mark.parametrize("variant", ONE_EACH, ids=str)


@pytest.mark.spread(alike=True)
@every_text
@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}], ids=["whole", "shards"])
@torch.inference_mode()
def test_a_saved_folder_is_the_model(tmp_path, variant, options):
    sample = save_text_model(variant, tmp_path / "m", **options)
    assert (len(list((tmp_path / "m").glob("*.safetensors"))) > 1) == bool(options)

    model_file = open_model(str(tmp_path / "m"))

    header = model_file.header
    assert header.architecture.family == variant.family
    assert header.architecture.towers == sample.header.architecture.towers
    preprocess = header.preprocess
    assert isinstance(preprocess, Tokenization)
    assert preprocess.tokenizer is not None
    listed = transformers.AutoTokenizer.from_pretrained(tmp_path / "m").model_input_names
    assert preprocess.names == tuple(name for name in sample.header.preprocess.names if name in listed)
    assert (preprocess.pad_id, preprocess.max_length) == (0, sample.header.preprocess.max_length)
    inputs = sample.inputs()
    multi_label = header.architecture.task.by_label
    assert multi_label == sample.header.architecture.task.by_label
    expected = over_classes(sample.library()(inputs), multi_label=multi_label)
    assert largest_difference(load_model(model_file)(inputs), expected) <= 1e-5


@every_family
def test_names_on_disk_tell_the_parts(tmp_path, variant):
    """`inspect` derives the parts of a model from names on disk, including older names."""
    sample = save_text_model(variant, tmp_path)
    family = sample.family
    found = {
        position_of(family, name_in_memory(family, name))
        for name in load_file(tmp_path / "model.safetensors")
    }
    parts = {(place.part, place.layer) for place in found}
    assert parts == {
        (place.part, place.layer) for place in (position_of(family, name) for name in sample.state)
    }


@every_family
def test_what_does_not_classify_is_refused(tmp_path, variant):
    save_text_model(variant, tmp_path / "m")
    edit_config(tmp_path / "m", architectures=["SomethingForMaskedLM"])
    with pytest.raises(
        UnsupportedModelError, match="is a `SomethingForMaskedLM`, which is not in transformers"
    ):
        open_model(str(tmp_path / "m"))


@pytest.mark.parametrize("kind", ["albert", "deberta"])
def test_a_refused_type_says_why(tmp_path, kind):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.AutoConfig.for_model(kind, vocab_size=11, **sizes)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "m")
    for reference in (str(tmp_path / "m"), f"arch:{kind}::num_labels=3"):
        with pytest.raises(UnsupportedModelError) as caught:
            open_model(reference)
        assert REFUSED[kind] in str(caught.value)
        assert f"`{kind}`" in str(caught.value)
        assert caught.value.exit_code == 3
    assert REFUSED[kind] in str(run_inspect(InspectConfig(files=(str(tmp_path / "m"),))).hint)


def test_what_is_refused_belongs_to_no_family():
    assert not [kind for kind in REFUSED if any(f.matches({"model_type": kind}) for f in FAMILIES.values())]


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("mpnet", {"relative_attention_num_buckets": 8}, "it has fewer than the 32 relative positions"),
        ("deberta-v2", {"attention_head_size": 16}, "its `attention_head_size` is not its width divided"),
        ("bert", {"is_decoder": True}, "it is a decoder with causal attention"),
        (
            "modernbert",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 9.0}
                }
            },
            "its rotary embedding is of the type `dynamic`, whose angles change with the length of the batch",
        ),
        (
            "esm",
            {"vocab_size": 9},
            ("it defines no padding token (`pad_token_id`) or mask token (`mask_token_id`)"),
        ),
        (
            "esm",
            {"vocab_size": 9, "pad_token_id": 0, "token_dropout": True},
            "it defines no padding token (`pad_token_id`) or mask token (`mask_token_id`)",
        ),
        ("roformer", {"rotary_value": True}, "it also rotates values (`rotary_value`)"),
        ("megatron-bert", {"is_decoder": True}, "it is a decoder with causal attention"),
        (
            "gte",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 9.0}},
            "its rotary embedding is of the type `dynamic`, whose angles change with the length of the batch",
        ),
        ("distilbert", {"dim": 30, "n_heads": 4}, "`distilbert` with a width of 30 cannot have 4 heads"),
        ("distilbert", {"n_heads": 0}, "`distilbert` with a width of 768 cannot have 0 heads"),
    ],
)
def test_a_refused_configuration_says_why(name, options, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        family_for_name(name).describe(name, options)
    assert reason in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.spread(alike=True)
@every_text
def test_every_tensor_has_a_place(variant):
    """Blocks have heads, MLP and norms; outside are embedding, readout and classifier."""
    sample = base(variant)
    places = {name: position_of(sample.family, name) for name in sample.state}
    assert {p.part for p in places.values()} >= {"embed", "head", "attention", "mlp", "norm"}
    assert all((p.layer is None) == (p.part in {"embed", "readout", "head"}) for p in places.values())
    inside = {name: name.partition(".")[2].lower() for name in places if places[name].layer is not None}
    norms = {name for name, rest in inside.items() if "norm" in rest}
    assert all(places[name].part == "norm" for name in norms)
    assert len({p.layer for p in places.values()} - {None}) == 3
    assert all(
        (places[name].heads is not None) == (sample.state[name].shape != sample.pruned((), (), ()).state[name].shape)
        for name in places
    )  # fmt: skip


@pytest.mark.spread(alike=True)
@every_text
def test_costs_are_counted_without_weights(variant):
    """On the meta device, with parameters that require gradients."""
    header, family = base(variant).header, base(variant).family
    empty = family.build(header.architecture, header.masks[0], None).to("meta")
    found = count_macs(empty, blank_inputs(header.preprocess, 2, device="meta"))
    assert found == count_macs(base(variant).model(), blank_inputs(header.preprocess, 2, device="cpu"))


@pytest.mark.parametrize(
    "reference",
    [
        "arch:modernbert::vocab_size=61",
        "arch:deberta-v2::vocab_size=9,hidden_act=nothing",
        "arch:mpnet::vocab_size=1",
    ],
)
def test_what_the_library_cannot_build_is_said_in_words(reference):
    """A padding token outside the vocabulary, and an unknown activation."""
    small = ",hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16"
    with pytest.raises(UsageError, match="transformers cannot build `") as caught:
        open_model(reference + small)
    assert caught.value.exit_code == 2


@pytest.mark.spread(
    families=[
        "transformers-bert",
        "transformers-deberta",
        "transformers-modernbert",
        "transformers-roformer",
    ],
    every=12,
)
@every_text
@pytest.mark.parametrize("part", ["embed", "attention", "norm", "mlp"])
@torch.inference_mode()
def test_a_hydra_of_members_that_differ_in_one_part(tmp_path, variant, part):
    """Shared heads receive the embedding's output for each member: relative positions and bias."""
    sample = base(variant)
    samples = [
        sample.pruned((0, 2, 3), (1,), (0, 1)).tuned(
            i, only=lambda n: position_of(sample.family, n).part == part
        )
        for i in range(3)
    ]
    paths = tuple(str(one.save(tmp_path / f"{i}.st")) for i, one in enumerate(samples))
    run_fuse(FuseConfig(models=paths, out=tmp_path / "h.st", mlp="keep", verify=False))
    inputs = sample.inputs(batch=3)
    found = load(tmp_path / "h.st", dtype=torch.float64)(inputs).member_logits
    expected = torch.stack([one.model(torch.float64)(inputs) for one in samples])
    assert largest_difference(found, expected) <= 1e-10


@pytest.mark.more
@pytest.mark.newer
@every_family
@pytest.mark.spread(families=["transformers-deberta"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
def test_compiles(variant):
    """With two layers, because tracing takes time per layer."""
    options = variant.options | {"num_hidden_layers": 2}
    sample = base(Variant(variant.family, variant.name, variant.arch, options))
    hydra = Hydra([sample.pruned((0, 2), ()).model(), sample.model()]).eval()
    for model in (sample.model(), hydra):
        torch._dynamo.reset()
        with torch.inference_mode():
            found = torch.compile(model, backend="aot_eager", fullgraph=True)(sample.inputs())
            expected = model(sample.inputs())
        for a, b in zip(_all(found), _all(expected), strict=True):
            assert largest_difference(a, b) <= 1e-6


def _all(answer):
    return list(answer) if isinstance(answer, tuple) else [answer]
