"""Decoders of transformers: saved folders give the library's logits, for padding on either side."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.errors import UnsupportedModelError, UsageError
from hydractl.families.open_model import load_model, open_model, with_classifier
from hydractl.families.registry import family_for_name
from hydractl.families.tower import largest_difference
from hydractl.families.transformers.hf_models import REFUSED
from hydractl.heads.budget import HeadBudget
from hydractl.heads.masks import full_mask
from hydractl.manifest.head_mask import HeadImportance, HeadMask, TowerHeads, TowerImportance
from hydractl.pruning.strategies import Strategy
from hydractl.scoring.methods import METHODS
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from hydractl.training.recipe import Recipe
from support.builders import Sample, base, over_classes
from support.text_folders import WORDS, edit_config, save_text_model, save_tokenizer
from support.variants import VARIANTS, variant

DECODERS = [
    v for v in VARIANTS if v.family == "transformers-decoder" and v.name not in {"mean-pool", "one-logit"}
]
every_decoder = pytest.mark.parametrize("one", DECODERS, ids=str)
LLAMA, SHARED = variant("transformers-decoder-llama"), 2
PAD = 0


def texts(lengths, *, left=False, ends_with_pad=False):
    """Return texts (B, T) of these lengths. The last token may be the padding token."""
    width = max(lengths) + 2
    ids = torch.randint(1, 61, (len(lengths), width), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    if ends_with_pad:
        ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = PAD
    ids = ids.masked_fill(~mask, PAD)
    if left:
        ids, mask = (
            torch.stack([row.roll(width - n) for row, n in zip(x, lengths, strict=True)]) for x in (ids, mask)
        )
    return {"input_ids": ids, "attention_mask": mask.long()}


def folder_model(one, folder, dtype):
    """Return the library's model of a folder and hydractl's, in a dtype."""
    save_text_model(one, folder)
    kind = "Token" if one.name == "tokens" else "Sequence"
    library = getattr(transformers, f"AutoModelFor{kind}Classification").from_pretrained(folder, dtype=dtype)
    return library.eval(), load_model(open_model(str(folder)), dtype=dtype)


@pytest.mark.spread(cases=8)
@every_decoder
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@torch.inference_mode()
def test_equals_the_library_to_the_last_bit(tmp_path, one, dtype):
    library, model = folder_model(one, tmp_path / "m", dtype)
    for left in (False, True):
        for ends_with_pad in (False, True):
            inputs = texts((9, 3, 6), left=left, ends_with_pad=ends_with_pad)
            found, expected = model(inputs), over_classes(library(**inputs).logits)
            if one.name == "tokens":
                found, expected = (x[inputs["attention_mask"].bool()] for x in (found, expected))
            assert torch.equal(found, expected)
            assert expected[0].abs().max() > 1e-3


@torch.inference_mode()
def test_the_last_token_is_found_where_the_library_takes_padding_for_text():
    """Texts are padded with another token than the configuration's.

    The library is right only for single texts without padding.
    """
    sample = base(LLAMA)
    inputs, lengths = texts((9, 3, 6)), (9, 3, 6)
    other = inputs["input_ids"].where(inputs["attention_mask"].bool(), 5)
    found, library = sample.model()(inputs | {"input_ids": other}), sample.library()
    alone = [library({name: x[i : i + 1, :n] for name, x in inputs.items()}) for i, n in enumerate(lengths)]
    assert largest_difference(found, torch.cat(alone)) <= 1e-6
    assert largest_difference(library(inputs | {"input_ids": other}), torch.cat(alone)) > 1e-3


def test_a_key_head_goes_with_its_last_query_head():
    member = base(LLAMA).pruned((0, 1, 3), (2, 3), (1,))
    layers = "model.layers.{}.self_attn.{}_proj.{}"
    for layer, (heads, keys) in enumerate([((0, 1, 3), (0, 1)), ((2, 3), (1,)), ((1,), (0,))]):
        for part, kept in (("q", heads), ("k", keys), ("v", keys)):
            for kind in ("weight", "bias"):
                name = layers.format(layer, part, kind)
                whole = base(LLAMA).state[name].unflatten(0, (-1, 8))
                assert torch.equal(member.state[name], whole[list(kept)].flatten(0, 1))


def written_out(sample):
    """Return the same model with separate keys and values for each query head."""
    architecture = sample.header.architecture
    towers = {
        name: TowerHeads(**t.model_dump() | {"key_heads": None}) for name, t in architecture.towers.items()
    }
    own_keys = architecture.model_copy(
        update={"towers": towers, "config": architecture.config | {"num_key_value_heads": 4}}
    )
    header = sample.header.model_copy(update={"architecture": own_keys, "masks": (full_mask(towers),)})
    return Sample(
        header,
        {
            name: x.unflatten(0, (-1, 8)).repeat_interleave(SHARED, 0).flatten(0, 1)
            if ".k_proj." in name or ".v_proj." in name
            else x
            for name, x in sample.state.items()
        },
    )


@torch.inference_mode()
def test_keys_written_out_are_the_same_model():
    sample = base(LLAMA)
    inputs = sample.inputs(dtype=torch.float64)
    expected = sample.model(torch.float64)(inputs)
    assert largest_difference(written_out(sample).model(torch.float64)(inputs), expected) <= 1e-12


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_model_with_its_keys_written_out(tmp_path, method):
    """Importance equals that of the same model without shared keys."""
    save_tokenizer(tmp_path)
    data = tmp_path / "data.jsonl"
    words = WORDS[4:]
    lines = [
        {"text": " ".join(words[(i * k) % 6] for k in range(1, 3 + i % 5)), "label": i % 7} for i in range(21)
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tables = []
    for name, sample in (("shared", base(LLAMA)), ("own", written_out(base(LLAMA)))):
        sample.library().save_pretrained(tmp_path / name)
        save_tokenizer(tmp_path / name)
        needs = {"data": str(data)} if METHODS[method].needs_data else {}
        more = {"given": {"objective": "nll"}} if method == "circuit" else {}
        run_score(
            ScoreConfig(
                model=str(tmp_path / name), out=tmp_path / f"{name}.json", method=method, **needs, **more
            )
        )
        tables.append(torch.tensor(HeadImportance.read(tmp_path / f"{name}.json").tables["text"]))
    shared, own = tables
    assert shared.shape == (3, 4)
    assert torch.allclose(shared, own, rtol=1e-3, atol=1e-6)
    assert shared.unique().numel() > 4


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("llama", {}, "its config.json has no `pad_token_id`"),
        ("gemma", {"use_bidirectional_attention": True}, "its attention is not causal"),
        (
            "qwen2",
            {
                "pad_token_id": 0,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 9.0},
            },
            "its rotary embedding is of the type `dynamic`, whose angles change with the length of the batch",
        ),
        ("mistral", {"pad_token_id": 0, "num_key_value_heads": 5}, "32 heads cannot share 5 key heads"),
    ],
)
def test_a_refused_configuration_says_why(name, options, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        family_for_name(name).describe(name, options)


def test_a_folder_without_a_padding_token_says_what_to_type(tmp_path):
    save_text_model(LLAMA, tmp_path / "m")
    edit_config(tmp_path / "m", pad_token_id=None)
    with pytest.raises(
        UnsupportedModelError, match=r"`model\.config\.pad_token_id = tokenizer\.eos_token_id`"
    ):
        open_model(str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gemma2", "soft caps"), ("mixtral", "experts"), ("deepseek_v3", "latent"), ("smollm3", "no positions"),
        ("t5", "encoder and decoder"),
    ],
)  # fmt: skip
def test_other_decoders_are_refused_by_name(kind, reason):
    assert reason in REFUSED[kind]
    with pytest.raises(UnsupportedModelError, match=f"models of type `{kind}` are not supported"):
        family_for_name(kind)


def test_headers_say_how_many_heads_keys_have():
    (tower,) = base(LLAMA).header.architecture.towers.values()
    assert (tower.num_heads, tower.key_heads, tower.sharing) == (4, 2, 2)
    (own,) = base(variant("transformers-decoder-llama-own-keys")).header.architecture.towers.values()
    assert "key_heads" not in own.model_dump()


def language_model(folder, model_class, *, pads=True, tied=True):
    """Write a bf16 language model without `pad_token_id`, and return its tensors. Texts end with [SEP]."""
    config = transformers.LlamaConfig(
        vocab_size=10,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5000000},
    )
    torch.manual_seed(0)
    library = model_class(config).to(torch.bfloat16)
    library.save_pretrained(folder)
    save_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    settings = {k: v for k, v in json.loads(path.read_text()).items() if pads or k != "pad_token"}
    path.write_text(json.dumps(settings | {"eos_token": "[SEP]"}))
    return library.state_dict()


LANGUAGE_MODELS = {
    "tied": {"model_class": transformers.LlamaForCausalLM},
    "own-output": {"model_class": transformers.LlamaForCausalLM, "tied": False},
    "base": {"model_class": transformers.LlamaModel},
    "padded-with-the-end": {"model_class": transformers.LlamaForCausalLM, "pads": False},
}


@pytest.mark.parametrize("options", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
def test_a_language_model_is_a_backbone(tmp_path, options):
    stored = language_model(tmp_path / "m", **options)
    with pytest.raises(UnsupportedModelError, match="which is not a classifier"):
        open_model(str(tmp_path / "m"))

    model_file = open_model(str(tmp_path / "m"), backbone=True)

    assert model_file.header.architecture.config["pad_token_id"] == (0 if options.get("pads", True) else 3)
    found = with_classifier(model_file, 3).checkpoint.tensors()
    kept = {name: x for name, x in stored.items() if name != "lm_head.weight"}
    kept = {name if name.startswith("model.") else f"model.{name}": x for name, x in kept.items()}
    assert {*found} == {*kept, "score.weight"}
    assert all(torch.equal(found[name], x) for name, x in kept.items())


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_in_bf16_are_tuned_as_single_precision_and_stay_bf16(tmp_path, precision):
    """Steps too small for bf16 add up in float32 master weights. Recomputed activations change nothing."""
    language_model(tmp_path / "m", transformers.LlamaForCausalLM)
    data = tmp_path / "data.jsonl"
    lines = [{"text": " ".join(["cat" if i % 2 else "mat"] * (1 + i % 5)), "label": i % 2} for i in range(32)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tensors = []
    for recomputes in (False, True):
        out = tmp_path / f"{recomputes}.st"
        recipe = Recipe(epochs=8, lr=(2e-5,), precision=precision, batch_size=4)
        report = run_finetune(
            FinetuneConfig(
                model=str(tmp_path / "m"), train=DataRef.parse(str(data)), val=DataRef.parse(str(data)), out=out,
                recipe=recipe, gradient_checkpointing=recomputes,
            )
        )  # fmt: skip
        tensors.append(Checkpoint.open(out).tensors())
    plain, recomputed = tensors
    assert {x.dtype for x in plain.values()} == {torch.bfloat16}
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)
    name = "model.layers.0.self_attn.k_proj.weight"
    before = load_file(tmp_path / "m" / "model.safetensors")[name]
    large = before.abs() >= 2**-6  # half a unit in the last place is 6e-5, three steps of Adam
    assert (plain[name] != before)[large].any()
    assert report.step == 64


@pytest.fixture
def scored(tmp_path):
    """A saved model with two query heads per key head, and head importance.

    The best heads of a layer are in different groups.
    """
    model = base(LLAMA).save(tmp_path / "base.st")
    run_score(ScoreConfig(model=str(model), out=tmp_path / "s.json", method="random"))
    scores = HeadImportance.read(tmp_path / "s.json")
    table = ((0.9, 0.0, 0.5, 0.5), (0.1, 0.2, 0.8, 0.0), (0.3, 0.9, 0.9, 0.2))
    changed = scores.model_copy(update={"towers": {"text": TowerImportance(scores=table)}})
    (tmp_path / "s.json").write_text(changed.to_json())
    return {"model": str(model), "scores": (tmp_path / "s.json",), "whole_groups": True}


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("options", "keep"),
    [
        ({"budget": HeadBudget(remove=4)}, ((0, 1, 2, 3), (), (0, 1, 2, 3))),
        ({"budget": HeadBudget(keep_per_layer=2)}, ((2, 3), (), (0, 1, 2, 3))),
        ({"budget": HeadBudget(keep_per_layer=2), "per_layer": True}, ((2, 3), (2, 3), (0, 1))),
        ({"budget": HeadBudget(keep_fraction=0.5)}, ((2, 3), (), (0, 1, 2, 3))),
    ],
)
def test_whole_groups_go_by_their_mean_score(tmp_path, scored, options, keep):
    """Mean importance of the groups: 0.45 and 0.5; 0.15 and 0.4; 0.6 and 0.55."""
    run_prune(PruneConfig(out=tmp_path / "m.st", **scored, **options))
    mask = HeadMask.read(tmp_path / "m.mask.json")
    assert mask.towers["text"].keep == keep
    assert mask.origin.budget["whole_groups"] is True


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("strategy", ["sample", "random"])
def test_members_of_whole_groups(tmp_path, scored, strategy):
    options = {"strategy": Strategy(strategy), "members": 3, "budget": HeadBudget(remove=4), "seed": 1}
    options |= {} if strategy == "random" else {"pool": 8}
    if strategy == "random":
        del scored["scores"]
    run_prune(PruneConfig(out=tmp_path / "m-{i}.st", **scored, **options))
    keeps = [HeadMask.read(tmp_path / f"m-{i}.mask.json").towers["text"].keep for i in range(3)]
    assert len({*keeps}) == 3
    for keep in keeps:
        assert sum(map(len, keep)) == 8
        assert all(set(heads) == {h ^ 1 for h in heads} for heads in keep)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"budget": HeadBudget(remove=3)},
            "`--remove 3`: is no number of whole groups, as 2 heads share keys",
        ),
        ({"budget": HeadBudget(remove=4), "pool": 7}, "`--pool 7`: is no number of whole groups"),
        ({"auto": True}, "`--whole-groups` requires a number of heads"),
    ],
)
def test_numbers_that_are_not_of_whole_groups(tmp_path, scored, options, message):
    with pytest.raises(UsageError, match=message):
        run_prune(PruneConfig(out=tmp_path / "m.st", **scored, **options))
    own = base(variant("transformers-decoder-llama-own-keys")).save(tmp_path / "own.st")
    with pytest.raises(UsageError, match=r"each head of .*own\.st has keys of its own"):
        run_prune(PruneConfig(model=str(own), out=tmp_path / "m.st", strategy=Strategy.RANDOM,
            budget=HeadBudget(remove=4), whole_groups=True))  # fmt: skip
